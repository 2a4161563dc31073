"""``test-tritonamdgpu-membar``: inserts barriers between accesses to LDS, for tests.

Like ``test-print-membar``, with the rules of Triton's lowering for AMD: a read of LDS that an
asynchronous wait guards needs no barrier before the next copy into the same buffer.  Such reads
get the attribute ``ttg.amdg.syncedViaAsyncWait``, which the lowering reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.membar import find_barriers
from triton_ext.ir import Module
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.barriers import insert_barriers, placed_buffers

from ..analysis.barriers import SYNCED, needs_no_barrier, synced_loads

__all__ = ["PrintMembar"]


@dataclass(frozen=True, slots=True)
class PrintMembar(Pass):
    """Inserts the barriers that AMD's lowering needs."""

    name: ClassVar[str] = "test-tritonamdgpu-membar"

    def run(self, module: Module, context: PassContext) -> None:
        """Inserts the barriers.

        Raises:
            PassError: The scratch memory of an operation is unknown.
            VerifyError: An operation is malformed.
        """
        features = context.host_features()
        for load, is_synced in synced_loads(module).items():
            load.set_attribute(SYNCED, "true" if is_synced else "false")
        allocation = placed_buffers(module, features, "")
        found = find_barriers(module, allocation, needs_no_barrier, features)
        context.count("barriers", insert_barriers(found, features))
