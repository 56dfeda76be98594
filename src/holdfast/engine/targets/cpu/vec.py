"""Vectors under construction: arithmetic on them writes LLVM instructions.

A ``Vec`` wraps one LLVM value (a float vector, an integer vector or a mask) together with the builder that is
writing the current block. Python operators append instructions, so an elementwise function is an ordinary
Python function of ``Vec``s, and reads as its formula does::

    def square_plus_one(x):
        return fma(x, x, x.like(1.0))

No fast-math flag is ever set: NaN and infinity go through arithmetic as IEEE 754 says.
"""

from __future__ import annotations

import functools
from typing import Any, Union

import torch
from llvmlite import ir

__all__ = ["WIDTH", "Value", "Vec", "fma", "select", "vector_type"]

Value = Any  # an LLVM value, type or builder's result: llvmlite has no types
WIDTH = {torch.float32: 8, torch.float64: 4}  # numbers in a vector of 256 bits; a CPU with shorter ones uses several
Operand = Union["Vec", float, int]


def vector_type(dtype: torch.dtype, lanes: int) -> ir.VectorType:
    """The LLVM vector of ``lanes`` numbers, float32 or float64."""
    return ir.VectorType(ir.DoubleType() if dtype == torch.float64 else ir.FloatType(), lanes)


class Vec:
    """One LLVM vector value and the builder that extends it."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ir.IRBuilder, value: Value):
        self.builder, self.value = builder, value

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def type(self) -> Value:
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

    def _operand(self, other: Operand) -> Value:
        return other.value if isinstance(other, Vec) else self.like(other).value

    def _with(self, value: Value) -> Vec:
        return Vec(self.builder, value)

    def bits(self) -> Vec:
        """The same bits, as integers of the same width."""
        element = ir.IntType(64 if self.is_double else 32)
        return self._with(self.builder.bitcast(self.value, ir.VectorType(element, self.lanes)))

    def as_float(self) -> Vec:
        """The inverse of ``bits``."""
        element = ir.FloatType() if self.type.element.width == 32 else ir.DoubleType()
        return self._with(self.builder.bitcast(self.value, ir.VectorType(element, self.lanes)))

    # -- arithmetic ------------------------------------------------------------------------------------------

    def _binary(self, float_op: str, int_op: str | None, other: Operand, swap: bool = False) -> Vec:
        name = int_op if self.is_integer else float_op
        assert name is not None, f"{float_op} is for floats"
        pair = self.value, self._operand(other)
        return self._with(getattr(self.builder, name)(*(pair[::-1] if swap else pair)))

    __add__ = functools.partialmethod(_binary, "fadd", "add")
    __radd__ = functools.partialmethod(_binary, "fadd", "add", swap=True)
    __sub__ = functools.partialmethod(_binary, "fsub", "sub")
    __rsub__ = functools.partialmethod(_binary, "fsub", "sub", swap=True)
    __mul__ = functools.partialmethod(_binary, "fmul", "mul")
    __rmul__ = functools.partialmethod(_binary, "fmul", "mul", swap=True)
    __truediv__ = functools.partialmethod(_binary, "fdiv", None)
    __rtruediv__ = functools.partialmethod(_binary, "fdiv", None, swap=True)

    def __neg__(self) -> Vec:
        return self._with(self.builder.neg(self.value) if self.is_integer else self.builder.fneg(self.value))

    # -- bits: integers and masks ----------------------------------------------------------------------------

    def _bitwise(self, instruction: str, other: Operand) -> Vec:
        return self._with(getattr(self.builder, instruction)(self.value, self._operand(other)))

    __and__ = functools.partialmethod(_bitwise, "and_")
    __or__ = functools.partialmethod(_bitwise, "or_")
    __xor__ = functools.partialmethod(_bitwise, "xor")
    __lshift__ = functools.partialmethod(_bitwise, "shl")
    __rshift__ = functools.partialmethod(_bitwise, "lshr")  # zeros come in from the left

    def __invert__(self) -> Vec:
        return self._with(self.builder.not_(self.value))

    # -- comparisons give masks; each is false where either side is NaN, except != ----------------------------

    def _compare(self, op: str, other: Operand) -> Vec:
        if self.is_integer:
            return self._with(self.builder.icmp_signed(op, self.value, self._operand(other)))
        ordered = self.builder.fcmp_unordered if op == "!=" else self.builder.fcmp_ordered
        return self._with(ordered(op, self.value, self._operand(other)))

    __lt__ = functools.partialmethod(_compare, "<")
    __le__ = functools.partialmethod(_compare, "<=")
    __gt__ = functools.partialmethod(_compare, ">")
    __ge__ = functools.partialmethod(_compare, ">=")
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: Operand) -> Vec:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Operand) -> Vec:  # type: ignore[override]
        return self._compare("!=", other)

    def is_nan(self) -> Vec:
        return self != self

    # -- instructions that every CPU has ---------------------------------------------------------------------

    def _intrinsic(self, name: str) -> Vec:
        return self._with(self.builder.call(_intrinsic(self, name, 1), [self.value]))

    def __abs__(self) -> Vec:
        return self._intrinsic("llvm.fabs")

    sqrt = functools.partialmethod(_intrinsic, "llvm.sqrt")
    round = functools.partialmethod(_intrinsic, "llvm.rint")  # to the nearest integer, ties to even
    floor = functools.partialmethod(_intrinsic, "llvm.floor")
    ceil = functools.partialmethod(_intrinsic, "llvm.ceil")
    trunc = functools.partialmethod(_intrinsic, "llvm.trunc")

    def copysign(self, sign: Vec) -> Vec:
        return self._with(self.builder.call(_intrinsic(self, "llvm.copysign", 2), [self.value, sign.value]))


def _intrinsic(model: Vec, name: str, arguments: int) -> Value:
    """LLVM's own function ``name`` for vectors like ``model``, declared once per module."""
    full_name = f"{name}.v{model.lanes}{'f64' if model.is_double else 'f32'}"
    module = model.builder.module
    if full_name not in module.globals:
        ir.Function(module, ir.FunctionType(model.type, [model.type] * arguments), full_name)
    return module.globals[full_name]


def fma(a: Vec, b: Operand, c: Operand) -> Vec:
    """A b + c, with one rounding where the CPU has the instruction and two where it has not."""
    return Vec(a.builder, a.builder.call(_intrinsic(a, "llvm.fmuladd", 3), [a.value, a._operand(b), a._operand(c)]))


def select(mask: Vec, yes: Operand, no: Operand) -> Vec:
    """``yes`` where the mask is set, ``no`` elsewhere; one of the two must be a ``Vec``."""
    model = yes if isinstance(yes, Vec) else no
    assert isinstance(model, Vec)
    return Vec(mask.builder, mask.builder.select(mask.value, model._operand(yes), model._operand(no)))
