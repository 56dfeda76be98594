"""``diagnose``: run a model once, measure its recurrent layer, apply the rules.

    model → find → record → measures of each row → rules → Diagnosis                        (1)

The model is in evaluation mode meanwhile; its weights, its mode and all generators are as before afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.cells import step_form
from holdfast.diagnose.diagnosis import Diagnosis, RowResult, plain
from holdfast.diagnose.find import Found, find
from holdfast.diagnose.measure import LIMITS, measure_row, trees_of
from holdfast.diagnose.nonfinite import NotFinite, bad_inputs, bad_weight, first_bad_gradient, first_bad_state
from holdfast.diagnose.record import Outside, Row, run_model, run_rows
from holdfast.diagnose.rules import findings
from holdfast.diagnose.sharpness import sharpness
from holdfast.diagnose.template import templates_of
from holdfast.errors import DTypeError, SettingError, ShapeError, positive_number, positive_size

__all__ = ["Subject", "diagnose", "examine"]

_SHOWN = 4  # sequences that pictures show one by one
_PERCENT = ("coverage", "dead", "stuck", "unused")


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is examined: the model, its data, and how to call it.

    Args:
        model, xs, targets: as in ``diagnose``.
        call: runs the model on xs and, for a part of the sequences, on these: ``call(which)``.
        loss: ``loss(answers, which)``.
        name, lr, lag: as in ``diagnose``.
        title: of the page.
        measures: more numbers for the rules, such as those of a run's log.
        curves: the log of a run.
        notes: to begin with.
    """

    model: nn.Module
    xs: Tensor
    targets: Tensor | None
    call: Callable[[Tensor | None], Any]
    loss: Callable[[Any, Tensor | None], Tensor]
    name: str | None = None
    lr: float | None = None
    lag: int | None = None
    title: str = ""
    measures: dict[str, Any] = dataclasses.field(default_factory=dict)
    curves: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def diagnose(
    model: nn.Module,
    xs: Tensor,
    targets: Tensor | None = None,
    loss: Callable[..., Tensor] | None = None,
    *,
    name: str | None = None,
    lr: float | None = None,
    lag: int | None = None,
    sequences: int = 16,
    progress: bool = False,
) -> Diagnosis:
    """Find out what is wrong with a recurrent network, if anything, on these sequences.

    Args:
        model: a ``torch.nn.RNN``, ``LSTM`` or ``GRU``, a Holdfast layer or cell, or any module that contains one.
        xs: a batch, as the model takes it.
        targets: what the model should answer; for findings about the loss.
        loss: ``loss(answers, targets)`` gives the loss of the batch, where answers is what the model returns, or the
            first entry of it. Default: mean squared error, or cross-entropy for targets that are whole numbers; without
            targets half the mean square of the answers.
        name: of the recurrent layer in the model, such as "encoder.rnn"; default: the one with most weights.
        lr: the learning rate of gradient descent, to compare with the largest stable one; needs targets or a loss.
        lag: how many steps back the task needs its inputs, to compare with the memory of the network.
        sequences: how many sequences to follow step by step; costly measures use fewer, and the notes say so.
        progress: show a progress bar.

    Example:
        >>> import torch, holdfast
        >>> rnn = torch.nn.RNN(2, 16)
        >>> _ = torch.nn.init.orthogonal_(rnn.weight_hh_l0, gain=3.0)
        >>> diagnosis = diagnose(rnn, 0.1 * torch.randn(60, 4, 2))
        >>> diagnosis.findings[0].title
        'Exploding gradients'
        >>> rnn = holdfast.stability.project_(holdfast.from_torch(rnn), rate=0.99)  # what it advises
        >>> diagnose(rnn, 0.1 * torch.randn(60, 4, 2)).findings
        ()
    """
    xs = torch.as_tensor(xs)
    targets = None if targets is None else torch.as_tensor(targets)
    if lr is not None:
        positive_number("diagnose", "lr", lr)
        if targets is None and loss is None:
            raise SettingError(f"diagnose expects targets or a loss together with lr, got lr={lr} alone.")
    if lag is not None:
        positive_size("diagnose", "lag", lag)
    found = find(model, name)
    batch_dim = 0 if found.layer.batch_first else 1
    given = loss or _default_loss(targets)

    def part(which: Tensor | None) -> Tensor:
        return xs if which is None or xs.dim() < 2 else xs.index_select(batch_dim, which)

    def scored(answers: Any, which: Tensor | None) -> Tensor:
        if targets is None:
            return given(answers)
        own = targets if which is None else _targets_of(targets, xs, which, batch_dim)
        return given(answers, own)

    subject = Subject(found.model, xs, targets, lambda which: found.model(part(which)), scored, name, lr, lag)
    return examine(subject, sequences=sequences, progress=progress)


def examine(subject: Subject, *, sequences: int = 16, progress: bool = False) -> Diagnosis:
    """(1) for a model and any way to call it."""
    positive_size("diagnose", "sequences", sequences)
    found = find(subject.model, subject.name)
    with _as_before(found.model), _stages(progress, 4 + 6 * len(found.layer.cells)) as stage:
        stage("the model, forward and backward")
        notes = list(subject.notes)
        if found.others:
            notes.append(
                f"The model has other recurrent layers ({', '.join(found.others)}); this is about "
                f"{found.name!r}. Choose with name=."
            )
        bad = bad_weight(found.model)
        if bad is not None:
            return _only(subject, found, bad, "weight", "Load the last good checkpoint, and train with clip=1.0.")
        data, which = _clean(subject, found)
        if which is not None and not len(which):
            assert data is not None
            return _only(subject, found, data, "data", "Fill in or remove missing values before training.")
        outside = _run(subject, found, which)
        return _examined(subject, found, outside, which, data, sequences, notes, stage)


def _examined(
    subject: Subject,
    found: Found,
    outside: Outside,
    clean: Tensor | None,
    data: NotFinite | None,
    sequences: int,
    notes: list[str],
    stage: Callable[[str], None],
) -> Diagnosis:
    steps, batch = outside.xs.shape[:2]
    order = torch.arange(batch) if outside.lengths is None else outside.lengths.argsort(descending=True, stable=True)
    kept = order[:sequences]
    if len(kept) < batch:
        notes.append(f"{len(kept)} of {batch} sequences are followed step by step.")
    if outside.calls > 1:
        notes.append(f"The layer was called {outside.calls} times; this is about the longest call.")
    if outside.lengths is not None:
        notes.append("Sequences differ in length; after its end a sequence is held at its last state.")
    stage("states and gradients, step by step")
    rows, apart = run_rows(found.layer, outside, kept)
    cause, bad = "data", data
    overflow = first_bad_state(rows, found.model)
    if overflow is not None:
        cause, bad = "overflow", overflow
        rows = [_cut(row, min(_finite_steps(row) for row in rows)) for row in rows]
    elif bad is None and (bad := first_bad_gradient(rows)) is not None:
        cause = "overflow"
        rows = [dataclasses.replace(row, grads=tuple(grad.nan_to_num(0, 0, 0) for grad in row.grads)) for row in rows]
    elif bad is None and not math.isfinite(outside.loss):
        cause, bad = "weight", NotFinite(f"the loss ({outside.loss}), though every state is finite")
    if apart > 1e-3 * max(1.0, float(rows[0].hs.abs().max()) if rows[0].hs.numel() else 1.0):
        notes.append(f"Step by step, outputs differ from the model's own by up to {apart:.2g}.")
    shown = list(range(min(_SHOWN, len(kept))))
    notes.append(
        f"Gradients by distance use {min(LIMITS.gradients, len(kept))} sequences; Lyapunov exponents "
        f"{min(LIMITS.jacobians, len(kept))} sequences and their last {min(LIMITS.steps, steps)} steps; fixed points "
        f"{LIMITS.starts} starts."
    )
    shared = {**_shared(subject, found, outside), **subject.measures}
    if bad is not None:
        shared |= _bad(bad, cause)
    elif subject.lr is not None and "lr_over_edge" not in shared:
        stage("sharpness")
        shared |= _edge(subject, found, outside, kept[: LIMITS.gradients], clean)
    results, judged = [], []
    for row in rows:
        measures: dict[str, Any] = {"row": row.name, "kind": "any", "steps": len(row.hs)}
        pictures: dict[str, Any] = {}
        if len(row.hs) >= 2:
            measures, pictures = measure_row(row, shown, lambda what, row=row: stage(f"{row.name}: {what}"))
        measures |= _derived({**shared, **measures}, pictures.get("reach", {}))
        judged.append({**shared, **measures})  # not as JSON has them: infinity is a fault, too
        results.append(RowResult(row.name, plain(measures, 9), plain(pictures)))
    stage("templates")
    if results and "norms" in results[-1].pictures:
        some = kept[: len(shown)] if clean is None else clean[kept[: len(shown)]]
        several = subject.xs.dim() >= 2 and len(kept) > 0 and outside.lengths is None
        call = (lambda: subject.call(some)) if several else (lambda: subject.call(clean))
        inside = shown if several else kept[: len(shown)].tolist()
        last = results[-1].pictures
        last["templates"] = plain(templates_of(found, call, _few(outside, some) if several else outside, inside))
        last["trees"] = plain(trees_of(found.layer, outside.xs))
    return Diagnosis(
        subject.title or f"{type(found.model).__name__} on {batch} sequences of {steps} steps",
        _about(subject, found, outside),
        findings(judged),
        tuple(results),
        tuple(notes),
        tuple(kept[: len(shown)].tolist()),
        subject.curves,
    )


# -- the numbers that rules and sentences need -------------------------------------------------------------------------


def _shared(subject: Subject, found: Found, outside: Outside) -> dict[str, Any]:
    """What holds for all rows."""
    layer, steps = found.layer, len(outside.xs)
    norms = outside.direct_norms()
    top = norms.amax(dim=0).clamp_min(1e-300)
    read = (norms > 1e-3 * top).double()
    read = read if norms.isfinite().all() else read * math.nan
    numbers: dict[str, Any] = {
        "here": found.here,
        "ours": found.ours,
        "layer_class": type(layer).__name__,
        "input_size": layer.input_size,
        "hidden_size": layer.hidden_size,
        "layers": layer.num_layers,
        "batch_first": layer.batch_first,
        "time_dim": 1 if layer.batch_first else 0,
        "keep_index": "keep" if layer.batch_first else ":, keep",
        "chunks": 4 if type(layer).__name__ == "LSTM" else 3,
        "loss": outside.loss,
        "lag": subject.lag,
        "lr": subject.lr,
        "third_lr": (subject.lr or 1e-3) / 3,
        "needed": max(3, subject.lag or steps),
        "keep": math.log(max(3, subject.lag or steps) - 1),
        "read_steps": float(read.sum(dim=0).mean()),
        "read_share": float(read.mean()),
        "targets_every_step": float(_every_step(subject.targets, outside)),
        "end_only_cause": "classes" if subject.targets is not None and not subject.targets.is_floating_point() else "",
        "input_rms": float(outside.xs.double().square().mean().sqrt()),
    }
    return numbers


def _derived(measures: dict[str, Any], reach: dict[str, Any]) -> dict[str, Any]:
    """Numbers that follow from others, for conditions and sentences."""
    more: dict[str, Any] = {
        f"{name}_percent": 100 * value for name in _PERCENT if isinstance(value := measures.get(name), float)
    }
    lyapunov = measures.get("lyapunov")
    more["shrink"] = min(0.5, math.exp(-2 * lyapunov)) if isinstance(lyapunov, float) and lyapunov > 0 else 0.5
    for name in ("large_scale", "small_scale"):
        data = not 0.05 < measures["input_rms"] < 20
        more[f"{name}_cause"] = "data" if data else ""
        more["scale_advice"] = (
            "Scale the inputs to mean 0 and standard deviation 1."
            if data
            else "Start the input weights at the usual scale."
        )
    if measures.get("lag") is not None and "memory" in measures:
        mean = [value for value in reach["mean"] if not math.isnan(value)]
        more["lag_share"] = mean[min(measures["lag"], len(mean) - 1)] / max(mean)
        more["coverage"] = None  # the task says how far to reach, which is sharper than the share of steps
    return more


def _bad(bad: NotFinite, cause: str) -> dict[str, Any]:
    advice = {
        "data": "Fill in or remove missing values before training; the rest of this page is without these sequences.",
        "weight": "Load the last good checkpoint, and train with a lower learning rate and clip=1.0.",
        "overflow": "Make every step contract, or make the recurrent weights smaller, and clip the gradient.",
    }
    return {
        "nonfinite": 1.0,
        "nonfinite_where": bad.where,
        "at_step": f" at step {bad.step}" if bad.step else "",
        "nonfinite_cause": "" if cause == "overflow" else cause,
        "nonfinite_advice": advice[cause],
        "nonfinite_flags": "--impute mean" if cause == "data" else "--clip 1.0",
    }


def _edge(subject: Subject, found: Found, outside: Outside, kept: Tensor, clean: Tensor | None) -> dict[str, Any]:
    """The largest stable learning rate, on some of the sequences."""
    assert subject.lr is not None
    whole = subject.xs.dim() < 2 or len(kept) == outside.xs.shape[1]
    which = clean if whole else kept if clean is None else clean[kept]

    def loss() -> Tensor:
        answers = subject.call(which)
        return subject.loss(answers[0] if isinstance(answers, tuple | list) else answers, which)

    found_ = sharpness(found.model, loss, subject.lr)
    if math.isnan(found_.largest) or found_.largest <= 0:
        return {}
    after = found_.after if math.isfinite(found_.after) else math.inf
    return {
        "edge": found_.edge,
        "safe_lr": found_.edge / 2,
        "lr_over_edge": subject.lr / found_.edge,
        "loss": found_.loss,
        "loss_after": after,
        "step_ratio": after / found_.loss if found_.loss > 0 else math.nan,
    }


# -- running -----------------------------------------------------------------------------------------------------------


def _run(subject: Subject, found: Found, which: Tensor | None) -> Outside:
    try:
        return run_model(found, lambda: subject.call(which), lambda answers: subject.loss(answers, which))
    except (ShapeError, DTypeError, SettingError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        layout = "(batch, time, ...)" if found.layer.batch_first else "(time, batch, ...)"
        targets = "" if subject.targets is None else f" and targets of shape {tuple(subject.targets.shape)}"
        raise ShapeError(
            f"diagnose expects xs and targets that the model and the loss take, {layout} with {found.layer.input_size} "
            f"features into {found.here}, got xs of shape {tuple(subject.xs.shape)} and {subject.xs.dtype}{targets}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _clean(subject: Subject, found: Found) -> tuple[NotFinite | None, Tensor | None]:
    """Where the data are not finite, and the sequences that are; None for all of them."""
    if subject.xs.dim() < 3:
        return (NotFinite("the input"), torch.empty(0, dtype=torch.int64)) if not _finite(subject.xs) else (None, None)
    bad = bad_inputs(subject.xs, 0 if found.layer.batch_first else 1)
    return (None, None) if bad is None else (bad[0], torch.nonzero(bad[1]).squeeze(1))


def _finite(xs: Tensor) -> bool:
    return not xs.is_floating_point() or bool(xs.isfinite().all())


def _finite_steps(row: Row) -> int:
    """Steps before the first state that is not finite."""
    good = torch.stack([state.isfinite().flatten(1).all(dim=1) for state in row.states]).all(dim=0)
    return len(good) - 1 if bool(good.all()) else max(0, int(torch.nonzero(~good)[0]) - 1)


def _cut(row: Row, steps: int) -> Row:
    return dataclasses.replace(
        row,
        xs=row.xs[:steps],
        states=tuple(state[: steps + 1] for state in row.states),
        grads=tuple(grad[: steps + 1].nan_to_num(0, 0, 0) for grad in row.grads),
    )


def _few(outside: Outside, some: Tensor) -> Outside:
    """The shapes of a call on some of the sequences."""
    answers, (steps, batch) = outside.answers, outside.xs.shape[:2]
    dim = 1 if answers.dim() == 3 and answers.shape[:2] == (steps, batch) else 0
    chosen = torch.arange(len(some))
    return dataclasses.replace(outside, xs=outside.xs[:, chosen], answers=answers.index_select(dim, chosen))


def _only(subject: Subject, found: Found, bad: NotFinite, cause: str, advice: str) -> Diagnosis:
    """A diagnosis without pictures: nothing can be measured."""
    layer = found.layer
    measures = {"row": "the model", "kind": "any", "here": found.here, "ours": found.ours, **_bad(bad, cause)}
    measures |= {"time_dim": 1 if layer.batch_first else 0, "keep_index": "keep" if layer.batch_first else ":, keep"}
    measures["nonfinite_advice"] = advice
    about = (("layer", f"{found.here}: {type(found.module).__name__}({layer.extra_repr()})"),)
    notes = ("Nothing else can be measured.",)
    title = subject.title or type(found.model).__name__
    return Diagnosis(title, about, findings([measures]), (), notes, (), subject.curves)


def _about(subject: Subject, found: Found, outside: Outside) -> tuple[tuple[str, str], ...]:
    layer, (steps, batch) = found.layer, outside.xs.shape[:2]
    own = sum(weight.numel() for weight in found.module.parameters())
    form = step_form(layer.cells[0])
    gates = "" if form is None or form.gates is None else ", α = {:.3g}, β = {:.3g}".format(*form.gate_values)
    return (
        ("layer", f"{found.here}: {type(found.module).__name__}({layer.extra_repr()}){gates}, {own:,} weights"),
        ("data", f"{batch} sequences of {steps} steps, {outside.xs.shape[-1]} features into the layer"),
        ("loss", f"{outside.loss:.5g}" + ("" if subject.targets is not None else " (half the mean square of answers)")),
    )


def _default_loss(targets: Tensor | None) -> Callable[..., Tensor]:
    if targets is None:
        return lambda answers: answers.square().mean() / 2
    if targets.is_floating_point():
        return _squared_error
    return lambda answers, classes: nn.functional.cross_entropy(
        answers.reshape(-1, answers.shape[-1]), classes.reshape(-1)
    )


def _squared_error(answers: Tensor, targets: Tensor) -> Tensor:
    if answers.shape != targets.shape:
        raise ShapeError(
            f"diagnose expects targets of the shape of the answers, {tuple(answers.shape)}, for a mean squared error, "
            f"got targets of shape {tuple(targets.shape)}; reshape them, or give a loss."
        )
    return nn.functional.mse_loss(answers, targets)


def _targets_of(targets: Tensor, xs: Tensor, which: Tensor, batch_dim: int) -> Tensor:
    """The targets of some sequences: at every step as the inputs are, else one row per sequence."""
    every = targets.dim() >= 2 and tuple(targets.shape[:2]) == tuple(xs.shape[:2])
    return targets.index_select(batch_dim if every else 0, which)


def _every_step(targets: Tensor | None, outside: Outside) -> bool:
    steps, batch = outside.xs.shape[:2]
    return targets is not None and targets.dim() >= 2 and tuple(targets.shape[:2]) in ((steps, batch), (batch, steps))


@contextlib.contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and generators of our own: PyTorch's, Python's and NumPy's, which a model may use."""
    modes = {module: module.training for module in model.modules()}
    drawn, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        random.setstate(drawn)
        np.random.set_state(numbers)  # noqa: NPY002


@contextlib.contextmanager
def _stages(wanted: bool, count: int) -> Iterator[Callable[[str], None]]:
    """What is being measured, on a line of the terminal, with a bar."""
    if not wanted or not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("diagnosing"), BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda what: bar.update(task, description=what, advance=1, refresh=True)
