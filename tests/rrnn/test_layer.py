"""RRNN and RRNN-GRU as layers: shapes, states, phases, the parts of loss (6)."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast import GRUCell
from holdfast.errors import SettingError, ShapeError
from holdfast.rrnn import (
    ACTIVATIONS,
    LSTM_SETS,
    OPERATORS,
    RRNN,
    RRNNGRU,
    Matrices,
    RRNNCell,
    RRNNGRUCell,
    Sets,
    Target,
    Tree,
    TreeLoss,
    evaluate_tree,
    gru_target,
    gru_tree,
    isomorphic,
    ridge,
    score_margin,
    soft_search,
    tree_distance,
)
from holdfast.rrnn.loss import parts_of
from holdfast.rrnn.record import Grown
from holdfast.rrnn.scorer import TwoLayerScorer

LAYERS = [
    pytest.param(lambda **more: RRNN(4, 4, rounds=3, tuples=2, scorer=6, **more), id="rrnn"),
    pytest.param(lambda **more: RRNN(4, 4, rounds=2, tuples=2, scorer=6, choice="soft", **more), id="rrnn-soft"),
    pytest.param(
        lambda **more: RRNN(4, 4, rounds=3, tuples=2, scorer=6, batch_norm=True, **more).eval(), id="rrnn-norm"
    ),
    # compiled steps are held to plain ones in test_gru.py; here compilation would take most of the time
    pytest.param(lambda **more: RRNNGRU(4, 4, scorer=6, backend="reference", **more), id="rrnn-gru"),
    pytest.param(
        lambda **more: RRNNGRU(4, 4, scorer=6, choice="hard", backend="reference", **more), id="rrnn-gru-hard"
    ),
    pytest.param(
        lambda **more: RRNNGRU(4, 4, scorer=6, setting="published code", backend="reference", **more),
        id="rrnn-gru-code",
    ),
]


@pytest.mark.parametrize("make", LAYERS)
def test_a_layer_is_its_cell_step_after_step(make):
    layer, xs, h = make(), torch.randn(5, 3, 4), torch.randn(1, 3, 4)
    output, h_n = layer(xs, h)
    state = h[0]
    for t, x in enumerate(xs):
        state = layer.l0(x, state)
        torch.testing.assert_close(output[t], state)
    torch.testing.assert_close(h_n[0], state)


@pytest.mark.parametrize("make", LAYERS)
def test_layers_stack_turn_round_and_take_packed_and_unbatched_sequences(make):
    xs, lengths = torch.randn(5, 3, 4), torch.tensor([3, 5, 1])
    output, h_n = make(num_layers=1, batch_first=True)(xs.transpose(0, 1))
    assert (output.shape, h_n.shape) == ((3, 5, 4), (1, 3, 4))
    both = make(bidirectional=True)
    assert both(xs)[0].shape == (5, 3, 8)
    layer = make()
    packed = pack_padded_sequence(xs, lengths, enforce_sorted=False)
    padded, h_n = layer(packed)[0], layer(packed)[1]
    padded = pad_packed_sequence(padded)[0]
    for b, length in enumerate(lengths):
        alone, last = layer(xs[:length, b])
        torch.testing.assert_close(padded[:length, b], alone)
        torch.testing.assert_close(h_n[:, b], last)


def test_evaluation_without_gradients_is_training_without_noise():
    layer, xs = RRNN(4, 4, rounds=4, scorer=8), torch.randn(5, 3, 4)
    with torch.no_grad():
        plain = layer(xs)[0]
    torch.testing.assert_close(plain, layer(xs)[0].detach())


def test_an_input_of_another_length_is_multiplied_into_the_pool():
    layer = RRNN(2, 4, rounds=2)
    assert layer(torch.randn(5, 3, 2))[0].shape == (5, 3, 4)
    assert layer.l0.input_map.weight.shape == (4, 2)
    assert isinstance(RRNN(4, 4).l0.input_map, nn.Identity)


def test_several_state_vectors_come_output_first():
    """Appendix B: state M is the output; run i also sees the new states before it."""
    layer = RRNN(4, 4, states=2, rounds=2, tuples=2, scorer=5)
    output, (h2, h1) = layer(torch.randn(3, 2, 4))
    torch.testing.assert_close(output[-1], h2[0])
    assert h1.shape == (1, 2, 4)
    assert layer.l0.leaf_names == (("x", "h1", "h2", "0"), ("x", "h1", "h2", "0", "h1'"))
    carried = RRNNCell(4, 4, sets=LSTM_SETS, names=("c", "h"), carry_pool=True)
    assert carried.leaf_names[1] == ("x", "c", "h", "0", "c'", 0, 1, 2, 3, 4, 5)


def test_the_identity_tuple_is_frozen_and_counts_no_parameters():
    cell = RRNNCell(5, 5, tuples=4, scorer=6)
    assert sum(weight.numel() for weight in cell.tuples.parameters()) == 3 * (2 * 25 + 5)
    assert torch.equal(cell.tuples[0]().left[3], torch.eye(5))
    free = RRNNCell(5, 5, tuples=4, identity=False, scorer=6)
    assert sum(weight.numel() for weight in free.tuples.parameters()) == 4 * (2 * 25 + 5)


def test_weights_start_at_the_norm_that_is_asked_for():
    own = RRNNCell(5, 5, tuples=3, start_norm=0.223, scorer=6).tuples[0]
    norms = torch.linalg.matrix_norm(torch.cat((own.left, own.right)), ord=2).detach()
    torch.testing.assert_close(norms, torch.full((4,), 0.223))
    with pytest.raises(SettingError, match="start_norm"):
        RRNNCell(5, 5, start_norm=0.0)


def test_auxiliary_vectors_are_in_the_pool():
    cell = RRNNCell(3, 3, auxiliary=("0", "1", "e2"), rounds=1)
    assert cell.leaf_names == (("x", "h", "0", "1", "e2"),)
    _, (grown,) = cell.grown_step(torch.randn(2, 3), cell.initial_state(2), cell.weights())
    assert grown.leaves[2:, 0].tolist() == [[0, 0, 0], [1, 1, 1], [0, 1, 0]]


def test_bad_settings_are_named():
    for options, words in (
        ({"operators": ["plus"]}, "add, mul, max"),
        ({"activations": []}, "sigmoid"),
        ({"rounds": 0}, "rounds"),
        ({"choice": "best"}, "one of hard, soft"),
        ({"choice": "soft", "batch_norm": True}, "batch_norm"),
        ({"batch_norm": "candidate"}, "batch_norm"),
        ({"loss": TreeLoss(tree=1.0, forms="nodes")}, "RRNN-GRU alone"),
        ({"auxiliary": ["e9"]}, "e4"),
        ({"states": 2, "scorer": [4]}, "2 scorers"),
        ({"names": ["a", "b"]}, "each of its 1"),
    ):
        with pytest.raises(SettingError, match=words):
            RRNN(4, 4, **options)
    with pytest.raises(ShapeError, match="got"):
        RRNN(4, 4)(torch.randn(3, 2, 5))
    with pytest.raises(SettingError, match="2 tuples"):
        RRNNGRU(4, 4, tuples=1)


# -- soft choice ---------------------------------------------------------------------------------------------------


def test_a_soft_choice_with_sharp_scores_is_the_hard_one():
    """As scores are scaled up, softmax becomes argmax."""

    class Sharp(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, v):
            return 1e6 * self.inner(v)

    scorer, xs = TwoLayerScorer(4, 8), torch.randn(3, 2, 4)
    hard = RRNN(4, 4, rounds=3, tuples=2, scorer=scorer)
    soft = RRNN(4, 4, rounds=3, tuples=2, scorer=Sharp(scorer), choice="soft")
    soft.l0.tuples.load_state_dict(hard.l0.tuples.state_dict())
    torch.testing.assert_close(soft(xs)[0], hard(xs)[0])
    assert torch.equal(soft.trace(xs).records[0].choices[0], hard.trace(xs).records[0].choices[0])


def test_a_soft_choice_trains_the_scorer_and_a_hard_one_does_not():
    xs = torch.randn(3, 2, 4)
    for choice, trained in (("soft", True), ("hard", False)):
        layer = RRNN(4, 4, rounds=2, identity=False, scorer=6, choice=choice)
        layer(xs)[0].square().sum().backward()
        gradients = [weight.grad for weight in layer.l0.scorers.parameters()]
        assert any(grad is not None and grad.abs().max() > 0 for grad in gradients) is trained
        assert layer.l0.tuples[0].left.grad.abs().max() > 0


def test_soft_weights_are_a_softmax_over_all_candidates_once():
    """One round: Σ softmax(α(v)) v over every candidate, by hand."""
    sets, leaves = Sets(tuples=1, rounds=1, operators=("add",), activations=("tanh", "identity")), torch.randn(3, 1, 4)
    scorer, eye = TwoLayerScorer(4, 8), Matrices.identity(4, leaves)
    found, best, second = soft_search(leaves, eye, sets, scorer)
    pairs = [leaves[i, 0] + leaves[j, 0] for i, j in ((0, 1), (0, 2), (1, 2))]
    v = torch.stack([u(z) for z in pairs for u in (torch.tanh, lambda z: z)])
    scores = scorer(v)
    torch.testing.assert_close(found.vectors[0, 0], torch.softmax(scores, dim=0) @ v)
    top = scores.sort(descending=True).values
    torch.testing.assert_close((best[0, 0], second[0, 0]), (top[0], top[1]))


def plain_soft(leaves, matrices, sets, scorer, normalise, rules="algorithm 1"):
    """Every round from the pool, candidate by candidate, sample by sample: nodes, choices, best and second scores."""
    pool, count, batch = list(leaves), len(leaves), leaves.shape[1]
    nodes, choices, best, second = [], [], [], []
    used = [set() for _ in range(batch)]  # the nodes of the pool that each sample has joined already
    for k in range(sets.rounds):
        v, names, large = [], [], []
        for right in range(len(pool)):
            for left, r, o, u in itertools.product(range(right), range(sets.tuples), sets.operators, sets.activations):
                z = OPERATORS[o].apply(pool[left] @ matrices.left[r].mT, pool[right] @ matrices.right[r].mT)
                z = z + matrices.bias[r]
                it = ACTIVATIONS[u].apply(z)
                v.append((it - it.mean()) / (it.var(correction=0) + 1e-5).sqrt() if normalise else it)
                names.append((left, right, r, o, u))
                large.append(bool(z.abs().max() > 1))
        allowed = [
            [
                permitted(rules, k, name, is_large, sets, count, used[b])
                for name, is_large in zip(names, large, strict=True)
            ]
            for b in range(batch)
        ]
        means, weights = [], []
        for b in range(batch):
            rows = torch.stack([it[b] for it in v])
            seen = [any((row - node[b]).abs().max() < 1e-9 for node in pool[count:]) for row in rows]
            if rules != "algorithm 1":
                seen = [not it for it in allowed[b]]
            where = torch.tensor([i for i, it in enumerate(seen) if not it or all(seen)])
            kept = rows[where]
            scores = scorer(kept)
            means.append(torch.softmax(scores, dim=0) @ kept)
            weights.append((where, scores))
            top = kept[scores.argmax()]
            rest = scores[[bool((row - top).abs().max() > 1e-9) for row in kept]]
            best.append(scores.max())
            second.append(rest.max() if len(rest) else scores.new_tensor(-torch.inf))
        for b, (where, scores) in enumerate(weights):
            if rules == "published code":  # one tree per batch, of the highest sum
                scores = torch.stack([scores for _, scores in weights]).sum(dim=0)
            left, right, r, o, u = names[where[scores.argmax()]]
            used[b] |= {left, right}
            choices.append((left, right, r, sets.operators.index(o), sets.activations.index(u)))
        pool.append(torch.stack(means))
        nodes.append(pool[-1])
    shape = (sets.rounds, batch)
    scores = [torch.stack(it).view(shape) for it in (best, second)]
    return torch.stack(nodes), torch.tensor(choices).view(*shape, 5), scores


def permitted(rules, k, name, large, sets, count, used):
    """Whether round k may join these nodes in this way, where ``used`` are joined already."""
    left, right, r, _, u = name
    if rules == "multiset":
        return not {left, right} & used
    inner = {node for node in (left, right) if node >= count}
    if inner & used or (large and u not in ("sigmoid", "tanh")):
        return False
    if k < 2 and r != min(k, sets.tuples - 1):
        return False
    loose = k - len([node for node in used if node >= count])  # inner nodes without a parent
    return loose + 1 - len(inner) <= sets.rounds - k  # a round joins two at most, so the rounds left can join them all


@settings(max_examples=24, deadline=None)
@given(
    rules=st.sampled_from(["algorithm 1", "multiset", "published code"]), rounds=st.integers(1, 3),
    tuples=st.integers(1, 2), batch=st.integers(1, 3), normalise=st.booleans(), sharp=st.sampled_from([1.0, 1e7]),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_soft_rounds_are_those_candidate_by_candidate(rules, rounds, tuples, batch, normalise, sharp, seed):
    """In values, choices and gradients; with sharp scores a node of Algorithm 1 is a candidate, which is then left out.

    A multiset has as many leaves as join into one tree.
    """
    torch.manual_seed(seed)
    sets = Sets(tuples=tuples, rounds=rounds, identity=False, activations=("tanh", "one_minus"))
    leaves = torch.randn(rounds + 1 if rules == "multiset" else 3, batch, 4, requires_grad=True)
    spread = 0.3 if rules == "published code" else 1.0  # some products are within 1 there, and some are not
    matrices = Matrices(*((spread * torch.randn(tuples, *shape)).requires_grad_() for shape in ((4, 4), (4, 4), (4,))))
    scorer = TwoLayerScorer(4, 3)
    with torch.no_grad():
        scorer.weight_out *= sharp
    found, *scores = soft_search(leaves, matrices, sets, scorer, normalise=normalise, rules=rules)
    wanted, choices, plain_scores = plain_soft(leaves, matrices, sets, scorer, normalise, rules)
    torch.testing.assert_close(found.vectors, wanted)
    torch.testing.assert_close(scores, plain_scores)
    ours, plain = [found.vectors, scores[0]], [wanted, plain_scores[0]]
    if rules != "algorithm 1":  # where equal vectors have several names
        assert torch.equal(found.choices, choices)
    every = [leaves, matrices.left, matrices.right, matrices.bias, *scorer.parameters()]
    if sharp == 1.0:  # else the softmax is one-hot and its gradient is rounding
        cotangents = [torch.randn_like(it) for it in plain]
        both = (torch.autograd.grad(it, every, cotangents, allow_unused=True) for it in (ours, plain))
        for mine, theirs in zip(*both, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_normalised_candidates_do_not_depend_on_scale_or_shift():
    """(2): every candidate has mean 0 and variance 1 over batch and entries, so mixtures have entries of order 1."""
    layer = RRNN(4, 4, rounds=2, scorer=6, choice="soft", batch_norm="candidate", identity=False)
    small, large = (layer.l0.step(it, (torch.zeros(3, 4),), layer.l0.weights())[0] for it in torch.randn(2, 3, 4))
    assert max(small.abs().max(), large.abs().max()) <= 12**0.5  # n entries of variance 1: none is above √n


def leaves_of(tree):
    return [tree] if isinstance(tree, str) else [leaf for child in tree.children for leaf in leaves_of(child)]


def test_in_a_multiset_every_copy_is_used_once():
    """§3.1: the last round joins the two nodes that are left, so the tree has all leaves and one node per round."""
    layer = RRNN(3, 3, rules="multiset", copies=(2, 3), rounds=5, choice="soft", scorer=5, tuples=2, identity=False)
    record = layer.trace(torch.randn(4, 3, 3)).records[0]
    for t, b in itertools.product(range(4), range(3)):
        tree = record.tree(t, b)
        assert sorted(leaves_of(tree)) == ["0", "h", "h", "h", "x", "x"]
        assert tree.size == 5
    assert len(set(record.count())) > 1  # every sample has its own


def test_the_rules_of_the_published_code():
    """Nodes once and all in the tree; tuples 1 and 2 first; one tree per batch; large entries only under σ and tanh."""
    activations = ("sigmoid", "tanh", "one_minus", "identity", "relu")
    layer = RRNN(
        3, 3, rules="published code", rounds=9, choice="soft", scorer=5, tuples=4, identity=False,
        activations=activations, batch_norm="candidate",
    )  # fmt: skip
    trace = layer.trace(3 * torch.randn(4, 3, 3))
    choices = trace.records[0].choices[0]  # (time, batch, rounds, 5)
    assert (choices == choices[:, :1]).all()
    assert (choices[:, :, 0, 2] == 0).all()
    assert (choices[:, :, 1, 2] == 1).all()
    ((grown,),), matrices = trace.grown, layer.l0.tuples[0]()
    for t in range(4):
        tree = trace.records[0].tree(t, 0)
        assert tree.size == 9  # nothing is used twice, and nothing is lost
        nodes = torch.cat((grown.leaves[:, t], grown.vectors[:, t]))
        for left, right, index, operator, activation in choices[t, 0].tolist():
            z = OPERATORS[("add", "mul")[operator]].apply(
                nodes[left] @ matrices.left[index].mT, nodes[right] @ matrices.right[index].mT
            )
            assert (z + matrices.bias[index]).abs().max() <= 1 or activations[activation] in ("sigmoid", "tanh")


def test_a_round_by_rules_is_a_softmax_over_what_is_left():
    """The first round of the published code has the first tuple alone."""
    sets, leaves = (
        Sets(tuples=2, rounds=1, identity=False, operators=("add",), activations=("tanh",)),
        torch.randn(2, 2, 4),
    )
    matrices = Matrices(torch.randn(2, 4, 4), torch.randn(2, 4, 4), torch.randn(2, 4))
    found, _, second = soft_search(leaves, matrices, sets, TwoLayerScorer(4, 3), rules="published code")
    only = torch.tanh(leaves[0] @ matrices.left[0].mT + leaves[1] @ matrices.right[0].mT + matrices.bias[0])
    torch.testing.assert_close(found.vectors[0], only)
    assert (second == -torch.inf).all()
    for options, words in (
        ({"rules": "multiset"}, "soft choice"),
        ({"rules": "multiset", "choice": "soft", "rounds": 4}, "2 rounds"),
        ({"copies": (2, 2)}, "multiset"),
        ({"rules": "all"}, "algorithm 1"),
    ):
        with pytest.raises(SettingError, match=words):
            RRNN(4, 4, **options)
    with pytest.raises(SettingError, match="expect sigmoid or tanh among the activations, got relu"):
        soft_search(
            leaves, matrices, Sets(tuples=2, activations=("relu",)), TwoLayerScorer(4, 3), rules="published code"
        )


# -- RRNN-GRU ------------------------------------------------------------------------------------------------------


def test_rrnn_gru_with_a_score_that_knows_is_the_gru():
    """Hard choice, and a score that likes the GRU's own node vectors: equations (1)-(4)."""
    size, batch = 5, 3
    teacher, x, h = GRUCell(size, size, reset="before"), torch.randn(batch, size), torch.randn(batch, size)
    target = gru_target(teacher)
    nodes = target.vectors({"x": x, "h": h, "0": torch.zeros_like(x)})

    class Knows(nn.Module):
        def forward(self, v):  # (batch, tuples, p)
            apart = (v[None] - nodes[:, :, None]).abs().amax(dim=-1)
            first = (v - torch.sigmoid(x @ teacher.weight_ih[:size].mT + h @ teacher.weight_hh[:size].mT
                                       + teacher.bias[:size])[:, None]).abs().amax(dim=-1) < 1e-9  # fmt: skip
            return (apart.amin(dim=0) < 1e-9).to(v) + first.to(v)  # r before z

    cell = RRNNGRUCell(size, size, scorer=Knows(), choice="hard")
    with torch.no_grad():
        for own, theirs in zip(
            (cell.tuples.left, cell.tuples.right, cell.tuples.bias),
            (teacher.weight_ih.view(3, size, size), teacher.weight_hh.view(3, size, size), teacher.bias.view(3, size)),
            strict=True,
        ):
            own.copy_(theirs)
        torch.testing.assert_close(cell(x, h), teacher(x, h))
    layer = RRNNGRU(size, size, scorer=Knows(), choice="hard")
    layer.l0.load_state_dict(cell.state_dict())
    record = layer.trace(x[None], h[None]).records[0]
    assert all(record.tree(0, b) == gru_tree() for b in range(batch))


def test_rrnn_gru_keeps_the_gru_tree_whatever_it_chooses():
    record = RRNNGRU(4, 4, scorer=6, backend="reference").trace(torch.randn(3, 5, 4)).records[0]
    assert set(record.count()) == {gru_tree(tuples=False)}


@pytest.mark.parametrize("choice", ["soft", "hard"])
def test_r_and_z_have_the_same_candidates_and_different_tuples(choice):
    tuples = RRNNGRU(4, 4, scorer=6, choice=choice, backend="reference").trace(torch.randn(6, 5, 4)).records[0].tuples
    assert (tuples[..., 0] != tuples[..., 1]).all()


def test_phases_alternate_and_what_rests_does_not_move():
    """Weights for n epochs, then the scorer for n; the readout always."""
    layer, readout = RRNNGRU(4, 4, scorer=6, alternate=2, backend="reference"), nn.Linear(4, 1)
    xs = torch.randn(3, 5, 4)
    optimiser = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=1e-2)
    for epoch in range(6):
        layer.at_epoch(epoch)
        cell = layer.l0
        groups = {"weights": cell.tuples, "scorer": cell.scorer, "readout": readout}
        before = {name: [weight.detach().clone() for weight in group.parameters()] for name, group in groups.items()}
        optimiser.zero_grad()
        readout(layer(xs)[0]).square().sum().backward()
        optimiser.step()
        moved = {
            name
            for name, group in groups.items()
            if any(not torch.equal(a, b) for a, b in zip(before[name], group.parameters(), strict=True))
        }
        assert moved == {"readout", "scorer" if epoch in (2, 3) else "weights"}


# -- loss (6) ------------------------------------------------------------------------------------------------------


def test_the_margin_is_one_at_most_and_its_gradient_is_finite_without_a_runner_up():
    best = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    margin = score_margin(best, torch.tensor([0.5, -4.0, -torch.inf]), threshold=2.0)
    assert margin.tolist() == [-0.25, -1, -1]
    assert torch.autograd.grad(margin.sum(), best)[0].tolist()[0] == -0.5
    assert torch.autograd.grad(score_margin(best, torch.full((3,), -torch.inf)).sum(), best)[0].tolist() == [0, 0, 0]


def test_the_parts_of_loss_6_are_those_by_hand():
    """Against trees built one by one, their distances to every isomorphic form, and scores evaluated on their own."""
    loss = TreeLoss(tree=1.0, margin=1.0, ridge=1.0, threshold=0.5, target=(Target(SMALL_TARGET),))
    layer, readout, xs = RRNN(3, 3, rounds=3, tuples=2, scorer=5, loss=loss), nn.Linear(3, 2), torch.randn(4, 2, 3)
    layer(xs)
    (parts,) = layer.loss_parts(readout.parameters())
    torch.testing.assert_close(layer.penalty(readout.parameters()), parts.tree + parts.margin + parts.ridge)
    with torch.no_grad():
        trace = layer.trace(xs, scores=True)
        (record,), ((grown,),) = trace.records, trace.grown
        cell, eye = layer.l0, Matrices.identity(3, xs)
        tree = margin = 0.0
        for t, b in itertools.product(range(4), range(2)):
            named = dict(zip(("x", "h", "0"), grown.leaves[:, t, b], strict=True))
            found = record.tree(t, b)
            vectors = evaluate_tree(found, named, cell.tuples[0]())
            forms = isomorphic(SMALL_TARGET)
            tree += min(tree_distance(found, vectors, form, evaluate_tree(form, named, eye)) for form in forms) / 2
            gaps = grown.best[:, t, b] - grown.second[:, t, b]
            margin += -(gaps.clamp_max(0.5) / 0.5).sum() / 2
        torch.testing.assert_close(parts.tree, torch.as_tensor(tree))
        torch.testing.assert_close(parts.margin, margin)
        torch.testing.assert_close(grown.best, cell.scorers[0](grown.vectors))
        torch.testing.assert_close(parts.ridge, ridge([*cell.parameters(), *readout.parameters()]))


SMALL_TARGET = Tree("mul", "identity", None, "h", Tree("add", "sigmoid", None, "x", "h"))


def test_over_the_batch_the_parts_are_a_mean_or_a_sum_by_hand():
    """One node per tree, two steps, two samples, the second of length 1; the ridge has no samples and stays."""
    x, h, node = torch.tensor([[1.0, 2.0], [1.0, 9.0]]), torch.ones(2, 2), torch.tensor([[4.0, 3.0], [0.0, 5.0]])
    leaves = torch.stack((x, h, torch.zeros(2, 2)))[..., None]
    choices = torch.tensor([0, 1, 0, 0, 0]).expand(1, 2, 2, 5)
    best, second = torch.tensor([[[2.0, 2.0], [1.0, 0.0]]]), torch.tensor([[[1.5, -7.0], [0.0, 0.0]]])
    grown = Grown(leaves, choices, node[None, ..., None], best, second)
    weights, target = [torch.tensor([3.0])], (Target(Tree("add", "identity", None, "x", "h")),)
    # ‖node - (x + h)‖² is 4, 0 and 4, then 25; the gaps are 0.5, 9 and 1, then 0, and at most M = 2
    for over, lengths, tree, margin in (
        ("sum", None, 33.0, -(0.25 + 1 + 0.5)),
        ("mean", None, 33.0 / 2, -(0.25 + 1 + 0.5) / 2),
        ("sum", torch.tensor([2, 1]), 8.0, -(0.25 + 1 + 0.5)),
        ("mean", torch.tensor([2, 1]), 8.0 / 2, -(0.25 + 1 + 0.5) / 2),
    ):
        loss = TreeLoss(tree=1.0, margin=1.0, ridge=1.0, threshold=2.0, target=target, over_batch=over)
        parts = parts_of([grown], [("x", "h", "0")], loss, weights, lengths)
        assert (parts.tree.item(), parts.margin.item(), parts.ridge.item()) == (tree, margin, 9.0)


def test_the_margin_trains_the_scorer():
    layer = RRNN(4, 4, rounds=3, scorer=6, loss=TreeLoss(margin=1.0, threshold=100.0))
    layer(torch.randn(3, 2, 4))
    layer.penalty().backward()
    assert all(weight.grad is not None for weight in (layer.l0.scorers[0].weight, layer.l0.tuples[0].left))


def test_padding_counts_in_no_part():
    xs, lengths = torch.randn(5, 3, 4), torch.tensor([3, 5, 1])
    layer = RRNN(4, 4, rounds=2, scorer=6, loss=TreeLoss(tree=1.0, margin=1.0))
    layer(pack_padded_sequence(xs, lengths, enforce_sorted=False))
    (padded,) = layer.loss_parts()
    each = []
    for b, length in enumerate(lengths):
        layer(xs[:length, b])
        each.append(layer.loss_parts()[0])
    torch.testing.assert_close(padded.tree, torch.stack([part.tree for part in each]).sum() / 3)
    torch.testing.assert_close(padded.margin, torch.stack([part.margin for part in each]).sum() / 3)


def test_a_layer_at_the_lstm_is_at_no_distance_from_it():
    """Two state vectors, the second run using nodes of the first: TD to the teacher's own trees is zero."""
    from holdfast import LSTMCell
    from holdfast.rrnn import RankingScorer, lstm_targets

    size, batch = 4, 2
    teacher, (x, h, c) = LSTMCell(size, size), torch.randn(3, batch, size)
    with torch.no_grad():
        i, f, g, o = (teacher.drive(x) + h @ teacher.weight_hh.mT).chunk(4, dim=1)
        i, f, o, g = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o), torch.tanh(g)
        new = c * f + i * g
        first, second = (
            torch.stack([f, i, o, g, c * f, i * g, new]),
            torch.stack([torch.tanh(new), o * torch.tanh(new)]),
        )
    layer = RRNN(
        size, size, sets=LSTM_SETS, names=("c", "h"), carry_pool=True,
        scorer=[RankingScorer(first, sigma=1e-6), RankingScorer(second, sigma=1e-6)],
        loss=TreeLoss(tree=1.0, target=lstm_targets(teacher)),
    )  # fmt: skip
    with torch.no_grad():
        own = layer.l0.tuples[0]
        for mine, theirs in ((own.left, teacher.weight_ih), (own.right, teacher.weight_hh), (own.bias, teacher.bias)):
            mine.copy_(theirs.view(4, *mine.shape[1:])[[1, 0, 3, 2]])
    layer(x[None], (h[None], c[None]))
    (parts,) = layer.loss_parts()
    assert parts.tree < 1e-20


def test_parts_are_asked_for_after_a_training_call_with_weights():
    with pytest.raises(SettingError, match="expects a loss"):
        RRNN(4, 4, rounds=1).loss_parts()
    assert RRNN(4, 4, rounds=1).penalty() is None
    with pytest.raises(SettingError, match="a call in training mode with gradients"):
        RRNN(4, 4, rounds=1, loss=TreeLoss(tree=1.0)).penalty()
    for options, words in (
        ({"tree": -1.0}, "tree"),
        ({"threshold": 0.0}, "threshold"),
        ({"forms": "all"}, "given"),
        ({"over_batch": "max"}, "mean, sum"),
    ):
        with pytest.raises(SettingError, match=words):
            TreeLoss(**options)
    with pytest.raises(SettingError, match="expects 2 state vectors"):
        TreeLoss(target="lstm").targets(1)
