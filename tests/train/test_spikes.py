"""spikes = "rewind": what a spike of the loss undoes, and that a run with spikes resumes to the same bits."""

import math
import os
import signal

import pytest
import torch
from torch import nn

from helpers.noisy_run import stream
from helpers.path_graphs import random_model
from holdfast.errors import DivergedError, Interrupted, SettingError
from holdfast.runs.measured import measured_run
from holdfast.tasks import Addition
from holdfast.train import OPTIMISERS, LRSchedule, ModelSettings, Training, build, fit, spikes
from holdfast.train.log import read_log
from holdfast.train.optimisers import build_optimiser
from holdfast.train.spikes import Rewind

FILES = ("last.safetensors", "best.safetensors", "log.jsonl")


class Poisoned:
    """Addition, but some of its training batches have inputs of any size."""

    def __init__(self, at, size=1e4):
        self.task, self.at, self.size = Addition(steps=6, validation=32).load(), at, size

    def __getattr__(self, name):
        return getattr(self.task, name)

    def train_batch(self, index, batch_size, seed):
        batch = self.task.train_batch(index, batch_size, seed)
        if index in self.at:
            batch.inputs.mul_(self.size)
        return batch


def run(at, *, size=1e4, **settings):
    task = Poisoned(at, size)
    torch.manual_seed(0)
    model = build(ModelSettings("rnn", 6, options={"nonlinearity": "relu", "backend": "reference"}), task.spec)
    return model, task, Training(**{"updates": 70, "batch": 4, "lr": 1e-2, "evaluate_every": 10, **settings})


def test_a_spike_puts_back_weights_and_optimiser_of_20_to_40_updates_before():
    model = nn.Linear(2, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    rewind, weights = Rewind(model, optimiser), []
    for update in range(75):
        assert rewind.accepts(1.0 + update % 2)
        weights.append(model.weight.detach().clone())
        model.zero_grad()
        model(torch.randn(3, 2)).square().mean().backward()
        optimiser.step()
    assert not rewind.accepts(100.0)
    assert torch.equal(model.weight, weights[39])  # copies were made before updates 40 and 60: the older of the two
    assert optimiser.state[model.weight]["step"] == 39
    assert (rewind.count, rewind.factor) == (1, 0.7)
    assert rewind.mean == pytest.approx(1.5, abs=0.05)  # without the spike
    assert rewind.accepts(29.0)
    assert not rewind.accepts(float("nan"))
    assert torch.equal(model.weight, weights[0])  # a second spike goes two copies further back
    assert not rewind.accepts(float("inf"))
    assert not rewind.accepts(1e3)
    assert torch.equal(model.weight, weights[0])  # and no further than the start


OPTIONS = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "adam": {"amsgrad": True},
    "rmsprop": {"centered": True, "momentum": 0.9},
    "path-sgd": {"steps": 5, "relative": True, "momentum": 0.9},
    "path-adam": {"steps": 5, "every": 3},
    "path-adam, invariant": {"steps": 5, "invariant": True, "every": 3},
    "path-adam, measured": {"steps": 5, "invariant": True, "recurrent": "measured"},
    "adam, projected": {"project": {"rate": 0.9}},
}


@pytest.mark.parametrize("name", dict.fromkeys([*OPTIMISERS, *OPTIONS]))
def test_a_run_after_a_spike_is_the_run_that_never_saw_what_was_undone(name):
    """For every optimiser, with all that it remembers: 39 updates, 36 that a spike undoes and 9 more are 39 and 9.

    In one update of three the readout's bias has no gradient, so that an optimiser with phases is in the other one.
    """
    own = name.split(",", maxsplit=1)[0]
    numbers = [*range(39), *range(100, 136), *range(39, 48)]
    weights = {}
    for undone in (True, False):
        torch.manual_seed(0)
        model = random_model(2, 4, 1)
        optimiser = build_optimiser(own, model, 1e-3, OPTIONS.get(name, {}))
        rewind = Rewind(model, optimiser)
        for place, number in enumerate(numbers):
            if undone:
                assert place != 75 or not rewind.accepts(math.inf)
                assert rewind.accepts(1.0)
            elif 39 <= place < 75:
                continue
            optimiser.zero_grad()
            batch = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(number))
            model(batch).square().mean().backward()
            if number % 3 == 0:
                model.readout.bias.grad = None
            optimiser.step()
        weights[undone] = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert weights[True].isfinite().all()
    assert torch.equal(weights[True], weights[False])


def test_an_evaluation_that_is_not_finite_puts_weights_back_and_drops_the_carried_state(tmp_path):
    """The state was made by the weights that are gone: the update after it starts from none, as after a spike."""
    task, carried = stream(), []
    model = build(ModelSettings("rnn", 6, options={"backend": "reference"}), task.spec)
    plain = model.forward

    def seen(inputs, lengths=None, state=None, **way):
        if model.training:
            carried.append(state is not None)
            return plain(inputs, lengths, state, **way)
        answers, state = plain(inputs, lengths, state, **way)
        return (answers * math.nan if len(carried) == 8 else answers), state

    model.forward = seen
    training = Training(updates=12, batch=4, carry_state=True, evaluate_every=4, spikes="rewind")
    outcome = fit(model, task, training, tmp_path, progress=False)
    assert outcome.rewinds == 1
    assert task.epoch(4) > 12
    assert carried == [False, *[True] * 7, False, *[True] * 3]


@pytest.mark.parametrize("size", [1e4, float("nan")], ids=["large", "not finite"])
def test_a_run_passes_a_bad_batch_and_counts_it(size, tmp_path):
    outcome = fit(*run({50}, size=size, spikes="rewind"), tmp_path / "a", progress=False)
    assert (outcome.status, outcome.updates, outcome.rewinds, outcome.skipped) == ("finished", 70, 1, 0)
    log = read_log(tmp_path / "a" / "log.jsonl")
    assert [entry["rewinds"] for entry in log] == [0] * 5 + [1] * 2
    assert log[4]["lr"] == 1e-2
    assert log[5]["lr"] == pytest.approx(0.7 * 1e-2 * 1.001**8, rel=1e-12)
    assert max(entry["validation"]["mse"] for entry in log) < 1.0
    allowed = fit(*run({50}, size=1e4), tmp_path / "b", progress=False)
    assert allowed.rewinds == 0
    assert "rewinds" not in read_log(tmp_path / "b" / "log.jsonl")[0]


def test_a_run_without_spikes_is_the_run_without_protection(tmp_path):
    for name in ("allow", "rewind"):
        fit(*run(set(), spikes=name), tmp_path / name, progress=False)
    scores = [[entry["validation"] for entry in read_log(tmp_path / n / "log.jsonl")] for n in ("allow", "rewind")]
    assert scores[0] == scores[1]


def _interrupted(folder, stop, **settings):
    def pull(update):
        if update == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(*run({50, 52}, spikes="rewind", checkpoint_seconds=1e9, **settings), folder, progress=False, watch=pull)
    return fit(*run({50, 52}, spikes="rewind", checkpoint_seconds=1e9, **settings), folder, progress=False)


@pytest.mark.parametrize("stop", [47, 51])
def test_a_run_with_spikes_resumes_to_the_same_bits(stop, tmp_path):
    """Stopped before the spike, when the copies are in memory alone, and between two spikes."""
    settings = {"optimiser": "path-adam", "options": {"steps": 6, "invariant": True}, "schedule": LRSchedule(warmup=9)}
    outcome = _interrupted(tmp_path / "stopped", stop, **settings)
    alone = fit(*run({50, 52}, spikes="rewind", checkpoint_seconds=1e9, **settings), tmp_path / "alone", progress=False)
    assert outcome.rewinds == alone.rewinds == 2
    for name in FILES:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_run_that_ends_in_spikes_has_all_of_them_in_its_numbers(tmp_path):
    """From update 43 on every batch is one, until it gives up: the last evaluation, after 40, has seen none."""
    made = run(range(42, 200), spikes="rewind", updates=200, evaluate_every=40)
    found = measured_run(tmp_path, lambda: fit(*made, tmp_path, progress=False))
    assert (found.status, found.curve["rewinds"]) == ("diverged", (0,))
    assert found.rewinds > 1
    assert f"put earlier weights back {found.rewinds} times" in found.reason


def test_weights_differ_when_the_copies_are_not_put_back(tmp_path, monkeypatch):
    """The comparison above can fail."""
    fit(*run({50, 52}, spikes="rewind", checkpoint_seconds=1e9), tmp_path / "alone", progress=False)
    monkeypatch.setattr(Rewind, "load_state_dict", lambda self, state: None)
    _interrupted(tmp_path / "stopped", 47)
    files = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("alone", "stopped")]
    assert files[0] != files[1]


def test_spikes_that_follow_one_another_go_back_ever_further_while_the_rate_keeps_a_floor():
    """A step too far may show a thousand updates later: every copy of the last moments is then past it."""
    model = nn.Linear(1, 1)
    rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for update in range(3000):
        nn.init.constant_(model.weight, update)
        assert rewind.accepts(1.0)
    ages = []
    while not ages or ages[-1] < 2000:
        assert not rewind.accepts(math.inf)
        ages.append(3000 - int(model.weight.item()))
    assert ages[:2] == [21, 61]  # one copy dropped, then two
    assert len(ages) <= 6
    assert ages == sorted(ages)
    for _ in range(10):
        assert not rewind.accepts(math.inf)
    assert rewind.factor == spikes.LEAST
    assert len(rewind.kept) == 1


def test_spikes_now_and_then_go_back_a_moment_and_many_of_them_a_long_way():
    """Between two spikes 100 updates are made: half of a spike is made up for, and the next goes back further."""
    for between, least, most in ((400, 20, 45), (100, 200, 3000)):
        model = nn.Linear(1, 1)
        rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for update in range(3000):
            nn.init.constant_(model.weight, update)
            assert rewind.accepts(1.0)
        for _ in range(12):
            for _ in range(between):
                nn.init.constant_(model.weight, model.weight.item() + 1)
                assert rewind.accepts(1.0)
            before = model.weight.item()
            assert not rewind.accepts(1e9)
        assert least <= before - model.weight.item() <= most


def test_few_copies_are_kept_however_long_the_run():
    model = nn.Linear(1, 1)
    rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    most = 0
    for _ in range(8000):
        rewind.accepts(1.0)
        most = max(most, len(rewind.kept))
    assert most <= 16


def test_a_run_with_more_spikes_than_calm_has_diverged_and_one_with_less_has_not():
    for between, diverged in ((20, True), (220, False)):
        model = nn.Linear(1, 1)
        rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(40):
            for _ in range(between):
                assert rewind.accepts(1.0)
            assert not rewind.accepts(1e9)
        assert rewind.diverged == diverged


def test_losses_just_below_a_spike_do_not_make_room_for_a_larger_one():
    model = nn.Linear(1, 1)
    rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1), at=1000.0)
    for _ in range(200):
        assert rewind.accepts(0.1)
    assert rewind.accepts(99.0)
    assert not rewind.accepts(150.0)  # the plain mean would now be 1.1, and a spike above 1,100


def test_what_was_learned_and_is_gone_comes_back():
    """One step too far makes no spike here: the loss goes from 0.01 to 0.1 and stays there."""
    model = nn.Linear(1, 1)
    rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1), at=1000.0)
    for update in range(400):
        nn.init.constant_(model.weight, update)
        assert rewind.accepts(0.01 if update % 2 else 0.02)
    accepted = 0
    while accepted < 10 * spikes.EVERY and rewind.accepts(0.1):
        nn.init.constant_(model.weight, -1.0)
        accepted += 1
    assert accepted < 2 * spikes.EVERY
    assert 340 <= model.weight.item() < 400
    assert rewind.mean == pytest.approx(0.015, abs=0.001)


def test_a_loss_that_varies_or_falls_or_begins_by_chance_with_a_small_one_is_left_alone():
    model = nn.Linear(1, 1)
    rewind = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1), at=1000.0)
    losses = [1e-3, *(torch.rand(3000, generator=torch.Generator().manual_seed(0)) ** 4).tolist()]
    assert all(rewind.accepts(loss / (1 + update / 100)) for update, loss in enumerate(losses))
    assert rewind.count == 0


def test_spikes_without_end_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(spikes, "ROW", 5)
    with pytest.raises(DivergedError, match=r"put earlier weights back 5 times up to update 35.*to 0\.2 of its value"):
        fit(*run(set(range(30, 70)), spikes="rewind"), tmp_path, progress=False)


def test_spike_at_says_what_a_spike_is(tmp_path):
    outcome = fit(*run({50}, size=30.0, spikes="rewind", spike_at=1e9, clip=1.0), tmp_path, progress=False)
    assert outcome.rewinds == 0
    with pytest.raises(SettingError, match="spike_at must be greater than 1, got 1"):
        Training(updates=1, spike_at=1)


def test_an_unknown_word_is_refused():
    with pytest.raises(SettingError, match="""spikes must be "allow" or "rewind", got 'undo'"""):
        Training(updates=1, spikes="undo")  # type: ignore[arg-type]
