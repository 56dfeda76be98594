"""A network as an exported file computes it, in PyTorch: its cells' tile programs, with any numbers as weights.

    Simulated(network, parts)(inputs, lengths, state)  →  answers, state        as a ``SequenceModel`` answers

Weights that were rounded for a device go in here, so that the loss of accuracy can be measured without the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from holdfast.engine.program.interpret import interpret
from holdfast.engine.program.tiles import Kind, Product, Slot
from holdfast.engine.targets.c import Step
from holdfast.errors import SettingError
from holdfast.export.network import Network
from holdfast.types import State

__all__ = ["Parts", "Simulated", "exact_parts"]

Seen = Callable[[tuple[str, int], Tensor], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The numbers of a network: ``rows[r]`` by the index of the weight; the readout's halves; the embedding."""

    rows: tuple[tuple[Tensor, ...], ...]
    readout: Tensor | None
    direct: Tensor | None
    embedding: Tensor | None


def exact_parts(network: Network, steps: list[Step]) -> Parts:
    """The weights as they are; all of them must be finite."""
    readout = network.readout
    width = sum(step.state_sizes[0] for step in steps[-len(network.layers[-1]) :])
    width *= 3 if readout is not None and readout.over == "pooled" else 1
    weight = None if readout is None else readout.weight.float()
    direct = weight[:, width:] if weight is not None and readout is not None and readout.direct else None
    main = weight[:, :width] if direct is not None and weight is not None else weight
    parts = Parts(tuple(step.weights for step in steps), main, direct, network.embedding)
    names = [
        (f"layer {r}, {label}", w) for r, s in enumerate(steps) for label, w in zip(s.names, s.weights, strict=True)
    ]
    names += [("the readout", weight), ("the embedding", network.embedding)]
    for label, tensor in names:
        if tensor is not None and tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise SettingError(f"export.c expects finite weights, but {label} has a non-finite value.")
    return parts


class Simulated(nn.Module):
    """(2) to (4) of network.py, one step after another.

    Args:
        network: what to compute.
        steps: of its rows.
        parts: with these weights.
        seen: called with the name of each matrix and what it multiplies, (samples, features).

    Shape:
        inputs (time, batch, features) as (1) leaves them, or tokens (time, batch); lengths (batch,) or None; state as
        returned. Returns z of (4), (batch, outputs) or (time, batch, outputs), and the state.
    """

    def __init__(self, network: Network, steps: Sequence[Step], parts: Parts, seen: Seen | None = None):
        super().__init__()
        self._network, self._steps, self._parts, self._seen = network, steps, parts, seen

    @torch.no_grad()
    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, state: list[State] | None = None
    ) -> tuple[Tensor, list[State]]:
        network, time, batch = self._network, *inputs.shape[:2]
        us = inputs.float() if self._parts.embedding is None else self._parts.embedding[inputs]
        if network.change is not None:
            raw = us if network.scale is None else us * network.scale  # differences do not see the mean
            us = torch.cat([us, raw.diff(dim=0, prepend=raw[:1]) / network.change], dim=2).float()
        ends = torch.full((batch,), time) if lengths is None else lengths
        state = state or [tuple(entry.expand(batch, -1) for entry in row.start) for row in network.rows]
        answers, total = [], us.new_zeros(batch, 1)
        largest = total - torch.inf
        for t in range(time):
            alive = t < ends
            state = self._step(us[t], state, alive)
            if network.every_step:
                answers.append(self._answer(us[t], self._output(state), state, ends))
            elif network.readout is not None and network.readout.over == "pooled":
                output = self._output(state)
                total = total + torch.where(alive[:, None], output, 0.0)
                largest = torch.maximum(largest, torch.where(alive[:, None], output, -torch.inf))
        if network.every_step:
            return torch.stack(answers), state
        features = self._output(state)
        if network.readout is not None and network.readout.over == "pooled":
            features = torch.cat([total / ends[:, None], features, largest], dim=1)
        return self._answer(us[ends - 1, torch.arange(batch)], features, state, ends), state

    def _output(self, state: list[State]) -> Tensor:
        """The last layer's."""
        return torch.cat([entries[0] for entries in state[-len(self._network.layers[-1]) :]], dim=1)

    def _step(self, x: Tensor, state: list[State], alive: Tensor) -> list[State]:
        new: list[State] = []
        for layer in self._network.layers:
            first = len(new)
            for row in range(first, first + len(layer)):
                inputs = {Slot(Kind.SOURCE): x}
                inputs |= {Slot(Kind.STATE, i): entry for i, entry in enumerate(state[row])}

                def seen(node: Product, values: Tensor, row: int = row) -> None:
                    if self._seen is not None:
                        self._seen((f"row{row}", node.matrix.index), values[alive])

                made = interpret(self._steps[row].schedule.program, inputs, self._parts.rows[row], seen=seen)
                entries = [made[Slot(Kind.STATE, i)] for i in range(len(state[row]))]
                new.append(
                    tuple(torch.where(alive[:, None], n, old) for n, old in zip(entries, state[row], strict=True))
                )
            x = torch.cat([entries[0] for entries in new[first:]], dim=1)
        return new

    def _answer(self, u: Tensor, features: Tensor, state: list[State], ends: Tensor) -> Tensor:
        network, parts = self._network, self._parts
        if network.change is not None:
            pairs = zip(network.rows, state, strict=True)
            features = torch.cat([row.cell.features(end, ends) for row, end in pairs], dim=1)  # type: ignore[operator]
        if network.readout is None or parts.readout is None:
            return features
        if network.readout.mean is not None:
            features = (features - network.readout.mean.float()) / network.readout.scale.float()  # type: ignore[union-attr]
        if self._seen is not None:
            self._seen(("readout", 0), features)
        answer = features @ parts.readout.mT
        if parts.direct is not None:
            if self._seen is not None:
                self._seen(("direct", 0), u)
            answer = answer + u @ parts.direct.mT
        return answer if network.readout.bias is None else answer + network.readout.bias.float()
