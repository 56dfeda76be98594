"""Packed weights serve again only while the weights are the same to the last bit, however they were changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.engine.targets.cpu import call
from holdfast.engine.targets.cpu import kept as kept_file
from holdfast.engine.targets.cpu.kept import Kept


def _swapped(weight: nn.Parameter) -> None:
    """Other memory with the same numbers; then the old memory changes."""
    old = weight.data
    weight.data = old.clone()
    old.zero_()


def _turned(weight: nn.Parameter) -> None:
    weight.data = weight.data.mT.contiguous().mT  # the same numbers in another order of memory


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda w: w.data.add_(0.1),
    "one bit": lambda w: w.data[-1:, -1:].view(torch.int64).bitwise_xor_(1 << 51),
    "the sign of a zero": lambda w: w.data[:1, :1].mul_(0.0).neg_(),
    "through numpy": lambda w: w.detach().numpy().__iadd__(0.1),
    "other memory": _swapped,
    "another order": _turned,
    "another tensor": lambda w: setattr(w, "data", torch.randn_like(w)),
    "not a number": lambda w: w.data[:1, :1].fill_(float("nan")),
}


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("layer", ["RNN", "LSTM", "SGORNN"])
def test_a_changed_weight_is_seen(layer: str, batch: int) -> None:
    net, xs = getattr(hf, layer)(3, 16), torch.randn(5, batch, 3)
    cell = net.cells[0]
    start = copy.deepcopy(cell.state_dict())
    for name, change in CHANGES.items():
        for weight in (w for w in cell.parameters() if w.dim() == 2):
            cell.load_state_dict(start)
            with torch.no_grad():
                net(xs)
                change(weight)
                plain, _ = hf.scan(cell, xs, backend="reference")
                torch.testing.assert_close(net(xs)[0], plain, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


def test_it_is_made_once_while_nothing_changes() -> None:
    net, xs = hf.GRU(3, 16), torch.randn(5, 1, 3)
    with torch.no_grad():
        net(xs)
        plan = next(iter(net.cells[0]._fused_plans.known.values()))  # type: ignore[union-attr]
        (first,) = plan.kept.values()
        net(torch.randn(7, 1, 3))
        assert plan.kept == {next(iter(plan.kept)): first}
        net.cells[0].weight_hh.data.add_(0.1)  # type: ignore[union-attr]
        net(xs)
        (second,) = plan.kept.values()
        assert second is not first


def test_few_layouts_are_kept() -> None:
    net = hf.RNN(3, 16)
    with torch.no_grad():
        for batch in (1, 2, 3, 5, 8, 16, 40, 1):
            xs = torch.randn(4, batch, 3)
            torch.testing.assert_close(net(xs)[0], hf.scan(net.cells[0], xs, backend="reference")[0])
    plans = list(net.cells[0]._fused_plans.known.values())  # type: ignore[union-attr]
    assert 1 <= max(len(plan.kept) for plan in plans) <= call.SHAPES


def test_what_is_large_or_has_gaps_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(tensors: list[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        return tuple(tensors), {}

    whole = torch.randn(4, 6, dtype=torch.float32)
    assert Kept.of([whole, whole.mT, torch.tensor(1.0)], make) is not None
    assert Kept.of([whole[:, ::2]], make) is None
    assert Kept.of([whole[:1].expand(4, 6)], make) is None
    monkeypatch.setattr(kept_file, "MOST", 95)
    assert Kept.of([whole], make) is None


def test_its_copies_are_its_own() -> None:
    weight = torch.randn(4, 6, dtype=torch.float32)
    kept = Kept.of([weight], lambda tensors: (tuple(tensors), {}))
    assert kept is not None
    assert kept.holds_for([weight.clone()])
    assert not kept.holds_for([weight.mT])
    assert not kept.holds_for([weight.double()])
    before = kept.values[0].clone()
    weight.zero_()
    assert torch.equal(kept.values[0], before)
    assert not kept.holds_for([weight])
