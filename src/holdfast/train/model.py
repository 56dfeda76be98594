"""The network that tasks are trained with: embedding, recurrent layer, readout.

e_t = E[x_t]  or  x_t                       (1) tokens become vectors
h_1 .. h_T = layer(e_1 .. e_T)              (2)
z = W h_T + b,  or z_t = W h_t + b          (3) one answer at the end, or one at every step

Every paper's experiments use this shape; only the layer differs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

import holdfast
from holdfast.cells import CheckedLoad
from holdfast.errors import SettingError, ShapeError
from holdfast.layers import Reservoir, TreeLSTM
from holdfast.rrnn import RRNN, RRNNGRU, TreeLoss, gru_target
from holdfast.stability import truncate
from holdfast.train.checkpoint import load
from holdfast.train.penalties import PENALTIES
from holdfast.train.settings import ModelSettings
from holdfast.train.stream import ModelStream
from holdfast.train.tree_model import TreeModel
from holdfast.train.whole import PooledModel, ReservoirModel
from holdfast.train.wide_readout import WIDE, Unread
from holdfast.types import State

__all__ = [
    "AUTOMATIC",
    "LAYERS",
    "RESERVOIR",
    "TREE_LSTM",
    "SequenceModel",
    "Start",
    "build",
    "made_options",
    "option_types",
]

LAYERS: dict[str, type[nn.Module]] = {
    "rnn": holdfast.RNN,
    "linear": holdfast.LinearRNN,
    "fastrnn": holdfast.FastRNN,
    "sgornn": holdfast.SGORNN,
    "vprnn": holdfast.VPRNN,
    "exprnn": holdfast.ExpRNN,
    "scornn": holdfast.ScoRNN,
    "urnn": holdfast.URNN,
    "eunn": holdfast.EUNN,
    "goru": holdfast.GORU,
    "lstm": holdfast.LSTM,
    "c-lstm": holdfast.CLSTM,
    "gru": holdfast.GRU,
    "indrnn": holdfast.IndRNN,
    "cornn": holdfast.CoRNN,
    "lem": holdfast.LEM,
    "antisymmetric": holdfast.AntisymmetricRNN,
    "fastgrnn": holdfast.FastGRNN,
    "mingru": holdfast.MinGRU,
    "minlstm": holdfast.MinLSTM,
    "rrnn": RRNN,
    "rrnn-gru": RRNNGRU,
}
"""Layers by the name that settings call them. A new one is one more entry."""

AUTOMATIC, RESERVOIR, TREE_LSTM = "auto", "reservoir", "tree-lstm"
"""Names that settings have besides: the choice between models, one that is fitted in closed form, one for trees."""


@dataclasses.dataclass(frozen=True)
class Start:
    """Where weights begin, instead of where their layer puts them; S2's experiments (§5) name both.

    Args:
        recurrent: of every ``weight_hh``: "identity", "orthogonal", or a number r: uniform in [-r, r]. Gate by gate.
        others: input weights, a trained embedding and the readout are uniform in [-others, others], and biases 0.
        embedding: a trained embedding is uniform in [-embedding, embedding] instead; Keras has 0.05.

    Example:
        >>> model = SequenceModel(holdfast.RNN(2, 3), nn.Linear(3, 1))
        >>> Start(recurrent="identity", others=0.01).apply_(model)
        >>> model.rnn.l0.weight_hh.trace().item(), model.readout.bias.item()
        (3.0, 0.0)
    """

    recurrent: str | float | None = None
    others: float | None = None
    embedding: float | None = None

    def __post_init__(self) -> None:
        words = self.recurrent in (None, "identity", "orthogonal")
        widths = all(width is None or _is_width(width) for width in (self.others, self.embedding))
        if not (words or _is_width(self.recurrent)) or not widths:
            raise SettingError(
                'start expects recurrent = "identity", "orthogonal" or a number, and others and embedding = a number, '
                f"all of at least 0; got {self.recurrent!r}, {self.others!r} and {self.embedding!r}."
            )

    @torch.no_grad()
    def apply_(self, model: SequenceModel) -> None:
        """Put the weights of ``model`` there, with numbers from PyTorch's global generator."""
        recurrent = [weight for name, weight in model.rnn.named_parameters() if name.endswith("weight_hh")]
        if self.recurrent is not None and not recurrent:
            raise SettingError(f"start has a recurrent entry, but {type(model.rnn).__name__} has no weight_hh.")
        for weight in recurrent:
            for gate in weight.split(weight.shape[1]):
                _start_recurrent(gate, self.recurrent)
        for name, weight in model.named_parameters():
            if self.others is None:
                break
            if weight.requires_grad and name.endswith(("weight_ih", "readout.weight", "embedding.weight")):
                nn.init.uniform_(weight, -self.others, self.others)
            elif name.rpartition(".")[2].startswith("bias"):
                nn.init.zeros_(weight)
        if self.embedding is not None and model.embedding is not None and model.embedding.weight.requires_grad:
            nn.init.uniform_(model.embedding.weight, -self.embedding, self.embedding)


def _start_recurrent(gate: Tensor, start: str | float | None) -> None:
    if start == "identity":
        nn.init.eye_(gate)
    elif start == "orthogonal":
        nn.init.orthogonal_(gate)
    elif start is not None:
        nn.init.uniform_(gate, -float(start), float(start))


def _is_width(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _tree_loss(
    tree: float = 0.0,
    margin: float = 0.0,
    ridge: float = 0.0,
    threshold: float = 1.0,
    target: str = "gru",
    forms: Literal["min", "mean", "given", "nodes"] | None = None,
    over_batch: Literal["mean", "sum"] = "mean",
    teacher: str | None = None,
) -> TreeLoss:
    """``TreeLoss``; with ``teacher``, the run of a GRU of reset = "before", its target goes along with that GRU."""
    if teacher is None:
        return TreeLoss(tree, margin, ridge, threshold, target, forms, over_batch)
    weights = load(Path(teacher) / "best.safetensors")["model"]
    own = {name.removeprefix("rnn.l0."): it for name, it in weights.items() if name.startswith("rnn.l0.")}
    if target != "gru" or set(own) != {"weight_ih", "weight_hh", "bias"}:
        raise SettingError(f'loss.teacher must be the run of a GRU with reset = "before", got {teacher}.')
    with torch.random.fork_rng(devices=[]):  # a model's own weights do not depend on whether it has a teacher
        cell = holdfast.GRUCell(own["weight_ih"].shape[1], own["weight_hh"].shape[1], reset="before")
    cell.load_state_dict(own)
    return TreeLoss(tree, margin, ridge, threshold, (gru_target(cell, "teacher"),), forms, over_batch)


_NESTED: dict[str, Callable[..., Any]] = {"gates": holdfast.ScalarGates, "start": Start, "loss": _tree_loss}
"""Options that are tables in a settings file and objects in code."""


class Spec(Protocol):
    """What ``build`` reads of a task's spec: ``holdfast.tasks.Spec`` is one."""

    @property
    def input_size(self) -> int: ...
    @property
    def output_size(self) -> int: ...
    @property
    def tokens(self) -> bool: ...
    @property
    def every_step(self) -> bool: ...


class SequenceModel(CheckedLoad):
    """(1) to (3) around any layer that looks like ``torch.nn.RNN`` with time first.

    Args:
        rnn: the layer.
        readout: from the layer's output to the answer.
        embedding: for inputs that are token indices.
        every_step: answer at every step instead of at each sequence's last.
        direct: the readout gets (h, e) instead of h.
        input_dropout, output_dropout: in training.
        norm_stabiliser, activation_regularisation, temporal_activation_regularisation: what the penalty of this name in
            ``holdfast.train`` is multiplied with before it is added to the loss, on the layer's output, in training.

    Shape:
        inputs (time, batch, features) or tokens (time, batch); lengths (batch,) or None. Returns the answers, (batch,
        outputs) or (time, batch, outputs), and the last state, which can be given to the next call. With
        ``unread=True``, the answers are an ``Unread``, for a loss over thousands of classes.

    Example:
        >>> model = SequenceModel(holdfast.SGORNN(2, 8), nn.Linear(8, 1))
        >>> answer, state = model(torch.zeros(5, 3, 2))
        >>> answer.shape
        torch.Size([3, 1])
    """

    def __init__(
        self,
        rnn: nn.Module,
        readout: nn.Linear,
        embedding: nn.Embedding | None = None,
        *,
        every_step: bool = False,
        direct: bool = False,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        norm_stabiliser: float = 0.0,
        activation_regularisation: float = 0.0,
        temporal_activation_regularisation: float = 0.0,
    ):
        super().__init__()
        factors = (norm_stabiliser, activation_regularisation, temporal_activation_regularisation)
        self.direct, self.penalties = direct, dict(zip(PENALTIES, factors, strict=True))
        self._noted: Tensor | None = None  # the penalty of the last call
        self.embedding, self.rnn, self.readout, self.every_step = embedding, rnn, readout, every_step
        self.input_dropout, self.output_dropout = nn.Dropout(input_dropout), nn.Dropout(output_dropout)

    @property
    def last_only(self) -> bool:
        return not self.every_step

    @property
    def wide(self) -> bool:
        """Whether the readout has so many classes that a loss should not write its answers out."""
        return self.readout.out_features >= WIDE

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        state: Tensor | State | None = None,
        *,
        unread: bool = False,
    ) -> tuple[Any, Tensor | State]:
        xs = inputs if self.embedding is None else self.embedding(inputs)  # (1)
        xs = self.input_dropout(xs)
        seen, padded = xs, lengths is not None and bool((lengths < len(xs)).any())
        if lengths is not None and padded:
            xs = nn.utils.rnn.pack_padded_sequence(xs, lengths.cpu(), enforce_sorted=False)
        noted = {name: factor for name, factor in self.penalties.items() if self.training and factor > 0}
        need = self.every_step or bool(noted)
        hs, last = self.rnn(xs, state, need_output=need)  # (2)
        if padded and need:
            hs = nn.utils.rnn.pad_packed_sequence(hs, total_length=len(inputs))[0]
        added = [factor * PENALTIES[name](hs, lengths) for name, factor in noted.items()]
        self._noted = torch.stack(added).sum() if added else None
        if not self.every_step:
            hs = self._last(last)
        if self.direct:
            if not self.every_step:
                ends = seen.new_full((seen.shape[1],), seen.shape[0], dtype=torch.long) if lengths is None else lengths
                seen = seen[ends - 1, torch.arange(seen.shape[1], device=seen.device)]
            hs = torch.cat((hs, seen), dim=-1)
        answers = Unread(self.output_dropout(hs), self.readout)
        return answers if unread else answers.written(), last  # (3)

    def stream(self, batch: int = 1) -> ModelStream:
        """The model as it is now, one input at a time: ``stream.step(x)``. See ``ModelStream``.

        Args:
            batch: how many sequences run in parallel.
        """
        return ModelStream(self, batch)

    def penalty(self) -> Tensor | None:
        """What is added to the loss of the last call: the penalties, or the parts of S1's loss (6); or None."""
        if self._noted is not None:
            noted, self._noted = self._noted, None
            return noted
        own = getattr(self.rnn, "penalty", None)
        value = None if own is None else own(self.readout.parameters())
        # an answer at every step has a mean over them as its loss, and (6) sums over them: so this is (6) / T
        return value / self.rnn.noted_steps if value is not None and self.every_step else value  # type: ignore[operator]

    def at_epoch(self, epoch: int) -> None:
        """Tell the layer which epoch begins, counted from 0, if it wants to know: S1's RRNN-GRU trains in phases."""
        if (tell := getattr(self.rnn, "at_epoch", None)) is not None:
            tell(epoch)

    def _last(self, state: Tensor | State) -> Tensor:
        """The last layer's last output: (batch, hidden), both directions side by side."""
        rows = state if isinstance(state, Tensor) else state[0]
        directions = getattr(self.rnn, "directions", 1)
        return torch.cat(tuple(rows[-directions:]), dim=-1)


def build(
    network: ModelSettings, spec: Spec, vectors: Tensor | None = None
) -> SequenceModel | PooledModel | ReservoirModel | TreeModel:
    """The model of these settings for a task, with weights drawn from PyTorch's global generator.

    Args:
        network: the settings.
        spec: what the task's inputs and answers are.
        vectors: (vocabulary, features) where an embedding starts, such as GloVe's.

    Example:
        >>> from holdfast.tasks import Addition
        >>> model = build(ModelSettings("sgornn", 128), Addition(steps=500).load().spec)
        >>> sum(weight.numel() for weight in model.parameters())
        1411
    """
    options = made_options(network)
    if network.name == AUTOMATIC:
        raise SettingError('"auto" is a choice between models, not a layer; name a layer to build.')
    if network.name == RESERVOIR or network.pooled:
        _check_whole(network, spec)
    if network.name == RESERVOIR:
        return ReservoirModel(Reservoir(spec.input_size, units=network.hidden_size, **options), spec.output_size)
    _check_trees(network, spec)
    embedding = _embedding(network, spec, vectors)
    if network.name == TREE_LSTM:
        assert embedding is not None  # trees are of tokens
        tree = TreeLSTM(embedding.embedding_dim, network.hidden_size, **options)
        readout, dropouts = nn.Linear(network.hidden_size, spec.output_size), _dropouts(network)
        return TreeModel(tree, readout, embedding, spec.node, **dropouts)  # type: ignore[attr-defined]
    features = spec.input_size if embedding is None else embedding.embedding_dim
    start = network.initial_state
    weights_start = options.pop("start", None)
    rnn = LAYERS[network.name](
        features,
        network.hidden_size,
        network.layers,
        bidirectional=network.bidirectional,
        dropout=network.dropout,
        initial_state=start if isinstance(start, str) else holdfast.RandomStart(start),
        **options,
    )
    if network.context is not None:
        rnn = truncate(rnn, network.context)  # pyright: ignore[reportArgumentType]
    width = network.hidden_size * (2 if network.bidirectional else 1) + network.direct * features
    dropouts = _dropouts(network)
    if network.pooled:
        pooled = PooledModel(rnn, width, spec.output_size, **dropouts)
        if weights_start is not None:
            raise SettingError("start is for a readout of the last state; leave out pooled or start.")
        return pooled
    readout = nn.Linear(width, spec.output_size)
    if network.tied:
        if embedding is None or (spec.output_size, width) != tuple(embedding.weight.shape):
            raise SettingError("tied = true needs an embedding of as many tokens as classes, as wide as the layer.")
        readout.weight = embedding.weight
    model = SequenceModel(
        rnn,
        readout,
        embedding,
        every_step=spec.every_step,
        direct=network.direct,
        **dropouts,
        **{name: getattr(network, name) for name in PENALTIES},
    )
    if weights_start is not None:
        for name in ("others", "embedding"):
            if vectors is not None and getattr(weights_start, name) is not None:
                raise SettingError(f"start.{name} would overwrite the embedding's vectors; leave one of the two out.")
        weights_start.apply_(model)
    return model


def _dropouts(network: ModelSettings) -> dict[str, float]:
    return {"input_dropout": network.input_dropout, "output_dropout": network.output_dropout}


def _check_whole(network: ModelSettings, spec: Spec) -> None:
    """What a model of a whole sequence cannot be combined with."""
    what = "a reservoir" if network.name == RESERVOIR else "pooled = true"
    if spec.every_step or spec.tokens:
        found = "an answer at every step" if spec.every_step else "tokens"
        raise SettingError(f"{what} gives one answer per sequence of numbers; this task has {found}.")
    used = [name for name in ("direct", "tied", "context", *PENALTIES) if getattr(network, name)]
    if used:
        raise SettingError(f"{what} reads all states of a sequence; leave out {used[0]}.")


def _check_trees(network: ModelSettings, spec: Spec) -> None:
    """Trees and the layer for them go together; what a tree has no place for is left at its default."""
    if (network.name == TREE_LSTM) != (getattr(spec, "node", None) is not None):
        if network.name == TREE_LSTM:
            raise SettingError('"tree-lstm" reads trees; take the task "sst" with trees = true, or another cell.')
        raise SettingError(f'{network.name} reads sequences, not trees; take "tree-lstm", or set trees = false.')
    if network.name == TREE_LSTM:
        default = ModelSettings()
        fixed = (
            "layers",
            "bidirectional",
            "dropout",
            "initial_state",
            "pooled",
            "direct",
            "tied",
            "context",
            *PENALTIES,
        )
        if used := [name for name in fixed if getattr(network, name) != getattr(default, name)]:
            raise SettingError(f'"tree-lstm" has one layer and reads the root; leave out {used[0]}.')


def _embedding(network: ModelSettings, spec: Spec, vectors: Tensor | None) -> nn.Embedding | None:
    if not spec.tokens:
        return None
    if network.embedding == "one-hot":
        return nn.Embedding.from_pretrained(torch.eye(spec.input_size), freeze=True)
    if vectors is None and not network.frozen:
        return nn.Embedding(spec.input_size, network.embedding or network.hidden_size)
    if vectors is None:
        vectors = torch.randn(spec.input_size, network.embedding or network.hidden_size)
    if len(vectors) != spec.input_size or network.embedding not in (None, vectors.shape[1]):
        raise ShapeError(
            f"The embedding expects vectors of shape ({spec.input_size}, {network.embedding or 'any'}), "
            f"got {tuple(vectors.shape)}."
        )
    vectors = vectors.to(torch.get_default_dtype())
    if network.frozen:
        std, mean = torch.std_mean(vectors, dim=0, correction=0)
        vectors = (vectors - mean) / torch.where(std > 0, std, 1.0)
    return nn.Embedding.from_pretrained(vectors, freeze=network.frozen)


def option_types(name: str) -> dict[str, Any]:
    """What ``cell.options`` may hold for a layer: the annotated types of its cell's own arguments, by name.

    Example:
        >>> option_types("lstm")["bias"]
        <class 'bool'>
    """
    if name == AUTOMATIC:
        return {"minutes": float, "cells": tuple[str, ...], "units": int | None}
    if name == TREE_LSTM:
        return {"arity": int | None}
    layer = Reservoir if name == RESERVOIR else LAYERS[name]
    taken = {"self", "input_size", "hidden_size", "num_layers", "bidirectional", "dropout", "initial_state"}
    own = inspect.signature(getattr(layer, "cell_type", layer), eval_str=True).parameters.values()
    if name == RESERVOIR:
        return {one.name: one.annotation for one in own if one.name not in ("input_size", "units")}
    types = {one.name: one.annotation for one in own if one.name not in taken}
    return {**types, "backend": str, "start": Start}


def made_options(network: ModelSettings) -> dict[str, Any]:
    """The cell's own options, checked against its signature, with tables made into the objects they describe.

    Example:
        >>> made_options(ModelSettings("rnn", options={"start": {"recurrent": "identity"}}))
        {'start': Start(recurrent='identity', others=None, embedding=None)}
    """
    names = (*sorted(LAYERS), RESERVOIR, TREE_LSTM, AUTOMATIC)
    if network.name not in names:
        raise SettingError(f"unknown cell {network.name!r}; known: {', '.join(names)}.")
    known = sorted(option_types(network.name))
    for name in network.options:
        if name not in known:
            raise SettingError(f"{network.name} has no option {name!r}; known: {', '.join(known)}.")
    options = dict(network.options)
    for name, made in _NESTED.items():
        if isinstance(table := options.get(name), bool | int | float | str | list):
            raise SettingError(f"{name} must be a table, got {table!r}.")
        if isinstance(table, dict):
            fields = inspect.signature(made).parameters
            if unknown := [field for field in table if field not in fields]:
                raise SettingError(f"{name} has no option {unknown[0]!r}; known: {', '.join(fields)}.")
            try:
                options[name] = made(**table)
            except TypeError as error:
                raise SettingError(f"{name} cannot be made from {table}: {error}.") from None
    return options
