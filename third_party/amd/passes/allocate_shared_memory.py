"""``allocate-amdgpu-shared-memory``: assigns an offset to every buffer in LDS.

Like ``allocate-shared-memory`` (:mod:`triton_ext.passes.allocate_shared_memory`), for one GPU: the
buffers of a partitioned value go to different physical partitions of gfx1250::

    %0 = ttg.local_alloc {allocation.offset = [0 : i32, 65536 : i32]} : () -> !ttg.memdesc<..>

Differences from the host's pass of this name (hosts with partitioned LDS):

* A partition's buffer covers the highest address in it.  The host reserves too little for some
  paddings, and the following values are overwritten.
* It always terminates; that of 3.8 does not for two values that cannot share partitions.
* A called function with partitioned values starts at a partition, wherever its caller's buffers
  are.
* Without the option ``arch`` it uses the GPU of ``ttg.target``; the host's pass then assumes a GPU
  with 32 banks and no partitions.

The pass refuses nothing that the host's accepts.  If a module needs more than the GPU's LDS, which
Triton refuses when it loads the kernel, a remark lists the live buffers.  It warns about
partitioned values for a GPU with fewer or no partitions, or an unknown GPU: like the host's pass,
it then places their buffers anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.allocation import allocated_type
from triton_ext.ir import Module
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.shared_memory import allocation_of, annotate, remark_capacity

from ..analysis.lds import Lds, check_arch

__all__ = ["AllocateAMDGPUSharedMemory"]


@dataclass(frozen=True, slots=True)
class AllocateAMDGPUSharedMemory(Pass):
    """Assigns offsets to buffers in LDS.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default that of the module's ``ttg.target``, and no GPU in
            particular if that is not AMD's.
    """

    name: ClassVar[str] = "allocate-amdgpu-shared-memory"

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch:
            check_arch(self.arch)

    def run(self, module: Module, context: PassContext) -> None:
        """Sets the offsets of the buffers of ``module``.

        Raises:
            NotModelledError: The memory of an operation or a buffer is unknown.
        """
        arch = self.arch or _arch_of(module)
        lds = Lds.of(arch)
        fits = _check_partitions(module, lds, arch, context)
        allocation = allocation_of(
            module,
            lds.partition_bytes if lds is not None and fits else 0,
            features=context.host_features(),
            target=f"hip:{arch}",
        )
        if lds is not None:
            remark_capacity(context, allocation, lds.bytes, f"LDS of {lds.arch}")
        annotate(module, allocation)
        context.count("bytes", allocation.total)


def _arch_of(module: Module) -> str:
    """Returns the GPU of a module; empty if it is not an AMD GPU."""
    text = module.op.attributes.get("ttg.target", "")
    vendor, _, arch = text.strip('"').partition(":")
    return arch if vendor == "hip" else ""


def _check_partitions(module: Module, lds: Lds | None, arch: str, context: PassContext) -> bool:
    """Warns about values in more partitions than the LDS has; returns whether all values fit."""
    fits = True
    table = AliasTable.of(module.aliases)
    for op in module.walk():
        if op.name != ttg.LocalAllocOp.NAME:
            continue
        encoding = getattr(allocated_type(op, table), "encoding", None)
        count = getattr(encoding, "num_partitions", 1)
        if count == 1 or (lds is not None and count <= lds.partitions):
            continue
        fits = False
        name = op.results[0].name
        if lds is not None and lds.partition_bytes:
            context.warning(
                op,
                f"expected at most {lds.partitions} partitions, the number of {lds.arch}, found "
                f"{count} in the encoding of '{name}'",
            )
        elif arch:
            context.warning(op, f"'{name}' has {count} partitions, the LDS of {arch} has none")
        else:
            context.warning(
                op,
                f"'{name}' has {count} partitions, but the GPU is not known",
                "set the option arch=gfx1250 or the module's 'ttg.target'",
            )
    return fits
