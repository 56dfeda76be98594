"""The site's source: every page of docs/, what they link, and the generated pages, below one folder.

Files are written only where they change, so that Sphinx builds again only what it must.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from website.links import COPIED, ROOT, rewrite, site_path, targets

__all__ = ["Stage", "stage_documents", "title_of"]

IN_SIDEBAR = ("CHANGELOG.md", "CONTRIBUTING.md")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json", ".cff": "yaml"}


class Stage:
    """A folder of sources. ``done`` removes what nobody wrote this time."""

    def __init__(self, folder: Path):
        self.folder, self.written = folder, set[Path]()

    def write(self, name: str, content: str | bytes) -> None:
        path = self.folder / name
        data = content.encode() if isinstance(content, str) else content
        self.written.add(path)
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def __contains__(self, name: str) -> bool:
        return self.folder / name in self.written

    def done(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()


def title_of(path: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{path} has no heading; a page of the site begins with '# Title'.")
    return found.group(1)


def stage_documents(
    stage: Stage, pages: list[str], change: Mapping[str, Callable[[str], str]], made: Mapping[str, str]
) -> None:
    """Write the Markdown at these repository paths and, from there on, every file that one of them links.

    Args:
        pages: repository paths of the pages to begin with.
        change: how to change the text of a page for the site, by its repository path.
        made: pages that only the site has, by the path that they would have in the repository.
    """
    waiting = [*pages, *made]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        linked = _stage_one(stage, source, change.get(source, str), made.get(source))
        waiting += [it for it in dict.fromkeys(linked) if it not in seen]
        seen.update(linked)


def _stage_one(stage: Stage, source: str, change: Callable[[str], str], text: str | None) -> list[str]:
    """Write one file of the repository and return the paths that it links."""
    path, page = ROOT / source, site_path(source)
    if text is None and page in stage:  # a figure of the gallery
        return []
    if text is None and not path.exists():
        raise SystemExit(f"a page links {source}, which is not in the repository.")
    if path.is_dir():
        return _stage_folder(stage, source, page)
    if path.suffix in COPIED:
        stage.write(page, path.read_bytes())
        return []
    text = path.read_text(encoding="utf-8") if text is None else text
    outside = "" if source.startswith("docs/") or source in IN_SIDEBAR else "---\norphan: true\n---\n\n"
    if path.suffix != ".md":
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
        language = LANGUAGES.get(path.suffix, "text")
        stage.write(page, f"{outside}# {source}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n")
        return []
    # doctest needs an empty last line in a block; a reader does not
    shown = re.sub(r"(^```python\n(?:(?!```).*\n)*?)\n+(?=```$)", r"\1", text, flags=re.MULTILINE)
    stage.write(page, outside + rewrite(change(shown), source))
    return targets(text, source)


def _stage_folder(stage: Stage, source: str, page: str) -> list[str]:
    """A page that lists a folder's files, each with its first line of documentation if it is a program."""
    if page.endswith("index.md") and page.startswith("repository/"):
        files = sorted(it for it in (ROOT / source).rglob("*.py") if it.name != "__init__.py")
        lines = [f"- [{it.relative_to(ROOT / source)}]({it.relative_to(ROOT / source)})" for it in files]
        text = f"---\norphan: true\n---\n\n# {source}\n\n" + "\n".join(lines) + "\n"
        stage.write(page, rewrite(text, f"{source}/index.md", page))
        return [it.relative_to(ROOT).as_posix() for it in files]
    return []
