"""What a person reads: links lead somewhere, names and commands exist, S1 to S5 are explained, the README is short."""

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.main import get_command

import holdfast
from holdfast.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
METHODS = {"S1": "RRNN", "S2": "Path-SGD", "S3": "SGORNN", "S4": "stable recurrence", "S5": "max-affine splines"}
PUBLIC = (
    "",
    ".constraints",
    ".linalg.givens",
    ".linalg.norms",
    ".linalg.skew",
    ".optim",
    ".rrnn",
    ".spline",
    ".stability",
    ".tasks",
    ".train",
)


def _name(path):
    return str(path.relative_to(ROOT))


def _anchor(heading):
    """GitHub's: small letters, without punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _prose(text):
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_at_most_900_words():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_between_documents_lead_somewhere(path):
    """For every relative link and picture: the file is there, and so is the heading after #."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", _prose(path.read_text("utf-8"))):
        file = path.parent / target if target else path
        assert file.exists(), f"links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", _prose(file.read_text("utf-8")), re.MULTILINE)
            assert anchor in map(_anchor, headings), f"links to {target}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_a_paper_is_explained_where_it_first_appears(path):
    """S1 to S5 come with the method's name first, "Path-SGD (S2)", wherever a page uses them."""
    text = " ".join(path.read_text("utf-8").split())
    for paper, method in METHODS.items():
        first = re.search(rf"\b{paper}\b", re.sub(r"S1 to S5", " " * 8, text))
        if first:
            before = text[: first.start()].lower().rstrip("*")
            assert before.endswith(f"{method.lower()} ("), f"{paper}: ...{text[first.start() - 40 : first.end()]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_a_measured_time_or_memory_stands_in_a_report(path):
    """For every number of seconds, milliseconds or bytes in prose: a benchmark, a result or a study has it too."""
    filed = [*ROOT.glob("benchmarks/*.md"), *ROOT.glob("results/**/report.md"), *ROOT.glob("studies/**/*.toml")]
    known = {number for file in filed for number in re.findall(r"\d[\d,.]*\d|\d", file.read_text("utf-8"))}
    for number, unit in re.findall(r"(?<![\w.])(\d[\d,.]*\d|\d) (s|ms|MB|GB|MiB)\b", _prose(path.read_text("utf-8"))):
        assert number in known, f"{number} {unit} is in no report"


def _commands(path):
    """The lines of shell that call holdfast, without their comments."""
    for block in re.findall(r"^```sh\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield from (
            words
            for line in block.replace("\\\n", " ").splitlines()
            if (words := shlex.split(line, comments=True))[:1] == ["holdfast"]
        )


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_the_commands_of_a_document_exist(path):
    """Each verb is one of holdfast's, and each --option one of the verb's."""
    root = get_command(app)
    for _, *words in _commands(path):
        command = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not root, f"holdfast has no verb {words[0]}"
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


# -- notation.md ------------------------------------------------------------------------------------------------------


def _names_of(thing):
    """The names that a reader finds in a class or function: members, fields, arguments and local variables."""
    names = set()
    if inspect.isclass(thing):
        names |= set(dir(thing))
        if dataclasses.is_dataclass(thing):
            names |= {field.name for field in dataclasses.fields(thing)}
        for base in thing.__mro__:
            names = names.union(*(_names_of(it) for it in vars(base).values() if inspect.isfunction(it)))
    elif inspect.isfunction(thing):
        code = inspect.unwrap(thing).__code__  # shapes are checked by a wrapper in tests
        names |= set(code.co_varnames)
    return names


def _instance_names(module):
    """Attributes, and the last word of every parameter, buffer and submodule."""
    named = (module.named_parameters(), module.named_buffers(), module.named_modules())
    return {name.split(".")[-1] for it in named for name, _ in it} | set(vars(module))


def _public():
    """Every public name of the packages that have one, with what it stands for."""
    found = {}
    for package in PUBLIC:
        module = importlib.import_module(f"holdfast{package}")
        found |= {name: getattr(module, name) for name in module.__all__}
    return found


def _cells(name):
    """The cell of that name in all its forms that have parameters of their own."""
    cell = _public()[name]
    forms = {
        "SGORNNCell": [{"recurrent": "rotations"}, {"recurrent": "exp"}, {"recurrent": "householder"}],
        "LinearCell": [{"output_size": 2, "direct": True}],
    }
    return [cell(4, 4, **settings) for settings in forms.get(name, [{}])]


def _known(row, section, public):
    """The names that may stand in a row's last column."""
    if section != "By cell":
        layers = [
            holdfast.SGORNN(4, 4),
            holdfast.SGORNN(4, 4, recurrent="exp"),
            holdfast.LinearRNN(4, 4, output_size=2),
        ]
        return set(public).union(*map(_names_of, public.values()), *map(_instance_names, layers))
    return set(public).union(*(_known_of(owner, public) for owner in _owners(row)))


def _owners(row):
    return row[0].replace("`", "").split(", ")


def _known_of(owner, public):
    names = _names_of(public[owner])
    if owner.endswith("Cell"):
        names = names.union(*(_instance_names(it) for it in _cells(owner)))
        names |= _names_of(public["ScalarGates"]) | _names_of(public["RotationProduct"]) | {"i", "j", "T"}
    elif owner in ("DynamicExponential", "FourierProduct", "PlaneRotations"):
        names |= _instance_names(public[owner](4, 2) if owner == "DynamicExponential" else public[owner](4))
    return names


def _rows(section):
    text = (ROOT / "docs" / "notation.md").read_text("utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _identifiers(cell):
    """All names in the code of a table's cell, torch's own aside."""
    for code in re.findall(r"`([^`]+)`", cell):
        if code.startswith("torch."):
            continue
        tree = ast.parse(f"_{code}" if code.startswith(".") else code)
        for it in ast.walk(tree):
            if isinstance(it, ast.Name) and it.id != "_":
                yield it.id
            elif isinstance(it, ast.Attribute):
                yield it.attr
            elif isinstance(it, ast.keyword):
                yield it.arg


@pytest.mark.parametrize("section", ["Everywhere", "By cell", "Bounds", "Splines"])
def test_every_name_in_the_notation_exists(section):
    """Each is a public name, or a member, argument, parameter or variable of one; in "By cell", of that very cell."""
    torch.set_default_dtype(torch.float32)
    public = _public()
    for row in _rows(section):
        known = _known(row, section, public)
        for name in _identifiers(row[-1]):
            assert name in known, f"{name!r} in the row of {row[0]}"


def test_every_cell_has_its_symbols_in_the_notation():
    """All public cells with an equation; RRNN-GRU has the symbols of RRNN."""
    public, rows = _public(), {owner for row in _rows("By cell") for owner in _owners(row)}
    cells = {name for name, it in public.items() if name.endswith("Cell") and issubclass(it, holdfast.Cell)}
    assert cells - rows == {"Cell", "RRNNGRUCell"}


def test_a_name_that_does_not_exist_is_noticed():
    """The check above is not empty: spectral_radius, which no function computes, is unknown to it."""
    assert "spectral_radius" not in _known(["largest singular value"], "Everywhere", _public())
