"""A run's log: one JSON object a line, cut back to the last checkpoint when a run goes on.

``log.jsonl`` holds what is the same in every run of the same settings; ``times.jsonl`` holds the clock, which is not.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError

__all__ = ["Clock", "Log", "read_log"]


class Log:
    """Append to ``path``; ``position`` is where the next line begins, and belongs into the checkpoint.

    Example:
        >>> import tempfile
        >>> log = Log(Path(tempfile.mkdtemp()) / "log.jsonl", position=0)
        >>> log.write({"update": 1, "loss": float("nan")})
        >>> log.position, read_log(log.path)
        (28, [{'update': 1, 'loss': None}])
    """

    def __init__(self, path: Path, position: int):
        self.path, self.position = path, position
        if not path.exists() and position == 0:
            path.touch()
        size = path.stat().st_size if path.exists() else -1
        if size < position:
            raise CheckpointError(
                f"{path} has {max(size, 0)} bytes, but the checkpoint beside it was made when it had {position}; "
                "put the file back, or start a new run."
            )
        os.truncate(path, position)  # what was written after the checkpoint is written again

    def write(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(_finite(entry), allow_nan=False) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(line)
        self.position += len(line)


def read_log(path: Path | str) -> list[dict[str, Any]]:
    r"""Every entry of a log. A last line that a crash cut short is left out.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> _ = path.write_text('{"update": 1}\n{"upd')
        >>> read_log(path)
        [{'update': 1}]
    """
    lines = Path(path).read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


class Clock:
    """Seconds of training in all sittings, kept beside the log so that the checkpoint stays free of the clock."""

    def __init__(self, path: Path):
        self.path = path
        try:
            before = read_log(path)
        except (OSError, ValueError):
            before = []
        self.before = float(before[-1]["seconds"]) if before else 0.0
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.begin

    def write(self, update: int) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"update": update, "seconds": round(self.seconds, 3)}) + "\n")


class Board:
    """TensorBoard's view of the log, where TensorBoard is installed; otherwise nothing."""

    def __init__(self, folder: Path, update: int):
        self.writer: Any = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=update)

    def write(self, update: int, entry: dict[str, Any]) -> None:
        if self.writer is None:
            return
        for name, value in entry.items():
            scores = value if isinstance(value, dict) else {"": value}
            for score, number in scores.items():
                if isinstance(number, int | float) and name != "update":
                    self.writer.add_scalar(f"{name}/{score}".rstrip("/"), number, update)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _finite(node: Any) -> Any:
    """JSON has no word for NaN and infinity: None stands for them."""
    if isinstance(node, dict):
        return {key: _finite(value) for key, value in node.items()}
    return None if isinstance(node, float) and not math.isfinite(node) else node
