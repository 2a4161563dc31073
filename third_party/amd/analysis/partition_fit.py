"""Whether the buffers of a module fit into LDS, in this package's placement and in Triton's.

What operations need while they run is taken from above where only Triton knows it: twice the bytes
of all of their tensors.  So a module may be said not to fit that does, never the other way round.
Values that Triton's allocation could not place without an end (hosts without
``amd-partition-placement``) are taken to be aligned to a partition, which
:mod:`triton_ext.backends.amd.passes.align_partitioned_shared` does.
"""

from __future__ import annotations

from triton_ext.analysis.allocation import (
    BufferKind,
    FunctionAllocation,
    Item,
    Scratch,
    allocate,
    reserved_bytes,
    unknown_scratch,
)
from triton_ext.analysis.allocation.triton_order import offsets_of_triton
from triton_ext.ir import Module, Operation
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.types import MemDescType, TensorType

from .lds import Lds

__all__ = ["needed_bytes"]

_ALIGNMENT = 128


def needed_bytes(module: Module, lds: Lds, *, knows_partitions: bool) -> int | None:
    """Bytes of LDS that a module needs, or a few more; ``None`` where Triton would never end.

    Args:
        module: The module.
        lds: What there is.
        knows_partitions: Whether the host places partitioned values apart from the start (3.9).

    Raises:
        VerifyError: A buffer has no size that is known.
    """
    types = AliasTable(module.aliases)
    known = Scratch(module.op, types)

    def scratch(op: Operation) -> tuple[int, int]:
        found = known(op)
        return found if found is not None else (2 * _tensor_bytes(op, types), _ALIGNMENT)

    found = allocate(module, partition_size=lds.partition_bytes, scratch=scratch)
    if knows_partitions:
        return found.total
    everything_is_known = not unknown_scratch(module)
    totals = [found.total]
    for function in found.functions.values():
        total = _with_values_aligned(function, types, lds, try_without=everything_is_known)
        if total is None:
            return None
        totals.append(total)
    return max(totals)


def _tensor_bytes(op: Operation, types: AliasTable) -> int:
    total = 0
    for value in (*op.operands, *op.results):
        type_ = types.type(value.type)
        if isinstance(type_, TensorType):
            total += type_.num_elements * max(8, type_.bit_width or 64) // 8
    return total


def _with_values_aligned(
    function: FunctionAllocation, types: AliasTable, lds: Lds, *, try_without: bool
) -> int | None:
    """Bytes that Triton needs, partitioned values aligned to a partition if they have to be."""
    groups = {buffer.op: n for n, buffer in enumerate(function.buffers) if buffer.index}
    # Triton looks at values first, then at what operations need.
    buffers = sorted(function.buffers, key=lambda buffer: buffer.kind is not BufferKind.EXPLICIT)
    totals: list[int | None] = []
    for alignment in (0, lds.partition_bytes) if try_without else (lds.partition_bytes,):
        items = []
        for buffer in buffers:
            size = buffer.size
            if buffer.kind is BufferKind.EXPLICIT and buffer.value is not None:
                type_ = types.type(buffer.value.type)
                size = reserved_bytes(type_) if isinstance(type_, MemDescType) else size
            group = groups.get(buffer.op, -1)
            aligned = max(buffer.alignment, alignment if group >= 0 else 0)
            items.append(Item(size, buffer.live, aligned, group))
        offsets = offsets_of_triton(items, lds.partition_bytes)
        if offsets is not None:
            ends = (at + item.size for at, item in zip(offsets, items, strict=True))
            totals.append(max(ends, default=0))
    ended = [total for total in totals if total is not None]
    return min(ended, default=None)
