"""Reads the numbers of warps, threads per warp and CTAs of modules and functions."""

from __future__ import annotations

from typing import Final

from ..ir import Operation
from ..ir.dialects import ttg
from ..ir.functions import FUNCTIONS
from ..ir.integers import read_integer

__all__ = ["num_warps_of", "number_of", "threads_per_warp_of"]

_NUM_WARPS: Final = "ttg.num-warps"
#: Operations whose attributes count; a text of several modules has an outer one without any.
_HOLDERS: Final = FUNCTIONS | {"builtin.module"}
#: Threads per warp of a module without the attribute, as in upstream's ``TritonGPUDialect``.
_THREADS_PER_WARP: Final = 32


def num_warps_of(op: Operation, default: int | None = None) -> int:
    """Returns the warps that run an operation: those of its partition, function or nearest module.

    Gluon sets the attribute on functions that partitions call.

    Args:
        op: The operation.
        default: The number for a module without the attribute; ``None`` for an error.

    Raises:
        VerifyError: The attribute is not a number, or missing without a default.
    """
    inner: Operation = op
    while (around := inner.parent_op) is not None:
        if inner.name in _HOLDERS and _NUM_WARPS in inner.attributes:
            break
        specialized = ttg.WarpSpecializeOp.match(around)
        for partition in specialized.partitions if specialized is not None else ():
            if inner.parent is not None and partition.block.parent is inner.parent.parent:
                return partition.num_warps
        inner = around
    return number_of(inner, _NUM_WARPS, default)


def threads_per_warp_of(op: Operation) -> int:
    """Returns the threads of a warp: the number of the nearest module with one, or 32.

    Args:
        op: The operation, or the module.

    Raises:
        VerifyError: The attribute is not a positive number.
    """
    name = "ttg.threads-per-warp"
    while (around := op.parent_op) is not None and name not in op.attributes:
        op = around
    return number_of(op, name, _THREADS_PER_WARP)


def number_of(holder: Operation, name: str, default: int | None = None) -> int:
    """Returns a power of two from the attributes of a module or function.

    Args:
        holder: The module or function.
        name: Name of the attribute, as in ``"ttg.num-ctas" = 2 : i32``.
        default: The number if the attribute is missing; ``None`` for an error.

    Raises:
        VerifyError: It is not a power of two, or missing without a default.
    """
    text = holder.attributes.get(name)
    if text is None:
        if default is not None:
            return default
        holder.fail(f"expected a module with a number as '{name}'")
    found = read_integer(text)
    if found is None or found < 1 or found & (found - 1):
        holder.fail(f"expected a power of two as '{name}', found {text}")
    return found
