"""Every public name has an example that runs, and a place in the documents; and importing them is light."""

import doctest
import functools
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


SUBPACKAGES = (
    "constraints", "optim", "stability", "spline", "rrnn", "tasks", "train", "runs", "studies", "estimators", "export",
    "diagnose",
)  # fmt: skip
PACKAGES = [holdfast, *(importlib.import_module(f"holdfast.{name}") for name in SUBPACKAGES)]
PUBLIC = {f"{package.__name__}.{name}": getattr(package, name) for package in PACKAGES for name in package.__all__}
NAMES = [  # constants have no docstring of their own
    pytest.param(thing, id=name) for name, thing in PUBLIC.items() if inspect.isclass(thing) or inspect.isroutine(thing)
]


@pytest.mark.parametrize("thing", NAMES)
def test_a_public_name_has_a_docstring_with_an_example(thing):
    """One of its own that shows the name at work. It is run with the doctests of its module, as all of src is."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    assert text, f"{thing.__name__} has no docstring"
    assert "Example:" in text
    assert doctest.DocTestParser().get_examples(text)


@functools.cache
def _written():
    """The README and the pages that a person wrote: docs/reference.md lists all names by itself."""
    pages = [ROOT / "README.md", *(path for path in ROOT.glob("docs/**/*.md") if path.name != "reference.md")]
    return "\n".join(path.read_text(encoding="utf-8") for path in pages)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docs_entry(name):
    """In code: between backticks, or in an example."""
    short = name.rpartition(".")[2]
    pattern = re.compile(rf"`[^`\n]*\b{short}\b[^`\n]*`|^.*>>>.*\b{short}\b", re.MULTILINE)
    assert pattern.search(_written()), f"{name} is in no document"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_lists_what_is_there_and_nothing_twice(package):
    assert len(set(package.__all__)) == len(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_importing_holdfast_is_light():
    """None of the extras is imported, so none of them is needed."""
    program = f"import sys, holdfast; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_that_of_the_project_file():
    assert f'version = "{holdfast.__version__}"' in (ROOT / "pyproject.toml").read_text()
