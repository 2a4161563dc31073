"""The TMA load as Triton writes it into LLVM IR: inline assembly with one operand per part.

Grammar (PTX ISA, ``cp.async.bulk.tensor``): the destination's state space, the completion mechanism
and what may follow it are kept as they are; the dimension, the load mode, the coordinates and the
offsets change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from triton_ext.llvm_ir import Call, Instruction

__all__ = ["TiledCopy", "im2col_asm"]

# Operands: predicate, destination, descriptor, two coordinates innermost first, mbarrier, and the
# CTAs that get the data where it is for several.
_TEMPLATE: Final = re.compile(
    r"@\$0 cp\.async\.bulk\.tensor\.2d\.(?P<space>shared::(?:cta|cluster))\.global(?:\.tile)?"
    r"(?P<completion>\.mbarrier::complete_tx::bytes"
    r"(?P<multicast>\.multicast::cluster)?(?:\.cta_group::[12])?) "
    r"\[\$1\], \[\$2, \{\$3, \$4\}\], \[\$5\](?(multicast), \$6);"
)
_CONSTRAINTS: Final = "b,r,l,r,r,r"


@dataclass(frozen=True, slots=True)
class TiledCopy:
    """A copy of a tile of a 2-D tensor into shared memory.

    Attributes:
        call: The inline assembly.
        space: ``shared::cta`` or ``shared::cluster``.
        completion: The completion mechanism and its modifiers, as written.
        is_multicast: Whether it has a mask of CTAs.
    """

    call: Call
    space: str
    completion: str
    is_multicast: bool

    #: Which argument is the channel, and which is the pixel: innermost first.
    channel_index = 3
    pixel_index = 4
    #: Behind them; the mask of a multicast is the last one.
    barrier_index = 5

    @classmethod
    def match(cls, instruction: Instruction) -> TiledCopy | None:
        """Returns the view, or ``None``."""
        if "cp.async.bulk.tensor.2d." not in instruction.text:
            return None
        call = Call.match(instruction)
        match = _TEMPLATE.fullmatch(call.template.strip('"')) if call is not None else None
        if call is None or match is None:
            return None
        is_multicast = match["multicast"] is not None
        constraints = f"{_CONSTRAINTS},h" if is_multicast else _CONSTRAINTS
        if call.constraints.strip('"') != constraints or len(call.args) != 6 + is_multicast:
            return None
        return cls(call, match["space"], match["completion"], is_multicast)


def im2col_asm(copy: TiledCopy, rank: int) -> tuple[str, str]:
    """Returns the assembly and the constraints of the im2col copy of a tensor of ``rank``.

    Operands: predicate, destination, descriptor, ``rank`` coordinates innermost first, mbarrier,
    ``rank - 2`` offsets of 16 bits innermost first, the mask of a multicast.
    """
    coordinates = ", ".join(f"${3 + i}" for i in range(rank))
    barrier = 3 + rank
    offsets = ", ".join(f"${barrier + 1 + i}" for i in range(rank - 2))
    mask = f", ${barrier + rank - 1}" if copy.is_multicast else ""
    template = (
        f"@$0 cp.async.bulk.tensor.{rank}d.{copy.space}.global.im2col{copy.completion} "
        f"[$1], [$2, {{{coordinates}}}], [${barrier}], {{{offsets}}}{mask};"
    )
    narrow = rank - 2 + copy.is_multicast
    return template, ",".join(["b", "r", "l", *["r"] * rank, "r", *["h"] * narrow])
