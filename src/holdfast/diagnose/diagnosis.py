"""The result: findings, measures and what the pictures show, as one value that is JSON too."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from holdfast.diagnose.rules import Finding
from holdfast.errors import DataError
from holdfast.files import write_atomically

__all__ = ["Diagnosis", "RowResult", "plain"]

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class RowResult:
    """One layer in one direction.

    Args:
        name: "layer 1", or "layer 1, backward".
        measures: numbers by name, None for one that could not be measured; see docs/usage/diagnose.md.
        pictures: the data of its pictures.

    Example:
        >>> import torch, holdfast
        >>> row = holdfast.diagnose(torch.nn.RNN(3, 8), torch.randn(10, 4, 3)).rows[0]
        >>> row.name, row.measures["lyapunov"] < 0
        ('layer 1', True)
    """

    name: str
    measures: dict[str, Any]
    pictures: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What ``diagnose`` returns: ``show()`` it, ``save()`` it as a page, or take ``to_json()``.

    Args:
        title: of the page.
        about: what was diagnosed, as pairs of a name and a text.
        findings: at most five, the most important first; empty for a healthy network.
        rows: one per layer and direction.
        notes: what was left out or subsampled, and why.
        samples: the sequences that pictures show, by number.
        curves: the log of a run; empty for a model.

    Example:
        >>> import torch, holdfast
        >>> diagnosis = holdfast.diagnose(torch.nn.GRU(3, 8), torch.randn(20, 4, 3))
        >>> diagnosis.findings, Diagnosis.from_json(diagnosis.to_json()) == diagnosis
        ((), True)
    """

    title: str
    about: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    rows: tuple[RowResult, ...]
    notes: tuple[str, ...]
    samples: tuple[int, ...]
    curves: tuple[dict[str, Any], ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    def to_json(self) -> str:
        """All of it as JSON; ``from_json`` reads it back."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Diagnosis:
        """A diagnosis from its JSON. It is only data: nothing in it is run."""
        try:
            table = json.loads(text)
            if table.pop("format") != _FORMAT:
                raise DataError(f"Diagnosis.from_json expects format {_FORMAT}, got another; use the same Holdfast.")
            return cls(
                str(table["title"]),
                tuple((str(name), str(value)) for name, value in table["about"]),
                tuple(Finding(**{key: str(value) for key, value in one.items()}) for one in table["findings"]),
                tuple(
                    RowResult(str(one["name"]), dict(one["measures"]), dict(one["pictures"])) for one in table["rows"]
                ),
                tuple(map(str, table["notes"])),
                tuple(map(int, table["samples"])),
                tuple(map(dict, table["curves"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"Diagnosis.from_json expects what to_json wrote, got something else ({type(error).__name__}: {error})."
            ) from None

    def save(self, path: str | Path) -> Path:
        """Write the page: one HTML file that needs no network. A path that ends in .json gets the JSON."""
        from holdfast.diagnose.page import page

        path = Path(path)
        text = self.to_json() if path.suffix == ".json" else page([self])
        try:
            write_atomically(path, text)
        except OSError as error:
            raise DataError(
                f"The page could not be written to {path}: {error.strerror}; choose a file in a folder that exists "
                "and can be written to."
            ) from None
        return path

    def show(self) -> None:
        """Print the verdict in the terminal."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.syntax import Syntax
        from rich.text import Text

        console = Console()
        if not console.is_terminal:
            console = Console(width=100)
        console.print(Text(self.title, style="bold"))
        for name, value in self.about:
            console.print(Text(f"  {name}: {value}", style="dim"))
        console.print()
        if self.healthy:
            console.print(Text("No finding. The network is healthy on these sequences.", style="bold green"))
        for number, it in enumerate(self.findings, 1):
            console.print(Text(f"{number}. {it.title}", style="bold red"))
            console.print(Padding(Text(it.sentence), (0, 0, 0, 3)))
            console.print(Padding(Text(f"Evidence: {it.evidence}.", style="dim"), (0, 0, 0, 3)))
            console.print(Padding(Text(f"What to do: {it.advice}"), (0, 0, 0, 3)))
            console.print(Padding(Syntax(it.code, "python", background_color="default", word_wrap=True), (0, 0, 0, 6)))
            if it.flags:
                console.print(Padding(Text(f"On the command line: holdfast train ... {it.flags}"), (0, 0, 0, 3)))
            console.print()
        for note in self.notes:
            console.print(Text(f"Note: {note}", style="dim"))


def plain(value: Any, digits: int = 5) -> Any:
    """Tensors, tuples and numbers as JSON has them: rounded to some digits, None for what is not finite.

    Example:
        >>> plain({"a": (1.23456789, float("nan"))})
        {'a': [1.2346, None]}
    """
    if isinstance(value, dict):
        return {str(key): plain(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, digits) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
