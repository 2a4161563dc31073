"""Analyses: what passes ask about a module; results are values, and nothing is changed."""

from __future__ import annotations

from .axis_info import AxisInfo, AxisInfoAnalysis
from .linear_layout import (
    LinearLayout,
    consecutive_run,
    conversion,
    elements_per_thread,
    register_to_shared,
)

__all__ = [
    "AxisInfo",
    "AxisInfoAnalysis",
    "LinearLayout",
    "consecutive_run",
    "conversion",
    "elements_per_thread",
    "register_to_shared",
]
