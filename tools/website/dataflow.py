"""A picture of one step of a cell, drawn from the graph that the compiler traces: what it shows is what runs.

Inputs are on the left: ``drive`` (the part of the step that depends on the input alone), the states, the weights. Time
within the step runs to the right. Lines take the colour of the text, so the picture suits light and dark pages.
"""

from __future__ import annotations

from html import escape

import torch

from holdfast import Cell
from holdfast.engine.program.graph import Node
from holdfast.engine.program.trace import trace_step

__all__ = ["dataflow"]

SYMBOLS = {
    "abs": "|·|",
    "add": "+",
    "div": "÷",
    "mm": "×",
    "mul": "⊙",
    "neg": "−",
    "rsub": "1 −",
    "sigmoid": "σ",
    "sub": "−",
}
WIDTH, HEIGHT, STEP_X, STEP_Y, EDGE = 62, 28, 92, 48, 12


def dataflow(cell: Cell) -> str:
    """The picture of a cell as SVG.

    Example:
        >>> from holdfast import RNNCell
        >>> picture = dataflow(RNNCell(2, 4))
        >>> picture.startswith("<svg"), "tanh" in picture
        (True, True)
    """
    labels, edges = _graph(cell)
    places = _places(labels, edges)
    width = max(x for x, _ in places.values()) + WIDTH + EDGE
    height = max(y for _, y in places.values()) + HEIGHT + EDGE
    parts = [_arrow(places[a], places[b]) for a, b in edges]
    parts += [_box(places[it], text, round=it in _ends(labels, edges)) for it, text in labels.items()]
    name = f"Data flow of one step of {type(cell).__name__}"
    return (
        f'<svg class="dataflow" role="img" aria-label="{name}" viewBox="0 0 {width} {height}" '
        f'style="max-width: {width}px; width: 100%; min-width: {min(width, 480)}px">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="currentColor"/></marker></defs>' + "".join(parts) + "</svg>"
    )


def _graph(cell: Cell) -> tuple[dict[int, str], list[tuple[int, int]]]:
    """Labels by node and the edges between them; transposes and unused inputs are left out, splits are one box."""
    weights = [it.detach() for it in cell.weights()]
    features = cell.drive(torch.zeros(1, cell.input_size)).shape[-1]
    traced = trace_step(cell, weights, features, fold=False, gradient=False)
    states = len(traced.state_sizes)
    names = ["drive", *(["h", "c"][:states])]
    scalars, inputs = iter("αβ"), dict(zip(traced.graph.inputs, names, strict=False))
    for node, weight in zip(traced.graph.inputs[1 + states :], weights, strict=False):
        turned = any(node in it.inputs for it in traced.graph.nodes if it.name == "holdfast.rotate")
        plain = "order" if weight.dtype == torch.int64 else "angles" if turned else "U"
        inputs[node] = plain if weight.dim() > 1 else next(scalars) if weight.numel() == 1 else "b"
    same: dict[Node, Node] = {}
    for node in traced.graph.nodes:
        if node.name in ("transpose", "t", "view"):
            same[node] = node.inputs[0]

    def source(node: Node) -> Node:
        return source(same[node]) if node in same else node

    labels: dict[int, str] = {}
    edges: list[tuple[int, int]] = []
    live = traced.graph.live(traced.new)
    for node in [*traced.graph.inputs, *traced.graph.nodes]:
        if node not in live or node in same:
            continue
        labels[id(node)] = inputs.get(node) or _label(node)
        edges += [(id(source(it)), id(node)) for it in node.inputs]
    for number, node in enumerate(traced.new):
        labels[-1 - number] = ("h'", "c'")[number]
        edges.append((id(source(node)), -1 - number))
    return labels, list(dict.fromkeys(edges))


def _label(node: Node) -> str:
    if node.name == "getitem":
        return f"part {node.args[1] + 1}"
    return SYMBOLS.get(node.name, node.name.removeprefix("holdfast."))


def _ends(labels: dict[int, str], edges: list[tuple[int, int]]) -> set[int]:
    """Inputs and outputs."""
    return {it for it in labels if it < 0 or all(it != to for _, to in edges)}


def _places(labels: dict[int, str], edges: list[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Columns by the longest path from an input, inputs before their first use; rows by the mean of what is left."""
    column = dict.fromkeys(labels, 0)
    for _ in labels:
        for a, b in edges:
            column[b] = max(column[b], column[a] + 1)
    for it in labels:
        if all(it != to for _, to in edges):
            column[it] = max(0, min(column[b] for a, b in edges if a == it) - 1)
    last = max(column.values())
    column.update({it: last for it in labels if it < 0})
    rows: dict[int, float] = {}
    places: dict[int, tuple[float, float]] = {}
    for number in range(last + 1):
        here = [it for it in labels if column[it] == number]
        wanted = {it: [rows[a] for a, b in edges if b == it and a in rows] for it in here}
        taken: list[float] = []
        for it in sorted(here, key=lambda it: sum(wanted[it]) / len(wanted[it]) if wanted[it] else 99):
            want = round(sum(wanted[it]) / len(wanted[it])) if wanted[it] else len(taken)
            row = next(want + step for step in range(99) if want + step not in taken)
            taken.append(row)
            rows[it], places[it] = row, (EDGE + number * STEP_X, EDGE + row * STEP_Y)
    return places


def _box(place: tuple[float, float], text: str, *, round: bool) -> str:
    x, y = place
    corner = 14 if round else 4
    fill = "var(--color-background-item, var(--color-api-background))" if round else "var(--color-background-primary)"
    style = f'style="fill: {fill}"'  # opaque: a line that must pass a box passes behind it
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{corner}" stroke="currentColor" {style}/>'
        f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT / 2 + 5}" text-anchor="middle" font-size="14" fill="currentColor">'
        f"{escape(text)}</text>"
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = (start[0] + WIDTH, start[1] + HEIGHT / 2), (end[0], end[1] + HEIGHT / 2)
    bend = (x1 - x0) / 2
    low = ""
    if x1 - x0 > STEP_X and y0 == y1:  # a long line passes below the boxes between
        below = y0 + STEP_Y / 2
        low = (
            f"C{x0 + 20} {y0} {x0 + 10} {below} {x0 + 36} {below} L{x1 - 36} {below} C{x1 - 10} {below} {x1 - 20} {y1} "
        )
    path = f"M{x0} {y0} " + (f"{low}{x1} {y1}" if low else f"C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}")
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.6" marker-end="url(#tip)"/>'
