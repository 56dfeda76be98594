"""``holdfast.export.onnx``: whole models in ONNX Runtime, beside the same models here."""

import dataclasses
import json
import os
import sys

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import holdfast
from helpers.cells import CELLS, MixedCell
from helpers.disk import disk_that_takes
from helpers.onnx_runs import answers, assert_close, exported, session
from holdfast.errors import MissingExtraError, SettingError
from holdfast.estimators.readout import fit_reservoir
from holdfast.export import network_of, onnx_model
from holdfast.export import onnx as export_onnx
from holdfast.export.module import NetworkModule
from holdfast.train import SequenceModel

KINDS = {
    "lstm": holdfast.LSTMCell,
    "gru": holdfast.GRUCell,
    "rnn": holdfast.RNNCell,
    "sgornn": holdfast.SGORNNCell,
    "own": CELLS["own"],
    "mixed": MixedCell,
}
LENGTHS = torch.tensor([4, 7, 1])


def in_float32(model):
    """The model that is exported: float32, in evaluation mode, without special starts."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.float().eval()


def same_layer(layer, x, lengths, state):
    """The layer's own answers: packed where there are lengths."""
    if lengths is None:
        return layer(x, state)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=layer.batch_first, enforce_sorted=False)
    output, last = layer(packed, state)
    total = x.shape[1 if layer.batch_first else 0]
    return nn.utils.rnn.pad_packed_sequence(output, batch_first=layer.batch_first, total_length=total)[0], last


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_stacked_and_in_both_directions(kind, bidirectional):
    """With and without lengths and a state; batch first; a learned start where none is given."""
    options = {"bidirectional": bidirectional, "batch_first": True, "initial_state": "learned", "dropout": 0.5}
    options["backend"] = "reference"  # the definition; and nothing is compiled
    layer = in_float32(holdfast.Recurrent(KINDS[kind], 3, 6, 2, **options))
    runtime = exported(layer)
    x = torch.randn(3, 7, 3, dtype=torch.float32)
    shapes = [value[:, None].expand(-1, 3, -1).shape for value in layer.initial_state.values]
    given = tuple(torch.randn(shape, dtype=torch.float32) for shape in shapes)
    for lengths in (None, LENGTHS):
        for state in (None, given):
            start = state if state is None or len(state) > 1 else state[0]
            output, last = same_layer(layer, x, lengths, start)
            last = (last,) if isinstance(last, torch.Tensor) else last
            found = answers(runtime, x, lengths, state)
            assert_close(found.pop("output"), output)
            for entry, expected in zip(
                found.values(), (last,) if isinstance(last, torch.Tensor) else last, strict=True
            ):
                assert_close(entry, expected)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
def test_a_sequence_model(tokens, bidirectional, every_step, direct):
    """Embedding or numbers, both directions, an answer at the end or at every step, with the input beside the state."""
    rnn = holdfast.SGORNN(4, 6, bidirectional=bidirectional, backend="reference")
    readout = nn.Linear(6 * (2 if bidirectional else 1) + 4 * direct, 2)
    embedding = nn.Embedding(9, 4) if tokens else None
    options = {"every_step": every_step, "direct": direct, "input_dropout": 0.5, "output_dropout": 0.5}
    model = in_float32(SequenceModel(rnn, readout, embedding, **options))
    runtime = exported(model)
    x = torch.randint(9, (7, 3)) if tokens else torch.randn(7, 3, 4, dtype=torch.float32)
    for lengths in (None, LENGTHS):
        expected, last = model(x, lengths)
        found = answers(runtime, x, lengths)
        assert_close(found["output"], expected)
        assert_close(found["h_n"], last)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_single_steps_is_the_whole_sequence(kind):
    """h_n of a call is h_0 of the next; uneven pieces give the same, too."""
    layer = in_float32(holdfast.Recurrent(KINDS[kind], 3, 6, 2, initial_state="learned"))
    runtime, x = exported(layer), torch.randn(9, 2, 3, dtype=torch.float32)
    whole = answers(runtime, x)
    names = [name for name in whole if name.endswith("_n")]
    for sizes in ([1] * 9, [4, 1, 4]):
        outputs, state = [], None
        for piece in x.split(sizes):
            found = answers(runtime, piece, None, state)
            outputs.append(found["output"])
            state = tuple(found[name] for name in names)
        assert_close(torch.cat(outputs), whole["output"])
        for name, entry in zip(names, state, strict=True):
            assert_close(entry, whole[name])


class Pooled(nn.Module):
    """The mean, the last and the largest output over the true steps, and a linear map of them."""

    def __init__(self, rnn, features, outputs):
        super().__init__()
        self.rnn, self.linear = rnn, nn.Linear(3 * features, outputs)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, last = self.rnn(packed)
        hs = [one[:n] for one, n in zip(nn.utils.rnn.pad_packed_sequence(output)[0].unbind(1), lengths, strict=True)]
        mean, highest = (torch.stack([pool(one) for one in hs]) for pool in (lambda h: h.mean(0), lambda h: h.amax(0)))
        return self.linear(torch.cat([mean, torch.cat(tuple(last[-2:]), dim=1), highest], dim=1))


@pytest.mark.parametrize("kind", [holdfast.GRUCell, holdfast.FastRNNCell])
def test_a_readout_of_outputs_that_are_pooled_over_time(kind):
    rnn = holdfast.Recurrent(kind, 3, 4, 2, bidirectional=True, backend="reference")
    model = in_float32(Pooled(rnn, 8, 2))
    x = torch.randn(7, 3, 3, dtype=torch.float32) - 1  # states below 0, so that padding would be the largest
    found = answers(exported(model), x, LENGTHS)
    assert list(found) == ["output"]
    assert_close(found["output"], model(x, LENGTHS))
    assert_close(NetworkModule(network_of(model))(x, LENGTHS, {})["output"].double(), model(x, LENGTHS))


def test_a_reservoir_and_its_linear_readout():
    """Four cells, two of them backwards."""
    x, lengths = torch.randn(12, 20, 2, dtype=torch.float32), torch.randint(5, 21, (12,))
    cells = {"units": 6, "horizons": (3, 12), "nonlinearities": ("tanh",), "quantiles": (0.4, 0.8)}
    model, _ = fit_reservoir(x, lengths, torch.arange(12) % 3, classes=3, bidirectional=True, **cells)
    features = exported(model.reservoir)
    assert_close(answers(features, x, lengths)["output"], model.reservoir(x, lengths))
    network = dataclasses.replace(network_of(model), answer="classes", labels=("a", "b", "c"))
    found = answers(session(onnx_model(network)), x, lengths)
    expected = model(x.transpose(0, 1), lengths)[0]
    assert_close(found["output"], expected, 1e-4)  # differences of many features, taken in float32
    assert_close(found["probabilities"], expected.softmax(1), 1e-4)


def test_standardisation_scale_and_probabilities_are_in_the_graph():
    """(1), (5) and softmax, on inputs far from zero."""
    model = in_float32(SequenceModel(holdfast.GRU(2, 5), nn.Linear(5, 3)))
    mean, scale = torch.tensor([100.0, -3.0]).float(), torch.tensor([7.0, 0.1]).float()
    target_mean, target_scale = torch.tensor([1.0, 2, 3]).float(), torch.tensor([10.0, 20, 30]).float()
    x = torch.randn(6, 4, 2, dtype=torch.float32)
    plain = model(x)[0]
    network = dataclasses.replace(network_of(model), mean=mean, scale=scale, answer="classes")
    found = answers(session(onnx_model(network)), x * scale + mean)
    assert_close(found["output"], plain, 1e-4)  # x · scale + mean is rounded on its way in
    assert_close(found["probabilities"], plain.softmax(1), 1e-4)
    network = dataclasses.replace(network_of(model), target_mean=target_mean, target_scale=target_scale)
    assert_close(answers(session(onnx_model(network)), x)["output"], plain * target_scale + target_mean)
    binary = in_float32(SequenceModel(holdfast.GRU(2, 5), nn.Linear(5, 1)))
    found = answers(session(onnx_model(dataclasses.replace(network_of(binary), answer="binary"))), x)
    assert_close(found["probabilities"], binary(x)[0].sigmoid())


def test_a_file_says_what_made_it_and_what_its_inputs_are(tmp_path):
    network = dataclasses.replace(network_of(holdfast.LSTM(2, 4)), columns=("a", "b"), labels=("no", "yes"))
    report = export_onnx(network, tmp_path / "mine.onnx", name="mine")
    made = onnx.load(tmp_path / "mine.onnx")
    onnx.checker.check_model(made, full_check=True)
    props = {prop.key: prop.value for prop in made.metadata_props}
    assert json.loads(props["columns"]) == ["a", "b"]
    assert json.loads(props["labels"]) == ["no", "yes"]
    assert props["holdfast_version"] == made.producer_version == holdfast.__version__
    assert props["cells"] == "LSTMCell(2, 4)"
    assert made.graph.name == "mine"
    assert (made.opset_import[0].version, made.ir_version) == (18, 8)
    assert "Made by Holdfast" in made.doc_string
    assert session(tmp_path / "mine.onnx").get_modelmeta().custom_metadata_map == props
    assert report.paths == (tmp_path / "mine.onnx",)
    assert "ONNX opset 18" in report.lines[0]
    assert report.lines[1:] == [
        "Inputs: x (time, batch, 2), lengths (batch or 1), h_0 (1, batch or 1, 4), c_0 (1, batch or 1, 4).",
        "Outputs: output (time, batch, 4), h_n (1, batch, 4), c_n (1, batch, 4).",
        "Inputs that may be left out: lengths, h_0, c_0.",
    ]


def test_without_optional_inputs_all_are_given(tmp_path):
    """And nothing is left for ONNX Runtime to warn about."""
    layer = in_float32(holdfast.FastRNN(3, 4))
    export_onnx(layer, tmp_path / "all.onnx", optional_inputs=False)
    runtime, x = session(tmp_path / "all.onnx"), torch.randn(5, 2, 3, dtype=torch.float32)
    assert [given.name for given in runtime.get_inputs()] == ["x", "lengths", "h_0"]
    assert not runtime.get_overridable_initializers()
    feed = {"x": x.numpy(), "lengths": np.array([5]), "h_0": np.zeros((1, 1, 4), np.float32)}
    assert_close(torch.from_numpy(runtime.run(["output"], feed)[0]).double(), layer(x)[0])


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(SettingError, match="exists and is kept"):
        export_onnx(holdfast.RNN(2, 3), path)
    assert path.read_text() == "mine"
    export_onnx(holdfast.RNN(2, 3), path, force=True)
    assert onnx.load(path).producer_name == "holdfast"
    with pytest.raises(SettingError, match="is a folder"):
        export_onnx(holdfast.RNN(2, 3), tmp_path, force=True)
    with pytest.raises(FileNotFoundError):
        export_onnx(holdfast.RNN(2, 3), tmp_path / "nowhere" / "model.onnx")


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path):
    (tmp_path / "model.onnx").write_text("old")
    with pytest.raises(OSError, match="File too large"), disk_that_takes(4096):
        export_onnx(holdfast.GRU(3, 64), tmp_path / "model.onnx", force=True)
    assert (tmp_path / "model.onnx").read_text() == "old"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[export\]'"):
        onnx_model(network_of(holdfast.RNN(2, 3)))


def test_two_exports_of_one_model_differ_by_their_date_alone():
    network = network_of(holdfast.SGORNN(2, 4))
    assert onnx_model(network).SerializeToString() == onnx_model(network).SerializeToString()
