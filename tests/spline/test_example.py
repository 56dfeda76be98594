"""The example program learns, and what it prints of the inside is so."""

import pytest
import torch

from helpers.scripts import script


@pytest.mark.slow
def test_the_example_learns_and_its_codes_tell_the_classes(capsys):
    """Nine of ten signals at least, by the network and by neighbours, where guessing gives one of two."""
    torch.set_default_dtype(torch.float32)
    by_model, by_code = script("examples/05_spline.py").main(updates=100)
    assert min(by_model, by_code) > 0.9
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("z = A x + B", "template of rising", "regions of 1000 signals", "‖W A_h‖"))
