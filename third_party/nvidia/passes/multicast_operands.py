"""The operands of im2col copies with multicast, in the order that the PTX ISA asks for.

Triton 3.8 writes the mask of CTAs in front of the offsets, which ptxas refuses for each rank::

    cp.async.bulk.tensor.3d... [$1], [$2, {$3, $4, $5}], [$6], $7, {$8};
    cp.async.bulk.tensor.3d... [$1], [$2, {$3, $4, $5}], [$6], {$8}, $7;

The operands are named by number, so their order in the text is all there is to mend.  What is
written in the right order stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["order_multicast_operands"]

# PTX ISA, cp.async.bulk.tensor: [dstMem], [tensorMap, coordinates], [mbar], offsets, ctaMask.
_MASK_FIRST: Final = re.compile(
    r"(cp\.async\.bulk\.tensor\.\dd\.[\w:.]+\.im2col\.[\w:.]+\.multicast::cluster[\w:.]* "
    r"\[\$\d+\], \[\$\d+, \{[$\d, ]+\}\], \[\$\d+\]), (\$\d+), (\{[$\d, ]+\})"
)


def order_multicast_operands(text: str) -> str:
    """Returns the text of an LLVM IR module with the mask of each such copy behind its offsets."""
    return _MASK_FIRST.sub(r"\1, \3, \2", text)
