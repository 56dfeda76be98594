"""The addition problem: the answer is exact, and the best constant errs by 1/6."""

import pytest
import torch

from holdfast.errors import SettingError
from holdfast.tasks import Addition


@pytest.mark.parametrize("steps", [2, 3, 10, 51])
def test_one_step_is_marked_in_each_half_and_the_answer_is_their_sum(steps):
    batch = Addition(steps=steps).load().train_batch(0, 200, seed=0)
    numbers, marks = batch.inputs.unbind(dim=-1)
    assert torch.equal(marks[: steps // 2].sum(dim=0), torch.ones(200))
    assert torch.equal(marks[steps // 2 :].sum(dim=0), torch.ones(200))
    assert ((marks == 0) | (marks == 1)).all()
    torch.testing.assert_close((numbers * marks).sum(dim=0), batch.targets[:, 0], rtol=0, atol=1e-15)


def test_the_best_constant_answer_has_an_error_of_one_sixth():
    """Var(u + v) = 2/12; the mean over 20,000 draws lies within 4 standard errors, √(7/180) / √20000 each."""
    task = Addition(steps=2).load()
    y = task.train_batch(0, 20_000, seed=0).targets
    assert abs(float((y - 1).square().mean()) - task.spec.baseline) < 4 * (7 / 180 / 20_000) ** 0.5
    assert task.spec.baseline == 1 / 6


def test_the_three_class_form_counts_marked_bits():
    task = Addition(steps=7, form="three-class").load()
    batch = task.train_batch(0, 4000, seed=0)
    assert torch.equal(batch.inputs.prod(dim=-1).sum(dim=0).long(), batch.targets)
    shares = batch.targets.bincount(minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.5, 0.25]), rtol=0, atol=0.04)  # 5 standard errors
    assert task.spec.output_size == 3


def test_impossible_settings_are_refused():
    with pytest.raises(SettingError, match="at least 2 steps, got 1"):
        Addition(steps=1).load()
    with pytest.raises(SettingError, match="three-class"):
        Addition(form="product").load()
