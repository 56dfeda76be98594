"""The page: one HTML file with everything in it, for one diagnosis or for two side by side.

Plotly's script, ours, the style and the data are inside. A content security policy forbids every request. Text from
models and files is escaped, and the script writes it as text.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from holdfast.diagnose.charts import sections
from holdfast.diagnose.diagnosis import Diagnosis
from holdfast.diagnose.rules import Finding

__all__ = ["page"]

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(diagnoses: Sequence[Diagnosis], *, reload: float | None = None) -> str:
    """The HTML of one diagnosis, or of several side by side.

    Args:
        diagnoses: whose.
        reload: seconds after which a browser reads the file again; None: never.

    Example:
        >>> page([Diagnosis("empty", (), (), (), (), ())]).startswith("<!doctype html>")
        True
    """
    from plotly.offline import get_plotlyjs

    title = " and ".join(one.title for one in diagnoses)
    rows = list(dict.fromkeys(row.name for one in diagnoses for row in one.rows))
    data = {
        "rows": rows,
        "start": next((it.row for one in diagnoses for it in one.findings if it.row in rows), ""),
        "samples": [list(one.samples) for one in diagnoses],
        "diagnoses": [
            {
                "title": one.title,
                "rows": {row.name: sections(one, row) for row in one.rows} or {"": sections(one, None)},
            }
            for one in diagnoses
        ],
    }
    inside = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    refresh = "" if reload is None else f'<meta http-equiv="refresh" content="{reload:g}">'
    columns = "".join(_column(one, len(diagnoses) > 1) for one in diagnoses)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
{refresh}
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{(_HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body class="columns-{len(diagnoses)}">
<div class="verdicts">{columns}</div>
<form class="controls" id="controls" aria-label="What the pictures show"></form>
<main id="pictures"><noscript>The pictures need JavaScript; it is inside this file.</noscript></main>
<footer>{"".join(_notes(one) for one in diagnoses)}</footer>
<script type="application/json" id="data">{inside}</script>
<script>{get_plotlyjs()}</script>
<script>{(_HERE / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _column(one: Diagnosis, several: bool) -> str:
    heading = "h2" if several else "h1"
    about = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in one.about
    )
    if one.healthy:
        found = '<p class="healthy">No finding. The network is healthy on these sequences.</p>'
    else:
        found = "<ol>" + "".join(map(_card, one.findings)) + "</ol>"
    return (
        f'<section class="verdict"><{heading}>{html.escape(one.title)}</{heading}><dl class="about">{about}</dl>'
        f"{found}</section>"
    )


def _card(it: Finding) -> str:
    flags = f"<p>On the command line: <code>holdfast train … {html.escape(it.flags)}</code></p>" if it.flags else ""
    return (
        f'<li class="finding" data-rule="{html.escape(it.rule)}"><h3>{html.escape(it.title)}</h3>'
        f"<p>{html.escape(it.sentence)}</p>"
        f'<p class="evidence">Evidence: {html.escape(it.evidence)}.</p>'
        f"<p><strong>What to do.</strong> {html.escape(it.advice)}</p>"
        f"<pre><code>{html.escape(it.code)}</code></pre>{flags}</li>"
    )


def _notes(one: Diagnosis) -> str:
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in one.notes)
    return f"<h2>Notes on {html.escape(one.title)}</h2><ul>{listed}</ul>" if listed else ""
