"""For every cell: the gradient is that of the function, and so is the second one.

Finite differences check the plain loop; that the backends agree with it, in gradients too, is tested in tests/engine.
"""

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from holdfast import scan


def _as_function(cell, run):
    """``run(cell, x, state)`` as a function of x, of the state and of every weight; and a point to check it at."""
    names, weights = zip(*cell.named_parameters(), strict=True)

    class Runner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x, *state):
            return run(self.cell, x, state)

    entries = len(cell.state_sizes)

    def function(x, *rest):
        named = {f"cell.{name}": weight for name, weight in zip(names, rest[entries:], strict=True)}
        return functional_call(Runner(), named, (x, *rest[:entries]))

    return function, tuple(weight.detach().clone().requires_grad_() for weight in weights)


def _point(cell, *shape):
    x = torch.randn(*shape, cell.input_size, requires_grad=True)
    return x, *(torch.randn(shape[-1], size, requires_grad=True) for size in cell.state_sizes)


def _step(cell, x, state):
    return cell.step(cell.drive(x), state, cell.weights())


def _scan(cell, xs, state, **settings):
    outputs, last = scan(cell, xs, state, **settings)
    return outputs, *last


def test_gradient_of_a_step_is_that_of_the_function(factory):
    """In x, in the state and in every weight, by finite differences."""
    cell = factory(3, 4)
    function, weights = _as_function(cell, _step)
    assert gradcheck(function, (*_point(cell, 2), *weights))


def test_gradient_of_a_scan_is_that_of_the_function(factory):
    """In all inputs, in the first state and in every weight, with samples of length 3, 1 and 0."""
    cell, lengths = factory(3, 4), torch.tensor([3, 1, 0])
    function, weights = _as_function(cell, lambda *args: _scan(*args, lengths=lengths, backend="reference"))
    assert gradcheck(function, (*_point(cell, 3, 3), *weights), fast_mode=True)


def test_gradient_of_a_reversed_scan_is_that_of_the_function(factory):
    cell = factory(3, 4)
    function, weights = _as_function(cell, lambda *args: _scan(*args, reverse=True, backend="reference"))
    assert gradcheck(function, (*_point(cell, 3, 2), *weights), fast_mode=True)


def test_second_gradient_on_reference_is_that_of_the_gradient(smooth_factory):
    """For every cell whose second derivative is continuous."""
    cell = smooth_factory(3, 4)
    function, weights = _as_function(cell, lambda *args: _scan(*args, backend="reference"))
    assert gradgradcheck(function, (*_point(cell, 2, 2), *weights), fast_mode=True)


def test_gradients_without_outputs_are_those_through_the_last_state(cell):
    """need_output=False changes nothing in h_n, nor in the gradient of any function of h_n."""
    xs = torch.randn(5, 2, 3, requires_grad=True)
    runs = []
    for need_output in (True, False):
        outputs, last = scan(cell, xs, need_output=need_output)
        assert (outputs is None) is (not need_output)
        loss = sum((entry * torch.arange(1.0, 1 + entry.numel()).view_as(entry)).sum() for entry in last)
        used = torch.autograd.grad(loss, (xs, *cell.parameters()), allow_unused=True)
        runs.append((last, [torch.zeros(()) if gradient is None else gradient for gradient in used]))
    torch.testing.assert_close(runs[0], runs[1])
