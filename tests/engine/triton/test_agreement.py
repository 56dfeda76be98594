"""For every cell and every way of running it, Triton's kernels are the plain loop, in values and in gradients.

There is no GPU: Triton's interpreter runs the kernels on the CPU (tests/conftest.py), so sizes are small.
"""

import pytest
import torch

import holdfast as hf
from helpers import fuzz
from helpers.cells import OPERATIONS, MixedCell, assert_same_scan, built, random_state
from holdfast.engine.targets.triton import ways
from holdfast.engine.targets.triton.shape import Shape, Way

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off where there is a GPU")
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}  # float32, sums in another order
WAYS = {"held": (Way.HELD, 16), "streamed": (Way.STREAMED, 16), "steps": (Way.STEPS, 16), "steps-few": (Way.STEPS, 4)}
every_cell = pytest.mark.parametrize("name", OPERATIONS)


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def no_trial():
    """The kernels must be right without the trial, which would refuse wrong ones."""
    with fuzz.without_trial():
        yield


def assert_same(cell, xs, state=None, **options):
    state = random_state(cell, xs.shape[1]) if state is None else state
    assert_same_scan(cell, xs, state, tolerance=TOLERANCE, backend="triton", **options)


def assert_same_values(cell, xs):
    with torch.inference_mode():
        torch.testing.assert_close(*(hf.scan(cell, xs, backend=b) for b in ("triton", "reference")), **TOLERANCE)


def take(monkeypatch, way):
    """Let every scan take this way through time."""
    kind, lanes = WAYS[way]
    monkeypatch.setattr(ways, "candidates", lambda plan, masked: iter([Shape(plan.dtype, masked, kind, lanes)]))


@every_cell
def test_triton_equals_reference(name, no_trial):
    """Inputs that are projected inside the loop and others, in turns; samples of any length, in either direction."""
    place = OPERATIONS.index(name)
    cell = built(name, 3 if place % 2 else 12)
    xs = torch.randn(3, 3, cell.input_size, requires_grad=True)
    assert_same(cell, xs)
    assert_same(cell, xs, lengths=torch.tensor([2, 3, 0]), reverse=place % 3 == 0)


@pytest.mark.parametrize("way", ["streamed", "steps", "steps-few"])
@pytest.mark.parametrize("name", ["own", "rnn-tanh", "lstm", "gru-before", "vprnn-tanh", "linear-direct", "fastrnn"])
def test_every_way_through_time_equals_reference(name, way, monkeypatch, no_trial):
    """Weights streamed, and a launch for every step with the products left to PyTorch; 12 inputs and 19 units."""
    take(monkeypatch, way)
    cell = built(name, 12, 19)
    xs = torch.randn(3, 3, 12, requires_grad=True)
    assert_same(cell, xs, lengths=torch.tensor([2, 3, 0]), reverse=name == "lstm")


def test_a_step_by_step_scan_without_lengths_equals_reference(monkeypatch, no_trial):
    take(monkeypatch, "steps")
    for cell in (MixedCell(3, 5), hf.LSTMCell(9, 4)):
        assert_same(cell, torch.randn(4, 3, cell.input_size, requires_grad=True))


@pytest.mark.parametrize("hidden", [1, 2, 16, 17, 33])
def test_every_hidden_size_works(hidden, no_trial):
    """One unit, a block's width, and one more."""
    for cell in (hf.GRUCell(9, hidden), MixedCell(3, hidden)):
        assert_same(cell, torch.randn(2, 3, cell.input_size, requires_grad=True))


@pytest.mark.parametrize("batch", [1, 16, 17, 33])
def test_every_batch_size_works(batch, no_trial):
    """A program has 16 samples; sums over samples cross programs."""
    for cell in (hf.FastRNNCell(3, 5), hf.VPRNNCell(3, 6, sublayers=3)):
        assert_same(cell, torch.randn(3, batch, 3, requires_grad=True))


def test_options_of_a_scan(no_trial):
    """No output, no gradient, an output of which one step is used, inputs of any layout, any subset of gradients."""
    cell = hf.LSTMCell(3, 5)
    assert_same(cell, torch.randn(3, 3, 3), need_output=False)
    assert_same_values(cell, torch.randn(1, 2, 3))
    for xs in (
        torch.randn(3, 3, 3).transpose(0, 1),
        torch.randn(3, 3, 6)[:, :, ::2],
        torch.randn(1, 3, 3).expand(3, 3, 3),
    ):
        assert_same(cell, xs.requires_grad_())
    cell.weight_hh.requires_grad_(False)
    assert_same(cell, torch.randn(3, 3, 3), random_state(cell, 3, requires_grad=False))
    grads = [
        torch.autograd.grad(hf.scan(cell, torch.ones(3, 2, 3), backend=backend)[0][1].sum(), cell.weight_ih)
        for backend in ("triton", "reference")
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("way", ["held", "steps"])
@pytest.mark.parametrize("seeds", [range(start, start + 11) for start in (0, 11, 22, 33)], ids=lambda r: f"{r.start}")
def test_random_cells_agree(seeds, way, monkeypatch, no_trial):
    """44 steps that nobody wrote, by the tolerance of helpers/fuzz.py: at least 40 agree, and the rest is refused."""
    take(monkeypatch, way)
    outcomes = []
    for seed in seeds if way == "held" else seeds[::4]:
        torch.manual_seed(seed)
        cell = fuzz.RandomCell(seed).float()
        how = next(iter(fuzz.scans(seed, 1)))
        how |= {"dtype": torch.float32, "batch": min(how["batch"], 5), "steps": min(how["steps"], 3), "huge": False}
        outcomes.append(fuzz.difference(cell, how, "triton"))
    assert not [outcome for outcome in outcomes if outcome.startswith("differs")]
    assert sum(outcome.startswith("agrees") for outcome in outcomes) >= len(outcomes) - 1


@pytest.mark.parametrize("way", ["held", "streamed", "steps"])
@pytest.mark.parametrize("name", ["rnn-tanh", "lstm", "gru-before", "vprnn-tanh"])
def test_bfloat16_is_as_near_to_float32_as_its_digits_allow(name, way, monkeypatch, no_trial):
    """Values and gradients, for the same weights and inputs: within 2⁻⁵ of a tensor's largest entry."""
    take(monkeypatch, way)
    cell, results = built(name, 3).bfloat16(), []
    inputs = [torch.randn(3, 3, 3), *random_state(cell.float(), 3)]
    for dtype, backend in ((torch.bfloat16, "triton"), (torch.float32, "reference")):
        cell.to(torch.bfloat16).to(dtype)
        xs, *state = (t.detach().bfloat16().to(dtype).requires_grad_() for t in inputs)
        output, last = hf.scan(cell, xs, tuple(state), backend=backend)
        loss = sum(value.float().square().sum() for value in (output, *last))
        results.append([output, *torch.autograd.grad(loss, (xs, *state, *cell.parameters()))])
    for low, high in zip(*results, strict=True):
        assert low.dtype == torch.bfloat16
        assert (low.float() - high).abs().max() <= 2**-5 * high.abs().max().clamp(min=1e-3)


def test_nan_stays_in_its_sample(no_trial):
    xs = torch.randn(3, 4, 3)
    xs[1, 2, 0] = float("nan")
    for cell in (built("lstm", 3), built("rnn-relu", 3), built("sgornn", 3)):
        assert_same(cell, xs.requires_grad_(), equal_nan=True)


def test_offsets_have_64_bits(tmp_path, no_trial):
    """The third step of this input lies beyond 2³¹ numbers; the file is sparse."""
    apart = (1 << 30) + 8
    flat = torch.from_file(str(tmp_path / "sparse"), shared=True, size=2 * apart + 64, dtype=torch.float32)
    xs = flat.as_strided((3, 2, 3), (apart, 3, 1)).copy_(torch.randn(3, 2, 3))
    cell = hf.RNNCell(3, 4)
    assert_same_values(cell, xs)
