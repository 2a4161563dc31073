"""Shared parts of ``ops`` on the host: case, device, planner, launcher, dispatch cache, replays."""

from __future__ import annotations

__all__: list[str] = []
