"""Properties of the LDS of AMD GPUs.

Sizes and banks: CDNA3 ISA (64 KiB, 32 banks), CDNA4 ISA (160 KiB, 64 banks), and for gfx1250 what
LLVM's AMDGPU backend and Triton's own allocation assume (320 KiB, 64 banks, physical partitions of
64 KiB; the same for gfx1251).  Banks are 4 bytes wide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from triton_ext.analysis.bank_conflicts import BankModel
from triton_ext.analysis.memory_map import SharedMemory
from triton_ext.ir import Module

__all__ = ["Lds", "check_arch", "shared_memory"]

_KIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Lds:
    """The LDS of a GPU.

    Attributes:
        arch: The GPU, ``"gfx1250"``.
        bytes: Bytes that a workgroup can use.
        banks: Number of banks, each 4 bytes wide.
        lanes: Lanes of a wave.
        partition_bytes: Size of a physical partition; 0 if the LDS is not partitioned.
    """

    arch: str
    bytes: int
    banks: int
    lanes: int = 64
    partition_bytes: int = 0

    @classmethod
    def of(cls, arch: str) -> Lds | None:
        """Returns the LDS of a GPU, or ``None`` if the GPU is unknown.

        Args:
            arch: ``"gfx950"``; a suffix such as ``-strict`` changes nothing here.
        """
        return _LDS.get(arch.partition("-")[0])

    @classmethod
    def of_module(cls, module: Module, arch: str = "") -> Lds | None:
        """Returns the LDS of a module's GPU, or ``None`` if the GPU is unknown.

        Args:
            module: The module.
            arch: The GPU given as an option; by default that of ``ttg.target``.
        """
        vendor, _, named = module.op.attributes.get("ttg.target", "").strip('"').partition(":")
        return cls.of(arch or (named if vendor == "hip" else ""))

    @staticmethod
    def archs() -> tuple[str, ...]:
        """Returns the GPUs with known LDS."""
        return tuple(_LDS)

    @property
    def bank_model(self) -> BankModel:
        """Returns the banks, for :mod:`triton_ext.analysis.bank_conflicts`."""
        return BankModel(lanes=self.lanes, banks=self.banks)

    @property
    def partitions(self) -> int:
        """Returns the number of physical partitions."""
        return self.bytes // self.partition_bytes if self.partition_bytes else 1


_LDS: Final[dict[str, Lds]] = {
    lds.arch: lds
    for lds in (
        Lds(arch="gfx90a", bytes=64 * _KIB, banks=32),
        Lds(arch="gfx942", bytes=64 * _KIB, banks=32),
        Lds(arch="gfx950", bytes=160 * _KIB, banks=64),
        Lds(arch="gfx1250", bytes=320 * _KIB, banks=64, lanes=32, partition_bytes=64 * _KIB),
        Lds(arch="gfx1251", bytes=320 * _KIB, banks=64, lanes=32, partition_bytes=64 * _KIB),
    )
}
#: Other GPUs of GCN, CDNA and RDNA, whose LDS has no partitions.
_OTHERS: Final = re.compile(r"gfx(90|1[01]\d|120)[0-9a-f]", re.ASCII)


def check_arch(arch: str) -> None:
    """Checks that a name is an AMD GPU.

    Raises:
        ValueError: It is not; the message lists the known GPUs.
    """
    if Lds.of(arch) is None and _OTHERS.fullmatch(arch.partition("-")[0]) is None:
        raise ValueError(
            f"expected an AMD GPU as 'arch', found '{arch}'; known are {', '.join(_LDS)}, and "
            "those of RDNA, such as gfx1100"
        )


def shared_memory(arch: str) -> SharedMemory | None:
    """Returns the LDS of a GPU for memory maps, or ``None`` if the GPU is unknown."""
    lds = Lds.of(arch)
    if lds is None:
        return None
    return SharedMemory(
        arch=lds.arch,
        target=f"hip:{lds.arch}",
        name="LDS",
        bytes=lds.bytes,
        banks=lds.bank_model,
        partition_bytes=lds.partition_bytes,
        has_transposing_loads=lds.arch in ("gfx950", "gfx1250", "gfx1251"),
    )
