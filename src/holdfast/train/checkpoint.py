"""Everything a run needs to go on, in one file that cannot run code.

A checkpoint is a safetensors file: a header of JSON and raw numbers behind it. A tree of dicts, lists and tuples keeps
its shape in the header; its tensors are named by where they hang. Nothing is pickled, so loading executes nothing.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError, MissingExtraError
from holdfast.files import write_atomically

__all__ = ["load", "load_model_", "random_states", "save", "seed_all", "set_random_states"]

_KEY = "holdfast"
_VERSION = 1


def save(path: Path | str, tree: Mapping[str, Any]) -> None:
    """Write a tree of numbers, strings, None, tensors, dicts, lists and tuples to ``path``, whole or not at all.

    Raises ``CheckpointError`` when the disk is full or the folder cannot be written; what was there before stays.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
        >>> save(path, {"update": 7, "weights": {"w": torch.arange(2)}, "range": (0.1, None)})
        >>> load(path)
        {'update': 7, 'weights': {'w': tensor([0, 1])}, 'range': (0.1, None)}
    """
    tensors: dict[str, Tensor] = {}
    header = {"version": _VERSION, "tree": _strip(tree, "", tensors)}
    data = _safetensors().save(tensors, metadata={_KEY: json.dumps(header)})
    try:
        write_atomically(path, data)
    except OSError as error:
        kept = "the one before it is intact" if Path(path).exists() else "there is none before it"
        raise CheckpointError(
            f"Could not write the checkpoint {path} ({len(data):,} bytes): {error.strerror or error}; {kept}."
        ) from error


def load(path: Path | str) -> dict[str, Any]:
    """The tree that ``save`` wrote. Any other file, a pickle among them, is refused unread with ``CheckpointError``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.pt"
        >>> torch.save({"w": torch.ones(2)}, path)
        >>> load(path)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: ... is not a Holdfast checkpoint ...
    """
    path = Path(path)
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            if header["version"] != _VERSION:
                raise CheckpointError(
                    f"{path} is a checkpoint of version {header['version']}; this Holdfast reads version {_VERSION}."
                )
            tree = _dress(header["tree"], {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {path}.") from None
    except OSError as error:
        raise CheckpointError(f"Could not read the checkpoint {path}: {error.strerror or error}.") from error
    except CheckpointError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"{path} is not a Holdfast checkpoint, or is damaged ({type(error).__name__}: {error}). Checkpoints are "
            "safetensors files; pickled ones (.pt, .pth) are never opened, since they can run code."
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} is not a Holdfast checkpoint: its tree is a {type(tree).__name__}.")
    return tree


def load_model_(model: nn.Module, path: Path | str) -> dict[str, Any]:
    """Put the weights of a checkpoint into ``model``; return the checkpoint. Weights that do not fit change nothing.

    Example:
        >>> import tempfile
        >>> path, model = Path(tempfile.mkdtemp()) / "best.safetensors", nn.Linear(2, 1)
        >>> save(path, {"model": model.state_dict()})
        >>> torch.equal(load_model_(other := nn.Linear(2, 1), path)["model"]["weight"], other.weight)
        True
    """
    tree = load(path)
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
    return tree


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
