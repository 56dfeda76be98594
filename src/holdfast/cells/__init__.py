"""The definition of each recurrence, one model per file, and ``step_form``: what many of them have in common."""

from holdfast.cells._base import Cell, CheckedLoad
from holdfast.cells.antisymmetric import AntisymmetricRNNCell
from holdfast.cells.cornn import CoRNNCell
from holdfast.cells.diagonal import DiagonalCell
from holdfast.cells.elman import RNNCell
from holdfast.cells.eunn import EUNNCell
from holdfast.cells.exprnn import ExpRNNCell
from holdfast.cells.fastgrnn import FastGRNNCell
from holdfast.cells.fastrnn import FastRNNCell
from holdfast.cells.form import StepForm, step_form
from holdfast.cells.goru import GORUCell
from holdfast.cells.gru import GRUCell
from holdfast.cells.indrnn import IndRNNCell
from holdfast.cells.lem import LEMCell
from holdfast.cells.linear import LinearCell
from holdfast.cells.lstm import LSTMCell
from holdfast.cells.mingru import MinGRUCell
from holdfast.cells.minlstm import MinLSTMCell
from holdfast.cells.scornn import ScoRNNCell
from holdfast.cells.sgornn import SGORNNCell
from holdfast.cells.urnn import URNNCell
from holdfast.cells.vprnn import VPRNNCell

__all__ = [
    "AntisymmetricRNNCell",
    "Cell",
    "CheckedLoad",
    "CoRNNCell",
    "DiagonalCell",
    "EUNNCell",
    "ExpRNNCell",
    "FastGRNNCell",
    "FastRNNCell",
    "GORUCell",
    "GRUCell",
    "IndRNNCell",
    "LEMCell",
    "LSTMCell",
    "LinearCell",
    "MinGRUCell",
    "MinLSTMCell",
    "RNNCell",
    "SGORNNCell",
    "ScoRNNCell",
    "StepForm",
    "URNNCell",
    "VPRNNCell",
    "step_form",
]
