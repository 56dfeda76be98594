"""The definition of each recurrence, one model per file, and ``step_form``: what many of them have in common."""

from holdfast.cells._base import Cell, CheckedLoad
from holdfast.cells.diagonal import DiagonalCell
from holdfast.cells.elman import RNNCell
from holdfast.cells.exprnn import ExpRNNCell
from holdfast.cells.fastrnn import FastRNNCell
from holdfast.cells.form import StepForm, step_form
from holdfast.cells.gru import GRUCell
from holdfast.cells.linear import LinearCell
from holdfast.cells.lstm import LSTMCell
from holdfast.cells.mingru import MinGRUCell
from holdfast.cells.minlstm import MinLSTMCell
from holdfast.cells.sgornn import SGORNNCell
from holdfast.cells.vprnn import VPRNNCell

__all__ = [
    "Cell",
    "CheckedLoad",
    "DiagonalCell",
    "ExpRNNCell",
    "FastRNNCell",
    "GRUCell",
    "LSTMCell",
    "LinearCell",
    "MinGRUCell",
    "MinLSTMCell",
    "RNNCell",
    "SGORNNCell",
    "StepForm",
    "VPRNNCell",
    "step_form",
]
