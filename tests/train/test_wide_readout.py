"""The loss over thousands of classes: PyTorch's values and gradients, and no tensor of (rows, classes)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast
from helpers.noisy_run import stream
from holdfast.tasks import Batch
from holdfast.train import ModelSettings, SequenceModel, Training, build, evaluate, fit, wide_readout
from holdfast.train import model as model_module
from holdfast.train.log import read_log
from holdfast.train.metrics import Scores, loss_sum
from holdfast.train.wide_readout import Unread, linear_cross_entropy


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sampled_from([1, 3, 511, 512, 513, 1100]),
    classes=st.integers(1, 40),
    features=st.integers(1, 6),
    bias=st.booleans(),
    weighted=st.booleans(),
    spread=st.sampled_from([0.1, 3.0, 300.0]),
    seed=st.integers(0, 10**6),
)
def test_values_and_gradients_are_pytorchs(rows, classes, features, bias, weighted, spread, seed):
    torch.manual_seed(seed)
    hidden = (spread * torch.randn(rows, features)).requires_grad_()
    readout, targets = nn.Linear(features, classes, bias=bias), torch.randint(0, classes, (rows,))
    weights = torch.rand(classes) if weighted else None
    leaves, scale = [hidden, *readout.parameters()], torch.randn(())
    ours = linear_cross_entropy(hidden, readout.weight, readout.bias, targets, weights)
    theirs = nn.functional.cross_entropy(readout(hidden), targets, weight=weights, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    got, expected = (torch.autograd.grad(loss * scale, leaves) for loss in (ours, theirs))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9 * spread)


@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_that_are_asked_for_are_made(wanted):
    hidden, readout, targets = torch.randn(5, 3), nn.Linear(3, 7), torch.randint(0, 7, (5,))
    leaves = [hidden, readout.weight.detach(), readout.bias.detach()]
    leaves[wanted].requires_grad_()
    loss = linear_cross_entropy(*leaves, targets)
    held = [own is not None for own in loss.grad_fn.saved_tensors]
    assert held == [place == wanted for place in range(3)]
    expected = nn.functional.cross_entropy(nn.functional.linear(*leaves), targets, reduction="sum")
    torch.testing.assert_close(torch.autograd.grad(loss, leaves[wanted]), torch.autograd.grad(expected, leaves[wanted]))


def test_a_second_derivative_is_refused():
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([0, 1, 2, 3])).square()
    (grad,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_nan_and_infinity_are_not_hidden():
    hidden, weight = torch.tensor([[torch.nan], [1.0]]), torch.ones(3, 1)
    assert linear_cross_entropy(hidden, weight, None, torch.tensor([0, 0])).isnan()
    plain = nn.functional.cross_entropy(torch.tensor([[torch.inf, 0.0]]), torch.tensor([0]), reduction="sum")
    ours = linear_cross_entropy(torch.ones(1, 1), torch.tensor([[torch.inf], [0.0]]), None, torch.tensor([0]))
    assert plain.isnan() == ours.isnan()


@torch.no_grad()
def test_ignored_targets_count_neither_in_the_loss_nor_in_the_accuracy():
    hidden, readout = torch.randn(6, 2, 3), nn.Linear(3, 9)
    targets = torch.randint(0, 9, (6, 2))
    targets[4:] = -100
    batch, sums = Batch(torch.zeros(6, 2), targets), []
    for answers in (Unread(hidden, readout), readout(hidden)):
        scores = Scores("cross_entropy", "perplexity")
        scores.add(answers, batch)
        sums.append(scores.sums)
        assert loss_sum("cross_entropy", answers, batch).item() == pytest.approx(scores.sums[0].item())
    torch.testing.assert_close(*sums)


def test_a_training_with_many_classes_is_the_plain_one_to_rounding(tmp_path, monkeypatch):
    """The same run with the readout written out and not: losses, scores and weights agree, and the way is taken."""
    taken, results = [], {}
    plain = Unread.cross_entropy
    monkeypatch.setattr(Unread, "cross_entropy", lambda *args: taken.append(1) or plain(*args))
    for wide in (1, 10**9):
        monkeypatch.setattr(model_module, "WIDE", wide)
        task = stream()
        torch.manual_seed(0)
        model = build(ModelSettings("rnn", 6, embedding=4, options={"backend": "reference"}), task.spec)
        training = Training(epochs=2, batch=4, carry_state=True, evaluate_every=5)
        fit(model, task, training, tmp_path / str(wide), progress=False)
        log = read_log(tmp_path / str(wide) / "log.jsonl")
        results[wide] = [entry["validation"] for entry in log], evaluate(model, task, "validation"), len(taken)
    assert results[1][2] > 0
    assert results[1][2] == results[10**9][2]
    for ours, theirs in zip([*results[1][0], results[1][1]], [*results[10**9][0], results[10**9][1]], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_no_tensor_of_all_logits_is_made(monkeypatch):
    """2,000 rows of 3,000 classes are 6 million logits; the largest tensor that either direction makes is a block's."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, (tuple, list)) else (out,):
                largest = max(largest, one.numel() if isinstance(one, torch.Tensor) else 0)
            return out

    model = SequenceModel(holdfast.RNN(2, 4, backend="reference"), nn.Linear(4, 3000), every_step=True)
    xs, targets = torch.randn(20, 100, 2), torch.randint(0, 3000, (20, 100))
    with Watch():
        answers, _ = model(xs, unread=True)
        answers.cross_entropy(targets, None, -100).backward()
    assert model.wide
    assert largest == wide_readout.BLOCK * 3000
