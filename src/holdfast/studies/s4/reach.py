"""Gradients over distance while a language model is trained: S4, Figure 2.

    g(i) = mean over t of ‖∇_{x_t} p_{t+i}‖,  x_t the embedding of word t, p_s the loss at word s       (1)

Held-out text, in evaluation mode, before training and on its way. Source: S4, §7.2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.runs.measured import Measured, measure
from holdfast.runs.settings import run_settings
from holdfast.stability import gradient_reach
from holdfast.studies.procedures import procedure
from holdfast.train.loop import run_lengths
from holdfast.train.model import SequenceModel

__all__ = ["reach_in_training"]

_DEFAULTS = {"distances": 50, "tokens": 20_000, "rows": 10, "parts": (0.0, 0.25, 1.0), "ratios": (10, 20, 50)}


@procedure("gradient-reach", _DEFAULTS)
def reach_in_training(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    r"""Train, and take (1) on the validation split at some parts of the training.

    The curve has the columns "distance" and "0%", "25%", "100%", g(i) after that share of the training. The number
    "100%.at-20" is g(20) / g(1) there: how much is left twenty words away.

    Args:
        options: ``distances``, the largest i; ``tokens``, how much text, in ``rows`` side by side; ``parts``, when;
            ``ratios``, the i of which numbers are given.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for split in ("train", "valid", "test"):
        ...     _ = (folder / f"wiki.{split}.tokens").write_text("a rose is a rose \n" * 20)
        >>> table = {
        ...     "task": {"name": "wikitext2", "window": 8, "folder": str(folder)},
        ...     "cell": {"name": "rnn", "hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 2},
        ... }
        >>> options = {"distances": 3, "tokens": 40, "rows": 2, "ratios": [2]}
        >>> found = reach_in_training(table, options, folder / "run", progress=False, label="roses")
        >>> sorted(found.curve), found.value("0%.at-2", "last") > 0
        (['0%', '100%', '25%', 'distance'], True)
    """
    settings = run_settings(table, label)
    parts, task = [float(part) for part in options["parts"]], settings.task.load()
    if not task.spec.tokens or not task.spec.every_step:
        raise ConfigError(f"{label}: gradient-reach needs a language-modelling task, got {settings.task_name}.")
    inputs, targets = _text(task, options["tokens"], options["rows"])

    def path(update: int) -> Path:
        return folder / f"reach-{update}.json"

    def look(model: SequenceModel, update: int) -> None:
        if not path(update).is_file():
            reach = _reach(model, inputs, targets, options["distances"])
            write_atomically(path(update), json.dumps({"mean": reach}))

    updates = run_lengths(task, settings.training)[0]
    moments = {part: round(part * updates) for part in parts}
    found = measure(settings, folder, task=task, look=look, at=set(moments.values()), progress=progress, label=label)
    curve: dict[str, tuple[float | None, ...]] = {"distance": tuple(range(options["distances"] + 1))}
    numbers: dict[str, float | None] = {}
    for part, update in moments.items():
        if not path(update).is_file():
            continue  # it diverged before
        mean = json.loads(path(update).read_text())["mean"]
        curve[f"{part:.0%}"] = tuple(mean)
        for i in options["ratios"]:
            if i <= options["distances"]:
                numbers[f"{part:.0%}.at-{i}"] = mean[i] / mean[1] if mean[1] else None
    return found.plus(numbers, curve)


def _text(task: Any, tokens: int, rows: int) -> tuple[Tensor, Tensor]:
    """The first ``tokens`` of the validation split, (time, rows), and the word after each."""
    batches = list(task.evaluation("validation", rows))
    inputs = torch.cat([batch.inputs for batch in batches if batch.inputs.shape[1] == rows])
    targets = torch.cat([batch.targets for batch in batches if batch.inputs.shape[1] == rows])
    steps = max(2, tokens // rows)
    return inputs[:steps], targets[:steps]


def _reach(model: SequenceModel, inputs: Tensor, targets: Tensor, distances: int) -> list[float]:
    def loss(outputs: Tensor, words: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model.readout(outputs), words, reduction="none")

    assert model.embedding is not None
    with torch.no_grad():
        xs = model.embedding(inputs)
    return list(gradient_reach(model.rnn, xs, loss, targets, distances=distances).mean)  # type: ignore[arg-type]
