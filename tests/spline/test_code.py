"""Partition codes: the pattern of every sequence, packed; distances, regions, neighbours, frames."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.spline_models import INPUTS, build, models
from holdfast.errors import SettingError, ShapeError
from holdfast.spline import (
    PartitionCode,
    affine_piece,
    code,
    count_regions,
    distance,
    farthest,
    hamming,
    knn_classify,
    nearest,
    neighbours,
    partition_code,
    regions_through_time,
    tsne_through_time,
)


def random_code(count, steps=3, rows=2, bits=20, seed=0):
    some = torch.rand(count, steps, rows, bits, generator=torch.Generator().manual_seed(seed)) > 0.5
    padded = torch.nn.functional.pad(some, (0, -bits % 8)).unflatten(-1, (-1, 8))
    packed = (padded * 2 ** torch.arange(8)).sum(-1).to(torch.uint8)
    return some, PartitionCode(packed, bits)


@settings(max_examples=12, deadline=None)
@given(model=models, steps=st.integers(1, 6))
def test_a_code_is_the_pattern_of_its_piece(model, steps):
    net = build(**model)
    xs = torch.randn(steps, 3, INPUTS)
    bits = partition_code(net, xs).unpacked()
    for index in range(3):
        assert torch.equal(bits[index], affine_piece(net, xs[:, index]).pattern)


@settings(max_examples=8, deadline=None)
@given(model=models, lengths=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_a_padded_sequence_has_the_code_of_the_sequence_alone(model, lengths):
    net, xs = build(**model), torch.randn(5, len(lengths), INPUTS)
    bits = partition_code(net, xs, lengths=torch.tensor(lengths)).unpacked()
    for index, length in enumerate(lengths):
        assert torch.equal(bits[index, :length], partition_code(net, xs[:length, [index]]).unpacked()[0])
        assert not bits[index, length:].any()


def test_codes_made_in_blocks_are_the_codes_made_at_once(monkeypatch):
    net, xs = build("rnn", layers=2), torch.randn(6, 11, INPUTS)
    whole = partition_code(net, xs)
    monkeypatch.setattr(code, "_BLOCK", 2 * 6 * 4 * 8)  # two sequences at a time
    assert torch.equal(partition_code(net, xs).packed, whole.packed)


def test_batch_first_and_fused_give_the_same_codes():
    xs, want = torch.randn(6, 4, INPUTS), partition_code(build("rnn"), torch.zeros(1, 1, INPUTS))
    net = build("rnn")
    want = partition_code(net, xs)
    rnn = holdfast.RNN(INPUTS, 4, nonlinearity="relu", batch_first=True)
    rnn.load_state_dict(net.rnn.state_dict())
    assert torch.equal(partition_code(rnn, xs.transpose(0, 1)).packed, want.packed)


def test_a_linear_network_has_no_code():
    with pytest.raises(SettingError, match="one region"):
        partition_code(holdfast.LinearRNN(3, 4), torch.randn(5, 2, 3))


def test_hamming_counts_the_bits_that_differ(monkeypatch):
    monkeypatch.setattr(distance, "_ROWS", 3)
    monkeypatch.setattr(distance, "_BYTES", 5)
    (a, first), (b, second) = random_code(7), random_code(4, seed=1)
    want = (a.flatten(1)[:, None] != b.flatten(1)[None]).sum(-1)
    assert torch.equal(hamming(first, second).long(), want)
    assert torch.equal(first.unpacked(), a)
    with pytest.raises(ShapeError, match="one shape"):
        hamming(first, second.until(2))


def test_regions_are_counted_once_each_and_refined_through_time():
    net, xs = build("rnn"), torch.randn(6, 40, INPUTS)
    codes = partition_code(net, torch.cat([xs, xs[:, :9]], dim=1))
    rows = {tuple(row.flatten().tolist()) for row in codes.unpacked()}
    assert count_regions(codes) == len(rows) <= 40
    counts = regions_through_time(codes)
    assert (counts.diff() >= 0).all()
    assert counts.tolist() == [count_regions(codes.until(step)) for step in range(1, 7)]


def test_neighbours_are_those_of_a_full_search(monkeypatch):
    monkeypatch.setattr(neighbours, "_QUERIES", 4)
    _, codes = random_code(30, bits=6)  # few bits, so that many distances are equal
    distances = hamming(codes).long()
    for which, largest in ((nearest, False), (farthest, True)):
        found = which(codes, torch.arange(30), k=5)
        for query in range(30):
            others = [index for index in range(30) if index != query]
            key = [(-distances[query, i].item() if largest else distances[query, i].item(), i) for i in others]
            assert found.indices[query].tolist() == [index for _, index in sorted(key)[:5]]
    assert torch.equal(nearest(codes, codes, k=1).indices[:, 0], distances.argmin(1))
    with pytest.raises(SettingError, match="k from 1 to 29, the number of other codes"):
        nearest(codes, torch.arange(30), k=30)


def test_knn_is_a_vote_of_the_nearest():
    """Equal votes go to the lower class."""
    bits, codes = random_code(60, bits=64)
    bits, classes = bits.flatten(1), torch.arange(60) % 3
    for k in (1, 2, 5):
        ours = knn_classify(codes[:40], classes[:40], codes[40:], k)
        for query, answer in zip(bits[40:], ours.tolist(), strict=True):
            order = sorted(range(40), key=lambda i: ((bits[i] != query).sum().item(), i))
            votes = [classes[index].item() for index in order[:k]]
            assert answer == max(sorted(set(votes)), key=votes.count)
    with pytest.raises(ShapeError, match="a class for each of 40 codes"):
        knn_classify(codes[:40], classes, codes)


def test_codes_that_form_groups_form_groups_in_the_plane():
    """Two regions, some bits flipped: behind the step where they part, no point's neighbour is of the other one."""
    _, codes = random_code(1, steps=4, rows=1, bits=64)
    packed = codes.packed.repeat(40, 1, 1, 1)
    packed[20:, 2:] ^= 255
    noise = torch.randint(0, 8, (40, 4, 1), generator=torch.Generator().manual_seed(1))
    packed[..., 0] ^= (1 << noise).to(torch.uint8)
    frames = tsne_through_time(PartitionCode(packed, 64), [2, 4], perplexity=5.0)
    assert frames.positions.shape == (2, 40, 2)
    group = torch.arange(40) >= 20

    def mixed(positions):
        near = torch.cdist(positions, positions).fill_diagonal_(float("inf")).argmin(1)
        return (group[near] != group).double().mean()

    assert mixed(frames.positions[1]) == 0 < mixed(frames.positions[0])
