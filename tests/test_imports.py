"""The direction of dependency: no package imports one to its right, nor a neighbour."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"

ORDER = (
    ("errors", "types", "files", "citations"),
    ("linalg",),
    ("constraints",),
    ("cells",),
    ("engine",),
    ("layers",),
    ("optim", "stability", "spline", "rrnn"),
    ("tasks", "train"),
    ("runs",),
    ("studies", "diagnose", "export", "estimators"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
ROOT = RANK["layers"]  # holdfast itself offers the layers and what is to their left
ALLOWED: set[tuple[str, str]] = set()  # (importing package, imported package), each with its reason


def _package(path: Path, source: Path = SOURCE) -> str:
    return path.relative_to(source).parts[0].removesuffix(".py")


def _imported(path: Path):
    """The packages of ours that a file imports, at its top or inside a function, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            module, names = node.module or "", [alias.name for alias in node.names]
            if module == "holdfast":
                yield from ((name if name in RANK else "", node.lineno) for name in names)
            elif module.startswith("holdfast."):
                yield module.split(".")[1], node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == "holdfast":
                    yield rest[0] if rest else "", node.lineno


def _wrong(path: Path, source: Path = SOURCE) -> list[str]:
    own, found = _package(path, source), []
    for name, line in _imported(path):
        rank = RANK[name] if name else ROOT
        if name != own and rank >= RANK[own] and (own, name) not in ALLOWED:
            found.append(f"{path.relative_to(source)}:{line} imports holdfast{name and '.'}{name}")
    return found


@pytest.mark.parametrize(
    "package", sorted({_package(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"})
)
def test_a_package_imports_only_packages_to_its_left(package):
    assert package in RANK, f"{package} has no place in the order"
    files = [SOURCE / f"{package}.py", *(SOURCE / package).rglob("*.py")]
    assert not [wrong for path in files if path.is_file() for wrong in _wrong(path)]


@pytest.mark.parametrize(
    "text",
    [
        "from holdfast.studies import Study",
        "def f():\n    import holdfast.cli.train",
        "from holdfast import runs",
        "from holdfast.tasks import Task",
    ],
)
def test_an_import_to_the_right_or_of_a_neighbour_is_found(tmp_path, text):
    """The check can fail: at the top of a file, inside a function, and through holdfast itself."""
    path = tmp_path / "train" / "loop.py"
    path.parent.mkdir()
    path.write_text(text)
    assert len(_wrong(path, tmp_path)) == 1


def test_test_modules_share_helpers_in_one_way():
    """By ``from helpers... import``: no relative import, and nobody changes the import path for others."""
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            relative = isinstance(node, ast.ImportFrom) and node.level
            changes = isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", "") == "sys"
            assert not relative, f"{path}:{node.lineno}: a relative import; put what is shared into tests/helpers"
            assert not changes, f"{path}:{node.lineno}: sys.path; put what is shared into tests/helpers"
