"""Finds missing barriers between accesses to shared memory.

::

    allocation = as_written(allocate(module))
    found = find_barriers(module, allocation)
    for op, hazard in found.before.items():
        print(op, "follows", hazard.before)
"""

from __future__ import annotations

from .accesses import Accesses, Pair, Pending, Skip, Slice, accesses_of, never
from .analysis import Barriers, find_barriers

__all__ = [
    "Accesses",
    "Barriers",
    "Pair",
    "Pending",
    "Skip",
    "Slice",
    "accesses_of",
    "find_barriers",
    "never",
]
