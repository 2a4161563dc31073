"""What the installed Triton takes as operands of ``tl.dot`` on NVIDIA GPUs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = ["INSTRUCTION_BITS", "least_dot_depth"]

# Of a row of an operand of a matrix instruction: PTX ISA, "wgmma.mma_async", K of each type.
INSTRUCTION_BITS: Final = 256


@lru_cache(maxsize=8)
def least_dot_depth(element_bits: int) -> int:
    """Returns the fewest columns of the left operand (K) that ``tl.dot`` takes.

    Triton 3.6 and 3.7 take 16 elements of 32 bits, as of 16; 3.8 and newer take the 8 that a matrix
    instruction does.  A release that cannot be asked is thought to take what all of these do.

    Args:
        element_bits: Size of an element of the operands: 8, 16 or 32.
    """
    import triton.language as tl

    try:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import min_dot_size
    except ImportError:
        return max(16, INSTRUCTION_BITS // element_bits)
    operand = {8: tl.int8, 16: tl.float16, 32: tl.float32}[element_bits]
    shape: tuple[int, int, int] = min_dot_size(GPUTarget("cuda", 90, 32))(operand, operand)
    return shape[2]
