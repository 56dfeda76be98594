"""RRNN (S1): trainings that record their trees, Figures 2 to 4."""

from holdfast.studies.s1.trees import trees

__all__ = ["trees"]
