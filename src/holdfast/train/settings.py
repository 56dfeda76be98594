"""What a training run is told: the network and how to train it. Frozen dataclasses, made by code or read from TOML."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from holdfast.errors import SettingError

__all__ = ["Network", "Schedule", "Training"]


@dataclasses.dataclass(frozen=True)
class Network:
    """A recurrent layer between an optional embedding and a linear readout.

    Args:
        name: which layer: see ``holdfast.train.LAYERS``.
        hidden_size, layers, bidirectional, dropout: as in ``torch.nn.RNN``; dropout acts between layers.
        initial_state: "zeros", "learned", or a number: the standard deviation of a random start in training.
        embedding: features of a token: a size, "one-hot", or None for as many as hidden units. Without tokens: unused.
        input_dropout, output_dropout: on what enters the first layer and what enters the readout.
        tied: the readout's weight is the embedding's.
        context: k: every output comes from the last k inputs alone, as ``holdfast.stability.truncate`` makes it; None:
            from all of them.
        options: what only this cell knows: ``{"recurrent": "exp"}``, ``{"gates": {"clip": "2alpha", "horizon": 500}}``.

    Example:
        >>> Network("sgornn", 128).layers
        1
    """

    name: str = "sgornn"
    hidden_size: int = 128
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    initial_state: Literal["zeros", "learned"] | float = "zeros"
    embedding: int | Literal["one-hot"] | None = None
    input_dropout: float = 0.0
    output_dropout: float = 0.0
    tied: bool = False
    context: int | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How the learning rate moves; a factor on it as a function of the updates made.

    Args:
        kind: "constant"; "linear", to zero at ``over`` updates; "step", times ``factor`` at each update in ``at``;
            "plateau", times ``factor`` when the monitored metric has not improved for ``patience`` evaluations.
        over: updates until zero; the whole run if None.
        at: updates at which to step; numbers up to 1 are parts of the whole run.
        factor, patience: of "step" and "plateau".

    Example:
        >>> Schedule("linear").multiplier(update=25, updates=100)
        0.75
        >>> Schedule("step", at=(0.5,)).multiplier(update=50, updates=100)
        0.1
    """

    kind: Literal["constant", "linear", "step", "plateau"] = "constant"
    over: int | None = None
    at: tuple[float, ...] = ()
    factor: float = 0.1
    patience: int = 10

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "step", "plateau"):
            raise SettingError(f"A schedule is constant, linear, step or plateau; got {self.kind!r}.")
        if self.kind == "step" and not self.at:
            raise SettingError("A step schedule needs the updates to step at: at = [2000], or parts of the run: [0.5].")
        if not 0 < self.factor <= 1 or self.patience < 1 or (self.over is not None and self.over < 1):
            raise SettingError("A schedule expects 0 < factor <= 1, patience >= 1 and over >= 1.")

    def multiplier(self, update: int, updates: int, plateaus: int = 0) -> float:
        """The factor for the update after ``update`` have been made, of ``updates`` in all."""
        match self.kind:
            case "linear":
                return max(0.0, 1 - update / (self.over or updates))
            case "step":
                return self.factor ** sum(update >= (at * updates if at <= 1 else at) for at in self.at)
            case "plateau":
                return self.factor**plateaus
            case _:
                return 1.0


@dataclasses.dataclass(frozen=True)
class Training:
    """How a network is trained.

    Args:
        optimiser: see ``holdfast.train.OPTIMISERS``; ``options`` goes to it. ``options = {"project": {"rate": 1.0}}``
            makes it projected gradient descent, onto recurrent layers of that contraction rate.
        lr: learning rate at the start.
        batch: sequences an update, over all processes together.
        updates, epochs: how long; one of the two.
        clip: largest norm of the gradient, over all parameters; None leaves it.
        schedule: of the learning rate.
        truncation: backpropagate through at most this many steps; a sequence is read in pieces of that length.
        carry_state: begin a batch with the last state of the one before (streams only; S3 does not, S4 does).
        evaluate_every: updates between evaluations; None: once an epoch, or 50 times a run without epochs.
        evaluate_on: splits to score at each evaluation.
        monitor: the split whose metric decides what is best, when to stop early and where a plateau is; None takes
            "validation" where it exists and is evaluated on, else the first of ``evaluate_on``.
        patience: stop after this many evaluations without a new best; None never.
        stop_at: stop once the monitored metric is at least this good.
        checkpoint_seconds: at most this long between checkpoints.
        nonfinite: "stop" at a loss or gradient that is no number, or "skip" that update and count it.
        seed: of weights, order and noise.

    Example:
        >>> Training(updates=100, lr=1e-2).schedule.kind
        'constant'
    """

    optimiser: str = "adam"
    lr: float = 1e-3
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 64
    updates: int | None = None
    epochs: float | None = None
    clip: float | None = None
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    truncation: int | None = None
    carry_state: bool = False
    evaluate_every: int | None = None
    evaluate_on: tuple[str, ...] = ("validation",)
    monitor: str | None = None
    patience: int | None = None
    stop_at: float | None = None
    checkpoint_seconds: float = 30.0
    nonfinite: Literal["stop", "skip"] = "stop"
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.updates is None) == (self.epochs is None):
            raise SettingError(f"Training expects updates or epochs, one of them; got {self.updates}, {self.epochs}.")
        for name in ("lr", "batch", "updates", "epochs", "clip", "truncation", "evaluate_every", "patience"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise SettingError(f"Training expects {name} above 0, got {value}.")
        if not self.evaluate_on:
            raise SettingError("Training expects at least one split in evaluate_on.")
        if self.monitor is not None and self.monitor not in self.evaluate_on:
            raise SettingError(f"Training monitors {self.monitor!r}, which is not in evaluate_on {self.evaluate_on}.")
        if self.nonfinite not in ("stop", "skip"):
            raise SettingError(f'Training knows nonfinite = "stop" and "skip"; got {self.nonfinite!r}.')
        if not 0 <= self.seed < 2**63 or not self.checkpoint_seconds >= 0:
            raise SettingError("Training expects 0 <= seed < 2**63 and checkpoint_seconds of at least 0.")
