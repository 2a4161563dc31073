"""Computes how many instructions may stay in flight after a wait.

The counters retire in order within a queue, so waiting until at most ``n`` instructions are
outstanding covers an awaited one if and only if the same wave issued at least ``n`` newer ones of
its queue on the path taken.  Properties of the result:

1. The distance of a wait is the minimum, over every path to it and over the queues of its counter,
   of the instructions certainly issued (:attr:`Interval.lo`) after the newest awaited operation.
   It may be too low (a longer wait than necessary), never too high.  If a search would be too
   long it is 0, and :attr:`Distance.gave_up`.
2. A path constrains a queue only if an awaited operation of that queue may be outstanding: not if
   the kernel starts on the path before it, nor if an earlier wait retired it.
3. A wait that nothing constrains waits for nothing.  Its distance is then the minimum, over all
   paths, of all issued instructions, which is what a reader of the IR expects.

A wait awaits the groups committed before the last ``num`` ones (``ttg.async_wait``), the TDM
operations before the last ``num`` ones (``amdg.async_tdm_wait``), or the operations and groups of
its tokens.  After a wait for a negative number of groups nothing may stay in flight, not even a
copy without a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from triton_ext.analysis.backward_flow import BackwardFlow
from triton_ext.analysis.shortest_walk import Crossing, End, Goal, Walk, shortest_walk
from triton_ext.ir import BlockArgument, Operation, OpResult, Value

from .async_events import AsyncEvents, Commit, Wait, WaitUnit
from .instruction_count import AsyncIssue
from .target import Queue

__all__ = ["Distance", "distance_of"]

#: Maximum number of groups or operations counted back: more than any counter can hold.  A wait for
#: more counts fewer, which is the safe direction.
_MOST_LEFT: Final = 128


@dataclass(frozen=True, slots=True)
class Distance:
    """The number of instructions that may stay in flight after a wait.

    Attributes:
        count: Instructions (groups if the wait is to count groups).
        walk: The deciding path; ``None`` if nothing was issued on any.
        constrained: Whether an awaited operation may be outstanding (property 2).
    """

    count: int
    walk: Walk | None
    constrained: bool

    @property
    def gave_up(self) -> bool:
        """Returns whether there were too many paths, so that nothing may stay in flight."""
        return self.walk is not None and self.walk.end is End.GAVE_UP


def distance_of(wait: Wait, events: AsyncEvents, flow: BackwardFlow) -> Distance:
    """Returns the distance of a wait that counts groups or operations, or has tokens.

    Args:
        wait: The wait.
        events: The asynchronous operations of the module.
        flow: Its control flow, with :meth:`AsyncEvents.is_event`.
    """
    if wait.is_for_all:
        return Distance(0, None, constrained=True)
    used = {event.queue for event in events if isinstance(event, AsyncIssue)}
    walks = [
        walk
        for queue in events.queues(wait.counter)
        if queue in used
        for goal in _goals(wait, events, queue)
        if (walk := shortest_walk(flow, flow.before(wait.op), goal)) is not None
    ]
    if walks:
        # Among equal costs prefer searches that gave up (their cost is 0), to report them.
        shortest = min(walks, key=lambda walk: (walk.cost, walk.end is not End.GAVE_UP))
        return Distance(shortest.cost, shortest, constrained=True)
    everything = _Everything(events, wait)
    walk = shortest_walk(flow, flow.before(wait.op), everything.first())
    return Distance(walk.cost if walk is not None else 0, walk, constrained=False)


def _goals(wait: Wait, events: AsyncEvents, queue: Queue) -> list[Goal]:
    if wait.tokens:
        return [_Token(events, wait, queue, token) for token in wait.tokens]
    left = min(wait.num, _MOST_LEFT)
    if wait.unit is WaitUnit.GROUPS:
        return [_Groups(events, wait, queue, left)]
    return [_Operations(events, wait, queue, left)]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Searches for operations older than the last ``left`` ones.

    Attributes:
        events: The asynchronous operations.
        wait: The wait.
        queue: The queue to count and search.
        left: How many may stay in flight.
        retired: How many remain until those that an earlier wait retired, or ``None``.
    """

    events: AsyncEvents
    wait: Wait
    queue: Queue
    left: int
    retired: int | None = None

    def behind(self, wait: Wait, retired: int) -> Goal | End:
        """Returns the goal before an earlier wait that retires all but ``retired``."""
        if wait.unit is WaitUnit.INSTRUCTIONS:
            return End.FREE if wait.num == 0 else self
        if wait.tokens:
            return self
        return replace(
            self, retired=retired if self.retired is None else min(retired, self.retired)
        )

    def cross(self, op: Operation) -> Crossing:
        raise NotImplementedError

    def renamed(self, renames: Mapping[Value, Value], op: Operation | None) -> Goal | End:
        return self

    def at_start(self) -> End:
        return End.FREE


class _Groups(_Counted):
    """Searches for the groups before the last ``left`` ones, then for their contents.

    ``left`` is -1 after the newest awaited group.
    """

    __slots__ = ()

    def cross(self, op: Operation) -> Crossing:
        event = self.events.get(op)
        if isinstance(event, AsyncIssue) and event.queue == self.queue:
            if self.left >= 0:
                return Crossing(self, self.events.weight(event))
            return Crossing(End.FOUND if event.instructions.hi else self)
        if isinstance(event, Commit):
            left = max(self.left - 1, -1)
            retired = None if self.retired is None else self.retired - 1
            if retired == 0:
                return Crossing(End.FREE)
            return Crossing(replace(self, left=left, retired=retired))
        if isinstance(event, Wait) and event.counter is self.wait.counter:
            # The commit of the newest retired group has to be crossed too.
            return Crossing(self.behind(event, event.num + 1))
        return Crossing(self)


class _Operations(_Counted):
    """Searches for the TDM operation before the last ``left`` ones."""

    __slots__ = ()

    def cross(self, op: Operation) -> Crossing:
        event = self.events.get(op)
        if isinstance(event, AsyncIssue) and event.queue == self.queue:
            if self.retired == 0:
                return Crossing(End.FREE)
            if self.left == 0:
                return Crossing(End.FOUND)
            retired = None if self.retired is None else self.retired - 1
            then = replace(self, left=self.left - 1, retired=retired)
            return Crossing(then, self.events.weight(event))
        if isinstance(event, Wait) and event.counter is self.wait.counter:
            return Crossing(self.behind(event, event.num))
        return Crossing(self)


@dataclass(frozen=True, slots=True)
class _Token:
    """Searches for the operation of an awaited token, by the token's name at this point.

    Attributes:
        events: The asynchronous operations.
        wait: The wait.
        queue: The queue to count.
        token: The token.
        commits_follow: Whether a commit was crossed, if groups are counted.  The oldest commit
            after a copy ends the copy's own group, so it counts only if the token belongs to
            another group.
    """

    events: AsyncEvents
    wait: Wait
    queue: Queue
    token: Value
    commits_follow: bool = False

    def cross(self, op: Operation) -> Crossing:
        event = self.events.get(op)
        if isinstance(self.token, OpResult) and self.token.owner is op:
            if isinstance(event, Commit):
                return Crossing(_Groups(self.events, self.wait, self.queue, -1), self._unpaid)
            if isinstance(event, AsyncIssue) and event.queue != self.queue:
                return Crossing(End.FREE)
            return Crossing(End.FOUND)
        if isinstance(event, AsyncIssue) and event.queue == self.queue:
            return Crossing(self, self.events.weight(event))
        if isinstance(event, Commit) and self.events.commit_weight:
            return Crossing(replace(self, commits_follow=True), self._unpaid)
        return Crossing(self)

    @property
    def _unpaid(self) -> int:
        return self.events.commit_weight if self.commits_follow else 0

    def renamed(self, renames: Mapping[Value, Value], op: Operation | None) -> Goal | End:
        if self.token in renames:
            return replace(self, token=renames[self.token])
        return End.FOUND if _is_lost(self.token, op) else self

    def at_start(self) -> End:
        return End.FOUND


@dataclass(frozen=True, slots=True)
class _Everything:
    """Counts everything that a wait could let pass, up to the start of the kernel (property 3).

    Attributes:
        events: The asynchronous operations.
        wait: The wait.
        left: Groups or operations to count; ``None`` with tokens.
    """

    events: AsyncEvents
    wait: Wait
    left: int | None = None

    def first(self) -> _Everything:
        """Returns the goal to start with."""
        return replace(self, left=None if self.wait.tokens else min(self.wait.num, _MOST_LEFT))

    def cross(self, op: Operation) -> Crossing:
        event = self.events.get(op)
        counts_groups = self.wait.unit is WaitUnit.GROUPS
        if isinstance(event, AsyncIssue) and event.queue.counter is self.wait.counter:
            if self.left == 0 and not counts_groups:
                return Crossing(End.FOUND)
            then = self if counts_groups or self.left is None else self._one_less()
            return Crossing(then, self.events.weight(event))
        if isinstance(event, Commit) and counts_groups and self.left is not None:
            if self.left == 0:
                return Crossing(End.FOUND)
            return Crossing(self._one_less())
        return Crossing(self)

    def _one_less(self) -> _Everything:
        return replace(self, left=(self.left or 0) - 1)

    def renamed(self, renames: Mapping[Value, Value], op: Operation | None) -> Goal | End:
        return self

    def at_start(self) -> End:
        return End.FOUND


def _is_lost(value: Value, op: Operation | None) -> bool:
    """Returns whether an edge leaves the scope of ``value`` without passing it on."""
    if op is None:
        return True
    if isinstance(value, OpResult):
        return value.owner is op
    if isinstance(value, BlockArgument):
        return value.owner.parent_op is op or value.owner in op.successors
    return True
