"""``holdfast resume``: continue a run that was stopped or killed."""

from __future__ import annotations

from holdfast.cli._options import Accelerator, Devices, Json, Quiet, Run
from holdfast.cli.train import automatic, show_outcome

__all__ = ["EXAMPLES", "resume"]

EXAMPLES = ("holdfast resume runs/addition-sgornn-1",)


def resume(
    run: Run, devices: Devices = 1, accelerator: Accelerator = "cpu", quiet: Quiet = False, as_json: Json = False
) -> None:
    """Resume a run. It ends with the same weights, or the same choice of a model, as if it had never stopped."""
    from holdfast.runs.load import read_settings
    from holdfast.runs.train import resume_run

    settings = read_settings(run)
    if settings.network.name == "auto":
        automatic(settings, run, quiet, as_json)
        return
    show_outcome(run, resume_run(run, progress=not quiet, devices=devices, accelerator=accelerator), as_json)
