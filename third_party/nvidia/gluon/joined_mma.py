"""``warpgroup_mma_joined`` for Gluon kernels: WGMMAs that read one left operand, as one.

Tensors have 2^n columns, WGMMAs any multiple of 8 up to 256: 160 columns are five tensors of 32,
and may be one instruction, which reads the left operand once.  A marker in front of them tells what
lowers it, ``passes/join_wgmma.py``, that the kernel wants that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from triton.experimental.gluon.language import _core as ttgl
from triton.experimental.gluon.language._layouts import NVMMADistributedLayout, NVMMASharedLayout
from triton.experimental.gluon.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_accumulator,
)
from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.place import gluon_builtin

from ..dialect.wgmma_asm import MAX_N
from ..language.builtin import describe, sm_of
from ..language.im2col import check_plugin
from ..language.join_marker import mark_join

__all__ = ["warpgroup_mma_joined"]

_NAME: Final = "warpgroup_mma_joined"
# The descriptor of 8 columns does not say how far behind it the next 8 would lie.
_MIN_N: Final = 16
_STEP_BYTES: Final = 32
# Rows of an instruction's 64 that a warp has in Triton's layout.
_INSTRUCTION_M: Final = 16
_WARPS_OF_GROUP: Final = 4
_FP8: Final = ("fp8e4nv", "fp8e5")
_DTYPES: Final = ("fp16", "bf16", "fp32", *_FP8)
_PERMUTE: Final = "of a buffer [N, K], give .permute((1, 0))"


@gluon_builtin
def warpgroup_mma_joined(
    a: ttgl.shared_memory_descriptor,
    b: Sequence[ttgl.shared_memory_descriptor],
    acc: Sequence[Any],
    _semantic: Any = None,
) -> tuple[Any, ...]:
    """Starts products of ``a`` with several right operands, in WGMMAs over the columns of all.

    The columns of each right operand lie in shared memory right behind those of the one before:
    what lowers it sees that, or fails at the line of the call.  Asynchronous; for
    ``warpgroup_mma_wait`` the products are one.

    Operands are fp16, bf16, fp8 (e4m3 and e5m2: that of ``a`` and of ``b`` may differ) or fp32,
    which is read as tf32, in ``NVMMASharedLayout``.  K is a multiple of 32 bytes; of stages of one
    buffer no more than its swizzle, for what is beyond lies between the columns of two.

    Args:
        a: Shared memory [M, K]; M is 64 or more.
        b: Tuple of shared memory [K, N], each ``.permute((1, 0))`` of a buffer [N, K]; N is 16 or
            more.
        acc: Tuple of accumulators [M, N] of fp32, one for each, in ``NVMMADistributedLayout`` of
            version [3, 0] with ``instr_shape`` [16, N, 32 bytes of K]: 16 for operands of 16 bits,
            32 for fp8, 8 for tf32; the first of ``warps_per_cta`` is a multiple of 4.

    Returns:
        The accumulators.  A wait has to have all of them: a product that nobody waits for is not
        computed, and the others cannot become one then.

    Raises:
        TypeError, ValueError: At compile time, at the line of the call: an operand of another kind,
            shape, dtype or layout, a right operand that is given twice, fewer than 16 columns or
            more than 256 together.
        UnsupportedError: This Triton's LLVM IR is not known (capability ``"wgmma-join"``), the
            target is not sm_90, or triton_ext is uninstalled.
    """
    require("wgmma-join")
    check_plugin(_NAME)
    _check_target(_semantic.builder.options)
    b, acc = _as_list(b, "right operands"), _as_list(acc, "accumulators")
    if len(b) != len(acc) or len(b) < 2:
        raise ValueError(
            f"{_NAME}: expected two or more right operands and as many accumulators, got "
            f"{len(b)} and {len(acc)}"
        )
    for operand in (a, *b):
        if not isinstance(operand, ttgl.shared_memory_descriptor):
            raise TypeError(f"{_NAME}: expected shared memory, got {describe(operand)}")
        if len(operand.shape) != 2:
            raise ValueError(f"{_NAME}: expected a matrix, got the shape {_shape(operand)}")
    columns = [int(operand.shape[-1]) for operand in b]
    if min(columns) < _MIN_N:
        raise ValueError(
            f"{_NAME}: expected at least {_MIN_N} columns in each right operand, got {columns}"
        )
    if sum(columns) > MAX_N:
        raise ValueError(f"{_NAME}: expected at most {MAX_N} columns together, got {sum(columns)}")
    for operand, each in zip(b, acc, strict=True):
        _check_product(a, operand, each)
    if int(a.shape[0]) % (_INSTRUCTION_M * _WARPS_OF_GROUP):
        raise ValueError(f"{_NAME}: expected 64 rows of the left operand or more, got {a.shape[0]}")
    _check_operands(a, b)
    depth = _STEP_BYTES * 8 // a.dtype.primitive_bitwidth
    if int(a.shape[1]) % depth:
        raise ValueError(
            f"{_NAME}: expected a multiple of {depth} as K of operands of {a.dtype}, got "
            f"{a.shape[1]}"
        )
    for each, count in zip(acc, columns, strict=True):
        _check_layout(_tensor_type(each).layout, [_INSTRUCTION_M, count, depth], a.dtype)
    mark_join(columns, _semantic)
    return ttgl.tuple(  # type: ignore[no-any-return]
        [
            warpgroup_mma(a, operand, each, is_async=True, _semantic=_semantic)
            for operand, each in zip(b, acc, strict=True)
        ]
    )


def _check_target(options: Any) -> None:
    """Refuses a target without WGMMAs, in which LLVM would end the process."""
    if getattr(options, "backend_name", "") != "cuda" or sm_of(options) not in ("", "90"):
        raise UnsupportedError(
            f"{_NAME}: WGMMAs need sm_90, the target is {getattr(options, 'arch', '')}"
        )


def _as_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, tuple | list | ttgl.tuple):
        raise TypeError(f"{_NAME}: expected a tuple of {what}, got {describe(value)}")
    return list(value)


def _shape(value: Any) -> list[int]:
    return [int(size) for size in value.shape]


def _check_product(a: Any, b: Any, acc: Any) -> None:
    """Refuses what the host ends the process for, or does not name the line of."""
    if not isinstance(acc, ttgl.tensor | warpgroup_mma_accumulator):
        raise TypeError(f"{_NAME}: expected an accumulator, got {describe(acc)}")
    (rows, depth), (b_depth, columns) = _shape(a), _shape(b)
    if depth != b_depth:
        hint = f"; {_PERMUTE}" if columns == depth and _has_rows_together(b) else ""
        raise ValueError(f"{_NAME}: expected a right operand of {depth} rows, got {b_depth}{hint}")
    type_ = _tensor_type(acc)
    if not type_.is_block():
        raise TypeError(f"{_NAME}: expected an accumulator, got {describe(acc)}")
    if _shape(type_) != [rows, columns] or not type_.scalar.is_fp32():
        raise ValueError(
            f"{_NAME}: expected an accumulator of fp32 [{rows}, {columns}], got {type_.scalar} "
            f"{_shape(type_)}"
        )


def _tensor_type(acc: Any) -> Any:
    return acc.type.tensor_type if isinstance(acc, warpgroup_mma_accumulator) else acc.type


def _has_rows_together(operand: Any) -> bool:
    """Returns whether rows of a matrix are contiguous in shared memory."""
    return not getattr(operand.layout, "transposed", False)


def _check_operands(a: Any, b: list[Any]) -> None:
    """Refuses dtypes and layouts in shared memory that no WGMMA reads, or not a joined one."""
    types = [str(operand.dtype) for operand in (a, *b)]
    if types[0] not in _DTYPES:
        raise TypeError(f"{_NAME}: expected operands of {', '.join(_DTYPES)}, got {types[0]}")
    allowed = _FP8 if types[0] in _FP8 else types[:1]
    if any(name not in allowed for name in types[1:]) or len(set(types[1:])) > 1:
        raise TypeError(
            f"{_NAME}: expected right operands of one dtype, {' or '.join(allowed)} as the left "
            f"one is {types[0]}, got {', '.join(types[1:])}"
        )
    bits = a.dtype.primitive_bitwidth
    for operand in (a, *b):
        layout = operand.layout
        if not isinstance(layout, NVMMASharedLayout) or layout.element_bitwidth != bits:
            raise TypeError(
                f"{_NAME}: expected operands in NVMMASharedLayout of {bits} bits, got {layout}"
            )
    if bits != 16 and not _has_rows_together(a):
        raise ValueError(
            f"{_NAME}: expected a left operand [M, K] that is not permuted, as it is {types[0]}"
        )
    if any(map(_has_rows_together, b)):
        raise ValueError(
            f"{_NAME}: expected right operands [K, N] whose columns lie together in shared memory: "
            f"{_PERMUTE}"
        )
    if len({id(operand) for operand in b}) != len(b):
        raise ValueError(
            f"{_NAME}: expected right operands that lie behind each other, got one of them twice"
        )


def _check_layout(layout: Any, instr_shape: list[int], dtype: Any) -> None:
    """Refuses what Triton's lowering ends the process for, or fails in without a line."""
    if (
        not isinstance(layout, NVMMADistributedLayout)
        or list(layout.version) != [3, 0]
        or list(layout.instr_shape) != instr_shape
    ):
        raise TypeError(
            f"{_NAME}: expected an accumulator in NVMMADistributedLayout of version [3, 0] and "
            f"instr_shape {instr_shape} for operands of {dtype}, got {layout}"
        )
    if layout.warps_per_cta[0] % _WARPS_OF_GROUP:
        raise ValueError(
            f"{_NAME}: expected a multiple of {_WARPS_OF_GROUP} as the first of warps_per_cta, for "
            f"a WGMMA's rows are those of a warp group, got {list(layout.warps_per_cta)}"
        )
