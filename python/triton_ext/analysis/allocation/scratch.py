"""Shared memory that operations need while they run.

Some sizes follow from the operation alone; others from how the host lowers it, which differs from
release to release and is told by nobody but the host.  What the host's own pass left is taken: the
number ``allocation.size``, which 3.9 prints; and nothing for an operation without
``allocation.offset`` in a module with ``ttg.shared``.  :class:`Scratch` knows besides:

* ``ttg.warp_specialize``: its captures, packed; a function: one byte for each warp of the
  partitions that run at the same time;
* ``tt.histogram``, scalar atomics, ``ttng.tensormap_create``;
* ``tt.reduce`` along an axis that no two warps (or CTAs) share, and ``ttg.convert_layout`` between
  layouts that leave every element in its warp: nothing.

Every other ``tt.reduce``, ``tt.scan``, ``tt.gather``, ``ttg.convert_layout`` and atomic of a tensor
whose result is used is *not known* without the host's number, and nobody may guess.
"""

from __future__ import annotations

from typing import Final

from ...ir import Operation, Value
from ...ir.aliases import AliasTable
from ...ir.dialects import ttg
from ...ir.encodings import DistributedEncoding
from ...ir.functions import FUNCTIONS
from ...ir.types import MemDescType, PointerType, TensorType, Type

__all__ = ["SCRATCH_ALIGNMENT", "Scratch"]

SCRATCH_ALIGNMENT: Final = 128
_TENSOR_MAP_BYTES: Final = 128
_ATOMICS: Final = frozenset({"tt.atomic_rmw", "tt.atomic_cas"})
_THREADS: Final = ("lane", "warp", "block")
_BY_HOST: Final = frozenset({"tt.scan", "tt.gather", "tt.map_elementwise"})


class Scratch:
    """Scratch sizes of the operations of a module.

    Args:
        top: The module.
        aliases: Its aliases.
    """

    def __init__(self, top: Operation, aliases: AliasTable) -> None:
        self._aliases = aliases
        self._lanes = int(top.attributes.get("ttg.threads-per-warp", "32").partition(":")[0])
        self._has_run = "ttg.shared" in top.attributes

    def __call__(self, op: Operation) -> tuple[int, int] | None:
        """Size and alignment in bytes; ``None`` where the size is not known."""
        if op.name == ttg.WarpSpecializeOp.NAME:
            return self._captures(op), 8
        if op.name in FUNCTIONS:
            return _warp_states(op), 4
        size = self._size(op)
        return None if size is None else (size, SCRATCH_ALIGNMENT)

    def _size(self, op: Operation) -> int | None:
        given = op.attributes.get("allocation.size")
        if given is not None:
            return int(given.partition(":")[0])
        if self._has_run and "allocation.offset" not in op.attributes:
            return 0
        if op.name == "tt.histogram":
            type_ = self._type(op.results[0])
            bits = type_.bit_width or 32
            count = type_.num_elements if isinstance(type_, TensorType) else 0
            return max(count, self._lanes) * max(8, bits) // 8
        if op.name == "ttng.tensormap_create":
            return _TENSOR_MAP_BYTES
        if op.name in _ATOMICS:
            return self._atomic(op)
        if op.name == "tt.reduce":
            return self._reduce(op)
        if op.name == "ttg.convert_layout":
            return self._conversion(op)
        return None if op.name in _BY_HOST else 0

    def _type(self, value: Value) -> Type:
        return self._aliases.type(value.type)

    def _captures(self, op: Operation) -> int:
        return sum(self._capture(self._type(value)) for value in op.operands)

    def _capture(self, type_: Type) -> int:
        if isinstance(type_, MemDescType) and not type_.in_tensor_memory:
            # The base, and an offset for each dimension.
            return 8 + 4 * type_.rank
        if type_.bit_width is None or isinstance(type_, (PointerType, MemDescType)):
            return 8
        if type(type_).__name__.startswith("TensorDesc"):
            return 8
        return -(-type_.bit_width // 8)

    def _atomic(self, op: Operation) -> int | None:
        type_ = self._type(op.results[0])
        if isinstance(type_, TensorType):
            # Some hosts hand the results of one thread to others that hold the same element.
            return None if op.results[0].uses else 0
        return -(-(type_.bit_width or 64) // 8)

    def _reduce(self, op: Operation) -> int | None:
        type_ = self._type(op.operands[0])
        axis = op.attributes.get("axis")
        if axis is None or not isinstance(type_, TensorType):
            return None
        if not isinstance(type_.encoding, DistributedEncoding):
            return None
        layout = type_.encoding.to_linear_layout(type_.static_shape)
        dim = int(axis.partition(":")[0])
        across = [b for name in ("warp", "block") for b in layout.in_bases(name)]
        return None if any(basis[dim] for basis in across) else 0

    def _conversion(self, op: Operation) -> int | None:
        source, target = self._type(op.operands[0]), self._type(op.results[0])
        if not (isinstance(source, TensorType) and isinstance(target, TensorType)):
            return None
        one, two = source.encoding, target.encoding
        if not (isinstance(one, DistributedEncoding) and isinstance(two, DistributedEncoding)):
            return None
        before = one.to_linear_layout(source.static_shape)
        after = two.to_linear_layout(target.static_shape)
        # Registers alone move where each thread has what it needs already.
        return 0 if all(before.in_bases(n) == after.in_bases(n) for n in _THREADS) else None


def _warp_states(function: Operation) -> int:
    """Warps of the partitions of the ``ttg.warp_specialize`` that has most of them."""
    most = 0
    for op in function.walk():
        view = ttg.WarpSpecializeOp.match(op)
        if view is not None:
            most = max(most, sum(partition.num_warps for partition in view.partitions))
    return most
