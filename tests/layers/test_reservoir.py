"""The reservoir: random cells that are the same for the same seed, contractive, and summarised as defined."""

import copy
import pickle

import pytest
import torch

from holdfast import Recurrent, Reservoir, scan
from holdfast.errors import DTypeError, SettingError, ShapeError, StateDictError
from holdfast.stability import certificate

SMALL = {"units": 6, "scales": (0.5,), "quantiles": (0.25, 0.5)}


@pytest.fixture
def data():
    return 3 + 2 * torch.randn(5, 9, 2), torch.tensor([9, 4, 1, 9, 6])


def defined(reservoir, x):
    """(1) to (3) of one sequence (time, channels), step by step."""
    level, change = reservoir.scale.split(2)
    differences = torch.cat([torch.zeros(1, 2), x[1:] - x[:-1]])
    u, features = torch.cat([(x - reservoir.mean) / level, differences / change], dim=1), []
    for index, pooled in enumerate(reservoir.cells):
        h, hs = torch.zeros(1, 6), []
        for step in reversed(u) if reservoir.bidirectional and index % 2 else u:
            h = pooled.cell(step[None], h)
            hs.append(h[0])
        hs = torch.stack(hs)
        shares = [(hs > q).double().mean(dim=0) for q in pooled.thresholds]
        features += [hs.mean(dim=0), hs[-1], hs.max(dim=0).values, *shares]
    return torch.cat(features)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_features_are_those_of_the_definition_for_sequences_of_any_length(data, bidirectional):
    """Neither the rest of the batch nor numbers behind a sequence's end change its features."""
    x, lengths = data
    reservoir = Reservoir(2, 9, **SMALL, bidirectional=bidirectional).fit(x, lengths)
    for pooled in reservoir.cells:
        pooled.thresholds += 1e-9  # away from the states that they were taken from
    garbage = torch.where((torch.arange(9) < lengths[:, None])[..., None], x, 1e9)
    exact = torch.stack([defined(reservoir, row[:length]) for row, length in zip(x, lengths, strict=True)])
    torch.testing.assert_close(reservoir(garbage, lengths), exact)
    assert exact.shape[1] == reservoir.features == 2 * 2 * 6 * 5  # horizons 3 and 6, tanh and ReLU


def test_fit_ignores_padding_and_takes_quantiles_of_the_training_states(data):
    x, lengths = data
    inside = torch.arange(9) < lengths[:, None]
    garbage = torch.where(inside[..., None], x, 1e9)
    reservoir, other = Reservoir(2, 9, **SMALL).fit(x, lengths), Reservoir(2, 9, **SMALL).fit(garbage, lengths)
    for name, tensor in reservoir.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    torch.testing.assert_close(reservoir.mean, x[inside].mean(dim=0))
    states = reservoir.states(x, lengths)[inside]
    for index, pooled in enumerate(reservoir.cells):
        own = states[:, 6 * index : 6 * index + 6]
        torch.testing.assert_close(pooled.thresholds, own.quantile(torch.tensor([0.25, 0.5]), dim=0))


def test_the_seed_and_the_state_dict_decide_everything(data):
    x, lengths = data
    one, same = (Reservoir(2, 9, **SMALL, seed=4).fit(x, lengths) for _ in range(2))
    other = Reservoir(2, 9, **SMALL, seed=5)
    features = one(x, lengths)
    assert torch.equal(features, same(x, lengths))
    assert not torch.allclose(features, other(x, lengths))
    other.load_state_dict(one.state_dict())
    for made in (other, copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert torch.equal(features, made(x, lengths))
    with pytest.raises(StateDictError):
        Reservoir(2, 9, **{**SMALL, "units": 8}).load_state_dict(one.state_dict())


def test_every_cell_is_certified_contractive_with_rate_at_most_one_minus_one_over_its_horizon():
    """α + β ≤ 1 - α for α = 1/H, whatever was drawn."""
    assert (Reservoir(1, 200, units=2).horizons, Reservoir(1, 7, units=2).horizons) == ((3, 6, 12, 24), (3, 6))
    reservoir = Reservoir(1, 200, units=8, seed=3, horizons=(3, 24, 192))
    kinds = len(reservoir.cells) // len(reservoir.horizons)
    for index, pooled in enumerate(reservoir.cells):
        proved = certificate(Recurrent(pooled.cell), input_bound=3.0)
        assert proved.stable
        assert proved.rate <= 1 - 1 / reservoir.horizons[index // kinds] + 1e-12


def test_features_for_a_sequence_read_piece_by_piece_are_those_of_the_whole(data):
    """The summary is state: a scan that stops and resumes ends with the same one."""
    pooled = Reservoir(2, 9, **SMALL).cells[0]
    u = torch.randn(9, 3, 4)
    _, whole = scan(pooled, u, need_output=False)
    _, half = scan(pooled, u[:4], need_output=False)
    _, resumed = scan(pooled, u[4:], half, need_output=False)
    for one, other in zip(whole, resumed, strict=True):
        torch.testing.assert_close(one, other)


def test_many_sequences_are_read_in_blocks_to_the_same_features(data, monkeypatch):
    x, lengths = data
    reservoir = Reservoir(2, 9, **SMALL).fit(x, lengths)
    whole = reservoir(x, lengths)
    monkeypatch.setattr("holdfast.layers.reservoir.BLOCK", 80)  # two sequences per scan
    torch.testing.assert_close(reservoir(x, lengths), whole)


def test_constant_and_single_step_series_have_finite_features():
    reservoir = Reservoir(1, 1, **SMALL).fit(torch.full((4, 1, 1), 7.0))
    assert reservoir(torch.full((2, 1, 1), 7.0)).isfinite().all()


def test_bad_input_is_refused_with_what_was_expected(data):
    x, lengths = data
    reservoir = Reservoir(2, 9, **SMALL)
    with pytest.raises(ShapeError, match=r"\(batch, time, 2\), got \(5, 9, 1\)"):
        reservoir(x[..., :1])
    with pytest.raises(ShapeError, match="5 lengths of 1 to 9"):
        reservoir(x, lengths - 1)
    with pytest.raises(DTypeError, match=r"torch.float64, got torch.float32"):
        reservoir(x.float())
    with pytest.raises(SettingError, match=r"between 0 and 1, got \(0.5, 1.0\)"):
        Reservoir(2, 9, quantiles=(0.5, 1.0))
    with pytest.raises(SettingError, match="scales"):
        Reservoir(2, 9, scales=(0.0,))
    with pytest.raises(SettingError, match="at least one horizon"):
        Reservoir(2, 9, horizons=())
