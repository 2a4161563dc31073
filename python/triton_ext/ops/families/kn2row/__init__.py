"""kn2row: fprop to few output channels, as products of all taps that are shifted and added."""

from __future__ import annotations

__all__: list[str] = []
