"""The copying problem: what was said comes back after the delay, and nobody without memory beats the baseline."""

import math

import pytest
import torch

from holdfast.errors import SettingError
from holdfast.tasks import Copying


@pytest.mark.parametrize("delay", [1, 2, 30])
def test_what_was_said_is_asked_for_after_the_delimiter(delay):
    batch = Copying(delay=delay).load().train_batch(0, 50, seed=0)
    heard = batch.inputs.argmax(dim=-1)
    assert heard.shape == (delay + 20, 50)
    assert torch.equal(batch.inputs.sum(dim=-1), torch.ones(delay + 20, 50))  # one-hot
    said = heard[:10]
    assert ((said >= 1) & (said <= 8)).all()
    assert torch.equal(batch.targets[-10:], said)
    assert (batch.targets[:-10] == 0).all()
    assert (heard[10 : 10 + delay - 1] == 0).all()
    assert (heard[10 + delay - 1] == 9).all()  # the delimiter, 10 steps before the end
    assert (heard[-10:] == 0).all()


def test_the_baseline_is_the_loss_of_blanks_then_uniform_symbols():
    """10 log 8 / (T + 20), as the mean cross-entropy of exactly that answer."""
    task = Copying(delay=30).load()
    batch = task.train_batch(0, 20, seed=0)
    logits = torch.full((50, 20, 9), -torch.inf)
    logits[:40, :, 0] = 0
    logits[40:, :, 1:] = 0
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    torch.testing.assert_close(loss.item(), task.spec.baseline)
    torch.testing.assert_close(task.spec.baseline, 10 * math.log(8) / 50)


def test_every_symbol_is_said_equally_often():
    said = Copying(delay=1).load().train_batch(0, 4000, seed=0).targets[-10:]
    shares = said.flatten().bincount(minlength=9)[1:] / said.numel()
    torch.testing.assert_close(shares, torch.full((8,), 1 / 8), rtol=0, atol=0.01)  # 6 standard errors


def test_impossible_settings_are_refused():
    with pytest.raises(SettingError, match="delay = 0"):
        Copying(delay=0).load()
