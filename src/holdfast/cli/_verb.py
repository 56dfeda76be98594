"""What all verbs share: registration, error messages and exit codes.

0 success   1 error   2 wrong usage   3 training diverged   130 Ctrl-C (SIGINT)   143 SIGTERM        (1)
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import signal
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from holdfast.errors import DataError, DivergedError, HoldfastError, Interrupted, LostProcessError, SettingError

__all__ = ["ExitCode", "explained", "in_flags", "is_main_process", "say", "verb"]


class ExitCode:
    """(1) by name."""

    DONE, ERROR, USAGE, DIVERGED = 0, 1, 2, 3
    SIGNALLED = 128  # plus the signal's number, as in shells


Debug = Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")]

_EXTRAS = {
    "lightning_fabric": "train",
    "matplotlib": "train",
    "pooch": "train",
    "pydantic": "train",
    "rich": "train",
    "safetensors": "train",
    "plotly": "diagnose",
    "optuna": "sweep",
    "sqlalchemy": "sweep",
    "pyarrow": "data",
    "openpyxl": "data",
    "onnx": "export",
}


def verb(app: typer.Typer, name: str, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    r"""Register a function as ``holdfast NAME``, with examples below its help and ``--debug`` among its options.

    Args:
        app: the application or group it belongs to.
        name: of the verb.
        examples: whole command lines; a test parses all of them.

    Example:
        >>> app = typer.Typer()
        >>> @verb(app, "fail", "holdfast fail")
        ... def fail() -> None:
        ...     raise HoldfastError("It failed; try something else.")
        >>> app.registered_commands[0].epilog
        '[bold]Examples[/bold]\n\nholdfast fail'
    """
    group = app.info.name if isinstance(app.info.name, str) and app.info.name != "holdfast" else ""
    spoken = " ".join(part for part in ("holdfast", group, name) if part)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(*arguments: Any, debug: bool = False, **options: Any) -> None:
            try:
                function(*arguments, **options)
            except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
                raise  # the parser's own; and a closed pipe needs no message
            except (Exception, KeyboardInterrupt) as error:
                if debug:
                    raise
                code, message = explained(error)
                say(f"{spoken}: {message}", by_all=_of_one_process(error))
                if isinstance(error, LostProcessError):
                    _leave(code)
                raise typer.Exit(code) from None

        hints = {**typing.get_type_hints(function, include_extras=True), "debug": Debug}
        given = [one.replace(annotation=hints[one.name]) for one in inspect.signature(function).parameters.values()]
        more = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
        command.__signature__ = inspect.Signature([*given, more])  # type: ignore[attr-defined]
        command.__annotations__ = hints
        shown = "\n\n".join(example.replace("[", r"\[") for example in examples)
        app.command(name, epilog=f"[bold]Examples[/bold]\n\n{shown}", no_args_is_help=False)(command)
        return function

    return register


def explained(error: BaseException) -> tuple[int, str]:
    """The exit code (1) and the message for an error.

    Example:
        >>> explained(OSError(errno.ENOSPC, "No space left on device", "runs/x/log.jsonl"))
        (1, 'runs/x/log.jsonl: No space left on device; free some space, or choose a folder on another disk.')
        >>> explained(KeyboardInterrupt())
        (130, 'stopped.')
    """
    match error:
        case KeyboardInterrupt():
            return ExitCode.SIGNALLED + signal.SIGINT, "stopped."
        case Interrupted():
            return ExitCode.SIGNALLED + error.signal, str(error)
        case DivergedError():
            return ExitCode.DIVERGED, str(error)
        case DataError() | SettingError():
            return ExitCode.ERROR, in_flags(str(error))
        case HoldfastError():
            return ExitCode.ERROR, str(error)
        case ImportError() if (extra := _EXTRAS.get((error.name or "").partition(".")[0])) is not None:
            return ExitCode.ERROR, f"{error.name} is not installed; run: pip install 'holdfast[{extra}]'"
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return ExitCode.ERROR, f"{where}{error.strerror or error}{_ADVICE.get(error.errno or 0, '.')}"
        case MemoryError():
            return ExitCode.ERROR, "not enough memory; lower --batch, --hidden or task.steps."
        case _:
            return ExitCode.ERROR, (
                f"unexpected {type(error).__name__}: {error}\n"
                "This is a bug in Holdfast. Please report it with the output of the same command with --debug."
            )


_FLAGS = {"target": "--target", "impute": "--impute", "test_path": "--test"}
_OPTION = re.compile(
    r"(?<![\w.-])(kind|layout|order|sequence|time|target|weights|impute|test_path)='([^']*)'"
    r"|(?<![\w.-])(validation|test|window|seed|standardise)=(\w+)|(?<![\w.-])features=\('([^']*)',\)"
)


def in_flags(text: str) -> str:
    """The options of your own data, as Python writes them, in the words of the command line.

    Example:
        >>> in_flags("Take layout='rows', or name the target: target='NAME'; set validation=0.")
        'Take --set task.layout=rows, or name the target: --target NAME; set --set task.validation=0.'
    """

    def flag(match: re.Match[str]) -> str:
        if match[5] is not None:
            return f"--set 'task.features=[\"{match[5]}\"]'"
        name, value = (match[1], match[2]) if match[1] else (match[3], match[4])
        return f"{_FLAGS[name]} {value}" if name in _FLAGS else f"--set task.{name}={value}"

    return _OPTION.sub(flag, text)


_ADVICE = {
    errno.ENOSPC: "; free some space, or choose a folder on another disk.",
    errno.EDQUOT: "; free some space, or choose a folder on another disk.",
    errno.EROFS: "; choose a writable folder.",
    errno.EACCES: "; change its permissions, or choose another.",
    errno.EPERM: "; change its permissions, or choose another.",
}


def say(message: str, *, by_all: bool = False) -> None:
    """Print for the person, not for the next program: on stderr, and by the first of several processes alone.

    Args:
        message: what to print.
        by_all: the other processes print it too, with their number before it.
    """
    if is_main_process():
        typer.echo(message, err=True)
    elif by_all:
        typer.echo(f"[process {os.environ.get('RANK') or os.environ.get('LOCAL_RANK')}] {message}", err=True)


def _of_one_process(error: BaseException) -> bool:
    """Whether an error need not come up in the first process too, so that each has to tell its own."""
    return isinstance(error, LostProcessError) or not isinstance(
        error, (HoldfastError, OSError, ImportError, KeyboardInterrupt)
    )


def _leave(code: int) -> None:
    """End without the interpreter's teardown: there, threads of a broken connection abort one process in four."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_main_process() -> bool:
    """Whether this is the only process of a run, or the first under ``torchrun`` or ``--devices``.

    Example:
        >>> is_main_process()
        True
    """
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK"))
