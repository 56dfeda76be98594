"""A named layer shows the arguments of its cell: to ``help`` and ``inspect``, and to an editor."""

import inspect
import json
import subprocess
import sys

import pytest

import holdfast
from holdfast.layers import named, named_zoo
from holdfast.rrnn import gru, layer

MODULES = {
    named: ("RNN", "LinearRNN", "FastRNN", "SGORNN", "VPRNN", "ExpRNN", "LSTM", "GRU"),
    named_zoo: ("MinGRU", "MinLSTM"),
    layer: ("RRNN",),
}
LAYERS = [(module, name) for module, names in (MODULES | {gru: ("RRNNGRU",)}).items() for name in names]


@pytest.mark.parametrize(("module", "name"), LAYERS, ids=[name for _, name in LAYERS])
def test_the_signature_is_that_of_the_cell_and_of_recurrent(module, name):
    """Names, defaults and order; and the TypedDict that editors read has the same keywords."""
    kind = getattr(module, name)
    shown, cell = inspect.signature(kind).parameters, inspect.signature(kind.cell_type).parameters
    recurrent = inspect.signature(holdfast.Recurrent).parameters
    assert list(shown)[:3] == ["input_size", "hidden_size", "num_layers"]
    for parameter in shown.values():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert parameter == (cell if parameter.name in cell else recurrent)[parameter.name]
    keywords = set(shown) - {"input_size", "hidden_size", "num_layers"}
    assert keywords == set(getattr(module, f"_{name}Settings").__annotations__)
    assert keywords == (set(cell) | set(recurrent)) - {"cell", "input_size", "hidden_size", "num_layers"}


def test_a_type_checker_knows_the_arguments(tmp_path):
    """Right ones pass; a misspelt one and one of the wrong type are reported."""
    pytest.importorskip("pyright")
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\n"
        'holdfast.SGORNN(2, 8, 2, recurrent="exp", bidirectional=True)\n'
        'holdfast.SGORNN(2, 8, recurent="exp")\n'
        'holdfast.GRU(2, 8, bias="no")\n'
    )
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(program)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["generalDiagnostics"]
    assert sorted(one["range"]["start"]["line"] for one in found if one["severity"] == "error") == [2, 3]
