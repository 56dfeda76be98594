"""Exported C: whole models, int8, names and files."""

import csv
import os
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from helpers.c_model import Model, compiled, needs_gcc
from holdfast.engine.targets.c import step_of
from holdfast.errors import SettingError, ShapeError, UnsupportedError
from holdfast.export import c, network_of
from holdfast.export.quantise import quantise, rounded_matrices, rounded_parts
from holdfast.export.simulate import Simulated, exact_parts
from holdfast.runs import Request, choose, load_run, train_run
from holdfast.tasks import Batch
from holdfast.train import SequenceModel

STEPS = 12
NAMED = "stacked", "every", "direct", "tokens", "onehot", "layer", "reservoir", "pooled"


class Pooled(nn.Module):
    """A readout of the mean, the last and the largest output."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.linear = rnn, nn.Linear(3 * rnn.hidden_size, 2)

    def forward(self, xs):
        hs = self.rnn(xs)[0]
        return self.linear(torch.cat([hs.mean(dim=0), hs[-1], hs.amax(dim=0)], dim=1)), None


def models():
    """By name: a model, and inputs (time, features) or tokens (time,)."""
    torch.manual_seed(3)
    x = torch.randn(STEPS, 5, dtype=torch.float32)
    tokens = torch.randint(0, 7, (STEPS,))
    reservoir = hf.Reservoir(2, steps=STEPS, units=4, horizons=(3,), quantiles=(0.3, 0.6)).fit(torch.randn(9, STEPS, 2))
    learned = SequenceModel(
        hf.GRU(5, 6, num_layers=2, initial_state="learned", backend="reference"), nn.Linear(6, 3), every_step=True
    )
    for value in learned.rnn.initial_state.values:
        nn.init.normal_(value)
    one_hot = nn.Embedding.from_pretrained(torch.eye(7))
    return {
        "stacked": (SequenceModel(hf.LSTM(5, 6, num_layers=3, backend="reference"), nn.Linear(6, 3)), x),
        "every": (learned, x),
        "direct": (SequenceModel(hf.SGORNN(5, 64, backend="reference"), nn.Linear(69, 2, bias=False), direct=True), x),
        "tokens": (SequenceModel(hf.FastRNN(9, 6, backend="reference"), nn.Linear(6, 2), nn.Embedding(7, 9)), tokens),
        "onehot": (SequenceModel(hf.RNN(7, 6, backend="reference"), nn.Linear(6, 2), one_hot, every_step=True), tokens),
        "layer": (hf.SGORNN(5, 12, num_layers=2, backend="reference"), x),
        "reservoir": (reservoir, x[:, :2]),
        "pooled": (Pooled(hf.GRU(5, 6, num_layers=2, backend="reference")), x),
    }


def expected(model, xs):
    """The plain model's outputs at every step, (time, outputs): after a prefix for one that answers at the end."""
    with torch.no_grad():
        if isinstance(model, hf.Reservoir):
            return np.concatenate([model(xs[None, :t].to(model.mean.dtype)).numpy() for t in range(1, len(xs) + 1)])
        given = xs[:, None] if xs.dtype == torch.int64 else xs[:, None].to(next(model.parameters()).dtype)
        if isinstance(model, Pooled) or (isinstance(model, SequenceModel) and not model.every_step):
            return np.concatenate([model(given[:t])[0].numpy() for t in range(1, len(xs) + 1)])
        return model(given)[0][:, 0].numpy()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """All models in float32 and in int8, one run of gcc; and a C++ program that includes every header."""
    folder = tmp_path_factory.mktemp("models")
    made = models()
    for name, (model, xs) in made.items():
        c(model.eval(), folder / f"{name}.c")
        data = xs[None].numpy()
        c(model, folder / f"{name}-8.c", int8=True, calibrate=data)
    return compiled(folder), folder, made


@needs_gcc
@pytest.mark.parametrize("name", NAMED)
def test_c_answers_as_the_model_does(library, name):
    """At every step, again after a reset, and the same for the last step if no answer is asked for before."""
    model, xs = library[2][name]
    exported = Model(library[0], library[1] / f"{name}.h", name)
    answers = expected(model.eval(), xs)
    for _ in range(2):
        np.testing.assert_allclose(exported.run(xs.numpy()), answers, rtol=1e-5, atol=1e-5)
        exported.reset()
    assert all(exported.silent_step(x) for x in xs.numpy()[:-1])
    np.testing.assert_allclose(exported.step(xs.numpy()[-1]), answers[-1], rtol=1e-5, atol=1e-5)


@needs_gcc
@pytest.mark.parametrize("name", NAMED)
def test_int8_computes_with_exactly_the_rounded_weights(library, name):
    """The file in int8 is the model in Python with the rounded numbers as its weights, and not the exact one."""
    model, xs = library[2][name]
    network = network_of(model.eval())
    steps = [step_of(row.cell) for row in network.rows]
    exact = exact_parts(network, steps)
    u = xs[:, None] if network.embedding is not None or network.mean is None else _standard(network, xs)[:, None]
    matrices = rounded_matrices(network, steps, exact, [Batch(u, torch.zeros(1))])
    rounded = Simulated(network, steps, rounded_parts(exact, matrices))
    unrounded = Simulated(network, steps, exact)
    exported = Model(library[0], library[1] / f"{name}-8.h", f"{name}_8")
    answers = exported.run(xs.numpy())
    for t in (1, len(xs)):
        simulated, plain = (it(u[:t])[0].reshape(-1, network.output_size)[-1] for it in (rounded, unrounded))
        np.testing.assert_allclose(answers[t - 1], simulated, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(expected(model, xs)[t - 1], plain, rtol=1e-5, atol=1e-5)
    assert np.abs(answers - expected(model, xs)).max() > 1e-5  # something was rounded


def _standard(network, xs):
    return (xs - network.mean) / network.scale


@needs_gcc
def test_tokens_that_are_not_there_change_nothing(library):
    exported = Model(library[0], library[1] / "tokens.h", "tokens")
    exported.step(3)
    before = exported.numbers().copy()
    for token in (-1, 7, 2**31 - 1):
        assert np.isnan(exported.step(token)).all()
        assert exported.returned == -1
    np.testing.assert_array_equal(exported.numbers(), before)
    exported.step(6)
    assert exported.returned == 0


@needs_gcc
def test_headers_work_from_cpp(library):
    """Every header in one C++ file, linked with the C library: extern "C" and no C-only word."""
    folder = library[1]
    headers = sorted(path.name for path in folder.glob("*.h"))
    calls = [f"{path[:-2].replace('-', '_')}" for path in headers]
    text = "".join(f'#include "{path}"\n' for path in headers)
    text += (
        "int main() {\n" + "".join(f"  {{ {it}_state s; {it}_init(&s); {it}_reset(&s); }}\n" for it in calls) + "}\n"
    )
    (folder / "main.cpp").write_text(text)
    command = ["g++", "-Wall", "-Wextra", "-pedantic", "-Werror", "main.cpp", "models.so", "-o", "main"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    assert subprocess.run(["./main"], cwd=folder, env={"LD_LIBRARY_PATH": "."}).returncode == 0


NAMES = 'a "quoted" \\n one', "é/* ??/"
COLUMNS = "level */ int x;", "sp\\eed??/"


def table():
    """(cases, time, columns): one column grows for every second case."""
    generator = np.random.default_rng(0)
    x = np.stack([100 + 20 * generator.normal(size=(40, 6)), generator.normal(size=(40, 6))], axis=2)
    x[1::2, :, 0] += 10 * np.arange(6)
    return x.round(4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs on a file whose names would end a comment or a string: one for classes, one for numbers."""
    folder = tmp_path_factory.mktemp("runs")
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *COLUMNS, "label", "amount"])
        for case, rows in enumerate(table()):
            writer.writerows([case, *row, NAMES[case % 2], 50 + 3 * (case % 2)] for row in rows)
    made = {}
    for target, kind in (("label", "classification"), ("amount", "regression")):
        options = {"train.updates": 30, "cell.hidden_size": 6, "task.features": [*COLUMNS], "task.kind": kind}
        chosen = choose(Request(data=folder / "data.csv", target=(target,), options=options))
        train_run(chosen.settings[0], folder / target, task=chosen.tasks[0], progress=False)
        made[target] = folder / target
    return made


@needs_gcc
def test_a_run_answers_in_the_units_and_words_of_its_data(runs, tmp_path):
    """Raw numbers in, standardised inside; names of classes and numbers in their own units out; labels as strings."""
    for name, run in runs.items():
        c(run, tmp_path / f"{name}.c")
    library = compiled(tmp_path)
    for name, folder in runs.items():
        run = load_run(folder)
        assert run.preparation.columns.channels == COLUMNS
        exported, answers = Model(library, tmp_path / f"{name}.h", name), []
        for rows in table():
            exported.reset()
            answers.append(exported.run(rows.astype(np.float32))[-1])
        predicted = run.predict(table())
        if name == "amount":
            np.testing.assert_allclose(np.array(answers)[:, 0], predicted, rtol=1e-5)
        else:
            assert [exported.label(exported.chosen(y)) for y in answers] == predicted.tolist()
            assert {exported.label(i) for i in (0, 1)} == {*NAMES}


def test_int8_tells_its_accuracy_beside_float32s(runs, tmp_path):
    report = c(runs["label"], tmp_path / "net.c", int8=True)
    assert report.metric == "accuracy"
    assert set(report.score) == {"float32", "int8"}
    assert any("in float32" in line and "in int8" in line for line in report.lines)
    assert any("training split" in line for line in report.lines)
    exact = c(runs["label"], tmp_path / "exact.c")
    assert report.flash < exact.flash
    assert report.ram == exact.ram


def test_a_clipped_scale_lowers_the_error_on_the_data_it_was_chosen_by():
    """One outlier that the data never meet: the scale gives it up for the others."""
    torch.manual_seed(0)
    matrix = torch.randn(4, 20, dtype=torch.float64)
    matrix[:, 0] = 6.0
    x = torch.randn(200, 20, dtype=torch.float64)
    x[:, 0] = 0.0
    moments = x.mT @ x / len(x)
    errors = []
    for known in (None, moments):
        rounded = torch.from_numpy(quantise(matrix, known).matrix()).double()
        errors.append(((rounded - matrix) @ x.mT).square().mean(dim=1))
    assert (errors[1] <= errors[0] + 1e-12).all()
    assert errors[1].mean() < 0.7 * errors[0].mean()


def test_rounding_errs_by_at_most_half_a_step_without_clipping():
    """|Ŵ - W| ≤ s/2 for entries that are not clipped, and s is at most max |W| / 127."""
    matrix = torch.randn(30, 17)
    rounded = quantise(matrix)
    error = np.abs(rounded.matrix() - matrix.numpy())
    inside = np.abs(rounded.values) < 127
    assert (error[inside] <= (rounded.scale[:, None] * 0.5001 + 0 * error)[inside]).all()
    assert (rounded.scale <= matrix.abs().amax(dim=1).numpy() / 127 * 1.00001).all()


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2fast", "a-b", "", "été", "a b", "_x", "a__b", "x;int y"])
def test_a_name_that_is_not_a_c_identifier_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="C identifier"):
        c(hf.RNN(2, 3), tmp_path / "net.c", name=name)
    assert not list(tmp_path.iterdir())


def test_a_file_name_gives_the_prefix(tmp_path):
    c(hf.RNN(2, 3), tmp_path / "my-net.v2.c")
    assert "my_net_v2_step" in (tmp_path / "my-net.v2.h").read_text()
    assert '#include "my-net.v2.h"' in (tmp_path / "my-net.v2.c").read_text()
    with pytest.raises(SettingError, match=r"ends in \.c"):
        c(hf.RNN(2, 3), tmp_path / "net.onnx")


def test_existing_files_are_kept(tmp_path):
    (tmp_path / "net.h").write_text("mine")
    with pytest.raises(SettingError, match="exists and is kept"):
        c(hf.RNN(2, 3), tmp_path / "net.c")
    assert (tmp_path / "net.h").read_text() == "mine"
    assert not (tmp_path / "net.c").exists()
    c(hf.RNN(2, 3), tmp_path / "net.c", force=True)
    assert "net_step" in (tmp_path / "net.h").read_text()


def test_a_full_disk_leaves_neither_file(tmp_path, monkeypatch):
    """The second file cannot be written: the first does not appear either, and no temporary file stays."""
    (tmp_path / "net.c").write_text("old")
    synced, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        synced(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        c(hf.RNN(2, 3), tmp_path / "net.c", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["net.c"]
    assert (tmp_path / "net.c").read_text() == "old"


def test_what_c_cannot_do_is_named(tmp_path):
    class Drawing(hf.RNNCell):
        def step(self, drive, state, weights):
            (h,) = super().step(drive, state, weights)
            return (h + torch.rand_like(h),)

    class Sorting(hf.RNNCell):
        def step(self, drive, state, weights):
            return (torch.sort(drive + state[0], dim=1)[0],)

    for model, words in (
        (hf.LSTM(2, 3, bidirectional=True), "bidirectional"),
        (Drawing(2, 3), "random numbers"),
        (Sorting(2, 3), "sort"),
        (nn.Linear(2, 3), "Linear"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            c(model, tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


def test_non_finite_weights_and_bad_calibration_data_are_refused(tmp_path):
    layer = hf.RNN(2, 3)
    for data in (np.zeros((2, 3)), np.zeros((2, 3, 5)), np.zeros((0, 3, 2))):
        with pytest.raises(ShapeError, match="calibrate"):
            c(layer, tmp_path / "net.c", int8=True, calibrate=data)
    with pytest.raises(SettingError, match="int8=True"):
        c(layer, tmp_path / "net.c", calibrate=np.zeros((2, 3, 2)))
    with torch.no_grad():
        layer.l0.weight_hh[0, 0] = torch.nan
    with pytest.raises(SettingError, match=r"weight_hh.*non-finite"):
        c(layer, tmp_path / "net.c")
    assert not list(tmp_path.iterdir())
