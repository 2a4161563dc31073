"""``allocate-shared-memory-nv``: every buffer of shared memory gets its offset.

As ``allocate-shared-memory`` (:mod:`triton_ext.passes.allocate_shared_memory`), with the sizes of
NVIDIA's lowering: conversions of layouts use ``ldmatrix`` and ``stmatrix`` where the GPU has them.
Triton's pass of this name is the one that a compile runs.
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

from ..analysis.shared_memory import COMPUTE_CAPABILITIES, shared_memory

__all__ = ["AllocateSharedMemoryNv"]


@dataclass(frozen=True, slots=True)
class AllocateSharedMemoryNv(Pass):
    """Places buffers in the shared memory of an NVIDIA GPU.

    Attributes:
        compute_capability: Of the GPU, 90 for sm_90; 0 for what the module's ``ttg.target`` says.
        ptx_version: Makes no difference here.
        capacity: Bytes that there are; 0 if that is not to be checked.
    """

    name: ClassVar[str] = "allocate-shared-memory-nv"

    compute_capability: int = 0
    ptx_version: int = 0
    capacity: int = 0

    def __post_init__(self) -> None:
        check_capacity_option(self.capacity)
        given = str(self.compute_capability)
        if self.compute_capability and shared_memory(given) is None:
            raise ValueError(
                f"expected a compute capability as 'compute-capability', found {given}; known are "
                f"{', '.join(map(str, COMPUTE_CAPABILITIES))}"
            )

    def run(self, module: Module, context: PassContext) -> None:
        """Writes offsets to the buffers of ``module``.

        Raises:
            PassError: It needs more than there is, or what an operation needs is not known.
            VerifyError: A buffer has no size that is known, or the module is for no GPU that is.
        """
        target = f"cuda:{self.compute_capability}" if self.compute_capability else None
        if target is None:
            _check_target(module)
        allocation = allocation_of(module, features=context.host_features(), target=target)
        if self.capacity:
            check_capacity(allocation, self.capacity, "shared memory")
        annotate(module, allocation)
        context.count("bytes", allocation.total)


def _check_target(module: Module) -> None:
    """Refuses a module for a GPU that is none of NVIDIA's; one that does not say passes.

    Raises:
        VerifyError: It is for one.
    """
    text = module.op.attributes.get("ttg.target")
    if text is None:
        return
    vendor, _, arch = text.strip('"').partition(":")
    if vendor != "cuda" or not arch.isdecimal() or shared_memory(arch) is None:
        module.op.fail(
            f"expected 'ttg.target' such as \"cuda:90\", found {text}",
            f"known are {', '.join(map(str, COMPUTE_CAPABILITIES))}; 'compute-capability' sets one",
        )
