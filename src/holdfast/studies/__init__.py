"""Experiments as data: what to run, and what the paper says comes out. See docs/usage/studies.md."""

from holdfast.studies import rrnn as rrnn  # its procedures register themselves
from holdfast.studies import s2 as s2
from holdfast.studies import s4 as s4
from holdfast.studies import s5 as s5
from holdfast.studies.claims import Judged, judge
from holdfast.studies.config import (
    Claim,
    Figure,
    Run,
    RunSettings,
    Scale,
    Study,
    find_studies,
    find_study,
    load_study,
    run_settings,
    to_table,
)
from holdfast.studies.environment import Environment, environment
from holdfast.studies.procedures import PROCEDURES, procedure
from holdfast.studies.report import overview, overview_table, report, write_report
from holdfast.studies.result import Measured, StudyResult, read_result
from holdfast.studies.run import load_run, resume_run, train_run
from holdfast.studies.study import result_folder, run_study

__all__ = [
    "PROCEDURES",
    "Claim",
    "Environment",
    "Figure",
    "Judged",
    "Measured",
    "Run",
    "RunSettings",
    "Scale",
    "Study",
    "StudyResult",
    "environment",
    "find_studies",
    "find_study",
    "judge",
    "load_run",
    "load_study",
    "overview",
    "overview_table",
    "procedure",
    "read_result",
    "report",
    "result_folder",
    "resume_run",
    "run_settings",
    "run_study",
    "to_table",
    "train_run",
    "write_report",
]
