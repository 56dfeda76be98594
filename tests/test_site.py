"""The source of the site: every public name has an entry, every cell a page, every link a target."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast

pytest.importorskip("sphinx")

from website.api import api_pages, packages, public_entries
from website.catalogue import LAYERS, WHOLE, catalogue_pages
from website.contents import changes, sidebar
from website.gallery import ARGUMENTS, programs
from website.generated import ERRORS, differences
from website.links import ROOT, rewrite, site_path, targets
from website.names import link_targets, plain_text
from website.stage import IN_SIDEBAR, Stage, stage_documents

PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def reference():
    return api_pages()


def test_every_public_name_is_in_the_reference_once(reference):
    """Each name of each ``__all__``: under its short path if holdfast offers it, else under its package's."""
    entry = re.compile(r"^\.\. \S+:: (holdfast[\w.]+)", re.MULTILINE)
    entries = [path for text in reference.values() for path in entry.findall(text)]
    assert len(set(entries)) == len(entries)
    documented = {id(_thing(path)) for path in entries}
    for package in (holdfast, *(importlib.import_module(f"holdfast.{name}") for name in packages())):
        for name in package.__all__:
            thing = getattr(package, name)
            assert id(thing) in documented or f"{package.__name__}.{name}" in entries, f"{package.__name__}.{name}"
    assert sorted(entries) == sorted(public_entries())


def _thing(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_package_with_public_names_has_a_page(reference):
    """Found in the folder, so that a new package cannot be forgotten."""
    for module in pkgutil.iter_modules(holdfast.__path__):
        if module.name.startswith("_") or module.name == "linalg":
            continue
        if hasattr(importlib.import_module(f"holdfast.{module.name}"), "__all__"):
            assert f"api/{module.name}.rst" in reference
            assert f"\n   {module.name}\n" in reference["api/index.rst"]


def test_every_cell_has_a_page_in_the_catalogue():
    """And each layer without one. With its equation, picture, size, paper, example and code."""
    cells = {name.removesuffix("Cell") for name in holdfast.__all__ if name.endswith("Cell")} - {""}
    assert {name.removesuffix("RNN") if name == "LinearRNN" else name for name in LAYERS} == cells
    pages = catalogue_pages()
    for name in (*LAYERS, *WHOLE, "RRNN"):
        text = pages[f"docs/cells/{name.lower()}.md"]
        for part in (
            "## Equation",
            "```text",
            "## Guarantee",
            "parameters with 2 inputs",
            "@",
            ">>> ",
            "../../src/holdfast/",
        ):
            assert part in text, f"{name}: {part}"
        assert ("<svg" in text) == (name in LAYERS)


def test_links_lead_to_pages_of_the_site(tmp_path):
    """Pages and every file that one of them links are staged; a link to what is not there stops the build."""
    made = dict.fromkeys(("docs/gallery/index.md", "docs/cells/index.md"), "# A page\n")
    stage = Stage(tmp_path)
    stage_documents(stage, [*PAGES, *IN_SIDEBAR], changes(PAGES, {"gallery/index", "cells/index", "api/index"}), made)
    for source in PAGES:
        text = (ROOT / source).read_text(encoding="utf-8")
        for target in targets(text, source):
            assert site_path(target) in stage, f"{source} links {target}"
    with pytest.raises(SystemExit, match="no-such"):
        stage_documents(stage, [], {}, {"docs/wrong.md": "[x](no-such.md)"})


def test_links_are_rewritten_outside_of_code_only():
    text = "[a](../tests/test_docs.py#x) `[b](../tests/test_docs.py)` [c](https://example.org)\n```\n[d](e.md)\n```\n"
    done = rewrite(text, "docs/index.md")
    assert done == text.replace("../tests/test_docs.py#x", "repository/tests/test_docs.py.md#x")


def test_every_page_is_in_the_sidebar_or_in_the_contents_of_its_folder():
    shown = {it for them in sidebar(PAGES, lambda name: True).values() for it in them} | {"index"}
    trees = {name: change((ROOT / name).read_text(encoding="utf-8")) for name, change in changes(PAGES, set()).items()}
    for page in PAGES:
        name = site_path(page).removesuffix(".md")
        assert name in shown or any(f"\n{name}\n" in text for text in trees.values()), page


def test_a_guide_that_nobody_lists_is_added_to_the_guides(tmp_path, monkeypatch):
    """So that a page of docs/usage is in the site as soon as it is there."""
    import website.contents

    monkeypatch.setattr(website.contents, "ROOT", tmp_path)
    page = tmp_path / "docs/usage/brand-new.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Brand new\n")
    change = changes([*PAGES, "docs/usage/brand-new.md"], set())["docs/guides.md"]
    text = change("# Guides\n\n" + "\n".join(f"[x]({it[5:]})" for it in PAGES if it.startswith("docs/usage/")))
    assert "- [Brand new](usage/brand-new.md)" in text
    assert "\nusage/brand-new\n" in text


def test_the_rows_of_errors_are_rows_of_differences():
    for heading, names in ERRORS.items():
        assert set(names) <= set(differences(heading))


def test_code_links_to_a_public_name_and_not_to_a_method_of_the_same_name():
    """``fit`` is a function of holdfast.train and a method of many classes; a page that says `fit` may mean either."""
    found = link_targets()
    assert found["SGORNN"] == found["holdfast.SGORNN"] == "holdfast.SGORNN"
    assert found["project_"] == "holdfast.stability.project_"
    assert "fit" not in found
    assert "forward" not in found
    assert found["holdfast.train.fit"] == "holdfast.train.fit"


def test_docstrings_become_text_that_sphinx_takes_literally():
    """Marks of reStructuredText are escaped in text, kept in code and examples; equations are code blocks."""
    lines = [
        "With |a| and ``x|y``s:",
        "",
        "    h_t = |U| h_*",
        "",
        "Args:",
        "    h_: ends so.",
        "",
        "Example:",
        "    >>> a | b",
    ]
    text = "\n".join(plain_text(lines))
    for part in (r"\|a\|", "``x|y``\\ s", ".. code-block:: text\n\n    h_t = |U| h_*", r"h\_: ends", ">>> a | b"):
        assert part in text


def test_arguments_of_the_gallery_belong_to_programs():
    assert set(ARGUMENTS) <= {it.stem for it in programs()}
    assert len(programs()) >= 12
    assert all(Path(it).read_text(encoding="utf-8").startswith('"""') for it in programs())
