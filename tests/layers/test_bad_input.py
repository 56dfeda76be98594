"""What is wrong is refused by name: what was expected, what came. Nothing is half-changed."""

import copy

import jaxtyping
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import holdfast
from holdfast import GRU, LSTM, RNN, SGORNN, FastRNN, RandomStart, Recurrent, RNNCell, ScalarGates, SGORNNCell, scan
from holdfast.errors import (
    ConversionError,
    DeviceError,
    DTypeError,
    HoldfastError,
    SettingError,
    ShapeError,
    StateDictError,
)
from holdfast.train import SequenceModel

xs = torch.zeros(5, 2, 3, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    """Without the shape checks of the test settings, which would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def _refuses(error, parts, call):
    """The error is of this class, of the library's root, and a ValueError or TypeError; it names all ``parts``."""
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, HoldfastError)
    assert isinstance(caught.value, ValueError | TypeError)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


SHAPES = {
    "features": (lambda: RNN(3, 4)(torch.zeros(5, 2, 9)), ["RNN", "(time, batch, 3)", "(5, 2, 9)"]),
    "batch-first features": (
        lambda: RNN(3, 4, batch_first=True)(torch.zeros(5, 2, 9)),
        ["(batch, time, 3)", "(5, 2, 9)"],
    ),
    "unbatched features": (lambda: LSTM(3, 4)(torch.zeros(5, 9)), ["(time, 3)", "(5, 9)"]),
    "one dimension": (lambda: RNN(3, 4)(torch.zeros(3)), ["(time, batch, 3)", "(3,)"]),
    "four dimensions": (lambda: RNN(3, 4)(torch.zeros(1, 5, 2, 3)), ["(time, batch, 3)", "(1, 5, 2, 3)"]),
    "no step": (lambda: RNN(3, 4)(torch.zeros(0, 2, 3)), ["at least one step", "(0, 2, 3)"]),
    "no sample": (lambda: RNN(3, 4)(torch.zeros(5, 0, 3)), ["one sample", "(5, 0, 3)"]),
    "packed features": (
        lambda: RNN(3, 4)(pack_padded_sequence(torch.zeros(5, 2, 9), [5, 2])),
        ["(time, batch, 3)", "(5, 2, 9)"],
    ),
    "h_0": (lambda: RNN(3, 4)(xs, torch.zeros(1, 2, 5)), ["(1, 2, 4)", "(1, 2, 5)"]),
    "h_0 of another batch": (lambda: RNN(3, 4)(xs, torch.zeros(1, 3, 4)), ["(1, 2, 4)", "(1, 3, 4)"]),
    "h_0 of too few rows": (lambda: RNN(3, 4, 2)(xs, torch.zeros(1, 2, 4)), ["(2, 2, 4)", "(1, 2, 4)"]),
    "h_0 unbatched": (lambda: RNN(3, 4)(xs, torch.zeros(1, 4)), ["(1, 2, 4)", "(1, 4)"]),
    "h_0 batched for unbatched": (lambda: RNN(3, 4)(xs[:, 0], torch.zeros(1, 1, 4)), ["(1, 4)", "(1, 1, 4)"]),
    "LSTM's memory left out": (lambda: LSTM(3, 4)(xs, torch.zeros(1, 2, 4)), ["(1, 2, 4), (1, 2, 4)"]),
    "a pair for an RNN": (lambda: RNN(3, 4)(xs, (torch.zeros(1, 2, 4),) * 2), ["(1, 2, 4), (1, 2, 4)"]),
    "cell's x": (lambda: RNNCell(3, 4)(torch.zeros(2, 9)), ["RNNCell", "(batch, 3)", "(2, 9)"]),
    "cell's x of three": (lambda: RNNCell(3, 4)(xs), ["(batch, 3)", "(5, 2, 3)"]),
    "cell's state": (lambda: RNNCell(3, 4)(xs[0], torch.zeros(2, 5)), ["(2, 4)", "(2, 5)"]),
    "scan's xs": (lambda: scan(RNNCell(3, 4), torch.zeros(5, 3)), ["scan of RNNCell", "(time, batch, 3)", "(5, 3)"]),
    "scan's state": (lambda: scan(RNNCell(3, 4), xs, torch.zeros(3, 4)), ["(2, 4)", "(3, 4)"]),
    "scan's lengths": (lambda: scan(RNNCell(3, 4), xs, lengths=torch.tensor([5])), ["(2,)", "(1,)"]),
    "fractional lengths": (lambda: scan(RNNCell(3, 4), xs, lengths=torch.ones(2)), ["whole numbers", "float64"]),
    "lengths too long": (lambda: scan(RNNCell(3, 4), xs, lengths=torch.tensor([6, 1])), ["5 steps", "1 to 6"]),
    "lengths below zero": (lambda: scan(RNNCell(3, 4), xs, lengths=torch.tensor([5, -1])), ["5 steps", "-1 to 5"]),
    "packing that grows": (
        lambda: RNN(3, 4)(PackedSequence(torch.zeros(5, 3), torch.tensor([2, 3]))),
        ["[2, 3]", "add up to 5", "enforce_sorted=False"],
    ),
    "packing that does not add up": (
        lambda: RNN(3, 4)(PackedSequence(torch.zeros(5, 3), torch.tensor([3, 1]))),
        ["[3, 1]", "add up to 5"],
    ),
    "packing with an empty step": (
        lambda: RNN(3, 4)(PackedSequence(torch.zeros(2, 3), torch.tensor([2, 0]))),
        ["[2, 0]", "add up to 2"],
    ),
}


@pytest.mark.parametrize(("call", "parts"), SHAPES.values(), ids=SHAPES)
def test_wrong_shapes(call, parts):
    _refuses(ShapeError, parts, call)


KINDS = {
    "float32 input": (lambda: RNN(3, 4)(xs.float()), ["float64", "float32", ".to("]),
    "whole numbers": (lambda: LSTM(3, 4)(xs.long()), ["float64", "int64"]),
    "float32 weights": (lambda: RNN(3, 4, dtype=torch.float32)(xs), ["torch.float32", "torch.float64"]),
    "float32 h_0": (lambda: RNN(3, 4)(xs, torch.zeros(1, 2, 4).float()), ["state", "float32"]),
    "float32 memory": (lambda: LSTM(3, 4)(xs, (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4).float())), ["float32"]),
    "complex input": (lambda: RNN(3, 4)(xs.to(torch.complex128)), ["float64", "complex128"]),
    "a list for input": (lambda: RNN(3, 4)([[1.0]]), ["tensor", "list"]),
    "a list for scan": (lambda: scan(RNNCell(3, 4), [[1.0]]), ["tensor", "list"]),
    "a list for a cell": (lambda: RNNCell(3, 4)([[1.0]]), ["tensor", "list"]),
    "a number for h_0": (lambda: RNN(3, 4)(xs, 0.0), ["h_0", "1 tensors", "float"]),
    "numbers for h_0": (lambda: LSTM(3, 4)(xs, (0.0, 0.0)), ["h_0", "2 tensors", "tuple"]),
    "a number for a state": (lambda: scan(RNNCell(3, 4), xs, 0.0), ["state", "float"]),
    "a number for a cell's state": (lambda: RNNCell(3, 4)(xs[0], 0.0), ["state", "float"]),
    "a list of lengths": (lambda: scan(RNNCell(3, 4), xs, lengths=[5, 2]), ["lengths", "list"]),
    "a factory of something else": (lambda: Recurrent(nn.Linear, 3, 4), ["holdfast.Cell", "Linear"]),
}


@pytest.mark.parametrize(("call", "parts"), KINDS.values(), ids=KINDS)
def test_wrong_types(call, parts):
    _refuses(DTypeError, parts, call)


DEVICES = {
    "input": (lambda: RNN(3, 4)(xs.to("meta")), ["cpu", "meta", ".to(device)"]),
    "weights": (lambda: RNN(3, 4, device="meta")(xs), ["cpu", "meta"]),
    "h_0": (lambda: RNN(3, 4)(xs, torch.zeros(1, 2, 4, device="meta")), ["state", "cpu", "meta"]),
    "lengths": (lambda: scan(RNNCell(3, 4), xs, lengths=torch.ones(2, dtype=int, device="meta")), ["cpu", "meta"]),
}


@pytest.mark.parametrize(("call", "parts"), DEVICES.values(), ids=DEVICES)
def test_wrong_devices(call, parts):
    _refuses(DeviceError, parts, call)


SETTINGS = {
    "hidden_size 0": (lambda: RNN(3, 0), ["hidden_size", "at least 1", "0"]),
    "hidden_size below 0": (lambda: LSTM(3, -4), ["hidden_size", "-4"]),
    "input_size 0": (lambda: GRU(0, 4), ["input_size", "0"]),
    "a size that is no whole number": (lambda: RNNCell(3, 4.0), ["hidden_size", "4.0"]),
    "a size that is a truth value": (lambda: RNNCell(True, 4), ["input_size", "True"]),
    "num_layers 0": (lambda: RNN(3, 4, 0), ["num_layers", "0"]),
    "output_size 0": (lambda: holdfast.LinearRNN(3, 4, output_size=0), ["output_size", "0"]),
    "direct without output": (lambda: holdfast.LinearCell(3, 4, direct=True), ["output_size"]),
    "odd size for rotations": (lambda: SGORNN(3, 5), ["even", "5", "6"]),
    "odd size for VPRNN": (lambda: holdfast.VPRNNCell(3, 7), ["even", "7"]),
    "sublayers 0": (lambda: holdfast.VPRNNCell(3, 4, sublayers=0), ["sublayer", "0"]),
    "unknown nonlinearity": (lambda: RNN(3, 4, nonlinearity="rleu"), ["tanh, sigmoid, relu", "'rleu'"]),
    "unknown nonlinearity of ExpRNN": (lambda: holdfast.ExpRNN(3, 4, nonlinearity="mod"), ["'mod'"]),
    "unknown start": (lambda: RNN(3, 4, init="eye"), ["uniform, identity, np", "'eye'"]),
    "unknown start of ExpRNN": (lambda: holdfast.ExpRNN(3, 4, init="eye"), ["henaff", "'eye'"]),
    "unknown reset": (lambda: GRU(3, 4, reset="between"), ["before, after", "'between'"]),
    "unknown map": (lambda: SGORNN(3, 4, recurrent="givens"), ["rotations", "'givens'"]),
    "map of another size": (lambda: SGORNNCell(3, 4, recurrent=holdfast.RotationProduct(6)), ["4", "6"]),
    "unknown clip": (lambda: ScalarGates(clip="beta"), ["2alpha", "'beta'"]),
    "unknown initial state": (lambda: RNN(3, 4, initial_state="ones"), ['"zeros"', "'ones'"]),
    "negative noise": (lambda: RandomStart(-1.0), ["at least 0", "-1.0"]),
    "noise that is no number": (lambda: RandomStart(float("nan")), ["nan"]),
    "dropout above 1": (lambda: RNN(3, 4, 2, dropout=1.5), ["0 to 1", "1.5"]),
    "unknown backend of a layer": (lambda: RNN(3, 4, backend="cuda"), ["auto, reference, fused", "'cuda'"]),
    "unknown backend of a scan": (lambda: scan(RNNCell(3, 4), xs, backend="gpu"), ["auto, reference, fused", "'gpu'"]),
    "a ready cell and sizes": (lambda: Recurrent(RNNCell(3, 4), 3, 4), ["RNNCell", "factory"]),
    "a ready cell for two layers": (lambda: Recurrent(RNNCell(3, 4), num_layers=2), ["RNNCell", "factory"]),
    "a factory without sizes": (lambda: Recurrent(RNNCell), ["input_size", "None"]),
    "no cell at all": (lambda: Recurrent("rnn", 3, 4), ["Cell", "'rnn'"]),
}


@pytest.mark.parametrize(("call", "parts"), SETTINGS.values(), ids=SETTINGS)
def test_wrong_settings(call, parts):
    _refuses(SettingError, parts, call)


def test_an_unknown_setting_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match="hiden_size"):
        RNN(3, 4, hiden_size=5)


# -- the state_dict of another layer --------------------------------------------------------------------------------

OTHERS = {
    "another cell": (lambda: RNN(3, 4), lambda: LSTM(3, 4), ["weight_ih", "(16, 3) instead of (4, 3)"]),
    "gates too many": (lambda: RNN(3, 4), lambda: FastRNN(3, 4), ["not known", "gates.alpha_logit"]),
    "gates missing": (lambda: FastRNN(3, 4), lambda: RNN(3, 4), ["missing", "gates.alpha_logit"]),
    "the other GRU": (lambda: GRU(3, 4), lambda: GRU(3, 4, reset="before"), ["missing", "bias_hn"]),
    "another map": (
        lambda: SGORNN(3, 4),
        lambda: SGORNN(3, 4, recurrent="exp"),
        ["recurrent.angles", "recurrent.skew"],
    ),
    "another size": (lambda: RNN(3, 4), lambda: RNN(3, 5), ["(5, 3) instead of (4, 3)"]),
    "fewer layers": (lambda: RNN(3, 4, 2), lambda: RNN(3, 4), ["missing", "l1.weight_ih"]),
    "torch's": (lambda: RNN(3, 4), lambda: nn.RNN(3, 4), ["weight_ih_l0", "from_torch"]),
    "a learned start missing": (lambda: RNN(3, 4, initial_state="learned"), lambda: RNN(3, 4), ["initial_state"]),
}


class Model(nn.Module):
    """A parent that knows nothing of Holdfast."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.readout = rnn, nn.Linear(4, 1)


@pytest.mark.parametrize(("make", "make_other", "parts"), OTHERS.values(), ids=OTHERS)
def test_another_layers_state_dict_changes_nothing(make, make_other, parts):
    """Every weight is afterwards what it was before."""
    layer, other = make(), make_other()
    before = copy.deepcopy(layer.state_dict())
    _refuses(StateDictError, [*parts, "Nothing"], lambda: layer.load_state_dict(other.state_dict()))
    assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())


@pytest.mark.parametrize(("make", "make_other", "parts"), OTHERS.values(), ids=OTHERS)
def test_in_a_sequence_model_another_layers_state_dict_changes_nothing(make, make_other, parts):
    """By names as by shapes, and in no part of the model: neither in the layer nor in the readout."""
    model, other = (SequenceModel(rnn, nn.Linear(4, 1)) for rnn in (make(), make_other()))
    before = copy.deepcopy(model.state_dict())
    _refuses(StateDictError, [*parts, "Nothing"], lambda: model.load_state_dict(other.state_dict()))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(("make", "make_other", "parts"), OTHERS.values(), ids=OTHERS)
def test_in_another_librarys_model_another_layers_state_dict_is_refused(make, make_other, parts):
    """By us if a shape is wrong, before the layer changes; else by PyTorch, which names the same names."""
    model, other = Model(make()), Model(make_other())
    before = copy.deepcopy(model.rnn.state_dict())
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(other.state_dict())
    if isinstance(caught.value, StateDictError):
        assert all(part in str(caught.value) for part in (*parts, "Nothing"))
        assert all(torch.equal(weight, before[name]) for name, weight in model.rnn.state_dict().items())
    else:
        wrong = {f"rnn.{name}" for name in make().state_dict().keys() ^ make_other().state_dict().keys()}
        assert all(f'"{name}"' in str(caught.value) for name in wrong)


def test_a_wrong_shape_does_not_hide_the_wrong_names():
    """All that is wrong with a layer inside a larger model is said at once."""
    model, other = Model(SGORNN(3, 4)), Model(SGORNN(5, 4, recurrent="exp"))
    parts = ["missing: l0.recurrent.angles", "not known: l0.recurrent.skew", "(4, 5) instead of (4, 3)"]
    _refuses(StateDictError, parts, lambda: model.load_state_dict(other.state_dict()))


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_without_strict_what_fits_is_loaded_as_in_torch(nested):
    """strict=False: missing and unknown names are reported, not refused; the rest is loaded."""
    layer, other = FastRNN(3, 4), RNN(3, 4)
    outer, source = (Model(layer), Model(other)) if nested else (layer, other)
    report = outer.load_state_dict(source.state_dict(), strict=False)
    assert [name.split(".")[-1] for name in report.missing_keys] == ["alpha_logit", "beta_logit"]
    assert torch.equal(layer.cells[0].weight_hh, other.cells[0].weight_hh)


def test_without_strict_a_wrong_shape_is_still_refused():
    layer = RNN(3, 4)
    before = copy.deepcopy(layer.state_dict())
    _refuses(StateDictError, ["(5, 3)"], lambda: layer.load_state_dict(RNN(3, 5).state_dict(), strict=False))
    assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())


def test_a_state_dict_of_something_else_is_refused():
    _refuses(StateDictError, ["weight_hh is None"], lambda: RNNCell(3, 4).load_state_dict({"weight_hh": "x"}))


def test_a_cell_refuses_what_a_layer_refuses():
    cell = RNNCell(3, 4)
    before = copy.deepcopy(cell.state_dict())
    _refuses(
        StateDictError, ["missing"], lambda: cell.load_state_dict(holdfast.LinearCell(3, 4, bias=False).state_dict())
    )
    assert all(torch.equal(weight, before[name]) for name, weight in cell.state_dict().items())


# -- what has no counterpart in torch.nn, or here --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: SGORNN(2, 4), "SGORNNCell"),
        (lambda: GRU(2, 4, reset="before"), "before"),
        (lambda: RNN(2, 4, nonlinearity="softplus"), "nonlinearity"),
        (lambda: LSTM(2, 4, nonlinearity="relu"), "nonlinearity"),
        (lambda: RNN(2, 4, initial_state="learned"), "learned"),
    ],
)
def test_to_torch_refuses_what_torch_has_not(layer, reason):
    with pytest.raises(ConversionError, match=reason):
        holdfast.to_torch(layer())


@pytest.mark.parametrize("layer", [lambda: nn.LSTM(2, 4, proj_size=3), lambda: nn.Linear(2, 4), lambda: "rnn"])
def test_from_torch_refuses_what_it_does_not_know(layer):
    with pytest.raises(ConversionError, match=r"expects a torch\.nn"):
        holdfast.from_torch(layer())


def test_to_torch_refuses_what_is_no_layer():
    with pytest.raises(ConversionError, match="Linear"):
        holdfast.to_torch(nn.Linear(2, 3))
