"""Trees as data: forms, distances, targets, drawing, records."""

import itertools
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import GRUCell, LSTMCell
from holdfast.errors import SettingError, ShapeError
from holdfast.rrnn import (
    RRNN,
    RRNNGRU,
    Matrices,
    Sets,
    Target,
    Tree,
    TwoLayerScorer,
    count_trees,
    evaluate_tree,
    forms_of,
    gru_target,
    gru_tree,
    isomorphic,
    lstm_targets,
    lstm_trees,
    search,
    tree_distance,
    tree_distances,
    tree_of,
    tree_svg,
    tree_text,
    tuple_changes,
    vector_difference,
)

GATE = Tree("add", "sigmoid", 0, "x", "h")
SMALL = Tree("mul", "identity", 1, "h", GATE)


def test_a_tree_unrolls_what_its_pool_shares():
    """Rounds a, b = f(a, a'), c = f(b, a'): the node a is used three times and counted so."""
    sets = Sets(rounds=3)
    tree = tree_of([(0, 1, 0, 0, 0), (0, 3, 0, 0, 1), (3, 4, 0, 1, 3)], ("x", "h", "0"), sets)
    assert tree.size == 4
    assert tree.depth == 3
    assert [node.activation for node in tree.nodes()] == ["identity", "sigmoid", "tanh", "sigmoid"]


def test_the_gru_has_nine_inner_nodes_though_it_takes_eight_rounds():
    """Z is used twice."""
    assert gru_tree().size == 9
    assert len(set(gru_tree().nodes())) == 8


def test_isomorphic_trees_have_one_canonical_form_and_others_another():
    forms = isomorphic(gru_tree())
    assert len(forms) == 2**9
    assert len({form.canonical() for form in forms}) == 1
    assert gru_tree().canonical() != lstm_trees()[0].canonical()


def test_isomorphic_trees_with_identity_weights_have_one_value():
    leaves = {name: torch.randn(3) for name in ("x", "h", "0")}
    eye = Matrices.identity(3, leaves["x"])
    tree = Tree("add", "tanh", None, SMALL.without_tuples(), "x")
    values = [evaluate_tree(form, leaves, eye)[form] for form in isomorphic(tree)]
    for value in values:
        torch.testing.assert_close(value, values[0])


# -- distances -----------------------------------------------------------------------------------------------------


def test_vector_difference_by_hand():
    """Indices {1, 3} against {1, 2}: both have 1, the others stand alone: (1 + 4) + 9 + 16 = 30."""
    right = Tree("mul", "identity", None, "h", GATE)
    left = Tree("mul", "identity", None, GATE, "h")
    ones = {right: torch.tensor([1.0, 2.0]), GATE: torch.tensor([3.0, 0.0])}
    others = {left: torch.tensor([0.0, 0.0]), GATE: torch.tensor([0.0, 4.0])}
    assert vector_difference(right, ones, left, others) == 30
    assert vector_difference(right, ones, "x", others) == 5 + 9
    assert vector_difference("x", ones, "h", others) == 0


def test_tree_distance_by_hand():
    """Subtrees of the predicted: the root is nearest to the target's root, 30, or to its gate, 5 + 16 - 16 + ...

    VD(root, root') = 30; VD(root, gate') = ‖(1, 2) - (0, 4)‖² + 9 = 5 + 9 = 14. VD(gate, root') = 9 + 16 = 25;
    VD(gate, gate') = 9 + 16 = 25. TD = 14 + 25 = 39.
    """
    right, left = Tree("mul", "identity", None, "h", GATE), Tree("mul", "identity", None, GATE, "h")
    ones = {right: torch.tensor([1.0, 2.0]), GATE: torch.tensor([3.0, 0.0])}
    others = {left: torch.tensor([0.0, 0.0]), GATE: torch.tensor([0.0, 4.0])}
    assert tree_distance(right, ones, left, others) == 39


def test_the_distance_of_a_tree_to_itself_is_zero():
    leaves = {name: torch.randn(4) for name in ("x", "h", "0")}
    tree = gru_tree(tuples=False)
    vectors = evaluate_tree(tree, leaves, Matrices.identity(4, leaves["x"]))
    assert tree_distance(tree, vectors, tree, vectors) == 0


def test_the_distance_is_over_indices_in_any_numbering():
    """(3) of distance.py against (1) with the indices 1, 2i and 2i + 1 written out."""

    def numbered(node, vectors, index=1):
        if isinstance(node, str):
            return {}
        below = numbered(node.left, vectors, 2 * index) | numbered(node.right, vectors, 2 * index + 1)
        return {index: vectors[node]} | below

    leaves = {name: torch.randn(3) for name in ("x", "h", "0", "c")}
    one, other = gru_tree(tuples=False), lstm_trees(tuples=False)[0]
    eye = Matrices.identity(3, leaves["x"])
    ones, others = evaluate_tree(one, leaves, eye), evaluate_tree(other, leaves, eye)
    a, b = numbered(one, ones), numbered(other, others)
    zero = torch.zeros(3)
    expected = sum((a.get(i, zero) - b.get(i, zero)).square().sum() for i in a.keys() | b.keys())
    torch.testing.assert_close(vector_difference(one, ones, other, others), expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**20), reduce=st.sampled_from(["min", "mean"]), which=st.sampled_from(["lstm", "own"]))
def test_batched_distances_are_the_literal_ones_over_all_isomorphic_forms(seed, reduce, which):
    check_distances(seed, reduce, which)


def test_batched_distances_to_the_gru_are_the_literal_ones():
    check_distances(0, "min", "gru")


def check_distances(seed, reduce, which):
    torch.manual_seed(seed)
    sets, batch, size = Sets(tuples=2, rounds=4), 2, 3
    names = ("x", "h", "c", "0")
    leaves = torch.stack([*torch.randn(3, batch, size), torch.zeros(batch, size)])
    matrices = Matrices(*0.5 * torch.randn(2, 2, size, size), torch.randn(2, size))
    found = search(leaves, matrices, sets, TwoLayerScorer(size, 6))
    own = Tree("add", "tanh", None, SMALL.without_tuples(), Tree("mul", "identity", None, "x", SMALL.without_tuples()))
    target = Target({"gru": gru_tree(tuples=False), "lstm": lstm_trees(tuples=False)[0], "own": own}[which])
    named = dict(zip(names, leaves, strict=True))
    children = torch.where(found.choices[..., :2] < 4, -1, found.choices[..., :2] - 4)
    ours = tree_distances(found.vectors, children, target.forms(), target.vectors(named), reduce)
    for b in range(batch):
        tree = tree_of(found.choices[:, b].tolist(), names, sets)
        here = {name: leaf[b] for name, leaf in named.items()}
        vectors, eye = evaluate_tree(tree, here, matrices), Matrices.identity(size, leaves)
        every = [tree_distance(tree, vectors, form, evaluate_tree(form, here, eye)) for form in distinct(target.tree)]
        expected = torch.stack(every).min() if reduce == "min" else torch.stack(every).mean()
        torch.testing.assert_close(ours[b], expected)


def distinct(tree):
    """Iso(T) up to swaps of two leaves, which move no inner node: each once."""

    def skeleton(node):
        return "leaf" if isinstance(node, str) else (node.canonical(), *map(skeleton, node.children))

    return list({skeleton(form): form for form in isomorphic(tree)}.values())


def test_the_distance_to_a_target_is_the_same_for_all_its_isomorphic_forms():
    size, tree = 3, gru_tree(tuples=False)
    named = {name: torch.randn(2, size) for name in ("x", "h", "0")}
    vectors, children = torch.randn(4, 2, size), torch.tensor([[-1, -1], [-1, 0], [0, 1], [2, 1]])
    children = children[:, None].expand(4, 2, 2)
    values = []
    for form in (tree, *isomorphic(tree)[5:400:97]):
        target = Target(form)
        values.append(tree_distances(vectors, children, target.forms(), target.vectors(named)))
    for value in values:
        torch.testing.assert_close(value, values[0])


def test_the_gradient_of_the_distance_is_that_of_its_squares():
    """Away from ties the nearest subtrees do not change, and (2) is smooth there."""
    size, target = 3, Target(lstm_trees(tuples=False)[0])
    named = {name: torch.randn(2, size) for name in ("x", "h", "c", "0")}
    children = torch.tensor([[-1, -1], [-1, 0], [0, 1], [2, 1]])[:, None].expand(4, 2, 2)
    vectors = torch.randn(4, 2, size, requires_grad=True)
    for reduce in ("min", "mean"):
        assert torch.autograd.gradcheck(
            lambda v, reduce=reduce: tree_distances(v, children, target.forms(), target.vectors(named), reduce),
            (vectors,),
        )


def test_forms_are_counted_once():
    """Six of the GRU's nodes have an inner child: 2⁶ forms, which together have 92 subtrees."""
    forms = forms_of(gru_tree())
    assert (len(forms.roots), len(forms.vector), len(forms.nodes)) == (64, 92, 8)


def test_a_target_with_too_many_forms_says_what_to_do():
    tree = GATE
    for _ in range(6):
        tree = Tree("add", "tanh", 0, tree, Tree("mul", "sigmoid", 0, tree, "x"))
    with pytest.raises(SettingError, match="forms='given'"):
        forms_of(tree)
    assert len(forms_of(tree, isomorphic=False).roots) == 1


# -- targets -------------------------------------------------------------------------------------------------------


def test_a_teachers_target_has_the_teachers_value_at_its_root():
    size, batch = 4, 3
    x, h, c, zero = *torch.randn(3, batch, size), torch.zeros(batch, size)
    gru, lstm = GRUCell(size, size, reset="before"), LSTMCell(size, size)
    target = gru_target(gru)
    torch.testing.assert_close(target.vectors({"x": x, "h": h, "0": zero})[0], gru(x, h).detach())
    new_h, new_c = lstm(x, (h, c))
    first, second = lstm_targets(lstm)
    named = {"x": x, "h": h, "c": c, "0": zero, "c'": new_c}
    torch.testing.assert_close(first.vectors(named)[0], new_c.detach())
    torch.testing.assert_close(second.vectors(named)[0], new_h.detach())


def test_pytorchs_gru_is_no_teacher_for_this_tree():
    with pytest.raises(SettingError, match="is different"):
        gru_target(GRUCell(4, 4))


def test_a_target_needs_leaves_that_exist():
    with pytest.raises(SettingError, match="leaves out of x, h, got 'c'"):
        Target(lstm_trees(tuples=False)[0]).vectors({"x": torch.zeros(1, 2), "h": torch.zeros(1, 2)})


# -- drawing and counting ------------------------------------------------------------------------------------------


def test_text_has_a_line_a_node_and_svg_is_well_formed():
    tree = gru_tree()
    assert len(tree_text(tree).split("\n")) == 2 * tree.size + 1
    picture = ElementTree.fromstring(tree_svg([tree, SMALL], ["a < b", "b"], title="Two & more"))
    shapes = [element.tag.split("}")[1] for element in picture.iter()]
    assert shapes.count("circle") == tree.size + SMALL.size
    assert shapes.count("rect") == 1 + (tree.size + 1) + (SMALL.size + 1)
    assert shapes.count("line") == 2 * (tree.size + SMALL.size)


def test_counting_is_by_shape_and_adds_up():
    layer, xs = RRNN(4, 4, rounds=2, scorer=6), torch.randn(6, 5, 4)
    record = layer.trace(xs).records[0]
    counted = record.count()
    assert sum(counted.values()) == 30
    by_hand = [record.tree(t, b).without_tuples() for t, b in itertools.product(range(6), range(5))]
    assert all(by_hand.count(tree) == times for tree, times in counted.items())
    assert count_trees([record, record]) == {tree: 2 * times for tree, times in counted.items()}
    assert set(record.count(tuples=True)) == {record.tree(t, b) for t, b in itertools.product(range(6), range(5))}


def test_changes_are_counted_node_by_node():
    """N_e is 0 from a model to itself, and what a loop counts after a change of weights."""
    layer, xs = RRNNGRU(4, 4, scorer=6, backend="reference"), torch.randn(3, 5, 4)
    before = layer.trace(xs).records[0].tuples
    assert before.shape == (3, 5, 8)
    assert tuple_changes(before, layer.trace(xs).records[0].tuples) == 0
    layer.reset_parameters()
    after = layer.trace(xs).records[0].tuples
    expected = sum(a != b for a, b in zip(before.flatten().tolist(), after.flatten().tolist(), strict=True))
    assert tuple_changes(before, after) == expected > 0
    with pytest.raises(ShapeError, match="same samples"):
        tuple_changes(before, after[:2])
