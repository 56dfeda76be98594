"""Each measure against a closed form, or against the same number worked out in another way."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import holdfast as hf
from helpers.cells import KINKED, SMOOTH
from helpers.faults import Tagger
from holdfast.diagnose import fixed_points, lyapunov_exponents
from holdfast.diagnose.activity import coverage, start_matters, unused_units
from holdfast.diagnose.find import find
from holdfast.diagnose.gates import gates_of
from holdfast.diagnose.jacobian import FlatStep
from holdfast.diagnose.proved import reach
from holdfast.diagnose.record import Row, run_model, run_rows
from holdfast.diagnose.sharpness import sharpness
from holdfast.diagnose.spectrum import jacobian_eigenvalues, recurrent_eigenvalues
from holdfast.diagnose.template import templates_of
from holdfast.spline import templates
from holdfast.stability import project_

CELLS = {**SMOOTH, **KINKED}


def recorded(model, xs, loss=lambda answers: answers.square().sum()):
    found = find(model)
    outside = run_model(found, lambda: found.model(xs), loss)
    return found, outside, run_rows(found.layer, outside, torch.arange(outside.xs.shape[1]))


def linear(U, W=None, b=None):
    n = len(U)
    cell = hf.LinearCell(1, n)
    with torch.no_grad():
        cell.weight_hh.copy_(U)
        cell.weight_ih.copy_(torch.ones(n, 1) if W is None else W)
        cell.bias.copy_(torch.zeros(n) if b is None else b)
    return cell


def real_spectrum():
    """A matrix with eigenvalues 1.1, 0.8, 0.4, 0.1."""
    values, basis = torch.tensor([1.1, 0.8, 0.4, 0.1]), torch.randn(4, 4)
    return basis @ torch.diag(values) @ torch.linalg.inv(basis), values


# -- Lyapunov exponents and eigenvalues --------------------------------------------------------------------------------


def test_exponents_of_a_linear_system_are_the_logarithms_of_its_eigenvalues():
    U, values = real_spectrum()
    found = lyapunov_exponents(linear(U), torch.randn(300, 2, 1))
    torch.testing.assert_close(found, values.log().expand(2, 4), atol=1e-6, rtol=0)
    torch.testing.assert_close(lyapunov_exponents(linear(U), torch.randn(300, 1, 1), 2)[0], values[:2].log())


def test_exponents_of_a_rotation_are_zero():
    cell = linear(torch.linalg.qr(torch.randn(5, 5))[0])
    found = lyapunov_exponents(cell, torch.randn(40, 1, 1))
    torch.testing.assert_close(found, torch.zeros(1, 5), atol=1e-9, rtol=0)


def test_exponents_of_a_gru_and_an_lstm_without_recurrent_weights_are_those_of_their_gates():
    """U = 0, x constant: ∂h'/∂h = z for a GRU. For an LSTM ∂c'/∂c = f, and h' does not depend on h."""
    gru, lstm, x = hf.GRUCell(2, 3), hf.LSTMCell(2, 3), torch.randn(1, 1, 2).expand(50, 1, 2)
    with torch.no_grad():
        gru.weight_hh.zero_(), lstm.weight_hh.zero_()
        gru.bias[3:6] = lstm.bias[3:6] = torch.tensor([2.0, 0.0, -2.0])  # far apart, so that Q turns fast
    z = torch.sigmoid(gru.drive(x[0, 0]).chunk(3)[1])
    f = torch.sigmoid(lstm.drive(x[0, 0]).chunk(4)[1])
    torch.testing.assert_close(lyapunov_exponents(gru, x)[0], z.log().sort(descending=True).values, atol=1e-3, rtol=0)
    found = lyapunov_exponents(lstm, x)[0]
    torch.testing.assert_close(found[:3], f.log().sort(descending=True).values, atol=1e-3, rtol=0)
    assert (found[3:] < -20).all()


def test_eigenvalues_of_u_and_of_the_jacobians_of_a_linear_system_agree():
    U, values = real_spectrum()
    cell, xs = linear(U), torch.randn(6, 2, 1)
    torch.testing.assert_close(recurrent_eigenvalues(cell)["U"].real.sort(descending=True).values, values)
    states = (torch.randn(7, 2, 4),)
    found = jacobian_eigenvalues(FlatStep(cell), xs, states, [0, 3])
    torch.testing.assert_close(found.real, values.expand(2, 4))


def test_a_gated_cell_has_one_matrix_per_gate():
    assert list(recurrent_eigenvalues(hf.LSTMCell(2, 3))) == ["input i", "forget f", "candidate g", "output o"]


@pytest.mark.parametrize("made", CELLS)
def test_the_jacobian_of_a_step_is_that_of_the_cell(made):
    """Also where the flat step multiplies with a dense U instead of turning step by step."""
    cell = CELLS[made](3, 4)
    step, x = FlatStep(cell), torch.randn(1, cell.input_size)
    s = torch.randn(1, step.size)

    def whole(flat):
        return torch.cat(cell.step(cell.drive(x), tuple(flat.split(step.sizes, dim=-1)), cell.weights()), dim=-1)

    exact = torch.autograd.functional.jacobian(whole, s)[0, :, 0]
    torch.testing.assert_close(step.jacobian(x, s)[0], exact)


# -- fixed points ------------------------------------------------------------------------------------------------------


def test_the_fixed_point_of_a_linear_system():
    """S = U s + W x + b has one solution, and U's eigenvalues are its modes. It is found though it is unstable."""
    U, values = real_spectrum()
    cell, x = linear(U, torch.randn(4, 1), torch.randn(4)), torch.randn(1)
    exact = torch.linalg.solve(torch.eye(4) - U, cell.drive(x)).detach()
    (point,) = fixed_points(cell, x, exact + torch.randn(8, 4))
    torch.testing.assert_close(torch.tensor(point.state), exact)
    assert (point.kind, point.stable, point.found) == ("fixed", False, 8)
    assert [mode[0] for mode in point.modes] == pytest.approx(values.tolist())
    assert point.time_constants == pytest.approx([-1 / math.log(value) for value in values])


def test_the_three_fixed_points_of_a_gru_with_one_unit():
    """With z = ½, r = 1: h' = ½ h + ½ tanh(2 h). So h = 0, of slope 3/2, and h* = ± tanh 2h*, of slope 3/2 - h*²."""
    cell = hf.GRUCell(1, 1)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.zero_()
        cell.bias[0] = 60.0
        cell.weight_hh[2] = 2.0
    high = 0.9
    for _ in range(200):
        high = math.tanh(2 * high)
    found = {round(point.state[0], 6): point for point in fixed_points(cell, torch.zeros(1), torch.randn(24, 1))}
    assert sorted(found) == [round(-high, 6), 0.0, round(high, 6)]
    assert [found[key].stable for key in sorted(found)] == [True, False, True]
    assert found[0.0].modes[0][0] == pytest.approx(1.5)
    assert found[round(high, 6)].modes[0][0] == pytest.approx(1.5 - high**2)
    assert sum(point.found for point in found.values()) == 24


def test_the_fixed_points_of_an_lstm_with_one_unit():
    """With f = ½, i = o = 1: c' = ½ c + tanh(2 h), h' = tanh c'. At 0 the modes are 5/2, 0; else c = 2 tanh 2h."""
    cell = hf.LSTMCell(1, 1)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.zero_()
        cell.bias[[0, 3]] = 60.0
        cell.weight_hh[2] = 2.0
    c = 1.0
    for _ in range(200):
        c = 2 * math.tanh(2 * math.tanh(c))
    found = {round(point.state[1], 6): point for point in fixed_points(cell, torch.zeros(1), torch.randn(24, 2))}
    assert sorted(found) == [round(-c, 6), 0.0, round(c, 6)]
    assert [mode[0] for mode in found[0.0].modes] == pytest.approx([2.5, 0.0], abs=1e-6)
    assert found[round(c, 6)].stable


def test_a_slow_point_is_told_from_a_fixed_one():
    """H' = h + 0.01 + h²/10 has no fixed point, and is slowest at 0."""

    class Slow(hf.Cell):
        def __init__(self):
            super().__init__(1, 1)
            self.weight = nn.Parameter(torch.ones(1))

        def drive(self, x):
            return 0 * x

        def weights(self):
            return (self.weight,)

        def step(self, drive, state, weights):
            (h,) = state
            return (h + 0.01 * weights[0] + h.square() / 10 + drive,)

    assert fixed_points(Slow(), torch.zeros(1), torch.randn(9, 1)) == ()
    (point,) = fixed_points(Slow(), torch.zeros(1), torch.randn(9, 1), speed=1.0)
    assert point.kind == "slow"
    assert point.state[0] == pytest.approx(0, abs=0.05)
    assert point.speed == pytest.approx(0.01, rel=0.1)


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_the_gradient_at_the_start_is_that_of_pytorch(kind, bidirectional):
    """δ_0 of each row is ∂L/∂h_0, two layers deep, with sequences of different lengths; the states are PyTorch's."""
    rnn, lengths = kind(3, 4, num_layers=2, bidirectional=bidirectional), torch.tensor([7, 5, 6])
    packed = pack_padded_sequence(torch.randn(7, 3, 3), lengths, enforce_sorted=False)
    state = tuple(torch.randn(2 * (1 + bidirectional), 3, 4) for _ in range(2 if kind is nn.LSTM else 1))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, start):
            hs, last = self.rnn(packed, start if len(start) > 1 else start[0])
            last = last if isinstance(last, tuple) else (last,)
            return hs.data.square().sum() + sum(entry.sin().sum() for entry in last)

    leaves = tuple(entry.clone().requires_grad_() for entry in state)
    exact = torch.autograd.grad(Model()(leaves), leaves)
    found = find(model := Model())
    outside = run_model(found, lambda: model(state), lambda answer: answer)
    rows, apart = run_rows(found.layer, outside, torch.arange(3))
    assert apart < 1e-12
    for index, row in enumerate(rows):
        for grad, whole in zip(row.grads, exact, strict=True):
            torch.testing.assert_close(grad[0], whole[index])


def test_gradients_of_a_linear_system_fall_as_its_powers():
    """H' = h / 2, read at the last of 40 steps: δ_t = 2^{t-40}, above 10⁻⁴ for the last 14 steps."""
    model = Tagger(hf.Recurrent(linear(torch.tensor([[0.5]]))), 1, last=True)
    _, outside, (rows, _) = recorded(model, torch.randn(40, 2, 1), lambda z: z.sum())
    ratio = rows[0].grads[0][1:, 0, 0] / rows[0].grads[0][-1, 0, 0]
    torch.testing.assert_close(ratio, 0.5 ** torch.arange(39, -1, -1, dtype=torch.float64))
    assert coverage(rows[0]) == 14 / 40
    assert (outside.direct_norms() > 0).sum() == 2  # the loss reads the last step of two sequences


@pytest.mark.parametrize("made", CELLS)
def test_gates_give_the_next_state_back(made):
    """c_t = f c + i g and h_t = o φ(c_t); h_t = z h + (1 - z) n; h_t = α c + β h."""
    cell = CELLS[made](3, 4)
    _, _, (rows, _) = recorded(hf.Recurrent(cell, backend="reference"), torch.randn(6, 2, cell.input_size))
    gates = {gate.name.split()[-1]: gate.values for gate in gates_of(cell, rows[0].xs, rows[0].states)}
    h, after = rows[0].states[0][:-1], rows[0].states[0][1:]
    if isinstance(cell, hf.LSTMCell):
        c = rows[0].states[1]
        torch.testing.assert_close(gates["f"] * c[:-1] + gates["i"] * gates["g"], c[1:])
        torch.testing.assert_close(gates["o"] * cell.phi(c[1:]), after)
    elif isinstance(cell, hf.GRUCell):
        torch.testing.assert_close(gates["z"] * h + (1 - gates["z"]) * gates["n"], after)
    elif gates and (form := hf.cells.step_form(cell)).weight_ho is None:
        alpha, beta = form.gate_values
        z = cell.drive(rows[0].xs) + h @ form.weight_hh.mT
        candidate = form.phi(z, form.bias) if form.phi.__name__ == "modrelu" else form.phi(z)
        torch.testing.assert_close(gates["candidate"], candidate)
        torch.testing.assert_close(alpha * candidate + beta * h, after)


def test_units_that_nothing_reads_are_unused():
    model = Tagger(nn.RNN(3, 6), 6)
    with torch.no_grad():
        model.rnn.weight_hh_l0[:4, 4:] = 0.0
        model.readout.weight[:, 4:] = 0.0
    _, _, (rows, _) = recorded(model, torch.randn(9, 4, 3))
    assert unused_units(rows[0], torch.zeros(6, dtype=torch.bool)).tolist() == [False] * 4 + [True] * 2


def test_the_start_of_a_linear_system_matters_as_its_powers():
    """H' = a h + x: another start moves the end by aᵀ times itself, so below 1 it is forgotten, and a = 1 keeps it."""
    for a, keeps in ((0.5, False), (1.0, True)):
        _, _, (rows, _) = recorded(
            hf.Recurrent(linear(torch.tensor([[a]])), backend="reference"), torch.randn(30, 6, 1)
        )
        assert (start_matters(rows[0]) > 0.1) == keeps


# -- gradients by distance, sharpness, templates -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        lambda: project_(hf.RNNCell(3, 5), rate=0.8),
        lambda: hf.SGORNNCell(3, 5, recurrent="exp"),
        lambda: hf.LinearCell(3, 5),
        lambda: hf.LSTMCell(3, 5),
        lambda: hf.GRUCell(3, 5),
    ],
)
def test_the_proved_bound_lies_above_every_gradient(cell):
    """For all distances: the largest gradient is at most c λ^i L_x."""
    cell = cell()
    with torch.no_grad():
        if isinstance(cell, hf.LSTMCell | hf.GRUCell | hf.LinearCell):
            for weight in cell.parameters():
                weight.mul_(0.15)
    xs = torch.randn(20, 3, 3)
    states = (torch.zeros(21, 3, 5),)
    found = reach(Row("layer 1", cell, xs, states, states), xs)
    assert found["bound"] is not None
    assert all(most <= bound * (1 + 1e-9) for most, bound in zip(found["largest"], found["bound"], strict=True))


def test_the_sharpness_of_a_quadratic_loss_is_its_largest_eigenvalue():
    """Mean squared error of a linear map: H = 2 XᵀX / n. At the edge 2 / λ_max a step neither falls nor grows."""
    X, y, model = torch.randn(20, 3), torch.randn(20, 1), nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()

    def loss():
        return (model(X) - y).square().mean()

    exact = torch.linalg.eigvalsh(2 * X.mT @ X / 20)[-1].item()
    found = sharpness(model, loss, lr=3.0 / exact, iterations=60)
    assert found.largest == pytest.approx(exact, rel=1e-4)
    assert found.edge == pytest.approx(2 / exact, rel=1e-4)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_the_templates_of_a_relu_network_are_those_of_the_splines():
    model = Tagger(hf.RNN(2, 6, nonlinearity="relu", backend="reference"), 6, outputs=3, last=True)
    xs = torch.randn(9, 4, 2)
    found, outside, _ = recorded(model, xs)
    ours = templates_of(found, lambda: model(xs), outside, [0, 2])
    assert ours["exact"]
    for place, sample in enumerate((0, 2)):
        exact = templates(model, xs[:, sample])
        torch.testing.assert_close(torch.stack(ours["samples"][place]["slopes"]), exact.rows.mT)
        torch.testing.assert_close(torch.tensor(ours["samples"][place]["answers"]), exact.outputs.detach())
