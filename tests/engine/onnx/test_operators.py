"""Each elementwise operator of a tile program, in ONNX Runtime, against PyTorch's."""

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

from helpers.onnx_runs import session
from holdfast.engine.program.tiles import Constant, Input, Kind, Pointwise, Slot, Weight
from holdfast.engine.targets.cpu.operators import OPERATORS as KNOWN
from holdfast.engine.targets.onnx.graph import Graph
from holdfast.engine.targets.onnx.operators import OPERATORS
from holdfast.engine.targets.onnx.tiles import TileWriter
from holdfast.errors import UnsupportedError

ODD = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-7,
    -1e-7,
    1e-3,
    -1e-3,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1.0,
    -1.0,
    30.0,
    -30.0,
]
X = torch.cat([torch.tensor(ODD, dtype=torch.float32), torch.linspace(-4, 4, 47, dtype=torch.float32)])[None]
Y = X.flip(1)


def _gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))  # PyTorch's own of infinity is NaN


ONE = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square, "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p,
    "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "gelu": _gelu, "silu": F.silu, "isnan": torch.isnan,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "nonzero": lambda x: x != 0, "same": lambda x: x,
}  # fmt: skip
TWO = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "pow": torch.pow,
    "minimum": torch.minimum, "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le, "eq": torch.eq,
    "ne": torch.ne,
}  # fmt: skip
WITH_NUMBERS = {
    "softplus": ((1.5, 20.0), lambda x, b, t: F.softplus(x, b, t)),
    "elu": ((1.3, 1.1, 0.7), lambda x, a, s, i: torch.ops.aten.elu(x, a, s, i)),
    "leaky_relu": ((0.2,), F.leaky_relu),
    "hardtanh": ((-0.5, 1.5), F.hardtanh),
}
LOGICAL = {"logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}


def run(tile, **inputs):
    """The value of ``tile`` in ONNX Runtime, for inputs by the letter of their slot."""
    g = Graph()
    known, given = {}, []
    todo = [tile]
    while todo:
        one = todo.pop()
        todo += [arg for arg in getattr(one, "args", ()) if not isinstance(arg, Weight | Constant)]
        if isinstance(one, Input):
            known[one] = g.value(str(one.slot))
    for name, value in inputs.items():
        given.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(value.shape)))
    (made,) = TileWriter(g, [], known, g.value("x"), 1, "OddCell").write([tile])
    out = helper.make_tensor_value_info(
        made.name, TensorProto.BOOL if tile.is_mask else TensorProto.FLOAT, ["batch", "n"]
    )
    graph = helper.make_graph(g.nodes, "one", given, [out], g.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return torch.from_numpy(np.asarray(session(model).run(None, {n: v.numpy() for n, v in inputs.items()})[0]))


def x_tile(features=X.shape[1]):
    return Input(Slot(Kind.SOURCE), features)


def y_tile():
    return Input(Slot(Kind.STATE), X.shape[1])


def check(found, expected):
    if expected.dtype == torch.bool:
        assert torch.equal(found, expected)
    else:
        # 5e-7: 1 + erf(x) cancels for x near -4, in both forms of gelu
        torch.testing.assert_close(found, expected, rtol=3e-6, atol=5e-7, equal_nan=True)


@pytest.mark.parametrize("op", ONE)
def test_an_operator_of_one_argument(op):
    """On zeros of both signs, infinities, NaN, small numbers and a grid."""
    mask = op in ("isnan", "nonzero")
    check(run(Pointwise(op, (x_tile(),), X.shape[1], is_mask=mask), x=X), ONE[op](X))


@pytest.mark.parametrize("op", TWO)
def test_an_operator_of_two_arguments(op):
    expected = TWO[op](X, Y)
    check(
        run(Pointwise(op, (x_tile(), y_tile()), X.shape[1], is_mask=expected.dtype == torch.bool), x=X, s0=Y), expected
    )


@pytest.mark.parametrize("op", WITH_NUMBERS)
def test_an_operator_with_numbers(op):
    numbers, plain = WITH_NUMBERS[op]
    tile = Pointwise(op, (x_tile(), *map(Constant, numbers)), X.shape[1])
    check(run(tile, x=X), plain(X, *numbers))


@pytest.mark.parametrize("op", LOGICAL)
def test_logic_and_choices(op):
    """Masks of two comparisons, put together, turned around, and used to choose."""
    positive = Pointwise("gt", (x_tile(), Constant(0.0)), X.shape[1], is_mask=True)
    large = Pointwise("ge", (y_tile(), Constant(1.0)), X.shape[1], is_mask=True)
    both = Pointwise(op, (positive, large), X.shape[1], is_mask=True)
    neither = Pointwise("logical_not", (both,), X.shape[1], is_mask=True)
    tile = Pointwise(
        "where", (neither, Constant(7.0), Pointwise("number", (both, Constant(1.0)), X.shape[1])), X.shape[1]
    )
    mask = LOGICAL[op](X > 0, Y >= 1)
    check(run(tile, x=X, s0=Y), torch.where(~mask, 7.0, mask.float()))


def test_a_value_made_of_numbers_or_of_one_feature_has_its_tile_s_shape():
    narrow = Pointwise("add", (x_tile(1), Constant(1.0)), 4)
    assert run(narrow, x=torch.zeros(3, 1, dtype=torch.float32)).tolist() == [[1.0] * 4] * 3
    filled = Pointwise("add", (Pointwise("same", (Constant(2.0),), 4), x_tile(1)), 4)
    assert run(filled, x=torch.zeros(3, 1, dtype=torch.float32)).tolist() == [[2.0] * 4] * 3


def test_every_operator_of_the_engine_is_written_and_tried_here_or_belongs_to_a_gradient():
    tried = {*ONE, *TWO, *WITH_NUMBERS, *LOGICAL, "logical_not", "where", "number"}
    assert set(OPERATORS) == tried
    assert all("backward" in op for op in set(KNOWN) - set(OPERATORS))


def test_an_operator_without_a_form_is_refused_by_its_name_and_its_cell():
    with pytest.raises(UnsupportedError, match=r"'tanh_backward' of OddCell"):
        run(Pointwise("tanh_backward", (x_tile(), y_tile()), X.shape[1]), x=X, s0=Y)
