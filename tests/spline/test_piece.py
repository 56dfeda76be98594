"""z = A x + B: exact, the Jacobian, constant in a region, and S5's closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast
from helpers.spline_models import INPUTS, OUTPUTS, build, models
from holdfast.errors import SettingError, ShapeError
from holdfast.spline import MaxAffine, StepForm, affine_piece, step_form

steps_drawn = st.integers(1, 6)


@settings(max_examples=25, deadline=None)
@given(model=models, every=st.booleans(), steps=steps_drawn)
def test_the_piece_is_the_model_and_its_slope_the_jacobian(model, every, steps):
    """For every drawn model and input: A x + B = z and A = dz/dx, to 1e-10."""
    net = build(**model, every_step=every)
    x = torch.randn(steps, INPUTS)
    piece = affine_piece(net, x)
    z = net(x.unsqueeze(1)).squeeze(-2)
    torch.testing.assert_close(piece(x), z, rtol=0, atol=1e-10)
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x.unsqueeze(1)).squeeze(-2), x)
    torch.testing.assert_close(piece.slope, jacobian, rtol=0, atol=1e-10)


@settings(max_examples=12, deadline=None)
@given(model=models, every=st.booleans(), steps=steps_drawn)
def test_the_operator_is_the_matrix_and_its_transpose(model, every, steps):
    """For all x and z: A x and Aᵀ z as with A whole; ⟨A x, z⟩ = ⟨x, Aᵀ z⟩; batches row by row."""
    net = build(**model, every_step=every)
    operator = affine_piece(net, torch.randn(steps, INPUTS), form="operator")
    whole, (rows, columns) = operator.whole(), operator.shape
    d, u = torch.randn(steps, INPUTS), torch.randn(rows)
    torch.testing.assert_close(operator.matvec(d), torch.einsum("...tf,tf->...", whole.slope, d))
    torch.testing.assert_close((operator.matvec(d) * u).sum(), (operator.rmatvec(u) * d).sum())
    assert columns == (steps, INPUTS)
    batch = torch.randn(steps, 2, INPUTS)
    torch.testing.assert_close(operator.matvec(batch)[..., 1, :], operator.matvec(batch[:, 1]))
    cotangents = torch.randn(*rows[:-1], 2, rows[-1])
    torch.testing.assert_close(operator.rmatvec(cotangents)[:, 1], operator.rmatvec(cotangents[..., 1, :]))


@settings(max_examples=5, deadline=None)
@given(model=models)
def test_the_piece_is_constant_inside_its_region_and_another_beyond_its_border(model):
    """Along a ray from x: the same A and B as long as the pattern is the same, others behind the first border."""
    net = build(**model)
    x, direction = torch.randn(4, INPUTS), torch.randn(4, INPUTS)
    home = affine_piece(net, x)

    def inside(far):
        return torch.equal(affine_piece(net, x + far * direction, form="operator").pattern, home.pattern)

    low, high = 0.0, 1e-3
    while inside(high) and high < 1e3:
        high *= 2
    if high >= 1e3:
        return  # this ray stays in its region for ever
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    for far in (0.0, 0.3 * low, 0.999 * low):
        near = affine_piece(net, x + far * direction)
        torch.testing.assert_close(near.slope, home.slope, rtol=0, atol=1e-12)
        torch.testing.assert_close(near.offset, home.offset, rtol=0, atol=1e-12)
        point = x + far * direction
        torch.testing.assert_close(home(point), net(point.unsqueeze(1))[0], rtol=0, atol=1e-9)
    beyond = affine_piece(net, x + high * direction)
    assert not torch.equal(beyond.pattern, home.pattern)
    border = x + high * direction  # z is continuous: both pieces agree on the border itself
    torch.testing.assert_close(home(border), beyond(border), rtol=0, atol=1e-8)


def test_across_a_border_the_slope_jumps():
    """One ReLU unit, one step: A is W on one side of W x + b = 0 and zero on the other."""
    layer = holdfast.RNN(1, 1, nonlinearity="relu", backend="reference")
    with torch.no_grad():
        layer.l0.weight_ih.fill_(2.0)
        layer.l0.bias.fill_(-1.0)
    left, right = (affine_piece(layer, torch.tensor([[x]])) for x in (0.49, 0.51))
    assert (left.slope.item(), left.offset.item(), left.pattern.item()) == (0.0, 0.0, False)
    assert (right.slope.item(), right.offset.item(), right.pattern.item()) == (2.0, -1.0, True)


def layer_by_theorem_1(cell, hs_below, h_0):
    """A_RNN and B_RNN of S5 (8), block by block, for a ReLU layer: (T, H, T, D) and (T, H)."""
    W, U, b = cell.weight_ih, cell.weight_hh, cell.bias
    steps, h, masks = len(hs_below), h_0, []
    for x in hs_below:
        z = W @ x + U @ h + b
        masks.append(torch.diag((z > 0).to(z)))
        h = masks[-1] @ z
    eye, A, B = torch.eye(len(U)), torch.zeros(steps, len(U), steps, W.shape[1]), torch.zeros(steps, len(U))
    for end in range(steps):
        chain = eye  # 𝒜_{t:end}, identity for t = end
        for t in range(end, -1, -1):
            A[end, :, t] = chain @ masks[t] @ W
            B[end] += chain @ masks[t] @ b
            chain = chain @ masks[t] @ U
        B[end] += chain @ h_0  # 𝒜_{0:end} h_0
    return A, B


def test_theorem_1_block_by_block():
    net = build("rnn", learned=True)
    x, h_0 = torch.randn(5, INPUTS), net.rnn.initial_state.values[0][0].detach()
    with torch.no_grad():
        A, B = layer_by_theorem_1(net.rnn.l0, x, h_0)
    piece = affine_piece(net.rnn, x, read="every")
    torch.testing.assert_close(piece.slope, A)
    torch.testing.assert_close(piece.offset, B)


def test_theorem_2_needs_the_layers_above_in_the_offset():
    """B = A^(2) B^(1) + B^(2). The printed Π_{ℓ'=ℓ}^{L-1} A^(ℓ') would put A^(1) in front of B^(1)."""
    net = build("rnn", layers=2)
    x, start = torch.randn(4, INPUTS), torch.zeros(net.rnn.hidden_size)
    with torch.no_grad():
        first, B1 = layer_by_theorem_1(net.rnn.l0, x, start)
        hs = torch.einsum("thsd,sd->th", first, x) + B1
        second, B2 = layer_by_theorem_1(net.rnn.l1, hs, start)
    piece = affine_piece(net.rnn, x, read="every")
    torch.testing.assert_close(piece.slope, torch.einsum("thsk,skud->thud", second, first))
    torch.testing.assert_close(piece.offset, torch.einsum("thsk,sk->th", second, B1) + B2)


@pytest.mark.parametrize(("kind", "every"), [("rnn", False), ("sgornn", True)])
def test_fused_and_reference_give_the_same_piece(kind, every):
    slow = build(kind, layers=2, bidirectional=True, every_step=every)
    fast = build(kind, layers=2, bidirectional=True, every_step=every, backend="fused")
    x = torch.randn(6, INPUTS)
    one, other = affine_piece(slow, x), affine_piece(fast, x)
    torch.testing.assert_close(one.slope, other.slope)
    torch.testing.assert_close(one.offset, other.offset)
    assert torch.equal(one.pattern, other.pattern)


def test_a_start_of_ones_own_moves_the_offset_alone_inside_a_region():
    net = build("rnn", "abs")  # no unit is ever silent
    x, h_0 = torch.randn(4, INPUTS), torch.randn(1, net.rnn.hidden_size)
    piece = affine_piece(net, x, h_0=h_0)
    torch.testing.assert_close(piece(x), net(x.unsqueeze(1), h_0.unsqueeze(1))[0])
    near = affine_piece(net, x, h_0=h_0 + 1e-9)
    torch.testing.assert_close(piece.slope, near.slope)
    assert not torch.equal(piece.offset, near.offset)


def test_tokens_are_pieces_of_their_vectors():
    net = build("rnn", words=7)
    tokens = torch.tensor([3, 1, 6, 0])
    piece = affine_piece(net, tokens)
    vectors = net.embedding(tokens).detach()
    torch.testing.assert_close(piece(vectors), net(tokens.unsqueeze(1))[0])


def test_a_linear_network_has_one_piece():
    rnn = holdfast.LinearRNN(INPUTS, 4, num_layers=2, backend="reference")
    one, other = (affine_piece(rnn, torch.randn(4, INPUTS)) for _ in range(2))
    torch.testing.assert_close(one.slope, other.slope)
    assert one.pattern.shape == (4, 2, 0)


def test_dropout_and_a_random_start_are_left_out():
    """The map is that of evaluation, whatever mode the model is in."""
    rnn = holdfast.RNN(
        INPUTS, 4, 2, nonlinearity="relu", dropout=0.5, initial_state=holdfast.RandomStart(1.0), backend="reference"
    ).train()
    x = torch.randn(5, INPUTS)
    torch.testing.assert_close(affine_piece(rnn, x)(x), rnn.eval()(x)[1][-1])


def test_the_piece_does_not_follow_further_training():
    net, x = build("rnn"), torch.randn(4, INPUTS)
    operator = affine_piece(net, x, form="operator")
    before = operator.matvec(x)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(1.0)
    assert torch.equal(operator.matvec(x), before)


@settings(max_examples=30, deadline=None)
@given(lines=st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_max_affine_is_its_regions_line_by_line(lines, seed):
    """(1) = (2) of activation.py for every set of lines, equal and hidden ones among them."""
    phi = MaxAffine(*zip(*lines, strict=True))
    z = 3 * torch.randn(50, generator=torch.Generator().manual_seed(seed))
    regions = phi.regions
    assert list(regions.slopes) == sorted(set(regions.slopes))
    assert list(regions.knots) == sorted(regions.knots)
    if regions.knots:
        slope, shift = regions.lines(regions.bits(z), z.dtype)
        torch.testing.assert_close(slope * z + (0 if shift is None else shift), phi(z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (holdfast.RNN(3, 4), "tanh"),
        (holdfast.GRU(3, 4), "GRUCell"),
        (holdfast.LSTM(3, 4), "LSTMCell"),
        (holdfast.ExpRNN(3, 4), "modrelu"),
        (holdfast.RNN(3, 4, nonlinearity="gelu"), "gelu"),
        (holdfast.LinearRNN(3, 4, output_size=2), "output_size"),
    ],
    ids=lambda it: it if isinstance(it, str) else type(it).__name__,
)
def test_what_is_no_spline_is_refused_by_name(layer, word):
    with pytest.raises(SettingError, match=word):
        affine_piece(layer.double(), torch.randn(5, 3))


def test_bad_input_is_refused_with_what_was_expected():
    net = build("rnn")
    with pytest.raises(ShapeError, match=r"\(time, 3\), got \(5, 2, 3\)"):
        affine_piece(net, torch.randn(5, 2, 3))
    with pytest.raises(SettingError, match="from_torch"):
        affine_piece(nn.RNN(3, 4, nonlinearity="relu"), torch.randn(5, 3))
    with pytest.raises(SettingError, match="rnn and readout"):
        affine_piece(nn.Linear(3, 4), torch.randn(5, 3))
    with pytest.raises(ShapeError, match="matvec"):
        affine_piece(net, torch.randn(5, 3), form="operator").matvec(torch.randn(4, 3))
    with pytest.raises(SettingError, match="whole"):
        affine_piece(net, torch.randn(5, 3), form="dense")


def test_a_cell_of_ones_own_joins_by_registration():
    class Doubled(holdfast.Cell):
        def __init__(self):
            super().__init__(INPUTS, 4)
            self.weight = nn.Parameter(torch.randn(4, INPUTS))

        def drive(self, x):
            return x @ self.weight.mT

        def weights(self):
            return ()

        def step(self, drive, state, weights):
            return (torch.relu(drive + 0.5 * state[0]),)

    layer, x = holdfast.Recurrent(Doubled(), backend="reference"), torch.randn(6, INPUTS)
    with pytest.raises(SettingError, match=r"step_form\.register"):
        affine_piece(layer, x)
    step_form.register(Doubled, lambda cell: StepForm(cell.weight, 0.5 * torch.eye(4), None, torch.relu))
    torch.testing.assert_close(affine_piece(layer, x)(x), layer(x)[1][-1])


def test_the_readout_may_be_missing_or_an_identity():
    rnn, x = build("rnn").rnn, torch.randn(5, INPUTS)
    assert affine_piece(rnn, x).offset.shape == (rnn.hidden_size,)
    net = build("rnn")
    net.readout = nn.Identity()
    torch.testing.assert_close(affine_piece(net, x).slope, affine_piece(net.rnn, x).slope)
    assert affine_piece(build("rnn"), x).offset.shape == (OUTPUTS,)
