"""Output on stdout: tables as wide as the terminal, numbers, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from holdfast.cli._verb import is_main_process

__all__ = ["interval_text", "number", "show", "show_json", "show_table"]


def show(text: str = "") -> None:
    """Print text."""
    if is_main_process():
        typer.echo(text)


def show_json(value: Any) -> None:
    """Print JSON."""
    show(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def show_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", left: Sequence[str] = ()
) -> None:
    """Print a table; the first column and those in ``left`` are left-aligned. Nothing is cut off."""
    if not is_main_process():
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, caption=caption or None, title_justify="left", caption_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 or name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a name are not markup
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 160))  # a file or a pipe has no width
    console.print(table)


def interval_text(count: int | None, interval: tuple[float, float] | None) -> str:
    """How far an accuracy can be trusted.

    Example:
        >>> interval_text(9, (0.565, 0.98))
        'n = 9, 95% interval 0.565 to 0.98'
    """
    return "" if not interval else f"n = {count:,}, 95% interval {number(interval[0], 3)} to {number(interval[1], 3)}"


def number(value: float | None, digits: int = 5) -> str:
    """A score with this many significant digits; a dash if there is none.

    Example:
        >>> number(0.0350312), number(None), number(93.4)
        ('0.035031', '-', '93.4')
    """
    return "-" if value is None else f"{value:.{digits}g}"
