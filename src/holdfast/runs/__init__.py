"""One run: from a request to settings, model, training, scores and comparisons. See docs/usage/command-line.md."""

from holdfast.runs.apply import evaluate_run, predict_run
from holdfast.runs.load import Run, load_run
from holdfast.runs.measured import Measured, measure
from holdfast.runs.request import Request, choose
from holdfast.runs.settings import RunSettings, overridden, run_settings, to_table
from holdfast.runs.stream import RunStream
from holdfast.runs.train import resume_run, train_run

__all__ = [
    "Measured",
    "Request",
    "Run",
    "RunSettings",
    "RunStream",
    "choose",
    "evaluate_run",
    "load_run",
    "measure",
    "overridden",
    "predict_run",
    "resume_run",
    "run_settings",
    "to_table",
    "train_run",
]
