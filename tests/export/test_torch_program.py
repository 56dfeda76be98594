"""``holdfast.export.torch_program``: a model as PyTorch's own program, and in a process that has no Holdfast."""

import dataclasses
import json
import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch import nn

import holdfast
from helpers.cells import MixedCell, random_state, shaken
from helpers.onnx_runs import assert_close
from holdfast.engine.reference import scan_reference
from holdfast.errors import SettingError, UnsupportedError
from holdfast.export import network_of, torch_program
from holdfast.export.module import NetworkModule
from holdfast.rrnn import RRNN
from holdfast.train import SequenceModel

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["vprnn-tanh", "mixed"])
def test_a_decomposed_cell_over_time(tmp_path, kind):
    """For other numbers of steps and samples than it was traced with, with lengths of 0, from any state."""
    cell = MixedCell(3, 6) if kind == "mixed" else shaken(kind, 3, 6)
    torch_program(cell, tmp_path / "cell.pt2", decompose=True)
    program = torch.export.load(tmp_path / "cell.pt2").module()
    for time, lengths in ((7, [3, 0, 7, 1, 2]), (1, [1])):
        xs, lengths = torch.randn(time, len(lengths), 3), torch.tensor(lengths)
        state = random_state(cell, len(lengths), requires_grad=False)
        found = program(xs, lengths, {f"{name}_0": one[None] for name, one in zip("hc", state, strict=False)})
        output, last = scan_reference(cell, xs, state, lengths=lengths)
        assert_close(found["output"].double(), output)
        for name, entry in zip("hc", last, strict=False):
            assert_close(found[f"{name}_n"][0].double(), entry)


def test_with_holdfast_the_loop_is_one_operator(tmp_path, monkeypatch):
    """For a cell of nobody, and for other numbers of steps and samples than it was traced with."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' shape checks cannot be traced
    cell = MixedCell(3, 6)
    torch_program(cell, tmp_path / "cell.pt2")
    loaded = torch.export.load(tmp_path / "cell.pt2")
    assert [str(node.target) for node in loaded.graph.nodes].count("holdfast.scan.default") == 1
    xs, lengths, state = torch.randn(9, 4, 3), torch.tensor([9, 0, 4, 1]), random_state(cell, 4, requires_grad=False)
    found = loaded.module()(xs, lengths, {"h_0": state[0][None], "c_0": state[1][None]})
    output, last = scan_reference(cell, xs, state, lengths=lengths)
    assert_close(found["output"].double(), output)
    assert_close(found["c_n"][0].double(), last[1])


def test_a_whole_model_runs_where_there_is_no_holdfast(tmp_path):
    """Both directions, tokens, the input beside the state: in a process in which importing holdfast fails."""
    rnn = holdfast.GRU(4, 5, bidirectional=True, backend="reference")
    model = SequenceModel(rnn, nn.Linear(14, 3), nn.Embedding(9, 4), direct=True).eval()
    network = dataclasses.replace(network_of(model), answer="classes", labels=("a", "b", "c"), batch_first=True)
    report = torch_program(network, tmp_path / "model.pt2", decompose=True)
    assert report.lines[-1] == "It runs without Holdfast."
    x, lengths = torch.randint(9, (6, 11)), torch.tensor([11, 3, 1, 7, 2, 10])
    torch.save((x, lengths, NetworkModule(network).starts(6)), tmp_path / "given.pt")
    program = (
        "import sys, json, torch\n"
        "sys.modules['holdfast'] = None\n"
        "extra = {'holdfast.json': ''}\n"
        "program = torch.export.load('model.pt2', extra_files=extra).module()\n"
        "found = program(*torch.load('given.pt'))\n"
        "torch.save(found, 'found.pt')\n"
        "print(json.loads(extra['holdfast.json'])['labels'])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["a", "b", "c"]
    found = torch.load(tmp_path / "found.pt")
    expected, last = model(x.mT, lengths)
    assert_close(found["output"].double(), expected)
    assert_close(found["probabilities"].double(), expected.softmax(1))
    assert_close(found["h_n"].double(), last)


def test_a_module_of_a_network_is_the_model():
    """The module that is traced, with Holdfast's own scan, before any tracing."""
    model = SequenceModel(holdfast.LSTM(2, 5, backend="reference"), nn.Linear(5, 1), every_step=True).eval()
    network = dataclasses.replace(network_of(model), answer="binary", mean=torch.ones(2), scale=2 * torch.ones(2))
    x, lengths, module = torch.randn(6, 3, 2), torch.tensor([6, 2, 4]), NetworkModule(network)
    found = module(x * 2 + 1, lengths, module.starts(3))
    assert_close(found["output"].double(), model(x, lengths)[0])
    assert_close(found["probabilities"].double(), model(x, lengths)[0].sigmoid())


class BranchingCell(holdfast.RNNCell):
    """A step that is another one for few samples: a traced program would take one of the two for both."""

    def step(self, drive, state, weights):
        return (drive * (0.5 if len(drive) > 10 else 0.25),)


def test_bad_input_writes_nothing(tmp_path):
    path = tmp_path / "model.pt2"
    with pytest.raises(UnsupportedError, match="RRNN, which chooses"):
        torch_program(RRNN(4, 4, rounds=2), path, decompose=True)
    with pytest.raises(UnsupportedError, match=r"torch.export cannot write .*depends on the batch size"):
        torch_program(BranchingCell(2, 3), path, decompose=True)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(SettingError, match="exists and is kept"):
        torch_program(holdfast.RNN(2, 3), path, decompose=True)
    assert path.read_text() == "mine"
