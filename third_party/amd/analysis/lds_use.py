"""What an operation that is not asynchronous does with the buffers among its operands.

Safe direction: an operation that is not known here may read and write every buffer that it is
given, and so may a call that cannot be walked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, Flag, auto
from typing import Final

from triton_ext.analysis.alias_sets import is_buffer
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import ttg
from triton_ext.ir.functions import CALLS, FUNCTIONS, RETURNS

__all__ = ["ARRIVALS", "Looked", "Use", "ordinary_uses"]

#: Arrivals of copies at an mbarrier, which end behind all that the wave copied into LDS before.
ARRIVALS: Final = frozenset({"amdg.async_copy_mbarrier_arrive", "ttng.async_copy_mbarrier_arrive"})
#: Make another view of a buffer, hand it on or end its life; they neither read nor write it.
_NO_USE: Final = (
    CALLS
    | FUNCTIONS
    | RETURNS
    | ARRIVALS
    | {ttg.LocalAllocOp.NAME, ttg.LocalDeallocOp.NAME, "ttg.memdesc_index", "ttg.memdesc_subslice"}
    | {"ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret", "arith.select"}
    | {"ttg.warp_specialize", "ttg.warp_specialize.partitions", "ttg.warp_yield"}
    | {"ttg.warp_return", "builtin.module", "cf.br", "cf.cond_br", "cf.switch"}
    | {"scf.condition", "scf.execute_region", "scf.for", "scf.if", "scf.index_switch"}
    | {"scf.while", "scf.yield"}
)
#: Read every buffer that they are given.
_READS: Final = frozenset(
    {"ttg.local_load", "ttg.local_gather", "amdg.local_load_packed_transposed"}
    | {"amdg.local_load_packed_tranposed"}  # so it is called up to Triton 3.8
    | {"ttng.warp_group_dot", "ttng.warp_group_dot_wait", "ttng.tmem_copy"}
    | {"ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "ttng.async_tma_copy_local_to_global"}
    | {"ttng.async_tma_reduce", "ttng.async_tma_scatter"}
)
#: Write one and read none.
_WRITES: Final = frozenset({"ttg.local_store", "ttg.local_scatter", "ttg.local_atomic_scatter_rmw"})
#: Dialects whose operations are about no buffer.
_NO_BUFFERS: Final = ("arith.", "cf.", "math.")


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
    if op.name == ttg.LocalAllocOp.NAME and op.operands:
        yield op.results[0], Use.REFILL
    is_opaque_call = op.name in CALLS and not is_walked_through
    if op.name in _NO_USE and not is_opaque_call:
        return
    if op.name.startswith(_NO_BUFFERS):
        return
    use = Use.READ if op.name in _READS else Use.REFILL if op.name in _WRITES else Use.UNKNOWN
    for operand in op.operands:
        if is_buffer(operand):
            yield operand, use
