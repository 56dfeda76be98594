"""Orthogonal maps: one law suite over all four, and the constraint for any module."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from holdfast.constraints.orthogonal import (
    HouseholderProduct,
    OrthogonalMap,
    RotationProduct,
    ScaledCayley,
    SkewExponential,
    orthogonal,
    orthogonal_map,
)
from holdfast.errors import OutsideSetError, SettingError, ShapeError
from holdfast.linalg.norms import is_orthogonal, nearest_orthogonal, nearest_rotation, orthogonality_error

F32, F64 = torch.float32, torch.float64
DTYPES = [F32, F64]
MAPS = ["rotations", "exp", "cayley", "householder"]
CONSTRAINTS = ["exp", "cayley", "householder"]
TOLERANCE = {F32: 1e-5, F64: 1e-12}  # required at size 512; rounding of a product is 1e-6 and 2e-15 there


def build(name, size, dtype=F64, seed=0, **settings):
    torch.manual_seed(seed)
    return orthogonal_map(name, size, **settings).to(dtype)


def perturb_(module, scale):
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(scale * torch.randn_like(weight))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("size", [2, 6, 16])
def test_transform_is_the_product_with_an_orthogonal_matrix(name, size):
    """For all parameters and rows: transform(h, weights()) = h Uᵀ, UᵀU = I, U in the map's own set."""
    U = build(name, size)
    for scale in (0.0, 0.5, 20.0):
        perturb_(U, scale)
        h, matrix = torch.randn(3, size, dtype=F64), U.matrix()
        torch.testing.assert_close(U.transform(h, U.weights()), h @ matrix.mT, rtol=0, atol=1e-12)
        torch.testing.assert_close(U(h), h @ matrix.mT, rtol=0, atol=1e-12)
        assert orthogonality_error(matrix) < 1e-12
        assert U.contains(matrix)
        assert not U.contains(1.001 * matrix)
        assert not U.contains(torch.eye(size + 2, dtype=F64))


@pytest.mark.parametrize("name", MAPS)
def test_gradient_through_the_map_is_that_of_the_function(name):
    U = build(name, 4)
    names, values = zip(*U.named_parameters(), strict=True)

    def function(*values):
        return torch.func.functional_call(U, dict(zip(names, values, strict=True)), torch.eye(4, dtype=F64))

    values = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(function, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAPS)
def test_orthogonal_at_size_512(name, dtype):
    """At the start and after a perturbation of every parameter by N(0, 1): entries of QᵀQ - I below 1e-5, 1e-12."""
    U = build(name, 512, dtype)
    for scale in (0.0, 1.0):
        with torch.no_grad():
            perturb_(U, scale)
            assert orthogonality_error(U.matrix()) < TOLERANCE[dtype]


OPTIMISERS = {"SGD": lambda p: torch.optim.SGD(p, lr=0.1), "Adam": lambda p: torch.optim.Adam(p, lr=0.03)}
LONG_RUNS = [run for run in itertools.product(MAPS, OPTIMISERS) if run != ("rotations", "Adam")]  # that at 512, below


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "optimiser"), LONG_RUNS)
def test_orthogonal_after_a_thousand_steps(name, optimiser, dtype):
    """Size 64, 1,000 steps on Σ|U - M|, M of independent normal entries: a rough loss, and nothing is projected."""
    U, target = build(name, 64, dtype), torch.randn(64, 64, dtype=dtype)
    step, before = OPTIMISERS[optimiser](U.parameters()), [value.detach().clone() for value in U.parameters()]
    for _ in range(1000):
        step.zero_grad()
        (U.matrix() - target).abs().sum().backward()
        step.step()
    assert orthogonality_error(U.matrix()) < TOLERANCE[dtype]
    assert U.contains(U.matrix())
    assert all((value - old).abs().max() > 0.1 for value, old in zip(U.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAPS)
def test_orthogonal_at_size_512_after_a_walk_of_a_thousand_steps(name, dtype):
    """Each parameter moves 1,000 times by ±0.01 at random, as Adam would with lr = 0.01: the sum is drawn at once."""
    U = build(name, 512, dtype)
    with torch.no_grad():
        for weight in U.parameters():
            heads = torch.distributions.Binomial(1000, torch.full(weight.shape, 0.5)).sample()
            weight.add_((0.01 * (2 * heads - 1000)).to(dtype))
        assert orthogonality_error(U.matrix()) < TOLERANCE[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotations_stay_orthogonal_at_size_512_through_a_thousand_adam_steps(dtype):
    """Adam, lr = 0.03, 1,000 steps on Σ|U x - y| for 8 fixed random pairs (x, y)."""
    U, x, y = build("rotations", 512, dtype), torch.randn(8, 512, dtype=dtype), torch.randn(8, 512, dtype=dtype)
    step = torch.optim.Adam(U.parameters(), lr=0.03)
    for _ in range(1000):
        step.zero_grad()
        (U(x) - y).abs().sum().backward()
        step.step()
    assert orthogonality_error(U.matrix()) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", MAPS)
def test_state_dict_holds_all_that_the_matrix_needs(name):
    """Permutations and signs are saved, so that another map, drawn otherwise, becomes the same."""
    one, other = build(name, 8, seed=1), build(name, 8, seed=2)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.matrix(), other.matrix())
    assert isinstance(one, OrthogonalMap)


@pytest.mark.parametrize("name", MAPS)
def test_module_apply_still_works(name):
    """``nn.Module.apply(fn)`` is not overridden."""
    seen = []
    build(name, 4).apply(seen.append)
    assert len(seen) == 1


def test_free_numbers_are_as_few_as_the_papers_count():
    """Rotations: k h/2. Skew maps: h(h-1)/2."""
    counts = {name: sum(p.numel() for p in build(name, 128).parameters()) for name in MAPS}
    assert counts == {"rotations": 14 * 64, "exp": 128 * 127 // 2, "cayley": 128 * 127 // 2, "householder": 128 * 128}


def test_rotations_start_near_the_permutations_and_keep_their_determinant():
    """Angles in ±0.05, not all equal; det U is the sign of the permutations, of either kind, and never changes."""
    dets = set()
    for seed in range(8):
        U = build("rotations", 6, seed=seed)
        assert 0.03 < U.angles.abs().max() <= 0.05
        det = round(torch.linalg.det(U.matrix()).item())
        perturb_(U, 3.0)
        assert round(torch.linalg.det(U.matrix()).item()) == det
        reflection = torch.eye(6, dtype=F64)
        reflection[0, 0] = -1
        assert U.contains(U.matrix())
        assert not U.contains(reflection @ U.matrix())
        dets.add(det)
    assert dets == {-1, 1}


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_starts_of_the_exponential_turn_disjoint_planes(size):
    """Start "cayley": by tan(t/2), t in [0, π/2], so in [0, 1]. "henaff": by ±π. "identity": not at all."""
    for init, low, high in (("cayley", 0.0, 1.0), ("henaff", -math.pi, math.pi), ("identity", 0.0, 0.0)):
        matrix = build("exp", size, init=init).matrix().detach()
        blocks = [matrix[i : i + 2, i : i + 2] for i in range(0, size, 2)]
        torch.testing.assert_close(torch.block_diag(*blocks), matrix, rtol=0, atol=1e-14)
        angles = torch.tensor([math.atan2(block[1, 0], block[0, 0]) for block in blocks if len(block) == 2])
        assert ((low - 1e-12 <= angles) & (angles <= high + 1e-12)).all()


def test_scaled_cayley_has_the_asked_signs():
    """At A = 0 the matrix is D: the last entries are -1."""
    U = ScaledCayley(5, negative_signs=2, init="identity").to(F64)
    assert torch.equal(U.matrix(), torch.diag(torch.tensor([1.0, 1, 1, -1, -1], dtype=F64)))
    assert int((ScaledCayley(9).signs < 0).sum()) == 4
    assert not U.contains(torch.eye(5, dtype=F64))  # UD = D has eigenvalue -1
    assert not U.contains(-torch.eye(5, dtype=F64))  # det = -1


def test_exponential_reaches_rotations_only_and_reflections_are_counted():
    assert not SkewExponential(2).contains(torch.diag(torch.tensor([1.0, -1.0])))
    U = HouseholderProduct(6, reflections=2).to(F64)
    assert U.contains(torch.eye(6, dtype=F64))
    assert U.contains(torch.diag(torch.tensor([1.0, 1, -1, -1, 1, 1], dtype=F64)))
    assert not U.contains(torch.diag(torch.tensor([1.0, -1, -1, -1, 1, 1], dtype=F64)))


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="even size, got 7; take 8"):
        RotationProduct(7)
    with pytest.raises(SettingError, match="sublayers to be a whole number of at least 1, got 0"):
        RotationProduct(8, sublayers=0)
    with pytest.raises(SettingError, match="size to be a whole number of at least 1, got 0"):
        SkewExponential(0)
    with pytest.raises(SettingError, match="one of cayley, henaff, identity, got 'zero'"):
        SkewExponential(4, init="zero")
    with pytest.raises(SettingError, match="from 0 to 4, got 5"):
        ScaledCayley(4, negative_signs=5)
    with pytest.raises(SettingError, match="reflections to be a whole number of at least 1, got"):
        HouseholderProduct(4, reflections=0)
    with pytest.raises(SettingError, match="'rotations', 'exp', 'cayley', 'householder' or an OrthogonalMap, got 'so'"):
        orthogonal_map("so", 4)
    with pytest.raises(SettingError, match=r"size 6, got SkewExponential\(size=4"):
        orthogonal_map(SkewExponential(4), 6)
    with pytest.raises(SettingError, match=r"no settings beside a ready map, got \['init'\]"):
        orthogonal_map(SkewExponential(4), 4, init="henaff")
    ready = SkewExponential(4)
    assert orthogonal_map(ready, 4) is ready


# The constraint for any module.


def constrained(map, size=6, dtype=F64, seed=0):
    torch.manual_seed(seed)
    rnn = nn.RNN(3, size, dtype=dtype)
    return rnn, orthogonal(rnn, "weight_hh_l0", map=map)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("map", CONSTRAINTS)
def test_constraint_starts_at_the_nearest_orthogonal_matrix(map, dtype):
    torch.manual_seed(0)
    rnn = nn.RNN(3, 6, dtype=dtype)
    start = rnn.weight_hh_l0.detach().double()
    assert orthogonal(rnn, "weight_hh_l0", map=map) is rnn
    nearest = nearest_rotation(start) if map == "exp" else nearest_orthogonal(start)
    torch.testing.assert_close(rnn.weight_hh_l0.double(), nearest, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("map", CONSTRAINTS)
def test_constraint_gives_back_what_is_assigned(map, dtype):
    """For rotations; for -I of even size, where angles are π and eigenvalues -1; for the identity."""
    rnn, _ = constrained(map, dtype=dtype)
    for seed in range(5):
        torch.manual_seed(seed)
        Q = nearest_rotation(torch.randn(6, 6, dtype=F64)).to(dtype)
        for matrix in (Q, -torch.eye(6, dtype=dtype), torch.eye(6, dtype=dtype)):
            rnn.weight_hh_l0 = matrix
            torch.testing.assert_close(rnn.weight_hh_l0, matrix, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("map", ["cayley", "householder"])
def test_cayley_and_householder_take_reflections_too(map):
    rnn, _ = constrained(map)
    for signs in ([-1, 1, 1, 1, 1, 1], [-1, -1, -1, 1, 1, 1]):
        Q = nearest_orthogonal(torch.randn(6, 6, dtype=F64))
        matrix = nearest_orthogonal(Q @ torch.diag(torch.tensor(signs, dtype=F64)) @ Q.mT)
        rnn.weight_hh_l0 = matrix
        torch.testing.assert_close(rnn.weight_hh_l0, matrix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("map", CONSTRAINTS)
def test_constraint_holds_under_training_and_every_direction_learns(map):
    """200 Adam steps of an RNN in plain PyTorch, from the identity: orthogonal throughout, and far from the start."""
    rnn, _ = constrained(map)
    rnn.weight_hh_l0 = torch.eye(6, dtype=F64)
    xs, target, start = torch.randn(9, 4, 3, dtype=F64), torch.randn(9, 4, 6, dtype=F64), rnn.weight_hh_l0.detach()
    step = torch.optim.Adam(rnn.parameters(), lr=0.03)
    for _ in range(200):
        step.zero_grad()
        (rnn(xs)[0] - target).square().sum().backward()
        step.step()
        assert is_orthogonal(rnn.weight_hh_l0)
    assert (rnn.weight_hh_l0 - start).norm(dim=1).min() > 0.05


@pytest.mark.parametrize("map", CONSTRAINTS)
def test_constraint_refuses_what_is_not_orthogonal_and_changes_nothing(map):
    rnn, _ = constrained(map)
    before = {key: value.clone() for key, value in rnn.state_dict().items()}
    wanted, remedy = ("a rotation", "nearest_rotation") if map == "exp" else ("orthogonal", "nearest_orthogonal")
    with pytest.raises(
        OutsideSetError, match=rf"^weight_hh_l0 must be {wanted}, but ‖QᵀQ - I‖ = 0\.21 > 1e-12; assign {remedy}"
    ):
        rnn.weight_hh_l0 = 1.1 * torch.eye(6, dtype=F64)
    with pytest.raises(OutsideSetError, match="nan"):
        rnn.weight_hh_l0 = torch.full((6, 6), torch.nan, dtype=F64)
    with pytest.raises(ShapeError, match=r"expects a matrix of shape \(6, 6\), got \(5, 5\)"):
        rnn.weight_hh_l0 = torch.eye(5, dtype=F64)
    after = rnn.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_exponential_refuses_a_reflection_and_says_why():
    rnn, _ = constrained("exp")
    before = rnn.weight_hh_l0.detach().clone()
    reflection = torch.eye(6, dtype=F64)
    reflection[0, 0] = -1
    with pytest.raises(
        OutsideSetError, match=r'det Q = -1 < 0 and exp reaches det = 1 only.*"cayley" or "householder"'
    ):
        rnn.weight_hh_l0 = reflection
    assert torch.equal(rnn.weight_hh_l0, before)


@pytest.mark.parametrize("map", CONSTRAINTS)
def test_constrained_state_dict_round_trips_and_removal_leaves_the_matrix(map):
    one, _ = constrained(map, seed=1)
    other, _ = constrained(map, seed=2)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.weight_hh_l0, other.weight_hh_l0)
    matrix = one.weight_hh_l0.detach().clone()
    parametrize.remove_parametrizations(one, "weight_hh_l0")
    assert torch.equal(one.weight_hh_l0, matrix)


def test_refused_registration_changes_nothing():
    """Unknown map, unknown name, a matrix that is not square, entries that are not finite, a second constraint."""
    rnn = nn.RNN(3, 6)
    before = {key: value.clone() for key, value in rnn.state_dict().items()}
    with pytest.raises(SettingError, match="cayley, exp, householder, got 'rotations'"):
        orthogonal(rnn, "weight_hh_l0", map="rotations")
    with pytest.raises(
        SettingError, match="no parameter 'weight_hh' in RNN; matrices there: weight_ih_l0, weight_hh_l0"
    ):
        orthogonal(rnn)
    with pytest.raises(ShapeError, match=r"weight_ih_l0 has shape \(6, 3\)"):
        orthogonal(rnn, "weight_ih_l0")
    assert all(torch.equal(before[key], value) for key, value in rnn.state_dict().items())
    with torch.no_grad():
        rnn.weight_hh_l0[0, 0] = torch.inf
    with pytest.raises(OutsideSetError, match="non-finite"):
        orthogonal(rnn, "weight_hh_l0")
    assert not parametrize.is_parametrized(rnn)
    rnn, _ = constrained("exp")
    with pytest.raises(SettingError, match="parametrised already"):
        orthogonal(rnn, "weight_hh_l0", map="cayley")
