"""Losses and scores, as sums and counts, so that parts of a data set add up to the whole exactly.

loss = Σ ℓ / n,  perplexity = exp(loss),  bits = loss / ln 2,  accuracy = right / n       (1)

n is the number of targets that count.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.errors import ShapeError
from holdfast.train.wide_readout import Unread

__all__ = ["HIGHER_IS_BETTER", "Scores", "better", "loss_sum", "target_count"]

HIGHER_IS_BETTER = frozenset({"accuracy"})

_IGNORED = -100  # PyTorch's own ignore_index, and holdfast.tasks.IGNORED


class Answerable(Protocol):
    """What a batch is here: ``holdfast.tasks.Batch`` is one."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor | None: ...


def target_count(loss: str, batch: Answerable) -> int:
    """How many terms the loss of a batch has: numbers to predict, or classes that count.

    Example:
        >>> from holdfast.tasks import Batch
        >>> target_count("cross_entropy", Batch(torch.zeros(5, 3, 2), torch.tensor([0, 1, -100])))
        2
    """
    if loss == "cross_entropy":
        return int((batch.targets != _IGNORED).sum())
    mask = _step_mask(batch)
    if mask is None:
        return batch.targets.numel()
    return int(mask.sum()) * batch.targets[0, 0].numel()


def loss_sum(loss: str, answers: Tensor | Unread, batch: Answerable, weights: Tensor | None = None) -> Tensor:
    """The sum of the loss over a batch: squared errors, or cross-entropies in nats, each times its class's weight.

    Example:
        >>> from holdfast.tasks import Batch
        >>> loss_sum("mse", torch.ones(3, 1), Batch(torch.zeros(5, 3, 2), torch.zeros(3, 1))).item()
        3.0
    """
    targets = batch.targets
    if isinstance(answers, Unread):
        return answers.cross_entropy(targets, weights, _IGNORED)
    if loss == "cross_entropy":
        flat = answers.reshape(-1, answers.shape[-1])
        options: dict[str, Any] = {"ignore_index": _IGNORED, "reduction": "sum", "weight": weights}
        return nn.functional.cross_entropy(flat, targets.reshape(-1), **options)
    if answers.shape != targets.shape:
        raise ShapeError(f"The answers have shape {tuple(answers.shape)}, the targets {tuple(targets.shape)}.")
    if loss == "mse":
        terms = (answers - targets).square()
    else:
        terms = nn.functional.binary_cross_entropy_with_logits(answers, targets, reduction="none")
    mask = _step_mask(batch)
    return terms.sum() if mask is None else terms.flatten(2).sum(dim=2).masked_select(mask).sum()


def _step_mask(batch: Answerable) -> Tensor | None:
    """(time, batch), True inside each sequence, for numeric targets at every step of padded sequences; else None."""
    if batch.lengths is None or batch.targets.dim() != 3:
        return None
    return torch.arange(len(batch.targets))[:, None] < batch.lengths


class Scores:
    """The sums of (1) over the batches seen.

    Example:
        >>> from holdfast.tasks import Batch
        >>> scores = Scores("cross_entropy", "accuracy")
        >>> scores.add(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), Batch(torch.zeros(5, 2, 1), torch.tensor([0, 0])))
        >>> scores.result()["accuracy"]
        0.5
    """

    def __init__(self, loss: str, metric: str):
        self.loss, self.metric = loss, metric
        self.sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, terms

    def add(self, answers: Tensor | Unread, batch: Answerable) -> None:
        right = 0
        if isinstance(answers, Unread):
            right = answers.right(batch.targets, _IGNORED)
        elif self.loss == "cross_entropy":
            right = int((answers.argmax(dim=-1) == batch.targets).sum())
        elif self.loss == "binary_cross_entropy":
            right = int(((answers > 0) == (batch.targets > 0.5)).sum())
        total = float(loss_sum(self.loss, answers, batch))
        self.sums += torch.tensor([total, right, target_count(self.loss, batch)], dtype=torch.float64)

    def result(self) -> dict[str, float]:
        total, right, count = self.sums.tolist()
        if count == 0:
            raise ShapeError("The split has no targets, so it has no score.")
        mean = total / count
        known: dict[str, Any] = {
            "mse": lambda: mean,
            "accuracy": lambda: right / count,
            "perplexity": lambda: math.exp(mean) if mean < 700 else math.inf,
            "bits": lambda: mean / math.log(2),
        }
        result = {"loss": mean}
        if self.metric in known:
            result[self.metric] = known[self.metric]()
        if self.loss != "mse" and self.metric != "accuracy":
            result["accuracy"] = right / count
        return result


def better(metric: str, value: float, than: float | None) -> bool:
    """Whether a score beats another; a number always beats none, and NaN nothing.

    Example:
        >>> better("mse", 0.1, 0.2), better("accuracy", 0.1, 0.2), better("mse", 0.1, None)
        (True, False, True)
    """
    if math.isnan(value):
        return False
    if than is None:
        return True
    return value > than if metric in HIGHER_IS_BETTER else value < than
