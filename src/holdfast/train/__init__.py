"""Training: settings, the model, the loop, checkpoints."""

from holdfast.train.loop import Outcome, evaluate, fit, predict
from holdfast.train.model import LAYERS, SequenceModel, build
from holdfast.train.optimisers import OPTIMISERS
from holdfast.train.settings import LRSchedule, ModelSettings, Training
from holdfast.train.stream import ModelStream

__all__ = [
    "LAYERS",
    "OPTIMISERS",
    "LRSchedule",
    "ModelSettings",
    "ModelStream",
    "Outcome",
    "SequenceModel",
    "Training",
    "build",
    "evaluate",
    "fit",
    "predict",
]
