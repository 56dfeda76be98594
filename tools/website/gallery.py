"""The gallery: every program in examples/ is run, and shown with its output and figures.

What a program printed and drew is kept in .cache/gallery, by the hash of the program, of the whole package and of what
the programs look for on the machine, so that a second build runs nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from website.links import COPIED, ROOT

__all__ = ["gallery_pages", "programs", "run"]

CACHE = ROOT / ".cache" / "gallery"
ARGUMENTS = {"01_addition": ("100", "300", "run"), "06_rrnn": ("150",)}  # others have none
SHOWN = 40  # lines of output


def programs() -> list[Path]:
    """The programs in the order of their numbers."""
    return sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def run(program: Path) -> Path:
    """The folder with what the program printed (``output.txt``) and drew; the program is run if it is new."""
    digest = hashlib.sha256(json.dumps([_package(), ARGUMENTS.get(program.stem, ()), _machine()]).encode())
    digest.update(program.read_bytes())
    folder = CACHE / f"{program.stem}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    for old in CACHE.glob(f"{program.stem}-*"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"}
        words = [sys.executable, str(program), *ARGUMENTS.get(program.stem, ())]
        print(f"Running {program.name} ...", flush=True)
        start = time.perf_counter()
        done = subprocess.run(words, cwd=scratch, env=environment, capture_output=True, text=True, encoding="utf-8")
        if done.returncode:
            raise SystemExit(f"{program.name} ended with {done.returncode}:\n{done.stderr}")
        print(f"  {time.perf_counter() - start:.0f} s")
        made = Path(scratch, "made")
        made.mkdir()
        (made / "output.txt").write_text(done.stdout, encoding="utf-8")
        for path in sorted(Path(scratch).glob("*")):
            if path.suffix in COPIED:
                shutil.copy(path, made)
        CACHE.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, folder)
    return folder


def _package() -> str:
    """A hash of the sources of holdfast."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "holdfast").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _machine() -> list[object]:
    """What decides which way a program goes: data that were downloaded, and the emulator of 13_device."""
    return [os.environ.get("HOLDFAST_DATA"), shutil.which("qemu-system-arm") is not None]


def gallery_pages() -> tuple[dict[str, str], dict[str, bytes]]:
    """Markdown by its virtual path below docs/, and the figures by their path in the site."""
    pages, figures, cards = {}, {}, []
    for program in programs():
        folder = run(program)
        docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
        title, _, about = docstring.partition("\n\n")
        shown = []
        for path in sorted(folder.iterdir()):
            if path.suffix in COPIED:
                figures[f"gallery/{program.stem}-{path.name}"] = path.read_bytes()
                shown.append(f"{program.stem}-{path.name}")
        pages[f"docs/gallery/{program.stem}.md"] = _page(program, title, about, folder, shown)
        picture = f"\n:img-top: {shown[0]}" if shown else ""
        link = f":link: {program.stem}\n:link-type: doc{picture}"
        cards.append(f":::{{grid-item-card}} {_heading(program)}\n{link}\n\n{title}\n:::\n")
    tree = "\n".join(program.stem for program in programs())
    pages["docs/gallery/index.md"] = (
        "# Gallery\n\nShort programs, each with its output and figures. They were run when this site was built. "
        "They are in the folder examples of the repository.\n\n::::{grid} 1 2 2 2\n:gutter: 3\n\n"
        + "\n".join(cards)
        + f"::::\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return pages, figures


def _page(program: Path, title: str, about: str, folder: Path, figures: list[str]) -> str:
    lines = (folder / "output.txt").read_text(encoding="utf-8").splitlines()
    cut = [*lines[:SHOWN], f"... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN + 1 else lines
    parts = [f"# {_heading(program)}", title, _as_markdown(about)]
    parts += [f"![{title}]({it})" for it in figures]
    parts += ["## Output", "```text\n" + "\n".join(cut) + "\n```"] if cut else []
    parts += ["## Program", f"```python\n{program.read_text(encoding='utf-8').rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _heading(program: Path) -> str:
    words = program.stem.split("_", 1)[1].replace("_", " ")
    return {"rrnn": "RRNN", "path sgd": "Path-SGD", "diagnosis": "Diagnosis before and after"}.get(
        words, words.capitalize()
    )


def _as_markdown(text: str) -> str:
    """Paragraphs; a block that is indented is code."""
    return "\n\n".join(_block(it) for it in text.split("\n\n") if it.strip())


def _block(text: str) -> str:
    if text.startswith("    "):
        return "```text\n" + "\n".join(line[4:] for line in text.splitlines()) + "\n```"
    return text.replace("``", "`")
