"""Scratch sizes: the shared memory that operations need while they run, as Triton lowers them.

After Triton's own pass a module contains the sizes: as ``allocation.size``, which 3.9 prints, and
zero for an operation without ``allocation.offset`` in a module with ``ttg.shared``.
:class:`Scratch` uses these; with ``recomputes=True`` only if it cannot compute a size, because
Triton's passes recompute every size.  Where releases differ (:mod:`~.lowering`) it needs to know
the release; without one it knows what all of them agree on:

* ``ttg.warp_specialize``: its captures, packed; a function: one byte for each warp of the
  partitions that run concurrently;
* ``ttg.convert_layout``: what its swizzling does not repeat (:mod:`~.swizzling`);
* ``tt.reduce`` across warps (:mod:`~.reduction`), ``tt.scan`` across warps: an element for each of
  the other elements of each warp and block; ``tt.gather`` across warps: the source;
* atomics whose result is used: an element, or the tensor if threads hold the same elements; the
  same for atomics in shared memory, for those that GSan instruments, and for ``tt.atomic_poll``
  with a timeout (without one it cannot fail);
* ``tt.histogram``: the bins, at least the lanes of a warp; ``ttng.tensormap_create``: a tensor map.

*Unknown* are conversions and reductions between unknown layouts, some on AMD GPUs
(:mod:`~.lowering`), and operations of Triton's dialects that
:mod:`~triton_ext.analysis.memory_effects` does not list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from ...errors import ParseError, VerifyError
from ...ir import Operation, Value
from ...ir.aliases import AliasTable
from ...ir.dialects import ttg
from ...ir.encodings import BlockedEncoding, DistributedEncoding
from ...ir.functions import FUNCTIONS
from ...ir.integers import read_integer
from ...ir.linear_layout import LinearLayout
from ...ir.types import (
    MemDescType,
    PointerType,
    TensorDescIm2ColType,
    TensorDescType,
    TensorType,
    Type,
)
from ..memory_effects import is_listed
from ..warps import num_warps_of, number_of, threads_per_warp_of
from .layout_conversion import crosses_ctas, goes_through_memory
from .lowering import Lowering
from .reduction import bytes_by_conversion, bytes_by_warps
from .swizzling import FlatLayout

__all__ = ["SCRATCH_ALIGNMENT", "SCRATCH_OPERATIONS", "Scratch"]

SCRATCH_ALIGNMENT: Final = 128
_TENSOR_MAP_BYTES: Final = 128
_POINTER_BITS: Final = 64
#: Lanes of the smallest warp of any target.
_FEWEST_LANES: Final = 32
_SMALL_TDM, _LARGE_TDM = 48, 80
_CONSAN_BYTES: Final = "consan.extra_capture_bytes"
_OUTER: Final = ("warp", "block")


class Scratch:
    """Scratch sizes of the operations of a module.

    Args:
        top: The module.
        aliases: Its type aliases.
        features: Capabilities of the host (``triton_ext.host.features``); ``None`` if unknown.
        target: The target of the lowering, ``"cuda:90"``; by default the module's.
        recomputes: Whether sizes in the module count only if they cannot be computed.
    """

    def __init__(
        self,
        top: Operation,
        aliases: AliasTable,
        features: Set[str] | None = None,
        target: str | None = None,
        *,
        recomputes: bool = False,
    ) -> None:
        self._aliases = aliases
        self._recomputes = recomputes
        self.lanes = threads_per_warp_of(top)
        self.ctas = number_of(top, "ttg.num-ctas", 1)
        number_of(top, "ttg.num-warps", 4)  # Checks it; most operations do not.
        self._has_run = "ttg.shared" in top.attributes
        said = top.attributes.get("ttg.target", "").strip('"')
        self._lowerings = Lowering.of(said if target is None else target, features)

    def __call__(self, op: Operation) -> tuple[int, int] | None:
        """Returns size and alignment in bytes; ``None`` if the size is unknown."""
        if op.name in FUNCTIONS:
            return _warp_states(op), 4
        size = self._size(op)
        if size is None:
            return None
        return size, 8 if op.name == ttg.WarpSpecializeOp.NAME else SCRATCH_ALIGNMENT

    def _size(self, op: Operation) -> int | None:
        given = self._given(op)
        if given is not None and not self._recomputes:
            return given
        found = self._computed(op)
        return given if found is None else found

    def _given(self, op: Operation) -> int | None:
        """Returns the size from an earlier allocation."""
        text = op.attributes.get("allocation.size")
        if text is None:
            return 0 if self._has_run and "allocation.offset" not in op.attributes else None
        size = read_integer(text)
        if size is None or size < 0:
            op.fail(f"expected a number of bytes as 'allocation.size', found {text}")
        return size

    def _computed(self, op: Operation) -> int | None:
        compute = _SIZES.get(op.name)
        if compute is None:
            return 0 if is_listed(op.name) else None
        try:
            sizes = {compute(self, op, lowering) for lowering in self._lowerings}
        except (ParseError, VerifyError) as error:
            if error.line:
                raise  # It concerns the operation, not an encoding.
            return None
        return sizes.pop() if len(sizes) == 1 else None

    def type(self, value: Value) -> Type:
        """Returns the type of a value."""
        return self._aliases.type(value.type)

    def warps_of(self, op: Operation) -> int:
        """Returns the warps that run an operation."""
        return num_warps_of(op, 4)

    def histogram(self, op: Operation, lowering: Lowering) -> int:
        """Returns the bytes of a ``tt.histogram``."""
        type_ = self.type(op.results[0])
        count = type_.num_elements if isinstance(type_, TensorType) else 0
        return max(count, self.lanes) * _width(type_) // 8


def _captures(scratch: Scratch, op: Operation, lowering: Lowering) -> int:
    captured = sum(_capture(scratch.type(value), lowering) for value in op.operands)
    # The concurrency sanitizer adds these to the captures later.
    later = read_integer(op.attributes.get(_CONSAN_BYTES, "0")) or 0
    return captured + later * (lowering.reduces_by_conversion and lowering.vendor != "any")


def _capture(type_: Type, lowering: Lowering) -> int:
    if isinstance(type_, MemDescType) and not type_.in_tensor_memory:
        # The base, and an offset for each dimension.
        return 8 + 4 * type_.rank
    if isinstance(type_, (TensorDescType, TensorDescIm2ColType)):
        in_place = lowering.vendor == "amd" and lowering.reduces_by_conversion
        # AMD captures the descriptor itself, of 2 or of 4 groups (CDNA5 ISA, tensor DMA).
        return (_SMALL_TDM if len(type_.shape) <= 2 else _LARGE_TDM) if in_place else 8
    if type_.bit_width is None or isinstance(type_, (PointerType, MemDescType)):
        return 8
    return -(-type_.bit_width // 8)


def _tensor_map(scratch: Scratch, op: Operation, lowering: Lowering) -> int:
    return _TENSOR_MAP_BYTES


def _width(type_: Type) -> int:
    """Returns the bits of an element in memory: at least a byte, and an address for pointers."""
    return max(type_.bit_width or _POINTER_BITS, 8)


def _bytes(type_: Type) -> int:
    return -(-(type_.bit_width or _POINTER_BITS) // 8)


def _axis(op: Operation, rank: int) -> int:
    text = op.attributes.get("axis", "")
    axis = read_integer(text)
    if axis is None or not 0 <= axis < rank:
        op.fail(f"expected a number of a dimension as 'axis', found {text or 'none'}")
    return axis


def _layout(scratch: Scratch, type_: Type) -> LinearLayout | None:
    """Returns the layout of a tensor, if known; hosts refuse fewer lanes than a warp has."""
    if not isinstance(type_, TensorType) or not isinstance(type_.encoding, DistributedEncoding):
        return None
    layout = type_.encoding.to_linear_layout(type_.static_shape)
    fewest = max(scratch.lanes, _FEWEST_LANES)
    return layout if 1 << len(layout.in_bases("lane")) >= fewest else None


def _ctas(layout: LinearLayout) -> int:
    """Returns the number of CTAs with distinct parts."""
    return 1 << sum(map(any, layout.in_bases("block")))


def _conversion(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    if "force_warp_shuffle" in op.attributes and lowering.shuffles_broadcasts:
        return 0
    type_ = scratch.type(op.operands[0])
    source, target = _layout(scratch, type_), _layout(scratch, scratch.type(op.results[0]))
    if source is None or target is None or source.out_dims != target.out_dims:
        return None
    if not goes_through_memory(source, target, shuffles_broadcasts=lowering.shuffles_broadcasts):
        return 0
    bits = _width(type_)
    crosses = lowering.reduces_by_conversion and crosses_ctas(source, target)
    ways = lowering.conversions(bits, crosses_ctas=crosses)
    one, two = FlatLayout.of(source), FlatLayout.of(target)
    ctas = _ctas(source)
    if not lowering.reduces_by_conversion:
        # Each CTA reserved memory for the others' parts, and swizzled CTA bits with the rest.
        one, ctas = replace(one, blocks=()), 1
    return _agreed(way.elements(one, two, bits) // ctas * bits // 8 for way in ways)


def _agreed(sizes: Iterable[int]) -> int | None:
    """Returns the size if all agree."""
    found = set(sizes)
    return found.pop() if len(found) == 1 else None


def _reduction(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    types = [scratch.type(value) for value in op.operands]
    layout = _layout(scratch, types[0]) if types else None
    if layout is None or not isinstance(types[0], TensorType):
        return None
    axis = _axis(op, types[0].rank)
    if not any(basis[axis] for name in _OUTER for basis in layout.in_bases(name)):
        return 0
    widths = [type_.bit_width or _POINTER_BITS for type_ in types]
    if not lowering.reduces_by_conversion:
        return bytes_by_warps(layout, types[0].static_shape, axis, widths)
    ways = lowering.exchanges()
    return _agreed(bytes_by_conversion(layout, axis, widths, way) for way in ways)


def _scan(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    types = [scratch.type(value) for value in op.operands]
    layout = _layout(scratch, types[0]) if types else None
    if layout is None or not isinstance(types[0], TensorType):
        return None
    encoding = types[0].encoding
    if not isinstance(encoding, BlockedEncoding):
        # No supported release lowers it.
        return 0
    axis, shape = _axis(op, types[0].rank), types[0].static_shape
    lanes, warps = (_per_dim(layout, name) for name in ("lane", "warp"))
    if warps[axis] == 1:
        return 0

    def elements(registers: Sequence[int]) -> int:
        count = _product(warps)
        for dim, size in enumerate(shape):
            count *= -(-size // (registers[dim] * lanes[dim] * warps[dim]))
            count *= 1 if dim == axis else registers[dim] * lanes[dim]
        return count

    bases = layout.in_bases("register")
    counts = [elements(_side_by_side(list(filter(any, bases)), encoding.order))]
    if not lowering.reduces_by_conversion:
        # 3.6 stops at registers that repeat others; 3.7 does not.
        counts.append(elements(_side_by_side(bases, encoding.order)))
    count = _agreed(counts)
    return None if count is None else count * sum(map(_bytes, types))


def _per_dim(layout: LinearLayout, name: str) -> list[int]:
    """Returns the threads or warps with distinct elements along each dimension."""
    return [
        1 << sum(bool(b[d]) for b in layout.in_bases(name)) for d in range(len(layout.out_dims))
    ]


def _side_by_side(bases: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[int]:
    """Returns the contiguous elements of a thread along each dimension, from register bases."""
    rest = list(bases)
    found = [1] * len(order)
    for dim in order:
        while rest and rest[0] == tuple(found[dim] * (d == dim) for d in range(len(order))):
            found[dim] *= 2
            rest.pop(0)
    return found


def _gather(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    type_ = scratch.type(op.operands[0])
    source, indices = _layout(scratch, type_), _layout(scratch, scratch.type(op.operands[1]))
    if source is None or indices is None or not isinstance(type_, TensorType):
        return None
    axis = _axis(op, type_.rank)
    layouts = (source, indices)
    if not any(b[axis] for layout in layouts for name in _OUTER for b in layout.in_bases(name)):
        beside = [
            [
                (*basis[:axis], *basis[axis + 1 :])
                for name in (*_OUTER, "lane")
                for basis in layout.in_bases(name)
            ]
            for layout in layouts
        ]
        if beside[0] == beside[1]:
            return 0
    return type_.num_elements * _bytes(type_)


def _atomic(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    result = op.results[0]
    if not result.uses:
        return 0
    type_ = scratch.type(result)
    if not isinstance(type_, TensorType):
        alone = lowering.shuffles_broadcasts and scratch.warps_of(op) * scratch.ctas == 1
        return 0 if alone else _width(type_) // 8
    layout = _layout(scratch, type_)
    if layout is None:
        return None
    masks = layout.free_variable_masks()
    # The threads that hold copies of others' elements.
    dims = _OUTER if lowering.shuffles_broadcasts else ("register", "lane", *_OUTER)
    shared = any(masks[dim] for dim in dims)
    return type_.num_elements // _ctas(layout) * _width(type_) // 8 if shared else 0


def _buffer_atomic(scratch: Scratch, op: Operation, lowering: Lowering) -> int | None:
    # Earlier releases did not exchange the results of threads with the same elements.
    exchanges = lowering.vendor == "amd" and lowering.reduces_by_conversion
    return _atomic(scratch, op, lowering) if exchanges else 0


def _poll(scratch: Scratch, op: Operation, lowering: Lowering) -> int:
    # A byte for the outcome.
    return 1 if len(op.operands) == 3 and op.results[0].uses else 0


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


_SIZES: Final[Mapping[str, Callable[[Scratch, Operation, Lowering], int | None]]] = {
    "tt.histogram": Scratch.histogram,
    ttg.WarpSpecializeOp.NAME: _captures,
    "ttng.tensormap_create": _tensor_map,
    "tt.atomic_load": _atomic,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_cas": _atomic,
    "tt.atomic_poll": _poll,
    "ttg.local_atomic_scatter_rmw": _atomic,
    "tti.experimental_gsan_atomic_rmw": _atomic,
    "tti.experimental_gsan_atomic_cas": _atomic,
    "amdg.buffer_atomic_rmw": _buffer_atomic,
    "amdg.buffer_atomic_cas": _buffer_atomic,
    "tt.reduce": _reduction,
    "tt.scan": _scan,
    "tt.gather": _gather,
    "ttg.convert_layout": _conversion,
}

#: Operations that may need scratch, besides functions.
SCRATCH_OPERATIONS: Final = frozenset(_SIZES)


def _warp_states(function: Operation) -> int:
    """Returns the warps of the partitions of the largest ``ttg.warp_specialize``."""
    most = 0
    for op in function.walk():
        view = ttg.WarpSpecializeOp.match(op)
        if view is not None:
            most = max(most, sum(partition.num_warps for partition in view.partitions))
    return most
