"""Algorithm 1: the batched search is the literal one, and it can be a GRU and an LSTM."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.algorithm_1 import algorithm_1, unstacked
from holdfast import GRUCell, LSTMCell
from holdfast.rrnn import (
    GRU_SETS,
    LSTM_SETS,
    RRNN,
    BirthNorm,
    Matrices,
    RankingScorer,
    RRNNCell,
    Sets,
    TwoLayerScorer,
    evaluate_tree,
    grow,
    gru_tree,
    lstm_trees,
    search,
    tree_of,
)


class Wrapped(nn.Module):
    """A scorer that the search knows nothing about."""

    def __init__(self, scorer):
        super().__init__()
        self.scorer = scorer

    def forward(self, v):
        return self.scorer(v)


def random_matrices(count, size, identity=False, scale=0.5):
    left, right = scale * torch.randn(2, count, size, size)
    bias = scale * torch.randn(count, size)
    if identity:
        left[-1] = right[-1] = torch.eye(size)
        bias[-1] = 0
    return Matrices(left, right, bias)


def random_leaves(count, batch, size):
    return torch.stack([*torch.randn(count - 1, batch, size), torch.zeros(batch, size)])


SETS = st.builds(
    Sets,
    tuples=st.integers(1, 3),
    identity=st.booleans(),
    operators=st.sampled_from([("add",), ("mul",), ("add", "mul"), ("mul", "max", "add")]),
    activations=st.sampled_from(
        [
            ("sigmoid", "tanh", "one_minus", "identity"),
            ("one_minus",),
            ("identity", "one_minus"),
            ("tanh",),
            ("relu", "sigmoid", "identity"),
        ]
    ),
    rounds=st.integers(1, 4),
)


@settings(max_examples=20, deadline=None)
@given(sets=SETS, leaves=st.integers(2, 4), seed=st.integers(0, 2**20), known=st.booleans())
def test_the_batched_search_is_the_literal_one(sets, leaves, seed, known):
    """For all sets, leaves and weights: the same choice, runner-up and vector in every round of every sample."""
    torch.manual_seed(seed)
    batch, size = 3, 3
    matrices, pool = random_matrices(sets.tuples, size, sets.identity), random_leaves(leaves, batch, size)
    scorer = TwoLayerScorer(size, 7)
    found = search(pool, matrices, sets, scorer if known else Wrapped(scorer))
    for b in range(batch):
        choices, runners, vectors = algorithm_1(unstacked(pool, b), matrices, sets, scorer)
        assert found.choices[:, b].tolist() == [list(choice) for choice in choices]
        assert found.runners[:, b].tolist() == [list(runner) for runner in runners]
        torch.testing.assert_close(found.vectors[:, b], torch.stack(vectors))


def test_a_constant_score_takes_candidates_in_their_documented_order():
    """Ties: by right child, left child, tuple, operator, activation."""

    class Constant(nn.Module):
        def forward(self, v):
            return torch.zeros(v.shape[:-1])

    found = search(torch.randn(3, 2, 4), random_matrices(2, 4), Sets(tuples=2, identity=False, rounds=3), Constant())
    assert found.choices[:, 0].tolist() == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 1], [0, 1, 0, 0, 2]]
    assert found.runners[:, 0].tolist() == [[0, 1, 0, 0, 1], [0, 1, 0, 0, 2], [0, 1, 0, 0, 3]]


def test_what_is_in_the_pool_up_to_rounding_is_not_picked_again():
    """1 - (1 - z) is z on paper; a score that likes z best must still find something else."""
    sets = Sets(tuples=1, rounds=6)
    for dtype in (torch.float32, torch.float64):
        leaves = random_leaves(3, 4, 5).to(dtype)
        matrices = Matrices.identity(5, leaves)
        found = search(leaves, matrices, sets, TwoLayerScorer(5, 16).to(dtype))
        for a in range(6):
            for b in range(a):
                apart = (found.vectors[a] - found.vectors[b]).abs().amax(dim=1)
                assert (apart > 1e-6).all()


def test_one_minus_twice_is_excluded_though_rounding_tells_them_apart():
    """Rounds: y = 1 - z, then 1 - y, then not 1 - (1 - y), which is y on paper, though its score is the highest."""
    z = torch.full((1, 1), 0.1, dtype=torch.float32)
    y = 1 - z
    assert not torch.equal(1 - (1 - y), y) or not torch.equal(1 - (1 - z), z)
    leaves = torch.stack((torch.zeros_like(z), z))
    sets = Sets(tuples=1, operators=("add",), activations=("one_minus",), rounds=4)
    found = search(leaves, Matrices.identity(1, leaves), sets, RankingScorer(torch.tensor([[0.9], [0.1]]), sigma=0.05))
    assert found.choices[:2, 0].tolist() == [[0, 1, 0, 0, 0], [0, 2, 0, 0, 0]]
    values = found.vectors.flatten()
    assert all(abs(float(values[a] - values[b])) > 1e-3 for a in range(4) for b in range(a))


def test_a_sample_with_nothing_new_takes_its_best_again():
    leaves = torch.zeros(3, 2, 4)
    leaves[:, 1] = torch.randn(3, 4)
    sets = Sets(tuples=1, operators=("add",), activations=("identity",), rounds=3)
    found = search(leaves, Matrices.identity(4, leaves), sets, TwoLayerScorer(4, 8))
    assert found.vectors[:, 0].eq(0).all()
    assert found.runners[:, 0].eq(-1).all()
    assert found.runners[0, 1].ge(0).all()


def test_a_sample_does_not_depend_on_its_neighbours():
    matrices, leaves, scorer = random_matrices(3, 4), random_leaves(3, 6, 4), TwoLayerScorer(4, 8)
    whole = search(leaves, matrices, Sets(tuples=3, rounds=5), scorer)
    part = search(leaves[:, 2:4], matrices, Sets(tuples=3, rounds=5), scorer)
    assert torch.equal(whole.choices[:, 2:4], part.choices)


def test_the_gradient_is_that_of_the_unrolled_tree():
    """Through every chosen path: leaves and weights, against autograd on the tree written out."""
    sets, batch, size = Sets(tuples=3, rounds=5), 4, 4
    matrices, leaves = random_matrices(3, size, identity=True), random_leaves(3, batch, size)
    parameters = [matrices.left, matrices.right, matrices.bias, leaves]
    for tensor in parameters:
        tensor.requires_grad_()
    found = search(leaves, matrices, sets, TwoLayerScorer(size, 8))
    cotangent = torch.randn(batch, size)
    ours = torch.autograd.grad((grow(leaves, found, matrices, sets)[-1] * cotangent).sum(), parameters)
    total = 0.0
    for b in range(batch):
        tree = tree_of(found.choices[:, b].tolist(), ("x", "h", "0"), sets)
        named = dict(zip(("x", "h", "0"), leaves[:, b], strict=True))
        total = total + (evaluate_tree(tree, named, matrices)[tree] * cotangent[b]).sum()
    theirs = torch.autograd.grad(total, parameters)
    torch.testing.assert_close(ours, theirs)


def test_the_layers_gradient_passes_gradcheck():
    layer, xs = RRNN(3, 3, tuples=2, rounds=3, scorer=6), torch.randn(3, 2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], (xs,))


# -- expressibility ------------------------------------------------------------------------------------------------


def gru_nodes(cell, x, h):
    """(1)-(4), node by node, in the order of the proof of Theorem 5."""
    gates = x @ cell.weight_ih.mT + cell.bias
    w_r, w_z, w_h = cell.weight_hh.chunk(3)
    g_r, g_z, g_h = gates.chunk(3, dim=1)
    r, z = torch.sigmoid(g_r + h @ w_r.mT), torch.sigmoid(g_z + h @ w_z.mT)
    candidate = torch.tanh(g_h + (r * h) @ w_h.mT)
    return [r, z, r * h, 1 - z, candidate, z * h, (1 - z) * candidate, z * h + (1 - z) * candidate]


@pytest.mark.parametrize("seed", range(3))
def test_theorem_5_algorithm_1_is_the_gru(seed):
    """With the printed sets and a score that ranks the wanted vectors first: tree and vector, for random x and h."""
    torch.manual_seed(seed)
    size, batch = 6, 4
    cell = GRUCell(size, size, reset="before")
    x, h = torch.randn(2, batch, size)
    with torch.no_grad():
        nodes = torch.stack(gru_nodes(cell, x, h))
        eye = torch.eye(size)[None]
        matrices = Matrices(
            torch.cat((cell.weight_ih.view(3, size, size), eye)),
            torch.cat((cell.weight_hh.view(3, size, size), eye)),
            torch.cat((cell.bias.view(3, size), torch.zeros(1, size))),
        )
        found = search(torch.stack((x, h, torch.zeros_like(x))), matrices, GRU_SETS, RankingScorer(nodes, sigma=1e-6))
        torch.testing.assert_close(found.vectors[-1], cell(x, h))
        torch.testing.assert_close(found.vectors, nodes)
    for b in range(batch):
        assert tree_of(found.choices[:, b].tolist(), ("x", "h", "0"), GRU_SETS) == gru_tree()


@pytest.mark.parametrize("seed", range(3))
def test_theorem_6_algorithm_1_applied_twice_is_the_lstm(seed):
    """The second run must also see the nodes of the first: with the printed sets alone it has no way to o_t."""
    torch.manual_seed(seed)
    size, batch = 6, 4
    teacher = LSTMCell(size, size)
    x, h, c = torch.randn(3, batch, size)
    with torch.no_grad():
        i, f, g, o = (teacher.drive(x) + h @ teacher.weight_hh.mT).chunk(4, dim=1)
        i, f, o, g = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o), torch.tanh(g)
        new_c = c * f + i * g
        first = torch.stack([f, i, o, g, c * f, i * g, new_c])
        second = torch.stack([torch.tanh(new_c), o * torch.tanh(new_c)])
        scorers = [RankingScorer(first, sigma=1e-6), RankingScorer(second, sigma=1e-6)]
        cell = RRNNCell(size, size, sets=LSTM_SETS, names=("c", "h"), carry_pool=True, scorer=scorers)
        order = [1, 0, 3, 2]  # f, i, o, c̃ of the teacher's i, f, g, o
        own = cell.tuples[0]
        own.left.copy_(teacher.weight_ih.view(4, size, size)[order])
        own.right.copy_(teacher.weight_hh.view(4, size, size)[order])
        own.bias.copy_(teacher.bias.view(4, size)[order])
        new, grown = cell.grown_step(cell.drive(x), (h, c), cell.weights())
        torch.testing.assert_close(new, teacher(x, (h, c)))
        torch.testing.assert_close(grown[0].vectors, first)
    layer = RRNN(size, size, sets=LSTM_SETS, names=("c", "h"), carry_pool=True, scorer=scorers)
    layer.l0.load_state_dict(cell.state_dict())
    record = layer.trace(x[None], (h[None], c[None])).records[0]
    for b in range(batch):
        assert (record.tree(0, b, state=0), record.tree(0, b, state=1)) == lstm_trees()


def test_the_printed_second_run_of_theorem_6_cannot_reach_the_lstm():
    """S_prev = {h, c, c'}, the identity tuple and two rounds: no pair of rounds gives o ⊙ tanh(c')."""
    torch.manual_seed(0)
    size = 5
    teacher, (x, h, c) = LSTMCell(size, size), torch.randn(3, 1, size)
    with torch.no_grad():
        wanted, new_c = teacher(x, (h, c))
        leaves = torch.cat((x, h, c, torch.zeros(1, size), new_c))
        second = LSTM_SETS[1]
        eye, every = Matrices.identity(size, leaves), []
        for j in range(5):
            for i in range(j):
                every += algorithm_candidates(leaves, i, j, eye, second)
        for v in every:
            pool = torch.cat((leaves, v[None]))
            for i in range(5):
                for w in algorithm_candidates(pool, i, 5, eye, second):
                    assert (w - wanted[0]).abs().max() > 1e-3


def algorithm_candidates(pool, i, j, matrices, sets):
    from holdfast.rrnn import candidates

    inner = [(i, j, 0, o, u) for o in range(len(sets.operators)) for u in range(len(sets.activations))]
    return list(candidates(pool[:, None], torch.tensor(inner)[:, None], matrices, sets)[:, 0])


def test_lemma_1_repaired_ranks_and_as_printed_does_not():
    """Weights n..1 and a small σ order the vectors; weights 1..n and the printed large σ do not."""
    vectors = torch.randn(6, 4)
    order = RankingScorer(vectors)(vectors).argsort(descending=True)
    assert order.tolist() == list(range(6))
    distance = (vectors[:, None] - vectors[None]).square().sum(dim=2)
    half_smallest = 0.5 * distance[~torch.eye(6, dtype=torch.bool)].min()
    sigma_sq = half_smallest / (torch.log(torch.tensor(36.0)) - torch.log(torch.tensor(35.0)))
    printed = (torch.arange(1, 7) * torch.exp(-distance / (2 * sigma_sq))).sum(dim=1)
    assert printed.argsort(descending=True).tolist() != list(range(6))


# -- normalisation -------------------------------------------------------------------------------------------------


def test_candidates_are_normalised_over_their_birth():
    """Mean 0 and variance 1 over all candidates of the first birth, whichever way they are scored."""
    torch.manual_seed(0)
    size, batch, sets = 4, 5, Sets(tuples=2, identity=False, rounds=1)
    matrices, leaves, scorer = random_matrices(2, size), random_leaves(3, batch, size), TwoLayerScorer(size, 8)
    norm = BirthNorm(size, 1)
    found = search(leaves, matrices, sets, scorer, norm=norm)
    every = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        for r in range(2):
            for o in range(2):
                for u in range(4):
                    choice = torch.tensor([i, j, r, o, u]).expand(1, batch, 5)
                    from holdfast.rrnn import candidates

                    every.append(candidates(leaves, choice, matrices, sets)[0])
    every = torch.stack(every).flatten(0, 1)
    torch.testing.assert_close(found.statistics[0, 0], every.mean(dim=0))
    torch.testing.assert_close(found.statistics[0, 1], every.var(dim=0, correction=0))
    torch.testing.assert_close(norm.mean[0], 0.1 * every.mean(dim=0))


@pytest.mark.parametrize("training", [True, False])
def test_the_folded_normalisation_is_the_plain_one(training):
    size, sets = 4, Sets(tuples=2, rounds=4)
    matrices, leaves, scorer = random_matrices(2, size, identity=True), random_leaves(3, 5, size), TwoLayerScorer(4, 8)
    results = []
    for it in (scorer, Wrapped(scorer)):
        norm = BirthNorm(size, 4).train(training)
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
        torch.manual_seed(1)
        norm.mean.normal_()
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))
            norm.bias.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
        found = search(leaves, matrices, sets, it, norm=norm)
        torch.testing.assert_close(grow(leaves, found, matrices, sets, norm), found.vectors)
        results.append(found)
    assert torch.equal(results[0].choices, results[1].choices)
    torch.testing.assert_close(results[0].vectors, results[1].vectors)


def test_what_overflows_is_found_and_the_search_ends():
    """Samples of huge numbers, infinities and NaN beside an ordinary one, which is as it is alone."""
    matrices, scorer, sets = random_matrices(2, 4), TwoLayerScorer(4, 8), Sets(tuples=2, identity=False, rounds=6)
    leaves = random_leaves(3, 5, 4)
    leaves[0, 0], leaves[0, 1], leaves[0, 2], leaves[0, 3] = 1e300, torch.inf, torch.nan, 1e150
    found = search(leaves, matrices, sets, scorer)
    alone = search(leaves[:, 4:], matrices, sets, scorer)
    assert torch.equal(found.choices[:, 4:], alone.choices)
    assert not found.vectors[:, 2].isfinite().all()
