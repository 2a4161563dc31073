"""What the installed Triton copies by on an AMD GPU: instructions of a TTGIR module's assembly."""

from __future__ import annotations

import re
from dataclasses import dataclass

from emission_process import EmissionProcess

#: Instructions that move data between global memory and LDS.
COPY = re.compile(
    r"^\s*(?:(?:global|cluster)_load_async_to_lds_\w+|global_store_async_from_lds_\w+"
    r"|(?:global|buffer)_load_(?:lds_\w+|\w+ .*\blds\b)|tensor_load_to_lds|tensor_store_from_lds)",
    re.MULTILINE,
)
#: A branch around code that no lane of the wave executes, or that its wave or CTA does not, and
#: its target.
SKIP = re.compile(r"^\s*s_cbranch_(?:exec|vcc|scc)(?:n?z|[01])\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Emitted:
    """What came out.

    Attributes:
        count: Instructions that copy; ``None`` where the host refused the module.
        skips: Whether a wave may branch around one of them.
        said: What the host said if it refused.
        asm: The assembly.
    """

    count: int | None
    skips: bool = False
    said: str = ""
    asm: str = ""


class EmissionHost(EmissionProcess):
    """Counts what a module copies by."""

    def ask(self, text: str, arch: str) -> Emitted:
        """Compiles one module for one GPU."""
        answer = self.assembly(text, f"hip:{arch}")
        if answer.text is None:
            return Emitted(None, said=answer.said)
        return Emitted(len(COPY.findall(answer.text)), _skips_copies(answer.text), asm=answer.text)


def _skips_copies(asm: str) -> bool:
    for branch in SKIP.finditer(asm):
        end = asm.find(f"\n{branch[1]}:", branch.end())
        # A branch backwards, or to a block that was moved: better once too often than never.
        if COPY.search(asm, branch.end(), end if end >= 0 else len(asm)):
            return True
    return False
