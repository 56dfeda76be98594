"""Progress of a run: a bar with loss, score, gradient norm and time left, or lines without a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["Bar", "Lines", "Progress", "make_progress"]

_REFRESH = 0.5  # seconds; a bar that draws itself ten times a second costs a fast loop several percent


class Progress:
    """Shows nothing: what the loop reports, for a display to override."""

    def start(self, updates: int, done: int) -> None:
        pass

    def update(self, done: int, loss: float, gradient_norm: float) -> None:
        pass

    def evaluated(self, done: int, score: str) -> None:
        pass

    def stop(self) -> None:
        pass


class Lines(Progress):
    """One line per evaluation, for a log file or a pipe; at most one in ``every`` seconds."""

    def __init__(self, label: str, every: float = 10.0):
        self.label, self.every, self.updates, self.shown = label, every, 0, -1e9

    def start(self, updates: int, done: int) -> None:
        self.updates = updates

    def evaluated(self, done: int, score: str) -> None:
        if done >= self.updates or time.monotonic() - self.shown >= self.every:
            self.shown = time.monotonic()
            print(f"{self.label}: {done}/{self.updates} updates, {score}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A rich progress bar, redrawn twice a second by the loop itself."""

    def __init__(self, label: str):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns: list[Any] = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        ]
        self.bar = RichProgress(*columns, console=Console(stderr=True), auto_refresh=False)
        self.task = self.bar.add_task(label, total=None, state="")
        self.score, self.drawn = "", 0.0

    def start(self, updates: int, done: int) -> None:
        self.bar.update(self.task, total=updates, completed=done)
        self.bar.start()

    def update(self, done: int, loss: float, gradient_norm: float) -> None:
        if time.monotonic() - self.drawn >= _REFRESH:
            self.drawn = time.monotonic()
            state = f"loss {loss:.4g}  gradient {gradient_norm:.2g}  {self.score}"
            self.bar.update(self.task, completed=done, state=state, refresh=True)

    def evaluated(self, done: int, score: str) -> None:
        self.score = score
        self.bar.update(self.task, completed=done, state=score, refresh=True)

    def stop(self) -> None:
        self.bar.stop()


def make_progress(label: str, wanted: bool) -> Progress:
    """A bar on a terminal, lines elsewhere, nothing when not wanted.

    Example:
        >>> type(make_progress("sgornn", wanted=False)).__name__
        'Progress'
    """
    if not wanted:
        return Progress()
    if not sys.stderr.isatty():
        return Lines(label)
    try:
        return Bar(label)
    except ImportError:
        return Lines(label)
