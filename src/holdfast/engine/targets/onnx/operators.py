"""Elementwise operators of a tile program in ONNX: one line each, with PyTorch's treatment of NaN.

ONNX has no expm1, log1p, exp2, trunc. They are written so that little is lost to rounding near zero:

    expm1(x) = tanh(x/2) (exp(x) + 1)                       (1)
    log1p(x) = log(u) x / (u - 1),  u = 1 + x               (2) Kahan; x where u = 1, and log(u) where u is huge
"""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.engine.targets.onnx.graph import Value

__all__ = ["OPERATORS"]

_HUGE = 1e30  # in (2), x / (u - 1) is 1 long before


def _named(kind: str) -> Callable[..., Value]:
    """An operator that ONNX has."""
    return lambda *args: args[0].graph.op(kind, *args)


def _where(mask: Value, yes: Value | float, no: Value | float) -> Value:
    return mask.graph.where(mask, yes, no)


_exp, _log, _tanh, _sigmoid, _erf = map(_named, ("Exp", "Log", "Tanh", "Sigmoid", "Erf"))
_max, _min, _equal, _not = map(_named, ("Max", "Min", "Equal", "Not"))


def _expm1(x: Value) -> Value:
    return _tanh(x * 0.5) * (_exp(x) + 1.0)  # (1)


def _log1p(x: Value) -> Value:
    u = x + 1.0
    plain = _log(u)
    return _where(_equal(u, 1.0), x, _where(u > _HUGE, plain, plain * (x / (u - 1.0))))  # (2)


def _softplus(x: Value, beta: Value, threshold: Value) -> Value:
    scaled = x * beta
    return _where(scaled > threshold, x, _log1p(_exp(_min(scaled, threshold))) / beta)


def _gelu_tanh(x: Value) -> Value:
    return 0.5 * x * (1.0 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def _elu(x: Value, alpha: Value, scale: Value, input_scale: Value) -> Value:
    return scale * _where(x <= 0.0, alpha * _expm1(x * input_scale), x)


OPERATORS: dict[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": _named("Neg"),
    "abs": _named("Abs"),
    "sign": lambda x: _where(x > 0.0, 1.0, _where(x < 0.0, -1.0, 0.0)),  # ONNX Runtime's Sign of NaN is NaN
    "square": lambda a: a * a,
    "reciprocal": _named("Reciprocal"),
    "sqrt": _named("Sqrt"),
    "rsqrt": lambda a: 1.0 / a.graph.op("Sqrt", a),
    "floor": _named("Floor"),
    "ceil": _named("Ceil"),
    "round": _named("Round"),
    "trunc": lambda a: _where(a < 0.0, a.graph.op("Ceil", a), a.graph.op("Floor", a)),
    "maximum": _max,
    "minimum": _min,
    "relu": _named("Relu"),
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "exp": _exp,
    "exp2": lambda x: x.graph.op("Pow", 2.0, x),
    "expm1": _expm1,
    "log": _log,
    "log2": lambda x: _log(x) * (1 / math.log(2)),
    "log1p": _log1p,
    "erf": _erf,
    "sin": _named("Sin"),
    "cos": _named("Cos"),
    "pow": _named("Pow"),
    "softplus": _softplus,
    "gelu": lambda x: x * 0.5 * (1.0 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "elu": _elu,
    "leaky_relu": lambda x, slope: _where(x > 0.0, x, x * slope),
    "hardtanh": lambda x, low, high: _min(_max(x, low), high),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": _equal,
    "ne": lambda a, b: _not(_equal(a, b)),
    "isnan": _named("IsNaN"),
    "nonzero": lambda a: _not(_equal(a, 0.0)),
    "logical_and": _named("And"),
    "logical_or": _named("Or"),
    "logical_xor": _named("Xor"),
    "logical_not": _not,
    "where": _where,
    "same": _named("Identity"),
    "number": lambda mask, one: _where(mask, one, 0.0),
}
"""What a step of inference is made of. Gradients' operators, which a step may call by name, are not among them."""
