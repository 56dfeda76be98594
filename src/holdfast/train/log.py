"""A run's log: one JSON object a line, cut back to the last checkpoint when a run goes on.

``log.jsonl`` holds what is the same in every run of the same settings; ``times.jsonl`` holds the clock, which is not.
The checkpoint holds the digest of the log up to its position, and SHA256SUMS that of the whole log of a run that has
ended. A line of ``times.jsonl`` ends with the CRC-32 of what stands before it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import time
import zlib
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
        (28, [{'update': 1, 'loss': None}])
    """

    def __init__(self, path: Path, position: int, sha256: str = ""):
        self.path, self.position = path, position
        if not path.exists() and position == 0:
            path.touch()
        self._hash = hashlib.sha256(check_log(path, position, sha256))
        os.truncate(path, position)

    @property
    def sha256(self) -> str:
        """The digest of all lines so far; it belongs into the checkpoint."""
        return self._hash.hexdigest()

    def write(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(_finite(entry), allow_nan=False) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that counts on this line must not reach the disk before it
        self._hash.update(line)
        self.position += len(line)


def check_log(path: Path, position: int, sha256: str = "") -> bytes:
    """The first ``position`` bytes of a log, if they are those that the checkpoint beside it was made with.

    Example:
        >>> check_log(Path("no-such-log.jsonl"), 10)
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: no-such-log.jsonl has 0 bytes, but ... when it had 10; put the file back, ...
    """
    try:
        with open(path, "rb") as file:
            kept = file.read(position)
    except FileNotFoundError:
        kept = b""
    advice = "put the file back, or start a new run in another folder."
    if len(kept) < position:
        raise CheckpointError(
            f"{path} has {len(kept)} bytes, but the checkpoint beside it was made when it had {position}; {advice}"
        )
    if sha256 and (found := hashlib.sha256(kept).hexdigest()) != sha256:
        raise CheckpointError(
            f"{path} is damaged or comes from another run: its first {position} bytes have the SHA-256 digest "
            f"{found[:12]}…, but {sha256[:12]}… when the checkpoint beside it was made; {advice}"
        )
    return kept


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
            position = checkpoint.load(last).get("position", {})
            check_log(path, position.get("log_position", 0), position.get("log_sha256", ""))
    return [_entry(path, number, line) for number, line in enumerate(_lines(path), 1)]


def _lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n")[:-1] if line]


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: line {number} is not JSON ({error}); put the file back.") from None
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path} is damaged: line {number} is {entry!r:.40}, not a table; put the file back.")
    return entry


class Clock:
    """Seconds of training in all sittings, kept beside the log so that the checkpoint stays free of the clock."""

    def __init__(self, path: Path):
        self.path, self.before = path, 0.0
        for number, line in enumerate(_lines(path) if path.exists() else [], 1):
            self.before = _seconds(path, number, line)
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.begin

    def trim(self) -> None:
        """Cut off a last line that a crash cut short, so that the next one begins on a line of its own."""
        if self.path.exists():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def write(self, update: int) -> None:
        body = json.dumps({"update": update, "seconds": round(self.seconds, 3)})[:-1]
        with open(self.path, "a") as file:
            file.write(f'{body}, "crc32": {zlib.crc32(body.encode())}}}\n')


def _seconds(path: Path, number: int, line: bytes) -> float:
    """The seconds in a line of ``times.jsonl``; lines of an older Holdfast have no checksum."""
    try:
        entry, body = json.loads(line), line.rpartition(b', "crc32": ')[0]
        if entry.keys() == {"update", "seconds"} or entry["crc32"] == zlib.crc32(body):
            return float(entry["seconds"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise CheckpointError(
        f"{path} is damaged in line {number}; put the file back, or remove it to count the time of this run from 0."
    )


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
