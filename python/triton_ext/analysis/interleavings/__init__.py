"""Proofs about kernels whose partitions hand shared memory to each other through barriers.

A vendor says what its operations do (:class:`Event`); :func:`read_kernel` makes a program of them,
and :func:`explore` follows it.
"""

from .explore import Limits, Outcome, explore
from .layout import size_bytes
from .memory import Violation
from .program import (
    Access,
    Arrive,
    Commit,
    Copy,
    Event,
    Fence,
    Init,
    Inval,
    Join,
    Kernel,
    Lifetime,
    NotDecided,
    Retire,
    Start,
    Use,
    Wait,
)
from .reading import EventReader, read_kernel

__all__ = [
    "Access",
    "Arrive",
    "Commit",
    "Copy",
    "Event",
    "EventReader",
    "Fence",
    "Init",
    "Inval",
    "Join",
    "Kernel",
    "Lifetime",
    "Limits",
    "NotDecided",
    "Outcome",
    "Retire",
    "Start",
    "Use",
    "Violation",
    "Wait",
    "explore",
    "read_kernel",
    "size_bytes",
]
