"""``holdfast export``: a trained run as a file for another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli._options import Run, Which, chosen_from
from holdfast.cli._show import show

__all__ = ["EXAMPLES", "export"]

EXAMPLES = (
    "holdfast export runs/mine --to model.onnx",
    "holdfast export runs/mine --to model.c --name gesture --int8",
    "holdfast export runs/mine --to model.pt2",
)


def export(
    run: Run,
    to: Annotated[Path, typer.Option(help="File to write: .onnx, .c or .pt2. The suffix chooses the format.")],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the ONNX graph, or prefix of all names in C.", show_default="the run's, or the file's"
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="C only: store matrices in int8.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="C with --int8 only: file like the training file, to choose the scales by.",
            show_default="the training split",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    which: Which = None,
) -> None:
    r"""Write the trained model of a run to a file that runs without Holdfast.

    Choose by where it will run.

    [bold].onnx[/bold]: a server, phone or browser, with ONNX Runtime.
    Whole sequences, or one step per call. pip install 'holdfast\[export]'

    [bold].c[/bold]: a microcontroller. One C99 file and its header,
    without allocation. One step per call.

    [bold].pt2[/bold]: Python with PyTorch alone, through torch.export.

    The file takes numbers in the units of the training data. It holds the
    standardisation and the names of columns and classes. In Python with
    Holdfast, no export is needed: holdfast.load_run("RUN").
    """
    from holdfast.export.targets import export_run

    weights: Any = which and chosen_from(("best", "last"), which, "--which")
    report = export_run(run, to, which=weights, name=name, int8=int8, calibrate=data, force=force)
    for line in report.lines:
        show(line)
