"""The fused backend in company: threads, processes, PyTorch's transforms, and cells it cannot run."""

import contextlib
import functools
import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf
from helpers.cells import MixedCell, assert_same_scan, built, random_state
from holdfast.engine.program.settings import PLANS
from holdfast.engine.targets.cpu import team
from holdfast.engine.targets.cpu.plan import Plan
from holdfast.errors import FusedError, FusedFallbackWarning, ShapeError


def loss_and_grads(cell, xs, backend="fused"):
    output, _ = hf.scan(cell, xs, backend=backend)
    return output.detach(), torch.autograd.grad(output.square().sum(), tuple(cell.parameters()))


# -- threads and processes -------------------------------------------------------------------------------------------


def test_thread_counts_give_the_same_result_to_rounding():
    threads = torch.get_num_threads()
    try:
        for name in ("sgornn", "lstm", "rnn-relu"):
            cell, xs = built(name, 3), torch.randn(6, 40, 3)
            results = []
            for count in (1, 2):
                torch.set_num_threads(count)
                results.append(loss_and_grads(cell, xs))
            torch.testing.assert_close(*results)
    finally:
        torch.set_num_threads(threads)


def test_python_threads_do_the_work_where_there_is_no_openmp(monkeypatch):
    """The same blocks on the same data: the same bits as PyTorch's team gives."""
    cell, xs = hf.GRUCell(3, 9), torch.randn(6, 40, 3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = loss_and_grads(cell, xs)
        monkeypatch.setattr(team, "_openmp", lambda: None)
        torch.testing.assert_close(loss_and_grads(cell, xs), expected, rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


def test_the_number_of_threads_may_change_between_forward_and_backward():
    """What forward keeps is laid out for its threads; backward reads it as it lies."""
    threads, cell, xs = torch.get_num_threads(), hf.LSTMCell(3, 9), torch.randn(6, 8, 3)
    _, expected = loss_and_grads(cell, xs, "reference")
    try:
        for first, second in ((1, 2), (2, 1)):
            torch.set_num_threads(first)
            output, _ = hf.scan(cell, xs, backend="fused")
            torch.set_num_threads(second)
            torch.testing.assert_close(torch.autograd.grad(output.square().sum(), tuple(cell.parameters())), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_cell_and_its_plans_go_when_nobody_holds_them():
    """Also for a cell that cannot be fused, whose reason is remembered."""
    plans = []
    for cell in (hf.RNNCell(2, 3), BadCell("batch")):
        with contextlib.suppress(FusedError):
            hf.scan(cell, torch.randn(4, 5, 2), backend="fused")[0].sum().backward()
        plans.append(weakref.ref(cell))
        plans += [weakref.ref(plan) for plan in vars(cell)[PLANS].known.values() if isinstance(plan, Plan)]
    del cell
    gc.collect()
    assert len(plans) == 3
    assert [plan() for plan in plans] == [None] * 3


def test_repeated_calls_and_changing_shapes_give_what_they_gave():
    """No call leaves anything behind for the next: large and small, again and again, in any order."""
    cell = hf.GRUCell(3, 9)
    inputs = [torch.randn(steps, batch, 3) for steps, batch in ((5, 3), (90, 64), (1, 1), (7, 33))]
    first = [loss_and_grads(cell, xs) for xs in inputs]
    for _ in range(3):
        for i in (2, 0, 3, 1):
            torch.testing.assert_close(loss_and_grads(cell, inputs[i]), first[i], rtol=0, atol=0)


def test_a_graph_may_be_gone_through_twice():
    """retain_graph keeps what backward reads, though buffers are used again by others meanwhile."""
    cell, xs = hf.LSTMCell(3, 32), torch.randn(100, 64, 3)
    output, _ = hf.scan(cell, xs, backend="fused")
    first = torch.autograd.grad(output.sum(), tuple(cell.parameters()), retain_graph=True)
    other, _ = hf.scan(cell, torch.randn(100, 64, 3), backend="fused")
    other.sum().backward()
    second = torch.autograd.grad(output.sum(), tuple(cell.parameters()))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_outputs_keep_their_values_while_buffers_are_used_again():
    cell = hf.RNNCell(3, 64)
    outputs = [hf.scan(cell, torch.full((80, 64, 3), float(i)), backend="fused")[0] for i in range(4)]
    copies = [output.clone() for output in outputs]
    for _ in range(4):
        hf.scan(cell, torch.randn(80, 64, 3), backend="fused")
    assert all(torch.equal(output, copy) for output, copy in zip(outputs, copies, strict=True))


def test_calls_from_several_threads_do_not_meet():
    cells = [built(name, 3) for name in ("sgornn", "lstm", "gru-after", "fastrnn")]
    xs = torch.randn(20, 24, 3)
    expected = [loss_and_grads(cell, xs) for cell in cells]
    failures = []

    def work(index):
        try:
            for _ in range(5):
                torch.testing.assert_close(loss_and_grads(cells[index], xs), expected[index])
        except Exception as error:  # a thread's failure must reach the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % len(cells),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _in_a_process(xs, weights, expected):
    torch.set_num_threads(1)  # as in every worker of a DataLoader: PyTorch's own threads do not survive a fork
    torch.set_default_dtype(torch.float64)
    cell = hf.SGORNNCell(3, 8)
    cell.load_state_dict(weights)
    torch.testing.assert_close(loss_and_grads(cell, xs), expected)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_another_process_compute_the_same(method):
    """A forked child has the parent's compiled code but none of its threads; a spawned one has neither."""
    torch.set_num_threads(2)
    cell, xs = hf.SGORNNCell(3, 8), torch.randn(5, 24, 3)
    expected = loss_and_grads(cell, xs)  # so that threads exist before the fork
    arguments = (xs, cell.state_dict(), expected)
    worker = multiprocessing.get_context(method).Process(target=_in_a_process, args=arguments, daemon=True)
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0


def _data_parallel(rank, port, results):
    torch.set_default_dtype(torch.float64)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(hf.SGORNN(3, 8))
    xs = torch.randn(5, 8, 3)[:, 4 * rank : 4 * rank + 4]
    model(xs)[0].square().mean().backward()
    if rank == 0:
        torch.save([p.grad for p in model.parameters()], results)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_data_parallel_training_has_the_gradients_of_one_process(tmp_path):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = tmp_path / "grads.pt"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_data_parallel, args=(rank, port, results), daemon=True) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(180)
    assert [worker.exitcode for worker in workers] == [0, 0]
    torch.manual_seed(0)
    layer = hf.SGORNN(3, 8)
    layer(torch.randn(5, 8, 3))[0].square().mean().backward()
    torch.testing.assert_close([p.grad for p in layer.parameters()], torch.load(results, weights_only=True))


# -- PyTorch's transforms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgornn", "vprnn-tanh", "lstm", "gru-before"])
def test_second_derivatives_are_those_of_reference(name):
    cell = built(name, 2)
    xs = torch.randn(4, 3, 2, requires_grad=True)
    results = []
    for backend in ("auto", "reference"):
        output, _ = hf.scan(cell, xs, lengths=torch.tensor([4, 2, 3]), backend=backend)
        first = torch.autograd.grad(output.square().sum(), [xs, *cell.parameters()], create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), [xs, *cell.parameters()]))
    torch.testing.assert_close(*results)


def test_torch_func_transforms_are_right():
    cell, xs = hf.SGORNNCell(2, 6), torch.randn(5, 3, 2)
    run = functools.partial(hf.scan, cell)
    plain = functools.partial(hf.scan, cell, backend="reference")
    stacked = torch.randn(4, 5, 3, 2)
    torch.testing.assert_close(torch.vmap(lambda x: run(x)[0])(stacked), torch.stack([plain(x)[0] for x in stacked]))
    torch.testing.assert_close(torch.func.jacrev(lambda x: run(x)[0])(xs), torch.func.jacrev(lambda x: plain(x)[0])(xs))
    with pytest.raises(FusedError, match=r"torch\.func"):
        torch.func.jacrev(lambda x: run(x, backend="fused")[0])(xs)


def test_checkpointing_gives_the_same_gradients():
    layer, xs = hf.LSTM(3, 6), torch.randn(5, 4, 3, requires_grad=True)
    results = []
    for use_reentrant in (None, False, True):
        run = (
            layer
            if use_reentrant is None
            else functools.partial(torch.utils.checkpoint.checkpoint, layer, use_reentrant=use_reentrant)
        )
        results.append(torch.autograd.grad(run(xs)[0].square().sum(), [xs]) if use_reentrant is not True else None)
        if use_reentrant is True:
            xs.grad = None
            run(xs)[0].square().sum().backward()
            results[-1] = (xs.grad,)
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


def test_autocast_is_off_inside_a_scan():
    """A scan computes in its weights' number type, whatever the surroundings ask of matrix products."""
    layer, xs = hf.GRU(3, 6, dtype=torch.float32), torch.randn(5, 4, 3, dtype=torch.float32)
    expected, _ = layer(xs)
    for backend in ("auto", "reference"):
        layer.backend = backend
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = layer(xs)
        assert output.dtype == torch.float32
        torch.testing.assert_close(output, expected)


def test_settings_that_change_are_noticed():
    """A plan holds for the cell as it was: a changed attribute, nonlinearity or weight is not missed."""
    cell, xs = MixedCell(3, 4), torch.randn(5, 4, 3)
    assert_same_scan(cell, xs, random_state(cell, 4))
    with torch.no_grad():
        cell.weight_hh.mul_(0.5)
        cell.leak.fill_(0.2)
    assert_same_scan(cell, xs, random_state(cell, 4))
    plain = hf.RNNCell(3, 4)
    assert_same_scan(plain, xs)
    plain.phi = torch.relu
    assert_same_scan(plain, xs)
    plain.weight_hh = nn.Parameter(torch.randn(4, 4))
    assert_same_scan(plain, xs)


def test_constrained_weights_are_followed():
    """A parametrised weight is built anew each call; its free matrix gets the gradient."""
    cell, xs = hf.RNNCell(3, 4), torch.randn(5, 4, 3)
    hf.orthogonal(cell, "weight_hh", map="cayley")
    assert_same_scan(cell, xs, random_state(cell, 4))
    torch.nn.utils.parametrizations.weight_norm(cell, "weight_ih")
    assert_same_scan(cell, xs, random_state(cell, 4))


# -- what it cannot do -------------------------------------------------------------------------------------------------


class BadCell(hf.Cell):
    def __init__(self, what):
        super().__init__(2, 3)
        self.what, self.weight = what, nn.Parameter(torch.randn(3, 2))
        self.hidden = torch.randn(3)

    def drive(self, x):
        return x @ self.weight.mT

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        (h,) = state
        match self.what:
            case "operator":
                return (torch.lgamma(h.abs() + 1) + drive,)
            case "batch":
                return (torch.tanh(drive + h / h.shape[0]),)
            case "across samples":
                return (torch.tanh(drive + h - h.mean(dim=0)),)
            case "outside tensor":
                return (torch.tanh(drive + h * self.hidden),)
            case "number":
                return (torch.tanh(drive + h * float(drive.detach().mean())),)
            case "branch":
                return (torch.tanh(drive + h) if h.sum() > 0 else torch.tanh(drive - h),)
            case "random":
                return (torch.tanh(drive + torch.poisson(h.abs())),)
            case "in place":
                return (torch.tanh(drive + h.mul_(0.5)),)
            case "in place, in a view":
                z = drive + h
                z[:, :2].relu_()
                return (torch.tanh(z),)
            case "in place, under a view":
                z = drive + h
                first = z[:, :1]
                z.mul_(2)
                return (torch.tanh(z + first),)


REASONS = {
    "operator": "lgamma",
    "batch": "batch size",
    "across samples": "across samples",
    "outside tensor": "neither in weights",
    "number": "reads a number",
    "branch": "reads a number",
    "random": "poisson",
    "in place": "in-place",
    "in place, in a view": "in place",
    "in place, under a view": "in place",
}


@pytest.mark.parametrize("what", REASONS)
def test_a_cell_that_cannot_be_fused_is_named_once_and_runs_on_reference(what):
    """With one warning a kind of cell and reason under "auto", and an error under "fused"; never a wrong result."""
    sys.modules["holdfast.engine.scan"]._warned.clear()
    cell, xs = BadCell(what), torch.randn(4, 5, 2)
    with pytest.raises(FusedError, match=REASONS[what]):
        hf.scan(cell, xs, backend="fused")
    torch.manual_seed(1)
    with pytest.warns(FusedFallbackWarning, match=REASONS[what]):
        first, _ = hf.scan(cell, xs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.scan(cell, xs)  # the second time is silent
    torch.manual_seed(1)
    torch.testing.assert_close(first, hf.scan(cell, xs, backend="reference")[0])


def test_a_step_may_write_into_its_own_values_and_may_have_no_gradient():
    """In place where nobody else looks, and a state that nothing is differentiated through."""

    class Counting(BadCell):
        @property
        def state_sizes(self):
            return 3, 1

        def step(self, drive, state, weights):
            z = drive + state[0]
            before = torch.sigmoid(z)
            z.tanh_()
            return z * before, state[1] + 1

    class Still(BadCell):
        def step(self, drive, state, weights):
            return (torch.zeros_like(drive),)

    counting = Counting("")
    assert_same_scan(counting, torch.randn(4, 5, 2, requires_grad=True), random_state(counting, 5))
    output, _ = hf.scan(Still(""), torch.randn(4, 5, 2), backend="fused")
    assert not output.any()


def test_literal_tensors_and_own_parameters_are_understood():
    """A step may make a number into a tensor, and may read the cell's parameters directly: both are followed."""

    class Direct(hf.Cell):
        def __init__(self):
            super().__init__(2, 3)
            self.weight, self.gain = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3))
            self.register_buffer("shift", torch.randn(3))

        def drive(self, x):
            return x @ self.weight.mT

        def weights(self):
            return ()

        def step(self, drive, state, weights):
            return (torch.tanh(drive * torch.tensor(0.5) + self.gain * state[0] + self.shift),)

    cell = Direct()
    assert_same_scan(cell, torch.randn(4, 5, 2), random_state(cell, 5))
    cell.shift = torch.randn(3)
    assert_same_scan(cell, torch.randn(4, 5, 2), random_state(cell, 5))


def test_half_precision_and_no_steps_are_answered_by_name():
    cell = hf.RNNCell(2, 3)
    with pytest.raises(ShapeError, match="at least one step"):
        hf.scan(cell, torch.randn(0, 4, 2), backend="fused")
    half = hf.RNNCell(2, 3).to(torch.float16)
    xs = torch.randn(3, 4, 2, dtype=torch.float16)
    with pytest.raises(FusedError, match="float16"):
        hf.scan(half, xs, backend="fused")
    with pytest.warns(FusedFallbackWarning, match="float16"):
        hf.scan(half, xs)


@pytest.mark.parametrize("batch", [1, 40])
def test_borrowed_parameters_get_their_gradients(batch):
    """``torch.func.functional_call`` with parameters that are results: their gradient goes on to what they are made of.

    The compiled scan lost the gradient of a parameter that a folded drive reads.
    """
    layer, xs = hf.RNN(3, 5, backend="fused"), torch.randn(4, batch, 3)
    made_of = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    found = []
    for backend in ("fused", "reference"):
        layer.backend = backend
        output, _ = torch.func.functional_call(layer, {name: 2.0 * t for name, t in made_of.items()}, (xs,))
        found.append(torch.autograd.grad(output.square().sum(), list(made_of.values())))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


# -- the cache folder --------------------------------------------------------------------------------------------------

PROGRAM = """
    import torch, holdfast
    cell, xs = holdfast.RNNCell(2, 6), torch.randn(4, 5, 2)
    output, _ = holdfast.scan(cell, xs, backend="fused")
    torch.testing.assert_close(output, holdfast.scan(cell, xs, backend="reference")[0])
    output.sum().backward()
    print("answered")
"""


def run_program(before="", **environment):
    code = textwrap.dedent(before) + textwrap.dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert "answered" in done.stdout, done.stderr
    return done


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with the code of one program."""
    folder = tmp_path_factory.mktemp("cache")
    run_program(HOLDFAST_CACHE=str(folder))
    return folder


def test_the_cache_is_filled_and_used(filled):
    entries = {p: p.stat().st_mtime_ns for p in filled.rglob("*.bin")}
    assert len(entries) == 2  # forward and backward
    run_program(HOLDFAST_CACHE=str(filled))
    assert {p: p.stat().st_mtime_ns for p in filled.rglob("*.bin")} == entries
    assert not list(filled.rglob("*.part"))


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_entry_is_compiled_anew(filled, tmp_path, damage):
    folder = shutil.copytree(filled, tmp_path / "cache")
    for path in folder.rglob("*.bin"):
        code = path.read_bytes()
        path.write_bytes(
            {"truncated": code[: len(code) // 2], "changed": code[:100] + b"?" + code[101:], "empty": b""}[damage]
        )
    damaged = {p: p.read_bytes() for p in folder.rglob("*.bin")}
    assert len(damaged) == 2
    run_program(HOLDFAST_CACHE=str(folder))
    assert all(path.read_bytes() != code for path, code in damaged.items())


def test_a_folder_that_cannot_be_made_still_lets_the_call_answer(tmp_path):
    (tmp_path / "file").write_text("in the way")
    run_program(HOLDFAST_CACHE=str(tmp_path / "file"))


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs a folder that nobody can write to")
def test_a_read_only_folder_still_lets_the_call_answer():
    run_program(HOLDFAST_CACHE="/proc/holdfast")


def test_a_full_disk_still_lets_the_call_answer(tmp_path):
    """A limit on file size stands in for it: writing fails half way, as on a full disk, and no part is left behind."""
    before = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
    """
    run_program(before, HOLDFAST_CACHE=str(tmp_path))
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.bin"))


def test_nothing_is_written_outside_the_cache_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    run_program(
        HOLDFAST_CACHE=str(tmp_path / "cache"), HOME=str(home), XDG_CACHE_HOME=str(home / "cache"), TMPDIR=str(home)
    )
    assert not list(home.rglob("*"))
