"""What all verbs share: options, help, completion, errors, exit codes."""

import importlib.util
import shlex
import subprocess
import sys

import pytest
import typer

from holdfast.cli import _names, main
from holdfast.cli._app import app
from holdfast.cli._verb import explained

OPTIONS = {
    "train": "--accelerator --batch --cell --clip --config --data --debug --devices --epochs --figure --forecast "
    "--hidden --horizon --impute --json --known --layers --lr --minutes --optimiser --patience --quiet --run "
    "--schedule --season --seed --sequence --set --target --test --time --updates --watch task",
    "resume": "--accelerator --debug --devices --json --quiet run",
    "evaluate": "--data --debug --json --split --which run",
    "diagnose": "--data --debug --json --lag --out --quiet --which run runs",
    "predict": "--data --debug --out --which run",
    "export": "--data --debug --force --int8 --name --to --which run",
    "sweep": "--cell --data --debug --json --quiet --root --run --sampler --scale --seed --set --storage --study-name "
    "--target --trials study",
    "study list": "--debug --json --root",
    "study run": "--debug --only --quiet --results --root --runs --scale study",
    "study report": "--debug --json --results --root --scale study",
    "data list": "--debug --json",
    "data check": "--debug --json",
    "data get": "--debug task",
    "bench": "--batch --cell --debug --hidden --inputs --json --rounds --steps",
    "cite": "--debug run",
}


def _commands(group=None, path=()):
    """Every verb by its words."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands())


def _named(parameter) -> str:
    return max((*parameter.opts,), key=len) if parameter.opts else parameter.name


def test_the_options_are_these():
    """A new one, or one less, is a decision: it changes this table and the documents."""
    found = {
        name: " ".join(sorted(_named(one) for one in command.params if _named(one) != "--help"))
        for name, command in COMMANDS.items()
    }
    assert found == OPTIONS


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_of_a_verb_has_examples_that_parse(name, command):
    ran = command(*name.split(), "--help")
    assert ran.code == 0
    assert "Examples" in ran.out
    examples = [line for line in COMMANDS[name].epilog.split("\n\n") if line.startswith("holdfast ")]
    assert examples
    for example in examples:
        words = shlex.split(example, comments=True)
        assert " ".join(words[1:]).startswith(name)
        COMMANDS[name].make_context(name, words[1 + len(name.split()) :])  # parses, or raises


def test_every_option_stands_in_the_document():
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "usage" / "command-line.md").read_text()
    missing = [
        option for options in OPTIONS.values() for option in options.split() if option[0] == "-" and option not in text
    ]
    assert not missing


def test_the_version_is_told(command):
    ran = command("--version")
    assert ran.code == 0
    assert ran.out.split()[0] == "holdfast"
    assert ran.out.split()[1][0].isdigit()


def test_wrong_usage_is_exit_code_two(command):
    both = ["train", "addition", "--updates", "1", "--epochs", "1"]
    for words in (
        ["trian"],
        ["train", "--colour", "red"],
        ["train", "addition", "--updates", "many"],
        ["predict"],
        both,
    ):
        ran = command(*words)
        assert ran.code == 2, words
        assert "Traceback" not in ran.text


def test_an_error_is_one_sentence_and_debug_shows_where_it_comes_from(command, here):
    ran = command("evaluate", "nothing")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "holdfast evaluate: nothing is not a run folder: it has no settings.json.\n"
    with pytest.raises(ValueError, match="is not a run folder"):
        command("evaluate", "nothing", "--debug")


def test_an_error_that_nobody_foresaw_is_said_to_be_one():
    code, message = explained(ZeroDivisionError("division by zero"))
    assert code == 1
    assert "unexpected ZeroDivisionError" in message
    assert "--debug" in message


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else find(name))
    assert main(["--help"]) == 1
    assert capsys.readouterr().err == "typer is not installed; run: pip install 'holdfast[train]'\n"
    assert explained(ModuleNotFoundError("No module named 'optuna'", name="optuna")) == (
        1,
        "optuna is not installed; run: pip install 'holdfast[sweep]'",
    )


def test_a_shell_completes_verbs_and_names(command, monkeypatch):
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    for words, completed in {
        "holdfast ev": "evaluate",
        "holdfast train add": "addition",
        "holdfast train addition --cell sg": "sgornn",
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert completed in command().out.split()


def test_what_can_be_completed_is_what_there_is():
    from holdfast.tasks import TASKS
    from holdfast.train import LAYERS, OPTIMISERS
    from holdfast.train.model import TREE_LSTM

    assert sorted(_names.CELLS) == sorted(LAYERS)
    assert _names.TREES == (TREE_LSTM,)
    assert sorted(_names.OPTIMISERS) == sorted(OPTIMISERS)
    assert sorted(_names.TASKS) == sorted(TASKS)


def test_run_folders_are_completed(trained, monkeypatch):
    monkeypatch.chdir(trained.parent)
    assert _names.runs("./")[:1] or _names.runs(f"{trained.parent}/") == [trained.as_posix()]


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_neither_pytorch_nor_another_large_library(words):
    program = (
        "import sys\nfrom holdfast.cli import main\n"
        f"assert main({words!r}) == 0\n"
        "heavy = {'torch', 'numpy', 'lightning_fabric', 'optuna', 'matplotlib', 'pyarrow', 'pooch'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
