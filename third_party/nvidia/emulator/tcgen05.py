"""Matrix products and copies into tensor memory of sm_100 (PTX ISA, "tcgen05").

What one part of a kernel issues is carried out in the order of its issue, and as late as possible:
when a wait needs an mbarrier to which it was committed.  Until then its operands and its result
must not be touched, but by what the same part issues later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import fault
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.races import Agent
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value

from ..dialect import mma
from .copies import check_async_read
from .mbarriers import InFlight, Mbarrier, agent_of, barrier_of, races_of
from .tensor_memory import TmemView, check_alone
from .wgmma import as_tf32, matmul

__all__ = ["TCGEN05"]


@dataclass(slots=True, eq=False)
class _Issued:
    """An operation that was issued.

    Attributes:
        op: The operation.
        execute: Carries it out.
        reads: Buffers that it reads.
        writes: The buffer that it writes.
    """

    op: Operation
    execute: Callable[[], None]
    reads: Sequence[LdsView | TmemView]
    writes: TmemView


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that was issued: an arrival at an mbarrier when all before it is done."""

    barrier: Mbarrier
    copy: InFlight | None = None


@dataclass(slots=True, eq=False)
class _Pipe:
    """The operations that one part of a kernel issued, oldest first.

    Attributes:
        group: The part.
        number: Number of the pipe among those of the CTA, from 1 on.
        agent: Who the tensor core is to the record of accesses.
        queue: What is not done.
    """

    group: Workgroup
    number: int
    agent: Agent
    queue: list[_Issued | _Commit] = field(default_factory=list)

    @classmethod
    def of(cls, group: Workgroup) -> _Pipe:
        """That of the part that runs."""
        found = group.own.get(cls)
        if not isinstance(found, cls):
            pipes = group.extensions.setdefault(cls, [])
            agent = races_of(group).agent(f"the tensor core for {agent_of(group).name}")
            found = group.own[cls] = cls(group, len(pipes) + 1, agent)
            pipes.append(found)
            group.at_end.append(found.check_end)
        return found

    def issue(self, issued: _Issued) -> None:
        """Puts an operation into flight.

        Raises:
            EmulationError: It may not access its buffers now.
        """
        op, group = issued.op, self.group
        # The pipe is in order with itself, and with what its part has done or waited for.
        self.agent.learn(agent_of(group).hand_on())
        races = races_of(group)
        for buffer in issued.reads:
            if isinstance(buffer, TmemView):
                check_alone(op, buffer, "reads", self.number, writes=False)
                races.check_read(self.agent, op, buffer)
            else:
                check_async_read(op, group, buffer)
        check_alone(op, issued.writes, "writes", self.number, writes=True)
        races.check_write(self.agent, op, issued.writes)
        for buffer in issued.reads:
            if isinstance(buffer, TmemView):
                buffer.start(op, self.number, writes=False)
            else:
                buffer.draining[...] += 1
                group.copies.append((op, buffer))
        issued.writes.start(op, self.number, writes=True)
        # So that what the pipe reads later is not taken for memory that nobody wrote.
        races.note_write(self.agent, op, issued.writes, is_async=True)
        self.queue.append(issued)

    def commit(self, op: Operation, barrier: Mbarrier) -> None:
        """Makes an mbarrier wait for what was issued until now."""
        known = agent_of(self.group).hand_on()
        commit = _Commit(barrier)

        def land() -> None:
            while self.queue[0] is not commit:
                first = self.queue[0]
                if isinstance(first, _Issued):
                    self._finish(self.queue.pop(0))
                elif first.copy is not None:
                    first.barrier.land_one(first.copy)
            self.queue.pop(0)
            barrier.agent.learn(known)
            barrier.agent.learn(self.agent.hand_on())

        commit.copy = barrier.launch(op, self.group, land, arrivals=1)
        self.queue.append(commit)

    def _finish(self, issued: _Issued | _Commit) -> None:
        assert isinstance(issued, _Issued)
        op, races = issued.op, races_of(self.group)
        issued.execute()
        for buffer in issued.reads:
            if isinstance(buffer, TmemView):
                buffer.finish(op, writes=False)
            else:
                buffer.draining[...] -= 1
                self.group.copies.remove((op, buffer))
            races.note_read(self.agent, op, buffer)
        issued.writes.finish(op, writes=True)

    def check_end(self, kernel: Operation) -> None:
        """Refuses that a kernel ends with operations in flight.

        Raises:
            EmulationError: There is one.
        """
        for issued in self.queue:
            if isinstance(issued, _Issued):
                raise fault(
                    issued.op,
                    "the kernel ends while this operation of the tensor core is in flight",
                    "commit it to an mbarrier (tcgen05_commit) and wait for that before the end",
                )


def _is_on(group: Workgroup, pred: Value | None) -> bool:
    return pred is None or bool(group.values[pred])


def _commit(op: Operation, context: Context) -> Step:
    view = mma.TcGen5CommitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        if _is_on(group, view.pred):
            group.fibers.pause()
            _Pipe.of(group).commit(op, barrier_of(op, group, group.values[view.barrier]))

    return step


def _values(buffer: LdsView | TmemView) -> Array:
    return buffer.read() if isinstance(buffer, TmemView) else buffer.data


def _mma(op: Operation, context: Context) -> Step:
    view = mma.TcGen5MmaOp.match(op)
    assert view is not None
    element = context.element(view.d)
    wide = np.dtype(np.float32) if element.is_float else np.dtype(np.int64)
    is_tf32 = context.element(view.a).name == "f32"
    is_unsigned = "is_unsigned" in op.attributes

    def numbers(buffer: LdsView | TmemView) -> Array:
        found = _values(buffer)
        if is_tf32:
            return as_tf32(found)
        return (found.view(np.uint8) if is_unsigned else found).astype(wide)

    def step(group: Workgroup) -> None:
        values = group.values
        if view.token is not None:
            values[view.token] = None
        if not values[view.pred]:
            return
        group.fibers.pause()
        a, b, d = values[view.a], values[view.b], values[view.d]
        adds = bool(values[view.use_d])

        def execute() -> None:
            found = matmul(numbers(a), numbers(b))
            d.write(element.rounded(found + d.read() if adds else found))

        _issue(op, group, execute, [a, b], d, adds=adds)
        _commit_all(op, group, view.barriers, view.barrier_preds)

    return step


def _issue(
    op: Operation,
    group: Workgroup,
    execute: Callable[[], None],
    reads: list[Any],
    writes: TmemView,
    *,
    adds: bool,
) -> None:
    pipe = _Pipe.of(group)
    if adds:
        # The order of the checks is that of the issue: the accumulator is read by the same pipe.
        pipe.agent.learn(agent_of(group).hand_on())
        check_alone(op, writes, "adds to", pipe.number, writes=True)
        races_of(group).check_read(pipe.agent, op, writes)
    pipe.issue(_Issued(op, execute, reads, writes))


def _commit_all(
    op: Operation, group: Workgroup, barriers: Sequence[Value], preds: Sequence[Value]
) -> None:
    for barrier, pred in zip(barriers, preds, strict=True):
        if group.values[pred]:
            _Pipe.of(group).commit(op, barrier_of(op, group, group.values[barrier]))


TCGEN05: dict[str, Prepare] = {
    mma.TcGen5CommitOp.NAME: _commit,
    mma.TcGen5MmaOp.NAME: _mma,
}
