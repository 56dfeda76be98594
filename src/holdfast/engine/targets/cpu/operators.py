"""Elementwise operators, as arithmetic on vectors: one line per ATen operator, with PyTorch's treatment of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.engine.targets.cpu import elementary as e
from holdfast.engine.targets.cpu.vec import Vec, fma, select

__all__ = ["OPERATORS"]


def maximum(a: Vec, b: Vec) -> Vec:
    return select((a > b) | a.is_nan(), a, b)  # NaN on either side comes through


def minimum(a: Vec, b: Vec) -> Vec:
    return select((a < b) | a.is_nan(), a, b)


def relu(x: Vec) -> Vec:
    return select(x < 0.0, 0.0, x)  # NaN compares false and stays, and so does -0


def softplus(x: Vec, beta: Vec, threshold: Vec) -> Vec:
    scaled = x * beta
    return select(scaled > threshold, x, e.log1p(e.exp(minimum(scaled, threshold))) / beta)


def softplus_backward(grad: Vec, x: Vec, beta: Vec, threshold: Vec) -> Vec:
    scaled = x * beta
    return select(scaled > threshold, grad, grad * e.sigmoid(scaled))


def gelu_backward(grad: Vec, x: Vec) -> Vec:
    density = e.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * fma(x, density, 0.5 * (1.0 + e.erf(x * math.sqrt(0.5))))


def _gelu_tanh_inner(x: Vec) -> Vec:
    return math.sqrt(2 / math.pi) * fma(x * x * x, x.like(0.044715), x)


def gelu_tanh_backward(grad: Vec, x: Vec) -> Vec:
    t = e.tanh(_gelu_tanh_inner(x))
    slope = math.sqrt(2 / math.pi) * fma(x * x, x.like(3 * 0.044715), 1.0)
    return grad * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


def silu_backward(grad: Vec, x: Vec) -> Vec:
    s = e.sigmoid(x)
    return grad * s * fma(x, 1.0 - s, 1.0)


def elu_backward(grad: Vec, alpha: Vec, scale: Vec, input_scale: Vec, saved: Vec, of_result: bool) -> Vec:
    steep = saved + alpha * scale if of_result else alpha * scale * e.exp(saved * input_scale)
    return grad * select(saved > 0.0, scale, input_scale * steep)  # NaN compares false and comes through


OPERATORS: dict[str, Callable[..., Vec]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": lambda a: abs(a),
    "sign": lambda x: select(x > 0.0, x.like(1.0), select(x < 0.0, x.like(-1.0), 0.0)),
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1.0 / a,
    "sqrt": lambda a: a.sqrt(),
    "rsqrt": lambda a: 1.0 / a.sqrt(),
    "floor": lambda a: a.floor(),
    "ceil": lambda a: a.ceil(),
    "round": lambda a: a.round(),
    "trunc": lambda a: a.trunc(),
    "maximum": maximum,
    "minimum": minimum,
    "relu": relu,
    "sigmoid": e.sigmoid,
    "tanh": e.tanh,
    "exp": e.exp,
    "exp2": e.exp2,
    "expm1": e.expm1,
    "log": e.log,
    "log2": e.log2,
    "log1p": e.log1p,
    "erf": e.erf,
    "sin": e.sin,
    "cos": e.cos,
    "pow": e.pow,
    "softplus": softplus,
    "gelu": lambda x: x * 0.5 * (1.0 + e.erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + e.tanh(_gelu_tanh_inner(x))),
    "silu": lambda x: x * e.sigmoid(x),
    "elu": lambda x, alpha, scale, input_scale: scale * select(x <= 0.0, alpha * e.expm1(x * input_scale), x),
    "leaky_relu": lambda x, slope: select(x > 0.0, x, x * slope),
    "hardtanh": lambda x, low, high: minimum(maximum(x, low), high),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "isnan": lambda a: a.is_nan(),
    "nonzero": lambda a: a != 0.0,
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_xor": lambda a, b: a ^ b,
    "logical_not": lambda a: ~a,
    "where": select,
    "same": lambda a: a,
    "number": lambda mask, one: select(mask, one, 0.0),
    "threshold_backward": lambda grad, x, at: select(x <= at, 0.0, grad),
    "sigmoid_backward": lambda grad, y: grad * (y * (1.0 - y)),
    "tanh_backward": lambda grad, y: grad * (1.0 - y * y),
    "softplus_backward": softplus_backward,
    "gelu_backward": gelu_backward,
    "gelu_tanh_backward": gelu_tanh_backward,
    "silu_backward": silu_backward,
    "elu_backward": lambda *args: elu_backward(*args, of_result=False),
    "elu_backward_of_result": lambda *args: elu_backward(*args, of_result=True),
    "leaky_relu_backward": lambda grad, x, slope: select(x > 0.0, grad, grad * slope),
    "hardtanh_backward": lambda grad, x, low, high: select((x > low) & (x < high), grad, 0.0),
}
