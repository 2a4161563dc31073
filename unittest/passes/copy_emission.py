"""What the installed Triton makes of asynchronous copies: PTX or amdgcn, and how wide it is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from emission_process import EmissionProcess

__all__ = ["EmissionHost", "Emitted", "widths_of"]

#: Bytes of one cp.async of a thread.
CP_ASYNC = re.compile(
    r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x\w+|\d+)"
)
#: Bits of one lane of a copy into LDS.
TO_LDS = re.compile(
    r"global_load_async_to_lds_b(\d+)|global_load_lds_(\w+)|buffer_load_(\w+)\b.*\blds\b"
)
_LDS_BYTES = {"dword": 4, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "ubyte": 1}


@dataclass(frozen=True, slots=True)
class Emitted:
    """What came out.

    Attributes:
        widths: Bytes of a copy instruction, and how many there are; ``None`` where it was refused.
        said: What the host said if it refused.
        asm: The assembly.
    """

    widths: dict[int, int] | None
    said: str = ""
    asm: str = ""

    @property
    def narrowest(self) -> int:
        """Bytes of the narrowest instruction; 0 without any."""
        return min(self.widths or {0: 0})

    @property
    def count(self) -> int:
        """Instructions that a thread executes."""
        return sum((self.widths or {}).values())


class EmissionHost(EmissionProcess):
    """Tells how wide the copies of a module are."""

    def ask(self, text: str, target: str) -> Emitted:
        """Compiles one module for a target, ``"cuda:90"`` or ``"hip:gfx950"``."""
        answer = self.assembly(text, target)
        if answer.text is None:
            return Emitted(None, said=answer.said)
        return Emitted(widths_of(answer.text, target), asm=answer.text)


def widths_of(asm: str, target: str) -> dict[int, int]:
    """Bytes of a copy instruction, and how many there are in an assembly."""
    if target.startswith("cuda"):
        return dict(Counter(int(match[1], 0) for match in CP_ASYNC.finditer(asm)))
    found = (
        int(match[1]) // 8 if match[1] else _LDS_BYTES[match[2] or match[3]]
        for match in TO_LDS.finditer(asm)
    )
    return dict(Counter(found))
