"""How an answer depends on each input of one sequence: the row of the affine map that the network is there.

    z_c(x + d) = z_c(x) + ⟨A_c, d⟩ + o(‖d‖)                                     (1)

For piecewise affine cells A_c is the template of ``spline.templates``, and (1) holds without o in a whole region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.diagnose.find import Found
from holdfast.diagnose.pictures import binned
from holdfast.diagnose.record import Outside

__all__ = ["templates_of"]

_OUTPUTS, _FEATURES = 6, 16


def templates_of(found: Found, call: Callable[[], Any], outside: Outside, shown: list[int]) -> dict[str, Any]:
    """A_c of (1) with respect to what the recurrent layer gets, for some sequences and at most six answers.

    Args:
        found: the layer.
        call: runs the model on all sequences.
        outside: of a first run, for shapes.
        shown: which sequences.
    """
    steps, batch = outside.xs.shape[:2]
    answers = outside.answers
    layout = _layout(tuple(answers.shape), steps, batch)
    if layout is None:
        return {"none": f"The answers have shape {tuple(answers.shape)}; templates need one row per sequence."}
    inputs: list[Tensor] = []

    def before(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        first = given[0] if given else named["input"]
        if not isinstance(first, Tensor) or first.dim() != 3:
            return None
        inputs.append(first.detach().requires_grad_())
        return ((inputs[-1], *given[1:]), named) if given else ((), {**named, "input": inputs[-1]})

    hook = found.module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        with torch.enable_grad():
            z = call()
            z = z[0] if isinstance(z, tuple | list) else z
            if len(inputs) != 1:
                return {"none": "Templates need sequences of one length and one call of the layer."}
            z = z[-1] if layout == "time first" else z[:, -1] if layout == "batch first" else z
            count = min(z.shape[1], _OUTPUTS)
            slopes = [
                torch.autograd.grad(z[shown, c].sum(), inputs[0], retain_graph=True)[0] for c in range(count)
            ]  # sequences do not meet, so one sum serves all of them
    except RuntimeError as error:
        return {"none": f"The answers are not differentiable in the inputs of the layer: {error}"}
    finally:
        hook.remove()
    xs = inputs[0].detach()
    if found.layer.batch_first:
        xs, slopes = xs.transpose(0, 1), [slope.transpose(0, 1) for slope in slopes]
    features = min(xs.shape[-1], _FEATURES)
    return {
        "features": features,
        "samples": [
            {
                "answers": z[b, :count].detach().tolist(),
                "slopes": [binned(slope[:, b, :features].double()).mT for slope in slopes],
                "input": binned(xs[:, b, :features].double()).mT,
            }
            for b in shown
        ],
        "steps": len(xs),
        "exact": _piecewise(found),
    }


def _layout(shape: tuple[int, ...], steps: int, batch: int) -> str | None:
    if len(shape) == 2 and shape[0] == batch:
        return "last"
    if len(shape) == 3 and shape[:2] == (steps, batch):
        return "time first"
    return "batch first" if len(shape) == 3 and shape[:2] == (batch, steps) else None


def _piecewise(found: Found) -> bool:
    from holdfast.cells import step_form
    from holdfast.cells.nonlinearity import regions_of
    from holdfast.errors import HoldfastError

    try:
        return all((form := step_form(cell)) is not None and bool(regions_of(form.phi)) for cell in found.layer.cells)
    except HoldfastError:
        return False
