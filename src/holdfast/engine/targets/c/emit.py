"""A scheduled step as C: one function, its tables, and how much scratch memory it needs.

    emit(step_of(cell), "net", "net_l0")  →  Code(text, tables, helpers, work, ...)

The function takes x, every entry of the state and scratch memory, and turns the state into the next one. It is written
twice: first to see which statement touches which array, then with arrays that share memory (memory.py).
"""

from __future__ import annotations

import dataclasses
import re

from holdfast.engine.program.tiles import Product, Rotate, reachable
from holdfast.engine.targets.c.emitter import Emitter, Rounded
from holdfast.engine.targets.c.memory import Layout, layout
from holdfast.engine.targets.c.operators import helpers_in
from holdfast.engine.targets.c.statements import write_statements
from holdfast.engine.targets.c.step import Step
from holdfast.engine.targets.c.text import Table

__all__ = ["Code", "emit"]


@dataclasses.dataclass(frozen=True, eq=False)
class Code:
    """One step in C.

    Attributes:
        name, text: of the function.
        tables: weights and tables of indices, for flash.
        helpers: functions that it calls (operators.py).
        work: floats of scratch memory.
        multiply_adds: of one step: one for each term of a product, four for each pair that rotates.
    """

    name: str
    text: str
    tables: tuple[Table, ...]
    helpers: frozenset[str]
    work: int
    multiply_adds: int


def emit(step: Step, prefix: str, name: str, rounded: Rounded | None = None) -> Code:
    """The step as a C function ``name``.

    Args:
        step: of a cell.
        prefix: of the functions that it calls.
        name: of the function, and the prefix of its tables.
        rounded: matrices in int8 and angles in 8 bits, by the index of the weight.

    Example:
        >>> from holdfast.cells import RNNCell
        >>> from holdfast.engine.targets.c.step import step_of
        >>> print(emit(step_of(RNNCell(3, 4, bias=False)), "net", "net_l0").text)
        /* RNNCell(3, 4): one step, from x (3) and the state s0 (4) to the next state. */
        static void net_l0(const float *x, float *s0, float *work)
        {
            float *const new0 = work; /* 4 */
            for (int f = 0; f < 4; f++) {
                const float v0 = net_dot(net_l0_weight_ih + 3 * f, x, 3) + net_dot(net_l0_weight_hh + 4 * f, s0, 4);
                new0[f] = tanhf(v0);
            }
            for (int f = 0; f < 4; f++)
                s0[f] = new0[f];
        }
    """
    draft = Emitter(step, name, rounded or {}, Layout())
    write_statements(draft)
    final = Emitter(step, name, rounded or {}, layout(draft))
    write_statements(final)
    text = _function(final)
    helpers = frozenset(helpers_in(text))
    text = text.replace("{p}", prefix)
    named = [dataclasses.replace(table, name=table.name.replace("{p}", prefix)) for table in final.tables.values()]
    read = tuple(table for table in named if re.search(rf"\b{table.name}\b", text))  # an order of equal entries is not
    return Code(name, text, read, helpers, final.layout.work, _multiply_adds(step))


def _function(e: Emitter) -> str:
    step, work = e.step, e.layout.work
    states = [f"s{i}" for i in range(len(step.state_sizes))]
    entries = ", ".join(f"{s} ({n})" for s, n in zip(states, step.state_sizes, strict=True))
    arguments = ["const float *x", *(f"float *{s}" for s in states), *(["float *work"] if work else [])]
    arrays = [
        f"float *const {e.places[tile]} = work{f' + {start}' if start else ''}; /* {tile.features} */"
        for tile, start in e.layout.starts.items()
    ]
    text = "\n".join(e.lines)
    unread = [f"(void){name};" for name in ("x", *states) if not re.search(rf"\b{name}\b", text)]
    lines = [*arrays, *unread, *e.lines]
    state = "state" if len(states) == 1 else "states"
    return "\n".join(
        [
            f"/* {step.label}: one step, from x ({step.input_size}) and the {state} {entries} to the next {state}. */",
            f"static void {e.name}({', '.join(arguments)})",
            "{",
            *(f"    {line}" for line in lines),
            "}",
        ]
    )


def _multiply_adds(step: Step) -> int:
    total = 0
    for tile in reachable(step.schedule.program.roots):
        if isinstance(tile, Product):
            total += tile.features * tile.tile.features
        elif isinstance(tile, Rotate):
            total += 4 * step.weights[tile.angles.index].numel()
    return total
