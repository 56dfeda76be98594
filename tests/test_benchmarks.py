"""The benchmarks cover every cell, and their tables say what is not in them."""

from pathlib import Path

import pytest
import torch

from helpers.scripts import script
from holdfast.train import build

ROOT = Path(__file__).parents[1]
cells = script("benchmarks/cells.py")


@pytest.fixture(autouse=True)
def _as_users_have_it():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("cell", cells.CELLS)
def test_a_compared_cell_spends_its_budget(cell):
    """On the addition problem, to 8%: RRNN, with the fewest units, comes no nearer than 7%. None has ten or fewer."""
    task = cells.task_of("addition-200")
    settings = cells.sized(cell, task)
    found = sum(weight.numel() for weight in build(settings, task.spec).parameters())
    assert abs(found - cells.PARAMETERS) < 0.08 * cells.PARAMETERS
    assert settings.hidden_size > 10


def test_the_comparison_says_why_a_cell_is_not_trained_and_which_runs_diverged():
    """From the kept results: 7,200 milliseconds for each of 1,500 updates are three hours."""
    run = {"status": "finished", "validation": 0.9, "updates": 1500}
    kept = {"rrnn/cost": {"ms": 7200.0}, "gru/0/0.01": run, "gru/1/0.01": {"status": "diverged"}, "gru/2/0.01": run}
    why, lost = cells.remarks("har", kept, scale=1.0)
    assert why.startswith("rrnn is not trained: it searches")
    assert "1,500 updates would take 3.0 core-hours" in why
    assert lost == "gru diverged with seed 1."
    assert cells.remarks("har", {"gru/0/0.01": run}, scale=1.0) == []


def test_every_layer_that_can_be_trained_is_timed_by_the_scan_or_has_a_benchmark_of_its_own():
    """And the page on choosing a cell asks for rows that the benchmark writes."""
    from website.choose import LAYERS as SHOWN
    from website.choose import SEARCHED

    timed = {*script("benchmarks/scan.py").CELLS, "CLSTM, 150 filters"}
    for name, (_, row) in SHOWN.items():
        assert (row in timed) != (name in SEARCHED), name


def test_the_speed_page_asks_for_headings_that_the_benchmarks_write():
    """So that one which is left out is newer than the report, and not misspelt."""
    from website.speed import SPEED

    for section in SPEED:
        source = (ROOT / f"benchmarks/{section.benchmark.replace('-', '_')}.py").read_text(encoding="utf-8")
        for heading in section.parts:
            assert f"## {heading}" in source, f"{section.benchmark}: {heading}"


def test_a_forest_of_the_scan_benchmark_has_binary_trees_with_children_first():
    children, roots = script("benchmarks/scan.py").forest(trees=3, words=5)
    assert len(children) == 3 * (5 + 4)
    assert all(child < node for node, pair in enumerate(children) for child in pair)
    used = [child for pair in children for child in pair if child >= 0]
    assert sorted([*used, *roots]) == list(range(27))  # every node has one parent, or is one of three roots
