"""Dynamic trivialisation: the base point moves with the optimiser, and nothing that is computed notices."""

import copy
import pickle

import pytest
import torch

import holdfast
from holdfast.constraints.dynamic import DynamicExponential
from holdfast.constraints.optimiser import WrappedOptimizer
from holdfast.errors import SettingError
from holdfast.linalg.norms import orthogonality_error
from holdfast.linalg.skew import skew_from_vector

OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "a wrapped Adam": lambda p: WrappedOptimizer(torch.optim.Adam(p, lr=0.01)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
}


def moved(size=5, every=100):
    U = DynamicExponential(size, every)
    torch.nn.init.normal_(U.skew)
    return U


def train(layer, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(4, 2, 3, generator=generator))[0].square().sum().backward()
        optimizer.step()


def test_moving_the_base_leaves_the_matrix_and_the_outputs_as_they_are():
    """For all A and B. Then A = 0 and B = U."""
    layer, xs = holdfast.ExpRNN(3, 6, rebase_every=7), torch.randn(9, 2, 3)
    U = layer.cells[0].recurrent
    torch.nn.init.normal_(U.skew)
    before, output = U.matrix().detach(), layer(xs)[0].detach()
    U.rebase()
    torch.testing.assert_close(U.matrix().detach(), before)
    torch.testing.assert_close(layer(xs)[0].detach(), output)
    assert not U.skew.any()
    torch.testing.assert_close(U.base, before)


def test_the_step_after_a_move_is_riemannian_gradient_descent():
    """At A = 0: ∂L/∂A = BᵀG - GᵀB below the diagonal, G = ∂L/∂U. One step of SGD is the geodesic from B against it."""
    U, target, lr = moved(), torch.randn(5, 5), 0.1
    U.rebase()
    B = U.base.clone()
    matrix = U.matrix()
    loss = (matrix - target).pow(3).sum()
    (G,) = torch.autograd.grad(loss, matrix, retain_graph=True)
    loss.backward()
    direction = B.mT @ G - G.mT @ B
    torch.testing.assert_close(skew_from_vector(U.skew.grad, 5), direction)
    torch.optim.SGD(U.parameters(), lr=lr).step()
    torch.testing.assert_close(U.matrix().detach(), B @ torch.matrix_exp(-lr * direction))


def test_moving_after_every_update_is_riemannian_gradient_descent():
    """K = 1, 20 steps: U ← U exp(-lr (UᵀG - GᵀU))."""
    U, target, lr = moved(every=1), torch.randn(5, 5), 0.02
    optimizer, plain = torch.optim.SGD(U.parameters(), lr=lr), U.matrix().detach()
    U.rebase()
    for _ in range(20):
        optimizer.zero_grad()
        (U.matrix() - target).square().sum().backward()
        optimizer.step()
        G = 2 * (plain - target)
        plain = plain @ torch.matrix_exp(-lr * (plain.mT @ G - G.mT @ plain))
    torch.testing.assert_close(U.matrix().detach(), plain)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_base_moves_after_every_k_updates_of_any_optimiser(name):
    layer = holdfast.ExpRNN(3, 6, rebase_every=4)
    U, optimizer = layer.cells[0].recurrent, OPTIMISERS[name](layer.parameters())
    bases = [U.base.clone()]
    for _ in range(9):
        train(layer, optimizer, 1)
        bases.append(U.base.clone())
    changed = [n for n in range(1, 10) if not torch.equal(bases[n], bases[n - 1])]
    assert changed == [4, 8]
    assert U.updates.item() == 9
    assert orthogonality_error(U.base) < 1e-14


def test_the_moments_of_the_optimiser_are_kept():
    """Adam's first moment of A after a move is the one before it."""
    layer = holdfast.ExpRNN(3, 6, rebase_every=100)
    U, optimizer = layer.cells[0].recurrent, torch.optim.Adam(layer.parameters())
    train(layer, optimizer, 3)
    before = {name: value.clone() for name, value in optimizer.state[U.skew].items()}
    U.rebase()
    for name, value in optimizer.state[U.skew].items():
        assert torch.equal(value, before[name])


def test_an_optimiser_of_other_weights_moves_nothing():
    one, other = holdfast.ExpRNN(3, 6, rebase_every=1), holdfast.ExpRNN(3, 6, rebase_every=1)
    train(one, torch.optim.Adam(one.parameters()), 2)
    assert (one.cells[0].recurrent.updates.item(), other.cells[0].recurrent.updates.item()) == (2, 0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_follows_its_own_optimiser(copied):
    layer = copied(holdfast.ExpRNN(3, 6, 2, rebase_every=2))
    train(layer, torch.optim.Adam(layer.parameters()), 3)
    assert [cell.recurrent.updates.item() for cell in layer.cells] == [3, 3]


def test_a_resumed_run_is_the_uninterrupted_one():
    """Bit by bit: B and the counter are in the state_dict. The stop, after 5 of 11 updates, is between two moves."""
    torch.manual_seed(3)
    whole = holdfast.ExpRNN(3, 6, rebase_every=3)
    first = copy.deepcopy(whole)
    optimizers = [torch.optim.Adam(layer.parameters()) for layer in (whole, first)]
    train(whole, optimizers[0], 5)
    train(whole, optimizers[0], 6, seed=1)
    train(first, optimizers[1], 5)
    second = holdfast.ExpRNN(3, 6, rebase_every=3)
    second.load_state_dict(first.state_dict())
    optimizer = torch.optim.Adam(second.parameters())
    optimizer.load_state_dict(optimizers[1].state_dict())
    train(second, optimizer, 6, seed=1)
    for name, value in whole.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name


def test_orthogonal_after_three_hundred_moves_in_float32():
    U = DynamicExponential(16, every=1).float()
    optimizer, target = torch.optim.Adam(U.parameters(), lr=0.03), torch.randn(16, 16, dtype=torch.float32)
    for _ in range(300):
        optimizer.zero_grad()
        (U.matrix() - target).abs().sum().backward()
        optimizer.step()
    assert orthogonality_error(U.matrix()) < 1e-5
    assert U.contains(U.matrix())


def test_what_no_map_can_be():
    with pytest.raises(SettingError, match="every"):
        holdfast.ExpRNN(3, 4, rebase_every=0)
