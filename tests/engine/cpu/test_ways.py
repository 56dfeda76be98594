"""Every way through the CPU computes what the plain loop does, also where one gives way to another."""

import dataclasses

import pytest
import torch

import holdfast as hf
from helpers import fuzz
from helpers.cells import CELLS, MixedCell, assert_same_scan, built, random_state
from holdfast.engine.targets.cpu import scan as scans
from holdfast.engine.targets.cpu import ways
from holdfast.engine.targets.cpu.panels import panels
from holdfast.engine.targets.cpu.plan import plan_for
from holdfast.engine.targets.cpu.shape import FeatureShape


@pytest.fixture
def by_features(monkeypatch):
    """Lanes over features for every scan without lengths; returns the plans that were asked for, by ``refused``."""
    seen = []

    def way(plan, batch, lengths):
        seen.append(plan)
        if lengths is not None or "features" in plan.refused:
            return ways.by_samples(plan, batch, lengths)
        return ways.by_features(plan, batch)

    monkeypatch.setattr(scans, "way_for", way)
    return seen


@pytest.mark.parametrize("name", CELLS)
def test_lanes_over_features_equal_the_plain_loop(name, by_features):
    """For every cell: values and all gradients, narrow inputs in one type and wide ones in the other."""
    even = list(CELLS).index(name) % 2 == 0
    dtype, size = (torch.float64, 3) if even else (torch.float32, 12)
    cell = built(name, size).to(dtype)
    assert_same_scan(cell, torch.randn(5, 3, size, dtype=dtype, requires_grad=True), random_state(cell, 3))
    reasons = {plan.refused.get("features") for plan in by_features}
    assert all(reason is None or reason.startswith("its step has a") for reason in reasons), reasons


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7, 17])
def test_lanes_over_features_work_for_every_batch_size(batch, by_features):
    """Products take one to six samples at a time; the last block may do some of them again."""
    for cell in (hf.LSTMCell(3, 17), hf.RNNCell(12, 64)):
        xs = torch.randn(4, batch, cell.input_size, requires_grad=True)
        assert_same_scan(cell, xs, random_state(cell, batch), reverse=batch % 2 == 0)
    assert not any(plan.refused for plan in by_features)


@pytest.mark.parametrize("hidden", [1, 7, 8, 31, 65, 128])
def test_lanes_over_features_work_for_every_hidden_size(hidden, by_features):
    """Whole panels, panels with vectors left over, vectors with lanes left over, and a part for each thread."""
    for cell in (hf.RNNCell(9, hidden), MixedCell(3, hidden)):
        assert_same_scan(cell, torch.randn(4, 2, cell.input_size, requires_grad=True), random_state(cell, 2))
    assert not any(plan.refused for plan in by_features)


@pytest.mark.parametrize("name", list(CELLS)[::2])
def test_a_wide_input_projected_inside_the_loop_equals_the_plain_loop(name):
    """For every second cell, values and all gradients; with lengths, backwards, without a gradient of x."""
    place = list(CELLS).index(name) // 2
    dtype = (torch.float64, torch.float32)[place % 2]
    cell, batch = built(name, 21).to(dtype), 8 * torch.get_num_threads() + 3
    assert ways.widest_input(cell, batch, gradient=True) == ways.widest_input(cell, batch, gradient=False) == 21
    xs = torch.randn(4, batch, 21, dtype=dtype, requires_grad=place % 3 > 0)
    lengths = torch.randint(0, 5, (batch,)) if place % 4 == 0 else None
    assert_same_scan(cell, xs, random_state(cell, batch), lengths=lengths, reverse=place % 5 == 0)
    with torch.no_grad():
        one, other = (hf.scan(cell, xs, backend=backend)[0] for backend in ("fused", "reference"))
    torch.testing.assert_close(one, other, **({"rtol": 1e-4, "atol": 1e-5} if place % 2 else {}))


def test_an_input_is_projected_before_the_loop_where_its_weights_are_far_from_the_samples(monkeypatch):
    """The weights of 40 inputs to 4 · 100 units are 64,000 bytes; four samples of a thread for each 16 KiB of them."""
    cell, threads = hf.LSTMCell(40, 100).float(), torch.get_num_threads()
    monkeypatch.setattr(ways, "second_cache", lambda: 16 << 10)
    batches = [1, 8 * threads - 1, 8 * threads, 15 * threads, 16 * threads, 1000]
    assert [ways.widest_input(cell, batch, gradient=False) for batch in batches] == [8, 8, 8, 8, 40, 40]
    assert [ways.widest_input(cell, batch, gradient=True) for batch in batches] == [0, 0, 8, 8, 40, 40]
    assert ways.widest_input(hf.LSTMCell(8, 100).float(), 8 * threads, gradient=True) == 8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_team_of_any_size_computes_the_same(dtype, monkeypatch):
    """Also one with more threads than panels; repeated, since workers that do not wait would differ now and then."""
    shapes = iter([FeatureShape(dtype, rows=2, vectors=1, team=team) for team in (1, 2, 2, 2, 5)])
    cell = hf.LSTMCell(3, 24).to(dtype)
    for shape in shapes:
        monkeypatch.setattr(scans, "way_for", lambda plan, batch, lengths, shape=shape: shape)
        assert_same_scan(cell, torch.randn(10, 3, 3, dtype=dtype, requires_grad=True), random_state(cell, 3))


@pytest.mark.parametrize("seed", range(5))
def test_random_steps_agree_with_lanes_over_features(seed, monkeypatch):
    """Without the trial, parts of one vector, two threads: see tests/helpers/fuzz.py."""

    def way(plan, batch, lengths):
        if lengths is not None or "features" in plan.refused:
            return ways.by_samples(plan, batch, lengths)
        return dataclasses.replace(ways.by_features(plan, batch), team=2, vectors=1)

    monkeypatch.setattr(scans, "way_for", way)
    assert not [(how, result) for how, result in fuzz.cases(7100 + seed, 4) if result.startswith("differs")]


def test_the_choice_follows_the_sizes(monkeypatch):
    """Fewer samples than all threads have lanes: over features; more of them only if the weights are large."""
    monkeypatch.setattr(ways, "second_cache", lambda: 1 << 14)
    with torch.no_grad():
        small, large = (hf.RNNCell(12, hidden).float() for hidden in (32, 256))
        plans = [plan_for(cell, tuple(cell.weights()), gradient=False) for cell in (small, large)]
    lanes = 8 * torch.get_num_threads()
    batches = 1, lanes - 1, lanes, 2 * lanes
    chosen = [[isinstance(ways.way_for(plan, n, None), FeatureShape) for n in batches] for plan in plans]
    assert chosen == [[True, True, False, False], [True, True, True, False]]
    assert not isinstance(ways.way_for(plans[0], 1, torch.ones(1)), FeatureShape)
    assert hf.fused_source(small, batch=1).startswith("# batch 1: lanes over features, products of 1 x 64")
    assert hf.fused_source(small, batch=4 * lanes).startswith(f"# batch {4 * lanes}: lanes over samples")


def test_a_way_that_cannot_go_back_is_given_up_for_the_other(by_features):
    cell = hf.SGORNNCell(2, 16)
    assert_same_scan(cell, torch.randn(4, 2, 2, requires_grad=True), random_state(cell, 2))
    assert "its step has a RotateBack" in {plan.refused.get("features") for plan in by_features}


def test_a_wrong_kernel_with_lanes_over_features_is_not_believed(by_features, monkeypatch):
    """The other way does the scan then, and the plan says why."""
    from holdfast.engine.targets.cpu import feature_call

    real = feature_call.packed_weights

    def wrong(*args, **options):
        found = real(*args, **options)
        return {key: 1.1 * value for key, value in found.items()}

    monkeypatch.setattr(feature_call, "packed_weights", wrong)
    cell = hf.RNNCell(3, 16)
    assert_same_scan(cell, torch.randn(4, 2, 3, requires_grad=True), random_state(cell, 2))
    assert any("does not agree" in plan.refused.get("features", "") for plan in by_features)


def test_a_wrong_gradient_with_lanes_over_features_is_not_believed(by_features, monkeypatch):
    from holdfast.engine.targets.cpu import feature_call

    real = feature_call.FeatureCall.backward

    def wrong(self, *args):
        first, *rest = real(self, *args)
        return None if first is None else 1.1 * first, *rest

    monkeypatch.setattr(feature_call.FeatureCall, "backward", wrong)
    cell = hf.RNNCell(3, 16)
    for _ in range(2):
        assert_same_scan(cell, torch.randn(4, 2, 3, requires_grad=True), random_state(cell, 2))
    assert any("the gradient of the input differs" in plan.refused.get("features", "") for plan in by_features)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_panels_hold_the_matrix_in_the_order_of_a_product(dtype):
    """For any sizes, and features that lie side by side, apart, or neither."""
    width = 8 if dtype == torch.float32 else 4
    for depth, features in ((1, 1), (5, 7), (8, 16), (33, 70), (40, 129)):
        rows, turned = torch.randn(depth, 2 * features, dtype=dtype), torch.randn(features, depth, dtype=dtype).mT
        for matrix in (rows[:, :features], rows[:, ::2], turned):
            for height, narrow_last in ((6, False), (12, False), (2 * width, True), (8 * width, True)):
                wanted = []
                for part in matrix.split(height, dim=1):
                    wide = -(-part.shape[1] // width) * width if narrow_last else height
                    wanted.append(torch.nn.functional.pad(part, (0, wide - part.shape[1])).reshape(-1))
                assert torch.equal(panels(matrix, height, narrow_last=narrow_last), torch.cat(wanted))
