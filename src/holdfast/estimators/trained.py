"""Trained cells: a recurrent layer, pooled over time, and the shortest training loop that needs no tuning.

    f = (1/T Σ h_t,  h_T,  max_t h_t)                               (1) of both directions; then a linear readout
    η(p) = η min(p / w, 1) · (1 + cos π p) / 2,  w = 0.1            (2) warm-up and cosine over the share p that is done
    η = η* / 3,  η* where the loss of a rising rate was least        (3) range test: Smith (2017), §3

p is the larger of updates done and time used, so the rate always reaches 0 by the end of the budget.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.train import LAYERS

__all__ = ["TRAINED", "PooledModel", "fit_trained"]

TRAINED = tuple(name for name in LAYERS if name not in ("rrnn", "rrnn-gru"))
"""Layers that ``fit_trained`` takes, by name."""

RISE = 40  # updates of the range test
LOWEST, HIGHEST = 1e-4, 1e-1


class PooledModel(nn.Module):
    """A bidirectional layer over (batch, time, channels), its outputs pooled by (1), and a linear readout.

    Example:
        >>> PooledModel("sgornn", 3, 8, outputs=2)(torch.randn(5, 20, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, layer: str, input_size: int, hidden_size: int, outputs: int):
        super().__init__()
        self.made = {"layer": layer, "input_size": input_size, "hidden_size": hidden_size, "outputs": outputs}
        self.rnn = LAYERS[layer](input_size, hidden_size, bidirectional=True)
        self.dropout, self.readout = nn.Dropout(0.1), nn.Linear(6 * hidden_size, outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, last = self.rnn(packed)
        hs = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0]
        outside = (torch.arange(hs.shape[1]) >= lengths[:, None])[..., None]
        last = last if isinstance(last, Tensor) else last[0]
        mean, highest = hs.sum(dim=1) / lengths[:, None], hs.masked_fill(outside, -torch.inf).amax(dim=1)
        return self.readout(self.dropout(torch.cat([mean, last[0], last[1], highest], dim=1)))  # (1)

    def settings(self) -> dict[str, Any]:
        """What builds this model again, before its ``state_dict`` is loaded."""
        return dict(self.made)

    @staticmethod
    def of(settings: dict[str, Any]) -> PooledModel:
        """The model of these ``settings()``, not yet trained."""
        return PooledModel(**settings)


def fit_trained(
    layer: str,
    x: Tensor,
    lengths: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    seconds: float = math.inf,
    updates: int = 600,
    hidden_size: int = 64,
    seed: int = 0,
) -> PooledModel:
    """A layer of this name, trained on all of these sequences for a number of updates, or of seconds if they end first.

    Arguments as in ``fit_reservoir``. Without a limit in seconds the result depends on the seed alone.

    Example:
        >>> x, y = torch.randn(20, 9, 1), torch.arange(20) % 2
        >>> model = fit_trained("gru", x, torch.full((20,), 9), y, classes=2, updates=2, hidden_size=4)
        >>> model(x).shape
        torch.Size([20, 2])
    """
    began, generator = time.monotonic(), torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = classes or y.shape[1]
        model = PooledModel(layer, x.shape[2], hidden_size, outputs).to(x.dtype)
        draw = _batches(len(x), min(64, max(8, len(x) // 8)), generator)

        def update(network: PooledModel, optimiser: torch.optim.Optimizer, rate: float) -> float:
            rows = next(draw)
            z = network(x[rows, : int(lengths[rows].max())], lengths[rows])
            loss = nn.functional.mse_loss(z, y[rows]) if classes is None else nn.functional.cross_entropy(z, y[rows])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            return loss.item()

        rate = _range_test(copy.deepcopy(model), update, updates)
        optimiser = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
        for index in range(updates):
            done = max((index + 1) / updates, (time.monotonic() - began) / seconds)
            if done > 1:
                break
            update(model, optimiser, rate * min(done / 0.1, 1) * (1 + math.cos(math.pi * done)) / 2)  # (2)
    return model.eval()


def _range_test(model: PooledModel, update: Any, updates: int) -> float:
    """η of (3), from a copy of the model; losses are smoothed over a few updates."""
    optimiser, smooth, best, at = torch.optim.AdamW(model.parameters(), weight_decay=1e-3), None, math.inf, LOWEST
    for k in range(rise := min(RISE, updates)):
        rate = LOWEST * (HIGHEST / LOWEST) ** (k / rise)
        loss = update(model, optimiser, rate)
        if not math.isfinite(loss):
            break
        smooth = loss if smooth is None else 0.7 * smooth + 0.3 * loss
        if smooth < best:
            best, at = smooth, rate
        if smooth > 4 * best:
            break
    return max(at / 3, LOWEST)


def _batches(n: int, size: int, generator: torch.Generator) -> Any:
    while True:
        yield from torch.randperm(n, generator=generator).split(size)
