"""PathSGD and PathAdam as a user of torch.optim expects them to behave."""

import copy
import io

import pytest
import torch
from torch import nn

import holdfast
from helpers.path_graphs import Model, random_model
from helpers.scripts import script
from holdfast.errors import DivergedError, SettingError, StateDictError
from holdfast.optim import PathAdam, PathPreconditioner, PathSGD, kappa, kappa_first, path_network, path_norm_sq

STEPS = 6
MAKE = {
    "sgd": lambda model, **more: PathSGD(model.parameters(), model, lr=1e-3, steps=STEPS, momentum=0.9, **more),
    "adam": lambda model, **more: PathAdam(model.parameters(), model, lr=1e-3, steps=STEPS, **more),
    "relative": lambda model, **more: PathSGD(model.parameters(), model, lr=1e-3, steps=STEPS, relative=True, **more),
    "invariant": lambda model, **more: PathAdam(
        model.parameters(), model, lr=1e-2, steps=STEPS, invariant=True, weight_decay=0.1, **more
    ),
    "measured": lambda model, **more: PathAdam(
        model.parameters(), model, lr=1e-2, steps=STEPS, invariant=True, recurrent="measured", **more
    ),
}


def model_and_data(**sizes):
    model = random_model(2, 4, 1, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return model, torch.randn(STEPS, 3, 2)


def backward(model, xs):
    model.zero_grad()
    loss = model(xs).square().mean()
    loss.backward()
    return loss


def parameters(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("second", [False, True])
def test_a_step_divides_by_kappa_and_leaves_gradients_alone(second):
    """S2 (8): p ← p - (lr/κ) ∂L/∂p."""
    model, xs = model_and_data()
    optimiser = PathSGD(model.parameters(), model, lr=0.1, steps=STEPS, second=second)
    backward(model, xs)
    found = kappa(model, STEPS) if second else kappa_first(model, STEPS)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    expected = [p.detach() - 0.1 * p.grad / found[p] for p in model.parameters()]
    optimiser.step()
    torch.testing.assert_close(parameters(model), expected, rtol=1e-13, atol=1e-15)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_path_adam_is_adam_on_divided_gradients():
    """S2, §5.3, with every setting of Adam: the preconditioner before a plain Adam does the same, bit for bit."""
    model, xs = model_and_data()
    other, settings = copy.deepcopy(model), {"betas": (0.8, 0.99), "weight_decay": 0.1, "amsgrad": True}
    ours = PathAdam(model.parameters(), model, lr=1e-2, steps=STEPS, second=True, form="published", **settings)
    theirs = torch.optim.Adam(other.parameters(), lr=1e-2, **settings)
    path = PathPreconditioner(other, steps=STEPS, second=True, form="published")
    for _ in range(4):
        backward(model, xs)
        ours.step()
        backward(other, xs)
        path.divide_()
        theirs.step()
    assert all(map(torch.equal, parameters(model), parameters(other)))


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_run_resumes_bit_for_bit(make):
    """Saved between two computations of κ, loaded into a new optimiser with other settings, through a file."""
    model, xs = model_and_data()
    optimiser = make(model, every=3, second=True, form="published", floor=1e-3)
    for _ in range(4):
        backward(model, xs)
        optimiser.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin = random_model(2, 4, 1)
    resumed = make(twin, every=7)
    twin.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimiser"])
    for _ in range(5):
        for one, its_optimiser in ((model, optimiser), (twin, resumed)):
            backward(one, xs)
            its_optimiser.step()
        assert all(map(torch.equal, parameters(model), parameters(twin)))
    assert resumed.preconditioner.state_dict()["settings"] == optimiser.preconditioner.state_dict()["settings"]


def test_the_cached_kappa_is_part_of_the_state():
    """Dropping it from the state_dict would give another next step: what the resume test relies on."""
    model, xs = model_and_data()
    optimiser = MAKE["sgd"](model, every=3)
    backward(model, xs)
    optimiser.step()
    stale = copy.deepcopy(optimiser.preconditioner._inverse[model.readout.weight])
    backward(model, xs)
    optimiser.step()
    assert torch.equal(optimiser.preconditioner._inverse[model.readout.weight], stale)
    optimiser.preconditioner.refresh()
    assert not torch.equal(optimiser.preconditioner._inverse[model.readout.weight], stale)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_copy_goes_on_as_the_original(make):
    """copy.deepcopy of model and optimiser together; PyTorch keeps only three attributes unless told otherwise."""
    model, xs = model_and_data()
    optimiser = make(model, every=2)
    for _ in range(3):
        backward(model, xs)
        optimiser.step()
    twin, copied = copy.deepcopy((model, optimiser))
    for one, its_optimiser in ((model, optimiser), (twin, copied)):
        backward(one, xs)
        its_optimiser.step()
    assert all(map(torch.equal, parameters(model), parameters(twin)))
    assert not any(map(torch.equal, parameters(model), (p.grad for p in model.parameters())))


def test_closures_schedulers_and_hooks_work_as_in_torch():
    """The closure runs once, with gradients on; the loss comes back; hooks run once; a scheduler scales the step."""
    model, xs = model_and_data()
    torch.optim.SGD(model.parameters(), lr=1.0)  # from now on PyTorch's own class calls hooks as well
    optimiser = PathSGD(model.parameters(), model, lr=0.1, steps=STEPS)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    calls = []
    optimiser.register_step_pre_hook(lambda *_: calls.append("before"))
    optimiser.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        calls.append("closure")
        return backward(model, xs)

    expected = backward(model, xs).item()
    assert optimiser.step(closure).item() == expected
    assert calls == ["before", "closure", "after"]
    scheduler.step()
    before = parameters(model)
    backward(model, xs)
    inverse = {p: 1 / k for p, k in kappa_first(model, STEPS).items()}
    optimiser.step()
    moved = [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]
    torch.testing.assert_close(moved, [0.05 * p.grad * inverse[p] for p in model.parameters()], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_hook_after_a_step_sees_the_weights_and_gradients_after_it(make):
    """As an average of weights over a training needs; removed, it is not called again, and a copy has none."""
    model, xs = model_and_data()
    optimiser, seen = make(model), []
    handle = optimiser.register_step_post_hook(
        lambda one, *_: seen.append((one, parameters(model), [p.grad.clone() for p in model.parameters()]))
    )
    backward(model, xs)
    gradients = [p.grad.clone() for p in model.parameters()]
    optimiser.step()
    assert len(seen) == 1
    assert seen[0][0] is optimiser
    assert all(map(torch.equal, seen[0][1], parameters(model)))
    assert all(map(torch.equal, seen[0][2], gradients))
    copy.deepcopy(optimiser).step()
    handle.remove()
    optimiser.step()
    assert len(seen) == 1


def test_groups_have_settings_of_their_own_and_may_opt_out():
    """A group with "path": False is stepped as by SGD; a parameter without κ must be in one."""
    model, xs = model_and_data()
    other = nn.Parameter(torch.ones(3))
    groups = [{"params": model.rnn.parameters(), "lr": 0.3}, {"params": model.readout.parameters(), "path": False}]
    optimiser = PathSGD(groups, model, lr=0.1, steps=STEPS)
    optimiser.add_param_group({"params": [other], "path": False, "weight_decay": 0.5})
    assert [group["path"] for group in optimiser.param_groups] == [True, False, False]
    backward(model, xs)
    other.grad = torch.zeros(3)
    before, found = parameters(model.readout), kappa_first(model, STEPS)
    hh = model.rnn.l0.weight_hh
    expected = hh.detach() - 0.3 * hh.grad / found[hh]
    optimiser.step()
    torch.testing.assert_close(hh.detach(), expected)
    plain = [b - 0.1 * p.grad for b, p in zip(before, model.readout.parameters(), strict=True)]
    torch.testing.assert_close(parameters(model.readout), plain)
    torch.testing.assert_close(other.detach(), torch.full((3,), 0.95))
    for build in (
        lambda: PathSGD([*model.parameters(), other], model, steps=STEPS),
        lambda: PathSGD(model.parameters(), model, steps=STEPS).add_param_group({"params": [other]}),
    ):
        with pytest.raises(SettingError, match=r'shape \(3,\) that has no κ.*"path": False'):
            build()


def test_frozen_parameters_stay_and_still_carry_paths():
    model, xs = model_and_data()
    model.rnn.l0.weight_hh.requires_grad_(False)
    frozen = model.rnn.l0.weight_hh.clone()
    optimiser = PathSGD(model.parameters(), model, lr=0.1, steps=STEPS, weight_decay=0.1)
    full = {p: k.clone() for p, k in kappa_first(model, STEPS).items()}
    backward(model, xs)
    weight = model.rnn.l0.weight_ih
    expected = weight.detach() - 0.1 * (weight.grad / full[weight] + 0.1 * weight.detach())
    optimiser.step()
    assert torch.equal(model.rnn.l0.weight_hh, frozen)
    torch.testing.assert_close(weight.detach(), expected)


def test_shared_parameters_are_divided_once_by_the_sum_of_their_kappas():
    model = Model(holdfast.RNN(3, 3, nonlinearity="relu"), outputs=5, words=5)
    model.readout.weight = model.embedding.weight
    optimiser = PathSGD(model.parameters(), model, lr=0.1, steps=STEPS)
    model(torch.randint(0, 5, (STEPS, 3))).square().mean().backward()
    tied = model.readout.weight
    expected = tied.detach() - 0.1 * tied.grad / kappa_first(model, STEPS)[tied]
    optimiser.step()
    torch.testing.assert_close(tied.detach(), expected)


def test_the_floor_bounds_the_step_and_units_without_paths_stay():
    """Where nothing reads a unit κ = 0, the gradient is 0 too, and so is the step; a high floor makes it plain SGD."""
    model, xs = model_and_data()
    with torch.no_grad():
        model.readout.weight[:, 0] = 0
        model.rnn.l0.weight_hh[:, 0] = 0
    assert (kappa_first(model, STEPS)[model.rnn.l0.weight_hh][0] == 0).all()
    other = copy.deepcopy(model)
    for one, floor in ((model, 1e-30), (other, 1e6)):
        optimiser = PathSGD(one.parameters(), one, lr=0.1, steps=STEPS, floor=floor)
        backward(one, xs)
        before = parameters(one)
        optimiser.step()
        assert all(p.isfinite().all() for p in one.parameters())
    torch.testing.assert_close(
        parameters(other),
        [b - 1e-7 * p.grad for b, p in zip(before, other.parameters(), strict=True)],
        rtol=1e-12,
        atol=0,
    )
    assert torch.equal(model.rnn.l0.weight_hh[0, 1:], before[1][0, 1:])
    with pytest.raises(SettingError, match="finite floor of at least 1e-30, got 0"):
        PathSGD(model.parameters(), model, steps=STEPS, floor=0)


def test_another_length_means_another_kappa():
    model, xs = model_and_data()
    optimiser = PathSGD(model.parameters(), model, lr=0.0, steps=STEPS, every=100)
    hh = model.rnn.l0.weight_hh
    for steps in (STEPS, 2 * STEPS):
        optimiser.preconditioner.steps = steps
        backward(model, xs)
        optimiser.step()
        torch.testing.assert_close(1 / optimiser.preconditioner._inverse[hh], kappa_first(model, steps)[hh])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_relative_step_is_as_long_as_lr_times_the_path_norm(scale):
    """Σ κ Δp² = lr² γ², γ² over paths through a hidden unit, whatever the scale of the loss; no gradient, no step."""
    model, xs = model_and_data()
    optimiser = PathSGD(model.parameters(), model, lr=1e-3, steps=STEPS, relative=True)
    (scale * model(xs).square().mean()).backward()
    found, before = kappa_first(model, STEPS), parameters(model)
    norm = path_norm_sq(model, STEPS) - model.readout.bias.square().sum()
    optimiser.step()
    pairs = zip(before, model.parameters(), strict=True)
    moved = sum((found[p] * (p.detach() - b).square()).sum() for b, p in pairs)
    torch.testing.assert_close(moved, 1e-6 * norm.detach())
    model.zero_grad(set_to_none=False)
    before = parameters(model)
    optimiser.step()
    assert all(map(torch.equal, parameters(model), before))
    with pytest.raises(SettingError, match="match_sgd or relative, got both"):
        PathSGD(model.parameters(), model, steps=STEPS, relative=True, match_sgd=True)


def test_a_recurrent_network_must_say_how_long_its_sequences_are():
    """At T = 1 no path meets U: its κ would be 0, and its step anything. A feed-forward network has no length."""
    model, _ = model_and_data()
    for build in (PathSGD, PathAdam):
        with pytest.raises(SettingError, match="expects steps, the length of the sequences"):
            build(model.parameters(), model, lr=0.1)
    feed_forward = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert PathSGD(feed_forward.parameters(), feed_forward, lr=0.1).preconditioner.steps == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shorter_number_types_are_divided_by_a_float64_kappa(dtype):
    """The quotient is that of κ in float64, rounded once; gradients keep their type."""
    model = random_model(2, 4, 1).to(dtype)
    optimiser = PathSGD(model.parameters(), model, lr=1.0, steps=STEPS)
    before = parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    found = kappa_first(model, STEPS)
    optimiser.step()
    for b, p in zip(before, model.parameters(), strict=True):
        assert p.grad.dtype == dtype
        expected = b.double() - p.grad.double() / found[p]
        torch.testing.assert_close(p.detach().double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


def test_gradients_stay_if_the_step_fails():
    model, xs = model_and_data()
    optimiser = PathSGD(model.parameters(), model, lr=0.1, steps=STEPS)
    backward(model, xs)
    gradients = [parameter.grad for parameter in model.parameters()]
    optimiser.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        optimiser.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


def test_sparse_gradients_are_refused():
    model = Model(holdfast.RNN(2, 4, nonlinearity="relu"), words=5)
    model.embedding = nn.Embedding(5, 2, sparse=True)
    optimiser = PathSGD(model.parameters(), model, steps=STEPS)
    model(torch.randint(0, 5, (STEPS, 3))).sum().backward()
    with pytest.raises(SettingError, match="dense gradients; build the Embedding with sparse=False"):
        optimiser.step()


def test_another_state_dict_is_refused_and_nothing_changes():
    model, xs = model_and_data()
    optimiser = MAKE["sgd"](model)
    backward(model, xs)
    optimiser.step()
    before = copy.deepcopy(optimiser.state_dict())
    other = random_model(3, 5, 1)
    wider = MAKE["sgd"](other)
    backward(other, torch.randn(STEPS, 3, 3))
    wider.step()
    with pytest.raises(StateDictError, match='PathSGD expects "path" in the state_dict'):
        optimiser.load_state_dict(torch.optim.SGD(model.parameters()).state_dict())
    for bad in (wider.state_dict(), {**before, "path": {"steps": 3}}):
        with pytest.raises(StateDictError, match=r"cannot load this state_dict.*Nothing was changed"):
            optimiser.load_state_dict(bad)
    assert str(optimiser.state_dict()) == str(before)


def test_a_fresh_state_dict_loads():
    """Saved before the first step there is no κ yet, and the first step computes it."""
    model, xs = model_and_data()
    twin = copy.deepcopy(model)
    resumed = MAKE["sgd"](twin)
    resumed.load_state_dict(MAKE["sgd"](model).state_dict())
    backward(twin, xs)
    resumed.step()
    assert "steps=6" in repr(resumed.preconditioner)
    assert not any(map(torch.equal, parameters(model), parameters(twin)))


def test_path_sgd_learns_what_sgd_cannot_from_a_badly_scaled_start():
    """Units rescaled over four decades: PathSGD does not notice, plain SGD at its best rate of nine hardly moves."""
    from holdfast.optim import rescale_

    torch.manual_seed(1)
    start, xs = random_model(2, 8, 1), torch.rand(STEPS, 64, 2)
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.mul_(0.3)
    goal = xs.sum(0)
    rescale_(start, [10 ** torch.linspace(-2, 2, 8)])

    def reached(make):
        model = copy.deepcopy(start)
        optimiser = make(model)
        for _ in range(40):
            optimiser.zero_grad()
            loss = (model(xs) - goal).square().mean()
            loss.backward()
            optimiser.step()
        return loss.item() if loss.isfinite() else float("inf")

    rates = [10.0**-k for k in range(9)]
    path = min(reached(lambda m, lr=lr: PathSGD(m.parameters(), m, lr=lr, steps=STEPS)) for lr in rates[:4])
    plain = min(reached(lambda m, lr=lr: torch.optim.SGD(m.parameters(), lr=lr)) for lr in rates)
    assert path < 0.5 * plain


def test_a_network_of_its_own_class_is_described():
    """A model that path_network cannot read works through a PathNetwork."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.head = nn.RNN(2, 4, nonlinearity="relu"), nn.Linear(4, 2)

        def forward(self, xs):
            return self.head(self.memory(xs)[0][-1])

    from holdfast.optim import PathNetwork, pieces_of, recurrences_of

    model = Own()
    with pytest.raises(SettingError, match=r"does not know the paths through a Own.*holdfast.optim.PathNetwork"):
        path_network(model)
    network = PathNetwork(layers=recurrences_of(model.memory), decoder=pieces_of(model.head), last_only=True)
    optimiser = PathSGD(model.parameters(), network, lr=0.1, steps=STEPS)
    backward(model, torch.randn(STEPS, 3, 2))
    optimiser.step()


def test_at_the_identity_start_a_unit_that_is_hardly_read_gets_the_longest_step():
    """Equation (i) of docs/theory/s2-path-norm.md: row i of the step of U is one vector divided by V_i."""
    torch.manual_seed(0)
    model, T = random_model(2, 6, 1), 9
    cell = model.rnn.cells[0]
    with torch.no_grad():
        cell.weight_hh.copy_(torch.eye(6))
        cell.weight_ih.abs_()
        cell.bias.abs_()
        model.readout.weight.mul_(torch.logspace(-3, 0, 6))[1:] = 0  # one output
    before, read = cell.weight_hh.detach().clone(), model.readout.weight.detach()[0].clone()
    optimiser = PathSGD(model.parameters(), model, lr=1e-3, steps=T)
    model(torch.rand(T, 4, 2)).sum().backward()
    optimiser.step()
    step = before - cell.weight_hh.detach()
    scaled = step * read[:, None]
    torch.testing.assert_close(scaled, scaled[:1].expand_as(scaled), rtol=1e-6, atol=0)
    assert step[0].abs().max() > 100 * step[-1].abs().max()


# -- PathAdam(invariant=True) ----------------------------------------------------------------------------------------


def test_an_invariant_step_is_adam_in_units_of_the_path_norm():
    """Equations (1) to (3) of ``holdfast.optim.scales``, written out for three updates, with weight decay."""
    model, xs = model_and_data()
    cell, readout = model.rnn.cells[0], model.readout
    optimiser = PathAdam(
        model.parameters(), model, lr=0.02, steps=STEPS, invariant=True, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6
    )
    entries = {cell.weight_ih: 12, cell.bias: 12, cell.weight_hh: 16, readout.weight: 8, readout.bias: 1}
    moments, running = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}, 0.0
    for n in range(1, 4):
        backward(model, xs * n)
        found = kappa_first(model, STEPS)
        norm = (found[readout.weight] * readout.weight.square()).sum().sqrt()
        scale = {p: norm / (entries[p] * found[p]).sqrt() for p in model.parameters()}
        u = {p: scale[p] * p.grad for p in model.parameters()}  # a = 1: min(1, 3/√6)
        size = torch.stack([one.square().sum() for one in u.values()]).sum().sqrt()
        running = size if n == 1 else running + (torch.minimum(size, 10 * running) - running) / 100
        expected = []
        for p in model.parameters():
            m, v = moments[p]
            one = u[p] * torch.clamp(running / size, max=1)
            moments[p] = m, v = 0.8 * m + 0.2 * one, 0.9 * v + 0.1 * one.square()
            move = (m / (1 - 0.8**n)) / ((v / (1 - 0.9**n)).sqrt() + 1e-6)
            expected.append((p * (1 - 0.02 * 0.3) - 0.02 * scale[p] * move).detach())
        gradients = [p.grad.clone() for p in model.parameters()]
        optimiser.step()
        torch.testing.assert_close(parameters(model), expected, rtol=1e-12, atol=1e-14)
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_recurrent_weights_get_shorter_steps_on_longer_sequences():
    """Their share is min(1, 3/√T) or as given; nothing else depends on it. T may change between two updates."""
    model, xs = model_and_data()
    weight = model.rnn.cells[0].weight_hh
    scales = {}
    for steps, share in ((STEPS, None), (STEPS, 0.25), (36, None), (36, 1.0)):
        optimiser = PathAdam(model.parameters(), model, steps=STEPS, invariant=True, recurrent=share)
        backward(model, xs)
        optimiser.preconditioner.steps = steps
        optimiser.preconditioner.refresh()
        scales[steps, share] = optimiser.preconditioner.inverse_kappas(list(model.parameters()))
    at = [p is weight for p in model.parameters()].index(True)
    for pair, factor in ((((STEPS, 0.25), (STEPS, None)), 0.25), (((36, None), (36, 1.0)), 0.5)):
        ours, theirs = (scales[key] for key in pair)
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(one, other * (factor if index == at else 1.0))
    other = PathAdam(model.parameters(), model, steps=36, invariant=True)  # nothing of the old T is left
    other.preconditioner.refresh()
    assert all(map(torch.equal, other.preconditioner.inverse_kappas(list(model.parameters())), scales[36, None]))


def positive_unit(rate, *, hidden=3):
    """One input, U = rate · I, no biases, positive weights: every path has the same sign."""
    model = Model(holdfast.RNN(1, hidden, nonlinearity="relu", bias=False, backend="reference"), outputs=1, bias=False)
    with torch.no_grad():
        model.rnn.cells[0].weight_hh.copy_(rate * torch.eye(hidden))
        for weight in (model.rnn.cells[0].weight_ih, model.readout.weight):
            weight.uniform_(0.1, 1.0)
    return model


@pytest.mark.parametrize("steps", [50, 500])
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.5])
def test_the_measured_share_falls_with_the_memory_and_not_with_the_length(rate, steps):
    """U = λI, inputs of 1: √(2/(T-1)) for λ = 1, and √((1-λ)/(1+λ)) for λ < 1 and λᵀ ≪ 1, whatever T is."""
    model = positive_unit(rate)
    optimiser = PathAdam(model.parameters(), model, steps=steps, invariant=True, recurrent="measured")
    backward(model, torch.ones(steps, 1, 1))
    optimiser.step()
    expected = (2 / (steps - 1)) ** 0.5 if rate == 1 else ((1 - rate) / (1 + rate)) ** 0.5
    assert optimiser.preconditioner.shares == pytest.approx([expected], rel=0.05 if rate == 0.9 else 1e-9)


def test_a_measured_share_makes_first_steps_of_recurrent_and_input_weights_change_the_loss_alike():
    """‖s ⊙ ∂L/∂p‖ of each layer's U becomes that of its W and b, and is never raised; later updates keep the share."""
    model, _ = model_and_data()
    model.rnn = holdfast.RNN(2, 4, 2, nonlinearity="relu", backend="reference")
    with torch.no_grad():
        for cell, size in zip(model.rnn.cells, (1.0, 0.01), strict=True):
            cell.weight_hh.copy_(size * torch.eye(4))
            cell.weight_ih.abs_()
            cell.bias.zero_()
        model.rnn.cells[1].weight_ih.mul_(1e-3)  # its states are its biases: U has little effect
        model.rnn.cells[1].bias.fill_(1.0)
        model.readout.weight.abs_()
    xs = torch.rand(50, 3, 2)
    optimiser = PathAdam(model.parameters(), model, lr=1e-2, steps=50, invariant=True, recurrent="measured")
    path = optimiser.preconditioner
    backward(model, xs)
    path.refresh()
    effects = {p: (p.grad * path._inverse[p]).norm() for p in model.parameters()}
    optimiser.step()
    ratios = [torch.hypot(effects[c.weight_ih], effects[c.bias]) / effects[c.weight_hh] for c in model.rnn.cells]
    assert ratios[0] < 1 < ratios[1]
    assert path.shares == pytest.approx([ratios[0].item(), 1.0], rel=1e-12)
    shares = list(path.shares)
    for steps in (50, 20):
        path.steps = steps
        backward(model, xs[:steps])
        optimiser.step()
    assert path.shares == shares
    twin = copy.deepcopy(model)
    resumed = PathAdam(twin.parameters(), twin, steps=50, invariant=True)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for one, its_optimiser in ((model, optimiser), (twin, resumed)):
        backward(one, xs)
        its_optimiser.step()
    assert resumed.preconditioner.shares == shares
    assert all(map(torch.equal, parameters(model), parameters(twin)))
    path.refresh()
    plain = PathAdam(model.parameters(), model, steps=20, invariant=True, recurrent=1.0).preconditioner
    plain.refresh()
    for cell, share in zip(model.rnn.cells, shares, strict=True):
        torch.testing.assert_close(path._inverse[cell.weight_hh], share * plain._inverse[cell.weight_hh])
        torch.testing.assert_close(path._inverse[cell.weight_ih], plain._inverse[cell.weight_ih])


def test_a_share_is_measured_once_there_are_gradients_to_measure():
    """Zero gradients give no share, nor do gradients that are not finite, nor frozen weights."""
    model, xs = model_and_data()
    optimiser = MAKE["measured"](model)
    model.zero_grad(set_to_none=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    assert optimiser.preconditioner.shares == [None]
    backward(model, xs)
    model.readout.weight.grad[0, 0] = torch.nan
    with pytest.raises(DivergedError):
        optimiser.step()
    assert optimiser.preconditioner.shares == [None]
    model.rnn.cells[0].weight_hh.requires_grad_(False)
    backward(model, xs)
    model.rnn.cells[0].weight_hh.grad = None
    optimiser.step()
    assert optimiser.preconditioner.shares == [None]
    model.rnn.cells[0].weight_hh.requires_grad_(True)
    backward(model, xs)
    optimiser.step()
    assert 0 < optimiser.preconditioner.shares[0] <= 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_invariant_step_refuses_gradients_that_are_not_finite_and_changes_nothing(bad):
    model, xs = model_and_data()
    optimiser = MAKE["invariant"](model)
    backward(model, xs)
    optimiser.step()
    before, state = parameters(model), copy.deepcopy(optimiser.state_dict())
    backward(model, xs)
    model.readout.weight.grad[0, 0] = bad
    gradients = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(DivergedError, match=r"expects finite gradients, got one with .*\. No weight and no moment was"):
        optimiser.step()
    assert all(map(torch.equal, parameters(model), before))
    after = optimiser.state_dict()
    assert after["path"]["settings"] == state["path"]["settings"]
    for index, moments in state["state"].items():
        assert all(torch.equal(moments[name], after["state"][index][name]) for name in moments)
    assert all(torch.equal(p.grad, g) or g.isnan().any() for p, g in zip(model.parameters(), gradients, strict=True))


def test_an_invariant_step_leaves_weights_without_paths_where_they_are():
    """A unit whose readout has become exactly zero: κ of its weights is 0, and moments of old do not move them."""
    model, xs = model_and_data()
    optimiser = MAKE["invariant"](model)
    for _ in range(3):
        backward(model, xs)
        optimiser.step()
    with torch.no_grad():
        model.readout.weight[:, 2] = 0.0
        model.rnn.cells[0].weight_hh[:, 2] = 0.0
    for group in optimiser.param_groups:
        group["weight_decay"] = 0.0
    before = model.rnn.cells[0].weight_ih.detach().clone()
    backward(model, xs)
    optimiser.step()
    after = model.rnn.cells[0].weight_ih.detach()
    assert torch.equal(after[2], before[2])
    assert not torch.equal(after[1], before[1])
    assert all(p.isfinite().all() for p in model.parameters())


def test_invariant_steps_name_what_they_do_not_combine_with():
    model, _ = model_and_data()
    for options, match in (
        ({"invariant": True, "relative": True}, "sets the length of steps itself; drop relative"),
        ({"invariant": True, "match_sgd": True}, "drop match_sgd"),
        ({"invariant": True, "recurrent": 0.0}, 'recurrent to be a positive number, "measured" or None, got 0.0'),
        ({"invariant": True, "recurrent": "measure"}, 'positive number, "measured" or None, got .measure.'),
        ({"recurrent": 0.5}, "reads recurrent=0.5 with invariant=True alone"),
    ):
        with pytest.raises(SettingError, match=match):
            PathAdam(model.parameters(), model, steps=STEPS, **options)
    outside = nn.Parameter(torch.zeros(3))
    with pytest.raises(SettingError, match=r"got a parameter of shape \(3,\) that has no κ"):
        PathAdam([*model.parameters(), outside], model, steps=STEPS, invariant=True)
    groups = [{"params": list(model.parameters())}, {"params": [outside], "path": False}]
    optimiser = PathAdam(groups, model, lr=0.1, steps=STEPS, invariant=True)
    outside.grad = torch.ones(3)
    optimiser.step()
    torch.testing.assert_close(outside.detach(), torch.full((3,), -0.1))  # plain Adam, and the network has no gradients


@pytest.mark.parametrize("steps", [2, 5, 50, 400])
def test_adding_amplitudes_over_time_gives_the_effect_of_a_weight_exactly(steps):
    """U = I, weights and inputs positive, one input: J² = κᴬ; J²/κ⁽¹⁾ is T(T-1)/2 for U and T for W and V.

    So at equal κ-length the effect of U on the output is √((T-1)/2) times that of W: why a falls as 1/√T.
    """
    amplitude = script("tools/path_geometry.py").amplitude
    model = Model(holdfast.RNN(1, 3, nonlinearity="relu", init="identity", backend="reference"), outputs=1)
    cell = model.rnn.cells[0]
    with torch.no_grad():
        for weight in (cell.weight_ih, model.readout.weight):
            weight.uniform_(0.1, 1.0)
        cell.bias.zero_()
    named = {"U": cell.weight_hh, "W": cell.weight_ih, "b": cell.bias, "V": model.readout.weight}
    model.named = lambda: named
    model(torch.ones(steps, 1, 1)).sum().backward()
    found, first = amplitude(model, steps), kappa_first(model, steps)
    expected = {"U": steps * (steps - 1) / 2, "W": steps, "V": steps}
    for name, ratio in expected.items():
        J = named[name].grad.square()
        torch.testing.assert_close(J, found[name].expand_as(J), rtol=1e-9, atol=0)
        torch.testing.assert_close(J / first[named[name]], torch.full_like(J, ratio), rtol=1e-9, atol=0)
