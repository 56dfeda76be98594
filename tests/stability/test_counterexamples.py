"""Propositions 3 and 4 of S4, as examples/03_stability.py runs them, and how far their printed wording carries."""

import math

import pytest

from helpers.scripts import script


@pytest.fixture(scope="module")
def example():
    return script("examples/03_stability.py")


def test_proposition_3_no_window_approximates_an_unstable_system(example, capsys):
    """After an impulse, with a = 2, the error at t = 61 is 2^60 for every k < 61; a = 1/2: it is 2^-60."""
    for k in (1, 20, 50):
        unstable, stable = example.no_window_is_long_enough(k)
        assert unstable == 2.0**60
        assert stable == 2.0**-60
    assert "proved: inf" in capsys.readouterr().out


def test_proposition_4_descent_flies_apart_and_projected_descent_does_not(example):
    free, projected = example.descent_that_flies_apart()
    assert not abs(free) < 1e80
    assert abs(projected) < 0.1
    assert math.isfinite(projected)


def descend(a, T, steps=30):
    """Gradient descent with steps 1/i on ½ (h_T - 1)², h_T = Σ_{i<T} a^i, b = 1."""
    for i in range(1, steps + 1):
        h, slope = sum(a**j for j in range(T)), sum(j * a ** (j - 1) for j in range(1, T))
        a -= (h - 1) * slope / i
        if abs(a) > 1e9:
            break
    return a


def test_not_every_start_beyond_one_diverges_as_print_has_it():
    """T = 10: all of these do. T = 2 lands on the answer in one step; T = 11 comes inside from just beyond -1."""
    assert all(abs(descend(a, 10)) > 1e9 for a in (1.01, 1.5, 2.0, -1.1, -2.0))
    assert descend(1.5, 2) == 0.0
    assert abs(descend(-1.01, 11)) < 1
