"""γ², κ⁽¹⁾ and κ⁽²⁾: sums over all paths, derivatives, and what S2 prints otherwise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast
from helpers.path_graphs import Model, over_all_paths, random_model
from holdfast.errors import SettingError
from holdfast.optim import Dense, Lookup, PathNetwork, kappa, kappa_first, kappa_second, path_network, path_norm_sq
from holdfast.optim.second_term import block_size, edge_pairs

networks = st.fixed_dictionaries(
    {
        "inputs": st.integers(1, 2),
        "hidden": st.integers(1, 2),
        "layers": st.integers(1, 3),
        "kind": st.sampled_from(["holdfast", "torch"]),
        "words": st.sampled_from([0, 3]),
        "bias": st.booleans(),
        "learned": st.booleans(),
        "last_only": st.booleans(),
    }
)


seeds = st.integers(0, 10**6)


@settings(max_examples=25, deadline=None)
@given(sizes=networks, steps=st.integers(1, 5), seed=seeds)
def test_path_norm_and_kappas_are_sums_over_all_paths(sizes, steps, seed):
    """For 1 to 3 layers and T ≤ 5: γ² is (2), κ⁽¹⁾ is (9) and κ⁽²⁾ is (10), to 1e-10."""
    torch.manual_seed(seed)
    model = random_model(**sizes)
    total, first, second, count = over_all_paths(model, steps)
    assert count >= steps
    assert path_norm_sq(model, steps).item() == pytest.approx(total, rel=1e-10)
    for ours, theirs in ((kappa_first(model, steps), first), (kappa_second(model, steps), second)):
        assert ours.keys() == theirs.keys()
        for parameter, value in theirs.items():
            torch.testing.assert_close(ours[parameter], value, rtol=1e-10, atol=0)


@settings(max_examples=10, deadline=None)
@given(sizes=networks, steps=st.integers(2, 6), seed=seeds)  # at T = 1 no path meets U
def test_exact_kappa_is_half_the_second_derivative(sizes, steps, seed):
    """½ ∂²γ²/∂p_i², by differentiating γ² twice, for every parameter; Lemma 1 as printed falls short by κ⁽²⁾."""
    torch.manual_seed(seed)
    model = random_model(**sizes)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(path_norm_sq(model, steps), parameters, create_graph=True)
    exact, published = kappa(model, steps), kappa(model, steps, form="published")
    second = kappa_second(model, steps)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        halves = torch.zeros_like(parameter)
        for index in torch.cartesian_prod(*map(torch.arange, parameter.shape)).reshape(-1, parameter.dim()).tolist():
            (row,) = torch.autograd.grad(gradient[tuple(index)], parameter, retain_graph=True)
            halves[tuple(index)] = row[tuple(index)] / 2
        torch.testing.assert_close(exact[parameter], halves, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(exact[parameter] - published[parameter], second[parameter], rtol=1e-8, atol=1e-9)


def test_lemma_1_loses_a_factor_of_two():
    """γ² = v²w²(1 + u² + u⁴) at T = 3 has ½ ∂²γ²/∂u² = v²w²(1 + 6u²): κ⁽¹⁾ = 1 + 2u², (10) = 2u², so κ⁽¹⁾ + 2·(10)."""
    model = random_model(1, 1, 1, bias=False)
    u, w, v = model.rnn.l0.weight_hh, model.rnn.l0.weight_ih, model.readout.weight
    scale = (w * v).square().sum(0, keepdim=True).detach()
    square = u.detach().square()
    torch.testing.assert_close(kappa_first(model, 3)[u], scale * (1 + 2 * square))
    torch.testing.assert_close(kappa_second(model, 3)[u], scale * 2 * square)
    torch.testing.assert_close(kappa(model, 3)[u], scale * (1 + 6 * square))
    torch.testing.assert_close(kappa(model, 3, form="published")[u], scale * (1 + 4 * square))


def footnote_3(model, steps, offset):
    """S2's matrix form of (11), with h_{t2 - offset} in place of h_{t2}; loops as printed."""
    cell = model.rnn.cells[0]
    U, W = cell.weight_hh.detach().square(), cell.weight_ih.detach().square()
    f, read = [torch.zeros(len(U))], model.readout.weight.detach().square().sum(0)
    for _ in range(steps):
        f.append(U @ f[-1] + W.sum(1))
    g = {t: torch.linalg.matrix_power(U, steps - t).mT @ read for t in range(1, steps + 1)}
    total = torch.zeros_like(U)
    for t1 in range(steps - 2):
        inner = sum(torch.outer(g[t1 + t2 + 1], f[t2 - offset]) for t2 in range(2, steps - t1))
        total += torch.linalg.matrix_power(U, t1).mT * inner
    return U * total


def test_footnote_3_reads_its_state_one_step_late_and_counts_each_pair_once():
    """(10) is twice footnote 3 with h_{t2-1}; with h_{t2}, as printed, already T = 3 comes out wrong."""
    model = random_model(2, 3, 1, bias=False)
    for steps in (3, 7):
        ours = kappa_second(model, steps)[model.rnn.l0.weight_hh]
        torch.testing.assert_close(2 * footnote_3(model, steps, offset=1), ours)
        assert (2 * footnote_3(model, steps, offset=0)).amax() > 1.5 * ours.amax()


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 5), steps=st.integers(1, 25), block=st.integers(1, 12))
def test_pairs_by_blocks_equal_pairs_one_by_one(size, steps, block):
    """Q = Σ_{s<t} D(a_s) U^(t-1-s) D(b_t), whatever the block, and with U^n by matrix_power."""
    U, a, b = torch.rand(size, size), torch.rand(steps, size), torch.rand(steps, size)
    expected = torch.zeros(size, size)
    for s in range(steps):
        for t in range(s + 1, steps):
            expected += a[s][:, None] * torch.linalg.matrix_power(U, t - 1 - s) * b[t][None, :]
    torch.testing.assert_close(edge_pairs(U, a, b, block), expected, rtol=1e-12, atol=0)
    assert 1 <= block_size(size, steps) <= max(steps, 2)


def test_gamma_sums_over_the_outputs_that_are_read():
    """Reading every step of T sums the γ² of reading the last step of 1, ..., T."""
    model = random_model(2, 3, 2, last_only=False)
    every = path_norm_sq(model, 6)
    model.last_only = True
    torch.testing.assert_close(every, sum(path_norm_sq(model, steps) for steps in range(1, 7)))


def test_biases_are_edges_from_a_node_fixed_at_one():
    """A bias is the column of a weight that reads an input which is always 1."""
    model, other = random_model(2, 3, 1), random_model(3, 3, 1, bias=False)
    cell, twin = model.rnn.cells[0], other.rnn.cells[0]
    with torch.no_grad():
        model.readout.bias.zero_()
        twin.weight_ih.copy_(torch.cat([cell.weight_ih, cell.bias[:, None]], dim=1))
        twin.weight_hh.copy_(cell.weight_hh)
        other.readout.weight.copy_(model.readout.weight)
    torch.testing.assert_close(path_norm_sq(model, 4), path_norm_sq(other, 4))
    ours, theirs = kappa(model, 4), kappa(other, 4)
    torch.testing.assert_close(ours[cell.weight_hh], theirs[twin.weight_hh])
    torch.testing.assert_close(ours[cell.bias], theirs[twin.weight_ih][:, 2])


def test_an_embedding_is_a_linear_map_of_one_hot_inputs():
    model = random_model(2, 3, 1, words=5)
    network, E = path_network(model), model.embedding.weight
    dense = nn.Parameter(E.detach().mT.clone())
    assert isinstance(network.encoder[0], Lookup)
    linear = PathNetwork(layers=network.layers, decoder=network.decoder, encoder=(Dense(dense),), last_only=True)
    torch.testing.assert_close(path_norm_sq(linear, 4), path_norm_sq(network, 4))
    torch.testing.assert_close(kappa_first(linear, 4)[dense].mT, kappa_first(network, 4)[E])


def test_the_state_before_the_first_step_is_no_input():
    """S2 counts hidden units at time 0 among the inputs, and sets them to 0: at T = 1 no path uses U."""
    model = random_model(2, 3, 1)
    assert not kappa_first(model, 1)[model.rnn.l0.weight_hh].any()
    assert kappa_first(model, 2)[model.rnn.l0.weight_hh].all()


def linear_maps(model, x):
    """The Jacobian of each linear layer of a Sequential, and its value at 0: the edges of the unrolled network."""
    for layer in model:
        if isinstance(layer, nn.MaxPool2d):
            layer = nn.LPPool2d(1, layer.kernel_size, layer.stride)  # a sum over the window: its edges
        if not isinstance(layer, nn.ReLU):
            jacobian = torch.autograd.functional.jacobian(layer, x[None])
            y = layer(torch.zeros_like(x)[None])[0]
            yield jacobian.reshape(y.numel(), x.numel()), y.flatten()
        x = layer(x[None])[0].detach()


CONVOLUTIONAL = {
    "plain": lambda: [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)],
    "grouped": lambda: [nn.Conv2d(2, 4, 3, stride=2, groups=2), nn.ReLU(), nn.Conv2d(4, 3, 2, bias=False)],
    "pooled": lambda: [
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 2, dilation=1),
        nn.AvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2, 2),
    ],
    "averaged": lambda: [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)],
}


@pytest.mark.parametrize("layers", CONVOLUTIONAL.values(), ids=CONVOLUTIONAL)
def test_convolutional_networks(layers):
    """γ² of the unrolled matrices; 2 p κ⁽¹⁾ is its gradient; κ⁽²⁾ = 0, so κ is half the second derivative."""
    model = nn.Sequential(*layers())
    network = path_network(model, input_shape=(2, 6, 6))
    flow = torch.ones(72)
    for matrix, bias in linear_maps(model, torch.randn(2, 6, 6)):
        flow = matrix.square() @ flow + bias.square()
    torch.testing.assert_close(path_norm_sq(network), flow.sum())
    parameters = list(model.parameters())
    first, second = kappa_first(network), kappa_second(network)
    gradients = torch.autograd.grad(path_norm_sq(network), parameters, create_graph=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(2 * parameter.detach() * first[parameter], gradient.detach())
        assert not second[parameter].any()
        index = (0,) * parameter.dim()
        (row,) = torch.autograd.grad(gradient[index], parameter, retain_graph=True)
        torch.testing.assert_close(kappa(network)[parameter][index], row[index] / 2)
    with pytest.raises(SettingError, match="path_network\\(model, input_shape="):
        path_norm_sq(model)


def test_shared_weights_add_their_first_terms_and_have_no_second():
    """Embedding and readout tied: 2 p κ⁽¹⁾ is the gradient of γ²; pairs of edges in both places are refused."""
    model = Model(holdfast.RNN(3, 3, nonlinearity="relu"), outputs=5, words=5)
    model.readout.weight = model.embedding.weight
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(path_norm_sq(model, 4), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(2 * parameter.detach() * kappa_first(model, 4)[parameter], gradient)
    for function in (kappa, kappa_second):
        with pytest.raises(SettingError, match=r"weight of shape \(5, 3\) has 2 places"):
            function(model, 4)


def test_bad_settings_are_named():
    rnn = holdfast.RNN(2, 3, nonlinearity="relu")
    with pytest.raises(SettingError, match='expects outputs="last" or "every"'):
        path_norm_sq(rnn, 4)
    with pytest.raises(SettingError, match="to be one of last, every, None, got 'first'"):
        path_norm_sq(rnn, 4, "first")
    with pytest.raises(SettingError, match="expects outputs='last', since the model has last_only=True, got 'every'"):
        kappa_first(random_model(2, 3, 1), 4, "every")
    with pytest.raises(SettingError, match="steps to be a whole number of at least 1, got 0"):
        path_norm_sq(rnn, 0, "last")
    with pytest.raises(SettingError, match="one of exact, published, got 'rough'"):
        kappa(rnn, 4, "last", form="rough")
