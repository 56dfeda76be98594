"""coRNN and the antisymmetric RNN: no Jacobian that is seen passes what is proved."""

import pytest
import torch

from holdfast import AntisymmetricRNNCell, CoRNNCell, scan
from holdfast.errors import SettingError
from holdfast.stability import NoBoundError, contraction_rate, cornn_gradient_bound

CELLS = {
    "cornn": lambda: CoRNNCell(2, 4, dt=0.2, gamma=2.0, epsilon=0.5),
    "cornn-undamped": lambda: CoRNNCell(2, 4, dt=0.1, gamma=1.0, epsilon=0.0, bias=False),
    "antisymmetric": lambda: AntisymmetricRNNCell(2, 4, epsilon=0.3, gamma=0.2),
    "antisymmetric-gated": lambda: AntisymmetricRNNCell(2, 4, gated=True, epsilon=0.3, gamma=0.2),
    "antisymmetric-relu": lambda: AntisymmetricRNNCell(2, 4, nonlinearity="relu", gamma=0.0),
}


def _drawn(name, seed, size):
    torch.manual_seed(seed)
    cell = CELLS[name]()
    with torch.no_grad():
        for weight in cell.parameters():
            weight.mul_(size)
    return cell


def _jacobian_of_state(cell, xs, state):
    """∂(last state)/∂(first state), a square matrix."""
    sizes = cell.state_sizes

    def run(flat):
        last = scan(cell, xs, tuple(flat.split(sizes, dim=1)), backend="reference")[1]
        return torch.cat(last, dim=1)

    flat = torch.cat(state, dim=1)
    return torch.autograd.functional.jacobian(run, flat).view(sum(sizes), sum(sizes))


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_the_jacobian_of_a_step_is_within_the_rate(name, size):
    """For small and large weights, at random states and inputs."""
    for seed in range(3):
        cell = _drawn(name, seed, size)
        state = tuple(torch.randn(1, n) for n in cell.state_sizes)
        norm = torch.linalg.matrix_norm(_jacobian_of_state(cell, torch.randn(1, 1, 2), state), 2)
        assert norm <= contraction_rate(cell) * (1 + 1e-12)


def test_without_weights_the_rates_are_attained():
    """U = V = 0: J = B, at every state. A = 0 and φ = id: J = (1 - εγ) I, and (4) loses nothing else than |1 - D|."""
    cell = _drawn("cornn", 0, 0.0)
    norm = torch.linalg.matrix_norm(_jacobian_of_state(cell, torch.zeros(1, 1, 2), cell.initial_state(1)), 2)
    assert contraction_rate(cell) == pytest.approx(norm.item(), rel=1e-12)
    assert contraction_rate(_drawn("antisymmetric", 0, 0.0)) == pytest.approx(1.0)


def test_the_gate_of_an_antisymmetric_rnn_adds_to_its_rate():
    """Two units: a saturated candidate behind a half-open gate, and an open gate. J passes λ of the ungated cell."""
    cell = AntisymmetricRNNCell(1, 2, gated=True, epsilon=1.0, gamma=0.0)
    plain = AntisymmetricRNNCell(1, 2, epsilon=1.0, gamma=0.0)
    with torch.no_grad():
        cell.skew.fill_(1.0), plain.skew.fill_(1.0)
        cell.bias.copy_(torch.tensor([-20.0, 0.0, 0.0, 20.0]))
    norm = torch.linalg.matrix_norm(_jacobian_of_state(cell, torch.zeros(1, 1, 1), cell.initial_state(1)), 2)
    assert contraction_rate(plain) < norm <= contraction_rate(cell)


@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("wrt", ["state", "bias", "weight_hh"])
def test_gradients_of_a_cornn_stay_within_their_bound(wrt, size):
    """Over 12 steps; of [U V] with both matrices as one vector, whose length bounds the spectral norm from above."""
    cell, xs = _drawn("cornn", 1, size), 3 * torch.randn(12, 1, 2)
    bound = cornn_gradient_bound(cell, 12, wrt)
    if wrt == "state":
        found = _jacobian_of_state(cell, xs, (torch.randn(1, 4), torch.randn(1, 4)))
    else:
        of = [cell.bias] if wrt == "bias" else [cell.weight_hh, cell.weight_zh]
        last = torch.cat(scan(cell, xs, backend="reference")[1], dim=1)[0]
        rows = [torch.autograd.grad(entry, of, retain_graph=True) for entry in last]
        found = torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in rows])
    norm = torch.linalg.matrix_norm(found, 2).item()
    assert 0 < norm <= bound


def test_with_steps_of_one_over_t_the_bounds_do_not_grow_with_t():
    """The paper's statement: the same bound, up to its limit, for 100 and for 10,000 steps."""
    for wrt in ("state", "bias", "weight_hh"):
        found = []
        for steps in (100, 1000, 10_000):
            torch.manual_seed(0)
            found.append(cornn_gradient_bound(CoRNNCell(2, 8, dt=1 / steps), steps, wrt))
        assert max(found) <= 1.05 * min(found)
    torch.manual_seed(0)
    assert cornn_gradient_bound(CoRNNCell(2, 8, dt=0.1), 10_000) > 1e100  # a step that does not shrink


def test_what_has_no_bound_is_refused():
    with pytest.raises(NoBoundError, match="does not decrease, got abs"):
        contraction_rate(AntisymmetricRNNCell(2, 4, nonlinearity="abs"))
    with pytest.raises(NoBoundError, match="bounded φ such as tanh, got relu"):
        cornn_gradient_bound(CoRNNCell(2, 4, nonlinearity="relu"), 5, "weight_hh")
    with pytest.raises(SettingError, match="wrt"):
        cornn_gradient_bound(CoRNNCell(2, 4), 5, "weight_ih")
    with pytest.raises(SettingError, match="expects a CoRNNCell, got AntisymmetricRNNCell"):
        cornn_gradient_bound(AntisymmetricRNNCell(2, 4), 5)
