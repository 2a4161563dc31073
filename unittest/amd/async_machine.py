"""What the hardware may do with asynchronous copies: queues that retire as late as they can.

The waves of a workgroup run in step here, because every wait has a barrier behind it and all
control flow is uniform.  They differ in how many instructions of a masked copy they issue, so each
has its own queues.  A queue retires in order: its state is how many instructions were issued and
how many of them are done, and an operation is done once the instructions up to its last one are.
On ASYNCcnt loads and stores are two queues of one counter, which retire in any order against each
other.

Schedules are adversarial: nothing retires before a wait forces it, and which queue gives way at a
wait is drawn.  Some schedules retire early instead; they find nothing that a late one does not,
and are here so that what is claimed for "any schedule" was seen for those too.

Not modelled: barriers that are missing, mbarriers, reads of a buffer by waves of another partition,
ordinary loads that share VMcnt (they can only make a wait stronger), and LDS that the allocator
gives to two buffers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.ir import Operation

__all__ = [
    "LOAD",
    "STORE",
    "TENSOR",
    "Fault",
    "Machine",
    "Rule",
    "Site",
    "Truncated",
]

LOAD, STORE, TENSOR = range(3)
_LATE_LOADS, _LATE_STORES, _MIXED = range(3)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a wait really waits.

    Attributes:
        number: What may be in flight behind it.
        marks: Whether that counts commit groups in order (``wait_asyncmark``), not instructions.
    """

    number: int
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the kernel must never do, and did in one schedule.

    Attributes:
        op: The operation that did it.
        kind: ``wait``: a wait let through what it was asked to wait for; ``read``: LDS was read
            before the data arrived; ``source``: the same by a copy that reads LDS; ``refill``: LDS
            was written while a copy read or filled it; ``end``: the kernel ended before a copy.
        buffer: Name of the operation that was in flight, with its line.
        missing: Its instructions that were not done, in the wave that was last.
        promised: Whether a wait in front of this asked for the operation, so that the number is
            wrong and not the kernel.
    """

    op: Operation
    kind: str
    buffer: str
    missing: int
    promised: bool


@dataclass(frozen=True, slots=True)
class Site:
    """An operation as the machine needs it.

    Attributes:
        op: The operation.
        name: Its name and line.
        count: Instructions that a wave issues.
        may_skip: Whether a wave may issue fewer.
    """

    op: Operation
    name: str
    count: int = 0
    may_skip: bool = False


class Truncated(Exception):
    """The schedule took more steps than it may; what it found so far stands."""


#: A part of a buffer: which one, first and last index + 1 in its dimensions, and which of those
#: the dimensions of the view are (``None`` where a reshape hides it).
View = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]


class Entry:
    """One executed copy; also the value of its token.

    Attributes:
        site: The operation.
        views: What it fills or reads.
        fills: Whether it writes LDS.
        queue: Where its instructions are.
        ends: For each wave, the place behind its last instruction; 0 if it issued none.
        promised: Whether a wait asked for it.
        waitable: Whether a wait can ask for it: not before it is committed, except for the TDM.
    """

    __slots__ = ("ends", "fills", "promised", "queue", "site", "views", "waitable")

    def __init__(
        self, site: Site, views: tuple[View, ...], fills: bool, queue: int, ends: list[int]
    ) -> None:
        self.site = site
        self.views = views
        self.fills = fills
        self.queue = queue
        self.ends = ends
        self.promised = False
        self.waitable = queue == TENSOR

    @property
    def members(self) -> tuple[Entry, ...]:
        """What a wait for this token asks for."""
        return (self,)


class Group:
    """One executed commit; also the value of its token.

    Attributes:
        members: Its copies.
        mark: Instructions that each wave had issued, per queue.
    """

    __slots__ = ("mark", "members")

    def __init__(self, members: tuple[Entry, ...], mark: list[list[int]]) -> None:
        self.members = members
        self.mark = mark


class Machine:
    """The state of one schedule for the waves of one partition.

    Args:
        rng: Draws everything.
        waves: Number of waves.
        rules: For each wait of the module, how it really waits; ``None``: exactly as asked.
        faults: Takes what is found.
    """

    def __init__(
        self,
        rng: random.Random,
        waves: int,
        rules: Sequence[Rule | None],
        faults: dict[tuple[Operation, str, str, bool], Fault],
    ) -> None:
        self.rng = rng
        self.waves = range(waves)
        self.rules = rules
        self.faults = faults
        self.issued = [[0] * waves for _ in range(3)]
        self.retired = [[0] * waves for _ in range(3)]
        self.pending: list[Entry] = []
        self.uncommitted: list[Entry] = []
        self.groups: list[Group] = []
        self.groups_promised = 0
        self.transfers: list[Entry] = []
        self.transfers_promised = 0
        drawn = rng.random()
        self.style = _LATE_LOADS if drawn < 0.4 else _LATE_STORES if drawn < 0.8 else _MIXED
        self.eager = rng.random() < 0.1
        self.steps = 150

    def partition(self) -> Machine:
        """The machine for other waves of the same workgroup."""
        return Machine(self.rng, len(self.waves), self.rules, self.faults)

    # ---- what is drawn

    def tick(self) -> None:
        """Counts an iteration.

        Raises:
            Truncated: There were too many.
        """
        self.steps -= 1
        if self.steps < 0:
            raise Truncated

    def draw(self) -> int:
        """A number that the kernel gets from outside."""
        value = int(self.rng.random() * 7)
        return value if self.rng.random() < 0.95 else value * 32

    def flip(self) -> int:
        """A truth value that the kernel gets from outside."""
        return self.rng.random() < 0.5

    # ---- copies

    def copy(self, site: Site, views: tuple[View, ...], fills: bool, queue: int) -> Entry:
        """Issues a copy and returns its token."""
        if fills:
            self.write(site, views)
        else:
            self.read(site, views, "source")
        issued, count = self.issued[queue], site.count
        if site.may_skip:
            ends = []
            for wave in self.waves:
                number = self._skipped(count)
                issued[wave] += number
                ends.append(issued[wave] if number else 0)
        else:
            for wave in self.waves:
                issued[wave] += count
            ends = issued.copy() if count else [0] * len(issued)
        entry = Entry(site, views, fills, queue, ends)
        self.pending.append(entry)
        (self.transfers if queue == TENSOR else self.uncommitted).append(entry)
        if self.eager:
            self._retire_some()
        return entry

    def commit(self) -> Group:
        """Ends a group and returns its token."""
        group = Group(tuple(self.uncommitted), [list(queue) for queue in self.issued])
        for entry in group.members:
            entry.waitable = True
        self.uncommitted = []
        self.groups.append(group)
        return group

    def _skipped(self, count: int) -> int:
        drawn = self.rng.random()
        if drawn < 0.4:
            return count
        return 0 if drawn < 0.8 else self.rng.randint(0, count)

    def _retire_some(self) -> None:
        for queue in (LOAD, STORE, TENSOR):
            for wave in self.waves:
                flight = self.issued[queue][wave] - self.retired[queue][wave]
                if flight and self.rng.random() < 0.5:
                    self.retired[queue][wave] += self.rng.randint(0, flight)

    # ---- waits

    def wait_groups(
        self, site: Site, number: int, tokens: tuple[Entry | Group | None, ...], left: int
    ) -> None:
        """Waits for commit groups: those of the tokens, or all but the last ones.

        Args:
            site: The wait.
            number: Which of the module's waits it is.
            tokens: Groups that are asked for.
            left: Groups that may stay in flight, if there are no tokens; below 0: nothing is asked.
        """
        if tokens:
            self._promise_tokens(tokens)
        elif left >= 0:
            end = len(self.groups) - left
            for group in self.groups[self.groups_promised : max(end, 0)]:
                for entry in group.members:
                    entry.promised = True
            self.groups_promised = max(self.groups_promised, end)
        self._wait(site, self.rules[number], tensor=False)

    def wait_transfers(
        self, site: Site, number: int, tokens: tuple[Entry | Group | None, ...], left: int
    ) -> None:
        """Waits for TDM operations: those of the tokens, or all but the last ones."""
        if tokens:
            self._promise_tokens(tokens)
        elif left >= 0:
            end = len(self.transfers) - left
            for entry in self.transfers[self.transfers_promised : max(end, 0)]:
                entry.promised = True
            self.transfers_promised = max(self.transfers_promised, end)
        self._wait(site, self.rules[number], tensor=True)

    def _promise_tokens(self, tokens: tuple[Entry | Group | None, ...]) -> None:
        for token in tokens:
            if token is not None:
                for entry in token.members:
                    entry.promised |= entry.waitable

    def _wait(self, site: Site, rule: Rule | None, *, tensor: bool) -> None:
        if rule is None:
            self._retire_promised(tensor)
        elif rule.marks:
            self._retire_marks(rule.number)
        elif tensor:
            self._retire_tensor(rule.number)
        else:
            self._retire_async(rule.number)
        left = []
        for entry in self.pending:
            if not self._is_done(entry):
                left.append(entry)
                if entry.promised and (entry.queue == TENSOR) == tensor:
                    self._report(site, "wait", entry)
        self.pending = left
        if self.eager:
            self._retire_some()

    def _retire_promised(self, tensor: bool) -> None:
        for entry in self.pending:
            if entry.promised and (entry.queue == TENSOR) == tensor:
                self._retire_to(entry.queue, entry.ends)

    def _retire_marks(self, left: int) -> None:
        if left < len(self.groups):
            for queue, mark in enumerate(self.groups[len(self.groups) - 1 - left].mark):
                if queue != TENSOR:
                    self._retire_to(queue, mark)

    def _retire_to(self, queue: int, places: list[int]) -> None:
        retired = self.retired[queue]
        for wave in self.waves:
            retired[wave] = max(retired[wave], places[wave])

    def _retire_tensor(self, left: int) -> None:
        issued, retired = self.issued[TENSOR], self.retired[TENSOR]
        for wave in self.waves:
            if issued[wave] - retired[wave] > left:
                retired[wave] = issued[wave] - left

    def _retire_async(self, left: int) -> None:
        loads, stores = self.retired[LOAD], self.retired[STORE]
        for wave in self.waves:
            more_loads = self.issued[LOAD][wave] - loads[wave]
            more_stores = self.issued[STORE][wave] - stores[wave]
            excess = more_loads + more_stores - left
            if excess <= 0:
                continue
            fewest, most = max(0, excess - more_stores), min(more_loads, excess)
            if self.style == _LATE_LOADS:
                number = fewest
            elif self.style == _LATE_STORES:
                number = most
            else:
                number = self.rng.randint(fewest, most)
            loads[wave] += number
            stores[wave] += excess - number

    # ---- LDS

    def read(self, site: Site, views: tuple[View, ...], kind: str = "read") -> None:
        """LDS is read: every copy that fills it has to be done."""
        for entry in self.pending:
            if entry.fills and _overlap(entry.views, views) and not self._is_done(entry):
                self._report(site, kind, entry)

    def write(self, site: Site, views: tuple[View, ...]) -> None:
        """LDS is written: every copy that fills or reads it has to be done."""
        for entry in self.pending:
            if _overlap(entry.views, views) and not self._is_done(entry):
                self._report(site, "refill", entry)

    def end(self, site: Site) -> None:
        """The kernel ends, and its LDS is another one's: every copy has to be done."""
        for entry in self.pending:
            if not self._is_done(entry):
                self._report(site, "end", entry)

    def _is_done(self, entry: Entry) -> bool:
        for end, done in zip(entry.ends, self.retired[entry.queue], strict=True):
            if end > done:
                return False
        return True

    def _report(self, site: Site, kind: str, entry: Entry) -> None:
        key = (site.op, kind, entry.site.name, entry.promised)
        if key in self.faults:
            return
        retired = self.retired[entry.queue]
        missing = max(end - done for end, done in zip(entry.ends, retired, strict=True))
        self.faults[key] = Fault(site.op, kind, entry.site.name, missing, entry.promised)


def _overlap(first: tuple[View, ...], second: tuple[View, ...]) -> bool:
    for buffer, low, high, _ in first:
        for other, other_low, other_high, _ in second:
            if buffer == other and (
                low == other_low
                or all(
                    a < d and c < b
                    for a, b, c, d in zip(low, high, other_low, other_high, strict=True)
                )
            ):
                return True
    return False
