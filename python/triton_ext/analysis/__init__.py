"""Analyses: answer queries about a module without changing it."""

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
