"""Examples and tools are scripts: a test runs their functions without installing them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from helpers import TESTS


def script(path: str | Path) -> ModuleType:
    """The script at ``path``, relative to the repository, as a module; its ``main`` is not run."""
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", TESTS.parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
