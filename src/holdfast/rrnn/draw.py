"""Trees as text and as SVG, like Figures 1, 3 and 4 of S1, without a library. The same trees give the same bytes."""

from __future__ import annotations

import html
from collections.abc import Sequence

from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS
from holdfast.rrnn.tree import Tree

__all__ = ["tree_svg", "tree_text"]

_WIDE, _HIGH, _RADIUS, _MARGIN, _CAPTION = 46, 58, 17, 26, 34  # pixels: a leaf's column, a level, a node, around, below
_INNER, _LEAF, _LINE = "#dbe9f6", "#f3efe0", "#4d4d4d"


def _label(tree: Tree) -> str:
    symbol, function = OPERATORS[tree.operator].symbol, ACTIVATIONS[tree.activation].symbol
    return symbol if tree.activation == "identity" else f"{function} {symbol}"


def tree_text(tree: Tree | str) -> str:
    """A tree as lines; a number in brackets is the tuple, from 1.

    Example:
        >>> print(tree_text(Tree("mul", "identity", 3, "h", Tree("add", "sigmoid", 0, "x", "h"))))
        ⊙ [4]
        ├─ h
        └─ σ + [1]
           ├─ x
           └─ h
    """
    if isinstance(tree, str):
        return tree
    lines = [_label(tree) + ("" if tree.index is None else f" [{tree.index + 1}]")]
    for child, first, rest in ((tree.left, "├─ ", "│  "), (tree.right, "└─ ", "   ")):
        head, *tail = tree_text(child).split("\n")
        lines += [first + head, *(rest + line for line in tail)]
    return "\n".join(lines)


def tree_svg(trees: Sequence[Tree], captions: Sequence[str] = (), title: str = "") -> str:
    """Trees side by side as an SVG picture: the operator in a node, its activation above, its tuple below.

    Args:
        trees: to draw.
        captions: one line under each tree.
        title: one line above all trees.

    Example:
        >>> picture = tree_svg([Tree("add", "tanh", None, "x", "h")], ["12 of 40"])
        >>> picture.startswith("<svg"), picture.count("<circle"), "12 of 40" in picture
        (True, 1, True)
    """
    head = 30 if title else 0
    shapes, left, high = [], float(_MARGIN), 0
    for number, tree in enumerate(trees):
        caption = captions[number] if number < len(captions) else ""
        width = max(_leaves(tree) * _WIDE, 7.2 * len(caption))
        inset = (width - _leaves(tree) * _WIDE) / 2
        shapes += _shapes(tree, left + inset, head + _MARGIN)[0]
        bottom = head + _MARGIN + (tree.depth + 1) * _HIGH
        shapes.append(_words(left + width / 2, bottom, caption, 12, "#222222"))
        left, high = left + width + _MARGIN, max(high, bottom)
    wide, high = max(left, 40.0), high + _CAPTION
    if title:
        shapes.insert(0, _words(wide / 2, 24, title, 15, "#111111"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" viewBox="0 0 {wide:g} {high:g}" '
        f'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>\n'
    )


def _leaves(tree: Tree | str) -> int:
    return 1 if isinstance(tree, str) else sum(map(_leaves, tree.children))


def _words(x: float, y: float, text: str, size: int, colour: str) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="middle">{html.escape(text)}</text>'
        if text
        else ""
    )


def _shapes(tree: Tree | str, left: float, top: float) -> tuple[list[str], float]:
    """What to draw, lines first, and the position of the root."""
    if isinstance(tree, str):
        x = left + _WIDE / 2
        box = f'<rect x="{x - 15:g}" y="{top - 12:g}" width="30" height="24" rx="4" fill="{_LEAF}" stroke="{_LINE}"/>'
        return [box, _words(x, top + 5, tree, 13, "#111111")], x
    below, begin, roots = [], left, []
    for child in tree.children:
        shapes, root = _shapes(child, begin, top + _HIGH)
        below += shapes
        roots.append(root)
        begin += _leaves(child) * _WIDE
    x = sum(roots) / 2
    lines = [
        f'<line x1="{x:g}" y1="{top:g}" x2="{root:g}" y2="{top + _HIGH:g}" stroke="{_LINE}" stroke-width="1.2"/>'
        for root in roots
    ]
    node = [
        f'<circle cx="{x:g}" cy="{top:g}" r="{_RADIUS}" fill="{_INNER}" stroke="{_LINE}"/>',
        _words(x, top + 6, OPERATORS[tree.operator].symbol, 17, "#111111"),
    ]
    if tree.activation != "identity":
        node.append(_words(x - _RADIUS - 4, top - 10, ACTIVATIONS[tree.activation].symbol, 12, "#8a2a2a"))
    if tree.index is not None:
        node.append(_words(x + _RADIUS + 5, top + 14, str(tree.index + 1), 10, "#2a5a8a"))
    return [*lines, *below, *node], x
