"""A model as a program of PyTorch: ``torch.export``, with the scan as one operator or as PyTorch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.layers import Recurrent

__all__ = ["program"]


def program(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    decompose: bool = False,
) -> torch.export.ExportedProgram:
    """``torch.export.export`` of a model with layers of Holdfast.

    Law: the program computes what the model computes, to rounding.

    Args:
        model: any module. It is not changed.
        args, kwargs: example inputs, as the model is called.
        dynamic_shapes: as in ``torch.export.export``: which sizes may differ later.
        decompose: False: a scan is one operator, ``holdfast::scan``, for any number of steps and samples; where the
            program runs, ``import holdfast.engine`` comes first. True: PyTorch's own operators alone, for programs that
            run without Holdfast. They are written out step by step, so that time is as long as in ``args``.

    Example:
        >>> from holdfast import RNN
        >>> layer, xs = RNN(3, 5).eval(), torch.randn(4, 2, 3)
        >>> exported = program(layer, (xs,), decompose=True)
        >>> torch.testing.assert_close(exported.module()(xs)[0], layer(xs)[0])
        >>> "holdfast.scan" in str(exported.graph), "holdfast.scan" in str(program(layer, (xs,)).graph)
        (False, True)
    """
    layers = [module for module in model.modules() if isinstance(module, Recurrent)] if decompose else []
    before = [layer.backend for layer in layers]
    try:
        for layer in layers:
            layer.backend = "reference"
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    finally:
        for layer, backend in zip(layers, before, strict=True):
            layer.backend = backend
