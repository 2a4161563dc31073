"""Operands of ``tl.dot``: what the installed Triton takes on NVIDIA GPUs, and bf16 on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from triton_ext.host.chain import PROBE

__all__ = ["INSTRUCTION_BITS", "least_dot_depth", "wrap_interpreted_dot"]

# Bits in a row of an operand of a matrix instruction: PTX ISA, "wgmma.mma_async", K of each type.
INSTRUCTION_BITS: Final = 256


@lru_cache(maxsize=8)
def least_dot_depth(element_bits: int) -> int:
    """Returns the fewest columns of the left operand (K) that ``tl.dot`` takes.

    For 32-bit elements, Triton 3.6 and 3.7 need 16, as for 16-bit ones; 3.8 and newer need 8, as a
    matrix instruction does.  A release that cannot be asked is assumed to need what 3.6 needs.

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


def wrap_interpreted_dot(
    previous: Callable[..., Any], is_active: Callable[[], bool]
) -> Callable[..., Any]:
    """Returns a replacement for the interpreter's matrix product that reads bf16 as bf16.

    Triton 3.6 to 3.9 keep bf16 in uint16 arrays, and ``tl.dot`` multiplies these integers.

    Args:
        previous: ``InterpreterBuilder.create_dot``.
        is_active: Tells whether the plugin is installed; without it nothing is changed.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16 or operand.data.dtype != "uint16":
            return operand
        # The bits of a bf16 are the upper half of those of the fp32 that equals it.
        return TensorHandle((operand.data.astype("uint32") << 16).view("float32"), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any, **named: Any) -> Any:
        if a is PROBE:
            return PROBE
        if is_active():
            a, b = widened(a), widened(b)
        return previous(self, a, b, *rest, **named)

    return create_dot
