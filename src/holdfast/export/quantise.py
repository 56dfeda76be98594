"""Matrices in int8, one scale per row, and what that costs in accuracy.

    Ŵ_r = s_r clip(round(W_r / s_r), -127, 127)                        (1)
    s_r = c_r max |W_r| / 127,  c_r ∈ {1, 0.98, ..., 0.6}              (2)
    c_r minimises (Ŵ_r - W_r) C (Ŵ_r - W_r)ᵀ,  C = mean of x xᵀ         (3) the error of the product on calibration data

    θ̂ = 2π/256 round(256 θ / 2π)                                       (4) angles of plane rotations

Without data C is the identity. (4) keeps rotations orthogonal. Biases and states stay in float32.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.program.tiles import Product, Rotate, Weight, operands, reachable
from holdfast.engine.targets.c import Angles8, Quantised, Rounded, Step
from holdfast.export.network import Network
from holdfast.export.simulate import Parts, Simulated
from holdfast.tasks import Batch

__all__ = ["CLIPS", "Matrices", "Moments", "quantise", "quantise_angles", "rounded_matrices", "rounded_parts"]

FEW_ANGLES = 183  # fewer angles are smaller in float32 than in 8 bits with their table of sines
CLIPS = np.arange(1.0, 0.59, -0.02)


def quantise(matrix: Tensor, moments: Tensor | None = None) -> Quantised:
    """(1) with the best scale of (2) by (3).

    Args:
        matrix: (rows, columns).
        moments: C, (columns, columns); None for the identity.

    Example:
        >>> rounded = quantise(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))
        >>> rounded.values.tolist(), rounded.scale.tolist()[1]
        ([[127, -64], [0, 0]], 1.0)
    """
    rows = matrix.detach().double().numpy()
    weight = np.eye(rows.shape[1]) if moments is None else moments.double().numpy()
    largest = np.abs(rows).max(axis=1)
    best = np.full(len(rows), np.inf)
    values, scales = np.zeros(rows.shape, np.int8), np.ones(len(rows), np.float32)
    for clip in CLIPS:
        scale = np.where(largest > 0, clip * largest / 127, 1.0).astype(np.float32)
        whole = np.clip(np.rint(rows / scale[:, None].astype(np.float64)), -127, 127)
        error = whole * scale[:, None].astype(np.float64) - rows
        cost = np.einsum("rk,kl,rl->r", error, weight, error, optimize=True)
        better = cost < best  # the first, unclipped, wins a tie
        best = np.where(better, cost, best)
        values[better], scales[better] = whole[better].astype(np.int8), scale[better]
    return Quantised(values, scales)


def quantise_angles(angles: Tensor) -> Angles8:
    """(4).

    Example:
        >>> quantise_angles(torch.tensor([torch.pi, -torch.pi / 2])).values.tolist()
        [128, 192]
    """
    return Angles8((np.rint(angles.detach().double().numpy() * (128 / np.pi)) % 256).astype(np.uint8))


class Moments:
    """C of (3) for every matrix, gathered while a network runs on calibration data.

    Example:
        >>> moments = Moments()
        >>> moments(("row0", 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> moments[("row0", 1)].tolist()
        [[5.0, 1.0], [1.0, 2.0]]
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def __call__(self, name: tuple[str, int], x: Tensor) -> None:
        x = x.double()
        self._sums[name] = self._sums.get(name, torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)) + x.mT @ x
        self._counts[name] = self._counts.get(name, 0) + len(x)

    def __getitem__(self, name: tuple[str, int]) -> Tensor | None:
        return self._sums[name] / self._counts[name] if self._counts.get(name) else None


# -- a whole network ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Matrices:
    """Which matrices are in int8: of each row of the network by the index of the weight, and around the cells."""

    rows: tuple[Rounded, ...]
    readout: Quantised | None = None
    direct: Quantised | None = None
    embedding: Quantised | None = None


def _only_read_by(step: Step, kind: type, field: str) -> list[int]:
    """Weights that nodes of this kind read in ``field``, and no other node."""
    nodes = reachable(step.schedule.program.roots)
    wanted = {getattr(node, field).index for node in nodes if isinstance(node, kind)}
    others = (arg for node in nodes if not isinstance(node, kind) for arg in operands(node))
    return sorted(wanted - {arg.index for arg in others if isinstance(arg, Weight)})


def _angles(step: Step) -> list[int]:
    return _only_read_by(step, Rotate, "angles")


def _rounded_matrices(step: Step, row: int, moments: Moments) -> dict[int, Quantised | Angles8]:
    matrices = _only_read_by(step, Product, "matrix")
    return {index: quantise(step.weights[index].mT, moments[f"row{row}", index]) for index in matrices}


def _rounded_angles(step: Step) -> dict[int, Quantised | Angles8]:
    return {index: quantise_angles(step.weights[index]) for index in _angles(step)}


def rounded_matrices(network: Network, steps: list[Step], exact: Parts, batches: list[Batch]) -> Matrices:
    moments = Moments()
    simulated = Simulated(network, steps, exact, moments)
    for batch in batches:
        simulated(batch.inputs, batch.lengths)
    turned = sum(step.weights[index].numel() for step in steps for index in _angles(step))
    rows = tuple(
        _rounded_matrices(step, row, moments) | (_rounded_angles(step) if turned > FEW_ANGLES else {})
        for row, step in enumerate(steps)
    )
    one_hot = exact.embedding is not None and torch.equal(exact.embedding, torch.eye(*exact.embedding.shape))
    return Matrices(
        rows,
        None if exact.readout is None else quantise(exact.readout, moments["readout", 0]),
        None if exact.direct is None else quantise(exact.direct, moments["direct", 0]),
        None if exact.embedding is None or one_hot else quantise(exact.embedding),
    )


def rounded_parts(exact: Parts, matrices: Matrices) -> Parts:
    def of(known: Quantised | None, otherwise: Tensor | None) -> Tensor | None:
        return otherwise if known is None else torch.from_numpy(known.matrix())

    def part(known: Quantised | Angles8 | None, weight: Tensor) -> Tensor:
        if isinstance(known, Angles8):
            return torch.from_numpy(known.angles())
        return weight if known is None else torch.from_numpy(known.matrix()).mT

    rows = tuple(
        tuple(part(known.get(index), weight) for index, weight in enumerate(weights))
        for weights, known in zip(exact.rows, matrices.rows, strict=True)
    )
    return Parts(
        rows,
        of(matrices.readout, exact.readout),
        of(matrices.direct, exact.direct),
        of(matrices.embedding, exact.embedding),
    )
