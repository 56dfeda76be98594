"""From modules to paths: ``path_network`` reads a model, or raises an error that says why it has no path norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast.cells import GRUCell, LSTMCell, step_form
from holdfast.cells.nonlinearity import is_homogeneous, name_of
from holdfast.errors import SettingError
from holdfast.layers import Recurrent
from holdfast.optim.network import PathNetwork, Recurrence
from holdfast.optim.pieces import Convolution, Dense, Fixed, Lookup, Piece

__all__ = ["path_network", "pieces_of", "recurrences_of"]

OTHER_NONLINEARITIES = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.Softplus, nn.Hardtanh, nn.ReLU6)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: nn.functional.conv1d,
    nn.Conv2d: nn.functional.conv2d,
    nn.Conv3d: nn.functional.conv3d,
}
POOLINGS = {(nn.MaxPool1d, nn.AvgPool1d): 1, (nn.MaxPool2d, nn.AvgPool2d): 2, (nn.MaxPool3d, nn.AvgPool3d): 3}
KNOWN = "Linear, Embedding, Conv, MaxPool, AvgPool, Flatten, ReLU, LeakyReLU, Dropout and Sequential of these"
FLAG = (
    "Path norms are for ReLU networks: rescaling a unit keeps the function only if φ(αz) = αφ(z). "
    "path_network(model, any_nonlinearity=True) counts paths as if it were ReLU, without this guarantee."
)


def path_network(
    model: nn.Module | PathNetwork, *, input_shape: tuple[int, ...] | None = None, any_nonlinearity: bool = False
) -> PathNetwork:
    """Read a model as a ``PathNetwork``.

    Known are: ``nn.Sequential`` and other feed-forward modules, a recurrent layer by itself, and any module with the
    attributes ``rnn`` and ``readout``, and perhaps ``embedding`` and ``last_only``, where ``rnn`` is a ``holdfast.RNN``
    or ``torch.nn.RNN`` and the others are feed-forward (``None`` and ``nn.Identity`` are nothing). Dropout is
    ignored: the paths are those of the whole network.

    Args:
        model: the module; a ``PathNetwork`` is returned as it is.
        input_shape: of one sample, for convolutions: (channels, height, width).
        any_nonlinearity: count paths as if every nonlinearity were ReLU. An LSTM or GRU is then a recurrence with
            several edges side by side, one per gate. The theorems do not cover such a network.

    Example:
        >>> from holdfast import RNN
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding, self.rnn = nn.Embedding(50, 8), RNN(8, 16, num_layers=2, nonlinearity="relu")
        ...         self.readout, self.last_only = nn.Linear(16, 50), False
        >>> network = path_network(Model())
        >>> len(network.encoder), len(network.layers), len(network.decoder)
        (1, 2, 1)
    """
    if isinstance(model, PathNetwork):
        return model
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"path_network expects a module or a holdfast.optim.PathNetwork, got {type(model).__name__}."
        )
    if isinstance(model, nn.RNNBase | Recurrent):
        return PathNetwork(layers=recurrences_of(model, any_nonlinearity=any_nonlinearity))
    if isinstance(getattr(model, "rnn", None), nn.Module) and hasattr(model, "readout"):
        last_only = getattr(model, "last_only", None)
        return PathNetwork(
            layers=recurrences_of(model.rnn, any_nonlinearity=any_nonlinearity),  # type: ignore[arg-type]
            decoder=pieces_of(model.readout, any_nonlinearity=any_nonlinearity),  # type: ignore[arg-type]
            encoder=pieces_of(getattr(model, "embedding", None), any_nonlinearity=any_nonlinearity),
            last_only=None if last_only is None else bool(last_only),
            input_shape=input_shape,
        )
    return PathNetwork(decoder=pieces_of(model, any_nonlinearity=any_nonlinearity), input_shape=input_shape)


def recurrences_of(layer: nn.Module, *, any_nonlinearity: bool = False) -> tuple[Recurrence, ...]:
    """The layers of a ``holdfast.RNN`` or ``torch.nn.RNN`` with ReLU, as ``Recurrence``s.

    Example:
        >>> len(recurrences_of(nn.RNN(3, 4, num_layers=2, nonlinearity="relu")))
        2
    """
    name = type(layer).__name__
    if not isinstance(layer, nn.RNNBase | Recurrent):
        raise SettingError(f"recurrences_of expects a holdfast or torch.nn recurrent layer, got {name}.")
    if layer.bidirectional or getattr(layer, "proj_size", 0):
        raise SettingError(f"recurrences_of expects a {name} in one direction and without projection.")
    if parametrize.is_parametrized(layer):
        raise SettingError(_parametrized(name))
    if isinstance(layer, Recurrent):
        return tuple(_of_cell(layer, cell, row, any_nonlinearity) for row, cell in enumerate(layer.cells))
    if layer.mode != "RNN_RELU" and not any_nonlinearity:
        raise SettingError(f"recurrences_of got torch.nn.{name} of mode {layer.mode}. {FLAG}")
    kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    found = [[getattr(layer, f"{kind}_l{row}") for kind in kinds] for row in range(layer.num_layers)]
    return tuple(Recurrence(ih, hh, tuple(biases)) for ih, hh, *biases in found)


def _of_cell(layer: Recurrent, cell: Any, row: int, any_nonlinearity: bool) -> Recurrence:
    name, form = type(cell).__name__, step_form(cell)
    if parametrize.is_parametrized(cell):
        raise SettingError(_parametrized(name))
    if form is not None and form.weight_ho is not None:
        raise SettingError(f"recurrences_of expects a {name} whose output is its state; leave output_size out.")
    if not isinstance(cell, LSTMCell | GRUCell) and (form is None or not form.free):
        raise SettingError(
            f"recurrences_of does not know the paths through a {name}: gates and constrained matrices are not weights "
            "of edges. It knows RNNCell and LinearCell and, with any_nonlinearity=True, LSTMCell and GRUCell."
        )
    if not any_nonlinearity and (form is None or not is_homogeneous(form.phi)):
        what = "gates" if form is None else f"nonlinearity {name_of(form.phi)}"
        raise SettingError(f"recurrences_of got {name} with {what}. {FLAG}")
    kind = layer.initial_state.kind
    if kind not in ("zeros", "learned") and not any_nonlinearity:
        raise SettingError(
            "recurrences_of got a layer that starts at random: noise of one size is not rescaled with the units. Use "
            'initial_state="zeros" or "learned", or path_network(model, any_nonlinearity=True) to count it as zero.'
        )
    weights = cell if form is None else form
    biases = (weights.bias, getattr(cell, "bias_hn", None))
    return Recurrence(
        weights.weight_ih,
        weights.weight_hh,
        tuple(bias for bias in biases if bias is not None),
        layer.initial_state.values[0] if kind == "learned" else None,
        row,
    )


def pieces_of(module: nn.Module | None, *, any_nonlinearity: bool = False) -> tuple[Piece, ...]:
    """A feed-forward module as pieces: ``nn.Sequential`` of linear, convolutional, pooling and ReLU layers.

    Args:
        module: ``None`` and ``nn.Identity`` have no pieces.
        any_nonlinearity: whether other elementwise nonlinearities than ReLU count as if they were ReLU.

    Example:
        >>> [type(piece).__name__ for piece in pieces_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))]
        ['Dense', 'Dense']
    """
    name = type(module).__name__
    if module is None or isinstance(module, DROPOUTS) or is_homogeneous(module):
        return ()
    if isinstance(module, nn.Sequential):
        return tuple(piece for child in module for piece in pieces_of(child, any_nonlinearity=any_nonlinearity))
    if parametrize.is_parametrized(module):
        raise SettingError(_parametrized(name))
    if isinstance(module, nn.Linear):
        return (Dense(module.weight, module.bias),)
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise SettingError("pieces_of expects an Embedding without max_norm and scale_grad_by_freq.")
        return (Lookup(module.weight),)
    if isinstance(module, nn.Flatten):
        if (module.start_dim, module.end_dim) != (1, -1):
            raise SettingError("pieces_of expects a Flatten of everything but the batch: start_dim=1, end_dim=-1.")
        return (Fixed(torch.flatten),)
    for kind, convolve in CONVOLUTIONS.items():
        if isinstance(module, kind):
            return (_convolution(module, convolve),)
    for kinds, dims in POOLINGS.items():
        if isinstance(module, kinds):
            return (Fixed(_pooling(module, dims, average=isinstance(module, kinds[1]))),)
    if isinstance(module, OTHER_NONLINEARITIES):
        if any_nonlinearity:
            return ()
        raise SettingError(f"pieces_of got {name}. {FLAG}")
    raise SettingError(
        f"pieces_of does not know the paths through a {name}; it knows {KNOWN}. Describe a model of your own with "
        "holdfast.optim.PathNetwork."
    )


def _convolution(module: Any, convolve: Callable[..., Tensor]) -> Convolution:
    if module.padding_mode != "zeros":
        raise SettingError(f"pieces_of expects a convolution padded with zeros, got {module.padding_mode!r}.")
    settings = {name: getattr(module, name) for name in ("stride", "padding", "dilation", "groups")}
    return Convolution(module.weight, module.bias, convolve, settings)


def _pooling(module: Any, dims: int, average: bool) -> Callable[[Tensor], Tensor]:
    """A window's edges have weight 1 in max-pooling, where any of them may be the path, and 1/n in average pooling."""
    if module.ceil_mode or (average and not module.count_include_pad):
        raise SettingError("pieces_of expects pooling without ceil_mode, and with count_include_pad.")
    convolve = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[dims - 1]
    window = _tuple(module.kernel_size, dims)
    count = getattr(module, "divisor_override", None) or torch.Size(window).numel()
    squared = 1.0 / count**2 if average else 1.0
    names = ("stride", "padding") if average else ("stride", "padding", "dilation")
    settings = {name: _tuple(getattr(module, name), dims) for name in names}
    return functools.partial(_pool, convolve=convolve, window=window, squared=squared, settings=settings)


def _pool(
    x: Tensor, *, convolve: Callable[..., Tensor], window: tuple[int, ...], squared: float, settings: dict[str, Any]
) -> Tensor:
    kernel = torch.full((1, 1, *window), squared, dtype=x.dtype, device=x.device)
    return convolve(x[:, None], kernel, **settings)[:, 0]  # each channel as a sample of its own


def _tuple(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,) * dims


def _parametrized(name: str) -> str:
    return (
        f"{name} has a weight that is computed from other parameters; those are not weights of edges and have no κ. "
        "Remove the parametrization, or train the layer with another optimiser."
    )
