"""docs/usage/diagnose.md lists every rule with its thresholds and its advice, and every measure that a rule reads."""

from pathlib import Path

import pytest

from holdfast.diagnose import RULES

TEXT = (Path(__file__).parents[2] / "docs" / "usage" / "diagnose.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_stands_in_the_document(rule):
    (row,) = [row for row in ROWS if row[0] == f"{rule.title} (`{rule.name}`)"]
    assert row[1] == " and ".join(f"`{condition}`" for condition in rule.when)
    assert row[2]
    assert "{" in rule.advice or row[2] == rule.advice


def test_every_measure_of_a_rule_is_explained():
    explained = " ".join(row[0] for row in ROWS if len(row) == 2)
    measures = {condition.measure for rule in RULES for condition in rule.when} - {"steps"}
    assert not [measure for measure in measures if f"`{measure}`" not in explained]
