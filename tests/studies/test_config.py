"""Settings and study files: what they mean, and what is said of one that means nothing."""

import dataclasses
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.studies.config import (
    Claim,
    RunSettings,
    find_studies,
    find_study,
    load_study,
    overridden,
    run_settings,
    to_table,
)
from holdfast.tasks import Addition
from holdfast.train.settings import Network, Schedule, Training

BASE = {"task": {"name": "addition", "steps": 6}, "train": {"updates": 3}}


def test_settings_survive_the_way_through_json():
    settings = RunSettings(
        Addition(steps=7, form="three-class"),
        Network("sgornn", 6, options={"gates": {"clip": "2alpha", "horizon": 50}}, initial_state=0.1),
        Training(epochs=2.5, options={"alpha": 0.9}, schedule=Schedule("step", at=(0.5, 100)), evaluate_on=("test",)),
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
        Network("vprnn", hidden),
        Training(updates=steps, lr=lr, seed=seed, clip=clip, schedule=Schedule("step", at=tuple(at))),
        "addition",
    )
    assert run_settings(json.loads(json.dumps(to_table(made)))) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell.hiden_size": 3}, r"mine.toml: unknown key 'hiden_size' in cell; known: bidirectional, .*hidden_size"),
        ({"task.length": 3}, r"mine.toml: unknown key 'length' in task; known: form, steps, test, validation"),
        ({"train.schedule.knd": 1}, r"unknown key 'knd' in train.schedule; known: at, factor, kind, over, patience"),
        ({"model": 1}, r"mine.toml: unknown key 'model'; known: cell, task, train"),
        ({"task.name": "adition"}, r"unknown task 'adition'; known: addition"),
        ({"task": 3}, r"task expects a table with the task's name; known: addition"),
        ({"cell": [3]}, r"cell expects a table, got \[3\]"),
        ({"cell.name": "sgorn"}, r"unknown cell 'sgorn'; known: exprnn, fastrnn"),
        ({"cell.hidden_size": "12"}, r"cell.hidden_size: Input should be a valid integer, got '12'"),
        ({"cell.hidden_size": True}, r"cell.hidden_size: Input should be a valid integer, got True"),
        ({"cell.hidden_size": 0}, r"cell.hidden_size expects at least 1, got 0"),
        ({"cell.dropout": 1.5}, r"cell.dropout expects at least 0 and less than 1, got 1.5"),
        ({"cell.options": {"gate": 1}}, r"cell: sgornn has no option 'gate'; known: backend, bias, gates"),
        ({"cell.options": {"gates": {"clp": 1}}}, r"cell: gates takes alpha_logit, beta_logit, clip, horizon; got clp"),
        ({"cell.options": {"nonlinearity": "rel"}}, r"rel"),
        ({"cell.options": {"gates": {"alpha_logit": "low"}}}, r"cell"),
        ({"train.lr": -1.0}, r"train: Training expects lr above 0, got -1.0"),
        ({"train.lr": float("nan")}, r"train: Training expects lr above 0, got nan"),
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


def test_updates_and_epochs_replace_each_other():
    assert overridden({"train": {"epochs": 3}}, {"train.updates": 5}) == {"train": {"updates": 5}}
    assert overridden({"train": {"updates": 3}}, {"train": {"epochs": 5}}) == {"train": {"epochs": 5}}


def test_overriding_leaves_the_defaults_as_they_were():
    table = {"cell": {"options": {"a": 1}}}
    overridden(table, {"cell.options.b": 2})["cell"]["options"]["a"] = 5
    assert table == {"cell": {"options": {"a": 1}}}


def test_settings_are_defaults_then_run_then_scale_then_value_then_seed(tiny):
    study = load_study(tiny)
    run = study.run[1]
    table = study.table(run, "small", 3, 1e-4)
    assert table["cell"] == {"hidden_size": 4, "name": "fastrnn", "options": {"nonlinearity": "relu"}}
    assert (table["train"]["lr"], table["train"]["seed"], table["train"]["batch"]) == (1e-4, 3, 4)
    assert study.values(run, "small") == (1e-2, 1e-3)  # tries = 2
    assert study.seeds(run, "small") == (3,)
    assert [it.name for it in study.runs_at("smoke")] == ["sgornn"]


def test_studies_are_found_by_name_and_by_path(tiny):
    root = tiny.parents[1]
    assert find_studies(root) == [tiny]
    assert find_study("s0/tiny", root).name == find_study(str(tiny)).name == load_study(tiny).name == "s0/tiny"
    with pytest.raises(ConfigError, match=r"No study 's0/tny' in .*; known: s0/tiny"):
        find_study("s0/tny", root)


def test_a_study_outside_a_studies_folder_is_called_by_its_file_alone(tmp_path):
    """No name of a home folder may get into a result."""
    (tmp_path / "mine.toml").write_text("title = 'Mine'")
    assert load_study(tmp_path / "mine.toml").name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title  = "Tiny addition"', "", r"tiny.toml: title is missing"),
        ('title  = "Tiny addition"', 'title = "Tiny', r"tiny.toml: not TOML: .*line 2"),
        ("[scale.smoke]", "[scal.smoke]", r"tiny.toml: unknown key 'scal'; known: claim, defaults"),
        ("hidden_size = 4", "hidden_sise = 4", r"tiny.toml: run sgornn at smoke: unknown key 'hidden_sise' in cell"),
        ("seeds = [0, 1]", "seeds = [0, 0]", r"tiny.toml: scale.small: a scale expects .* no seed twice"),
        ("seeds = [0, 1]", "seeds = 0", r"tiny.toml: scale.small.seeds: Input should be a valid array, got 0"),
        ('run    = "exploding"', 'run = "expl"', r"unknown run 'expl'; known: sgornn, fastrnn, exploding"),
        ("at_least = 1.0", "", r"claim\[2\]: a claim expects at_most, at_least or both"),
        ("equals = 27", "equals = 27\nthan = 'fastrnn'", r"claim\[0\]: a claim expects"),
        ('name  = "fastrnn"', 'name  = "sgornn"', r"two runs are called 'sgornn'"),
        ('name  = "fastrnn"', 'name  = "../out"', r"run\[1\]: a run's name is made of letters"),
        ("each.fastrnn", "each.lstm", r"no run is called 'lstm'"),
        ("values = [1e-2, 1e-3, 1e-4]", "values = []", r"run\[1\].try: try expects at least one"),
        ('label = "SGORNN"', 'procedure = "trian"', r"run sgornn: unknown procedure 'trian'; known: .*train"),
        ("updates = 4", "updates = 1979-05-27", r"tiny.toml: defaults.train.updates expects a number, "),
    ],
)
def test_a_wrong_study_is_refused_with_the_file_and_the_place(tiny, old, new, message):
    tiny.write_text(tiny.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_study(tiny)


def test_a_file_that_is_no_text_or_not_there_is_a_config_error(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(ConfigError, match=r"bytes.toml: expects UTF-8 text, but byte 9 is not"):
        load_study(tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read: No such file"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "deep.toml").write_text("a = " + 3000 * "[")
    with pytest.raises(ConfigError, match=r"deep.toml: not TOML"):
        load_study(tmp_path / "deep.toml")
    (tmp_path / "long.toml").write_text("title = " + 9000 * "9")
    with pytest.raises(ConfigError, match=r"long.toml: "):
        load_study(tmp_path / "long.toml")


def refusal(read, file, *more):
    """What ConfigError says, or just the file's name if there is nothing to say; any other error passes through."""
    try:
        read(file, *more)
    except ConfigError as error:
        return str(error)
    return f"{more[0] if more else file.name}: taken"


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_study_with_bytes_changed_loads_or_is_refused_and_nothing_else(tiny, tiny_text, data):
    text = bytearray(tiny_text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    tiny.write_bytes(bytes(text))
    assert refusal(load_study, tiny).startswith("tiny.toml: ")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TABLES = st.deferred(lambda: st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
VALUES = SCALARS | TABLES
KEYS = [
    f"{table}.{field.name}"
    for table, kind in (("task", Addition), ("cell", Network), ("train", Training), ("train.schedule", Schedule))
    for field in dataclasses.fields(kind)
]


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_settings_of_any_value_are_taken_or_refused_and_nothing_else(changes):
    assert refusal(run_settings, overridden(BASE, changes), "mine.toml").startswith("mine.toml: ")


def test_accuracy_wants_to_be_high_and_errors_and_gaps_low():
    def lower(metric, **more):
        return Claim("", "a", metric, at_most=1.0, **more).lower_is_better

    assert lower("validation.mse")
    assert lower("train.accuracy - test.accuracy")
    assert not lower("test.accuracy")
    assert not lower("length", better="higher")
