"""A run's log: one JSON object a line, cut back to the last checkpoint when a run goes on.

``log.jsonl`` holds what is the same in every run of the same settings; ``times.jsonl`` holds the clock, which is not.

Note [Check]: a line of either file ends with ``"check"``, eight digits of the SHA-256 digest of the check before it and
of the line up to there. So a line that was changed, repeated, moved or brought in from another log is noticed. That
lines are missing at the end is noticed by the digests in the checkpoint and in SHA256SUMS; for the clock it is not, and
costs some seconds. Lines of an older Holdfast have no check; they may only come first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError
from holdfast.train import checkpoint, sums

__all__ = ["Clock", "Log", "read_log"]


class Log:
    """Append to ``path``; ``position`` is where the next line begins, and belongs into the checkpoint.

    Args:
        path: of the log.
        position: bytes to keep: what was written after the checkpoint is written again.
        sha256: the digest of those bytes; empty if it is not known.

    Example:
        >>> import tempfile
        >>> log = Log(Path(tempfile.mkdtemp()) / "log.jsonl", position=0)
        >>> log.write({"update": 1, "loss": float("nan")})
        >>> log.position, read_log(log.path)
        (49, [{'update': 1, 'loss': None}])
    """

    def __init__(self, path: Path, position: int, sha256: str = ""):
        self.path, self.position = path, position
        if not path.exists() and position == 0:
            path.touch()
        kept = sums.check_log(path, position, sha256)
        self._hash, self._check = hashlib.sha256(kept), _entries(path, kept, "log")[1]
        os.truncate(path, position)

    @property
    def sha256(self) -> str:
        """The digest of all lines so far; it belongs into the checkpoint."""
        return self._hash.hexdigest()

    def write(self, entry: dict[str, Any]) -> None:
        line, self._check = _checked(entry, self._check)
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that counts on this line must not reach the disk before it
        self._hash.update(line)
        self.position += len(line)


def read_log(path: Path | str) -> list[dict[str, Any]]:
    r"""Every entry of a log. A last line that a crash cut short is left out.

    Raises:
        CheckpointError: the log is not what the run wrote: SHA256SUMS or the last checkpoint beside it has another
            digest, or a line is not JSON.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> _ = path.write_text('{"update": 1}\n{"upd')
        >>> read_log(path)
        [{'update': 1}]
    """
    path = Path(path)
    if path.name == sums.LOG:
        sums.check(path.parent, sums.LOG)
        last = path.with_name(sums.LAST)
        if last.is_file() and not (path.parent / sums.OUTCOME).exists():
            checkpoint.check_place(last, checkpoint.load(last))
    return _entries(path, path.read_bytes(), "log")[0]


class Clock:
    """Seconds of training in all sittings, kept beside the log so that the checkpoint stays free of the clock.

    ``seconds`` passed by the clock, ``cpu_seconds`` were spent by this process in all its threads; None in a run that
    an older Holdfast began.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            entries, self._check = _entries(path, path.read_bytes() if path.exists() else b"", "times")
            last = entries[-1] if entries else {"seconds": 0.0, "cpu_seconds": 0.0}
            self.before, spent = float(last["seconds"]), last.get("cpu_seconds")
            self.cpu_before = None if spent is None else float(spent)
        except (CheckpointError, KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"{path} is damaged; put the file back, or remove it to count the time of this run from 0."
            ) from None
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.begin

    @property
    def cpu_seconds(self) -> float | None:
        return None if self.cpu_before is None else self.cpu_before + time.process_time() - self.cpu_begin

    def trim(self) -> None:
        """Cut off a last line that a crash cut short, so that the next one begins on a line of its own."""
        if self.path.exists():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def write(self, update: int) -> None:
        entry: dict[str, Any] = {"update": update, "seconds": round(self.seconds, 3)}
        if (spent := self.cpu_seconds) is not None:
            entry["cpu_seconds"] = round(spent, 3)
        line, self._check = _checked(entry, self._check)
        with open(self.path, "ab") as file:
            file.write(line)


def _checked(entry: dict[str, Any], before: str) -> tuple[bytes, str]:
    """A line with its check, and the check: see Note [Check]."""
    body = json.dumps(_finite(entry), allow_nan=False)[:-1].encode()
    check = _check(before, body)
    return body + f', "check": "{check}"}}\n'.encode(), check


def _check(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:8]


def _entries(path: Path, data: bytes, kind: str) -> tuple[list[dict[str, Any]], str]:
    """The whole lines of a log as entries, and the last check; the check before the first line is ``kind``."""
    entries, last = [], kind
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged: line {number} is not JSON ({error}); put the file back."
            ) from None
        body, found, _ = line.rpartition(b', "check": "')
        if not found and last == kind and _is_old(entry):
            pass
        elif not found or not isinstance(entry, dict) or entry.pop("check", None) != (last := _check(last, body)):
            raise CheckpointError(
                f"{path} is damaged: line {number} does not match its check; put the file back, or start a new run in "
                "another folder."
            )
        entries.append(entry)
    return entries, last


def _is_old(entry: Any) -> bool:
    """Whether this may be a line of an older Holdfast: those hold no texts, so an unreadable check is not one."""
    return isinstance(entry, dict) and not any(isinstance(value, str) for value in entry.values())


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
