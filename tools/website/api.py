"""The pages of the API reference: one page per package, every public name on exactly one of them.

A name that ``holdfast`` itself offers is documented under that short path, ``holdfast.SGORNN``, on the page of the
package that defines it. Packages are found, not listed, so a new one has a page as soon as it has an ``__all__``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from typing import Any

from sphinx.util.inspect import stringify_signature

import holdfast

__all__ = ["api_pages", "packages", "public_entries"]

ORDER = (
    *("layers", "cells", "constraints", "engine", "optim", "stability", "spline", "rrnn", "tasks", "train", "runs"),
    *("estimators", "studies"),
)
LAST = ("linalg.givens", "linalg.skew", "linalg.norms", "errors", "types", "files", "cli")
INNER = ("linalg", "__main__")  # linalg has modules and no names of its own


@functools.cache
def packages() -> tuple[str, ...]:
    """Every public package and module with names, in the order of the pages."""
    found = [it.name for it in pkgutil.iter_modules(holdfast.__path__) if not it.name.startswith("_")]
    inner = [f"linalg.{it.name}" for it in pkgutil.iter_modules(importlib.import_module("holdfast.linalg").__path__)]
    known = [it for it in (*found, *inner) if it not in INNER and hasattr(_module(it), "__all__")]
    places = {name: place for place, name in enumerate((*ORDER, "", *LAST))}  # one that is new stands in the middle
    return tuple(sorted(known, key=lambda name: (places.get(name, len(ORDER)), name)))


def _module(package: str) -> Any:
    return importlib.import_module(f"holdfast.{package}")


@functools.cache
def _pages() -> dict[str, dict[str, Any]]:
    """By package: the full public path of every name on its page, with what it stands for."""
    pages: dict[str, dict[str, Any]] = {}
    top = {name: getattr(holdfast, name) for name in holdfast.__all__}
    placed: list[Any] = []  # two packages may offer one thing; the first has it
    for package in packages():
        module, page = _module(package), {}
        for name in module.__all__:
            thing = getattr(module, name)
            if any(thing is it for it in placed):
                continue
            short = name in top and top[name] is thing
            page[f"holdfast.{name}" if short else f"holdfast.{package}.{name}"] = thing
            if inspect.isclass(thing) or inspect.isroutine(thing):
                placed.append(thing)
        pages[package] = page
    rest = {f"holdfast.{name}": thing for name, thing in top.items() if not any(thing is it for it in placed)}
    return {"": rest, **pages} if rest else pages


def public_entries() -> dict[str, Any]:
    """Every entry of the reference, by its full path."""
    return {path: thing for page in _pages().values() for path, thing in page.items()}


def api_pages() -> dict[str, str]:
    """The source of each page, by its name in the site."""
    pages = {f"api/{package or 'holdfast'}.rst": _page(package, names) for package, names in _pages().items()}
    order = "\n".join(f"   {package or 'holdfast'}" for package in _pages())
    short = "\n".join(f"   * - :py:obj:`holdfast.{name}`\n     - {_first_line(name)}" for name in holdfast.__all__)
    pages["api/index.rst"] = (
        "API reference\n=============\n\nEvery public name, by package. *[source]* beside a name shows its code. "
        "Names that ``import holdfast`` offers directly are in the table below.\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n{order}\n\n"
        "In ``holdfast`` itself\n----------------------\n\n.. list-table::\n   :widths: 30 70\n\n" + short + "\n"
    )
    return pages


def _first_line(name: str) -> str:
    from website.names import plain_text

    text = (inspect.getdoc(getattr(holdfast, name)) or "").split("\n\n")[0]
    return " ".join(plain_text(text.splitlines()))


def _page(package: str, names: dict[str, Any]) -> str:
    from website.names import plain_text

    title = f"holdfast.{package}" if package else "holdfast"
    lines = [title, "=" * len(title), ""]
    module = _module(package) if package else holdfast
    lines += [*plain_text((inspect.getdoc(module) or "").splitlines()), ""]
    for path, thing in sorted(names.items(), key=lambda it: (not inspect.isclass(it[1]), it[0].lower())):
        lines += [*_entry(path, thing), ""]
    return "\n".join(lines)


def _entry(path: str, thing: Any) -> list[str]:
    if inspect.isclass(thing):
        kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
        own = hasattr(thing.__init__, "__signature__")  # a layer's is read from its cell; autodoc looks elsewhere
        signature = stringify_signature(inspect.signature(thing), unqualified_typehints=True) if own else ""
        return [f".. {kind}:: {path}{signature}", "   :members:", "   :show-inheritance:"]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {path}"]
    return [f".. py:data:: {path}", "", f"   {_constant(thing)}"]


def _constant(thing: Any) -> str:
    """What a constant holds, in one line; its documentation is on the module that defines it."""
    if isinstance(thing, dict) and all(isinstance(key, str) for key in thing):
        return "A table with the entries " + ", ".join(f"``{key}``" for key in thing) + "."
    text = " ".join(repr(thing).split())
    return f"``{text}``" if len(text) < 200 and "`" not in text else f"A ``{type(thing).__name__}``."
