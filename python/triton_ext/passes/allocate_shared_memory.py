"""``allocate-shared-memory``: every buffer of shared memory gets its offset.

Before::

    %0 = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>

After::

    %0 = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<64x64xf16, ..>

Upstream's pass of this name prints the same attributes, and the sum as ``ttg.shared`` of the
module.  Where the result differs from the host's pass:

* Offsets are searched for where the host's leave gaps: the total is never above the host's on what
  was compared, and often below.  Where it is not below, the offsets are the host's.
* Buffers of ``#ttg.shared_linear`` with places that hold nothing are as large as on 3.9; older
  hosts count the elements alone, and the last ones lie behind the buffer.
* Buffers of functions that are called keep the alignment that their encoding asks for.
* ``allocation.size`` of what is not an allocation is printed for every host (3.9 and newer do).
* With ``capacity``, a kernel that needs more is an error that says what is alive where.

What operations need while they run is that of Triton's lowering for no vendor, as in upstream's
pass; ``allocate-shared-memory-nv`` and ``allocate-amdgpu-shared-memory`` are those of the vendors.
It differs from release to release: without a host, only what all of them agree on is known, and the
rest is refused by name (:mod:`~triton_ext.analysis.allocation.scratch`).  ``triton-opt`` runs the
host's pass on modules in which something is not known.

Triton's own barriers between users of the same memory are placed for Triton's offsets: a module
whose offsets were changed needs a host that reads them back, or barriers of its own.

Safe direction: a buffer may be taken to live longer than it does, never shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Module
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext
from triton_ext.passes.shared_memory import (
    allocation_of,
    annotate,
    check_capacity,
    check_capacity_option,
)

__all__ = ["AllocateSharedMemory"]


@dataclass(frozen=True, slots=True)
class AllocateSharedMemory(Pass):
    """Places buffers in one memory without partitions.

    Attributes:
        capacity: Bytes that there are; 0 if that is not to be checked.
    """

    name: ClassVar[str] = "allocate-shared-memory"

    capacity: int = 0

    def __post_init__(self) -> None:
        check_capacity_option(self.capacity)

    def run(self, module: Module, context: PassContext) -> None:
        """Writes offsets to the buffers of ``module``.

        Raises:
            PassError: It needs more than there is.
            NotModelledError: The shared memory that an operation or a buffer needs is not known.
        """
        allocation = allocation_of(module, features=context.host_features(), target="")
        if self.capacity:
            check_capacity(allocation, self.capacity, "shared memory")
        annotate(module, allocation)
        context.count("bytes", allocation.total)
