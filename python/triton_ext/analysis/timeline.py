"""The timeline of a kernel's asynchronous operations: what a tool shows, as plain data.

A vendor makes it from a module (``triton_ext.backends.amd.analysis.timeline``); what draws it knows
no vendor and no operation.  A :class:`Section` is what one group of warps runs: a function or a
partition.  Its rows are in the order of the program; loops and branches are :class:`Open`,
:class:`Split` and :class:`Close` rows around others.  Behind each row stands what may be in flight
there, on any path.
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
    """Where something stands in the user's source, or in the IR where that is not known.

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
    """Instructions that retire in the order in which they were issued.

    Attributes:
        counter: The hardware counter that counts them, ``ASYNCcnt``.
        what: Which of its instructions, ``loads``; empty where it is all of them.
    """

    counter: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.counter} {self.what}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An asynchronous copy.

    Attributes:
        label: Its name in the timeline; no two copies of a module share one.
        place: Where it stands.
        lane: The lane of its instructions.
        kind: What it is, ``TDM load``.
        is_store: Whether it copies from the buffer.
        buffers: The buffers, as the IR calls them.
        lo: Instructions that each wave surely issues.
        hi: Instructions that may be in flight at most.
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
        """Whether a wave may issue nothing at all."""
        return self.lo == 0 and self.hi > 0

    @property
    def instructions(self) -> str:
        """``4`` or ``0..4``."""
        return str(self.lo) if self.lo == self.hi else f"{self.lo}..{self.hi}"


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a group.

    Attributes:
        place: Where it stands.
        counter: The counter that its copies are counted by.
        copies: Labels of the copies that it names by their tokens; empty without tokens.
    """

    place: Place
    counter: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """What was surely issued behind what a wait waits for.

    Attributes:
        label: The copy; empty for a group.
        place: Where it stands.
        cost: What one execution of it adds.
        times: How often it lies on the path.
    """

    label: str
    place: Place
    cost: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait.

    Attributes:
        place: Where it stands.
        op: Name of the operation.
        counter: The counter that it looks at.
        unit: What ``num`` counts: ``groups``, ``operations`` or ``instructions``.
        num: Its number, as written.
        tokens: Labels of the copies that it names by tokens; empty without tokens.
        has_tokens: Whether it has tokens, and these decide.
        counted_unit: What ``counted`` counts.
        counted: The number that it becomes.
        terms: What makes that number, the latest in the program first.
        sum: The sum of the terms; more than ``counted`` where the hardware holds no such number,
            or where ``num`` is smaller.
        awaited: Label of the newest awaited copy on the path that decides; empty where the path
            ends elsewhere.
        path: The edges of that path, in the order of the program.
        is_constrained: Whether anything that is awaited may be outstanding.
        retires: Labels of the copies that may be in flight in front of the wait and not behind it.
        unsafe: Whether a use of LDS relies on the wait, and the wait lets through too much.
        best: The largest number, in ``unit``, that is shown to be safe, if it is larger than the
            wait's own; ``None`` otherwise.
        is_useless: Whether nothing that it waits for can be in flight.
        tokens_disagree: Whether its number lets through what its tokens name.
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
        copy: Its label; empty where nothing is known of what ran before.
        reason: Why that is wrong.
        path: Edges of a path from it, in the order of the program.
    """

    copy: str
    reason: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An ordinary read of or write to LDS that copies may be in the way of.

    Attributes:
        place: Where it stands.
        op: Name of the operation.
        what: What it does, ``read of LDS``.
        buffers: The buffers, as the IR calls them.
    """

    place: Place
    op: str
    what: str
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function that has asynchronous operations, or is not known."""

    place: Place
    callee: str


@dataclass(frozen=True, slots=True)
class Open:
    """The start of a loop, branch, block or the like.

    Attributes:
        place: Where it stands.
        kind: ``for``, ``while``, ``if``, ``block``, ...
        title: What is said of it, ``4 iterations``.
        is_loop: Whether control comes back to its start.
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
    """The end of what the last :class:`Open` row that is not closed opened."""

    kind: str


Item: TypeAlias = Copy | Commit | Wait | Use | Call | Open | Split | Close


@dataclass(frozen=True, slots=True)
class InFlight:
    """A copy that may be in flight.

    Attributes:
        label: Its label.
        iterations: How many times control went back to the start of a loop around it since it was
            issued, at least.
    """

    label: str
    iterations: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        item: What stands there.
        depth: How many boxes are around it; an :class:`Open` row is not inside of its own.
        in_flight: What may be in flight behind it, oldest copies of the text first.
        unsafe: Copies that may be in flight although this uses their buffer.
    """

    item: Item
    depth: int
    in_flight: tuple[InFlight, ...] = ()
    unsafe: tuple[Unsafe, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one group of warps runs.

    Attributes:
        name: Name of the function.
        partition: Which partition of it; ``None`` for the function itself.
        waves: How many waves run it; ``None`` where that is not known.
        lanes: The lanes that have copies or waits.
        rows: The rows, in the order of the program.
        entry: What may be in flight in front of the first row.
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
