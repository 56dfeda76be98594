"""From settings to what is trained: the task, loaded once, and the model at its start, built once."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from holdfast.errors import ConfigError, HoldfastError
from holdfast.runs.settings import RunSettings
from holdfast.tasks import Spec, Task
from holdfast.train.checkpoint import seed_all
from holdfast.train.model import SequenceModel, build
from holdfast.train.tree_model import TreeModel
from holdfast.train.whole import PooledModel, ReservoirModel

__all__ = ["Model", "built", "count", "prepare"]

Model = SequenceModel | PooledModel | ReservoirModel | TreeModel


def prepare(settings: RunSettings, task: Task | None = None) -> tuple[Model, Task]:
    """The model at its start and the task. The weights are a function of the settings and their seed alone.

    Args:
        settings: of the run.
        task: that of the settings, if it has been loaded before.

    Example:
        >>> from holdfast.runs import run_settings
        >>> model, task = prepare(run_settings({"task": {"name": "addition"}, "train": {"updates": 10}}))
        >>> count(model)
        1411
    """
    if task is None:
        task = cast(Task, settings.task.load())
    return built(settings, task.spec, task.vectors), task


def built(settings: RunSettings, spec: Spec, vectors: Tensor | None = None) -> Model:
    """The model at its start, for a task of this ``spec``; ``vectors`` start its embedding."""
    seed_all(settings.training.seed)
    network = settings.network
    try:
        return build(network, spec, vectors)
    except HoldfastError as error:
        raise ConfigError(f"cell: {error}") from None
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"cell.options: {network.name} cannot be built with {network.options}: {error}.") from None


def count(model: Any) -> int:
    """How many trainable numbers a model has."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
