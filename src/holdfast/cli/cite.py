"""``holdfast cite``: what to cite for a run."""

from __future__ import annotations

import inspect

from holdfast.cli._options import Run
from holdfast.cli._show import show

__all__ = ["EXAMPLES", "cite"]

EXAMPLES = ("holdfast cite runs/addition-sgornn-1",)


def cite(run: Run) -> None:
    """Print the BibTeX of the model and the optimiser of a run."""
    from holdfast.citations import cite as entries
    from holdfast.runs.load import load_run
    from holdfast.stability import Projected
    from holdfast.train.optimisers import OPTIMISERS

    loaded = load_run(run)
    training = loaded.settings.training
    projected = [Projected] if "project" in training.options else []
    show(entries(loaded.model, inspect.unwrap(OPTIMISERS[training.optimiser]), *projected))
