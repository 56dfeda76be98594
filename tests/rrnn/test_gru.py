"""RRNN-GRU: (1) and (2) against plain vectors, its settings against small cases by hand, and compiled against not."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from holdfast import GRUCell
from holdfast.errors import SettingError
from holdfast.rrnn import RRNNGRU, PhasedAdam, RRNNGRUCell, TreeLoss, TwoLayerScorer, gru_target
from holdfast.rrnn.gru import _Nodes

LOSS = {"tree": 0.3, "margin": 0.2, "ridge": 0.1, "threshold": 0.5}


def plain_nodes(cell, x, h):
    """The nodes of one sample, and the scores of those that are chosen, one vector after the other."""
    made, count = cell.tuples(), len(cell.tuples().bias)

    def candidate(k, u, o, left, right):
        return u(o(made.left[k] @ left, made.right[k] @ right) + made.bias[k])

    scores = []

    def node(u, o, left, right, without=None):
        v = [candidate(k, u, o, left, right) for k in range(count)]
        alpha = torch.stack([cell.scorer(it) for it in v])
        alpha = torch.stack([a if k != without else a * 0 - torch.inf for k, a in enumerate(alpha)])
        scores.append(alpha)
        first = max(range(count), key=lambda k: (alpha[k].item(), -k))
        if cell.choice == "hard":
            return v[first], first
        weight = torch.exp(alpha - alpha.max())
        return sum(weight[k] / weight.sum() * v[k] for k in range(count)), first

    add, mul, same, zero = torch.add, torch.mul, lambda z: z, torch.zeros_like(h)
    if cell.gates == "fixed":
        z, r = (candidate(k, torch.sigmoid, add, x, h) for k in (0, 1))
    else:
        r, taken = node(torch.sigmoid, add, x, h)
        z, _ = node(torch.sigmoid, add, x, h, without=taken)
    reset, _ = node(same, mul, h, r)
    rest, _ = node(lambda y: 1 - y, add, zero, z)
    new, _ = node(torch.tanh, add, x, reset)
    kept, _ = node(same, mul, h, z)
    added, _ = node(same, mul, new, rest) if cell.gates == "fixed" else node(same, mul, rest, new)
    last, _ = node(same, add, added, kept) if cell.gates == "fixed" else node(same, add, kept, added)
    return [r, z, reset, rest, new, kept, added, last], scores


def plain_loss(cell, readout, xs, teacher, loss, forms):
    """(6) with the distance node by node, sample after sample; or without it."""
    total = 0.0
    for b in range(xs.shape[1]):
        h, g = torch.zeros(cell.hidden_size), torch.zeros(1, cell.hidden_size)
        for x in xs[:, b]:
            nodes, scores = plain_nodes(cell, x, h)
            h = nodes[-1]
            total = total + readout(h).square().sum() / xs.shape[1]
            for alpha in scores:
                top = alpha.sort(descending=True).values
                gap = loss.threshold if top[1] == -torch.inf else top[0] - top[1]
                total = total - loss.margin * min(loss.threshold, gap) / loss.threshold / xs.shape[1]
            if forms == "nodes":
                with torch.no_grad():
                    r, z, n = (teacher.weight_ih @ x + teacher.bias).chunk(3)
                    before = teacher.weight_hh.chunk(3)
                    r, z = torch.sigmoid(r + before[0] @ g[0]), torch.sigmoid(z + before[1] @ g[0])
                    n = torch.tanh(n + before[2] @ (r * g[0]))
                    wanted = [r, z, r * g[0], 1 - z, n, z * g[0], (1 - z) * n, z * g[0] + (1 - z) * n]
                    g = teacher(x[None], g)
                apart = [(a - b).square().sum() for a, b in zip(nodes, wanted, strict=True)]
                total = total + loss.tree * (sum(apart) + apart[1]) / xs.shape[1]  # z is in the tree twice
    squares = [weight.square().sum() for weight in (*cell.parameters(), *readout.parameters())]
    return total + loss.ridge * sum(squares)


@settings(max_examples=12, deadline=None)
@given(
    setting=st.sampled_from(["printed", "published code"]),
    choice=st.sampled_from(["soft", "hard"]),
    tuples=st.integers(2, 4),
    size=st.integers(1, 4),
    steps=st.integers(1, 3),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_values_losses_and_gradients_are_those_of_plain_vectors(setting, choice, tuples, size, steps, batch, seed):
    torch.manual_seed(seed)
    teacher = GRUCell(size, size, reset="before")
    forms = "nodes" if setting == "published code" else "min"
    weights = LOSS if forms == "nodes" else {**LOSS, "tree": 0.0}
    loss = TreeLoss(**weights, target=(gru_target(teacher, "teacher"),))
    layer = RRNNGRU(size, size, setting=setting, tuples=tuples, choice=choice, scorer=3, loss=loss, backend="reference")
    with torch.no_grad():  # away from the identity and from zero, and all units of the scorer on: no scores are equal
        for weight in layer.parameters():
            weight += 0.3 * torch.randn_like(weight)
        layer.l0.scorer.bias += 20
    readout, xs = nn.Linear(size, 2), torch.randn(steps, batch, size)
    ours = readout(layer(xs)[0]).square().sum() / batch + layer.penalty(readout.parameters())
    plain = plain_loss(layer.l0, readout, xs, teacher, loss, forms)
    torch.testing.assert_close(ours, plain)
    every = [*layer.parameters(), *readout.parameters()]
    for mine, theirs in zip(
        *(torch.autograd.grad(it, every, materialize_grads=True, allow_unused=True) for it in (ours, plain)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("choice", ["soft", "hard"])
@pytest.mark.parametrize("setting", ["printed", "published code"])
def test_compiled_steps_are_the_plain_ones_with_all_losses(setting, choice):
    """The default backend compiles, forward and backward, and has the same losses and gradients."""
    loss = TreeLoss(**LOSS, target=(gru_target(GRUCell(3, 3, reset="before"), "teacher"),))
    plain = RRNNGRU(3, 3, setting=setting, choice=choice, tuples=3, scorer=4, loss=loss, backend="reference")
    fast, xs = copy.deepcopy(plain), torch.randn(4, 5, 3)
    fast.backend = "fused"  # raises if it cannot
    found = []
    for layer in (plain, fast):
        total = layer(xs)[0].square().sum() + layer.penalty()
        found.append((total, *torch.autograd.grad(total, list(layer.parameters()))))
    torch.testing.assert_close(*found)
    assert RRNNGRU(3, 3).backend == "auto"
    assert RRNNGRU(3, 3, scorer=nn.Linear(3, 1)).backend == "reference"  # any module: nothing is known about it


@pytest.mark.parametrize("setting", ["printed", "published code"])
def test_mixtures_by_one_hot_scores_are_the_hard_tree(setting):
    """Scores a million times as far apart: softmax is argmax, node by node."""
    hard = RRNNGRU(4, 4, setting=setting, scorer=8, choice="hard", backend="reference")
    soft = copy.deepcopy(hard)
    soft.l0.choice = "soft"
    with torch.no_grad():
        soft.l0.scorer.weight_out *= 1e6
        soft.l0.scorer.bias_out *= 1e6
    xs = torch.randn(5, 3, 4)
    one, other = hard.trace(xs), soft.trace(xs)
    assert torch.equal(one.records[0].tuples, other.records[0].tuples)
    torch.testing.assert_close(one.grown[0][0].vectors, other.grown[0][0].vectors)


def test_scores_that_are_no_numbers_show():
    """A hard choice among NaN scores is NaN, not zero."""
    cell = RRNNGRUCell(2, 2, setting="published code", choice="hard", scorer=2)
    with torch.no_grad():
        cell.scorer.weight.fill_(torch.nan)
        assert cell(torch.ones(1, 2), torch.ones(1, 2)).isnan().all()


# -- settings --------------------------------------------------------------------------------------------------------


def test_the_published_code_by_hand():
    """One entry, two tuples (2, 3, 0) and (1, 1, 0), equal scores: every mixture is a mean. x = 0, h = 1."""
    cell = RRNNGRUCell(1, 1, setting="published code", tuples=2, scorer=1)
    assert cell.tuples.left[-1].item() == cell.tuples.right[-1].item() == 1  # the identity is where it starts
    assert all(weight.requires_grad for weight in cell.tuples.parameters())
    assert cell.tuples.bias.abs().max() == 0
    with torch.no_grad():
        cell.tuples.left[0], cell.tuples.right[0] = 2.0, 3.0
        cell.scorer.weight.zero_()
    nodes, _, _ = cell.grown_nodes(cell.drive(torch.zeros(1, 1)), torch.ones(1, 1), cell.weights())
    r, z, reset, rest, new, kept, added, last = (it.item() for it in nodes)
    sigma = lambda a: 1 / (1 + 2.718281828459045**-a)  # noqa: E731
    assert (z, r) == pytest.approx((sigma(3.0), sigma(1.0)))
    assert reset == pytest.approx((2 * 3 * r + r) / 2)
    assert rest == pytest.approx(1 - (3 * z + z) / 2)
    assert new == pytest.approx(float((torch.tensor(3 * reset).tanh() + torch.tensor(reset).tanh()) / 2))
    assert kept == pytest.approx((2 * 3 * z + z) / 2)
    assert added == pytest.approx((2 * 3 * new * rest + new * rest) / 2)
    assert last == pytest.approx((2 * added + 3 * kept + added + kept) / 2)  # L acts on the new part, R on the kept


def test_the_printed_setting_by_hand():
    """One entry, tuples (2, 3, 0) and the identity, equal scores: z cannot have the first, r's best. x = 0, h = 1."""
    cell = RRNNGRUCell(1, 1, tuples=2, scorer=1)
    assert cell.tuples.left.shape == (1, 1, 1)  # the identity is no parameter
    with torch.no_grad():
        cell.tuples.left[0], cell.tuples.right[0], cell.tuples.bias[0] = 2.0, 3.0, 0.0
        cell.scorer.weight.zero_()
    nodes, _, firsts = cell.grown_nodes(cell.drive(torch.zeros(1, 1)), torch.ones(1, 1), cell.weights())
    r, z, reset, rest, new, kept, added, last = (it.item() for it in nodes)
    sigma = lambda a: 1 / (1 + 2.718281828459045**-a)  # noqa: E731
    assert (r, z) == pytest.approx(((sigma(3.0) + sigma(1.0)) / 2, sigma(1.0)))
    assert (firsts[0].tolist(), firsts[1].tolist()) == ([[1.0, 0.0]], [[0.0, 1.0]])
    assert reset == pytest.approx((2 * 3 * r + r) / 2)
    assert rest == pytest.approx(1 - (3 * z + z) / 2)
    assert new == pytest.approx(float((torch.tensor(3 * reset).tanh() + torch.tensor(reset).tanh()) / 2))
    assert kept == pytest.approx((2 * 3 * z + z) / 2)
    assert added == pytest.approx((2 * 3 * rest * new + rest * new) / 2)
    assert last == pytest.approx((2 * kept + 3 * added + kept + added) / 2)  # L acts on the kept part, R on the new


def test_the_two_settings_count_parameters_as_they_train():
    size, count = 100, lambda cell: sum(weight.numel() for weight in cell.parameters())
    assert count(RRNNGRUCell(size, size, setting="published code")) == 4 * (2 * size**2 + size) + 64 * (size + 2) + 1
    assert count(RRNNGRUCell(size, size)) == 3 * (2 * size**2 + size) + 64 * (size + 2) + 1
    chosen = RRNNGRUCell(4, 4, setting="published code", gates="chosen", identity=True)
    assert (chosen.gates, chosen.tuples.identity, chosen.forms) == ("chosen", True, "nodes")
    assert len(RRNNGRUCell(4, 4, setting="published code").scored) == 6
    with pytest.raises(SettingError, match="printed, published code"):
        RRNNGRUCell(4, 4, setting="paper")
    with pytest.raises(SettingError, match="chosen, fixed"):
        RRNNGRUCell(4, 4, gates="both")


def test_the_published_phases_are_one_epoch_then_five_and_five():
    cell = RRNNGRUCell(4, 4, setting="published code", alternate=5)
    phases = "".join(cell.phase(epoch)[0] for epoch in range(17))
    assert phases == "w" + 5 * "s" + 5 * "w" + 5 * "s" + "w"


def test_the_readout_has_a_state_in_each_phase():
    """``PhasedAdam`` against two Adams that share the readout, as in the published code; also over a checkpoint."""
    torch.manual_seed(0)
    ours, theirs = (nn.ModuleDict({name: nn.Linear(3, 3) for name in ("weights", "scorer", "readout")}) for _ in "ab")
    theirs.load_state_dict(ours.state_dict())
    phased = PhasedAdam(ours.parameters(), lr=0.1)
    pair = {
        name: torch.optim.Adam([*theirs[name].parameters(), *theirs["readout"].parameters()], lr=0.1)
        for name in ("weights", "scorer")
    }
    for step, phase in enumerate(["weights", "scorer", "scorer", "weights", "weights", "scorer"]):
        x = torch.randn(5, 3)
        for net in (ours, theirs):
            for name in ("weights", "scorer"):
                net[name].requires_grad_(name == phase)
                net[name].zero_grad()
            net["readout"].zero_grad()
            net["readout"](net["weights"](x) * net["scorer"](x)).square().mean().backward()
        phased.step()
        pair[phase].step()
        if step == 3:
            state = copy.deepcopy(phased.state_dict())
            phased = PhasedAdam(ours.parameters(), lr=0.1)
            phased.load_state_dict(state)
        for mine, plain in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, plain)


# -- the distance node by node ---------------------------------------------------------------------------------------


def test_a_layer_at_its_teacher_has_no_distance_to_it():
    """A hard choice of the teacher's own tuples: every node is the teacher's, along either h."""
    size, teacher = 3, GRUCell(3, 3, reset="before")
    for along in ("model", "teacher"):
        layer = RRNNGRU(
            size, size, setting="published code", tuples=4, choice="hard", backend="reference",
            scorer=Likes(gru_target(teacher)), loss=TreeLoss(tree=1.0, target=(gru_target(teacher, along),)),
        )  # fmt: skip
        own = layer.l0.tuples
        with torch.no_grad():
            for part, theirs in (
                (own.left, teacher.weight_ih),
                (own.right, teacher.weight_hh),
                (own.bias, teacher.bias),
            ):
                r, z, n = theirs.view(3, size, *part.shape[2:])
                part[0], part[1], part[2] = z, r, n
        xs = torch.randn(4, 2, size)
        layer.l0.scorer.leaves = xs
        output, _ = layer(xs)
        torch.testing.assert_close(output, run(teacher, xs))
        assert layer.penalty() < 1e-20


class Likes(nn.Module):
    """A score of 1 for vectors on the target's tree at this step, and 0 for others: six nodes a step are scored."""

    def __init__(self, target):
        super().__init__()
        self.target, self.count, self.h = target, 0, None

    def forward(self, v):
        t, asked = divmod(self.count, 6)
        self.count += 1
        if asked == 0:
            x = self.leaves[t]
            self.h = torch.zeros_like(x) if t == 0 else self.nodes[0]
            self.nodes = self.target.vectors({"x": x, "h": self.h, "0": torch.zeros_like(x)})
        apart = (v[None] - self.nodes[:, :, None]).abs().amax(dim=-1)
        return (apart.amin(dim=0) < 1e-12).to(v)


def run(teacher, xs):
    h, hs = torch.zeros(xs.shape[1:]), []
    for x in xs:
        h = teacher(x, h)
        hs.append(h)
    return torch.stack(hs)


def test_the_target_along_the_teacher_does_not_depend_on_the_model():
    teacher, xs = GRUCell(3, 3, reset="before"), torch.randn(4, 2, 3)
    names = {"x": xs, "h": torch.randn(4, 2, 3), "0": torch.zeros(4, 2, 3)}
    nodes = gru_target(teacher, "teacher").vectors(names)
    torch.testing.assert_close(nodes, gru_target(teacher, "teacher").vectors({**names, "h": torch.zeros(4, 2, 3)}))
    torch.testing.assert_close(nodes[0], run(teacher, xs))
    with pytest.raises(SettingError, match="both directions"):
        RRNNGRU(3, 3, bidirectional=True, loss=TreeLoss(tree=1.0, target=(gru_target(teacher, "teacher"),)))


@pytest.mark.parametrize("reverse", [False, True])
def test_leaves_are_what_a_step_begins_with(reverse):
    """Also from the last step to the first, and for sequences of several lengths: the loss sees the right h."""
    layer = RRNNGRU(3, 3, scorer=2, bidirectional=reverse, backend="reference", loss=TreeLoss(tree=1.0))
    xs, lengths = torch.randn(4, 2, 3), torch.tensor([4, 2])
    layer(pack_padded_sequence(xs, lengths))
    (grown,), cell = layer.noted.grown[-1], layer.cells[-1]
    for b, length in enumerate(lengths):
        state = torch.zeros(1, 3)
        for t in reversed(range(length)) if reverse else range(length):
            torch.testing.assert_close(grown.leaves[0, t, b], xs[t, b])
            torch.testing.assert_close(grown.leaves[1, t, b], state[0].detach())
            state = cell(xs[t, b][None], state)
    (*_, padded) = layer.loss_parts()
    each = []
    for b, length in enumerate(lengths):
        layer(xs[:length, b])
        each.append(layer.loss_parts()[-1].tree)
    torch.testing.assert_close(padded.tree, torch.stack(each).mean())


def test_everything_that_a_step_grows_is_a_state_of_one_entry():
    cell = RRNNGRUCell(3, 3, setting="published code", scorer=TwoLayerScorer(3, 2))
    walk = _Nodes(cell)
    x, start = torch.randn(2, 3), torch.randn(2, *walk.state_sizes)
    new = walk(x, start)
    torch.testing.assert_close(new[:, 21:24], cell(x, start[:, 21:24]))
    best, second, index = new[:, 24:].split(6, dim=1)
    assert (best >= second).all()
    assert set(index.flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0}
