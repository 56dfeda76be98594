"""Settings of a training run: the model and how to train it. Frozen dataclasses, made in code or read from TOML."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal

from holdfast.errors import SettingError

__all__ = ["LRSchedule", "ModelSettings", "Training", "check_range"]


def check_range(
    made: Any, names: Iterable[str], low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> None:
    """Check that these fields are finite and ``low <= value <= high``; ``above`` and ``below`` exclude the ends.

    Fields that are not numbers, such as None, are left to the types.
    """
    for name in names:
        value = getattr(made, name)
        if not isinstance(value, int | float):
            continue
        inside = (low < value if above else low <= value) and (value < high if below else value <= high)
        if not inside or not math.isfinite(value):
            limits = [f"{'greater than' if above else 'at least'} {low:g}"]
            limits += [f"{'less than' if below else 'at most'} {high:g}"] if high < math.inf else []
            raise SettingError(f"{name} must be {' and '.join(limits)}, got {value}.")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """A recurrent layer between an optional embedding and a linear readout.

    Args:
        name: which layer: see ``holdfast.train.LAYERS``. "reservoir" is fitted in closed form, "tree-lstm" is for a
            task with trees, and "auto" is chosen for your data: see ``holdfast.estimators.train_automatic``.
        hidden_size, layers, bidirectional, dropout: as in ``torch.nn.RNN``; dropout acts between layers.
        initial_state: "zeros", "learned", or a number: the standard deviation of a random start in training.
        embedding: features of a token: a size, "one-hot", or None for as many as hidden units. Without tokens: unused.
        frozen: the embedding is not trained, and each of its entries has mean 0 and variance 1 over the tokens.
        input_dropout, output_dropout: on what enters the first layer and what enters the readout.
        norm_stabiliser, activation_regularisation, temporal_activation_regularisation: factors of penalties on changes
            in the length of the state, on its size and on its changes, which are added to the loss in training.
        pooled: the readout sees the mean, the last and the largest state of a sequence instead of the last.
        direct: the readout sees the input of its step too, as S1's q_t = g(x_t, h_t).
        tied: the readout's weight is the embedding's.
        context: k: every output comes from the last k inputs alone, as ``holdfast.stability.truncate`` makes it; None:
            from all of them.
        options: of this cell only: ``{"recurrent": "exp"}``, ``{"gates": {"clip": "2alpha", "horizon": 500}}``.

    Example:
        >>> ModelSettings("sgornn", 128).layers
        1
    """

    name: str = "sgornn"
    hidden_size: int = 128
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    initial_state: Literal["zeros", "learned"] | float = "zeros"
    embedding: int | Literal["one-hot"] | None = None
    frozen: bool = False
    input_dropout: float = 0.0
    output_dropout: float = 0.0
    norm_stabiliser: float = 0.0
    activation_regularisation: float = 0.0
    temporal_activation_regularisation: float = 0.0
    pooled: bool = False
    direct: bool = False
    tied: bool = False
    context: int | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range(self, ("hidden_size", "layers", "embedding"), 1)
        check_range(self, ("dropout", "input_dropout", "output_dropout"), 0, 1, below=True)
        penalties = ("norm_stabiliser", "activation_regularisation", "temporal_activation_regularisation")
        check_range(self, ("initial_state", *penalties), 0)


@dataclasses.dataclass(frozen=True)
class LRSchedule:
    """How the learning rate changes: a factor on it, as a function of the updates made.

    Args:
        kind: "constant"; "linear", to zero at ``over`` updates; "step", times ``factor`` at each update in ``at``;
            "plateau", times ``factor`` when the monitored split has not improved for ``patience`` evaluations.
        over: updates until zero; the whole run if None.
        at: updates at which to step; numbers up to 1 are parts of the whole run.
        factor, patience: of "step" and "plateau".
        on: what a plateau is of: the task's "metric", or the "loss", as in S5.
        warmup: the factor rises to its value over this many updates at the start, in equal steps.

    Example:
        >>> LRSchedule("linear").multiplier(update=25, updates=100)
        0.75
        >>> LRSchedule("step", at=(0.5,)).multiplier(update=50, updates=100)
        0.1
        >>> LRSchedule(warmup=4).multiplier(update=0, updates=100)
        0.25
    """

    kind: Literal["constant", "linear", "step", "plateau"] = "constant"
    over: int | None = None
    at: tuple[float, ...] = ()
    factor: float = 0.1
    patience: int = 10
    warmup: int = 0
    on: Literal["metric", "loss"] = "metric"

    def __post_init__(self) -> None:
        if self.on not in ("metric", "loss"):
            raise SettingError(f'schedule.on must be "metric" or "loss", got {self.on!r}.')
        if self.kind not in ("constant", "linear", "step", "plateau"):
            raise SettingError(f"kind must be constant, linear, step or plateau, got {self.kind!r}.")
        if self.kind == "step" and not self.at:
            raise SettingError("A step schedule needs at: updates, at = [2000], or parts of the run, at = [0.5].")
        check_range(self, ("factor",), 0, 1, above=True)
        check_range(self, ("patience", "over"), 1)
        check_range(self, ("warmup",), 0)

    def multiplier(self, update: int, updates: int, plateaus: int = 0) -> float:
        """The factor for the update after ``update`` have been made, of ``updates`` in all."""
        start = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        match self.kind:
            case "linear":
                return start * max(0.0, 1 - update / (self.over or updates))
            case "step":
                return start * self.factor ** sum(update >= (at * updates if at <= 1 else at) for at in self.at)
            case "plateau":
                return start * self.factor**plateaus
            case _:
                return start


@dataclasses.dataclass(frozen=True)
class Training:
    """How a network is trained.

    Args:
        optimiser: see ``holdfast.train.OPTIMISERS``; ``options`` goes to it. ``options = {"project": {"rate": 1.0}}``
            makes it projected gradient descent, onto recurrent layers of that contraction rate.
        lr: learning rate at the start.
        batch: sequences per update, over all processes together.
        updates, epochs: how long; one of the two.
        seconds: stop after this much training time, over all sittings, if it comes first. Where the clock stops a run
            is not reproducible.
        loss_per: what the loss is a mean over: "answer", or "sequence": the loss of all steps of a sequence is summed,
            as S1 does. The gradient, and what ``clip`` compares, is larger by the number of steps.
        clip: largest norm of the gradient, over all parameters; None leaves it.
        schedule: of the learning rate.
        truncation: backpropagate through at most this many steps; a sequence is read in pieces of that length.
        carry_state: begin a batch with the last state of the one before (streams only; S3 does not, S4 does).
        evaluate_every: updates between evaluations; None: once per epoch, or 50 times in a run without epochs.
        evaluate_on: splits to score at each evaluation.
        monitor: the split whose metric decides what is best, when to stop early and where a plateau is; None takes
            "validation" where it exists and is evaluated on, else the first of ``evaluate_on``.
        patience: stop after this many evaluations without a new best; None never.
        stop_at: stop once the monitored metric is at least this good.
        checkpoint_seconds: at most this long between checkpoints.
        spikes: "rewind" puts weights and optimiser back to where they were 20 to 40 updates before, or longer before
            when spikes follow one another, and lowers the learning rate, when the loss of a batch is above ``spike_at``
            times its running mean or a loss or gradient is not finite; see ``holdfast.train.spikes``. "allow" does
            nothing about them.
        spike_at: what a spike is; more than 20 where gradients are clipped, so that large ones are used.
        nonfinite: "stop" at a non-finite loss or gradient, or "skip" that update and count it.
        seed: of weights, order and noise.
        weights: which ones the run is for, and is loaded with: those of the "best" evaluation, or the "last".

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
    seconds: float | None = None
    loss_per: Literal["answer", "sequence"] = "answer"
    clip: float | None = None
    schedule: LRSchedule = dataclasses.field(default_factory=LRSchedule)
    truncation: int | None = None
    carry_state: bool = False
    evaluate_every: int | None = None
    evaluate_on: tuple[str, ...] = ("validation",)
    monitor: str | None = None
    patience: int | None = None
    stop_at: float | None = None
    checkpoint_seconds: float = 30.0
    spikes: Literal["allow", "rewind"] = "allow"
    spike_at: float = 20.0
    nonfinite: Literal["stop", "skip"] = "stop"
    seed: int = 0
    weights: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        if (self.updates is None) == (self.epochs is None):
            raise SettingError(f"Give updates or epochs, one of the two; got {self.updates} and {self.epochs}.")
        positive = ("lr", "batch", "updates", "epochs", "seconds", "clip", "truncation", "evaluate_every", "patience")
        check_range(self, positive, 0, above=True)
        check_range(self, ("seed",), 0, 2**63, below=True)
        check_range(self, ("spike_at",), 1, above=True)
        if not self.checkpoint_seconds >= 0:
            raise SettingError(f"checkpoint_seconds must be at least 0, got {self.checkpoint_seconds}.")
        if not self.evaluate_on:
            raise SettingError("evaluate_on must name at least one split, got none.")
        if self.monitor is not None and self.monitor not in self.evaluate_on:
            raise SettingError(
                f"monitor must be one of evaluate_on ({', '.join(self.evaluate_on)}), got {self.monitor!r}."
            )
        if self.loss_per not in ("answer", "sequence"):
            raise SettingError(f'loss_per must be "answer" or "sequence", got {self.loss_per!r}.')
        if self.spikes not in ("allow", "rewind"):
            raise SettingError(f'spikes must be "allow" or "rewind", got {self.spikes!r}.')
        if self.weights not in ("best", "last"):
            raise SettingError(f'weights must be "best" or "last", got {self.weights!r}.')
        if self.nonfinite not in ("stop", "skip"):
            raise SettingError(f'nonfinite must be "stop" or "skip", got {self.nonfinite!r}.')

    @property
    def monitored(self) -> str:
        """The split that decides: ``monitor``, or the one it stands for if it is None."""
        return self.monitor or ("validation" if "validation" in self.evaluate_on else self.evaluate_on[0])
