"""Procedures of S5's studies: A_h during training (Figures 4, 10), codes and templates (2, 3, 5 to 9), birds."""

from __future__ import annotations

from holdfast.studies.s5.bird import bird_audio
from holdfast.studies.s5.images import inside_images
from holdfast.studies.s5.slope import start_slope
from holdfast.studies.s5.text import inside_text

__all__ = ["bird_audio", "inside_images", "inside_text", "start_slope"]
