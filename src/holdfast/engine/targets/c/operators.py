"""Elementwise operators as C: one line per operator, with PyTorch's treatment of NaN.

``OPERATORS[name](*texts)`` is an expression. ``{p}`` stands for the prefix of the model's own functions, ``HELPERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["HELPERS", "OPERATORS", "bare", "helper_text", "helpers_in", "power"]


def bare(text: str) -> str:
    """Without the parentheses around all of it.

    Example:
        >>> bare("(a + b)"), bare("(a) + (b)")
        ('a + b', '(a) + (b)')
    """
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place + 1 < len(text):
            return text
    return text[1:-1]


def _infix(sign: str) -> Callable[..., str]:
    return lambda a, b: f"({a} {sign} {b})"


def _call(name: str) -> Callable[..., str]:
    return lambda *args: f"{name}({', '.join(map(bare, args))})"


def _own(name: str) -> Callable[..., str]:
    return _call("{p}_" + name)


OPERATORS: dict[str, Callable[..., str]] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "div": _infix("/"),
    "neg": lambda a: f"(-({a}))" if a.startswith("-") else f"(-{a})",
    "abs": _call("fabsf"),
    "sign": _own("sign"),
    "square": _own("square"),
    "reciprocal": lambda a: f"(1.0f / {a})",
    "sqrt": _call("sqrtf"),
    "rsqrt": lambda a: f"(1.0f / sqrtf({bare(a)}))",
    "floor": _call("floorf"),
    "ceil": _call("ceilf"),
    "round": _call("rintf"),  # half to even, as in PyTorch
    "trunc": _call("truncf"),
    "maximum": _own("maximum"),
    "minimum": _own("minimum"),
    "relu": _own("relu"),
    "sigmoid": _own("sigmoid"),
    "tanh": _call("tanhf"),
    "exp": _call("expf"),
    "exp2": _call("exp2f"),
    "expm1": _call("expm1f"),
    "log": _call("logf"),
    "log2": _call("log2f"),
    "log1p": _call("log1pf"),
    "erf": _call("erff"),
    "sin": _call("sinf"),
    "cos": _call("cosf"),
    "pow": _call("powf"),
    "softplus": _own("softplus"),
    "gelu": _own("gelu"),
    "gelu_tanh": _own("gelu_tanh"),
    "silu": _own("silu"),
    "elu": _own("elu"),
    "leaky_relu": _own("leaky_relu"),
    "hardtanh": lambda x, low, high: OPERATORS["minimum"](OPERATORS["maximum"](x, low), high),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "isnan": _own("is_nan"),
    "nonzero": lambda a: f"({a} != 0.0f)",
    "logical_and": _infix("&&"),
    "logical_or": _infix("||"),
    "logical_xor": _infix("!="),
    "logical_not": lambda a: f"(!{a})",
    "where": lambda mask, a, b: f"({mask} ? {a} : {b})",
    "same": lambda a: a,
    "number": lambda mask, one: f"({mask} ? {one} : 0.0f)",
}

_ROTATE = """
/* Plane rotations in place: entries pairs[2 i] and pairs[2 i + 1] of y turn by the angle whose cosine and sine are
   turns[2 i] and turns[2 i + 1]. */
static void {p}_rotate_{kind}(float *y, const {kind}_t *pairs, const float *turns, int count)
{
    for (int i = 0; i < count; i++, pairs += 2, turns += 2) {
        const float a = y[pairs[0]], b = y[pairs[1]];
        y[pairs[0]] = turns[0] * a - turns[1] * b;
        y[pairs[1]] = turns[1] * a + turns[0] * b;
    }
}"""

_ROTATE_STEPS = """
/* Plane rotations in place: entries pairs[2 i] and pairs[2 i + 1] of y turn by an angle in 8 bits, 256 to a turn;
   sines[k] = sin(2 pi k / 256), and the cosine lies 64 further. */
static void {p}_rotate_{kind}_steps(
    float *y, const {kind}_t *pairs, const uint8_t *angles, const float *sines, int count)
{
    for (int i = 0; i < count; i++, pairs += 2) {
        const float sine = sines[angles[i]], cosine = sines[angles[i] + 64];
        const float a = y[pairs[0]], b = y[pairs[1]];
        y[pairs[0]] = cosine * a - sine * b;
        y[pairs[1]] = sine * a + cosine * b;
    }
}"""

# Each may call those before it. Text in braces is the model's prefix.
HELPERS: dict[str, str] = {
    "dot": """
/* The sum of w[k] x[k] over n entries. */
static float {p}_dot(const float *w, const float *x, int n)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++)
        sum += w[k] * x[k];
    return sum;
}""",
    "dot_int8": """
/* The same for weights in int8; the caller multiplies by the scale of the row. */
static float {p}_dot_int8(const int8_t *w, const float *x, int n)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++)
        sum += (float)w[k] * x[k];
    return sum;
}""",
    "multiply": """
/* y = W x. W has one row for each entry of y. Four rows at a time share what they read of x. */
static void {p}_multiply(float *y, const float *w, const float *x, int rows, int columns)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, w += 4 * columns) {
        const float *const w1 = w + columns, *const w2 = w1 + columns, *const w3 = w2 + columns;
        float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
        for (int k = 0; k < columns; k++) {
            sum0 += w[k] * x[k];
            sum1 += w1[k] * x[k];
            sum2 += w2[k] * x[k];
            sum3 += w3[k] * x[k];
        }
        y[r] = sum0;
        y[r + 1] = sum1;
        y[r + 2] = sum2;
        y[r + 3] = sum3;
    }
    for (; r < rows; r++, w += columns)
        y[r] = {p}_dot(w, x, columns);
}""",
    "multiply_int8": """
/* y = W x, with row r of W in int8 times scale[r]. */
static void {p}_multiply_int8(float *y, const int8_t *w, const float *scale, const float *x, int rows, int columns)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, w += 4 * columns) {
        const int8_t *const w1 = w + columns, *const w2 = w1 + columns, *const w3 = w2 + columns;
        float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
        for (int k = 0; k < columns; k++) {
            sum0 += (float)w[k] * x[k];
            sum1 += (float)w1[k] * x[k];
            sum2 += (float)w2[k] * x[k];
            sum3 += (float)w3[k] * x[k];
        }
        y[r] = scale[r] * sum0;
        y[r + 1] = scale[r + 1] * sum1;
        y[r + 2] = scale[r + 2] * sum2;
        y[r + 3] = scale[r + 3] * sum3;
    }
    for (; r < rows; r++, w += columns)
        y[r] = scale[r] * {p}_dot_int8(w, x, columns);
}""",
    **{f"rotate_{kind}_steps": _ROTATE_STEPS.replace("{kind}", kind) for kind in ("uint8", "uint16", "uint32")},
    **{f"rotate_{kind}": _ROTATE.replace("{kind}", kind) for kind in ("uint8", "uint16", "uint32")},
    "sign": "static float {p}_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }",
    "square": "static float {p}_square(float x) { return x * x; }",
    "cube": "static float {p}_cube(float x) { return x * x * x; }",
    "is_nan": "static int {p}_is_nan(float x) { return x != x; }",
    "maximum": "static float {p}_maximum(float a, float b) { return a > b || a != a ? a : b; }",
    "minimum": "static float {p}_minimum(float a, float b) { return a < b || a != a ? a : b; }",
    "relu": "static float {p}_relu(float x) { return x < 0.0f ? 0.0f : x; }",
    "sigmoid": "static float {p}_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }",
    "softplus": """static float {p}_softplus(float x, float beta, float threshold)
{
    return x * beta > threshold ? x : log1pf(expf(x * beta)) / beta;
}""",
    "gelu": "static float {p}_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }",
    "gelu_tanh": """static float {p}_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
}""",
    "silu": "static float {p}_silu(float x) { return x / (1.0f + expf(-x)); }",
    "elu": """static float {p}_elu(float x, float alpha, float scale, float input_scale)
{
    return scale * (x <= 0.0f ? alpha * expm1f(x * input_scale) : x);
}""",
    "leaky_relu": "static float {p}_leaky_relu(float x, float slope) { return x > 0.0f ? x : x * slope; }",
}
_CALLS = {"multiply": ("dot",), "multiply_int8": ("dot_int8",)}
_POWERS = {2.0: _own("square"), 3.0: _own("cube"), 0.5: _call("sqrtf"), -1.0: OPERATORS["reciprocal"], 1.0: lambda x: x}


def power(base: str, exponent: float, literal: str) -> str:
    """``base`` to a power that is known."""
    return _POWERS[exponent](base) if exponent in _POWERS else OPERATORS["pow"](base, literal)


def helpers_in(text: str) -> set[str]:
    """The model's own functions that an expression calls."""
    return {name for name in HELPERS if f"{{p}}_{name}(" in text}


def helper_text(names: Iterable[str], prefix: str) -> str:
    """The functions of these names, and those that they call, in order.

    Example:
        >>> print(helper_text({"relu"}, "net"))
        static float net_relu(float x) { return x < 0.0f ? 0.0f : x; }
    """
    wanted = set(names)
    wanted |= {called for name in wanted for called in _CALLS.get(name, ())}
    texts = (HELPERS[name].strip("\n") for name in HELPERS if name in wanted)
    return "\n\n".join(text.replace("{p}", prefix) for text in texts)
