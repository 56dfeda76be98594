"""A Sphinx extension: docstrings in our form are read as intended, and a public name in code links to its reference.

Docstrings are plain text with Google's sections. Marks that reStructuredText would take for its own (``|a|``, ``h_``,
``U*``) are escaped, and a block that is indented after a blank line is shown as it is written: it is an equation.

On pages, `` `SGORNN` `` and `` `holdfast.SGORNN` `` become links to the entry in the reference, wherever the code is a
public name and nothing else. The Markdown stays plain.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from website.api import public_entries

__all__ = ["link_targets", "plain_text", "setup"]

SECTIONS = ("Args:", "Example:", "Examples:", "Returns:", "Raises:", "References:", "Yields:", "Attributes:", "Note:")


def plain_text(lines: list[str]) -> list[str]:
    r"""Lines of a docstring as reStructuredText.

    Example:
        >>> plain_text(["With |a| ≤ 1:", "", "    h_t = a h", "", "Call project_."])
        ['With \\|a\\| ≤ 1:', '', '.. code-block:: text', '', '    h_t = a h', '', 'Call project\\_.']
    """
    made: list[str] = []
    code = doctest = False
    section = margin = 0
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() in SECTIONS:
            section, code, doctest = indent + 1, False, False
        elif section and line.strip() and indent < section:
            section = 0
        if not line.strip():
            doctest = False
            made.append(line)
            continue
        if code and indent < margin:
            code = False
        if line.lstrip().startswith(">>>"):
            doctest = True
        blank_before = number == 0 or not lines[number - 1].strip()
        if not (code or doctest or section) and indent >= 2 and blank_before and number > 0:
            code, margin = True, indent
            made += [".. code-block:: text", ""]
        made.append(line if code or doctest else _escaped(line))
    return made


def _escaped(line: str) -> str:
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    escaped = (re.sub(r"([|*])", r"\\\1", it) for it in parts[::2])
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", it) for it in escaped]
    for after in range(2, len(parts), 2):  # code ends before what is no letter: the s of ``Adam``s is not in it
        parts[after] = re.sub(r"^(?=\w)", r"\\ ", parts[after])
    return "".join(parts)


def _read_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain_text(lines)


def _skip_inherited(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Methods that another library adds to a class of ours are not ours to document."""
    home = getattr(obj, "__module__", None)
    return True if isinstance(home, str) and not home.startswith("holdfast") else None


class LinkNames(SphinxTransform):
    """Public names in code become references, outside of headings and links."""

    default_priority = 700

    def apply(self, **kwargs: Any) -> None:
        page = self.env.docname
        for node in list(self.document.findall(nodes.literal)):
            target = _TARGETS.get(node.astext())
            if target is None or isinstance(node.parent, nodes.title | nodes.reference | pending_xref):
                continue
            link = pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=target,
                refdoc=page,
                refexplicit=True,
                refwarn=True,
            )
            node.replace_self(link)
            link += node


_TARGETS: dict[str, str] = {}


def link_targets() -> dict[str, str]:
    """What code links to: every full path, and a last word that belongs to one path alone and to no method.

    Example:
        >>> found = link_targets()
        >>> found["SGORNN"], "fit" in found, found["holdfast.train.fit"]
        ('holdfast.SGORNN', False, 'holdfast.train.fit')
    """
    entries = public_entries()
    short: dict[str, list[str]] = {}
    for path in entries:
        short.setdefault(path.rpartition(".")[2], []).append(path)
    members = {name for thing in entries.values() if isinstance(thing, type) for name in dir(thing)}
    unique = {name: paths[0] for name, paths in short.items() if len(paths) == 1 and name not in members}
    return {**unique, **{path: path for path in entries}}


def _load(app: Sphinx) -> None:
    _TARGETS.update(link_targets())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _load)
    app.connect("autodoc-process-docstring", _read_docstring, priority=400)  # before napoleon reads the sections
    app.connect("autodoc-skip-member", _skip_inherited)
    app.add_transform(LinkNames)
    own = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return {"parallel_read_safe": True, "env_version": zlib.crc32(own)}  # pages are read again if this code changes
