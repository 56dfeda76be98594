"""Training: settings, the model, the loop, checkpoints."""

from holdfast.train.loop import Outcome, evaluate, fit, predict
from holdfast.train.model import LAYERS, SequenceModel, build
from holdfast.train.optimisers import OPTIMISERS
from holdfast.train.penalties import (
    activation_regularisation,
    norm_stabiliser,
    temporal_activation_regularisation,
)
from holdfast.train.settings import LRSchedule, ModelSettings, Training
from holdfast.train.stream import ModelStream
from holdfast.train.tree_model import TreeModel
from holdfast.train.whole import PooledModel, ReservoirModel

__all__ = [
    "LAYERS",
    "OPTIMISERS",
    "LRSchedule",
    "ModelSettings",
    "ModelStream",
    "Outcome",
    "PooledModel",
    "ReservoirModel",
    "SequenceModel",
    "Training",
    "TreeModel",
    "activation_regularisation",
    "build",
    "evaluate",
    "fit",
    "norm_stabiliser",
    "predict",
    "temporal_activation_regularisation",
]
