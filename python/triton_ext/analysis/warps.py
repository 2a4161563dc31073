"""Numbers that modules and functions state: of warps, of threads in a warp, of CTAs."""

from __future__ import annotations

from typing import Final

from ..ir import Operation
from ..ir.dialects import ttg
from ..ir.functions import FUNCTIONS
from ..ir.integers import read_integer

__all__ = ["num_warps_of", "number_of", "threads_per_warp_of"]

_NUM_WARPS: Final = "ttg.num-warps"
#: Operations whose attribute counts; a text of several modules stands in one that has none.
_HOLDERS: Final = FUNCTIONS | {"builtin.module"}
#: Threads of a warp in a module that does not say it, as in upstream's ``TritonGPUDialect``.
_THREADS_PER_WARP: Final = 32


def num_warps_of(op: Operation, default: int | None = None) -> int:
    """Warps that run an operation: those of its partition, function or nearest module.

    Gluon gives a function that partitions call the number of their warps.

    Args:
        op: The operation.
        default: What a module has that does not say it; ``None`` for an error.

    Raises:
        VerifyError: The attribute is no number, or missing without a default.
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
    """Threads of a warp: the number of the nearest module that has one, or 32.

    Args:
        op: The operation, or the module.

    Raises:
        VerifyError: The attribute is no positive number.
    """
    name = "ttg.threads-per-warp"
    while (around := op.parent_op) is not None and name not in op.attributes:
        op = around
    return number_of(op, name, _THREADS_PER_WARP)


def number_of(holder: Operation, name: str, default: int | None = None) -> int:
    """A power of two among the attributes of a module or function, ``"ttg.num-ctas" = 2 : i32``.

    Args:
        holder: The module or function.
        name: Name of the attribute.
        default: What it is where it is not given; ``None`` for an error.

    Raises:
        VerifyError: It is no such number, or missing without a default.
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
