"""Gradients divided by κ, for any optimiser.

    ∂L/∂p_i ← (c / max(κ_i, floor)) ∂L/∂p_i            (1) c = 1, or
    c = ‖∂L/∂p‖ / ‖(1/κ) ∂L/∂p‖ at the first division  (2) one number for a whole training, or
    c = γ / √(Σ (∂L/∂p_i)² / κ_i)                      (3) so that Σ κ_i Δp_i² = lr² γ² for a step of lr

Followed by a plain gradient step this is Path-SGD, S2 (8). κ is κ⁽¹⁾, as in S2's experiments, or both terms by
``kappa``. (2) makes the first step as long as that of SGD, so that learning rates mean what they mean there. The
authors' program for feed-forward networks (github.com/bneyshabur/path-sgd; no recurrent one was published) has another
factor, √(Σ‖∂L/∂p‖ / Σ‖(1/κ) ∂L/∂p‖²) at the first update, with a learning rate of 0.01 and momentum 0.9. As published
it never changes a gradient: its list of parameters is a generator that the first pass exhausts. (3) is ours: a step as
long as lr times the path norm γ, in the norm that it is steepest in. Rescaling changes neither root, so steps stay
invariant. γ² is taken over paths through a hidden unit: the bias of an output is a path of one edge and says nothing
about the scale of the others.
Where κ_i = 0 no path runs through p_i: its gradient is 0, and so is the quotient. Source: S2, §4.3, §5.3.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, StateDictError, one_of, positive_size
from holdfast.optim.describe import path_network
from holdfast.optim.network import PathNetwork
from holdfast.optim.path_norm import Form, Kappa, Outputs, kappa, kappa_first, path_norm_sq
from holdfast.optim.pieces import compact

__all__ = ["PathPreconditioner", "at_least_float32", "dense"]


class PathPreconditioner:
    """Divide gradients by κ, in place, before an optimiser of your choice reads them.

    Law: with plain SGD after it, a step commutes with ``rescale_`` (S2, Theorem 2), for any ``second`` and ``form``,
    while no κ is at the floor.

    Args:
        model: what ``path_network`` can read, or a ``PathNetwork``.
        steps: T, the length of the sequences, needed for a recurrent network. May be changed at any time; κ is then
            recomputed.
        outputs: "last" or "every" step; not needed for a model with ``last_only``.
        second: whether κ⁽²⁾ is in κ. S2's experiments leave it out.
        form: how it is added, "exact" or "published"; see ``kappa``.
        floor: κ is at least this. The default only keeps 1/κ finite; a larger one bounds the steps along parameters
            that few paths use, and gives up invariance there.
        every: κ is recomputed after this many divisions.
        match_sgd: whether c is (2) instead of 1. κ runs over many orders of magnitude with the size and scale of a
            network, and so does the learning rate that works; with (2) it is near that of SGD.
        relative: whether c is (3) instead of 1. Learning rates then are fractions of the path norm, independent of
            the scale of κ and of the loss. Steps do not shrink with the gradient, so use a schedule that ends at zero.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(2, 8, nonlinearity="relu")
        >>> path, optimiser = PathPreconditioner(rnn, steps=5, outputs="last"), torch.optim.RMSprop(rnn.parameters())
        >>> rnn(torch.randn(5, 3, 2))[0][-1].sum().backward()
        >>> path.divide_()
        >>> optimiser.step()
    """

    SETTINGS: ClassVar[tuple[str, ...]] = (
        "steps", "outputs", "second", "form", "floor", "every", "match_sgd", "relative",
    )  # fmt: skip

    def __init__(
        self,
        model: nn.Module | PathNetwork,
        *,
        steps: int | None = None,
        outputs: Outputs | None = None,
        second: bool = False,
        form: Form = "exact",
        floor: float = 1e-30,
        every: int = 1,
        match_sgd: bool = False,
        relative: bool = False,
    ):
        self.network = path_network(model)
        if steps is None and self.network.layers:  # T = 1 has no paths through U: its κ is 0, and 1/κ anything
            raise SettingError(
                "PathPreconditioner expects steps, the length of the sequences, got None; κ depends on it."
            )
        self.network.reads_every_step("PathPreconditioner", outputs)
        one_of("PathPreconditioner", "form", form, ("exact", "published"))
        if not 1e-30 <= floor < float("inf"):
            raise SettingError(f"PathPreconditioner expects a finite floor of at least 1e-30, got {floor!r}.")
        if match_sgd and relative:
            raise SettingError(
                "PathPreconditioner expects match_sgd or relative, got both; each sets the length of steps: drop one."
            )
        self.outputs: Outputs | None = outputs
        self.form: Form = form
        self.second, self.floor = bool(second), float(floor)
        self.match_sgd, self.relative = bool(match_sgd), bool(relative)
        self.every = positive_size("PathPreconditioner", "every", every)
        self.parameters = self.network.parameters()
        self.divisions, self.factor = 0, 1.0
        self.steps = 1 if steps is None else steps

    @property
    def steps(self) -> int:
        """T, the length of the sequences that κ is for."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = positive_size("PathPreconditioner", "steps", steps)
        self._inverse: dict[Tensor, Tensor] = {}

    def refresh(self) -> None:
        """Recompute κ from the current weights."""
        found = self._kappa()
        # Equal numbers are kept once, and half-precision weights get a float32, since 1/κ often exceeds 65504.
        self._inverse = {
            parameter: compact(value).clamp(min=self.floor).reciprocal_().to(at_least_float32(parameter.dtype))
            for parameter, value in found.items()
        }
        if self.match_sgd and self.divisions == 0:
            self.factor = self._first_factor()
        elif self.relative:
            self.factor = self._path_norm(found)
        if self.factor != 1.0:
            for inverse in self._inverse.values():
                inverse.mul_(self.factor)

    def _kappa(self) -> Kappa:
        if self.second:
            return kappa(self.network, self.steps, self.outputs, form=self.form)
        # float32 where the weights are, and κ fits in it
        return kappa_first(self.network, self.steps, self.outputs, dtype=torch.float32)

    def _first_factor(self) -> float:
        """(2), of the gradients as they are."""
        plain = divided = 0.0
        for parameter in self.parameters:
            if parameter.grad is not None:
                grad = parameter.grad.double()
                plain += float(grad.square().sum())
                divided += float((grad * self._inverse[parameter]).square().sum())
        return math.sqrt(plain / divided) if 0 < divided < math.inf and plain < math.inf else 1.0

    def _path_norm(self, found: Kappa) -> float:
        """γ of (3); 1 beyond the range of float64, where 1/κ is 0."""
        last = self.network.decoder[-1].tensors[0] if self.network.decoder else None
        if last is None:
            square = float(path_norm_sq(self.network, self.steps, self.outputs).detach())
        else:  # every path through a hidden unit ends in one edge of the last weight
            square = float((found[last] * last.detach().double().square()).sum())
        return math.sqrt(square) if 0 < square < torch.finfo(torch.float64).max else 1.0

    def divide_(self) -> None:
        """(1) for every parameter that has a gradient, in place."""
        given = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter, inverse in zip(given, self.inverse_kappas(given), strict=True):
            dense(parameter).mul_(inverse)

    @contextlib.contextmanager
    def around(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """(1) inside the block, the gradients as they were after it: for optimisers that do not change gradients."""
        given = [weight for group in groups for weight in group["params"] if weight.grad is not None]
        kept = [dense(parameter) for parameter in given]
        try:
            for parameter, grad, inverse in zip(given, kept, self.inverse_kappas(given), strict=True):
                product = grad * inverse
                parameter.grad = product if product.dtype == grad.dtype else product.to(grad.dtype)
            yield
        finally:
            for parameter, grad in zip(given, kept, strict=True):
                parameter.grad = grad

    def inverse_kappas(self, parameters: list[Tensor]) -> list[Tensor]:
        """c/κ of these parameters, to be broadcast over them; counts as a division, and recomputes κ if that is due.

        With ``relative``, (3) sums over these parameters alone and over the gradients that they have.
        """
        if not self._inverse or self.divisions % self.every == 0:
            self.refresh()
        self.divisions += 1
        inverses = [self._inverse[parameter] for parameter in parameters]
        if not self.relative:
            return inverses
        # The root of (3); γ is in the inverses already.
        pairs = zip(parameters, inverses, strict=True)
        total = sum(float((dense(parameter).double().square() * inverse).sum()) for parameter, inverse in pairs)
        root = math.sqrt(total / self.factor)
        return [inverse / root for inverse in inverses] if 0 < root < math.inf else inverses

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the next division depends on, except weights and gradients: settings, count, c, and c/κ."""
        return {
            "settings": {name: getattr(self, name) for name in self.SETTINGS},
            "divisions": self.divisions,
            "factor": self.factor,
            "inverse_kappa": [self._inverse[p].clone() for p in self.parameters] if self._inverse else [],
        }

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise unless ``state_dict`` is one of a preconditioner of the same network."""
        whole = isinstance(state_dict, dict) and set(state_dict) == {"settings", "divisions", "factor", "inverse_kappa"}
        if not whole or not _fits(state_dict["inverse_kappa"], self.parameters):
            raise StateDictError(
                "PathPreconditioner cannot load this state_dict: it expects settings, divisions, factor and an "
                "inverse_kappa for each parameter. Nothing was changed; build it for the same model first."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where ``state_dict`` was taken, bit for bit."""
        self.check_state_dict(state_dict)
        saved = state_dict["inverse_kappa"]
        for name in self.SETTINGS:
            setattr(self, name, state_dict["settings"].get(name, getattr(self, name)))  # one that came later is kept
        self.divisions, self.factor = int(state_dict["divisions"]), float(state_dict["factor"])
        self._inverse = {
            parameter: inverse.to(device=parameter.device, dtype=at_least_float32(parameter.dtype), copy=True)
            for parameter, inverse in zip(self.parameters, saved, strict=False)  # none: κ is due
        }

    def __repr__(self) -> str:
        return f"PathPreconditioner({', '.join(f'{name}={getattr(self, name)!r}' for name in self.SETTINGS)})"


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def dense(parameter: Tensor) -> Tensor:
    grad = parameter.grad
    assert grad is not None
    if grad.layout != torch.strided:
        raise SettingError("PathPreconditioner expects dense gradients; build the Embedding with sparse=False.")
    return grad


def _fits(saved: Any, parameters: list[Tensor]) -> bool:
    if not isinstance(saved, list) or len(saved) not in (0, len(parameters)):
        return False
    return all(
        isinstance(inverse, Tensor)
        and inverse.dim() == parameter.dim()
        and all(have in (1, want) for have, want in zip(inverse.shape, parameter.shape, strict=True))
        for inverse, parameter in zip(saved, parameters, strict=False)
    )
