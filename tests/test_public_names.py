"""Every public name has an example that runs, and a place in the documents; and importing them is light."""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[1]
HEAVY = ("hypothesis", "matplotlib", "pandas", "rich", "scipy", "sklearn")


PACKAGES = [
    holdfast,
    *(importlib.import_module(f"holdfast.{name}") for name in ("optim", "stability", "spline", "rrnn")),
]
NAMES = [  # constants have no docstring of their own
    pytest.param(getattr(package, name), id=f"{package.__name__}.{name}")
    for package in PACKAGES
    for name in package.__all__
    if callable(getattr(package, name))
]


@pytest.mark.parametrize("thing", NAMES)
def test_a_public_name_has_a_docstring_with_an_example(thing):
    """One of its own that shows the name at work: it is run with the doctests of its module."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    assert text, f"{thing.__name__} has no docstring"
    assert "Example:" in text
    assert doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize("thing", NAMES)
def test_the_example_of_a_public_name_runs(thing):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    found = doctest.DocTestFinder(recurse=False).find(thing, thing.__name__, module=sys.modules[thing.__module__])
    assert found
    for example in found:
        assert runner.run(example).failed == 0


@pytest.mark.parametrize("name", holdfast.__all__)
def test_a_public_name_has_a_docs_entry(name):
    """In the README or in a page that a person wrote: docs/reference.md lists them all by itself."""
    documents = [ROOT / "README.md", *(path for path in ROOT.glob("docs/**/*.md") if path.name != "reference.md")]
    pattern = re.compile(rf"`[^`\n]*\b{name}\b[^`\n]*`|^.*>>>.*\b{name}\b", re.MULTILINE)
    assert any(pattern.search(path.read_text()) for path in documents), f"{name} stands in no document"


def test_all_lists_what_is_there_and_nothing_twice():
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_importing_holdfast_is_light():
    """None of the extras is imported, so none of them is needed."""
    program = f"import sys, holdfast; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_that_of_the_project_file():
    assert f'version = "{holdfast.__version__}"' in (ROOT / "pyproject.toml").read_text()
