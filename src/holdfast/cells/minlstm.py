"""minLSTM: an LSTM whose gates and candidate see the input alone, with gates that add up to one.

    f_t, i_t = σ(W_{f,i} x_t + b_{f,i})                    (1) gates
    c_t = g(W_c x_t + b_c)                                 (2) candidate; g the identity, or ``positive``
    f'_t = f_t / (f_t + i_t),  i'_t = 1 - f'_t             (3) normalised
    h_t = f'_t ⊙ h_{t-1} + i'_t ⊙ c_t                      (4)

Rows of the weights are stacked f, i, c. (3) is computed as f' = σ(log f - log i), which is the same number and is safe
where both gates are closed. There is no second state and no output gate.
Source: Feng et al. (2024), §3.2 and appendix B. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells.mingru import InputGatedCell

__all__ = ["MinLSTMCell"]


class MinLSTMCell(InputGatedCell):
    """One step of a minLSTM.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: g, "identity", "positive" as in the paper's code, another name or any elementwise callable.
        bias: whether to add b.

    Example:
        >>> cell = MinLSTMCell(3, 5)
        >>> sum(weight.numel() for weight in cell.parameters())  # 3 hidden (input + 1)
        60

    References:
        Feng et al. (2024), Were RNNs all we needed?
    """

    parts = 3

    def coefficients(self, drive: Tensor) -> tuple[Tensor, Tensor]:
        f, i, candidate = drive.chunk(3, dim=-1)
        softplus = nn.functional.softplus  # -log σ(v) = softplus(-v)
        f = torch.sigmoid(softplus(-i) - softplus(-f))  # (1), (3)
        return f, (1 - f) * self.phi(candidate)  # (2), (4)
