"""Emulates copies by address, their commit groups and waits, and buffer loads and stores.

Loads and stores each retire in order.  Against each other they retire in any order if the GPU
allows it (ASYNCcnt).  A wait for ``n`` instructions leaves an operation in flight while fewer than
``n`` newer ones of its direction were certainly issued, with the instruction counts of the
wait-count analysis.  A masked copy counts only the instructions that it certainly issues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import ttg

from ..analysis.async_events import AsyncEvents
from ..analysis.instruction_count import AsyncIssue
from ..analysis.target import Counter, Lowering, Queue, Target
from ..dialect import amdg
from .transfer import Transfer

__all__ = ["BY_ADDRESS"]


@dataclass(slots=True, eq=False)
class _Flying:
    """A copy in flight; also the value of its token.

    Attributes:
        issue: Its instructions and queue.
        finish: Executes the copy.
        is_done: Whether it took effect.
    """

    issue: AsyncIssue
    finish: Callable[[], None]
    is_done: bool = False


class _Copies:
    """The copies by address of one workgroup."""

    def __init__(self) -> None:
        self._flying: list[_Flying] = []
        self._open: list[_Flying] = []
        self._groups: list[list[_Flying]] = []

    @classmethod
    def of(cls, group: Workgroup) -> _Copies:
        """Returns the copies of a workgroup."""
        found = group.extensions.get(cls)
        if not isinstance(found, cls):
            found = group.extensions[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def issue(self, entry: _Flying) -> _Flying:
        """Puts a copy into flight."""
        self._flying.append(entry)
        self._open.append(entry)
        return entry

    def commit(self) -> list[_Flying]:
        """Ends a group and returns the value of its token."""
        found, self._open = self._open, []
        self._groups.append(found)
        return found

    def wait_groups(self, left: int) -> None:
        """Retires all groups but the newest ``left``."""
        for group in self._groups[: max(0, len(self._groups) - left)]:
            self._retire(group)

    def wait_tokens(self, tokens: list[Any]) -> None:
        """Retires the groups of the tokens and all older ones."""
        asked = {id(token) for token in tokens if token is not None}
        last = max((i for i, group in enumerate(self._groups) if id(group) in asked), default=-1)
        for group in self._groups[: last + 1]:
            self._retire(group)

    def wait_instructions(self, count: int) -> None:
        """Retires the copies that a wait for ``count`` instructions covers."""
        newer: dict[Queue, int] = {}
        for entry in reversed(list(self._flying)):
            queue = entry.issue.queue
            if newer.get(queue, 0) >= count:
                self._retire([entry])
            newer[queue] = newer.get(queue, 0) + entry.issue.instructions.lo

    def check_end(self, kernel: Operation) -> None:
        """Checks that no copy from or into LDS is in flight at the end of a kernel.

        On VMcnt the end of a wave waits for it (CDNA4 ISA, S_ENDPGM).

        Raises:
            EmulationError: A copy is in flight.
        """
        for issue in (each.issue for each in self._flying):
            if issue.queue.counter is not Counter.VMCNT:
                raise fault(
                    issue.op,
                    "the kernel ends while this copy of its LDS is in flight",
                    "the hardware may give the LDS to another workgroup after the end: wait for 0 "
                    "groups at the end",
                )

    def _retire(self, entries: list[_Flying]) -> None:
        for entry in entries:
            if not entry.is_done:
                entry.is_done = True
                self._flying.remove(entry)
                entry.finish()


def _events(op: Operation, context: Context) -> AsyncEvents:
    """Returns the asynchronous operations of the module, cached."""
    found = context.extensions.get(AsyncEvents)
    if not isinstance(found, AsyncEvents):
        module = op.module
        if module is None:
            raise fault(op, "is not inside a module")
        lowering = Lowering.of(context.host_features)
        found = AsyncEvents(module, Target.of_module(module), lowering)
        context.extensions[AsyncEvents] = found
    return found


def _issue_of(op: Operation, context: Context) -> AsyncIssue:
    issue = _events(op, context).get(op)
    if not isinstance(issue, AsyncIssue):
        raise fault(op, "expected an asynchronous copy")
    return issue


def _masked(group: Workgroup, mask: Value | None, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(True if mask is None else group.values[mask], shape)


# ---- copies


def _load_copy(op: Operation, context: Context) -> Step:
    by_pointers = ttg.AsyncCopyGlobalToLocalOp.match(op)
    by_offsets = amdg.BufferLoadToLocalOp.match(op)
    view = by_pointers or by_offsets
    assert view is not None
    issue, element = _issue_of(op, context), context.element(view.dst)
    shape = context.shape(view.dst)

    def step(group: Workgroup) -> None:
        values = group.values
        if by_pointers is not None:
            addresses = values[by_pointers.src]
        else:
            assert by_offsets is not None
            offsets = np.asarray(values[by_offsets.offsets], np.int64)
            addresses = values[by_offsets.ptr] + offsets * element.size_bytes
        addresses = np.broadcast_to(addresses, shape)
        other = 0 if view.other is None else values[view.other]
        mask = _masked(group, view.mask, shape)
        transfer = Transfer(op, group, element, addresses, mask, values[view.dst], other)
        values[op.results[0]] = _Copies.of(group).issue(_Flying(issue, transfer.start_load()))

    return step


def _store_copy(op: Operation, context: Context) -> Step:
    view = amdg.AsyncCopyLocalToGlobalOp.match(op)
    assert view is not None
    issue, element = _issue_of(op, context), context.element(view.src)
    shape = context.shape(view.src)

    def step(group: Workgroup) -> None:
        values = group.values
        addresses = np.broadcast_to(values[view.dst], shape)
        mask = _masked(group, view.mask, shape)
        transfer = Transfer(op, group, element, addresses, mask, values[view.src])
        values[op.results[0]] = _Copies.of(group).issue(_Flying(issue, transfer.start_store()))

    return step


def _commit(op: Operation, context: Context) -> Step:
    def step(group: Workgroup) -> None:
        group.values[op.results[0]] = _Copies.of(group).commit()

    return step


def _wait_groups(op: Operation, context: Context) -> Step:
    view = ttg.AsyncWaitOp.match(op)
    assert view is not None
    # LLVM's asynchronous marks take only the number.
    by_tokens = bool(view.tokens) and not _events(op, context).counts_groups

    def step(group: Workgroup) -> None:
        copies = _Copies.of(group)
        if by_tokens:
            copies.wait_tokens([group.values.get(token) for token in view.tokens])
        else:
            copies.wait_groups(max(0, view.num))
        group.values[op.results[0]] = None

    return step


def _wait_instructions(op: Operation, context: Context) -> Step:
    view = amdg.AsyncWaitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        _Copies.of(group).wait_instructions(view.num_inst)
        for result in op.results:
            group.values[result] = None

    return step


# ---- ordinary loads and stores through a buffer


def _buffer_load(op: Operation, context: Context) -> Step:
    view = amdg.BufferLoadOp.match(op)
    assert view is not None
    element, shape = context.element(view.result), context.shape(view.result)

    def step(group: Workgroup) -> None:
        values = group.values
        offsets = np.asarray(values[view.offsets], np.int64)
        addresses = values[view.ptr] + offsets * element.size_bytes
        mask = _masked(group, view.mask, shape)
        found = group.load(op, element, addresses, mask)
        # Masked elements read zeros, like those past the end of the buffer.
        other = 0 if view.other is None else values[view.other]
        values[view.result] = np.where(mask, found, other).astype(element.dtype)

    return step


def _buffer_store(op: Operation, context: Context) -> Step:
    view = amdg.BufferStoreOp.match(op)
    assert view is not None
    element, shape = context.element(view.value), context.shape(view.value)

    def step(group: Workgroup) -> None:
        values = group.values
        offsets = np.asarray(values[view.offsets], np.int64)
        addresses = values[view.ptr] + offsets * element.size_bytes
        mask = _masked(group, view.mask, shape)
        group.store(op, element, addresses, mask, values[view.value])

    return step


BY_ADDRESS: dict[str, Prepare] = {
    ttg.AsyncCopyGlobalToLocalOp.NAME: _load_copy,
    amdg.BufferLoadToLocalOp.NAME: _load_copy,
    amdg.AsyncCopyLocalToGlobalOp.NAME: _store_copy,
    ttg.AsyncCommitGroupOp.NAME: _commit,
    ttg.AsyncWaitOp.NAME: _wait_groups,
    amdg.AsyncWaitOp.NAME: _wait_instructions,
    amdg.BufferLoadOp.NAME: _buffer_load,
    amdg.BufferStoreOp.NAME: _buffer_store,
}
