"""Device code of the families, with what launches it."""

from __future__ import annotations

__all__: list[str] = []
