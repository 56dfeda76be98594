"""Training elsewhere than on the CPU: what moves, and what is refused. Runs on a GPU are marked ``gpu``."""

import pytest
import torch

from holdfast.errors import SettingError
from holdfast.runs import run_settings
from holdfast.runs.train import resume_run, train_run
from holdfast.tasks import Batch
from holdfast.train.checkpoint import load
from holdfast.train.loop import _state_on, moved

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
TINY = {
    "task": {"name": "addition", "steps": 4, "validation": 8},
    "cell": {"hidden_size": 4},
    "train": {"updates": 6, "batch": 4, "evaluate_every": 2},
}


def test_every_tensor_of_a_batch_and_of_a_state_moves():
    meta = torch.device("meta")
    batch = moved(Batch(torch.zeros(7, 4, 2), torch.zeros(4, 1), torch.full((4,), 7)), meta)
    assert {batch.inputs.device, batch.targets.device, batch.lengths.device} == {meta}
    assert moved(Batch(torch.zeros(7, 4, 2), torch.zeros(4, 1)), meta).lengths is None
    assert _state_on(None, meta) is None
    assert _state_on(torch.zeros(2), meta).device == meta
    assert [entry.device for entry in _state_on((torch.zeros(2), torch.zeros(2)), meta)] == [meta, meta]


def test_a_batch_that_is_there_already_is_not_copied():
    batch = Batch(torch.zeros(7, 4, 2), torch.zeros(4, 1))
    assert moved(batch, torch.device("cpu")) is batch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(SettingError, match=r"accelerator must be a device of this machine \(cpu, auto\), got 'cuda'"):
        train_run(run_settings(TINY), folder, progress=False, accelerator="cuda")
    assert not folder.exists()


def test_a_named_cpu_is_the_default(tmp_path):
    """Weights, random states and all: the checkpoints hold the same."""
    for name, options in (("one", {}), ("other", {"accelerator": "cpu"})):
        train_run(run_settings(TINY), tmp_path / name, progress=False, **options)
    one, other = (load(tmp_path / name / "last.safetensors") for name in ("one", "other"))
    torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=0)
    torch.testing.assert_close(one["processes"][0]["random"]["torch"], other["processes"][0]["random"]["torch"])


class Stopped(Exception):
    pass


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_resumed_run_ends_with_the_same_weights(accelerator, tmp_path):
    """For the same machine and kind of device; stopped by an exception after a checkpoint."""
    settings = run_settings(TINY | {"train": {**TINY["train"], "checkpoint_seconds": 1e-9}})
    train_run(settings, tmp_path / "whole", progress=False, accelerator=accelerator)

    def stop(model, update):
        raise Stopped

    with pytest.raises(Stopped):
        train_run(settings, tmp_path / "cut", progress=False, accelerator=accelerator, look=stop, at=(3,))
    resume_run(tmp_path / "cut", progress=False, accelerator=accelerator)
    whole, cut = (load(tmp_path / name / "last.safetensors")["model"] for name in ("whole", "cut"))
    torch.testing.assert_close(cut, whole, rtol=0, atol=0)
