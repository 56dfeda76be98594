"""Study files: what they mean, and the error for one that means nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.studies.study import Claim, find_studies, find_study, load_study


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
    with pytest.raises(ConfigError, match=r"There is no study 's0/tny' in .*; known: s0/tiny"):
        find_study("s0/tny", root)


def test_a_study_outside_a_studies_folder_is_called_by_its_file_alone(tmp_path):
    """No name of a home folder may get into a result."""
    (tmp_path / "mine.toml").write_text("title = 'Mine'")
    assert load_study(tmp_path / "mine.toml").name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title  = "Tiny addition"', "", r"tiny.toml: title is missing"),
        ('title  = "Tiny addition"', 'title = "Tiny', r"tiny.toml is not valid TOML: .*line 2"),
        ("[scale.smoke]", "[scal.smoke]", r"tiny.toml: unknown key 'scal'; known: claim, defaults"),
        ("hidden_size = 4", "hidden_sise = 4", r"tiny.toml: run sgornn at smoke: unknown key 'hidden_sise' in cell"),
        ("seeds = [0, 1]", "seeds = [0, 0]", r"tiny.toml: scale.small: seeds must be .* none twice"),
        ("seeds = [0, 1]", "seeds = 0", r"tiny.toml: scale.small.seeds: Input should be a valid array, got 0"),
        ('run    = "exploding"', 'run = "expl"', r"unknown run 'expl'; known: sgornn, fastrnn, exploding"),
        ("at_least = 1.0", "", r"claim\[2\]: a claim needs at_most, at_least or both"),
        ("equals = 27", "equals = 27\nthan = 'fastrnn'", r"claim\[0\]: a claim needs"),
        ('name  = "fastrnn"', 'name  = "sgornn"', r"two runs are named 'sgornn'"),
        ('name  = "fastrnn"', 'name  = "../out"', r"run\[1\]: name must consist of letters"),
        ("each.fastrnn", "each.lstm", r"no run matches 'lstm'"),
        ("values = [1e-2, 1e-3, 1e-4]", "values = []", r"run\[1\].try: try needs at least one"),
        ('label = "SGORNN"', 'procedure = "trian"', r"run sgornn: unknown procedure 'trian'; known: .*train"),
        ("updates = 4", "updates = 1979-05-27", r"tiny.toml: defaults.train.updates must be a number, "),
    ],
)
def test_a_wrong_study_is_refused_with_the_file_and_the_place(tiny, old, new, message):
    tiny.write_text(tiny.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_study(tiny)


def test_a_file_that_is_no_text_or_not_there_is_a_config_error(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(ConfigError, match=r"bytes.toml is not valid TOML: 'utf-8' codec can't decode"):
        load_study(tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match=r"none.toml cannot be read: No such file"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "deep.toml").write_text("a = " + 3000 * "[")
    with pytest.raises(ConfigError, match=r"deep.toml is not valid TOML"):
        load_study(tmp_path / "deep.toml")
    (tmp_path / "long.toml").write_text("title = " + 9000 * "9")
    with pytest.raises(ConfigError, match=r"long.toml is not valid TOML"):
        load_study(tmp_path / "long.toml")


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_study_with_bytes_changed_loads_or_is_refused_and_nothing_else(tiny, tiny_text, data):
    text = bytearray(tiny_text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    tiny.write_bytes(bytes(text))
    try:
        load_study(tiny)
    except ConfigError as error:
        assert "tiny.toml" in str(error).split()[0]  # noqa: PT017 - either of the two is right


def test_accuracy_wants_to_be_high_and_errors_and_gaps_low():
    def lower(metric, **more):
        return Claim("", "a", metric, at_most=1.0, **more).lower_is_better

    assert lower("validation.mse")
    assert lower("train.accuracy - test.accuracy")
    assert not lower("test.accuracy")
    assert not lower("length", better="higher")
