"""``choice.json``: what an automatic choice ended with. A folder that has it is complete.

chosen, cell       the model's name, and the settings that build it
scores             of everything that was compared, each with n and a 95% interval
verdict, test      who won by how much; the scores of the chosen model on the test split, where there is one
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError, ConfigError
from holdfast.runs.schema import read_file, structured, table_of
from holdfast.train import ModelSettings, sums

__all__ = ["StoredChoice", "StoredScore", "choice_text", "read_choice"]


@dataclasses.dataclass(frozen=True)
class StoredScore:
    """The score of a model on sequences that it was not fitted to.

    Args:
        name: of the model.
        how: "leave one out", "5 folds", "held out".
        n: sequences.
        value: the accuracy, or the squared error as a share of the variance.
        low, high: 95% interval.
        seconds: that it took.
    """

    name: str
    how: str
    n: int
    value: float
    low: float
    high: float
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class StoredChoice:
    """What an automatic choice ended with.

    Args:
        chosen: the model's name.
        metric: "accuracy", or "error per variance".
        cell: the settings of the model.
        scores: of everything that was compared, best first.
        verdict: who won, and by how much.
        test: scores of the chosen model on the test split; empty without one.
        parameters: numbers that were fitted.
        seconds: of the whole choice, over all sittings.
    """

    chosen: str
    metric: str
    cell: ModelSettings
    scores: tuple[StoredScore, ...]
    verdict: str
    test: dict[str, float]
    parameters: int
    seconds: float


def choice_text(choice: StoredChoice) -> str:
    """The text of ``choice.json``.

    Example:
        >>> score = StoredScore("reservoir", "leave one out", 40, 0.9, 0.77, 0.96)
        >>> made = StoredChoice("reservoir", "accuracy", ModelSettings("gru"), (score,), "It won.", {}, 12, 3.0)
        >>> structured(StoredChoice, json.loads(choice_text(made)), "choice.json") == made
        True
    """
    return json.dumps(table_of(choice), indent=2, ensure_ascii=False) + "\n"


def read_choice(folder: str | Path) -> StoredChoice:
    """``choice.json`` of the run in ``folder``.

    Example:
        >>> read_choice("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.CheckpointError: no-such-run has no choice.json: the automatic choice has not ended. ...
    """
    path = Path(folder) / sums.CHOICE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {path.name}: the automatic choice has not ended. Resume it: holdfast resume {folder}"
        )
    sums.check(path.parent, sums.CHOICE)
    advice: Any = "Remove it and resume the run, which makes it again."
    try:
        return structured(StoredChoice, read_file(path, advice), str(path))
    except ConfigError as error:
        raise CheckpointError(f"{error} {advice}") from None
