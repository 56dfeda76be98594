"""Batches are functions of their number; an epoch shows every sequence once; streams go on where they stopped."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SettingError
from holdfast.tasks import Addition, Arrays, Batch, Copying, Sequences, Spec, Stream, options

few = settings(max_examples=20, deadline=None)
sizes = st.integers(1, 40)


def numbered(count, steps=3):
    """Sequences that carry their number in every input and in the target."""
    number = torch.arange(count)
    return Sequences(number.double().view(-1, 1, 1).expand(-1, steps, 1).contiguous(), number)


def arrays(count):
    return Arrays(
        Spec(1, max(count, 1), "cross_entropy", "accuracy"), {"train": numbered(count), "test": numbered(count)}
    )


def same(a, b):
    return torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)


TASKS = {
    "drawn": Addition(steps=6, validation=12, test=12).load(),
    "every step": Copying(delay=4, length=2, validation=12, test=12).load(),
    "arrays": arrays(10),
    "stream": Stream({"train": torch.arange(40), "test": torch.arange(9)}, 40, window=5, metric="bits"),
    "windows": Stream({"train": torch.arange(40)}, 40, window=5, metric="bits", protocol="windows"),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_a_function_of_its_number_alone(name):
    """Whatever was asked before, in whatever order: batch i with seed s is the same."""
    task = TASKS[name]
    forwards = [task.train_batch(index, 4, seed=3) for index in range(12)]
    for index in (11, 2, 7, 2, 0):
        task.train_batch(index, 4, seed=8)
        assert same(task.train_batch(index, 4, seed=3), forwards[index])


@pytest.mark.parametrize("name", ["drawn", "every step", "arrays", "windows"])
def test_seeds_and_numbers_give_different_batches(name):
    task = TASKS[name]
    assert not same(task.train_batch(0, 4, seed=0), task.train_batch(0, 4, seed=1))
    assert not same(task.train_batch(0, 4, seed=0), task.train_batch(1, 4, seed=0))


@given(count=sizes, batch=sizes, epoch=st.integers(0, 3), seed=st.integers(0, 2**31))
@few
def test_an_epoch_shows_every_sequence_exactly_once(count, batch, epoch, seed):
    task = arrays(count)
    updates = range(epoch * task.epoch(batch), (epoch + 1) * task.epoch(batch))
    seen = torch.cat([task.train_batch(index, batch, seed).targets for index in updates])
    assert seen.sort().values.tolist() == list(range(count))


def test_epochs_are_shuffled_differently():
    task = arrays(50)
    assert not same(task.train_batch(0, 50, seed=0), task.train_batch(1, 50, seed=0))


@given(count=sizes, batch=sizes)
@few
def test_evaluation_shows_every_sequence_once_in_order(count, batch):
    seen = torch.cat([part.targets for part in arrays(count).evaluation("test", batch)])
    assert seen.tolist() == list(range(count))


def test_inputs_and_targets_stay_together():
    batch = arrays(30).train_batch(4, 7, seed=5)
    assert torch.equal(batch.inputs[0, :, 0].long(), batch.targets)


def test_training_validation_and_test_draws_are_disjoint():
    """10 training batches, the validation and the test set of a synthetic task: no sequence twice."""
    task = Addition(steps=4, validation=64, test=64).load()
    batches = [task.train_batch(index, 32, seed=0) for index in range(10)]
    batches += [*task.evaluation("validation", 32), *task.evaluation("test", 32)]
    rows = torch.cat([batch.inputs.transpose(0, 1).flatten(1) for batch in batches])
    assert len(rows) == 10 * 32 + 128
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_padded_batch_is_cut_to_its_longest_sequence():
    data = Sequences(torch.ones(3, 9, 1), torch.arange(3), torch.tensor([2, 5, 9]))
    assert data.batch(torch.tensor([1, 0]), every_step=False).inputs.shape == (5, 2, 1)
    assert data.batch(torch.tensor([1, 0]), every_step=False).lengths.tolist() == [5, 2]


def test_bytes_become_numbers_between_0_and_1():
    data = Sequences(torch.tensor([[[0], [51], [255]]], dtype=torch.uint8), torch.zeros(1))
    assert data.batch(torch.tensor([0]), every_step=False).inputs.flatten().tolist() == [0.0, 0.2, 1.0]


@given(world=st.integers(1, 4), every_step=st.booleans())
@few
def test_the_shares_of_all_processes_are_the_batch(world, every_step):
    targets = torch.randn(5, 8, 2) if every_step else torch.randn(8, 2)
    batch = Batch(torch.randn(5, 8, 3), targets, torch.randint(1, 6, (8,)))
    shares = [batch.rows(slice(rank, None, world), every_step=every_step) for rank in range(world)]
    assert sum(map(len, shares)) == 8
    for rank, share in enumerate(shares):
        assert torch.equal(share.inputs, batch.inputs[:, rank::world])
        assert torch.equal(share.lengths, batch.lengths[rank::world])
        assert torch.equal(share.targets, targets[:, rank::world] if every_step else targets[rank::world])


@given(length=st.integers(2, 60), rows=st.integers(1, 5), window=st.integers(1, 9))
@few
def test_a_stream_is_contiguous_from_batch_to_batch(length, rows, window):
    """Row b of all batches of an epoch, joined, is one stretch of the text; targets are the next tokens."""
    task = Stream({"train": torch.arange(length)}, length, window=window, metric="bits")
    if length - 1 < rows:
        with pytest.raises(SettingError, match="rows"):
            task.epoch(rows)
        return
    batches = [task.train_batch(index, rows, seed=0) for index in range(task.epoch(rows))]
    inputs, targets = torch.cat([b.inputs for b in batches]), torch.cat([b.targets for b in batches])
    width = (length - 1) // rows
    assert torch.equal(inputs, torch.arange(rows * width).view(rows, width).mT)
    assert torch.equal(targets, inputs + 1)
    assert same(task.train_batch(task.epoch(rows), rows, seed=0), batches[0])  # the next epoch begins again


@given(length=st.integers(2, 60), batch=st.integers(1, 5), window=st.integers(1, 9))
@few
def test_windows_score_every_token_exactly_once(length, batch, window):
    task = Stream({"test": torch.arange(length)}, length, window=window, metric="bits", protocol="windows")
    seen = torch.cat([part.targets.flatten() for part in task.evaluation("test", batch)])
    assert seen.sort().values.tolist() == list(range(1, length))


def test_an_epoch_of_windows_shows_every_window_once():
    task = TASKS["windows"]
    first = torch.cat([task.train_batch(index, 3, seed=1).inputs[0] for index in range(task.epoch(3))])
    assert first.sort().values.tolist() == list(range(0, 35, 5))
    assert task.epoch(3) == math.ceil(7 / 3)


def test_an_unknown_split_lists_the_known_ones():
    with pytest.raises(SettingError, match="train, test"):
        next(arrays(3).evaluation("validation", 2))


def test_an_unknown_task_or_option_lists_the_known_ones():
    with pytest.raises(SettingError, match="known: addition, copying"):
        options("adition")
    with pytest.raises(SettingError, match="known: form, steps, test, validation"):
        options("addition", hidden=3)
    with pytest.raises(SettingError, match="needs the option 'path'"):
        options("own")


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("addition", {"steps": "many"}),
        ("addition", {"steps": True}),
        ("addition", {"form": "product"}),
        ("mnist", {"permuted": 1}),
        ("own", {"path": "a.csv", "features": [1]}),
    ],
)
def test_an_option_of_another_type_is_refused(task, setting):
    with pytest.raises(SettingError, match=f"expects {list(setting)[-1]} to be"):
        options(task, **setting)


def test_options_take_what_settings_files_have():
    made = options("own", path="a.csv", features=["x"], validation=0, window=None)
    assert made.features == ("x",)
    assert options("text8").corpus == "text8"
    assert options("ptb-characters").corpus == "ptb"


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 1000])
def test_a_drawn_set_is_the_same_for_every_batch_size(batch_size):
    task = Addition(steps=3, validation=130).load()
    batches = list(task.evaluation("validation", batch_size))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    (whole,) = task.evaluation("validation", 130)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), whole.targets)
    assert torch.equal(torch.cat([batch.inputs for batch in batches], dim=1), whole.inputs)
