"""Bird Audio Detection: is there a bird in ten seconds of field recording?

    s(τ, f) = |Σ_n w(n) x(n + τ hop) e^{-2πi f n / N}|²           (1) Hamming windows that overlap by half
    y(τ, m) = log(Σ_f M(m, f) s(τ, f) + 1e-10)                   (2) 40 triangular bands, evenly spaced in mel

    mel(f) = 2595 log₁₀(1 + f / 700)                             (3)

Source: S5, appendix B and C; the network that follows is that of Cakir et al. (2017). Data: freefield1010 (Stowell &
Plumbley, 2014): about 7,000 clips of 10 s at 44.1 kHz, and a table ``itemid,hasbird``. Download the files yourself
from the Bird Audio Detection Challenge.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.tasks._base import Arrays, Sequences, Spec, Task

__all__ = ["BirdAudio", "log_mel", "mel_filters"]

_HOW = (
    "Download the clips of ff1010bird and their table of labels from the Bird Audio Detection Challenge. Put the clips "
    "into a folder wav/ beside the table, and pass folder=, or move both to HOLDFAST_DATA/bird."
)


@dataclasses.dataclass(frozen=True)
class BirdAudio:
    """Clips as log mel-band energies (2), each with the class bird or none.

    Clips are shuffled once, by ``seed``, and cut into training, validation and test sets by ``parts``. Features are
    standardised, band by band, by the training set.

    Args:
        folder: holds a table ``*.csv`` with the columns itemid and hasbird, and ``wav/<itemid>.wav`` or
            ``<itemid>.wav``. Default: ``HOLDFAST_DATA/bird``.
        window: seconds of a window in (1). S5 prints 40 ms, which gives 499 steps in ten seconds, and T = 999, which
            follows from 20 ms.
        bands: mel bands.
        seconds: length of a clip; shorter ones are padded with silence.
        parts: shares of the clips to train and to validate on; the rest is the test set.
        seed: of the shuffle.
        limit: use only this many clips.

    Example:
        >>> BirdAudio(window=0.04).frames(44_100), BirdAudio(window=0.02).frames(44_100)
        (499, 999)
    """

    folder: str | Path | None = None
    window: float = 0.04
    bands: int = 40
    seconds: float = 10.0
    parts: tuple[float, ...] = (0.6, 0.2)
    seed: int = 0
    limit: int | None = None

    def frames(self, rate: int) -> int:
        """T: whole windows in a clip at this many samples per second."""
        size = round(self.window * rate)
        return (round(self.seconds * rate) - size) // (size // 2) + 1

    def load(self) -> Task:
        if not 0 < self.window < self.seconds or self.bands < 1:
            raise SettingError(f"BirdAudio expects 0 < window < seconds and bands of at least 1, got {self}.")
        if len(self.parts) != 2 or not all(0 < part < 1 for part in self.parts) or not sum(self.parts) < 1:
            raise SettingError(f"BirdAudio expects two parts above 0 with a sum below 1, got {self.parts}.")
        folder = self._folder()
        labels = _labels(folder)
        names = sorted(labels)
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(self.seed))[: self.limit]
        if len(order) < 5:
            raise DataError(f"BirdAudio expects at least 5 clips, got {len(order)} of the {len(names)} in {folder}.")
        chosen = [names[index] for index in order]
        features = torch.stack([self._features(_clip(folder, name)) for name in chosen])  # (clips, time, bands)
        classes = torch.tensor([labels[name] for name in chosen])
        train, validation = (max(1, round(part * len(chosen))) for part in self.parts)
        mean = features[:train].mean((0, 1))
        spread = features[:train].std((0, 1)).clamp(min=1e-6)
        features = (features - mean) / spread
        cuts = {"train": slice(0, train), "validation": slice(train, train + validation)}
        cuts["test"] = slice(train + validation, None)
        splits = {name: Sequences(features[cut], classes[cut]) for name, cut in cuts.items()}
        most = float(splits["test"].targets.bincount().max()) / len(splits["test"])
        spec = Spec(self.bands, 2, "cross_entropy", "accuracy", classes=("none", "bird"), baseline=most)
        return Arrays(spec, splits)

    def _folder(self) -> Path:
        base = os.environ.get("HOLDFAST_DATA")
        folder = Path(self.folder) if self.folder is not None else Path(base, "bird") if base else None
        if folder is None or not folder.is_dir():
            where = "HOLDFAST_DATA is not set" if folder is None else f"{folder} is not a folder"
            raise DataError(f"BirdAudio found no clips: {where}. {_HOW}")
        return folder

    def _features(self, clip: tuple[np.ndarray, int]) -> Tensor:
        samples, rate = clip
        wanted = round(self.seconds * rate)
        samples = np.pad(samples[:wanted], (0, max(0, wanted - len(samples))))
        return log_mel(samples, rate, window=self.window, bands=self.bands).to(torch.get_default_dtype())


def log_mel(samples: np.ndarray, rate: int, *, window: float = 0.04, bands: int = 40) -> Tensor:
    """(2) of a signal: (time, bands).

    Args:
        samples: numbers in [-1, 1].
        rate: samples per second.
        window: seconds of a window.
        bands: mel bands up to half the rate.

    Example:
        >>> time = np.arange(44_100) / 44_100
        >>> features = log_mel(np.sin(2 * np.pi * 3000 * time), 44_100)
        >>> features.shape, features.mean(0).argmax().item()  # 3 kHz is half of the way to the top, in mel
        (torch.Size([49, 40]), 19)
    """
    size = round(window * rate)
    if len(samples) < size:
        raise DataError(f"log_mel expects at least one window of {size} samples, got {len(samples)} samples.")
    signal = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32)).unfold(0, size, size // 2)
    spectrum = torch.fft.rfft(signal * torch.hamming_window(size, dtype=torch.float32)).abs().square()  # (1)
    filters = mel_filters(spectrum.shape[1], rate, bands).to(spectrum)
    return (spectrum @ filters.mT + 1e-10).log()  # (2)


def mel_filters(bins: int, rate: int, bands: int) -> Tensor:
    """M of (2), (bands, bins): triangles whose corners are evenly spaced in mel (3) from 0 to half the rate.

    Example:
        >>> filters = mel_filters(883, 44_100, 40)
        >>> filters.shape, (filters >= 0).all().item()
        (torch.Size([40, 883]), True)
    """
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)  # (3), undone
    frequencies = np.linspace(0, rate / 2, bins)
    low, middle, high = (corners[start : start + bands, None] for start in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return torch.from_numpy(np.maximum(0, np.minimum(rising, falling)))


def _labels(folder: Path) -> dict[str, int]:
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise DataError(f"{folder} has no table *.csv with the columns itemid and hasbird. {_HOW}")
    labels: dict[str, int] = {}
    for path in tables:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                name, answer = row.get("itemid"), row.get("hasbird")
                if not name or answer not in ("0", "1"):
                    raise DataError(f"{path}, line {number}: expected itemid and hasbird = 0 or 1, got {row}.")
                labels[name] = int(answer)
    return labels


def _clip(folder: Path, name: str) -> tuple[np.ndarray, int]:
    """Samples in [-1, 1], channels averaged, and the rate."""
    places = [folder / "wav" / f"{name}.wav", folder / f"{name}.wav"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(f"{places[0]} is missing, but the table in {folder} lists the clip {name}. {_HOW}")
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise DataError(f"{path}: expected 16 bits per sample, got {8 * file.getsampwidth()}; convert it.")
            raw = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            return raw.reshape(-1, file.getnchannels()).mean(1) / 32768.0, file.getframerate()
    except (wave.Error, EOFError) as error:
        raise DataError(f"{path} is not a wave file: {error}; download it again.") from None
