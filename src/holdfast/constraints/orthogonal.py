"""Orthogonal matrices from free numbers: four maps, one interface, and a constraint for any module's weight.

    U = R_1 Q_1 ... R_k Q_k             (1) plane rotations and fixed permutations, ``"rotations"``
    U = exp(A)                          (2) A skew, ``"exp"``
    U = (I + A)⁻¹ (I - A) D             (3) A skew, D = diag(±1) fixed, ``"cayley"``
    U = H_1 ... H_m                     (4) reflections, ``"householder"``

Sources: S3 (2) for (1); Lezcano-Casado & Martínez-Rubio (2019), §3, §4.2 for (2); Helfrich, Willmott & Ye (2018), §3
for (3); Mhammedi et al. (2017), §3 for (4). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast.errors import OutsideSetError, SettingError, ShapeError, one_of, positive_size
from holdfast.linalg import givens
from holdfast.linalg.norms import (
    is_orthogonal,
    nearest_orthogonal,
    nearest_rotation,
    orthogonality_error,
    orthogonality_tolerance,
)
from holdfast.linalg.skew import (
    cayley,
    cayley_inverse,
    exp_map,
    householder_inverse,
    householder_product,
    log_map,
    skew_from_vector,
)
from holdfast.types import Hidden, Weights

__all__ = [
    "HouseholderProduct",
    "OrthogonalMap",
    "RotationProduct",
    "ScaledCayley",
    "SkewExponential",
    "orthogonal",
    "orthogonal_map",
]

Rows = Float[Tensor, "*batch size"]
Square = Float[Tensor, "size size"]
Start = Literal["cayley", "henaff", "identity"]


class OrthogonalMap(nn.Module, ABC):
    """From free parameters to an orthogonal matrix U of ``size``.

    ``weights()`` builds, once per sequence, what ``transform`` reads; ``transform(h, weights)`` is pure and called in a
    cell's step (``apply`` would be ``nn.Module``'s). Calling the map does both.

    Law: U is orthogonal for all parameters, ``contains(matrix())``, and ``transform(h, weights())`` is U h row by row.

    Example:
        >>> U = orthogonal_map("exp", 4)
        >>> torch.testing.assert_close(U(torch.eye(4)), U.matrix().mT)
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = positive_size(type(self).__name__, "size", size)

    @abstractmethod
    def weights(self) -> Weights:
        """The tensors that ``transform`` reads."""

    @abstractmethod
    def transform(self, h: Hidden, weights: Weights) -> Hidden:
        """U h for every row of h."""

    @abstractmethod
    def matrix(self) -> Square:
        """U, dense."""

    def contains(self, Q: Square) -> bool:
        """Whether Q lies, up to rounding, in the set that this map keeps to."""
        return Q.shape == (self.size, self.size) and is_orthogonal(Q) and self._reaches(Q.detach())

    def _reaches(self, Q: Square) -> bool:
        """Whether this orthogonal Q is in the set."""
        return True

    @abstractmethod
    def reset_parameters(self) -> None:
        """Redraw the parameters."""

    def forward(self, h: Rows) -> Rows:
        return self.transform(h, self.weights())

    def extra_repr(self) -> str:
        return f"size={self.size}"


class RotationProduct(OrthogonalMap):
    """A product of plane rotations (1): k sublayers, each a permutation and size/2 rotations. VPRNN's map, S3 (2).

    It costs less than a dense product and has k size/2 parameters, so it reaches a surface inside the orthogonal
    matrices; ``contains`` tests for the sign of the determinant only.

    Law: UᵀU = I for all angles; det U is the product of the permutations' signs.

    Args:
        size: even.
        sublayers: k; default 2 ⌈log₂ size⌉.

    Example:
        >>> U = RotationProduct(128)
        >>> U.angles.shape, U.contains(U.matrix())
        (torch.Size([14, 64]), True)

    References:
        Taylor-Melanson, MacDonald & Godbout (2021), Volume-preserving recurrent neural networks.
    """

    permutations: Tensor

    def __init__(self, size: int, sublayers: int | None = None):
        super().__init__(size)
        if size % 2:
            raise SettingError(
                f"RotationProduct turns features in pairs and expects an even size, got {size}; take {size + 1}, or "
                f'another map: "exp", "cayley", "householder".'
            )
        sublayers = givens.default_sublayers(size) if sublayers is None else sublayers
        self.sublayers = positive_size("RotationProduct", "sublayers", sublayers)
        self.angles = nn.Parameter(torch.empty(self.sublayers, size // 2))
        self.register_buffer("permutations", givens.random_permutations(self.sublayers, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw the angles from ±0.05 and keep the permutations."""
        nn.init.uniform_(self.angles, -0.05, 0.05)

    def weights(self) -> Weights:
        return self.angles, self.permutations

    def transform(self, h: Hidden, weights: Weights) -> Hidden:
        angles, permutations = weights
        return givens.rotate(h, angles, permutations)

    def matrix(self) -> Square:
        return givens.rotation_matrix(self.angles, self.permutations)

    def _reaches(self, Q: Square) -> bool:
        return _det_sign(Q) == math.prod(map(_sign, self.permutations))

    def extra_repr(self) -> str:
        return f"size={self.size}, sublayers={self.sublayers}"


class DenseMap(OrthogonalMap):
    """A map whose U is built as a whole: once per sequence, then one product per step."""

    def weights(self) -> Weights:
        return (self.matrix(),)

    def transform(self, h: Hidden, weights: Weights) -> Hidden:
        (weight_hh,) = weights
        return h @ weight_hh.mT


class SkewMap(DenseMap):
    """A map from a skew matrix A, stored as its size(size-1)/2 entries below the diagonal."""

    def __init__(self, size: int, init: Start):
        super().__init__(size)
        one_of(type(self).__name__, "init", init, ("cayley", "henaff", "identity"))
        self.init: Start = init
        self.skew = nn.Parameter(torch.empty(size * (size - 1) // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set one entry for each plane (2i, 2i+1), by ``init``, and the others to zero."""
        with torch.no_grad():
            self.skew.zero_()
            if self.init == "identity":
                return
            rows = torch.arange(1, self.size, 2, device=self.skew.device)
            planes = rows * (rows - 1) // 2 + rows - 1  # the place of (row, row - 1), counted row by row
            if self.init == "henaff":
                self.skew[planes] = torch.empty_like(self.skew[planes]).uniform_(-math.pi, math.pi)
            else:
                t = torch.empty_like(self.skew[planes]).uniform_(0, math.pi / 2)
                self.skew[planes] = torch.sqrt((1 - t.cos()) / (1 + t.cos()))

    def extra_repr(self) -> str:
        return f"size={self.size}, init={self.init!r}"


class SkewExponential(SkewMap):
    """The exponential of a skew matrix (2), stored as its size(size-1)/2 entries below the diagonal.

    Law: U is a rotation for all parameters, and every rotation is reached.

    Args:
        init: planes (2i, 2i+1) start turned by tan(t/2), t uniform in [0, π/2] ("cayley"), by an angle uniform in ±π
            ("henaff"), or not ("identity").

    Example:
        >>> U = SkewExponential(5)
        >>> U.skew.shape, U.contains(U.matrix())
        (torch.Size([10]), True)

    References:
        Lezcano-Casado & Martínez-Rubio (2019), Cheap orthogonal constraints in neural networks.
    """

    def __init__(self, size: int, init: Start = "cayley"):
        super().__init__(size, init)

    def matrix(self) -> Square:
        return exp_map(skew_from_vector(self.skew, self.size))

    def _reaches(self, Q: Square) -> bool:
        return _det_sign(Q) > 0


class ScaledCayley(SkewMap):
    """The Cayley transform of a skew matrix (3), with its columns multiplied by fixed signs. scoRNN's map.

    Law: U is orthogonal for all parameters with det U = (-1)^negative_signs, and every such U is reached for which UD
    has no eigenvalue -1.

    Args:
        negative_signs: number of entries of D, the last ones, that are -1; default size//2.
        init: as ``SkewExponential``.

    Example:
        >>> U = ScaledCayley(5, negative_signs=2)
        >>> U.signs, U.contains(U.matrix())
        (tensor([ 1., 1., 1., -1., -1.]), True)

    References:
        Helfrich, Willmott & Ye (2018), Orthogonal recurrent neural networks with scaled Cayley transform.
    """

    signs: Tensor

    def __init__(self, size: int, negative_signs: int | None = None, init: Start = "cayley"):
        super().__init__(size, init)
        negative_signs = size // 2 if negative_signs is None else negative_signs
        if not 0 <= negative_signs <= size:
            raise SettingError(f"ScaledCayley expects negative_signs from 0 to {size}, got {negative_signs}.")
        self.register_buffer("signs", torch.ones(size))
        self.signs[size - negative_signs :] = -1

    def matrix(self) -> Square:
        return cayley(skew_from_vector(self.skew, self.size), self.signs)

    def _reaches(self, Q: Square) -> bool:
        identity = torch.eye(self.size, dtype=Q.dtype, device=Q.device)
        smallest = torch.linalg.svdvals(identity + Q * self.signs.to(Q))[-1]
        return _det_sign(Q) == self.signs.prod().item() and smallest.item() > 4 * torch.finfo(Q.dtype).eps

    def extra_repr(self) -> str:
        return f"size={self.size}, negative_signs={int((self.signs < 0).sum())}, init={self.init!r}"


class HouseholderProduct(DenseMap):
    """A product of reflections (4), one per row of ``reflectors``; the last row is applied first.

    Law: U is orthogonal for all parameters, and every orthogonal U with rank(I - U) ≤ reflections is reached: all of
    them if reflections = size. A row of zeros is the identity and has no gradient.

    Args:
        reflections: m; default size.

    Example:
        >>> U = HouseholderProduct(5, reflections=2)
        >>> U.contains(U.matrix()), U.contains(-torch.eye(5))
        (True, False)

    References:
        Mhammedi et al. (2017), Efficient orthogonal parametrisation of recurrent neural networks.
    """

    def __init__(self, size: int, reflections: int | None = None):
        super().__init__(size)
        reflections = size if reflections is None else reflections
        self.reflections = positive_size("HouseholderProduct", "reflections", reflections)
        self.reflectors = nn.Parameter(torch.empty(self.reflections, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.reflectors)

    def matrix(self) -> Square:
        return householder_product(self.reflectors)

    def _reaches(self, Q: Square) -> bool:
        identity = torch.eye(self.size, dtype=Q.dtype, device=Q.device)
        moved = torch.linalg.svdvals(identity - Q) > self.size * orthogonality_tolerance(Q.dtype)
        return int(moved.sum()) <= self.reflections

    def extra_repr(self) -> str:
        return f"size={self.size}, reflections={self.reflections}"


_MAPS: dict[str, type[OrthogonalMap]] = {
    "rotations": RotationProduct,
    "exp": SkewExponential,
    "cayley": ScaledCayley,
    "householder": HouseholderProduct,
}


def orthogonal_map(name_or_map: str | OrthogonalMap, size: int, **settings: Any) -> OrthogonalMap:
    """The map of that name with ``size`` and ``settings``, or a ready one, if it has that size.

    Example:
        >>> orthogonal_map("householder", 8, reflections=3)
        HouseholderProduct(size=8, reflections=3)
    """
    if isinstance(name_or_map, OrthogonalMap):
        if name_or_map.size != size:
            raise SettingError(
                f"orthogonal_map expects a map of size {size}, got {name_or_map}; build it with size={size}."
            )
        if settings:
            raise SettingError(
                f"orthogonal_map expects no settings beside a ready map, got {sorted(settings)}; "
                f"give them to {type(name_or_map).__name__}."
            )
        return name_or_map
    if name_or_map not in _MAPS:
        known = ", ".join(map(repr, _MAPS))
        raise SettingError(f"orthogonal_map expects one of {known} or an OrthogonalMap, got {name_or_map!r}.")
    return _MAPS[name_or_map](size, **settings)


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def orthogonal(module: ModuleT, name: str = "weight_hh", map: str = "exp") -> ModuleT:
    """Constrain the square parameter ``name`` of any module to orthogonal matrices, under any optimiser.

    The parameter becomes U = map(X) with X free (``torch.nn.utils.parametrize``). It starts at the orthogonal matrix
    nearest to what it was; for ``"exp"``, at the nearest rotation. Reading it gives U. Assigning an orthogonal matrix
    gives that matrix back; assigning another raises ``OutsideSetError`` and changes nothing. ``"exp"`` reaches
    rotations only; ``"cayley"`` and ``"householder"`` reach all orthogonal matrices, by signs chosen at assignment.

    Law: the parameter is orthogonal after every step of every optimiser.

    Args:
        module: any module; it is changed and returned.
        name: of a square, real parameter, such as ``"weight_hh_l0"`` of ``torch.nn.RNN``.
        map: ``"exp"``, ``"cayley"`` or ``"householder"``.

    Example:
        >>> rnn = orthogonal(torch.nn.RNN(3, 4), "weight_hh_l0")
        >>> is_orthogonal(rnn.weight_hh_l0)
        True
    """
    one_of("orthogonal", "map", map, sorted(_BOTH_WAYS))
    if parametrize.is_parametrized(module, name):
        raise SettingError(
            f"orthogonal expects a plain parameter, but {name} of {type(module).__name__} is parametrised already; "
            f"call torch.nn.utils.parametrize.remove_parametrizations first."
        )
    weight = module._parameters.get(name)
    if weight is None:
        known = ", ".join(key for key, value in module.named_parameters(recurse=False) if value.ndim == 2)
        raise SettingError(
            f"orthogonal found no parameter {name!r} in {type(module).__name__}; matrices there: {known}."
        )
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1] or not weight.dtype.is_floating_point:
        raise ShapeError(
            f"orthogonal expects a square matrix of real numbers, but {name} has shape {tuple(weight.shape)} "
            f"and type {weight.dtype}."
        )
    if not weight.isfinite().all():
        raise OutsideSetError(
            f"orthogonal expects finite entries, but {name} has non-finite ones; initialise it first."
        )
    constraint, before = _Constraint(name, map, weight), weight.detach().clone()
    nearest = nearest_rotation if map == "exp" else nearest_orthogonal
    with torch.no_grad():
        try:
            weight.copy_(nearest(before.double()))  # in double, to be orthogonal in the weight's own precision
            parametrize.register_parametrization(module, name, constraint)
        except Exception:
            weight.copy_(before)
            raise
    return module


_BOTH_WAYS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "exp": (lambda X, signs: exp_map(X), lambda Q: (log_map(Q), torch.ones_like(Q[0]))),
    "cayley": (cayley, cayley_inverse),
    "householder": (lambda X, signs: householder_product(X) * signs, householder_inverse),
}
"""By name: from a square X and signs D to U, and back."""


class _Constraint(nn.Module):
    """X ↦ U for ``torch.nn.utils.parametrize``, and U ↦ X for assignment, which also chooses D."""

    signs: Tensor

    def __init__(self, name: str, map: str, weight: Tensor):
        super().__init__()
        self.name, self.map, self.kind = name, map, "a rotation" if map == "exp" else "orthogonal"
        self.register_buffer("signs", torch.ones(len(weight), dtype=weight.dtype, device=weight.device))

    def forward(self, X: Tensor) -> Tensor:
        return _BOTH_WAYS[self.map][0](X, self.signs)

    def right_inverse(self, Q: Tensor) -> Tensor:
        size, nearest = len(self.signs), "nearest_rotation" if self.map == "exp" else "nearest_orthogonal"
        if Q.shape != (size, size):
            raise ShapeError(f"{self.name} expects a matrix of shape {(size, size)}, got {tuple(Q.shape)}.")
        error, tol = orthogonality_error(Q), orthogonality_tolerance(Q.dtype)
        if not error <= tol:  # also if it is NaN
            raise OutsideSetError(
                f"{self.name} must be {self.kind}, but ‖QᵀQ - I‖ = {error:.2g} > {tol:.0e}; assign {nearest}(Q)."
            )
        if self.map == "exp" and _det_sign(Q) < 0:
            raise OutsideSetError(
                f"{self.name} must be a rotation, but det Q = -1 < 0 and exp reaches det = 1 only; "
                f'assign nearest_rotation(Q), or use map="cayley" or "householder".'
            )
        X, signs = _BOTH_WAYS[self.map][1](Q)
        self.signs.copy_(signs)
        return X

    def extra_repr(self) -> str:
        return f"{self.name} {self.kind}"


def _det_sign(Q: Tensor) -> float:
    return torch.linalg.slogdet(Q.detach()).sign.item()


def _sign(permutation: Tensor) -> int:
    """Of a permutation: -1 to the number of its cycles of even length."""
    targets, sign = permutation.tolist(), 1
    seen = [False] * len(targets)
    for start in range(len(targets)):
        length, at = 0, start
        while not seen[at]:
            seen[at], at, length = True, targets[at], length + 1
        sign *= -1 if length and length % 2 == 0 else 1
    return sign
