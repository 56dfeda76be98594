"""Claims are judged by what came out, and what did not come out stays in the table."""

import dataclasses

import pytest

from holdfast.runs.environment import Environment
from holdfast.runs.measured import Measured
from holdfast.studies.claims import judge, shown, summary
from holdfast.studies.report import overview, overview_table, report
from holdfast.studies.result import Attempt, SeedResult, StudyResult, read_result, write_result
from holdfast.studies.run import run_study
from holdfast.studies.study import Claim, Run, Scale, Study, load_study

WHERE = Environment({"torch": "2.13.0"}, "Linux x86_64", "a CPU", 2, 1)


def entry(run, seed, *measured, chosen=0):
    return SeedResult(run, seed, "0", tuple(Attempt(None, it) for it in measured), chosen, "2026-01-02", WHERE)


def scored(value, **more):
    return Measured(best={"test.accuracy": value}, last={"test.accuracy": value}, parameters=7, **more)


DIVERGED = Measured(status="diverged", reason="no number", best={"test.accuracy": 0.5})
A = (0.90, 0.92, 0.94)  # mean 0.92, standard deviation 0.02
PAIRED = (0.89, 0.9, 0.94)  # A - PAIRED is 0.01, 0.02, 0: mean 0.01, standard deviation 0.01; unpaired 0.033
FAR = (0.70, 0.72, 0.74)
RESULT = StudyResult(
    "s0/made",
    "small",
    (
        *(entry("a", seed, scored(value)) for seed, value in enumerate(A)),
        *(entry("paired", seed, scored(value - 1e-6)) for seed, value in enumerate(PAIRED)),
        *(entry("other-seeds", seed + 3, scored(value)) for seed, value in enumerate(PAIRED)),
        *(entry("far", seed, scored(value)) for seed, value in enumerate(FAR)),
        *(entry("exploded", seed, scored(value)) for seed, value in enumerate((0.02, 0.03, 1e9))),
        *(entry("still", seed, scored(0.92)) for seed in range(3)),
        entry("one", 0, scored(0.91)),
        *(entry("c", seed, DIVERGED, scored(0.2), chosen=1) for seed in range(3)),
        *(entry("d", seed, DIVERGED) for seed in range(3)),
    ),
)


def judged(**claim):
    claim = Claim(**{"text": "it is so", "run": "a", "metric": "test.accuracy", "pick": "last", **claim})
    runs = tuple(Run(name) for name in ("a", "paired", "other-seeds", "far", "exploded", "still", "one", "c", "d", "e"))
    study = Study("Made", run=runs, scale={"small": Scale(), "paper": Scale()}, claim=(claim,), name="s0/made")
    return judge(study, RESULT, "small")[0]


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        ({"at_least": 0.89}, "met"),
        ({"at_least": 0.95}, "not met"),
        ({"at_most": 0.95}, "met"),
        ({"at_most": 0.89}, "not met"),
        ({"at_least": 0.8, "at_most": 0.95}, "met"),
        ({"at_least": 0.8, "at_most": 0.85}, "not met"),
        ({"run": "still", "at_most": 0.92}, "met"),  # on the bound, without a spread
        ({"metric": "parameters", "equals": 7}, "met"),
        ({"metric": "parameters", "equals": 8}, "not met"),
        ({"run": "one", "metric": "parameters", "equals": 7}, "met"),  # a count needs one seed
        ({"than": "far"}, "met"),
        ({"than": "far", "better_by": 0.21}, "not met"),
        ({"run": "far", "than": "a"}, "not met"),
        ({"run": "far", "than": "a", "better_by": -0.21}, "met"),  # within 0.21
        ({"than": "far", "better": "lower"}, "not met"),
        ({"run": "exploded", "at_most": 0.01}, "not met"),  # by every seed, though within their spread
        ({"at_least": 0.945}, "not met"),  # by every seed again
        ({"at_least": 0.945, "of": 10_000}, "not met"),  # by 9 standard errors
        ({"run": "exploded", "at_most": 0.025}, "undecided"),  # one seed of three meets it
        ({"than": "d"}, "met"),  # the other one has no number at all
        ({"run": "d", "at_least": 0.0}, "not met"),
        ({"run": "d", "pick": "best", "at_least": 0.4}, "met"),
        ({"run": "d", "metric": "diverged", "at_least": 1.0}, "met"),
        ({"run": "c", "metric": "diverged", "at_least": 1.0}, "not met"),  # one of two attempts
        ({"run": "a", "metric": "diverged", "at_most": 0.0}, "met"),
        ({"run": "e", "at_least": 0.0}, "not run"),
        ({"than": "e"}, "not run"),
        ({"at_least": 0.0, "scales": ("paper",)}, "not run"),
        ({"metric": "test.loss", "at_most": 9.0}, "not met"),  # never measured
    ],
)
def test_a_claim_is_judged_by_the_mean_over_seeds(claim, status):
    assert judged(**claim).status == status


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"at_least": 0.91}, "within the spread of the seeds"),  # half a standard deviation on the right side
        ({"at_least": 0.93}, "within the spread of the seeds"),  # and on the wrong one
        ({"at_least": 0.8999}, ""),
        ({"than": "paired"}, ""),  # 0.010001 apart, seed by seed, with a standard deviation of 0.01
        ({"than": "paired", "better_by": 0.001}, "within the spread of the paired seeds"),
        ({"than": "other-seeds"}, "within the spread of the seeds"),  # the same numbers, not in pairs
        ({"run": "one", "at_least": 0.1}, "one seed"),
        ({"than": "one"}, "one seed"),
        ({"run": "one", "at_least": 0.1, "few": "it never moves"}, ""),
        ({"run": "still", "at_least": 0.91}, ""),
        ({"run": "still", "at_least": 0.91, "of": 100}, "within the standard error of 100 answers"),  # 0.027
        ({"run": "still", "at_least": 0.91, "of": 1000}, ""),  # 0.0086
        ({"at_least": 0.945, "of": 100}, "within the standard error of 100 answers"),  # though by every seed
        ({"run": "still", "than": "far", "better_by": 0.17, "of": 100}, "within the standard error of 100 answers"),
    ],
)
def test_what_lies_within_the_spread_or_rests_on_too_few_seeds_is_undecided(claim, why):
    """√(0.92 × 0.08 / 100) = 0.027; with 0.72 × 0.28 / 100 added, 0.052."""
    it = judged(**claim)
    assert (it.status == "undecided", it.why) == (bool(why), why)
    assert (f"*undecided*: {why}" == it.verdict) == bool(why)


def test_the_reason_why_few_seeds_decide_is_given_where_they_do():
    """Not with three seeds, nor where the claim is not decided."""
    few = {"few": "it never moves"}
    assert judged(run="one", at_least=0.1, **few).few == "it never moves"
    assert judged(than="one", better_by=-0.1, **few).few == "it never moves"
    assert judged(at_least=0.1, **few).few == ""
    assert judged(run="one", at_least=0.91, of=100, **few).few == ""
    assert judged(run="e", at_least=0.1, **few).few == ""


def test_the_number_of_answers_follows_from_the_settings_of_the_scale():
    """0.92 against 0.91: decided on MNIST's 10,000 test images, not on the first 100 of them."""
    scales = {"small": Scale(set={"task.limit": 100}), "paper": Scale()}
    claim = Claim("it is", "still", "test.accuracy", at_least=0.91)
    task = {"task": {"name": "mnist"}, "train": {"epochs": 1}}
    study = Study("Made", run=(Run("still"),), scale=scales, claim=(claim,), defaults=task)
    whys = [judge(study, RESULT, scale)[0].why for scale in scales]
    assert whys == ["within the standard error of 100 answers", ""]


def test_a_seed_without_the_number_cannot_bear_a_claim_out():
    result = dataclasses.replace(RESULT, results=(*RESULT.results, entry("a", 3, DIVERGED)))
    study = Study("Made", run=(Run("a"),), claim=(Claim("it is", "a", "test.accuracy", pick="last", at_least=0.5),))
    it = judge(study, result, "small")[0]
    assert it.status == "not met"
    assert it.text == "92.00% ± 2.00% (n = 3, 1 without)"


def test_mean_and_standard_deviation_are_those_of_the_textbook():
    it = summary([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert it.mean == 5.0
    assert it.spread == pytest.approx((32 / 7) ** 0.5)
    assert summary([3.0]).spread is None


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (0.9407, "test.accuracy", "94.07%"),
        (0.035, "train.accuracy - test.accuracy", "3.50%"),
        (132.264, "test.perplexity", "132.26"),
        (67201, "parameters", "67,201"),
        (0.0312345, "validation.mse", "0.03123"),
        ("converges", "validation.mse", "converges"),
        (0.5, "diverged", "50%"),
    ],
)
def test_numbers_are_shown_as_the_papers_tables_show_them(value, metric, text):
    assert shown(value, metric) == text


def test_a_report_holds_every_claim_every_run_and_the_setting(ran):
    study, result, results = ran
    text = (results / "s0/tiny/small/report.md").read_text()
    lines = text.splitlines()
    assert any(line.startswith("| it has 27 parameters | 27 | 27 ± 0 (n = 2) | small | met |") for line in lines)
    assert any(
        line.startswith("| it answers without a mistake") and line.endswith("| *undecided*: two seeds |")
        for line in lines
    )
    assert any(line.startswith("| the exploding one explodes") and "100% ± 0% (n = 2)" in line for line in lines)
    for run in study.run:
        assert any(line.startswith(f"| {run.title} |") for line in lines)
    assert "| fastrnn | 3 | train.lr = 0.001 |" in text
    assert "![Error](figure-1.png)" in text
    assert "holdfast study run s0/tiny --scale small" in text
    assert "Small enough for a test." in text
    assert result.results[0].environment.cpu in text
    assert str(results.parent) not in text
    assert "changed since" not in text


def test_a_report_says_when_the_study_has_changed_since(tiny, ran):
    tiny.write_text(tiny.read_text().replace('set   = { "cell.name" = "sgornn" }', 'set = { "train.lr" = 2e-2 }'))
    text = report(load_study(tiny), ran[1])
    assert "- the study file has changed since these were run: sgornn\n" in text


def test_the_overview_has_every_claim_of_every_study_run_or_not(ran, tmp_path):
    study, _, results = ran
    assert [row.status for row in overview([study], tmp_path)] == 3 * ["not run"]
    rows = overview([study], results)
    assert [(row.scale, row.status) for row in rows] == [
        ("small", "met"),
        ("small", "undecided"),
        ("small", "undecided"),
    ]
    table = overview_table(rows).splitlines()
    assert len(table) == 5
    assert {line.count("|") for line in table} == {7}


def test_smoke_is_no_evidence(tiny, tmp_path):
    study = load_study(tiny)
    run_study(study, "smoke", tmp_path / "results", runs=tmp_path / "runs", progress=False)
    assert {row.status for row in overview([study], tmp_path / "results")} == {"not run"}


def test_a_bar_in_a_claim_does_not_break_the_table():
    study = Study("Made", run=(Run("a"),), claim=(Claim("|x| is\nsmall", "a", "test.accuracy", at_most=1.0),))
    assert r"| \|x\| is small |" in report(study, StudyResult("made", "small"))


def test_results_survive_the_way_through_their_file(tmp_path):
    write_result(tmp_path / "result.json", RESULT)
    assert read_result(tmp_path / "result.json") == RESULT


def test_numbers_that_are_none_become_null(tmp_path):
    odd = Measured(best={"a.loss": float("nan")}, curve={"update": (1, 2), "a.loss": (float("inf"), 0.12345678)})
    write_result(tmp_path / "result.json", StudyResult("s", "small", (entry("a", 0, odd),)))
    kept = read_result(tmp_path / "result.json")
    assert kept is not None
    assert kept.results[0].measured.best == {"a.loss": None}
    assert kept.results[0].measured.curve["a.loss"] == (None, 0.123457)


def test_a_report_counts_rewinds_where_a_run_has_spike_protection():
    """From the outcome, or from the last line of the log of an older result; without protection there is no column."""
    curve = {"update": (1, 2), "rewinds": (0.0, 3.0)}
    results = (
        entry("a", 0, scored(0.9, curve=curve, rewinds=5)),
        entry("a", 1, scored(0.9, curve={**curve, "rewinds": (0, 1)})),
    )
    study = Study("Made", run=(Run("a"), Run("one")), scale={"small": Scale()}, metric="test.accuracy", name="s0/made")
    plain = entry("one", 0, scored(0.8))
    text = report(study, StudyResult("s0/made", "small", (*results, plain)))
    rows = [line for line in text.splitlines() if line.startswith(("| run", "| a ", "| one "))]
    assert [row.rsplit("|", 2)[1].strip() for row in rows[:3]] == ["rewinds", "1 to 5", ""]
    assert "rewinds" not in report(study, StudyResult("s0/made", "small", (plain,)))


def test_a_report_counts_skipped_updates_where_a_run_has_any():
    """From the last line of each log; a run without such a line has an empty cell. Without any there is no column."""
    curve = {"update": (1, 2), "skipped": (0, 5)}
    none = {**curve, "skipped": (0, 0)}
    results = (entry("a", 0, scored(0.9, curve=curve)), entry("one", 0, scored(0.9, curve=none)))
    study = Study("Made", run=(Run("a"), Run("one")), scale={"small": Scale()}, metric="test.accuracy", name="s0/made")
    text = report(study, StudyResult("s0/made", "small", results))
    rows = [line for line in text.splitlines() if line.startswith(("| run", "| a ", "| one "))]
    assert [row.rsplit("|", 2)[1].strip() for row in rows[:3]] == ["skipped", "5", "0"]
    assert "skipped" not in report(study, StudyResult("s0/made", "small", results[1:]))


def test_a_report_adds_up_the_hours_and_says_how_many_results_have_those_of_the_processor():
    """Over all attempts; a result with an attempt that did not record them has none."""
    known, old = scored(0.9, seconds=3600.0, cpu_seconds=1800.0), scored(0.9, seconds=3600.0)
    study = Study("Made", run=(Run("a"), Run("one")), scale={"small": Scale()}, metric="test.accuracy", name="s0/made")

    def said(*entries):
        return report(study, StudyResult("s0/made", "small", entries))

    assert "2.00 hours of training in all by the clock, 1.00 hours of CPU time\n" in said(entry("a", 0, known, known))
    some = said(entry("a", 0, known), entry("a", 1, known, old))
    assert "3.00 hours of training in all by the clock, 0.50 hours of CPU time in 1 of 2 results" in some
    assert "| CPU seconds |" in some
    assert "1.00 hours of training in all by the clock; CPU time was not recorded\n" in said(entry("a", 0, old))
    assert "| CPU seconds |" not in said(entry("a", 0, old))
