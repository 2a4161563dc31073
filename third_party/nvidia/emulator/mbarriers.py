"""mbarriers: phases, arrivals and the bytes of copies (PTX ISA, "mbarrier").

A phase is complete when it has as many arrivals as its count and no bytes are outstanding.  Copies
land only when a part of the kernel waits for the phase that they complete.  They land one by one in
an order that the seed decides, and only as many as the phase needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from triton_ext.emulator.clusters import cga_bases, shared_bits
from triton_ext.emulator.faults import EmulationError, Waiting, at_place, fault
from triton_ext.emulator.fibers import Flight
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.races import Agent, Races
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import OpReader

from ..dialect import mbarrier

__all__ = [
    "MBARRIERS",
    "InFlight",
    "Mbarrier",
    "agent_of",
    "barrier_of",
    "races_of",
]

#: Largest number of outstanding bytes of a phase (PTX ISA, "Tracking asynchronous operations").
_MAX_TX_BYTES = (1 << 20) - 1

#: Number of the first mbarrier in shared memory: nothing else that is stored looks like one.
_FIRST = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """A copy that was issued, or a commit.

    Attributes:
        op: The operation.
        size_bytes: Bytes that it copies.
        land: Carries it out.
        arrivals: Arrivals at the mbarrier when it lands.
        barrier: The mbarrier.
        flights: All that is in flight.
    """

    op: Operation
    size_bytes: int
    land: Callable[[], None]
    arrivals: int
    barrier: Mbarrier
    flights: list[Flight]

    def complete(self) -> None:
        """Lands at the mbarrier."""
        self.barrier.land_one(self)


@dataclass(slots=True, eq=False)
class Mbarrier:
    """One mbarrier.

    Attributes:
        op: Its initialisation.
        name: Its name in the kernel.
        count: Arrivals of a phase.
        agent: The agent that hands on what its arrivals know; its time counts the phases.
        number: Its number among those of the CTA.
        pending: Arrivals of this phase that are missing.
        tx_bytes: Bytes that are outstanding; negative where more came than were expected.
        phases: Phases that are complete.
        copies: Copies and commits in flight that complete on it.
        surplus: A commit that arrived when the phase expected no more.
        known: The accesses that are over for everyone who waited for the last complete phase.
    """

    op: Operation
    name: str
    count: int
    agent: Agent
    number: int
    pending: int = field(init=False)
    tx_bytes: int = 0
    phases: int = 0
    copies: list[InFlight] = field(default_factory=list)
    surplus: Operation | None = None
    known: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pending = self.count

    def arrive(self, op: Operation, agent: Agent, count: int) -> None:
        """Arrives.

        Raises:
            EmulationError: The phase does not expect so many.
        """
        if count > self.pending:
            raise self._surplus(op, f"{agent.name} arrives {count} times")
        self.agent.learn(agent.hand_on())
        self.pending -= count
        self._complete()

    def check(self) -> None:
        """Refuses that a commit arrived that the phase does not expect.

        Raises:
            EmulationError: One did.
        """
        if self.surplus is not None:
            raise self._surplus(self.surplus, "a commit arrives")

    def _surplus(self, op: Operation, who: str) -> EmulationError:
        return fault(
            op,
            f"{who} at mbarrier '{self.name}', whose phase expects {self.pending} more",
            *self.state(),
            "wait for the previous phase before arriving again",
        )

    def expect(self, op: Operation, size_bytes: int) -> None:
        """Makes the phase wait for bytes.

        Raises:
            EmulationError: These are more than an mbarrier counts.
        """
        self.tx_bytes += size_bytes
        if self.tx_bytes > _MAX_TX_BYTES:
            raise fault(
                op, f"mbarrier '{self.name}' counts {_MAX_TX_BYTES} bytes, not {self.tx_bytes}"
            )

    def is_over(self, parity: int) -> bool:
        """Returns whether the phase of a parity is complete."""
        return self.phases % 2 != parity

    def launch(
        self,
        op: Operation,
        group: Workgroup,
        land: Callable[[], None],
        *,
        size_bytes: int = 0,
        arrivals: int = 0,
    ) -> InFlight:
        """Puts a copy or a commit into flight."""
        flight = InFlight(op, size_bytes, land, arrivals, self, group.fibers.flights)
        self.copies.append(flight)
        flight.flights.append(flight)
        return flight

    def land(self, group: Workgroup, parity: int) -> bool:
        """Lands copies until the phase of a parity is complete; returns whether it is."""
        while self.copies and not self.is_over(parity) and self.surplus is None:
            if self.pending > sum(copy.arrivals for copy in self.copies):
                break
            self.land_one(self.copies[group.fibers.random.randrange(len(self.copies))])
        return self.is_over(parity) or self.surplus is not None

    def land_one(self, copy: InFlight) -> None:
        """Lands a copy or a commit."""
        copy.land()
        self.copies.remove(copy)
        copy.flights.remove(copy)
        self.tx_bytes -= copy.size_bytes
        if copy.arrivals > self.pending:
            self.surplus = copy.op
            return
        self.pending -= copy.arrivals
        self._complete()

    def state(self) -> tuple[str, ...]:
        """Notes: where it is from, and what its phase waits for."""
        found = [at_place(f"'{self.name}' has a count of {self.count}", self.op)]
        arrived = self.count - self.pending
        found.append(f"its phase {self.phases} has {arrived} of {self.count} arrivals")
        if self.tx_bytes > 0:
            found.append(f"and {self.tx_bytes} bytes outstanding")
        if self.tx_bytes < 0:
            found.append(f"and copies brought {-self.tx_bytes} bytes that it does not expect")
        return tuple(found)

    def last_phase(self) -> str:
        """A note: which phase is complete, and so which parity a wait would go on for."""
        if not self.phases:
            return (
                "no phase of it is complete yet: a wait for parity 0 is for the first one, and one "
                "for parity 1 goes on at once"
            )
        last = self.phases - 1
        return (
            f"its phase {last}, of parity {last % 2}, is complete: a wait for parity {last % 2} "
            f"goes on, one for parity {1 - last % 2} is for phase {self.phases}"
        )

    def _complete(self) -> None:
        if self.pending == 0 and self.tx_bytes == 0:
            self.phases += 1
            self.pending = self.count
            self.known = self.agent.hand_on()


class _Mbarriers:
    """The mbarriers of one workgroup; shared memory holds their numbers."""

    def __init__(self) -> None:
        self.all: list[Mbarrier | None] = []

    def at(self, view: LdsView) -> Mbarrier | None:
        """The one in shared memory."""
        number = int(view.data.flat[0]) - _FIRST
        return self.all[number] if 0 <= number < len(self.all) else None

    def put(self, view: LdsView, barrier: Mbarrier) -> None:
        """Puts one into shared memory."""
        view.data[...] = _FIRST + len(self.all)
        self.all.append(barrier)

    def remove(self, view: LdsView) -> None:
        """Takes the one in shared memory out."""
        self.all[int(view.data.flat[0]) - _FIRST] = None
        view.data[...] = view.element.poison()

    @classmethod
    def of(cls, group: Workgroup) -> _Mbarriers:
        """Those of a workgroup."""
        found = group.extensions.get(cls)
        if not isinstance(found, cls):
            found = group.extensions[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def check_end(self, kernel: Operation) -> None:
        """Refuses that a kernel ends while copies into its shared memory are in flight.

        Raises:
            EmulationError: There is one.
        """
        for barrier in self.all:
            if barrier is not None:
                barrier.check()
            for copy in barrier.copies if barrier is not None else ():
                if copy.arrivals:
                    continue
                raise fault(
                    copy.op,
                    "the kernel ends while this copy into shared memory is in flight",
                    "the shared memory of a CTA that ended is given to another one: wait for the "
                    "mbarrier at the end",
                )


def races_of(group: Workgroup) -> Races:
    """Returns the record of accesses to buffers."""
    assert group.races is not None
    return group.races


def agent_of(group: Workgroup) -> Agent:
    """The part of the kernel that runs."""
    assert group.agent is not None
    return group.agent


def barrier_of(op: Operation, group: Workgroup, view: LdsView, rank: int | None = None) -> Mbarrier:
    """The mbarrier in shared memory.

    Args:
        op: The operation that uses it.
        group: The CTA that uses it.
        view: Its place in shared memory.
        rank: Number of the CTA in whose shared memory; by default its own.

    Raises:
        EmulationError: There is none.
    """
    owner = group
    if group.cluster is not None:
        group.cluster.meet(group.rank)
        if rank is not None:
            owner = group.cluster.groups[rank]
    # All CTAs initialise the same mbarriers in the same order, and so give them the same numbers.
    found = _Mbarriers.of(group).at(view)
    if found is not None and owner is not group:
        found = _Mbarriers.of(owner).all[found.number]
    if found is None:
        raise fault(op, f"'{_name_of(view)}' is not an mbarrier: it was not initialised")
    return found


def _reach(op: Operation, group: Workgroup, view: LdsView, rank: int) -> Mbarrier:
    """The mbarrier at which a CTA arrives, in its own shared memory or another one's."""
    if group.cluster is not None and rank != group.rank:
        group.cluster.note_arrival(op, agent_of(group), rank)
    return barrier_of(op, group, view, rank)


def _lead_of(barrier: Value, context: Context) -> Callable[[Workgroup], int]:
    """Says which CTA has the mbarrier that a CTA uses: the first of those that share it."""
    shared = shared_bits(cga_bases(context.type_of(barrier)))
    return lambda group: group.rank & ~shared


def _name_of(view: LdsView) -> str:
    """The buffer's name, with a number where it is one of several."""
    base = view.data.base
    if base is None or base.size == 1:
        return view.name
    number = (view.data.ctypes.data - base.ctypes.data) // view.element.size_bytes
    return f"{view.name}[{number}]"


def _routes(op: Operation, barrier: Value, context: Context) -> Callable[[Workgroup], list[int]]:
    """Says at the mbarriers of which CTAs a CTA arrives.

    By default at its own, or at that of the first CTA of those that share it.  ``fromCTA`` has the
    bits of a CTA's number that the CTA which arrives for it has too; the others are 0 there.
    ``multicastCTA`` has the bits in which the CTAs differ at whose mbarriers each of them arrives.
    """
    reader, lead = OpReader(op), _lead_of(barrier, context)
    kept = reader.optional_integer("fromCTA")
    spread = reader.integer("multicastCTA", 0)

    def routes(group: Workgroup) -> list[int]:
        if group.cluster is None or (kept is None and not spread):
            return [lead(group)]
        ranks = range(len(group.cluster.groups))
        if spread:
            return [rank for rank in ranks if rank & ~spread == group.rank & ~spread]
        return [rank for rank in ranks if kept is not None and rank & kept == group.rank]

    return routes


def _is_on(group: Workgroup, pred: object) -> bool:
    return pred is None or bool(group.values[pred])  # type: ignore[index]


def _init(op: Operation, context: Context) -> Step:
    view = mbarrier.InitBarrierOp.match(op)
    assert view is not None
    sharing = 1 << shared_bits(cga_bases(context.type_of(view.barrier))).bit_count()

    def step(group: Workgroup) -> None:
        buffer: LdsView = group.values[view.barrier]
        barriers, name = _Mbarriers.of(group), _name_of(buffer)
        known = barriers.at(buffer)
        if known is not None:
            raise fault(
                op,
                f"initialises mbarrier '{name}', which is one already",
                at_place("initialised here", known.op),
                "invalidate it first (PTX ISA, mbarrier.init)",
            )
        agent = races_of(group).agent(f"a copy of '{name}'")
        # Each CTA that shares it arrives as often; all but the first keep one that nobody uses.
        barriers.put(buffer, Mbarrier(op, name, view.count * sharing, agent, len(barriers.all)))

    return step


def _inval(op: Operation, context: Context) -> Step:
    view = mbarrier.InvalBarrierOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        buffer: LdsView = group.values[view.barrier]
        barrier = barrier_of(op, group, buffer)
        for copy in barrier.copies:
            raise fault(
                op,
                f"invalidates mbarrier '{barrier.name}' on which a copy in flight completes",
                at_place("the copy", copy.op),
            )
        _Mbarriers.of(group).remove(buffer)

    return step


def _expect(op: Operation, context: Context) -> Step:
    view = mbarrier.BarrierExpectOp.match(op)
    assert view is not None
    routes = _routes(op, view.barrier, context)

    def step(group: Workgroup) -> None:
        if not _is_on(group, view.pred):
            return
        group.fibers.pause()
        for rank in routes(group):
            barrier = _reach(op, group, group.values[view.barrier], rank)
            barrier.expect(op, view.size)
            barrier.arrive(op, agent_of(group), 1)

    return step


def _arrive(op: Operation, context: Context) -> Step:
    view = mbarrier.ArriveBarrierOp.match(op)
    assert view is not None
    routes = _routes(op, view.barrier, context)

    def step(group: Workgroup) -> None:
        if not _is_on(group, view.pred):
            return
        group.fibers.pause()
        for rank in routes(group):
            barrier = _reach(op, group, group.values[view.barrier], rank)
            barrier.arrive(op, agent_of(group), view.count)

    return step


def _wait(op: Operation, context: Context) -> Step:
    view = mbarrier.WaitBarrierOp.match(op)
    assert view is not None
    lead = _lead_of(view.barrier, context)

    def step(group: Workgroup) -> None:
        # Only the CTA that has the mbarrier waits (Triton's lowering of ttng.wait_barrier).
        if not _is_on(group, view.pred) or lead(group) != group.rank:
            return
        barrier = barrier_of(op, group, group.values[view.barrier])
        parity = group.scalar(view.phase) & 1
        agent = agent_of(group)

        def describe() -> tuple[str, ...]:
            what = (
                f"{agent.name} waits for the phase of parity {parity} of mbarrier "
                f"'{barrier.name}', which never completes"
            )
            return (what, *barrier.state(), barrier.last_phase())

        group.fibers.wait(lambda: barrier.land(group, parity), Waiting(op, describe))
        barrier.check()
        agent.learn(barrier.known)

    return step


def _fence(op: Operation, context: Context) -> Step:
    def step(group: Workgroup) -> None:
        races_of(group).fence(agent_of(group))

    return step


MBARRIERS: dict[str, Prepare] = {
    mbarrier.InitBarrierOp.NAME: _init,
    mbarrier.InvalBarrierOp.NAME: _inval,
    mbarrier.BarrierExpectOp.NAME: _expect,
    mbarrier.ArriveBarrierOp.NAME: _arrive,
    mbarrier.WaitBarrierOp.NAME: _wait,
    mbarrier.FenceAsyncSharedOp.NAME: _fence,
}
