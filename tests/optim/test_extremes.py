"""κ over long sequences: in extended precision, past what float64 holds, and from float32 weights."""

import mpmath
import pytest
import torch
from torch import nn

import holdfast
from helpers.path_graphs import Model, random_model
from holdfast.engine.kernels import flow
from holdfast.errors import SettingError
from holdfast.optim import kappa, kappa_first, kappa_second, path_norm_sq
from holdfast.optim.flow import doublings, driven_flow, growth_rate, krylov_rows, powers_of, steady_flow

LARGEST = torch.finfo(torch.float64).max


def model_of_radius(radius, hidden=2, *, last_only=True, scales=(1.0, 1.0)):
    """Squared recurrent weights of this spectral radius; input and output weights multiplied by ``scales``."""
    model = random_model(2, hidden, 1, last_only=last_only)
    cell = model.rnn.cells[0]
    with torch.no_grad():
        cell.weight_hh.mul_((radius / torch.linalg.eigvals(cell.weight_hh.square()).abs().max()).sqrt())
        cell.weight_ih.mul_(scales[0])
        cell.bias.mul_(scales[0])
        model.readout.weight.mul_(scales[1])
    return model


def in_extended_precision(model, steps):
    """γ², κ⁽¹⁾(U), κ⁽²⁾(U), κ⁽¹⁾(W), κ⁽¹⁾(V) in 40 digits, one step after the other, by (11) and Horner."""
    cell, mp = model.rnn.cells[0], mpmath.mp
    with mpmath.workdps(40):

        def squared(tensor):
            return mp.matrix(tensor.detach().reshape(len(tensor), -1).tolist()).apply(lambda x: x * x)

        U, W, b, V = map(squared, (cell.weight_hh, cell.weight_ih, cell.bias, model.readout.weight))
        n = U.rows
        drive, read = W * mp.ones(W.cols, 1) + b, V.T * mp.ones(V.rows, 1)
        f = [mp.zeros(n, 1)]
        for _ in range(steps):
            f.append(U * f[-1] + drive)
        g = {steps: read}
        for t in range(steps - 1, 0, -1):
            g[t] = U.T * g[t + 1] + (mp.zeros(n, 1) if model.last_only else read)
        first, second, ahead = mp.zeros(n), mp.zeros(n), mp.zeros(n)
        for t in range(steps, 0, -1):
            first += g[t] * f[t - 1].T
            for k in range(n):
                for j in range(n):
                    second[j, k] += 2 * U[j, k] * f[t - 1][k] * ahead[k, j]
            ahead = U * ahead + mp.diag(list(g[t]))
        outs = [f[steps]] if model.last_only else f[1:]
        sums, total = sum(outs, mp.zeros(n, 1)), sum(g.values(), mp.zeros(n, 1))
        bias = sum(model.readout.bias.square().tolist()) * len(outs)
        gamma = (read.T * sums)[0] + bias
        return gamma, first, second, total * mp.ones(1, W.cols), mp.ones(V.rows, 1) * sums.T


def assert_close(ours, exact, rtol=1e-12):
    """Entry by entry and relative; what float64 cannot hold is the largest float64."""
    for index, value in enumerate(ours.detach().flatten().tolist()):
        want = exact[index // exact.cols, index % exact.cols] if isinstance(exact, mpmath.matrix) else exact
        want = min(want, mpmath.mpf(LARGEST))
        assert 0 < value <= LARGEST
        assert abs(value - want) <= rtol * want, (index, value, want)


@pytest.mark.parametrize("last_only", [True, False], ids=["last", "every"])
@pytest.mark.parametrize("radius", [0.1, 1.0, 1.9])
def test_kappa_is_accurate_at_1000_steps(radius, last_only):
    """To 1e-12 in every entry, for spectral radii from 0.1 to 1.9."""
    model, steps = model_of_radius(radius, last_only=last_only), 1000
    gamma, first, second, of_W, of_V = in_extended_precision(model, steps)
    cell, both = model.rnn.cells[0], kappa(model, steps)
    ours = kappa_first(model, steps)
    assert_close(path_norm_sq(model, steps), gamma)
    assert_close(ours[cell.weight_hh], first)
    assert_close(kappa_second(model, steps)[cell.weight_hh], second)
    assert_close(both[cell.weight_hh], first + 2 * second)
    assert_close(ours[cell.weight_ih], of_W)
    assert_close(ours[model.readout.weight], of_V)


def test_flows_past_float64_still_give_the_kappas_that_fit():
    """ρ = 2.4 at T = 1000: states reach 1e340; a readout of 1e-40 brings κ(U) back into float64, to 1e-12."""
    model, steps = model_of_radius(2.4, scales=(1e-20, 1e-40)), 1000
    cell = model.rnn.cells[0]
    gamma, first, second, of_W, of_V = in_extended_precision(model, steps)
    ours = kappa_first(model, steps)
    assert first[0, 0] < LARGEST < of_V[0, 0]
    assert_close(path_norm_sq(model, steps), gamma)
    assert_close(ours[cell.weight_hh], first)
    assert_close(kappa_second(model, steps)[cell.weight_hh], second)
    assert_close(ours[cell.weight_ih], of_W)
    assert_close(ours[model.readout.weight], of_V)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("last_only", [True, False], ids=["last", "every"])
def test_past_float64_kappa_is_the_largest_float64(layers, last_only):
    """ρ ≫ 1: never infinite, never NaN, and what does not grow with time is right as ever."""
    model = random_model(2, 4, layers, last_only=last_only)
    with torch.no_grad():
        for cell in model.rnn.cells:
            cell.weight_hh.mul_(100.0)
    steps = 1000
    assert path_norm_sq(model, steps) == LARGEST
    for found in (kappa_first(model, steps), kappa(model, steps), kappa_second(model, steps)):
        assert all(value.isfinite().all() and (value >= 0).all() for value in found.values())
        assert (found[model.rnn.cells[-1].weight_hh] == LARGEST).all()
    bias = kappa(model, steps)[model.readout.bias]
    torch.testing.assert_close(bias, torch.full_like(bias, 1.0 if last_only else steps))


def test_a_transient_past_float64_saturates_too():
    """A chain of units multiplies by 1e40 a step and then ends: ρ = 0, and yet states pass float64."""
    model = random_model(1, 12, 1, bias=False)
    cell = model.rnn.cells[0]
    with torch.no_grad():
        cell.weight_hh.zero_().diagonal(-1).fill_(1e20)
    found = kappa_first(model, 40)
    assert all(value.isfinite().all() for value in found.values())
    assert path_norm_sq(model, 40) == LARGEST
    assert found[model.readout.weight].amax() == LARGEST


def test_feed_forward_products_past_float64_saturate():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 1e80)
    assert path_norm_sq(model) == LARGEST
    assert all((value <= LARGEST).all() for value in kappa_first(model).values())


@pytest.mark.parametrize("last_only", [True, False], ids=["last", "every"])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_scale_taken_out_does_not_matter(layers, last_only):
    """γ², κ⁽¹⁾ and κ⁽²⁾ with η = 0, 0.3 and 1 agree, where all of them fit."""
    from holdfast.optim.describe import path_network
    from holdfast.optim.path_norm import _first, _second
    from holdfast.optim.squared_network import backward_flows, forward_flows, saturated

    model, steps = random_model(2, 4, layers, last_only=last_only, words=3, learned=True), 20
    network, every, found = path_network(model), not last_only, []
    with torch.no_grad():
        for rate in (0.0, 0.3, 1.0):
            forward = forward_flows(network, steps, every, rate)
            backward = backward_flows(network, forward)
            gamma = saturated(forward.decoded[-1].sum(), rate * steps)
            first = _first(network, forward, backward)
            found.append([gamma, *first.values(), *_second(network, forward, backward).values()])
    for values in found[1:]:
        for value, expected in zip(values, found[0], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=0)


def test_float32_weights_have_the_kappa_of_the_same_weights_in_float64():
    """Computed in float64 from the start: not a rounding of float32 products, and past 3e38."""
    model = Model(holdfast.RNN(2, 8, nonlinearity="relu")).float()
    with torch.no_grad():
        model.rnn.l0.weight_hh.mul_(3.0)
    twin = Model(holdfast.RNN(2, 8, nonlinearity="relu")).double()
    twin.load_state_dict(model.state_dict())
    ours, theirs = kappa(model, 200), kappa(twin, 200)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours[parameter], theirs[other], rtol=1e-14, atol=0)
    assert ours[model.rnn.l0.weight_hh].amax() > 1e39


def test_weights_that_are_not_finite_are_named():
    model = random_model(2, 3, 1)
    with torch.no_grad():
        model.rnn.l0.weight_hh[0, 0] = torch.nan
    with pytest.raises(SettingError, match=r"kappa_first found a weight of shape \(3, 3\).*not finite"):
        kappa_first(model, 5)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_flows_by_doubling_and_compiled_equal_flows_step_by_step(count, compiled, monkeypatch):
    monkeypatch.setattr(flow, "LARGEST", 256 if compiled else 0)
    M, start, rows = torch.rand(4, 4), torch.rand(4), torch.rand(13, 4)
    krylov, driven = [start], [rows[0]]
    for t in range(1, 13):
        krylov.append(krylov[-1] @ M)
        driven.append(driven[-1] @ M + rows[t])
    powers = powers_of(M, count)
    torch.testing.assert_close(krylov_rows(powers, start, 13), torch.stack(krylov))
    torch.testing.assert_close(driven_flow(powers, rows), torch.stack(driven))
    torch.testing.assert_close(steady_flow(powers, start, 14)[1:], torch.stack(krylov).cumsum(0))
    assert not steady_flow(powers, start, 14)[0].any()


def test_kappa_is_the_same_with_and_without_the_compiled_loop(monkeypatch):
    """Every κ, one layer and three, read at the last step and at all: to rounding."""
    for layers, last_only in ((1, True), (1, False), (3, False)):
        model = random_model(2, 20, layers, last_only=last_only)
        with torch.no_grad():
            for cell in model.rnn.cells:
                cell.weight_hh.mul_(0.2)
        with monkeypatch.context() as patch:
            patch.setattr(flow, "LARGEST", 0)
            plain = kappa(model, 150)
        for parameter, value in kappa(model, 150).items():
            torch.testing.assert_close(value, plain[parameter], rtol=1e-12, atol=0)


def test_threads_are_as_many_after_kappa_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        kappa_first(random_model(2, 3, 1), 5)
        with pytest.raises(SettingError):
            kappa_first(random_model(2, 3, 1), 5, "every")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_growth_rate_is_the_spectral_radius():
    """From above, to 0.01 in log₂ at T = 1000; 0 for what does not grow."""
    matrix = torch.rand(6, 6) * 1e100
    radius = torch.linalg.eigvals(matrix).abs().max().log2()
    assert radius <= growth_rate(matrix, 1000) <= radius + 0.01
    assert [growth_rate(m, 10) for m in (torch.zeros(3, 3), torch.ones(3, 3).tril(-1), torch.eye(3) / 2)] == [0.0] * 3


def test_matrices_are_squared_less_where_that_costs_more():
    """More steps, more doublings; more units, fewer; never more than log₂ of the steps."""
    assert [doublings(128, steps, False) for steps in (1, 10, 100, 1000)] == [0, 0, 3, 6]
    assert [doublings(size, 100, False) for size in (16, 128, 2048)] == [6, 3, 0]
    assert doublings(128, 100, True) <= doublings(128, 100, False)
