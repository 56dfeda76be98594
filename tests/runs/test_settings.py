"""Settings of a run: what they mean, and the error for those that mean nothing."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.runs.prepare import prepare
from holdfast.runs.settings import RunSettings, overridden, run_settings, to_table
from holdfast.tasks import Addition
from holdfast.train.settings import LRSchedule, ModelSettings, Training

BASE = {"task": {"name": "addition", "steps": 6}, "train": {"updates": 3}}


def test_settings_survive_the_way_through_json():
    settings = RunSettings(
        Addition(steps=7, form="three-class"),
        ModelSettings("sgornn", 6, options={"gates": {"clip": "2alpha", "horizon": 50}}, initial_state=0.1),
        Training(epochs=2.5, options={"alpha": 0.9}, schedule=LRSchedule("step", at=(0.5, 100)), evaluate_on=("test",)),
        "addition",
    )
    assert run_settings(json.loads(json.dumps(to_table(settings)))) == settings


@given(
    steps=st.integers(2, 10**6),
    hidden=st.integers(1, 4000).map(lambda n: 2 * n),
    lr=st.floats(1e-12, 1e3),
    seed=st.integers(0, 2**63 - 1),
    at=st.lists(st.floats(0, 1e9), min_size=1, max_size=3),
    clip=st.none() | st.floats(1e-9, 1e9),
)
@settings(max_examples=25, deadline=None)
def test_every_setting_survives_the_way_through_json(steps, hidden, lr, seed, at, clip):
    made = RunSettings(
        Addition(steps=steps),
        ModelSettings("vprnn", hidden),
        Training(updates=steps, lr=lr, seed=seed, clip=clip, schedule=LRSchedule("step", at=tuple(at))),
        "addition",
    )
    assert run_settings(json.loads(json.dumps(to_table(made)))) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell.hiden_size": 3}, r"mine.toml: unknown key 'hiden_size' in cell; known: act.*hidden_size"),
        ({"task.length": 3}, r"mine.toml: unknown key 'length' in task; known: form, steps, test, validation"),
        (
            {"train.schedule.knd": 1},
            r"unknown key 'knd' in train.schedule; known: at, factor, kind, on, over, patience",
        ),
        ({"model": 1}, r"mine.toml: unknown key 'model'; known: cell, task, train"),
        ({"task.name": "adition"}, r"unknown task 'adition'; known: addition"),
        ({"task": 3}, r"task must be a table with a name; known tasks: addition"),
        ({"cell": [3]}, r"cell must be a table, got \[3\]"),
        ({"cell.name": "sgorn"}, r"unknown cell 'sgorn'; known: .*exprnn, fastgrnn"),
        ({"cell.hidden_size": "12"}, r"cell.hidden_size: Input should be a valid integer, got '12'"),
        ({"cell.hidden_size": True}, r"cell.hidden_size: Input should be a valid integer, got True"),
        ({"cell.hidden_size": 0}, r"cell: hidden_size must be at least 1, got 0"),
        ({"cell.dropout": 1.5}, r"cell: dropout must be at least 0 and less than 1, got 1.5"),
        ({"cell.options": {"gate": 1}}, r"cell: sgornn has no option 'gate'; known: backend, bias, gates"),
        ({"cell.options": {"gates": {"clp": 1}}}, r"cell: gates has no option 'clp'; known: alpha_logit"),
        ({"cell.options": {"gates": 3}}, r"cell: gates must be a table, got 3"),
        ({"cell.options": {"bias": "no"}}, r"cell.options.bias: Input should be a valid boolean, got 'no'"),
        ({"cell.options": {"nonlinearity": 3}}, r"cell.options.nonlinearity: Input should be"),
        ({"cell.options": {"gates": {"alpha_logit": "low"}}}, r"cell"),
        ({"train.lr": -1.0}, r"train: lr must be greater than 0, got -1.0"),
        ({"train.lr": float("nan")}, r"train: lr must be greater than 0, got nan"),
        ({"train.schedule.kind": "cosine"}, r"train.schedule.kind: Input should be 'constant', 'linear'"),
        ({"train.evaluate_on": "test"}, r"train.evaluate_on: Input should be a valid array, got 'test'"),
        ({"train.schedule": {"kind": "step", "at": [1, "x"]}}, r"train.schedule.at\[1\]: Input should be a"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_its_place_and_what_is_known(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run_settings(overridden(BASE, changes), "mine.toml")
    assert str(caught.value).startswith("mine.toml")


def test_a_check_of_settings_draws_no_random_number():
    before = torch.get_rng_state()
    run_settings(BASE)
    assert torch.equal(before, torch.get_rng_state())


def test_a_value_that_no_signature_shows_is_refused_when_the_model_is_built():
    with pytest.raises(ConfigError, match=r"cell: SGORNNCell expects nonlinearity to be one of .*, got 'rel'"):
        prepare(run_settings(overridden(BASE, {"cell.options.nonlinearity": "rel"})))


def test_updates_and_epochs_replace_each_other():
    assert overridden({"train": {"epochs": 3}}, {"train.updates": 5}) == {"train": {"updates": 5}}
    assert overridden({"train": {"updates": 3}}, {"train": {"epochs": 5}}) == {"train": {"epochs": 5}}


def test_overriding_leaves_the_defaults_as_they_were():
    table = {"cell": {"options": {"a": 1}}}
    overridden(table, {"cell.options.b": 2})["cell"]["options"]["a"] = 5
    assert table == {"cell": {"options": {"a": 1}}}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TABLES = st.deferred(lambda: st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
VALUES = SCALARS | TABLES
KEYS = [
    f"{table}.{field.name}"
    for table, kind in (
        ("task", Addition),
        ("cell", ModelSettings),
        ("train", Training),
        ("train.schedule", LRSchedule),
    )
    for field in dataclasses.fields(kind)
]


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_settings_of_any_value_are_taken_or_refused_and_nothing_else(changes):
    try:
        run_settings(overridden(BASE, changes), "mine.toml")
    except ConfigError as error:
        assert str(error).startswith("mine.toml: ")  # noqa: PT017 - either of the two is right
