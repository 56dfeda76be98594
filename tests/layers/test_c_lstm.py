"""CLSTM: windows by hand, then an LSTM."""

import pytest
import torch
from torch import nn

from holdfast import CLSTM, LSTM
from holdfast.errors import SettingError, ShapeError


def test_it_is_the_lstm_of_the_windows():
    """For all inputs: c_t = relu(Σ_j F_j x_{t-k+1+j} + b), window by window, with zeros before the first."""
    layer, xs = CLSTM(3, 4, filters=5, window=3), torch.randn(6, 2, 3)
    F, b = layer.convolution.weight, layer.convolution.bias  # (filters, input, window)
    padded = torch.cat((torch.zeros(2, 2, 3), xs))
    windows = [torch.relu(sum(padded[t + j] @ F[:, :, j].mT for j in range(3)) + b) for t in range(6)]
    torch.testing.assert_close(layer(xs), layer.lstm(torch.stack(windows)))


def test_with_a_window_of_one_and_the_identity_it_is_an_lstm_of_positive_inputs():
    """K = 1, F = I, b = 0, x ≥ 0: relu(x) = x."""
    layer, xs = CLSTM(3, 4, filters=3, window=1), torch.rand(6, 2, 3)
    with torch.no_grad():
        layer.convolution.weight.copy_(torch.eye(3)[..., None])
        layer.convolution.bias.zero_()
    torch.testing.assert_close(layer(xs), layer.lstm(xs))


def test_a_padded_sequence_is_read_to_its_end():
    """Packed sequences of any length, shorter than the window too, in either direction: each alone gives the same."""
    layer, xs, lengths = CLSTM(3, 4, filters=5, window=4, bidirectional=True), torch.randn(7, 3, 3), [7, 2, 5]
    packed = nn.utils.rnn.pack_padded_sequence(xs, torch.tensor(lengths), enforce_sorted=False)
    output, (h, c) = layer(packed)
    rows, _ = nn.utils.rnn.pad_packed_sequence(output)
    for i, length in enumerate(lengths):
        alone, (h_i, c_i) = layer(xs[:length, i : i + 1])
        torch.testing.assert_close(rows[:length, i], alone[:, 0])
        torch.testing.assert_close((h[:, i], c[:, i]), (h_i[:, 0], c_i[:, 0]))


def test_the_paper_has_150_filters_of_three_words():
    """300 features per word, 150 units: Zhou et al. (2015), §4.2."""
    layer = CLSTM(300, 150)
    assert layer.convolution.weight.shape == (150, 300, 3)
    assert isinstance(layer.lstm, LSTM)
    assert sum(w.numel() for w in layer.parameters()) == 150 * 901 + 4 * 150 * 301


def test_bad_input_is_named():
    layer = CLSTM(3, 4, filters=5)
    with pytest.raises(SettingError, match="no h_0"):
        layer(torch.zeros(2, 1, 3), (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)))
    with pytest.raises(ShapeError, match=r"\(time, batch, 3\), got \(2, 1, 4\)"):
        layer(torch.zeros(2, 1, 4))
    for settings, words in (
        ({"window": 0}, "window"),
        ({"filters": -1}, "filters"),
        ({"batch_first": True}, "time first"),
    ):
        with pytest.raises(SettingError, match=words):
            CLSTM(3, 4, **settings)
