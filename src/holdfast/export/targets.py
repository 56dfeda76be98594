"""Which exporter writes which file: by its suffix.

A new one is one more entry of ``TARGETS``. It is looked up in ``holdfast.export`` when it is asked for, so that nothing
which only another target needs is imported.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import SettingError
from holdfast.export.report import Report
from holdfast.runs.load import load_run

__all__ = ["TARGETS", "Target", "export_run"]


@dataclasses.dataclass(frozen=True)
class Target:
    """An exporter.

    Args:
        function: its name in ``holdfast.export``: called with a model, a path, ``force`` and the options.
        use: when to choose it, in a few words.
        options: the ones it takes, by the words of ``export_run``.
        fixed: options that a command always gives.

    Example:
        >>> TARGETS[".onnx"].function
        'onnx'
    """

    function: str
    use: str
    options: frozenset[str] = frozenset()
    fixed: tuple[tuple[str, Any], ...] = ()


TARGETS = {
    ".onnx": Target("onnx", "a server, a phone or a browser, with ONNX Runtime", frozenset({"name"})),
    ".c": Target("c", "a microcontroller: one C99 file and its header", frozenset({"name", "int8", "calibrate"})),
    ".pt2": Target("torch_program", "Python with PyTorch, without Holdfast", fixed=(("decompose", True),)),
}
"""Targets by the suffix of their file."""

_FLAGS = {"name": "--name", "int8": "--int8", "calibrate": "--data"}


def export_run(
    folder: str | Path,
    to: str | Path,
    *,
    which: Literal["best", "last"] | None = None,
    name: str | None = None,
    int8: bool = False,
    calibrate: Path | None = None,
    force: bool = False,
) -> Report:
    """Write the model of a run for another machine: what ``holdfast export`` does.

    Args:
        folder: of the run.
        to: the file to write; its suffix chooses the target.
        which: the weights, as in ``load_run``.
        name: of the graph, or the prefix of all names in C.
        int8: for C, matrices in int8.
        calibrate: for C with ``int8``, a file like the training file.
        force: overwrite an existing file.

    Example:
        >>> export_run("runs/mine", "model.tflite")
        Traceback (most recent call last):
        holdfast.errors.SettingError: An export expects a file that ends in .onnx, .c or .pt2, got model.tflite...
    """
    to = Path(to)
    target = TARGETS.get(to.suffix.lower())
    if target is None:
        *most, last = TARGETS
        uses = "; ".join(f"{suffix}: {one.use}" for suffix, one in TARGETS.items())
        raise SettingError(
            f"An export expects a file that ends in {', '.join(most)} or {last}, got {to}. Choose one: {uses}."
        )
    given = {"name": name, "int8": int8, "calibrate": calibrate}
    options: dict[str, Any] = {word: value for word, value in given.items() if value}
    if unknown := [_FLAGS[word] for word in options if word not in target.options]:
        takers = [suffix for suffix, one in TARGETS.items() if set(options) <= one.options]
        raise SettingError(
            f"{unknown[0]} has no meaning for {to.suffix} files; leave it out, or write a file that ends in "
            f"{' or '.join(takers)}."
        )
    if calibrate is not None and not int8:
        raise SettingError("--data is for choosing the scales of int8; add --int8, or leave --data out.")
    try:
        run, options = load_run(folder, which), options | dict(target.fixed)
        return getattr(importlib.import_module("holdfast.export"), target.function)(run, to, force=force, **options)
    except SettingError as error:
        raise SettingError(str(error).replace("pass force=True", "add --force")) from None
