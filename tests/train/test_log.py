"""The log: cut back to its checkpoint, whole lines only, and TensorBoard's copy of it."""

import pytest

from holdfast.errors import CheckpointError
from holdfast.train.log import Board, Clock, Log, read_log


def test_what_was_written_after_the_checkpoint_is_written_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path, 0)
    log.write({"update": 1})
    position = log.position
    log.write({"update": 2})
    assert [entry["update"] for entry in read_log(path)] == [1, 2]
    Log(path, position).write({"update": 3})
    assert [entry["update"] for entry in read_log(path)] == [1, 3]


def test_a_log_shorter_than_its_checkpoint_says_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="has 0 bytes, but the checkpoint beside it was made when it had 10"):
        Log(tmp_path / "log.jsonl", 10)


def test_the_clock_adds_up_over_sittings_and_survives_a_cut_line(tmp_path):
    path = tmp_path / "times.jsonl"
    path.write_text('{"update": 5, "seconds": 40.0}\n{"upd')
    assert Clock(path).seconds >= 40.0
    path.write_text("not JSON at all\n")
    assert Clock(path).seconds < 10.0


def test_tensorboard_shows_every_number_of_the_log(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is optional and not installed"
    )
    board = Board(tmp_path, 0)
    board.write(3, {"update": 3, "train_loss": 0.5, "validation": {"mse": 0.25}})
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train_loss", "validation/mse"]
    assert [(event.step, event.value) for event in events.Scalars("validation/mse")] == [(3, 0.25)]
