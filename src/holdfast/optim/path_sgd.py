"""Path-SGD and Path-Adam: PyTorch's own optimisers, fed with gradients divided by κ.

    p_i ← p_i - (lr / κ_i(p)) ∂L/∂p_i                                  (1) S2 (8), PathSGD without momentum
    m ← Adam's moments of (1/κ_i) ∂L/∂p_i, not of ∂L/∂p_i              (2) S2 §5.3, PathAdam

Momentum and weight decay come after the division: p_i, its velocity and λ p_i are all multiplied by β_v/β_u under a
rescaling, so PathSGD stays invariant with them. PathAdam does not: Adam divides by the size of its gradients once more.
Source: S2, §4.3, §5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from holdfast.errors import SettingError, StateDictError
from holdfast.optim.network import Network
from holdfast.optim.path_norm import Form, Outputs
from holdfast.optim.preconditioner import PathPreconditioner

__all__ = ["PathAdam", "PathSGD"]


class _Divided(torch.optim.Optimizer):
    """What PathSGD and PathAdam share: the division before, and all of its state beside, PyTorch's own step."""

    preconditioner: PathPreconditioner

    def _divide_by(self, preconditioner: PathPreconditioner) -> None:
        self.preconditioner = preconditioner
        self.defaults["path"] = True
        for group in self.param_groups:
            group.setdefault("path", True)
            self._check(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if hasattr(self, "preconditioner"):  # not yet while PyTorch builds the first groups
            self._check(self.param_groups[-1])

    def _check(self, group: dict[str, Any]) -> None:
        known = set(self.preconditioner.parameters)
        for parameter in group["params"] if group["path"] else ():
            if parameter not in known:
                raise SettingError(
                    f"{type(self).__name__} got a parameter of shape {tuple(parameter.shape)} that is no weight of the "
                    'network, and has no κ. Give it a group of its own with "path": False, to be stepped without κ, or '
                    "describe it in a holdfast.optim.Network."
                )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; ``closure`` reevaluates the model and returns the loss, as everywhere in ``torch.optim``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self.preconditioner.divided(self._path_parameters()):
            _without_hooks(super().step)()  # type: ignore[misc]
        return loss

    def _path_parameters(self) -> Iterable[Tensor]:
        return (parameter for group in self.param_groups if group["path"] for parameter in group["params"])

    # -- saving and copying --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "path" not in state_dict:
            raise StateDictError(
                f'{type(self).__name__} expects "path" in the state_dict, with κ and its age; got '
                f"{', '.join(map(str, state_dict))}. That of another optimiser does not fit."
            )
        self.preconditioner.check_state_dict(state_dict["path"])  # before anything is changed
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "path"})
        self.preconditioner.load_state_dict(state_dict["path"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "preconditioner": self.preconditioner}


def _without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    # Note [Hooks once]: PyTorch wraps the step of every class it builds an optimiser of, ours and its own, to call the
    # hooks of a step. Ours has called them by now, so the step inside must not.
    function = step.__func__  # type: ignore[attr-defined]
    inner = function.__wrapped__ if getattr(function, "hooked", False) else function
    return inner.__get__(step.__self__)  # type: ignore[attr-defined]


class PathSGD(_Divided, torch.optim.SGD):
    """Steepest descent in the geometry of the path norm, S2 (8): ``torch.optim.SGD`` on gradients divided by κ.

    Law: a step commutes with ``rescale_``, with or without κ⁽²⁾, momentum and weight decay (S2, Theorem 2), while no κ
    is at the floor. Gradients are the same after a step as before it.

    Args:
        params: parameters or groups, as in ``torch.optim``. In a group with ``"path": False`` nothing is divided.
        model: what ``network_of`` can read, or a ``Network``.
        lr, **settings: those of ``torch.optim.SGD``: momentum, dampening, weight_decay, nesterov, ...
        steps, outputs, second, form, floor, every, match_sgd, relative: those of ``PathPreconditioner``.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(2, 8, nonlinearity="relu")
        >>> optimiser = PathSGD(rnn.parameters(), rnn, lr=1e-3, steps=5, outputs="last", momentum=0.9)
        >>> rnn(torch.randn(5, 3, 2))[0][-1].sum().backward()
        >>> optimiser.step()

    References:
        Neyshabur, Wu, Salakhutdinov & Srebro (2016), Path-normalized optimization of recurrent neural networks.
    """

    def __init__(
        self,
        params: ParamsT,
        model: nn.Module | Network,
        lr: float | Tensor = 1e-3,
        *,
        steps: int | None = None,
        outputs: Outputs | None = None,
        second: bool = False,
        form: Form = "exact",
        floor: float = 1e-30,
        every: int = 1,
        match_sgd: bool = False,
        relative: bool = False,
        **settings: Any,
    ):
        path = PathPreconditioner(
            model,
            steps=steps,
            outputs=outputs,
            second=second,
            form=form,
            floor=floor,
            every=every,
            match_sgd=match_sgd,
            relative=relative,
        )
        super().__init__(params, lr, **settings)
        self._divide_by(path)


class PathAdam(_Divided, torch.optim.Adam):
    """Adam on gradients divided by κ, S2 §5.3: what S2 trains its large networks with.

    Adam divides by the size of the gradients it gets, so what stays of the division is how κ changes in time, and steps
    are not invariant under ``rescale_``.

    Args:
        params: parameters or groups, as in ``torch.optim``. In a group with ``"path": False`` nothing is divided.
        model: what ``network_of`` can read, or a ``Network``.
        lr, **settings: those of ``torch.optim.Adam``: betas, eps, weight_decay, amsgrad, ...
        steps, outputs, second, form, floor, every, match_sgd, relative: those of ``PathPreconditioner``.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(2, 8, nonlinearity="relu")
        >>> optimiser = PathAdam(rnn.parameters(), rnn, lr=1e-3, steps=5, outputs="every")
        >>> rnn(torch.randn(5, 3, 2))[0].sum().backward()
        >>> optimiser.step()

    References:
        Neyshabur, Wu, Salakhutdinov & Srebro (2016), Path-normalized optimization of recurrent neural networks.
    """

    def __init__(
        self,
        params: ParamsT,
        model: nn.Module | Network,
        lr: float | Tensor = 1e-3,
        *,
        steps: int | None = None,
        outputs: Outputs | None = None,
        second: bool = False,
        form: Form = "exact",
        floor: float = 1e-30,
        every: int = 1,
        match_sgd: bool = False,
        relative: bool = False,
        **settings: Any,
    ):
        path = PathPreconditioner(
            model,
            steps=steps,
            outputs=outputs,
            second=second,
            form=form,
            floor=floor,
            every=every,
            match_sgd=match_sgd,
            relative=relative,
        )
        super().__init__(params, lr, **settings)
        self._divide_by(path)
