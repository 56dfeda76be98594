"""Diagnose: why a recurrent network diverges, forgets or learns nothing, on one page. See docs/usage/diagnose.md.

``holdfast.diagnose`` is this package, and it can be called: ``holdfast.diagnose(model, xs)`` is
``holdfast.diagnose.diagnose(model, xs)``, whichever is imported first.
"""

import sys
import types
from typing import Any

from holdfast.errors import MissingExtraError

try:
    import plotly  # noqa: F401
    import pydantic  # noqa: F401
    import rich  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f'holdfast.diagnose needs {error.name}; install it with: pip install "holdfast[diagnose]"'
    ) from error

from holdfast.diagnose.compare import Comparison, compare
from holdfast.diagnose.diagnosis import Diagnosis, RowResult
from holdfast.diagnose.examine import diagnose
from holdfast.diagnose.fixed_points import FixedPoint, fixed_points
from holdfast.diagnose.lyapunov import lyapunov_exponents
from holdfast.diagnose.of_run import Watch, diagnose_run
from holdfast.diagnose.page import page
from holdfast.diagnose.rules import RULES, Condition, Finding, Rule

__all__ = [
    "RULES",
    "Comparison",
    "Condition",
    "Diagnosis",
    "Finding",
    "FixedPoint",
    "RowResult",
    "Rule",
    "Watch",
    "compare",
    "diagnose",
    "diagnose_run",
    "fixed_points",
    "lyapunov_exponents",
    "page",
]


class _Callable(types.ModuleType):
    """A package that is also its main function."""

    def __call__(self, *arguments: Any, **settings: Any) -> Diagnosis:
        return diagnose(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
