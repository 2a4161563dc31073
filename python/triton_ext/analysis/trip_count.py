"""How often the body of an ``scf.for`` runs; what every analysis of loops goes by."""

from __future__ import annotations

from ..ir import Operation
from ..ir.dialects import arith, scf

__all__ = ["iterations", "trip_count"]


def trip_count(op: Operation) -> int | None:
    """Number of iterations of an ``scf.for`` whose bounds are constants, or ``None``."""
    loop = scf.ForOp.match(op)
    if loop is None:
        return None
    bounds = (loop.lower_bound, loop.upper_bound, loop.step)
    return iterations(op, *(arith.constant_int(value) for value in bounds))


def iterations(op: Operation, lower: int | None, upper: int | None, step: int | None) -> int | None:
    """Number of iterations of an ``scf.for`` with bounds that an analysis found.

    Args:
        op: The loop.
        lower: Its bounds and its step, as signed numbers; ``None`` where not known.
        upper: See ``lower``.
        step: See ``lower``.

    Returns:
        The number; ``None`` where it is not known, and for unsigned loops, whose bounds are other
        numbers than those that are printed.
    """
    if lower is None or upper is None or step is None or step <= 0:
        return None
    loop = scf.ForOp.match(op)
    if loop is None or loop.is_unsigned:
        return None
    return max(0, -((lower - upper) // step))
