"""Shared parts of ``ops``: parameters, epilogues, launcher, dispatch cache and replays."""

from __future__ import annotations

__all__: list[str] = []
