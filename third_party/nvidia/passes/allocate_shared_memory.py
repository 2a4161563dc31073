"""``allocate-shared-memory-nv``: every buffer of shared memory gets its offset.

As ``allocate-shared-memory`` (:mod:`triton_ext.passes.allocate_shared_memory`), with the sizes of
NVIDIA's lowering: conversions of layouts use ``ldmatrix`` and ``stmatrix`` where the GPU has them.
Triton's pass of this name is the one that a compile runs.

As there, the options decide and not the module's ``ttg.target``: the lowering behind this pass is
told its GPU by an option, too, and the two have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Module
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.shared_memory import (
    allocation_of,
    annotate,
    check_capacity,
    check_capacity_option,
)

__all__ = ["AllocateSharedMemoryNv"]

#: Above every compute capability.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class AllocateSharedMemoryNv(Pass):
    """Places buffers in the shared memory of an NVIDIA GPU.

    Attributes:
        compute_capability: Compute capability of the GPU, 90 for sm_90.
        ptx_version: Makes no difference here.
        capacity: Bytes of shared memory; 0 for no check.
    """

    name: ClassVar[str] = "allocate-shared-memory-nv"

    compute_capability: int = 80
    ptx_version: int = 80
    capacity: int = 0

    def __post_init__(self) -> None:
        check_capacity_option(self.capacity)
        if not 0 <= self.compute_capability < _MOST:
            raise ValueError(
                "expected a compute capability as 'compute-capability', such as 90, found "
                f"{self.compute_capability}"
            )

    def run(self, module: Module, context: PassContext) -> None:
        """Writes offsets to the buffers of ``module``.

        Raises:
            PassError: The module needs more shared memory than the GPU has.
            NotModelledError: The shared memory that an operation or a buffer needs is not known.
        """
        target = f"cuda:{self.compute_capability}"
        allocation = allocation_of(module, features=context.host_features(), target=target)
        if self.capacity:
            check_capacity(allocation, self.capacity, "shared memory")
        annotate(module, allocation)
        context.count("bytes", allocation.total)
