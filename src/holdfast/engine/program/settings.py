"""Everything that a step reads from Python, by value: what a compiled plan holds for.

    settings_of(cell)    →  Settings(key, ...): equal keys mean the same trace
    settings.unchanged() →  whether nothing of it has changed since; microseconds, so it is asked before every scan

A trace bakes in whatever Python the step runs through: attributes of the cell and of objects in it, class attributes,
closures, default arguments, globals that its code names, and the code itself. The walk starts at ``step`` and ``drive``
and follows the names in their code. What it meets is compared by value. An object whose value it cannot read (an
iterator, a lock, a large array) is refused if the code names it. PyTorch, NumPy, the standard library and Holdfast are
trusted not to change. Clocks, Python's random numbers and the operating system are refused by name.

What no walk can see (a file that the step reads, state inside an extension module) is caught when a plan is recorded
again: see plan.py.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import enum
import functools
import logging
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported

__all__ = ["PLANS", "Settings", "settings_of"]

PLANS = "_fused_plans"  # the attribute of a cell that holds its plans
TRUSTED = {"torch", "numpy", "holdfast", "jaxtyping", "beartype", "builtins", *sys.stdlib_module_names}
UNSEEN = {"time", "datetime", "random", "secrets", "uuid", "os", "io", "socket", "subprocess"}
LARGEST = 1 << 16  # bytes of a NumPy array that are compared before every scan
MOST = 10_000  # objects that a step may reach
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.Size, enum.Enum)
UNREAD = {"is_inference_mode_enabled", "is_autocast_enabled", "is_anomaly_enabled", "get_num_threads", "getrandbits"}


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """``key``: equal for the same trace. The rest is what ``unchanged`` looks at, by kind, since a loop over each kind
    takes half the time of one function for each of them.
    """

    key: Any
    places: Sequence[tuple[Mapping[str, Any], str, Any]] = ()  # a value under its name
    tables: Sequence[tuple[Mapping[Any, Any], list[Any], list[Any]]] = ()  # names and values
    functions: Sequence[tuple[types.FunctionType, Any, Any, Any]] = ()  # code, defaults, named defaults
    checks: Sequence[Callable[[], bool]] = ()

    def unchanged(self) -> bool:
        same = operator.is_
        for table, name, value in self.places:
            if table.get(name) is not value:
                return False
        for table, names, values in self.tables:
            if (
                len(table) != len(names)
                or not all(map(same, table.values(), values))
                or not all(map(same, table, names))
            ):
                return False
        for function, code, defaults, named in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not named:
                return False
        return all(check() for check in self.checks)


def settings_of(cell: Cell) -> Settings:
    """What ``cell``'s step reads now; raises ``Unsupported`` if it names something that cannot be compared."""
    names: set[str] = set()
    while True:
        walk = _Walk(names)
        key = walk.root(cell)
        if walk.names == names:
            break
        names = walk.names
    unread = sorted(names & UNREAD)
    if unread:
        raise Unsupported(f"its step asks {unread[0]}()")
    for name, kind in walk.opaque:
        if name in names:
            raise Unsupported(f"its step reads {name}, a {kind}, whose changes cannot be followed")
    return Settings(key, walk.places, walk.tables, walk.functions, walk.checks)


class _Walk:
    def __init__(self, names: set[str]):
        self.known = frozenset(names)  # names in the code that the last walk found
        self.names = set(names)
        self.places: list[Any] = []
        self.tables: list[Any] = []
        self.functions: list[Any] = []
        self.checks: list[Callable[[], bool]] = []
        self.opaque: list[tuple[str, str]] = []
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []

    def root(self, cell: Cell) -> Any:
        return self.module(cell, methods={"step", "drive"})

    # -- values -----------------------------------------------------------------------------------------------------

    def value(self, value: Any, name: str) -> Any:
        """``value`` as something hashable that is equal only for an equal value."""
        if isinstance(value, PLAIN):
            return type(value), repr(value) if isinstance(value, float | complex) else value
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._held.append(value)
        if len(self._seen) > MOST:
            raise Unsupported(f"its step can reach more than {MOST:,} Python objects, through {name}")
        match value:
            case Tensor():
                return "tensor", id(value)  # a step that reads it is refused: it is not a parameter or buffer
            case np.ndarray() if value.nbytes <= LARGEST and value.dtype != object:
                content = value.tobytes()
                self.checks.append(lambda: value.tobytes() == content)
                return "array", value.dtype.str, value.shape, content
            case np.generic():
                return type(value), repr(value)
            case nn.Module():
                return self.module(value)
            case types.FunctionType():
                return self.function(value)
            case types.MethodType():
                return self.function(value.__func__), self.value(value.__self__, name)
            case functools.partial():
                return "partial", *(self.value(part, name) for part in (value.func, value.args, value.keywords))
            case property():
                return "property", *(self.value(part, name) for part in (value.fget, value.fset))
            case staticmethod() | classmethod():
                return type(value), self.value(value.__func__, name)
            case types.ModuleType():
                return self.python_module(value)
            case type():
                return self.type(value)
            case dict() | types.MappingProxyType():
                self._table(value)
                return type(value), tuple((self.value(k, name), self.value(v, str(k))) for k, v in value.items())
            case list() | tuple() | collections.deque():
                if not isinstance(value, tuple):
                    before = list(value)
                    self.checks.append(lambda: len(value) == len(before) and all(map(operator.is_, value, before)))
                return type(value), tuple(self.value(v, name) for v in value)
            case set() | frozenset():
                self.checks.append(functools.partial(operator.eq, value, frozenset(value)))
                return type(value), frozenset(self.value(v, name) for v in value)
            case (
                logging.Logger()
                | types.BuiltinFunctionType()
                | types.MethodDescriptorType()
                | types.WrapperDescriptorType()
            ):
                return "object", id(value)
        return self.instance(value, name)

    def instance(self, value: Any, name: str) -> Any:
        kind, fields = type(value), list[Any]()
        if _is_trusted(kind) and not hasattr(value, "__dict__"):
            self.opaque.append((name, kind.__name__))
            return "object", id(value)
        slots = [s for c in kind.__mro__ for s in _names(c.__dict__.get("__slots__", ())) if hasattr(value, s)]
        if not hasattr(value, "__dict__") and not slots:
            self.opaque.append((name, kind.__name__))
            return "object", id(value)
        if hasattr(value, "__dict__"):
            fields.append(self.value(value.__dict__, name))
        for slot in slots:
            if not slot.startswith("__"):
                self._attribute(value, slot)
                fields.append((slot, self.value(getattr(value, slot), slot)))
        return self.type(kind), tuple(fields)

    def _table(self, table: Any) -> None:
        """The same keys and the same objects under them: equal ones are found by a new walk."""
        self.tables.append((table, list(table), list(table.values())))

    def _attribute(self, owner: Any, name: str) -> None:
        before = getattr(owner, name)
        self.checks.append(lambda: getattr(owner, name, None) is before)

    # -- modules, classes, code ----------------------------------------------------------------------------------------

    def module(self, module: nn.Module, methods: Iterable[str] = ()) -> Any:
        self._seen.setdefault(id(module), len(self._seen))
        found: list[Any] = [self.type(type(module), methods)]
        content = module.__dict__
        self._table(content)
        empty = [
            value
            for name, value in content.items()
            if name.endswith("_hooks") and isinstance(value, dict) and not value
        ]
        self.checks.append(lambda: not any(empty))
        for name, value in content.items():
            if any(value is hooks for hooks in empty):
                continue
            if name in ("_parameters", "_buffers"):
                found.append(tuple((key, self._tensor(value, key)) for key in value))
                self._table(value)
            elif name == "_modules":
                self._table(value)
                found += [(key, None if child is None else self.value(child, key)) for key, child in value.items()]
            elif name in ("_backward_hooks", "_backward_pre_hooks") and value and not methods:
                raise Unsupported(f"{type(module).__name__} has a backward hook")
            elif name != PLANS and not (methods and name.endswith("_hooks")):  # scan calls no hook of the cell itself
                found.append((name, self.value(value, name)))
        return "module", *found

    def _tensor(self, holder: dict[str, Any], key: str) -> Any:
        tensor = holder[key]
        if tensor is None:
            return None

        def kind() -> tuple[Any, ...]:
            return tensor.shape, tensor.dtype, tensor.requires_grad, not tensor._backward_hooks

        before = kind()
        self.checks.append(lambda: kind() == before)
        return before

    def type(self, kind: type, methods: Iterable[str] = ()) -> Any:
        """A class by identity, and what code that names its attributes can read of it."""
        found: list[Any] = [id(kind)]
        self._held.append(kind)
        every = issubclass(kind, torch.autograd.Function)
        for c in kind.__mro__:
            if _is_trusted(c) and not methods:
                continue
            for name, value in list(vars(c).items()):
                wanted = name in self.known or name in methods or every or _is_operator(name)
                if not wanted or isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                    continue
                if _is_trusted(c) and not isinstance(value, types.FunctionType):
                    continue
                self.places.append((vars(c), name, value))
                found.append((name, self.value(value, name)))
        return tuple(found)

    def python_module(self, module: types.ModuleType) -> Any:
        found: list[Any] = ["python module", module.__name__]
        if not _is_trusted(module):
            content = vars(module)
            found += [(name, self._global(content, name)) for name in sorted(self.known & content.keys())]
        return tuple(found)

    def _global(self, content: dict[str, Any], name: str) -> Any:
        before = content[name]
        self.places.append((content, name, before))
        return self.value(before, name)

    def function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        parts = function.__code__, function.__defaults__, function.__kwdefaults__
        self.functions.append((function, *parts))
        if _is_trusted(function):
            if function.__closure__ is None and not function.__dict__:
                return "function", id(function)
            names: set[str] = set()
        else:
            names = _names_in(code)
        self.names |= names
        found: list[Any] = ["function", code, self.value(parts[1], "default"), self.value(parts[2], "default")]
        found.append(self.value(function.__dict__, function.__name__) if function.__dict__ else None)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                before = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self.checks.append(lambda cell=cell, before=before: cell.cell_contents is before)
            found.append((name, self.value(before, name)))
        content = function.__globals__
        for name in sorted(_globals_in(code) & content.keys() if names else ()):
            value = content[name]
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in UNSEEN:
                raise Unsupported(f"its step uses the module {value.__name__}")
            found.append((name, self._global(content, name)))
        return tuple(found)


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _names_in(code: types.CodeType) -> set[str]:
    """Every global, attribute and method that the code names, functions inside it included, and its strings."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names_in(constant)
        elif isinstance(constant, str):
            found.add(constant)  # getattr(self, "name")
    return found


@functools.lru_cache(maxsize=4096)  # code never changes, and to disassemble it takes a third of a plan's time
def _globals_in(code: types.CodeType) -> frozenset[str]:
    """Every global variable that the code reads, functions inside it included."""
    found = frozenset(i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return found.union(*(_globals_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)))


def _is_operator(name: str) -> bool:
    """Special methods are called without being named."""
    return name.startswith("__") and name.endswith("__") and name not in _NOT_CALLED


_NOT_CALLED = {
    "__init__", "__new__", "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__",
    "__repr__", "__orig_bases__", "__parameters__", "__abstractmethods__", "__hash__", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__",
    "__annotate__", "__static_attributes__", "__firstlineno__", "__init_subclass__", "__del__", "__str__",
    "__qualname__", "__annotations_cache__", "__eq__", "__replace__", "__annotate_func__",
}  # fmt: skip


def _is_trusted(thing: Any) -> bool:
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
    return name.partition(".")[0] in TRUSTED
