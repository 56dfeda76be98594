"""Holdfast: recurrent networks that hold on. The public names, by layer."""

from holdfast.cells import (
    Cell,
    ExpRNNCell,
    FastRNNCell,
    GRUCell,
    LinearCell,
    LSTMCell,
    RNNCell,
    SGORNNCell,
    VPRNNCell,
)
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import (
    HouseholderProduct,
    OrthogonalMap,
    RotationProduct,
    ScaledCayley,
    SkewExponential,
    orthogonal,
)
from holdfast.engine import fused_source, scan
from holdfast.layers import (
    GRU,
    LSTM,
    RNN,
    SGORNN,
    VPRNN,
    ExpRNN,
    FastRNN,
    LinearRNN,
    RandomStart,
    Recurrent,
    from_torch,
    to_torch,
)

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - by layer, as the architecture has them
    # constraints
    "HouseholderProduct",
    "OrthogonalMap",
    "RotationProduct",
    "ScalarGates",
    "ScaledCayley",
    "SkewExponential",
    "orthogonal",
    # cells
    "Cell",
    "ExpRNNCell",
    "FastRNNCell",
    "GRUCell",
    "LSTMCell",
    "LinearCell",
    "RNNCell",
    "SGORNNCell",
    "VPRNNCell",
    # engine
    "fused_source",
    "scan",
    # layers
    "ExpRNN",
    "FastRNN",
    "GRU",
    "LSTM",
    "LinearRNN",
    "RNN",
    "RandomStart",
    "Recurrent",
    "SGORNN",
    "VPRNN",
    "from_torch",
    "to_torch",
]
