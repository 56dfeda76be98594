"""A_h and the penalty: derivatives, the trace, third order, and the same push as noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast
from helpers.spline_models import INPUTS, OUTPUTS, build, models
from holdfast.errors import SettingError
from holdfast.spline import initial_state_penalty, initial_state_slope

cross_entropy, mse = nn.functional.cross_entropy, nn.functional.mse_loss


def start_of(net, batch):
    rows, hidden = len(net.rnn.cells), net.rnn.hidden_size
    values = net.rnn.initial_state.values
    return (
        values[0].detach().unsqueeze(1).expand(rows, batch, hidden) if len(values) else torch.zeros(rows, batch, hidden)
    )


@settings(max_examples=6, deadline=None)
@given(model=models, steps=st.integers(1, 4))
def test_the_slopes_are_the_derivatives_in_the_first_state(model, steps):
    """A_h = dh^(L,T)/dh_0 and W A_h = dz/dh_0, for every layer's h_0 and every sample."""
    net = build(**model)
    xs, width = torch.randn(steps, 2, INPUTS), net.rnn.directions * net.rnn.hidden_size
    slope = initial_state_slope(net, xs)
    for index in range(2):
        x, h_0 = xs[:, [index]], start_of(net, 1)
        output = torch.func.jacrev(lambda h: net(x, h)[0])(h_0)  # noqa: B023
        state = torch.func.jacrev(
            lambda h: torch.cat(tuple(net.rnn(x, h)[1][-net.rnn.directions :]), dim=-1)[0]  # noqa: B023
        )(h_0)
        torch.testing.assert_close(slope.output[index], output[:, :, 0].transpose(0, 1), rtol=0, atol=1e-10)
        torch.testing.assert_close(slope.state[index], state[:, :, 0].transpose(0, 1), rtol=0, atol=1e-10)
    assert slope.state.shape == (2, len(net.rnn.cells), width, net.rnn.hidden_size)
    torch.testing.assert_close(slope.output_norm, slope.output.square().sum((1, 2, 3)).sqrt())


def test_a_h_has_as_many_factors_as_steps():
    """U = λ I and all units active: A_h = λ^T I, so 𝒜_{0:T} by S5 (8) and not the printed 𝒜_{1:T}."""
    net = build("irnn")
    with torch.no_grad():
        net.rnn.l0.weight_hh.copy_(0.9 * torch.eye(4))
        net.rnn.l0.bias.fill_(10.0)
    for steps in (1, 4):
        slope = initial_state_slope(net, torch.zeros(steps, 1, INPUTS))
        torch.testing.assert_close(slope.state[0, 0], 0.9**steps * torch.eye(4))
        torch.testing.assert_close(slope.output[0, 0], 0.9**steps * net.readout.weight.detach())


def hessian_trace(net, x, h_0, loss):
    """Tr of the loss' Hessian in h_0, by differentiating twice."""
    hessian = torch.func.jacrev(torch.func.jacrev(lambda h: loss(net(x, h))))(h_0)
    size = h_0.numel()
    return hessian.reshape(size, size).trace()


@settings(max_examples=5, deadline=None)
@given(model=models, steps=st.integers(1, 2))
def test_the_exact_penalty_is_half_the_trace_of_the_hessian(model, steps):
    """σ²/2 tr ∇²_{h_0} loss, by autograd, for cross-entropy whatever the target, and for the mean squared error."""
    net, std = build(**model), 0.3
    xs, targets = torch.randn(steps, 2, INPUTS), torch.tensor([1, 4])
    exact = initial_state_penalty(net, xs, std)
    squared = initial_state_penalty(net, xs, std, loss="mse")
    want, wanted = 0.0, 0.0
    for index in range(2):
        x, h_0 = xs[:, [index]], start_of(net, 1).clone()
        want += hessian_trace(net, x, h_0, lambda z: cross_entropy(z, targets[[index]])) / 2  # noqa: B023
        wanted += hessian_trace(net, x, h_0, lambda z: mse(z, torch.ones_like(z))) / 2
    torch.testing.assert_close(exact, std**2 / 2 * want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(squared, std**2 / 2 * wanted, rtol=1e-9, atol=1e-12)


def calm_model(layers=1):
    """A model none of whose units is near its knot: noise of σ ≤ 0.1 crosses no border."""
    net = build("rnn", "leaky", layers=layers, hidden=4)
    with torch.no_grad():
        for cell in net.rnn.cells:
            cell.bias.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
            cell.weight_hh.mul_(0.8)
            cell.weight_ih.mul_(0.2)
        net.readout.weight.mul_(2.0)
    return net


def test_the_exact_penalty_leaves_a_remainder_beyond_third_order_and_the_published_one_does_not():
    """E[loss with noise] - loss - penalty, by Monte Carlo: log-log slope over σ at least 3 for exact, 2 for published.

    The draws are antithetic, and the quadratic part of each, whose mean is known, is taken out before averaging:
    what is left to chance is of the order of the remainder itself. Inside a region the remainder is O(σ⁴).
    """
    net, x, target = calm_model(), torch.randn(3, 1, INPUTS), torch.tensor([2])
    h_0 = torch.zeros(1, 1, 4)
    hessian = torch.autograd.functional.hessian(lambda h: cross_entropy(net(x, h), target), h_0).reshape(4, 4)
    draws = torch.randn(20_000, 4)
    draws = torch.cat([draws, -draws])
    quadratic = torch.einsum("ni,ij,nj->n", draws, hessian, draws) / 2
    stds, gaps = torch.tensor([0.02, 0.04, 0.08]), {"exact": [], "published": []}
    with torch.no_grad():
        quiet = cross_entropy(net(x), target)
        for std in stds:
            noisy = net(x.expand(-1, len(draws), -1), (std * draws).unsqueeze(0))
            losses = cross_entropy(noisy, target.expand(len(draws)), reduction="none")
            increase = (losses - quiet - std**2 * quadratic).mean() + std**2 / 2 * hessian.trace()
            for form in gaps:
                gaps[form].append((increase - initial_state_penalty(net, x, float(std), form=form)).abs())
    slopes = {form: torch.stack(gap).log().diff() / stds.log().diff() for form, gap in gaps.items()}
    assert (slopes["exact"] > 3.0).all(), slopes
    assert ((slopes["published"] - 2).abs() < 0.05).all(), slopes


def test_the_squared_error_penalty_is_the_whole_increase():
    """For a quadratic loss inside one region the mean over ±σ√d e_i is that over N(0, σ²): exact to rounding.

    As published, σ²/2 ‖A_h‖², it leaves out W and is half of what a loss without ½ has.
    """
    net, x, std = calm_model(layers=2), torch.randn(3, 1, INPUTS), 0.05
    size = 2 * 4
    points = std * size**0.5 * torch.cat([torch.eye(size), -torch.eye(size)])  # (16, 8)
    starts = points.view(-1, 2, 4).transpose(0, 1)
    target = torch.randn(1, OUTPUTS)
    with torch.no_grad():
        noisy = net(x.expand(-1, 2 * size, -1), starts)
        increase = mse(noisy, target.expand_as(noisy)) - mse(net(x), target)
        torch.testing.assert_close(initial_state_penalty(net, x, std, loss="mse"), increase, rtol=1e-9, atol=1e-14)
        printed = initial_state_penalty(net, x, std, loss="mse", form="published")
        torch.testing.assert_close(printed, std**2 / 2 * initial_state_slope(net, x).state_norm.square().mean())
        assert abs(printed / increase - 1) > 0.1


def test_a_unit_on_its_knot_breaks_the_second_order():
    """Zero bias and input put every unit on its knot at h_0 = 0: the loss then grows with σ, not with σ².

    An IRNN starts so on images whose first pixel is black; the theorem's premise, that no unit changes sides, fails.
    """
    layer = holdfast.RNN(1, 1, nonlinearity="relu", init="identity", backend="reference")
    draws = torch.randn(100_000, 1)
    means = []
    for std in (0.1, 0.2):
        h_n = layer(torch.zeros(3, 100_000, 1), (std * draws).unsqueeze(0))[1]
        means.append(h_n.mean().item())
    assert means[1] / means[0] == pytest.approx(2.0, rel=1e-6)
    assert means[0] == pytest.approx(0.1 / (2 * torch.pi) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "form", "loss"),
    [
        ("sgornn", "exact", "cross_entropy"),
        ("rnn", "published", "cross_entropy"),
        ("rnn", "exact", "mse"),
        ("rnn", "published", "mse"),
    ],
)
def test_the_penalty_is_differentiable_in_every_weight(kind, form, loss):
    """By finite differences, the gates of SGORNN and both layers included."""
    net, xs = build(kind, "leaky", layers=2), torch.randn(3, 2, INPUTS)
    names, weights = zip(*net.named_parameters(), strict=True)

    def penalty(*values):
        module = holdfast_functional(net, dict(zip(names, values, strict=True)))
        return initial_state_penalty(module, xs, 0.5, form=form, loss=loss)

    assert torch.autograd.gradcheck(
        penalty, tuple(w.detach().clone().requires_grad_() for w in weights), atol=1e-6, fast_mode=True
    )


def holdfast_functional(net, values):
    """A copy of the model that holds these tensors instead of its parameters."""
    import copy

    twin = copy.deepcopy(net)
    for name, value in values.items():
        *path, last = name.split(".")
        owner = twin.get_submodule(".".join(path))
        del owner._parameters[last]
        setattr(owner, last, value)
    return twin


def test_fused_and_reference_give_the_same_penalty_and_gradient():
    xs, results = torch.randn(5, 3, INPUTS), []
    for backend in ("reference", "fused"):
        net = build("rnn", layers=2, backend=backend)
        penalty = initial_state_penalty(net, xs, 0.5)
        results.append([penalty, *torch.autograd.grad(penalty, list(net.rnn.parameters()), allow_unused=True)])
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_penalty_and_noise_push_the_slope_the_same_way():
    """60 updates on three-class addition from one start: ‖A_h‖ and ‖W A_h‖ end at less than half, by either."""
    from holdfast.tasks import Addition

    task = Addition(steps=10, form="three-class").load()
    ends = {}
    for how in ("plain", "noise", "penalty"):
        torch.manual_seed(0)
        start = holdfast.RandomStart(1.0) if how == "noise" else "zeros"
        rnn = holdfast.RNN(2, 16, nonlinearity="relu", init="identity", initial_state=start)
        model = nn.Module()
        model.rnn, model.readout = rnn, nn.Linear(16, 3)
        optimiser = torch.optim.RMSprop([*rnn.parameters(), *model.readout.parameters()], lr=3e-3)
        for update in range(60):
            batch = task.train_batch(update, 32, seed=0)
            loss = cross_entropy(model.readout(rnn(batch.inputs)[1][-1]), batch.targets)
            if how == "penalty":
                loss = loss + initial_state_penalty(model, batch.inputs, 1.0)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        batch = task.train_batch(1000, 64, seed=1)
        slope = initial_state_slope(model, batch.inputs)
        ends[how] = slope.state_norm.mean().item(), slope.output_norm.mean().item()
    for how in ("noise", "penalty"):
        assert all(ours < plain / 2 for ours, plain in zip(ends[how], ends["plain"], strict=True)), ends


def test_bad_settings_are_refused():
    net, xs = build("rnn"), torch.randn(4, 2, INPUTS)
    with pytest.raises(SettingError, match="published"):
        initial_state_penalty(net, xs, 0.1, form="printed")
    with pytest.raises(SettingError, match="std"):
        initial_state_penalty(net, xs, -0.1)
    with pytest.raises(SettingError, match="at every step"):
        initial_state_penalty(build("rnn", every_step=True), xs, 0.1)
    with pytest.raises(SettingError, match="linearise"):
        initial_state_slope(holdfast.GRU(3, 4), xs)
