"""docs/results.md, docs/speed.md and the README's results say what results/ and benchmarks/ hold."""

import re
from pathlib import Path

import pytest

from helpers.scripts import script

ROOT = Path(__file__).parents[1]


pages = script("tools/pages.py")


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_generated_page_is_current(name):
    made, committed = pages.PAGES[name](), (ROOT / name).read_text(encoding="utf-8")
    assert made == committed, f"{name} is out of date: run make pages"


def test_every_claim_of_every_study_is_on_the_results_page():
    """Not met and not run included: as many rows as claims, each in the study's own words."""
    from holdfast.studies import find_studies, load_study

    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for path in find_studies(ROOT / "studies"):
        study = load_study(path, ROOT / "studies")
        if not study.claim:
            continue
        _, section = page.split(f"\n`{study.name}`")
        rows = [line for line in section.split("\n#")[0].splitlines() if line.startswith("| ")][2:]
        assert len(rows) == len(study.claim)
        for row, claim in zip(rows, study.claim, strict=True):
            assert row.startswith(f"| {claim.text} |")


def test_the_results_page_says_why_few_seeds_decide_a_claim():
    """For every claim that fewer than three seeds decided: a study has given a reason, and the page gives it too."""
    page, few = pages.PAGES["docs/results.md"](), [it for study in pages.studied() for it in study.outcomes if it.few]
    assert few
    for it in few:
        assert it.seeds in ("1", "2", "1 and 2")
        assert f'- Few seeds decide "{it.claim}": {it.few}.' in page.splitlines()


@pytest.mark.parametrize("study", pages.studied(), ids=lambda study: study.name)
def test_the_results_page_agrees_with_the_report_it_links(study):
    """Claim, verdict and number of each row stand in the report."""
    path = ROOT / study.outcomes[0].report
    if not path.is_file():
        assert all(it.status == "not run" for it in study.outcomes)
        return
    table = path.read_text(encoding="utf-8").split("## Claims")[1].split("\n## ")[0]
    rows = [re.sub(r" \(n = \d+\)", "", line) for line in table.splitlines() if line.startswith("| ")][2:]
    for row, it in zip(rows, study.outcomes, strict=True):
        assert row.startswith(f"| {it.claim} | {it.paper} | {it.ours} |")
        assert row.endswith(f"| {it.verdict} |")
        assert it.status in it.verdict


def test_every_figure_of_a_page_is_there():
    for name in pages.FIGURES:
        assert (ROOT / "benchmarks" / "figures" / f"{name}.png").is_file(), f"{name}: run make pages"


def test_choose_a_cell_knows_every_cell_that_can_be_trained():
    """And shows a row for each: none is left out because it loses."""
    from website.choose import LAYERS as SHOWN

    from holdfast.train import LAYERS

    assert {row for row, _ in SHOWN.values()} == set(LAYERS)
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8").split("## All cells")[1]
    assert all(f"| `{name}` |" in page for name in SHOWN)


def test_a_page_that_is_out_of_date_is_noticed(tmp_path, monkeypatch, capsys):
    """``--check`` names it and writes nothing; without it, the page is written."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"docs/speed.md": lambda: "new\n"})
    monkeypatch.setattr(pages, "draw", lambda *_: None)
    (tmp_path / "docs" / "speed.md").write_text("old\n")
    assert pages.main(["--check"]) == 1
    assert (tmp_path / "docs" / "speed.md").read_text() == "old\n"
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    assert "docs/speed.md" in capsys.readouterr().out
