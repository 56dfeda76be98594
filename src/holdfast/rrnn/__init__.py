"""RRNN: cells that are trees, found for every sample and step. See docs/usage/rrnn.md."""

from holdfast.rrnn.cell import RRNNCell, Tuples
from holdfast.rrnn.choosing import tolerance
from holdfast.rrnn.conditions import Condition, GradientConditions, gradient_conditions
from holdfast.rrnn.distance import Forms, forms_of, tree_distance, tree_distances, vector_difference
from holdfast.rrnn.draw import tree_svg, tree_text
from holdfast.rrnn.grow import Found, candidates, grow
from holdfast.rrnn.gru import RRNNGRU, RRNNGRUCell
from holdfast.rrnn.layer import RRNN, Trace
from holdfast.rrnn.loss import LossParts, TreeLoss, ridge, score_margin, target_distance
from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.phases import PhasedAdam
from holdfast.rrnn.record import Grown, Record, count_trees, tuple_changes
from holdfast.rrnn.scorer import RankingScorer, TwoLayerScorer
from holdfast.rrnn.search import search
from holdfast.rrnn.sets import ACTIVATIONS, GRU_SETS, LSTM_SETS, OPERATORS, Activation, Operator, Sets
from holdfast.rrnn.soft import soft_search
from holdfast.rrnn.target import Target, gru_target, gru_tree, lstm_targets, lstm_trees
from holdfast.rrnn.tree import Matrices, Tree, evaluate_tree, isomorphic, tree_of

__all__ = [  # noqa: RUF022 - by file, in reading order
    "ACTIVATIONS",
    "Activation",
    "GRU_SETS",
    "LSTM_SETS",
    "OPERATORS",
    "Operator",
    "Sets",
    "Matrices",
    "Tree",
    "evaluate_tree",
    "isomorphic",
    "tree_of",
    "tree_svg",
    "tree_text",
    "RankingScorer",
    "TwoLayerScorer",
    "BirthNorm",
    "Found",
    "candidates",
    "grow",
    "search",
    "soft_search",
    "tolerance",
    "RRNNCell",
    "Tuples",
    "RRNN",
    "Trace",
    "RRNNGRU",
    "RRNNGRUCell",
    "PhasedAdam",
    "Grown",
    "Record",
    "count_trees",
    "tuple_changes",
    "Forms",
    "forms_of",
    "tree_distance",
    "tree_distances",
    "vector_difference",
    "Target",
    "gru_target",
    "gru_tree",
    "lstm_targets",
    "lstm_trees",
    "LossParts",
    "TreeLoss",
    "ridge",
    "score_margin",
    "target_distance",
    "Condition",
    "GradientConditions",
    "gradient_conditions",
]
