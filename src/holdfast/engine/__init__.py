"""The one way through time: ``scan``."""

from holdfast.engine.scan import scan

__all__ = ["scan"]
