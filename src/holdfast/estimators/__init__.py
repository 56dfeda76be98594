"""Good models from anybody's sequences, with scikit-learn's habits, and forecasts of series."""

from holdfast.errors import MissingExtraError

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        'holdfast.estimators needs scikit-learn; install it with: pip install "holdfast[estimators]"'
    ) from error

from holdfast.estimators.automatic_run import train_automatic
from holdfast.estimators.baselines import baselines
from holdfast.estimators.choice import Choice, Journal, Score, automatic
from holdfast.estimators.forecaster import Forecaster
from holdfast.estimators.readout import fit_reservoir
from holdfast.estimators.sequence import SequenceClassifier, SequenceRegressor
from holdfast.estimators.trained import fit_trained

__all__ = [
    "Choice",
    "Forecaster",
    "Journal",
    "Score",
    "SequenceClassifier",
    "SequenceRegressor",
    "automatic",
    "baselines",
    "fit_reservoir",
    "fit_trained",
    "train_automatic",
]
