"""The compiled candidates, held to PyTorch's."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.kernels.values import compiled_values, takes
from holdfast.rrnn import ACTIVATIONS, OPERATORS

BASES = ("identity", "sigmoid", "tanh", "relu")


@settings(max_examples=30, deadline=None)
@given(nodes=st.integers(1, 9), n=st.integers(8, 150), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_they_are_operators_and_activations(nodes, n, dtype):
    """Every length, where the last vector of lanes is not full too, into memory with gaps, which stay as they were."""
    torch.manual_seed(n)
    left, right, bias = (3 * torch.randn(shape, dtype=dtype) for shape in ((nodes, n), (n,), (n,)))
    operators = ("mul", "add")
    whole = torch.full((2, 4, nodes + 2, n), 7.0, dtype=dtype)
    compiled_values(left, right, bias, whole[:, :, 1:-1], operators, BASES)
    assert (whole[:, :, [0, -1]] == 7).all()
    rtol = 1e-5 if dtype == torch.float32 else 1e-13
    for (o, operator), (a, base) in itertools.product(enumerate(operators), enumerate(BASES)):
        expected = ACTIVATIONS[base].apply(OPERATORS[operator].apply(left, right) + bias)
        torch.testing.assert_close(whole[o, a, 1:-1], expected, rtol=rtol, atol=rtol)


def test_what_is_not_a_number_stays_so():
    left, zero = torch.tensor([[torch.nan, torch.inf, -torch.inf, *[0.0] * 5]]), torch.zeros(8)
    out = torch.empty(1, 4, 1, 8)
    compiled_values(left, zero, zero, out, ("add",), BASES)
    expected = torch.stack([ACTIVATIONS[base].apply(left) for base in BASES])
    torch.testing.assert_close(out[0], expected, equal_nan=True)


@pytest.mark.parametrize(
    ("operators", "count", "known"), [(("add",), 8, True), (("add", "max"), 8, False), (("mul",), 7, False)]
)
def test_what_it_takes(operators, count, known):
    assert takes(torch.empty(count, dtype=torch.float32), operators, BASES, count) == known
