"""What test modules share: ``from helpers.cells import CELLS``. Fixtures are in the ``conftest.py`` of their folder.

pyproject.toml puts ``tests`` on the import path of pytest, ``environment()`` on that of a process that a test starts.
Two helpers are also programs for longer runs: ``PYTHONPATH=tests python -m helpers.fuzz`` and ``helpers.hammer``.
"""

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of this process, with ``helpers`` importable."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
