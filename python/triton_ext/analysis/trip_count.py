"""Trip counts of ``scf.for``, shared by all analyses of loops."""

from __future__ import annotations

from ..ir import Operation
from ..ir.dialects import arith, scf

__all__ = ["iterations", "trip_count"]


def trip_count(op: Operation) -> int | None:
    """Returns the trip count of an ``scf.for`` with constant bounds, or ``None``."""
    loop = scf.ForOp.match(op)
    if loop is None:
        return None
    bounds = (loop.lower_bound, loop.upper_bound, loop.step)
    return iterations(op, *(arith.constant_int(value) for value in bounds))


def iterations(op: Operation, lower: int | None, upper: int | None, step: int | None) -> int | None:
    """Returns the trip count of an ``scf.for`` with bounds that an analysis found.

    Args:
        op: The loop.
        lower: Its bounds and its step, as signed numbers; ``None`` if unknown.
        upper: See ``lower``.
        step: See ``lower``.

    Returns:
        ``None`` if unknown, and for unsigned loops, whose bounds differ from the signed numbers.
    """
    if lower is None or upper is None or step is None or step <= 0:
        return None
    loop = scf.ForOp.match(op)
    if loop is None or loop.is_unsigned:
        return None
    return max(0, -((lower - upper) // step))
