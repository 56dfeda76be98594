"""What ``backend="triton"`` refuses, what it says, and what it prints."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

import holdfast as hf
from helpers.cells import assert_same_scan
from holdfast.engine.program.settings import PLANS
from holdfast.engine.targets.cpu.plan import plan_for
from holdfast.engine.targets.triton import operators, resources, ways
from holdfast.engine.targets.triton.plan import TritonPlan
from holdfast.errors import FusedError, SettingError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off where there is a GPU")


def run(code, **environment):
    """Python in a process of its own, with these variables set."""
    known = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=known | environment)


def test_a_new_kernel_is_tried_before_it_is_used():
    """With the trial on, as users have it: the plan knows what was compared, in both directions."""
    cell = hf.RNNCell(3, 5).float()
    assert_same_scan(cell, torch.randn(3, 3, 3, dtype=torch.float32, requires_grad=True), backend="triton")
    (plan,) = vars(cell)[PLANS].known.values()
    assert {key[0] for key in plan.tried} == {"forward", "backward"}


def test_a_wrong_forward_kernel_is_refused(monkeypatch):
    monkeypatch.setitem(operators.OPERATORS, "tanh", "sigmoid({0})")
    cell, xs = hf.RNNCell(3, 5).float(), torch.randn(3, 3, 3, dtype=torch.float32)
    with pytest.raises(FusedError, match="does not agree with the plain one: the output differs"):
        hf.scan(cell, xs, backend="triton")


def test_a_wrong_gradient_is_refused(monkeypatch):
    monkeypatch.setitem(operators.OPERATORS, "tanh_backward", "{0} * (1.0 - {1})")
    cell, xs = hf.RNNCell(3, 5).float(), torch.randn(3, 3, 3, dtype=torch.float32)
    output, _ = hf.scan(cell, xs, backend="triton")
    with pytest.raises(FusedError, match=r"cannot run on the triton backend.*the gradient of"):
        output.sum().backward()


def test_float64_is_refused():
    with pytest.raises(FusedError, match=r"triton backend: its weights are of torch\.float64"):
        hf.scan(hf.RNNCell(3, 5), torch.randn(3, 3, 3), backend="triton")


def test_a_tensor_on_the_cpu_is_refused_without_the_interpreter():
    code = "import torch, holdfast as hf; hf.scan(hf.RNNCell(3, 5), torch.zeros(2, 2, 3), backend='triton')"
    said = run(code).stderr
    assert "FusedError: scan of RNNCell cannot run on the triton backend: it runs on a GPU, and xs is on cpu" in said
    assert "TRITON_INTERPRET=1" in said


def test_the_extra_is_named_where_triton_is_missing():
    code = (
        "import sys, torch, holdfast as hf; assert 'triton' not in sys.modules; sys.modules['triton'] = None\n"
        "hf.scan(hf.RNNCell(3, 5), torch.zeros(2, 2, 3), backend='triton')"
    )
    assert 'MissingExtraError: backend="triton" needs triton' in (said := run(code).stderr)
    assert "pip install 'holdfast[gpu]'" in said


def test_auto_on_a_gpu_speaks_once_and_names_the_option(monkeypatch):
    module = sys.modules["holdfast.engine.scan"]
    monkeypatch.setattr(module, "_told", set())
    assert module.gpu_notice("cpu") is None
    assert 'backend="triton"' in module.gpu_notice("cuda")
    assert module.gpu_notice("cuda") is None


def test_the_source_is_printed():
    """A step of an RNN: one product, and what is stored."""
    text = hf.fused_source(hf.RNNCell(2, 16, nonlinearity="relu").float(), target="triton")
    assert "def forward(steps, batch" in text
    assert "def backward(steps, batch" in text
    assert "product(s0, m_" in text
    compile(text, "<source>", "exec")
    with pytest.raises(SettingError, match="knows the targets cpu, triton; got 'cuda'"):
        hf.fused_source(hf.RNNCell(2, 3), target="cuda")


def test_kernels_compile_without_a_gpu_and_keep_their_values_in_registers():
    """Triton's compiler, for NVIDIA and AMD, and the assembler's report on spills."""
    cells = ((hf.RNNCell(16, 16), "sm_80"), (hf.VPRNNCell(16, 16, sublayers=2), "gfx942"))
    for cell, name in cells:
        plan = plan_for(cell.float(), tuple(cell.weights()), gradient=True, kind=TritonPlan)
        kernels = tuple(ways.kernels(plan, next(ways.candidates(plan, masked=False))))
        forward, backward = resources.resources(kernels, resources.TARGETS[name])
        assert forward.spills == backward.spills == 0
        assert 0 < forward.registers <= 256


def test_a_kernel_that_does_not_compile_is_not_taken():
    """The compiler's process may even die: the next way is tried."""
    broken = dataclasses.replace(a_kernel(), text="import os\nos.abort()\n")
    assert resources.resources([broken], resources.TARGETS["sm_80"]) is None
    assert not ways.fits(None, resources.TARGETS["sm_80"])


def a_kernel():
    cell = hf.RNNCell(2, 3).float()
    plan = plan_for(cell, tuple(cell.weights()), gradient=False, kind=TritonPlan)
    return next(ways.kernels(plan, next(ways.candidates(plan, masked=False))))


def test_the_register_report_decides():
    """A spill, too much shared memory, or no report: the way is not taken."""
    target = resources.TARGETS["sm_80"]
    assert ways.fits([resources.Resources(255, 0, 1000)], target)
    assert not ways.fits([resources.Resources(40, 0, 1000), resources.Resources(255, 4, 1000)], target)
    assert not ways.fits([resources.Resources(40, 0, 200_000)], target)
