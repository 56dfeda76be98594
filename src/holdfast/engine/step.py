"""One step of a cell, made ready once and then run many times: what a stream is made of.

    bound = BoundStep(cell, rows(1, cell.input_size, cell))
    bound.source.copy_(x);  bound.run();  bound.state        the state after x
    bound.over(xs);  bound.state                             the outputs of many steps, and the state after them

``scan`` looks at its arguments on every call. Here everything is settled beforehand: the weights are those of now, in
the order in which a compiled kernel reads them, and x and the state have their own memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.scan import compiler, scan
from holdfast.errors import FusedError, FusedFallbackWarning
from holdfast.types import State

__all__ = ["BoundStep", "rows"]

_warned: set[tuple[type, str]] = set()


def rows(batch: int, features: int, like: Cell) -> Tensor:
    """Zeros, (batch, features), of the type and on the device of a cell's weights, as ``BoundStep`` takes them."""
    weight, fused = like.example_weight(), compiler()
    with torch.inference_mode(False):
        if isinstance(fused, str) or weight.device.type != "cpu" or weight.dtype not in fused.WIDTH:
            return torch.zeros(batch, features, dtype=weight.dtype, device=weight.device)
        return fused.step_rows(batch, features, weight.dtype)


class BoundStep:
    """A copy of a cell as it is now, in evaluation mode, with memory for one step.

    Attributes:
        source: (batch, input), written before a step.
        state: the state, entries (batch, size); each step overwrites it.
        run: does one step; ``over`` does many.

    Args:
        cell: any cell. A later change of its weights has no effect.
        source: from ``rows``; it may be the output of another step.
        backend: as in ``scan``: "fused" is one foreign call, "reference" the cell's own Python, "auto" the first that
            works.
    """

    def __init__(self, cell: Cell, source: Tensor, *, backend: str = "auto"):
        with torch.inference_mode(False):
            self.cell = copy.deepcopy(cell).eval().requires_grad_(False)
            self.source, self.backend = source, backend
            self._over: Callable[[Tensor], Tensor] | None = None
            self.state: State = tuple(rows(len(source), size, self.cell) for size in self.cell.state_sizes)
            self.run: Callable[[], None] = self._compiled(type(cell).__name__, backend) or self._plain()

    @torch.no_grad()
    def over(self, xs: Tensor) -> Tensor:
        """The outputs, (time, batch, hidden), of all steps of ``xs``, (time, batch, input)."""
        if self._over is None:
            self._over = self._bound_scan() or self._scanned
        return self._over(xs)

    def _bound_scan(self) -> Callable[[Tensor], Tensor] | None:
        fused = compiler()
        if isinstance(fused, str) or self.backend not in ("auto", "fused") or self.source.device.type != "cpu":
            return None
        return fused.bind_scan(self.cell, self.state)

    def _scanned(self, xs: Tensor) -> Tensor:
        output, last = scan(self.cell, xs, self.state, backend=self.backend)
        assert output is not None
        for entry, value in zip(self.state, last, strict=True):
            entry.copy_(value)
        return output

    def _compiled(self, name: str, backend: str) -> Callable[[], None] | None:
        if backend == "reference":
            return None
        fused, device = compiler(), self.source.device.type
        reason, expected = f"it runs on the CPU, and the weights are on {device}", device != "cpu"
        if isinstance(fused, str):
            reason = fused
        elif not expected:
            try:
                return fused.bind_step(self.cell, self.source, self.state)
            except fused.Unsupported as error:
                reason = str(error)
        if backend == "fused":
            raise FusedError(
                f'A stream of {name} cannot run on the fused backend: {reason}. Use backend="reference" or "auto".'
            )
        if not expected and (type(self.cell), reason) not in _warned:
            _warned.add((type(self.cell), reason))
            warnings.warn(
                f"A stream of {name} runs on the slower reference backend: {reason}. The result is the same; build the "
                'layer with backend="reference" to silence this warning.',
                FusedFallbackWarning,
                stacklevel=5,
            )
        return None

    def _plain(self) -> Callable[[], None]:
        """The cell's own step in PyTorch."""
        cell, source, state = self.cell, self.source, self.state
        with torch.no_grad(), torch.autocast(source.device.type, enabled=False):
            weights = tuple(cell.weights())

        @torch.no_grad()
        def run() -> None:
            with torch.autocast(source.device.type, enabled=False):
                new = cell.step(cell.drive(source), state, weights)
                if len(new) > 1:  # an entry may be another one of the old state
                    new = tuple(entry.clone() for entry in new)
                for entry, value in zip(state, new, strict=True):
                    entry.copy_(value)

        return run
