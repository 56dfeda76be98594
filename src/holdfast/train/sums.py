"""SHA256SUMS: what the files of a run folder were when they were written.

    while a run goes on    settings.json, preparation.json                                                (1)
    when it has ended      and model.json, log.jsonl, both checkpoints, choice.json, outcome.json         (2)

The form is that of ``sha256sum``, so ``sha256sum -c SHA256SUMS`` checks a folder too. The first line is a comment with
the digest of the lines below it: a damaged SHA256SUMS is an error as well. While a run goes on, its last checkpoint
vouches for the log and for the best checkpoint, and each checkpoint for itself. Every line of ``times.jsonl`` (the
clock) has a check of its own, ``environment.json`` is never read back.

A folder of an older Holdfast has no SHA256SUMS and is read unchecked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import CheckpointError
from holdfast.files import sha256_of, write_atomically

__all__ = [
    "BEST",
    "CHOICE",
    "LAST",
    "LOG",
    "MODEL",
    "NAME",
    "OUTCOME",
    "PREPARATION",
    "SETTINGS",
    "check",
    "check_log",
    "read",
    "write",
]

NAME = "SHA256SUMS"
SETTINGS, PREPARATION, MODEL, LOG, LAST, BEST, CHOICE, OUTCOME = (
    "settings.json",
    "preparation.json",
    "model.json",
    "log.jsonl",
    "last.safetensors",
    "best.safetensors",
    "choice.json",
    "outcome.json",
)
_FILES = (SETTINGS, PREPARATION, MODEL, LOG, LAST, BEST, CHOICE, OUTCOME)
_COMMENT = "# SHA-256 of the lines below: "
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({'|'.join(map(re.escape, _FILES))})")


def read(folder: Path | str) -> dict[str, str] | None:
    """The digests in ``folder``, by the name of the file; None if there is no SHA256SUMS.

    Example:
        >>> import tempfile
        >>> read(tempfile.mkdtemp()) is None
        True
    """
    path = Path(folder) / NAME
    try:
        text = path.read_bytes().decode("ascii")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; change its permissions.") from None
    except UnicodeDecodeError:
        raise _damaged(path) from None
    lines = text.split("\n")
    if lines[0].startswith(_COMMENT):  # sha256sum itself writes none
        comment, text = lines[0], text.partition("\n")[2]
        if comment != _comment(text):
            raise _damaged(path)
        lines = lines[1:]
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    entries = {match[2]: match[1] for match in found if match is not None}
    if lines[-1] or len(entries) != len(lines) - 1:  # a cut line, a strange one, or a name twice
        raise _damaged(path)
    return entries


def write(folder: Path | str, digests: Mapping[str, str]) -> None:
    """Write ``digests``, whole or not at all.

    Example:
        >>> import tempfile
        >>> write(folder := tempfile.mkdtemp(), {"log.jsonl": "0" * 64})
        >>> read(folder)["log.jsonl"][:4]
        '0000'
    """
    lines = "".join(f"{digests[name]}  {name}\n" for name in _FILES if name in digests)
    write_atomically(Path(folder) / NAME, f"{_comment(lines)}\n{lines}")


def check(folder: Path | str, *names: str) -> None:
    """See that files are what they were when they were written, as far as SHA256SUMS tells.

    Raises:
        CheckpointError: one of them is not, or SHA256SUMS is damaged, or it is missing from a run that has ended.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "log.jsonl").write_text("changed")
        >>> write(folder, {"log.jsonl": "0" * 64})
        >>> check(folder, "log.jsonl")
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: ...log.jsonl is damaged or comes from another run: expected ...
    """
    folder = Path(folder)
    entries = read(folder)
    if entries is None:
        if any((folder / name).is_file() for name in (CHOICE, OUTCOME)) and any(
            _has_checksum(folder / name) for name in (LAST, BEST)
        ):
            raise CheckpointError(
                f"{folder / NAME} is missing, so the files of this run cannot be checked. Put the file back. "
                f"{_again(folder)}"
            )
        return
    for name in (CHOICE, OUTCOME):
        if name not in entries and (folder / name).is_file():
            raise CheckpointError(
                f"{folder / NAME} has no digest of {name}: it was written before the run ended, or comes from another "
                f"run. Put the file back. {_again(folder)}"
            )
    for name in names:
        path = folder / name
        if name in (SETTINGS, PREPARATION, MODEL) and name in entries and not path.is_file():
            raise CheckpointError(f"{path} is missing, and the run began with it, as {NAME} tells. {_ADVICE[name]}")
        if name in entries and path.is_file() and (found := sha256_of(path)) != entries[name]:
            raise CheckpointError(
                f"{path} is damaged or comes from another run: expected the SHA-256 digest {entries[name][:12]}…, as "
                f"{NAME} has it, got {found[:12]}…. {_ADVICE[name]}"
            )


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


_ADVICE = {
    SETTINGS: "Put the file back, or start a new run in another folder.",
    PREPARATION: "Put the file back, or start a new run in another folder.",
    MODEL: "Put the file back, or remove it: it is made again.",
    LOG: "Put the file back, or start a new run in another folder.",
    LAST: f"Put the file back; {BEST} is a checkpoint of its own.",
    BEST: f"Put the file back; {LAST} is a checkpoint of its own.",
    CHOICE: "Put the file back, or remove it: resuming the run makes it again.",
    OUTCOME: f"Put the file back, or remove it: resuming makes it again from {LAST}.",
}


def _comment(lines: str) -> str:
    return f"{_COMMENT}{hashlib.sha256(lines.encode()).hexdigest()}"


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: expected lines of a digest and the name of a file of a run. Put the file back. "
        f"{_again(path.parent)}"
    )


def _again(folder: Path) -> str:
    present = " ".join(name for name in _FILES if (folder / name).is_file())
    return f"If you are sure that the other files are right, make it again there: sha256sum {present} > {NAME}"


def _has_checksum(checkpoint: Path) -> bool:
    """Whether a checkpoint is of a Holdfast that writes SHA256SUMS too; its header begins with the digest."""
    try:
        with checkpoint.open("rb") as file:
            return rb"\"sha256\": \"" in file.read(1 << 10)
    except OSError:
        return False
