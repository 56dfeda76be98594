"""Tensors as a kernel's parameters: pointers and strides, weights, tables of rotations, sums.

given = Given(batch, reverse=...)
given.over_time("x", xs), given.per_sample("first0", h), ...
given.run(kernel), or given.run(kernel, t) for one step
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.program import tiles
from holdfast.engine.targets.triton.blocks import turn_key
from holdfast.engine.targets.triton.emit import Kernel
from holdfast.engine.targets.triton.functions import IS_INTERPRETED
from holdfast.engine.targets.triton.resources import OPTIONS

__all__ = ["Given", "total"]


class Given:
    """The parameters of the kernels of one scan, by name."""

    def __init__(self, steps: int, batch: int, lengths: Tensor | None, device: torch.device, *, reverse: bool):
        self.steps, self.batch, self.device, self.reverse = steps, batch, device, reverse
        self._fixed: dict[str, Any] = {"steps": steps, "batch": batch}
        self._series: dict[str, Tensor] = {}
        length = torch.full((batch,), steps, device=device) if lengths is None else lengths
        births = steps - length if reverse else torch.zeros_like(length)
        deaths = torch.full_like(length, steps) if reverse else length
        self._fixed |= {"births": births.to(torch.int32), "deaths": deaths.to(torch.int32)}

    def over_time(self, name: str, tensor: Tensor) -> None:
        """A tensor (time, batch, features), from its first step in the scan's direction on."""
        self._series[name] = tensor
        step, row, _ = tensor.stride()
        self._fixed[name] = tensor[-1] if self.reverse else tensor
        self._fixed[f"{name}_step"], self._fixed[f"{name}_row"] = -step if self.reverse else step, row

    def per_sample(self, name: str, tensor: Tensor) -> None:
        """A tensor (batch, features)."""
        self._fixed[name], self._fixed[f"{name}_row"] = tensor, tensor.stride(0)

    def pointer(self, name: str, tensor: Tensor) -> None:
        self._fixed[name] = tensor

    def at(self, name: str, t: int) -> Tensor:
        """A parameter at step t of the scan: (batch, features)."""
        if name not in self._series:
            return self._fixed[name]
        return self._series[name][self.steps - 1 - t if self.reverse else t]

    def weights(self, kernels: Iterable[Kernel], roots: Iterable[tiles.Tile], weights: tuple[Tensor, ...]) -> None:
        """Weights and tables that the kernels read."""
        wanted = {name for kernel in kernels for name in kernel.parameters}
        dtype = next((w.dtype for w in weights if w.is_floating_point()), torch.float32)
        for index, weight in enumerate(weights):
            if {f"w{index}", f"m{index}"} & wanted:
                given = weight.detach().to(dtype).contiguous()
                self._fixed[f"w{index}"] = self._fixed[f"m{index}"] = given
        for tile in tiles.reachable(roots):
            if isinstance(tile, tiles.Rotate | tiles.RotateBack):
                back = isinstance(tile, tiles.RotateBack)
                key = f"{'back' if back else 'ahead'}{turn_key(tile)}"
                if f"first_{key}" not in self._fixed:
                    made = _turns(weights[tile.angles.index], weights[tile.permutations.index], back=back)
                    for kind, tensor in zip(("first", "second", "cosine", "sine"), made, strict=True):
                        self._fixed[f"{kind}_{key}"] = tensor

    def sums(self, program: tiles.StepProgram, lanes: int) -> dict[int, Tensor]:
        """Zeros for each sum inside the loop, one row per program of the grid."""
        made, programs = dict[int, Tensor](), math.ceil(self.batch / lanes)
        for index, reduction in enumerate(program.reductions):
            match reduction:
                case tiles.RowSum(tile=tile):
                    size: tuple[int, ...] = (tile.features,)
                case tiles.AngleSum(source=source):
                    size = (source.angles.shape[0], source.features)
                case _:
                    continue
            made[index] = torch.zeros(programs, *size, device=self.device)
            self._fixed[f"sum{index}"] = made[index]
        return made

    def run(self, kernel: Kernel, t: int | None = None) -> None:
        programs = math.ceil(self.batch / kernel.shape.lanes)
        values: dict[str, Any] = {}
        if t is not None:
            values["t"] = t
            for name in kernel.parameters:
                if name in self._series:
                    values[name] = self.at(name, t)
        values |= kernel.tables_on(self.device)
        arguments = [values[name] if name in values else self._fixed[name] for name in kernel.parameters]
        with np.errstate(all="ignore") if IS_INTERPRETED else contextlib.nullcontext():  # the interpreter runs on NumPy
            kernel.function[(programs,)](*arguments, num_warps=kernel.shape.warps, **OPTIONS)


def _turns(angles: Tensor, permutations: Tensor, *, back: bool) -> tuple[Tensor, ...]:
    """Note [Rotations as gathers], functions.py: which features a sublayer adds up, and their factors."""
    angles, size = angles.detach().float(), permutations.shape[1]
    half = torch.arange(size, device=angles.device).roll(size // 2)  # the other feature of each pair
    cosine, sine = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], dim=1)
    if back:
        first = permutations.argsort(dim=1)
        second, cosine, sine = half[first], cosine.gather(1, first), -sine.gather(1, first)
    else:
        first, second = permutations, permutations[:, half]
        first, second, cosine, sine = (table.flip(0) for table in (first, second, cosine, sine))
    return *(table.to(torch.int32).contiguous() for table in (first, second)), cosine.contiguous(), sine.contiguous()


def total(reduction: tiles.Reduction, parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The programs' sums added up, in the shape that the reduction has in PyTorch."""
    whole = parts.sum(dim=0)
    if isinstance(reduction, tiles.AngleSum):
        one, other = whole.chunk(2, dim=1)
        whole = one - other
    return whole.to(dtype)
