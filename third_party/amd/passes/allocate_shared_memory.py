"""``allocate-amdgpu-shared-memory``: every buffer in LDS gets its offset.

As ``allocate-shared-memory`` (:mod:`triton_ext.passes.allocate_shared_memory`), for one GPU: the
buffers of a partitioned value lie in different physical partitions of gfx1250, and what does not
fit into the GPU's LDS is an error::

    %0 = ttg.local_alloc {allocation.offset = [0 : i32, 65536 : i32]} : () -> !ttg.memdesc<..>

Where the result differs from the host's pass of this name (hosts with partitioned LDS):

* A partition's buffer is as large as the highest address in it: the host's is too small for some
  paddings, and the values behind it are overwritten.
* It ends whatever the sizes; that of 3.8 runs forever for two values that cannot share partitions.
* A function with partitioned values that is called starts at a partition, wherever its caller's own
  buffers are.
* More than the LDS is an error that says what is alive where.
* Partitioned values for a GPU without partitions, or for one that is not known, are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.allocation import allocated_type
from triton_ext.ir import Module
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.passes import Pass, PassContext, error_at
from triton_ext.passes.shared_memory import allocation_of, annotate, check_capacity

from ..analysis.lds import Lds, check_arch

__all__ = ["AllocateAMDGPUSharedMemory"]


@dataclass(frozen=True, slots=True)
class AllocateAMDGPUSharedMemory(Pass):
    """Places buffers in LDS.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default what the module's ``ttg.target`` says.
    """

    name: ClassVar[str] = "allocate-amdgpu-shared-memory"

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch:
            check_arch(self.arch)

    def run(self, module: Module, context: PassContext) -> None:
        """Writes offsets to the buffers of ``module``.

        Raises:
            PassError: It needs more than there is, what an operation needs is not known, or a value
                lies in partitions that the GPU has not.
            VerifyError: A buffer has no size that is known, or the module is for no AMD GPU.
        """
        arch = self.arch or _arch_of(module)
        lds = Lds.of(arch)
        _check_partitions(module, lds, arch)
        allocation = allocation_of(
            module,
            lds.partition_bytes if lds is not None else 0,
            features=context.host_features(),
            target=f"hip:{arch}",
        )
        if lds is not None:
            check_capacity(allocation, lds.bytes, f"LDS of {lds.arch}")
        annotate(module, allocation)
        context.count("bytes", allocation.total)


def _arch_of(module: Module) -> str:
    """The GPU that a module is for; empty where it does not say.

    Raises:
        VerifyError: It is for no AMD GPU.
    """
    text = module.op.attributes.get("ttg.target")
    if text is None:
        return ""
    vendor, _, arch = text.strip('"').partition(":")
    if vendor != "hip":
        module.op.fail(f"expected 'ttg.target' such as \"hip:gfx1250\", found {text}")
    try:
        check_arch(arch)
    except ValueError as error:
        raise module.op.error(str(error).replace("'arch'", "'ttg.target'")) from error
    return arch


def _check_partitions(module: Module, lds: Lds | None, arch: str) -> None:
    """Refuses values in more partitions than there are.

    Raises:
        PassError: There is one.
    """
    table = AliasTable.of(module.aliases)
    for op in module.walk():
        if op.name != ttg.LocalAllocOp.NAME:
            continue
        encoding = getattr(allocated_type(op, table), "encoding", None)
        count = getattr(encoding, "num_partitions", 1)
        if count == 1 or (lds is not None and count <= lds.partitions):
            continue
        name = op.results[0].name
        if lds is not None and lds.partition_bytes:
            raise error_at(
                op,
                f"expected at most {lds.partitions} partitions, which {lds.arch} has, found "
                f"{count} in the encoding of '{name}'",
            )
        if arch:
            raise error_at(op, f"'{name}' lies in {count} partitions, the LDS of {arch} has none")
        raise error_at(
            op,
            f"'{name}' lies in {count} partitions, and for which GPU is not known",
            "arch=gfx1250 says it, or 'ttg.target' of the module does",
        )
