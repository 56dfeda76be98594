"""The loop does what its settings say."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import signal

import pytest
import torch
from torch import nn

from helpers.noisy_run import noisy_run, stream
from holdfast.errors import DivergedError, Interrupted, SettingError
from holdfast.tasks import Addition, Arrays, Copying, Sequences, Spec
from holdfast.train import LRSchedule, ModelSettings, Training, build, evaluate, fit
from holdfast.train.checkpoint import load
from holdfast.train.log import read_log


def small(**settings):
    task = Addition(steps=8, validation=32).load()
    torch.manual_seed(0)
    return build(ModelSettings("sgornn", 8), task.spec), task, Training(**{"updates": 12, "batch": 8, **settings})


def test_updates_are_those_of_plain_pytorch(tmp_path):
    """Weights after n updates equal a loop written out, clipping and a linear schedule included, bit for bit."""
    model, task, training = small(
        optimiser="rmsprop", lr=1e-2, options={"alpha": 0.9}, clip=0.05, schedule=LRSchedule("linear"), seed=5
    )
    plain, *_ = small()
    optimiser = torch.optim.RMSprop(plain.parameters(), lr=1e-2, alpha=0.9)
    for update in range(12):
        batch = task.train_batch(update, 8, 5)
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - update / 12)
        optimiser.zero_grad()
        (plain(batch.inputs)[0] - batch.targets).square().sum().div(8).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        optimiser.step()
    fit(model, task, training, tmp_path, progress=False)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_that_was_killed_has_the_cpu_time_of_both_sittings(tmp_path, monkeypatch):
    """Ten seconds an update, killed in the fourth: three were saved, and nine more are made. No evaluation before."""
    spent = [0.0]
    monkeypatch.setattr("holdfast.train.log.time.process_time", lambda: spent[0])

    def work(update):
        spent[0] += 10
        if update == 4 and spent[0] == 40:
            raise KeyboardInterrupt

    def sitting():
        return fit(*small(checkpoint_seconds=0.0, evaluate_every=12), tmp_path, progress=False, watch=work)

    with pytest.raises(KeyboardInterrupt):
        sitting()
    spent[0] = 1000.0  # another process
    assert sitting().cpu_seconds == 30 + 90


def test_the_log_has_a_line_an_evaluation_and_the_outcome_says_what_was_best(tmp_path):
    outcome = fit(*small(evaluate_every=5), tmp_path, progress=False)
    log = read_log(tmp_path / "log.jsonl")
    assert [entry["update"] for entry in log] == [5, 10, 12]
    scores = [entry["validation"]["mse"] for entry in log]
    assert outcome.best == min(scores)
    assert outcome.best_update == log[scores.index(min(scores))]["update"]
    assert outcome.last["validation"]["mse"] == scores[-1]
    assert json.loads((tmp_path / "outcome.json").read_text())["parameters"] == outcome.parameters
    model, task, _ = small()
    from holdfast.train.checkpoint import load_model_

    load_model_(model, tmp_path / "best.safetensors")
    assert evaluate(model, task, "validation", 8)["mse"] == pytest.approx(min(scores), rel=1e-12)


def test_early_stopping_and_a_goal_end_a_run(tmp_path):
    outcome = fit(
        *small(lr=1e-30, updates=100, evaluate_every=2, patience=3, optimiser="sgd"), tmp_path / "a", progress=False
    )
    assert outcome.status == "stopped"
    assert outcome.updates < 100
    assert "No better mse in 3 evaluations" in outcome.reason
    outcome = fit(*small(updates=100, evaluate_every=2, stop_at=1e3), tmp_path / "b", progress=False)
    assert (outcome.status, outcome.updates) == ("stopped", 2)


def test_a_plateau_lowers_the_rate(tmp_path):
    """A rate too small to change any weight: no evaluation after the first is better, and every second cuts it."""
    fit(
        *small(lr=1e-30, optimiser="sgd", evaluate_every=1, schedule=LRSchedule("plateau", patience=2)),
        tmp_path,
        progress=False,
    )
    rates = [entry["lr"] for entry in read_log(tmp_path / "log.jsonl")]
    assert rates[:6] == pytest.approx([1e-30, 1e-30, 1e-30, 1e-31, 1e-31, 1e-32])


def test_a_plateau_of_the_loss_is_not_one_of_the_accuracy(tmp_path):
    """Small steps lower the loss at every evaluation and change no answer: only the accuracy is on a plateau."""
    task = Copying(delay=2, validation=8).load()
    task.spec = dataclasses.replace(task.spec, metric="accuracy")
    rates = {}
    for on in ("loss", "metric"):
        torch.manual_seed(0)
        schedule = LRSchedule("plateau", patience=1, factor=0.5, on=on)
        training = Training(updates=4, batch=64, optimiser="sgd", lr=1e-3, evaluate_every=1, schedule=schedule, seed=0)
        fit(build(ModelSettings("rnn", 8), task.spec), task, training, tmp_path / on, progress=False)
        log = read_log(tmp_path / on / "log.jsonl")
        assert len({entry["validation"]["accuracy"] for entry in log}) == 1
        losses = [entry["validation"]["loss"] for entry in log]
        assert all(after < before for before, after in itertools.pairwise(losses))
        rates[on] = [entry["lr"] for entry in log]
    assert rates["loss"] == [1e-3] * 4
    assert rates["metric"] == pytest.approx([1e-3, 1e-3, 5e-4, 2.5e-4])


def test_a_loss_that_is_no_number_stops_with_update_parameter_and_checkpoint(tmp_path):
    model, task, training = small(updates=10, checkpoint_seconds=0.0, optimiser="sgd", lr=1e200, evaluate_every=10)
    with pytest.raises(
        DivergedError, match=r"In update \d, the gradient of .* is not finite. The last good checkpoint is"
    ):
        fit(model, task, training, tmp_path, progress=False)
    assert json.loads((tmp_path / "outcome.json").read_text())["status"] == "diverged"
    with pytest.raises(DivergedError, match="In update"):  # and says so again
        fit(model, task, training, tmp_path, progress=False)


def test_such_updates_are_skipped_and_counted_when_asked(tmp_path):
    class Spoilt(Addition):
        def load(self):
            task = super().load()
            draw = task.draw

            def spoil(count, generator):
                batch = draw(count, generator)
                if count == 8 and batch.inputs[0, 0, 0] > 0.5:  # about every other training batch
                    batch.inputs[0, 0, 0] = math.nan
                return batch

            task.draw = spoil
            return task

    task = Spoilt(steps=8, validation=30).load()
    model = build(ModelSettings("sgornn", 8), task.spec)
    outcome = fit(model, task, Training(updates=12, batch=8, nonfinite="skip"), tmp_path, progress=False)
    assert 0 < outcome.skipped < 12
    assert outcome.updates == 12
    assert math.isfinite(outcome.last["validation"]["mse"])


def test_truncation_over_the_whole_length_changes_nothing_and_under_it_cuts_the_gradient(tmp_path):
    """With T = 8: pieces of 8 give the whole gradient; pieces of 3 give that of the last 2 steps from a fixed state."""
    weights = {}
    for truncation in (None, 8, 3):
        model, task, training = small(updates=1, truncation=truncation, optimiser="sgd", lr=1.0)
        fit(model, task, training, tmp_path / str(truncation), progress=False)
        weights[truncation] = nn.utils.parameters_to_vector(model.parameters())
    model, task, training = small()
    start = nn.utils.parameters_to_vector(model.parameters())
    batch = task.train_batch(0, 8, 0)
    with torch.no_grad():
        _, state = model(batch.inputs[:6])
    loss = (model(batch.inputs[6:], None, state.detach())[0] - batch.targets).square().mean()
    cut = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert torch.equal(weights[None], weights[8])
    torch.testing.assert_close(weights[3], start - cut)
    assert (weights[3] - weights[None]).abs().max() > 1e-6


def test_a_carried_state_is_that_of_the_whole_text(tmp_path):
    """Evaluated with a carried state, a text in windows has the loss of the text in one window; without, another."""
    task, whole = stream(), stream()
    whole.window = 1000
    model = build(ModelSettings("rnn", 6), task.spec)
    carried = evaluate(model, task, "validation", 1, carry_state=True)["bits"]
    assert carried == pytest.approx(evaluate(model, whole, "validation", 1)["bits"], rel=1e-12)
    assert carried != pytest.approx(evaluate(model, task, "validation", 1)["bits"], rel=1e-3)


def test_padding_counts_for_nothing():
    """A split scored in one padded batch and one sequence at a time: the same loss, for every kind of target."""
    lengths = torch.tensor([3, 5, 1, 4])
    xs = torch.randn(4, 5, 2)
    kinds = {
        "mse": (Spec(2, 3, "mse", "mse", every_step=True), torch.randn(4, 5, 3)),
        "cross_entropy": (
            Spec(2, 3, "cross_entropy", "accuracy", every_step=True),
            torch.randint(0, 3, (4, 5)).masked_fill(torch.arange(5) >= lengths[:, None], -100),
        ),
        "last": (Spec(2, 1, "binary_cross_entropy", "accuracy"), torch.randint(0, 2, (4, 1)).double()),
    }
    for spec, targets in kinds.values():
        task = Arrays(spec, {"train": Sequences(xs, targets, lengths)})
        model = build(ModelSettings("gru", 4, bidirectional=True), spec)
        one, four = (evaluate(model, task, "train", batch)["loss"] for batch in (1, 4))
        assert one == pytest.approx(four, rel=1e-12)
        noise = Arrays(
            spec, {"train": Sequences(xs + (torch.arange(5) >= lengths[:, None])[..., None], targets, lengths)}
        )
        assert evaluate(model, noise, "train", 4)["loss"] == pytest.approx(four, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": None, "epochs": 2}, "has no epochs; set updates"),
        ({"evaluate_on": ("validatoin",)}, "evaluate_on must name splits of the task .*, got 'validatoin'"),
        ({"carry_state": True}, "carry_state needs a task"),
        ({"optimiser": "adma"}, "unknown optimiser 'adma'; known: adagrad, adam"),
        ({"options": {"alpha": 0.9}}, "adam has no option 'alpha'; known: amsgrad, betas"),
        ({"options": {"betas": 3}}, "adam cannot be made with these options"),
    ],
)
def test_impossible_settings_are_refused_with_what_is_known(settings, message, tmp_path):
    model, task, training = small(**settings)
    with pytest.raises(SettingError, match=message):
        fit(model, task, training, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (ModelSettings("sgronn"), "unknown cell 'sgronn'; known: .*exprnn, fastgrnn"),
        (ModelSettings("sgornn", options={"recurent": "exp"}), "no option 'recurent'; known: .*recurrent"),
        (
            ModelSettings("sgornn", options={"gates": {"clip": "2alpha", "horizn": 3}}),
            "gates has no option 'horizn'; known: alpha_logit",
        ),
        (ModelSettings("sgornn", tied=True), "tied = true needs an embedding"),
    ],
)
def test_an_impossible_network_is_refused_with_what_is_known(network, message):
    with pytest.raises(SettingError, match=message):
        build(network, Addition(steps=8).load().spec)


@pytest.mark.parametrize("name", ["path-sgd", "path-adam"])
def test_our_optimisers_train_and_go_on_from_a_checkpoint(name, tmp_path):
    """κ is renewed every third update, so a checkpoint in between must hold it: both ways end with the same bits."""
    task = Addition(steps=8, validation=32).load()
    training = Training(updates=8, batch=8, lr=1e-3, optimiser=name, options={"steps": 8, "every": 3})

    def pull(update):
        if update == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    for folder, watch in (("stopped", pull), ("stopped", None), ("alone", None)):
        torch.manual_seed(0)
        model = build(ModelSettings("rnn", 6, options={"nonlinearity": "relu"}), task.spec)
        with contextlib.suppress(Interrupted):
            fit(model, task, training, tmp_path / folder, progress=False, watch=watch)
    one, other = (load(tmp_path / folder / "last.safetensors")["model"] for folder in ("stopped", "alone"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "stopped" / "log.jsonl").read_bytes() == (tmp_path / "alone" / "log.jsonl").read_bytes()


def test_a_time_limit_stops_a_run_with_an_evaluation(tmp_path):
    outcome = fit(*small(seconds=1e-9, evaluate_every=10), tmp_path, progress=False)
    assert (outcome.status, outcome.updates, outcome.best_update) == ("stopped", 1, 1)
    assert outcome.reason == "The 1e-09 seconds of training are over."
    assert fit(*small(seconds=1e-9, evaluate_every=10), tmp_path, progress=False) == outcome


def test_a_bidirectional_layer_is_not_truncated(tmp_path):
    task = Addition(steps=8).load()
    model = build(ModelSettings("rnn", 4, bidirectional=True), task.spec)
    with pytest.raises(SettingError, match="reads whole sequences"):
        fit(model, task, Training(updates=1, truncation=3), tmp_path, progress=False)


def test_any_module_of_the_same_shape_can_be_trained(tmp_path):
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.readout = nn.Linear(2, 1)

        def forward(self, inputs, lengths=None, state=None):
            return self.readout(inputs.mean(dim=0)), torch.zeros(1)

    _, task, training = small()
    assert fit(Mean(), task, training, tmp_path, progress=False).status == "finished"


def test_schedules_are_the_functions_they_say():
    linear = LRSchedule("linear", over=10)
    assert [linear.multiplier(update, 100) for update in (0, 5, 10, 20)] == [1.0, 0.5, 0.0, 0.0]
    step = LRSchedule("step", at=(0.5, 80), factor=0.5)
    assert [step.multiplier(update, 100) for update in (49, 50, 79, 80)] == [1.0, 0.5, 0.5, 0.25]
    for wrong in ({"kind": "cosine"}, {"kind": "step"}, {"factor": 0.0}, {"patience": 0}):
        with pytest.raises(SettingError):
            LRSchedule(**wrong)


def test_tokens_embedded_one_hot_and_tied_are_what_they_say():
    spec = stream().spec
    one_hot = build(ModelSettings("rnn", 4, embedding="one-hot"), spec)
    assert torch.equal(one_hot.embedding(torch.tensor([2])), torch.eye(7)[[2]])
    assert not one_hot.embedding.weight.requires_grad
    tied = build(ModelSettings("rnn", 4, tied=True), spec)
    assert tied.readout.weight is tied.embedding.weight
    vectors = torch.randn(7, 3)
    assert torch.equal(build(ModelSettings("rnn", 4), spec, vectors).embedding.weight, vectors)


def test_a_noisy_run_is_a_function_of_its_seed(tmp_path):
    ends = []
    for seed in (0, 0, 1):
        model, task, training = noisy_run(seed=seed, epochs=1)
        fit(model, task, training, tmp_path / str(len(ends)), progress=False)
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_a_model_reads_each_sequence_to_its_own_end():
    model = build(ModelSettings("sgornn", 4), Addition(steps=8).load().spec)
    xs, lengths = torch.randn(6, 3, 2), torch.tensor([2, 6, 4])
    answers, _ = model(xs, lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(answers[row], model(xs[:length, row : row + 1])[0][0])
