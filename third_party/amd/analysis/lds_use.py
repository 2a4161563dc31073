"""Classifies how synchronous operations use their LDS operands.

Safe direction: an unknown operation (:mod:`~triton_ext.analysis.memory_effects`) may read and write
all of its buffers, and so may a call that cannot be followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, Flag, auto
from typing import Final

from triton_ext.analysis.alias_sets import is_buffer
from triton_ext.analysis.memory_effects import Access, Effect, Kind, effects_of, row_of
from triton_ext.ir import Operation, Value
from triton_ext.ir.functions import CALLS

__all__ = ["ARRIVALS", "MBARRIER_WAITS", "Looked", "Use", "ordinary_uses", "runs_on_apart"]

#: Arrivals at an mbarrier that complete after all earlier copies of the wave into LDS.
ARRIVALS: Final = frozenset({"amdg.async_copy_mbarrier_arrive", "ttng.async_copy_mbarrier_arrive"})
#: Waits for mbarriers.
MBARRIER_WAITS: Final = frozenset({"amdg.wait_barrier", "ttng.wait_barrier"})


class Use(Enum):
    """How an operation uses LDS."""

    READ = "read of LDS"
    SOURCE = "copy from LDS"
    REFILL = "write to LDS"
    UNKNOWN = "use of LDS"
    END = "end of the kernel"


class Looked(Flag):
    """Direction of the copies that an obligation concerns."""

    INTO = auto()
    FROM = auto()


def ordinary_uses(op: Operation, *, is_walked_through: bool) -> Iterator[tuple[Value, Use]]:
    """Yields the buffers that an operation uses.

    Args:
        op: The operation, which is not asynchronous.
        is_walked_through: Whether it is a call of a function whose own uses are visited.
    """
    if op.name in CALLS and not is_walked_through:
        yield from ((operand, Use.UNKNOWN) for operand in op.operands if is_buffer(operand))
    if op.name in ARRIVALS:
        return
    for effect in effects_of(op).shared:
        use = _use(effect)
        if use is not None:
            yield effect.value, use


def runs_on_apart(name: str) -> bool:
    """Returns whether an operation uses shared memory asynchronously without a counted wait.

    These are NVIDIA's TMA copies, tensor core operations and stores to other CTAs.

    Args:
        name: The name of the operation.
    """
    row = row_of(name)
    if row is None or not name.startswith("ttng.") or name in ARRIVALS:
        return False
    uses = row.buffers if row.others is None else (*row.buffers, row.others)
    return bool(uses) and (
        name.startswith("ttng.async_") or any(use.kind is Kind.ASYNC for use in uses)
    )


def _use(effect: Effect) -> Use | None:
    if effect.reads and effect.writes:
        return Use.UNKNOWN
    if effect.writes:
        return Use.REFILL
    # An operation in flight until a wait reads the buffers that the wait holds.
    return Use.READ if effect.access & (Access.READ | Access.HOLD) else None
