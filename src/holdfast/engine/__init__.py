"""The one way through time: ``scan``. Without ``engine/fused/`` everything still runs, slower."""

from holdfast.engine.scan import fused_source, scan

__all__ = ["fused_source", "scan"]
