"""A reservoir: random, untrained SGORNN cells whose states are summarised over time.

    u_t = ((x_t - m) / s, (x_t - x_{t-1}) / d)                      (1) the standardised series and its differences
    h_t = α φ(W u_t + U h_{t-1} + b) + β h_{t-1}                     (2) SGORNN, S3 (1), with α = 1/H, β = 1 - 2/H
    f = (1/T Σ h_t,  h_T,  max_t h_t,  1/T Σ 1[h_t > q_k])           (3) features of every unit

W is Gaussian, b uniform in ±1, U a product of plane rotations by uniform angles, and the horizon H is 3, 6, 12 or 24.
q_k are quantiles of a unit's states on the training set. By (2) α + β ≤ 1 - α, so every cell is contractive, whatever
was drawn. The sums of (3) are part of a cell's state: they are taken inside the loop over time, and no state but the
last is kept.

The idea is known as reservoir computing (Jaeger, 2001; Maass et al., 2002); shares above a threshold are the pooling of
ROCKET (Dempster et al., 2020).
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import Cell, SGORNNCell
from holdfast.cells._base import CheckedLoad
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import RotationProduct
from holdfast.engine import scan
from holdfast.errors import DTypeError, SettingError, ShapeError, positive_number, positive_size
from holdfast.linalg.givens import default_sublayers, random_permutations
from holdfast.types import State, Weights

__all__ = ["PooledCell", "Reservoir"]

HORIZONS = (3, 6, 12, 24)
MAX_ROWS = 4096  # states of a unit that its quantiles are taken from: a standard error of 0.8 points of rank
BLOCK = 2**22  # numbers of the input of one scan

# Note [One compiled loop]
# A scan compiles a loop for each cell object, in half a second, and permutations are part of it. So all reservoirs of
# one size share their permutations, and cells of one nonlinearity borrow the loop of one worker, into which their
# weights are copied. The lock keeps another thread from copying its own while the loop runs.
MAX_WORKERS = 16
_WORKERS: dict[Any, PooledCell] = {}
_LOCK = threading.Lock()


class PooledCell(Cell):
    """A cell of one state that carries its summary (3) along: h, Σ h, max h, and how often h was above each q_k.

    Args:
        cell: the cell to summarise, whose state is one tensor.
        thresholds: k, how many q_k; all 0 until they are set.

    Example:
        >>> cell = PooledCell(SGORNNCell(2, 4), thresholds=1)
        >>> _, state = scan(cell, torch.randn(7, 3, 2))
        >>> cell.features(state, torch.tensor([7, 7, 7])).shape  # mean, last, maximum and one share of 4 units
        torch.Size([3, 16])
    """

    thresholds: Tensor

    def __init__(self, cell: Cell, thresholds: int):
        super().__init__(cell.input_size, cell.hidden_size)
        self.cell = cell
        self.register_buffer("thresholds", torch.zeros(thresholds, cell.hidden_size))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) * (3 + len(self.thresholds))

    def initial_state(self, batch: int) -> State:
        h, total, highest, *above = super().initial_state(batch)
        return h, total, highest - torch.finfo(h.dtype).max, *above

    def drive(self, x: Tensor) -> Tensor:
        return self.cell.drive(x)

    def weights(self) -> Weights:
        return *self.thresholds.unbind(), *self.cell.weights()

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        (h, total, highest, *above), count = state, len(state) - 3
        (h,) = self.cell.step(drive, (h,), weights[count:])
        shares = (seen + (h > q).to(h.dtype) for seen, q in zip(above, weights[:count], strict=True))
        return h, total + h, torch.maximum(highest, h), *shares

    def features(self, state: State, lengths: Tensor) -> Tensor:
        """(3) of the last state, (batch, hidden · (3 + k)), after ``lengths`` steps."""
        (h, total, highest, *above), steps = state, lengths[:, None].to(state[0].dtype)
        return torch.cat([total / steps, h, highest, *(seen / steps for seen in above)], dim=1)


class Reservoir(CheckedLoad):
    """(1) to (3): features of sequences from random cells, for any classifier or regressor.

    ``fit`` takes m, s, d and the q_k from training sequences; nothing else is learned. Without it, series are taken as
    standardised and all q_k are 0. The same seed gives the same cells; all of them are in the ``state_dict``.

    Law: every cell is contractive, with a rate of at most 1 - 1/H. The features of a sequence do not depend on the
    others in its batch, nor on padding behind its length.

    Args:
        input_size: channels of the series.
        steps: their (largest) length.
        units: hidden units of each cell, even.
        horizons: H of (2), each above 2; default 3, 6, 12 and 24, as far as ``steps`` allows. More than these rarely
            help, since the summary (3) spans the whole sequence: docs/sequences.md.
        nonlinearities, scales: φ, and the standard deviation of W u for standardised u. There is one cell for each
            combination of horizon, nonlinearity and scale.
        quantiles: ranks of the q_k, each between 0 and 1.
        bidirectional: let every second cell read from the last step to the first.
        seed: of the random weights.

    Shape:
        (batch, time, input_size), and optionally lengths (batch,), to (batch, ``features``).

    Example:
        >>> x = torch.randn(20, 50, 3)
        >>> reservoir = Reservoir(3, steps=50, units=16, seed=1).fit(x)
        >>> reservoir(x).shape, reservoir.features
        (torch.Size([20, 3072]), 3072)

    References:
        SGORNN: Combining scalar gates and orthogonal constraints in recurrent networks.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        input_size: int,
        steps: int,
        *,
        units: int = 128,
        horizons: Sequence[int] | None = None,
        nonlinearities: Sequence[str] = ("tanh", "relu"),
        scales: Sequence[float] = (0.5, 2.0),
        quantiles: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        bidirectional: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        self.input_size = positive_size("Reservoir", "input_size", input_size)
        self.steps = positive_size("Reservoir", "steps", steps)
        self.units = positive_size("Reservoir", "units", units)
        short = tuple(one for one in HORIZONS if one <= max(steps, HORIZONS[0]))
        self.horizons = short if horizons is None else tuple(horizons)
        self.nonlinearities, self.scales, self.quantiles = tuple(nonlinearities), tuple(scales), tuple(quantiles)
        if not all(0 < rank < 1 for rank in self.quantiles):
            raise SettingError(f"Reservoir expects quantiles between 0 and 1, got {self.quantiles}.")
        self.bidirectional, self.seed = bidirectional, seed
        generator = torch.Generator().manual_seed(seed)
        kinds = [(H, phi, scale) for H in self.horizons for phi in self.nonlinearities for scale in self.scales]
        if not kinds:
            raise SettingError("Reservoir expects at least one horizon, one nonlinearity and one scale.")
        turns = random_permutations(default_sublayers(units), units, torch.Generator().manual_seed(0))
        self.cells = nn.ModuleList(self._cell(*kind, turns, generator) for kind in kinds)
        self.register_buffer("mean", torch.zeros(input_size))
        self.register_buffer("scale", torch.ones(2 * input_size))
        self.requires_grad_(False)

    def _cell(
        self, horizon: int, nonlinearity: str, scale: float, turns: Tensor, generator: torch.Generator
    ) -> PooledCell:
        """A cell of (2). Numbers are drawn in float64, so that every number type has the same ones."""
        gates = ScalarGates(clip="2alpha", horizon=horizon)
        cell = SGORNNCell(2 * self.input_size, self.units, nonlinearity=nonlinearity, gates=gates)
        with torch.no_grad():
            draw = torch.empty(self.units, 2 * self.input_size, dtype=torch.float64)
            width = positive_number("Reservoir", "scales", scale) / math.sqrt(2 * self.input_size)
            cell.weight_ih.copy_(draw.normal_(generator=generator) * width)
            cell.bias.copy_(draw.new_empty(self.units).uniform_(-1, 1, generator=generator))  # type: ignore[union-attr]
            assert isinstance(cell.recurrent, RotationProduct)
            angles = cell.recurrent.angles
            angles.copy_(draw.new_empty(angles.shape).uniform_(-math.pi, math.pi, generator=generator))
            cell.recurrent.permutations.copy_(turns)
        return PooledCell(cell, len(self.quantiles))

    @property
    def features(self) -> int:
        """How many numbers describe a sequence."""
        return len(self.cells) * self.units * (3 + len(self.quantiles))

    @torch.no_grad()
    def fit(self, x: Tensor, lengths: Tensor | None = None) -> Reservoir:
        """Take m, s and d of (1) and the q_k of (3) from training sequences; deterministic, returns itself."""
        lengths = self._checked(x, lengths)
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        later = inside.clone()
        later[:, 0] = False
        self.mean.copy_(x[inside].mean(dim=0))
        differences = x.diff(dim=1, prepend=x[:, :1])[later]
        level = x[inside].std(dim=0, correction=0)
        change = differences.square().mean(dim=0).sqrt() if len(differences) else torch.zeros_like(level)
        spread = torch.cat([level, change])
        self.scale.copy_(torch.where(spread > 1e-6 * spread.max(), spread, torch.ones_like(spread)))
        few = torch.arange(0, len(x), -(-len(x) * x.shape[1] // (4 * MAX_ROWS)))  # evenly spaced sequences
        u, some, inside = self._inputs(x[few], lengths[few]), lengths[few], inside[few].mT
        rows = torch.randperm(int(inside.sum()), generator=torch.Generator().manual_seed(self.seed))[:MAX_ROWS]
        ranks = torch.tensor(self.quantiles, dtype=x.dtype, device=x.device)
        for index, cell in enumerate(self.cells):
            states = self._run(index, u, some, pooled=False)[0][inside][rows]  # type: ignore[index]
            cell.thresholds.copy_(torch.quantile(states, ranks, dim=0))  # type: ignore[operator]
        return self

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return torch.cat(list(self.blocks(x, lengths)), dim=1)

    @torch.no_grad()
    def blocks(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Tensor]:
        """The features cell by cell, (batch, units · (3 + k)) each, when all of them at once are too many."""
        lengths = self._checked(x, lengths)
        rows = max(1, BLOCK // (x.shape[1] * 2 * x.shape[2]))
        parts = list(zip(x.split(rows), lengths.split(rows), strict=True))
        for index, cell in enumerate(self.cells):
            done = []
            for some, length in parts:
                _, state = self._run(index, self._inputs(some, length), length, pooled=True)
                done.append(cell.features(state, length))  # type: ignore[operator]
            yield torch.cat(done)

    @torch.no_grad()
    def states(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """h_t of every cell at every step, (batch, time, cells · units); zeros behind a sequence's length."""
        lengths = self._checked(x, lengths)
        u = self._inputs(x, lengths)
        outputs = [self._run(index, u, lengths, pooled=False)[0] for index in range(len(self.cells))]
        return torch.cat(outputs, dim=2).transpose(0, 1)  # type: ignore[arg-type]

    def _run(self, index: int, u: Tensor, lengths: Tensor, *, pooled: bool) -> tuple[Tensor | None, State]:
        """A scan of one cell, with its summary or with its states. See Note [One compiled loop]."""
        cell, reverse = self.cells[index], self.bidirectional and index % 2 == 1
        assert isinstance(cell, PooledCell)
        phi = self.nonlinearities[index // len(self.scales) % len(self.nonlinearities)]
        tensors = cell.state_dict()
        turns = tensors["cell.recurrent.permutations"].cpu().numpy().tobytes()
        key = phi, tuple(cell.thresholds.shape), tuple(cell.cell.weight_ih.shape), u.dtype, u.device, turns  # type: ignore[union-attr]
        with _LOCK:
            worker = _WORKERS.pop(key, None) or copy.deepcopy(cell)
            _WORKERS[key] = worker
            if len(_WORKERS) > MAX_WORKERS:
                del _WORKERS[next(iter(_WORKERS))]
            for name, tensor in worker.state_dict().items():
                tensor.copy_(tensors[name])
            run = worker if pooled else worker.cell
            return scan(run, u, lengths=lengths, reverse=reverse, need_output=not pooled)

    def _inputs(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(1), time first; numbers behind a sequence's length are never read."""
        level, change = self.scale.split(self.input_size)
        u = torch.cat([(x - self.mean) / level, x.diff(dim=1, prepend=x[:, :1]) / change], dim=2)
        return u.transpose(0, 1).contiguous()  # (time, batch, 2 input)

    def _checked(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if not isinstance(x, Tensor) or x.dtype != self.mean.dtype:
            found = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise DTypeError(f"Reservoir expects a tensor of {self.mean.dtype}, got {found}.")
        if x.dim() != 3 or x.shape[2] != self.input_size or 0 in x.shape:
            raise ShapeError(f"Reservoir expects x of shape (batch, time, {self.input_size}), got {tuple(x.shape)}.")
        if lengths is None:
            return torch.full((len(x),), x.shape[1], device=x.device)
        if lengths.shape != x.shape[:1] or lengths.min() < 1 or lengths.max() > x.shape[1]:
            raise ShapeError(f"Reservoir expects {len(x)} lengths of 1 to {x.shape[1]} steps, got {lengths}.")
        return lengths

    def extra_repr(self) -> str:
        return f"{self.input_size}, steps={self.steps}, units={self.units}, features={self.features}"
