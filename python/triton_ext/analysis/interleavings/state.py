"""The state of all partitions of a kernel, with what each of them knows to be over.

*Facts* are the things that have to be over before something else may happen: the last write of a
slot of shared memory, the reads since then, the phases of barriers and who waited for them.  A
partition *knows* a fact if it is in order behind it, in every interleaving; so does a barrier,
which hands on what its arrivals know.  Facts are bits of an ``int``, and so are sets of slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...ir import Operation
from .numbers import Counted, Term, Terms, shifted

__all__ = [
    "DONE",
    "IDLE",
    "Barrier",
    "Domain",
    "Event",
    "Facts",
    "Flying",
    "Part",
    "Result",
    "State",
    "bits",
]

#: Instruction of a partition that did not start, or has ended.
IDLE = -1
DONE = -2


def bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True)
class Facts:
    """Where the facts of slots are among all facts.

    Attributes:
        slots: How many slots there are.
        parts: How many partitions.
    """

    slots: int
    parts: int

    def written(self, mask: int) -> int:
        """The last writes of slots."""
        return mask

    def read(self, mask: int, part: int) -> int:
        """The reads of a partition since then."""
        return mask << self.slots * (1 + part)

    def any_read(self, mask: int) -> int:
        """The reads of all partitions."""
        found = 0
        for part in range(self.parts):
            found |= self.read(mask, part)
        return found

    def _barrier(self, slot: int, number: int) -> int:
        return 1 << self.slots * (1 + self.parts + number) + slot

    def init(self, slot: int) -> int:
        """The initialisation of a barrier."""
        return self._barrier(slot, 0)

    def complete(self, slot: int) -> int:
        """The completion of its last phase."""
        return self._barrier(slot, 1)

    def complete_before(self, slot: int) -> int:
        """The completion of the phase before that one."""
        return self._barrier(slot, 2)

    def waited(self, slot: int, part: int) -> int:
        """That a partition waited for its last complete phase."""
        return self._barrier(slot, 3 + part)

    def arrived(self, slot: int, part: int) -> int:
        """That a partition arrived in its present phase."""
        return self._barrier(slot, 3 + self.parts + part)

    def of_barrier(self, slot: int) -> int:
        """All facts of a barrier."""
        found = 0
        for number in range(3 + 2 * self.parts):
            found |= self._barrier(slot, number)
        return found

    def fenced(self, mask: int) -> int:
        """The fences that make the last writes of slots visible to the asynchronous proxy."""
        return mask << self.slots * (4 + 3 * self.parts)

    def of_slots(self, mask: int) -> int:
        """All facts of slots."""
        found = 0
        for group in range(5 + 3 * self.parts):
            found |= mask << group * self.slots
        return found

    def kind(self, fact: int) -> tuple[int, int]:
        """The group of a fact, numbered as above, and its slot."""
        return divmod(fact, self.slots)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a partition did.

    Attributes:
        part: The partition.
        op: The operation.
        what: A word for it: ``"arrive"``, ``"copy"``, ``"wait"``, or another word.
        slot: The barrier, or -1.
        phase: Its phase.
        size_bytes: Bytes that it expects or copies.
        before: The event before.
    """

    part: int
    op: Operation
    what: str
    slot: int = -1
    phase: int = 0
    size_bytes: int = 0
    before: Event | None = None


@dataclass(slots=True)
class Barrier:
    """An mbarrier.

    Attributes:
        count: Arrivals of a phase.
        pending: Those that are missing.
        tx_bytes: Bytes that are outstanding.
        phases: Phases that are complete; in a state's key, the parity and whether there are two.
        has_copies: Whether copies complete on the present phase.
        gathers: Place of the facts that its arrivals know, in :attr:`State.know`.  Those that a
            wait for the last phase teaches are behind it.
    """

    count: int
    pending: int
    tx_bytes: int = 0
    phases: int = 0
    has_copies: bool = False
    gathers: int = 0

    def key(self) -> tuple[object, ...]:
        """Returns the state that decides how it goes on."""
        seen = 2 + self.phases % 2 if self.phases else 0
        return (self.count, self.pending, self.tx_bytes, seen, self.has_copies, self.gathers)


@dataclass(slots=True)
class Domain:
    """Knowledge of a bound that loop counters are compared with.

    Attributes:
        modulus: Counters of the domain are known up to a multiple of it.
        low: The smallest value that the bound may have.
        high: The largest one.
        base: How far its counters were lowered; not part of the key.
    """

    modulus: int
    low: float = -math.inf
    high: float = math.inf
    base: int = 0

    def key(self) -> tuple[object, ...]:
        """Returns the state that decides how it goes on."""
        return (self.modulus, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Flying:
    """An asynchronous operation that a partition waits for by its number.

    Attributes:
        op: The operation.
        reads: Slots that it reads.
        writes: Slots that it writes.
        serial: Number of its group.
        result: Number of its result among all of the partition.
    """

    op: Operation
    reads: int
    writes: int
    serial: int
    result: int = -1


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a product, by its number in the partition."""

    number: int


@dataclass(slots=True)
class Part:
    """A partition.

    Attributes:
        number: Its number.
        pc: Its next instruction; -1 before it starts, -2 behind its end.
        env: Values of variables.
        loops: Domains of the loops around the instruction, outermost first, ``None`` for loops with
            a known number of iterations; with the variable of the counter.
        positions: Counter for each domain that the partition reached; infinite behind the loop.
        visits: How often it entered a loop with a bound.
        flying: Asynchronous operations in flight, by the kind of wait, oldest first.
        serials: Groups of each kind so far.
        joined: Operations of a kind that still belong to the group that was opened last.
        results: Products so far.
    """

    number: int
    pc: int = -1
    env: dict[object, object] = field(default_factory=dict)
    loops: list[tuple[Term | None, object]] = field(default_factory=list)
    positions: dict[Term, float] = field(default_factory=dict)
    visits: dict[Term, int] = field(default_factory=dict)
    flying: dict[str, list[Flying]] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    results: int = 0

    def copy(self) -> Part:
        """Returns a copy."""
        return Part(
            self.number,
            self.pc,
            dict(self.env),
            list(self.loops),
            dict(self.positions),
            dict(self.visits),
            {kind: list(ops) for kind, ops in self.flying.items()},
            dict(self.serials),
            dict(self.joined),
            self.results,
        )

    @property
    def is_over(self) -> bool:
        """True for a partition that does nothing any more, or not yet."""
        return self.pc < 0

    def instance(self) -> tuple[Counted, ...]:
        """The counters of the loops around the instruction."""
        found = [self.env[counter] for domain, counter in self.loops if domain is not None]
        return tuple(each for each in found if isinstance(each, Counted))

    def flights(self) -> Iterable[Flying]:
        """All asynchronous operations in flight."""
        return (each for ops in self.flying.values() for each in ops)


class State:
    """The state of a kernel.

    Args:
        facts: Where the facts are.
        last_loops: The last instruction of each partition that enters a loop, by the depth.

    Attributes:
        parts: The partitions.
        turn: The partition whose turn it is.
        blocked: Partitions that cannot go on before there is news, as bits.
        live: Facts that there are.
        know: Facts that are known: to each partition, then to the barriers.
        barriers: mbarriers by their slot.
        dead: Slots of barriers that were invalidated.
        written: Slots that have contents.
        freed: Slots whose memory was given back.
        domains: What is known of bounds.
        small: What is known for good of bounds that never change: whether they are below the
            precision's floor, and then what they are.
        residues: Residues of terms, with their moduli.
        decisions: Conditions that were decided.
        last: The event of each fact.
        trace: The last event.
        conditions: Bounds, absolute, that the path assumes.
        is_doubtful: Whether the path rests on answers that may exclude each other.
        has_news: Whether somebody who waits may go on.
        guesses: Answers to the questions of this instruction that nothing is known of.
        asked: How many of them were asked.
    """

    def __init__(self, facts: Facts, last_loops: Sequence[Mapping[int, int]]) -> None:
        self.facts = facts
        self.last_loops = last_loops
        self.parts = [Part(number) for number in range(facts.parts)]
        self.turn = 0
        self.blocked = 0
        self.live = 0
        self.know = [0] * facts.parts
        self.barriers: dict[int, Barrier] = {}
        self.dead = 0
        self.written = 0
        self.freed = 0
        self.domains: dict[Term, Domain] = {}
        self.small: dict[Term, tuple[float, float]] = {}
        self.residues: dict[Term, tuple[int, int]] = {}
        self.decisions: dict[Term, bool] = {}
        self.last: dict[int, Event] = {}
        self.trace: Event | None = None
        self.conditions: dict[Term, tuple[float, float]] = {}
        self.has_news = False
        self.is_doubtful = False
        self.guesses: tuple[int, ...] = ()
        self.asked = 0

    def copy(self) -> State:
        """Returns a copy."""
        found = State.__new__(State)
        found.facts, found.last_loops = self.facts, self.last_loops
        found.parts = [part.copy() for part in self.parts]
        found.turn, found.blocked = self.turn, self.blocked
        found.live, found.know, found.dead = self.live, self.know[:], self.dead
        found.barriers = {
            slot: Barrier(b.count, b.pending, b.tx_bytes, b.phases, b.has_copies, b.gathers)
            for slot, b in self.barriers.items()
        }
        found.written, found.freed = self.written, self.freed
        found.domains = {
            term: Domain(d.modulus, d.low, d.high, d.base) for term, d in self.domains.items()
        }
        found.small = dict(self.small)
        found.residues, found.decisions = dict(self.residues), dict(self.decisions)
        found.last, found.trace = dict(self.last), self.trace
        found.conditions = dict(self.conditions)
        found.has_news, found.is_doubtful = self.has_news, self.is_doubtful
        found.guesses, found.asked = self.guesses, 0
        return found

    # ---- facts

    def forget(self, facts: int) -> None:
        """Removes facts: nobody has to know them any more."""
        kept = ~facts
        self.live &= kept
        self.know = [known & kept for known in self.know]

    def add(self, facts: int, event: Event) -> None:
        """Adds facts that nobody knows, in the place of former ones."""
        kept = ~facts
        self.know = [known & kept for known in self.know]
        self.live |= facts
        last = self.last
        while facts:
            low = facts & -facts
            last[low.bit_length() - 1] = event
            facts ^= low

    def note(
        self, part: Part, op: Operation, what: str, slot: int = -1, phase: int = 0, size: int = 0
    ) -> Event:
        """Notes an event."""
        self.trace = Event(part.number, op, what, slot, phase, size, self.trace)
        return self.trace

    # ---- what is the same apart from how long it ran

    def settle(self, touching: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Drops facts that are known to everyone whom they concern.

        Args:
            touching: Facts, and the partitions that they concern.
        """
        parts = self.parts
        if any(part.pc == IDLE for part in parts):
            return
        drop = 0
        for facts, numbers in touching:
            common = self.live & facts
            for number in numbers or range(len(parts)):
                common &= self.know[number]
            drop |= common
        self.forget(drop)
        for slot, barrier in self.barriers.items():
            if not self.live & self.facts.complete(slot):
                self.know[barrier.gathers + 1] = 0

    def collect(self) -> None:
        """Drops bounds, conditions and residues that no partition asks for again."""
        for domain in [d for d in self.domains if self._is_passed(d.counters)]:
            if not any(domain is used for part in self.parts for used, _ in part.loops):
                del self.domains[domain]
                for part in self.parts:
                    part.positions.pop(domain, None)
        for known in (self.decisions, self.residues):
            for term in [term for term in known if self._is_passed(term.counters)]:
                del known[term]
        for part in self.parts:
            for term in [term for term in part.visits if term.counters]:
                if any(self.reach(part, each.domain) > each.value for each in term.counters):
                    del part.visits[term]

    def reach(self, part: Part, domain: Term) -> float:
        """How far a partition is in the loops of a domain: infinitely, if it enters none again."""
        if part.pc == DONE:
            return math.inf
        found = part.positions.get(domain)
        if found is not None:
            return found
        if any(self.reach(part, each.domain) > each.value for each in domain.counters):
            return math.inf
        depth = len(domain.args) - 2
        return -math.inf if part.pc <= self.last_loops[part.number].get(depth, -1) else math.inf

    def _is_passed(self, counters: frozenset[Counted]) -> bool:
        """Returns whether every partition is behind one of some iterations."""
        return any(
            all(self.reach(part, counter.domain) > counter.value for part in self.parts)
            for counter in counters
        )

    def lower(self, terms: Terms, floor: int) -> None:
        """Lowers the counters of each domain as far as that changes nothing."""
        least: dict[Term, float] = {}
        for counter in self._counters():
            domain = counter.domain
            least[domain] = min(least.get(domain, math.inf), counter.value)
        shifts: dict[Term, int] = {}
        for domain, known in self.domains.items():
            low = least.get(domain, math.inf)
            low = min(low, *(self.reach(part, domain) for part in self.parts))
            if low == math.inf or low < floor + known.modulus:
                continue
            shifts[domain] = int((low - floor) // known.modulus) * known.modulus
        if shifts:
            self._shift(terms, shifts)

    def _counters(self) -> Iterator[Counted]:
        places: list[object] = [*self.decisions, *self.residues, *self.domains]
        for part in self.parts:
            places += part.env.values()
            places += part.visits
        for place in places:
            if isinstance(place, Counted):
                yield place
                yield from place.domain.counters
            elif isinstance(place, Term):
                yield from place.counters

    def _shift(self, terms: Terms, shifts: dict[Term, int]) -> None:
        memo: dict[Term, object] = {}

        def move(what: object) -> object:
            return shifted(terms, what, shifts, memo)

        def moved(term: Term) -> Term:
            found = move(term)
            assert isinstance(found, Term)
            return found

        domains: dict[Term, Domain] = {}
        for domain, known in self.domains.items():
            by = shifts.get(domain, 0)
            domains[moved(domain)] = Domain(
                known.modulus, known.low - by, known.high - by, known.base + by
            )
        self.domains = domains
        self.residues = {moved(term): known for term, known in self.residues.items()}
        self.decisions = {moved(term): known for term, known in self.decisions.items()}
        for part in self.parts:
            part.env = {var: move(value) for var, value in part.env.items()}
            part.loops = [
                (moved(domain) if domain is not None else None, var) for domain, var in part.loops
            ]
            part.positions = {
                moved(domain): value - shifts.get(domain, 0)
                for domain, value in part.positions.items()
            }
            part.visits = {moved(term): count for term, count in part.visits.items()}

    def key(self) -> tuple[object, ...]:
        """Returns all that decides how the kernel goes on."""
        return (
            self.turn,
            self.blocked,
            self.guesses,
            self.live,
            tuple(self.know),
            self.dead,
            self.written,
            self.freed,
            tuple(self._part_key(part) for part in self.parts),
            tuple((slot, barrier.key()) for slot, barrier in sorted(self.barriers.items())),
            frozenset((term, domain.key()) for term, domain in self.domains.items()),
            frozenset(self.small.items()),
            frozenset(self.residues.items()),
            frozenset(self.decisions.items()),
        )

    def _part_key(self, part: Part) -> tuple[object, ...]:
        kinds = []
        flying_results = {}
        for kind, ops in sorted(part.flying.items()):
            if not ops:
                continue
            newest = part.serials.get(kind, 0)
            kinds.append(
                (kind, tuple((id(x.op), x.reads, x.writes, newest - x.serial) for x in ops))
            )
            flying_results.update({x.result: index for index, x in enumerate(ops)})
        env = frozenset(
            (var, _result_key(value, flying_results)) for var, value in part.env.items()
        )
        return (
            part.pc,
            env,
            tuple(part.loops),
            frozenset(part.positions.items()),
            frozenset(part.visits.items()),
            tuple(kinds),
            frozenset(part.joined.items()),
        )


def _result_key(value: object, flying: dict[int, int]) -> object:
    if isinstance(value, Result):
        return ("result", flying.get(value.number, -1))
    return value
