"""Cells that nobody wrote: random steps, and what the fused backend makes of them beside the plain loop.

    PYTHONPATH=tests python -m helpers.fuzz 0 5000   # 5,000 random steps, 4 scans of each: 20,000 cases

A seed gives a step: a list of instructions over everything that the compiler knows, on values of many widths, one
feature among them, with weights of all shapes, several states, slices, broadcasts, shared operands, custom gradients,
random masks and settings of many kinds. Each scan of it has a batch size, layout, direction, lengths, number type and
starting state of its own. An outcome is "agrees", "refused" or what differs.

The trial that a new kernel has to pass is switched off here, unless ``--trial`` is given: the compiler must be right
without it.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import random
import sys
import time
import types
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import holdfast as hf
from holdfast.engine.program.settings import PLANS
from holdfast.engine.targets.cpu import trial
from holdfast.engine.targets.cpu.plan import Plan
from holdfast.errors import FusedError

WIDTHS = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
GLOBAL = {"scale": 0.75}
SCALE = 0.75


class Sign(torch.autograd.Function):
    """A straight-through sign."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return 0.7 * grad


class Reverse(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


class Spike(torch.autograd.Function):
    """A threshold with a surrogate gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + 4 * x.abs()) ** 2


@dataclasses.dataclass
class Options:
    gain: float = 0.6


class Gain:
    """A callable with a setting of its own."""

    def __init__(self):
        self.factor = 0.8

    def __call__(self, x):
        return self.factor * x


def frozen_norm(x):
    with torch.no_grad():
        size = x.square().mean(dim=1, keepdim=True)
    return x / (1 + size)


def branch_on_batch(x):
    return x * 0.5 if x.shape[0] > 10 else x * 0.25


UNARY = {
    "neg": lambda a: -a,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": lambda a: torch.exp(a.clamp(max=3.0)),
    "exp2": lambda a: torch.exp2(a.clamp(max=3.0)),
    "expm1": lambda a: torch.expm1(a.clamp(max=3.0)),
    "log": lambda a: torch.log(a * a + 0.5),
    "log2": lambda a: torch.log2(a * a + 0.5),
    "log1p": lambda a: torch.log1p(a.abs()),
    "sqrt": lambda a: torch.sqrt(a * a + 0.1),
    "rsqrt": lambda a: torch.rsqrt(a.abs() + 0.5),
    "softplus": F.softplus,
    "softplus-beta": lambda a: F.softplus(a, beta=2.0, threshold=1.0),
    "gelu": F.gelu,
    "gelu-tanh": lambda a: F.gelu(a, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "elu-alpha": lambda a: F.elu(a, alpha=0.5),
    "selu": F.selu,
    "celu": lambda a: F.celu(a, 0.7),
    "leaky_relu": lambda a: F.leaky_relu(a, 0.2),
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "square": torch.square,
    "cube": lambda a: a**3,
    "power": lambda a: (a.abs() + 0.5) ** 1.7,
    "base": lambda a: 1.5 ** a.clamp(max=3.0),
    "reciprocal": lambda a: 1 / (a.abs() + 1),
    "rsub": lambda a: 1 - a,
    "add-alpha": lambda a: torch.add(a, torch.tanh(a), alpha=0.3),
    "scaled": lambda a: 0.5 * a + 0.25,
    "clamp": lambda a: a.clamp(-0.5, 0.75),
    "clamp-min": lambda a: a.clamp(min=0.1),
    "clamp-max": lambda a: a.clamp(max=0.2),
    "trunc": lambda a: a + 0.1 * torch.trunc(a),
    "round": lambda a: a + 0.1 * torch.round(a),
    "floor": lambda a: a - 0.1 * torch.floor(a),
    "sum": lambda a: a / (1 + a.square().sum(dim=1, keepdim=True)),
    "mean": lambda a: a - a.mean(dim=1, keepdim=True),
    "amax": lambda a: a - a.amax(dim=1, keepdim=True),
    "amin": lambda a: a - 0.5 * a.amin(dim=1, keepdim=True),
    "var": lambda a: a * torch.var(a, dim=1, correction=0, keepdim=True),
    "norm": lambda a: a / (1 + torch.linalg.vector_norm(a, dim=1, keepdim=True)),
    "softmax": lambda a: torch.softmax(a, dim=1),
    "log_softmax": lambda a: torch.log_softmax(a, dim=-1),
    "logsumexp": lambda a: a - torch.logsumexp(a, dim=1, keepdim=True),
    "layer_norm": lambda a: F.layer_norm(a, a.shape[1:], eps=1e-2),
    "rms_norm": lambda a: F.rms_norm(a, a.shape[1:], eps=1e-2),
    "cumsum": lambda a: 0.3 * a.cumsum(dim=1),
    "flip": lambda a: a.flip(1),
    "roll": lambda a: a.roll(2, dims=1),
    "detach": lambda a: a.detach() + 0.5 * a,
    "no-grad": frozen_norm,
    "straight-through": Sign.apply,
    "reverse": Reverse.apply,
    "spike": Spike.apply,
    "in-place": lambda a: (a + 1).mul_(0.5).tanh_(),
    "first": lambda a: torch.sigmoid(a[:, :1]) * torch.tanh(a),
    "last": lambda a: a * a[:, -1:],
    "expand": lambda a: a + a[:, :1].expand(-1, a.shape[1]),
    "split-one": lambda a: torch.cat(a.split(1, dim=1)[::-1], dim=1),
    "unsqueeze": lambda a: a.unsqueeze(2).expand(-1, -1, 2).mean(dim=2),
    "pad": lambda a: F.pad(a, (1, 1))[:, 1:-1] * 0.9,
    "stack": lambda a: torch.stack([a, a.tanh()], dim=2).sum(dim=2) * 0.5,
    "mask": lambda a: a * (a > 0),
    "mask-count": lambda a: a / (1 + (a > 0).sum(dim=1, keepdim=True)),
    "masked-fill": lambda a: a.masked_fill(a > 0.5, 0.1),
    "literal": lambda a: a * torch.tensor(0.5, dtype=a.dtype),
    "arange": lambda a: a * (1 + 0.1 * torch.arange(a.shape[1], dtype=a.dtype)),
    "like": lambda a: a + torch.full_like(a, 0.3) * torch.ones(a.shape[0], 1, dtype=a.dtype),
    "lerp": lambda a: torch.lerp(a, a.tanh(), 0.3),
    "div-trunc": lambda a: torch.div(a, 0.3, rounding_mode="trunc") * 0.1 + a,
}
RARE = {  # refused, or only sometimes fused: they must never come out wrong
    "div-floor": lambda a: torch.div(a, 0.3, rounding_mode="floor") * 0.1 + a,
    "round-decimals": lambda a: torch.round(a, decimals=1) + a,
    "branch": branch_on_batch,
    "dropout": lambda a: F.dropout(a, 0.3),
    "noise": lambda a: a + 0.1 * torch.randn_like(a),
    "drop-row": lambda a: a * F.dropout(torch.ones(a.shape[1], dtype=a.dtype), 0.5),
    "across": lambda a: a - a.mean(dim=0),
    "sort": lambda a: a.sort(dim=1).values,
    "numpy": lambda a: a * float(np.tanh(a.detach().numpy()).mean()),
    "grad-mode": lambda a: a * (0.5 if torch.is_grad_enabled() else 0.25),
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
    "where-or": lambda a, b: torch.where((a == 0) | (b <= 0), a, b),
    "masked": lambda a, b: (a + 0 * b).masked_fill(b > 0.5, 0.1),
    "mask-number": lambda a, b: a * (b <= 0).to(a.dtype),
    "power": lambda a, b: (a.abs() + 0.5) ** b.tanh(),
    "lerp": lambda a, b: torch.lerp(a, b, torch.sigmoid(a)),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "cat": lambda a, b: torch.cat([a, b], dim=1),
    "dot": lambda a, b: (a * b).sum(dim=1, keepdim=True),
}
WEIGHT = ("scalar", "one", "row", "one-row", "ints", "bools")
SETTINGS = ("_hidden", "options", "space", "array", "callable", "class", "global", "dict")


def instructions(seed, focus=()):
    """The step of a seed: state sizes, input size, and instructions (name, operands, extra)."""
    rng = random.Random(seed)
    sizes = [rng.choice(WIDTHS) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    inputs = rng.choice((1, 2, 3, 5, 8, 9, 11))
    drive = rng.choice(WIDTHS)
    widths, code = [drive, *sizes], []
    kinds = ["unary"] * 8 + ["binary"] * 7 + ["product"] * 3 + ["weight"] * 4 + ["slice", "heads", "attention", "chunk"]
    kinds += ["setting", "rare"] + [*focus] * 12
    for _ in range(rng.randint(2, 9)):
        kind = rng.choice(kinds)
        a, extra = rng.randrange(len(widths)), rng.random()
        match kind:
            case "unary" | "rare" | "setting":
                table = {"unary": UNARY, "rare": RARE, "setting": dict.fromkeys(SETTINGS)}[kind]
                code.append((kind, rng.choice(sorted(table)), (a,), extra))
                widths.append(widths[a])
            case "binary":
                fits = [i for i, w in enumerate(widths) if w == widths[a] or 1 in (w, widths[a])]
                b, name = rng.choice(fits), rng.choice(sorted(BINARY))
                wide = max(widths[a], widths[b])
                code.append((kind, name, (a, b), extra))
                widths.append(widths[a] + widths[b] if name == "cat" else 1 if name == "dot" else wide)
            case "product":
                name = rng.choice(("matmul", "linear", "einsum", "left", "vector"))
                width = 1 if name == "vector" else rng.choice(WIDTHS)
                code.append((kind, name, (a,), width))
                widths.append(width)
            case "weight":
                name = rng.choice(WEIGHT)
                code.append((kind, f"{name}-{rng.choice(('times', 'plus', 'where', 'compare'))}", (a,), extra))
                widths.append(widths[a])
            case "slice":
                start = rng.randrange(widths[a])
                stop, step = rng.randint(start + 1, widths[a]), rng.choice((1, 1, 1, 2))
                code.append((kind, "slice", (a,), (start, stop, step)))
                widths.append(len(range(start, stop, step)))
            case "heads" | "attention":
                count = rng.choice([n for n in (1, 2, 3, 4) if widths[a] % n == 0])
                names = ("einsum", "softmax", "product", "transposed", "scaled") if kind == "heads" else ("attention",)
                code.append(("heads", rng.choice(names), (a,), count))
                widths.append(widths[a])
            case "chunk":
                code.append((kind, "chunk", (a,), extra))
                widths.append(math.ceil(widths[a] / 2))
            case _:
                table = UNARY | RARE
                names = [kind] if kind in table else sorted(UNARY)
                code.append(("rare" if kind in RARE else "unary", rng.choice(names), (a,), extra))
                widths.append(widths[a])
    ends = [[rng.randrange(len(widths)) for _ in range(rng.choice((1, 2)))] for _ in sizes]
    return inputs, drive, sizes, code, ends, widths


class RandomCell(hf.Cell):
    """A cell whose step follows a list of instructions."""

    level = 0.9

    def __init__(self, seed, focus=()):
        inputs, drive, sizes, self.code, self.ends, self.widths = instructions(seed, focus)
        super().__init__(inputs, sizes[0])
        self.sizes = tuple(sizes)
        self._hidden, self.options, self.space = 0.7, Options(), types.SimpleNamespace(gain=0.5)
        self.array, self.callable, self.table = np.array([0.4, 0.3]), Gain(), {"gain": [0.65]}
        self.weight_ih = nn.Parameter(torch.randn(drive, inputs))
        self.given, self.read = nn.ParameterDict(), nn.ParameterDict()
        for place, (kind, name, (a, *_), extra) in enumerate(self.code):
            width = self.widths[a]
            shape = {"scalar": (), "one": (1,), "row": (width,), "one-row": (1, width)}.get(name.rpartition("-")[0])
            if kind == "product":
                shape = (width,) if name == "vector" else (extra, width)
            elif kind == "heads":
                part = width // extra
                shape = {"einsum": (extra, part, part), "product": (part, part), "scaled": (extra, 1)}.get(
                    name, (part,)
                )
            elif kind != "weight" or shape is None:
                continue
            holder = self.given if place % 2 else self.read  # through weights(), or read by the step itself
            holder[str(place)] = nn.Parameter(torch.randn(shape) * (0.5 if len(shape) < 2 else 0.4))
        self.ins = nn.ParameterDict()
        for i, (size, picks) in enumerate(zip(sizes, self.ends, strict=True)):
            for j, pick in enumerate(picks):
                if self.widths[pick] not in (1, size):
                    self.ins[f"{i}-{j}"] = nn.Parameter(torch.randn(size, self.widths[pick]) * 0.3)
        self.register_buffer("whole", torch.arange(64) % 3)
        self.register_buffer("truth", torch.arange(64) % 2 == 0)

    @property
    def state_sizes(self):
        return self.sizes

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return tuple(self.given.values())

    def step(self, drive, state, weights):
        given = dict(zip(self.given.keys(), weights, strict=True))
        values = [drive, *state]
        for place, (kind, name, operands, extra) in enumerate(self.code):
            a, *rest = (values[i] for i in operands)
            weight = given.get(str(place), self.read.get(str(place), None))
            match kind:
                case "unary":
                    value = UNARY[name](a)
                case "rare":
                    value = RARE[name](a)
                case "binary":
                    value = BINARY[name](a, rest[0])
                case "product":
                    value = self.product(name, a, weight)
                case "weight":
                    value = self.weighted(name, a, weight)
                case "heads":
                    value = self.heads(name, a, weight, extra)
                case "slice":
                    start, stop, step = extra
                    value = a[:, start:stop:step]
                case "chunk":
                    value = a.chunk(2, dim=1)[0]
                case "setting":
                    value = a * self.setting(name) if name != "callable" else self.callable(a)
            values.append(value)
        return tuple(self.end(i, values) for i in range(len(self.sizes)))

    def setting(self, name):
        match name:
            case "_hidden":
                return self._hidden
            case "options":
                return self.options.gain
            case "space":
                return self.space.gain
            case "array":
                return float(self.array[0])
            case "class":
                return self.level
            case "global":
                return SCALE
            case "dict":
                return self.table["gain"][0]

    @staticmethod
    def product(name, a, weight):
        match name:
            case "matmul":
                return a @ weight.mT
            case "linear":
                return F.linear(a, weight)
            case "einsum":
                return torch.einsum("bi,oi->bo", a, weight)
            case "left":
                return (weight @ a.T).T
            case "vector":
                return (a @ weight).unsqueeze(1)

    def weighted(self, name, a, weight):
        name, _, how = name.rpartition("-")
        width = a.shape[1]
        weight = self.whole[:width] if name == "ints" else self.truth[:width] if name == "bools" else weight
        if name == "bools" and how in ("where", "compare"):
            return torch.where(weight, a, 0.3 * a)
        match how:
            case "times":
                return a * weight
            case "plus":
                return a + weight
            case "where":
                return torch.where(a > weight, a, (weight * 0.5).to(a.dtype))
            case "compare":
                return a * (weight >= a)

    @staticmethod
    def heads(name, a, weight, count):
        parts = a.reshape(a.shape[0], count, -1)
        match name:
            case "einsum":
                parts = torch.einsum("bhd,hde->bhe", parts, weight)
            case "softmax":
                parts = torch.softmax(parts, dim=-1) * parts
            case "product":
                parts = parts @ weight
            case "transposed":
                return parts.transpose(1, 2).reshape(a.shape)
            case "scaled":
                parts = parts * weight
            case "attention":
                scores = torch.softmax(parts @ parts.transpose(1, 2), dim=-1)
                parts = scores @ parts + weight
        return parts.reshape(a.shape)

    def end(self, i, values):
        total = 0
        for j, pick in enumerate(self.ends[i]):
            value = values[pick]
            total = total + (value @ self.ins[f"{i}-{j}"].mT if f"{i}-{j}" in self.ins else value)
        result = torch.tanh(total)
        return result if result.shape[1] == self.sizes[i] else result.expand(-1, self.sizes[i])


def change(cell, name):
    """Change what a step reads, in place."""
    global SCALE
    match name:
        case "_hidden":
            cell._hidden *= -1.3
        case "options":
            cell.options.gain *= -1.3
        case "space":
            cell.space.gain *= -1.3
        case "array":
            cell.array[0] *= -1.3
        case "callable":
            cell.callable.factor *= -1.3
        case "class":
            type(cell).level *= -1.1
        case "global":
            SCALE *= -1.1
        case "dict":
            cell.table["gain"][0] *= -1.3


# -- one case --------------------------------------------------------------------------------------------------------


def scans(seed, count):
    """``count`` ways to scan the step of a seed; most of them share their kernels, which take the time."""
    rng = random.Random(-1 - seed)
    dtype = rng.choice((torch.float64, torch.float64, torch.float32))
    vector = 4 if dtype == torch.float64 else 8
    lanes, masked = vector * rng.choice((1, 1, 2, 4)), rng.random() < 0.6
    kernel = {"source_grad": 0.7, "no_grad": 0.15, "need_output": 0.8}
    shared = {name: rng.random() < share for name, share in kernel.items()}
    for place in range(count):
        batch = rng.randint(lanes // 2 + 1, lanes) if masked else lanes * rng.choice((1, 1, 2))
        if lanes == vector and masked:
            batch = rng.randint(1, vector)
        other = place == count - 1 and rng.random() < 0.3
        yield (shared if not other else {name: rng.random() < share for name, share in kernel.items()}) | {
            "dtype": dtype,
            "batch": batch,
            "steps": rng.randint(1, 5),
            "lengths": masked and rng.random() < 0.6,
            "masked": masked,
            "reverse": rng.random() < 0.3,
            "layout": rng.choice(("plain", "plain", "transposed", "strided", "expanded")),
            "state_grad": rng.random() < 0.7,
            "frozen": other and rng.random() < 0.3,
            "huge": rng.random() < 0.08,
            "seed": rng.randrange(1 << 30),
        }


def data(cell, how):
    generator = torch.Generator().manual_seed(how["seed"])
    steps, batch, size, dtype = how["steps"], how["batch"], cell.input_size, how["dtype"]

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    match how["layout"]:
        case "plain":
            xs = randn(steps, batch, size)
        case "transposed":
            xs = randn(batch, steps, size).transpose(0, 1)
        case "strided":
            xs = randn(steps, batch, 2 * size)[:, :, ::2]
        case "expanded":
            xs = randn(1, batch, size).expand(steps, batch, size)
    state = [randn(batch, n) for n in cell.state_sizes]
    if how["huge"]:
        special = torch.tensor([0.0, -0.0, 1e30, -1e30, math.inf, -math.inf, math.nan], dtype=dtype)
        picks = torch.randint(len(special), xs.shape, generator=generator)
        xs = torch.where(torch.rand(xs.shape, generator=generator) < 0.1, special[picks], xs)
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    if how["masked"] and not how["lengths"] and batch % (4 if dtype == torch.float64 else 8) == 0:
        lengths, how = torch.full((batch,), steps), how | {"lengths": True}
    return xs, state, lengths if how["lengths"] else None


def outcome(cell, how, backend):
    """Values, states and gradients of one scan."""
    xs, state, lengths = data(cell, how)
    torch.manual_seed(how["seed"])
    with torch.no_grad() if how["no_grad"] else contextlib.nullcontext():
        leaves = [xs.detach().requires_grad_(how["source_grad"])]
        leaves += [s.detach().requires_grad_(how["state_grad"]) for s in state]
        options = {"lengths": lengths, "reverse": how["reverse"], "need_output": how["need_output"]}
        output, last = hf.scan(cell, leaves[0], tuple(leaves[1:]), backend=backend, **options)
    values = [v for v in (output, *last) if v is not None]
    wanted = [t for t in (*leaves, *cell.parameters()) if t.requires_grad]
    results = [v.detach() for v in values]
    grads = [None] * len(wanted)
    if any(v.requires_grad for v in values) and wanted:
        generator = torch.Generator().manual_seed(how["seed"] + 1)
        seeds = [torch.randn(v.shape, generator=generator, dtype=v.dtype) for v in values]
        ends, cotangents = zip(*((v, s) for v, s in zip(values, seeds, strict=True) if v.requires_grad), strict=True)
        grads = torch.autograd.grad(ends, wanted, cotangents, allow_unused=True)
    results += [torch.zeros_like(w) if g is None else g for g, w in zip(grads, wanted, strict=True)]
    return results


def nearby(cell, how):
    """The plain loop with weights changed in their last digits: what rounding may do."""
    before = [p.detach().clone() for p in cell.parameters()]
    generator = torch.Generator().manual_seed(how["seed"] + 2)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(1 + 4 * torch.finfo(p.dtype).eps * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    try:
        return outcome(cell, how, "reference")
    finally:
        with torch.no_grad():
            for p, value in zip(cell.parameters(), before, strict=True):
                p.copy_(value)


def forgets(cell):
    """Whether a state is not read by the next step, so that most of its gradients are zero because nobody asks."""
    for plan in vars(cell)[PLANS].known.values():
        backward = isinstance(plan, Plan) and plan.lowered(True).backward
        if backward and any(tile is None for name, tile in backward.outputs.items() if name != "x"):
            return True
    return False


def difference(cell, how, backend="fused"):
    """One of "agrees", "refused: ..." and "differs: ..."."""
    try:
        fused = outcome(cell, how, backend)
    except FusedError as error:
        return f"refused: {error}"
    plain, close = outcome(cell, how, "reference"), nearby(cell, how)
    tolerance, listed = 1e-9 if how["dtype"] == torch.float64 else 2e-4, False
    for place, (one, other, near) in enumerate(zip(fused, plain, close, strict=True)):
        steady = other.isfinite() == near.isfinite()
        apart = steady & (one.isfinite() != other.isfinite())
        if how["lengths"]:  # the plain loop may be NaN where a sample has ended: docs/theory/scan-engine.md
            apart &= other.isfinite()
        if how["huge"] and any(name in ("layer_norm", "rms_norm", "var") for _, name, *_ in cell.code):
            listed, apart = listed or apart.any(), torch.zeros_like(apart)  # squares that overflow: the same page
        if how["huge"] and forgets(cell):  # zero times an infinite derivative: docs/theory/scan-engine.md
            listed, apart = listed or apart.any(), apart & ~other.isfinite()
        if apart.any():
            return f"differs: result {place} is {one[apart][0]} instead of {other[apart][0]}"
        both = one.isfinite() & other.isfinite() & near.isfinite()
        if both.any():
            error = (one - other)[both].abs().max().item()
            moved, scale = (other - near)[both].abs().max().item(), other[both].abs().max().item()
            if error > tolerance * (1 + scale) + 1000 * moved:
                return f"differs: result {place} by {error:.3g} of {scale:.3g}, rounding {moved:.3g}"
    return "agrees, but for what is listed" if listed else "agrees"


@contextlib.contextmanager
def without_trial():
    """No trial, but for a batch size at which the step was recorded differently: there the trial is what decides."""
    before = trial._try

    def only_special(call, real, source, weights, own, key, **options):
        return before(call, real, source, weights, own, key, **options) if key[-1] is not None else None

    trial._try = only_special
    try:
        yield
    finally:
        trial._try = before


def cases(seed, count=8, focus=(), with_trial=False):
    """The outcomes of all scans of a seed; a setting is changed before the last one."""
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    cell = RandomCell(seed, focus)
    results = []
    with warnings.catch_warnings(), contextlib.nullcontext() if with_trial else without_trial():
        warnings.simplefilter("ignore")
        for place, how in enumerate(scans(seed, count)):
            cell.to(how["dtype"])
            cell.requires_grad_(True)
            if how["frozen"]:
                for p in list(cell.parameters())[::2]:
                    p.requires_grad_(False)
            names = [name for kind, name, *_ in cell.code if kind == "setting"]
            if place == count - 1 and names:
                change(cell, names[0])
            results.append((how, difference(cell, how)))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--scans", type=int, default=8)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--focus", nargs="*", default=())
    options = parser.parse_args()
    torch.set_num_threads(1)
    tally, bad, start = collections.Counter(), [], time.monotonic()
    for seed in range(options.first, options.first + options.count):
        for how, result in cases(seed, options.scans, options.focus, options.trial):
            kind = result.partition(":")[0]
            tally[kind] += 1
            if kind == "refused":
                tally[f"refused: {result.partition('backend: ')[2][:60]}"] += 1
            if kind == "differs":
                bad.append((seed, result, {k: str(v) for k, v in how.items()}))
                print(seed, result, how, flush=True)
    seconds = round(time.monotonic() - start)
    summary = {"first": options.first, "seeds": options.count, "scans": options.scans, "seconds": seconds}
    print(json.dumps(summary | {"outcomes": dict(tally.most_common()), "differ": len(bad)}, indent=1))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
