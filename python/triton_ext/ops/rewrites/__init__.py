"""Rewrites: a case as another one that other families compute."""

from __future__ import annotations

__all__: list[str] = []
