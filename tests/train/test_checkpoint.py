"""Checkpoints: any tree there and back, nothing executed, nothing half written."""

import hashlib
import json
import math
import os
import pickle
import re
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.disk import disk_that_takes
from helpers.noisy_run import noisy_run
from holdfast.errors import CheckpointError, SettingError, UncheckedWarning
from holdfast.train import checkpoint, fit

LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.text(max_size=4) | st.integers(-9, 9)
TREES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3) | st.tuples(below, below),
)


@given(tree=st.dictionaries(st.text(max_size=4), TREES, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_tree_comes_back_as_it_went(tree):
    path = Path(tempfile.mkdtemp()) / "x.safetensors"
    checkpoint.save(path, tree)
    assert checkpoint.load(path) == tree


def test_tensors_come_back_bit_for_bit_and_tied_ones_apart(tmp_path):
    weight = torch.randn(3, 4)
    tree = {"a": weight, "b": {3: [weight, weight.mT]}, "half": torch.randn(2).half(), "empty": torch.empty(0, 2)}
    checkpoint.save(tmp_path / "x", tree)
    back = checkpoint.load(tmp_path / "x")
    assert torch.equal(back["a"], weight)
    assert torch.equal(back["b"][3][1], weight.mT)
    assert back["half"].dtype == torch.half
    assert back["empty"].shape == (0, 2)


def test_a_number_that_is_none_comes_back(tmp_path):
    checkpoint.save(tmp_path / "x", {"nan": math.nan, "inf": -math.inf})
    back = checkpoint.load(tmp_path / "x")
    assert math.isnan(back["nan"])
    assert back["inf"] == -math.inf


class Hostile:
    def __reduce__(self):
        return os.mkdir, (Hostile.folder,)


def _bare(path):
    path.write_bytes(pickle.dumps(Hostile()))


def _torchs(path):
    torch.save({"w": Hostile()}, path)


@pytest.mark.parametrize("write", [_bare, _torchs])
def test_a_hostile_pickle_is_refused_and_runs_nothing(write, tmp_path):
    Hostile.folder = str(tmp_path / "made-by-the-pickle")
    for name in ("last.safetensors", "model.pt"):
        write(tmp_path / name)
        with pytest.raises(CheckpointError, match="is not a Holdfast checkpoint"):
            checkpoint.load(tmp_path / name)
    with pytest.raises(CheckpointError):
        fit(*noisy_run(), tmp_path, progress=False)
    assert not Path(Hostile.folder).exists()
    if write is _bare:
        pickle.loads((tmp_path / "model.pt").read_bytes())
        assert Path(Hostile.folder).exists()  # the pickle is real: opened as pickles are, it does run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    fit(*noisy_run(epochs=1), folder, progress=False)
    return (folder / "last.safetensors").read_bytes()


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_checkpoint_is_a_clear_error(data, saved, tmp_path_factory):
    """Cut, extended, with bits flipped anywhere, with a block of zeros, or nothing but noise: never loaded."""
    kind = data.draw(st.sampled_from(["cut", "flip", "zeros", "more", "noise"]))
    broken = bytearray(saved)
    place = data.draw(st.integers(0, len(saved) - 1))
    if kind == "cut":
        broken = broken[:place]
    elif kind == "flip":
        broken[place] ^= data.draw(st.integers(1, 255))
    elif kind == "zeros":
        broken[place : place + 64] = bytes(len(broken[place : place + 64]))
    elif kind == "more":
        broken += data.draw(st.binary(min_size=1, max_size=20))
    else:
        broken = data.draw(st.binary(max_size=200))
    if bytes(broken) == saved:  # zeros where zeros were
        return
    path = tmp_path_factory.getbasetemp() / "last.safetensors"
    path.write_bytes(bytes(broken))
    with pytest.raises(CheckpointError, match=r"last.safetensors is "):
        checkpoint.load(path)


def test_the_checksum_is_that_of_the_file_with_zeros_in_its_place(saved):
    """So that any program can check it; and the plain safetensors library reads the tensors as before."""
    import safetensors.torch

    digest = re.search(rb'sha256\\": \\"([0-9a-f]{64})', saved)[1]
    assert hashlib.sha256(saved.replace(digest, b"0" * 64)).hexdigest().encode() == digest
    assert safetensors.torch.load(saved)["model.readout.bias"].shape == (7,)


@pytest.mark.parametrize(("name", "other"), [("last", "best"), ("best", "last")])
def test_a_damaged_checkpoint_names_itself_and_the_other_one(name, other, tmp_path):
    """One bit of a weight; the other checkpoint loads, unless it is damaged too, and then it is not called good."""
    model, task, training = noisy_run(epochs=1)
    fit(model, task, training, tmp_path, progress=False)
    (tmp_path / "outcome.json").unlink()
    flip(tmp_path / f"{name}.safetensors")
    message = rf"{name}.safetensors is damaged: .*The other checkpoint, .*{other}.safetensors \(update \d+\), is intact"
    for use in (
        lambda: fit(*noisy_run(epochs=1), tmp_path, progress=False),
        lambda: checkpoint.load_model_(model, tmp_path / f"{name}.safetensors"),
    ):
        with pytest.raises(CheckpointError, match=message):
            use()
    checkpoint.load_model_(model, tmp_path / f"{other}.safetensors")
    flip(tmp_path / f"{other}.safetensors")
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        checkpoint.load(tmp_path / f"{name}.safetensors")
    assert "intact" not in str(caught.value)


def flip(path, place=-5):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_checkpoint_without_a_checksum_loads_with_a_warning(tmp_path):
    """As Holdfast wrote them before; one of today whose checksum was made unreadable is not taken for one of those."""
    import safetensors.torch

    path, tree = tmp_path / "old.safetensors", ["dict", [["w", ["tensor", "w"]]]]
    weights = {"w": torch.ones(2)}

    def write(header):
        path.write_bytes(safetensors.torch.save(weights, metadata={"holdfast": json.dumps({**header, "tree": tree})}))

    write({"version": 1})
    with pytest.warns(UncheckedWarning, match="written by an older Holdfast and holds no checksum"):
        assert torch.equal(checkpoint.load(path)["w"], torch.ones(2))
    for header in ({"version": 2}, {"version": 2, "sha256": "0" * 63}, {"version": 1, "sha256": "0" * 64}):
        write(header)
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoint.load(path)
    write({"version": 3})
    with pytest.raises(CheckpointError, match="is a checkpoint of version 3; this Holdfast reads 1 and 2"):
        checkpoint.load(path)


def test_a_run_of_an_older_holdfast_goes_on(tmp_path):
    """Its checkpoint has no checksum, no role and no digests, and there is no SHA256SUMS."""
    import safetensors.torch

    model, task, training = noisy_run(epochs=1)
    fit(model, task, training, tmp_path, progress=False)
    (tmp_path / "outcome.json").unlink()
    (tmp_path / "SHA256SUMS").unlink()
    for name in ("last", "best"):
        path = tmp_path / f"{name}.safetensors"
        tree = {key: value for key, value in checkpoint.load(path).items() if key not in ("role", "settings", "data")}
        for key in ("log_sha256", "best_sha256"):
            tree.get("position", {}).pop(key, None)
        tensors = {}
        header = {"version": 1, "tree": checkpoint._strip(tree, "", tensors)}
        path.write_bytes(safetensors.torch.save(tensors, metadata={"holdfast": json.dumps(header)}))
    with pytest.warns(UncheckedWarning):
        assert fit(*noisy_run(epochs=2), tmp_path, progress=False).status == "finished"
    checkpoint.load(tmp_path / "last.safetensors")


def test_weights_that_do_not_fit_are_named_and_change_nothing(tmp_path):
    model, path = nn.Linear(2, 3), tmp_path / "x"
    before = model.weight.clone()
    for tree, message in (
        (
            {"model": {"weight": torch.zeros(2, 2), "bias": torch.zeros(3)}},
            r"weight has shape \(2, 2\), expected \(3, 2\)",
        ),
        ({"model": {"weight": torch.zeros(3, 2)}}, "bias is only in the model"),
        ({"update": 3}, "holds no model"),
    ):
        checkpoint.save(path, tree)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load_model_(model, path)
        assert torch.equal(model.weight, before)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        checkpoint.load(tmp_path / "none")


def test_a_full_disk_is_a_clear_error_and_leaves_the_last_checkpoint_whole(tmp_path):
    with (
        pytest.raises(CheckpointError, match=r"no checkpoint was written yet|there is none before it"),
        disk_that_takes(1000),
    ):
        fit(*noisy_run(), tmp_path / "new", progress=False)
    folder = tmp_path / "old"
    model, task, training = noisy_run(epochs=1)
    fit(model, task, training, folder, progress=False)
    (folder / "outcome.json").unlink()
    kept = (folder / "last.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="the one before it is intact"), disk_that_takes(5000):
        fit(*noisy_run(), folder, progress=False)
    assert (folder / "last.safetensors").read_bytes() == kept
    assert not list(folder.glob(".*"))  # no half file is left lying about
    assert fit(*noisy_run(), folder, progress=False).status == "finished"


def test_a_folder_that_cannot_be_written_is_a_clear_error():
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:  # root may write anywhere: be nobody for a moment
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        for path in (folder, folder / "run"):
            with pytest.raises(CheckpointError, match=r"Could not (make the run folder|write)"):
                fit(*noisy_run(), path, progress=False)
    finally:
        if root:
            os.seteuid(0)
    assert not list(folder.iterdir())


def test_a_run_of_other_settings_is_refused(tmp_path):
    model, task, training = noisy_run(epochs=1)
    fit(model, task, training, tmp_path, progress=False)
    (tmp_path / "outcome.json").unlink()
    other = nn.ModuleDict({"rnn": nn.Linear(1, 1)})
    with pytest.raises((CheckpointError, SettingError), match="does not fit"):
        fit(other, task, training, tmp_path, progress=False)
