"""C99 for devices: one file and its header, with everything that a trained network needs.

holdfast.export.c(model, "gesture.c")             gesture.c and gesture.h: gesture_init, gesture_step, gesture_reset
holdfast.export.c(run, "gesture.c", int8=True)    weights of products in int8, one scale per row
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.engine.targets.c import Step, Unsupported, step_of
from holdfast.errors import DataError, DTypeError, SettingError, ShapeError, UnsupportedError
from holdfast.export.c_source import sources
from holdfast.export.network import Network, network_of
from holdfast.export.quantise import Matrices, rounded_matrices, rounded_parts
from holdfast.export.report import Report, write_new
from holdfast.export.simulate import Parts, Simulated, exact_parts
from holdfast.runs.load import Run, load_run
from holdfast.tasks import Batch
from holdfast.train.metrics import Scores

__all__ = ["CReport", "c"]

CALIBRATED = 256  # sequences of a run's training split that scales are chosen by
MOST_STEPS = 1_000_000  # of a split that int8 is scored on; it runs step by step


@dataclasses.dataclass(frozen=True)
class CReport(Report):
    """What ``holdfast.export.c`` wrote, and what it takes on a device.

    Args:
        flash: bytes of constants: weights, tables and labels. The code comes on top.
        ram: bytes of the state, scratch memory included.
        multiply_adds: of one step.
        metric: of ``score``; "agreement" if there is no run to take targets from. Empty without int8 or without data.
        score: by "float32" and "int8".

    Example:
        >>> CReport((Path("net.c"),), ["..."], flash=1024, ram=256, multiply_adds=300).flash
        1024
    """

    flash: int = 0
    ram: int = 0
    multiply_adds: int = 0
    metric: str = ""
    score: dict[str, float] = dataclasses.field(default_factory=dict)


def c(
    model: Any,
    path: str | Path,
    *,
    name: str | None = None,
    int8: bool = False,
    calibrate: Any = None,
    force: bool = False,
) -> CReport:
    """Write a model as one C99 file and its header, for a device that sees one step at a time.

    The file needs no library but ``math.h`` and allocates nothing. It has ``NAME_init``, ``NAME_step`` and
    ``NAME_reset``, and standardisation, embedding and readout inside. See docs/usage/devices.md.

    Args:
        model: as in ``network_of``: a run or its folder, a ``SequenceModel``, a layer or a cell, a user's own included.
        path: of the C file, ``.c``; the header has the same name with ``.h``.
        name: prefix of all names in C; default: that of the file.
        int8: write the matrices of products, and the embedding, in int8 with one scale per row, and the angles of
            rotations in 8 bits. Biases and states stay in float32.
        calibrate: inputs that the scales of int8 are chosen by: an array (sequences, time, inputs) in the data's own
            units or tokens (sequences, time); for a run on your own data also a file like the training file. Default
            for a run: its training split. Without data, the scales keep the weights' squared error small.
        force: overwrite existing files.

    Raises:
        UnsupportedError: a bidirectional model, or an operator that C does not have; the message names it.
        SettingError: a name that is not a C identifier, or a file that exists.

    Example:
        >>> import tempfile
        >>> import holdfast
        >>> folder = Path(tempfile.mkdtemp())
        >>> report = c(holdfast.SGORNN(9, 16), folder / "gesture.c")
        >>> [path.name for path in report.paths], report.flash, report.ram
        (['gesture.c', 'gesture.h'], 1296, 192)
        >>> print(report.lines[1])
        1,296 bytes of flash for constants, 192 bytes of RAM, 400 multiply-adds per step
    """
    path = Path(path)
    name = _name(path, name)
    run = load_run(model) if isinstance(model, str | Path) else model if isinstance(model, Run) else None
    network = network_of(model if run is None else run)
    if calibrate is not None and not int8:
        raise SettingError("export.c expects calibrate together with int8=True, got int8=False.")
    steps = _steps(network)
    exact = exact_parts(network, steps)
    matrices, lines, metric, score = Matrices(tuple({} for _ in steps)), list[str](), "", dict[str, float]()
    if int8:
        batches, on, why = _calibration(network, run, calibrate)
        matrices = rounded_matrices(network, steps, exact, batches)
        parts = rounded_parts(exact, matrices)
        lines.append(f"int8: scales chosen by {on}" if on else f"int8: scales not calibrated ({why})")
        metric, score, said = _compared(network, steps, exact, parts, run, batches)
        lines += said
    made = sources(network, steps, name, path.with_suffix(".h"), matrices)
    written = write_new({path: made.source, path.with_suffix(".h"): made.header}, force=force)
    size = f"{made.flash:,} bytes of flash for constants, {made.ram:,} bytes of RAM"
    head = [f"Wrote {written[0]} and {written[1].name}", f"{size}, {made.multiply_adds:,} multiply-adds per step"]
    return CReport(written, head + lines, made.flash, made.ram, made.multiply_adds, metric, score)


def _name(path: Path, name: str | None) -> str:
    if path.suffix != ".c":
        raise SettingError(f"export.c expects the name of a file that ends in .c, got {path}.")
    if not path.name.isprintable() or set(path.name) & {*'"\\'}:
        raise SettingError(f"export.c expects a file name that #include can name, got {path.name!r}.")
    found = re.sub(r"[-. ]+", "_", path.stem) if name is None else name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found) or "__" in found:
        told = "" if name is not None else f", made of {path.name}"
        raise SettingError(
            "export.c expects name to be a C identifier: a letter, then letters, digits and single underscores; got "
            f"{found!r}{told}. Pass another name."
        )
    return found


def _steps(network: Network) -> list[Step]:
    if any(row.reverse for row in network.rows):
        raise UnsupportedError(
            "export.c expects a model that reads forwards, got a bidirectional one: a device sees one step at a time. "
            "Train it with bidirectional=False."
        )
    steps = []
    for row in network.rows:
        try:
            steps.append(step_of(row.cell))
        except Unsupported as error:
            raise UnsupportedError(
                f"export.c cannot write {type(row.cell).__name__} in C: {error}. Write its step with operators that "
                "docs/theory/scan-engine.md lists, or export to ONNX."
            ) from None
    return steps


# -- int8 -------------------------------------------------------------------------------------------------------------


def _calibration(network: Network, run: Run | None, given: Any) -> tuple[list[Batch], str, str]:
    """Calibration sequences as the first layer's input (1), what they are, or why there are none."""
    if given is not None and run is not None and (run.stored is not None or isinstance(given, str | Path)):
        ready = run.preparation.apply(given)
        return [_batch(as_input(network, run, ready.inputs), ready.lengths)], f"{len(ready):,} sequences", ""
    if given is not None:
        inputs = _given(network, given)
        return [_batch(inputs, None)], f"{len(inputs):,} sequences", ""
    if run is None:
        return [], "", "no data given; pass calibrate"
    try:
        first = next(iter(run.task.evaluation("train", CALIBRATED)))
    except (DataError, SettingError, StopIteration) as error:
        return [], "", f"no training data: {error}"
    first = dataclasses.replace(first, inputs=as_input(network, run, first.inputs))
    return [first], f"{len(first):,} sequences of the training split", ""


def as_input(network: Network, run: Run, inputs: Tensor) -> Tensor:
    """(1) of network.py, from what the run's model takes in: a reservoir standardises once more."""
    if network.change is None or run.stored is None or network.mean is None or network.scale is None:
        return inputs
    mean, std = (torch.as_tensor(part, dtype=inputs.dtype) for part in (run.preparation.mean, run.preparation.std))
    return (inputs * std + mean - network.mean) / network.scale


def _batch(inputs: Tensor, lengths: Tensor | None) -> Batch:
    return Batch(inputs.transpose(0, 1), torch.zeros(len(inputs)), lengths)


def _given(network: Network, given: Any) -> Tensor:
    """(1) of network.py for an array."""
    try:
        x = torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError) as error:
        raise DTypeError(f"export.c expects calibrate to be an array, got {type(given).__name__} ({error}).") from None
    if network.embedding is not None:
        if x.dim() != 2 or x.is_floating_point() or x.numel() == 0 or not 0 <= x.min() <= x.max() < network.input_size:
            raise ShapeError(
                f"export.c expects calibrate to be tokens (sequences, time) of 0 to {network.input_size - 1}, got "
                f"{x.dtype} of shape {tuple(x.shape)}."
            )
        return x.long()
    if x.dim() != 3 or x.shape[2] != network.input_size or x.numel() == 0:
        raise ShapeError(
            f"export.c expects calibrate of shape (sequences, time, {network.input_size}), got {tuple(x.shape)}."
        )
    x = x.float()
    return x if network.mean is None or network.scale is None else (x - network.mean) / network.scale


def _compared(
    network: Network, steps: list[Step], exact: Parts, rounded: Parts, run: Run | None, batches: list[Batch]
) -> tuple[str, dict[str, float], list[str]]:
    """How well int8 answers beside float32: on a run's test split by its metric, else how often both agree."""
    before, after = Simulated(network, steps, exact), Simulated(network, steps, rounded)
    on = "the calibration data"
    if run is not None:
        try:
            splits = run.task.spec.splits
            on = "test" if "test" in splits else splits[-1]
            return _scored(run, network, after, on)
        except DataError as error:
            on = f"the calibration data ({error})"
    if not batches:
        return "", {}, ["int8: accuracy not measured, as no data were given; pass calibrate"]
    same = total = 0.0
    for batch in batches:
        one, other = (model(batch.inputs, batch.lengths)[0] for model in (before, after))
        if network.answer in ("classes", "binary"):
            same += float((_classes(network, one) == _classes(network, other)).sum())
            total += _classes(network, one).numel()
        else:
            same += float((one - other).square().sum())
            total += float((one - one.mean(dim=0)).square().sum())
    if network.answer in ("classes", "binary"):
        share = same / total
        return "agreement", {"float32": 1.0, "int8": share}, [f"int8: the same class as float32 in {share:.2%} of {on}"]
    share = 1 - same / total if total else 1.0
    said = f"int8: explains {share:.4%} of the variance of float32's outputs on {on}"
    return "agreement", {"float32": 1.0, "int8": share}, [said]


def _classes(network: Network, answers: Tensor) -> Tensor:
    return answers.squeeze(-1) > 0 if network.answer == "binary" else answers.argmax(dim=-1)


def _scored(run: Run, network: Network, after: Simulated, split: str) -> tuple[str, dict[str, float], list[str]]:
    task, training, spec = run.task, run.settings.training, run.task.spec
    carry = training.carry_state and spec.contiguous
    metric, score, seen = ("mse" if spec.metric == "loss" else spec.metric), {}, 0
    models: dict[str, nn.Module] = {"float32": run.model, "int8": after}
    scores, states = {kind: Scores(spec.loss, spec.metric) for kind in models}, dict.fromkeys(models)
    on = split
    with torch.no_grad():
        for batch in task.evaluation(split, training.batch):
            if seen > MOST_STEPS:
                on = f"the first {seen:,} steps of {split}"
                break
            for kind, model in models.items():
                inputs = as_input(network, run, batch.inputs) if kind == "int8" else batch.inputs
                answers, states[kind] = model(inputs, batch.lengths, states[kind] if carry else None)
                scores[kind].add(
                    answers.to(batch.targets.dtype) if batch.targets.is_floating_point() else answers, batch
                )
            seen += batch.inputs.shape[0] * batch.inputs.shape[1]
    for kind, one in scores.items():
        result = one.result()
        score[kind] = result.get(metric, result["loss"])
    told = ", ".join(f"{value:.4f} in {kind}" for kind, value in score.items())
    return metric, score, [f"{metric} on {on}: {told}"]
