"""Passes common to vendors, and what a pass is."""

from __future__ import annotations

from triton_ext.passes.base import Pass, error_at

__all__ = ["Pass", "error_at"]
