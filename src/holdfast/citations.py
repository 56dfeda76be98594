"""What to cite: the BibTeX of everything that a model, an optimiser or a function rests on.

The docstring of each class and function names its papers below "References:". A line there ends with the beginning of a
title in ``references.bib``, and that is how the entry is found. A class inherits the papers of its bases.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

__all__ = ["BibTeX", "bibliography", "cite", "references_in"]

TORCH = {  # classes of PyTorch's, whose docstrings we do not write
    "RNN": "elman1990",
    "LSTM": "hochreiter1997",
    "GRU": "cho2014",
    "Adam": "kingma2015",
    "AdamW": "loshchilov2019",
    "RMSprop": "tieleman2012",
    "Adagrad": "duchi2011",
}


class BibTeX(str):
    """Text that an interactive session shows as it is.

    Example:
        >>> BibTeX("@misc{key}")
        @misc{key}
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@functools.cache
def bibliography() -> dict[str, str]:
    """The entries of ``references.bib`` by their keys.

    Example:
        >>> "elman1990" in bibliography()
        True
    """
    text = resources.files("holdfast").joinpath("references.bib").read_text(encoding="utf-8")
    entries = [f"@{it.strip()}" for it in re.split(r"^@", text, flags=re.MULTILINE)[1:]]
    return {re.search(r"\{([^,]+),", it)[1]: it for it in entries}  # type: ignore[index]


def cite(*things: Any) -> BibTeX:
    """The BibTeX of all that these use, each entry once; Holdfast's own is the first.

    Args:
        things: models (any ``torch.nn.Module``), optimisers, functions or classes. A model's layers, cells, constraints
            and initial states are found in it. An optimiser is not part of a model: give it as well.

    Example:
        >>> import holdfast
        >>> holdfast.cite(holdfast.GRU(3, 5))
        @software{holdfast,
          author = {{The Holdfast developers}},
          ...
        @inproceedings{cho2014,
          ...
    """
    keys = ["holdfast", *(key for thing in things for key in _keys(thing))]
    return BibTeX("\n\n".join(bibliography()[key] for key in dict.fromkeys(keys)))


def references_in(docstring: str) -> list[str]:
    r"""The keys of the papers that a docstring names; a line that fits no entry raises ``KeyError``.

    Example:
        >>> references_in("A cell.\n\nReferences:\n    Elman (1990), Finding structure in time.\n")
        ['elman1990']
    """
    section = re.search(r"^References:\n((?:[ \t]+\S.*\n?)+)", inspect.cleandoc(docstring), re.MULTILINE)
    return [_entry_of(line.strip()) for line in section[1].splitlines()] if section else []


def _entry_of(line: str) -> str:
    """The entry whose title begins as the line ends: after "(year), ", after "names: ", or the whole line."""
    after_names = line.partition(": ")[2]
    ends = [it.rstrip(".").casefold() for it in (line.partition("), ")[2], line, after_names) if it]
    for end in ends:
        for key, title in _titles().items():
            if title.startswith(end):
                return key
    raise KeyError(f"{line!r} is no title in references.bib.")


@functools.cache
def _titles() -> dict[str, str]:
    found = {}
    for key, entry in bibliography().items():
        title = re.search(r"title\s*=\s*\{(.*?)\},\n", entry, re.DOTALL)[1]  # type: ignore[index]
        found[key] = " ".join(re.sub(r"[{}]", "", title).split()).casefold()
    return found


def _keys(thing: Any) -> Iterator[str]:
    """The keys of one thing, then of what it is made of."""
    if inspect.isroutine(thing):
        yield from references_in(thing.__doc__ or "")
        return
    for part in _parts(thing, set()):
        kinds = part.__mro__ if isinstance(part, type) else type(part).__mro__
        for kind in kinds:
            if kind.__module__.startswith("torch."):
                if kind.__name__ in TORCH:
                    yield TORCH[kind.__name__]
            else:
                yield from references_in(vars(kind).get("__doc__") or "")


def _parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The thing, its submodules, and whatever of ours or of PyTorch's optimisers they hold as attributes."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return
    inner = [*getattr(thing, "_modules", {}).values(), *vars(thing).values()]
    for value in inner:
        home = type(value).__module__
        if home.startswith(("holdfast.", "torch.optim")) or hasattr(value, "_modules"):
            yield from _parts(value, seen)
