"""A model's stream: at every step the answer of the model for the inputs so far."""

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.stability import truncate
from holdfast.train import SequenceModel


def assert_same(model, inputs):
    batch = inputs.shape[1]
    stream = model.stream(batch)
    model.eval()
    with torch.no_grad():
        for t, x in enumerate(inputs):
            answer, state = model(inputs[: t + 1])
            torch.testing.assert_close(stream.step(x), answer[-1] if model.every_step else answer)
            if isinstance(model.rnn, hf.Recurrent):
                torch.testing.assert_close(stream.state, state)
        pieces, steps = model.stream(batch), model.stream(batch)
        found = torch.cat([pieces.run(inputs[:2]), pieces.run(inputs[2:2]), pieces.run(inputs[2:])])
        torch.testing.assert_close(found, torch.stack([steps.step(x) for x in inputs]))
        torch.testing.assert_close(pieces.state, steps.state)
        if batch > 1:
            alone = model.stream().run(inputs[:, 0])
            torch.testing.assert_close(alone, found[:, 0])
    return stream


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_each_answer_is_that_of_the_sequence_so_far(every_step, direct):
    """With dropout off, though the model is in training mode when the stream is made."""
    readout = nn.Linear(5 + 3 * direct, 2)
    model = SequenceModel(
        hf.GRU(3, 5), readout, every_step=every_step, direct=direct, input_dropout=0.5, output_dropout=0.5
    )
    assert_same(model, torch.randn(4, 2, 3))


def test_tokens_are_embedded():
    model = SequenceModel(hf.LSTM(4, 5), nn.Linear(5, 7), nn.Embedding(7, 4), every_step=True)
    tokens = torch.randint(0, 7, (5, 2))
    stream = assert_same(model, tokens)
    for x, error, message in [
        (torch.tensor([1.0, 2.0]), DTypeError, "whole numbers, got torch.float64"),
        (torch.tensor([1]), ShapeError, r"shape \(2,\), got \(1,\)"),
        (torch.tensor([1, 7]), SettingError, "from 0 to 6, got 1 to 7"),
    ]:
        with pytest.raises(error, match=message):
            stream.step(x)
    before = stream.state
    for xs, error, message in [
        (torch.rand(3, 2), DTypeError, "whole numbers, got torch.float64"),
        (torch.tensor([1, 2]), ShapeError, r"shape \(time, 2\), got \(2,\)"),
        (torch.tensor(1), ShapeError, r"shape \(time, 2\), got \(\)"),
        (torch.tensor([[1, 2], [1, -1]]), SettingError, "from 0 to 6, got -1 to 2"),
    ]:
        with pytest.raises(error, match=message):
            stream.run(xs)
    torch.testing.assert_close(stream.state, before, rtol=0, atol=0)
    single = model.stream()
    with torch.no_grad():
        torch.testing.assert_close(single.step(tokens[0, 0]), model(tokens[:1, :1])[0][0, 0])


def test_a_truncated_layer_streams_with_its_ring():
    model = SequenceModel(truncate(hf.RNN(3, 5), k=3), nn.Linear(5, 2))
    assert_same(model, torch.randn(6, 2, 3))


def test_the_weights_are_those_of_the_moment_until_reset_with_weights():
    model, x = SequenceModel(hf.RNN(3, 5), nn.Linear(5, 2)), torch.randn(3)
    stream = model.stream()
    old = stream.step(x)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    stream.reset()
    torch.testing.assert_close(stream.step(x), old, rtol=0, atol=0)
    stream.reset(weights=True)
    with torch.no_grad():
        torch.testing.assert_close(stream.step(x), model(x[None, None])[0][0])
    kept = stream.state
    stream.reset()
    stream.state = kept
    torch.testing.assert_close(stream.state, kept)


def test_a_layer_without_a_stream_is_named():
    with pytest.raises(SettingError, match=r"got RNN; use a layer of Holdfast, or holdfast\.from_torch"):
        SequenceModel(nn.RNN(3, 5), nn.Linear(5, 2)).stream()
