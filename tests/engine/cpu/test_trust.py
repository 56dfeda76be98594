"""The engine may refuse a cell, but it may never be silently wrong: steps that outsiders wrote, one law each."""

import copy
import dataclasses
import functools
import math
import pickle
import sys
import types
import warnings

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import holdfast as hf
from helpers import fuzz
from helpers.cells import assert_same_scan, random_state
from holdfast.engine.program import graph, lower, trace
from holdfast.engine.program.graph import mapped
from holdfast.engine.targets.cpu import expressions, plan
from holdfast.engine.targets.cpu.operators import OPERATORS
from holdfast.engine.targets.cpu.vec import select
from holdfast.errors import FusedError, FusedFallbackWarning, ShapeError

H = 6


class StepCell(hf.Cell):
    """A cell with one of everything, whose step is a function of (cell, drive, h, u, b)."""

    def __init__(self, function, input_size=3):
        super().__init__(input_size, H)
        self.function = function
        self.w, self.u = nn.Parameter(torch.randn(H, input_size) * 0.5), nn.Parameter(torch.randn(H, H) * 0.4)
        self.b, self.gain = nn.Parameter(torch.randn(H)), nn.Parameter(torch.rand(H) + 0.5)
        self.blocks, self.linear = nn.Parameter(torch.randn(2, 3, 3) * 0.5), nn.Linear(H, H)
        self.register_buffer("whole", torch.arange(H))
        self.register_buffer("truth", torch.arange(H) % 2 == 0)

    def drive(self, x):
        return x @ self.w.mT

    def weights(self):
        return self.u, self.b

    def step(self, drive, state, weights):
        result = self.function(self, drive, *state, *weights)
        return result if isinstance(result, tuple) else (result,)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def no_grad_region(cell, d, h, u, b):
    with torch.no_grad():
        size = h.norm(dim=1, keepdim=True)
    return torch.tanh(d + h @ u / (1 + size))


def as_complex(x):
    return torch.view_as_complex(x.reshape(-1, 3, 2))


def modrelu(z, bias):
    size = z.abs()
    return torch.view_as_real(z / (size + 0.1) * torch.relu(size + bias)).flatten(1)


def heads(x):
    return x.view(-1, 2, 3)


FUSED = {
    # one-feature tiles are read at row 0, their neighbours at row f
    "gate of one feature": lambda c, d, h, u, b: torch.sigmoid((d + h @ u + b)[:, :1]) * torch.tanh(d),
    "slice of one": lambda c, d, h, u, b: (h + d)[:, :1] * d,
    "split of one": lambda c, d, h, u, b: torch.tanh((h @ u + d).split([1, 5], 1)[0] * d + h),
    "weight beside one feature": lambda c, d, h, u, b: (b * h)[:, :1] + b * d,
    "halves of a weight": lambda c, d, h, u, b: torch.tanh(
        d + torch.cat([h @ m.mT * k for k, m in enumerate(u.chunk(2))], 1)
    ),
    # gradients are autograd's
    "straight-through": lambda c, d, h, u, b: Sign.apply(d + h @ u) * 0.5 + 0.1 * h,
    "straight-through weight": lambda c, d, h, u, b: torch.tanh(d + h @ Sign.apply(u) * 0.3),
    "gradient reversal": lambda c, d, h, u, b: torch.tanh(d + fuzz.Reverse.apply(h @ u)),
    "surrogate spike": lambda c, d, h, u, b: fuzz.Spike.apply(d + h @ u) + 0.3 * h,
    "no_grad": no_grad_region,
    "detach": lambda c, d, h, u, b: torch.tanh(d + h @ u) + 0.1 * h.detach(),
    # keyword arguments count
    "trunc division": lambda c, d, h, u, b: torch.div(d + h, 0.3, rounding_mode="trunc") * 0.1 + d,
    "add with alpha": lambda c, d, h, u, b: torch.add(d, h, alpha=0.3),
    # masks and integers
    "mask times": lambda c, d, h, u, b: torch.tanh(d * (h > 0) + h @ u),
    "integer buffer": lambda c, d, h, u, b: torch.tanh(d * c.whole + h @ u),
    "boolean buffer": lambda c, d, h, u, b: torch.tanh(d * c.truth + h @ u),
    "where with a buffer": lambda c, d, h, u, b: torch.where(c.truth, torch.tanh(d + h), h @ u * 0.2),
    "masked_fill with a buffer": lambda c, d, h, u, b: torch.tanh(d + h @ u).masked_fill(c.truth, 0.3),
    "an unused line": lambda c, d, h, u, b: (h.sum(0).exp(), torch.nonzero(h), torch.tanh(d + h @ u))[2],
    # what people write
    "softmax": lambda c, d, h, u, b: d * torch.softmax(h @ u, 1) + 0.1 * h,
    "log_softmax": lambda c, d, h, u, b: torch.log_softmax(d + h @ u, -1) * 0.3,
    "layer_norm": lambda c, d, h, u, b: torch.tanh(d + F.layer_norm(h @ u, (H,), c.gain, b)),
    "layer_norm without weights": lambda c, d, h, u, b: torch.tanh(d + F.layer_norm(h @ u, (H,))),
    "rms_norm": lambda c, d, h, u, b: torch.tanh(d + F.rms_norm(h @ u, (H,), c.gain)),
    "einsum": lambda c, d, h, u, b: torch.tanh(d + torch.einsum("bi,ij->bj", h, u)),
    "einsum transposed": lambda c, d, h, u, b: torch.tanh(d + torch.einsum("ij,bj->bi", u, h)),
    "heads": lambda c, d, h, u, b: torch.tanh(d + torch.einsum("bhd,hde->bhe", heads(h), c.blocks).reshape(-1, H)),
    "heads with one matrix": lambda c, d, h, u, b: torch.tanh(d + (heads(h) @ c.blocks[0]).reshape(-1, H)),
    "heads, softmax and sum": lambda c, d, h, u, b: torch.tanh(
        heads(d) + torch.softmax(heads(h), -1) * heads(h).sum(1, keepdim=True)
    ).flatten(1),
    "attention": lambda c, d, h, u, b: torch.tanh(
        d + (torch.softmax(heads(h) @ heads(d).transpose(1, 2), -1) @ heads(h)).reshape(-1, H)
    ),
    "amax": lambda c, d, h, u, b: d - 0.5 * h.amax(1, keepdim=True),
    "cumsum": lambda c, d, h, u, b: torch.tanh(d + torch.cumsum(torch.softmax(h @ u, 1), 1)),
    "submodule": lambda c, d, h, u, b: torch.tanh(d + c.linear(h)),
    "matrix from the left": lambda c, d, h, u, b: torch.tanh(d + (u @ h.T).T),
    "vector": lambda c, d, h, u, b: torch.tanh(d + (h @ b)[:, None] * 0.3),
    "unit norm": lambda c, d, h, u, b: F.normalize(d + h @ u, dim=1),
    "literal tensors": lambda c, d, h, u, b: torch.tanh(d * torch.tensor(0.5) + h * torch.tensor([1.0, 2, 3, 4, 5, 6])),
    "complex product": lambda c, d, h, u, b: torch.view_as_real(as_complex(h) * as_complex(d)).flatten(1),
    "complex rotation by weights": lambda c, d, h, u, b: torch.view_as_real(
        as_complex(h) * torch.polar(torch.ones(3), b[:3]) + as_complex(d)
    ).flatten(1),
    "complex modrelu": lambda c, d, h, u, b: modrelu(as_complex(d + h @ u), b[:3]),
    "complex from parts": lambda c, d, h, u, b: torch.cat(
        [
            (
                z := torch.complex(h[:, :3], d[:, 3:]).conj()
                * 1j
                * torch.exp(torch.complex(d[:, :3], h[:, 3:]) / 4)
                / 4
            ).real,
            z.imag,
        ],
        1,
    ),
    "own memory": lambda c, d, h, u, b: (d + h).mul_(0.5).tanh_(),
}


@pytest.mark.parametrize("input_size", [3, 12])
@pytest.mark.parametrize("name", FUSED)
def test_a_step_that_is_fused_is_the_plain_one(name, input_size):
    """Values and all gradients, with the drive inside the loop and outside."""
    cell = StepCell(FUSED[name], input_size)
    assert_same_scan(cell, torch.randn(5, 6, input_size, requires_grad=True), random_state(cell, 6))


@pytest.mark.parametrize("name", fuzz.UNARY)
def test_every_unary_operator_of_the_generator_is_fused(name):
    cell = StepCell(lambda c, d, h, u, b: torch.tanh(fuzz.UNARY[name](d + h @ u)) + 0.1 * b)
    assert_same_scan(cell, torch.randn(4, 5, 3, requires_grad=True), random_state(cell, 5))


@pytest.mark.parametrize("name", fuzz.BINARY)
def test_every_binary_operator_of_the_generator_is_fused(name):
    """Of two values of the same width, and of one and a value of one feature."""

    def step(cell, d, h, u, b):
        same, other = fuzz.BINARY[name](d + b, h @ u), fuzz.BINARY[name](d, h[:, :1])
        return torch.tanh(same[:, :H] + other[:, :H] + 0.1 * d)

    cell = StepCell(step)
    assert_same_scan(cell, torch.randn(4, 5, 3, requires_grad=True), random_state(cell, 5))


def hooked(cell, d, h, u, b):
    z = torch.tanh(d + h @ u)
    z.register_hook(lambda grad: 2 * grad)
    return z


def out_under_a_view(cell, d, h, u, b):
    z = d + h
    first = z[:, :1]
    torch.tanh(d, out=z)
    return z * first


def counted(cell, d, h, u, b):
    cell.counter = getattr(cell, "counter", iter(range(10**6)))
    return torch.tanh(d + h * next(cell.counter) * 1e-3)


REFUSED = {
    "floor division": (lambda c, d, h, u, b: torch.div(d + h, 0.3, rounding_mode="floor") * 0.1 + d, "rounding_mode"),
    "decimals": (lambda c, d, h, u, b: torch.round(d + 0.3 * h, decimals=2), "decimals"),
    "hook": (hooked, "register_hook"),
    "numpy": (lambda c, d, h, u, b: d if h.detach().numpy().sum() > 0 else d + h, "numpy"),
    "tolist": (lambda c, d, h, u, b: d if h.detach().tolist()[0][0] > 0 else d + h, "tolist"),
    "requires_grad": (lambda c, d, h, u, b: d + h if h.requires_grad else d, "requires_grad"),
    "batch size": (lambda c, d, h, u, b: torch.tanh(d + h) if h.shape[0] > 10 else torch.tanh(d - h), "batch size"),
    "random weight": (lambda c, d, h, u, b: torch.tanh(d + h @ F.dropout(u, 0.5)), "draw it in weights"),
    "group_norm": (lambda c, d, h, u, b: torch.tanh(d + F.group_norm(h, 2, c.gain, b)), "group_norm"),
    "conv1d": (
        lambda c, d, h, u, b: torch.tanh(d + F.conv1d(h.unsqueeze(1), u[None, :1, :3], padding=1).squeeze(1)),
        "convolution",
    ),
    "iterator": (counted, "counter, a range_iterator|depends on the batch size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_is_refused_is_named_and_runs_on_the_plain_loop(name):
    function, reason = REFUSED[name]
    sys.modules["holdfast.engine.scan"]._warned.clear()
    cell, xs = StepCell(function), torch.randn(5, 6, 3)
    with pytest.raises(FusedError, match=reason):
        hf.scan(cell, xs, backend="fused")
    torch.manual_seed(1)
    with pytest.warns(FusedFallbackWarning, match=reason):
        output, _ = hf.scan(cell, xs)
    grads = torch.autograd.grad(output.sum(), [cell.w, cell.u], allow_unused=True)
    if name != "iterator":
        torch.manual_seed(1)
        plain, _ = hf.scan(cell, xs, backend="reference")
        torch.testing.assert_close(output, plain)
        torch.testing.assert_close(grads, torch.autograd.grad(plain.sum(), [cell.w, cell.u], allow_unused=True))


def test_memory_given_to_an_operator_is_not_believed():
    """``out=`` into a tensor that has a view, where there is no gradient to forbid it."""
    cell, xs = StepCell(out_under_a_view), torch.randn(5, 6, 3)
    with torch.no_grad():
        with pytest.raises(FusedError, match="out="):
            hf.scan(cell, xs, backend="fused")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(hf.scan(cell, xs), hf.scan(cell, xs, backend="reference"))


def test_the_grad_mode_is_that_of_the_call():
    cell, xs = StepCell(lambda c, d, h, u, b: torch.tanh(d + h) if torch.is_grad_enabled() else d), torch.randn(5, 6, 3)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(hf.scan(cell, xs, backend="fused"), hf.scan(cell, xs, backend="reference"))


def test_a_bare_tensor_is_an_error_that_says_what_to_return():
    class Bare(StepCell):
        def step(self, drive, state, weights):
            return torch.tanh(drive + state[0])

    with pytest.raises(ShapeError, match=r"return \(h,\)"):
        hf.scan(Bare(None), torch.randn(5, 6, 3), backend="reference")


# -- plans follow settings ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    gain: float


class Slotted:
    __slots__ = ("gain",)

    def __init__(self, gain):
        self.gain = gain


class Callable:
    def __init__(self, gain):
        self.gain = gain

    def __call__(self, x):
        return self.gain * x


CONFIG = types.ModuleType("config_of_a_user")
GAIN = 1.0


def global_step(cell, d, h, u, b):
    return torch.tanh(GAIN * d + h @ u)


def module_step(cell, d, h, u, b):
    return torch.tanh(CONFIG.gain * d + h @ u)


def helper(d):
    return GAIN * d


def called_step(cell, d, h, u, b):
    return torch.tanh(helper(d) + h @ u)


def dynamic_step(cell, d, h, u, b):
    return torch.tanh(getattr(cell, "".join(["ga", "in"])) * d + h @ u)


def set_global(cell, value):
    global GAIN
    GAIN = value


def set_array(cell, value):
    cell.value[0] = value


def set_class(cell, value):
    type(cell).level = value


def closure():
    gain = 1.0

    def step(cell, d, h, u, b):
        return torch.tanh(gain * d + h @ u)

    def change(cell, value):
        nonlocal gain
        gain = value

    return None, step, change


def at(name):
    return lambda cell, value: setattr(cell.value, name, value)


SETTINGS = {
    "underscore": (None, lambda c, d, h, u, b: torch.tanh(c._a * d + h @ u), lambda c, v: setattr(c, "_a", v)),
    "dataclass": (Options(1.0), lambda c, d, h, u, b: torch.tanh(c.value.gain * d + h @ u), at("gain")),
    "slots": (Slotted(1.0), lambda c, d, h, u, b: torch.tanh(c.value.gain * d + h @ u), at("gain")),
    "namespace": (types.SimpleNamespace(gain=1.0), lambda c, d, h, u, b: torch.tanh(c.value.gain * d + h), at("gain")),
    "nested": (
        {"a": [Options(1.0)]},
        lambda c, d, h, u, b: torch.tanh(c.value["a"][0].gain * d + h),
        lambda c, v: setattr(c.value["a"][0], "gain", v),
    ),
    "array": (np.array([1.0]), lambda c, d, h, u, b: torch.tanh(float(c.value[0]) * d + h @ u), set_array),
    "callable": (Callable(1.0), lambda c, d, h, u, b: torch.tanh(c.value(d) + h @ u), at("gain")),
    "partial": (
        functools.partial(torch.mul, torch.ones(())),
        lambda c, d, h, u, b: torch.tanh(c._a * d + h @ u),
        lambda c, v: setattr(c, "_a", v),
    ),
    "class attribute": (None, lambda c, d, h, u, b: torch.tanh(c.level * d + h @ u), set_class),
    "global": (None, global_step, set_global),
    "global of a called function": (None, called_step, set_global),
    "global of a module": (None, module_step, lambda c, v: setattr(CONFIG, "gain", v)),
    "name made at run time": (
        None,
        dynamic_step,
        lambda c, v: setattr(c, "gain", torch.tensor(v)) or setattr(c, "gain", v),
    ),
    "closure": closure(),
}


class Leveled(StepCell):
    level = 1.0


@pytest.mark.parametrize("name", SETTINGS)
def test_a_plan_follows_whatever_its_step_reads(name):
    """Changed and changed back: the scan is the plain one each time, and the old plan is found again."""
    value, step, change = SETTINGS[name]
    cell, xs = Leveled(step), torch.randn(4, 5, 3)
    del cell.gain
    cell.value, cell._a, CONFIG.gain = value, 1.0, 1.0
    cell.gain = 1.0
    set_global(cell, 1.0)
    for gain in (1.0, -0.4, 1.0, 1.7):
        change(cell, gain)
        assert_same_scan(cell, xs, random_state(cell, 5))
    made = [p for p in vars(cell)[plan.PLANS].known.values() if isinstance(p, plan.Plan)]
    assert len(made) == 3


def test_what_no_walk_can_see_is_found_when_the_step_is_recorded_again():
    """State inside an extension module, here NumPy's print options: a new plan after AGAIN scans at the latest."""

    def step(cell, d, h, u, b):
        return torch.tanh(d + np.get_printoptions()["precision"] * 0.1 * h)

    cell, xs = StepCell(step), torch.randn(4, 5, 3)
    hf.scan(cell, xs, backend="fused")
    with np.printoptions(precision=3):
        for _ in range(plan.AGAIN):
            last, _ = hf.scan(cell, xs, backend="fused")
        torch.testing.assert_close(last, hf.scan(cell, xs, backend="reference")[0])


def test_a_second_derivative_needs_the_settings_of_the_scan():
    cell, xs = Leveled(SETTINGS["underscore"][1]), torch.randn(4, 5, 3, requires_grad=True)
    cell._a = 1.0
    output, _ = hf.scan(cell, xs, backend="fused")
    cell._a = 2.0
    with pytest.raises(FusedError, match="settings of Leveled changed"):
        torch.autograd.grad(output.square().sum(), xs, create_graph=True)
    cell._a = 1.0
    assert torch.autograd.grad(output.square().sum(), xs, create_graph=True)[0].requires_grad


def test_a_setting_that_changes_with_every_scan_keeps_few_plans(monkeypatch):
    monkeypatch.setattr(plan, "MOST", 3)
    cell, xs = Leveled(SETTINGS["underscore"][1]), torch.randn(4, 5, 3)
    for gain in (0.1, 0.2, 0.3, 0.4, 0.5):
        cell._a = gain
        with torch.no_grad():
            torch.testing.assert_close(hf.scan(cell, xs, backend="fused"), hf.scan(cell, xs, backend="reference"))
    assert len(vars(cell)[plan.PLANS].known) == 3


def test_a_step_that_can_reach_everything_is_refused(monkeypatch):
    cell, xs = Leveled(SETTINGS["nested"][1]), torch.randn(4, 5, 3)
    cell.value = {"a": [Options(1.0)], "more": [[i] for i in range(20_000)]}
    with pytest.raises(FusedError, match="can reach more than 10,000 Python objects"):
        hf.scan(cell, xs, backend="fused")


def test_a_copied_cell_has_plans_of_its_own():
    cell, xs = Leveled(global_step), torch.randn(4, 5, 3)
    hf.scan(cell, xs, backend="fused")
    for other in (copy.deepcopy(cell), copy.copy(cell), pickle.loads(pickle.dumps(hf.GRUCell(3, 4)))):
        assert_same_scan(other, xs, random_state(other, 5))
    assert_same_scan(cell, xs, random_state(cell, 5))


# -- random numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("input_size", [3, 12])
def test_dropout_in_a_step_draws_what_the_plain_loop_draws(input_size, reverse):
    """One mask per step from PyTorch's generator, in its order; the generator ends where it would."""

    def step(cell, d, h, u, b):
        return torch.tanh(F.dropout(d, 0.2) + F.dropout(h, 0.5) @ u + 0.1 * torch.randn_like(h))

    cell, xs = StepCell(step, input_size), torch.randn(5, 6, input_size, requires_grad=True)
    results = []
    for backend in ("fused", "reference"):
        torch.manual_seed(3)
        output, _ = hf.scan(cell, xs, reverse=reverse, backend=backend)
        grads = torch.autograd.grad(output.square().sum(), [xs, cell.w, cell.u])
        results.append((output, *grads, torch.get_rng_state()))
        second = torch.autograd.grad(hf.scan(cell, xs, backend=backend)[0].sum(), xs, create_graph=True)[0]
        assert torch.autograd.grad(second.sum(), cell.u)[0].isfinite().all()
    torch.testing.assert_close(*results)


def test_random_numbers_for_values_that_are_not_contiguous_are_the_plain_loops():
    """Which number an entry gets depends on strides: such a scan is left to the plain loop."""

    class Turned(StepCell):
        def drive(self, x):
            return (self.w @ x.mT).mT

    def dropped(cell, d, h, u, b):
        return torch.tanh(F.dropout(d, 0.5) + h @ u)

    turned = StepCell(lambda c, d, h, u, b: torch.tanh(d + F.dropout((u @ h.T).T, 0.5)))
    state = StepCell(lambda c, d, h, u, b: torch.tanh((u @ F.dropout(h, 0.5).T).T + d.T.contiguous().T))
    plain, wide = torch.randn(5, 6, 3), torch.randn(6, 5, 3).transpose(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell, xs in ((turned, plain), (state, plain), (Turned(dropped), plain), (StepCell(dropped), wide)):
            results = []
            for backend in ("auto", "reference"):
                torch.manual_seed(3)
                results.append((hf.scan(cell, xs, random_state(cell, 6), backend=backend)[0], torch.get_rng_state()))
            torch.testing.assert_close(*results)


def test_dropout_in_weights_and_in_drive_is_drawn_once_per_sequence():
    class DropConnect(StepCell):
        def weights(self):
            return F.dropout(self.u, 0.5), self.b

        def drive(self, x):
            return F.dropout(super().drive(x), 0.3)

    for input_size in (3, 12):
        cell = DropConnect(lambda c, d, h, u, b: torch.tanh(d + h @ u), input_size)
        xs, results = torch.randn(5, 6, input_size), []
        for gradient in (True, False):
            for backend in ("fused", "reference", "auto"):
                torch.manual_seed(3)
                with torch.set_grad_enabled(gradient):
                    results.append((hf.scan(cell, xs, backend=backend)[0].detach(), torch.get_rng_state()))
        for result in results[1:]:
            torch.testing.assert_close(result, results[0])


def test_a_refused_cell_draws_no_more_than_the_plain_loop():
    def step(cell, d, h, u, b):
        return torch.tanh(d + F.dropout(h, 0.5) @ F.dropout(u, 0.5))

    cell, xs, results = StepCell(step), torch.randn(5, 6, 3), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for backend in ("auto", "reference"):
            torch.manual_seed(3)
            results.append((hf.scan(cell, xs, backend=backend)[0], torch.get_rng_state()))
    torch.testing.assert_close(*results)


# -- company -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_tracers_and_forward_derivatives_take_the_plain_loop(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' shape checks cannot be traced
    cell, xs = hf.RNNCell(3, 4).requires_grad_(False), torch.randn(5, 2, 3)
    traced = torch.jit.trace(lambda x: hf.scan(cell, x)[0], (xs,), check_trace=False)
    torch.testing.assert_close(traced(xs), hf.scan(cell, xs, backend="reference")[0])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(xs, torch.ones_like(xs))
        results = [
            torch.autograd.forward_ad.unpack_dual(hf.scan(cell, dual, backend=b)[0]) for b in ("auto", "reference")
        ]
    torch.testing.assert_close(results[0].tangent, results[1].tangent)


def test_a_half_precision_input_under_autocast_is_taken_in_the_weights_type():
    """As ``torch.nn.LSTM`` after a layer that autocast runs in bfloat16."""
    embed, layer = nn.Linear(3, 4).float(), hf.LSTM(4, 5, dtype=torch.float32)
    xs = torch.randn(6, 2, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inner = embed(xs)
        output, _ = layer(inner)
        direct, _ = hf.scan(layer.cells[0], inner)
    assert inner.dtype == torch.bfloat16
    assert output.dtype == direct.dtype == torch.float32
    torch.testing.assert_close(output, layer(inner.float())[0])
    torch.testing.assert_close(direct, output)


def test_a_parameter_with_a_hook_gets_it_once():
    cell, xs = StepCell(FUSED["heads"]), torch.randn(5, 6, 3)
    grads = []
    cell.w.register_hook(lambda grad: 2 * grad)
    cell.u.register_hook(lambda grad: 3 * grad)
    for backend in ("fused", "reference"):
        cell.zero_grad()
        hf.scan(cell, xs, backend=backend)[0].square().sum().backward()
        grads.append([cell.w.grad.clone(), cell.blocks.grad.clone()])
    torch.testing.assert_close(*grads)
    cell.blocks.register_hook(lambda grad: grad)  # the step reads this one itself
    with pytest.raises(FusedError, match="blocks, which has a hook"):
        hf.scan(cell, xs, backend="fused")


# -- NaN, infinity and huge values -------------------------------------------------------------------------------------

SMOOTH = "neg abs square reciprocal sqrt rsqrt relu sigmoid tanh exp exp2 expm1 log log2 log1p erf sin cos"
ACTIVATIONS = "elu selu celu leaky_relu hardtanh softplus relu6 hardsigmoid"
SPECIAL = {name: getattr(torch, name) for name in SMOOTH.split()}
SPECIAL |= {name: getattr(F, name) for name in ACTIVATIONS.split()}
SPECIAL |= {
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "cube": lambda x: x**3,
    "power": lambda x: x**1.7,
    "inverse power": lambda x: x**-1.5,
    "root": lambda x: x**0.5,
    "own power": lambda x: x.abs() ** x,
    "clamp": lambda x: x.clamp(-1, 2),
    "maximum": lambda x: torch.maximum(x, -x),
    "where": lambda x: torch.where(x > 1, 2 * x, -x),
    "expand": lambda x: x[:, :1].expand(-1, 3),
    "round": lambda x: torch.round(x) + 0 * x,
    "amax": lambda x: x - x.amax(1, keepdim=True),
}


OLD_KERNELS = {"log1p", "elu", "selu", "celu", "hardswish"}


class Alone(hf.Cell):
    """A step of one function, three equal features."""

    def __init__(self, function):
        super().__init__(3, 3)
        self.function, self.unused = function, nn.Parameter(torch.zeros(()))

    def drive(self, x):
        return 1.0 * x

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        return (self.function(drive),)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_go_where_the_plain_loops_go(name, dtype):
    """Value and gradient at zeros of both signs, tiny, huge and infinite numbers and NaN; exceptions in the docs."""
    if name in OLD_KERNELS and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("PyTorch's own kernel had another answer at NaN or infinity before")
    info = torch.finfo(dtype)
    numbers = [0.0, 0.5, 1.0, 2.5, 3.0, 20.0, 1e5, 1e10, 1e20, info.max, info.tiny, math.inf]
    column = torch.tensor([math.nan, *numbers, *(-n for n in numbers)], dtype=dtype)
    column = torch.cat([column, column[-1:].repeat(-len(column) % 8)])  # whole vectors, so no sample is padded
    xs, cell, results = column[None, :, None].repeat(1, 1, 3), Alone(SPECIAL[name]).to(dtype), []
    for backend in ("fused", "reference"):
        x = xs.clone().requires_grad_()
        output, _ = hf.scan(cell, x, backend=backend)
        results += [output.detach(), *torch.autograd.grad(output, x, torch.ones_like(output))]
    for fused, plain in zip(results[:2], results[2:], strict=True):
        tolerance = 1e-5 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=8 * info.tiny, equal_nan=True)
    zero = results[2] == 0
    assert torch.equal(results[0][zero].signbit(), results[2][zero].signbit())


# -- the trial ---------------------------------------------------------------------------------------------------------


def broken_key(node, row, offset, *more):
    """The memo of old: it forgot the row."""
    return (node, offset, *more)


def test_a_wrong_kernel_is_refused_before_anybody_sees_its_result(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(expressions, "key_of", broken_key)
    sys.modules["holdfast.engine.scan"]._warned.clear()
    cell, xs = StepCell(FUSED["gate of one feature"]), torch.randn(5, 60, 3)  # lanes over samples, on few threads
    with pytest.raises(FusedError, match=r"the output differs by .*please report"):
        hf.scan(cell, xs, backend="fused")
    with pytest.warns(FusedFallbackWarning, match="please report"):
        output, _ = hf.scan(cell, xs)
    torch.testing.assert_close(output, hf.scan(cell, xs, backend="reference")[0])


def test_a_wrong_gradient_is_replaced_by_the_plain_loops(monkeypatch, tmp_path):
    """The forward kernel is right, the backward one is not: found when it is first needed."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    sys.modules["holdfast.engine.scan"]._warned.clear()
    cell, xs = hf.RNNCell(3, 5), torch.randn(5, 60, 3)
    expected = torch.autograd.grad(hf.scan(cell, xs, backend="reference")[0].sum(), list(cell.parameters()))
    monkeypatch.setitem(OPERATORS, "tanh_backward", lambda grad, y: grad * (1.0 - y))
    output, _ = hf.scan(cell, xs)
    with pytest.warns(FusedFallbackWarning, match="gradient of a scan of RNNCell"):
        found = torch.autograd.grad(output.sum(), list(cell.parameters()), retain_graph=True)
    torch.testing.assert_close(found, expected)
    with pytest.raises(FusedError, match="the gradient of"):
        hf.scan(hf.RNNCell(3, 5), xs, backend="fused")[0].sum().backward()
    hf.scan(cell, xs)  # from now on the plain loop, and no second warning


def test_a_failing_compiler_is_a_warning_and_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    sys.modules["holdfast.engine.scan"]._warned.clear()

    def fail(*args, **kwargs):
        raise KeyError("lost")

    monkeypatch.setattr(plan, "emit_backward", fail)
    cell, xs = hf.RNNCell(3, 7), torch.randn(5, 60, 3)
    with pytest.warns(FusedFallbackWarning, match="compiler failed.*KeyError"):
        hf.scan(cell, xs)[0].sum().backward()
    assert cell.weight_hh.grad is not None
    monkeypatch.setattr(plan, "emit_forward", fail)
    with pytest.warns(FusedFallbackWarning, match="compiler failed.*KeyError"):
        hf.scan(hf.GRUCell(3, 7), xs)


def test_a_quantised_step_is_not_refused_for_rounding():
    """A value near a step may fall on either side; that is rounding, not a fault."""
    cell = StepCell(lambda c, d, h, u, b: torch.round(4 * torch.tanh(d + h @ u)) / 4 + 0.1 * torch.tanh(d)).float()
    for seed in range(5):
        torch.manual_seed(seed)
        hf.scan(cell, torch.randn(5, 6, 3, dtype=torch.float32), backend="fused")


# -- the generator -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_steps_agree_with_the_plain_loop_or_are_refused(first):
    """Without the trial: 400 scans of 50 steps; ``python -m helpers.fuzz`` does any number."""
    outcomes = [(seed, result) for seed in range(first, first + 10) for _, result in fuzz.cases(seed)]
    assert len(outcomes) == 80
    assert not [entry for entry in outcomes if entry[1].startswith("differs")]
    assert sum(result.startswith("agrees") for _, result in outcomes) >= 54


def replayed(new, cotangents, leaves, pull_back=trace._pull_back):
    """The gradient of old: the recorded operators run again and are differentiated, so custom gradients are lost."""
    recorder = torch.utils._python_dispatch._get_current_dispatch_mode()
    tensors = dict(zip(recorder.graph.inputs, recorder._held, strict=False))
    own = {place: tensor for tensor in leaves for key, place in recorder._own.items() if key == id(tensor)}
    for node in list(recorder.graph.nodes):
        if node.kind == "call":
            args, kwargs = mapped((node.args, node.kwargs), tensors.__getitem__)
            tensors[node] = node.target(*args, **kwargs)
        else:
            tensors[node] = own[node.target] if node.kind == "own" else node.value
    return pull_back([tensors[recorder.node(entry)] for entry in new], cotangents, leaves)


def set_operator(name, function):
    return lambda m: m.setitem(OPERATORS, name, function)


MUTATIONS = {
    "memo without the row": ("first", lambda m: m.setattr(expressions, "key_of", broken_key)),
    "custom gradients lost": ("straight-through", lambda m: m.setattr(trace, "_pull_back", replayed)),
    "no_grad lost": ("no-grad", lambda m: m.setattr(trace, "_pull_back", replayed)),
    "keyword dropped": ("div-floor", lambda m: m.setattr(lower, "_IGNORED", {*lower._IGNORED, "rounding_mode"})),
    "batch size unseen": ("branch", lambda m: m.setattr(plan.Plan, "same_at", lambda *_: None)),
    "settings unseen": ("setting", lambda m: m.setattr(plan, "_settings", lambda *_: plan.Settings(None, ()))),
    "mask drawn once": ("drop-row", lambda m: m.setattr(graph.Node, "is_random", property(lambda _: False))),
    "elu at NaN": ("elu", set_operator("elu_backward", lambda g, a, s, i, x: g * select(x <= 0.0, a * s * i, s))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_generator_finds_each_bug_that_is_put_back(monkeypatch, tmp_path, name):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    focus, put_back = MUTATIONS[name]
    put_back(monkeypatch)
    for seed in range(10_000, 10_040):
        if any(result.startswith("differs") for _, result in fuzz.cases(seed, focus=(focus,))):
            return
    pytest.fail("40 seeds, and nothing was found")
