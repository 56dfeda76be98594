"""The local linearisation: first order and no more, for every cell."""

import pytest
import torch

import holdfast
from helpers.spline_models import INPUTS, Model, build
from holdfast.spline import affine_piece, linearise

SMOOTH = {
    "gru": lambda: holdfast.GRU(INPUTS, 4, 2, backend="reference"),
    "lstm": lambda: holdfast.LSTM(INPUTS, 4, bidirectional=True, backend="reference"),
    "tanh": lambda: holdfast.RNN(INPUTS, 4, backend="reference"),
    "fastrnn": lambda: holdfast.FastRNN(INPUTS, 4, backend="reference"),
}


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("every", [False, True])
def test_the_linearisation_is_the_jacobian_in_input_and_start(kind, every):
    net = Model(SMOOTH[kind](), every_step=every)
    if kind == "lstm":
        net.forward = lambda xs, h_0=None: _lstm(net, xs, h_0)
    x = torch.randn(5, INPUTS)
    local = linearise(net, x)
    torch.testing.assert_close(local.value, net(x.unsqueeze(1)).squeeze(-2))
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x.unsqueeze(1)).squeeze(-2), x)
    torch.testing.assert_close(local.jacobian, jacobian)
    rows = len(net.rnn.cells)
    zeros = tuple(torch.zeros(rows, 1, 4) for _ in local.start)
    starts = torch.autograd.functional.jacobian(
        lambda *h: net(x.unsqueeze(1), h if len(h) > 1 else h[0]).squeeze(-2), zeros
    )
    for ours, theirs in zip(local.start, starts, strict=True):
        torch.testing.assert_close(ours, theirs.squeeze(-2))


def _lstm(net, xs, h_0):
    output, (h_n, _) = net.rnn(xs, h_0)
    hs = output if net.every_step else torch.cat(tuple(h_n[-2:]), dim=-1)
    return net.readout(hs)


def test_it_holds_to_first_order_and_is_no_piece():
    """The remainder of a tanh network falls with the square of the distance, and is not zero."""
    net, x, d = Model(SMOOTH["tanh"]()), torch.randn(5, INPUTS), torch.randn(5, INPUTS)
    local = linearise(net, x)
    gaps = []
    for far in (1e-2, 1e-3):
        moved = net((x + far * d).unsqueeze(1))[0]
        gaps.append((moved - local.value - far * torch.einsum("otf,tf->o", local.jacobian, d)).norm().item())
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.2)
    assert not hasattr(local, "offset")


def test_for_a_spline_it_is_the_piece():
    net, x = build("sgornn", layers=2), torch.randn(5, INPUTS)
    torch.testing.assert_close(linearise(net, x).jacobian, affine_piece(net, x).slope)
