"""Makes ``_algorithm_1`` importable, here and in the processes that the tests start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
