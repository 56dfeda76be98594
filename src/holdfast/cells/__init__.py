"""The definition of each recurrence, one model per file, and ``step_form``: what many of them have in common."""

from holdfast.cells._base import Cell, CheckedLoad
from holdfast.cells.elman import RNNCell
from holdfast.cells.eunn import EUNNCell
from holdfast.cells.exprnn import ExpRNNCell
from holdfast.cells.fastrnn import FastRNNCell
from holdfast.cells.form import StepForm, step_form
from holdfast.cells.goru import GORUCell
from holdfast.cells.gru import GRUCell
from holdfast.cells.linear import LinearCell
from holdfast.cells.lstm import LSTMCell
from holdfast.cells.scornn import ScoRNNCell
from holdfast.cells.sgornn import SGORNNCell
from holdfast.cells.urnn import URNNCell
from holdfast.cells.vprnn import VPRNNCell

__all__ = [
    "Cell",
    "CheckedLoad",
    "EUNNCell",
    "ExpRNNCell",
    "FastRNNCell",
    "GORUCell",
    "GRUCell",
    "LSTMCell",
    "LinearCell",
    "RNNCell",
    "SGORNNCell",
    "ScoRNNCell",
    "StepForm",
    "URNNCell",
    "VPRNNCell",
    "step_form",
]
