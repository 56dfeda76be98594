"""A run folder under the hammer: killed at random moments, and damaged in every way that a disk or a person has.

    PYTHONPATH=tests python -m helpers.hammer kills 1000 --seed 1       resumed to the same bits as a run left alone (1)
    PYTHONPATH=tests python -m helpers.hammer mutations 10000 --seed 1  a clear error or the same bits, nothing else (2)

A clear error is one of ``holdfast.errors`` that names a file of the folder. "Bits" are weights, optimiser, generators,
log and outcome; the clock (``seconds``, ``cpu_seconds`` and ``times.jsonl``) is not among them. A small sample of both
runs with the tests.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.noisy_run import noisy_run
from holdfast.errors import HoldfastError, Interrupted, UncheckedWarning
from holdfast.train import checkpoint, fit
from holdfast.train.log import read_log

SEEDS = (0, 1)  # of the runs themselves
COMPARED = ("last.safetensors", "best.safetensors", "log.jsonl", "settings.json")
NAMES = (*COMPARED, "SHA256SUMS", "outcome.json", "times.jsonl", "model.json", "environment.json")


def train(folder: Path, seed: int, *, stop: int | None = None, alive: int | None = None, **changes) -> dict:
    """A run by ``fit`` alone, with a settings.json beside it; the outcome without the clock."""
    folder.mkdir(exist_ok=True)
    settings = folder / "settings.json"
    if not settings.exists() and not (folder / "last.safetensors").exists():
        settings.write_text(json.dumps({"seed": seed, "of": "hammer"}))
    outcome = fit(*noisy_run(seed=seed, **changes), folder, progress=False, watch=_Stop(stop, alive))
    return timeless(dataclasses.asdict(outcome))


def train_study(folder: Path, seed: int, *, stop: int | None = None, **_) -> dict:
    """A run by ``train_run`` and ``resume_run``, which read their settings from the folder."""
    from holdfast.runs import resume_run, run_settings, train_run

    if (folder / "settings.json").exists() or (folder / "last.safetensors").exists():
        return timeless(dataclasses.asdict(resume_run(folder, progress=False)))
    look = {"look": lambda *_: signal.raise_signal(signal.SIGTERM), "at": {stop}} if stop else {}
    table = {
        "task": {"name": "addition", "steps": 4, "validation": 8, "test": 8},
        "cell": {"name": "sgornn", "hidden_size": 4, "options": {"backend": "reference"}},
        "train": {"updates": 12, "batch": 4, "evaluate_every": 3, "seed": seed, "checkpoint_seconds": 1e9},
    }
    return timeless(dataclasses.asdict(train_run(run_settings(table), folder, progress=False, **look)))


def timeless(outcome: dict) -> dict:
    return {name: value for name, value in outcome.items() if name not in ("seconds", "cpu_seconds")}


class _Stop:
    """A byte into the pipe ``alive`` at the first update; SIGTERM after update ``at``, so that the run saves itself."""

    def __init__(self, at: int | None, alive: int | None = None):
        self.at, self.alive = at, alive

    def __call__(self, done: int) -> None:
        if self.alive is not None:
            os.write(self.alive, b".")
            self.alive = None
        if done == self.at:
            signal.raise_signal(signal.SIGTERM)


# -- (1) -------------------------------------------------------------------------------------------------------------


def kills(count: int, seed: int, *, longest: float = 0.25, epochs: int = 3) -> int:
    """SIGKILL ``count`` times in all; every run that gets to its end is compared byte by byte. Returns failures."""
    import lightning_fabric  # noqa: F401 - what every attempt needs is imported once, before the forks

    chance, place = random.Random(seed), Path(tempfile.mkdtemp(prefix="hammer-"))
    alone = {run: place / f"alone-{run}" for run in SEEDS}
    for run, folder in alone.items():
        if status := _child(functools.partial(train, folder, run, epochs=epochs)):
            raise SystemExit(f"The run left alone failed: {status}")
    killed = compared = failed = leftovers = 0
    begin, run, folder = time.monotonic(), SEEDS[0], place / "killed"
    while True:
        # one kill in four while the process starts and loads, the others while it trains, saves and ends
        starting, moment = chance.random() < 0.25, chance.uniform(0.0, longest)
        work = functools.partial(train, folder, run, epochs=epochs)
        status = _child(work, None if killed >= count else (starting, moment))
        if status == -signal.SIGKILL:
            killed += 1
            leftovers += len(list(folder.glob(".*.part")))
            if killed % 100 == 0:
                print(f"{killed} kills, {compared} ends compared, {time.monotonic() - begin:.0f} s", flush=True)
            continue
        different = [name for name in COMPARED if (folder / name).read_bytes() != (alone[run] / name).read_bytes()]
        outcomes = [timeless(json.loads((it / "outcome.json").read_text())) for it in (folder, alone[run])]
        if status or different or outcomes[0] != outcomes[1] or list(folder.glob(".*")):
            failed += 1
            folder.rename(place / f"failed-{failed}")
            print(f"FAILED: status {status}, different {different}, kept in {place}/failed-{failed}", flush=True)
        compared += 1
        shutil.rmtree(folder, ignore_errors=True)
        if killed >= count:
            break
        run = chance.choice(SEEDS)
    print(
        f"{killed} kills, {compared} runs resumed to their end, {failed} of them different from the run left alone; "
        f"{leftovers} .part files were left by kills and removed; seed {seed}, {time.monotonic() - begin:.0f} s"
    )
    shutil.rmtree(place) if not failed else None
    return failed


def _child(work: Callable[..., object], kill: tuple[bool, float] | None = None) -> int:
    """Do ``work`` in a process of its own; its exit code, or minus the signal that ended it.

    Args:
        work: takes a pipe that it writes to when it makes its first update.
        kill: whether to count from the start of the process, not from that update, and after how many seconds.
    """
    heard, alive = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(heard)
            torch.set_num_threads(1)
            work(alive=alive)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(alive)
    if kill is not None:
        if not kill[0]:
            select.select([heard], [], [])  # a first update, or the end
        time.sleep(kill[1])
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(heard)
    return os.waitstatus_to_exitcode(status)


# -- (2) -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Base:
    """A sound folder: what is read from it, and what it comes to when it is resumed."""

    folder: Path
    resume: Callable[[Path], dict]
    weights: dict[str, set[bytes]]  # at any time of this run: an older last checkpoint is a sound one
    logs: list[list]
    outcome: dict
    end: dict[str, bytes]
    ended: bool


def bases(place: Path, kind: str) -> list[Base]:
    """Runs of two seeds, each at two stages on the way and at its end."""
    do = train if kind == "fit" else train_study
    found = []
    for seed in SEEDS:
        changes = {"epochs": 1, "checkpoint_seconds": 1e9}
        end = place / f"{kind}-{seed}-end"
        outcome = do(end, seed, **changes)
        final = {name: (end / name).read_bytes() for name in COMPARED}

        resume = functools.partial(do, seed=seed, **changes)
        weights: dict[str, set[bytes]] = {"best": set(), "last": set()}
        logs: list[list] = []
        for stop in (5, 10, None):
            folder = end if stop is None else place / f"{kind}-{seed}-{stop}"
            if stop is not None:
                with contextlib.suppress(Interrupted):
                    do(folder, seed, stop=stop, **changes)
            for which, known in weights.items():
                known.add(_weights(folder, which))
            logs.append(read_log(folder / "log.jsonl"))
            found.append(Base(folder, resume, weights, logs, outcome, final, stop is None))
    return found


def _weights(folder: Path, which: str) -> bytes:
    """The weights as ``load_model_`` puts them into a model (or, for a study's run, ``load_run``)."""
    if (folder / "environment.json").exists():
        from holdfast.runs import load_run

        model = load_run(folder, which).model
    else:
        model = noisy_run()[0]
        checkpoint.load_model_(model, folder / f"{which}.safetensors")
    return b"".join(weight.detach().numpy().tobytes() for weight in model.state_dict().values())


def mutations(count: int, seed: int, *, first: int = 0, kind: str = "fit", limit: int = 20) -> int:
    """Damage ``count`` folders, read and resume each. Returns how many gave neither an error nor the same bits."""
    warnings.simplefilter("error", UncheckedWarning)  # nothing here is of an older Holdfast
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="hammer-", dir=shared if shared.is_dir() else None))
    sound, told, wrong, begin = bases(place, kind), collections.Counter(), 0, time.monotonic()
    for number in range(first, first + count):
        chance = random.Random(f"{seed} {number}")  # a case can be repeated alone
        base, folder = chance.choice(sound), place / "case"
        shutil.copytree(base.folder, folder)
        changed = mutate(folder, chance, [other.folder for other in sound])
        problems = check(base, folder, told)
        if problems:
            wrong += 1
            print(f"WRONG: seed {seed}, case {number}, {base.folder.name}, {changed}: {problems}", flush=True)
            if wrong >= limit:
                break
        shutil.rmtree(folder)
        if (number + 1 - first) % 500 == 0:
            print(f"{number + 1 - first} folders, {wrong} wrong, {time.monotonic() - begin:.0f} s", flush=True)
    print(
        f"{number + 1 - first} mutated folders ({kind}), {wrong} with neither a clear error nor the same bits; "
        f"of the uses: {dict(sorted(told.items()))}; seed {seed}, {time.monotonic() - begin:.0f} s"
    )
    shutil.rmtree(place)
    return wrong


def check(base: Base, folder: Path, told: collections.Counter) -> list[str]:
    """Use a damaged folder in all ways; what is wrong about what came of it."""
    problems = []

    def use(what: str, right: Callable[[object], bool], work: Callable[[], object]) -> None:
        try:
            found = work()
        except HoldfastError as error:
            named = any(name in str(error) for name in (*NAMES, str(folder)))
            told[f"{what}: {'clear error' if named else 'unclear'}"] += 1
            if not named:
                problems.append(f"{what} names no file: {error}")
        except Exception as error:
            problems.append(f"{what}: {type(error).__name__}: {error}")
            told[f"{what}: {type(error).__name__}"] += 1
        else:
            told[f"{what}: {'same bits' if right(found) else 'OTHER BITS'}"] += 1
            if not right(found):
                problems.append(f"{what}: other bits")

    for which in ("best", "last"):
        use(which, base.weights[which].__contains__, lambda which=which: _weights(folder, which))
    if (log := folder / "log.jsonl").exists():
        longest = max(base.logs, key=len)  # while a run goes on, any beginning of its log is a sound one
        sound = [longest] if base.ended and (folder / "outcome.json").exists() else None
        use("log", lambda it: it in sound if sound else it == longest[: len(it)], lambda: read_log(log))
    if base.ended and (folder / "environment.json").exists():
        from holdfast.runs.measured import cell_parameters

        wanted = cell_parameters(base.folder)
        use("parameters", lambda it: it == wanted, lambda: cell_parameters(folder))
    fresh = base.ended and (folder / "outcome.json").exists()  # nothing is trained, so nothing is written

    def resume() -> tuple:
        outcome = base.resume(folder)
        return outcome, {} if fresh else {name: (folder / name).read_bytes() for name in COMPARED}

    use("resume", lambda it: it == (base.outcome, {} if fresh else base.end), resume)
    if problems == [] and list(folder.glob(".*")):
        problems.append("leftovers")
    return problems


def mutate(folder: Path, chance: random.Random, others: list[Path]) -> list[str]:
    """Change one to three things; what was done, in words."""
    done = []
    for _ in range(chance.choices((1, 2, 3), (70, 20, 10))[0]):
        present = sorted(path for path in folder.iterdir() if path.name != "environment.json")  # never read back
        path, how = chance.choice(present), chance.choice(sorted(MUTATIONS))
        MUTATIONS[how](path, chance, present, others)
        done.append(f"{how} {path.name}")
        if not (folder / "SHA256SUMS").exists() and not list(folder.glob("*.safetensors")):
            shutil.copy(
                chance.choice(others) / "SHA256SUMS", folder
            )  # settings alone are no run, but a request for one
    return done


def _flip(path, chance, *_):
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 4)) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _byte(path, chance, *_):
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def _digit(path, chance, *_):
    """Leaves JSON what it is."""
    data = bytearray(path.read_bytes())
    if places := [place for place, value in enumerate(data) if chr(value) in "0123456789"]:
        data[chance.choice(places)] = ord(chance.choice("0123456789"))
    path.write_bytes(data)


def _cut(path, chance, *_):
    data = path.read_bytes()
    ends = [place + 1 for place, value in enumerate(data) if value == 10]
    end = chance.choice(ends) if ends and chance.random() < 0.5 else chance.randrange(len(data) + 1)
    path.write_bytes(data[:end])


def _zeros(path, chance, *_):
    data = bytearray(path.read_bytes())
    begin, size = chance.randrange(len(data) + 1), chance.choice((8, 64, 512, 4096))
    data[begin : begin + size] = bytes(len(data[begin : begin + size]))
    path.write_bytes(data)


def _more(path, chance, *_):
    data = path.read_bytes()
    tails = (b"\n", b"\0" * 512, chance.randbytes(chance.randrange(1, 200)), data, data[len(data) // 2 :], b" ")
    path.write_bytes(data + chance.choice(tails))


def _missing(path, *_):
    path.unlink(missing_ok=True)


def _copied(path, chance, present, _):
    if (source := chance.choice(present)).exists() and source != path:
        shutil.copyfile(source, path)


def _swapped(path, chance, present, _):
    if path.exists() and (other := chance.choice(present)).exists():
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)


def _foreign(path, chance, _, others):
    """The same file of another run, or of another time of this one."""
    if (source := chance.choice(others) / path.name).exists():
        shutil.copyfile(source, path)


MUTATIONS = {
    "flip": _flip,
    "byte": _byte,
    "digit": _digit,
    "cut": _cut,
    "zeros": _zeros,
    "more": _more,
    "missing": _missing,
    "copied": _copied,
    "swapped": _swapped,
    "foreign": _foreign,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "mutations"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation, to repeat one")
    parser.add_argument("--kind", choices=("fit", "study"), default="fit", help="of mutated runs")
    given = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if given.what == "kills":
        return min(1, kills(given.count, given.seed))
    return min(1, mutations(given.count, given.seed, first=given.first, kind=given.kind))


if __name__ == "__main__":
    sys.exit(main())
