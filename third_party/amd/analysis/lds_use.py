"""What an operation that is not asynchronous does with the buffers among its operands.

Safe direction: an operation that is not known (:mod:`~triton_ext.analysis.memory_effects`) may read
and write every buffer that it is given, and so may a call that cannot be walked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, Flag, auto
from typing import Final

from triton_ext.analysis.buffer_reference import is_buffer
from triton_ext.analysis.memory_effects import Access, Effect, Kind, effects_of
from triton_ext.ir import Operation, Value
from triton_ext.ir.functions import CALLS

__all__ = ["ARRIVALS", "Looked", "Use", "ordinary_uses", "runs_on_apart"]

#: Arrivals of copies at an mbarrier, which end behind all that the wave copied into LDS before.
ARRIVALS: Final = frozenset({"amdg.async_copy_mbarrier_arrive", "ttng.async_copy_mbarrier_arrive"})


class Use(Enum):
    """What an operation does with LDS."""

    READ = "read of LDS"
    SOURCE = "copy from LDS"
    REFILL = "write to LDS"
    UNKNOWN = "use of LDS"
    END = "end of the kernel"


class Looked(Flag):
    """Which copies an obligation is about: those into LDS, those from it."""

    INTO = auto()
    FROM = auto()


def ordinary_uses(op: Operation, *, is_walked_through: bool) -> Iterator[tuple[Value, Use]]:
    """The buffers that an operation uses.

    Args:
        op: The operation, which is not asynchronous.
        is_walked_through: Whether it is a call of a function whose uses are looked at themselves.
    """
    if op.name in CALLS and not is_walked_through:
        yield from ((operand, Use.UNKNOWN) for operand in op.operands if is_buffer(operand))
    if op.name in ARRIVALS:
        return
    for effect in effects_of(op).shared:
        use = _use(effect)
        if use is not None:
            yield effect.value, use


def runs_on_apart(op: Operation) -> bool:
    """Whether an NVIDIA operation uses shared memory behind itself, and no counted wait ends that.

    Those are copies of the TMA unit, operations of the tensor cores and stores to other CTAs.
    """
    if not op.name.startswith("ttng."):
        return False
    if op.name.startswith("ttng.async_") and op.name not in ARRIVALS:
        return bool(effects_of(op).shared)
    return any(effect.kind is Kind.ASYNC for effect in effects_of(op).shared)


def _use(effect: Effect) -> Use | None:
    if effect.reads and effect.writes:
        return Use.UNKNOWN
    if effect.writes:
        return Use.REFILL
    # What a wait holds is read by an operation that ends there.
    return Use.READ if effect.access & (Access.READ | Access.HOLD) else None
