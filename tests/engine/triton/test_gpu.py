"""The triton backend on a real GPU: ``pytest -m gpu -n 0``. Skipped where there is none."""

import copy
import warnings

import pytest
import torch

import holdfast as hf
from helpers.cells import COMPILED, assert_same_scan, built, random_state
from holdfast.engine.program.settings import PLANS
from holdfast.engine.targets.triton import ways
from holdfast.engine.targets.triton.shape import Shape, Way

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # float32, other sums, the GPU's own exp and division


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # the plain loop is held to float32 as well
    yield
    torch.backends.cuda.matmul.allow_tf32 = allowed


def on_gpu(cell, *tensors):
    return cell.cuda(), *(t.detach().cuda().requires_grad_(t.requires_grad) for t in tensors)


def assert_same(cell, xs, **options):
    cell, xs, *state = on_gpu(cell, xs, *random_state(cell, xs.shape[1]))
    assert_same_scan(cell, xs, tuple(state), tolerance=TOLERANCE, backend="triton", **options)


@pytest.mark.parametrize("name", COMPILED)
def test_triton_equals_reference(name):
    """The way that the compiler's report chose, the trial on; 37 samples are three programs."""
    for input_size in (3, 12):
        cell = built(name, input_size, 20)
        xs = torch.randn(9, 37, input_size, requires_grad=True)
        assert_same(cell, xs)
        assert_same(cell, xs, lengths=torch.randint(0, 10, (37,)).cuda(), reverse=True)


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("hidden", [16, 33, 128])
def test_every_way_through_time_equals_reference(way, hidden, monkeypatch):
    """``steps`` runs twice: the second scan replays the CUDA graph of the first on other numbers."""
    monkeypatch.setattr(ways, "settled", lambda plan, target, masked: Shape(plan.dtype, masked, way, warps=8))
    if way is Way.HELD and hidden == 128:
        pytest.skip("does not fit")
    for cell in (hf.LSTMCell(12, hidden), hf.GRUCell(12, hidden, reset="before")):
        for _ in range(2):
            assert_same(cell, torch.randn(7, 19, 12, requires_grad=True))


def test_launches_are_recorded_and_replayed(monkeypatch):
    monkeypatch.setattr(ways, "settled", lambda plan, target, masked: Shape(plan.dtype, masked, Way.STEPS, warps=8))
    cell, xs = on_gpu(hf.GRUCell(12, 24), torch.randn(7, 19, 12))
    with torch.no_grad():
        for _ in range(3):
            xs = torch.randn_like(xs)
            torch.testing.assert_close(*(hf.scan(cell, xs, backend=b) for b in ("triton", "reference")), **TOLERANCE)
    (plan,) = vars(cell)[PLANS].known.values()
    assert plan.records


@pytest.mark.parametrize("name", ["rnn-tanh", "lstm", "gru-after", "vprnn-tanh"])
def test_bfloat16_is_as_near_to_float32_as_its_digits_allow(name):
    cell, xs = on_gpu(built(name, 12, 32).bfloat16(), torch.randn(9, 37, 12).bfloat16())
    low, _ = hf.scan(cell, xs, backend="triton")
    high, _ = hf.scan(copy.deepcopy(cell).float(), xs.float(), backend="reference")
    assert low.dtype == torch.bfloat16
    assert (low.float() - high).abs().max() <= 2**-4 * high.abs().max()


def test_random_numbers_are_those_of_the_plain_loop():
    class Noisy(hf.RNNCell):
        def step(self, drive, state, weights):
            (h,) = super().step(drive, state, weights)
            return (h + 0.1 * torch.randn_like(h),)

    cell, xs = on_gpu(Noisy(12, 8), torch.randn(5, 6, 12))
    results = []
    for backend in ("triton", "reference"):
        torch.manual_seed(3)
        results.append(hf.scan(cell, xs, backend=backend)[0])
    torch.testing.assert_close(*results, **TOLERANCE)


def test_auto_stays_on_the_plain_loop_and_says_so_once(monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["holdfast.engine.scan"], "_told", set())
    cell, xs = on_gpu(hf.RNNCell(3, 4), torch.randn(2, 2, 3))
    with pytest.warns(hf.errors.FusedFallbackWarning, match='backend="triton"'):
        hf.scan(cell, xs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.scan(cell, xs)


def test_layers_take_the_option():
    layer = hf.GRU(5, 6, num_layers=2, bidirectional=True, backend="triton").cuda()
    plain = copy.deepcopy(layer)
    for module in plain.modules():
        if hasattr(module, "backend"):
            module.backend = "reference"
    xs = torch.randn(7, 3, 5, device="cuda")
    torch.testing.assert_close(layer(xs), plain(xs), **TOLERANCE)
