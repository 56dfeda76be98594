"""The function as a person calls it: what it finds, what it refuses, what it leaves as it was."""

import io
import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import holdfast as hf
from helpers.faults import Tagger
from holdfast.diagnose import Diagnosis, compare, diagnose, page
from holdfast.diagnose.find import find
from holdfast.errors import ConversionError, DataError, DTypeError, SettingError, ShapeError
from holdfast.rrnn import RRNN


class Two(nn.Module):
    """Two recurrent layers: the decoder has more weights."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(3, 4), nn.LSTM(4, 8, batch_first=False)

    def forward(self, xs):
        return self.decoder(self.encoder(xs)[0])[0]


def test_the_package_is_its_own_function_whichever_comes_first():
    """Here the package was imported first; in a new process the attribute of holdfast is used first.

    Without plotly the error names the extra.
    """
    assert callable(hf.diagnose)
    assert hf.diagnose.diagnose is diagnose
    program = (
        "import sys, holdfast\n"
        "sys.modules['plotly'] = None\n"
        "try: holdfast.diagnose\n"
        "except holdfast.errors.MissingExtraError as error: assert 'holdfast[diagnose]' in str(error)\n"
        "else: raise SystemExit('plotly was not missed')\n"
        "del sys.modules['plotly']\n"
        "holdfast.diagnose\n"
        "import holdfast.diagnose as it\n"
        "assert it is holdfast.diagnose and callable(it) and it.diagnose.__name__ == 'diagnose'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_layer_is_found_or_named():
    """Of several the one with most weights; the notes name the other."""
    assert find(Two()).name == "decoder"
    assert find(Two(), "encoder").layer.hidden_size == 4
    assert find(hf.GRUCell(3, 4)).name == ""
    assert find(layer := hf.SGORNN(3, 4)).layer is layer
    named = diagnose(Two(), torch.randn(6, 2, 3), name="encoder")
    assert "decoder" in named.notes[0]
    assert named.about[0][1].startswith("model.encoder: GRU(3, 4)")


def test_what_is_no_recurrent_network_is_refused_with_a_reason():
    xs = torch.randn(6, 2, 3)
    with pytest.raises(SettingError, match=r"expects a recurrent layer.*got Linear, which has none"):
        diagnose(nn.Linear(3, 2), xs)
    with pytest.raises(SettingError, match=r"torch.nn.GRUCell is a single step"):
        diagnose(nn.Sequential(nn.GRUCell(3, 2)), xs)
    with pytest.raises(SettingError, match=r"got 'rnn'; known: 'encoder', 'decoder'"):
        diagnose(Two(), xs, name="rnn")
    with pytest.raises(DTypeError, match=r"expects a torch.nn.Module, got str; for a run folder use diagnose_run"):
        diagnose("runs/mine", xs)
    with pytest.raises(ConversionError, match="proj_size"):
        diagnose(nn.LSTM(3, 4, proj_size=2), xs)


def test_data_of_another_shape_are_named_with_what_is_expected():
    with pytest.raises(
        ShapeError, match=r"\(time, batch, \.\.\.\) with 3 features into model, got xs of shape \(6, 2, 5\)"
    ):
        diagnose(nn.GRU(3, 4), torch.randn(6, 2, 5))
    with pytest.raises(ShapeError, match=r"targets of shape \(2, 9\)"):
        diagnose(Tagger(nn.GRU(3, 4), 4), torch.randn(6, 2, 3), torch.randn(2, 9))
    with pytest.raises(SettingError, match=r"targets or a loss together with lr"):
        diagnose(nn.GRU(3, 4), torch.randn(6, 2, 3), lr=0.1)
    with pytest.raises(SettingError, match=r"lag to be a whole number of at least 1, got 0"):
        diagnose(nn.GRU(3, 4), torch.randn(6, 2, 3), lag=0)


def test_nothing_of_the_model_is_changed():
    """Weights, gradients, mode of every part, and PyTorch's generator: bit for bit, also with a learning rate."""
    model = nn.Sequential(nn.Dropout(0.5), Tagger(nn.LSTM(3, 4), 4))
    model[0].eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    diagnose(model, torch.zeros(6, 2, 3) + 1, torch.zeros(6, 2, 1), lr=0.1)
    assert torch.equal(torch.randn(2), expected)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert [module.training for module in (model[0], model[1], model[1].rnn)] == [False, True, True]


@pytest.mark.parametrize(
    ("made", "xs"),
    [
        (lambda: nn.GRU(3, 4, batch_first=True), (2, 6, 3)),
        (lambda: hf.SGORNN(3, 4, bidirectional=True, backend="reference"), (6, 2, 3)),
        (lambda: hf.LinearRNN(3, 4, output_size=2, backend="reference"), (6, 2, 3)),
        (lambda: nn.LSTM(3, 4), (6, 3)),
        (lambda: hf.RNNCell(3, 4), (6, 2, 3)),
        (lambda: nn.RNN(3, 4).requires_grad_(False), (6, 2, 3)),
        (lambda: nn.RNN(3, 4), (1, 2, 3)),
    ],
    ids=["batch first", "both directions", "output", "one sequence", "a cell", "frozen", "one step"],
)
def test_every_form_of_a_layer_can_be_diagnosed(made, xs):
    diagnosis = diagnose(made(), torch.randn(xs))
    assert diagnosis.rows
    assert page([diagnosis])


def test_tokens_and_packed_sequences():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.rnn, self.readout = nn.Embedding(7, 3), nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, words):
            packed = pack_padded_sequence(self.embedding(words), torch.tensor([4, 6, 5]), enforce_sorted=False)
            return self.readout(self.rnn(packed)[1][0][-1])

    diagnosis = diagnose(Words(), torch.randint(0, 7, (6, 3)), torch.tensor([0, 1, 1]), sequences=2)
    assert diagnosis.samples == (1, 2)  # the longest first
    assert any("differ in length" in note for note in diagnosis.notes)


def test_an_rrnn_shows_its_most_common_trees():
    diagnosis = diagnose(RRNN(4, 4, rounds=2), torch.randn(6, 2, 4))
    trees = diagnosis.rows[-1].pictures["trees"]
    assert trees["total"] == 12
    assert sum(one["share"] for one in trees["trees"]) <= 1 + 1e-4  # rounded to five digits


def test_a_diagnosis_is_json_and_comes_back():
    diagnosis = diagnose(nn.GRU(3, 4), torch.randn(6, 2, 3))
    text = diagnosis.to_json()
    json.loads(text, parse_constant=pytest.fail)  # no NaN, no infinity
    assert Diagnosis.from_json(text) == diagnosis
    for bad in ("", "[]", "{}", '{"format": 2}', text[:-9], json.dumps({"format": 1, "title": 3})):
        with pytest.raises(DataError, match=r"Diagnosis.from_json expects"):
            Diagnosis.from_json(bad)


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    diagnosis = diagnose(nn.RNN(1, 2), torch.randn(3, 2, 1))
    for path in (tmp_path / "missing" / "page.html", tmp_path):
        with pytest.raises(DataError, match=r"could not be written to .*; choose"):
            diagnosis.save(path)
        with pytest.raises(DataError, match=r"could not be written to .*; choose"):
            compare(diagnosis, diagnosis).save(path)
    assert list(tmp_path.iterdir()) == []


def test_names_of_a_model_are_written_as_text(tmp_path):
    """A title or note with tags in it stays text: in the verdict, and in the data for the script."""
    diagnosis = diagnose(nn.RNN(1, 2), torch.randn(3, 2, 1))
    bad = "</script><img src=x onerror=alert(1)>"
    hostile = Diagnosis(bad, ((bad, bad),), diagnosis.findings, diagnosis.rows, (bad,), diagnosis.samples)
    text = page([hostile, hostile])
    assert bad not in text
    assert "<img src=x" not in text.replace("<\\/script><img src=x", "")


def test_a_terminal_shows_what_is_being_measured(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    diagnose(nn.RNN(1, 2), torch.randn(3, 2, 1), progress=True)
    assert "diagnosing" in terminal.getvalue()
    assert "fixed points" in terminal.getvalue()  # a stage that is over before the bar is drawn the next time, too


def test_the_verdict_is_printed(capsys):
    rnn = nn.RNN(2, 16)
    nn.init.orthogonal_(rnn.weight_hh_l0, gain=3.0)
    diagnose(rnn, 0.1 * torch.randn(60, 3, 2)).show()
    printed = capsys.readouterr().out
    assert "1. Exploding gradients" in printed
    assert "project_(holdfast.from_torch(model), rate=0.99)" in printed
    diagnose(nn.GRU(2, 4), torch.randn(9, 3, 2)).show()
    assert "No finding" in capsys.readouterr().out
