"""A study run whole: every run, seed and value once, whatever happens in between."""

import json

import pytest

from holdfast.errors import ConfigError, DivergedError, Interrupted
from holdfast.runs import measured
from holdfast.runs.measured import Measured
from holdfast.studies import procedures
from holdfast.studies.procedures import PROCEDURES, procedure
from holdfast.studies.result import read_result, result_folder
from holdfast.studies.run import run_study
from holdfast.studies.study import load_study, settings_digest


@pytest.fixture
def places(tmp_path):
    return {"results": tmp_path / "results", "runs": tmp_path / "runs", "progress": False}


@pytest.fixture
def counted(monkeypatch):
    """The labels of the trainings that really ran."""
    ran = []
    real = PROCEDURES["train"]

    def train(*arguments, label, **more):
        ran.append(label)
        return real(*arguments, label=label, **more)

    monkeypatch.setitem(PROCEDURES, "train", train)
    return ran


def test_a_study_runs_every_run_seed_and_value_once_and_only_once(tiny, places, counted):
    study = load_study(tiny)
    result = run_study(study, "small", **places)
    assert [(it.run, it.seed) for it in result.results] == [
        ("sgornn", 0), ("sgornn", 1), ("fastrnn", 3), ("exploding", 0), ("exploding", 1),
    ]  # fmt: skip
    assert len(counted) == 6  # fastrnn twice: two values of its try
    folder = result_folder(study.name, "small", places["results"])
    assert read_result(folder / "result.json") == result
    assert {path.name for path in folder.iterdir()} == {"result.json", "report.md", "figure-1.png"}
    assert run_study(study, "small", **places) == result
    assert len(counted) == 6


def test_a_diverged_run_is_a_result(tiny, places):
    result = run_study(load_study(tiny), "small", only=["exploding"], **places)
    entry = result.of("exploding")[0]
    assert entry.measured.status == "diverged"
    assert entry.value("diverged") == 1.0
    assert entry.value("validation.mse", "last") is None
    assert "finite" in entry.measured.reason
    assert str(places["runs"]) not in json.dumps(vars(entry), default=str)


def test_the_best_of_the_values_tried_is_reported_with_what_the_others_gave(tiny, places):
    entry = run_study(load_study(tiny), "small", only=["fastrnn"], **places).of("fastrnn")[0]
    errors = [attempt.measured.value("validation.mse") for attempt in entry.attempts]
    assert [attempt.value for attempt in entry.attempts] == [1e-2, 1e-3]
    assert entry.value("validation.mse") == min(errors)
    assert errors[entry.chosen] == min(errors)


def test_a_value_that_is_good_enough_ends_the_search(tiny, places):
    tiny.write_text(tiny.read_text().replace("at_most = 1e-9", "at_most = 1e9"))
    entry = run_study(load_study(tiny), "small", only=["fastrnn"], **places).of("fastrnn")[0]
    assert [attempt.value for attempt in entry.attempts] == [1e-2]


def test_a_killed_study_uses_what_is_done(tiny, places, counted, monkeypatch):
    """Stopped in the third training; the second call runs that one and those after it, and ends as if never stopped."""
    study, train = load_study(tiny), PROCEDURES["train"]

    def stopped(*arguments, label, **more):
        if label.startswith("fastrnn"):
            raise Interrupted("Stopped by SIGTERM.", 15)
        return train(*arguments, label=label, **more)

    monkeypatch.setitem(PROCEDURES, "train", stopped)
    with pytest.raises(Interrupted, match=r"To resume the study: holdfast study run s0/tiny --scale small"):
        run_study(study, "small", **places)
    kept = read_result(result_folder(study.name, "small", places["results"]) / "result.json")
    assert kept is not None
    assert [(it.run, it.seed) for it in kept.results] == [("sgornn", 0), ("sgornn", 1)]
    monkeypatch.setitem(PROCEDURES, "train", train)
    before = len(counted)
    result = run_study(study, "small", **places)
    assert before == 2
    assert len(counted) == 6
    assert len(result.results) == 5
    assert result.results[:2] == kept.results


def test_a_lost_result_is_put_together_from_the_runs(tiny, places, counted):
    study = load_study(tiny)
    first = run_study(study, "smoke", **places)
    (result_folder(study.name, "smoke", places["results"]) / "result.json").unlink()
    assert run_study(study, "smoke", **places) == first
    assert len(counted) == 1


def test_processes_that_share_a_study_lose_nothing(tiny, places):
    study = load_study(tiny)
    run_study(study, "small", only=["sgornn"], **places)
    result = run_study(study, "small", only=["expl*"], **places)
    assert {it.run for it in result.results} == {"sgornn", "exploding"}


def test_a_changed_setting_is_run_anew_and_the_rest_is_kept(tiny, places, counted):
    run_study(load_study(tiny), "smoke", **places)
    old = load_study(tiny)
    tiny.write_text(tiny.read_text().replace('set   = { "cell.name" = "sgornn" }', 'set = { "train.updates" = 2 }'))
    new = load_study(tiny)
    assert settings_digest(old, "smoke", old.run[0], 0) != settings_digest(new, "smoke", new.run[0], 0)
    assert settings_digest(old, "small", old.run[1], 3) == settings_digest(new, "small", new.run[1], 3)
    assert run_study(new, "smoke", **places).of("sgornn")[0].measured.updates == 2
    assert len(counted) == 2


def test_an_analysis_is_a_procedure_like_a_training(tiny, places, monkeypatch):
    text = tiny.read_text().split("[scale.smoke]")[0]
    text += '\n[[run]]\nname = "twice"\nprocedure = "twice"\noptions = { x = 3 }\n[scale.small]\noptions = { y = 1 }\n'
    tiny.write_text(text.replace("[defaults]", "[unused]").replace("[unused]", "[defaults]"))
    monkeypatch.setattr(procedures, "PROCEDURES", PROCEDURES)

    @procedure("twice")
    def twice(table, options, folder, *, progress, label):
        return Measured(last={"twice": 2.0 * options["x"] + options["y"]}, seconds=0.5)

    try:
        result = run_study(load_study(tiny), "small", only=["twice"], **places)
    finally:
        del PROCEDURES["twice"]
    assert result.values("twice", "twice", "last") == [7.0]


def test_an_unknown_run_or_scale_lists_those_there_are(tiny, places):
    with pytest.raises(
        ConfigError, match=r"--only lstm matches no run of s0/tiny at small; known: sgornn, fastrnn, exploding"
    ):
        run_study(load_study(tiny), "small", only=["lstm"], **places)
    with pytest.raises(ConfigError, match=r"s0/tiny has no scale 'huge'; known: smoke, small"):
        run_study(load_study(tiny), "huge", **places)


def test_divergence_before_anything_was_written_is_not_hidden(tiny, places, monkeypatch):
    def diverge(*arguments, **more):
        raise DivergedError("nothing is written")

    monkeypatch.setattr(measured, "train_run", diverge)
    with pytest.raises(DivergedError, match="nothing is written"):
        run_study(load_study(tiny), "smoke", **places)


def test_a_damaged_result_is_named(tiny, places):
    study = load_study(tiny)
    run_study(study, "smoke", **places)
    path = result_folder(study.name, "smoke", places["results"]) / "result.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    with pytest.raises(ConfigError, match=r"result.json is not valid JSON"):
        run_study(study, "smoke", **places)
    path.write_text(whole.replace('"chosen": 0', '"chosen": 7'))
    with pytest.raises(ConfigError, match=r"sgornn, seed 0: there is no attempt 7"):
        run_study(study, "smoke", **places)
