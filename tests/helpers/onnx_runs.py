"""Models in ONNX Runtime, beside the same models here."""

import numpy as np
import onnxruntime
import torch

from holdfast.export import network_of, onnx_model


def session(made):
    """A session for a ``ModelProto``, or for the bytes or the path of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns about each input that has a default
    options.intra_op_num_threads = 1
    made = made.SerializeToString() if hasattr(made, "SerializeToString") else made
    return onnxruntime.InferenceSession(made, options)


def exported(model):
    return session(onnx_model(network_of(model)))


def answers(runtime, x, lengths=None, state=None):
    """What the runtime gives, by name, as float64: x and lengths as tensors, the state as the layer takes it."""
    feed = {"x": x.numpy() if x.dtype == torch.int64 else x.float().numpy()}
    if lengths is not None:
        feed["lengths"] = lengths.numpy()
    if state is not None:
        names = [given.name for given in runtime.get_overridable_initializers() if given.name.endswith("_0")]
        entries = (state,) if isinstance(state, torch.Tensor) else state
        feed |= {name: entry.float().numpy() for name, entry in zip(names, entries, strict=True)}
    pairs = zip(runtime.get_outputs(), runtime.run(None, feed), strict=True)
    return {given.name: torch.from_numpy(np.asarray(one, np.float64)) for given, one in pairs}


def assert_close(found, expected, tolerance=1e-5):
    """Equal to the promise: 1e-5, relative to numbers above 1."""
    torch.testing.assert_close(found, expected.detach().double(), rtol=tolerance, atol=tolerance)
