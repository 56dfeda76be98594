"""The transcendental functions, against references with more digits and against PyTorch's special values."""

import ctypes
import functools
from unittest import mock

import mpmath
import numpy as np
import pytest
import torch
from llvmlite import ir

from holdfast.engine.targets.cpu import elementary
from holdfast.engine.targets.cpu.native import NativeLibrary, object_code
from holdfast.engine.targets.cpu.vec import Vec, vector_type

# The largest distance from the exact value that is allowed, in units in the last place: (float32, float64).
BOUNDS = {
    "exp": (1.2, 1.1),
    "exp2": (1.2, 1.2),
    "expm1": (1.5, 1.3),
    "tanh": (1.8, 1.7),
    "sigmoid": (1.9, 1.8),
    "erf": (1.4, 1.4),
    "log": (1.0, 1.0),
    "log1p": (1.0, 1.0),
    "log2": (1.5, 1.3),
    "sin": (1.6, 1.0),
    "cos": (1.6, 1.0),
    "pow": (0.7, 1.7),
}
FUNCTIONS = [name for name in BOUNDS if name != "pow"]
DTYPES = ["float32", "float64"]
TURNING = {"float32": 3e9, "float64": 1.6e6}  # sin and cos are exact in their argument up to here


# -- harness: a loop over arrays around one function of vectors ----------------------------------------------------


def loop(function, dtype, lanes, inputs):
    """LLVM assembly for ``void run(x…, y, n)``, y[i] = function(x[i]…), n a multiple of ``lanes``."""
    module, vector, pointer, i64 = (
        ir.Module(),
        vector_type(getattr(torch, dtype), lanes),
        ir.PointerType(),
        ir.IntType(64),
    )
    module.triple = ""
    run = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * (inputs + 1) + [i64]), "run")
    *xs, y, n = run.args
    entry, body, end = (run.append_basic_block(name) for name in ("entry", "body", "end"))
    ir.IRBuilder(entry).branch(body)
    builder = ir.IRBuilder(body)
    i = builder.phi(i64)
    i.add_incoming(ir.Constant(i64, 0), entry)

    def at(array):
        return builder.gep(array, [i], source_etype=vector.element)

    result = function(*(Vec(builder, builder.load(at(x), typ=vector, align=4)) for x in xs))
    builder.store(result.value, at(y), align=4)
    following = builder.add(i, ir.Constant(i64, lanes))
    i.add_incoming(following, builder.block)  # a function may branch
    builder.cbranch(builder.icmp_signed("<", following, n), body, end)
    ir.IRBuilder(end).ret_void()
    return str(module)


def compile_loop(function, dtype, lanes=8, inputs=1):
    library = NativeLibrary(object_code(loop(function, dtype, lanes, inputs)))
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (inputs + 1), ctypes.c_int64)(library.address("run"))

    def call(*xs):
        size = xs[0].size
        xs = [np.pad(np.asarray(x, dtype), (0, -size % lanes)) for x in xs]
        y = np.empty_like(xs[0])
        run(*(x.ctypes.data for x in xs), y.ctypes.data, y.size)
        return y[:size]

    call.library = library  # code lives as long as its library
    return call


@functools.cache
def compiled(name, dtype, fused=True):
    """The function over arrays; ``fused=False`` is the code of a CPU without fused multiply-add."""
    fma = elementary.fma if fused else (lambda a, b, c: a * b + c)
    with mock.patch.object(elementary, "fma", fma):
        return compile_loop(getattr(elementary, name), dtype, inputs=2 if name == "pow" else 1)


# -- arguments and errors ----------------------------------------------------------------------------------------


def arguments(name, dtype, count):
    """All magnitudes and signs, all kinds of bit patterns, and the intervals where a formula changes."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    bits = rng.integers(0, 2**info.bits, count, dtype=f"u{info.bits // 8}").view(dtype)
    bits = bits[np.isfinite(bits)]
    magnitudes = np.exp2(np.linspace(info.minexp - info.nmant, info.maxexp - 1e-6, count // 2))
    near_one = 1 + np.exp2(rng.uniform(-info.nmant, -1, count // 2)) * rng.choice([-1, 1], count // 2)
    whole = 1.02 * np.log(info.max)  # exp overflows and underflows in it, tanh and sigmoid reach their ends
    intervals = [rng.uniform(-b, b, count) for b in (0.7, 2, 10, whole, 1.5 * whole)]
    x = np.concatenate([bits, magnitudes, -magnitudes, near_one, -near_one, *intervals]).astype(dtype)
    if name in ("sin", "cos"):
        quarter_turns = rng.integers(-(10**6), 10**6, count) * (np.pi / 2)
        x = np.concatenate([x, quarter_turns.astype(dtype), rng.uniform(-1e6, 1e6, count).astype(dtype)])
        x = x[np.abs(x) <= TURNING[dtype]]
    return x[np.isfinite(x)]


def sigmoid_reference(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


WIDER = {"erf": lambda x: torch.from_numpy(x).erf().numpy(), "sigmoid": sigmoid_reference}


def float32_errors(y, exact):
    """|y - exact| in ulp of float32, for ``exact`` in float64; infinite where one is special and the other is not."""
    with np.errstate(all="ignore"):
        ulp = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 1, -126) - 23)
        error, rounded = np.abs(y - exact) / ulp, exact.astype(np.float32)
    same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
    return np.where(same & ~np.isfinite(rounded), 0.0, np.nan_to_num(error, nan=np.inf))


EXACT = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "log2": lambda x: mpmath.log(x, 2),
    "exp2": lambda x: mpmath.power(2, x),
}
CONSTANT_FROM = {"exp": 2000, "exp2": 2000, "expm1": 2000, "tanh": 2000, "sigmoid": 2000, "erf": 100}


def float64_error(y, exact):
    """|y - exact| in ulp of float64, for ``exact`` with more digits."""
    if mpmath.isnan(exact) or mpmath.isinf(exact):
        return 0.0 if repr(float(exact)) == repr(float(y)) else np.inf
    if np.isinf(y):
        return 0.0 if abs(exact) >= mpmath.mpf(2) ** 1024 * (1 - mpmath.mpf(2) ** -54) and y * exact > 0 else np.inf
    exponent = mpmath.frexp(exact)[1] if exact else -1074
    return float(mpmath.ldexp(abs(mpmath.mpf(float(y)) - exact), -max(exponent - 53, -1074)))


def exact_value(name, x):
    """The function at x as a real number, or the limit or NaN where it has none."""
    if name.startswith("log"):
        pole = -1 if name == "log1p" else 0
        if x <= pole:
            return mpmath.mpf("-inf" if x == pole else "nan")
    limit = CONSTANT_FROM.get(name, np.inf)  # a larger argument changes nothing but mpmath's time
    function = EXACT.get(name) or getattr(mpmath, name)
    return function(mpmath.mpf(float(np.clip(x, -limit, limit))))


def assert_same(ours, theirs):
    """Equal bit for bit, but any NaN equals any."""
    np.testing.assert_array_equal(ours, theirs)  # NaN in the same places, equal numbers
    finite = ~np.isnan(ours)
    np.testing.assert_array_equal(np.signbit(ours[finite]), np.signbit(theirs[finite]))


# -- accuracy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False], ids=["fma", "no fma"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_is_within_its_bound_on_the_whole_range(name, fused):
    x = arguments(name, "float32", 40_000)
    with np.errstate(all="ignore"):
        exact = WIDER.get(name, getattr(np, name, None))(x.astype(np.float64))
    errors = float32_errors(compiled(name, "float32", fused)(x), exact)
    assert errors.max() <= BOUNDS[name][0], f"{errors.max():.3f} ulp at {x[errors.argmax()]!r}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_is_within_its_bound_on_the_whole_range(name):
    x = arguments(name, "float64", 500)
    results = [compiled(name, "float64", fused)(x) for fused in (True, False)]
    with mpmath.workprec(130):
        exact = [exact_value(name, v) for v in x]
        errors = np.array([[float64_error(a, b) for a, b in zip(y, exact, strict=True)] for y in results])
    assert errors.max() <= BOUNDS[name][1], f"{errors.max():.3f} ulp at {x[errors.max(axis=0).argmax()]!r}"


def powers(dtype, count):
    """Pairs whose power is in range or just outside it, for bases of all magnitudes and bases near 1; and signs."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    near_one = 1 + np.exp2(rng.uniform(-info.nmant, -1, count)) * rng.choice([-1, 1], count)
    x = np.concatenate([np.exp2(rng.uniform(info.minexp - info.nmant, info.maxexp, count)), near_one])
    x = x.astype(dtype).astype(np.float64)
    x = x[x != 1.0]
    y = rng.uniform(-1.2, 1.1, x.size) * info.maxexp / np.log2(x)
    x = np.concatenate([x, rng.uniform(0, 20, count), -rng.uniform(0, 20, count)])
    y = np.concatenate([y, rng.uniform(-10, 10, count), rng.integers(-20, 20, count)])
    with np.errstate(over="ignore"):
        return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("fused", [True, False], ids=["fma", "no fma"])
def test_powers_in_float32_are_within_their_bound(fused):
    x, y = powers("float32", 40_000)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    errors = float32_errors(compiled("pow", "float32", fused)(x, y), exact)
    assert errors.max() <= BOUNDS["pow"][0], f"{errors.max():.3f} ulp at {x[errors.argmax()], y[errors.argmax()]}"


@pytest.mark.parametrize("fused", [True, False], ids=["fma", "no fma"])
def test_powers_in_float64_are_within_their_bound(fused):
    x, y = powers("float64", 1_000)
    z = compiled("pow", "float64", fused)(x, y)
    with mpmath.workprec(130):
        exact = [mpmath.power(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(x, y, strict=True)]
        errors = np.array([float64_error(a, b) for a, b in zip(z, exact, strict=True)])
    assert errors.max() <= BOUNDS["pow"][1], f"{errors.max():.3f} ulp at {x[errors.argmax()], y[errors.argmax()]}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_two_and_their_logarithms_are_exact(dtype):
    """For all k with 2ᵏ in range, subnormal numbers too: exp2(k) = 2ᵏ and log2(2ᵏ) = k."""
    info = np.finfo(dtype)
    k = np.arange(info.minexp - info.nmant, info.maxexp).astype(dtype)
    power = np.ldexp(np.ones(1, dtype), k.astype(int))
    np.testing.assert_array_equal(compiled("exp2", dtype)(k), power)
    np.testing.assert_array_equal(compiled("log2", dtype)(power), k)


# -- special values ----------------------------------------------------------------------------------------------


# Besides zero, infinity and NaN of both signs, which every function gets.
NOTABLE = {name: [1e3, -1e3, 1e4, -1e4, 1e38, -1e38] for name in ("exp", "exp2", "expm1", "tanh", "sigmoid", "erf")}
NOTABLE |= {"log": [1.0, -1.0, -1e-45], "log2": [1.0, 4.0, -1.0, -1e-45], "log1p": [-1.0, -1.5], "sin": [], "cos": []}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_pytorch(name, dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, *NOTABLE[name]], dtype)
    assert_same(compiled(name, dtype)(x), getattr(torch, name)(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["expm1", "tanh", "log1p", "sin"])
def test_functions_of_slope_one_keep_tiny_numbers(name, dtype):
    """The smallest numbers there are, of both signs, come back as they are."""
    tiny = np.finfo(dtype).smallest_subnormal * np.array([1, 2, 3, 1000, -1, -2, -3, -1000], dtype)
    assert_same(compiled(name, dtype)(tiny), tiny)


SPECIAL = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 2.0**24, 1e30, np.inf, np.nan]


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_powers_are_those_of_pytorch(dtype):
    """For all pairs of special numbers: NaN, infinity, zero and one with their signs, and the rest to rounding."""
    values = np.array([*SPECIAL, *(-v for v in SPECIAL)], dtype)
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    theirs = torch.pow(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    ours = compiled("pow", dtype)(x, y)
    special = ~np.isfinite(theirs) | np.isin(theirs, [-1, 0, 1])
    assert_same(ours[special], theirs[special])
    np.testing.assert_allclose(ours, theirs, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -0.5, -1, -2])
def test_simple_powers_equal_pytorch_bit_for_bit(exponent, dtype):
    values = np.array([*SPECIAL, *(-v for v in SPECIAL)], dtype)
    x = np.concatenate([values, arguments("pow_scalar", dtype, 1_000)])
    function = compile_loop(lambda v: elementary.pow_scalar(v, float(exponent)), dtype)
    assert_same(function(x), torch.pow(torch.from_numpy(x), exponent).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_power_one_half_is_the_square_root(dtype):
    """IEEE 754's, that is: PyTorch's own, where it is MKL's, is sometimes the neighbouring number."""
    values = np.array([*SPECIAL, *(-v for v in SPECIAL)], dtype)
    x = np.concatenate([values, arguments("pow_scalar", dtype, 1_000)])
    ours = compile_loop(lambda v: elementary.pow_scalar(v, 0.5), dtype)(x)
    with np.errstate(invalid="ignore"):
        assert_same(ours, np.sqrt(x))
    np.testing.assert_allclose(ours, torch.pow(torch.from_numpy(x), 0.5).numpy(), rtol=np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_scalar_powers_are_powers(dtype):
    x = arguments("pow_scalar", dtype, 1_000)
    for exponent in (2.5, -3.0, 0.1):
        function = compile_loop(functools.partial(elementary.pow_scalar, exponent=exponent), dtype)
        assert_same(function(x), compiled("pow", dtype)(x, np.full_like(x, exponent)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FUNCTIONS, "pow"])
def test_nan_stays_in_its_lane(name, dtype):
    """NaN of any payload and sign gives NaN, and the other lanes are what they are without it."""
    x = np.linspace(0.3, 5.0, 64).astype(dtype)
    others = [np.linspace(-2.0, 2.0, 64).astype(dtype)] if name == "pow" else []
    before = compiled(name, dtype)(x, *others)
    integers = x.view(f"u{x.itemsize}").copy()
    exponent = np.full(1, np.inf, dtype).view(integers.dtype)[0]
    sign = np.full(1, -0.0, dtype).view(integers.dtype)[0]
    quiet = integers.dtype.type(1 << (np.finfo(dtype).nmant - 1))
    payloads = np.random.default_rng(0).integers(0, int(quiet), 16, dtype=integers.dtype)
    integers[::4] = exponent | quiet | payloads
    integers[::8] |= sign
    after = compiled(name, dtype)(integers.view(dtype), *others)
    poisoned = np.arange(64) % 4 == 0
    np.testing.assert_array_equal(after[~poisoned], before[~poisoned])
    if name == "pow":
        poisoned &= others[0] != 0.0
    assert np.isnan(after[poisoned]).all()


# -- laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["tanh", "erf", "sin"])
def test_odd_functions_are_odd_bit_for_bit(name, dtype):
    x = arguments(name, dtype, 10_000)
    assert_same(compiled(name, dtype)(-x), -compiled(name, dtype)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosine_is_even_bit_for_bit(dtype):
    x = arguments("cos", dtype, 10_000)
    assert_same(compiled("cos", dtype)(-x), compiled("cos", dtype)(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "low"), [("tanh", -1), ("erf", -1), ("sin", -1), ("cos", -1), ("sigmoid", 0)])
def test_bounded_functions_keep_their_bounds(name, low, dtype):
    """For all finite x, so far out too, where sine and cosine are no longer accurate."""
    y = compiled(name, dtype)(arguments("all", dtype, 20_000))
    assert ((low <= y) & (y <= 1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "tanh", "sigmoid", "erf", "log", "log1p", "log2"])
def test_increasing_functions_increase(name, dtype):
    """On a grid wider than rounding: the pieces of a formula join in the right order."""
    x = np.linspace(1e-3 if name.startswith("log") else -12, 12, 20_000).astype(dtype)
    assert (np.diff(compiled(name, dtype)(x)) >= 0).all()


def test_sigmoid_is_right_in_its_tails():
    """σ(-x) is exp(-x) to the last subnormal number, and 0 only where that rounds to 0."""
    x = np.linspace(-104, -80, 10_001).astype(np.float32)
    exact = sigmoid_reference(x.astype(np.float64))
    y = compiled("sigmoid", "float32")(x)
    assert float32_errors(y, exact).max() <= BOUNDS["sigmoid"][0]
    assert (y > 0).sum() == (exact.astype(np.float32) > 0).sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FUNCTIONS, "pow"])
def test_the_number_of_lanes_does_not_matter(name, dtype):
    x = np.abs(arguments(name, dtype, 500))
    xs = (x, x[::-1].copy()) if name == "pow" else (x,)
    narrow = compile_loop(getattr(elementary, name), dtype, lanes=2, inputs=len(xs))
    assert_same(narrow(*xs), compiled(name, dtype)(*xs))
