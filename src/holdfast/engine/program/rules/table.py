"""The table of rules, and what rules share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.tiles import Constant
from holdfast.engine.program.values import Rows

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

__all__ = ["RULES", "Rule", "check_features", "enter", "features_of", "indexed", "moves", "rows_of", "rule"]

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def enter(table: dict[str, Rule], *names: str) -> Callable[[Rule], Rule]:
    """A decorator: the function is these operators' rule."""

    def register(function: Rule) -> Rule:
        table.update(dict.fromkeys(names, function))
        return function

    return register


rule = functools.partial(enter, RULES)


def moves(*names: str) -> Callable[[Rule], Rule]:
    """The same for operators that only move entries: a rule gets Rows, and a number everywhere stays what it is."""

    def register(function: Rule) -> Rule:
        @functools.wraps(function)
        def moved(low: Lowering, node: Node, x: Any, *args: Any, **kwargs: Any) -> Any:
            return x if isinstance(x, Constant) else function(low, node, rows_of(node, x), *args, **kwargs)

        return rule(*names)(moved)

    return register


def rows_of(node: Node, value: Any) -> Rows:
    if isinstance(value, Rows):
        return value
    raise Unsupported(f"operator {node.target} without one row per sample")


def check_features(node: Node, rows: Rows, dims: Sequence[int]) -> None:
    if any(None in rows.axes[d] for d in dims):
        raise Unsupported(f"operator {node.target} across samples")


def features_of(node: Node, value: Any, dims: Any) -> tuple[Rows, list[int]]:
    """A value as Rows, and the axes ``dims`` (None for all), which must hold features alone."""
    rows = rows_of(node, value)
    dims = list(range(len(rows.axes)) if dims is None else [dims] if isinstance(dims, int) else dims)
    check_features(node, rows, dims)
    return rows, dims


def indexed(low: Lowering, node: Node, rows: Rows, table: np.ndarray, dims: Sequence[int] = ()) -> Rows:
    """Features of ``rows`` in the order and shape of ``table``; ``dims`` are the axes that change."""
    check_features(node, rows, dims)
    axes = tuple((None,) if axis == (None,) else (n,) for axis, n in zip(rows.axes, table.shape, strict=True))
    if table.size == 0 or any(axis == (None,) and n != 1 for axis, n in zip(rows.axes, table.shape, strict=True)):
        raise Unsupported(f"operator {node.target} across samples")
    return Rows(low.gather(rows.tile, table), axes)
