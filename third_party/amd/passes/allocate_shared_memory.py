"""``allocate-amdgpu-shared-memory``: every buffer in LDS gets its offset.

As ``allocate-shared-memory`` (:mod:`triton_ext.passes.allocate_shared_memory`), for one GPU: the
buffers of a partitioned value lie in different physical partitions of gfx1250::

    %0 = ttg.local_alloc {allocation.offset = [0 : i32, 65536 : i32]} : () -> !ttg.memdesc<..>

Where the result differs from the host's pass of this name (hosts with partitioned LDS):

* A partition's buffer is as large as the highest address in it: the host's is too small for some
  paddings, and the values behind it are overwritten.
* It ends whatever the sizes; that of 3.8 runs forever for two values that cannot share partitions.
* A function with partitioned values that is called starts at a partition, wherever its caller's own
  buffers are.
* Without the option ``arch`` the GPU of ``ttg.target`` counts; the host's pass then takes a GPU of
  32 banks without partitions.

The pass refuses nothing that the host's takes.  It remarks on a module that needs more than the
GPU's LDS, which Triton refuses when it loads the kernel, with what is alive where; and it warns
about partitioned values for a GPU that has no partitions, fewer, or is not known: as in the host's
pass, their buffers then lie wherever there is room.
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
    """Places buffers in LDS.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default what the module's ``ttg.target`` says, and no GPU
            in particular for a module that names none of AMD's.
    """

    name: ClassVar[str] = "allocate-amdgpu-shared-memory"

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch:
            check_arch(self.arch)

    def run(self, module: Module, context: PassContext) -> None:
        """Writes offsets to the buffers of ``module``.

        Raises:
            NotModelledError: What an operation or a buffer needs is not known.
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
    """The GPU that a module is for; empty where it names none of AMD's."""
    text = module.op.attributes.get("ttg.target", "")
    vendor, _, arch = text.strip('"').partition(":")
    return arch if vendor == "hip" else ""


def _check_partitions(module: Module, lds: Lds | None, arch: str, context: PassContext) -> bool:
    """Warns about values in more partitions than there are, and tells whether there is none."""
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
                f"expected at most {lds.partitions} partitions, which {lds.arch} has, found "
                f"{count} in the encoding of '{name}'",
            )
        elif arch:
            context.warning(op, f"'{name}' lies in {count} partitions, the LDS of {arch} has none")
        else:
            context.warning(
                op,
                f"'{name}' lies in {count} partitions, and for which GPU is not known",
                "arch=gfx1250 says it, or 'ttg.target' of the module does",
            )
    return fits
