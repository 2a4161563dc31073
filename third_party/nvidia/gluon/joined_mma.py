"""``warpgroup_mma_joined`` for Gluon kernels: WGMMAs that read one left operand, as one.

Tensors have 2^n columns, WGMMAs any multiple of 8 up to 256: 160 columns are five tensors of 32,
and may be one instruction, which reads the left operand once.  A marker in front of them tells what
lowers it, ``passes/join_wgmma.py``, that the kernel wants that.
"""

from __future__ import annotations

from typing import Final

from triton.experimental.gluon.language import _core as ttgl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma
from triton_ext.host import require
from triton_ext.host.place import located

from ..dialect.wgmma_asm import MAX_N
from ..language.builtin import describe
from ..language.join_marker import mark_join

__all__ = ["warpgroup_mma_joined"]

_NAME: Final = "warpgroup_mma_joined"


@builtin
@located
def warpgroup_mma_joined(a, b, acc, _semantic=None):  # type: ignore[no-untyped-def]
    """Starts products of ``a`` with several right operands, in WGMMAs over the columns of all.

    The columns of each right operand lie in shared memory right behind those of the one before:
    what lowers it sees that, or fails at the line of the call.  Asynchronous; for
    ``warpgroup_mma_wait`` the products are one.

    Args:
        a: Shared memory [M, K].
        b: Tuple of shared memory [K, N], each transposed from [N, K].
        acc: Tuple of accumulators [M, N], one for each.

    Returns:
        The accumulators.

    Raises:
        TypeError, ValueError: At compile time, at the line of the call: an operand of another kind
            or shape, more than 256 columns.
        UnsupportedError: This Triton's LLVM IR is not known (capability ``"wgmma-join"``).
    """
    require("wgmma-join")
    b, acc = list(b), list(acc)
    if len(b) != len(acc) or len(b) < 2:
        raise ValueError(
            f"{_NAME}: expected two or more right operands and as many accumulators, got "
            f"{len(b)} and {len(acc)}"
        )
    for operand in (a, *b):
        if not isinstance(operand, ttgl.shared_memory_descriptor):
            raise TypeError(f"{_NAME}: expected shared memory, got {describe(operand)}")
    columns = [int(operand.shape[-1]) for operand in b]
    if sum(columns) > MAX_N:
        raise ValueError(f"{_NAME}: expected at most {MAX_N} columns together, got {sum(columns)}")
    mark_join(columns, _semantic)
    return ttgl.tuple(
        [
            warpgroup_mma(a, operand, each, is_async=True, _semantic=_semantic)
            for operand, each in zip(b, acc, strict=True)
        ]
    )
