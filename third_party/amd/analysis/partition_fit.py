"""Whether the buffers of a module fit into LDS, in this package's placement and in Triton's.

Triton's is computed offset for offset (:mod:`triton_ext.analysis.allocation.triton_order`), so its
bytes are exact, with two exceptions:

1. what operations need while they run is taken as twice the bytes of all of their tensors where
   only Triton knows it;
2. a function whose ``noinline`` mark was taken away counts as one that is called.

Where the host is not known, the larger number of two counts: that of 3.8 and that of 3.9.
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
    """Bytes of LDS that a module needs; ``None`` where Triton would never end.

    Args:
        module: The module.
        lds: What there is.
        features: What the host can do (``triton_ext.host.features``); ``None`` if it is not known.

    Raises:
        VerifyError: A buffer has no size that is known.
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
            # Sizes are known: they were asked for above.
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
