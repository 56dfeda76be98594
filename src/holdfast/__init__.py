"""Holdfast: recurrent networks that hold on. The public names, by layer.

They are imported on first use, so that ``holdfast --help`` does not wait for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = ("layers", "cells", "engine", "constraints", "citations")
_WITH_EXTRAS = {  # no other name may import what these need
    "load_run": "runs",
    "Forecaster": "estimators",
    "SequenceClassifier": "estimators",
    "SequenceRegressor": "estimators",
}

if TYPE_CHECKING:  # for editors and type checkers; the same names are looked up below
    from holdfast.cells import (
        Cell,
        ExpRNNCell,
        FastRNNCell,
        GRUCell,
        LinearCell,
        LSTMCell,
        MinGRUCell,
        MinLSTMCell,
        RNNCell,
        SGORNNCell,
        VPRNNCell,
    )
    from holdfast.citations import cite
    from holdfast.constraints.gates import ScalarGates
    from holdfast.constraints.orthogonal import (
        HouseholderProduct,
        OrthogonalMap,
        RotationProduct,
        ScaledCayley,
        SkewExponential,
        orthogonal,
    )
    from holdfast.diagnose import diagnose  # noqa: F401 - at run time it is the package, which can be called
    from holdfast.engine import fused_source, scan
    from holdfast.estimators import Forecaster, SequenceClassifier, SequenceRegressor
    from holdfast.layers import (
        GRU,
        LSTM,
        RNN,
        SGORNN,
        VPRNN,
        ExpRNN,
        FastRNN,
        LinearRNN,
        MinGRU,
        MinLSTM,
        RandomStart,
        Recurrent,
        Reservoir,
        Stream,
        from_torch,
        to_torch,
    )
    from holdfast.runs.load import load_run

else:

    def __getattr__(name: str) -> Any:
        """A public name, from the package that defines it, or a package itself: ``holdfast.stability``."""
        if name in __all__:
            names = (_WITH_EXTRAS[name],) if name in _WITH_EXTRAS else _HOMES
            homes = (importlib.import_module(f"holdfast.{home}") for home in names)
            value = next(getattr(home, name) for home in homes if hasattr(home, name))
        else:
            try:
                value = importlib.import_module(f"holdfast.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"holdfast.{name}":
                    raise
                raise AttributeError(f"module 'holdfast' has no attribute {name!r}") from None
        globals()[name] = value
        return value


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
    "MinGRUCell",
    "MinLSTMCell",
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
    "MinGRU",
    "MinLSTM",
    "RNN",
    "RandomStart",
    "Recurrent",
    "Reservoir",
    "SGORNN",
    "Stream",
    "VPRNN",
    "from_torch",
    "to_torch",
    # citations
    "cite",
    # runs
    "load_run",
    # estimators
    "Forecaster",
    "SequenceClassifier",
    "SequenceRegressor",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
