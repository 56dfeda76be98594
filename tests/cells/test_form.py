"""One description of a cell: it is the cell's own equation, and one registration reaches every reader."""

import pytest
import torch
from torch import nn

import holdfast
from holdfast import ScalarGates
from holdfast.cells import StepForm, step_form
from holdfast.cells.exprnn import modrelu
from holdfast.cells.nonlinearity import NONLINEARITIES, MaxAffine, is_homogeneous, slopes
from holdfast.optim import recurrences_of
from holdfast.spline import affine_piece
from holdfast.stability import contraction_rate, project_, step_bounds

CELLS = {
    "rnn": lambda: holdfast.RNNCell(3, 4),
    "linear": lambda: holdfast.LinearCell(3, 4, bias=False),
    "linear with an output": lambda: holdfast.LinearCell(3, 4, output_size=2, direct=True),
    "fastrnn": lambda: holdfast.FastRNNCell(3, 4, gates=ScalarGates(clip="alpha")),
    "vprnn": lambda: holdfast.VPRNNCell(3, 4),
    "exprnn": lambda: holdfast.ExpRNNCell(3, 4),
    "scornn": lambda: holdfast.ScoRNNCell(3, 4),
    "exprnn with relu": lambda: holdfast.ExpRNNCell(3, 4, nonlinearity="relu"),
    **{
        f"sgornn with {name}": lambda name=name: holdfast.SGORNNCell(3, 4, recurrent=name)
        for name in ("rotations", "exp", "cayley", "householder")
    },
}
PIECEWISE = [*NONLINEARITIES.values(), nn.LeakyReLU(0.3), MaxAffine((-2.0, 0.5), (0.0, 1.0))]


@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)
def test_the_form_of_a_cell_is_its_step(make):
    """For all x, h: h_t = α φ(W x + U h + b) + β h, with modrelu's b as its second argument; y = C h_t + D x."""
    cell = make()
    for weight in cell.parameters():
        nn.init.normal_(weight, std=0.5)
    form, x, h = step_form(cell), torch.randn(5, 3), torch.randn(5, 4)
    z, (alpha, beta) = x @ form.weight_ih.mT + h @ form.weight_hh.mT, form.gate_values
    bias = torch.zeros(4) if form.bias is None else form.bias
    new = alpha * (modrelu(z, bias) if form.phi is modrelu else form.phi(z + bias)) + beta * h
    if form.weight_ho is None:
        torch.testing.assert_close(cell(x, h), new)
    else:
        y, state = cell(x, (torch.zeros(5, 2), h))
        torch.testing.assert_close((y, state), (new @ form.weight_ho.mT + x @ form.weight_io.mT, new))


@pytest.mark.parametrize("make", [holdfast.LSTMCell, holdfast.GRUCell])
def test_a_cell_of_another_form_has_none(make):
    assert step_form(make(3, 4)) is None


@pytest.mark.parametrize("phi", PIECEWISE, ids=lambda phi: getattr(phi, "__name__", type(phi).__name__))
def test_the_table_agrees_with_the_function(phi):
    """On a grid: the regions are the function, L and M bound it, |φ(0)| is exact, and homogeneity is what it says."""
    known, z = slopes(phi), torch.linspace(-6, 6, 2401)
    value = phi(z)
    assert (value.diff().abs() <= known.lipschitz * z.diff() * (1 + 1e-9)).all()
    assert (value.abs() <= known.sup).all()
    assert phi(torch.zeros(1)).abs().item() == pytest.approx(known.at_zero)
    if known.regions is not None:
        region = (z.unsqueeze(1) > torch.tensor(known.regions.knots)).sum(1)
        line = torch.tensor(known.regions.slopes)[region] * z + torch.tensor(known.regions.intercepts)[region]
        torch.testing.assert_close(line, value)
    same = torch.allclose(phi(3 * z), 3 * value) and torch.equal(phi(z.relu()), z.relu())
    assert is_homogeneous(phi) == same


def test_modrelu_with_a_positive_bias_has_no_rate():
    """It jumps from -b to b at zero: no bound is finite, and none is NaN."""
    cell = holdfast.ExpRNNCell(3, 4)
    nn.init.constant_(cell.bias, 0.1)
    bounds = step_bounds(cell, input_bound=1.0)
    assert contraction_rate(cell) == bounds.rate == bounds.state_bound == bounds.smoothness.weights == torch.inf
    assert "jumps at zero" in bounds.caveat


class OwnCell(holdfast.Cell):
    """h_t = relu(W x + 2 U h): an Elman cell that no reader has seen."""

    def __init__(self):
        super().__init__(3, 4)
        self.inputs, self.states = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 4))

    def drive(self, x):
        return x @ self.inputs.mT

    def weights(self):
        return (self.states,)

    def step(self, drive, state, weights):
        return (torch.relu(drive + state[0] @ weights[0].mT),)


def test_one_registration_serves_stability_spline_and_optim():
    step_form.register(OwnCell, lambda cell: StepForm(cell.inputs, cell.states, None, torch.relu))
    layer, x = holdfast.Recurrent(OwnCell(), backend="reference"), torch.randn(6, 3)
    torch.testing.assert_close(affine_piece(layer, x)(x), layer(x)[1][-1])
    (recurrence,) = recurrences_of(layer)
    assert recurrence.weight_ih is layer.cells[0].inputs
    assert recurrence.weight_hh is layer.cells[0].states
    assert contraction_rate(project_(layer, rate=0.5)) <= 0.5
