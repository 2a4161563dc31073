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
from triton_ext.analysis.warps import number_of
from triton_ext.ir import Builder, Module
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.barriers import insert_barriers, placed_buffers

from ..analysis.barriers import needs_no_barrier
from ..analysis.cluster_barriers import find_cluster_barriers, find_init_sync

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
        if target is None and _is_for_clusters(module):
            for op in find_cluster_barriers(module, allocation):
                Builder.before(op).parse("ttng.cluster_barrier")
            for place in find_init_sync(module, allocation):
                Builder.before(place.before).parse(
                    "ttng.fence_mbarrier_init_release_cluster"
                    + "\nttng.cluster_barrier {relaxed = true}" * place.needs_barrier
                )
        found = find_barriers(module, allocation, needs_no_barrier, features)
        context.count("barriers", insert_barriers(found, features))


def _is_for_clusters(module: Module) -> bool:
    """Returns whether several CTAs of a GPU that has clusters run a module."""
    vendor, _, capability = module.op.attributes["ttg.target"].strip('"').partition(":")
    is_new = vendor == "cuda" and capability.isdigit() and int(capability) >= 90
    return is_new and number_of(module.op, "ttg.num-ctas", 1) > 1
