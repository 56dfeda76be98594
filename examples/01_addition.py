"""The addition problem with SGORNN, in Python: a task, a network, a run, and a score on sequences it has not seen.

A sequence holds T pairs (u_t, c_t): u_t uniform in [0, 1], c_t zero but at two marked steps, one in each half. The
answer is the sum of the two marked numbers. Always answering 1 gives a mean squared error of 1/6 = 0.167; to do better
a network must carry a number over as many as T steps. S3, §3.1. The same from a shell: holdfast train addition.

    python examples/01_addition.py 200 1000 runs/addition     T, updates, folder: a minute on two cores
"""

import sys

import torch

from holdfast.tasks import Addition
from holdfast.train import LRSchedule, ModelSettings, Training, build, evaluate, fit

steps, updates, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
task = Addition(steps=steps).load()
torch.manual_seed(0)
# the gates start with a memory as long as the sequence
model = build(ModelSettings("sgornn", 128, options={"gates": {"clip": "2alpha", "horizon": steps}}), task.spec)
training = Training(
    optimiser="rmsprop",
    lr=1e-2,
    options={"alpha": 0.9, "eps": 1e-7},
    updates=updates,
    schedule=LRSchedule("linear"),
)
outcome = fit(model, task, training, folder)  # killed and started again, it goes on
print(f"{outcome.parameters:,} parameters, {outcome.updates} updates in {outcome.seconds:.0f} s")
print(f"test error: {evaluate(model, task, 'test')['mse']:.4f}; always answering 1: {task.spec.baseline:.4f}")
