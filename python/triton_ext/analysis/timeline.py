"""Timelines of a kernel's asynchronous operations, as plain data for display.

A vendor creates them from a module (``triton_ext.backends.amd.analysis.timeline``); the renderer
knows no vendors and no operations.  A :class:`Section` covers one group of warps: a function or a
partition.  Its rows are in program order, with :class:`Open`, :class:`Split` and :class:`Close`
rows around loops and branches.  Each row lists what may be in flight after it, on any path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Call",
    "Close",
    "Commit",
    "Copy",
    "InFlight",
    "Item",
    "Lane",
    "Open",
    "Place",
    "Row",
    "Section",
    "Split",
    "Term",
    "Timeline",
    "Unsafe",
    "Use",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A location in the user's source, or in the IR if unknown.

    Attributes:
        filename: The file.
        line: Line, counted from 1.
        column: Column, counted from 1.
    """

    filename: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Lane:
    """Instructions that retire in issue order.

    Attributes:
        counter: Their hardware counter, ``ASYNCcnt``.
        what: Which of its instructions, ``loads``; empty for all of them.
    """

    counter: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.counter} {self.what}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An asynchronous copy.

    Attributes:
        label: Its name in the timeline, unique in a module.
        place: Its location.
        lane: The lane of its instructions.
        kind: Kind of copy, ``TDM load``.
        is_store: Whether it copies from the buffer.
        buffers: The buffers, by their names in the IR.
        lo: Instructions that each wave certainly issues.
        hi: The most instructions that may be in flight.
        is_masked: Whether it may move less than the whole block.
    """

    label: str
    place: Place
    lane: Lane
    kind: str
    is_store: bool
    buffers: tuple[str, ...]
    lo: int
    hi: int
    is_masked: bool

    @property
    def may_be_skipped(self) -> bool:
        """Returns whether a wave may issue nothing at all."""
        return self.lo == 0 and self.hi > 0

    @property
    def instructions(self) -> str:
        """``4`` or ``0..4``."""
        return str(self.lo) if self.lo == self.hi else f"{self.lo}..{self.hi}"


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a group.

    Attributes:
        place: Its location.
        counter: The counter of its copies.
        copies: Labels of the copies of its tokens; empty without tokens.
    """

    place: Place
    counter: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """Instructions certainly issued after an awaited operation.

    Attributes:
        label: The copy; empty for a group.
        place: Its location.
        cost: Instructions of one execution.
        times: Number of executions on the path.
    """

    label: str
    place: Place
    cost: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait.

    Attributes:
        place: Its location.
        op: Name of the operation.
        counter: Its counter.
        unit: Unit of ``num``: ``groups``, ``operations`` or ``instructions``.
        num: Its number, as written.
        tokens: Labels of the copies of its tokens; empty without tokens.
        has_tokens: Whether it has tokens, and these decide.
        counted_unit: Unit of ``counted``.
        counted: The number that it becomes.
        terms: The terms of that number, the latest in the program first.
        sum: The sum of the terms; more than ``counted`` if it exceeds the hardware's range, or if
            ``num`` is smaller.
        awaited: Label of the newest awaited copy on the deciding path; empty if the path ends
            elsewhere.
        path: The edges of that path, in program order.
        is_constrained: Whether an awaited operation may be outstanding.
        retires: Labels of the copies that may be in flight before the wait and not after it.
        unsafe: Whether a use of LDS relies on the wait, and the wait lets through too much.
        best: The largest number, in ``unit``, proven safe, if it is larger than the wait's own;
            ``None`` otherwise.
        is_useless: Whether nothing that it waits for can be in flight.
        tokens_disagree: Whether its number lets through what its tokens request.
    """

    place: Place
    op: str
    counter: str
    unit: str
    num: int
    tokens: tuple[str, ...]
    has_tokens: bool
    counted_unit: str
    counted: int
    terms: tuple[Term, ...]
    sum: int
    awaited: str
    path: tuple[str, ...]
    is_constrained: bool
    retires: tuple[str, ...]
    unsafe: bool = False
    best: int | None = None
    is_useless: bool = False
    tokens_disagree: bool = False


@dataclass(frozen=True, slots=True)
class Unsafe:
    """A copy that may be in flight where its buffer is used.

    Attributes:
        copy: Its label; empty if it is unknown what ran before.
        reason: Why that is wrong.
        path: Edges of a path from it, in program order.
    """

    copy: str
    reason: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A synchronous read of or write to LDS that copies may conflict with.

    Attributes:
        place: Its location.
        op: Name of the operation.
        what: Kind of use, ``read of LDS``.
        buffers: The buffers, by their names in the IR.
    """

    place: Place
    op: str
    what: str
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function with asynchronous operations, or of an unknown one."""

    place: Place
    callee: str


@dataclass(frozen=True, slots=True)
class Open:
    """The start of a loop, branch, block or the like.

    Attributes:
        place: Its location.
        kind: ``for``, ``while``, ``if``, ``block``, ...
        title: Its title, ``4 iterations``.
        is_loop: Whether it is a loop.
    """

    place: Place
    kind: str
    title: str
    is_loop: bool


@dataclass(frozen=True, slots=True)
class Split:
    """The border between two regions of one operation, ``else``."""

    title: str


@dataclass(frozen=True, slots=True)
class Close:
    """The end of the last unclosed :class:`Open` row."""

    kind: str


Item: TypeAlias = Copy | Commit | Wait | Use | Call | Open | Split | Close


@dataclass(frozen=True, slots=True)
class InFlight:
    """A copy that may be in flight.

    Attributes:
        label: Its label.
        iterations: The least number of back edges of its enclosing loops since it was issued.
    """

    label: str
    iterations: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        item: Its contents.
        depth: Number of enclosing boxes; an :class:`Open` row is outside of its own.
        in_flight: What may be in flight after it, first in the program first.
        unsafe: Copies that may be in flight although this uses their buffer.
    """

    item: Item
    depth: int
    in_flight: tuple[InFlight, ...] = ()
    unsafe: tuple[Unsafe, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The program of one group of warps.

    Attributes:
        name: Name of the function.
        partition: Number of its partition; ``None`` for the function itself.
        waves: Number of waves that run it; ``None`` if unknown.
        lanes: The lanes with copies or waits.
        rows: The rows, in program order.
        entry: What may be in flight before the first row.
    """

    name: str
    partition: int | None
    waves: int | None
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    entry: tuple[InFlight, ...] = ()

    @property
    def title(self) -> str:
        """``attn``, ``attn, partition 1``."""
        return self.name if self.partition is None else f"{self.name}, partition {self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The timeline of a module.

    Attributes:
        arch: The GPU.
        copies: Every copy that is in it.
        sections: Every function and partition with asynchronous operations.
    """

    arch: str
    copies: tuple[Copy, ...]
    sections: tuple[Section, ...]

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Every wait, in the order of the sections."""
        return tuple(
            row.item for s in self.sections for row in s.rows if isinstance(row.item, Wait)
        )
