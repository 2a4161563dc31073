"""How much shared memory a CTA can have: CUDA C++ Programming Guide, "Compute Capabilities"."""

from __future__ import annotations

import re
from typing import Final

from triton_ext.analysis.bank_conflicts import NVIDIA
from triton_ext.analysis.memory_map import SharedMemory

__all__ = ["shared_memory"]

#: KiB by compute capability.
_KIB: Final = {
    70: 96,
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    89: 99,
    90: 227,
    100: 227,
    101: 227,
    103: 227,
    110: 227,
    120: 99,
    121: 99,
}


def shared_memory(arch: str) -> SharedMemory | None:
    """The shared memory of a GPU, or ``None`` where it is not known.

    Args:
        arch: ``"sm_90"`` or ``"90"``; a suffix changes nothing.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d+)[a-z]?", arch, re.ASCII)
    size = _KIB.get(int(match[1])) if match else None
    if match is None or size is None:
        return None
    return SharedMemory(
        arch=f"sm_{match[1]}",
        target=f"cuda:{match[1]}",
        name="shared memory",
        bytes=size * 1024,
        banks=NVIDIA,
    )
