"""``network_of``: what a model is, whatever it comes as."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import UnsupportedError
from holdfast.estimators.readout import ReservoirModel
from holdfast.export import network_of
from holdfast.rrnn import RRNN, RRNNGRU
from holdfast.runs import Request, choose, load_run, train_run
from holdfast.stability import truncate
from holdfast.train import SequenceModel


def test_a_layer_is_its_cells_and_starts_in_evaluation_mode_and_float32():
    layer = holdfast.LSTM(3, 4, 2, bidirectional=True, dropout=0.5, initial_state="learned", batch_first=True)
    with torch.no_grad():
        for value in layer.initial_state.values:
            value.normal_()
    network = network_of(layer)
    assert [[row.reverse for row in one] for one in network.layers] == [[False, True]] * 2
    assert network.batch_first
    assert network.every_step
    assert (network.input_size, network.output_size) == (3, 8)
    for index, row in enumerate(network.rows):
        assert not row.cell.training
        torch.testing.assert_close(row.cell.weight_hh, layer.cells[index].weight_hh.float())
        for entry, learned in zip(row.start, layer.initial_state.values, strict=True):
            torch.testing.assert_close(entry, learned[index].float())
    assert layer.training, "the layer itself is left as it was"
    assert layer.l0.weight_hh.dtype == torch.float64


def test_a_random_start_is_zero():
    network = network_of(holdfast.RNN(3, 4, initial_state=holdfast.RandomStart(1.0)).train())
    assert not network.rows[0].start[0].any()


@pytest.mark.parametrize("every_step", [False, True])
def test_a_sequence_model_has_an_embedding_and_a_readout(every_step):
    model = SequenceModel(holdfast.GRU(4, 5), nn.Linear(9, 2), nn.Embedding(7, 4), every_step=every_step, direct=True)
    network = network_of(model)
    assert network.input_size == 7
    assert network.readout.direct
    assert network.readout.over == ("every" if every_step else "last")
    torch.testing.assert_close(network.embedding, model.embedding.weight.detach().float())
    torch.testing.assert_close(network.readout.weight, model.readout.weight.detach().float())


def test_layers_of_torch_and_cells_alone_are_layers_too():
    assert network_of(nn.GRU(3, 4, 2)).provenance.cells == "GRUCell(3, 4), GRUCell(4, 4)"
    assert len(network_of(holdfast.VPRNNCell(3, 4)).rows) == 1


def test_a_reservoir_is_one_layer_of_many_rows():
    reservoir = holdfast.Reservoir(2, steps=9, units=4, bidirectional=True)
    network = network_of(reservoir)
    assert len(network.layers) == 1
    assert len(network.rows) == len(reservoir.cells)
    assert [row.reverse for row in network.rows[:3]] == [False, True, False]
    assert network.output_size == reservoir.features
    assert network_of(ReservoirModel(reservoir, outputs=3)).output_size == 3


@pytest.mark.parametrize("target", [("label",), ("size",)])
def test_a_run_says_its_columns_its_scale_and_its_labels(tmp_path, target):
    rows = [(c, 3.0 + s * (c % 2), 5.0, ["flat", "up"][c % 2], c % 2 + 0.5) for c in range(12) for s in range(4)]
    lines = ["id,x,z,label,size", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    other = "size" if target == ("label",) else "label"
    options = {"train.epochs": 1, "cell.hidden_size": 4, "task.features": ["x", "z"]}
    chosen = choose(Request(data=tmp_path / "mine.csv", target=target, options=options))
    train_run(chosen.settings[0], tmp_path / "run", task=chosen.tasks[0], progress=False)
    network, run = network_of(tmp_path / "run"), load_run(tmp_path / "run")
    assert network.columns == ("x", "z")
    assert other not in network.columns
    np.testing.assert_allclose(network.mean, run.preparation.mean, rtol=1e-6)
    np.testing.assert_allclose(network.scale, run.preparation.std, rtol=1e-6)
    assert network.provenance.run == "run"
    assert "run run (best weights)" in network.provenance.sentence
    if target == ("label",):
        assert (network.answer, network.labels) == ("classes", ("flat", "up"))
    else:
        assert (network.answer, network.targets) == ("numbers", ("size",))
        np.testing.assert_allclose(network.target_mean, run.preparation.target_mean, rtol=1e-6)


def test_a_run_of_a_reservoir_is_standardised_once(tmp_path):
    """Its data are standardised before the reservoir does so again: one scale stands for both."""
    (tmp_path / "mine.csv").write_text(
        "id,x,y\n" + "\n".join(f"{c},{c % 2 * s + 50},{c % 2}" for c in range(9) for s in range(4))
    )
    options = {"train.epochs": 1, "cell.hidden_size": 4, "task.sequence": "id"}
    chosen = choose(Request(data=tmp_path / "mine.csv", target=("y",), options=options))
    train_run(chosen.settings[0], tmp_path / "run", task=chosen.tasks[0], progress=False)
    run = load_run(tmp_path / "run")
    reservoir = holdfast.Reservoir(1, steps=4, units=2)
    reservoir.mean.fill_(0.3)
    reservoir.scale.copy_(torch.tensor([2.0, 0.5]))
    run.model = ReservoirModel(reservoir, outputs=run.preparation.spec().output_size)
    network, ready = network_of(run), run.preparation.apply(tmp_path / "mine.csv").inputs
    x = ready * torch.tensor(run.preparation.std) + torch.tensor(run.preparation.mean)
    u = reservoir._inputs(ready, torch.full((9,), 4)).transpose(0, 1)
    level, change = (x - network.mean) / network.scale, x.diff(dim=1, prepend=x[:, :1]) / network.change
    torch.testing.assert_close(torch.cat([level, change], dim=2), u, rtol=1e-4, atol=1e-4)
    assert network.answer in ("classes", "numbers")


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: RRNN(4, 4, rounds=2), "RRNN, which chooses"),
        (lambda: RRNNGRU(4, 4), "RRNNGRU, which chooses"),
        (lambda: SequenceModel(truncate(holdfast.RNN(3, 4), 2), nn.Linear(4, 1)), "truncated to a context"),
        (lambda: nn.Linear(3, 4), "got Linear"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(model, named):
    with pytest.raises(UnsupportedError, match=named):
        network_of(model())


def test_the_model_is_copied():
    """Training on does not change a network that was made before."""
    layer = holdfast.SGORNN(3, 4)
    network = network_of(layer)
    before = copy.deepcopy(network.rows[0].cell.weight_ih)
    with torch.no_grad():
        layer.l0.weight_ih.add_(1)
    assert torch.equal(network.rows[0].cell.weight_ih, before)
