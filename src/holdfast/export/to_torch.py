"""A network as a program of ``torch.export``: one file that PyTorch loads and runs, with dynamic time and batch."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.inference import trace_for_all
from holdfast.errors import HoldfastError, UnsupportedError
from holdfast.export.module import NetworkModule, unlike
from holdfast.export.network import Network, check_cell, metadata, network_of
from holdfast.export.report import Report, check_new, write_new

__all__ = ["torch_program"]

ABOUT = "holdfast.json"  # in the file: what ``torch.export.load`` returns in ``extra_files``


def torch_program(model: Any, path: str | Path, *, decompose: bool = False, force: bool = False) -> Report:
    """Write ``model`` as a program that ``torch.export.load`` reads.

    The program takes x, lengths and a dictionary of states, and returns a dictionary. The names in both are those of
    the ONNX file: docs/usage/deploy.md. All inputs must be given.

    Law: the program's answers are those of the model in evaluation mode, for any batch size, number of steps, lengths
    and initial states.

    Args:
        model: as in ``network_of``.
        path: of the file, ``.pt2``.
        decompose: PyTorch's own operators alone, so that the program runs without Holdfast. Else the loop over time is
            ``holdfast.scan``, which is faster and needs ``import holdfast`` before the program is loaded.
        force: overwrite a file that exists.

    Raises:
        UnsupportedError: PyTorch cannot trace the model, or its step depends on the batch size.

    Example:
        >>> import holdfast, tempfile
        >>> layer, path = holdfast.GRU(3, 8), Path(tempfile.mkdtemp()) / "gru.pt2"
        >>> _ = torch_program(layer, path, decompose=True)
        >>> program = torch.export.load(path).module()
        >>> x, state = torch.randn(20, 2, 3), {"h_0": torch.zeros(1, 2, 8)}
        >>> found = program(x, torch.tensor([20, 20]), state)
        >>> torch.allclose(found["output"], layer(x)[0], atol=1e-6)
        True
    """
    path, network = Path(path), network_of(model)
    check_new([path], force=force)  # before the work
    for row in network.rows:
        check_cell(row.cell)
    try:
        for row in network.rows:
            trace_for_all(row.cell, tuple(row.cell.weights()))  # a program is not traced again at another batch size
        return _written(network, path, decompose, force)
    except (Unsupported, RuntimeError, TypeError, ValueError, AssertionError) as error:
        if isinstance(error, HoldfastError):
            raise
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedError(
            f"torch.export cannot write {network.provenance.cells}: {reason.rstrip('.')}."
        ) from error


def _written(network: Network, path: Path, decompose: bool, force: bool) -> Report:
    module = NetworkModule(network, decompose=decompose)
    time, batch = torch.export.Dim("time", min=1), torch.export.Dim("batch", min=1)
    first, second = (batch, time) if network.batch_first else (time, batch)
    count, steps = unlike(module, 7), unlike(module, 19)
    shape = (count, steps) if network.batch_first else (steps, count)
    tokens = network.embedding is not None
    x = (
        torch.zeros(shape, dtype=torch.int64)
        if tokens
        else torch.zeros(*shape, network.input_size, dtype=torch.float32)
    )
    state = module.starts(count)
    given = x, torch.full((count,), steps), state
    dynamic: Any = {0: first, 1: second}, {0: batch}, {name: {1: batch} for name in state}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its own
        program = torch.export.export(module, given, dynamic_shapes=dynamic, strict=False)
        buffer = io.BytesIO()
        about = metadata(network) | {"decomposed": str(decompose)}
        torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})
    paths = write_new({path: buffer.getvalue()}, force=force)
    shown = [f"{path}: {len(buffer.getvalue()):,} bytes, torch.export of PyTorch {torch.__version__}."]
    shown.append(f"Inputs: x, lengths, {{{', '.join(state)}}}. Outputs: {', '.join(module(*given))}.")
    needs = "It runs without Holdfast." if decompose else "Import holdfast before you load it."
    return Report(paths, [*shown, needs])
