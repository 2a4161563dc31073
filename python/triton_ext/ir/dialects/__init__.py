"""Typed views of common operations; those of vendors are in their packages.

::

    load = tt.LoadOp.match(op)
    if load is not None and load.mask is None:
        ...
"""

from __future__ import annotations

from . import arith, scf, tt, ttg
from .view import OpReader, View, literals

__all__ = ["OpReader", "View", "arith", "literals", "scf", "tt", "ttg"]
