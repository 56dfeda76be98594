"""A disk that is full."""

import contextlib
import resource


@contextlib.contextmanager
def disk_that_takes(size):
    """A real failure in the middle of a write: no file of this process may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
