"""Models to draw from: every cell that is piecewise affine, stacked, both ways, with every nonlinearity."""

import functools

import torch
from hypothesis import strategies as st
from torch import nn

import holdfast
from holdfast.spline import MaxAffine

INPUTS, HIDDEN, OUTPUTS = 3, 4, 5

PHIS = {
    "relu": "relu",
    "leaky": functools.partial(nn.functional.leaky_relu, negative_slope=0.2),
    "abs": "abs",
    "maxout": MaxAffine((-0.3, 0.2, 1.1), (0.1, 0.0, -0.4)),
}
KINDS = {
    "rnn": lambda phi: {"nonlinearity": phi},
    "irnn": lambda phi: {"nonlinearity": phi, "init": "identity"},
    "fastrnn": lambda phi: {"nonlinearity": phi, "gates": holdfast.ScalarGates(0.5, 0.3)},
    "sgornn": lambda phi: {"nonlinearity": phi, "gates": holdfast.ScalarGates(-1.0, 0.5, clip="2alpha")},
    "vprnn": lambda phi: {"nonlinearity": phi},
    "exprnn": lambda phi: {"nonlinearity": phi},
}
LAYERS = {
    "rnn": holdfast.RNN,
    "irnn": holdfast.RNN,
    "fastrnn": holdfast.FastRNN,
    "sgornn": holdfast.SGORNN,
    "vprnn": holdfast.VPRNN,
    "exprnn": holdfast.ExpRNN,
}


class Model(nn.Module):
    """A layer, a readout and perhaps an embedding: what ``SequenceModel`` is, without training."""

    def __init__(self, rnn, outputs=OUTPUTS, words=0, every_step=False):
        super().__init__()
        self.embedding = nn.Embedding(words, rnn.input_size) if words else None
        self.rnn, self.every_step = rnn, every_step
        self.readout = nn.Linear(rnn.directions * rnn.hidden_size, outputs)

    def forward(self, xs, h_0=None):
        """(time, batch, features) to (batch, outputs) or (time, batch, outputs)."""
        output, h_n = self.rnn(xs if self.embedding is None else self.embedding(xs), h_0)
        hs = output if self.every_step else torch.cat(tuple(h_n[-self.rnn.directions :]), dim=-1)
        return self.readout(hs)


def build(
    kind="rnn", phi="relu", layers=1, bidirectional=False, every_step=False, learned=False, seed=0, words=0,
    backend="reference", outputs=OUTPUTS, hidden=HIDDEN,
):  # fmt: skip
    torch.manual_seed(seed)
    rnn = LAYERS[kind](
        INPUTS, hidden, layers, bidirectional=bidirectional, backend=backend,
        initial_state="learned" if learned else "zeros", **KINDS[kind](PHIS[phi]),
    )  # fmt: skip
    with torch.no_grad():
        for name, weight in rnn.named_parameters():  # biases and starts are zero at first, which hides mistakes
            if "bias" in name or "initial_state" in name:
                weight.normal_()
            elif "weight_ih" in name:
                weight.normal_(std=0.7)
    return Model(rnn, outputs, words, every_step)


models = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "phi": st.sampled_from(sorted(PHIS)),
        "layers": st.integers(1, 3),
        "bidirectional": st.booleans(),
        "learned": st.booleans(),
        "seed": st.integers(0, 10**6),
    }
)
