"""Path-SGD (S2): κ at the start of training, and the best of several starts."""

from holdfast.studies.s2.kappa import kappa_ratio
from holdfast.studies.s2.starts import best_of_starts

__all__ = ["best_of_starts", "kappa_ratio"]
