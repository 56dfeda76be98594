"""Transcendental functions of vectors, as straight-line arithmetic.

Each function takes a ``Vec`` of float32 or float64 and writes its formula: reduce the argument to a short interval,
evaluate a polynomial there, undo the reduction. There are no branches, tables or calls, so all lanes together cost
what one does. Signed zero, infinity, NaN, overflow and gradual underflow are as in PyTorch.

The polynomials are minimax fits (Remez; in float32 one coefficient after another is rounded and the rest fitted
again). A constant that is subtracted n times is split, so that all products but the last are exact even where
``fma`` rounds twice (Cody & Waite, 1980). "Error" in a docstring is the largest distance to the exact value seen,
in units in the last place: over every eleventh float32, 4 · 10⁵ to 8 · 10⁶ float64 and 3 · 10⁶ pairs for ``pow``.
Where ``fma`` rounds twice it is up to 0.3 more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from holdfast.engine.targets.cpu.vec import Vec, fma, select

__all__ = ["cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "pow", "pow_scalar", "sigmoid", "sin", "tanh"]

LN2, LOG2_E, TWO_OVER_PI = 0.6931471805599453, 1.4426950408889634, 0.6366197723675814


@dataclass(frozen=True)
class _Format:
    """What depends on the width of a number; each polynomial has the name of the function that uses it."""

    digits: int  # of the mantissa as stored
    bias: int  # of the exponent
    sqrt_half: int  # the bits of √½
    ln2: tuple[float, float]
    exp_range: tuple[float, float]  # outside it exp is 0 or infinite
    tanh_one: float  # from here on tanh rounds to 1, and so does erf from erf_one
    erf_one: float
    exp: tuple[float, ...]
    tanh: tuple[float, ...]
    erf_near: tuple[float, ...]
    erf_far: tuple[float, ...]
    log: tuple[float, ...]
    pow: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]


# fmt: off
_SINGLE = _Format(
    digits=23, bias=127, sqrt_half=0x3F3504F3, ln2=(0.693145751953125, 1.4286068203094173e-06),
    exp_range=(-104.0, 89.0), tanh_one=9.1, erf_one=3.95,
    exp=(0.5, 0.166665435, 0.0416664481, 0.00836654566, 0.00139364542),
    tanh=(-0.333333224, 0.13331151, -0.0527193062),
    erf_near=(0.128379166, -0.37612626, 0.112835787, -0.0268533546, 0.00518720085, -0.000799845962, 7.80990595e-05),
    erf_far=(1.84960556, 2.63896298, 0.843167782, 0.0412856899, -0.00950040296, 0.00152169215, -0.000102075232),
    log=(0.333333164, -0.250008106, 0.200022891, -0.166245267, 0.141812757, -0.131293237, 0.128808275, -0.0785642043),
    pow=(0.6666666564328485, 0.400003357568304, 0.2853726914564664, 0.23582953796998465),
    sin=(-0.166666552, 0.00833219104, -0.000195186003),
    cos=(0.0416666456, -0.00138873013, 2.44306684e-05),
)
_DOUBLE = _Format(
    digits=52, bias=1023, sqrt_half=0x3FE6A09E667F3BCD, ln2=(0.6931471803691238, 1.9082149292705877e-10),
    exp_range=(-746.0, 710.0), tanh_one=20.0, erf_one=5.95,
    exp=(0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321579, 0.0013888888888866897,
         0.00019841269886265785, 2.480158736048724e-05, 2.755724406215777e-06, 2.7557242786832406e-07,
         2.5109090401386327e-08, 2.092444251820405e-09),
    tanh=(-0.3333333333333248, 0.1333333333278164, -0.053968252778360926, 0.02186937044217323, -0.008857299640904382,
          0.0034447250235816254),
    erf_near=(0.1283791670955126, -0.3761263890318375, 0.11283791670954857, -0.026866170645072893,
              0.005223977624780851, -0.0008548326978741285, 0.0001205533103686444, -1.4925593505986751e-05,
              1.6460972801425547e-06, -1.6350025044598678e-07, 1.4657878557110335e-08, -1.1365660658838072e-09,
              5.945252228147369e-11),
    erf_far=(1.8496055099332482, 2.638967514234788, 0.8431072563586768, 0.041561098041808145, -0.010033825374401556,
             0.0019779025678499725, -0.00023732248114011125, -2.627787619111936e-05, 2.715911495392042e-05,
             -9.608905206895149e-06, 2.059778219839843e-06, -1.428809876661113e-07, -9.754370359455073e-08,
             5.2036129782253146e-08, -1.4910852524717336e-08, 2.8638969315306065e-09, -3.682253858961167e-10,
             2.8813431659544214e-11, -1.039009949176699e-12),
    log=(0.6666666666666735, 0.3999999999941271, 0.2857142874287139, 0.22222198519105738, 0.1818356735353399,
         0.15313967840380605, 0.14796827373411978),
    pow=(0.2000000000000113, 0.14285714285047876, 0.1111111126031926, 0.0909089215089351, 0.07693380229097663,
         0.06628371185575495, 0.06598525326344384),
    sin=(-0.16666666666666632, 0.008333333333322372, -0.00019841269829772213, 2.7557313678989164e-06,
         -2.5050756006173886e-08, 1.589666878583566e-10),
    cos=(0.0416666666666666, -0.0013888888888874064, 2.4801587289442533e-05, -2.755731434040287e-07,
         2.087572159051032e-09, -1.1359557677598253e-11),
)
# fmt: on


def _format(x: Vec) -> _Format:
    return _DOUBLE if x.is_double else _SINGLE


# -- parts -------------------------------------------------------------------------------------------------------


def _polynomial(x: Vec, coefficients: Sequence[float]) -> Vec:
    """Evaluate c₀ + c₁ x + c₂ x² + …; even and odd terms are two chains, which a CPU runs side by side."""
    if len(coefficients) > 3:
        z = x * x
        return fma(x, _horner(z, coefficients[1::2]), _horner(z, coefficients[::2]))
    return _horner(x, coefficients)


def _horner(x: Vec, coefficients: Sequence[float]) -> Vec:
    return functools.reduce(lambda y, c: fma(x, y, c), reversed(coefficients[:-1]), x.like(coefficients[-1]))


def _clamp(x: Vec, low: float, high: float) -> Vec:
    """``x`` moved into [low, high]; NaN stays, for it compares false."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


def _convert(x: Vec, element: ir.Type) -> Vec:
    """``x`` as float32 or float64."""
    cast = x.builder.fpext if isinstance(element, ir.DoubleType) else x.builder.fptrunc
    return Vec(x.builder, cast(x.value, ir.VectorType(element, x.lanes)))


def _integer(x: Vec, factor: float = 1.0, offset: int = 0) -> tuple[Vec, Vec]:
    """Return the integer n nearest to ``factor`` x, as a float, and a vector with n + offset in its lowest bits."""
    shifter = 1.5 * 2.0 ** _format(x).digits + offset  # adding it pushes all that is not whole out of the mantissa
    shifted = x + shifter if factor == 1.0 else fma(x, factor, shifter)
    return shifted - shifter, shifted.bits()


def _power_of_two(bits: Vec, form: _Format) -> Vec:
    """2ⁿ, a normal number, for n + bias in the lowest bits."""
    return (bits << form.digits).as_float()


def _times_power_of_two(x: Vec, bits: Vec) -> Vec:
    """2ⁿ x for n + 2 bias in the lowest bits, x near 1: of two steps the first is exact, so the result rounds once."""
    form, half = _format(x), bits >> 1
    return x * _power_of_two(half, form) * _power_of_two(bits - half, form)


def _reduce(x: Vec, offset: int) -> tuple[Vec, Vec, Vec]:
    """Return n, n + offset (as in ``_integer``) and r with x = n ln 2 + r, |r| ≤ ln 2 / 2."""
    high, low = _format(x).ln2
    n, bits = _integer(x, LOG2_E, offset)
    return n, bits, fma(n, -low, fma(n, -high, x))


def _reduce_exactly(x: Vec, offset: int, x_low: float | Vec = 0.0) -> tuple[Vec, Vec, Vec]:
    """Return n + offset, r and c with x + x_low = n ln 2 + r + c, where c is what r lost to rounding."""
    high, low = _format(x).ln2
    n, bits = _integer(x, LOG2_E, offset)
    head, tail = fma(n, -high, x), fma(n, -low, x_low)
    r = head + tail
    return bits, r, (head - r) + tail


def _exp_tail(r: Vec, rest: Vec) -> Vec:
    """(exp(r) - 1 - r) + rest, for |r| ≤ ln 2 / 2: r² P(r) + rest."""
    return fma(r * r, _polynomial(r, _format(r).exp), rest)


def _split(x: Vec) -> tuple[Vec, Vec]:
    """Return k, as a float, and f with x = 2ᵏ (1 + f) and √½ ≤ 1 + f < √2, for 0 < x < ∞."""
    form = _format(x)
    one, subnormal = form.bias << form.digits, x < 2.0 ** (1 - form.bias)
    bits = select(subnormal, x * 2.0 ** (form.digits + 1), x).bits() + (one - form.sqrt_half)
    # AVX2 cannot convert int64; an integer or-ed into the mantissa of 2^digits is a float already, that much too large.
    exponent = ((bits >> form.digits) | ((form.digits + form.bias) << form.digits)).as_float()
    excess = 2.0**form.digits + form.bias
    k = exponent - select(subnormal, x.like(excess + form.digits + 1), x.like(excess))
    return k, ((bits & ((1 << form.digits) - 1)) + form.sqrt_half).as_float() - 1.0


def _log_tail(f: Vec) -> Vec:
    """Evaluate f - log(1 + f): f²/2 - f³ P(f), in float64 f²/2 - s (f²/2 + s² P(s²)) with s = f / (2 + f)."""
    half_square = 0.5 * f * f
    if not f.is_double:
        return fma(f * f, -f * _polynomial(f, _SINGLE.log), half_square)
    s = f / (2.0 + f)
    z = s * s
    return half_square - s * fma(z, _polynomial(z, _DOUBLE.log), half_square)


def _log_domain(x: Vec, y: Vec) -> Vec:
    """``y`` where 0 < x < ∞, and the values of log elsewhere."""
    y = select(x == 0.0, -math.inf, y)
    y = select(x < 0.0, math.nan, y)
    return select(x < math.inf, y, x)


# -- exponentials ------------------------------------------------------------------------------------------------


def exp(x: Vec) -> Vec:
    """eˣ = 2ⁿ (1 + r + r² P(r)), x = n ln 2 + r. Error: 1.07 in float32, 1.00 in float64."""
    form = _format(x)
    _, n, r = _reduce(_clamp(x, *form.exp_range), 2 * form.bias)
    return _times_power_of_two(1.0 + _exp_tail(r, r), n)


def exp2(x: Vec) -> Vec:
    """2ˣ = 2ⁿ exp(r ln 2), n the nearest integer to x and r the rest. Error: 1.08 in float32, 1.08 in float64."""
    form = _format(x)
    x = _clamp(x, -(form.bias + form.digits + 2.0), form.bias + 2.0)
    whole, n = _integer(x, offset=2 * form.bias)
    r = (x - whole) * LN2
    return _times_power_of_two(1.0 + _exp_tail(r, r), n)


def expm1(x: Vec) -> Vec:
    """eˣ - 1 = (2ⁿ - 1) + 2ⁿ r + 2ⁿ r² P(r), the first sum without error. Error: 1.36 in float32, 1.21 in float64."""
    form = _format(x)
    n, r, c = _reduce_exactly(_clamp(x, -2.0 * form.tanh_one, form.exp_range[1]), form.bias)
    last = x > form.bias * LN2  # there 2ⁿ may overflow though eˣ does not: halve it, and double the result
    scale = _power_of_two(select(last, n - 1, n), form)
    base, step = scale - 1.0, scale * r
    top = base + step
    y = top + fma(scale, _exp_tail(r, c), step - (top - base))
    return select(x == 0.0, x, select(last, y + y, y))


def tanh(x: Vec) -> Vec:
    """((s - 1) + (s + 1) t) / ((s + 1) + (s - 1) t), s = 2ⁿ, t = tanh r = r + r³ P(r²), |x| = n ln 2 / 2 + r.

    The quotient carries three roundings, so it is made small: b, the nearest of 0, ¼, ½, ¾, 1, is subtracted from it
    inside the numerator and added again outside. Error: 1.62 in float32, 1.57 in float64.
    """
    form = _format(x)
    high, low = form.ln2
    size = abs(x)
    size = select(size > form.tanh_one, form.tanh_one, size)
    n, bits = _integer(size, 2.0 * LOG2_E, form.bias)
    head = fma(n, -0.5 * high, size)
    r = fma(n, -0.5 * low, head)
    z = r * r
    p = _polynomial(z, form.tanh)
    lost = fma(n, -0.5 * low, head - r)  # by rounding r; in float32 it does not pay
    t = r + fma(r * z, p, lost) if x.is_double else fma(r * z, p, r)
    scale = _power_of_two(bits, form)
    up, down = scale + 1.0, scale - 1.0
    b = 0.25 * n
    b = select(b > 1.0, 1.0, b)
    common, one = fma(-b, scale, scale), 1.0 + b  # up - b down and down - b up, but with the 1 kept in a large 2ⁿ
    return (b + fma(common + one, t, common - one) / fma(down, t, up)).copysign(x)


def sigmoid(x: Vec) -> Vec:
    """1 / (1 + s exp(r)), s = 2ⁿ, -x = n ln 2 + r; for n > 0 it is (1/s) / (1/s + exp(r)), which cannot overflow.

    Error: 1.75 in float32, 1.65 in float64.
    """
    form = _format(x)
    n, _, r = _reduce(-_clamp(x, *form.exp_range), 0)
    shift = form.digits + 8  # 2^-|n| may be subnormal, and comes in two factors
    lifted = _power_of_two(_integer(-abs(n), offset=form.bias + shift)[1], form)
    scale = lifted * 2.0**-shift
    falling = n > 0.0
    base = 1.0 + scale
    lost = scale - (base - 1.0)
    y = 1.0 / (base + fma(select(falling, 1.0, scale), _exp_tail(r, r), lost))
    return select(falling, y * lifted * 2.0**-shift, y)


def erf(x: Vec) -> Vec:
    """Evaluate x + x P(x²) for |x| < 1, else ±(1 - exp(-Q(|x| - 1))). Error: 1.12 in float32, 1.02 in float64."""
    form = _format(x)
    size = abs(x)
    near = fma(x, _polynomial(x * x, form.erf_near), x)
    q = _polynomial(select(size > form.erf_one, form.erf_one, size) - 1.0, form.erf_far)
    _, n, r = _reduce(-q, form.bias)
    far = fma(1.0 + _exp_tail(r, r), -_power_of_two(n, form), 1.0)
    return select(size < 1.0, near, far.copysign(x))


# -- logarithms --------------------------------------------------------------------------------------------------


def log(x: Vec) -> Vec:
    """Add k ln 2 to the logarithm of 1 + f, x = 2ᵏ (1 + f). Error: 0.87 in float32, 0.89 in float64."""
    (k, f), (high, low) = _split(x), _format(x).ln2
    return _log_domain(x, fma(k, high, f - fma(k, -low, _log_tail(f))))


def log1p(x: Vec) -> Vec:
    """Evaluate log(u) + e / u, u = 1 + x as rounded and e what was lost. Error: 0.94 in float32, 0.85 in float64."""
    high, low = _format(x).ln2
    u = 1.0 + x
    kept = u - 1.0
    lost = (1.0 - (u - kept)) + (x - kept)
    k, f = _split(u)
    y = fma(k, high, f - (fma(k, -low, _log_tail(f)) - lost / u))
    return select(x == 0.0, x, _log_domain(u, y))


def log2(x: Vec) -> Vec:
    """Evaluate k + f + (f (log₂e - 1) - log₂e (f - log(1 + f))): exact for x = 2ᵏ. Error: 1.29, in float64 1.20."""
    k, f = _split(x)
    top = k + f
    rest = fma(f, LOG2_E - 1.0, -LOG2_E * _log_tail(f))
    return _log_domain(x, top + ((f - (top - k)) + rest))


# -- sine and cosine ---------------------------------------------------------------------------------------------

_HALF_PI_SINGLE = (1.570796012878418, 3.139164164167596e-07, 6.223372171896613e-14)  # of 22, 22 and 53 digits
_HALF_PI_DOUBLE = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)  # 33, …, 53


def _quadrant(x: Vec, offset: int) -> tuple[Vec, Vec, Vec]:
    """Return q + offset, r and c with x = q π/2 + r + c and |r| ≤ π/4; float32 is reduced in float64, and c is 0."""
    wide = _convert(x, ir.DoubleType()) if not x.is_double else x
    n, q = _integer(wide, TWO_OVER_PI, offset)
    if not x.is_double:
        r = _convert(functools.reduce(lambda rest, part: fma(n, -part, rest), _HALF_PI_SINGLE, wide), ir.FloatType())
        q, c = Vec(x.builder, x.builder.trunc(q.value, ir.VectorType(ir.IntType(32), x.lanes))), x.like(0.0)
    else:
        high, low = fma(n, -_HALF_PI_DOUBLE[0], x), x.like(0.0)
        for part in _HALF_PI_DOUBLE[1:]:
            step = n * part
            rest = high - step
            high, low = rest, low + ((high - rest) - step)
        r = high + low
        c = _clamp((high - r) + low, -(2.0**-53), 2.0**-53)
    return q, _clamp(r, -math.pi / 4, math.pi / 4), c  # where x is too large for r to be right, it is bounded


def _sine(q: Vec, r: Vec, c: Vec) -> Vec:
    """sin(q π/2 + r + c), q modulo 4: r + r³ S(r²) or 1 - r²/2 + r⁴ C(r²), with a sign."""
    form, z = _format(r), r * r
    sine = r + fma(r * z, _polynomial(z, form.sin), c)
    half = 0.5 * z
    top = 1.0 - half
    cosine = top + (((1.0 - top) - half) + fma(z * z, _polynomial(z, form.cos), -(r * c)))
    y = select((q & 1) == 0, sine, cosine)
    return (y.bits() ^ ((q & 2) << (62 if r.is_double else 30))).as_float()


def sin(x: Vec) -> Vec:
    """± sin r or ± cos r, x = q π/2 + r. Error: 1.55 in float32 for |x| ≤ 3e9, 0.91 in float64 for |x| ≤ 1.6e6.

    Beyond, the C library's, lane by lane.
    """
    return _unless_far(x, "llvm.sin.f64", select(x == 0.0, x, _sine(*_quadrant(x, 0))))


def cos(x: Vec) -> Vec:
    """sin(x + π/2), the quarter turn added to q: range and error are those of ``sin``."""
    return _unless_far(x, "llvm.cos.f64", _sine(*_quadrant(x, 1)))


def _unless_far(x: Vec, name: str, near: Vec) -> Vec:
    """``near``, but the C library's function where x is too large to tell its quadrant: a branch hardly ever taken."""
    builder, double = x.builder, ir.DoubleType()
    far = abs(x) > (1.6e6 if x.is_double else 3e9)
    some = builder.icmp_unsigned(
        "!=", builder.bitcast(far.value, ir.IntType(x.lanes)), ir.Constant(ir.IntType(x.lanes), 0)
    )
    if name not in builder.module.globals:
        ir.Function(builder.module, ir.FunctionType(double, [double]), name)
    function, before = builder.module.globals[name], builder.block
    with builder.if_then(some, likely=False):
        slow = near.value
        for lane in range(x.lanes):
            place = ir.Constant(ir.IntType(32), lane)
            number = builder.extract_element(x.value, place)
            result = builder.call(function, [number if x.is_double else builder.fpext(number, double)])
            slow = builder.insert_element(
                slow, result if x.is_double else builder.fptrunc(result, ir.FloatType()), place
            )
        slow, inside = builder.select(far.value, slow, near.value), builder.block
    joined = builder.phi(x.type)
    joined.add_incoming(near.value, before)
    joined.add_incoming(slow, inside)
    return Vec(builder, joined)


# -- powers ------------------------------------------------------------------------------------------------------


def _product(a: Vec, b: Vec) -> tuple[Vec, Vec]:
    """Return a b rounded, and what rounding lost: products of halves of 26 digits are exact (Dekker, 1971)."""
    p, (a_high, b_high) = a * b, ((v.bits() & -(1 << 27)).as_float() for v in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return p, fma(a_low, b_low, fma(a_low, b_high, fma(a_high, b_low, fma(a_high, b_high, -p))))


def _sum(a: Vec, b: Vec) -> tuple[Vec, Vec]:
    """Return a + b rounded, and what rounding lost, for |a| ≥ |b| or a = 0."""
    total = a + b
    return total, b - (total - a)


def _log_twice(x: Vec) -> tuple[Vec, Vec]:
    """Return log x as a sum of two, 65 digits in all: k ln 2 + 2 s (1 + s²/3 + s⁴ P(s²)), s = f / (2 + f)."""
    k, f = _split(x)
    base, base_low = _sum(x.like(2.0), f)
    inverse = 1.0 / base
    s = f * inverse
    p, p_low = _product(s, base)
    s_low = (((f - p) - p_low) - s * base_low) * inverse
    z, z_low = _product(s, s)
    z_low = fma(s + s, s_low, z_low)
    third, third_low = _product(z, x.like(1.0 / 3.0))
    third_low = third_low + fma(z_low, 1.0 / 3.0, z * 1.850371707708594e-17)  # 1/3 in float64 is that much too small
    g, g_low = _sum(third, z * z * _polynomial(z, _DOUBLE.pow))
    s, s_low = s + s, s_low + s_low
    h, h_low = _product(s, g)
    h_low = h_low + fma(s, g_low + third_low, s_low * g)
    high, low = _sum(k * _DOUBLE.ln2[0], s)
    high, lower = _sum(high, h)
    return _sum(high, lower + (low + (fma(k, _DOUBLE.ln2[1], s_low) + h_low)))


def _pow_double(x: Vec, y: Vec) -> Vec:
    log_x, log_low = _log_twice(x)
    t, t_low = _product(y, log_x)
    least, most = _DOUBLE.exp_range
    t_low = select(abs(t) > -least, 0.0, fma(y, log_low, t_low))
    n, r, c = _reduce_exactly(_clamp(t, least, most), 2 * _DOUBLE.bias, t_low)
    return _times_power_of_two(1.0 + (r + _exp_tail(r, c)), n)


def _pow_single(x: Vec, y: Vec) -> Vec:
    k, f = (_convert(part, ir.DoubleType()) for part in _split(x))
    s = f / (2.0 + f)
    z = s * s
    log_x = fma(k, LN2, s * fma(z, _polynomial(z, _SINGLE.pow), 2.0))
    t = _clamp(_convert(y, ir.DoubleType()) * log_x, *_SINGLE.exp_range)
    n, bits = _integer(t, LOG2_E, _DOUBLE.bias)
    r = fma(n, -LN2, t)
    power = 1.0 + fma(r * r, _polynomial(r, _SINGLE.exp), r)
    return _convert(power * _power_of_two(bits, _DOUBLE), ir.FloatType())


def pow(x: Vec, y: Vec) -> Vec:
    """xʸ = exp(y log |x|), with the sign of x for odd y; the product is in float64, or in a sum of two float64.

    Error: 0.58 in float32, 1.48 in float64.
    """
    size, bounded = abs(x), _clamp(y, -(2.0**66), 2.0**66)  # beyond, the result is 0, 1 or infinite as it is there
    power = (_pow_double if x.is_double else _pow_single)(size, bounded)
    whole, half = y.floor() == y, 0.5 * y
    power = select((x < 0.0) & ~whole, math.nan, power)
    limit = select((size < 1.0) ^ (y < 0.0), 0.0, x.like(math.inf))
    power = select((size == 0.0) | (size == math.inf), limit, power)
    power = select(whole & (half.floor() != half), power.copysign(x), power)
    power = select(x.is_nan() | y.is_nan(), math.nan, power)
    return select((x == 1.0) | (y == 0.0), 1.0, power)


def pow_scalar(x: Vec, exponent: float) -> Vec:
    """xʸ for one number y; where ``torch.pow`` multiplies, divides or takes a square root instead, so does this."""
    shortcuts = {
        0.0: lambda: x.like(1.0),
        1.0: lambda: x,
        2.0: lambda: x * x,
        3.0: lambda: x * x * x,
        0.5: x.sqrt,
        -0.5: lambda: 1.0 / x.sqrt(),
        -1.0: lambda: 1.0 / x,
        -2.0: lambda: 1.0 / (x * x),
    }
    return shortcuts[exponent]() if exponent in shortcuts else pow(x, x.like(exponent))
