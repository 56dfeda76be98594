"""Candidates' vectors in one compiled loop.

    z = o(l, r) + b,   v = u(z)      (1) for every operator o and activation u, entry by entry

Entries of all tuples and samples are contiguous, so a node's candidates with one older node are one flat loop, and
each z is made once for all activations. The code comes from the fused scan's compiler and runs on its threads.
Source of (1): S1, Algorithm 1, line 11; holdfast/rrnn/search.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.engine.kernels.parts import PartsBuilder
from holdfast.engine.targets.cpu.elementary import sigmoid, tanh
from holdfast.engine.targets.cpu.operators import relu
from holdfast.engine.targets.cpu.vec import WIDTH, Value, Vec, fma

__all__ = ["compiled_values", "takes"]

PARTS = 4  # of one older node
OPERATORS = {"add": lambda l, r, b: l + (r + b), "mul": lambda l, r, b: fma(l, r, b)}
ACTIVATIONS = {"identity": lambda z: z, "sigmoid": sigmoid, "tanh": tanh, "relu": relu}


def takes(bias: Tensor, operators: tuple[str, ...], activations: tuple[str, ...], count: int) -> bool:
    """Whether there is such a loop: known operators and activations, on the CPU, ``count`` numbers, as many as biases.

    PyTorch reports biases that do not fit.
    """
    known = OPERATORS.keys() >= set(operators) and ACTIVATIONS.keys() >= set(activations)
    plain = bias.device.type == "cpu" and bias.dtype in WIDTH
    return known and plain and bias.numel() == count >= WIDTH[bias.dtype]


def compiled_values(
    left: Tensor, right: Tensor, bias: Tensor, out: Tensor, operators: tuple[str, ...], activations: tuple[str, ...]
) -> None:
    """(1) into ``out``, (operators, activations, nodes, n), any stride between its first two dimensions.

    Args:
        left: (nodes, n), L_r c of the older nodes; right: (n), R_r c of the newest; bias: (n).

    Example:
        >>> left, right, bias = torch.randn(3, 10), torch.randn(10), torch.randn(10)
        >>> out = torch.empty(2, 1, 3, 10)
        >>> compiled_values(left, right, bias, out, ("add", "mul"), ("tanh",))
        >>> torch.allclose(out[1, 0], torch.tanh(left * right + bias), atol=1e-6)
        True
    """
    kernel = _compiled(left.dtype, operators, activations)
    pointers = (left.data_ptr(), right.data_ptr(), bias.data_ptr(), out.data_ptr())
    kernel(*pointers, left.shape[0], left.shape[1], out.stride(0), out.stride(1), parts=PARTS * left.shape[0])


@functools.cache
def _compiled(dtype: torch.dtype, operators: tuple[str, ...], activations: tuple[str, ...]) -> Callable[..., None]:
    return _Values(dtype, operators, activations).compiled()


class _Values(PartsBuilder):
    """A part is a quarter of what one older node gives."""

    def __init__(self, dtype: torch.dtype, operators: tuple[str, ...], activations: tuple[str, ...]):
        super().__init__(dtype, ("left", "right", "bias", "out"), ("nodes", "n", "by_operator", "by_activation"))
        self.operators, self.activations = operators, activations

    def parts(self) -> Value:
        return self.mul(self.given["nodes"], PARTS)

    def part(self, at: Value) -> None:
        given, n, whole = self.given, self.given["n"], self.const(PARTS * self.width)
        node, quarter = self.builder.udiv(at, self.const(PARTS)), self.builder.urem(at, self.const(PARTS))
        share = self.mul(self.builder.udiv(self.add(n, self.sub(whole, 1)), whole), self.width)
        begin = self.mul(quarter, share)
        end, last = self.least(self.add(begin, share), n), self.sub(n, self.width)
        start = self.mul(node, n)

        def vector(e: Value, _: list[Value]) -> None:
            e = self.least(e, last)  # the last one overlaps the one before it
            l = self.load(given["left"], self.add(start, e))
            r, bias = self.load(given["right"], e), self.load(given["bias"], e)
            for o, operator in enumerate(self.operators):
                z: Vec = OPERATORS[operator](l, r, bias)
                for a, activation in enumerate(self.activations):
                    apart = self.add(self.mul(given["by_operator"], o), self.mul(given["by_activation"], a))
                    self.store(ACTIVATIONS[activation](z), given["out"], self.add(apart, self.add(start, e)))

        self.count(begin, end, self.width, vector)
