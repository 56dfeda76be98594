"""Parameters of the models in S3, to the unit: Table 1 (addition), Table 2 (HAR-2), Table 3 (Penn Treebank)."""

import pytest
from torch import nn

import holdfast

TABLES = {
    # layer: input, hidden, readout, printed count
    "addition VPRNN": (holdfast.VPRNN, 2, 128, 1, 1_409),
    "addition SGORNN": (holdfast.SGORNN, 2, 128, 1, 1_411),
    "addition FastRNN": (holdfast.FastRNN, 2, 128, 1, 16_899),
    "addition LSTM": (holdfast.LSTM, 2, 128, 1, 67_201),
    "HAR-2 VPRNN": (holdfast.VPRNN, 9, 128, 1, 2_305),
    "HAR-2 SGORNN": (holdfast.SGORNN, 9, 128, 1, 2_307),
    "HAR-2 FastRNN": (holdfast.FastRNN, 9, 128, 1, 17_795),
    "HAR-2 LSTM": (holdfast.LSTM, 9, 64, 1, 19_009),
    "PTB cell VPRNN": (holdfast.VPRNN, 256, 256, 0, 67_840),
    "PTB cell SGORNN": (holdfast.SGORNN, 256, 256, 0, 67_842),
    "PTB cell FastRNN": (holdfast.FastRNN, 256, 256, 0, 131_330),
    "PTB cell LSTM": (holdfast.LSTM, 256, 256, 0, 525_312),
}


@pytest.mark.parametrize(("layer", "input_size", "hidden_size", "outputs", "printed"), TABLES.values(), ids=TABLES)
def test_parameters_are_those_printed(layer, input_size, hidden_size, outputs, printed):
    """The recurrent layer and, for the first two tables, a linear readout with bias."""
    model = nn.ModuleList([layer(input_size, hidden_size)])
    if outputs:
        model.append(nn.Linear(hidden_size, outputs))
    assert sum(weight.numel() for weight in model.parameters()) == printed


def test_torchs_lstm_has_a_second_bias_a_gate():
    theirs, ours = nn.LSTM(2, 128), holdfast.LSTM(2, 128)
    counts = [sum(weight.numel() for weight in layer.parameters()) for layer in (theirs, ours)]
    assert counts[0] - counts[1] == 4 * 128
