"""What stands in the sidebar, and the cards of the first page.

docs/index.md, docs/guides.md and docs/theory.md are plain Markdown. In the site they also get tables of contents: the
pages that they link, in that order, and then every page of the folder that they do not link. So a new page below
docs/usage or docs/theory is in the site as soon as the file is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from website.links import ROOT, site_path, targets
from website.stage import IN_SIDEBAR, title_of

__all__ = ["changes", "sidebar"]

SECTIONS = {
    "Learn": ["start", "choose", "guides", "gallery/index"],
    "Cells and theory": ["cells/index", "theory", "differences", "errors", "notation", "related-work"],
    "Measured": ["results", "comparison", "speed", "sequences"],
    "Reference": ["api/index", "reference", "repository/CHANGELOG", "repository/CONTRIBUTING"],
}
CARDS = {
    "start": ("Start", "From installation to a model of your own file in five minutes."),
    "choose": ("Choose a cell", "What fits your sequences, with measured accuracy and speed."),
    "guides": ("Guides", "One problem per page, with a result that you can run."),
    "gallery/index": ("Gallery", "Programs with their output and figures."),
    "cells/index": ("Catalogue of cells", "Equation, data flow, guarantee, size and speed of each."),
    "theory": ("Theory", "Five papers: what they claim, what holds, what we measured."),
    "results": ("Results", "Every claim of every study, met or not."),
    "api/index": ("API reference", "Every public name, with types and source."),
}
TITLES = {"reference": "All names on one page", "differences": "Differences from the papers"}  # shorter in the sidebar
BEGIN, END = "<!-- contents -->", "<!-- end of contents -->"


def sidebar(pages: list[str], known: Callable[[str], bool]) -> dict[str, list[str]]:
    """The sections of the sidebar: those pages of ``SECTIONS`` that exist, and any other page at the top of docs/."""
    sections = {head: [it for it in them if known(it)] for head, them in SECTIONS.items()}
    placed = {it for them in sections.values() for it in them} | {"index"}
    top = [site_path(it).removesuffix(".md") for it in pages if it.count("/") == 1]
    sections["Reference"] += [it for it in top if it not in placed]
    return sections


def changes(pages: list[str], generated: set[str]) -> dict[str, Callable[[str], str]]:
    """How a page of the repository is changed for the site, by its path.

    Args:
        pages: repository paths of all pages of docs/.
        generated: pages of the site that are not in the repository, without their suffix.
    """
    present = {site_path(it).removesuffix(".md") for it in (*pages, *IN_SIDEBAR)} | generated
    sections = sidebar(pages, present.__contains__)

    def index(text: str) -> str:
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        cards = [_card(page, *CARDS[page]) for page in CARDS if page in present]
        grid = "::::{grid} 1 2 2 2\n:gutter: 3\n\n" + "\n".join(cards) + "::::\n"
        trees = "\n".join(_tree(them, head) for head, them in sections.items())
        return f"{before}{grid}{after}\n{trees}"

    return {
        "docs/index.md": index,
        "docs/guides.md": _with_folder("docs/guides.md", "docs/usage", "More guides", pages),
        "docs/theory.md": _with_folder("docs/theory.md", "docs/theory", "More derivations", pages),
    }


def _with_folder(page: str, folder: str, more: str, pages: list[str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        linked = [it for it in targets(text, page) if it.startswith(f"{folder}/")]
        others = [it for it in pages if it.startswith(f"{folder}/") and it not in linked]
        names = [f"{PurePosixPath(it).relative_to('docs')}" for it in dict.fromkeys([*linked, *others])]
        lines = [f"- [{title_of(ROOT / it)}]({PurePosixPath(it).relative_to('docs')})" for it in others]
        shown = f"\n## {more}\n\n" + "\n".join(lines) + "\n" if others else ""
        return f"{text}{shown}\n{_tree([it.removesuffix('.md') for it in names])}"

    return change


def _tree(names: list[str], caption: str = "") -> str:
    head = f":caption: {caption}\n" if caption else ""
    lines = [f"{TITLES[it]} <{it}>" if it in TITLES else it for it in names]
    return "```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(lines) + "\n```\n"


def _card(page: str, title: str, text: str) -> str:
    return f":::{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n\n{re.sub(' +', ' ', text)}\n:::\n"
