"""The log: cut back to its checkpoint, whole lines only, and TensorBoard's copy of it."""

import pytest

from holdfast.errors import CheckpointError
from holdfast.train import sums
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
    clock = Clock(path)
    assert clock.seconds >= 40.0
    clock.trim()
    clock.write(7)
    assert Clock(path).seconds >= 40.0
    assert len(path.read_text().splitlines()) == 2


def test_cpu_time_adds_up_over_sittings_and_is_unknown_where_one_did_not_record_it(tmp_path, monkeypatch):
    spent = [100.0]
    monkeypatch.setattr("holdfast.train.log.time.process_time", lambda: spent[0])
    path = tmp_path / "times.jsonl"
    for total in (5.0, 10.0):
        clock = Clock(path)
        spent[0] += 5
        assert clock.cpu_seconds == total
        clock.write(1)
    path.write_text('{"update": 5, "seconds": 40.0}\n')  # as an older Holdfast wrote it
    clock = Clock(path)
    assert clock.cpu_seconds is None
    clock.write(6)
    assert Clock(path).cpu_seconds is None


@pytest.mark.parametrize(
    "change", [(b"40.0", b"90.0"), (b'"seconds"', b'"secondz"'), (b'{"update', b"[update"), (b"check", b"chexk")]
)
def test_a_damaged_clock_is_an_error_that_says_how_to_go_on(tmp_path, change):
    path = tmp_path / "times.jsonl"
    clock = Clock(path)
    clock.before = 40.0
    clock.write(5)
    text = path.read_bytes()
    assert b"40.0" in text
    path.write_bytes(text.replace(*change))
    with pytest.raises(CheckpointError, match=r"times.jsonl is damaged; put the file back, or remove it to count"):
        Clock(path)


def test_every_line_of_a_log_vouches_for_itself_and_its_place(tmp_path):
    """A line that is changed, repeated, left out, moved or brought in from elsewhere; a cut end is read up to there."""
    path, other = tmp_path / "log.jsonl", Log(tmp_path / "other.jsonl", 0)
    log = Log(path, 0)
    for update in range(4):
        log.write({"update": update, "loss": 0.5})
        other.write({"update": update, "loss": 0.25})
    lines, theirs = (it.path.read_bytes().splitlines(keepends=True) for it in (log, other))
    one, two, three, four = lines
    for wrong in (
        [one, two.replace(b"0.5", b"0.7"), three, four],
        [one, two, two, three, four],
        [one, three, four],
        [two, three, four],
        [two, one, three, four],
        [one, two, theirs[2], four],
        [one, two, three, theirs[3]],
        [one, two.replace(b"check", b"chexk")],
        [one.replace(b"check", b"chexk")],
        [one, b'{"update": 1, "loss": 0.5}\n'],
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(CheckpointError, match=r"log.jsonl is damaged: line \d does not match its check"):
            read_log(path)
    path.write_bytes(one + two + three[:-9])
    assert read_log(path) == [{"update": 0, "loss": 0.5}, {"update": 1, "loss": 0.5}]


def test_a_log_of_an_older_holdfast_goes_on_with_checks(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"update": 0, "test": {"mse": 1.0}}\n')
    log = Log(path, path.stat().st_size)
    log.write({"update": 1})
    Log(path, log.position, log.sha256).write({"update": 2})
    assert read_log(path) == [{"update": 0, "test": {"mse": 1.0}}, {"update": 1}, {"update": 2}]


def test_a_changed_digit_of_the_log_is_an_error(tmp_path):
    """With a known digest on going on, and by SHA256SUMS once the run has ended; a line that is no JSON always."""
    path = tmp_path / "log.jsonl"
    log = Log(path, 0)
    log.write({"update": 10})
    path.write_bytes(path.read_bytes().replace(b"10", b"90", 1))
    with pytest.raises(CheckpointError, match=r"log.jsonl is damaged or comes from another run"):
        Log(path, log.position, log.sha256)
    sums.write(tmp_path, {"log.jsonl": log.sha256})
    with pytest.raises(CheckpointError, match=r"log.jsonl is damaged or comes from another run"):
        read_log(path)
    other = tmp_path / "other.jsonl"
    for line in ('{"update": ', "3"):
        other.write_text(f'{{"update": 1}}\n{line}\n')
        with pytest.raises(CheckpointError, match=r"other.jsonl is damaged: line 2 "):
            read_log(other)


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
