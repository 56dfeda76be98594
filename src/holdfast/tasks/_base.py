"""What a task is, and three kinds of tasks.

    batch = f(index, batch size, seed)      (1)

Every training batch is a pure function of its number, so a killed run resumes from the number of updates made. A
shuffled epoch is a permutation drawn from (seed, epoch). A synthetic batch is drawn from (seed, index).

``Drawn``: synthetic sequences without end. ``Arrays``: whole sequences in memory. ``Stream``: a long text in windows.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import SettingError
from holdfast.tasks.vocabulary import Vocabulary

__all__ = ["IGNORED", "Arrays", "Batch", "Drawn", "Sequences", "Spec", "Split", "Stream", "Task"]

Split = Literal["train", "validation", "test"]

IGNORED = -100
"""A class target that counts in no loss and no score: the padding of sequences with a target at every step."""

_BLOCK = 64  # sequences drawn at a time for a fixed set
_DRAWN_SPLITS = {"train": 0, "validation": 1, "test": 2}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some sequences and their answers.

    Args:
        inputs: (time, batch, features), or token indices (time, batch).
        targets: (batch, outputs) numbers or (batch,) classes; with a target at every step, time comes first.
        lengths: (batch,) true lengths of padded sequences, or None if all are whole.

    Example:
        >>> batch = Batch(torch.zeros(7, 4, 2), torch.zeros(4, 1))
        >>> len(batch), len(batch.rows(slice(0, None, 2), every_step=False))
        (4, 2)
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return self.inputs.shape[1]

    def rows(self, which: slice, *, every_step: bool) -> Batch:
        """The sequences that ``which`` selects: one process's share of the batch."""
        targets = self.targets[:, which] if every_step else self.targets[which]
        return Batch(self.inputs[:, which], targets, None if self.lengths is None else self.lengths[which])


@dataclasses.dataclass(frozen=True)
class Spec:
    """The inputs and outputs of a model for a task, and its score.

    Args:
        input_size: features of a step, or the size of the vocabulary if ``tokens``.
        output_size: numbers that the readout gives: classes, or regression targets; 1 for a binary logit.
        loss: "mse", "cross_entropy" or "binary_cross_entropy".
        metric: what decides which model is best: "mse" (also "loss"), "accuracy", "perplexity" or "bits".
        tokens: inputs are indices, not numbers.
        every_step: a target at every step instead of one at the end.
        contiguous: row b of a batch continues row b of the batch before, so the state can be carried.
        splits: those that exist.
        classes: names of the classes, where they have some.
        baseline: the metric of the best constant answer, where it is known exactly.
        node: the token that joins the two phrases before it, if inputs are binary trees in post-order; else None.
        class_weights: factors on the training loss of each class, of mean 1 over the training split; none if empty.

    Example:
        >>> Spec(input_size=2, output_size=1, loss="mse", metric="mse").splits
        ('train', 'validation', 'test')
    """

    input_size: int
    output_size: int
    loss: Literal["mse", "cross_entropy", "binary_cross_entropy"]
    metric: Literal["loss", "mse", "accuracy", "perplexity", "bits"]
    tokens: bool = False
    every_step: bool = False
    contiguous: bool = False
    splits: tuple[str, ...] = ("train", "validation", "test")
    classes: tuple[str, ...] = ()
    baseline: float | None = None
    class_weights: tuple[float, ...] = ()
    node: int | None = None


class Task(abc.ABC):
    """A source of training batches by number (1), and of the batches that a model is scored on.

    Example:
        >>> class Counting(Task):
        ...     spec = Spec(1, 1, "mse", "mse", splits=("train",))
        ...     def epoch(self, batch_size):
        ...         return None  # without end
        ...     def train_batch(self, index, batch_size, seed):
        ...         return Batch(torch.full((3, batch_size, 1), float(index)), torch.full((batch_size, 1), 3.0 * index))
        ...     def evaluation(self, split, batch_size):
        ...         self.check_split(split)
        ...         yield self.train_batch(0, batch_size, 0)
        >>> Counting().train_batch(7, 2, seed=0).targets.tolist()
        [[21.0], [21.0]]
    """

    spec: Spec
    vocabulary: Vocabulary | None = None  # of a text: which token has which index
    vectors: Tensor | None = None  # of a text: where its embedding starts, (vocabulary, dim)

    @abc.abstractmethod
    def epoch(self, batch_size: int) -> int | None:
        """Training batches in one pass over the data, or None if it has no end."""

    @abc.abstractmethod
    def train_batch(self, index: int, batch_size: int, seed: int) -> Batch:
        """The training batch of update number ``index``, counted from 0 over all epochs."""

    @abc.abstractmethod
    def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Every sequence of a split once, in a fixed order."""

    def check_split(self, split: str) -> None:
        if split not in self.spec.splits:
            raise SettingError(f"{type(self).__name__} has the splits {', '.join(self.spec.splits)}; got {split!r}.")


class Drawn(Task):
    """Synthetic sequences: ``draw(count, generator)`` makes a batch; validation and test sets are fixed draws of it.

    Args:
        spec: the task's.
        draw: from a number of sequences and a generator to a ``Batch``.
        sizes: sequences in the validation and test sets (and in the "train" split, when a model is scored on it).

    Example:
        >>> def draw(count, generator):
        ...     xs = torch.rand(5, count, 1, generator=generator)
        ...     return Batch(xs, xs.sum(dim=0))
        >>> task = Drawn(Spec(1, 1, "mse", "mse"), draw, {"validation": 6, "test": 6})
        >>> torch.equal(task.train_batch(3, 2, seed=0).inputs, task.train_batch(3, 2, seed=0).inputs)
        True
        >>> [len(batch) for batch in task.evaluation("test", 4)]
        [4, 2]
    """

    def __init__(self, spec: Spec, draw: Callable[[int, torch.Generator], Batch], sizes: Mapping[str, int]):
        self.spec, self.draw, self.sizes = dataclasses.replace(spec, splits=tuple(sizes)), draw, dict(sizes)

    def epoch(self, batch_size: int) -> int | None:
        return None

    def train_batch(self, index: int, batch_size: int, seed: int) -> Batch:
        return self.draw(batch_size, _generator(seed, _DRAWN_SPLITS["train"], index))

    def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
        self.check_split(split)
        rest: Batch | None = None
        for index, begin in enumerate(range(0, self.sizes[split], _BLOCK)):
            # in blocks of one size, from one seed: the yardstick is the same for every batch size and every run
            block = self.draw(min(_BLOCK, self.sizes[split] - begin), _generator(0, _DRAWN_SPLITS[split], index))
            rest = block if rest is None else _joined(rest, block, self.spec.every_step)
            while len(rest) >= batch_size:
                yield rest.rows(slice(0, batch_size), every_step=self.spec.every_step)
                rest = rest.rows(slice(batch_size, None), every_step=self.spec.every_step)
        if rest is not None and len(rest):
            yield rest


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Whole sequences, sequence first: inputs (n, time, features) or tokens (n, time); targets (n, ...); lengths (n,).

    With lengths, batches are cut to their longest sequence.

    Example:
        >>> data = Sequences(torch.zeros(4, 9, 2), torch.arange(4), torch.tensor([3, 9, 5, 4]))
        >>> data.batch(torch.tensor([0, 2]), every_step=False).inputs.shape
        torch.Size([5, 2, 2])
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, which: Tensor, every_step: bool) -> Batch:
        lengths = None if self.lengths is None else self.lengths[which]
        longest = self.inputs.shape[1] if lengths is None else int(lengths.max())
        inputs = self.inputs[which][:, :longest].transpose(0, 1)
        targets = self.targets[which]
        if every_step:
            targets = targets[:, :longest].transpose(0, 1)
        return Batch(_computable(inputs).contiguous(), targets.contiguous(), lengths)


class Arrays(Task):
    """Whole sequences in memory, in a new order every epoch.

    Args:
        spec: the task's.
        splits: ``Sequences`` by the name of the split. uint8 inputs (images) are divided by 255 in each batch.

    Example:
        >>> data = Sequences(torch.randn(10, 5, 3), torch.arange(10) % 2)
        >>> task = Arrays(Spec(3, 2, "cross_entropy", "accuracy"), {"train": data, "test": data})
        >>> task.epoch(4), task.train_batch(2, 4, seed=0).inputs.shape
        (3, torch.Size([5, 2, 3]))
    """

    def __init__(self, spec: Spec, splits: Mapping[str, Sequences]):
        self.spec, self.data = dataclasses.replace(spec, splits=tuple(splits)), dict(splits)
        self._order = functools.lru_cache(maxsize=1)(_shuffled)

    def epoch(self, batch_size: int) -> int | None:
        return math.ceil(len(self.data["train"]) / batch_size)

    def train_batch(self, index: int, batch_size: int, seed: int) -> Batch:
        data = self.data["train"]
        epoch, position = divmod(index, math.ceil(len(data) / batch_size))
        order = self._order(len(data), seed, epoch)
        return data.batch(order[position * batch_size : (position + 1) * batch_size], self.spec.every_step)

    def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
        self.check_split(split)
        data = self.data[split]
        for which in torch.arange(len(data)).split(batch_size):
            yield data.batch(which, self.spec.every_step)


class Stream(Task):
    """One long row of tokens per split, cut into windows; the target at every step is the next token.

    ``protocol="stream"``: the text is cut into as many rows as the batch has, read side by side, so that a state can
    be carried from window to window. ``protocol="windows"``: windows are independent and shuffled, as in S3.

    Args:
        tokens: a row of indices by the name of the split.
        vocabulary: how many different tokens there are.
        window: steps of a window.
        metric: "perplexity" (by word) or "bits" (by character).

    Example:
        >>> task = Stream({"train": torch.arange(23), "test": torch.arange(9)}, 23, window=5, metric="bits")
        >>> task.epoch(2), task.train_batch(1, 2, seed=0).inputs[:, 1]
        (3, tensor([16, 17, 18, 19, 20]))
        >>> [tuple(batch.inputs.shape) for batch in task.evaluation("test", 2)]
        [(4, 2)]
    """

    def __init__(
        self,
        tokens: Mapping[str, Tensor],
        vocabulary: int,
        *,
        window: int,
        metric: Literal["perplexity", "bits"],
        protocol: Literal["stream", "windows"] = "stream",
    ):
        if window < 1:
            raise SettingError(f"Stream expects a window of at least 1 step, got {window}.")
        if protocol not in ("stream", "windows"):
            raise SettingError(f'Stream expects protocol to be "stream" or "windows", got {protocol!r}.')
        for split, row in tokens.items():
            if len(row) < 2:
                raise SettingError(f"Stream expects at least 2 tokens in {split}, got {len(row)}.")
        self.tokens, self.window, self.protocol = dict(tokens), window, protocol
        self.spec = Spec(
            vocabulary, vocabulary, "cross_entropy", metric, tokens=True, every_step=True,
            contiguous=protocol == "stream", splits=tuple(tokens),
        )  # fmt: skip
        self._order = functools.lru_cache(maxsize=1)(_shuffled)

    def _width(self, split: str, batch_size: int) -> int:
        """Steps of each row when the text is read in ``batch_size`` rows side by side; fewer rows if it is short."""
        return (len(self.tokens[split]) - 1) // batch_size

    def epoch(self, batch_size: int) -> int | None:
        if self.protocol == "windows":
            return math.ceil(self._windows("train") / batch_size)
        if (width := self._width("train", batch_size)) < 1:
            raise SettingError(
                f"A text of {len(self.tokens['train'])} tokens cannot be read in {batch_size} rows; lower batch."
            )
        return math.ceil(width / self.window)

    def _windows(self, split: str) -> int:
        return max(1, (len(self.tokens[split]) - 1) // self.window)

    def train_batch(self, index: int, batch_size: int, seed: int) -> Batch:
        epoch, position = divmod(index, self.epoch(batch_size) or 1)
        if self.protocol == "stream":
            return self._columns("train", batch_size, position * self.window)
        order = self._order(self._windows("train"), seed, epoch)
        return self._gather("train", order[position * batch_size : (position + 1) * batch_size])

    def _columns(self, split: str, rows: int, begin: int) -> Batch:
        width, row = self._width(split, rows), self.tokens[split]
        end = min(begin + self.window, width)
        inputs = row[: rows * width].view(rows, width)[:, begin:end].mT
        targets = row[1 : rows * width + 1].view(rows, width)[:, begin:end].mT
        return Batch(inputs.contiguous().long(), targets.contiguous().long())

    def _gather(self, split: str, which: Tensor) -> Batch:
        row, steps = self.tokens[split], min(self.window, len(self.tokens[split]) - 1)
        at = which * self.window + torch.arange(steps)[:, None]  # (time, batch)
        return Batch(row[at].long(), row[at + 1].long())

    def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
        self.check_split(split)
        if self.protocol == "stream":
            rows = min(batch_size, len(self.tokens[split]) - 1)
            for begin in range(0, self._width(split, rows), self.window):
                yield self._columns(split, rows, begin)
            return
        windows, row = self._windows(split), self.tokens[split]
        for which in torch.arange(windows).split(batch_size):
            yield self._gather(split, which)
        if (begin := windows * self.window) < len(row) - 1:  # what is left after the last whole window
            yield Batch(row[begin:-1, None].long(), row[begin + 1 :, None].long())


def _joined(one: Batch, other: Batch, every_step: bool) -> Batch:
    """Both batches side by side."""
    lengths = None if one.lengths is None or other.lengths is None else torch.cat([one.lengths, other.lengths])
    targets = torch.cat([one.targets, other.targets], dim=1 if every_step else 0)
    return Batch(torch.cat([one.inputs, other.inputs], dim=1), targets, lengths)


def _generator(*numbers: int) -> torch.Generator:
    """A generator whose stream is a function of the numbers, and different for different ones."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:  # SplitMix64's finaliser, so that neighbouring numbers give unrelated streams
        state = (state + number * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)


def _shuffled(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=_generator(seed, _DRAWN_SPLITS["train"], epoch))


def _computable(inputs: Tensor) -> Tensor:
    """Bytes of an image as numbers in [0, 1], indices as longs; all else as it is."""
    if inputs.dtype == torch.uint8:
        return inputs.to(torch.get_default_dtype()) / 255
    return inputs if inputs.is_floating_point() else inputs.long()
