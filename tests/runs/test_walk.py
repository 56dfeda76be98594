"""From the command to the first update: the model is built once, the data is read once."""

import collections

import pytest

from holdfast.cli import main
from holdfast.runs import prepare
from holdfast.runs.request import Request, choose
from holdfast.train import loop


class FirstUpdate(Exception):
    """Raised instead of the first update."""


@pytest.fixture
def walk(monkeypatch):
    """Counts of what happens before the first update, which is not made."""
    pyarrow_csv = pytest.importorskip("pyarrow.csv")
    counts = collections.Counter()

    def counted(owner, name, label):
        real = getattr(owner, name)

        def call(*arguments, **options):
            counts[label] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(prepare, "build", "models built")
    counted(pyarrow_csv, "read_csv", "files parsed")

    def stop(self):
        raise FirstUpdate

    monkeypatch.setattr(loop._Run, "_update", stop)
    return counts


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{name},{name * step},{'up' if name % 2 else 'down'}" for name in range(20) for step in range(5)]
    path.write_text("\n".join(["id,x,label", *rows]))
    return path


def test_a_training_builds_one_model_and_reads_its_file_once(walk, data, tmp_path):
    words = ["--target", "label", "--cell", "sgornn", "--run", str(tmp_path / "run"), "-q", "--debug"]
    with pytest.raises(FirstUpdate):
        main(["train", "--data", str(data), *words])
    assert walk == {"models built": 1, "files parsed": 1}


def test_an_automatic_choice_reads_its_file_once(walk, data, tmp_path):
    """Also for the test score and the pictures; the chosen model is built once more, from its folder."""
    words = ["--target", "label", "--cell", "reservoir", "--hidden", "2", "--run", str(tmp_path / "run"), "-q"]
    assert main(["train", "--data", str(data), *words]) == 0
    assert walk == {"models built": 1, "files parsed": 1}


def test_settings_are_checked_without_a_model(walk, data):
    chosen = choose(Request(data=data, target="label", cells=("sgornn", "gru", "lstm")))
    assert walk == {"files parsed": 1}
    assert chosen.tasks[0] is chosen.tasks[1] is chosen.tasks[2]
