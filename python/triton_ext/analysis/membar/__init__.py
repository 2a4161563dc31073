"""Accesses to shared memory that barriers have to keep in order, and where barriers are missing.

::

    allocation = allocate(module, as_written=True)
    found = find_barriers(module, allocation)
    for op, hazard in found.before.items():
        print(op, "follows", hazard.before)
"""

from __future__ import annotations

from .accesses import Accesses, Pair, Pending, Skip, Slice, never
from .analysis import Barriers, find_barriers

__all__ = [
    "Accesses",
    "Barriers",
    "Pair",
    "Pending",
    "Skip",
    "Slice",
    "find_barriers",
    "never",
]
