"""Finds every end of the walks back from a point, each by the fewest steps.

:mod:`~triton_ext.analysis.shortest_walk` computes costs; this search asks whether there is a path
at all, and keeps it for display.  It visits each pair of position and goal once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ..ir import Block, Operation
from .backward_flow import BackwardFlow, Position, Step, StepKind

__all__ = ["MOST_STATES", "AlsoHere", "Found", "NearestWalks", "Seeker", "nearest_walks"]

#: Number of pairs of position and goal after which a search gives up.
MOST_STATES: Final = 100_000

S = TypeVar("S", bound="Seeker")


@dataclass(frozen=True, slots=True)
class AlsoHere(Generic[S]):
    """An end was found, and the walk continues.

    Attributes:
        seeker: The goal from there on.
    """

    seeker: S


class Seeker(Hashable, Protocol):
    """The goal of a walk; equal seekers must behave equally."""

    def step(self: S, step: Step, block: Block) -> S | AlsoHere[S] | bool:
        """Returns the goal on the far side of a step.

        Args:
            step: An event, an edge, the start of a kernel, or an unknown predecessor.
            block: The block on the near side.

        Returns:
            ``True``: found, and the walk ends at the step's operation; ``False``: it cannot be on
            this path.
        """


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """One end.

    Attributes:
        op: Operation at which the walk ends; ``None`` if unknown.
        seeker: The goal there.
        steps: The walk, the latest in the program first.
    """

    op: Operation | None
    seeker: S
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class NearestWalks(Generic[S]):
    """Result of a search.

    Attributes:
        found: One end for each operation, nearest first.
        crossed: Events that were crossed.
        gave_up: Whether the search was too long.
    """

    found: tuple[Found[S], ...]
    crossed: frozenset[Operation]
    gave_up: bool = False


@dataclass(frozen=True, slots=True)
class _Link:
    """A step, linked to the previous ones."""

    step: Step
    before: _Link | None


def nearest_walks(flow: BackwardFlow, start: Position, goal: S) -> NearestWalks[S]:
    """Finds every end.

    Args:
        flow: The control flow.
        start: Start of the walks.
        goal: Their goal.
    """
    queue: deque[tuple[Position, S, _Link | None]] = deque([(start, goal, None)])
    seen: set[tuple[Position, S]] = {(start, goal)}
    found: dict[Operation | None, Found[S]] = {}
    crossed: set[Operation] = set()
    while queue:
        position, seeker, link = queue.popleft()
        for step in flow.steps(position):
            if step.kind is StepKind.EVENT and step.op is not None:
                crossed.add(step.op)
            after = seeker.step(step, position.point.block)
            if after is False:
                continue
            chain = _Link(step, link)
            if (after is True or isinstance(after, AlsoHere)) and step.op not in found:
                found[step.op] = Found(step.op, seeker, _steps(chain))
            if isinstance(after, AlsoHere):
                after = after.seeker
            if after is True or step.position is None:
                continue
            state = step.position, after
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > MOST_STATES:
                return NearestWalks(tuple(found.values()), frozenset(crossed), gave_up=True)
            queue.append((step.position, after, chain))
    return NearestWalks(tuple(found.values()), frozenset(crossed))


def _steps(link: _Link | None) -> tuple[Step, ...]:
    steps = []
    while link is not None:
        steps.append(link.step)
        link = link.before
    return tuple(reversed(steps))
