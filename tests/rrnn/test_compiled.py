"""A search by compiled loops finds what a search in PyTorch does, and takes PyTorch where no loop fits."""

import pytest
import torch

from holdfast.rrnn import Matrices, Sets, TwoLayerScorer, search


def test_a_scorer_of_ones_own_and_the_compiled_one_find_the_same_trees():
    """A module that is no TwoLayerScorer, of the same function, goes through PyTorch."""

    class Own(torch.nn.Module):
        def __init__(self, scorer):
            super().__init__()
            self.scorer = scorer

        def forward(self, v):
            return self.scorer(v)

    torch.manual_seed(0)
    sets, scorer = Sets(tuples=2, rounds=5), TwoLayerScorer(6, 16).double()
    leaves = torch.randn(3, 7, 6, dtype=torch.float64)
    weights = Matrices.identity(6, leaves)
    matrices = Matrices(
        *(torch.randn_like(part).repeat(2, *(1 for _ in part.shape[1:])) for part in weights_of(weights))
    )
    ours, plain = (search(leaves, matrices, sets, it) for it in (scorer, Own(scorer)))
    assert torch.equal(ours.choices, plain.choices)
    assert torch.equal(ours.runners, plain.runners)


def weights_of(matrices):
    return matrices.left, matrices.right, matrices.bias


def test_what_does_not_fit_is_left_to_pytorch():
    """Another length, another precision: an error of PyTorch's."""
    leaves = torch.randn(3, 2, 5)
    sets, weights = Sets(tuples=1, rounds=2), Matrices.identity(5, leaves)
    with pytest.raises(RuntimeError, match="shapes"):
        search(leaves, weights, sets, TwoLayerScorer(4, 8))
    with pytest.raises(RuntimeError, match="dtype"):
        search(leaves, weights, sets, TwoLayerScorer(5, 8).float())
    short = Matrices(weights.left, weights.right, weights.bias[:, :3])
    with pytest.raises(RuntimeError, match="size"):
        search(leaves, short, sets, TwoLayerScorer(5, 8))


def test_other_operators_are_searched_in_pytorch():
    """``max`` has no compiled form: the same search, and its result is an operator's."""
    torch.manual_seed(0)
    leaves = torch.randn(3, 4, 5)
    sets = Sets(tuples=1, rounds=2, operators=("max",), activations=("tanh",))
    found = search(leaves, Matrices.identity(5, leaves), sets, TwoLayerScorer(5, 8))
    left, right = found.choices[0, :, 0], found.choices[0, :, 1]
    samples = torch.arange(4)
    expected = torch.tanh(torch.maximum(leaves[left, samples], leaves[right, samples]))
    torch.testing.assert_close(found.vectors[0], expected)
