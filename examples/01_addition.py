"""Train SGORNN on the addition problem in Python, and score it on new sequences.

A sequence has T pairs (u_t, c_t). u_t is uniform in [0, 1]. c_t is 1 at two marked steps, one in each half, and 0
elsewhere. The answer is the sum of the two marked numbers. The constant answer 1 has a mean squared error of 1/6 =
0.167. To do better, a network must remember a number for up to T steps. Source: SGORNN (S3), §3.1.
From a shell: holdfast train addition.

    python examples/01_addition.py 200 1000 runs/addition     T, updates, folder; a minute on two cores
"""

import sys

import torch

from holdfast.tasks import Addition
from holdfast.train import LRSchedule, ModelSettings, Training, build, evaluate, fit

steps, updates, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
task = Addition(steps=steps).load()
torch.manual_seed(0)
# start the gates with a memory as long as the sequence
model = build(ModelSettings("sgornn", 128, options={"gates": {"clip": "2alpha", "horizon": steps}}), task.spec)
training = Training(
    optimiser="rmsprop",
    lr=1e-2,
    options={"alpha": 0.9, "eps": 1e-7},
    updates=updates,
    schedule=LRSchedule("linear"),
)
outcome = fit(model, task, training, folder)  # start it again after a kill, and it resumes
print(f"{outcome.parameters:,} parameters, {outcome.updates} updates in {outcome.seconds:.0f} s")
print(f"test error: {evaluate(model, task, 'test')['mse']:.4f}; always answering 1: {task.spec.baseline:.4f}")
