"""Depthwise convolutions, of one channel in every group: fprop, dgrad and wgrad."""

from __future__ import annotations

__all__: list[str] = []
