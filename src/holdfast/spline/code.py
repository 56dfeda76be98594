"""Partition codes: in which region of the input space a sequence lies, one bit per unit, knot and step.

    code_n = ([z^(ℓ,t)_{n,i} > k_j])_{t,ℓ,i,j}                      (1) S5 §4: the states of all nonlinearities

Two sequences have the same code exactly if they lie in the same region, and then in the same affine piece. Eight bits
are a byte: 10,000 sequences of 784 steps at 128 units take 125 MB, computed in blocks of sequences.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.cells.nonlinearity import regions_of
from holdfast.errors import SettingError, ShapeError
from holdfast.spline.network import spline_network, walk
from holdfast.spline.pattern import pattern_of, spline_form

__all__ = ["PartitionCode", "partition_code"]

_BLOCK = 1 << 26  # bytes of a layer's outputs per block


@dataclasses.dataclass(frozen=True, eq=False)
class PartitionCode:
    """The codes (1) of many sequences.

    Args:
        packed: uint8, (sequences, time, layers · directions, bytes); the first unit is the lowest bit.
        bits: how many bits of each row count; those above are zero.

    Example:
        >>> from holdfast import RNN
        >>> code = partition_code(RNN(3, 12, nonlinearity="relu"), torch.randn(7, 100, 3))
        >>> code.packed.shape, code.bits, code[:5].until(3).packed.shape
        (torch.Size([100, 7, 1, 2]), 12, torch.Size([5, 3, 1, 2]))
    """

    packed: Tensor
    bits: int

    def __post_init__(self) -> None:
        if self.packed.dtype != torch.uint8 or self.packed.dim() != 4 or 8 * self.packed.shape[-1] < self.bits:
            raise ShapeError(
                f"PartitionCode expects uint8 of shape (sequences, time, rows, bytes) for {self.bits} bits, got "
                f"{self.packed.dtype} of {tuple(self.packed.shape)}."
            )

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, which: slice | Tensor) -> PartitionCode:
        """Some of the sequences."""
        return dataclasses.replace(self, packed=self.packed[which])

    @property
    def steps(self) -> int:
        return self.packed.shape[1]

    def until(self, step: int) -> PartitionCode:
        """The code of the first ``step`` steps."""
        if not 1 <= step <= self.steps:
            raise SettingError(f"PartitionCode.until expects from 1 to {self.steps} steps, got {step}.")
        return dataclasses.replace(self, packed=self.packed[:, :step])

    def layer(self, row: int) -> PartitionCode:
        """The part of one layer and direction."""
        return dataclasses.replace(self, packed=self.packed[:, :, row : row + 1])

    def unpacked(self) -> Tensor:
        """The bits themselves, bool, (sequences, time, rows, bits): eight times the memory."""
        return torch.from_numpy(np.unpackbits(self.packed.numpy(), axis=-1, count=self.bits, bitorder="little")).bool()

    def flat(self) -> np.ndarray:
        """One row of bytes per sequence."""
        return np.ascontiguousarray(self.packed.reshape(len(self), -1).numpy())


@torch.no_grad()
def partition_code(model: nn.Module, xs: Tensor, *, lengths: Tensor | None = None) -> PartitionCode:
    """The codes of many sequences, in memory that does not grow with their number but for the result.

    Law: two sequences of one length have the same code exactly if ``affine_piece`` gives them the same pattern.

    Args:
        model: as in ``affine_piece``.
        xs: (time, batch, features), or tokens (time, batch); batch first if the layer is.
        lengths: (batch,): steps after a sequence's end have no bits set.

    Example:
        >>> from holdfast import RNN
        >>> model, xs = RNN(3, 5, nonlinearity="relu"), torch.randn(7, 2, 3)
        >>> torch.equal(partition_code(model, xs).unpacked()[:, :, 0], (model(xs)[0] > 0).transpose(0, 1))
        True
    """
    who = "partition_code"
    network = spline_network(model, who=who)
    batch = 0 if network.rnn.batch_first else 1
    count, steps = xs.shape[batch], xs.shape[1 - batch]
    cells = network.rnn.cells
    knots = regions_of(spline_form(cells[0]).phi).bits_per_unit
    if not knots:
        raise SettingError(
            f"{who} expects a nonlinear cell, got {type(cells[0]).__name__}, which is affine and has one region."
        )
    bits = knots * cells[0].hidden_size
    packed = torch.empty(count, steps, len(cells), (bits + 7) // 8, dtype=torch.uint8)
    size = cells[0].example_weight().element_size()
    block = max(1, _BLOCK // (steps * cells[0].hidden_size * size))
    for begin in range(0, count, block):
        part = slice(begin, min(begin + block, count))
        own = None if lengths is None else lengths[part]
        features = network.features(xs.narrow(batch, begin, part.stop - begin), sample=False, who=who)
        for row in walk(network, features, network.start(features.shape[1], None, who), own):
            pattern = pattern_of(row, spline_form(row.cell), own)  # (time, block, bits)
            bytes_ = np.packbits(pattern.cpu().numpy(), axis=-1, bitorder="little")
            packed[part, :, row.index] = torch.from_numpy(bytes_).transpose(0, 1)
    return PartitionCode(packed, bits)
