"""Pairs of accesses to shared memory that need no barrier of the CTA on NVIDIA."""

from __future__ import annotations

from typing import Final

from triton_ext.analysis.membar import Pair
from triton_ext.analysis.type_text import type_text
from triton_ext.ir import Operation
from triton_ext.ir.dialects.view import OpReader
from triton_ext.ir.integers import read_integer

__all__ = ["TMA_LOADS", "needs_no_barrier"]

#: One thread of the CTA runs them, in order.
_BY_ONE_THREAD: Final = frozenset(
    {"ttng.init_barrier", "ttng.inval_barrier", "ttng.barrier_expect"}
)
#: Copies by the TMA unit into shared memory.
TMA_LOADS: Final = frozenset({"ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather"})
_ATOMIC: Final = "ttg.local_atomic_scatter_rmw"
_COMMUTATIVE: Final = frozenset({"add", "and", "or", "xor", "max", "min", "umax", "umin"})
#: The numbers of these operations in the generic form.
_NUMBERS: Final = {1: "and", 2: "or", 3: "xor", 4: "add", 6: "max", 7: "min", 8: "umax", 9: "umin"}


def needs_no_barrier(pair: Pair) -> bool:
    """Returns whether two accesses that meet are in order without a barrier.

    1. What one thread does to an mbarrier is in the order of the program.
    2. A wait for an mbarrier cannot end in front of the copy that it waits for.
    3. Atomic operations of one kind on integers may change places where no result is used.
    """
    before, after = pair.before, pair.after
    if before.name in _BY_ONE_THREAD and after.name in _BY_ONE_THREAD:
        return True
    if before.name in TMA_LOADS and after.name == "ttng.wait_barrier":
        return True
    kind = _commutative(before)
    return kind is not None and kind == _commutative(after)


def _commutative(op: Operation) -> tuple[str, str] | None:
    """The kind and type of an atomic operation that may change places with others like it."""
    if op.name != _ATOMIC or any(result.uses for result in op.results):
        return None
    raw = op.attributes.get("atomic_rmw_op")
    kind = OpReader(op).head if raw is None else _NUMBERS.get(read_integer(raw) or 0, "")
    element = type_text(op.operands[0]).partition(",")[0].rpartition("x")[2]
    is_integer = element[:1] == "i" and element[1:].isdigit()
    return (kind, element) if kind in _COMMUTATIVE and is_integer else None
