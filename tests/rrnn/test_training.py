"""RRNN and RRNN-GRU in the common training loop: loss (6) is minimised, phases alternate, a stopped run goes on."""

import signal

import pytest
import torch
from torch import nn

from holdfast.errors import Interrupted, SettingError
from holdfast.tasks import Batch
from holdfast.tasks._base import Arrays, Sequences, Spec
from holdfast.train import ModelSettings, Training, build, fit

SPEC = Spec(5, 5, "cross_entropy", "bits", tokens=True, every_step=True)
LOSS = {"tree": 0.1, "margin": 0.2, "ridge": 0.01, "threshold": 0.5}


def task():
    rows = torch.randint(5, (12, 7), generator=torch.Generator().manual_seed(0))
    data = Sequences(rows[:, :-1], rows[:, 1:])
    return Arrays(SPEC, {"train": data, "validation": data})


def model(name, **options):
    torch.manual_seed(0)
    sizes = {"rounds": 2, "batch_norm": True} if name == "rrnn" else {"alternate": 1, "backend": "reference"}
    return build(ModelSettings(name, 4, options={"scorer": 6, "loss": LOSS, **sizes, **options}), SPEC)


@pytest.mark.parametrize("name", ["rrnn", "rrnn-gru"])
def test_the_loop_minimises_loss_6(name, tmp_path):
    """One step of gradient descent moves every weight by the gradient of task loss + penalty, written out."""
    ours, plain = model(name), model(name)
    fit(ours, task(), Training("sgd", lr=0.1, updates=1, batch=12), tmp_path, progress=False)
    batch: Batch = task().train_batch(0, 12, 0)
    plain.train()
    plain.at_epoch(0)
    answers, _ = plain(batch.inputs)
    (parts,) = plain.rnn.loss_parts(plain.readout.parameters())
    loss = nn.functional.cross_entropy(answers.flatten(0, 1), batch.targets.flatten())
    (loss + (0.1 * parts.tree + 0.2 * parts.margin + 0.01 * parts.ridge) / 6).backward()
    for (at, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        step = 0.0 if theirs.grad is None else 0.1 * theirs.grad
        torch.testing.assert_close(mine, theirs - step, msg=lambda text, at=at: f"{at}: {text}")


def test_one_answer_a_sequence_has_the_sum_over_steps():
    """(6) itself, where the task's loss is not a mean over steps."""
    last = build(ModelSettings("rrnn", 4, options={"rounds": 2, "scorer": 6, "loss": LOSS}), Spec(3, 2, "mse", "mse"))
    last(torch.randn(5, 2, 3))
    torch.testing.assert_close(last.penalty(), last.rnn.penalty(last.readout.parameters()))
    every = build(ModelSettings("rrnn", 4, options={"rounds": 2, "scorer": 6, "loss": LOSS}), SPEC)
    every(torch.randint(5, (6, 2)))
    torch.testing.assert_close(every.penalty(), every.rnn.penalty(every.readout.parameters()) / 6)


@pytest.mark.parametrize("name", ["gru", "rrnn-gru"])
def test_a_loss_per_sequence_is_the_sum_over_its_steps(name, tmp_path):
    """Six steps, so six times the gradient of the loss per answer; of (6) too, whose parts are not divided by them."""
    moved = []
    for per in ("answer", "sequence"):
        torch.manual_seed(0)
        options = {} if name == "gru" else {"scorer": 6, "loss": LOSS, "backend": "reference"}
        net = build(ModelSettings(name, 4, options=options), SPEC)
        before = [weight.detach().clone() for weight in net.parameters()]
        fit(net, task(), Training("sgd", lr=0.1, updates=1, batch=12, loss_per=per), tmp_path / per, progress=False)
        moved.append([now - then for now, then in zip(net.parameters(), before, strict=True)])
    for one, six in zip(*moved, strict=True):
        torch.testing.assert_close(six, 6 * one)
    with pytest.raises(SettingError, match="loss_per"):
        Training(updates=1, loss_per="step")


@pytest.mark.parametrize("every_step", [True, False])
def test_a_direct_readout_sees_the_input_of_its_step(every_step):
    """S1's q_t = g(x_t, h_t): with the weights of h at zero, answers are a function of the last token alone."""
    spec = Spec(5, 5, "cross_entropy", "bits", tokens=True, every_step=every_step)
    net = build(ModelSettings("gru", 4, embedding=3, direct=True), spec)
    with torch.no_grad():
        net.readout.weight[:, :4] = 0
    tokens, lengths = torch.randint(5, (6, 3)), torch.tensor([6, 2, 4])
    answers, _ = net(tokens, lengths)
    plain = net.embedding(tokens) @ net.readout.weight[:, 4:].mT + net.readout.bias
    if every_step:
        plain, answers = plain[:2], answers[:2]  # which no sequence is shorter than
    else:
        plain = plain[lengths - 1, torch.arange(3)]
        torch.testing.assert_close(
            net(tokens)[0], net.embedding(tokens[-1]) @ net.readout.weight[:, 4:].mT + net.readout.bias
        )
    torch.testing.assert_close(answers, plain)


def test_other_layers_have_no_penalty():
    plain = build(ModelSettings("gru", 4), SPEC)
    plain(torch.randint(5, (6, 2)))
    plain.at_epoch(3)
    assert plain.penalty() is None


@pytest.mark.parametrize("name", ["rrnn", "rrnn-gru"])
def test_a_stopped_run_ends_with_the_same_bits(name, tmp_path):
    """Stopped in the scorer's phase: three updates an epoch, and the signal comes in the second epoch."""

    def pull(update):
        if update == 4:
            signal.raise_signal(signal.SIGTERM)

    training = Training("adam", lr=0.01, epochs=4, batch=4)
    whole, parted, again = model(name), model(name), model(name)
    fit(whole, task(), training, tmp_path / "whole", progress=False)
    with pytest.raises(Interrupted):
        fit(parted, task(), training, tmp_path / "parted", progress=False, watch=pull)
    fit(again, task(), training, tmp_path / "parted", progress=False)
    for mine, theirs in zip(again.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
