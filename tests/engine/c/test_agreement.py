"""For every cell, the exported C is the plain loop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast as hf
from helpers import TESTS
from helpers.c_model import Model, compiled, needs_gcc
from helpers.cells import COMPILED, MixedCell, shaken
from helpers.fuzz import RandomCell
from holdfast import Cell
from holdfast.engine.program.interpret import OPERATORS as TORCH_OPERATORS
from holdfast.engine.targets.c import emit, step_of
from holdfast.engine.targets.c.operators import OPERATORS
from holdfast.engine.targets.cpu.operators import OPERATORS as CPU_OPERATORS
from holdfast.export import c

pytestmark = needs_gcc
STEPS = 50


class SwappingCell(Cell):
    """Its entries change places at every step, one of them is passed on as it came, and one is the input."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size) * 0.5)
        self.speed = nn.Parameter(torch.rand(hidden_size))

    @property
    def state_sizes(self):
        return self.hidden_size, self.hidden_size, self.hidden_size, self.input_size, 1

    def drive(self, x):
        return x

    def weights(self):
        return self.weight_ih, self.speed

    def step(self, drive, state, weights):
        (a, b, kept, _, total), (weight_ih, speed) = state, weights
        new = torch.tanh(drive @ weight_ih.mT + speed * a)
        return b, 0.5 * (new + a.flip(1)), kept, drive, 0.9 * total + new.sum(dim=1, keepdim=True) + 0.1


class AttendingCell(Cell):
    """Softmax over slots, a cumulative sum, a layer norm, groups, and a mask among its buffers."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size) * 0.5)
        self.weight_hh = nn.Parameter(torch.randn(hidden_size, hidden_size) * 0.3)
        self.scale = nn.Parameter(torch.rand(hidden_size) + 0.5)
        self.register_buffer("mask", torch.arange(hidden_size) % 3 == 0)

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return (self.weight_hh,)

    def step(self, drive, state, weights):
        (h,), (weight_hh,) = state, weights
        z = drive + h @ weight_hh.mT
        z = nn.functional.layer_norm(z, z.shape[-1:]) * self.scale
        share = torch.softmax(z, dim=1)
        pooled = z.unflatten(1, (2, -1)).amax(dim=1).repeat(1, 2)
        mixed = torch.where(self.mask, share.cumsum(dim=1), torch.nn.functional.silu(z))
        return (0.5 * h + 0.3 * mixed - 0.1 * pooled * (z > 0.2).to(z.dtype),)


class SpikingCell(Cell):
    """Thresholds, clamps, powers, rounding and most of the elementwise operators."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))
        self.leak = nn.Parameter(torch.rand(hidden_size))

    @property
    def state_sizes(self):
        return self.hidden_size, self.hidden_size

    def drive(self, x):
        return torch.cos(x @ self.weight_ih.mT) + torch.sin(x.mean(dim=-1, keepdim=True))

    def weights(self):
        return (self.leak,)

    def step(self, drive, state, weights):
        (_, v), (leak,) = state, weights
        v = leak * v + drive
        spikes = (v > 1).to(v.dtype)
        v = v - spikes * v.clamp(-1, 1)
        a = torch.nn.functional.softplus(v) + torch.nn.functional.elu(v) + torch.nn.functional.leaky_relu(v, 0.1)
        b = torch.log1p(v.abs()) + torch.rsqrt(1 + v**2) - v**3 / 10 + (v.abs() + 1) ** 0.3 + torch.erf(v)
        d = torch.round(3 * v) / 3 + torch.floor(v) - torch.ceil(v) + torch.trunc(v) + torch.sign(v)
        e = torch.expm1(-v.abs()) + torch.exp2(-v.abs()) + torch.log2(v.abs() + 2) + torch.reciprocal(v.abs() + 1)
        f = torch.maximum(v, leak) - torch.minimum(v, -leak) + torch.nn.functional.gelu(v)
        g = torch.nn.functional.gelu(v, approximate="tanh") + torch.nn.functional.hardtanh(v) + torch.sqrt(v.abs())
        both = torch.logical_xor(v > 0, v < leak) | ~(v >= -1) & (v <= 2) | torch.isnan(v)
        return torch.where(both, a + b, d + e) + 0.1 * (f + g) + spikes, v


FOREIGN = {"swapping": SwappingCell, "attending": AttendingCell, "spiking": SpikingCell, "mixed": MixedCell}


def made(name, input_size, hidden_size):
    torch.manual_seed(0)
    cell = FOREIGN[name](input_size, hidden_size) if name in FOREIGN else shaken(name, input_size, hidden_size)
    with torch.no_grad():
        for key, weight in cell.named_parameters():
            if key == "weight_hh":  # shaken: but kept from growing over 50 steps
                weight.mul_(0.5)
    return cell.to(torch.float32)


def plain(cell, xs):
    output, last = hf.scan(cell, xs[:, None], backend="reference")
    return output[:, 0].detach().numpy(), np.concatenate([entry[0].detach().numpy() for entry in last])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Every cell of the catalogue, and those of this file, with narrow and with wide inputs: one run of gcc."""
    folder = tmp_path_factory.mktemp("cells")
    cells = {}
    for index, name in enumerate((*COMPILED, *FOREIGN)):
        cells[name] = made(name, 3 if index % 2 else 12, 10)
        c(cells[name], folder / f"cell{index}.c")
    return compiled(folder), folder, cells


@pytest.mark.parametrize("name", [*COMPILED, *FOREIGN])
def test_c_equals_the_plain_loop(library, name):
    """Outputs and every entry of the state, over 50 steps; again after a reset."""
    built, folder, cells = library
    cell, index = cells[name], list(cells).index(name)
    model = Model(built, folder / f"cell{index}.h", f"cell{index}")
    xs = torch.randn(STEPS, cell.input_size, dtype=torch.float32)
    with torch.no_grad():
        outputs, last = plain(cell, xs)
    scale = max(1.0, np.abs(outputs).max(), np.abs(last).max())
    for _ in range(2):
        np.testing.assert_allclose(model.run(xs.numpy()) / scale, outputs / scale, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.numbers()[: len(last)] / scale, last / scale, rtol=1e-5, atol=1e-5)
        model.reset()


RANDOM = (3, 7, 14, 21, 33, 46, 56, 61)


def test_random_steps_agree(tmp_path):
    """Steps that nobody wrote, of helpers/fuzz.py. What float32 itself is unsure of, by its distance from float64, may
    differ as much.
    """
    cells = {}
    for seed in RANDOM:
        torch.manual_seed(seed)
        cells[seed] = RandomCell(seed).eval()
        c(cells[seed], tmp_path / f"net{seed}.c")
    library = compiled(tmp_path)
    for seed, cell in cells.items():
        xs, model = torch.randn(6, cell.input_size), Model(library, tmp_path / f"net{seed}.h", f"net{seed}")
        with torch.no_grad():
            exact = plain(cell, xs)[1]
            last = plain(cell.to(torch.float32), xs.to(torch.float32))[1]
        model.run(xs.numpy())
        found = model.numbers()[: len(last)]
        unsure = 1e-5 * max(1.0, np.abs(last).max()) + 20 * np.abs(exact - last)
        assert (np.abs(found - last) <= unsure).all(), seed


@settings(max_examples=4, deadline=None)
@given(
    name=st.sampled_from(["lstm", "gru-before", "sgornn", "fastrnn", "own"]),
    input_size=st.integers(1, 20),
    hidden=st.integers(1, 12),
)
def test_every_size_works(tmp_path_factory, name, input_size, hidden):
    folder = tmp_path_factory.mktemp("sizes")
    cell = made(name, input_size, 2 * hidden)
    c(cell, folder / "net.c")
    model = Model(compiled(folder), folder / "net.h", "net")
    xs = torch.randn(7, input_size, dtype=torch.float32)
    with torch.no_grad():
        np.testing.assert_allclose(model.run(xs.numpy()), plain(cell, xs)[0], rtol=1e-5, atol=1e-5)


def test_every_operator_of_the_engine_is_written_or_belongs_to_a_gradient():
    assert not set(OPERATORS) - set(CPU_OPERATORS)
    missing = set(CPU_OPERATORS) - set(OPERATORS)
    assert all("_backward" in name for name in missing)
    assert set(TORCH_OPERATORS) == set(OPERATORS)


def test_new_states_are_written_in_place_where_they_can_be():
    """SGORNN's new state needs the old one row by row, so scratch memory holds two arrays and not three."""
    assert emit(step_of(hf.SGORNNCell(12, 16)), "net", "net_l0").work == 32
    assert emit(step_of(hf.LSTMCell(12, 16)), "net", "net_l0").work == 2 * 4 * 16


def test_the_step_in_the_guide_is_the_one_that_is_written():
    page = (TESTS.parent / "docs" / "usage" / "devices.md").read_text("utf-8")
    assert emit(step_of(hf.SGORNNCell(2, 16).to(torch.float32)), "gesture", "gesture_l0").text in page
