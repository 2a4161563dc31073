"""Proves which uses of LDS are covered by waits.

A copy stays in flight after the operation that issued it, until a wait retires it.  *Obligations*,
each proven by walking back from the use on every path (``backward_flow``):

1. A read of LDS needs every copy into what it reads to be retired.
2. So does a copy from LDS, for its source.
3. A write to LDS, by a copy or not, needs every copy from it and into it to be retired.  (Copies
   of one queue finish in order, but only within a wave; the layout decides which waves write an
   element.)  So does an unknown operation (``lds_use``).
4. The end of a kernel needs every copy on ASYNCcnt and TENSORcnt to be retired: its LDS may then
   go to another workgroup.  This is an assumption: the CDNA5 ISA was not checked for the effect of
   S_ENDPGM on these two.  On VMcnt the end waits by itself (CDNA4 ISA, S_ENDPGM; assumed for
   gfx942 too).  NVIDIA's copies have no such obligation.

A walk tracks what the passed waits let through.  An operation of a queue is retired by

5. a wait for ``n`` groups, if more than ``n`` commits lie between the operation and the wait;
6. a wait for ``n`` instructions, if at least ``n`` newer ones of the same queue were certainly
   issued;
7. a wait for ``n`` TDM operations, if at least ``n`` newer ones were issued;
8. a wait for tokens, if one of them belongs to it or to a newer operation of the same queue.  This
   excludes the token of a copy without a commit before ``ttg.async_wait``, and tokens that neither
   a copy nor a commit or wait created.  The token of a group without copies retires older
   operations: the wait becomes a number of instructions after the commit;
9. a wait for an mbarrier, if it is a copy that arrives there itself, or a copy by address into LDS
   with ``async_copy_mbarrier_arrive`` between it and the wait.  Neither the mbarrier nor its phase
   is compared.

On hosts that read only ``num`` (LLVM's asynchronous marks), tokens retire nothing.  A partition
starts while copies of the warps before ``ttg.warp_specialize`` may be in flight, which its own
waits do not cover: a use needs them to be retired there, or an mbarrier wait before it.

Safe direction: what is reported as covered is covered.  A violation may be a path that no
execution takes (conditions that exclude each other), or concern two parts of one buffer that never
overlap (``buffer_reference``).

Not covered: ordinary reads followed by a write and the barrier after each wait, which Triton's own
passes insert; the phases of mbarriers; copies of one partition that another partition, or code
after ``ttg.warp_specialize``, uses, or that outlive the kernel; at its end, copies that arrive at
an mbarrier, for which other warps may wait; memory reused by another buffer (after
``ttg.local_dealloc`` or the last use) while a copy into or from the first one is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from triton_ext.analysis.alias_sets import is_buffer
from triton_ext.analysis.backward_flow import (
    MOST_COUNTED,
    BackwardFlow,
    Step,
    StepKind,
    trip_count,
)
from triton_ext.analysis.buffer_reference import BufferReferences, Reference
from triton_ext.analysis.nearest_walk import Found, nearest_walks
from triton_ext.analysis.slot_form import survives
from triton_ext.ir import Block, Module, Operation, OpResult, Value
from triton_ext.ir.functions import CALLS, FUNCTIONS, RETURNS

from .async_events import AsyncEvents, Commit, Event, Wait, WaitUnit
from .instruction_count import AsyncIssue
from .lds_use import ARRIVALS, MBARRIER_WAITS, Looked, Use, ordinary_uses
from .target import Counter, Direction, Queue

__all__ = ["Checked", "Looked", "Obligation", "Use", "Violation", "WaitCoverage", "renamed_tokens"]

#: Counters of the copies that such an arrival covers.
_ARRIVING: Final = (Counter.ASYNCCNT, Counter.CP_ASYNC)
#: Counters that the hardware does not wait for at the end of a kernel.
_OPEN_AT_END: Final = (Counter.ASYNCCNT, Counter.TENSORCNT)
_BOTH: Final = Looked.INTO | Looked.FROM


@dataclass(frozen=True, slots=True)
class Obligation:
    """One use of a buffer or the end of a kernel, and one queue.

    Attributes:
        op: The operation.
        buffer: The buffer; ``None`` for all of LDS.
        use: The kind of use.
        queue: The queue.
        looked: Which of its copies have to be retired.
    """

    op: Operation
    buffer: Value | None
    use: Use
    queue: Queue
    looked: Looked


@dataclass(frozen=True, slots=True)
class Violation:
    """A path on which a copy may be in flight.

    Attributes:
        obligation: The violated obligation.
        issue: The copy; ``None`` if it is unknown what ran before.
        last: The operation at which the path ends.
        steps: The path, from the use back to the copy.
        partitions: The ``ttg.warp_specialize`` after the copy, if the use is in one of its
            partitions; the path starts there.
    """

    obligation: Obligation
    issue: AsyncIssue | None
    last: Operation | None
    steps: tuple[Step, ...]
    partitions: Operation | None = None

    @property
    def last_results(self) -> tuple[Value, ...]:
        """Returns the results of the copy: its token."""
        return self.issue.op.results if self.issue is not None else ()


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking an obligation.

    Attributes:
        violations: The shortest path to each copy that may be in flight; empty if proven.
        waits: The waits on the paths.
        gave_up: Whether there were too many paths.
    """

    violations: tuple[Violation, ...]
    waits: frozenset[Operation]
    gave_up: bool = False

    @property
    def holds(self) -> bool:
        """Returns whether the obligation is proven."""
        return not self.violations and not self.gave_up


@dataclass(frozen=True, slots=True)
class Pending:
    """Limits on what the waits of a walk let through.

    Attributes:
        groups: Groups; ``None`` without a wait for groups.
        instructions: Instructions, likewise.
        operations: TDM operations, likewise.
        tokens: Awaited tokens.
        open_tokens: Those awaited by waits for groups, while no commit was passed before them:
            copies with these tokens were not committed, and are not awaited.
    """

    groups: int | None = None
    instructions: int | None = None
    operations: int | None = None
    tokens: frozenset[Value] = frozenset()
    open_tokens: frozenset[Value] = frozenset()

    def retires(self, op: Operation, event: Event | None, queue: Queue) -> bool:
        """Returns whether a wait has retired an operation and all older ones."""
        if event is None:
            return False  # the operation of the token is unknown
        if isinstance(event, AsyncIssue):
            return event.queue == queue and _defines(op, self.tokens)
        return _defines(op, self.tokens) or _defines(op, self.open_tokens)

    def committed(self) -> Pending:
        """Returns what is let through before a commit."""
        if self.groups is None and not self.open_tokens:
            return self
        groups = None if self.groups is None else self.groups - 1
        tokens = self.tokens | self.open_tokens
        return replace(self, groups=groups, tokens=tokens, open_tokens=frozenset())

    def issued(self, issue: AsyncIssue) -> Pending:
        """Returns what is let through before an operation of the queue."""
        lo = issue.instructions.lo
        if not lo or (self.instructions is None and self.operations is None):
            return self
        instructions = None if self.instructions is None else max(0, self.instructions - lo)
        operations = None if self.operations is None else self.operations - 1
        return replace(self, instructions=instructions, operations=operations)

    def across(self, step: Step, block: Block) -> Pending:
        """Returns the same with the names of tokens on the far side of an edge."""
        if not self.tokens and not self.open_tokens:
            return self
        return replace(
            self,
            tokens=renamed_tokens(self.tokens, step, block),
            open_tokens=renamed_tokens(self.open_tokens, step, block),
        )


class WaitCoverage:
    """The obligations of a module.

    Args:
        module: The module, which must not change meanwhile.
        events: Its asynchronous operations.

    Attributes:
        module: The module.
        events: Its asynchronous operations.
        flow: Its control flow.
        references: Its buffers.
        numbers: Numbers of waits that override those in the IR.
    """

    def __init__(self, module: Module, events: AsyncEvents) -> None:
        self.events = events
        self.flow = BackwardFlow(
            module,
            lambda op: op.name in ARRIVALS or op.name in MBARRIER_WAITS or events.is_event(op),
        )
        self.references = BufferReferences.of_module(module.op)
        self.numbers: dict[Operation, int] = {}
        self.module = module
        self._issues: dict[Queue, list[AsyncIssue]] = {}
        for event in events:
            if isinstance(event, AsyncIssue) and event.instructions.hi:
                self._issues.setdefault(event.queue, []).append(event)
        self._buffers: dict[Value, Reference] = {}
        self._allocations: dict[tuple[Queue, Looked], frozenset[Value] | None] = {}

    def obligations(self) -> Iterator[Obligation]:
        """Yields all uses that may conflict with a copy, in program order."""
        if not self._issues:
            return
        for op in self.module.walk():
            issue = self.events.get(op)
            if isinstance(issue, AsyncIssue):
                for buffer in issue.reads:
                    yield from self._of(op, buffer, Use.SOURCE, Looked.INTO)
                for buffer in issue.writes:
                    yield from self._of(op, buffer, Use.REFILL, _BOTH)
            elif _ends_kernel(op):
                for queue in self._issues:
                    if queue.counter in _OPEN_AT_END:
                        yield Obligation(op, None, Use.END, queue, _BOTH)
            elif issue is None:
                through = op.name in CALLS and self.flow.walks_through(op)
                for buffer, use in ordinary_uses(op, is_walked_through=through):
                    looked = Looked.INTO if use is Use.READ else _BOTH
                    yield from self._of(op, buffer, use, looked)

    def _of(self, op: Operation, buffer: Value, use: Use, looked: Looked) -> Iterator[Obligation]:
        mine = self.references.allocations(buffer)
        for queue in self._issues:
            if _may_meet(mine, self._touched(queue, looked)):
                yield Obligation(op, buffer, use, queue, looked)

    def _touched(self, queue: Queue, looked: Looked) -> frozenset[Value] | None:
        """Returns the allocations that the copies of a queue access; ``None`` if unknown."""
        key = queue, looked
        if key not in self._allocations:
            touched = [self._touched_by(issue, looked) for issue in self._issues[queue]]
            known = [each for each in touched if each is not None]
            is_known = len(known) == len(touched)
            self._allocations[key] = frozenset[Value]().union(*known) if is_known else None
        return self._allocations[key]

    def _touched_by(self, issue: AsyncIssue, looked: Looked) -> frozenset[Value] | None:
        found = frozenset[Value]()
        for buffer in self._buffers_of(issue, looked):
            allocations = self.references.allocations(buffer)
            if allocations is None:
                return None
            found |= allocations
        return found

    @staticmethod
    def _buffers_of(issue: AsyncIssue, looked: Looked) -> tuple[Value, ...]:
        into = issue.writes if Looked.INTO in looked else ()
        return into + (issue.reads if Looked.FROM in looked else ())

    # ---- checks

    def check(self, obligation: Obligation) -> Checked:
        """Searches for paths that violate an obligation."""
        reference, bounds = self.reference(obligation.buffer), _bounds(obligation.op)
        # The end of the kernel does not show whether other warps wait for an mbarrier.
        is_told = obligation.use is Use.END
        seeker = _Seeker(self, obligation, reference, Pending(), bounds, is_told=is_told)
        walks = nearest_walks(self.flow, self.flow.before(obligation.op), seeker)
        violations = []
        crossed, gave_up = set(walks.crossed), walks.gave_up
        for found in walks.found:
            partitions = _partitions_that_start(found)
            if partitions is None:
                violations.append(self._violation(obligation, found))
                continue
            # Waits of the partition do not cover copies of the warps before it.
            seeker = _Seeker(self, obligation, Reference(None), Pending(), _bounds(partitions))
            earlier = nearest_walks(self.flow, self.flow.before(partitions), seeker)
            crossed |= earlier.crossed
            gave_up = gave_up or earlier.gave_up
            violations += [
                replace(self._violation(obligation, each), partitions=partitions)
                for each in earlier.found
            ]
        waits = frozenset(op for op in crossed if isinstance(self.events.get(op), Wait))
        return Checked(tuple(violations), waits, gave_up)

    def _violation(self, obligation: Obligation, found: Found[_Seeker]) -> Violation:
        event = self.events.get(found.op) if found.op is not None else None
        issue = event if isinstance(event, AsyncIssue) else None
        return Violation(obligation, issue, found.op, found.steps)

    def reference(self, buffer: Value | None) -> Reference:
        """Returns the reference of a buffer, or of all of LDS."""
        if buffer is None:
            return Reference(None)
        known = self._buffers.get(buffer)
        if known is None:
            known = self._buffers[buffer] = self.references.reference(buffer)
        return known

    def is_handed_over(self, issue: AsyncIssue) -> bool:
        """Returns whether a copy arrives at an mbarrier, which replaces a wait."""
        own = (*issue.writes, *issue.reads)
        return any(is_buffer(operand) and operand not in own for operand in issue.op.operands)

    def is_looked_for(
        self,
        issue: AsyncIssue,
        obligation: Obligation,
        reference: Reference,
        iterations: tuple[tuple[Operation, int], ...],
    ) -> bool:
        """Returns whether a copy may overlap the obligation's buffer at the same point."""
        looked, buffer = obligation.looked, obligation.buffer
        mine = self.references.allocations(buffer) if buffer is not None else None
        if not issue.instructions.hi or not _may_meet(mine, self._touched_by(issue, looked)):
            return False
        known = dict(iterations)
        for used in self._buffers_of(issue, looked):
            other = self.references.numbered(self.reference(used), known)
            if self.references.may_overlap(reference, other):
                return True
        return False

    # ---- waits

    def rule(self, wait: Wait) -> tuple[WaitUnit, int | None, tuple[Value, ...]]:
        """Returns what decides a wait on this host: its unit, its number or its tokens."""
        number = self.numbers.get(wait.op, wait.num)
        unit, tokens = wait.unit, wait.tokens
        if wait.counter is Counter.TENSORCNT:
            if not self.events.lowering.has_tdm_intrinsic_wait:
                return WaitUnit.INSTRUCTIONS, number, ()
        elif self.events.counts_groups:
            tokens = ()
        return (unit, None, tokens) if tokens else (unit, number, ())

    def before(self, op: Operation, queue: Queue, pending: Pending) -> Pending | None:
        """Returns what is let through before an event.

        Args:
            op: The event, which is not the one searched for.
            queue: The queue of the walk.
            pending: What is let through after it.

        Returns:
            ``None`` if all older operations were retired.
        """
        event = self.events.get(op)
        if pending.retires(op, event, queue):
            return None
        if isinstance(event, AsyncIssue) and event.queue == queue:
            pending = pending.issued(event)
        elif isinstance(event, Commit):
            if pending.groups == 0 and queue.counter is not Counter.TENSORCNT:
                return None
            pending = pending.committed()
        elif isinstance(event, Wait) and event.counter is queue.counter:
            pending = self.passed(event, pending)
        return None if pending.instructions == 0 or pending.operations == 0 else pending

    def passed(self, wait: Wait, pending: Pending) -> Pending:
        """Returns what a wait and the later ones on the walk let through."""
        unit, number, tokens = self.rule(wait)
        if number is None:
            if unit is WaitUnit.GROUPS:
                return replace(pending, open_tokens=pending.open_tokens | frozenset(tokens))
            return replace(pending, tokens=pending.tokens | frozenset(tokens))
        if unit is WaitUnit.GROUPS:
            return replace(pending, groups=_least(pending.groups, number))
        if unit is WaitUnit.OPERATIONS:
            return replace(pending, operations=_least(pending.operations, number))
        return replace(pending, instructions=_least(pending.instructions, number))


@dataclass(frozen=True, slots=True)
class _Seeker:
    """Searches for a copy that may be in flight.

    Attributes:
        coverage: The module.
        obligation: The obligation.
        reference: The buffer, by its name at this point of the walk.
        pending: What the waits let through.
        bounds: Iterations that may precede this one, for loops around the use.
        iterations: Current iteration of loops with a known trip count, entered from below.
        is_told: Whether a wait for an mbarrier was passed, or other warps may have one.
    """

    coverage: WaitCoverage
    obligation: Obligation
    reference: Reference
    pending: Pending
    bounds: tuple[tuple[Operation, int], ...]
    iterations: tuple[tuple[Operation, int], ...] = ()
    is_told: bool = False

    def step(self, step: Step, block: Block) -> _Seeker | bool:
        if step.kind is StepKind.START:
            return _is_partitions(step.op) and not self.is_told
        if step.kind is StepKind.UNKNOWN or step.op is None:
            return True
        if step.kind is StepKind.EVENT:
            return self._cross(step.op)
        iterations, bounds = _iterations(self.iterations, step), _iterations(self.bounds, step)
        if any(left < 0 for _, left in bounds):
            return False  # the loop has fewer iterations
        references = self.coverage.references
        reference = references.across(self.reference, step, block)
        reference = references.numbered(reference, dict(iterations))
        pending = self.pending.across(step, block)
        return replace(
            self, reference=reference, pending=pending, iterations=iterations, bounds=bounds
        )

    def _cross(self, op: Operation) -> _Seeker | bool:
        coverage, queue = self.coverage, self.obligation.queue
        if op.name in MBARRIER_WAITS:
            return replace(self, is_told=True)
        if op.name in ARRIVALS:
            is_load = queue.direction is not Direction.STORE and queue.counter in _ARRIVING
            return False if self.is_told and is_load else self
        event, pending = coverage.events.get(op), self.pending
        if pending.retires(op, event, queue):
            return False
        if isinstance(event, AsyncIssue) and event.queue == queue:
            is_over = self.is_told and coverage.is_handed_over(event)
            if not is_over and coverage.is_looked_for(
                event, self.obligation, self.reference, self.iterations
            ):
                return True
        before = coverage.before(op, queue, pending)
        if before is None:
            return False
        return self if before is pending else replace(self, pending=before)


def _ends_kernel(op: Operation) -> bool:
    """Returns whether an operation is a ``return`` of a function that may be a kernel."""
    function = op.parent_op if op.name in RETURNS else None
    if function is None or function.name not in FUNCTIONS:
        return False
    return " private " not in function.text.partition("@")[0]


def _is_partitions(op: Operation | None) -> bool:
    return op is not None and op.name.startswith("ttg.warp_specialize")


def _partitions_that_start(found: Found[_Seeker]) -> Operation | None:
    """Returns the ``ttg.warp_specialize`` whose partition start ended a walk."""
    op = found.op if found.steps[-1].kind is StepKind.START else None
    while op is not None and op.name != "ttg.warp_specialize":
        op = op.parent_op
    return op


def renamed_tokens(tokens: frozenset[Value], step: Step, block: Block) -> frozenset[Value]:
    """Returns the names of tokens on the far side of an edge, without those that have none.

    Args:
        tokens: The tokens.
        step: The edge.
        block: The block on the near side.
    """
    return frozenset(
        step.renames.get(token, token)
        for token in tokens
        if token in step.renames or survives(token, step, block)
    )


def _iterations(
    known: tuple[tuple[Operation, int], ...], step: Step
) -> tuple[tuple[Operation, int], ...]:
    """Returns the known iterations that a walk is in."""
    op = step.op
    if op is None or op.name != "scf.for":
        return known
    if step.kind is StepKind.ENTER:
        return known + _last_iteration(op)
    if step.kind is StepKind.PREVIOUS:
        return tuple((loop, n - 1 if loop is op else n) for loop, n in known)
    if step.kind is StepKind.LEAVE:
        return tuple((loop, n) for loop, n in known if loop is not op)
    return known


def _last_iteration(loop: Operation) -> tuple[tuple[Operation, int], ...]:
    """Returns a loop and its last iteration, if that is known and not too large."""
    trips = trip_count(loop)
    return ((loop, trips - 1),) if trips is not None and trips <= MOST_COUNTED else ()


def _bounds(op: Operation) -> tuple[tuple[Operation, int], ...]:
    """Returns the loops around an operation, with the iterations that may precede."""
    found: tuple[tuple[Operation, int], ...] = ()
    around = op.parent_op
    while around is not None:
        if around.name == "scf.for":
            found += _last_iteration(around)
        around = around.parent_op
    return found


def _may_meet(one: frozenset[Value] | None, touched: frozenset[Value] | None) -> bool:
    """Returns whether two sets of allocations may intersect; ``None`` is unknown."""
    if touched is None:
        return True
    return bool(touched) if one is None else not one.isdisjoint(touched)


def _defines(op: Operation, tokens: frozenset[Value]) -> bool:
    return any(isinstance(token, OpResult) and token.owner is op for token in tokens)


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
