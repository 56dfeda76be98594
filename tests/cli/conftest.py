"""What the tests of the command line share: a command run as a person runs it, but in this process."""

import contextlib
import dataclasses
import io
import math

import pytest
import torch

from holdfast.cli import main


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def _command(*arguments: object) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Ran(code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def _float32():
    """As users have it, and as the runs that all tests share."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def command():
    return _command


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# no time for compiling
_SMALL = ("task.steps=4", "task.validation=8", "task.test=8", "cell.options.backend=reference")
TINY = (*(word for setting in _SMALL for word in ("--set", setting)), "--hidden", 4, "--batch", 4, "-q")


@pytest.fixture(scope="session")
def tiny():
    """Options that make a training on the addition problem take milliseconds."""
    return TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert _command("train", "addition", *TINY, "--updates", 4, "--run", folder).code == 0
    return folder


def _waves(path, *, target: str | None = "label", count: int = 40):
    """Long format: slow and fast waves, of several lengths; a class, or the frequency as a number."""
    rows = ["name,x,y" + (f",{target}" if target else "")]
    for index in range(count):
        fast, steps = index % 2, 6 + index % 3
        answer = (
            ""
            if target is None
            else "," + (("slow", "fast")[fast] if target == "label" else f"{100 + 10 * fast + index / 10}")
        )
        rows += [f"s{index},{math.sin((0.2 + fast) * t + index):.4f},{t}{answer}" for t in range(steps)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="session")
def waves():
    return _waves


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """The folder of a run on a file of waves, and that file."""
    folder = tmp_path_factory.mktemp("own")
    data = _waves(folder / "mine.csv")
    words = ["--data", data, "--target", "label", "--set", "task.sequence=name", "--hidden", 4, "--epochs", 2, "-q"]
    ran = _command("train", *words, "--run", folder / "run")
    assert ran.code == 0, ran.text
    return folder / "run", data, ran
