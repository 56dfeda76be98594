"""Optimisation in the geometry of paths: the path norm, its curvature, and the optimisers that divide by it."""

from holdfast.optim.describe import path_network, pieces_of, recurrences_of
from holdfast.optim.network import PathNetwork, Recurrence
from holdfast.optim.path_norm import kappa, kappa_first, kappa_second, path_norm_sq
from holdfast.optim.path_sgd import PathAdam, PathSGD
from holdfast.optim.pieces import Convolution, Dense, Fixed, Lookup, Piece
from holdfast.optim.preconditioner import PathPreconditioner
from holdfast.optim.rescale import internal_units, rescale_

__all__ = [  # noqa: RUF022 - what a network is, its norm, its rescalings, the optimisers
    # what a network is
    "Convolution",
    "Dense",
    "Fixed",
    "Lookup",
    "PathNetwork",
    "Piece",
    "Recurrence",
    "path_network",
    "pieces_of",
    "recurrences_of",
    # the path norm and its curvature
    "kappa",
    "kappa_first",
    "kappa_second",
    "path_norm_sq",
    # rescalings
    "internal_units",
    "rescale_",
    # optimisers
    "PathAdam",
    "PathPreconditioner",
    "PathSGD",
]
