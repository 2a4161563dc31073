"""The public side of ``ops``: signatures, argument checks, ``support``, operators of torch."""

from __future__ import annotations

__all__: list[str] = []
