"""Turns of phrase that a reader stumbles over do not come back: "a row a sample" for one row per sample, and others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("src/holdfast/**/*.py")),
]
THINGS = (
    "row|column|line|sentence|file|panel|colour|step|batch|sample|sequence|seed|split|core|gate|word|letter|kernel|worker|"
    "layer|tree|query|image|unit|block|node|round|class|frame|thread|process|channel|second|model|token|window|page|answer|"
    "character|folder|epoch|update|trial|cell|number|copy|entry|value|bit|byte|name"
)
AVOIDED = {
    "one row per sample": rf"\b(?:an?|one|two|three|\d[\d,]*) (?:{THINGS})s? an? (?:{THINGS})\b",
    "once per step": r"\bonce an? (?:sequence|step|batch|call|round|process)\b",
    "samples per second": r"\b(?:samples|steps|bits|numbers) an? (?:second|minute|sample|word)\b",
    "one sentence for each": r"\ban? (?:sentence|answer|panel|row|line|folder|file) each\b",
    "this many, or the number of": r"\b(?:only|of|for|with|after|every|each|first|last|take|keep) so (?:many|much)\b",
    "how to get it": r"\bthe way to (?:get|do) it\b|\bnot to be had\b",
    "resumes, continues": r"\bgoes on where\b|\btaken up again\b|\bhow to go on\b",
    "is not a file": r"\bis no (?:number|folder|file|tensor|list)\b",
    "an option is applied": r"\bwhat is (?:asked|told) is\b",
}


@pytest.mark.parametrize("instead", AVOIDED)
def test_a_phrase_that_is_hard_to_read_stands_nowhere(instead):
    """The name of the case is what to write instead. Lines are joined, since a phrase may be wrapped."""
    pattern, found = re.compile(AVOIDED[instead], re.IGNORECASE), []
    for path in FILES:
        text = " ".join(line.strip().lstrip("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
    assert not found, "\n".join([f"write {instead!r} instead:", *found])
