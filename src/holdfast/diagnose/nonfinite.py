"""The first value that is not finite: in the data, in a weight, or which operator made it, at which step.

A weight or an input that is not finite is named. Otherwise the states are finite up to some step; this step runs once
more under a dispatch mode that sees every operator, and the first one whose result is not finite is the one to name,
with the weight that it reads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.cells import Cell
from holdfast.diagnose.record import Row

__all__ = ["NotFinite", "bad_inputs", "bad_weight", "first_bad_gradient", "first_bad_state"]


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """Where the first value is that is not finite.

    Args:
        where: what holds it, in words.
        step: counted from 1, or 0 if it is not about a step.
    """

    where: str
    step: int = 0


def bad_weight(model: nn.Module) -> NotFinite | None:
    """The first weight or buffer with a value that is not finite."""
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.is_floating_point() and not weight.isfinite().all():
            count = int((~weight.isfinite()).sum())
            return NotFinite(f"{count} of {weight.numel():,} values of the weight {name}")
    return None


def bad_inputs(xs: Tensor, batch_dim: int) -> tuple[NotFinite, Tensor] | None:
    """Where the data are not finite, and which sequences are clean, (batch,) bool."""
    if not xs.is_floating_point() or xs.isfinite().all():
        return None
    bad = ~xs.movedim(batch_dim, 0).flatten(2).isfinite().all(dim=2) if xs.dim() > 2 else ~xs.movedim(
        batch_dim, 0).isfinite()  # fmt: skip
    sample, step = (int(it) for it in torch.nonzero(bad)[0])
    count = int((~xs.isfinite()).sum())
    return NotFinite(f"{count} of {xs.numel():,} input values, first in sequence {sample}", step + 1), ~bad.any(dim=1)


def first_bad_state(rows: list[Row], model: nn.Module) -> NotFinite | None:
    """The step and operator of the first state that is not finite, over all rows."""
    for row in rows:
        bad = torch.stack([~state.isfinite().all(dim=-1) for state in row.states]).any(dim=0)  # (time + 1, batch)
        if not bad.any():
            continue
        step = int(torch.nonzero(bad.any(dim=1))[0])
        sample = int(torch.nonzero(bad[step])[0])
        if step == 0:
            return NotFinite(f"the initial state of {row.name}", 0)
        before = tuple(state[step - 1, sample : sample + 1] for state in row.states)
        made = _operator(row.cell, row.xs[step - 1, sample : sample + 1], before, model)
        return NotFinite(f"{row.name}, sequence {sample}: {made}", step)
    return None


def first_bad_gradient(rows: list[Row]) -> NotFinite | None:
    """The last step, and so the first in the backward pass, whose gradient is not finite."""
    for row in reversed(rows):
        bad = torch.stack([~grad.isfinite().all(dim=-1).all(dim=-1) for grad in row.grads]).any(dim=0)
        if bad.any():
            return NotFinite(f"the gradient of the state of {row.name}", int(torch.nonzero(bad)[-1]))
    return None


class _Watch(TorchDispatchMode):
    """Notes the first operator that turns finite arguments into a result that is not finite."""

    def __init__(self, names: dict[int, str]):
        super().__init__()
        self.names, self.made = names, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.made and isinstance(result, Tensor) and result.is_floating_point() and not result.isfinite().all():
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            read = [self.names[key] for arg in tensors if (key := arg.untyped_storage().data_ptr()) in self.names]
            operator = str(func.overloadpacket).removeprefix("aten.")
            self.made = f"the operator {operator}" + (f", which reads the weight {read[0]}" if read else "")
        return result


@torch.no_grad()
def _operator(cell: Cell, x: Tensor, state: tuple[Tensor, ...], model: nn.Module) -> str:
    names = {weight.untyped_storage().data_ptr(): name for name, weight in cell.named_parameters()}
    names |= {weight.untyped_storage().data_ptr(): name for name, weight in model.named_parameters()}
    watch = _Watch(names)
    with watch:
        cell.step(cell.drive(x), state, cell.weights())
    return watch.made or "no single operator: the values overflow only in the whole batch"
