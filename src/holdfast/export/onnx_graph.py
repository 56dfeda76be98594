"""The ONNX graph of a network: inputs, layers, readout. It needs the package onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper
from torch import Tensor

from holdfast.engine.targets.onnx.graph import Graph, Value
from holdfast.engine.targets.onnx.rows import Sequence, write_row
from holdfast.export.module import state_names
from holdfast.export.network import Network, Readout

__all__ = ["write_network"]

ANY_LENGTH = 2**31 - 1  # all steps count
FLOAT, INT64, DOUBLE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE


def write_network(network: Network, name: str, optional_inputs: bool = True) -> GraphProto:
    """The graph of (1) to (5) in network.py; with ``optional_inputs``, all inputs but x have a default.

    Example:
        >>> import holdfast
        >>> from holdfast.export import network_of
        >>> graph = write_network(network_of(holdfast.GRU(3, 5)), "mine")
        >>> [value.name for value in graph.output]
        ['output', 'h_n']
    """
    return _Writer(network, optional_inputs).graph_named(name)


class _Writer:
    def __init__(self, network: Network, optional_inputs: bool):
        self.network, self.optional_inputs, self.g = network, optional_inputs, Graph()
        self.inputs: list[Any] = []
        self.defaults: list[TensorProto] = []
        self.outputs: list[Any] = []
        self.axes = ["batch", "time"] if network.batch_first else ["time", "batch"]
        self.reads_outputs = network.every_step or (network.readout is not None and network.readout.over == "pooled")

    def graph_named(self, name: str) -> GraphProto:
        raw = self._x()
        self.shape = self.g.op("Shape", raw, end=2)
        self.batch, self.steps = self.g.part(self.shape, 1, 2, 0), self.g.part(self.shape, 0, 1, 0)
        self.lengths = self._lengths()
        u = self._standard(raw)
        outputs, last = self._layers(u)
        answers = self._answers(u, outputs, last)
        self._give(answers)
        if self.network.resumes:
            for index, word in enumerate(state_names(len(last[0]))):
                rows = [self.g.op("Unsqueeze", state[index], self.g.whole(0)) for state in last]
                dims = [len(rows), "batch", self.network.state_sizes[index]]
                self._output(f"{word}_n", self.g.concat(rows, axis=0), dims)
        initializers = [*self.defaults, *self.g.initializers]
        words = self.network.provenance.sentence
        return helper.make_graph(self.g.nodes, name, self.inputs, self.outputs, initializers, doc_string=words)

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _input(self, name: str, kind: int, dims: list[Any], default: np.ndarray | None = None) -> Value:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        if default is not None and self.optional_inputs:
            self.defaults.append(numpy_helper.from_array(default, name))
        return self.g.value(name)

    def _x(self) -> Value:  # (time, batch, features), or (time, batch) of tokens
        tokens = self.network.embedding is not None
        last = [] if tokens else [self.network.input_size]
        x = self._input("x", INT64 if tokens else FLOAT, [*self.axes, *last])
        return self._turned(x, 2 if tokens else 3)

    def _turned(self, value: Value, axes: int) -> Value:
        """Time first to batch first and back, where the model has the batch first."""
        return self.g.op("Transpose", value, perm=[1, 0, 2][:axes]) if self.network.batch_first else value

    def _lengths(self) -> Value:
        given = self._input("lengths", INT64, ["batch or 1"], np.array([ANY_LENGTH], np.int64))
        return self.g.op("Expand", self.g.op("Min", given, self.steps), self.batch)

    def _standard(self, raw: Value) -> Value:
        net, g = self.network, self.g
        if net.embedding is not None:
            return g.op("Gather", g.constant(net.embedding.numpy()), raw, axis=0)
        u = raw
        if net.mean is not None and net.scale is not None:
            u = (raw - self._weight(net.mean)) / self._weight(net.scale)  # (1)
        if net.change is not None:
            before = g.concat([g.part(raw, 0, 1, 0), g.part(raw, 0, -1, 0)], axis=0)
            u = g.concat([u, (raw - before) / self._weight(net.change)], axis=2)  # (2)
        return u

    def _starts(self) -> list[list[Value]]:
        """The first state of every row, entries (batch, size)."""
        g, rows, found = self.g, self.network.rows, list[Value]()
        for index, word in enumerate(state_names(len(rows[0].start))):
            default = np.stack([row.start[index].detach().numpy() for row in rows])[:, None]  # (rows, 1, size)
            size = default.shape[2]
            if self.network.resumes:
                given = self._input(f"{word}_0", FLOAT, [len(rows), "batch or 1", size], default)
            else:
                given = g.constant(default)
            found.append(g.op("Expand", given, g.concat([g.whole(len(rows)), self.batch, g.whole(size)], axis=0)))
        return [
            [g.op("Gather", entry, g.constant(np.array(row, np.int64)), axis=0) for entry in found]
            for row in range(len(rows))
        ]

    # -- layers ------------------------------------------------------------------------------------------------------

    def _layers(self, u: Value) -> tuple[Value | None, list[list[Value]]]:
        """(3): the last layer's outputs, if they are read, and the last state of every row."""
        g, net, starts, last = self.g, self.network, self._starts(), list[list[Value]]()
        counted = g.op("Range", g.constant(np.array(0, np.int64)), g.op("Squeeze", self.steps), g.constant(np.int64(1)))
        ends = g.op("Unsqueeze", self.lengths, g.whole(0, 2))
        self.alive = g.op("Less", g.op("Unsqueeze", counted, g.whole(1, 2)), ends)  # (time, batch, 1)
        xs: Value | None = u
        for depth, layer in enumerate(net.layers):
            assert xs is not None
            read, needed = Sequence(xs, self.lengths, self.alive), depth + 1 < len(net.layers) or self.reads_outputs
            made = []
            for row in layer:
                state = starts[len(last)]
                output, end = write_row(g, row.cell, read, state, reverse=row.reverse, need_output=needed)
                made.append(output)
                last.append(end)
            xs = g.concat(made, axis=2) if needed else None
        return xs, last

    # -- outputs -----------------------------------------------------------------------------------------------------

    def _answers(self, u: Value, outputs: Value | None, last: list[list[Value]]) -> Value:
        """(4) and (5), time first."""
        net, g = self.network, self.g
        if net.change is not None:
            features = self._summary(last)
        elif net.every_step:
            assert outputs is not None
            features = outputs
        else:
            features = g.concat([state[0] for state in last[-len(net.layers[-1]) :]], axis=1)
        if outputs is not None and not net.every_step:
            features = self._pooled(outputs, features)
        if net.readout is None:
            return features
        if net.readout.direct:
            features = g.concat([features, u if net.every_step else self._last_of(u)], axis=2 if net.every_step else 1)
        z = self._read(net.readout, features)
        if net.target_mean is not None and net.target_scale is not None:
            z = z * self._weight(net.target_scale) + self._weight(net.target_mean)  # (5)
        return z

    def _read(self, readout: Readout, features: Value) -> Value:
        """(4). A reservoir's many features, whose sum may be small, are summed in float64."""
        g, wide = self.g, readout.mean is not None
        if readout.mean is not None and readout.scale is not None:
            features = (g.cast(features, DOUBLE) - self._weight(readout.mean)) / self._weight(readout.scale)
        z = g.op("MatMul", features, self._weight(readout.weight.mT))
        z = z if readout.bias is None else z + self._weight(readout.bias)
        return g.cast(z, FLOAT) if wide else z

    def _last_of(self, u: Value) -> Value:
        """The input at each sequence's last step: (batch, features)."""
        g = self.g
        zero, one = g.constant(np.array(0, np.int64)), g.constant(np.array(1, np.int64))
        samples = g.op("Range", zero, g.op("Squeeze", self.batch), one)
        at = [g.op("Unsqueeze", part, g.whole(1)) for part in (g.op("Sub", self.lengths, one), samples)]
        return g.op("GatherND", u, g.concat(at, axis=1))

    def _pooled(self, outputs: Value, end: Value) -> Value:
        """The mean, the last and the largest output over the steps that count; outputs behind them are zero."""
        g, steps = self.g, self.g.op("Unsqueeze", self.g.cast(self.lengths, FLOAT), self.g.whole(1))
        mean = g.op("ReduceSum", outputs, g.whole(0), keepdims=0) / steps
        counted = g.where(self.alive, outputs, float("-inf"))
        return g.concat([mean, end, g.op("ReduceMax", counted, g.whole(0), keepdims=0)], axis=1)

    def _summary(self, last: list[list[Value]]) -> Value:
        """``PooledCell.features`` of all rows side by side."""
        g = self.g
        steps = g.op("Unsqueeze", g.cast(self.lengths, FLOAT), g.whole(1))
        parts = []
        for h, total, highest, *above in last:
            parts += [total / steps, h, highest, *(seen / steps for seen in above)]
        return g.concat(parts, axis=1)

    def _give(self, answers: Value) -> None:
        net, every = self.network, self.network.every_step
        dims = [*self.axes, net.output_size] if every else ["batch", net.output_size]
        final = self._turned(answers, 3) if every else answers
        self._output("output", final, dims)
        if net.answer in ("classes", "binary"):
            binary = net.answer == "binary"
            made = self.g.op("Sigmoid", final) if binary else self.g.op("Softmax", final, axis=-1)
            self._output("probabilities", made, dims)

    def _output(self, name: str, value: Value, dims: list[Any]) -> None:
        self.g.nodes.append(helper.make_node("Identity", [value.name], [name], name=f"{name}.node"))
        self.outputs.append(helper.make_tensor_value_info(name, FLOAT, dims))

    def _weight(self, weight: Tensor) -> Value:
        return self.g.constant(weight.detach().contiguous().numpy())
