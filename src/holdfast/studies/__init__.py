"""Experiments as data: what to run, and what the paper reports. See docs/usage/studies.md."""

from holdfast.runs import Measured
from holdfast.studies import s1 as s1  # its procedures register themselves
from holdfast.studies import s2 as s2
from holdfast.studies import s4 as s4
from holdfast.studies import s5 as s5
from holdfast.studies.claims import Judged, judge
from holdfast.studies.procedures import PROCEDURES, procedure
from holdfast.studies.report import overview, overview_table, report, write_report
from holdfast.studies.result import StudyResult, read_result, result_folder
from holdfast.studies.run import run_study
from holdfast.studies.study import Claim, Figure, Run, Scale, Study, find_studies, find_study, load_study

__all__ = [
    "PROCEDURES",
    "Claim",
    "Figure",
    "Judged",
    "Measured",
    "Run",
    "Scale",
    "Study",
    "StudyResult",
    "find_studies",
    "find_study",
    "judge",
    "load_study",
    "overview",
    "overview_table",
    "procedure",
    "read_result",
    "report",
    "result_folder",
    "run_study",
    "write_report",
]
