"""Where the buffers of a module lie while it runs, and what its accesses cost, as plain data.

What draws it (``triton-ext lds``) knows no operation and no vendor; what makes it is
:mod:`~triton_ext.analysis.memory_mapper`.  A :class:`FunctionMap` has the operations that use
shared memory as rows in the order of the program, and a :class:`Bar` for each buffer: bytes from
``offset`` on, in the rows from ``first`` to ``last``.
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
        target: What ``ttg.target`` says for it, ``"cuda:90"``.
        name: What its vendor calls it.
        bytes: What a CTA (workgroup) can have.
        banks: Its banks.
        partition_bytes: Bytes of a physical partition; 0 where there is but one.
        has_transposing_loads: Whether operands of matrix instructions may be read by loads that
            transpose, and that are not modelled.
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
        """Physical partitions that there are; 0 where memory is not partitioned."""
        return self.bytes // self.partition_bytes if self.partition_bytes else 0


class RowKind(Enum):
    """What a row is: an operation, or a border of a region around others."""

    OPERATION = "operation"
    OPEN = "open"
    SPLIT = "split"
    CLOSE = "close"


class Effect(Enum):
    """What an operation does to a buffer."""

    READ = "read"
    WRITE = "write"
    USE = "use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a map.

    Attributes:
        kind: What it is.
        depth: Number of regions around it.
        line: Line in the user's source, or in the IR where that is not known; 0 for a border.
        head: What it does, in a word or two.
        rest: To what.
        is_loop: Whether it opens a loop.
        uses: Numbers of the bars that it uses, and how.
        access: Number of the access in the function's list, or ``None``.
        alive: Bytes that are alive.
        needs: Why memory is missing here, or empty.
        times: How many operations in a row say the same.
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
        name: What it is, for people.
        value: Number of the value that it is of; the buffers of a partitioned value share one.
        kind: Who needs it.
        offset: Where it starts, in bytes.
        size: In bytes.
        partitions: Physical partitions that it touches, of those that there are.
        first: The first row.
        last: The last row.
        ghost: Rows in which what runs at the same time is shown, or ``None``.
        line: Where it is made.
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
        """Behind its last byte."""
        return self.offset + self.size

    def is_at(self, row: int) -> bool:
        """Whether it is alive at a row."""
        low, high = self.ghost or (self.first, self.last)
        return low <= row <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """What accesses of one kind cost.

    Attributes:
        names: The buffers, as the rows that have it call them.
        lines: Lines of its operations.
        is_store: Whether it writes.
        bits: That an instruction moves for each lane; of a row of a matrix where it transposes.
        is_transposed: Whether matrix instructions transpose.
        cost: Of all warps; ``None`` where it is not known.
        phases: Of the instruction that takes most wavefronts.
        partition_slots: Instruction slots of two waves at a time, and those without meetings, of a
            partitioned buffer.
        reason: Why the cost is not known.
        may_be_transposed: Whether Triton may emit a transposing load of AMD instead, whose cost is
            not known.
        may_be_misaligned: Whether the padding leaves neighbours in memory less aligned than Triton
            takes them to be.
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
    """An operation whose memory is not known.

    Attributes:
        name: Of the operation.
        line: As in rows.
        op: It itself, for what has to be said at it.
    """

    name: str
    line: int
    op: Operation = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMap:
    """The map of one function.

    Attributes:
        name: Of the function.
        rows: In the order of the program.
        bars: Its buffers.
        accesses: What its accesses cost, each kind once.
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
        memory: The GPU's.
        functions: Those that use shared memory.
        placed_by: Whose offsets they are.
    """

    memory: SharedMemory
    functions: tuple[FunctionMap, ...]
    placed_by: str = "triton-ext"

    @property
    def too_big(self) -> tuple[FunctionMap, ...]:
        """The functions that need more than there is."""
        return tuple(f for f in self.functions if f.total > self.memory.bytes)
