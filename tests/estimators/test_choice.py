"""The automatic choice: the reservoir first, a trained cell only if clearly better, every score shown."""

import math

import pytest
import torch
from torch import nn

from holdfast.errors import SettingError
from holdfast.estimators import Choice, Score, automatic, baselines, fit_trained
from holdfast.estimators.readout import ReservoirModel, fit_reservoir


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
        return lambda x, lengths: torch.stack([known[row.numpy().tobytes()] for row in x])

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", fit)
    choice = automatic(x, lengths, y, classes=2, minutes=1, cells=("gru",), units=4)
    assert choice.name == expected
    assert choice.scores[-1].name == "gru"
    assert choice.scores[-1].n == 100


def test_without_time_no_cell_is_trained_and_a_perfect_reservoir_needs_no_rival(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("trained")

    monkeypatch.setattr("holdfast.estimators.choice.fit_trained", never)
    x, lengths, y = noisy()
    assert automatic(x, lengths, y, classes=2, minutes=0, units=4).name == "reservoir"
    x = x + 50 * y[:, None, None]
    assert automatic(x, lengths, y, classes=2, minutes=5, units=4).scores[0].value == 1


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


def test_a_cell_learns_within_its_updates_and_reads_no_padding():
    y = torch.arange(32) % 2
    x, lengths = 0.3 * torch.randn(32, 10, 1) + y[:, None, None], torch.arange(32) % 5 + 5
    model = fit_trained("sgornn", x, lengths, y, classes=2, updates=40, hidden_size=8)
    outside = torch.arange(10) >= lengths[:, None]
    with torch.no_grad():
        z = model(x, lengths)
        torch.testing.assert_close(model(x.masked_fill(outside[..., None], 1e6), lengths), z)
    assert (z.argmax(dim=1) == y).float().mean() > 0.9


def test_training_stops_when_its_time_is_up():
    x, lengths, y = noisy(16)
    model = fit_trained("sgornn", x, lengths, y, classes=2, updates=10**9, seconds=1e-9, hidden_size=8)
    assert model(x, lengths).isfinite().all()


@pytest.mark.parametrize("n", [30, 260])
def test_few_features_and_few_sequences_give_the_same_kind_of_model(n, monkeypatch):
    """Above the limit the readout is solved for features instead of sequences; below, both ways agree."""
    x, lengths, y = noisy(n)
    model, left_out = fit_reservoir(x, lengths, y, classes=2, units=4, horizons=(3,), scales=(1.0, 2.0))
    features = model.reservoir(x).numpy(force=True)
    assert (features.shape[1] < n) == (n == 260)
    assert left_out.shape == (n, 2)
    monkeypatch.setattr("holdfast.estimators.readout.KEPT", 2**13 * n)  # compute features again, do not keep them
    again, _ = fit_reservoir(x, lengths, y, classes=2, units=4, horizons=(3,), scales=(1.0, 2.0))
    torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)


def test_many_sequences_get_fewer_units(monkeypatch):
    monkeypatch.setattr("holdfast.estimators.readout.LARGEST", 97)
    x, lengths, y = noisy(100)
    model, _ = fit_reservoir(x, lengths, y, classes=2, horizons=(3,), scales=(1.0,))
    assert model.reservoir.units == 4
    assert model.reservoir.features == 96


def test_a_model_is_built_again_from_its_settings():
    x, lengths, y = noisy()
    model, _ = fit_reservoir(x, lengths, y, classes=2, units=4)
    same = ReservoirModel.of(model.settings())
    same.load_state_dict(model.state_dict())
    assert torch.equal(same(x), model(x))


def test_bad_settings_are_refused():
    x, lengths, y = noisy()
    with pytest.raises(SettingError, match="minutes of at least 0, got nan"):
        automatic(x, lengths, y, classes=2, minutes=math.nan)
    with pytest.raises(SettingError, match="got 'transformer'"):
        automatic(x, lengths, y, classes=2, cells=("transformer",))
    assert (
        Choice("a", nn.Identity(), (Score("a", "held out", torch.zeros(3), classes=True),)).summary().startswith("* a")
    )
