"""κ⁽²⁾ compared with κ⁽¹⁾ at the start of training: S2, §5.1, the table of Figure 2.

    ‖κ⁽²⁾‖₂ / ‖κ⁽¹⁾‖₂,  norms over all parameters, or over U alone       (1)

The weights are those drawn at the start: no text is read, only its number of words matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.optim import kappa_first, kappa_second, path_network
from holdfast.runs.measured import Measured, columns
from holdfast.runs.prepare import count
from holdfast.runs.schema import structured
from holdfast.studies.procedures import procedure
from holdfast.tasks import Spec
from holdfast.train.model import build
from holdfast.train.settings import ModelSettings

__all__ = ["kappa_ratio"]


@procedure("kappa-ratio", {}, needed=("words", "steps"))
def kappa_ratio(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """(1) for the network of ``cell`` at its start, as a curve over T; ``ratio-20`` is that of T = 20.

    Args:
        options: ``words``, the vocabulary's size, and ``steps``, a list of T.

    Example:
        >>> cell = {"name": "rnn", "hidden_size": 4, "embedding": 4, "options": {"nonlinearity": "relu"}}
        >>> found = kappa_ratio({"cell": cell}, {"words": 9, "steps": [2, 4]}, Path(), progress=False, label="tiny")
        >>> found.curve["steps"], found.value("ratio-2", "last") < found.value("ratio-4", "last")
        ((2, 4), True)
    """
    torch.manual_seed(table.get("train", {}).get("seed", 0))
    words = options["words"]
    spec = Spec(words, words, "cross_entropy", "perplexity", tokens=True, every_step=True)
    model = build(structured(ModelSettings, table.get("cell", {}), label, "cell"), spec)
    network = path_network(model)
    recurrent = [layer.weight_hh for layer in network.layers]
    rows = []
    for steps in options["steps"]:
        first, second = kappa_first(network, steps), kappa_second(network, steps)
        rows.append({
            "steps": steps,
            "ratio": _norm(second.values()) / _norm(first.values()),
            "recurrent": _norm(second[weight] for weight in recurrent) / _norm(first[weight] for weight in recurrent),
        })  # fmt: skip
    last = {f"{name}-{row['steps']}": row[name] for row in rows for name in ("ratio", "recurrent")}
    whole, cell = count(model), count(model.rnn)
    return Measured(best=last, last=last, curve=columns(rows), parameters=whole, cell_parameters=cell)


def _norm(values: Iterable[Tensor]) -> float:
    return math.sqrt(sum(value.square().sum().item() for value in values))
