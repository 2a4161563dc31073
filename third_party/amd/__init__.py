"""AMD: asynchronous copies, wait counts and LDS of gfx942, gfx950 and gfx1250."""

from __future__ import annotations

from typing import Final

__all__ = ["EXPORTS", "PASSES"]

# What the core may ask for by name (triton_ext.backends.load).
EXPORTS: Final[dict[str, str]] = {}

# Passes by their name in a pipeline (triton_ext.passes.registry).
PASSES: Final[dict[str, str]] = {}
