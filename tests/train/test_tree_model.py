"""TreeModel: trees as tokens, the readout of the root, and a run from the command line."""

import pytest
import torch
from torch import nn

from holdfast import TreeLSTM
from holdfast.errors import SettingError, ShapeError
from holdfast.runs import run_settings, train_run
from holdfast.runs.load import load_run
from holdfast.tasks import Addition
from holdfast.tasks.sst import SentimentTrees
from holdfast.train import ModelSettings, TreeModel, build
from holdfast.train.tree_model import binary_children

NODE = 9
TREES = [[1, 2, NODE], [3], [1, 2, 3, NODE, NODE], [1, 2, NODE, 3, NODE]]


def padded(trees):
    lengths = torch.tensor([len(tree) for tree in trees])
    columns = [torch.tensor(tree + [0] * (lengths.max() - len(tree))) for tree in trees]
    return torch.stack(columns, dim=1), lengths


def test_children_are_the_two_subtrees_before_a_node():
    children, roots = binary_children(*padded(TREES), NODE)
    leaf = [-1, -1]
    assert children.tolist() == [
        *(leaf, leaf, [0, 1]),
        leaf,
        *(leaf, leaf, leaf, [5, 6], [4, 7]),
        *(leaf, leaf, [9, 10], leaf, [11, 12]),
    ]
    assert roots.tolist() == [2, 3, 8, 13]


@pytest.mark.parametrize("arity", [None, 2])
def test_the_answer_is_the_readout_of_the_root_of_each_tree_alone(arity):
    """A batch of trees of any size is each tree by itself; words enter at the leaves, zeros above."""
    model = TreeModel(TreeLSTM(3, 4, arity=arity), nn.Linear(4, 2), nn.Embedding(10, 3), NODE)
    answers, state = model(*padded(TREES))
    assert state == ()
    for answer, tree in zip(answers, TREES, strict=True):
        table, _ = binary_children(*padded([tree]), NODE)
        xs = torch.stack([model.embedding.weight[it] if it != NODE else torch.zeros(3) for it in tree])
        torch.testing.assert_close(answer, model.linear(model.rnn(xs, table)[0][-1]))
    answers.sum().backward()
    assert not model.embedding.weight.grad[NODE].any()


@pytest.mark.parametrize("tokens", [[NODE], [1, NODE], [1, 2], [1, 2, 3, NODE]])
def test_what_is_no_tree_is_a_clear_error(tokens):
    with pytest.raises(ShapeError, match="tokens of sequence 1 are none; load the data with trees = true"):
        binary_children(*padded([[1], tokens]), NODE)


@pytest.fixture
def folder(tmp_path):
    """The label of a phrase is that of its first word: a task that a tree can solve."""
    for split in ("train", "dev", "test"):
        lines = [
            "(3 (3 good) (2 film))",
            "(1 (1 bad) (2 film))",
            "(3 (3 (3 good) (2 film)) (2 .))",
            "(1 (1 bad) (2 .))",
        ]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("arity", [None, 2])
def test_a_run_learns_and_loads(folder, tmp_path, arity):
    task = {"name": "sst", "trees": True, "phrases": True, "folder": str(folder)}
    cell = {"name": "tree-lstm", "hidden_size": 6, "options": {} if arity is None else {"arity": arity}}
    training = {"epochs": 15, "batch": 4, "lr": 0.03, "evaluate_on": ["validation", "test"]}
    outcome = train_run(run_settings({"task": task, "cell": cell, "train": training}), tmp_path / "run", progress=False)
    assert outcome.last["test"]["accuracy"] == 1.0
    model = load_run(tmp_path / "run").model
    assert isinstance(model, TreeModel)
    assert model.rnn.arity == arity


def test_trees_and_the_layer_for_them_go_together(folder):
    trees, words = (SentimentTrees(trees=it, folder=folder).load().spec for it in (True, False))
    with pytest.raises(SettingError, match="reads trees; take the task"):
        build(ModelSettings("tree-lstm"), words)
    with pytest.raises(SettingError, match="reads trees; take the task"):
        build(ModelSettings("tree-lstm"), Addition(steps=5).load().spec)
    with pytest.raises(SettingError, match="lstm reads sequences, not trees"):
        build(ModelSettings("lstm"), trees)
    for settings in (
        {"layers": 2},
        {"bidirectional": True},
        {"initial_state": 0.1},
        {"tied": True},
        {"norm_stabiliser": 1.0},
    ):
        with pytest.raises(SettingError, match=f"leave out {next(iter(settings))}"):
            build(ModelSettings("tree-lstm", **settings), trees)
    with pytest.raises(SettingError, match="no option 'gates'; known: arity"):
        build(ModelSettings("tree-lstm", options={"gates": 1}), trees)
