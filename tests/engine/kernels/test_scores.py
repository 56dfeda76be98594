"""The compiled scores, held to the scorer as it is written."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.kernels.scores import CompiledScores
from holdfast.rrnn import TwoLayerScorer


def check(found, expected, rtol):
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=rtol, atol=rtol)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 21),
    hidden=st.integers(1, 40),
    segments=st.integers(1, 4),
    rows=st.integers(1, 75),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_they_are_those_of_the_scorer(size, hidden, segments, rows, dtype, seed):
    """Every size of vectors, of panels that are not full, of chunks and tiles that are not; segments lie apart."""
    torch.manual_seed(seed)
    scorer = TwoLayerScorer(size, hidden).to(dtype)
    with torch.no_grad():
        v = torch.randn(segments, rows + 3, size, dtype=dtype)[:, :rows]
        scale, shift = torch.rand(2, size, dtype=dtype) + 0.5
        compiled = CompiledScores(*scorer.parts)
        rtol = 1e-4 if dtype == torch.float32 else 1e-11
        plain, flipped = compiled(v)
        check(plain, scorer(v), rtol)
        check(flipped, scorer(1 - v), rtol)
        plain, flipped = compiled.folded(scale, shift)(v)
        check(plain, scorer(v * scale + shift), rtol)
        check(flipped, scorer((1 - v) * scale + shift), rtol)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_they_are_the_same_bits_on_any_number_of_threads(threads):
    torch.manual_seed(0)
    scorer, v = TwoLayerScorer(10, 24), torch.randn(3, 100, 10)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            results.append(CompiledScores(*(part.detach() for part in scorer.parts))(v))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*results)


def test_what_is_not_a_number_stays_so():
    scorer, v = TwoLayerScorer(3, 8), torch.zeros(1, 5, 3)
    v[0, 2, 1] = torch.nan
    v[0, 3, 1] = torch.inf
    found = CompiledScores(*(part.detach() for part in scorer.parts))(v)
    with torch.no_grad():
        expected = torch.stack((scorer(v), scorer(1 - v)))
    assert np.isnan(found[:, 0, 2]).all()
    assert np.isfinite(found[:, 0, [0, 1, 4]]).all()
    assert np.array_equal(np.isnan(found[:, 0, 3]), expected[:, 0, 3].isnan().numpy())
    with torch.no_grad():
        scorer.bias[0] = torch.nan
    assert np.isnan(CompiledScores(*(part.detach() for part in scorer.parts))(v)).all()


def test_what_does_not_fit_is_not_taken():
    """Another length, another precision: no memory is read that is not there."""
    weight, leaves = TwoLayerScorer(5, 8).weight, torch.randn(3, 2, 5)
    assert CompiledScores.takes(weight, leaves)
    assert not CompiledScores.takes(weight, leaves.float())
    assert not CompiledScores.takes(weight, leaves[..., :4])
    half = torch.empty(8, 5, dtype=torch.bfloat16)
    assert not CompiledScores.takes(half, half)
