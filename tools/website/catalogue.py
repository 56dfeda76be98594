"""One page per cell, from the code, the README's table, the newest reports of scan and cells, and the studies."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from typing import Any

import holdfast
from holdfast.citations import bibliography, references_in
from holdfast.rrnn import RRNN, RRNNCell
from website.choose import LAYERS as ROWS
from website.choose import SCORE
from website.dataflow import dataflow
from website.links import ROOT
from website.reports import report
from website.tables import table as written

__all__ = ["catalogue_pages"]

METHODS = ("RRNN", "Path-SGD", "SGORNN", "stable recurrence", "max-affine splines")
LAYERS = (
    *("RNN", "LinearRNN", "FastRNN", "SGORNN", "VPRNN", "ExpRNN", "ScoRNN", "URNN", "EUNN", "GORU", "LSTM", "GRU"),
    *("IndRNN", "CoRNN", "LEM", "AntisymmetricRNN", "FastGRNN", "MinGRU", "MinLSTM"),
)
WHOLE = ("CLSTM", "TreeLSTM")  # layers without a cell of their own
FAILS = {  # claims of studies that show where a cell falls short: (study, claim)
    "VPRNN": [("s3/addition", "VPRNN stays at the baseline at T = 5000")],
    "LSTM": [("s3/addition", "LSTM stays at the baseline at T = 5000")],
    "SGORNN": [("s3/ptb", "SGORNN is at most 10 above LSTM's test perplexity")],
    "FastRNN": [("s3/addition", "FastRNN diverges at T = 5000, at every learning rate tried")],
    "RNN": [("s2/addition", "IRNN solves T = 100")],
    "GRU": [("s1/wiki10k", "RRNN-GRU is better than GRU on the test set")],
    "RRNN": [("s1/wiki5k", "RRNN with λ in the order of (6) is better than GRU on the test set")],
}


def catalogue_pages() -> dict[str, str]:
    """The Markdown of each page, by the path that it would have in the repository."""
    table, pages, names = _readme_table(), {}, (*LAYERS, *WHOLE, "RRNN")
    outcomes = _outcomes()
    for name in names:
        layer = RRNN if name == "RRNN" else getattr(holdfast, name)
        pages[f"docs/cells/{name.lower()}.md"] = _page(name, layer, table[_cell(name)], outcomes)
    rows = "\n".join(
        f"| [{name}]({name.lower()}.md) | {table[_cell(name)][0]} | {table[_cell(name)][1]} |" for name in names
    )
    tree = "\n".join(name.lower() for name in names)
    pages["docs/cells/index.md"] = (
        "# Catalogue of cells\n\nEach cell has a layer, named without `Cell`; `CLSTM` and `TreeLSTM` are layers only. "
        "[Choose a cell](../choose.md) asks what "
        "you have and answers. φ is any nonlinearity, U the recurrent matrix.\n\n"
        f"| cell | equation | guarantee |\n| --- | --- | --- |\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return pages


def _page(name: str, layer: type, row: list[str], outcomes: dict[tuple[str, str], Any]) -> str:
    made = layer(2, 128)
    kind = type(made.cells[0]) if name in LAYERS else RRNNCell if name == "RRNN" else layer
    module = sys.modules[kind.__module__]
    path = inspect.getfile(kind).split("/src/")[-1]
    size = sum(weight.numel() for weight in made.parameters())
    parts = [f"# {name}", _first(kind), "## Equation", *_equations(inspect.getdoc(module) or "")]
    if name in LAYERS:
        small = layer(2, 4).cells[0]
        parts += [
            "## Data flow of one step",
            "Traced from the code that runs. *drive* is the part that depends on the input alone, W x + b.",
            f'```{{raw}} html\n<div style="overflow-x: auto">{dataflow(small)}</div>\n```',
        ]
    parts += ["## Guarantee", f"{_sentence(row[1])}." if row[1] else "None beyond the equation."]
    parts += ["## Size", f"{size:,} parameters with 2 inputs and H = 128, without a readout."]
    parts += ["## Speed", _speed(name)]
    compared, worst = _compared(name)
    parts += ["## Beside the other cells", compared]
    failures = [*([worst] if worst else []), *(_failure(outcomes[key]) for key in FAILS.get(name, ()))]
    parts += ["## When it fails", *failures] if failures else []
    papers = references_in(kind.__doc__ or "")
    parts += ["## Paper", *(f"```bibtex\n{bibliography()[key]}\n```" for key in papers)]
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(kind) or "")
    shown = "".join(f">>> {it.source.rstrip()}".replace("\n", "\n... ") + f"\n{it.want}" for it in examples)
    imported = (
        f">>> from {'holdfast.rrnn' if name == 'RRNN' else 'holdfast'} import {kind.__name__}\n>>> import torch\n"
    )
    parts += ["## Example", f"```python\n{imported}{shown}```"]
    home = "holdfast.rrnn" if name == "RRNN" else "holdfast"
    cell = "L" if kind is layer else f"Cell: {{py:obj}}`{home}.{kind.__name__}`, l"
    parts += [
        "## Code",
        f"{cell}ayer: {{py:obj}}`{home}.{name}`. Definition: [{path}](../../src/{path}).",
    ]
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if text[0].isascii() else text


def _cell(layer: str) -> str:
    return "LinearCell" if layer == "LinearRNN" else layer if layer in WHOLE else f"{layer}Cell"


def _first(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "`")


def _equations(docstring: str) -> list[str]:
    """The module's docstring: indented blocks are equations, the rest is text."""
    made = []
    for block in docstring.split("\n\n")[1:]:
        indented = all(line.startswith("  ") for line in block.splitlines())
        text = re.sub(r" ?Symbols: docs/notation.md.", "", block.replace("``", "`"))
        text = re.sub(r"\bS([1-5])\b", lambda it: f"{METHODS[int(it[1]) - 1]} (S{it[1]})", text, count=1)
        made.append(f"```text\n{inspect.cleandoc(block)}\n```" if indented else text)
    return made


def _readme_table() -> dict[str, list[str]]:
    """Equation, guarantee and paper of each cell, by its name: from the README and from the page of further cells."""
    text = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in ("README.md", "docs/usage/more-cells.md"))
    rows = re.findall(r"^\| \[`(\w+)`\]\([^)]*\) \|(.*?)\|(.*?)\|(.*?)\|$", text, re.MULTILINE)
    return {name: [it.strip() for it in cells] for name, *cells in rows}


def _compared(name: str) -> tuple[str, str]:
    """Its scores and places in the comparison of cells of one size; and where it comes out worst, in a sentence."""
    if name not in ROWS:
        return "The tasks of the [comparison](../comparison.md) are sequences, which it does not read.", ""
    found, comparison, own = [], report("cells"), ROWS[name][0]
    for task in filter(None, comparison.sections):
        rows = {row["cell"]: row for row in comparison.rows(task)}
        scores = {cell: float(it[0]) for cell, row in rows.items() if (it := re.match(r"[\d.]+", row[SCORE]))}
        order = sorted(scores, key=scores.__getitem__, reverse="Test accuracy" in comparison.sections[task][0])
        for cell in (it for it in rows if it == own or it.startswith(f"{own}, ")):
            place = order.index(cell) + 1 if cell in order else None
            found.append((f"{task}{cell.removeprefix(own)}", rows[cell], place, len(order)))
    shown = [
        [task, row[SCORE], f"{place} of {count}" if place else "", row["solved"], row["ms per update"], row["MB"]]
        for task, row, place, count in found
    ]
    head = ["task", SCORE, "place", "solved", "ms per update", "MB"]
    note = (
        "About 5,000 parameters, the settings that the cell starts with, and the same training for all: "
        "[comparison](../comparison.md). A better score may need other settings."
    )
    placed = [(place / count, task, row, place, count) for task, row, place, count in found if place]
    if not placed:
        return f"{written(head, shown)}\n\n{note}", ""
    _, task, row, place, count = max(placed, key=lambda it: it[0])
    solved = f", solved in {row['solved']} runs" if row["solved"] else ""
    worst = f"Of the tasks above, it does worst on *{task}*: {row[SCORE]}{solved}, place {place} of {count}."
    return f"{written(head, shown)}\n\n{note}", worst


def _speed(name: str) -> str:
    scan = report("scan")
    for heading in ("", "Layers"):
        paragraphs = scan.sections.get(heading, [])
        table = next((it for it in paragraphs if it.startswith("|")), "")
        if own := [row for row in table.splitlines() if re.match(rf"\| {name}\b", row)]:
            setting = "T = 500, B = 64, H = 128" if name != "TreeLSTM" else "32 trees of 20 words, H = 128"
            shown = "\n".join([*table.splitlines()[:2], *own])
            return f"{shown}\n\nForward and backward pass, {setting}: [report](../../{scan.path.as_posix()})."
    compared = " The next table has its time per update." if name in ROWS else ""
    return f"The newest report of the scan benchmark does not time it.{compared}"


def _outcomes() -> dict[tuple[str, str], Any]:
    from pages import studied

    return {(it.study, it.claim): it for study in studied() for it in study.outcomes}


def _failure(it: Any) -> str:
    ours = f"; ours: {it.ours}" if it.status != "not run" else ""
    return (
        f"Claim of `{it.study}`: {it.claim}. Paper: {it.paper}{ours}. Verdict: {it.verdict} "
        f"([report](../../{it.report.as_posix()}))."
    )
