"""The contraction rate λ, proved: by which factor, at most, one step multiplies the distance of two states.

    ‖f(x, h) - f(x, k)‖ ≤ λ ‖h - k‖   for all x and all states h, k                       (1) S4 (2)

    RNN              λ = L ‖U‖₂             linear: L = 1                                   (2) S4 §6.1, §6.2
    VPRNN, ExpRNN    λ = L                  U keeps lengths; scoRNN too
    uRNN, EUNN       λ = 1 if b ≤ 0, else ∞ W keeps lengths, and (2) of cells/urnn.py is a projection's remainder
    FastRNN          λ = α L ‖U‖₂ + β                                                       (3)
    SGORNN           λ = α L + β            at most 1 - α with the clip β ≤ 1 - 2α, L ≤ 1   (4)
    IndRNN           λ = L max |u|
    coRNN, antisymmetric RNN: 1 + O(Δ), a bound on gradients: oscillator.py
    LSTM, GRU, minGRU, minLSTM
                     in the largest-entry norm, over states reached from zero by bounded inputs: gated.py,
                     input_gated.py

L is the Lipschitz constant of φ (cells/nonlinearity.py). The norm is Euclidean except for these four; stacks are in
stack.py. λ is that of the exact map; rounding adds a few units of the last place. (2) to (4) are read from the cell's
``step_form``.

Source: S4, §2 and §6; (3), (4): the triangle inequality. Symbols: docs/notation.md.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from torch import Tensor

from holdfast.cells import (
    Cell,
    EUNNCell,
    GRUCell,
    LSTMCell,
    MinGRUCell,
    MinLSTMCell,
    StepForm,
    URNNCell,
    step_form,
)
from holdfast.cells.form import cells_with_form
from holdfast.errors import DTypeError, NoBoundError, SettingError, one_of
from holdfast.stability.gated import Box, gru_step, lstm_step
from holdfast.stability.input_gated import mingru_step, minlstm_step

__all__ = ["certified_cells", "contraction_rate"]


@functools.singledispatch
def contraction_rate(model: Any, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    """λ of (1), proved: one step multiplies the distance of two states by at most λ, for every input.

    Law: (1) holds for every x, h, k. For LSTM and GRU: for every x within ``input_bound`` and all states that such
    inputs reach from zero. The model is stable if λ < 1. ``observed_contraction`` measures the same from below.

    Args:
        model: a cell, or a layer of such cells in one direction. For several layers (1) is about the stacked state, in
            the norm that ``stack_bounds`` names.
        input_bound: B with ‖x_t‖ ≤ B at every step; only LSTM, GRU, minGRU and minLSTM need it.
        input_norm: the norm of ``input_bound``: "l2", or "linf" for the largest entry.

    Example:
        >>> import torch
        >>> from holdfast import FastRNNCell, LSTMCell, RNNCell
        >>> cell = RNNCell(3, 4)
        >>> with torch.no_grad():
        ...     _ = cell.weight_hh.copy_(0.9 * torch.eye(4))
        >>> round(contraction_rate(cell), 6)
        0.9
        >>> 0.95 < contraction_rate(FastRNNCell(3, 4)) < 1.1  # α ‖U‖₂ + β at the start
        True
        >>> contraction_rate(LSTMCell(3, 4), input_bound=1.0) > 0
        True
    """
    if (form := step_form(model)) is not None:
        return form_rate(form)
    if isinstance(model, Cell):
        raise NoBoundError(
            f"No contraction bound is registered for {type(model).__name__}; certified cells: "
            f"{', '.join(certified_cells())}. Register one of your own with contraction_rate.register, or, for a cell "
            "of the form of holdfast.cells.StepForm, that form with holdfast.cells.step_form.register."
        )
    raise DTypeError(
        f"contraction_rate expects a holdfast cell or layer, got {type(model).__name__}; "
        "convert a torch.nn layer with holdfast.from_torch, and of a larger model give the recurrent layer."
    )


def certified_cells() -> list[str]:
    """The names of the cells with a proved rate.

    Example:
        >>> "SGORNNCell" in certified_cells()
        True
    """
    kinds = cells_with_form().union(kind for kind in contraction_rate.registry if issubclass(kind, Cell))
    return sorted(kind.__name__ for kind in kinds)


def form_rate(form: StepForm) -> float:
    """(2), (3), (4): λ = α L ‖U‖₂ + β. The output of a ``LinearCell``, y = C h + D x, is not fed back."""
    alpha, beta = form.gate_values
    return alpha * form.lipschitz * form.spectral_norm + beta


@contraction_rate.register
def _(cell: LSTMCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    jets = lstm_step(cell, input_box(cell, input_bound, input_norm))
    return max(jet.s.max().item() for jet in jets)


@contraction_rate.register
def _(cell: GRUCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    return gru_step(cell, input_box(cell, input_bound, input_norm)).s.max().item()


@contraction_rate.register(EUNNCell)
@contraction_rate.register(URNNCell)
def _(cell: EUNNCell | URNNCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    """W keeps lengths. For b ≤ 0, modrelu(z) = z - P(z) with P the projection onto the disc of radius -b, which is
    convex: so it does not expand. For b > 0 it jumps at zero.
    """
    return math.inf if (cell.bias > 0).any() else 1.0


@contraction_rate.register
def _(cell: MinGRUCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    return mingru_step(cell, input_box(cell, input_bound, input_norm)).s.max().item()


@contraction_rate.register
def _(cell: MinLSTMCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    return minlstm_step(cell, input_box(cell, input_bound, input_norm)).s.max().item()


def input_box(cell: Cell, input_bound: float | None, input_norm: str) -> Box:
    """The inputs that a gated cell is certified for."""
    if input_bound is None:
        raise SettingError(
            f"{type(cell).__name__} contracts only while its gates stay below 1, which depends on the inputs: "
            "give input_bound, the largest ‖x_t‖."
        )
    return Box(check_input_bound(input_bound, input_norm), input_norm, cell.input_size)


def check_input_bound(input_bound: float, input_norm: str) -> float:
    """The bound as a float, or an error: finite, not negative, in a norm that is known."""
    one_of("holdfast.stability", "input_norm", input_norm, ("l2", "linf"))
    if isinstance(input_bound, Tensor) or not (0 <= input_bound < math.inf):
        raise SettingError(f"input_bound expects a finite number of at least 0, the largest ‖x_t‖, got {input_bound}.")
    return float(input_bound)
