"""Copies by address of sm_80 and newer (``cp.async``): groups, and waits for their number.

A copy takes effect when a wait of the part that issued it retires its group, or when the mbarrier
that waits for it needs it; not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from triton_ext.emulator.faults import fault
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation
from triton_ext.ir.dialects import ttg

from ..dialect import mbarrier
from .mbarriers import agent_of, barrier_of, races_of

__all__ = ["CP_ASYNC"]


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy that was issued.

    Attributes:
        op: The operation.
        land: Carries it out.
        is_done: Whether that happened.
    """

    op: Operation
    land: Callable[[], None]
    is_done: bool = False

    def finish(self) -> None:
        """Carries it out, once."""
        if not self.is_done:
            self.is_done = True
            self.land()


class _Copies:
    """The copies of one part of a kernel."""

    def __init__(self) -> None:
        self.all: list[_Copy] = []
        self.open: list[_Copy] = []
        self.groups: list[list[_Copy]] = []

    @classmethod
    def of(cls, group: Workgroup) -> _Copies:
        """Those of the part that runs."""
        found = group.own.get(cls)
        if not isinstance(found, cls):
            found = group.own[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def commit(self) -> None:
        """Ends a group."""
        self.groups.append(self.open)
        self.open = []

    def wait(self, pendings: int) -> None:
        """Retires all groups but the newest ones."""
        done = max(0, len(self.groups) - pendings)
        for copy in (copy for group in self.groups[:done] for copy in group):
            copy.finish()
        del self.groups[:done]
        self.all = [copy for copy in self.all if not copy.is_done]

    def check_end(self, kernel: Operation) -> None:
        """Refuses that a kernel ends with copies in flight.

        Raises:
            EmulationError: There is one.
        """
        for copy in self.all:
            if not copy.is_done:
                raise fault(
                    copy.op,
                    "the kernel ends while this copy into shared memory is in flight",
                    "commit it to a group and wait for 0 groups at the end",
                )


def _copy(op: Operation, context: Context) -> Step:
    view = ttg.AsyncCopyGlobalToLocalOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        buffer: LdsView = values[view.dst]
        mask = np.ones(buffer.shape, np.bool_) if view.mask is None else values[view.mask]
        mask = np.broadcast_to(mask, buffer.shape)
        addresses = np.broadcast_to(values[view.src], buffer.shape)
        found = group.load(op, buffer.element, addresses, mask)
        if view.other is not None:
            found = np.where(mask, found, values[view.other])
        group.check_refill(op, buffer)
        buffer.data[...] = buffer.element.poison()
        buffer.filling[...] += 1
        place, races, agent = (op, buffer), races_of(group), agent_of(group)
        group.copies.append(place)

        def land() -> None:
            group.copies.remove(place)
            buffer.filling[...] -= 1
            buffer.data[...] = found
            races.note_write(agent, op, buffer)

        copy = _Copy(op, land)
        copies = _Copies.of(group)
        copies.all.append(copy)
        copies.open.append(copy)
        if view.token is not None:
            values[view.token] = None

    return step


def _commit(op: Operation, context: Context) -> Step:
    view = ttg.AsyncCommitGroupOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        _Copies.of(group).commit()
        if view.token is not None:
            group.values[view.token] = None

    return step


def _wait(op: Operation, context: Context) -> Step:
    view = ttg.AsyncWaitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        _Copies.of(group).wait(view.num)
        if view.token is not None:
            group.values[view.token] = None

    return step


def _arrive(op: Operation, context: Context) -> Step:
    """An arrival at an mbarrier when the copies so far are done.

    Every thread of the part arrives; Triton counts them as one where it is told not to increment
    the count (``noIncrement``), and as none otherwise.
    """
    view = mbarrier.AsyncCopyMbarrierArriveOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        barrier = barrier_of(op, group, group.values[view.barrier])
        copies = [copy for copy in _Copies.of(group).all if not copy.is_done]
        agent = agent_of(group)

        def land() -> None:
            for copy in copies:
                copy.finish()
            barrier.agent.learn(agent.hand_on())

        # Without ``noIncrement`` the count grows by as many as arrive later.
        barrier.pending += 0 if view.no_increment else 1
        barrier.launch(op, group, land, arrivals=1)

    return step


CP_ASYNC: dict[str, Prepare] = {
    ttg.AsyncCopyGlobalToLocalOp.NAME: _copy,
    ttg.AsyncCommitGroupOp.NAME: _commit,
    ttg.AsyncWaitOp.NAME: _wait,
    mbarrier.AsyncCopyMbarrierArriveOp.NAME: _arrive,
}
