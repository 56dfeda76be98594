"""Everything a run needs to go on, in one file that cannot run code.

A checkpoint is a safetensors file: a header of JSON and raw numbers behind it. A tree of dicts, lists and tuples keeps
its shape in the header; its tensors are named by where they hang. Nothing is pickled, so loading executes nothing. The
plain safetensors library reads the tensors.

Note [Checksum]: the header holds the SHA-256 digest of the whole file, taken with zeros in the digest's own place. It
covers every byte, so any change is noticed before a tensor is made. Version 1, of Holdfast before there were checksums,
has none: it loads with an ``UncheckedWarning``, and the next save writes version 2.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError, MissingExtraError, UncheckedWarning
from holdfast.files import sha256_of, write_atomically
from holdfast.train import sums

__all__ = [
    "check_best",
    "check_data",
    "check_place",
    "load",
    "load_model_",
    "put_weights_",
    "random_states",
    "save",
    "seed_all",
    "set_random_states",
]

_KEY = "holdfast"
_VERSION = 2
_EMPTY = "0" * 64
_DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')  # JSON inside of JSON, hence the backslashes


def save(path: Path | str, tree: Mapping[str, Any]) -> str:
    """Write a tree of numbers, strings, None, tensors, dicts, lists and tuples to ``path``, whole or not at all.

    Returns:
        The SHA-256 digest of the file, as ``sha256sum`` has it.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written; what was there before stays.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
        >>> _ = save(path, {"update": 7, "weights": {"w": torch.arange(2)}, "range": (0.1, None)})
        >>> load(path)
        {'update': 7, 'weights': {'w': tensor([0, 1])}, 'range': (0.1, None)}
    """
    tensors: dict[str, Tensor] = {}
    header = {"version": _VERSION, "sha256": _EMPTY, "tree": _strip(tree, "", tensors)}
    data = _safetensors().save(tensors, metadata={_KEY: json.dumps(header)})
    place = _place(data)
    assert place is not None
    data = data[: place[0]] + hashlib.sha256(data).hexdigest().encode() + data[place[1] :]
    try:
        write_atomically(path, data)
    except OSError as error:
        kept = "the one before it is intact" if Path(path).exists() else "there is none before it"
        raise CheckpointError(
            f"Could not write the checkpoint {path} ({len(data):,} bytes): {error.strerror or error}; {kept}."
        ) from error
    return hashlib.sha256(data).hexdigest()


def load(path: Path | str) -> dict[str, Any]:
    """The tree that ``save`` wrote, or an error: a file with any byte changed since is never loaded.

    Raises:
        CheckpointError: the file is damaged; the message names the run's other checkpoint if that one is intact. Or it
            is of another kind: a pickle is refused unread.

    Warns:
        UncheckedWarning: the file is of an older Holdfast and holds no checksum.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.pt"
        >>> torch.save({"w": torch.ones(2)}, path)
        >>> load(path)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: ... is not a Holdfast checkpoint ...
    """
    path = Path(path)
    data = _read(path)
    try:
        tree, checked = _opened(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}{_still_good(path)}") from None
    if not checked:
        warnings.warn(
            f"{path} was written by an older Holdfast and holds no checksum, so damage to it cannot be noticed. "
            "Resuming the run writes a checkpoint that has one.",
            UncheckedWarning,
            stacklevel=2,
        )
    return tree


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {path}.") from None
    except OSError as error:
        raise CheckpointError(f"Could not read the checkpoint {path}: {error.strerror or error}.") from error


def _opened(data: bytes) -> tuple[dict[str, Any], bool]:
    """The tree in the bytes of a checkpoint, and whether a checksum vouches for it."""
    safetensors = _safetensors()
    place = _place(data)
    if place is not None:
        begin, end = place
        found = hashlib.sha256(data[:begin] + _EMPTY.encode() + data[end:]).hexdigest()
        if found != (expected := data[begin:end].decode()):
            raise CheckpointError(
                f"is damaged: its checksum is {expected[:12]}…, but the checksum of its contents is {found[:12]}…."
            )
    try:
        header = json.loads(json.loads(data[8 : _header_end(data)])["__metadata__"][_KEY])
        version = header["version"]
        if version not in (1, _VERSION):
            raise CheckpointError(f"is a checkpoint of version {version}; this Holdfast reads 1 and {_VERSION}.")
        if (version == 1) != (place is None):
            raise CheckpointError(f"is damaged: its version is {version} and its checksum cannot be found.")
        tree = _dress(header["tree"], safetensors.load(data))
    except CheckpointError:
        raise
    except Exception as error:  # what damaged bytes raise in the readers is a long list and changes with their versions
        raise CheckpointError(
            f"is not a Holdfast checkpoint, or is damaged ({type(error).__name__}: {error}). Checkpoints are "
            "safetensors files; pickled ones (.pt, .pth) are never opened, since they can run code."
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"is not a Holdfast checkpoint: its tree is a {type(tree).__name__}.")
    return tree, place is not None


def _place(data: bytes) -> tuple[int, int] | None:
    """Where the digest stands in the header; None if there is none."""
    found = _DIGEST.search(data, 8, _header_end(data))
    return None if found is None else found.span(1)


def _header_end(data: bytes) -> int:
    return min(len(data), 8 + int.from_bytes(data[:8], "little"))


def _still_good(path: Path) -> str:
    """A sentence about the run's other checkpoint, if it is intact."""
    for name in (sums.LAST, sums.BEST):
        other = path.with_name(name)
        if path.name in (sums.LAST, sums.BEST) and name != path.name and other.is_file():
            try:
                tree, checked = _opened(_read(other))
            except CheckpointError:
                continue
            state = "is intact" if checked else "can be read, but has no checksum"
            update = (tree if name == sums.BEST else tree.get("position", {})).get("update", "unknown")
            advice = (
                f"Load it with which='best' (--which best), or remove {path.name} to train again from the start."
                if name == sums.BEST
                else "Load it with which='last' (--which last), or train again in another folder."
            )
            return f" The other checkpoint, {other} (update {update}), {state}. {advice}"
    return ""


def load_model_(model: nn.Module, path: Path | str) -> dict[str, Any]:
    """Put the weights of a checkpoint into ``model``; return the checkpoint. Weights that do not fit change nothing.

    Example:
        >>> import tempfile
        >>> path, model = Path(tempfile.mkdtemp()) / "best.safetensors", nn.Linear(2, 1)
        >>> _ = save(path, {"model": model.state_dict()})
        >>> torch.equal(load_model_(other := nn.Linear(2, 1), path)["model"]["weight"], other.weight)
        True
    """
    path = Path(path)
    before = _stamp(path)
    try:
        tree = load(path)
        check_best(path, tree)
    except CheckpointError:
        if _stamp(path) == before:
            raise
        tree = load(path)  # a run that goes on has just replaced it, and the files were read as they changed
        check_best(path, tree)
    put_weights_(model, tree, path)
    return tree


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def put_weights_(model: nn.Module, tree: Mapping[str, Any], path: Path | str) -> None:
    """Put the weights of a loaded checkpoint into ``model``; ``path`` is for errors.

    Example:
        >>> put_weights_(nn.Linear(2, 1), {"model": {}}, "last.safetensors")
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: last.safetensors does not fit this model: bias is only in the model.
    """
    theirs, ours = tree.get("model"), model.state_dict()
    if not isinstance(theirs, dict) or not all(isinstance(value, Tensor) for value in theirs.values()):
        raise CheckpointError(f"{path} holds no model.")
    for name in sorted(theirs.keys() ^ ours.keys()):
        where = "the file" if name in theirs else "the model"
        raise CheckpointError(f"{path} does not fit this model: {name} is only in {where}.")
    for name, weight in ours.items():
        if theirs[name].shape != weight.shape:
            came, wanted = tuple(theirs[name].shape), tuple(weight.shape)
            raise CheckpointError(f"{path} does not fit this model: {name} has shape {came}, expected {wanted}.")
    model.load_state_dict(theirs)


def check_place(path: Path, tree: Mapping[str, Any]) -> None:
    """See that a checkpoint of a run lies under its own name and beside its own settings and log.

    Raises:
        CheckpointError: the best checkpoint is called last or the other way round, or ``settings.json`` or the log is
            not that of its run. A checkpoint that was copied away alone, under whatever name, is fine.

    Example:
        >>> check_place(Path("last.safetensors"), {"role": "best"})
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: Expected last.safetensors to be the last checkpoint of a run, ...
    """
    role = tree.get("role")
    if role is not None and path.name in (sums.LAST, sums.BEST) and path.stem != role:
        raise CheckpointError(
            f"Expected {path} to be the {path.stem} checkpoint of a run, but it is a copy of the {role} one. Put the "
            f"file back, or use {path.with_name(f'{role}.safetensors')}."
        )
    settings, expected = path.with_name(sums.SETTINGS), tree.get("settings")
    if expected and settings.is_file() and (found := sha256_of(settings)) != expected:
        raise CheckpointError(
            f"{settings} is not the file that the run of {path.name} began with: expected the SHA-256 digest "
            f"{expected[:12]}…, got {found[:12]}…. One of the two files was changed or comes from another run: put it "
            "back, or start a new run in another folder."
        )
    sums.check(path.parent, path.name)
    log, position = path.with_name(sums.LOG), tree.get("position", {})
    if path.name == sums.LAST and role is not None and log.is_file():
        sums.check_log(log, position.get("log_position", 0), position.get("log_sha256", ""))


def check_best(path: Path, tree: Mapping[str, Any]) -> None:
    """See that the best checkpoint of a run is the one that its last checkpoint knows, or a newer one.

    Raises:
        CheckpointError: it is older, or of another run.

    Example:
        >>> check_best(Path("weights.safetensors"), {})  # not in a run's folder
    """
    check_place(path, tree)
    last = path.with_name(sums.LAST)
    if tree.get("role") != "best" or path.name != sums.BEST or not last.is_file():
        return
    try:
        position = _opened(_read(last))[0].get("position", {})
    except CheckpointError:
        return  # the best one is good in itself
    known, update = position.get("best_sha256"), position.get("update", 0)
    if known and tree.get("update", 0) <= update and sha256_of(path) != known:
        raise CheckpointError(
            f"{path} (update {tree.get('update')}) is not the best checkpoint that {last} knows (update "
            f"{position.get('best_update')}): it is older, or comes from another run. Put the file back, or use {last}."
        )


def check_data(path: Path, tree: Mapping[str, Any], task: Any) -> None:
    """See that a task that knows the digest of its file (``sha256``) reads the one that a checkpoint was trained on.

    Example:
        >>> class Task:
        ...     sha256 = "b" * 64
        >>> check_data(Path("runs/a/last.safetensors"), {"data": "a" * 64}, Task())
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: The data of the run in runs/a has changed: expected a file with ...
    """
    before, now = tree.get("data"), getattr(task, "sha256", "")
    if before and now and before != now:
        raise CheckpointError(
            f"The data of the run in {path.parent} has changed: expected a file with the SHA-256 digest "
            f"{before[:12]}…, as {path.name} has it, got {now[:12]}…. Put the file back, or start a new run in another "
            "folder."
        )


def random_states() -> dict[str, Any]:
    """The states of every generator that a run may draw from: Python's, NumPy's, PyTorch's and each GPU's.

    Example:
        >>> states = random_states()
        >>> before = torch.rand(1), random.random()
        >>> set_random_states(states)
        >>> before == (torch.rand(1), random.random())
        True
    """
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def seed_all(seed: int) -> None:
    """Begin every generator of ``random_states`` from one number.

    Example:
        >>> seed_all(3)
        >>> before = torch.rand(1)
        >>> seed_all(3)
        >>> torch.equal(torch.rand(1), before)
        True
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed % 2**63)


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put every generator back to where ``random_states`` found it.

    Example:
        >>> set_random_states(random_states())
    """
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


# -- a tree as JSON and tensors --------------------------------------------------------------------------------------


def _strip(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON, its tensors put aside. What JSON has no word for is a list that begins with a tag."""
    if isinstance(node, Tensor):
        tensors[name] = node.detach().cpu().contiguous().clone()  # a clone: tied weights share memory, files do not
        return ["tensor", name]
    if isinstance(node, Mapping):
        items = [
            [_strip(key, "", {}), _strip(value, f"{name}.{key}".lstrip("."), tensors)] for key, value in node.items()
        ]
        return ["dict", items]
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return [kind, [_strip(value, f"{name}.{index}", tensors) for index, value in enumerate(node)]]
    if isinstance(node, float) and not math.isfinite(node):
        return ["float", str(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise CheckpointError(f"A checkpoint cannot hold {name}: {type(node).__name__} {node!r}.")


def _dress(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, list):
        if isinstance(node, dict):
            raise ValueError("a bare object in the tree")
        return node
    kind, content = node
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {_dress(key, tensors): _dress(value, tensors) for key, value in content}
        case "list":
            return [_dress(value, tensors) for value in content]
        case "tuple":
            return tuple(_dress(value, tensors) for value in content)
        case "float":
            return float(content)
        case _:
            raise ValueError(f"unknown tag {kind!r} in the tree")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingExtraError("Checkpoints need safetensors: pip install 'holdfast[train]'.") from None
    return safetensors.torch
