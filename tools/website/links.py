"""Links of the repository's Markdown, made to work in the site.

Pages are plain Markdown whose links are relative paths in the repository, so that they work on a code host. In the site
docs/X.md is the page X, and every other file that a page links is a page of its own below repository/:

    docs/usage/layers.md            →  usage/layers.md
    results/s3/har2/small/report.md →  repository/results/s3/har2/small/report.md
    tests/cells/test_gru.py         →  repository/tests/cells/test_gru.py.md, a page that shows the file
    examples/03_stability.py        →  gallery/03_stability.md, the program with its output
    src/holdfast/engine             →  repository/src/holdfast/engine/index.md, a page that lists the folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

__all__ = ["COPIED", "ROOT", "rewrite", "site_path", "targets"]

ROOT = Path(__file__).resolve().parents[2]
COPIED = (".png", ".svg", ".jpg", ".gif")
FOLDERS = {"docs/usage": "guides.md", "docs/theory": "theory.md", "docs": "index.md", "examples": "gallery/index.md"}

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(`+[^`]*`+)|(?<=\]\()(?![a-z]+:)([^)\s#]+)")  # code first, so that it is left alone


def site_path(path: str) -> str:
    """The file in the site's source for a path in the repository.

    Example:
        >>> site_path("docs/usage/layers.md"), site_path("tests/test_docs.py")
        ('usage/layers.md', 'repository/tests/test_docs.py.md')
    """
    if path in FOLDERS:
        return FOLDERS[path]
    if re.fullmatch(r"examples/\d\d_\w+\.py", path):
        return f"gallery/{PurePosixPath(path).stem}.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    page = path.endswith((".md", *COPIED))
    return f"repository/{path}" if page else f"repository/{path}.md"


def targets(text: str, source: str) -> list[str]:
    """The repository paths that a page at ``source`` links, in order."""
    found: list[str] = []
    _mapped(text, lambda link: found.append(_resolved(link, source)) or link)
    return found


def rewrite(text: str, source: str, page: str | None = None) -> str:
    """The page's text with the links of the site.

    Example:
        >>> rewrite("[here](../tests/test_docs.py)", "docs/index.md")
        '[here](repository/tests/test_docs.py.md)'
    """
    home = PurePosixPath(page or site_path(source)).parent

    def moved(link: str) -> str:
        return os.path.relpath(site_path(_resolved(link, source)), home)

    return _mapped(text, moved)


def _mapped(text: str, change: Callable[[str], str]) -> str:
    """The text with every relative link changed, code blocks and code aside."""

    def of_match(match: re.Match) -> str:
        return match.group() if match.group(1) else change(match.group(2))

    parts = _FENCE.split(text)
    return "".join(it if number % 2 else _LINK.sub(of_match, it) for number, it in enumerate(parts))


def _resolved(link: str, source: str) -> str:
    """The repository path of a link on the page ``source``."""
    path = os.path.normpath(PurePosixPath(source).parent / link)
    if path.startswith(".."):
        raise SystemExit(f"{source} links {link}, which is outside the repository.")
    return path
