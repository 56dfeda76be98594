"""The constants of one step, against Jacobians and their differences measured on random cells and reached states."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

import holdfast
from holdfast import ScalarGates, scan
from holdfast.cells.nonlinearity import NONLINEARITIES
from holdfast.errors import SettingError
from holdfast.stability import NoBoundError, Region, Slopes, register_slopes, slopes, state_norm, step_bounds

CELLS = {
    "rnn-tanh": lambda: holdfast.RNNCell(2, 4),
    "rnn-no-bias": lambda: holdfast.RNNCell(2, 4, bias=False),
    "rnn-sigmoid": lambda: holdfast.RNNCell(2, 4, nonlinearity="sigmoid"),
    "rnn-gelu": lambda: holdfast.RNNCell(2, 4, nonlinearity="gelu"),
    "rnn-softplus": lambda: holdfast.RNNCell(2, 4, nonlinearity="softplus"),
    "rnn-relu": lambda: holdfast.RNNCell(2, 4, nonlinearity="relu"),
    "rnn-smooth-relu": lambda: holdfast.RNNCell(2, 4, nonlinearity="smooth_relu"),
    "linear": lambda: holdfast.LinearCell(2, 4),
    "fastrnn": lambda: holdfast.FastRNNCell(2, 4),
    "fastrnn-clip": lambda: holdfast.FastRNNCell(2, 4, gates=ScalarGates(clip="alpha", horizon=5)),
    "sgornn": lambda: holdfast.SGORNNCell(2, 4),
    "sgornn-tanh": lambda: holdfast.SGORNNCell(2, 4, nonlinearity="tanh", gates=ScalarGates(-1.0, 0.0)),
    "sgornn-exp": lambda: holdfast.SGORNNCell(2, 4, nonlinearity="tanh", recurrent="exp", gates=ScalarGates(-1.0, 0.0)),
    "sgornn-cayley": lambda: holdfast.SGORNNCell(
        2, 4, nonlinearity="tanh", recurrent="cayley", gates=ScalarGates(-1.0, 0.0)
    ),
    "lstm": lambda: holdfast.LSTMCell(2, 4),
    "lstm-no-bias": lambda: holdfast.LSTMCell(2, 4, bias=False),
    "gru-after": lambda: holdfast.GRUCell(2, 4),
    "gru-before": lambda: holdfast.GRUCell(2, 4, reset="before"),
    "gru-no-bias": lambda: holdfast.GRUCell(2, 4, bias=False),
    "indrnn-tanh": lambda: holdfast.IndRNNCell(2, 4, nonlinearity="tanh"),
    "mingru": lambda: holdfast.MinGRUCell(2, 4),
    "mingru-positive": lambda: holdfast.MinGRUCell(2, 4, nonlinearity="positive"),
    "minlstm": lambda: holdfast.MinLSTMCell(2, 4, nonlinearity="tanh"),
    "minlstm-no-bias": lambda: holdfast.MinLSTMCell(2, 4, bias=False),
}


def drawn(name, seed, scale):
    torch.manual_seed(seed)
    cell = CELLS[name]()
    with torch.no_grad():
        for key, weight in cell.named_parameters():
            weight.add_(0.1 * torch.randn_like(weight))
            if key == "weight_hh":
                weight.mul_(scale / torch.linalg.matrix_norm(weight.diag() if weight.dim() == 1 else weight, 2))
    return cell


def reached(cell, bound, samples=2, steps=8):
    """States that inputs of length ``bound`` reach from zero, and further inputs."""
    xs = torch.randn(steps + 1, samples, cell.input_size)
    xs = bound * xs / xs.norm(dim=2, keepdim=True)
    _, state = scan(cell, xs[:-1], backend="reference")
    return tuple(entry.detach() for entry in state), xs[-1]


class Map:
    """A cell's step as a function of a flat w and a flat state, one sample, with its Jacobians and their norms."""

    def __init__(self, cell, norm):
        self.cell, self.norm = cell, norm
        self.names, tensors = zip(*cell.named_parameters(), strict=True)
        self.shapes = [t.shape for t in tensors]
        self.w = torch.cat([t.detach().reshape(-1) for t in tensors])

    def __call__(self, w, state, x):
        parts = torch.split(w, [math.prod(shape) for shape in self.shapes])
        weights = {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}
        entries = tuple(entry.unsqueeze(0) for entry in state.split(self.cell.state_sizes))
        new = functional_call(self.cell, weights, (x.unsqueeze(0), entries))
        return torch.cat([entry.squeeze(0) for entry in (new if isinstance(new, tuple) else (new,))])

    def jacobian(self, of, w, state, x):
        point = {"w": w, "h": state, "x": x}

        def f(value):
            return self(*(value if key == of else point[key] for key in ("w", "h", "x")))

        return torch.autograd.functional.jacobian(f, point[of])

    def size(self, jacobian, of):
        if self.norm == "l2":
            return torch.linalg.matrix_norm(jacobian, 2).item()
        return (jacobian.norm(dim=1) if of == "w" else jacobian.abs().sum(dim=1)).max().item()

    def distance(self, a, b):
        return ((a - b).norm() if self.norm == "l2" else (a - b).abs().max()).item()


@pytest.mark.parametrize("name", CELLS)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.05, 0.95), bound=st.floats(0.05, 3))
@settings(deadline=None, max_examples=3)
def test_every_constant_bounds_what_it_names(name, seed, scale, bound):
    """For cells of 4 units, ‖x‖ ≤ B, reached states: λ, L_x, L_w, R, and by differences of Jacobians all four β.

    Differences in w are small steps from the cell's weights, to which the constants belong; 1% is for their curvature.
    """
    cell = drawn(name, seed, scale)
    bounds = step_bounds(cell, input_bound=bound)
    smooth = bounds.smoothness
    states, xs = reached(cell, bound)
    assert state_norm(cell, states).max() <= bounds.state_bound * (1 + 1e-12)
    f = Map(cell, bounds.norm)
    flat = torch.cat(states, dim=1)
    for (h, x), other in zip(zip(flat, xs, strict=True), flat.roll(1, 0), strict=True):
        in_h, in_w, in_x = (f.jacobian(of, f.w, h, x) for of in "hwx")
        assert f.size(in_h, "h") <= bounds.rate * (1 + 1e-12)
        assert f.size(in_w, "w") <= smooth.weights * (1 + 1e-12)
        assert f.size(in_x, "h") <= bounds.input_lipschitz * (1 + 1e-12)
        apart = f.distance(h, other) + 1e-300  # two ReLU states may be one, and 0 · ∞ is nothing
        assert f.size(in_h - f.jacobian("h", f.w, other, x), "h") <= smooth.hh * apart + 1e-12
        assert f.size(in_w - f.jacobian("w", f.w, other, x), "w") <= smooth.wh * apart + 1e-12
        step = 1e-4 * torch.nn.functional.normalize(torch.randn_like(f.w), dim=0)
        assert f.size(in_h - f.jacobian("h", f.w + step, h, x), "h") <= 1.01e-4 * smooth.hw + 1e-12
        assert f.size(in_w - f.jacobian("w", f.w + step, h, x), "w") <= 1.01e-4 * smooth.ww + 1e-12


@given(seed=st.integers(0, 10**6), u=st.floats(0.1, 0.9), w=st.floats(0.1, 3), b=st.floats(0, 1), B=st.floats(0.1, 2))
@settings(deadline=None, max_examples=10)
def test_a_regions_constants_are_never_below_those_of_its_members(seed, u, w, b, B):
    """For all radii, and for weights on the edge of the region."""
    torch.manual_seed(seed)
    region = Region(recurrent=u, input=w, bias=b)
    for make in (holdfast.RNNCell, holdfast.LinearCell):
        cell = make(2, 3)
        with torch.no_grad():
            for weight, radius in ((cell.weight_hh, u), (cell.weight_ih, w)):
                weight.mul_(radius / torch.linalg.matrix_norm(weight, 2))
            cell.bias.mul_(b / cell.bias.norm())
        own, whole = step_bounds(cell, B), step_bounds(cell, B, region=region)
        for one, other in zip(
            (own.rate, own.input_lipschitz, own.rest, own.state_bound, *vars(own.smoothness).values()),
            (whole.rate, whole.input_lipschitz, whole.rest, whole.state_bound, *vars(whole.smoothness).values()),
            strict=True,
        ):
            assert one <= other * (1 + 1e-12)


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_slopes_are_the_suprema(name):
    """On a fine grid of [-12, 12]: no slope, second derivative or value above, and each of them attained."""
    from holdfast.cells.nonlinearity import nonlinearity_named

    phi = nonlinearity_named("test", name)
    known = slopes(name)
    assert slopes(phi) == known
    z = torch.linspace(-12, 12, 480_001).requires_grad_()
    y = phi(z)
    (slope,) = torch.autograd.grad(y.sum(), z, create_graph=True)
    assert known.lipschitz == pytest.approx(slope.abs().max().item(), rel=1e-4)
    assert slope.abs().max() <= known.lipschitz * (1 + 1e-12)
    assert known.at_zero == pytest.approx(phi(torch.zeros(())).abs().item())
    if known.smoothness < math.inf:
        bend = (slope[1:] - slope[:-1]).abs().max().item() / (24 / 480_000)
        assert bend == pytest.approx(known.smoothness, rel=1e-4, abs=1e-9)
    if known.sup < math.inf:
        assert y.abs().max().item() == pytest.approx(known.sup, rel=1e-4)


def test_tanh_is_neither_one_smooth_nor_two_smooth_but_four_over_three_root_three():
    """S4 says 1 in §6.2 and 2 in A.3.1. The second derivative at tanh z = 1/√3 is 4/(3√3) = 0.7698."""
    z = torch.atanh(torch.tensor(1 / math.sqrt(3))).requires_grad_()
    (slope,) = torch.autograd.grad(torch.tanh(z), z, create_graph=True)
    (bend,) = torch.autograd.grad(slope, z)
    assert bend.abs().item() == pytest.approx(4 / (3 * math.sqrt(3)))
    assert slopes(torch.tanh).smoothness == pytest.approx(4 / (3 * math.sqrt(3)))


def test_what_is_unknown_is_named():
    with pytest.raises(NoBoundError, match=r"No slopes are known for the nonlinearity sin; known: tanh"):
        step_bounds(holdfast.RNNCell(2, 3, nonlinearity=torch.sin), 1.0)

    def cosine(z):
        return torch.cos(z)

    register_slopes(cosine, Slopes(1.0, 1.0, 1.0, 1.0))
    assert step_bounds(holdfast.RNNCell(2, 3, nonlinearity=cosine), 1.0).rate > 0
    with pytest.raises(SettingError, match=r"lipschitz and at_zero finite"):
        Slopes(math.inf, 1.0, 1.0, 0.0)
    with pytest.raises(SettingError, match=r"finite radii"):
        Region(recurrent=-1.0, input=1.0)
    with pytest.raises(NoBoundError, match=r"region expects RNNCell or LinearCell.*FastRNNCell"):
        step_bounds(holdfast.FastRNNCell(2, 3), 1.0, region=Region(0.5, 1.0))
    with pytest.raises(NoBoundError, match=r"states reached from zero; this one starts away"):
        step_bounds(holdfast.GRUCell(2, 3), 1.0, start=0.5)
    reflections = step_bounds(holdfast.SGORNNCell(2, 4, recurrent="householder"), 1.0)
    assert reflections.smoothness.weights == math.inf
    assert "HouseholderProduct has no Lipschitz constant" in reflections.caveat


def test_without_an_input_bound_a_squashed_state_is_bounded_all_the_same():
    """|tanh| ≤ 1, so ‖h‖ ≤ √n; a ReLU state may be anywhere."""
    assert step_bounds(holdfast.RNNCell(2, 4)).state_bound == 2.0
    assert step_bounds(holdfast.RNNCell(2, 4, nonlinearity="relu")).state_bound == math.inf
    stepped = step_bounds(holdfast.RNNCell(2, 4), input_bound=0.5, input_norm="linf")
    assert stepped.state_bound <= 2.0
