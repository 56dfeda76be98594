"""One pass forward and backward: states, and gradients of the loss with respect to them, at every step.

    h_t = f(x_t, h_{t-1})                                            (1) one row: a layer in one direction
    d_t = ∂L / ∂y_t                                                  (2) what reaches the outputs from outside
    δ_t = dL / dh_t = d_t + (∂h_{t+1}/∂h_t)ᵀ δ_{t+1}                 (3) the whole gradient, through time too

The model runs once as it is. Hooks keep what goes into its recurrent layer and (2). Then (1) runs again step by step,
on some of the sequences, and autograd gives (3). The two passes must agree; the largest difference in the first ten
steps is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from holdfast.cells import Cell
from holdfast.diagnose.find import Found
from holdfast.errors import SettingError
from holdfast.layers import Recurrent
from holdfast.types import State

__all__ = ["Outside", "Row", "run_model", "run_rows"]

_SHORT = 1 << 20  # numbers in the outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Outside:
    """What the layer gets from the model: inputs and gradients, time first.

    Args:
        xs: (time, batch, features) into the layer.
        start: the first state, entries (rows, batch, size); None for the layer's own.
        lengths: (batch,), or None if all sequences are whole.
        outputs: (time, batch, directions · hidden), or None if the model asks only for the last state.
        direct: (2) on the outputs, or None; direct_last: on the last state, entries (rows, batch, size) or None.
        answers: of the model.
        loss: its value.
        calls: how often the layer was called; the longest call is kept.
    """

    xs: Tensor
    start: State | None
    lengths: Tensor | None
    outputs: Tensor | None
    direct: Tensor | None
    direct_last: tuple[Tensor | None, ...]
    answers: Tensor
    loss: float
    calls: int

    def direct_norms(self) -> Tensor:
        """‖d_t‖, (time, batch): how much of the loss reads each step."""
        steps, batch = self.xs.shape[:2]
        norms = self.xs.new_zeros(steps, batch) if self.direct is None else self.direct.norm(dim=-1)
        ends = torch.full((batch,), steps) if self.lengths is None else self.lengths
        for entry in self.direct_last:
            if entry is not None:
                norms[ends - 1, torch.arange(batch)] += entry.norm(dim=-1).sum(dim=0)
        return norms


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One layer in one direction: (1) and (3), in the order in which it reads its input.

    Args:
        name: "layer 1", "layer 1, backward".
        cell: its cell.
        xs: (time, batch, features).
        states, grads: h_t and δ_t with t = 0 first, entries (time + 1, batch, size).
    """

    name: str
    cell: Cell
    xs: Tensor
    states: State
    grads: State

    @property
    def hs(self) -> Tensor:
        """The outputs, (time, batch, hidden)."""
        return self.states[0][1:]

    @property
    def backend(self) -> str:
        """How to run the cell again: compiling takes longer than a short loop."""
        return "auto" if self.hs.numel() > _SHORT else "reference"

    def layer(self) -> Recurrent:
        """The cell as a layer."""
        return Recurrent(self.cell, backend=self.backend)


def run_model(found: Found, call: Callable[[], Any], loss: Callable[[Tensor], Tensor]) -> Outside:
    """Run the model once; the layer's input is cut from what comes before, so that a frozen model has gradients too."""
    calls: list[tuple[Any, Any, Any]] = []

    def before(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        first = given[0] if given else named["input"]
        packed = isinstance(first, PackedSequence)
        leaf = (first.data if packed else first).detach().requires_grad_()
        first = first._replace(data=leaf) if packed else leaf
        return ((first, *given[1:]), named) if given else ((), {**named, "input": first})

    def after(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        state = given[1] if len(given) > 1 else named.get("h_0", named.get("hx"))
        calls.append((given[0] if given else named["input"], state, output))

    hooks = (
        found.module.register_forward_pre_hook(before, with_kwargs=True),
        found.module.register_forward_hook(after, with_kwargs=True),
    )
    try:
        with torch.enable_grad():
            answers = call()
            answers = answers[0] if isinstance(answers, tuple | list) else answers
            value = loss(answers)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise SettingError(
            f"diagnose expects the model to call its recurrent layer {found.name!r} on xs, got no call; name another "
            f"with name=: {', '.join(found.others) or 'there is none'}."
        )
    given, state, (output, last) = max(calls, key=lambda it: _tensor(it[0]).numel())
    entries = last if isinstance(last, tuple) else (last,)
    wanted = [it for it in ((None if output is None else _tensor(output)), *entries) if it is not None]
    grads = list(torch.autograd.grad(value, wanted, allow_unused=True)) if value.requires_grad else [None] * len(wanted)
    direct = None if output is None else grads.pop(0)
    layer, lengths = found.layer, None
    if isinstance(given, PackedSequence):
        xs, lengths = pad_packed_sequence(given)
        if output is not None:
            direct = None if direct is None else pad_packed_sequence(given._replace(data=direct))[0]
            output = pad_packed_sequence(output)[0]
        single = False
    else:
        single = given.dim() == 2
        turned = [_time_first(it, single, layer.batch_first) for it in (given, output, direct)]
        xs, output, direct = turned
    if single:
        grads = [None if it is None else it.unsqueeze(1) for it in grads]
        state = None if state is None else tuple(it.unsqueeze(1) for it in _entries(state))
    assert xs is not None
    return Outside(
        xs.detach(),
        None if state is None else tuple(it.detach() for it in _entries(state)),
        lengths,
        None if output is None else output.detach(),
        direct,
        tuple(grads),
        answers.detach(),
        float(value.detach()),
        len(calls),
    )


def run_rows(layer: Recurrent, outside: Outside, which: Tensor) -> tuple[list[Row], float]:
    """(1) and (3) of every row on the sequences ``which``, and the largest difference from the first pass."""
    xs = outside.xs[:, which]
    lengths = None if outside.lengths is None else outside.lengths[which]
    start = (
        layer.initial_state(len(which), xs, noise=False)
        if outside.start is None
        else tuple(it[:, which] for it in outside.start)
    )
    made: list[tuple[int, bool, Tensor, list[State]]] = []
    with torch.enable_grad():
        flowing = xs
        for depth in range(layer.num_layers):
            outputs = []
            for way in range(layer.directions):
                index = depth * layer.directions + way
                read = _reversed(flowing, lengths) if way else flowing
                own = tuple(entry[index].detach().requires_grad_() for entry in start)
                states = _through(layer.cells[index], read, own, lengths)
                made.append((index, bool(way), read, states))
                out = torch.stack([state[0] for state in states[1:]])
                outputs.append(_reversed(out, lengths) if way else out)
            flowing = torch.cat(outputs, dim=-1)
        total = xs.new_zeros(())
        if outside.direct is not None:
            total = total + (flowing * outside.direct[:, which]).sum()
        for entry, grad in enumerate(outside.direct_last):
            if grad is not None:
                lasts = torch.stack([states[-1][entry] for *_, states in made])
                total = total + (lasts * grad[:, which]).sum()
        leaves = [entry for *_, states in made for state in states for entry in state]
        if total.requires_grad:
            grads = list(torch.autograd.grad(total, leaves, allow_unused=True))
        else:
            grads = [None] * len(leaves)
    rows = []
    for index, reverse, read, states in made:
        count = len(states[0])
        mine = [grads.pop(0) for _ in range(len(states) * count)]
        whole = tuple(torch.stack([state[e] for state in states]).detach() for e in range(count))
        back = tuple(
            torch.stack([_or_zero(mine[t * count + e], states[t][e]) for t in range(len(states))]) for e in range(count)
        )
        name = f"layer {index // layer.directions + 1}"
        name += ("", ", backward")[reverse] if layer.bidirectional else ""
        rows.append(Row(name, layer.cells[index], read.detach(), whole, back))
    apart = 0.0
    if outside.outputs is not None:
        inside = torch.ones_like(outside.outputs[:, which], dtype=torch.bool)
        if lengths is not None:
            inside &= (torch.arange(len(xs))[:, None] < lengths)[..., None]
        difference = (flowing.detach() - outside.outputs[:, which])[:10].abs()[inside[:10]]  # before chaos sets in
        difference = difference[difference.isfinite()]
        apart = float(difference.max()) if len(difference) else 0.0
    return rows, apart


def _through(cell: Cell, xs: Tensor, state: State, lengths: Tensor | None) -> list[State]:
    """Every state from the first; after a sequence's end it is held."""
    with torch.no_grad():
        weights = cell.weights()
    states = [state]
    for t, drive in enumerate(cell.drive(xs)):
        new = cell.step(drive, state, weights)
        if lengths is not None:
            going = (t < lengths).unsqueeze(1)
            new = tuple(torch.where(going, after, before) for after, before in zip(new, state, strict=True))
        states.append(state := new)
    return states


def _reversed(xs: Tensor, lengths: Tensor | None) -> Tensor:
    """Every sequence from its last step to its first; padding stays behind."""
    if lengths is None:
        return xs.flip(0)
    steps = torch.arange(len(xs))[:, None]
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return xs.gather(0, order.unsqueeze(-1).expand_as(xs))


def _tensor(given: Tensor | PackedSequence) -> Tensor:
    return given.data if isinstance(given, PackedSequence) else given


def _entries(state: Any) -> State:
    return tuple(state) if isinstance(state, tuple | list) else (state,)


def _or_zero(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _time_first(it: Tensor | None, single: bool, batch_first: bool) -> Tensor | None:
    if it is None:
        return None
    return it.unsqueeze(1) if single else it.transpose(0, 1) if batch_first else it
