"""Shared memory and barriers: what each access has to know, and what it makes known.

One order of the partitions is enough to see all of them.  Each rule demands that the events which
decide about a wait, an arrival or an access are known to whoever does it; while that holds, every
other order has the same events and the same knowledge, and only the times differ:

1. An arrival, or a copy that completes on a barrier, knows of the end of the phase before its own:
   it cannot land in that phase.
2. A wait for a phase knows of the end of the phase before: its parity cannot be mistaken for an
   older phase's.
3. When a phase completes, everyone who waited for the phase before has gone on, and its arrivals
   know of it: nobody oversleeps a phase.
4. A read knows of the write, a write of all reads and of the write before.
5. What accesses memory through the asynchronous proxy knows of a fence behind the last write of
   threads (PTX ISA, "Async proxy"): a fence counts for the writes that its partition knows, and
   for those who learn of the fence itself.

A copy or product in flight is an access that nobody knows to be over, until the barrier it
completes on, or the wait that counts it, says so.  So "as late as the waits allow" needs no times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Operation
from .program import Kernel, View
from .state import Barrier, Event, Flying, Part, State, bits

__all__ = ["Memory", "Violation"]


class Violation(Exception):
    """A rule that a kernel breaks.

    Attributes:
        op: The operation.
        message: What is wrong.
        events: Earlier events that have to do with it.
        notes: Further lines.
    """

    def __init__(
        self, op: Operation, message: str, events: Sequence[Event] = (), *notes: str
    ) -> None:
        super().__init__(message)
        self.op = op
        self.message = message
        self.events = tuple(events)
        self.notes = notes


class Memory:
    """The rules, for one kernel.

    Args:
        kernel: The kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.facts = kernel.facts

    # ---- accesses

    def _conflict(self, state: State, part: Part, op: Operation, facts: int, does: str) -> None:
        """Refuses an access while one that it conflicts with may not be over."""
        missing = state.live & facts & ~state.know[part.number]
        if not missing:
            return
        fact = next(bits(missing))
        group, slot = self.facts.kind(fact)
        event = state.last[fact]
        name, other = self.kernel.slot_name(slot), self.kernel.names[event.part]
        did = "writes" if group == 0 else "reads"
        verb = f"{did} it asynchronously" if self.kernel.is_async(event.op) else f"{did} it"
        raise Violation(
            op,
            f"{self.kernel.names[part.number]} {does} {name}, and nothing tells it that the "
            f"operation is over with which {other} {verb}",
            (event,),
        )

    def read(
        self, state: State, part: Part, op: Operation, mask: int, *, is_async: bool = False
    ) -> None:
        """A read; one that is asynchronous is not over yet."""
        facts = self.facts
        missing = mask & ~state.written
        if missing:
            name = self.kernel.slot_name(next(bits(missing)))
            raise Violation(
                op, f"{self.kernel.names[part.number]} reads {name} before anything is written"
            )
        self._conflict(state, part, op, facts.written(mask), "reads")
        if is_async:
            self._check_fence(state, part, op, mask, "reads")
        event = state.note(part, op, "")
        read = facts.read(mask, part.number)
        state.add(read, event)
        if not is_async:
            # One in flight that reads the same slots is not over because of this one.
            for each in part.flights():
                mask &= ~each.reads
            state.know[part.number] |= facts.read(mask, part.number)

    def write(
        self,
        state: State,
        part: Part,
        op: Operation,
        mask: int,
        *,
        proxy: bool = False,
        is_over: bool = True,
    ) -> Event:
        """A write.

        Args:
            state: The state.
            part: Who writes.
            op: The operation.
            mask: The slots.
            proxy: Whether it goes through the asynchronous proxy.
            is_over: Whether it is over with the operation.
        """
        facts = self.facts
        self._conflict(state, part, op, facts.written(mask) | facts.any_read(mask), "writes")
        if proxy:
            self._check_fence(state, part, op, mask, "writes")
        event = state.note(part, op, "")
        state.forget(facts.any_read(mask))
        written = facts.written(mask)
        state.add(written, event)
        if is_over:
            state.know[part.number] |= written
        state.written |= mask
        if proxy:
            state.forget(facts.fenced(mask))
        else:
            state.add(facts.fenced(mask), event)
        return event

    def _check_fence(self, state: State, part: Part, op: Operation, mask: int, does: str) -> None:
        """Rule 5."""
        missing = state.live & self.facts.fenced(mask) & ~state.know[part.number]
        if missing:
            fact = next(bits(missing))
            _, slot = self.facts.kind(fact)
            raise Violation(
                op,
                f"{does} {self.kernel.slot_name(slot)} through the asynchronous proxy, and "
                "nothing tells it of a fence behind the write before",
                (state.last[fact],),
                "call fence_async_shared() behind the write, in front of what tells others of it",
            )

    def fence(self, state: State, part: Part) -> None:
        """Makes the writes that a partition knows visible to the asynchronous proxy."""
        facts = self.facts
        every = (1 << facts.slots) - 1
        known = every & ~(state.live & facts.written(every) & ~state.know[part.number])
        state.know[part.number] |= state.live & facts.fenced(known)

    # ---- operations that are waited for by their number

    def start(
        self,
        state: State,
        part: Part,
        kind: str,
        flying: Flying,
    ) -> None:
        """Puts an asynchronous operation into flight."""
        part.flying.setdefault(kind, []).append(flying)

    def retire(self, state: State, part: Part, kind: str, pendings: int) -> None:
        """Waits until no more groups of a kind are in flight than a number."""
        newest = part.serials.get(kind, 0)
        left: list[Flying] = []
        reads = writes = 0
        for each in part.flying.get(kind, ()):
            if each.serial <= newest - pendings:
                reads |= each.reads
                writes |= each.writes
            else:
                left.append(each)
        part.flying[kind] = left
        for each in part.flights():
            reads &= ~each.reads
            writes &= ~each.writes
        state.know[part.number] |= self.facts.read(reads, part.number) & state.live
        state.know[part.number] |= self.facts.written(writes) & state.live

    # ---- barriers

    def _barrier(self, state: State, part: Part, op: Operation, view: View) -> tuple[int, Barrier]:
        slot = self.kernel.slot_of(view, op)
        barrier = state.barriers.get(slot)
        if barrier is None:
            name = self.kernel.slot_name(slot)
            when = (
                "after it was invalidated" if state.dead >> slot & 1 else "before it is initialised"
            )
            raise Violation(op, f"{self.kernel.names[part.number]} uses mbarrier {name} {when}")
        if state.live & self.facts.init(slot) & ~state.know[part.number]:
            event = state.last[self.facts.init(slot).bit_length() - 1]
            raise Violation(
                op,
                f"{self.kernel.names[part.number]} uses mbarrier {self.kernel.slot_name(slot)}, "
                "and nothing tells it that it is initialised",
                (event,),
            )
        return slot, barrier

    def init(self, state: State, part: Part, op: Operation, view: View, count: int) -> None:
        """Initialises a barrier."""
        slot = self.kernel.slot_of(view, op)
        if slot in state.barriers:
            raise Violation(
                op,
                f"initialises mbarrier {self.kernel.slot_name(slot)}, which is one already",
                (),
                "invalidate it first (PTX ISA, mbarrier.init)",
            )
        state.dead &= ~(1 << slot)
        event = state.note(part, op, "")
        barrier = Barrier(count, count, gathers=len(state.know))
        state.know += [0, 0]
        state.barriers[slot] = barrier
        state.add(self.facts.init(slot), event)
        state.know[part.number] |= self.facts.init(slot)

    def inval(self, state: State, part: Part, op: Operation, view: View) -> None:
        """Invalidates a barrier that nobody else uses any more."""
        slot, _ = self._barrier(state, part, op, view)
        missing = state.live & self.facts.of_barrier(slot) & ~state.know[part.number]
        if missing:
            event = state.last[next(bits(missing))]
            raise Violation(
                op,
                f"invalidates mbarrier {self.kernel.slot_name(slot)}, and nothing tells that "
                f"{self.kernel.names[event.part]} has done with it",
                (event,),
            )
        state.forget(self.facts.of_barrier(slot))
        del state.barriers[slot]
        state.dead |= 1 << slot

    def _check_phase(self, state: State, part: Part, op: Operation, slot: int, what: str) -> None:
        """Rule 1."""
        complete = self.facts.complete(slot)
        if state.live & complete & ~state.know[part.number]:
            event = state.last[complete.bit_length() - 1]
            barrier = state.barriers[slot]
            raise Violation(
                op,
                f"{self.kernel.names[part.number]} {what} mbarrier {self.kernel.slot_name(slot)} "
                f"in its phase {barrier.phases}, and nothing tells it that phase "
                f"{barrier.phases - 1} is complete",
                (event,),
                "it may count for that phase: an arrival, or bytes of a copy, are too many there",
            )

    def arrive(
        self,
        state: State,
        part: Part,
        op: Operation,
        view: View,
        count: int,
        *,
        expects: int = 0,
    ) -> None:
        """Arrives at a barrier, and makes its phase wait for bytes."""
        slot, barrier = self._barrier(state, part, op, view)
        self._check_phase(state, part, op, slot, "arrives at")
        if count > barrier.pending:
            name = self.kernel.slot_name(slot)
            raise Violation(
                op,
                f"{self.kernel.names[part.number]} arrives {count} times at mbarrier {name}, "
                f"whose phase {barrier.phases} expects {barrier.pending} more",
                (),
                f"its count is {barrier.count}",
            )
        barrier.pending -= count
        barrier.tx_bytes += expects
        event = state.note(part, op, "arrive", slot, barrier.phases, expects)
        arrived = self.facts.arrived(slot, part.number)
        state.add(arrived, event)
        state.know[part.number] |= arrived
        state.know[barrier.gathers] |= state.know[part.number]
        self._complete(state, part, op, slot, barrier, event)

    def copy(
        self, state: State, part: Part, op: Operation, mask: int, view: View, size_bytes: int
    ) -> None:
        """Starts a copy that completes on a barrier."""
        slot, barrier = self._barrier(state, part, op, view)
        self._check_phase(state, part, op, slot, "starts a copy on")
        self.write(state, part, op, mask, proxy=True, is_over=False)
        event = state.note(part, op, "copy", slot, barrier.phases, size_bytes)
        barrier.has_copies = True
        barrier.tx_bytes -= size_bytes
        state.know[barrier.gathers] |= state.know[part.number] | self.facts.written(mask)
        self._complete(state, part, op, slot, barrier, event)

    def _complete(
        self, state: State, part: Part, op: Operation, slot: int, barrier: Barrier, event: Event
    ) -> None:
        """Completes a phase that waits for nothing any more."""
        if barrier.pending or barrier.tx_bytes:
            return
        facts = self.facts
        for other in range(facts.parts):
            waited = state.live & facts.waited(slot, other)
            if waited & ~state.know[barrier.gathers]:
                first = state.last[waited.bit_length() - 1]
                name = self.kernel.slot_name(slot)
                raise Violation(
                    op,
                    f"phase {barrier.phases} of mbarrier {name} may complete before "
                    f"{self.kernel.names[other]} has seen that phase {barrier.phases - 1} is",
                    (first,),
                    "a wait knows the parity of a phase only, and goes on waiting behind two of "
                    "them",
                )
        mine = state.know[part.number]
        arrivals = 0
        ended = 0
        for each in range(facts.parts):
            arrivals |= facts.arrived(slot, each)
            ended |= facts.waited(slot, each)
        is_seen = not barrier.has_copies and not state.live & arrivals & ~mine
        before, now = facts.complete_before(slot), facts.complete(slot)
        # Those who knew of the last phase now know of the one before; a fact that is not live is
        # known to all.
        is_live = state.live & now
        kept = ~(before | now | arrivals | ended)
        know = [each & kept | (before if each & now else 0) for each in state.know]
        state.live = state.live & kept | now | (before if is_live else 0)
        last = state.last
        if is_live:
            last[before.bit_length() - 1] = last[now.bit_length() - 1]
        last[now.bit_length() - 1] = event
        # Arrivals of the next phase know all that this one knows (rule 1).
        know[barrier.gathers + 1] = (know[barrier.gathers] | now | before) & state.live
        know[barrier.gathers] = 0
        if is_seen:
            know[part.number] |= now
        state.know = know
        barrier.phases += 1
        state.has_news = True
        barrier.pending = barrier.count
        barrier.has_copies = False

    def wait(self, state: State, part: Part, op: Operation, view: View, parity: int) -> bool:
        """Waits for the phase of a parity; returns whether the partition goes on."""
        slot, barrier = self._barrier(state, part, op, view)
        if barrier.phases % 2 == parity:
            return False
        facts = self.facts
        before = facts.complete_before(slot)
        if state.live & before & ~state.know[part.number]:
            raise Violation(
                op,
                f"{self.kernel.names[part.number]} waits for phase {barrier.phases - 1} of "
                f"mbarrier {self.kernel.slot_name(slot)}, and nothing tells it that phase "
                f"{barrier.phases - 2} is complete",
                (state.last[before.bit_length() - 1],),
                f"the wait knows the parity {parity} only: it may go on at once",
            )
        state.know[part.number] |= state.know[barrier.gathers + 1] & state.live
        event = state.note(part, op, "wait", slot, barrier.phases - 1)
        waited = facts.waited(slot, part.number)
        state.add(waited, event)
        state.know[part.number] |= waited
        return True

    # ---- the end

    def end(self, state: State, part: Part, op: Operation) -> None:
        """The end of the kernel: what is in flight may touch the memory of another CTA."""
        for kind in part.flying.values():
            for each in kind:
                raise Violation(
                    each.op,
                    "the kernel ends while this operation may still use shared memory",
                    (),
                    "the shared memory of a CTA that ended is given to another one",
                )
        facts = self.facts
        every = (1 << facts.slots) - 1
        missing = (
            state.live & (facts.written(every) | facts.any_read(every)) & ~state.know[part.number]
        )
        if missing:
            event = state.last[next(bits(missing))]
            raise Violation(
                event.op,
                "the kernel ends while this operation may still use shared memory",
                (event,),
                "the shared memory of a CTA that ended is given to another one",
            )
