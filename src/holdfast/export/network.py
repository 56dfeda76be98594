"""What a trained model is, for whoever writes it down in another language: ``network_of(model)`` gives a ``Network``.

    u_t = (x_t - mean) / scale,  or  E[x_t] for tokens             (1) inputs
    v_t = (u_t, (x_t - x_{t-1}) / change)                          (2) only with ``change``, for a reservoir
    h_t = step(drive(v_t), h_{t-1}, weights)                       (3) for every row of every layer
    z = W f + b,  f = h_T, (h_T, u_T), every h_t, or features      (4) readout
    y = z · target_scale + target_mean                             (5) numbers in the units of the training data

Everything is a copy in evaluation mode, in float32 and on the CPU. Nothing here knows of a target.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import holdfast
from holdfast.cells import Cell
from holdfast.errors import UnsupportedError
from holdfast.layers import Recurrent, Reservoir, from_torch
from holdfast.layers.reservoir import PooledCell
from holdfast.rrnn.layer import TreeLayer
from holdfast.runs.load import Run, load_run
from holdfast.stability import Truncated
from holdfast.train.model import SequenceModel

__all__ = ["Network", "Provenance", "Readout", "Row", "check_cell", "metadata", "network_of", "of_reservoir"]

Answer = Literal["classes", "binary", "numbers", "states"]


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One cell in one direction: (3).

    Args:
        cell: with ``drive``, ``weights`` and ``step``.
        start: the state before the first step, one tensor (size,) for each entry of ``cell.state_sizes``.
        reverse: from the last step to the first.

    Example:
        >>> row = network_of(holdfast.LSTM(3, 5)).layers[0][0]
        >>> row.reverse, [tuple(entry.shape) for entry in row.start]
        (False, [(5,), (5,)])
    """

    cell: Cell
    start: tuple[Tensor, ...]
    reverse: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Readout:
    """The linear map at the end: (4).

    Args:
        weight, bias: (outputs, features), and (outputs,) or None. Of float64 for a reservoir, else of float32.
        over: what it reads: "last", the last state's output of each direction of the last layer; "every" step's
            output; "pooled", the mean, the last and the largest output of the last layer, over the steps that count;
            or the "summary" of a reservoir, ``PooledCell.features`` of all rows side by side.
        direct: it reads u_t of (1) behind the output.
        mean, scale: what features are standardised with before, (features,); None for a trained network.

    Example:
        >>> from holdfast.train import SequenceModel
        >>> network_of(SequenceModel(holdfast.RNN(3, 5), nn.Linear(5, 2))).readout.over
        'last'
    """

    weight: Tensor
    bias: Tensor | None
    over: Literal["last", "every", "pooled", "summary"]
    direct: bool = False
    mean: Tensor | None = None
    scale: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What made an exported file.

    Args:
        version: of Holdfast.
        created: date and time in UTC, as ISO 8601 writes them.
        cells: such as "2 × LSTMCell(9, 64)".
        run: the name of the run's folder; empty for a model that is not from a run.
        weights: "best" or "last", for a run.

    Example:
        >>> Provenance("0.1.0", "2026-01-01T00:00:00Z", "RNNCell(3, 5)", "mine").sentence
        'Made by Holdfast 0.1.0 at 2026-01-01T00:00:00Z from RNNCell(3, 5), run mine.'
    """

    version: str
    created: str
    cells: str
    run: str = ""
    weights: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        run = f", run {self.run}" if self.run else ""
        weights = f" ({self.weights} weights)" if self.weights else ""
        return f"Made by Holdfast {self.version} at {self.created} from {self.cells}{run}{weights}."


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A model as (1) to (5). Make one with ``network_of``.

    Args:
        layers: the rows of each layer, side by side: their outputs together are the input of the next layer. The rows
            of all layers, in order, are the rows of ``h_0`` and ``h_n``.
        input_size: numbers per step; for tokens, how many different ones there are.
        mean, scale: of (1), (input_size,), or None.
        change: of (2), (input_size,), or None; the first step's difference is 0.
        embedding: E of (1), (tokens, features), or None for numbers.
        readout: (4), or None: the output is that of the last layer at every step.
        target_mean, target_scale: of (5), (outputs,), or None.
        answer: what the outputs are: "classes", scores whose softmax are probabilities; "binary", one score whose
            sigmoid is the probability of class 1; "numbers"; or the "states" of a layer without a readout.
        labels: the classes' names, in the order of the outputs; () if they have none.
        columns: the inputs' names; () if they have none.
        targets: the outputs' names, for numbers; () if they have none.
        vocabulary: what the tokens are, in the order of their indices; () if that is not known.
        batch_first: whether the model that this was made of takes (batch, time, ...), instead of (time, batch, ...).
        provenance: what made this.

    Example:
        >>> network = network_of(holdfast.GRU(3, 5, num_layers=2, bidirectional=True))
        >>> [[row.reverse for row in layer] for layer in network.layers], network.state_sizes
        ([[False, True], [False, True]], (5,))
    """

    layers: tuple[tuple[Row, ...], ...]
    input_size: int
    provenance: Provenance
    mean: Tensor | None = None
    scale: Tensor | None = None
    change: Tensor | None = None
    embedding: Tensor | None = None
    readout: Readout | None = None
    target_mean: Tensor | None = None
    target_scale: Tensor | None = None
    answer: Answer = "states"
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    batch_first: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all layers, in the order of ``h_n``."""
        return tuple(row for layer in self.layers for row in layer)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Features of each entry of the state, the same for all rows."""
        return tuple(self.rows[0].cell.state_sizes)

    @property
    def output_size(self) -> int:
        """Numbers per answer."""
        if self.readout is not None:
            return len(self.readout.weight)
        return sum(_width(row.cell, self.change is not None) for row in self.layers[-1])

    @property
    def every_step(self) -> bool:
        """Whether there is an answer at every step, instead of one per sequence."""
        return self.change is None if self.readout is None else self.readout.over == "every"

    @property
    def resumes(self) -> bool:
        """Whether a call can continue another: not if the answer needs more of the steps before than their state."""
        return self.change is None and (self.readout is None or self.readout.over != "pooled")


def network_of(model: Any) -> Network:
    """What ``model`` is, for an exporter.

    Args:
        model: a layer (``Recurrent`` and all named ones, ``torch.nn.RNN``, ``LSTM`` or ``GRU``), a ``Cell``, a
            ``holdfast.train.SequenceModel``, a ``Reservoir`` or a model with a linear readout of one, a model with
            ``rnn`` and ``linear`` over its pooled outputs, a run as ``holdfast.load_run`` returns it, its folder, or a
            ``Network``. Dropout and random starts are off.

    Raises:
        UnsupportedError: a model of another kind, RRNN's choices, and a truncated model.

    Example:
        >>> network = network_of(holdfast.SGORNN(3, 8, num_layers=2, initial_state="learned"))
        >>> len(network.rows), network.input_size, network.provenance.cells
        (2, 3, 'SGORNNCell(3, 8), SGORNNCell(8, 8)')
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, str | Path):
        model = load_run(model)
    if isinstance(model, Run):
        return _of_run(model)
    # Models that a run may hold. A kind that is new to runs gets its line here.
    if isinstance(model, Reservoir):
        return of_reservoir(model)
    if isinstance(getattr(model, "reservoir", None), Reservoir):  # a linear readout of its features
        return of_reservoir(model.reservoir, model)
    if isinstance(model, SequenceModel):
        over = "every" if model.every_step else "last"
        return _of_model(model.rnn, model.readout, over, model.embedding, model.direct)
    if isinstance(linear := getattr(model, "linear", None), nn.Linear) and hasattr(model, "rnn"):
        return _of_model(model.rnn, linear, "pooled")
    if isinstance(model, nn.RNNBase):
        model = from_torch(model)
    if isinstance(model, Cell):
        model = Recurrent(model)
    layers = _layers(model)
    return Network(layers, model.input_size, _provenance(layers), batch_first=model.batch_first)


def of_reservoir(reservoir: Reservoir, readout: Any = None, **known: Any) -> Network:
    """A reservoir: one layer of many rows, whose states carry their summary along.

    Args:
        reservoir: fitted or not.
        readout: with ``mean``, ``scale``, ``weight`` (features, outputs), ``bias`` and ``sharpness``:
            z = sharpness · ((features - mean) / scale · weight + bias). None: the features are the output.
        known: labels and other fields of ``Network``.

    Example:
        >>> of_reservoir(holdfast.Reservoir(3, steps=20, units=4)).output_size
        576
    """
    kept = copy.deepcopy(reservoir).to("cpu", torch.float32).eval()
    rows = []
    for index, cell in enumerate(kept.cells):
        assert isinstance(cell, PooledCell)
        start = tuple(entry[0] for entry in cell.initial_state(1))
        rows.append(Row(cell, start, reverse=kept.bidirectional and index % 2 == 1))
    level, change = kept.scale.split(kept.input_size)
    fields: dict[str, Any] = {"mean": kept.mean, "scale": level, "change": change, "batch_first": True}
    if readout is not None:
        sharp = readout.sharpness.detach().cpu().double()
        weight, bias = (part.detach().cpu().double() * sharp for part in (readout.weight.mT, readout.bias))
        mean, scale = (part.detach().cpu().double() for part in (readout.mean, readout.scale))
        fields |= {"readout": Readout(weight, bias, "summary", mean=mean, scale=scale), "answer": "numbers"}
    return Network((tuple(rows),), kept.input_size, _provenance((tuple(rows),)), **(fields | known))


def metadata(network: Network) -> dict[str, str]:
    """What a file says about itself, as text: lists are JSON.

    Example:
        >>> metadata(network_of(holdfast.GRU(3, 5)))["axes"]
        'time, batch'
    """
    made, shape = network.provenance, "batch, time" if network.batch_first else "time, batch"
    steps = "one per step" if network.every_step else "one per sequence"
    return {
        "made_by": made.sentence,
        "holdfast_version": made.version,
        "created": made.created,
        "cells": made.cells,
        "run": made.run,
        "weights": made.weights,
        "axes": shape,
        "answer": network.answer,
        "answers": steps,
        "columns": json.dumps(network.columns, ensure_ascii=False),
        "labels": json.dumps(network.labels, ensure_ascii=False),
        "targets": json.dumps(network.targets, ensure_ascii=False),
        "vocabulary": json.dumps(network.vocabulary, ensure_ascii=False),
    }


@torch.no_grad()
def check_cell(cell: Cell) -> None:
    """Refuse a drive that mixes steps, since a graph's step sees one alone, and weights that are drawn every time.

    Every exporter calls this for the cells of its rows.

    Example:
        >>> check_cell(holdfast.RNNCell(3, 5))
    """
    who, generator = type(cell).__name__, torch.Generator().manual_seed(0)
    xs = torch.randn(3, 2, cell.input_size, dtype=torch.float32, generator=generator)
    whole, steps = cell.drive(xs), torch.stack([cell.drive(x) for x in xs])
    if not (whole.shape == steps.shape and torch.allclose(whole, steps, rtol=1e-4, atol=1e-5, equal_nan=True)):
        raise UnsupportedError(
            f"An export expects {who}.drive to treat every step alike, got one whose result for a whole sequence is "
            "not that of its steps; move what depends on other steps into the state."
        )
    if not all(torch.equal(one, other) for one, other in zip(cell.weights(), cell.weights(), strict=True)):
        raise UnsupportedError(
            f"An export expects {who}.weights() to be the same in every call, got random ones; draw them in training "
            "only."
        )


def _of_model(
    rnn: Any,
    linear: nn.Linear,
    over: Literal["last", "every", "pooled"],
    embedding: nn.Embedding | None = None,
    direct: bool = False,
) -> Network:
    layers = _layers(rnn)
    readout = Readout(_plain(linear.weight), None if linear.bias is None else _plain(linear.bias), over, direct)
    table = None if embedding is None else _plain(embedding.weight)
    size = layers[0][0].cell.input_size if table is None else len(table)
    # time first whatever its layer says: that is how these models read
    return Network(layers, size, _provenance(layers), embedding=table, readout=readout, answer="numbers")


def _of_run(run: Run) -> Network:
    network = network_of(run.model)
    where = {"run": run.folder.resolve().name, "weights": run.which}
    fields: dict[str, Any] = {"provenance": dataclasses.replace(network.provenance, **where), "batch_first": True}
    if run.stored is None:
        spec = run.task.spec
        kinds: dict[str, Answer] = {"cross_entropy": "classes", "binary_cross_entropy": "binary", "mse": "numbers"}
        fields["vocabulary"] = () if run.task.vocabulary is None else run.task.vocabulary.tokens
        return dataclasses.replace(network, **fields, answer=kinds[spec.loss], labels=tuple(spec.classes))
    prepared = run.stored.preparation
    masked = len(prepared.masked)  # their ones and zeros are not standardised
    mean = torch.tensor([*prepared.mean, *[0.0] * masked], dtype=torch.float64)
    scale = torch.tensor([*prepared.std, *[1.0] * masked], dtype=torch.float64)
    if network.mean is not None and network.scale is not None and network.change is not None:
        fields["change"] = (network.change * scale).float()  # a reservoir standardises what is standardised already
        mean, scale = mean + network.mean * scale, scale * network.scale
    fields["mean"], fields["scale"] = mean.float(), scale.float()
    fields["columns"] = *prepared.columns.channels, *(f"{name} is missing" for name in prepared.masked)
    if prepared.classes:
        return dataclasses.replace(network, **fields, answer="classes", labels=prepared.classes)
    centre, spread, targets = prepared.target_mean, prepared.target_std, prepared.columns.target
    if prepared.kind == "next-step":
        count = len(prepared.columns.features)
        centre, spread, targets = prepared.mean[:count], prepared.std[:count], prepared.columns.channels[:count]
    fields["target_mean"] = torch.tensor(centre, dtype=torch.float32)
    fields["target_scale"] = torch.tensor(spread, dtype=torch.float32)
    return dataclasses.replace(network, **fields, targets=targets)


def _layers(layer: Any) -> tuple[tuple[Row, ...], ...]:
    if isinstance(layer, TreeLayer):
        raise UnsupportedError(
            f"An export expects cells whose step is the same for every sample, got {type(layer).__name__}, which "
            "chooses its operators anew at every step. Train a GRU or an LSTM, which are two of its trees."
        )
    if isinstance(layer, Truncated):
        raise UnsupportedError(
            "An export expects a recurrent model, got one that was truncated to a context. Export the model that was "
            "truncated (without cell.context): it differs by at most the bound that the truncation was chosen by."
        )
    if not isinstance(layer, Recurrent):
        raise UnsupportedError(
            "An export expects a Holdfast layer, cell, SequenceModel, Reservoir or run, or torch.nn.RNN, LSTM or GRU, "
            f"got {type(layer).__name__}."
        )
    kept = copy.deepcopy(layer).to("cpu", torch.float32).eval()
    with torch.no_grad():
        starts = kept.initial_state(1, torch.empty(0, dtype=torch.float32))  # entries (rows, 1, size)
    rows = [
        Row(cell, tuple(entry[index, 0].clone() for entry in starts), reverse=index % kept.directions == 1)
        for index, cell in enumerate(kept.cells)
    ]
    return tuple(tuple(rows[at : at + kept.directions]) for at in range(0, len(rows), kept.directions))


def _width(cell: Cell, summarised: bool) -> int:
    return sum(cell.state_sizes) if summarised else cell.state_sizes[0]


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().to("cpu", torch.float32).clone()


def _provenance(layers: tuple[tuple[Row, ...], ...]) -> Provenance:
    counts: dict[str, int] = {}
    for row in (row for layer in layers for row in layer):
        inner = row.cell.cell if isinstance(row.cell, PooledCell) else row.cell
        name = f"{type(inner).__name__}({inner.input_size}, {inner.hidden_size})"
        counts[name] = counts.get(name, 0) + 1
    cells = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Provenance(holdfast.__version__, now, cells)
