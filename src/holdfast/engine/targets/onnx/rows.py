"""A cell over time in an ONNX graph.

    RNN, LSTM, GRU    the native operator
    any other         Scan: what needs no state is computed outside for all steps, the rest is the body

A sample of length n is driven by its first n inputs: later its state stands still and its output is zero, as in
``holdfast.scan``. ONNX Runtime's native operators forget the initial state of a sequence of length 0: it is put back.
"""

from __future__ import annotations

import dataclasses

from onnx import TensorProto, ValueInfoProto, helper

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.inference import step_of
from holdfast.engine.program.tiles import Kind, Slot, Tile
from holdfast.engine.targets.onnx.graph import Graph, Value
from holdfast.engine.targets.onnx.native import Native, native
from holdfast.engine.targets.onnx.tiles import TileWriter, ahead_of_loop
from holdfast.errors import UnsupportedError

__all__ = ["Sequence", "write_row"]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """What a row reads: (time, batch, features); lengths (batch,) of int64; which steps count, (time, batch, 1)."""

    xs: Value
    lengths: Value
    alive: Value


def write_row(
    graph: Graph, cell: Cell, read: Sequence, state: list[Value], *, reverse: bool, need_output: bool
) -> tuple[Value | None, list[Value]]:
    """Write ``cell`` over time; return its outputs, (time, batch, hidden), and its last state, entries (batch, size).

    Args:
        graph: where to.
        cell: of float32, in evaluation mode.
        read: what it is driven by.
        state: where it starts, entries (batch, size).
        reverse, need_output: as in ``holdfast.scan``.

    Raises:
        UnsupportedError: ONNX cannot do what the step does; the message names the operator.
    """
    found = native(cell)
    if found is not None:
        return _native(graph, found, read, state, reverse, need_output)
    return _scan(graph, cell, read, state, reverse, need_output)


def _native(
    g: Graph, found: Native, read: Sequence, state: list[Value], reverse: bool, need_output: bool
) -> tuple[Value | None, list[Value]]:
    weights = [g.constant(part.numpy()) for part in (found.weight_ih, found.weight_hh, found.bias)]
    lengths = g.cast(read.lengths, TensorProto.INT32)
    starts = [g.op("Unsqueeze", entry, g.whole(0)) for entry in state]
    direction = "reverse" if reverse else "forward"
    inputs = (read.xs, *weights, lengths, *starts)
    output, *last = g.ops(found.kind, 1 + len(state), *inputs, direction=direction, **found.attributes)
    some = g.op("Unsqueeze", g.op("Greater", read.lengths, g.whole(0)), g.whole(1))  # (batch, 1)
    ends = [
        g.where(some, g.op("Squeeze", after, g.whole(0)), before) for after, before in zip(last, state, strict=True)
    ]
    return g.op("Squeeze", output, g.whole(1)) if need_output else None, ends


def _scan(
    g: Graph, cell: Cell, read: Sequence, state: list[Value], reverse: bool, need_output: bool
) -> tuple[Value | None, list[Value]]:
    who = type(cell).__name__
    try:
        step = step_of(cell)
    except Unsupported as reason:
        raise UnsupportedError(f"ONNX cannot run {who}: {reason}.") from None
    program, numbers = step.program, step.weights
    news = [program.outputs[Slot(Kind.STATE, index)] for index in range(len(state))]
    assert all(new is not None for new in news)

    crossing = ahead_of_loop(program)
    source = program.inputs[Slot(Kind.SOURCE)]
    outside = TileWriter(g, numbers, {source: read.xs}, read.xs, 2, who).write(crossing)

    body = Graph(g)
    olds = [body.value(body.fresh("state")) for _ in state]
    slices = [body.value(body.fresh("drive")) for _ in crossing]
    alive = body.value(body.fresh("alive"))
    known: dict[Tile, Value] = dict(zip(crossing, slices, strict=True))
    known |= {program.inputs[Slot(Kind.STATE, index)]: old for index, old in enumerate(olds)}
    made = TileWriter(body, numbers, known, olds[0], 1, who).write([new for new in news if new is not None])
    kept = [body.where(alive, new, old) for new, old in zip(made, olds, strict=True)]
    outputs = [*kept, body.where(alive, made[0], 0.0)] if need_output else kept

    def described(values: list[Value], sizes: list[int], kinds: list[int]) -> list[ValueInfoProto]:
        each = zip(values, sizes, kinds, strict=True)
        return [helper.make_tensor_value_info(value.name, kind, ["batch", size]) for value, size, kind in each]

    sizes, number, mask = list(cell.state_sizes), TensorProto.FLOAT, TensorProto.BOOL
    made_of = helper.make_graph(
        body.nodes,
        g.fresh(f"{who}.step"),
        [
            *described(olds, sizes, [number] * len(olds)),
            *described(slices, [t.features for t in crossing], [mask if t.is_mask else number for t in crossing]),
            *described([alive], [1], [mask]),
        ],
        described(outputs, [*sizes, sizes[0]][: len(outputs)], [number] * len(outputs)),
    )
    backwards = int(reverse)
    ends = g.ops(
        "Scan",
        len(outputs),
        *state,
        *outside,
        read.alive,
        body=made_of,
        num_scan_inputs=len(crossing) + 1,
        scan_input_directions=[backwards] * (len(crossing) + 1),
        **({"scan_output_directions": [backwards]} if need_output else {}),
    )
    return ends[len(state)] if need_output else None, ends[: len(state)]
