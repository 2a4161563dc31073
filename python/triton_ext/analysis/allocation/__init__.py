"""Allocation of shared memory (LDS): live ranges, sizes and offsets of buffers.

::

    found = allocate(module, partition_size=65536)
    for function in found.functions.values():
        for buffer in function.buffers:
            print(buffer.op, buffer.offset, buffer.size)
"""

from __future__ import annotations

from .buffers import (
    Buffer,
    BufferKind,
    FunctionAllocation,
    ModuleAllocation,
    allocate,
    allocated_type,
    given_alignment,
    triton_ranks,
    unknown_scratch,
)
from .layout_conversion import stays_in_ctas, stays_in_warps
from .placement import Item, Placement, place
from .scratch import SCRATCH_OPERATIONS, Scratch
from .sizes import BufferSize, buffer_size, reserved_bytes
from .written import as_written, has_offsets, written_offsets

__all__ = [
    "SCRATCH_OPERATIONS",
    "Buffer",
    "BufferKind",
    "BufferSize",
    "FunctionAllocation",
    "Item",
    "ModuleAllocation",
    "Placement",
    "Scratch",
    "allocate",
    "allocated_type",
    "as_written",
    "buffer_size",
    "given_alignment",
    "has_offsets",
    "place",
    "reserved_bytes",
    "stays_in_ctas",
    "stays_in_warps",
    "triton_ranks",
    "unknown_scratch",
    "written_offsets",
]
