"""Inside a network that reads images pixel by pixel: S5, Table 3 and Figures 2, 5, 6 and 8.

    accuracy of k nearest neighbours, by partition code and by raw pixels                  (1) Table 3
    regions that the test images occupy, after each step                                   (2) §4
    share of images whose best fitting template is that of their class                     (3) §5, Figure 8

The pictures are of the same network: codes in the plane through time (2), neighbours (5), codes beside pixels (6),
templates (8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ConfigError, MissingExtraError
from holdfast.runs.load import load_run
from holdfast.runs.measured import Measured
from holdfast.spline import (
    Frames,
    PartitionCode,
    farthest,
    knn_classify,
    nearest,
    partition_code,
    plot_frames,
    plot_image_templates,
    plot_neighbours,
    regions_through_time,
    templates,
    tsne_through_time,
)
from holdfast.studies.procedures import procedure, train
from holdfast.train.model import SequenceModel

__all__ = ["inside_images"]

_DEFAULTS = {
    "images": 10_000,  # of the test set
    "share": 0.8,  # of them that vote
    "voters": (1, 2, 5, 10),
    "plane": 10_000,  # images in the pictures of t-SNE
    "perplexity": 30.0,
    "frames": 6,
    "templates": 500,  # images whose templates are formed
}


def _answers(task: Any, options: Mapping[str, Any]) -> dict[str, int | None]:
    """The images that are voted on, and those whose templates are formed."""
    images = min(options["images"], task.answers("test"))
    voted = images - round(options["share"] * images)
    counts: dict[str, int | None] = {f"{name}-{k}": voted for name in ("codes", "pixels") for k in options["voters"]}
    return counts | dict.fromkeys(("templates", "answers"), min(options["templates"], images))


@procedure("inside-images", _DEFAULTS, answers=_answers)
def inside_images(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """Train, then look inside the best weights: (1) to (3) as numbers, and ``picture-*.png`` in the folder.

    Numbers: "codes-1.accuracy" and "pixels-1.accuracy" of one voter, and so on; "regions"; "templates.accuracy", (3),
    and "answers.accuracy" of the same images. The curve has (2), "regions" over "step".

    Args:
        options: ``images``, ``share`` and ``voters`` of (1); ``plane``, ``perplexity``, ``frames`` of t-SNE;
            ``templates``, images for (3).

    Example:
        >>> from holdfast.studies import PROCEDURES
        >>> PROCEDURES["inside-images"] is inside_images  # studies/s5/table3.toml calls it by this name
        True
    """
    found = train(table, {}, folder, progress=progress, label=label)
    if found.status == "diverged":
        return found
    run = load_run(folder)
    settings, model, task = run.settings, run.stepwise("inside-images"), run.task
    batches = list(task.evaluation("test", 250))
    xs = torch.cat([batch.inputs for batch in batches], dim=1)[:, : options["images"]]  # (time, images, 1)
    classes = torch.cat([batch.targets for batch in batches])[: options["images"]]
    side = math.isqrt(len(xs))
    if side * side != len(xs) or xs.shape[-1] != 1:
        raise ConfigError(
            f"{label}: inside-images needs square images, one pixel per step; got inputs {tuple(xs.shape)}."
        )
    order = settings.task.permutation() if getattr(settings.task, "permuted", False) else None
    codes, pixels = partition_code(model, xs), xs.squeeze(-1).mT.contiguous()
    numbers = _knn(codes, pixels, classes, options)
    regions = regions_through_time(codes)
    numbers["regions"] = float(regions[-1])
    numbers |= _templates(model, xs, classes, options["templates"], folder, (side, side), order)
    _frames(codes, pixels, classes, options, folder)
    chosen = [int((classes == label_).nonzero()[0]) for label_ in classes.unique()]  # the first image of each class
    queries = torch.tensor(chosen)
    near, far = nearest(codes, queries, 5).indices, farthest(codes, queries, 5).indices
    shown = pixels if order is None else torch.zeros_like(pixels).index_copy(1, order, pixels)
    _save(plot_neighbours(shown, chosen, near, far, (side, side)), folder, "figure-5")
    numbers["neighbours.accuracy"] = (classes[near] == classes[queries][:, None]).double().mean().item()
    curve = {"step": tuple(range(1, len(regions) + 1)), "regions": tuple(map(float, regions))}
    return found.plus(numbers, curve)


def _knn(codes: PartitionCode, pixels: Tensor, classes: Tensor, options: dict[str, Any]) -> dict[str, float | None]:
    """(1): the first share of the images votes on the rest."""
    known = round(options["share"] * len(codes))
    near = torch.cdist(pixels[known:], pixels[:known]).argsort(dim=1, stable=True)
    numbers: dict[str, float | None] = {}
    for k in options["voters"]:
        answers = knn_classify(codes[:known], classes[:known], codes[known:], k)
        votes = torch.nn.functional.one_hot(classes[:known][near[:, :k]], 10).sum(1).argmax(1)
        for name, given in (("codes", answers), ("pixels", votes)):
            numbers[f"{name}-{k}.accuracy"] = (given == classes[known:]).double().mean().item()
    return numbers


def _templates(
    model: SequenceModel,
    xs: Tensor,
    classes: Tensor,
    count: int,
    folder: Path,
    shape: tuple[int, int],
    order: Tensor | None,
) -> dict[str, float | None]:
    """(3), and Figure 8 of three images of different classes."""
    items = [templates(model, xs[:, index]) for index in range(min(count, xs.shape[1]))]
    fits = [item.winner == label for item, label in zip(items, classes.tolist(), strict=False)]
    right = [item.predicted == label for item, label in zip(items, classes.tolist(), strict=False)]
    first = {label: index for index, label in reversed(list(enumerate(classes[: len(items)].tolist())))}
    three = sorted(first.values())[:3]
    picture = plot_image_templates(
        [items[index] for index in three], shape, order=order, labels=[int(classes[index]) for index in three]
    )
    _save(picture, folder, "figure-8")
    return {"templates.accuracy": sum(fits) / len(fits), "answers.accuracy": sum(right) / len(right)}


def _frames(codes: PartitionCode, pixels: Tensor, classes: Tensor, options: dict[str, Any], folder: Path) -> None:
    """Figures 2 and 6."""
    count = min(options["plane"], len(codes))
    steps = sorted({max(1, round(codes.steps * part / options["frames"])) for part in range(1, options["frames"] + 1)})
    frames = tsne_through_time(codes[:count], steps, perplexity=options["perplexity"])
    _save(plot_frames(frames, classes[:count]), folder, "figure-2")
    raw = _plane(pixels[:count].double().numpy(), options["perplexity"])
    both = Frames((0, 1), torch.stack([raw, frames.positions[-1]]))
    picture = plot_frames(both, classes[:count], titles=("raw pixels", "partition codes"))
    _save(picture, folder, "figure-6")


def _plane(rows: np.ndarray, perplexity: float) -> Tensor:
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        raise MissingExtraError("t-SNE needs scikit-learn: pip install 'holdfast[spline]'.") from None
    return torch.from_numpy(TSNE(2, perplexity=perplexity, random_state=0, n_jobs=1).fit_transform(rows).astype(float))


def _save(figure: Any, folder: Path, name: str) -> None:
    figure.savefig(folder / f"picture-{name}.png", dpi=110, metadata={"Software": None})
