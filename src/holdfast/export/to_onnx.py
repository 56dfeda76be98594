"""A network as an ONNX model: (1) to (5) of network.py, with dynamic time and batch.

    inputs     x, and, where they are given: lengths, h_0 (c_0, ...)
    outputs    output, and: probabilities for classes, h_n (c_n, ...)

``lengths`` and the states are inputs with a default: all steps count, and the start is that of the model. So a whole
sequence needs x alone, and a stream gives h_n back as h_0. ONNX Runtime lists such inputs as overridable initializers,
and warns about each when it opens the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import MissingExtraError, UnsupportedError
from holdfast.export.network import Network, check_cell, metadata, network_of
from holdfast.export.report import Report, check_new, write_new

__all__ = ["IR_VERSION", "OPSET", "onnx", "onnx_model"]

OPSET = 18  # of ONNX 1.13 (2022), which ONNX Runtime reads from 1.14 on
IR_VERSION = 8
_LARGEST = 2**31 - 1  # bytes of a protocol buffer


def onnx(
    model: Any, path: str | Path, *, name: str | None = None, optional_inputs: bool = True, force: bool = False
) -> Report:
    """Write ``model`` to an ONNX file, which no Holdfast and no PyTorch are needed to run.

    Law: ONNX Runtime's answers are those of the model in evaluation mode, to rounding of float32, for any batch size,
    number of steps, lengths and initial states.

    RNN, LSTM and GRU are ONNX's operators of this name; every other cell, one of your own included, is a ``Scan`` whose
    body is its step. Column names, class names and what made the file are in its metadata.

    Args:
        model: as in ``network_of``: a layer, a ``SequenceModel``, a run or its folder.
        path: of the file.
        name: of the graph; default the run's, or that of the file.
        optional_inputs: whether ``lengths`` and the states may be left out. If not, all inputs must be given, as
            runtimes without default values need it; ``h_0`` and ``lengths`` of a batch of 1 then serve all samples.
        force: overwrite a file that exists.

    Raises:
        UnsupportedError: the model, or an operator in its step, has no form in ONNX; the message names it.

    Example:
        >>> import holdfast, onnxruntime, tempfile, torch
        >>> layer, path = holdfast.SGORNN(3, 8), Path(tempfile.mkdtemp()) / "sgornn.onnx"
        >>> _ = onnx(layer, path)
        >>> session = onnxruntime.InferenceSession(path)
        >>> x = torch.randn(20, 2, 3)
        >>> output, h_n = session.run(None, {"x": x.numpy()})
        >>> torch.allclose(torch.from_numpy(output), layer(x)[0], atol=1e-5)
        True
    """
    path, network = Path(path), network_of(model)
    check_new([path], force=force)  # before the work
    made = onnx_model(network, name or network.provenance.run or path.stem, optional_inputs=optional_inputs)
    if (size := made.ByteSize()) > _LARGEST:
        raise UnsupportedError(f"An ONNX file holds at most 2 GiB, got {size:,} bytes; use a smaller embedding.")
    paths = write_new({path: made.SerializeToString(deterministic=True)}, force=force)
    shown = [f"{path}: {size:,} bytes, ONNX opset {OPSET}."]
    for word, values in (("Inputs", made.graph.input), ("Outputs", made.graph.output)):
        shown.append(f"{word}: {', '.join(map(_described, values))}.")
    if optional_inputs:
        shown.append(f"Inputs that may be left out: {', '.join(value.name for value in made.graph.input[1:])}.")
    return Report(paths, shown)


def onnx_model(network: Network, name: str = "model", *, optional_inputs: bool = True) -> Any:
    """The ``onnx.ModelProto`` of a network, checked by ``onnx.checker``.

    Example:
        >>> import holdfast
        >>> made = onnx_model(network_of(holdfast.LSTM(3, 5)))
        >>> [value.name for value in made.graph.input], [node.op_type for node in made.graph.node].count("LSTM")
        (['x', 'lengths', 'h_0', 'c_0'], 1)
    """
    try:
        import onnx as library
    except ImportError as error:
        raise MissingExtraError("Writing ONNX needs onnx: pip install 'holdfast[export]'.") from error
    from holdfast.export.onnx_graph import write_network

    for row in network.rows:
        check_cell(row.cell)
    graph = write_network(network, name, optional_inputs)
    made = library.helper.make_model(
        graph,
        producer_name="holdfast",
        producer_version=network.provenance.version,
        doc_string=network.provenance.sentence,
        opset_imports=[library.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    library.helper.set_model_props(made, metadata(network))
    library.checker.check_model(made, full_check=True)
    return made


def _described(value: Any) -> str:
    dims = ", ".join(dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim)
    return f"{value.name} ({dims})"
