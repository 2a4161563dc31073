"""Finds the cheapest walk back from a point to a goal.

A *goal* defines, for each event that a walk crosses, the cost of crossing it, the goal from there
on, and whether the walk ends.  Costs are never negative, so the search is Dijkstra's over pairs of
position and goal: it visits each pair once, loops need no bound, and the result is the exact
minimum over all walks (:mod:`~triton_ext.analysis.backward_flow`, property 1: never above the
actual execution).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ..ir import Operation, Value
from .backward_flow import BackwardFlow, Position, Step, StepKind

__all__ = ["MOST_PAIRS", "Crossing", "End", "Goal", "Walk", "shortest_walk"]

#: Number of pairs of position and goal after which a search gives up.
MOST_PAIRS: Final = 200_000


class End(Enum):
    """How a walk ends.

    Attributes:
        FOUND: At the goal, or where it may be hidden.
        FREE: The goal cannot be on this path.
        GAVE_UP: The search was too long.
    """

    FOUND = "found"
    FREE = "free"
    GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True)
class Crossing:
    """Effect of an event, or the start of a kernel, on a walk.

    Attributes:
        then: The goal from there on, or how the walk ends.
        cost: Added cost; never negative.
    """

    then: Goal | End
    cost: int = 0


class Goal(Hashable, Protocol):
    """The goal of a walk; equal goals must behave equally."""

    def cross(self, op: Operation) -> Crossing:
        """Returns the effect of crossing an event."""

    def renamed(self, renames: Mapping[Value, Value], op: Operation | None) -> Goal | End:
        """Returns the goal on the far side of an edge.

        Args:
            renames: Earlier names of values.
            op: The operation that the edge belongs to.
        """

    def at_start(self) -> End:
        """Returns how a walk ends at the start of a kernel, where nothing ran before."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A cheapest walk.

    Attributes:
        cost: Sum of the costs.
        end: How it ends.
        last: The event or operation at which it ends; ``None`` at the start of a kernel.
        terms: The events that cost something, the latest in the program first, with their costs.
        steps: All steps, the latest in the program first.
    """

    cost: int
    end: End
    last: Operation | None
    terms: tuple[tuple[Operation, int], ...]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class _Link:
    """One step of a walk, linked to the previous ones."""

    step: Step
    cost: int
    before: _Link | None


def shortest_walk(flow: BackwardFlow, start: Position, goal: Goal) -> Walk | None:
    """Finds a cheapest walk to a goal.

    Args:
        flow: The control flow.
        start: Start of the walk.
        goal: Its goal.

    Returns:
        The walk; ``None`` if every walk ends ``FREE``; one of cost 0 that ends ``GAVE_UP`` if the
        search exceeds :data:`MOST_PAIRS` pairs.
    """
    order = itertools.count()  # breaks ties: the first pair found wins
    heap: list[tuple[int, int, Position, Goal, _Link | None]] = []
    heapq.heappush(heap, (0, next(order), start, goal, None))
    seen: set[tuple[Position, Goal]] = set()
    ends: list[tuple[int, int, Operation | None, _Link | None]] = []
    while heap:
        cost, _, position, goal, link = heapq.heappop(heap)
        if ends and ends[0][0] <= cost:
            break
        if (position, goal) in seen:
            continue
        seen.add((position, goal))
        if len(seen) > MOST_PAIRS:
            return Walk(0, End.GAVE_UP, None, ())
        for step in flow.steps(position):
            total = cost
            after: Goal | End = End.FOUND  # unknown predecessors may hide it
            if step.kind is StepKind.START:
                after = goal.at_start()
            elif step.kind is StepKind.EVENT and step.op is not None:
                crossing = goal.cross(step.op)
                after, total = crossing.then, cost + crossing.cost
            elif step.kind is not StepKind.UNKNOWN:
                after = goal.renamed(step.renames, step.op)
            if after is End.FREE:
                continue
            longer = _Link(step, total - cost, link)
            if isinstance(after, End):
                last = None if step.kind is StepKind.START else step.op
                heapq.heappush(ends, (total, next(order), last, longer))
            elif step.position is not None:
                heapq.heappush(heap, (total, next(order), step.position, after, longer))
    if not ends:
        return None
    total, _, last, chain = ends[0]
    links = _links(chain)
    terms = tuple((n.step.op, n.cost) for n in links if n.cost and n.step.op is not None)
    return Walk(total, End.FOUND, last, terms, tuple(n.step for n in links))


def _links(link: _Link | None) -> list[_Link]:
    links = []
    while link is not None:
        links.append(link)
        link = link.before
    links.reverse()
    return links
