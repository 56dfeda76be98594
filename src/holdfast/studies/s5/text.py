"""Inside a network that reads sentences: S5, Figures 3, 7 and 9.

    share of the 5 nearest, and of the 5 farthest, by partition code, that have the sentence's class    (1) Figure 7
    share of sentences whose best fitting template is that of their class                               (2) Figures 3, 9

As in appendix C, neighbours differ in length by at most ten words, and the shorter code is padded; here with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.runs.load import load_run
from holdfast.runs.measured import Measured
from holdfast.spline import hamming, partition_code, plot_text_templates, templates
from holdfast.studies.procedures import procedure, train

__all__ = ["inside_text"]

_DEFAULTS = {"sentences": 2000, "templates": 500, "words": 10, "neighbours": 5, "longest": 24}


def _answers(task: Any, options: Mapping[str, Any]) -> dict[str, int | None]:
    """Sentences: the neighbours of one are not independent."""
    if (sentences := task.answers("test")) is None:
        return {}
    sentences = min(options["sentences"], sentences)
    counts: dict[str, int | None] = {"nearest": sentences, "farthest": sentences}
    return counts | dict.fromkeys(("templates", "answers"), min(options["templates"], sentences))


@procedure("inside-text", _DEFAULTS, answers=_answers)
def inside_text(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """Train, then look inside the best weights: (1) and (2) as numbers, ``picture-figure-9.png`` in the folder.

    Numbers: "nearest.accuracy" and "farthest.accuracy", the shares of (1); "templates.accuracy", (2), and
    "answers.accuracy" of the same sentences. ``neighbours.md`` in the folder has one sentence's, in words.

    Args:
        options: ``sentences`` of the test set; ``words`` that lengths may differ by; ``neighbours``, how many;
            ``templates``, sentences for (2); ``longest``, words of the sentence in the picture at most.

    Example:
        >>> from holdfast.studies import PROCEDURES
        >>> PROCEDURES["inside-text"] is inside_text  # studies/s5/figures7-9.toml calls it by this name
        True
    """
    found = train(table, {}, folder, progress=progress, label=label)
    if found.status == "diverged":
        return found
    run = load_run(folder)
    model, task = run.model, run.task
    if task.vocabulary is None or task.spec.every_step:
        raise ConfigError(f"{label}: inside-text needs a text task with one target per sentence.")
    (batch,) = task.evaluation("test", 10**9)
    count = min(options["sentences"], len(batch.targets))
    tokens, classes = batch.inputs[:, :count], batch.targets[:count]
    lengths = torch.full((count,), len(tokens)) if batch.lengths is None else batch.lengths[:count]
    distances = hamming(partition_code(model, tokens, lengths=lengths))
    near, far = _neighbours(distances, lengths, options["words"], options["neighbours"])
    numbers: dict[str, float | None] = {
        "nearest.accuracy": _same(near, classes),
        "farthest.accuracy": _same(far, classes),
    }
    rows = [tokens[: lengths[index], index] for index in range(count)]
    items = [templates(model, row) for row in rows[: options["templates"]]]
    for name, answers in (("templates", [it.winner for it in items]), ("answers", [it.predicted for it in items])):
        numbers[f"{name}.accuracy"] = (torch.tensor(answers) == classes[: len(items)]).double().mean().item()
    fitting = [
        index
        for index, item in enumerate(items)
        if item.predicted == classes[index] and 8 <= lengths[index] <= options["longest"]
    ]
    shown = fitting[0] if fitting else 0
    words = [task.vocabulary.decode(row) for row in rows]
    picture = plot_text_templates(items[shown], words[shown], label=int(classes[shown]), classes=task.spec.classes)
    picture.savefig(folder / "picture-figure-9.png", dpi=110, metadata={"Software": None})
    lines = [" ".join(words[shown]), "", "nearest, then farthest, class and distance √Hamming:", ""]
    for index in [index for index in (*near[shown].tolist(), *far[shown].tolist()) if index >= 0]:
        far_away = float(distances[shown, index]) ** 0.5
        lines.append(f"- {task.spec.classes[classes[index]]}, {far_away:.2f}: {' '.join(words[index])}")
    write_atomically(folder / "neighbours.md", "\n".join(lines) + "\n")
    return found.plus(numbers)


def _neighbours(distances: Tensor, lengths: Tensor, words: int, count: int) -> tuple[Tensor, Tensor]:
    """The nearest and the farthest among sentences of about the same length, (sentences, count); -1 where none is."""
    other = (lengths[:, None] - lengths).abs() > words
    other.fill_diagonal_(True)
    count = min(count, len(lengths) - 1)
    near = distances.float().masked_fill(other, float("inf")).topk(count, largest=False).indices
    far = distances.float().masked_fill(other, -1.0).topk(count).indices
    return tuple(found.masked_fill(other.gather(1, found), -1) for found in (near, far))  # type: ignore[return-value]


def _same(indices: Tensor, classes: Tensor) -> float | None:
    """The share of these sentences that have the class of the one they are listed for."""
    there = indices >= 0
    same = (classes[indices.clamp(min=0)] == classes[:, None]) & there
    return (same.sum() / there.sum()).item() if there.any() else None
