"""Training: settings, the network, the loop, checkpoints."""

from holdfast.train.loop import Outcome, evaluate, fit, predict
from holdfast.train.model import LAYERS, SequenceModel, build
from holdfast.train.optimisers import OPTIMISERS
from holdfast.train.settings import Network, Schedule, Training

__all__ = [
    "LAYERS",
    "OPTIMISERS",
    "Network",
    "Outcome",
    "Schedule",
    "SequenceModel",
    "Training",
    "build",
    "evaluate",
    "fit",
    "predict",
]
