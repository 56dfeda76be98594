"""cite: every cell, constraint, optimiser and method gives its paper, and every "References:" leads to an entry."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.citations import bibliography, cite, references_in
from holdfast.rrnn import RRNN, RRNNGRU
from holdfast.spline import affine_piece
from holdfast.stability import Projected, project_, truncate
from holdfast.train.optimisers import OPTIMISERS, build_optimiser

SOURCE = Path(holdfast.__file__).parent
PAPERS = {
    "RNN": {"elman1990"},
    "LinearRNN": {"miller2019stable"},
    "FastRNN": {"kusupati2018"},
    "SGORNN": {"sgornn", "kusupati2018", "taylor2021vprnn"},
    "VPRNN": {"taylor2021vprnn"},
    "ExpRNN": {"lezcano2019"},
    "LSTM": {"hochreiter1997"},
    "GRU": {"cho2014"},
    "MinGRU": {"feng2024"},
    "MinLSTM": {"feng2024"},
}
OF_OPTIMISERS = {
    "sgd": set(),
    "adam": {"kingma2015"},
    "phased-adam": {"kingma2015", "qian_rrnn"},
    "adamw": {"loshchilov2019"},
    "rmsprop": {"tieleman2012"},
    "adagrad": {"duchi2011"},
    "path-sgd": {"neyshabur2016path"},
    "path-adam": {"neyshabur2016path"},
}


def _keys(text):
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)
    assert keys[0] == "holdfast"
    assert len(set(keys)) == len(keys)
    return set(keys[1:])


def test_every_references_section_leads_to_an_entry():
    """In every docstring of the package. A line that fits no title raises."""
    found = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found += len(references_in(ast.get_docstring(node) or ""))
    assert found >= 20
    with pytest.raises(KeyError, match="Nobody"):
        references_in("Text.\n\nReferences:\n    Nobody (1900), Nothing.\n")


def test_every_entry_is_whole_and_used_by_something():
    """Braces balance, author and title are there, and no entry is one that nobody gets."""
    from holdfast.citations import TORCH

    used = {"holdfast", *TORCH.values()}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                used.update(references_in(ast.get_docstring(node) or ""))
    assert used == set(bibliography())
    for entry in bibliography().values():
        assert entry.count("{") == entry.count("}")
        assert "author" in entry
        assert "title" in entry


@pytest.mark.parametrize(
    "name", [name for name in holdfast.__all__ if f"{name}Cell" in holdfast.__all__ or name == "LinearRNN"]
)
def test_a_layer_gives_the_papers_of_its_cell_and_constraints(name):
    model = nn.Sequential(getattr(holdfast, name)(3, 4), nn.Linear(4, 1))
    assert _keys(cite(model)) == PAPERS[name]


@pytest.mark.parametrize("kind", [RRNN, RRNNGRU])
def test_an_rrnn_gives_its_paper(kind):
    assert "qian_rrnn" in _keys(cite(kind(3, 4)))


@pytest.mark.parametrize(
    ("recurrent", "key"), [("exp", "lezcano2019"), ("cayley", "helfrich2018"), ("householder", "mhammedi2017")]
)
def test_an_orthogonal_map_gives_its_own_paper(recurrent, key):
    keys = _keys(cite(holdfast.SGORNN(3, 4, recurrent=recurrent)))
    assert key in keys
    assert "taylor2021vprnn" not in keys


def test_a_random_start_is_cited_and_a_zero_one_is_not():
    start = holdfast.RandomStart(0.1)
    assert _keys(cite(holdfast.GRU(3, 4, initial_state=start))) == {"cho2014", "wang2019spline"}
    assert _keys(cite(holdfast.GRU(3, 4))) == {"cho2014"}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_gives_its_paper(name):
    """The class and an instance alike."""
    model = holdfast.RNN(3, 4, nonlinearity="relu")
    kinds, steps = OF_OPTIMISERS[name], {"steps": 5, "outputs": "last"} if name.startswith("path-") else {}
    keys = _keys(cite(build_optimiser(name, model, 0.1, steps)))
    assert _keys(cite(inspect.unwrap(OPTIMISERS[name]))) == keys
    assert kinds <= keys
    assert bool(kinds) == bool(keys)


def test_a_projected_optimiser_gives_both_papers():
    layer = holdfast.RNN(3, 4)
    assert _keys(cite(Projected(torch.optim.Adam(layer.parameters()), layer, rate=0.9))) >= {
        "miller2019stable",
        "kingma2015",
    }


def test_methods_and_layers_of_pytorch_are_known():
    assert _keys(cite(affine_piece)) == {"wang2019spline"}
    assert _keys(cite(project_, truncate)) == {"miller2019stable"}
    assert _keys(cite(nn.LSTM(2, 3))) == {"hochreiter1997"}
    assert _keys(cite(truncate(holdfast.RNN(3, 4), k=2))) == {"miller2019stable", "elman1990"}


def test_an_own_cell_gives_holdfast_alone_and_one_that_derives_from_ours_its_paper():
    class Own(holdfast.Cell):
        def drive(self, x):
            return x

        def weights(self):
            return ()

        def step(self, drive, state, weights):
            return (drive,)

    class Derived(holdfast.GRUCell):
        pass

    assert _keys(cite(Own(3, 4))) == set()
    assert _keys(cite(Derived(3, 4))) == {"cho2014"}
    assert repr(cite(nn.Linear(1, 1))).startswith("@software{holdfast,\n")


def test_the_command_line_cites_a_run(tmp_path):
    """The optimiser of its settings included."""
    from typer.testing import CliRunner

    from holdfast.cli import app
    from holdfast.runs import run_settings, train_run

    table = {"name": "addition", "steps": 4, "validation": 8}
    train_run(
        run_settings({"task": table, "train": {"updates": 1, "batch": 4, "optimiser": "rmsprop"}}),
        tmp_path,
        progress=False,
    )
    done = CliRunner().invoke(app, ["cite", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert _keys(done.output) == {"sgornn", "kusupati2018", "taylor2021vprnn", "tieleman2012"}
