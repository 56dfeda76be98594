"""How much the start matters while a network learns: S5, Figures 4 and 10.

‖A_h‖, ‖W A_h‖: mean over some validation sequences        (1) Theorem 3's slope, and what of it reaches the loss
‖dL/dW_r‖ of the update just made, over all layers         (2)
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.runs.measured import Measured, columns, measure
from holdfast.runs.settings import run_settings
from holdfast.spline import initial_state_slope
from holdfast.studies.procedures import procedure
from holdfast.train.log import read_log
from holdfast.train.loop import run_lengths
from holdfast.train.model import SequenceModel

__all__ = ["start_slope"]


@procedure("start-slope", {"every": 100, "sequences": 8})
def start_slope(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """Train, and measure (1) and (2) every few updates.

    The curve has the columns "state-slope", "output-slope" and "gradient", and those of the log. The numbers "x.mean"
    are means over the training, the start left out, and "x.largest" the largest; a run that diverged has them up to
    there.

    Args:
        options: ``every``, updates between two looks; ``sequences``, of the validation split, for (1).

    Example:
        >>> import tempfile
        >>> table = {
        ...     "task": {"name": "addition", "steps": 6, "form": "three-class", "validation": 8},
        ...     "cell": {"name": "rnn", "hidden_size": 4, "options": {"nonlinearity": "relu", "init": "identity"}},
        ...     "train": {"updates": 4, "batch": 4, "evaluate_every": 2},
        ... }
        >>> found = start_slope(table, {"every": 2}, Path(tempfile.mkdtemp()), progress=False, label="tiny")
        >>> found.curve["update"], found.value("state-slope.mean") > 0
        ((0, 2, 4), True)
    """
    settings = run_settings(table, label)
    task = settings.task.load()
    if task.spec.every_step:
        raise ConfigError(f"{label}: start-slope needs a task with one target per sequence, got {settings.task_name}.")
    inputs = next(iter(task.evaluation("validation", options["sequences"]))).inputs

    def path(update: int) -> Path:
        return folder / f"slope-{update}.json"

    def look(model: SequenceModel, update: int) -> None:
        if path(update).is_file():
            return
        slope = initial_state_slope(model, inputs)
        recurrent = [weight.grad for name, weight in model.rnn.named_parameters() if name.endswith("weight_hh")]
        there = [gradient for gradient in recurrent if gradient is not None]
        seen = {
            "state-slope": slope.state_norm.mean().item(),
            "output-slope": slope.output_norm.mean().item(),
            "gradient": torch.nn.utils.get_total_norm(there).item() if there else None,
        }
        write_atomically(path(update), json.dumps(seen))

    at = range(0, run_lengths(task, settings.training)[0] + 1, options["every"])
    found = measure(settings, folder, task=task, look=look, at=at, progress=progress, label=label)
    rows: dict[int, dict[str, float | None]] = {}
    for update in range(0, found.updates + 1, options["every"]):
        if path(update).is_file():
            rows[update] = {"update": update, **json.loads(path(update).read_text())}
    numbers: dict[str, float | None] = {}
    for name in ("state-slope", "output-slope", "gradient"):
        values = [value for update, row in rows.items() if update and (value := row[name]) is not None]
        numbers |= {f"{name}.mean": statistics.fmean(values), f"{name}.largest": max(values)} if values else {}
    for entry in read_log(folder / "log.jsonl"):
        row = rows.setdefault(entry["update"], {"update": entry["update"]})
        for split in settings.training.evaluate_on:
            row |= {f"{split}.{score}": value for score, value in entry[split].items()}
    ordered = [rows[update] for update in sorted(rows)]
    return found.plus(numbers, columns(ordered))
