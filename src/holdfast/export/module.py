"""A network as a PyTorch module that can be traced: the same inputs and outputs, by name, as its ONNX file has.

    module(x, lengths, {"h_0": ...})  →  {"output": ..., "probabilities": ..., "h_n": ...}

Weights are built once, here: a traced program has them as numbers. The loop over time is ``holdfast.scan``, or the
``scan`` of PyTorch itself, which needs no Holdfast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.engine import scan
from holdfast.export.network import Network, Row
from holdfast.types import State, Weights

__all__ = ["NetworkModule", "state_names", "unlike"]


def state_names(entries: int) -> list[str]:
    """Names h and c, then s2, s3, ...: entry k of the state is read as ``NAME_0`` and written as ``NAME_n``.

    Example:
        >>> state_names(3)
        ['h', 'c', 's2']
    """
    return ["h", "c", *(f"s{index}" for index in range(2, entries))][:entries]


class Frozen(Cell):
    """A cell whose weights are numbers."""

    def __init__(self, cell: Cell):
        super().__init__(cell.input_size, cell.hidden_size)
        with torch.no_grad():
            given = [weight.detach().clone() for weight in cell.weights()]
        self.cell, self.count = cell, len(given)
        for index, weight in enumerate(given):
            self.register_buffer(f"weight_{index}", weight)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.cell.state_sizes

    def drive(self, x: Tensor) -> Tensor:
        return self.cell.drive(x)

    def weights(self) -> Weights:
        return tuple(getattr(self, f"weight_{index}") for index in range(self.count))

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        return self.cell.step(drive, state, weights)


class NetworkModule(nn.Module):
    """(1) to (5) of network.py.

    Args:
        network: what to compute.
        decompose: use PyTorch's own scan; else ``holdfast.scan``.

    Example:
        >>> import holdfast
        >>> from holdfast.export import network_of
        >>> module = NetworkModule(network_of(holdfast.LSTM(3, 5)))
        >>> found = module(torch.zeros(7, 2, 3), torch.tensor([7, 4]), module.starts(2))
        >>> {name: tuple(value.shape) for name, value in found.items()}
        {'output': (7, 2, 5), 'h_n': (1, 2, 5), 'c_n': (1, 2, 5)}
    """

    def __init__(self, network: Network, *, decompose: bool = False):
        super().__init__()
        self.network, self.decompose = network, decompose
        frozen = [Frozen(row.cell) for row in network.rows]
        self.cells = nn.ModuleList(frozen)
        entries = zip(*(row.start for row in network.rows), strict=True)
        for word, starts in zip(self.names, entries, strict=True):
            self.register_buffer(f"{word}_0", torch.stack(starts).detach()[:, None])  # (rows, 1, size)
        for name in ("mean", "scale", "change", "embedding", "target_mean", "target_scale"):
            self.register_buffer(name, getattr(network, name))
        readout = network.readout
        for name in ("weight", "bias", "mean", "scale"):
            self.register_buffer(f"readout_{name}", None if readout is None else getattr(readout, name))
        self.requires_grad_(False).eval()
        self.steps = nn.ModuleList(map(_traced, frozen)) if decompose else nn.ModuleList()

    @property
    def names(self) -> list[str]:
        return state_names(len(self.network.state_sizes))

    def starts(self, batch: int) -> dict[str, Tensor]:
        """The state that the model starts from, by the names of its inputs; none for one that needs whole sequences."""
        if not self.network.resumes:
            return {}
        return {f"{word}_0": self.get_buffer(f"{word}_0").repeat(1, batch, 1) for word in self.names}

    def forward(self, x: Tensor, lengths: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        net = self.network
        raw = x.transpose(0, 1) if net.batch_first else x
        u = raw if net.embedding is None else nn.functional.embedding(raw, self.get_buffer("embedding"))
        if net.mean is not None:
            u = (raw - self.get_buffer("mean")) / self.get_buffer("scale")  # (1)
        if net.change is not None:
            before = torch.cat([raw[:1], raw[:-1]])
            u = torch.cat([u, (raw - before) / self.get_buffer("change")], dim=2)  # (2)
        if not self.network.resumes:
            state = {f"{word}_0": self.get_buffer(f"{word}_0").expand(-1, raw.shape[1], -1) for word in self.names}
        outputs, last = self._layers(u, lengths, [state[f"{word}_0"] for word in self.names])
        answers = self._answers(u, outputs, last, lengths)
        found = {"output": answers.transpose(0, 1) if net.batch_first and net.every_step else answers}
        if net.answer in ("classes", "binary"):
            shares = torch.sigmoid if net.answer == "binary" else torch.nn.Softmax(dim=-1)
            found["probabilities"] = shares(found["output"])
        if self.network.resumes:
            found |= {f"{word}_n": torch.stack([end[i] for end in last]) for i, word in enumerate(self.names)}
        return found

    def _layers(self, u: Tensor, lengths: Tensor, state: list[Tensor]) -> tuple[Tensor, list[State]]:
        xs, last = u, list[State]()
        for layer in self.network.layers:
            made = []
            for row in layer:
                index = len(last)
                output, end = self._row(index, row, xs, tuple(entry[index] for entry in state), lengths)
                made.append(output)
                last.append(end)
            xs = made[0] if len(made) == 1 else torch.cat(made, dim=2)
        return xs, last

    def _row(self, index: int, row: Row, xs: Tensor, state: State, lengths: Tensor) -> tuple[Tensor, State]:
        cell = self.cells[index]
        assert isinstance(cell, Frozen)
        if not self.decompose:
            output, end = scan(cell, xs, state, lengths=lengths, reverse=row.reverse)
            assert output is not None
            return output, end
        from torch._higher_order_ops.scan import scan as plain  # a second, for those who need it

        weights, traced = cell.weights(), self.steps[index]
        alive = (torch.arange(xs.shape[0])[:, None] < lengths).unsqueeze(2)  # (time, batch, 1)

        def step(old: State, read: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
            drive, counts = read
            new = traced(drive, old, weights)
            kept = tuple(torch.where(counts, one, other) for one, other in zip(new, old, strict=True))
            return kept, torch.where(counts, new[0], 0.0)

        end, output = plain(step, state, (cell.drive(xs), alive), reverse=row.reverse)
        return output, tuple(end)

    def _answers(self, u: Tensor, outputs: Tensor, last: list[State], lengths: Tensor) -> Tensor:
        """(4) and (5)."""
        net = self.network
        if net.change is not None:
            pairs = zip(net.rows, last, strict=True)
            features = torch.cat([row.cell.features(end, lengths) for row, end in pairs], dim=1)  # type: ignore[operator]
        elif net.every_step:
            features = outputs
        else:
            features = torch.cat([end[0] for end in last[-len(net.layers[-1]) :]], dim=1)
        if net.readout is None:
            return features
        if net.readout.over == "pooled":
            alive = (torch.arange(outputs.shape[0])[:, None] < lengths).unsqueeze(2)
            highest = torch.where(alive, outputs, -torch.inf).amax(dim=0)
            features = torch.cat([outputs.sum(dim=0) / lengths[:, None], features, highest], dim=1)
        if net.readout.direct:
            ends = u if net.every_step else u[lengths - 1, torch.arange(u.shape[1])]
            features = torch.cat([features, ends], dim=-1)
        if net.readout.mean is not None:
            features = (features.double() - self.get_buffer("readout_mean")) / self.get_buffer("readout_scale")
        z = features @ self.get_buffer("readout_weight").mT
        z = z if net.readout.bias is None else z + self.get_buffer("readout_bias")
        z = z.float()
        return z if net.target_mean is None else z * self.get_buffer("target_scale") + self.get_buffer("target_mean")


def unlike(module: nn.Module, size: int) -> int:
    """``size``, or the next number that is no size of the module's tensors: PyTorch takes equal sizes for the same.

    Example:
        >>> unlike(nn.Linear(13, 14), 13)
        15
    """
    taken = {n for tensor in (*module.parameters(), *module.buffers()) for n in tensor.shape}
    return next(n for n in range(size, size + len(taken) + 1) if n not in taken)


@torch.no_grad()
def _traced(cell: Frozen) -> nn.Module:
    """The step as a graph of PyTorch's operators: its scan would read Python itself, and refuse some of it.

    Only the batch is a size that may differ: sizes of features would stand in the graph as arithmetic, which its scan
    does not take.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    batch = unlike(cell, 13)
    rows = [cell.drive(torch.zeros(batch, cell.input_size, dtype=torch.float32))]
    rows += [torch.zeros(batch, size, dtype=torch.float32) for size in cell.state_sizes]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    varies = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    drive, *state = (mode.from_tensor(row, symbolic_context=varies) for row in rows)
    weights = tuple(mode.from_tensor(weight, static_shapes=True) for weight in cell.weights())
    return make_fx(lambda *given: tuple(cell.step(*given)))(drive, tuple(state), weights)
