"""Plans: a cell's step traced, lowered, scheduled and compiled, for as long as it holds.

    plan_for(cell, weights, ...)  →  Plan, made now or found; ``Unsupported`` with the reason if there is none

A plan is found by everything that its trace baked in: the settings of the cell (settings.py), shapes and types of its
weights, and whether gradients are wanted. Before a plan serves a batch size that it has not met, the step is recorded
once at that size and compared. It is recorded again every ``AGAIN`` scans, in case it reads something that settings do
not see. What a plan computes is tried out before it is believed (trial.py).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Collection, Hashable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.lower import Lowered, lower
from holdfast.engine.program.schedule import Schedule, schedule
from holdfast.engine.program.settings import PLANS, Settings, settings_of
from holdfast.engine.program.tiles import Kind, Slot, Tile
from holdfast.engine.program.trace import Traced, differs, random_state_kept, record_step, trace_step
from holdfast.engine.targets.cpu.emit import Kernel, emit_backward, emit_forward
from holdfast.engine.targets.cpu.feature_kernel import emit_features_backward, emit_features_forward
from holdfast.engine.targets.cpu.shape import FeatureShape, Shape
from holdfast.engine.targets.cpu.vec import WIDTH

__all__ = [
    "Plan",
    "failure",
    "plan_for",
    "refuse",
    "remembered",
    "settings_now",
    "share_plans",
    "unfold",
]

FEW = 8  # inputs of at most so many features are projected inside any loop
AGAIN = 256  # scans after which a step is recorded again
MOST = 32  # plans of one cell that are kept
RECENT = 4  # settings of a cell that are remembered


def remembered(method: Any) -> Any:
    """Remember a method's results in its object, so that they go when it goes."""

    @functools.wraps(method)
    def remembering(self: Any, *args: Any) -> Any:
        known = self.__dict__.setdefault("_known", {})
        if (method, args) not in known:
            known[method, args] = method(self, *args)
        return known[method, args]

    return remembering


@dataclasses.dataclass(eq=False)
class Plan:
    """A traced step and what has been made of it so far."""

    dtypes: ClassVar[Collection[torch.dtype]] = WIDTH  # number types that the target computes in
    traced: Traced
    fold: bool
    dtype: torch.dtype
    settings: Hashable = None  # of the cells that it serves
    calls: int = 0
    batches: dict[int, str | None] = dataclasses.field(default_factory=dict)  # sizes met; how the trace differed
    tried: set[Any] = dataclasses.field(default_factory=set)  # what trial.py has compared
    refused: dict[str, str] = dataclasses.field(default_factory=dict)  # ways that cannot do it, with the reason
    ways: dict[Any, Any] = dataclasses.field(default_factory=dict)  # what ways.py has chosen
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict)  # packed weights of the last scans, kept.py

    @remembered
    def lowered(self, source_grad: bool) -> Lowered:
        return lower(self.traced, source_grad=source_grad)

    @remembered
    def forward(self, source_grad: bool) -> Schedule:
        return schedule(self.lowered(source_grad).forward)

    @remembered
    def backward(self, source_grad: bool, shape: Shape | FeatureShape) -> Schedule:
        program = self.lowered(source_grad).backward
        assert program is not None
        return schedule(program, shape.summed_after)

    @remembered
    def stored(self, source_grad: bool, shape: Shape | FeatureShape) -> tuple[Tile, ...]:
        """Sides of the products after the loop that no tensor holds already."""
        backward = self.backward(source_grad, shape)
        sides = [side for outer in backward.products for side in (outer.left, outer.right)]
        program, source = backward.program, Slot(Kind.SOURCE)
        held = program.inputs.get(source), program.inputs.get(Slot(Kind.STATE)), program.outputs[source]
        return tuple(dict.fromkeys(side for side in sides if side not in held))

    @remembered
    def keep(self, source_grad: bool) -> tuple[Slot, ...]:
        """States and tiles that backward reads, so that forward must keep them; the first state is in the output."""
        program = self.lowered(source_grad).backward
        inputs = () if program is None else program.inputs
        states = {Slot(Kind.STATE, s.index) for s in inputs if s.kind in (Kind.STATE, Kind.NEW) and s.index}
        return tuple(sorted(states | {s for s in inputs if s.kind is Kind.SAVED}))

    @remembered
    def forward_kernel(self, shape: Shape | FeatureShape, output: bool, gradient: bool, source_grad: bool) -> Kernel:
        keep = self.keep(source_grad) if gradient else ()
        if isinstance(shape, FeatureShape):
            return emit_features_forward(self.forward(source_grad), shape, output=output, keep=keep)
        return emit_forward(self.forward(source_grad), shape, output=output, keep=keep)

    @remembered
    def backward_kernel(self, shape: Shape | FeatureShape, output_grad: bool, source_grad: bool) -> Kernel:
        backward, stored = self.backward(source_grad, shape), self.stored(source_grad, shape)
        options: Any = {"state_sizes": self.traced.state_sizes, "output_grad": output_grad, "stored": stored}
        if isinstance(shape, FeatureShape):
            return emit_features_backward(backward, shape, **options)
        return emit_backward(backward, shape, **options)

    def same_at(self, cell: Cell, weights: tuple[Tensor, ...], batch: int) -> str | None:
        """Record the step again, at this batch size: None if it is still this plan's program, else the difference."""
        traced = self.traced
        options = {"fold": self.fold, "gradient": traced.gradient, "batch": batch}
        try:
            with random_state_kept():
                return differs(traced, record_step(cell, weights, traced.source_features, **options), batch)
        except Unsupported as difference:
            return str(difference)


# -- finding and making ----------------------------------------------------------------------------------------------

_lock = threading.RLock()
_P = TypeVar("_P", bound=Plan)


class _Plans:
    """The plans of one cell. They live in the cell and go with it; a copy of the cell starts without."""

    def __init__(self, cell: Cell | None = None):
        self.owner = None if cell is None else weakref.ref(cell)
        self.settings: list[Settings] = []
        self.known: dict[Any, Any] = {}  # plans, or why there is none

    def __deepcopy__(self, memo: Any) -> _Plans:
        return _Plans()

    def __reduce__(self) -> Any:
        return _Plans, ()


def _plans_of(cell: Cell) -> _Plans:
    content: dict[str, Any] = vars(cell)
    plans = content.get(PLANS)
    if plans is None or plans.owner is None or plans.owner() is not cell:
        plans = content[PLANS] = _Plans(cell)
    return plans


def _settings(cell: Cell, plans: _Plans) -> Settings:
    for place, known in enumerate(plans.settings):
        if known.unchanged():
            if place:
                plans.settings.insert(0, plans.settings.pop(place))
            return known
    found = settings_of(cell)
    plans.settings = [found, *plans.settings[: RECENT - 1]]
    return found


def plan_for(
    cell: Cell,
    weights: tuple[Tensor, ...],
    *,
    gradient: bool,
    batch: int | None = None,
    kind: type[_P] = Plan,
    widest: int = FEW,
) -> _P:
    """The plan of this cell as it is now, for this batch size; ``Unsupported`` with the reason if there is none.

    ``kind``: the target's plans. ``widest``: the widest input that may be projected inside the loop.
    """
    example, fold = cell.example_weight(), cell.input_size <= widest
    with _lock:
        plans = _plans_of(cell)
        kinds = tuple((w.shape, w.dtype, w.requires_grad) for w in weights)
        settings = _settings(cell, plans).key
        key = (
            kind,
            fold,
            settings,
            gradient,
            torch.is_grad_enabled(),
            example.dtype,
            example.device,
            kinds,
        )
        plan: Any = plans.known.get(key)
        if isinstance(plan, Plan) and batch is not None:
            plan.calls += 1
            steady = batch in plan.batches and plan.batches[batch] is None
            if plan.calls % AGAIN == 0 and steady and plan.same_at(cell, weights, batch) is not None:
                plan = None  # the step reads something that settings do not see
        if plan is None:
            folds = (True, False) if fold else (False,)
            plan = plans.known[key] = _made(cell, weights, gradient, kind, folds)
            while len(plans.known) > MOST:  # a setting that changes with every scan should be a buffer
                del plans.known[next(iter(plans.known))]
        if isinstance(plan, str):
            raise Unsupported(plan)
        plan.settings = settings
        if batch is not None and batch not in plan.batches:
            plan.batches[batch] = plan.same_at(cell, weights, batch)
    return cast("_P", plan)


def share_plans(cell: Cell, twin: Cell) -> None:
    """Let ``twin``, a copy of ``cell`` in another number type, find the plans of earlier copies."""
    with _lock:
        plans, own = _plans_of(cell), _Plans(twin)
        own.known, own.settings = plans.known, [Settings(_settings(cell, plans).key)]
        vars(twin)[PLANS] = own


def settings_now(cell: Cell) -> Any:
    """What ``cell``'s step reads now, as a key."""
    with _lock:
        return _settings(cell, _plans_of(cell)).key


def refuse(plan: Plan, shape: Any, reason: str) -> bool:
    """Give up lanes over features for a plan; False if that was not how it ran."""
    if not isinstance(shape, FeatureShape):
        return False
    plan.refused["features"] = reason
    return True


def unfold(cell: Cell, plan: Plan, weights: tuple[Tensor, ...], reason: str) -> None:
    """Give up a plan that failed: for one that leaves the drive to PyTorch if this one did not, else for none."""
    with _lock:
        for key, known in _plans_of(cell).known.items():
            if known is plan:
                made = _made(cell, weights, plan.traced.gradient, type(plan), folds=(False,)) if plan.fold else reason
                _plans_of(cell).known[key] = made


def _made(
    cell: Cell, weights: tuple[Tensor, ...], gradient: bool, kind: type[Plan], folds: tuple[bool, ...] = (True, False)
) -> Plan | str:
    """The plan, or why there is none: not the exception, whose traceback would keep the cell alive."""
    dtype, device = cell.example_weight().dtype, cell.example_weight().device
    if dtype not in kind.dtypes:
        return f"its weights are of {dtype}"
    for weight in weights:
        if weight.is_floating_point() and weight.dtype != dtype:
            return f"it mixes {dtype} with {weight.dtype}"
    reason = ""
    for fold in folds:
        try:
            with torch.no_grad(), random_state_kept():
                row = torch.zeros(1, cell.input_size, dtype=dtype, device=device)
                features = cell.input_size if fold else cell.drive(row).shape[-1]
            traced = trace_step(cell, weights, features, fold=fold, gradient=gradient)
            if any(node.is_random for node in traced.graph.nodes):
                if fold:
                    raise Unsupported("its drive may draw random numbers")  # for all steps at once, in the plain loop
                with torch.no_grad(), random_state_kept():
                    if not cell.drive(torch.zeros(3, 2, cell.input_size, dtype=dtype, device=device)).is_contiguous():
                        raise Unsupported("it draws random numbers, and its drive is not contiguous in memory")
            plan = kind(traced, fold, dtype)
            plan.lowered(True)
            return plan
        except Unsupported as error:
            reason = str(error)
        except Exception as error:  # a fault in the compiler must not stop a scan: the plain loop can do it
            reason = failure(error)
    return reason


def failure(error: Exception) -> str:
    """What to say of an error that no cell should cause."""
    return f"the compiler failed ({type(error).__name__}: {error}); please report it"
