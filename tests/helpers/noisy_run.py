"""A run with all that must survive a kill: dropout, a random start, a carried state, Adam, a plateau schedule."""

import torch

from holdfast.tasks import Stream
from holdfast.train import LRSchedule, ModelSettings, Training, build, fit


def stream():
    text = torch.randint(0, 7, (331,), generator=torch.Generator().manual_seed(3))
    return Stream({"train": text, "validation": text[:60]}, 7, window=5, metric="bits")


def noisy_run(**changes):
    task = stream()
    network = ModelSettings(
        "lstm", 6, layers=2, dropout=0.2, input_dropout=0.1, initial_state=0.3, options={"backend": "reference"}
    )
    settings = {
        "epochs": 3,
        "batch": 4,
        "optimiser": "adam",
        "lr": 1e-2,
        "clip": 1.0,
        "schedule": LRSchedule("plateau", patience=1),
        "carry_state": True,
        "evaluate_every": 4,
        "checkpoint_seconds": 0.0,
        **changes,
    }
    torch.manual_seed(0)
    return build(network, task.spec), task, Training(**settings)


def run_a_stream(folder):
    """A short run without noise, for one process or several."""
    torch.manual_seed(0)
    task = stream()
    training = Training(epochs=2, batch=4, lr=1e-2, clip=0.5, carry_state=True, evaluate_every=7)
    return fit(build(ModelSettings("gru", 5), task.spec), task, training, folder, progress=False)
