"""Vectors under construction: arithmetic on them writes LLVM instructions.

A ``Vec`` wraps one LLVM value (a float vector, an integer vector or a mask) together with the builder that is
writing the current block. Python operators append instructions, so an elementwise function is an ordinary
Python function of ``Vec``s, and reads as its formula does::

    def square_plus_one(x):
        return fma(x, x, x.like(1.0))

No fast-math flag is ever set: NaN and infinity go through arithmetic as IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir

__all__ = ["WIDTH", "Value", "Vec", "fma", "select", "vector_type"]

Value = Any  # an LLVM value, type or builder's result: llvmlite has no types
WIDTH = {torch.float32: 8, torch.float64: 4}  # numbers in a vector of 256 bits; a CPU with shorter ones uses several
_INT_OF = {"float": ir.IntType(32), "double": ir.IntType(64)}


def vector_type(dtype: torch.dtype, lanes: int) -> ir.VectorType:
    """The LLVM vector of ``lanes`` numbers, float32 or float64."""
    return ir.VectorType(ir.DoubleType() if dtype == torch.float64 else ir.FloatType(), lanes)


class Vec:
    """One LLVM vector value and the builder that extends it."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ir.IRBuilder, value: Any):
        self.builder, self.value = builder, value

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def type(self) -> Any:
        return self.value.type

    @property
    def lanes(self) -> int:
        return self.type.count

    @property
    def is_double(self) -> bool:
        return isinstance(self.type.element, ir.DoubleType)

    @property
    def is_integer(self) -> bool:
        return isinstance(self.type.element, ir.IntType)

    # -- constants and conversions ---------------------------------------------------------------------------

    def like(self, constant: float | int) -> Vec:
        """``constant`` in every lane, of this vector's type."""
        return Vec(self.builder, ir.Constant(self.type, [constant] * self.lanes))

    def _operand(self, other: Any) -> Any:
        return other.value if isinstance(other, Vec) else self.like(other).value

    def _with(self, value: Any) -> Vec:
        return Vec(self.builder, value)

    def bits(self) -> Vec:
        """The same bits, as integers of the same width."""
        element = _INT_OF[str(self.type.element)]
        return self._with(self.builder.bitcast(self.value, ir.VectorType(element, self.lanes)))

    def as_float(self) -> Vec:
        """The same bits, as floats of the same width: the inverse of ``bits``."""
        element = ir.FloatType() if self.type.element.width == 32 else ir.DoubleType()
        return self._with(self.builder.bitcast(self.value, ir.VectorType(element, self.lanes)))

    def to_integer(self) -> Vec:
        """Rounded toward zero to a signed integer of the same width; the value must fit."""
        element = _INT_OF[str(self.type.element)]
        return self._with(self.builder.fptosi(self.value, ir.VectorType(element, self.lanes)))

    def to_float(self) -> Vec:
        """A signed integer vector, or a mask (0 or 1), as floats of the same width; masks need ``convert``."""
        element = ir.FloatType() if self.type.element.width == 32 else ir.DoubleType()
        return self._with(self.builder.sitofp(self.value, ir.VectorType(element, self.lanes)))

    # -- arithmetic ------------------------------------------------------------------------------------------

    def _binary(self, float_op: str, int_op: str | None, other: Any, swap: bool = False) -> Vec:
        name = int_op if self.is_integer else float_op
        assert name is not None, f"{float_op} is for floats"
        left, right = self.value, self._operand(other)
        if swap:
            left, right = right, left
        return self._with(getattr(self.builder, name)(left, right))

    def __add__(self, other: Any) -> Vec:
        return self._binary("fadd", "add", other)

    def __radd__(self, other: Any) -> Vec:
        return self._binary("fadd", "add", other, swap=True)

    def __sub__(self, other: Any) -> Vec:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: Any) -> Vec:
        return self._binary("fsub", "sub", other, swap=True)

    def __mul__(self, other: Any) -> Vec:
        return self._binary("fmul", "mul", other)

    def __rmul__(self, other: Any) -> Vec:
        return self._binary("fmul", "mul", other, swap=True)

    def __truediv__(self, other: Any) -> Vec:
        return self._binary("fdiv", None, other)

    def __rtruediv__(self, other: Any) -> Vec:
        return self._binary("fdiv", None, other, swap=True)

    def __neg__(self) -> Vec:
        return self._with(self.builder.neg(self.value) if self.is_integer else self.builder.fneg(self.value))

    # -- bits: integers and masks ----------------------------------------------------------------------------

    def __and__(self, other: Any) -> Vec:
        return self._with(self.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: Any) -> Vec:
        return self._with(self.builder.or_(self.value, self._operand(other)))

    def __xor__(self, other: Any) -> Vec:
        return self._with(self.builder.xor(self.value, self._operand(other)))

    def __invert__(self) -> Vec:
        return self._with(self.builder.not_(self.value))

    def __lshift__(self, places: int) -> Vec:
        return self._with(self.builder.shl(self.value, self._operand(places)))

    def __rshift__(self, places: int) -> Vec:
        """Logical for integers: zeros come in from the left."""
        return self._with(self.builder.lshr(self.value, self._operand(places)))

    # -- comparisons give masks; each is false where either side is NaN, except != ----------------------------

    def _compare(self, op: str, other: Any) -> Vec:
        if self.is_integer:
            return self._with(self.builder.icmp_signed(op, self.value, self._operand(other)))
        ordered = self.builder.fcmp_unordered if op == "!=" else self.builder.fcmp_ordered
        return self._with(ordered(op, self.value, self._operand(other)))

    def __lt__(self, other: Any) -> Vec:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Vec:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Vec:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Vec:
        return self._compare(">=", other)

    def __eq__(self, other: Any) -> Vec:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Any) -> Vec:  # type: ignore[override]
        return self._compare("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def is_nan(self) -> Vec:
        return self != self

    # -- instructions that every CPU has ---------------------------------------------------------------------

    def _intrinsic(self, name: str) -> Vec:
        return self._with(self.builder.call(_intrinsic(self, name, 1), [self.value]))

    def __abs__(self) -> Vec:
        return self._intrinsic("llvm.fabs")

    def sqrt(self) -> Vec:
        return self._intrinsic("llvm.sqrt")

    def round(self) -> Vec:
        """To the nearest integer, ties to even."""
        return self._intrinsic("llvm.rint")

    def floor(self) -> Vec:
        return self._intrinsic("llvm.floor")

    def ceil(self) -> Vec:
        return self._intrinsic("llvm.ceil")

    def trunc(self) -> Vec:
        return self._intrinsic("llvm.trunc")

    def copysign(self, sign: Vec) -> Vec:
        return self._with(self.builder.call(_intrinsic(self, "llvm.copysign", 2), [self.value, sign.value]))


def _intrinsic(model: Vec, name: str, arguments: int) -> Any:
    """LLVM's own function ``name`` for vectors like ``model``, declared once a module."""
    full_name = f"{name}.v{model.lanes}{'f64' if model.is_double else 'f32'}"
    module = model.builder.module
    if full_name not in module.globals:
        ir.Function(module, ir.FunctionType(model.type, [model.type] * arguments), full_name)
    return module.globals[full_name]


def fma(a: Vec, b: Any, c: Any) -> Vec:
    """A b + c, with one rounding where the CPU has the instruction and two where it has not."""
    return Vec(a.builder, a.builder.call(_intrinsic(a, "llvm.fmuladd", 3), [a.value, a._operand(b), a._operand(c)]))


def select(mask: Vec, yes: Any, no: Any) -> Vec:
    """``yes`` where the mask is set, ``no`` elsewhere; one of the two must be a ``Vec``."""
    model = yes if isinstance(yes, Vec) else no
    return Vec(mask.builder, mask.builder.select(mask.value, model._operand(yes), model._operand(no)))


Elementwise = Callable[..., Vec]
