"""S4's random instances: Gaussian inputs of variance 4, an unrelated answer in [-2, 2], the same in every update."""

import pytest
import torch

from holdfast.errors import SettingError
from holdfast.tasks import GaussianInstances


def test_the_instance_is_the_papers():
    task = GaussianInstances().load()
    batch = task.train_batch(0, 1, seed=0)
    assert batch.inputs.shape == (200, 1, 32)
    assert batch.targets.shape == (1, 1)
    assert not task.spec.every_step
    # 6,400 draws of N(0, 4): mean within 4 · 2/80, variance within 4 · 4 √(2/6400)
    assert abs(batch.inputs.mean()) < 0.1
    assert abs(batch.inputs.var() - 4) < 0.3


def test_it_does_not_change_from_update_to_update_but_with_its_seed():
    first, later = (GaussianInstances().load().train_batch(index, 1, seed=index) for index in (0, 199))
    assert torch.equal(first.inputs, later.inputs)
    assert not torch.equal(first.inputs, GaussianInstances(seed=1).load().train_batch(0, 1, seed=0).inputs)


def test_the_best_constant_answer_has_an_error_of_four_thirds():
    task = GaussianInstances(steps=1, features=1, instances=20_000).load()
    y = task.train_batch(0, 20_000, seed=0).targets
    assert y.abs().max() <= 2
    # y² has mean 4/3 and variance 16/5 - 16/9: 4 standard errors
    assert abs(float(y.square().mean()) - task.spec.baseline) < 4 * ((16 / 5 - 16 / 9) / 20_000) ** 0.5


def test_test_instances_are_others():
    task = GaussianInstances(steps=3, features=2, instances=5, test=4).load()
    (test,) = task.evaluation("test", 10)
    rows = torch.cat([task.train_batch(0, 5, seed=0).inputs, test.inputs], dim=1)
    assert len(rows.transpose(0, 1).flatten(1).unique(dim=0)) == 9
    with pytest.raises(SettingError, match="splits train;"):
        next(GaussianInstances().load().evaluation("test", 1))


def test_impossible_settings_are_refused():
    with pytest.raises(SettingError, match="instances = 0"):
        GaussianInstances(instances=0).load()
