"""Memory maps: the places of a module's buffers over time and the costs of accesses, as plain data.

The renderer (``triton-ext lds``) knows no operations and no vendors;
:mod:`~triton_ext.analysis.memory_mapper` creates the maps.  A :class:`FunctionMap` has a row for
each operation that uses shared memory, in program order, and a :class:`Bar` for each buffer: bytes
from ``offset`` on, in the rows from ``first`` to ``last``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..ir import Operation
from .allocation import BufferKind, FunctionAllocation
from .bank_conflicts import BankModel, Conflicts, Phase

__all__ = [
    "AccessMap",
    "Bar",
    "Effect",
    "FunctionMap",
    "ModuleMap",
    "Row",
    "RowKind",
    "SharedMemory",
    "Unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The shared memory (LDS) of a GPU.

    Attributes:
        arch: The GPU, ``"sm_90"``.
        target: Its ``ttg.target``, ``"cuda:90"``.
        name: The vendor's name for shared memory.
        bytes: Bytes that a CTA (workgroup) can use.
        banks: Its banks.
        partition_bytes: Bytes of a physical partition; 0 if the memory is not partitioned.
        has_transposing_loads: Whether transposing loads, which are not modelled, may read operands
            of matrix instructions.
    """

    arch: str
    target: str
    name: str
    bytes: int
    banks: BankModel
    partition_bytes: int = 0
    has_transposing_loads: bool = False

    @property
    def partitions(self) -> int:
        """Number of physical partitions; 0 if the memory is not partitioned."""
        return self.bytes // self.partition_bytes if self.partition_bytes else 0


class RowKind(Enum):
    """Kind of a row: an operation, or a border of a region."""

    OPERATION = "operation"
    OPEN = "open"
    SPLIT = "split"
    CLOSE = "close"


class Effect(Enum):
    """How an operation uses a buffer."""

    READ = "read"
    WRITE = "write"
    USE = "use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a map.

    Attributes:
        kind: The kind of row.
        depth: Nesting depth of regions.
        line: Line in the user's source, or in the IR if unknown; 0 for a border.
        head: The action, in a word or two.
        rest: Its object.
        is_loop: Whether it opens a loop.
        uses: Indices of the bars that it uses, and how.
        access: Index of the access in the function's list, or ``None``.
        alive: Live bytes.
        needs: Why memory is missing here, or empty.
        times: Number of successive operations with equal entries.
    """

    kind: RowKind
    depth: int
    line: int = 0
    head: str = ""
    rest: str = ""
    is_loop: bool = False
    uses: tuple[tuple[int, Effect], ...] = ()
    access: int | None = None
    alive: int = 0
    needs: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A buffer.

    Attributes:
        name: Its name for the reader.
        value: Number of its value; the buffers of a partitioned value share one.
        kind: The kind of owner.
        offset: Its start, in bytes.
        size: In bytes.
        partitions: Physical partitions that it touches.
        first: The first row.
        last: The last row.
        ghost: Rows of concurrent regions, or ``None``.
        line: Line of its definition.
    """

    name: str
    value: int
    kind: BufferKind
    offset: int
    size: int
    partitions: tuple[int, ...]
    first: int
    last: int
    ghost: tuple[int, int] | None
    line: int

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.offset + self.size

    def is_at(self, row: int) -> bool:
        """Returns whether it is live at a row."""
        low, high = self.ghost or (self.first, self.last)
        return low <= row <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """Cost of accesses of one kind.

    Attributes:
        names: Names of the buffers in the rows with this access.
        lines: Lines of its operations.
        is_store: Whether it writes.
        bits: Bits per lane of an instruction; if it transposes, bits of a row of a matrix.
        is_transposed: Whether matrix instructions transpose.
        cost: Cost over all warps; ``None`` if unknown.
        phases: Phases of the instruction with most wavefronts.
        partition_slots: For a partitioned buffer the instruction slots of two waves at a time, and
            those without conflicts.
        reason: Why the cost is unknown.
        may_be_transposed: Whether Triton may emit one of AMD's transposing loads instead, whose
            cost is unknown.
        may_be_misaligned: Whether the padding reduces the alignment of neighbours below what
            Triton assumes.
    """

    names: tuple[str, ...]
    lines: tuple[int, ...]
    is_store: bool
    bits: int = 0
    is_transposed: bool = False
    cost: Conflicts | None = None
    phases: tuple[Phase, ...] = ()
    partition_slots: tuple[int, int] | None = None
    reason: str = ""
    may_be_transposed: bool = False
    may_be_misaligned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An operation with unknown memory.

    Attributes:
        name: Its name.
        line: As in rows.
        op: The operation, for diagnostics.
    """

    name: str
    line: int
    op: Operation = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMap:
    """The map of one function.

    Attributes:
        name: Name of the function.
        rows: In program order.
        bars: Its buffers.
        accesses: Costs of its accesses, each kind once.
        total: Bytes that it needs.
        lower_bound: No placement needs less.
        is_optimal: Whether it is known that none does.
        unknown: Operations whose memory is not known.
        allocation: What it was made from, for what has to be said at an operation.
    """

    name: str
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    accesses: tuple[AccessMap, ...]
    total: int
    lower_bound: int
    is_optimal: bool
    unknown: tuple[Unknown, ...] = ()
    allocation: FunctionAllocation | None = field(default=None, compare=False, repr=False)

    @property
    def peak(self) -> int:
        """Most bytes that are alive at one row."""
        return max((row.alive for row in self.rows), default=0)

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """Bytes below the total that no buffer ever has."""
        found, at = [], 0
        for bar in sorted(self.bars, key=lambda bar: bar.offset):
            if bar.offset > at:
                found.append((at, bar.offset))
            at = max(at, bar.end)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMap:
    """The maps of a module.

    Attributes:
        memory: The shared memory of the GPU.
        functions: The functions that use shared memory.
        placed_by: The allocator of the offsets.
    """

    memory: SharedMemory
    functions: tuple[FunctionMap, ...]
    placed_by: str = "triton-ext"

    @property
    def too_big(self) -> tuple[FunctionMap, ...]:
        """The functions that need more memory than there is."""
        return tuple(f for f in self.functions if f.total > self.memory.bytes)
