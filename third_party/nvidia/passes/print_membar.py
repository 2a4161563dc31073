"""``test-print-membar``: inserts the barriers between accesses to shared memory, for tests.

Before::

    ttg.local_store %x, %a : tensor<..> -> !ttg.memdesc<..>
    %y = ttg.local_load %a : !ttg.memdesc<..> -> tensor<..>

After::

    ttg.local_store %x, %a : tensor<..> -> !ttg.memdesc<..>
    ttg.barrier local
    %y = ttg.local_load %a : !ttg.memdesc<..> -> tensor<..>

They stand where Triton's lowering for NVIDIA puts them (:mod:`triton_ext.analysis.membar`).  A
module with ``ttg.target`` gets the barriers between the CTAs of a cluster too.  Buffers lie where
``allocation.offset`` says, or where Triton puts them if the module does not say it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.membar import find_barriers
from triton_ext.ir import Module
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.barriers import insert_barriers, placed_buffers

from ..analysis.barriers import needs_no_barrier

__all__ = ["PrintMembar"]


@dataclass(frozen=True, slots=True)
class PrintMembar(Pass):
    """Inserts the barriers that NVIDIA's lowering needs."""

    name: ClassVar[str] = "test-print-membar"

    def run(self, module: Module, context: PassContext) -> None:
        """Inserts the barriers.

        Raises:
            PassError: The scratch of an operation is not known.
            VerifyError: An operation is malformed.
        """
        features = context.host_features()
        target = None if "ttg.target" in module.op.attributes else ""
        allocation = placed_buffers(module, features, target)
        found = find_barriers(module, allocation, needs_no_barrier)
        context.count("barriers", insert_barriers(found, features))
