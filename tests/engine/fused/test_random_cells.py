"""Cells that nobody wrote: random expressions over the operators that the fused backend promises."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast as hf

sys.path.insert(0, str(Path(__file__).parent))
from cells import assert_same_scan, random_state

UNARY = {
    "neg": lambda a: -a,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": lambda a: torch.exp(a.clamp(max=3.0)),
    "expm1": lambda a: torch.expm1(a.clamp(max=3.0)),
    "log": lambda a: torch.log(a * a + 0.5),
    "log1p": lambda a: torch.log1p(a.abs()),
    "sqrt": lambda a: torch.sqrt(a * a + 0.1),
    "rsqrt": lambda a: torch.rsqrt(a.abs() + 0.5),
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "gelu-tanh": lambda a: nn.functional.gelu(a, approximate="tanh"),
    "silu": nn.functional.silu,
    "elu": nn.functional.elu,
    "leaky_relu": nn.functional.leaky_relu,
    "hardtanh": nn.functional.hardtanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "square": torch.square,
    "cube": lambda a: a**3,
    "power": lambda a: (a.abs() + 0.5) ** 1.7,
    "reciprocal": lambda a: 1 / (a.abs() + 1),
    "rsub": lambda a: 1 - a,
    "scaled": lambda a: 0.5 * a + 0.25,
    "clamp": lambda a: a.clamp(-0.5, 0.75),
    "softmax-free-norm": lambda a: a / (1 + a.square().sum(dim=1, keepdim=True)),
    "mean": lambda a: a - a.mean(dim=1, keepdim=True),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda a, b: torch.where(a > b, a, 0.5 * b),
    "where-and": lambda a, b: torch.where((a >= 0) & ~(b < 0.25), a, b),
    "masked": lambda a, b: a.masked_fill(b > 0.5, 0.1),
    "mask-number": lambda a, b: a * (b <= 0).to(a.dtype),
    "cat-swap": lambda a, b: torch.cat([a.chunk(2, dim=1)[1], b.chunk(2, dim=1)[0]], dim=1),
    "slice": lambda a, b: torch.cat([a[:, 1:], b[:, :1]], dim=1),
    "power": lambda a, b: (a.abs() + 0.5) ** b.tanh(),
}
LEAVES = ["drive", "h", "c"]
WEIGHTS = ["row", "scalar", "one-row"]

expression = st.recursive(
    st.sampled_from(LEAVES).map(lambda name: (name,)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
        st.tuples(st.just("product"), st.sampled_from(["matrix0", "matrix1"]), inner),
        st.tuples(st.sampled_from(["times", "plus"]), st.sampled_from(WEIGHTS), inner),
    ),
    max_leaves=8,
)


class ExpressionCell(hf.Cell):
    """h and c become two random expressions, kept in bounds by tanh."""

    def __init__(self, input_size, hidden_size, first, second):
        super().__init__(input_size, hidden_size)
        self.expressions = (first, second)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))
        shapes = {"row": (hidden_size,), "scalar": (), "one-row": (1, hidden_size)}
        shapes |= {"matrix0": (hidden_size, hidden_size), "matrix1": (hidden_size, hidden_size)}
        self.own = nn.ParameterDict({name: nn.Parameter(torch.randn(shape) * 0.5) for name, shape in shapes.items()})

    @property
    def state_sizes(self):
        return self.hidden_size, self.hidden_size

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return tuple(self.own.values())

    def step(self, drive, state, weights):
        values = {"drive": drive, "h": state[0], "c": state[1]} | dict(zip(self.own.keys(), weights, strict=True))
        return tuple(torch.tanh(evaluate(e, values)) for e in self.expressions)


def evaluate(e, values):
    match e:
        case (name,):
            return values[name]
        case ("product", matrix, inner):
            return evaluate(inner, values) @ values[matrix].mT
        case ("times", weight, inner):
            return values[weight] * evaluate(inner, values)
        case ("plus", weight, inner):
            return evaluate(inner, values) + values[weight]
        case (name, inner):
            return UNARY[name](evaluate(inner, values))
        case (name, left, right):
            return BINARY[name](evaluate(left, values), evaluate(right, values))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(first=expression, second=expression, input_size=st.sampled_from([2, 9]), lengths=st.booleans())
def test_random_cells_agree_with_reference(dtype, first, second, input_size, lengths):
    """For expressions drawn over all promised operators: values and every gradient."""
    torch.manual_seed(0)
    cell = ExpressionCell(input_size, 6, first, second).to(dtype)
    xs = torch.randn(4, 5, input_size, dtype=dtype, requires_grad=True)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    given_lengths = torch.tensor([4, 2, 3, 1, 0]) if lengths else None
    assert_same_scan(cell, xs, random_state(cell, 5), tolerance=tolerance, lengths=given_lengths)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_every_unary_operator_agrees_with_reference(name):
    cell = ExpressionCell(9, 6, (name, ("plus", "row", ("drive",))), ("tanh", ("c",)))
    assert_same_scan(
        cell, torch.randn(4, 5, 9, requires_grad=True), random_state(cell, 5), tolerance={"rtol": 1e-10, "atol": 1e-11}
    )


@pytest.mark.parametrize("name", sorted(BINARY))
def test_every_binary_operator_agrees_with_reference(name):
    cell = ExpressionCell(9, 6, (name, ("plus", "row", ("drive",)), ("h",)), ("tanh", ("c",)))
    assert_same_scan(
        cell, torch.randn(4, 5, 9, requires_grad=True), random_state(cell, 5), tolerance={"rtol": 1e-10, "atol": 1e-11}
    )
