"""Finds races on buffers: happens-before between the parts of a workgroup.

Every agent has a vector clock.  A part of the kernel is an agent, and so is whatever else tells
that something is done: an mbarrier, whose time is the number of its phases.  An arrival hands on
what the agent knows, a wait takes it over; an access is in order with another one if the second
agent knows of the first one's time.  So a barrier that is missing shows in every order of the parts
in which the access happens at all, and not only in the one where it does harm.

Buffers remember, for each element, the last write and the reads behind it, as numbers of accesses
(:class:`Buffer`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from triton_ext.ir import Operation

from .faults import EmulationError, at_place, fault

if TYPE_CHECKING:
    from .elements import Array

__all__ = ["Access", "Agent", "Races"]

Clock = dict[int, int]

#: Entry of a history for an element that nobody wrote.
_NEVER = 0


class Buffer(Protocol):
    """A buffer that remembers accesses, or a part of one."""

    @property
    def name(self) -> str:
        """The buffer's name in messages."""

    def accesses(self, slot: int) -> Array:
        """The numbers that the elements remember: of writes (0) or of reads (1)."""

    def remember(self, slot: int, number: int, instead_of: int | None = None) -> None:
        """Makes the elements remember an access; with ``instead_of``, those that hold that one."""


class Agent:
    """A part of the kernel that accesses buffers, or a barrier that completes.

    Args:
        number: Its number.
        name: Its name in messages.
        knows: Times of other agents that it knows of from the start.

    Attributes:
        clock: The times of agents that it knows of, its own among them.
    """

    def __init__(self, number: int, name: str, knows: Clock | None = None) -> None:
        self.number = number
        self.name = name
        self.clock: Clock = dict(knows or {})
        self.clock[number] = self.clock.get(number, 0) + 1

    def learn(self, other: Clock) -> None:
        """Takes over what another one knows."""
        mine = self.clock
        for number, time in other.items():
            if mine.get(number, 0) < time:
                mine[number] = time

    def hand_on(self) -> Clock:
        """Returns a copy of the clock and advances it: later accesses are later than the copy."""
        found = dict(self.clock)
        self.clock[self.number] += 1
        return found


@dataclass(slots=True, eq=False)
class Access:
    """One access of one agent; those of reads are sets, one entry for each agent.

    Attributes:
        times: Time of the access, for each agent that did it.
        ops: The operation, for each agent.
        unfenced: Whether it is a write that the asynchronous proxy may not see.
    """

    times: Clock
    ops: dict[int, Operation]
    unfenced: bool = False

    def unknown_to(self, agent: Agent) -> list[int]:
        """The agents whose access is not in front of what this agent does now."""
        return [who for who, time in self.times.items() if agent.clock.get(who, 0) < time]


class Races:
    """All agents and accesses of one workgroup."""

    def __init__(self) -> None:
        self._agents: list[Agent] = []
        self._accesses: list[Access] = [Access({}, {})]
        #: Writes that no fence made visible to the asynchronous proxy.
        self._unfenced: list[Access] = []

    def agent(self, name: str, starter: Agent | None = None) -> Agent:
        """A new agent, which knows what the one knows that starts it."""
        knows = starter.hand_on() if starter is not None else None
        found = Agent(len(self._agents), name, knows)
        self._agents.append(found)
        return found

    def check_read(self, agent: Agent, op: Operation, view: Buffer) -> None:
        """Refuses to read what another one writes at the same time, or what nobody wrote.

        Raises:
            EmulationError: It is a race, or part of it was never written.
        """
        for number in _numbers(view.accesses(0)):
            if number == _NEVER:
                raise fault(
                    op,
                    f"reads '{view.name}' before all of its elements were written",
                    "the memory has data of an earlier kernel; if a copy fills this buffer, a wait "
                    "for the copy is missing",
                )
            write = self._accesses[number]
            for who in write.unknown_to(agent):
                raise self._race(op, agent, "reads", view, who, write, "wrote")

    def check_fence(self, op: Operation, view: Buffer, *, writes: bool = False) -> None:
        """Refuses that the asynchronous proxy meets a write that it may not see.

        Args:
            op: The operation that uses that proxy.
            view: The buffer that it reads or writes.
            writes: Whether it writes.

        Raises:
            EmulationError: A fence is missing.
        """
        does, may = "reads", "may not see what was written there"
        if writes:
            does, may = "writes", "may do so in front of what was written there before"
        for number in _numbers(view.accesses(0)):
            write = self._accesses[number]
            if write.unfenced:
                raise fault(
                    op,
                    f"{does} '{view.name}' through the asynchronous proxy, which {may}",
                    *(at_place("written here", each) for each in write.ops.values()),
                    "call fence_async_shared() after the write, and before the barrier or arrival "
                    "that tells others of it",
                )

    def check_write(self, agent: Agent, op: Operation, view: Buffer) -> None:
        """Refuses to write what another one reads or writes at the same time.

        Raises:
            EmulationError: It is a race.
        """
        for slot, verb in ((0, "wrote"), (1, "read")):
            for number in _numbers(view.accesses(slot)):
                access = self._accesses[number]
                for who in access.unknown_to(agent):
                    raise self._race(op, agent, "writes", view, who, access, verb)

    def note_read(self, agent: Agent, op: Operation, view: Buffer) -> None:
        """Remembers that an agent reads now."""
        me = agent.number
        for number in _numbers(view.accesses(1)):
            access = self._accesses[number]
            if access.times.get(me) == agent.clock[me] and access.ops.get(me) is op:
                continue
            others = access.unknown_to(agent)
            times = {who: access.times[who] for who in others} | {me: agent.clock[me]}
            ops = {who: access.ops[who] for who in others} | {me: op}
            view.remember(1, self._add(Access(times, ops)), instead_of=number)

    def note_write(
        self, agent: Agent, op: Operation, view: Buffer, *, is_async: bool = False
    ) -> None:
        """Remembers that an agent writes now."""
        access = Access({agent.number: agent.clock[agent.number]}, {agent.number: op})
        if not is_async:
            access.unfenced = True
            self._unfenced.append(access)
        view.remember(0, self._add(access))
        view.remember(1, _NEVER)

    def fence(self, agent: Agent) -> None:
        """Makes all writes that an agent knows of visible to the asynchronous proxy."""
        left = []
        for access in self._unfenced:
            access.unfenced = bool(access.unknown_to(agent))
            if access.unfenced:
                left.append(access)
        self._unfenced = left

    def _add(self, access: Access) -> int:
        self._accesses.append(access)
        return len(self._accesses) - 1

    def _race(
        self,
        op: Operation,
        agent: Agent,
        does: str,
        view: Buffer,
        who: int,
        access: Access,
        did: str,
    ) -> EmulationError:
        other = self._agents[who].name
        return fault(
            op,
            f"{agent.name} {does} '{view.name}' that {other} {did}, and nothing orders the two "
            "accesses",
            at_place(f"{other} {did} it here", access.ops[who]),
            "a wait is missing between them, or an arrival comes too early",
        )


def _numbers(history: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Iterable[int]:
    """The accesses that elements remember; most often it is one."""
    if not history.size:
        return ()
    first = int(history.flat[0])
    if (history == first).all():
        return (first,)
    return [int(number) for number in np.unique(history)]
