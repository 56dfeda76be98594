"""Small random networks, their graphs unrolled edge by edge, and sums over all paths: slow, and by the definition."""

import itertools
import math
from collections import Counter, defaultdict

import torch
from torch import nn

import holdfast


class Model(nn.Module):
    """The shape that training uses: embedding, rnn, readout, last_only."""

    def __init__(self, rnn, outputs=2, *, words=0, last_only=True, bias=True):
        super().__init__()
        self.embedding = nn.Embedding(words, rnn.input_size) if words else None
        self.rnn, self.last_only = rnn, last_only
        self.readout = nn.Linear(rnn.hidden_size, outputs, bias=bias)

    def forward(self, xs):
        xs = xs if self.embedding is None else self.embedding(xs)
        output, h_n = self.rnn(xs)
        return self.readout(h_n[-1] if self.last_only else output)


def random_model(inputs, hidden, layers, *, kind="holdfast", words=0, bias=True, learned=False, last_only=True):
    if kind == "torch":
        rnn = nn.RNN(inputs, hidden, layers, nonlinearity="relu", bias=bias)
    else:
        start = "learned" if learned else "zeros"
        rnn = holdfast.RNN(
            inputs, hidden, layers, nonlinearity="relu", bias=bias, initial_state=start, backend="reference"
        )  # nothing to compile: sizes come and go
    model = Model(rnn, words=words, bias=bias, last_only=last_only)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def unrolled(model, steps):
    """Edges (tail, head, parameter, index) of the network in time, its sources and its output nodes."""
    edges, rnn, hidden = [], model.rnn, model.rnn.hidden_size
    sources, one = {"one"}, "one"

    def connect(weight, tails, heads):
        edges.extend((u, v, weight, (j, k)) for j, v in enumerate(heads) for k, u in enumerate(tails))

    def bias(weight, heads):
        edges.extend((one, v, weight, (j,)) for j, v in enumerate(heads))

    outputs = []
    for t in range(1, steps + 1):
        below = [("x", t, k) for k in range(rnn.input_size)]
        if model.embedding is None:
            sources.update(below)
        else:
            words = [("word", t, k) for k in range(model.embedding.num_embeddings)]
            sources.update(words)
            edges.extend(
                (u, v, model.embedding.weight, (i, j)) for i, u in enumerate(words) for j, v in enumerate(below)
            )
        for layer in range(rnn.num_layers):
            if isinstance(rnn, nn.RNN):
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                ih, hh, *biases = (getattr(rnn, f"{name}_l{layer}", None) for name in names)
            else:
                cell = rnn.cells[layer]
                ih, hh, biases = cell.weight_ih, cell.weight_hh, [cell.bias]
            units = [("h", layer, t, k) for k in range(hidden)]
            connect(ih, below, units)
            for b in biases:
                if b is not None:
                    bias(b, units)
            before = [("h", layer, t - 1, k) for k in range(hidden)]
            if t > 1:
                connect(hh, before, units)
            elif not isinstance(rnn, nn.RNN) and rnn.initial_state.kind == "learned":
                values = rnn.initial_state.values[0]
                edges.extend((one, v, values, (layer, k)) for k, v in enumerate(before))
                connect(hh, before, units)
            below = units
        if t == steps or not model.last_only:
            read = [("y", t, k) for k in range(model.readout.out_features)]
            connect(model.readout.weight, below, read)
            if model.readout.bias is not None:
                bias(model.readout.bias, read)
            outputs += read
    return edges, sources, outputs


def over_all_paths(model, steps):
    """γ², κ⁽¹⁾ and κ⁽²⁾ by (2), (9) and (10): one path after the other. Also how many paths there are."""
    edges, sources, outputs = unrolled(model, steps)
    parameters, leaving = list(model.parameters()), defaultdict(list)
    square = {
        (n, index): value**2
        for n, p in enumerate(parameters)
        for index, value in zip(itertools.product(*map(range, p.shape)), p.flatten().tolist(), strict=True)
    }
    place = {id(p): n for n, p in enumerate(parameters)}
    for tail, head, p, index in edges:
        leaving[tail].append((head, (place[id(p)], index)))
    first, second, outputs, products = Counter(), Counter(), set(outputs), []

    def walk(node, path, product):
        if node in outputs:
            products.append(product)
            for weight, n in Counter(path).items():
                first[weight] += n * product / square[weight]  # each of n edges left out
                second[weight] += square[weight] * n * (n - 1) * product / square[weight] ** 2  # ordered pairs left out
            return
        for head, weight in leaving[node]:
            walk(head, (*path, weight), product * square[weight])

    for source in sources:
        walk(source, (), 1.0)
    kappas = []
    for sums in (first, second):
        kappas.append({p: torch.zeros(p.shape, dtype=torch.float64) for p in parameters})
        for (n, index), value in sums.items():
            kappas[-1][parameters[n]][index] = value
    return math.fsum(products), *kappas, len(products)
