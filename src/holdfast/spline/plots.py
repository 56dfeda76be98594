"""Pictures of templates, neighbours and codes, each a matplotlib ``Figure``: ``figure.savefig(path)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.errors import MissingExtraError, ShapeError
from holdfast.spline.template import Templates
from holdfast.spline.tsne import Frames

__all__ = ["plot_frames", "plot_image_templates", "plot_neighbours", "plot_text_templates"]


def plot_image_templates(
    items: Sequence[Templates],
    shape: tuple[int, int],
    *,
    order: Tensor | None = None,
    labels: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
) -> Any:
    """Images beside their templates: one row per image, one column per class, inner products below. S5 Figure 8.

    Args:
        items: templates of images that were read pixel by pixel, or row by row.
        shape: height and width.
        order: which pixel was read at which step, if not in order.
        labels: true classes, printed in bold.
        classes: their names; default: numbers.

    Example:
        >>> import torch
        >>> from holdfast import RNN
        >>> from holdfast.spline import templates
        >>> image = torch.rand(16, 1)
        >>> figure = plot_image_templates([templates(RNN(1, 3, nonlinearity="relu"), image)], (4, 4))
        >>> len(figure.axes)
        4
    """
    _check_shape(items[0].input, shape)
    count = len(items[0].rows)
    names = classes or [str(index) for index in range(count)]
    figure = _figure((1.05 * (count + 1), 1.3 * len(items)))
    axes = figure.subplots(len(items), count + 1, squeeze=False)
    for row, (item, line) in enumerate(zip(items, axes, strict=True)):
        line[0].imshow(_image(item.input, shape, order), cmap="gray")
        line[0].set_xlabel(f"{names[labels[row]]}" if labels is not None else "input", fontsize=8)
        limit = float(item.rows.abs().max()) or 1.0
        for index, ax in enumerate(line[1:]):
            ax.imshow(_image(item.rows[index], shape, order), cmap="coolwarm", vmin=-limit, vmax=limit)
            bold = labels is not None and labels[row] == index
            text = f"{names[index]}: {float(item.products[index]):.2f}"
            ax.set_xlabel(text, fontsize=8, fontweight="bold" if bold else "normal")
    _bare(axes)
    return figure


def plot_text_templates(
    item: Templates, words: Sequence[str], *, label: int | None = None, classes: Sequence[str] | None = None
) -> Any:
    """The templates of a text, one below the other, with its words on the axis. S5 Figures 3 and 9.

    Args:
        item: its templates.
        words: of the text, one per step.
        label: the true class, printed in bold.
        classes: their names; default: numbers.

    Example:
        >>> import torch
        >>> from holdfast import RNN
        >>> from holdfast.spline import templates
        >>> item = templates(RNN(4, 2, nonlinearity="relu"), torch.rand(3, 4))
        >>> figure = plot_text_templates(item, ["it", "is", "fun"])
        >>> [text.get_text() for text in figure.axes[1].get_xticklabels()]
        ['it', 'is', 'fun']
    """
    if len(words) != len(item.input):
        raise ShapeError(f"plot_text_templates expects a word for each of {len(item.input)} steps, got {len(words)}.")
    count = len(item.rows)
    names = classes or [str(index) for index in range(count)]
    figure = _figure((max(4.0, 0.32 * len(words) + 1.5), 2.0 * count + 1.0))
    limit = float(item.rows.abs().max()) or 1.0
    axes = figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0]
    for index, ax in enumerate(axes):
        ax.imshow(
            item.rows[index].mT.cpu().numpy(),
            aspect="auto",
            cmap="coolwarm",
            vmin=-limit,
            vmax=limit,
            interpolation="nearest",
        )
        bold = "bold" if index == label else "normal"
        ax.set_title(f"{names[index]}: {float(item.products[index]):.3f}", fontsize=9, fontweight=bold)
        ax.set_ylabel("feature", fontsize=8)
        ax.tick_params(axis="y", labelsize=7)
    axes[-1].set_xticks(range(len(words)), list(words), rotation=60, ha="right", fontsize=8)
    figure.colorbar(axes[0].images[0], ax=list(axes), fraction=0.03, pad=0.01)
    return figure


def plot_neighbours(images: Tensor, queries: Sequence[int], near: Tensor, far: Tensor, shape: tuple[int, int]) -> Any:
    """Images with their nearest and farthest by code, one row per query. S5 Figure 5.

    Args:
        images: (images, pixels), in the order of the picture.
        queries: indices of those in the first column.
        near, far: (queries, k) indices.
        shape: height and width.

    Example:
        >>> import torch
        >>> near, far = torch.tensor([[2], [3]]), torch.tensor([[4], [5]])
        >>> figure = plot_neighbours(torch.rand(6, 4), [0, 1], near, far, (2, 2))
        >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
        ['input', 'nearest', 'farthest']
    """
    _check_shape(images[0], shape)
    height, width, edge = *shape, max(1, shape[1] // 14)
    columns = [[query] for query in queries], near.tolist(), far.tolist()
    blocks, starts, left = [], [], 0
    for group in columns:  # one picture for all of them: an axes for each image would take seconds to lay out
        tiles = [[_framed(_image(images[index], shape, None), edge) for index in row] for row in group]
        blocks.append(np.concatenate([np.concatenate(row, axis=1) for row in tiles]))
        starts.append(left + blocks[-1].shape[1] / 2)
        left += blocks[-1].shape[1] + width // 2
        blocks.append(np.full((len(queries) * (height + 2 * edge), width // 2), np.nan))
    picture = np.concatenate(blocks[:-1], axis=1)
    figure = _figure((8.0, 8.0 * picture.shape[0] / picture.shape[1] + 0.4))
    axes = figure.subplots()
    axes.imshow(picture, cmap="gray")
    axes.xaxis.tick_top()
    axes.set_xticks(starts, ["input", "nearest", "farthest"], fontsize=9)
    axes.set_yticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def plot_frames(frames: Frames, classes: Tensor, *, titles: Sequence[str] | None = None) -> Any:
    """Codes in the plane, one panel per frame, one colour per class. S5 Figures 2 and 6.

    Args:
        frames: by ``tsne_through_time``.
        classes: (codes,).
        titles: of the panels; default: the step.

    Example:
        >>> import torch
        >>> figure = plot_frames(Frames((1, 2), torch.rand(2, 9, 2)), torch.arange(9) % 3)
        >>> figure.axes[0].get_title()
        't = 1'
    """
    count = len(frames.steps)
    columns = min(count, 3)
    lines = -(-count // columns)
    figure = _figure((3.2 * columns + 0.8, 3.1 * lines))
    axes = figure.subplots(lines, columns, squeeze=False)
    names = titles or [f"t = {step}" for step in frames.steps]
    for ax, positions, name in zip(axes.flat, frames.positions, names, strict=False):
        for index in range(int(classes.max()) + 1):
            of = positions[classes == index].numpy()
            ax.scatter(of[:, 0], of[:, 1], s=4, color=f"C{index}", label=str(index), linewidths=0)
        ax.set_title(name, fontsize=9)
    for ax in list(axes.flat)[count:]:
        ax.set_visible(False)
    _bare(axes)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, markerscale=3)
    return figure


def _image(pixels: Tensor, shape: tuple[int, int], order: Tensor | None) -> Any:
    flat = pixels.detach().cpu().flatten()
    if order is not None:
        flat = flat.new_zeros(len(flat)).index_copy(0, order, flat)
    return flat.view(shape).numpy()


def _framed(image: Any, edge: int) -> Any:
    return np.pad(image.astype(float), edge, constant_values=np.nan)


def _check_shape(pixels: Tensor, shape: tuple[int, int]) -> None:
    if pixels.numel() != shape[0] * shape[1]:
        raise ShapeError(
            f"A picture of {shape[0]} × {shape[1]} expects {shape[0] * shape[1]} pixels, got {pixels.numel()}."
        )


def _bare(axes: Any) -> None:
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("Pictures need matplotlib: pip install 'holdfast[train]'.") from None
    return Figure(figsize=size, layout="constrained")  # not by pyplot, which would keep it
