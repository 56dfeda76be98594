"""What is read back from a run's folder is what the run wrote, or a clear error."""

import hashlib
import shutil
import subprocess

import pytest

from helpers.noisy_run import noisy_run
from holdfast.errors import CheckpointError
from holdfast.train import checkpoint, fit, sums
from holdfast.train.log import read_log


def train(folder, **changes):
    folder.mkdir(exist_ok=True)
    if not (folder / "settings.json").exists():
        (folder / "settings.json").write_text(f"{changes} 12345")
    return fit(*noisy_run(**{"epochs": 1, **changes}), folder, progress=False)


def weights(folder, which):
    model, *_ = noisy_run()
    return checkpoint.load_model_(model, folder / f"{which}.safetensors")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that has ended, and one of another seed."""
    folder = tmp_path_factory.mktemp("ended")
    train(folder / "one")
    train(folder / "other", seed=1)
    return folder


@pytest.fixture
def runs(ended, tmp_path):
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    return tmp_path / "one", tmp_path / "other"


def test_the_sums_are_those_of_sha256sum(runs):
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=runs[0], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert names == {"settings.json", "log.jsonl", "last.safetensors", "best.safetensors", "outcome.json"}


@pytest.mark.parametrize("name", ["settings.json", "outcome.json", "log.jsonl", "SHA256SUMS"])
@pytest.mark.parametrize("change", ["digit", "other run's"])
def test_a_changed_file_of_a_run_that_has_ended_is_named(runs, name, change):
    """A digit that leaves the file readable, or the same file of another run."""
    one, other = runs
    path = one / name
    if change == "digit":
        data = bytearray(path.read_bytes())
        place = next(place for place in range(len(data) // 2, len(data)) if chr(data[place]) in "123456")
        data[place] += 1
        path.write_bytes(data)
    else:
        shutil.copy(other / name, path)
    with pytest.raises(CheckpointError) as caught:  # noqa: PT012 - whichever reads the file
        train(one)
        read_log(one / "log.jsonl")
    assert name in str(caught.value) or (name == "SHA256SUMS" and "as SHA256SUMS has it" in str(caught.value))


def test_the_log_of_a_run_that_goes_on_is_vouched_for_by_its_checkpoint(runs):
    one, _ = runs
    (one / "outcome.json").unlink()
    (one / "SHA256SUMS").unlink()
    assert len(read_log(one / "log.jsonl")) == 5
    (one / "log.jsonl").write_text((one / "log.jsonl").read_text().replace("8", "9", 1))
    for use in (lambda: read_log(one / "log.jsonl"), lambda: train(one)):
        with pytest.raises(CheckpointError, match=r"log.jsonl is damaged or comes from another run"):
            use()


@pytest.mark.parametrize("name", ["last", "best"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_checkpoint_of_another_run_is_refused(runs, name, sealed):
    """Whether the run has ended, with digests of all its files, or goes on, with only those in the checkpoints."""
    one, other = runs
    if not sealed:
        (one / "outcome.json").unlink()
        (one / "SHA256SUMS").unlink()
    shutil.copy(other / f"{name}.safetensors", one)
    with pytest.raises(CheckpointError, match=r"settings.json is not the file that the run of .* began with"):
        weights(one, name)
    with pytest.raises(CheckpointError):
        train(one)


def test_a_log_with_the_checkpoint_of_another_run_beside_it_is_refused(runs):
    """Both come from the same other run, so they fit each other, but not the settings."""
    one, other = runs
    (one / "outcome.json").unlink()
    (one / "SHA256SUMS").unlink()
    for name in ("last.safetensors", "log.jsonl"):
        shutil.copy(other / name, one)
    with pytest.raises(CheckpointError, match=r"settings.json is not the file that the run of last"):
        read_log(one / "log.jsonl")


def test_the_last_checkpoint_is_not_taken_for_the_best_one(runs):
    for name, copied in (("last", "best"), ("best", "last")):
        one, _ = runs
        kept = (one / f"{name}.safetensors").read_bytes()
        shutil.copy(one / f"{copied}.safetensors", one / f"{name}.safetensors")
        with pytest.raises(CheckpointError, match=f"to be the {name} checkpoint of a run, but it is a copy of the"):
            weights(one, name)
        (one / f"{name}.safetensors").write_bytes(kept)


def test_an_older_or_missing_best_checkpoint_is_refused(tmp_path):
    """The same settings, an earlier best: good in itself, and wrong here."""
    train(tmp_path, checkpoint_seconds=1e9)
    older = {**checkpoint.load(tmp_path / "best.safetensors"), "update": 1}
    for sealed in (True, False):
        if not sealed:
            (tmp_path / "outcome.json").unlink()
            (tmp_path / "SHA256SUMS").unlink()
        checkpoint.save(tmp_path / "best.safetensors", older)
        with pytest.raises(CheckpointError, match=r"best.safetensors (is damaged|\(update 1\) is not the best)"):
            weights(tmp_path, "best")
    with pytest.raises(CheckpointError, match=r"best.safetensors \(update 1\) is not the best checkpoint that"):
        train(tmp_path)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"best.safetensors is missing: .*last.safetensors, which is intact"):
        train(tmp_path)


def test_a_best_checkpoint_that_is_replaced_while_it_is_read_is_read_again(runs, monkeypatch):
    """As by a run that goes on: the first reading sees an old one, by the second the one that last knows is there."""
    one, _ = runs
    (one / "outcome.json").unlink()
    (one / "SHA256SUMS").unlink()
    best, load, calls = one / "best.safetensors", checkpoint.load, []
    tree, known = load(best), best.read_bytes()
    checkpoint.save(best, {**tree, "update": 1})

    def load_and_replace(path):
        calls.append(path)
        if len(calls) == 2:
            best.write_bytes(known)
        found = load(path)
        if len(calls) == 1:
            checkpoint.save(best, {**tree, "update": 2})
        return found

    monkeypatch.setattr(checkpoint, "load", load_and_replace)
    assert weights(one, "best")["update"] == tree["update"] > 2
    assert len(calls) == 2


def test_a_checkpoint_can_be_copied_away(runs, tmp_path):
    one, _ = runs
    for name in ("best.safetensors", "mine.safetensors"):
        (tmp_path / "away").mkdir(exist_ok=True)
        shutil.copy(one / "best.safetensors", tmp_path / "away" / name)
        model, *_ = noisy_run()
        assert checkpoint.load_model_(model, tmp_path / "away" / name)["role"] == "best"


def test_a_run_that_has_ended_without_its_sums_is_refused_with_the_way_to_make_them(runs):
    one, _ = runs
    (one / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="SHA256SUMS is missing") as caught:
        train(one)
    command = str(caught.value).partition("make it again there: ")[2]
    subprocess.run(command, shell=True, cwd=one, check=True)
    assert train(one).status == "finished"


def test_sums_of_an_earlier_time_are_no_sums_of_a_run_that_has_ended(runs):
    """They would vouch for the settings alone, and the log and the outcome could be changed."""
    one, _ = runs
    sums.write(one, {"settings.json": sums.read(one)["settings.json"]})
    for use in (lambda: train(one), lambda: read_log(one / "log.jsonl"), lambda: weights(one, "best")):
        with pytest.raises(CheckpointError, match=r"SHA256SUMS has no digest of outcome.json: it was written before"):
            use()


def test_settings_are_vouched_for_before_there_is_a_checkpoint(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    sums.write(tmp_path, {"settings.json": hashlib.sha256(b"{ }").hexdigest()})
    with pytest.raises(CheckpointError, match=r"settings.json is damaged or comes from another run"):
        train(tmp_path)


def test_a_run_whose_data_changed_is_refused(tmp_path):
    """Of a task that knows the digest of its file."""
    model, task, training = noisy_run(epochs=1)
    task.sha256 = "a" * 64
    fit(model, task, training, tmp_path, progress=False)
    (tmp_path / "outcome.json").unlink()
    task.sha256 = "b" * 64
    with pytest.raises(
        CheckpointError, match=r"The data of the run in .* has changed: expected .* aaaaaaaaaaaa…, as .* got b"
    ):
        fit(*noisy_run()[:1], task, training, tmp_path, progress=False)


def test_damaged_sums_are_an_error(tmp_path):
    good = "0" * 64
    for text in (
        f"{good}  settings.json",
        f"{good} settings.json\n",
        f"{good}  secrets.json\n",
        "é\n",
        "\0" * 70 + "\n",
    ):
        (tmp_path / "SHA256SUMS").write_text(text)
        with pytest.raises(CheckpointError, match="SHA256SUMS is damaged: expected lines of a digest"):
            sums.read(tmp_path)


def test_a_file_that_the_sums_name_and_that_is_missing_is_an_error(tmp_path):
    sums.write(tmp_path, {sums.MODEL: "0" * 64})
    with pytest.raises(CheckpointError, match=r"model\.json is missing"):
        sums.check(tmp_path, sums.MODEL)
