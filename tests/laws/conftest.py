"""The laws run over every cell of the catalogue in helpers/cells.py."""

import functools

import pytest
import torch

from helpers.cells import CELLS, SMOOTH, shaken


@pytest.fixture(params=CELLS)
def cell(request):
    """A cell (3, 4) that tests share and leave as it is: what a backend prepares for it, it prepares once."""
    return _shared(request.param)


@pytest.fixture(params=CELLS)
def factory(request):
    """(input_size, hidden_size) to a cell whose weights, biases and gates lie off their special starts."""
    return functools.partial(shaken, request.param)


@pytest.fixture(params=SMOOTH)
def smooth_factory(request):
    """As ``factory``, for the cells with a continuous second derivative."""
    return functools.partial(shaken, request.param)


@functools.cache
def _shared(name):
    torch.manual_seed(0)
    return shaken(name, 3, 4)
