"""The scan as an operator: torch.compile and torch.export keep it whole, and it is the scan that it stands for."""

import subprocess
import sys
import textwrap

import jaxtyping
import pytest
import torch
from torch import nn
from torch.export import Dim

import holdfast as hf
from helpers.cells import CELLS, TOLERANCE, MixedCell, OwnCell, built, random_state
from helpers.fuzz import Spike
from holdfast.engine import operator
from holdfast.engine.operator import scan_operator
from holdfast.engine.program.text import TextCell
from holdfast.errors import DataError, ShapeError
from holdfast.export import program

# one of each kind of step and of constrained weight; the others differ in their elementwise operators and biases
KINDS = ["own", "linear-direct", "sgornn-tanh-exp", "vprnn", "lstm", "gru-before"]
SHAPES = ({0: Dim("time"), 1: Dim("batch")},)


@pytest.fixture(autouse=True)
def _untyped(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' shape checks cannot be traced


def gradients(values, leaves):
    torch.manual_seed(1)
    loss = sum((value * torch.randn_like(value)).sum() for value in values)
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in zip(found, leaves, strict=True)]


def assert_same_operator(cell, xs, state, **options):
    """Values and all gradients of the operator are those of the plain loop."""
    leaves, results = [xs, *state, *cell.parameters()], []
    for run in (scan_operator, hf.scan):
        if run is scan_operator:
            whole = {"lengths": None, "reverse": False, "need_output": True, **options}
            output, last = scan_operator(cell, xs, state, tuple(cell.weights()), **whole)
        else:
            output, last = hf.scan(cell, xs, state, backend="reference", **options)
        values = [*last] if output is None else [output, *last]
        results += [values, gradients(values, leaves)]
    for one, other in zip(results[0] + results[1], results[2] + results[3], strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE[xs.dtype])


@pytest.mark.parametrize("name", CELLS)
def test_the_operator_is_the_scan_of_every_cell(name, monkeypatch):
    """With lengths, from a random state, forwards and backwards along the catalogue; some of them compiled."""
    if name not in ("own", "sgornn", "gru-after"):
        monkeypatch.setattr(sys.modules["holdfast.engine.scan"], "_fused", lambda *_, **__: None)
    cell, reverse = built(name, 3), list(CELLS).index(name) % 2 == 1
    xs = torch.randn(4, 3, 3, requires_grad=True)
    assert_same_operator(cell, xs, random_state(cell, 3), lengths=torch.tensor([4, 0, 2]), reverse=reverse)


class SpikeCell(OwnCell):
    """A gradient of its own, a region without one, and tensors that the step reads by itself."""

    def step(self, drive, state, weights):
        (_, h), (leak, _) = state, weights
        with torch.no_grad():
            size = h.abs().amax(dim=1, keepdim=True)
        h = leak * h + Spike.apply(drive) / (1 + size)
        return torch.sigmoid(h @ self.weight_ho.mT), h


def test_gradients_are_those_that_the_step_asks_for():
    for cell in (SpikeCell(3, 5), MixedCell(3, 4)):
        assert_same_operator(cell, torch.randn(5, 2, 3, requires_grad=True), random_state(cell, 2))
    cell = SpikeCell(3, 5)
    assert_same_operator(cell, torch.randn(5, 2, 3, requires_grad=True), random_state(cell, 2), need_output=False)


def test_pytorch_finds_no_fault_with_the_operators():
    """Schema, fake kernels for any sizes, the gradient's registration: torch.library.opcheck."""
    cell = built("sgornn", 3, 4)
    names, _, text = cell._described().partition("\n")
    assert names == ""
    weights = [w.detach().clone().requires_grad_(w.is_floating_point()) for w in cell.weights()]
    drive, state = (torch.randn(size, requires_grad=True) for size in ((5, 3, 4), (3, 4)))
    arguments = drive, [state], weights, torch.tensor([5, 2, 3]), False, True, text
    torch.library.opcheck(torch.ops.holdfast.scan.default, arguments)
    grads = [torch.randn(5, 3, 4), torch.randn(3, 4)]
    plain = [t.detach() for t in weights]
    arguments = grads, drive.detach(), [state.detach()], plain, None, False, True, text
    utilities = ("test_schema", "test_faketensor")  # it has no gradient of its own
    torch.library.opcheck(torch.ops.holdfast.scan_backward.default, arguments, test_utils=utilities)


# -- torch.compile ---------------------------------------------------------------------------------------------------


class Model(nn.Module):
    """Layers side by side, of cells in turn, and something around them for the compiler to do."""

    def __init__(self, names, **settings):
        super().__init__()
        self.layers = nn.ModuleList(hf.Recurrent(built(name, 3), **settings) for name in names)

    def forward(self, xs):
        return torch.cat([2 * layer(xs.tanh())[0] for layer in self.layers], dim=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "backend"),
    [(KINDS, "eager"), (["own", "sgornn"], "aot_eager")],
    ids=["eager", "aot"],
)
def test_every_cell_compiles_whole_and_for_all_sizes(names, backend):
    """One graph, without a break, that is not compiled again for another batch or time; values and gradients.

    "eager" runs the graph as it was captured; with "aot_eager" its gradient is a graph too.
    """
    torch._dynamo.reset()
    model = Model(names)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    stance = "default"
    for steps, batch in ((4, 5), (6, 3)):
        xs = torch.randn(steps, batch, 3, requires_grad=True)
        leaves = [xs, *model.parameters()]
        with torch.compiler.set_stance(stance):
            result = compiled(xs)
        expected = model(xs)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(gradients([result], leaves), gradients([expected], leaves))
        stance = "fail_on_recompile"


def test_a_compiled_scan_notices_a_changed_setting_and_bad_lengths():
    """The step in the graph is the one of the cell as it is."""
    torch._dynamo.reset()
    cell, xs = hf.RNNCell(3, 4), torch.randn(4, 2, 3)

    def run(xs, lengths):
        return hf.scan(cell, xs, lengths=lengths)[0]

    compiled, lengths = torch.compile(run, backend="eager", fullgraph=True, dynamic=True), torch.tensor([4, 2])
    for phi in (torch.tanh, torch.relu):
        cell.phi = phi
        torch.testing.assert_close(compiled(xs, lengths), run(xs, lengths))
    with pytest.raises(ShapeError, match="4 steps, but lengths from 2 to 9"):
        compiled(xs, torch.tensor([9, 2]))


class NoisyCell(OwnCell):
    def step(self, drive, state, weights):
        return super().step(nn.functional.dropout(drive, 0.5, self.training), state, weights)


def test_a_step_that_cannot_be_written_down_is_unrolled():
    torch._dynamo.reset()
    layer, xs = hf.Recurrent(NoisyCell(3, 5)), torch.randn(3, 2, 3)
    assert layer.l0._described() == ""
    layer.eval()
    assert layer.l0._described() != ""
    layer.train()
    exported = torch.export.export(layer, (xs,))
    assert "holdfast" not in str(exported.graph)
    assert "dropout" in str(exported.graph)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_around_a_scan():
    torch._dynamo.reset()
    model, xs = Model(["gru-after"]), torch.randn(4, 5, 3, requires_grad=True)
    compiled, leaves = torch.compile(model, fullgraph=True, dynamic=True), [xs, *model.parameters()]
    result, expected = compiled(xs), model(xs)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients([result], leaves), gradients([expected], leaves))


# -- torch.export ----------------------------------------------------------------------------------------------------


def run_elsewhere(folder, prelude):
    """Load ``model.pt2`` in another process, run it on ``xs.pt`` and save what comes out."""
    code = f"""
        {prelude}
        import torch
        exported = torch.export.load("model.pt2").module()
        torch.save([exported(xs) for xs in torch.load("xs.pt")], "results.pt")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results.pt")


def test_an_exported_program_runs_elsewhere_for_all_sizes(tmp_path):
    """Also for a cell whose class the other process does not know."""
    model = Model(["own", "sgornn"]).eval()
    exported = program(model, (torch.randn(5, 4, 3),), dynamic_shapes=SHAPES)
    assert str(exported.graph).count("torch.ops.holdfast.scan.default") == 2
    torch.export.save(exported, tmp_path / "model.pt2")
    inputs = [torch.randn(steps, batch, 3) for steps, batch in ((5, 4), (9, 2), (2, 7))]
    torch.save(inputs, tmp_path / "xs.pt")
    results = run_elsewhere(tmp_path, "import holdfast.engine")
    with torch.no_grad():
        torch.testing.assert_close(results, [model(xs) for xs in inputs])


def test_a_decomposed_program_runs_without_holdfast(tmp_path):
    model, xs = Model(["own", "sgornn"]).eval(), torch.randn(3, 4, 3)
    exported = program(model, (xs,), dynamic_shapes=({1: Dim("batch")},), decompose=True)
    assert "holdfast" not in str(exported.graph)
    assert [layer.backend for layer in model.layers] == ["auto"] * 2
    torch.export.save(exported, tmp_path / "model.pt2")
    inputs = [xs, torch.randn(3, 2, 3)]
    torch.save(inputs, tmp_path / "xs.pt")
    results = run_elsewhere(tmp_path, "import sys; sys.modules['holdfast'] = None")
    with torch.no_grad():
        torch.testing.assert_close(results, [model(xs) for xs in inputs])


def test_export_by_dynamo_keeps_the_operator_too():
    torch._dynamo.reset()
    model, xs = Model(["lstm"]).eval(), torch.randn(5, 4, 3)
    exported = torch.export.export(model, (xs,), dynamic_shapes=SHAPES, strict=True)
    assert "torch.ops.holdfast.scan.default" in str(exported.graph)
    xs = torch.randn(7, 2, 3)
    torch.testing.assert_close(exported.module()(xs), model(xs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert exported.module()(xs).dtype == torch.float64


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', "[1]"])
def test_a_step_that_cannot_be_read_is_an_error(text):
    with pytest.raises(DataError, match="cannot read"):
        torch.ops.holdfast.scan(torch.zeros(2, 1, 3), [torch.zeros(1, 3)], [], None, False, True, text)


def test_a_text_names_operators_of_pytorch_only():
    text = hf.RNNCell(2, 3)._described().partition("\n")[2]
    with pytest.raises(DataError, match=r"operator os\.system\.default"):
        TextCell(text.replace("aten.tanh.default", "os.system.default"))
    assert operator.TextCell is TextCell
