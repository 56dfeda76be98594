"""Look inside a recurrent network: the affine map it is for an input, the region it is in, the templates it uses.

For cells with piecewise affine, convex nonlinearities (S5): piece (the map), code (the region) with distance,
neighbours and tsne, template, initial_state and penalty (how much the start matters), plots. For all others: linearise.
"""

from __future__ import annotations

from holdfast.cells import StepForm, step_form
from holdfast.cells.nonlinearity import MaxAffine, Regions, regions_of
from holdfast.spline.code import PartitionCode, partition_code
from holdfast.spline.distance import count_regions, hamming, regions_through_time
from holdfast.spline.initial_state import InitialStateSlope, initial_state_slope
from holdfast.spline.linearise import Linearisation, linearise
from holdfast.spline.neighbours import Neighbours, farthest, knn_classify, nearest
from holdfast.spline.penalty import initial_state_penalty
from holdfast.spline.piece import AffineOperator, AffinePiece, affine_piece
from holdfast.spline.plots import plot_frames, plot_image_templates, plot_neighbours, plot_text_templates
from holdfast.spline.template import Templates, templates
from holdfast.spline.tsne import Frames, tsne_through_time

__all__ = [
    "AffineOperator",
    "AffinePiece",
    "Frames",
    "InitialStateSlope",
    "Linearisation",
    "MaxAffine",
    "Neighbours",
    "PartitionCode",
    "Regions",
    "StepForm",
    "Templates",
    "affine_piece",
    "count_regions",
    "farthest",
    "hamming",
    "initial_state_penalty",
    "initial_state_slope",
    "knn_classify",
    "linearise",
    "nearest",
    "partition_code",
    "plot_frames",
    "plot_image_templates",
    "plot_neighbours",
    "plot_text_templates",
    "regions_of",
    "regions_through_time",
    "step_form",
    "templates",
    "tsne_through_time",
]
