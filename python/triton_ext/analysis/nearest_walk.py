"""Every end of the ways back from a point, each by the walk with the fewest steps.

Where :mod:`~triton_ext.analysis.shortest_walk` asks what a way back costs, this asks whether there
is one at all, and keeps it to be shown.  A search looks at each pair of position and goal once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ..ir import Block, Operation
from .backward_flow import BackwardFlow, Position, Step, StepKind

__all__ = ["MOST_STATES", "AlsoHere", "Found", "NearestWalks", "Seeker", "nearest_walks"]

#: Pairs of position and goal that are looked at before a search gives up.
MOST_STATES: Final = 100_000

S = TypeVar("S", bound="Seeker")


@dataclass(frozen=True, slots=True)
class AlsoHere(Generic[S]):
    """Something is found, and more may lie behind it.

    Attributes:
        seeker: What is looked for from there on.
    """

    seeker: S


class Seeker(Hashable, Protocol):
    """What a walk looks for; equal ones must behave equally."""

    def step(self: S, step: Step, block: Block) -> S | AlsoHere[S] | bool:
        """What is looked for on the far side of a step.

        Args:
            step: An event, an edge, the start of a kernel, or where nothing is known.
            block: Where the walk comes from.

        Returns:
            ``True``: it is found, and the walk ends at the step's operation; ``False``: it cannot
            lie on this way.
        """


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """One end.

    Attributes:
        op: Where the walk ends; ``None`` where nothing is known.
        seeker: What was looked for there.
        steps: The walk, the latest in the program first.
    """

    op: Operation | None
    seeker: S
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class NearestWalks(Generic[S]):
    """What a search found.

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
    """A step and those before it."""

    step: Step
    before: _Link | None


def nearest_walks(flow: BackwardFlow, start: Position, goal: S) -> NearestWalks[S]:
    """Finds every end.

    Args:
        flow: The control flow.
        start: Where the walks start.
        goal: What they look for.
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
