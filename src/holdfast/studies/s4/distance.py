"""How far training drives a truncated model's recurrent weights from the full model's: S4, Figure 3.

    ‖U_k - U_K‖₂ every few updates, both from the same start, U_K with a context of K inputs      (1)

An LSTM's U holds its four matrices one below the other. Source: S4, §7.2.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.linalg.norms import spectral_norm
from holdfast.runs.measured import Measured, measure
from holdfast.runs.settings import overridden, run_settings
from holdfast.stability import Truncated
from holdfast.studies.procedures import procedure
from holdfast.train import checkpoint
from holdfast.train.loop import run_lengths
from holdfast.train.model import SequenceModel

__all__ = ["weight_distance"]


@procedure("weight-distance", {"reference": 65, "every": 10})
def weight_distance(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    r"""Train with a context of ``cell.context`` inputs, and measure (1) on the way.

    Numbers: "distance" and "reference-norm", ‖U_K‖₂, at the end; "late", the share of the distance that was added in
    the second half of the training. The model with the context K is trained once for all runs that share its settings,
    in a folder beside theirs. Its time counts for the first of them.

    Args:
        options: ``reference``, K; ``every``, updates between two measurements.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for split in ("train", "valid", "test"):
        ...     _ = (folder / f"wiki.{split}.tokens").write_text("a rose is a rose \n" * 20)
        >>> table = {
        ...     "task": {"name": "wikitext2", "window": 8, "folder": str(folder)},
        ...     "cell": {"name": "rnn", "hidden_size": 4, "context": 2},
        ...     "train": {"updates": 2, "batch": 2},
        ... }
        >>> found = weight_distance(
        ...     table, {"reference": 8, "every": 1}, folder / "k-2" / "run", progress=False, label="roses"
        ... )
        >>> found.curve["update"], found.curve["distance"][0], found.value("distance", "last") > 0
        ((0, 1, 2), 0.0, True)
    """
    if table.get("cell", {}).get("context") is None:
        raise ConfigError(f"{label}: weight-distance needs a limited context; set cell.context.")
    whole = overridden(table, {"cell.context": options["reference"]})
    name = hashlib.sha256(json.dumps([whole, options], sort_keys=True, default=str).encode()).hexdigest()[:10]
    beside = folder.parents[1] / f"reference-{name}"
    first, own = beside / "first-run", f"{folder.parent.name}/{folder.name}"
    if not first.is_file():
        beside.mkdir(parents=True, exist_ok=True)
        write_atomically(first, own)
    full = f"{label}, all {options['reference']} inputs"
    reference = _watched(whole, beside, options["every"], progress=progress, label=full)
    found = _watched(table, folder, options["every"], progress=progress, label=label)
    found = found.after(reference) if first.read_text() == own else found
    one, other = _kept(folder), _kept(beside)
    updates = sorted(one.keys() & other.keys())
    distances = [spectral_norm(one[update] - other[update]).item() for update in updates]
    sizes = [spectral_norm(other[update]).item() for update in updates]
    numbers = {"reference-norm": sizes[-1], "distance": distances[-1]}
    if distances[-1] > 0:
        numbers["late"] = 1 - distances[len(distances) // 2] / distances[-1]
    curve = {"update": tuple(updates), "distance": tuple(distances), "reference-norm": tuple(sizes)}
    return found.plus(numbers, curve)


def _watched(table: dict[str, Any], folder: Path, every: int, *, progress: bool, label: str) -> Measured:
    def look(model: SequenceModel, update: int) -> None:
        layer: Any = model.rnn.layer if isinstance(model.rnn, Truncated) else model.rnn
        checkpoint.save(folder / f"weights-{update:06d}.safetensors", {"weight_hh": layer.cells[0].weight_hh.detach()})

    settings = run_settings(table, label)
    task = settings.task.load()
    updates = run_lengths(task, settings.training)[0]
    at = {*range(0, updates, every), updates}
    return measure(settings, folder, task=task, look=look, at=at, progress=progress, label=label)


def _kept(folder: Path) -> dict[int, Tensor]:
    paths = sorted(folder.glob("weights-*.safetensors"))
    return {int(path.stem.partition("-")[2]): checkpoint.load(path)["weight_hh"].to(torch.float64) for path in paths}
