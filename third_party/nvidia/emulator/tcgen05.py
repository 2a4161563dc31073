"""Matrix products and copies into tensor memory of sm_100 (PTX ISA, "tcgen05").

What one part of a kernel issues is carried out in the order of its issue, and as late as possible:
when a wait needs an mbarrier to which it was committed.  Until then its operands and its result
must not be touched, but by what the same part issues later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton_ext.emulator.clusters import cga_bases, shared_bits
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import fault
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.races import Agent
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value

from ..dialect import mma
from .block_scales import numbers_of, scales_of, unpacked_scales
from .copies import check_async_read, ranks_of
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
        writes: The buffers that it writes: one for each CTA that takes part.
    """

    op: Operation
    execute: Callable[[], None]
    reads: Sequence[LdsView | TmemView]
    writes: Sequence[TmemView]


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that was issued: an arrival at an mbarrier when all before it is done."""

    barrier: Mbarrier
    flight: InFlight | None = None


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
        for tmem in issued.writes:
            check_alone(op, tmem, "writes", self.number, writes=True)
            races.check_write(self.agent, op, tmem)
        for buffer in issued.reads:
            if isinstance(buffer, TmemView):
                buffer.start(op, self.number, writes=False)
            else:
                buffer.draining[...] += 1
                group.copies.append((op, buffer))
        for tmem in issued.writes:
            tmem.start(op, self.number, writes=True)
            # So that what the pipe reads later is not taken for memory that nobody wrote.
            races.note_write(self.agent, op, tmem, is_async=True)
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
                elif first.flight is not None:
                    first.barrier.land_one(first.flight)
            self.queue.pop(0)
            barrier.agent.learn(known)
            barrier.agent.learn(self.agent.hand_on())

        commit.flight = barrier.launch(op, self.group, land, arrivals=1)
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
        for tmem in issued.writes:
            tmem.finish(op, writes=True)

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


@dataclass(frozen=True, slots=True)
class _Ctas:
    """The CTAs of a cluster that a product or a commit has to do with.

    Attributes:
        pairs: Whether two CTAs work together (``cta_group::2``): the first one issues for both.
        shared: For each operand whose CTAs are told, the bits that make no difference to it.
    """

    pairs: bool
    shared: tuple[int, ...]

    @classmethod
    def of(cls, op: Operation, context: Context, shared: Sequence[Value]) -> _Ctas:
        """Returns the CTAs of an operation; ``shared`` are the operands that CTAs share."""
        module = op.module
        in_module = module is not None and module.op.attributes.get("ttng.two-ctas") == "true"
        bits = tuple(shared_bits(cga_bases(context.type_of(value))) for value in shared)
        return cls("two_ctas" in op.attributes or in_module, bits)

    def issues(self, group: Workgroup) -> bool:
        """Returns whether a CTA issues."""
        return not (self.pairs and group.rank & 1)

    def told(self, group: Workgroup) -> list[int]:
        """The CTAs at whose mbarriers a commit arrives (Triton's lowering of commits)."""
        found = {group.rank}
        for shared in self.shared or (0,):
            bits = shared | int(self.pairs)
            found |= set(ranks_of(group.rank & ~bits, bits))
        return sorted(found)

    def members(self, group: Workgroup) -> list[int]:
        """The CTAs whose memory a product uses."""
        return [group.rank, group.rank | 1] if self.pairs else [group.rank]


def _commit_to(
    op: Operation, group: Workgroup, barrier: Value, pred: Value | None, ctas: _Ctas
) -> None:
    if pred is not None and not group.values[pred]:
        return
    group.fibers.pause()
    for rank in ctas.told(group) if group.cluster is not None else [None]:
        _Pipe.of(group).commit(op, barrier_of(op, group, group.values[barrier], rank))


def _commit(op: Operation, context: Context) -> Step:
    view = mma.TcGen5CommitOp.match(op)
    assert view is not None
    ctas = _Ctas.of(op, context, view.descs)

    def step(group: Workgroup) -> None:
        if ctas.issues(group):
            _commit_to(op, group, view.barrier, view.pred, ctas)

    return step


def _twin(op: Operation, group: Workgroup, buffer: Any, rank: int) -> Any:
    """The buffer of a CTA of the pair at the place of one of the CTA that issues."""
    if rank == group.rank or group.cluster is None:
        return buffer
    group.cluster.meet(group.rank)
    if isinstance(buffer, TmemView):
        return buffer.twin(group.cluster.groups[rank])
    return group.cluster.twin(buffer, group.rank, rank)


def _values(buffer: LdsView | TmemView) -> Array:
    return buffer.read() if isinstance(buffer, TmemView) else buffer.contents()


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

    ctas = _Ctas.of(op, context, [view.a, view.b] if "multicast" in op.attributes else [])

    def step(group: Workgroup) -> None:
        values = group.values
        if view.token is not None:
            values[view.token] = None
        if not values[view.pred] or not ctas.issues(group):
            return
        group.fibers.pause()
        adds = bool(values[view.use_d])
        a, b, d = (
            [_twin(op, group, values[each], rank) for rank in ctas.members(group)]
            for each in (view.a, view.b, view.d)
        )

        def execute() -> None:
            # Each CTA of a pair has its rows of a and of d, and its columns of b.
            right = np.concatenate([numbers(each) for each in b], axis=1)
            for rows, target in zip(a, d, strict=True):
                found = matmul(numbers(rows), right)
                target.write(element.rounded(found + target.read() if adds else found))

        _issue(op, group, execute, [*a, *b], d, adds=adds)
        for barrier, pred in zip(view.barriers, view.barrier_preds, strict=True):
            _commit_to(op, group, barrier, pred, ctas)

    return step


def _issue(
    op: Operation,
    group: Workgroup,
    execute: Callable[[], None],
    reads: list[Any],
    writes: list[TmemView],
    *,
    adds: bool,
) -> None:
    pipe = _Pipe.of(group)
    if adds:
        pipe.agent.learn(agent_of(group).hand_on())
        for tmem in writes:
            check_alone(op, tmem, "adds to", pipe.number, writes=True)
            races_of(group).check_read(pipe.agent, op, tmem)
    pipe.issue(_Issued(op, execute, reads, writes))


_KINDS = re.compile(r"\blhs\s*=\s*(\w+)\s+rhs\s*=\s*(\w+)", re.ASCII)


def _mma_scaled(op: Operation, context: Context) -> Step:
    view = mma.TcGen5MmaScaledOp.match(op)
    found = _KINDS.search(op.text)
    assert view is not None
    assert found is not None
    lhs, rhs = found.groups()
    element = context.element(view.d)
    # fp4 comes in pairs.
    depth = context.shape(view.a)[-1] * (2 if lhs == "e2m1" else 1)

    def factors(scale: LdsView | TmemView, size: int) -> Array:
        values = _values(scale)
        count = values.size // size
        found = scales_of(unpacked_scales(values, (size, count)), scale.element)
        return np.repeat(found, depth // count, axis=1)

    rows_of_a = context.shape(view.a)[0]
    told = [view.a, view.b, view.a_scale, view.b_scale]
    ctas = _Ctas.of(op, context, told if "multicast" in op.attributes else [])

    def step(group: Workgroup) -> None:
        values = group.values
        if view.token is not None:
            values[view.token] = None
        if not values[view.pred] or not ctas.issues(group):
            return
        group.fibers.pause()
        adds = bool(values[view.use_d])
        a, b, d, a_scale, b_scale = (
            [_twin(op, group, values[each], rank) for rank in ctas.members(group)]
            for each in (view.a, view.b, view.d, view.a_scale, view.b_scale)
        )

        def execute() -> None:
            # Scales of b: all columns in each CTA, or those of its own b.
            parts = [numbers_of(_values(x), x.element, rhs, depth, 0) for x in b]
            right = np.concatenate(parts, axis=1)
            columns = right.shape[1]
            if _values(b_scale[0]).size * rows_of_a == _values(a_scale[0]).size * columns:
                scales = factors(b_scale[0], columns)
            else:
                scales = np.concatenate([factors(x, columns // len(b)) for x in b_scale])
            right = right * scales.T
            for rows, scale, target in zip(a, a_scale, d, strict=True):
                left = numbers_of(_values(rows), rows.element, lhs, depth, 1)
                found = matmul(left * factors(scale, left.shape[0]), right)
                target.write(element.rounded(found + target.read() if adds else found))

        _issue(op, group, execute, [*a, *b, *a_scale, *b_scale], d, adds=adds)
        for barrier, pred in zip(view.barriers, view.barrier_preds, strict=True):
            _commit_to(op, group, barrier, pred, ctas)

    return step


def _copy(op: Operation, context: Context) -> Step:
    """A copy from shared memory (``tcgen05.cp``); scales are put into the order of their rows."""
    source, target = op.operands
    ctas = _Ctas.of(op, context, ())

    def step(group: Workgroup) -> None:
        if not ctas.issues(group):
            return
        group.fibers.pause()
        buffers, tmems = (
            [_twin(op, group, group.values[each], rank) for rank in ctas.members(group)]
            for each in (source, target)
        )

        def execute() -> None:
            for buffer, tmem in zip(buffers, tmems, strict=True):
                tmem.write(unpacked_scales(_values(buffer), tmem.shape))

        _issue(op, group, execute, buffers, tmems, adds=False)

    return step


TCGEN05: dict[str, Prepare] = {
    "ttng.tmem_copy": _copy,
    mma.TcGen5MmaScaledOp.NAME: _mma_scaled,
    mma.TcGen5CommitOp.NAME: _commit,
    mma.TcGen5MmaOp.NAME: _mma,
}
