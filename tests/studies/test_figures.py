"""Figures show the mean over seeds, its spread, and where a run diverged."""

import statistics

import pytest

from holdfast.runs.environment import Environment
from holdfast.runs.measured import Measured
from holdfast.studies import figures
from holdfast.studies.result import Attempt, SeedResult, StudyResult
from holdfast.studies.study import Figure, Run, Scale, Study

WHERE = Environment({}, "Linux", "a CPU", 1, 1)
PNG = b"\x89PNG\r\n\x1a\n"


def made(run, seed, ys, status="finished", others=None):
    curve = {"update": tuple(range(1, len(ys) + 1)), "test.loss": tuple(ys)}
    curve |= {} if others is None else {"train.loss": tuple(others)}
    measured = Measured(status=status, curve=curve)
    return SeedResult(run, seed, "0", (Attempt(None, measured),), 0, "2026-01-02", WHERE)


RESULT = StudyResult(
    "s0/made", "small", (made("a", 0, [4.0, 2.0]), made("a", 1, [2.0, 1.0]), made("b", 0, [3.0, None], "diverged"))
)


def study(**figure):
    figure = Figure(**{"name": "f", "title": "Loss", "y": "test.loss", **figure})
    return Study("Made", run=(Run("a"), Run("b"), Run("c")), scale={"small": Scale()}, figure=(figure,))


def test_the_band_is_the_mean_and_the_standard_deviation_over_seeds():
    it = study()
    xs, means, spreads = figures._band(it.run[0], RESULT, it.figure[0])
    assert (xs, means) == ([1, 2], [3.0, 1.5])
    assert spreads == [statistics.stdev([4, 2]), statistics.stdev([2, 1])]


def test_a_difference_is_taken_seed_by_seed():
    result = StudyResult("s", "small", (made("a", 0, [4.0, 2.0], others=[1.0, 1.0]),))
    it = study(y="test.loss - train.loss")
    assert figures._band(it.run[0], result, it.figure[0])[1] == [3.0, 1.0]


def test_a_run_that_diverged_ends_in_a_cross_at_its_last_number():
    it = study()
    assert figures._ends(it.run[1], RESULT, it.figure[0]) == [(1, 3.0)]
    assert figures._ends(it.run[0], RESULT, it.figure[0]) == []


@pytest.mark.parametrize("log", [False, True])
def test_a_figure_is_a_png_file(tmp_path, log):
    paths = figures.draw_all(study(log=log, baseline=0.5, y_limits=(0.1, 9.0)), RESULT, tmp_path)
    assert [path.name for path in paths] == ["f.png"]
    assert paths[0].read_bytes().startswith(PNG)


def test_a_figure_without_curves_is_not_drawn(tmp_path):
    assert figures.draw_all(study(runs=("c",)), RESULT, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_same_curves_give_the_same_file(tmp_path):
    first = figures.draw(study(), RESULT, study().figure[0], tmp_path / "a.png")
    again = figures.draw(study(), RESULT, study().figure[0], tmp_path / "b.png")
    assert first.read_bytes() == again.read_bytes()
