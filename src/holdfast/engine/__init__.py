"""The one way through time: ``scan``. Without ``targets/`` everything still runs, slower."""

from holdfast.engine.scan import fused_source, in_weights_type, scan

__all__ = ["fused_source", "in_weights_type", "scan"]
