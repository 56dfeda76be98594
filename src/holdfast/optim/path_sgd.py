"""Path-SGD and Path-Adam: PyTorch's own optimisers, fed with gradients divided by κ.

    p_i ← p_i - (lr / κ_i(p)) ∂L/∂p_i                                  (1) S2 (8), PathSGD without momentum
    m ← Adam's moments of (1/κ_i) ∂L/∂p_i, not of ∂L/∂p_i              (2) S2 §5.3, PathAdam as printed
    Δp_i = -lr s_i m̂_i / (√v̂_i + ε), moments of s_i ∂L/∂p_i            (3) PathAdam(invariant=True), s_i ∝ γ/√κ_i

Momentum and weight decay come after the division: p_i, its velocity and λ p_i are all multiplied by β_v/β_u under a
rescaling, so PathSGD stays invariant with them. (2) does not: Adam divides by the size of its gradients once more. (3),
which is ours, is invariant: √κ divides before the moments and after them; see ``scales``. Source: S2, §4.3, §5.3.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from holdfast.constraints.optimiser import WrappedOptimizer
from holdfast.errors import SettingError, StateDictError
from holdfast.optim.network import PathNetwork
from holdfast.optim.path_norm import Form, Outputs
from holdfast.optim.preconditioner import PathPreconditioner
from holdfast.optim.scales import PathScales

__all__ = ["PathAdam", "PathSGD"]


class _Path(WrappedOptimizer):
    """What PathSGD and PathAdam share: κ, and its division before the step of the optimiser inside."""

    inner: ClassVar[type[torch.optim.SGD] | type[torch.optim.Adam]]
    kind: Callable[..., PathPreconditioner] = PathPreconditioner

    def __init__(
        self,
        params: ParamsT,
        model: nn.Module | PathNetwork,
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
        self.preconditioner = self.kind(
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
        super().__init__(self.inner(params, lr, **settings))
        self.defaults["path"] = True
        self._after: OrderedDict[int, Callable[..., None]] = OrderedDict()  # hooks of ``register_step_post_hook``
        for group in self.param_groups:
            group.setdefault("path", True)
            self._check(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._check(self.param_groups[-1])

    def _check(self, group: dict[str, Any]) -> None:
        known = set(self.preconditioner.parameters)
        for parameter in group["params"] if group["path"] else ():
            if parameter not in known:
                raise SettingError(
                    f"{type(self).__name__} expects weights of the network, got a parameter of shape "
                    f'{tuple(parameter.shape)} that has no κ. Give it a group of its own with "path": False to step it '
                    "without κ, or describe it in a holdfast.optim.PathNetwork."
                )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update. ``closure`` reevaluates the model and returns the loss, as everywhere in ``torch.optim``."""
        groups = [group for group in self.param_groups if group["path"]]
        with contextlib.ExitStack() as divided:

            def evaluate() -> Any:  # what the optimiser inside calls first
                loss = None if closure is None else closure()
                divided.enter_context(self.preconditioner.around(groups))
                return loss

            loss = super().step(evaluate)
        for hook in self._after.values():
            hook(self, () if closure is None else (closure,), {})
        return loss

    def register_step_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:  # type: ignore[override]
        """As in ``torch.optim``; the optimiser inside would call it before weights and gradients are back."""
        handle = RemovableHandle(self._after)
        self._after[handle.id] = hook
        return handle

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_after": OrderedDict()}  # torch copies no hooks either

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "path" not in state_dict:
            raise StateDictError(
                f'{type(self).__name__} expects "path" in the state_dict, with κ and its age; got '
                f"{', '.join(map(str, state_dict))}. Load the state_dict of a {type(self).__name__}."
            )
        self.preconditioner.check_state_dict(state_dict["path"])  # before anything is changed
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "path"})
        self.preconditioner.load_state_dict(state_dict["path"])


class PathSGD(_Path):
    """Steepest descent in the geometry of the path norm, S2 (8): ``torch.optim.SGD`` on gradients divided by κ.

    Law: a step commutes with ``rescale_``, with or without κ⁽²⁾, momentum and weight decay (S2, Theorem 2), while no κ
    is at the floor. Gradients are the same after a step as before it.

    Args:
        params: parameters or groups, as in ``torch.optim``. In a group with ``"path": False`` nothing is divided.
        model: what ``path_network`` can read, or a ``PathNetwork``.
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

    inner = torch.optim.SGD


class PathAdam(_Path):
    """Adam on gradients divided by κ, S2 §5.3, the optimiser of S2's large networks; or, with ``invariant``, ours.

    As printed, Adam divides by the size of the gradients it gets. So only changes of κ over time have an effect, and
    steps are not invariant under ``rescale_``. With ``invariant=True`` the moments are those of the gradient in units
    of the path norm, s ⊙ ∂L/∂p with s = a γ/√(n κ), and a step is -lr s ⊙ m̂/(√v̂ + ε): see ``holdfast.optim.scales``.

    Law: with ``invariant=True`` any number of steps commutes with ``rescale_``, with weight decay too.

    Args:
        params: parameters or groups, as in ``torch.optim``. In a group with ``"path": False`` nothing is divided.
        model: what ``path_network`` can read, or a ``PathNetwork``.
        lr: as for Adam; with ``invariant``, the part of the path norm by which a tensor moves per step: 0.006 to 0.03.
        invariant: whether steps are (3) instead of (2). Use a schedule with a warm-up that ends at zero.
        recurrent: with ``invariant``, the share a of recurrent weights in a step: a number; "measured", so that the
            first step of each layer's U has the effect of that of its input weights, at most 1; or None for
            min(1, 3/√T), which is for a start at U = I.
        **settings: those of ``torch.optim.Adam``: betas, eps, weight_decay, amsgrad, ... and those of
            ``PathPreconditioner``: steps, outputs, second, form, floor, every; not with ``invariant``: match_sgd,
            relative. With ``invariant``, weight_decay λ multiplies weights by 1 - lr λ.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(2, 8, nonlinearity="relu")
        >>> optimiser = PathAdam(rnn.parameters(), rnn, lr=1e-2, steps=5, outputs="every", invariant=True)
        >>> rnn(torch.randn(5, 3, 2))[0].sum().backward()
        >>> optimiser.step()

    References:
        Neyshabur, Wu, Salakhutdinov & Srebro (2016), Path-normalized optimization of recurrent neural networks.
        Kingma & Ba (2015), Adam: A method for stochastic optimization.
    """

    inner = torch.optim.Adam

    def __init__(
        self,
        params: ParamsT,
        model: nn.Module | PathNetwork,
        lr: float | Tensor = 1e-3,
        *,
        invariant: bool = False,
        recurrent: float | Literal["measured"] | None = None,
        **settings: Any,
    ):
        if invariant:
            self.kind = functools.partial(PathScales, recurrent=recurrent)
        elif recurrent is not None:
            raise SettingError(f"PathAdam reads recurrent={recurrent!r} with invariant=True alone: set both or none.")
        super().__init__(params, model, lr, **settings)
        for group in self.param_groups if invariant else ():
            chosen = any(group[name] for name in ("foreach", "differentiable", "capturable")) or group["fused"] is False
            if not chosen and all(p.device.type == "cpu" for p in group["params"]):
                group["fused"] = True  # (3) in one pass over the weights
