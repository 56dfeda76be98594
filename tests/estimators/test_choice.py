"""The automatic choice: the reservoir first, a trained cell only if clearly better, every score shown."""

import itertools
import math

import pytest
import torch
from torch import nn

from holdfast.errors import SettingError
from holdfast.estimators import Choice, Journal, Score, automatic, baselines, fit_reservoir, fit_trained
from holdfast.estimators.trained import PLAIN, network_of, updates_within
from holdfast.tasks import Spec
from holdfast.train import ModelSettings, build


def noisy(n=60, steps=12):
    """Sequences whose class is half hidden in noise."""
    y = torch.arange(n) % 2
    return torch.randn(n, steps, 1) + 0.4 * y[:, None, None], torch.full((n,), steps), y


def test_every_score_is_shown_with_n_and_an_interval():
    x, lengths, y = noisy()
    said = []
    choice = automatic(x, lengths, y, classes=2, minutes=0, units=4, say=said.append)
    names = [score.name for score in choice.scores]
    assert names == ["reservoir", "most common", "nearest neighbour", "ridge on the raw series"]
    assert len(said) == 4
    for score in choice.scores:
        low, high = score.interval
        assert 0 <= low <= score.value <= high <= 1
        assert f"n = 60, {score.how}" in choice.summary()
    assert "* reservoir: accuracy" in choice.summary()
    assert "reservoir was chosen" in choice.summary()


@pytest.mark.parametrize(("better", "expected"), [(0.3, "gru"), (0.0, "reservoir")])
def test_a_trained_cell_is_chosen_only_if_it_is_clearly_better(monkeypatch, better, expected):
    """A cell that is told the answers to 30% of the sequences that the reservoir gets wrong, and one that is not."""
    x, lengths, y = noisy(100)
    _, left_out = fit_reservoir(x, lengths, y, classes=2, units=4)
    wrong = left_out.argmax(dim=1) != y
    told = wrong & (wrong.cumsum(dim=0) % 10 < 10 * better)
    answers = torch.where((wrong & ~told)[:, None], left_out, 2.0 * nn.functional.one_hot(y, 2))
    known = {row.numpy().tobytes(): answer for row, answer in zip(x, answers, strict=True)}

    def fit(*args, **kwargs):
        return lambda x, lengths: (torch.stack([known[row.numpy().tobytes()] for row in x.transpose(0, 1)]), ())

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", fit)
    monkeypatch.setattr("holdfast.estimators.choice.seconds_per_update", lambda *args, **kwargs: 1e-3)
    choice = automatic(x, lengths, y, classes=2, minutes=1, cells=("gru",), units=4)
    assert choice.name == choice.network.name == expected
    assert choice.scores[-2].name == PLAIN  # the baseline is as good, but never chosen
    assert choice.scores[-1].name == "gru"
    assert choice.scores[-1].n == 100


def test_without_time_no_cell_is_trained_and_a_perfect_reservoir_needs_no_rival(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("trained")

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", never)
    x, lengths, y = noisy()
    assert automatic(x, lengths, y, classes=2, minutes=0, units=4).name == "reservoir"
    x = x + 50 * y[:, None, None]
    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", lambda cell, *args, **kwargs: tried.append(cell) or 1)
    monkeypatch.setattr(
        "holdfast.estimators.choice._Search._answers", lambda self, model, rows: torch.zeros(len(rows), 2)
    )
    tried = []
    assert automatic(x, lengths, y, classes=2, minutes=5, units=4).scores[0].value == 1
    assert set(tried) == {PLAIN}  # shown all the same


def test_an_interval_is_wilsons():
    """8 of 10: 0.490 to 0.943 (Wilson, 1927)."""
    low, high = Score("x", "held out", torch.tensor([0.0] * 8 + [1.0] * 2), classes=True).interval
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


def test_baselines_leave_the_sequence_out():
    """Equal pairs: a neighbour is the twin, never the sequence itself; the mean is that of the others."""
    x = torch.tensor([0.0, 0.0, 5.0, 5.0, 9.0, 9.0])[:, None, None].expand(6, 3, 1)
    y = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    answers = baselines(x, y, classes=None)
    torch.testing.assert_close(answers["nearest neighbour"], y[[1, 0, 3, 2, 5, 4]].double())
    torch.testing.assert_close(answers["mean"], ((21 - y) / 5).double())


def test_a_model_that_knows_nothing_is_wrong_every_second_time():
    """Constant sequences and equal classes: without the shares of all sequences, every left-out answer is wrong."""
    x, y = torch.ones(40, 5, 1), torch.arange(40) % 2
    choice = automatic(x, torch.full((40,), 5), y, classes=2, minutes=0, units=4)
    for score in choice.scores:
        if score.name != "nearest neighbour":  # ties go to the first
            assert score.value == 0.5, score


def test_a_cell_learns_within_its_updates_and_reads_no_padding():
    y = torch.arange(32) % 2
    x, lengths = 0.3 * torch.randn(32, 10, 1) + y[:, None, None], torch.arange(32) % 5 + 5
    model = fit_trained("sgornn", x, lengths, y, classes=2, updates=40, hidden_size=8)
    outside = torch.arange(10) >= lengths[:, None]
    with torch.no_grad():
        z, _ = model(x.transpose(0, 1), lengths)
        torch.testing.assert_close(model(x.masked_fill(outside[..., None], 1e6).transpose(0, 1), lengths)[0], z)
    assert (z.argmax(dim=1) == y).float().mean() > 0.9


def test_a_pooled_readout_is_mean_last_and_largest_state():
    """Against the layer itself, one sequence at a time, in both directions."""
    model = build(network_of("rnn", 3), Spec(2, 1, "mse", "mse")).eval()
    x, lengths = torch.randn(6, 4, 2), torch.tensor([6, 3, 1, 5])
    for row, length in enumerate(lengths):
        hs, last = model.rnn(x[:length, row : row + 1])
        features = torch.cat([hs.mean(dim=0), last[0], last[1], hs.amax(dim=0)], dim=1)
        torch.testing.assert_close(model(x, lengths)[0][row], model.linear(features)[0])


def test_a_training_is_a_function_of_its_seed_and_its_updates():
    x, lengths, y = noisy(16)
    one, same, other = (
        fit_trained("rnn", x, lengths, y, classes=2, updates=3, hidden_size=4, seed=seed)(x.transpose(0, 1))[0]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_updates_are_planned_so_that_the_time_is_not_exceeded():
    for seconds, each in ((10.0, 0.05), (1.0, 0.05), (1e9, 0.01), (0.0, 0.01)):
        updates = updates_within(seconds, each)
        assert (updates + 40) * each <= seconds or updates == 0
        assert 0 <= updates <= 600


class OfTheMean(nn.Linear):
    """A model that needs no compiling."""

    def forward(self, x, lengths):
        return super().forward(x.mean(dim=0)), ()


class Killed(Exception):
    """Ends a choice at a piece of work, as SIGKILL would."""


@pytest.mark.parametrize("survived", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("piece", [0.0, 4.0])
def test_a_killed_choice_goes_on_and_ends_as_it_would_have(survived, piece, monkeypatch):
    """After any number of pieces, with time and without: same scores, same model, nothing is done twice."""
    x, lengths, y = noisy(40)
    trained = []

    def fit(cell, *args, seed, updates, **kwargs):
        trained.append(cell)
        torch.manual_seed(int(args[0].sum() * 1e6) % 1000)  # another model for each fold
        return OfTheMean(1, 2)

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", fit)
    monkeypatch.setattr("holdfast.estimators.choice.seconds_per_update", lambda *args, **kwargs: 0.08)
    clock = itertools.count(0, piece)  # every piece of work takes so many seconds
    monkeypatch.setattr("holdfast.estimators.choice.time.monotonic", lambda: next(clock))
    options = {"classes": 2, "minutes": 1, "cells": ("rnn",), "units": 4, "updates": 2}
    whole: list = []
    expected = automatic(x, lengths, y, journal=Journal(write=whole.append), **options)
    count, entries = len(trained), []

    def write(entry):
        if len(entries) == survived:
            raise Killed
        entries.append(entry | {"seconds": whole[len(entries)]["seconds"]})

    with pytest.raises(Killed):
        automatic(x, lengths, y, journal=Journal(write=write), **options)
    trained.clear()
    again = automatic(x, lengths, y, journal=Journal(list(entries)), **options)
    assert again.summary() == expected.summary()
    assert ("5 folds" in again.summary().replace("of 5 folds", "")) == (piece == 0)  # with time, it is short
    done = sum("fold" in entry["piece"] for entry in entries)
    assert len(trained) == count - done
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


@pytest.mark.parametrize("n", [30, 260])
def test_few_features_and_few_sequences_give_the_same_kind_of_model(n, monkeypatch):
    """Above the limit the readout is solved for features instead of sequences; below, both ways agree."""
    x, lengths, y = noisy(n)
    model, left_out = fit_reservoir(x, lengths, y, classes=2, units=4, horizons=(3,), scales=(1.0, 2.0))
    features, xs = model.reservoir(x).numpy(force=True), x.transpose(0, 1)
    assert (features.shape[1] < n) == (n == 260)
    assert left_out.shape == (n, 2)
    monkeypatch.setattr("holdfast.estimators.readout.KEPT", 2**13 * n)  # compute features again, do not keep them
    again, _ = fit_reservoir(x, lengths, y, classes=2, units=4, horizons=(3,), scales=(1.0, 2.0))
    torch.testing.assert_close(again(xs)[0], model(xs)[0], rtol=1e-5, atol=1e-6)


def test_many_sequences_get_fewer_units(monkeypatch):
    monkeypatch.setattr("holdfast.estimators.readout.LARGEST", 97)
    x, lengths, y = noisy(100)
    model, _ = fit_reservoir(x, lengths, y, classes=2, horizons=(3,), scales=(1.0,))
    assert model.reservoir.units == 4
    assert model.reservoir.features == 96


def test_a_model_is_built_again_from_its_settings():
    x, lengths, y = noisy()
    model, _ = fit_reservoir(x, lengths, y, classes=2, units=4)
    same = build(ModelSettings("reservoir", 4, options=model.options()), Spec(1, 2, "cross_entropy", "accuracy"))
    same.load_state_dict(model.state_dict())
    assert torch.equal(same(x.transpose(0, 1))[0], model(x.transpose(0, 1))[0])


def test_bad_settings_are_refused():
    x, lengths, y = noisy()
    with pytest.raises(SettingError, match="minutes of at least 0, got nan"):
        automatic(x, lengths, y, classes=2, minutes=math.nan)
    with pytest.raises(SettingError, match="got 'transformer'"):
        automatic(x, lengths, y, classes=2, cells=("transformer",))
    only = (Score("a", "held out", torch.zeros(3), classes=True),)
    assert Choice("a", ModelSettings(), nn.Identity(), only).summary().startswith("* a")


def test_what_was_not_tried_is_named_with_the_reason():
    x, lengths, y = noisy(30)
    late = automatic(x, lengths, y, classes=2, minutes=1e-9, units=4)
    assert late.verdict().endswith("Not tried, for lack of time: plain gru, sgornn, gru, lstm, mingru.")
    few = automatic(x[:10], lengths[:10], y[:10], classes=2, minutes=5, units=4)
    assert few.verdict().endswith("No cell was trained: fewer than 20 sequences.")


def test_a_cell_that_was_not_tried_on_all_folds_is_not_chosen(monkeypatch):
    """Right every time, but on ten sequences: that is chance often enough."""
    x, lengths, y = noisy(50)
    known = {row.numpy().tobytes(): label for row, label in zip(x, y, strict=True)}

    def fit(*args, **kwargs):
        return lambda x, lengths: (torch.eye(2)[[int(known[row.numpy().tobytes()]) for row in x.transpose(0, 1)]], ())

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", fit)
    for each, folds, expected in ((1e-3, "5 folds", "rnn"), (0.08, "1 of 5 folds", "reservoir")):
        monkeypatch.setattr("holdfast.estimators.choice.seconds_per_update", lambda *args, each=each, **kwargs: each)
        choice = automatic(x, lengths, y, classes=2, minutes=1, cells=("rnn",), units=4)
        assert choice.scores[-1].how == folds
        assert choice.scores[-1].value == 1
        assert choice.name == expected
        assert (" of 50 sequences), the best" in choice.verdict()) == (expected == "reservoir")
