"""A trained run one step at a time: raw numbers in, predictions out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ConfigError, DataError, SettingError, positive_size
from holdfast.layers import Stream
from holdfast.tasks.steps import Steps

if TYPE_CHECKING:
    from holdfast.runs.load import Run

__all__ = ["RunStream"]


class RunStream(Stream):
    """What ``load_run(...).stream()`` returns: predictions while a sequence comes in.

    Law: the prediction at step t is ``run.predict`` of the first t steps.

    Args:
        run: trained with ``--data``; ``trained`` is it.
        batch: how many sequences run in parallel.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from holdfast.runs import Request, choose, load_run, train_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "mine.csv").write_text("id,x,label" + "".join(
        ...     f"{chr(10)}{case},{step * (case % 2)},{'up' if case % 2 else 'flat'}"
        ...     for case in range(40) for step in range(5)
        ... ))
        >>> options = {"train.epochs": 1, "cell.hidden_size": 4, "cell.name": "rnn"}
        >>> chosen = choose(Request(data=folder / "mine.csv", target=("label",), options=options))
        >>> _ = train_run(chosen.settings[0], folder / "run", task=chosen.tasks[0], progress=False)
        >>> run = load_run(folder / "run")
        >>> stream = run.stream()
        >>> answers = [stream.step({"x": x}) for x in (0.0, 1.0, 2.0)]
        >>> answers[-1] == run.predict([[0.0, 1.0, 2.0]]).item(), stream.probabilities.shape
        (True, (1, 2))
    """

    def __init__(self, run: Run, batch: int = 1):
        self.trained, self.batch = run, positive_size("Run.stream", "batch", batch)
        model = run.stepwise("A stream")
        self._model, self._steps = model.stream(batch), Steps(run.preparation, batch)
        self._dtype = model.readout.weight.dtype
        self.outputs: Tensor | None = None

    def step(self, x: Any) -> Any:
        """The prediction after one more step of each sequence, in the units of the training data.

        Args:
            x: (batch, channels) numbers as in the training file, or a list of dicts by the columns' names. For a batch
                of 1 also (channels,), a dict, or a number if there is one channel.

        Returns:
            As ``Run.predict``, one per sequence; for a step without a batch that one prediction alone.
        """
        self.outputs = self._model.step(self._inputs([x])[0])
        answers = self._answers(self.outputs)
        if not self._steps.is_single(x):
            return answers
        return answers[0].item() if answers.ndim == 1 else answers[0]

    def run(self, xs: Any) -> np.ndarray:
        """The predictions after each of several steps, as ``step`` gives them one by one, in one call.

        Args:
            xs: the steps in their order, each as ``step`` takes it: a list, or an array (time, batch, channels).

        Returns:
            (time, batch), or (time,) for steps without a batch; several targets come last.
        """
        inputs = self._inputs(xs)
        outputs = self._model.run(inputs)  # (time, batch, outputs)
        if len(inputs):
            self.outputs = outputs[-1]
        answers = self._answers(outputs)
        return answers[:, 0] if len(inputs) and self._steps.is_single(xs[0]) else answers

    def _inputs(self, xs: Any) -> Tensor:
        """(time, batch, inputs). Steps that cannot be taken leave the stream as it was."""
        before = self._steps.last
        try:
            rows = [self._steps(x) for x in xs]
            inputs = torch.from_numpy(np.stack(rows) if rows else self._steps.none()).to(self._dtype)
            if not torch.isfinite(inputs).all():
                wrong = int((~torch.isfinite(inputs)).flatten(1).any(dim=1).int().argmax())
                raise DataError(
                    f"A step holds a number that is too large for {self._dtype}, got {xs[wrong]!r}; rescale the column."
                )
        except Exception:
            self._steps.last = before
            raise
        return inputs

    def _answers(self, outputs: Tensor) -> np.ndarray:
        """(..., batch), or (..., batch, targets) where there are several."""
        preparation = self.trained.preparation
        answers = np.asarray(preparation.answers(outputs))
        if preparation.classes:
            return answers.reshape(outputs.shape[:-1])
        return answers[..., 0] if preparation.kind == "regression" and answers.shape[-1] == 1 else answers

    @property
    def probabilities(self) -> np.ndarray:
        """(batch, classes): of ``run.preparation.classes``, after the last step."""
        if not self.trained.preparation.classes:
            kind = self.trained.preparation.kind
            raise ConfigError(f"{self.trained.folder} was trained for {kind}; probabilities are of classes.")
        if self.outputs is None:
            raise SettingError("Probabilities are those of the last step, and there has been none; call step first.")
        return torch.softmax(self.outputs.double(), dim=1).numpy()

    def reset(self, *, weights: bool = False) -> None:
        """Begin new sequences; with ``weights``, from the weights of ``run.model`` as they are now."""
        self._model.reset(weights=weights)
        self._steps.reset()
        self.outputs = None

    @property
    def state(self) -> dict[str, Any]:
        """``layer``: the state of the recurrent layer; ``last``: the last numbers seen, NaN where there were none."""
        return {"layer": self._model.state, "last": torch.from_numpy(self._steps.last.copy())}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        shape = self._steps.last.shape
        if not isinstance(state, dict) or {*state} != {"layer", "last"} or tuple(state["last"].shape) != shape:
            came = list(state) if isinstance(state, dict) else type(state).__name__
            raise SettingError(
                f"A stream of a run expects what its state gave: a dict with 'layer' and 'last', of shape {shape}, got "
                f"{came}."
            )
        self._model.state = state["layer"]
        self._steps.last, self.outputs = state["last"].detach().double().numpy().copy(), None
