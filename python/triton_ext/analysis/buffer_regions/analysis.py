"""The analysis of a module, and the queries of passes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...errors import ParseError, UnsupportedError, VerifyError
from ...ir import Module, Operation, OpResult, Value
from ...ir.aliases import AliasTable
from ...ir.attribute_values import IntegerAttr, parse_attribute
from ...ir.dialects import arith, ttg
from ...ir.dialects.view import OpReader
from ...ir.functions import FUNCTIONS, symbol_of
from ...ir.types import MemDescType
from ..alias_sets import AliasSets, is_allocation
from ..allocation import written_offsets
from .footprint import MOST, Footprint, Region
from .geometry import Geometry, Offset, geometry_of

__all__ = ["BufferRegions", "RegionSet", "View"]

#: A descriptor with more views is unknown.
_MOST_VIEWS: Final = 256
_TENSOR_OFFSETS: Final = ("tensor_memory_row_offset", "tensor_memory_col_offset")


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Memory that a descriptor may name, and how to find views of it.

    A :class:`BufferRegions` has one object for each; they compare by identity.

    Attributes:
        frame: The function of its allocation; addresses are relative to that function's memory.
        region: The memory.
        bases: Start of the buffer in each partition.
        start: Offset of the first element from there.
    """

    frame: Operation
    region: Region
    bases: tuple[Offset, ...]
    start: Offset

    def intersects(self, other: View) -> bool:
        """Returns whether two views have memory in common.

        Views of different functions never do: the memory of a call is disjoint from the buffers
        that are live around it.
        """
        return self.frame is other.frame and self.region.footprint.intersects(
            other.region.footprint
        )

    def contains(self, other: View) -> bool:
        """Returns whether all memory of another view is in this one."""
        return self.frame is other.frame and self.region.footprint.contains(other.region.footprint)


@dataclass(frozen=True, slots=True)
class RegionSet:
    """The possible views of a descriptor.

    Attributes:
        views: The views.
        is_known: Whether the descriptor is always one of them.
    """

    views: frozenset[View] = frozenset()
    is_known: bool = True

    def __or__(self, other: RegionSet) -> RegionSet:
        if not (self.is_known and other.is_known):
            return _UNKNOWN
        views = self.views | other.views
        return RegionSet(views) if len(views) <= _MOST_VIEWS else _UNKNOWN

    @property
    def regions(self) -> list[Region]:
        """The memory of each view, sorted by address."""
        return [view.region for view in sorted(self.views, key=_place)]

    def may_alias(self, other: RegionSet) -> bool:
        """Returns whether two descriptors may have memory in common."""
        if not (self.is_known and other.is_known):
            return True
        return any(one.intersects(two) for one in self.views for two in other.views)

    def contains(self, other: RegionSet) -> bool:
        """Returns whether each view of another descriptor is inside one of these."""
        if not (self.is_known and other.is_known):
            return False
        return all(any(one.contains(two) for one in self.views) for two in other.views)


_UNKNOWN: Final = RegionSet(is_known=False)


class BufferRegions:
    """The memory that the descriptors of a module name; the package defines the terms.

    The module must not change while this is used.

    Args:
        module: The module, with allocated buffers.
        alias_sets: The alias sets of the module; computed if omitted.
    """

    def __init__(self, module: Module, alias_sets: AliasSets | None = None) -> None:
        self._alias_sets = alias_sets or AliasSets.of(module)
        self._types = AliasTable.of(module.aliases)
        self._known: dict[Value, RegionSet] = {}
        # Unique views, by their derivation and by their memory.
        self._made: dict[tuple[Geometry, Operation, tuple[Offset, ...], Offset], View] = {}
        self._views: dict[tuple[Operation, Region, tuple[Offset, ...], Offset], View] = {}

    def region_set(self, value: Value) -> RegionSet:
        """Returns the memory that a descriptor may name.

        Raises:
            VerifyError: An allocation that it may be part of has no offset, or a malformed one.
        """
        if value not in self._known:
            self._solve(value)
        return self._known[value]

    def _solve(self, value: Value) -> None:
        """Computes the regions of a value and of everything that may flow into it."""
        order = [value]
        seen = {value}
        for each in order:
            if each not in self._known and not is_allocation(each):
                sources = self._alias_sets.sources(each)
                order += [source for source in sources.values if source not in seen]
                seen.update(sources.values)
        found = {each: RegionSet() for each in order if each not in self._known}
        states = ChainMap(found, self._known)
        changed = True
        while changed:
            changed = False
            for each in reversed(found):
                new = found[each] | self._computed(each, states)
                if new != found[each]:
                    found[each] = new
                    changed = True
        self._known.update(found)

    def _computed(self, value: Value, states: Mapping[Value, RegionSet]) -> RegionSet:
        op = value.owner
        if isinstance(value, OpResult) and isinstance(op, Operation):
            if is_allocation(value):
                return self._allocated(value)
            moves = _MOVES.get(op.name)
            if moves is not None:
                return self._moved(value, states.get(op.operands[0], _UNKNOWN), moves)
        sources = self._alias_sets.sources(value)
        found = RegionSet(is_known=sources.is_complete)
        for source in sources.values:
            found |= states[source]
        return found

    def _allocated(self, value: OpResult) -> RegionSet:
        op = value.owner
        bases = _tensor_base(op) if op.name != ttg.LocalAllocOp.NAME else _shared_bases(op)
        geometry = self._geometry(value)
        if geometry is None:
            return _UNKNOWN
        if len(bases) not in (1, geometry.partitions):
            count = geometry.partitions
            op.fail(f"expected {count} offset{'s' if count > 1 else ''}, found {len(bases)}")
        view = self._view(geometry, _frame_of(op), bases, Offset())
        return RegionSet(frozenset([view]))

    def _moved(self, value: OpResult, known: RegionSet, moves: _Moves) -> RegionSet:
        """Returns the memory of a view operation's result, from that of its source."""
        op = value.owner
        source, result = self._geometry(op.operands[0]), self._geometry(value)
        if not known.is_known or source is None or result is None:
            return _UNKNOWN
        try:
            shifts = moves(op, source, result)
        except VerifyError:
            return _UNKNOWN
        views = set()
        for view in known.views:
            if len(view.bases) not in (1, result.partitions):
                return _UNKNOWN
            for base, start in shifts:
                bases = tuple(_sum(each, base) for each in view.bases)
                moved = _sum(view.start, start) if result.in_tensor_memory else view.start ^ start
                views.add(self._view(result, view.frame, bases, moved))
        return RegionSet() | RegionSet(frozenset(views))

    def _view(
        self, geometry: Geometry, frame: Operation, bases: tuple[Offset, ...], start: Offset
    ) -> View:
        key = geometry, frame, bases, start
        if key not in self._made:
            region = _region(geometry, bases, start)
            view = View(frame, region, bases, start)
            self._made[key] = self._views.setdefault((frame, region, bases, start), view)
        return self._made[key]

    def _geometry(self, value: Value) -> Geometry | None:
        """Returns the geometry of a descriptor's type; ``None`` if unknown."""
        try:
            type_ = self._types.type(value.type)
            return geometry_of(type_) if isinstance(type_, MemDescType) else None
        except (ParseError, UnsupportedError, VerifyError):
            return None


def _region(geometry: Geometry, bases: tuple[Offset, ...], start: Offset) -> Region:
    planes: dict[tuple[int, int], int] = {}
    for plane, page, mask in geometry.masks(start):
        base = bases[plane.partition] if len(bases) > 1 else bases[0]
        key = plane.cta, plane.row + base.row
        planes[key] = planes.get(key, 0) | mask << (base.unit + page)
    base = bases[start.partition] if len(bases) > 1 else bases[0]
    address = base.unit + geometry.padded(start.unit) + ((base.row + start.row) << 16)
    return Region(address, geometry.length, Footprint.of(planes))


def _sum(one: Offset, other: Offset) -> Offset:
    return replace(one, row=one.row + other.row, unit=one.unit + other.unit)


def _place(view: View) -> tuple[Region, str]:
    return view.region, symbol_of(view.frame) or ""


# ---- offsets of views: added to the bases, and to the start

_Shift = tuple[Offset, Offset]
_Moves = Callable[[Operation, Geometry, Geometry], list[_Shift]]


def _index(op: Operation, source: Geometry, result: Geometry) -> list[_Shift]:
    view = ttg.MemDescIndexOp.match(op)
    assert view is not None  # the caller matched the name
    number = arith.constant_int(view.index)
    if number is not None and not 0 <= number < source.pages:
        raise VerifyError(f"expected a buffer from 0 to {source.pages - 1}, found {number}")
    pages: Iterable[int] = range(source.pages) if number is None else (number,)
    return [(Offset(unit=result.padded(page * source.page_stride)), Offset()) for page in pages]


def _subslice(op: Operation, source: Geometry, result: Geometry) -> list[_Shift]:
    view = ttg.MemDescSubsliceOp.match(op)
    assert view is not None  # the caller matched the name
    return [(Offset(), _start(source, result, view.offsets))]


def _tensor_subslice(op: Operation, source: Geometry, result: Geometry) -> list[_Shift]:
    reader = OpReader(op)
    dim = reader.integer("dim", source.rank - 1)
    offset = reader.integer("offset")
    coordinates = [offset if each == dim else 0 for each in range(source.rank)]
    return [(Offset(), _start(source, result, coordinates))]


def _start(source: Geometry, result: Geometry, coordinates: Sequence[int]) -> Offset:
    """Returns where a slice starts.

    Raises:
        VerifyError: Offsets that are no multiples of the sizes would carry into other bits; or
            they are too few.
    """
    inner = coordinates[max(len(coordinates) - len(result.shape), 0) :]
    if len(inner) != len(result.shape):
        raise VerifyError(f"expected {len(result.shape)} offsets, found {len(inner)}")
    if any(offset % size for offset, size in zip(inner, result.shape, strict=True)):
        raise VerifyError(f"expected multiples of {list(result.shape)}, found {list(inner)}")
    return source.place(coordinates)


def _reinterpret(op: Operation, source: Geometry, result: Geometry) -> list[_Shift]:
    return [(Offset(), Offset())]


_MOVES: Final[dict[str, _Moves]] = {
    ttg.MemDescIndexOp.NAME: _index,
    ttg.MemDescReinterpretOp.NAME: _reinterpret,
    ttg.MemDescSubsliceOp.NAME: _subslice,
    "ttng.tmem_subslice": _tensor_subslice,
}


# ---- where allocations are


def _shared_bases(op: Operation) -> tuple[Offset, ...]:
    bases = written_offsets(op)
    if max(bases) >= MOST:
        op.fail(f"expected offsets below {MOST} as 'allocation.offset', found {max(bases)}")
    return tuple(Offset(unit=base) for base in bases)


def _tensor_base(op: Operation) -> tuple[Offset, ...]:
    numbers = []
    for name in _TENSOR_OFFSETS:
        text = op.attributes.get(name)
        found = parse_attribute(text) if text is not None else None
        if not isinstance(found, IntegerAttr) or not 0 <= found.number < MOST:
            op.fail(f"expected '{name}': the module's tensor memory has to be allocated")
        numbers.append(found.number)
    row, column = numbers
    return (Offset(row=row, unit=column),)


def _frame_of(op: Operation) -> Operation:
    around = op
    while around.name not in FUNCTIONS and around.parent_op is not None:
        around = around.parent_op
    return around
