"""TreeLSTM: the recursion of the paper, node by node, and an LSTM where the tree is a chain."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holdfast import LSTMCell, TreeLSTM, scan
from holdfast.errors import DTypeError, SettingError, ShapeError


def recursive(layer, xs, children, node):
    """H and c of one node from its own children, called down to the leaves: equations (1) to (7) one gate at a time."""
    n, x = layer.hidden_size, xs[node]
    kids = [recursive(layer, xs, children, k) if k >= 0 else None for k in children[node].tolist()]
    zero = torch.zeros(n)
    hs, cs = [it[0] if it else zero for it in kids], [it[1] if it else zero for it in kids]
    W, b = layer.weight_ih.unflatten(0, (4, n)), layer.bias.unflatten(0, (4, n))  # i, f, u, o
    if layer.arity is None:
        U, total = layer.weight_hh.unflatten(0, (4, n)), sum(hs, zero)
        before = {gate: U[gate] @ total for gate in (0, 2, 3)}
        forget = [U[1] @ h for h in hs]
    else:
        N = layer.arity
        U = layer.weight_hh.unflatten(0, (3 + N, n)).unflatten(2, (N, n))  # (gate, n, child, n)
        before = {gate: sum(U[row, :, k] @ hs[k] for k in range(N)) for gate, row in ((0, 0), (2, 1 + N), (3, 2 + N))}
        forget = [sum(U[1 + k, :, other] @ hs[other] for other in range(N)) for k in range(N)]
    i, u, o = (fn(W[g] @ x + before[g] + b[g]) for g, fn in ((0, torch.sigmoid), (2, torch.tanh), (3, torch.sigmoid)))
    c = i * u + sum((torch.sigmoid(W[1] @ x + it + b[1]) * c for it, c in zip(forget, cs, strict=True)), zero)
    return o * torch.tanh(c), c


def random_forest(nodes, arity, seed):
    """Every node takes some of the roots so far as its children; what is left are several trees of any shape."""
    generator = torch.Generator().manual_seed(seed)
    roots, children = [], torch.full((nodes, arity), -1)
    for node in range(nodes):
        leaf = torch.rand((), generator=generator) < 0.6
        count = 0 if leaf else int(torch.randint(0, min(arity, len(roots)) + 1, (), generator=generator))
        places = torch.randperm(arity, generator=generator)[:count]
        for place in places.tolist():
            children[node, place] = roots.pop(int(torch.randint(0, len(roots), (), generator=generator)))
        roots.append(node)
    return children, roots


@pytest.mark.parametrize("arity", [None, 2, 3])
def test_levels_equal_the_recursion_in_values_and_gradients(arity):
    """Forests of several trees, of any shape, with missing children in any place and inputs at every node."""
    layer = TreeLSTM(3, 4, arity=arity)
    several = 0
    for seed in range(3):
        table, roots = random_forest(14, arity or 3, seed)
        xs, several = torch.randn(14, 3, requires_grad=True), several + (len(roots) > 1)
        fast = torch.stack(layer(xs, table), dim=1)[roots]  # (trees, h or c, hidden)
        slow = torch.stack([torch.stack(recursive(layer, xs, table, root)) for root in roots])
        torch.testing.assert_close(fast, slow)
        leaves, cotangent = (xs, *layer.parameters()), torch.randn_like(fast)
        grads = (torch.autograd.grad((it * cotangent).sum(), leaves) for it in (fast, slow))
        torch.testing.assert_close(*grads)
    assert several


@pytest.mark.parametrize("arity", [None, 1, 2])
def test_on_a_chain_it_is_an_lstm(arity):
    """Each node has the one before as its child, in the first place: h_1 .. h_T of an LSTM with the same weights."""
    layer, cell, xs = TreeLSTM(3, 5, arity=arity), LSTMCell(3, 5), torch.randn(9, 3)
    chain = torch.full((9, arity or 1), -1)
    chain[:, 0] = torch.arange(-1, 8)
    U = layer.weight_hh
    if arity == 2:  # of the first child: i, f_1, u, o
        U = U.unflatten(0, (5, 5))[[0, 1, 3, 4], :, :5].flatten(0, 1)
    with torch.no_grad():
        cell.weight_ih.copy_(layer.weight_ih), cell.bias.copy_(layer.bias), cell.weight_hh.copy_(U)
    hs, (_, last_c) = scan(cell, xs[:, None])
    h, c = layer(xs, chain)
    torch.testing.assert_close(h, hs[:, 0])
    torch.testing.assert_close(c[-1], last_c[0])


def test_the_sum_takes_children_in_any_order_and_binary_does_not():
    xs, swapped = torch.randn(3, 2), torch.tensor([[-1, -1], [-1, -1], [1, 0]])
    straight = torch.tensor([[-1, -1], [-1, -1], [0, 1]])
    child_sum, binary = TreeLSTM(2, 4), TreeLSTM(2, 4, arity=2)
    torch.testing.assert_close(child_sum(xs, straight)[0], child_sum(xs, swapped)[0])
    assert not torch.allclose(binary(xs, straight)[0], binary(xs, swapped)[0])


class Products(TorchFunctionMode):
    """Counts the matrix products."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__ in ("matmul", "__matmul__", "mm", "addmm", "bmm", "einsum", "linear")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("arity", "each"), [(None, 2), (2, 1), (3, 1)])
def test_products_are_counted_in_heights_and_not_in_nodes(arity, each):
    """Forests of 3 to 40 nodes: W x once, and per height one product, or two where children share a forget gate's U."""
    for nodes in (3, 14, 40):
        table, _ = random_forest(nodes, arity or 3, seed=nodes)
        layer, heights = TreeLSTM(3, 4, arity=arity), [0] * nodes
        for node, row in enumerate(table.tolist()):
            heights[node] = max((heights[child] + 1 for child in row if child >= 0), default=0)
        with Products() as products:
            layer(torch.randn(nodes, 3), table)
        assert products.count == 1 + each * (max(heights) + 1)


def test_all_nodes_of_a_height_are_computed_together(monkeypatch):
    """64 balanced trees of 8 leaves have four heights: four calls for 960 nodes."""
    layer, calls, own = TreeLSTM(2, 3, arity=2), [], TreeLSTM._node
    monkeypatch.setattr(TreeLSTM, "_node", lambda self, *args: calls.append(len(args[0])) or own(self, *args))
    rows = []
    for tree in range(64):
        first = 15 * tree
        rows += [[-1, -1]] * 8 + [[first + 2 * k, first + 2 * k + 1] for k in range(7)]
    layer(torch.randn(960, 2), torch.tensor(rows))
    assert calls == [512, 256, 128, 64]


@pytest.mark.parametrize(
    ("n", "d", "child_sum", "binary"), [(300, 150, 270_600, 405_600), (300, 168, 315_168, 484_512), (3, 5, 180, 330)]
)
def test_parameters_are_those_of_the_equations(n, d, child_sum, binary):
    """W and b of i, f, u, o; U of each in child-sum, as in an LSTM; N-ary: N each for i, u, o and N² for f."""
    count = {kind: sum(w.numel() for w in TreeLSTM(n, d, arity=kind).parameters()) for kind in (None, 1, 2, 3)}
    assert count[None] == count[1] == 4 * (n * d + d * d + d) == sum(w.numel() for w in LSTMCell(n, d).parameters())
    for N in (2, 3):
        assert count[N] == 4 * (n * d + d) + 3 * N * d * d + N * N * d * d
    assert (count[None], count[2]) == (child_sum, binary)


def test_no_nodes_are_no_states():
    h, c = TreeLSTM(2, 3)(torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.int64))
    assert h.shape == c.shape == (0, 3)


def test_bad_input_is_named():
    layer, leaf = TreeLSTM(2, 3, arity=2), torch.tensor([[-1, -1]])
    for make, error, words in (
        (lambda: layer(torch.zeros(1, 3), leaf), ShapeError, r"\(nodes, 2\), got \(1, 3\)"),
        (lambda: layer(torch.zeros(1, 2), leaf[:, :1]), ShapeError, r"\(1, 2\), got \(1, 1\)"),
        (lambda: layer(torch.zeros(1, 2, dtype=torch.float32), leaf), DTypeError, "float64, but xs is torch.float32"),
        (lambda: layer(torch.zeros(1, 2), leaf.int()), DTypeError, "int64, got torch.int32"),
        (
            lambda: layer(torch.zeros(1, 2), torch.tensor([[0, -1]])),
            SettingError,
            r"children of node 0 .* got \[0, -1\]",
        ),
        (lambda: layer(torch.zeros(1, 2), torch.tensor([[-2, -1]])), SettingError, r"got \[-2, -1\]"),
        (lambda: TreeLSTM(2, 3, arity=0), SettingError, "arity"),
    ):
        with pytest.raises(error, match=words):
            make()
