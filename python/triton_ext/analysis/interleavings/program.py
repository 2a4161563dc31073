"""The program that is explored: what a kernel's partitions do to barriers and shared memory.

All partitions are one list of instructions; a partition is where it starts.  Instructions name
values of the module as variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from ...ir import BlockArgument, Operation, Value
from .numbers import Terms
from .state import Facts

__all__ = [
    "Access",
    "Arrive",
    "Branch",
    "Calc",
    "Commit",
    "Copy",
    "End",
    "Enter",
    "Event",
    "Fence",
    "Init",
    "Instruction",
    "Inval",
    "Join",
    "JoinParts",
    "Jump",
    "Kernel",
    "Lifetime",
    "Move",
    "Next",
    "NotDecided",
    "Retire",
    "Root",
    "Spawn",
    "Start",
    "Stop",
    "Test",
    "Use",
    "View",
    "Wait",
]


class NotDecided(Exception):
    """Something that the analysis cannot follow.

    Attributes:
        op: The operation.
        reason: Why not.
    """

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(reason)
        self.op = op
        self.reason = reason


@dataclass(frozen=True, slots=True)
class View:
    """A part of an allocation.

    Attributes:
        root: Number of the allocation.
        first: Its first atom.
        count: How many atoms.
        pieces: Which pieces of each atom, as bits.
    """

    root: int
    first: int
    count: int
    pieces: int


@dataclass(frozen=True, slots=True)
class Root:
    """An allocation of shared memory, cut into the parts that the kernel tells apart.

    Attributes:
        value: What allocates it.
        base: Number of its first slot.
        atoms: Equal parts that indices tell apart.
        pieces: Parts of each atom that slices tell apart.
        cuts: Where slices cut an atom, for each of its dimensions.
        size_bytes: Its size.
    """

    value: Value
    base: int
    atoms: int
    pieces: int
    cuts: tuple[tuple[int, ...], ...]
    size_bytes: int


# ---- events: what operations do; operands are values


@dataclass(frozen=True, slots=True)
class Init:
    """Initialises a barrier."""

    op: Operation
    barrier: Value
    count: int


@dataclass(frozen=True, slots=True)
class Inval:
    """Invalidates a barrier."""

    op: Operation
    barrier: Value


@dataclass(frozen=True, slots=True)
class Arrive:
    """Arrives at a barrier, and makes it expect bytes."""

    op: Operation
    barrier: Value
    count: int
    expects: int = 0
    pred: Value | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for a phase of a barrier."""

    op: Operation
    barrier: Value
    phase: Value
    pred: Value | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts a copy into shared memory that completes on a barrier."""

    op: Operation
    target: Value
    barrier: Value
    size_bytes: int
    pred: Value | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Reads and writes shared memory; both are over behind the operation."""

    op: Operation
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Starts an operation that is waited for by its number.

    Attributes:
        op: The operation.
        kind: Which waits count it.
        reads: Buffers that it reads through the asynchronous proxy.
        writes: Buffers that it writes.
        takes: Results of operations of this kind that it goes on with.
        result: Its result, if others have to wait for it.
        is_grouped: Whether a commit closes its group; otherwise it is a group of its own.
        is_over: Whether it waits for itself.
    """

    op: Operation
    kind: str
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    takes: tuple[Value, ...] = ()
    result: Value | None = None
    is_grouped: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Makes the next operations of a kind one group."""

    op: Operation
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Closes a group."""

    op: Operation
    kind: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Waits until no more than some groups are in flight; passes results on."""

    op: Operation
    kind: str
    pendings: int
    takes: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Makes writes visible to the asynchronous proxy."""

    op: Operation


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Allocates the memory of a buffer, or gives it back."""

    op: Operation
    buffer: Value
    is_over: bool


@dataclass(frozen=True, slots=True)
class Use:
    """Reads results of asynchronous operations."""

    op: Operation
    values: tuple[Value, ...]


Event: TypeAlias = (
    Init
    | Inval
    | Arrive
    | Wait
    | Copy
    | Access
    | Start
    | Join
    | Commit
    | Retire
    | Fence
    | Lifetime
    | Use
)

# ---- arithmetic and control flow


@dataclass(frozen=True, slots=True)
class Calc:
    """Computes the results of an operation."""

    op: Operation


@dataclass(frozen=True, slots=True)
class Move:
    """Assigns variables, all at once.

    Attributes:
        op: The operation that does so.
        targets: The variables.
        sources: Their new values.
        dead: Variables that nothing reads any more.
        is_back: Whether this is the way back of a loop of unknown length.
    """

    op: Operation
    targets: tuple[Value, ...]
    sources: tuple[Value, ...]
    dead: tuple[Value, ...] = ()
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """Goes on at ``otherwise`` unless a condition holds."""

    op: Operation
    condition: Value
    otherwise: int = -1


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes on somewhere else."""

    op: Operation
    target: int = -1


@dataclass(frozen=True, slots=True)
class Enter:
    """Starts an ``scf.for``, or a nest of them that is one loop.

    Attributes:
        op: The outermost loop.
        counter: Its variable for the induction variable.
        lower: First value.
        uppers: Bounds, whose product is the bound.
        step: The step.
        depth: Loops around it.
        is_used: Whether anything depends on the induction variable.
    """

    op: Operation
    counter: BlockArgument
    lower: Value
    uppers: tuple[Value, ...]
    step: Value
    depth: int
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class Test:
    """Leaves a loop behind its last iteration."""

    enter: Enter
    op: Operation
    end: int = -1


@dataclass(frozen=True, slots=True)
class Next:
    """Goes on with the next iteration of a loop.

    Attributes:
        enter: The loop.
        op: Its operation.
        targets: What it carries.
        sources: The next values.
        counts: Which of them are one more than before.
        dead: Values of the body.
        test: The instruction that tests whether there is another iteration.
    """

    enter: Enter
    op: Operation
    targets: tuple[Value, ...]
    sources: tuple[Value, ...]
    counts: tuple[bool, ...]
    dead: tuple[Value, ...]
    test: int


@dataclass(frozen=True, slots=True)
class Spawn:
    """Starts partitions.

    Attributes:
        op: The operation.
        parts: Number and first instruction of each.
        arguments: What each gets: its variable, and that of the partition that starts it.
    """

    op: Operation
    parts: tuple[tuple[int, int], ...] = ()
    arguments: tuple[tuple[tuple[Value, Value], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinParts:
    """Waits for the end of partitions."""

    op: Operation
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends a partition."""

    op: Operation


@dataclass(frozen=True, slots=True)
class End:
    """Ends the kernel."""

    op: Operation


Instruction: TypeAlias = (
    Event | Calc | Move | Branch | Jump | Enter | Test | Next | Spawn | JoinParts | Stop | End
)


@dataclass(slots=True)
class Kernel:
    """A kernel.

    Attributes:
        function: Its function.
        names: Names of the partitions; the first is the one that starts the others.
        code: The instructions.
        constants: Variables that never change.
        roots: The allocations.
        facts: Where the facts are.
        last_loops: See :class:`~.state.State`.
        asynchronous: Operations that go on behind themselves.
        touching: Facts, and the partitions that they concern.
        terms: The unknown numbers.
    """

    function: Operation
    names: list[str] = field(default_factory=lambda: ["the kernel"])
    code: list[Instruction] = field(default_factory=list)
    constants: dict[Value, object] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    facts: Facts = field(default_factory=lambda: Facts(0, 1))
    last_loops: Sequence[Mapping[int, int]] = ()
    asynchronous: frozenset[Operation] = frozenset()
    touching: Sequence[tuple[int, Sequence[int]]] = ()
    terms: Terms = field(default_factory=Terms)
    _masks: dict[View, int] = field(default_factory=dict)

    def root_of(self, slot: int) -> Root:
        """The allocation of a slot."""
        return next(root for root in reversed(self.roots) if root.base <= slot)

    def slot_name(self, slot: int) -> str:
        """How a slot is called: ``%ready[1]``."""
        root = self.root_of(slot)
        if root.atoms == 1:
            return f"'{root.value.name}'"
        return f"'{root.value.name}[{(slot - root.base) // root.pieces}]'"

    def mask(self, view: View) -> int:
        """The slots of a view."""
        known = self._masks.get(view)
        if known is not None:
            return known
        root = self.roots[view.root]
        found = 0
        for atom in range(view.first, view.first + view.count):
            found |= view.pieces << root.base + atom * root.pieces
        self._masks[view] = found
        return found

    def slot_of(self, view: View, op: Operation) -> int:
        """The only slot of a barrier.

        Raises:
            NotDecided: It may be several.
        """
        if view.count != 1 or self.roots[view.root].pieces != 1:
            fail(op, "this names several mbarriers")
        return self.roots[view.root].base + view.first

    def is_async(self, op: Operation) -> bool:
        """Returns whether an operation goes on behind itself."""
        return op in self.asynchronous


def fail(op: Operation, reason: str) -> NoReturn:
    """Raises :class:`NotDecided`."""
    raise NotDecided(op, reason)
