"""What matters in a reservoir: horizons, scales, nonlinearity, pooling, number of units, direction, choice of λ.

    python benchmarks/reservoir_study.py SETS_FOLDER --out results/sequences/study.json

SETS_FOLDER is what benchmarks/sequence_sets.py writes. Only the development sets are read.
A ridge on features in groups is a kernel ridge on the sum of the groups' kernels. So the features of every cell are
computed once, and each variant is a sum of kernels: hundreds of variants cost little more than one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sequence_sets import DEVELOPMENT, load

from holdfast import Reservoir

SCALES = (0.5, 1.0, 2.0, 4.0)
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4, 0.6, 0.8)
POOLINGS = {"mean": [0], "last": [1], "max": [2], "shares": [3, 4, 5, 6, 7], "more shares": [8, 9, 10, 11]}
UNITS = 64
PENALTIES = [10 ** (k / 2) for k in range(-14, 5)]


class Group(NamedTuple):
    """Features that a variant has or has not."""

    horizon: int
    nonlinearity: str
    scale: float
    backward: bool
    half: int  # first or second half of a cell's units
    pooling: str


def default(group: Group) -> bool:
    """The features of the first variant, with which the others are compared."""
    return group.scale in (0.5, 2.0) and not group.backward and group.pooling != "more shares"


def having(**wanted: Any) -> Callable[[Group], bool]:
    """The groups with these values, of those that a variant does not name in general."""

    def test(group: Group) -> bool:
        free = {"scale": (0.5, 2.0), "backward": (False,), "pooling": tuple(POOLINGS)[:4]}
        return all(getattr(group, name) in values for name, values in {**free, **wanted}.items())

    return test


NINE, ALL = ("shares", "more shares"), tuple(POOLINGS)
PEAKS = (*NINE, "max")
TO_12, TO_24, TO_48 = (3, 6, 12), (3, 6, 12, 24), (3, 6, 12, 24, 48)
VARIANTS: dict[str, Callable[[Group], bool] | list[Callable[[Group], bool]]] = {
    "all horizons, tanh and ReLU, scales 0.5 and 2; mean, last, maximum, five shares": default,
    "half the units": having(half=(0,)),
    "horizons 3, 6": having(horizon=(3, 6)),
    "horizons up to 12": having(horizon=TO_12),
    "horizons up to 24": having(horizon=TO_24),
    "horizons from 12": lambda g: default(g) and g.horizon >= 12,
    "tanh only": having(nonlinearity=("tanh",)),
    "ReLU only": having(nonlinearity=("relu",)),
    "scale 0.5": having(scale=(0.5,)),
    "scale 2": having(scale=(2.0,)),
    "scale 4": having(scale=(4.0,)),
    "scales 0.5, 1, 2, 4": having(scale=SCALES),
    "backward": having(backward=(True,)),
    "both directions": having(backward=(False, True)),
    "mean only": having(pooling=("mean",)),
    "last only": having(pooling=("last",)),
    "maximum only": having(pooling=("max",)),
    "five shares only": having(pooling=("shares",)),
    "mean, last, maximum": having(pooling=("mean", "last", "max")),
    "without mean": having(pooling=("last", "max", "shares")),
    "without last": having(pooling=("mean", "max", "shares")),
    "without maximum": having(pooling=("mean", "last", "shares")),
    "nine shares only": having(pooling=NINE),
    "nine shares, horizons up to 12": having(pooling=NINE, horizon=TO_12),
    "nine shares, horizons up to 24": having(pooling=NINE, horizon=TO_24),
    "nine shares, maximum": having(pooling=PEAKS),
    "nine shares, maximum, mean": having(pooling=(*PEAKS, "mean")),
    "nine shares, maximum, half the units": having(pooling=PEAKS, half=(0,)),
    "nine shares, maximum, tanh only": having(pooling=PEAKS, nonlinearity=("tanh",)),
    "nine shares, maximum, scale 4": having(pooling=PEAKS, scale=(4.0,)),
    "nine shares, maximum, both directions": having(pooling=PEAKS, backward=(False, True)),
    "nine shares, maximum, horizons up to 12": having(pooling=PEAKS, horizon=TO_12),
    "nine shares, maximum, horizons up to 24": having(pooling=PEAKS, horizon=TO_24),
    "nine shares, maximum, horizons up to 48": having(pooling=PEAKS, horizon=TO_48),
    "nine shares, maximum, horizons up to 24, tanh only": having(pooling=PEAKS, horizon=TO_24, nonlinearity=("tanh",)),
    "nine shares, maximum, horizons up to 24, both directions": having(
        pooling=PEAKS, horizon=TO_24, backward=(False, True)
    ),
    "nine shares and maximum, or all, by left-out error": [having(pooling=PEAKS), having(pooling=ALL)],
    "the same, horizons up to 24": [having(pooling=PEAKS, horizon=TO_24), having(pooling=ALL, horizon=TO_24)],
    "the same, horizons up to 48": [having(pooling=PEAKS, horizon=TO_48), having(pooling=ALL, horizon=TO_48)],
}


def kernels(x: tuple[Any, Any], test: tuple[Any, Any], seed: int) -> Iterator[tuple[Group, np.ndarray, int]]:
    """Of each group: standardised features of all sequences times those of the training ones, and how many."""
    n = len(x[0])
    for backward in (False, True):
        horizons = [3 * 2**k for k in range(12) if 3 * 2**k <= x[0].shape[1]]
        options = {
            "units": UNITS,
            "horizons": horizons,
            "scales": SCALES,
            "quantiles": QUANTILES,
            "seed": 2 * seed + backward,
        }
        reservoir = Reservoir(x[0].shape[2], x[0].shape[1], **options)
        # all cells are backward ones if the sequences are reversed
        pairs = [(_reversed(*pair), pair[1]) for pair in (x, test)] if backward else [x, test]
        reservoir.fit(*pairs[0])
        kinds = [(H, phi, s) for H in reservoir.horizons for phi in reservoir.nonlinearities for s in SCALES]
        blocks = zip(*(reservoir.blocks(*pair) for pair in pairs), strict=True)
        for (horizon, phi, scale), (train, other) in zip(kinds, blocks, strict=True):
            values = torch.cat([train, other]).double()
            spread = values[:n].std(dim=0, correction=0)
            z = (values - values[:n].mean(dim=0)) / torch.where(spread > 1e-6, spread, torch.inf)
            parts = z.unflatten(1, (3 + len(QUANTILES), UNITS))
            for name, rows in POOLINGS.items():
                for half in (0, 1):
                    f = parts[:, rows, half * UNITS // 2 : (half + 1) * UNITS // 2].flatten(1)
                    yield Group(horizon, phi, scale, backward, half, name), (f @ f[:n].mT).numpy(), f.shape[1]


def _reversed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    steps = lengths[:, None] - 1 - torch.arange(x.shape[1])
    return x.gather(1, steps.clamp_min(0)[..., None].expand_as(x))


def ridge(kernel: np.ndarray, y: np.ndarray, penalty: float | None) -> tuple[float, np.ndarray]:
    """The left-out error and the answers to the test sequences; λ has the least error if no penalty is given."""
    n = len(y)
    gram = kernel[:n] - kernel[:n].mean(axis=0)
    gram = gram - gram.mean(axis=1, keepdims=True) + np.trace(gram) / n**2
    s, V = np.linalg.eigh(gram)
    rest = np.arange(n) != np.abs(V.sum(axis=0)).argmax()
    s, V = s[rest].clip(0), V[:, rest]
    inside, best = V.T @ y, (np.inf, 0.0)
    for one in PENALTIES if penalty is None else [penalty]:
        shrunk = one / (s + one)
        error = (V @ (shrunk[:, None] * inside)) / (V**2 @ shrunk)[:, None]
        best = min(best, ((error**2).mean(), one))
    weights = V @ (inside / (s + best[1])[:, None])
    return best[0], kernel[n:] @ weights + y.mean(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/sequences/study.json"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(DEVELOPMENT))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scores: dict[str, dict[str, list[float]]] = {}
    for name in arguments.only:
        data = load(arguments.sets / f"{name}.npz")
        for seed in range(arguments.seeds):
            found = list(kernels(data.train, data.test, seed))
            jobs = [(variant, test, None) for variant, test in VARIANTS.items()]
            jobs += [(f"λ = {fixed:g} per feature", default, fixed) for fixed in (1e-6, 1e-4, 1e-2, 1.0)]
            for variant, test, fixed in jobs:
                answers = []
                for accepts in test if isinstance(test, list) else [test]:
                    chosen = [(kernel, count) for group, kernel, count in found if accepts(group)]
                    if chosen:
                        total = sum(kernel for kernel, _ in chosen) / sum(count for _, count in chosen)
                        answers.append(ridge(total, data.targets, fixed))
                if not answers:
                    continue
                score = data.score(min(answers, key=lambda answer: answer[0])[1])
                scores.setdefault(variant, {}).setdefault(name, []).append(round(score, 4))
            print(name, seed, next(iter(scores.values()))[name], file=sys.stderr, flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"units": UNITS, "scores": scores}, indent=1) + "\n")


if __name__ == "__main__":
    main()
