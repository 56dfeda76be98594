"""Birds in field recordings: four convolutions, two GRU layers, and where the GRU starts. S5, §6 and Table 2.

    features (time, 40) → 4 × [convolution 5 × 5, 96 maps; normalise; ReLU; maximum over 5, 2, 2, 2 bands]     (1)
    → (time, 96) → GRU, 2 layers of 256 → the last state → 2 classes                                           (2)

    AUC = P(score of a clip with a bird > score of one without), ties counted half                             (3)

Source of (1): Cakir et al. (2017), §3, which S5 names; 96 is S5's D of what enters the GRU.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holdfast
from holdfast.errors import ConfigError
from holdfast.runs.measured import Measured, measured_run
from holdfast.runs.prepare import count
from holdfast.runs.settings import run_settings
from holdfast.studies.procedures import procedure
from holdfast.train.checkpoint import load_model_, seed_all
from holdfast.train.loop import fit, predict
from holdfast.types import State

__all__ = ["BirdNetwork", "auc", "bird_audio"]


class BirdNetwork(nn.Module):
    """(1) and (2), called as the training loop calls a model.

    Args:
        bands: of the features, a multiple of 40 for the poolings to leave one.
        hidden_size, layers: of the GRU.
        initial_state: where it starts.
        maps, dropout: of each convolution.

    Example:
        >>> model = BirdNetwork(40, hidden_size=8, maps=4).eval()
        >>> answers, _ = model(torch.zeros(20, 3, 40))
        >>> answers.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        bands: int,
        hidden_size: int = 256,
        layers: int = 2,
        *,
        initial_state: str | holdfast.RandomStart = "zeros",
        maps: int = 96,
        dropout: float = 0.25,
    ):
        super().__init__()
        blocks: list[nn.Module] = []
        for index, pool in enumerate((5, 2, 2, 2)):
            blocks += [
                nn.Conv2d(maps if index else 1, maps, 5, padding=2),
                nn.BatchNorm2d(maps),
                nn.ReLU(),
                nn.MaxPool2d((1, pool)),
                nn.Dropout(dropout),
            ]
        self.convolutions = nn.Sequential(*blocks)
        left = bands // 40
        if left < 1:
            raise ConfigError(f"BirdNetwork needs at least 40 bands, which it pools into one; got {bands}.")
        self.rnn = holdfast.GRU(maps * left, hidden_size, layers, initial_state=initial_state)
        self.readout = nn.Linear(hidden_size, 2)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, state: Tensor | State | None = None
    ) -> tuple[Tensor, Tensor | State]:
        maps = self.convolutions(inputs.transpose(0, 1).unsqueeze(1))  # (batch, maps, time, bands left)
        features = maps.permute(2, 0, 1, 3).flatten(2)  # (time, batch, maps · bands left)
        _, last = self.rnn(features, state, need_output=False)
        return self.readout(last[-1]), last


def auc(scores: Tensor, classes: Tensor) -> float | None:
    """(3), or None if a class is missing.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    bird, none = scores[classes == 1].double(), scores[classes == 0].double()
    if not len(bird) or not len(none):
        return None
    order = none.sort().values
    below = torch.searchsorted(order, bird) + torch.searchsorted(order, bird, right=True)
    return below.double().sum().item() / (2 * len(bird) * len(none))


@procedure("bird-audio", {"maps": 96, "dropout": 0.25})
def bird_audio(table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str) -> Measured:
    """Train (1) and (2) with the ``cell`` table's size, layers and initial state; the number is "test.auc", (3).

    Args:
        options: ``maps`` and ``dropout`` of the convolutions.

    Example:
        >>> from holdfast.studies import PROCEDURES
        >>> PROCEDURES["bird-audio"] is bird_audio  # studies/s5/bird.toml calls it by this name
        True
    """
    settings = run_settings(table, label)
    network, task = settings.network, settings.task.load()
    if network.name != "gru":
        raise ConfigError(f"{label}: bird-audio needs cell.name = 'gru', got {network.name!r}.")
    start = network.initial_state
    seed_all(settings.training.seed)
    model = BirdNetwork(
        task.spec.input_size,
        network.hidden_size,
        network.layers,
        initial_state=start if isinstance(start, str) else holdfast.RandomStart(start),
        **options,
    )
    found = measured_run(folder, lambda: fit(model, task, settings.training, folder, progress=progress, label=label))
    numbers: dict[str, float | None] = {}
    if (folder / "best.safetensors").is_file():
        load_model_(model, folder / "best.safetensors")
        batches = list(task.evaluation("test", settings.training.batch))
        answers = torch.cat(list(predict(model, batches)))
        classes = torch.cat([batch.targets for batch in batches])
        numbers["test.auc"] = auc(answers[:, 1] - answers[:, 0], classes)
    return dataclasses.replace(
        found,
        best=found.best | numbers,
        last={} if found.status == "diverged" else numbers,
        cell_parameters=count(model.rnn),
    )
