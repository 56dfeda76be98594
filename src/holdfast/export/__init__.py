"""Trained models for other machines. See docs/usage/streams.md."""

from holdfast.export.program import program

__all__ = ["program"]
