"""Computes whether the buffers of a module fit into LDS, in this package's and Triton's placement.

Triton's placement is reproduced offset by offset
(:mod:`triton_ext.analysis.allocation.triton_order`), so its size is exact, with two exceptions:

1. scratch memory that only Triton can compute is taken as twice the bytes of all tensors of the
   operation;
2. a function whose ``noinline`` attribute was removed counts as called.

For an unknown host the larger of the sizes of 3.8 and 3.9 counts.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from triton_ext.analysis.allocation import Scratch, allocate
from triton_ext.errors import VerifyError
from triton_ext.ir import Module, Operation
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.types import TensorType

from .lds import Lds

__all__ = ["needed_bytes"]

_ALIGNMENT: Final = 128
_PLACEMENT: Final = "amd-partition-placement"


def needed_bytes(module: Module, lds: Lds, features: Set[str] | None) -> int | None:
    """Returns the bytes of LDS that a module needs, or ``None`` if Triton would not terminate.

    Args:
        module: The module.
        lds: The LDS of the GPU.
        features: Capabilities of the host (``triton_ext.host.features``); ``None`` if unknown.

    Raises:
        VerifyError: The size of a buffer is unknown.
    """
    types = AliasTable(module.aliases)
    known = Scratch(module.op, types, features)

    def scratch(op: Operation) -> tuple[int, int]:
        found = known(op)
        return found if found is not None else (2 * _tensor_bytes(op, types), _ALIGNMENT)

    size = lds.partition_bytes
    total = allocate(module, partition_size=size, scratch=scratch).total
    hosts = (features,) if features is not None else (frozenset(), frozenset({_PLACEMENT}))
    for host in hosts:
        try:
            found = allocate(
                module, partition_size=size, scratch=scratch, features=host, as_triton=True
            )
        except VerifyError:
            # The sizes were already computed above without an error.
            return None
        total = max(total, found.total)
    return total


def _tensor_bytes(op: Operation, types: AliasTable) -> int:
    total = 0
    for value in (*op.operands, *op.results):
        type_ = types.type(value.type)
        if isinstance(type_, TensorType):
            total += type_.num_elements * max(8, type_.bit_width or 64) // 8
    return total
