"""MNIST as sequences: an image read pixel by pixel, in order or through one fixed permutation.

    x_t = image[π(t)] / 255,  t = 1 … 784    (1) π the identity, or one permutation for all images
    x_t ← (x_t - 0.1307) / 0.3081            (2) ``standardised``, by the training set; S5, appendix B

Sources: Le, Jaitly & Hinton (2015), §4.2; S2 §5 (sequential MNIST); S5 §5 and appendix C (both forms). Data: LeCun,
Cortes & Burges.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.tasks._base import Arrays, Sequences, Spec, Task
from holdfast.tasks.fetch import Source, read_bytes

__all__ = ["PixelMNIST"]

SIDE = 28
_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
_FILES = {  # name: sha256 and size of the idx file itself
    "train-images-idx3-ubyte": ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
    "train-labels-idx1-ubyte": ("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
    "t10k-images-idx3-ubyte": ("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
    "t10k-labels-idx1-ubyte": ("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
}
SOURCES = tuple(
    Source(
        f"mnist/{name}", sha256, size, tuple(f"{mirror}/{name}.gz" for mirror in _MIRRORS),
        how=f"Put {name}.gz of MNIST (LeCun, Cortes & Burges; CC BY-SA 3.0) into the folder mnist/ of HOLDFAST_DATA.",
    )
    for name, (sha256, size) in _FILES.items()
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PixelMNIST:
    """Sequential or permuted MNIST: 60,000 training and 10,000 test images of 28 × 28, ten classes.

    Args:
        permuted: read the pixels in one fixed random order.
        seed: of that order.
        validation: number of training images held out, the last ones; 0 for no validation split.
        rows: a row of the image at each step (28 steps of 28 numbers) instead of a pixel (784 steps of 1).
        pool: average blocks of pool × pool pixels first, for shorter sequences: 2 gives 14 × 14 = 196 steps.
        limit: use only the first images of each split, this many.
        standardised: by (2).

    Example:
        >>> PixelMNIST(permuted=True, pool=4).steps
        49
    """

    permuted: bool = False
    seed: int = 0
    validation: int = 10_000
    rows: bool = False
    pool: int = 1
    limit: int | None = None
    standardised: bool = False

    def sources(self) -> tuple[Source, ...]:
        """The four files of MNIST."""
        return SOURCES

    @property
    def steps(self) -> int:
        """T: 784 pixels, or fewer after pooling; or that many rows."""
        side = SIDE // self.pool
        return side if self.rows else side * side

    def answers(self, split: str) -> int | None:
        """How many answers a score on a split counts; None if that takes reading the data.

        Example:
            >>> PixelMNIST().answers("test"), PixelMNIST(limit=500).answers("test")
            (10000, 500)
        """
        count = {"train": 60_000 - self.validation, "validation": self.validation, "test": 10_000}.get(split)
        return count if count is None or self.limit is None else min(count, self.limit)

    def load(self) -> Task:
        if self.pool < 1 or SIDE % self.pool:
            raise SettingError(f"PixelMNIST expects pool to divide {SIDE} (1, 2, 4, 7, 14 or 28), got {self.pool}.")
        if self.limit is not None and self.limit < 1:
            raise SettingError(f"PixelMNIST expects a limit of at least 1 image, got {self.limit}.")
        images, labels, test_images, test_labels = (idx(read_bytes(source), source.path) for source in self.sources())
        if not 0 <= self.validation < len(images):
            raise SettingError(
                f"PixelMNIST expects validation to be 0 to {len(images) - 1:,} training images, got {self.validation}."
            )
        kept = len(images) - self.validation
        splits = {"train": self._sequences(images[:kept], labels[:kept])}
        if self.validation:
            splits["validation"] = self._sequences(images[kept:], labels[kept:])
        splits["test"] = self._sequences(test_images, test_labels)
        spec = Spec(
            SIDE // self.pool if self.rows else 1, 10, "cross_entropy", "accuracy", classes=tuple("0123456789"),
            baseline=float(splits["test"].targets.bincount().max()) / len(splits["test"]),
        )  # fmt: skip
        return Arrays(spec, splits)

    def _sequences(self, images: np.ndarray, labels: np.ndarray) -> Sequences:
        images, labels = images[: self.limit], labels[: self.limit]
        side = SIDE // self.pool
        if self.pool > 1:
            blocks = images.reshape(len(images), side, self.pool, side, self.pool)
            images = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
        pixels = torch.from_numpy(images.reshape(len(images), side * side))
        if self.permuted:
            pixels = pixels[:, self.permutation()]  # (1)
        if self.standardised:
            pixels = (pixels.to(torch.get_default_dtype()) / 255 - 0.1307) / 0.3081  # (2)
        features = side if self.rows else 1
        return Sequences(pixels.reshape(len(images), -1, features), torch.from_numpy(labels.astype(np.int64)))

    def permutation(self) -> Tensor:
        """π of (1): a function of the seed and the number of pixels.

        Example:
            >>> PixelMNIST(permuted=True, pool=14).permutation().sort().values
            tensor([0, 1, 2, 3])
        """
        pixels = (SIDE // self.pool) ** 2
        return torch.randperm(pixels, generator=torch.Generator().manual_seed(self.seed))


def idx(raw: bytes, name: str) -> np.ndarray:
    """The array in an idx file of bytes: two zeros, 8, the number of axes; their lengths, big-endian; the numbers.

    Example:
        >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "three")
        array([7, 8, 9], dtype=uint8)
    """
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{name} is not an idx file of bytes; download it again.")
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", count=raw[3], offset=4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if values.size != int(np.prod(shape, dtype=object)):
        raise DataError(f"{name} has the shape {shape} in its header but {values.size:,} numbers; download it again.")
    return values.reshape(shape).copy()
