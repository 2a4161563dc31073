"""Accesses of operations to shared memory, as bytes and as parts of buffers.

1. A *slice* is a range of bytes of a function's shared memory, with its buffer and the part of it
   (:mod:`~triton_ext.analysis.buffer_reference`).  Two slices of one buffer overlap only if their
   parts do; other slices only if their bytes do.
2. Memory that a function gets from its caller (through arguments) differs from its own.  Unknown
   memory may be any.
3. The scratch of an operation is written, then read.

Values describe a part, and they change with the iteration: :meth:`Accesses.cross` removes what no
longer holds.

Safe direction: two slices may be reported as overlapping when they never do, not the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from ...ir import Module, Operation, Value
from ...ir.aliases import AliasTable
from ...ir.dialects import ttg
from ...ir.encodings import DistributedEncoding
from ...ir.functions import CALLS
from ...ir.linear_layout import LinearLayout
from ...ir.types import TensorType, Type
from ..alias_sets import AliasSets, is_allocation, is_buffer
from ..allocation import BufferKind, FunctionAllocation, ModuleAllocation, stays_in_warps
from ..buffer_reference import Box, BufferReferences, Reference
from ..forward_flow import Edge
from ..memory_effects import effects_of
from ..slot_form import SlotForm, is_inside

__all__ = ["Accesses", "Pair", "Pending", "Skip", "Slice", "Where", "accesses_of", "never"]


class Where(Enum):
    """Owner of the memory of a slice.

    Attributes:
        OWN: The function.
        HANDED: Its caller; an argument names it.
        ANY: Unknown.
    """

    OWN = "own"
    HANDED = "handed"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of shared memory.

    Attributes:
        start: First byte, relative to the function's memory.
        end: One past its last byte.
        buffer: The allocation, and the number of the piece of a partitioned one; ``None`` for
            scratch, and for memory of a called function.
        part: Part of the buffer; ``None`` for all of the bytes.
        where: Owner of the memory.
    """

    start: int = 0
    end: int = 0
    buffer: tuple[Value, int] | None = None
    part: Reference | None = None
    where: Where = Where.OWN


class Pending:
    """Accesses since the last barrier: slices, with the operations that access them.

    Attributes:
        reads: Slices that are read.
        writes: Slices that are written.
    """

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: dict[Slice, dict[Operation, None]] = {}
        self.writes: dict[Slice, dict[Operation, None]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pending):
            return NotImplemented
        return self.reads == other.reads and self.writes == other.writes

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def is_empty(self) -> bool:
        """Returns whether there are no accesses."""
        return not (self.reads or self.writes)

    def copy(self) -> Pending:
        """Returns an independent copy."""
        found = Pending()
        found.join(self)
        return found

    def join(self, other: Pending) -> None:
        """Adds other accesses."""
        for mine, its in ((self.reads, other.reads), (self.writes, other.writes)):
            for each, ops in its.items():
                mine.setdefault(each, {}).update(ops)

    def clear(self) -> None:
        """Removes all accesses, at a barrier."""
        self.reads, self.writes = {}, {}

    def read(self, piece: Slice, op: Operation) -> None:
        """Adds a read."""
        self.reads.setdefault(piece, {})[op] = None

    def write(self, piece: Slice, op: Operation) -> None:
        """Adds a write."""
        self.writes.setdefault(piece, {})[op] = None

    def mapped(self, change: Callable[[Slice], Iterator[Slice]]) -> Pending:
        """Returns the same operations with changed slices."""
        found = Pending()
        for mine, its in ((found.reads, self.reads), (found.writes, self.writes)):
            for each, ops in its.items():
                for made in change(each):
                    mine.setdefault(made, {}).update(ops)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two overlapping accesses, at least one of them a write.

    Attributes:
        before: The operation of the first access.
        after: The operation of the second access.
        before_reads: Whether the first access reads.
        after_reads: Whether the second access reads.
        before_slice: Slice of the first access.
        after_slice: Slice of the second access.
    """

    before: Operation
    after: Operation
    before_reads: bool
    after_reads: bool
    before_slice: Slice
    after_slice: Slice

    @property
    def kind(self) -> str:
        """The hazard: ``RAW``, ``WAR`` or ``WAW``."""
        return f"{'R' if self.after_reads else 'W'}A{'R' if self.before_reads else 'W'}"


#: Returns whether two overlapping accesses need no barrier between them.
Skip: TypeAlias = Callable[[Pair], bool]

#: Memory that a function gets from its caller.
HANDED: Final = Slice(where=Where.HANDED)
_ANYWHERE: Final = Slice(where=Where.ANY)


def never(pair: Pair) -> bool:
    """Skips no pair."""
    return False


class Accesses:
    """The accesses of the operations of one function, which must not change meanwhile.

    Args:
        allocation: The places of its buffers.
        references: The parts of the buffers of the module.
        aliases: The module's type aliases.
    """

    def __init__(
        self, allocation: FunctionAllocation, references: BufferReferences, aliases: AliasTable
    ) -> None:
        function = allocation.function
        self._references = references
        self._aliases = aliases
        self._sets = AliasSets.of(function)
        self._pieces: dict[Value, list[Slice]] = {}
        self._scratch: dict[Operation, Slice] = {}
        self._offsets: dict[Operation, int] = {}
        for buffer in allocation.buffers:
            if buffer.value is not None:
                piece = Slice(buffer.offset, buffer.end, (buffer.value, buffer.index))
                self._pieces.setdefault(buffer.value, []).append(piece)
            elif buffer.kind is BufferKind.VIRTUAL:
                self._offsets[buffer.op] = buffer.offset
            elif buffer.op is not function:
                self._scratch[buffer.op] = Slice(buffer.offset, buffer.end)
        made = (result for op in function.walk() for result in _made_elsewhere(op))
        # The place of a buffer that another kind of operation creates is unknown.
        self._unknown = HANDED if next(made, None) is None else _ANYWHERE
        self._found: dict[Operation, Pending] = {}

    # ---- accesses

    def of(self, op: Operation) -> Pending:
        """Returns the reads and writes of an operation, without its scratch and its callees.

        The caller must not change the result.
        """
        found = self._found.get(op)
        if found is None:
            found = self._found[op] = Pending()
            for effect in effects_of(op).shared:
                for piece in self.slices(effect.value) if effect.reads or effect.writes else ():
                    if effect.reads:
                        found.read(piece, op)
                    if effect.writes:
                        found.write(piece, op)
        return found

    def slices(self, value: Value) -> list[Slice]:
        """Returns the slices that a buffer may be."""
        aliases = self._sets.alias_set(value)
        part = self._references.reference(value)
        pieces = [
            replace(piece, part=part)
            for allocation in sorted(aliases.allocations, key=lambda each: each.name)
            for piece in self._pieces.get(allocation, ())
        ]
        if not aliases.is_complete:
            pieces.append(replace(self._unknown, part=part))
        return pieces

    def allocations(self, value: Value) -> frozenset[Value]:
        """Returns the allocations of the function that a buffer may be a part of."""
        return self._sets.alias_set(value).allocations

    def type(self, value: Value) -> Type:
        """Returns the type of a value."""
        return self._aliases.type(value.type)

    def layout(self, value: Value) -> LinearLayout | None:
        """Returns the layout of a tensor; ``None`` if unknown."""
        type_ = self.type(value)
        encoding = type_.encoding if isinstance(type_, TensorType) else None
        if not isinstance(type_, TensorType) or not isinstance(encoding, DistributedEncoding):
            return None
        return encoding.to_linear_layout(type_.static_shape)

    def scratch(self, op: Operation) -> Slice | None:
        """Returns the scratch of an operation."""
        return self._scratch.get(op)

    def meets_inside(self, op: Operation) -> bool:
        """Returns whether a barrier separates an operation's writes and reads of scratch."""
        if op not in self._scratch:
            return False
        if op.name != ttg.ConvertLayoutOp.NAME:
            return True
        source, target = self.layout(op.operands[0]), self.layout(op.results[0])
        return source is None or target is None or not stays_in_warps(source, target)

    def at_call(self, call: Operation, summary: Pending) -> Pending:
        """Returns the accesses of a call.

        Args:
            call: The operation.
            summary: The accesses that are pending when the callee returns.
        """
        offset = self._offsets.get(call, 0)
        handed = [
            piece for value in call.operands if is_buffer(value) for piece in self.slices(value)
        ]

        def moved(piece: Slice) -> Iterator[Slice]:
            if piece.where is Where.HANDED:
                yield from (replace(each, part=None) for each in handed)
            elif piece.where is Where.ANY:
                yield _ANYWHERE
            else:
                yield Slice(piece.start + offset, piece.end + offset)

        return summary.mapped(moved)

    # ---- pairs

    def hazard(self, pending: Pending, current: Pending, skip: Skip = never) -> Pair | None:
        """Returns two accesses that need a barrier between them, or ``None``.

        Args:
            pending: Accesses since the last barrier.
            current: Accesses of an operation.
            skip: Returns whether a pair needs no barrier.
        """
        return next((pair for pair in self._pairs(pending, current) if not skip(pair)), None)

    def _pairs(self, pending: Pending, current: Pending) -> Iterator[Pair]:
        sides = (
            (pending.writes, False, current.reads, True),
            (pending.reads, True, current.writes, False),
            (pending.writes, False, current.writes, False),
        )
        for first, first_reads, second, second_reads in sides:
            for one, befores in first.items():
                for two, afters in second.items():
                    if not self.meet(one, two):
                        continue
                    for before in befores:
                        for after in afters:
                            yield Pair(
                                before=before,
                                after=after,
                                before_reads=first_reads,
                                after_reads=second_reads,
                                before_slice=one,
                                after_slice=two,
                            )

    def meet(self, one: Slice, two: Slice) -> bool:
        """Returns whether two slices may have a byte in common."""
        if Where.ANY in (one.where, two.where):
            return True
        if one.where is not two.where:
            return False
        if one.where is Where.OWN and not (one.start < two.end and two.start < one.end):
            return False
        if one.buffer != two.buffer or (one.buffer is None and one.where is Where.OWN):
            return True
        if one.part is None or two.part is None:
            return True
        return self._references.may_overlap(one.part, two.part)

    # ---- renaming at edges

    def cross(self, edge: Edge, pending: Pending) -> None:
        """Converts accesses to the far side of an edge."""
        if edge.is_back:
            kept = _forget(pending, edge.loop)
            pending.reads, pending.writes = kept.reads, kept.writes

    def left_open(self, pending: Pending) -> Pending:
        """Returns the accesses at the end of the function, as its callers see them."""
        return _forget(pending, None)


def accesses_of(module: Module, allocation: ModuleAllocation) -> list[tuple[Operation, Accesses]]:
    """Returns the functions of a module with their accesses, callees first.

    module: The module, which must not change meanwhile.
    allocation: The places of its buffers.
    """
    references = BufferReferences.of_module(module.op)
    aliases = AliasTable.of(module.aliases)
    placed = allocation.functions
    return [(function, Accesses(each, references, aliases)) for function, each in placed.items()]


def _forget(pending: Pending, loop: Operation | None) -> Pending:
    """Returns the accesses after their code runs again (:func:`_survivor`)."""

    def kept(piece: Slice) -> Iterator[Slice]:
        yield replace(piece, part=_survivor(piece.part, loop))

    return pending.mapped(kept)


def _made_elsewhere(op: Operation) -> Iterator[Value]:
    """Yields the buffers that an operation creates outside of the function's allocations."""
    if op.name in CALLS or not effects_of(op).is_known:
        yield from (result for result in op.results if is_buffer(result))


def _survivor(part: Reference | None, loop: Operation | None) -> Reference | None:
    """Returns what remains known of a part when the code that computed it runs again.

    Args:
        part: The part.
        loop: The repeated loop; ``None`` for any code of the function.
    """
    if part is None or part.root is None:
        return None
    if not is_allocation(part.root) and (loop is None or is_inside(part.root, loop)):
        return None
    parts = tuple(
        None if isinstance(each, SlotForm) and _changes(each, loop) else each for each in part.parts
    )
    assert all(each is None or isinstance(each, (Box, SlotForm)) for each in parts)
    return replace(part, parts=parts)


def _changes(form: SlotForm, loop: Operation | None) -> bool:
    if loop is None:
        return bool(form.terms)
    return any(symbol is loop or is_inside(symbol, loop) for symbol in form.symbols)
