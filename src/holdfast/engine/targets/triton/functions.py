"""What kernels call: elementary functions, groups of features and plane rotations, as Triton functions.

They are written with Triton's own arithmetic alone, so that the interpreter runs what a GPU compiles. NaN is treated as
PyTorch treats it.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["FUNCTIONS", "IS_INTERPRETED"]


@triton.jit
def maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)  # NaN on either side comes through


@triton.jit
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0 * x))


@triton.jit
def rounded(x):
    whole = (x + 12582912.0) - 12582912.0  # 1.5 · 2²³: adding it leaves no room for a fraction; ties go to even
    return tl.where(tl.abs(x) < 4194304.0, whole, x)


@triton.jit
def truncated(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """(1 - e) / (1 + e) with e = exp(-2 |x|); near zero, where that cancels, x times a polynomial in x²."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.33333334 + s * (0.13333334 + s * (-0.053968254 + s * 0.021869489))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def expm1(x):
    """exp(x) - 1; near zero by the series."""
    series = 1.0 + x / 4 * (1.0 + x / 5 * (1.0 + x / 6 * (1.0 + x / 7 * (1.0 + x / 8))))
    near = x * (1.0 + x / 2 * (1.0 + x / 3 * series))
    return tl.where(tl.abs(x) < 0.4, near, tl.exp(x) - 1.0)


@triton.jit
def log1p(x):
    """log(1 + x); near zero as 2 artanh(x / (2 + x)), by the series."""
    z = x / (2.0 + x)
    s = z * z
    near = 2.0 * z * (1.0 + s * (0.33333334 + s * (0.2 + s * (0.14285715 + s * 0.11111111))))
    return tl.where(tl.abs(x) < 0.3, near, tl.log(1.0 + x))


@triton.jit
def power(x, y):
    """|x|ʸ with the sign of x for odd y; the limits are those of torch.pow."""
    size = tl.abs(x)
    ordinary = (size > 0.0) & (size < float("inf"))
    result = tl.exp(y * tl.log(tl.where(ordinary, size, 1.0)))
    grows = (size > 1.0) == (y > 0)
    result = tl.where(ordinary, result, tl.where(grows, float("inf"), 0.0))
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) * 2.0 != y)
    result = tl.where((x < 0) & odd, -result, result)
    result = tl.where((x < 0) & (size < float("inf")) & (whole == 0), float("nan"), result)
    result = tl.where((x != x) | (y != y), float("nan"), result)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, result)


@triton.jit
def softplus(x, beta, threshold):
    scaled = x * beta
    return tl.where(scaled > threshold, x, log1p(tl.exp(minimum(scaled, threshold + 0.0 * scaled))) / beta)


@triton.jit
def softplus_backward(grad, x, beta, threshold):
    scaled = x * beta
    return tl.where(scaled > threshold, grad, grad * sigmoid(scaled))


@triton.jit
def gelu(x):
    return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_backward(grad, x):
    density = tl.exp(x * x * -0.5) * 0.3989422804014327
    return grad * (x * density + 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def gelu_tanh_backward(grad, x):
    t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
    slope = 0.7978845608028654 * (1.0 + 3 * 0.044715 * x * x)
    return grad * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


@triton.jit
def silu_backward(grad, x):
    s = sigmoid(x)
    return grad * s * (1.0 + x * (1.0 - s))


@triton.jit
def elu(x, alpha, scale, input_scale):
    return scale * tl.where(x <= 0, alpha * expm1(x * input_scale), x)


@triton.jit
def elu_backward(grad, alpha, scale, input_scale, saved):
    steep = alpha * scale * tl.exp(saved * input_scale)
    return grad * tl.where(saved > 0, scale, input_scale * steep)


@triton.jit
def elu_backward_of_result(grad, alpha, scale, input_scale, saved):
    return grad * tl.where(saved > 0, scale, input_scale * (saved + alpha * scale))


# -- products ----------------------------------------------------------------------------------------------------------

IS_INTERPRETED = type(maximum).__name__ == "InterpretedFunction"  # TRITON_INTERPRET=1 was set when Triton was imported
# Triton's interpreter multiplies the bits of bfloat16 numbers. In float32 their products are the same, and exact.
_WIDENED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def product(a, b, total):
    """Total + a b, summed in float32."""
    if _WIDENED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


# -- features ----------------------------------------------------------------------------------------------------------


@triton.jit
def picked(x, index):
    """Features ``index``, (1, n), of a block."""
    return tl.gather(x, tl.broadcast_to(index, (x.shape[0], index.shape[1])), axis=1)


@triton.jit
def column(x, i: tl.constexpr):
    """Feature i of a block, as (samples, 1)."""
    here = tl.arange(0, x.shape[1])[None, :] == i
    return tl.sum(tl.where(here, x, 0.0), axis=1, keep_dims=True)


@triton.jit
def grouped(x, features: tl.constexpr, size: tl.constexpr, groups: tl.constexpr, wide: tl.constexpr, filler):
    """(samples, features) as (samples, groups, wide): groups of ``size``, the rest filled up."""
    place = tl.arange(0, groups * wide)[None, :]
    source = (place // wide) * size + place % wide
    inside = (place % wide < size) & (source < features)
    spread = picked(x, tl.where(inside, source, 0))
    return tl.reshape(tl.where(inside, spread, filler), (x.shape[0], groups, wide))


@triton.jit
def added(x, axis: tl.constexpr):
    return tl.sum(x, axis=axis, keep_dims=axis == 1)


@triton.jit
def largest(x, axis: tl.constexpr):
    bad = tl.max((x != x).to(tl.int32), axis=axis, keep_dims=axis == 1)
    return tl.where(bad > 0, float("nan"), tl.max(x, axis=axis, keep_dims=axis == 1))


@triton.jit
def running(x, features: tl.constexpr, size: tl.constexpr, groups: tl.constexpr, wide: tl.constexpr):
    """The sum of a feature and those before it in its group."""
    sums = tl.cumsum(grouped(x, features, size, groups, wide, 0.0), axis=2)
    place = tl.arange(0, x.shape[1])[None, :]
    source = (place // size) * wide + place % size
    return picked(tl.reshape(sums, (x.shape[0], groups * wide)), tl.where(place < features, source, 0))


# Note [Rotations as gathers]
# A sublayer, permutation and turns together, is x ↦ c ⊙ x[first] + s ⊙ x[second], and so is its inverse. The tables
# first, second, c and s are made before the scan (pack.py), one row per sublayer in the order in which they are used.


@triton.jit
def turned(x, first, second, cosines, sines, j, size: tl.constexpr):
    """One sublayer."""
    columns = tl.arange(0, x.shape[1])[None, :]
    inside, where = columns < size, j * size + columns
    one = picked(x, tl.load(first + where, mask=inside, other=0))
    two = picked(x, tl.load(second + where, mask=inside, other=0))
    cosine = tl.load(cosines + where, mask=inside, other=0.0)
    return cosine * one + tl.load(sines + where, mask=inside, other=0.0) * two


@triton.jit
def rotate(x, first, second, cosines, sines, sublayers: tl.constexpr, size: tl.constexpr):
    for j in range(sublayers):
        x = turned(x, first, second, cosines, sines, j, size)
    return x


@triton.jit
def rotate_back(grad, output, first, second, cosines, sines, sums, sublayers: tl.constexpr, size: tl.constexpr):
    """The gradient at the input; ``sums`` collects g[p + size/2] y[p] for every sublayer and feature."""
    columns = tl.arange(0, grad.shape[1])[None, :]
    inside, other_half = columns < size, (columns + size // 2) % size
    for j in range(sublayers):
        part = tl.sum(picked(grad, tl.where(inside, other_half, 0)) * output, axis=0, keep_dims=True)
        where = sums + j * size + columns
        tl.store(where, tl.load(where, mask=inside, other=0.0) + part, mask=inside)
        output = turned(output, first, second, cosines, sines, j, size)
        grad = turned(grad, first, second, cosines, sines, j, size)
    return grad


FUNCTIONS = (
    "added", "column", "elu", "elu_backward", "elu_backward_of_result", "expm1", "gelu", "gelu_backward", "gelu_tanh",
    "gelu_tanh_backward", "grouped", "largest", "log1p", "maximum", "minimum", "picked", "power", "product", "rotate",
    "rotate_back", "rounded", "running", "sigmoid", "sign", "silu_backward", "softplus", "softplus_backward", "tanh",
    "truncated",
)  # fmt: skip
