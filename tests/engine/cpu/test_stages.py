"""Each stage of the compiler by itself: what goes in, what comes out."""

import ctypes

import pytest
import torch
from llvmlite import ir
from torch.nn import functional as F

import holdfast as hf
from holdfast.engine.program.graph import Recorder, Unsupported
from holdfast.engine.program.lower import lower
from holdfast.engine.program.render import render
from holdfast.engine.program.schedule import Loop, schedule
from holdfast.engine.program.tiles import Input, Kind, Outer, Product, Rotate, RotateBack, Slot, in_order
from holdfast.engine.program.trace import Batch, differs, record_step, trace_step
from holdfast.engine.targets.cpu import buffers, cache, native
from holdfast.engine.targets.cpu.arguments import Argument, Role
from holdfast.engine.targets.cpu.emit import emit_backward, emit_forward
from holdfast.engine.targets.cpu.machine import second_cache
from holdfast.engine.targets.cpu.shape import Shape
from holdfast.engine.targets.cpu.vec import Vec, fma, select, vector_type


def traced(cell, fold=True, gradient=True):
    weights = tuple(cell.weights())
    features = cell.input_size if fold else cell.drive(torch.zeros(1, cell.input_size)).shape[-1]
    return trace_step(cell, weights, features, fold=fold, gradient=gradient)


# -- graph -----------------------------------------------------------------------------------------------------------


def record(function, inputs, own=()):
    with Recorder(inputs, own) as recorder:
        result = function(*inputs)
    recorder.graph.outputs = [recorder.node(result)]
    return recorder.graph


def test_a_recorded_graph_computes_the_function_on_other_inputs():
    def function(x, weight):
        return torch.tanh(x @ weight).chunk(3, dim=1)[1] + torch.tensor([1.0])

    graph = record(function, [torch.randn(2, 3), torch.randn(3, 3)])
    names = ["mm", "tanh", "split", "getitem", "getitem", "getitem", "constant", "add"]
    assert [node.name for node in graph.nodes] == names
    other = torch.randn(4, 3), torch.randn(3, 3)
    torch.testing.assert_close(graph.run(*other)[0], function(*other))


def test_a_recorded_graph_holds_what_autograd_does():
    """The gradient of a straight-through sign is the identity: one ``sign`` ahead, no operator back."""

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.sign(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    x, grad = torch.randn(3, requires_grad=True), torch.randn(3)
    graph = record(lambda x, grad: torch.autograd.grad(Sign.apply(x), x, grad)[0], [x, grad])
    assert [node.name for node in graph.nodes] == ["sign"]
    assert graph.outputs == [graph.inputs[1]]


def test_a_recorded_graph_refuses_what_it_could_not_follow():
    outside = torch.randn(3)
    with pytest.raises(Unsupported, match="neither in weights"):
        record(lambda x: x + outside, [torch.randn(2, 3)])
    with pytest.raises(Unsupported, match="reads a number"):
        record(lambda x: x * x.sum().item(), [torch.randn(2, 3)])
    with pytest.raises(Unsupported, match="out="):
        record(lambda x: torch.add(x, x, out=torch.empty(2, 3)), [torch.randn(2, 3)])


# -- trace -------------------------------------------------------------------------------------------------------------


def test_what_depends_on_weights_alone_runs_before_the_loop():
    """FastRNN: the transposes of W and U are made once; the programs have no node for them."""
    lowered = lower(traced(hf.FastRNNCell(2, 5)), source_grad=False)
    assert {"transpose", "t"} & {node.name for node in lowered.prologue.nodes}
    kinds = [type(tile).__name__ for tile in in_order(lowered.forward.outputs.values())]
    assert kinds.count("Product") == 2
    assert set(kinds) == {"Input", "Product", "Pointwise"}


def test_the_batch_size_is_marked_and_tracing_leaves_random_numbers_alone():
    class Expanding(hf.RNNCell):
        def step(self, drive, state, weights):
            return (drive + F.dropout(state[0]).sum(dim=1, keepdim=True).expand(state[0].shape),)

    cell = Expanding(2, 5)
    before = torch.get_rng_state()
    graph = traced(cell, gradient=False).graph
    assert torch.equal(torch.get_rng_state(), before)
    (expand,) = (node for node in graph.nodes if node.name == "expand")
    assert expand.args[1] == [Batch(), 5]
    assert expand.shape == (Batch(), 5)


def test_a_trace_at_another_batch_size_is_the_same_program_unless_the_step_says_otherwise():
    class Branching(hf.RNNCell):
        def step(self, drive, state, weights):
            return (drive + state[0] if len(drive) > 10 else drive - state[0],)

    for cell, expected in ((hf.LSTMCell(2, 5), None), (Branching(2, 5), "batch size, in operator add")):
        plan, options = traced(cell), {"fold": True, "gradient": True}
        for batch, difference in ((40, None), (4, expected)):
            again = record_step(cell, tuple(cell.weights()), 2, **options, batch=batch)
            found = differs(plan, again, batch)
            assert found is difference or difference in found


# -- lower and schedule ----------------------------------------------------------------------------------------------


def test_backward_reads_what_forward_keeps():
    """A ReLU RNN's backward needs the new state and no product; an SGORNN's keeps its rotation and undoes it."""
    relu = lower(traced(hf.RNNCell(2, 16, nonlinearity="relu")), source_grad=False)
    assert relu.forward.saved == ()
    assert Slot(Kind.NEW) in relu.backward.inputs
    sgornn = lower(traced(hf.SGORNNCell(2, 16)), source_grad=False)
    assert [type(tile) for tile in sgornn.forward.saved] == [Rotate]
    assert sgornn.backward.outputs[Slot(Kind.SOURCE)] is None
    statements = schedule(sgornn.backward).statements
    assert [type(s) for s in statements] == [RotateBack, Loop]


def test_elementwise_operators_share_one_loop():
    """An LSTM's step is one product and one loop, whatever the number of gates."""
    plan = schedule(lower(traced(hf.LSTMCell(12, 16), fold=False), source_grad=True).forward)
    assert [type(s) for s in plan.statements] == [Product, Loop]


def test_wide_sums_are_left_until_after_the_loop_when_they_do_not_pay():
    """A sum that fits the second cache pays with many lanes, a quarter of it with few; a larger one never does."""
    features = second_cache() // 4 // 512
    large, wide, narrow = (
        Outer(*(Input(Slot(Kind.STATE, i), size) for i, size in enumerate(sizes)))
        for sizes in ((features + 1, 512), (features // 2, 512), (7, 9))
    )
    few, many = (Shape(torch.float32, lanes, masked=False) for lanes in (8, 32))
    assert few.summed_after(wide)
    assert not many.summed_after(wide)
    assert many.summed_after(large)
    assert many.outer_size(narrow) == (12, 16)


def test_the_source_can_be_read():
    text = hf.fused_source(hf.SGORNNCell(2, 16))
    assert text.count("rotate(") == 1
    assert text.count("rotate_back(") == 1
    assert "def forward(x[2], s0[16]):" in text
    plan = schedule(lower(traced(hf.RNNCell(2, 16)), source_grad=False).backward)
    assert "after the loop" in render(plan, "backward")


# -- emit, native, cache, buffers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_kernels_are_valid_llvm_and_name_their_arguments(lanes, masked):
    result = traced(hf.LSTMCell(2, 5))
    lowered, shape = lower(result, source_grad=True), Shape(torch.float32, lanes, masked)
    keep = {Slot(Kind.STATE, 1), Slot(Kind.SAVED)}
    forward = emit_forward(schedule(lowered.forward), shape, output=True, keep=keep)
    backward = emit_backward(schedule(lowered.backward), shape, state_sizes=(5, 5), output_grad=True, stored=())
    for kernel in (forward, backward):
        assert len(set(kernel.arguments)) == len(kernel.arguments)
        assert native.object_code(kernel.text)[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"d\x86\x00\x00")
    assert (Argument(Role.BIRTH) in forward.arguments) is masked


def test_vectors_follow_ieee_754():
    """select, comparisons and fma on NaN, zeros and infinities, lane by lane."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType(), ir.PointerType()]), "run")
    builder = ir.IRBuilder(function.append_basic_block())
    kind = vector_type(torch.float64, 4)
    x = Vec(builder, builder.load(function.args[0], typ=kind, align=8))
    y = select(x.is_nan() | (x > 1.0), fma(x, 2.0, 1.0), abs(-x)) / (x - x + 1.0)
    builder.store(y.value, function.args[1], align=8)
    builder.ret_void()
    library = native.NativeLibrary(native.object_code(str(module)))
    source, target = torch.tensor([float("nan"), 3.0, -0.5, float("inf")]), torch.empty(4)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("run"))
    call(source.data_ptr(), target.data_ptr())
    torch.testing.assert_close(target, torch.tensor([float("nan"), 7.0, 0.5, float("nan")]), equal_nan=True)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    assert cache.folder() == tmp_path / "fused"
    monkeypatch.delenv("HOLDFAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache.folder() == tmp_path / "xdg" / "holdfast" / "fused"


def test_a_large_buffer_is_used_again_once_nobody_holds_it(monkeypatch):
    monkeypatch.setattr(buffers, "_rest", [])  # what other tests left
    first = buffers.empty((1 << 18,), torch.float64)
    address, view = first.data_ptr(), first[10:]
    assert address % 64 == 0
    del first
    other = buffers.empty((1 << 18,), torch.float64)
    assert other.data_ptr() != address  # a view still holds it
    del view
    assert buffers.empty((1 << 18,), torch.float64).data_ptr() == address
