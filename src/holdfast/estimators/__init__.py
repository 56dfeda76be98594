"""Estimators with scikit-learn's habits: ``fit``, ``predict``, ``score``, ``get_params``, clone and pickle."""

from holdfast.estimators.forecaster import Forecaster

__all__ = ["Forecaster"]
