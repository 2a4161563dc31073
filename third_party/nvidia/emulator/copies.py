"""Copies of the TMA unit between global and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from triton_ext.emulator.clusters import cga_bases, shared_bits
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import fault
from triton_ext.emulator.fibers import Flight
from triton_ext.emulator.memory import LdsView, OutOfBoundsError
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.errors import DescriptorError
from triton_ext.ir import Operation, Value

from ..dialect import tma
from .descriptors import Descriptor, Tiled
from .mbarriers import Mbarrier, agent_of, barrier_of, races_of

__all__ = ["COPIES", "check_async_read", "ranks_of", "start_load"]


def check_async_read(op: Operation, group: Workgroup, view: LdsView) -> None:
    """Refuses a buffer that the asynchronous proxy must not read now.

    Raises:
        EmulationError: A copy in flight fills a part of it, another part of the kernel writes it,
            or a fence is missing.
    """
    if view.filling.any():
        group.read_lds(op, view)  # raises
    races_of(group).check_read(agent_of(group), op, view)
    races_of(group).check_fence(op, view)


def _block(
    op: Operation, desc: Descriptor, view: LdsView, coord: list[int], offsets: list[int]
) -> tuple[Array, Array]:
    try:
        return desc.block(view.shape, coord, offsets)
    except (DescriptorError, ValueError) as error:
        raise fault(op, f"the TMA unit cannot do this: {error}") from error


# ---- loads


def _load(op: Operation, context: Context) -> Step:
    view = tma.AsyncTmaCopyGlobalToLocalOp.match(op)
    assert view is not None
    bases = cga_bases(context.type_of(view.result))
    shared = shared_bits(bases) if view.multicast else 0
    # CTAs that share an mbarrier count their bytes at the one of the first of them.
    leads = ~shared_bits(cga_bases(context.type_of(view.barrier)))

    def step(group: Workgroup) -> None:
        values = group.values
        if not values[view.pred] or group.rank & shared:
            # The first of the CTAs that share a block loads it for all.
            return
        group.fibers.pause()
        desc: Descriptor = values[view.desc]
        buffer: LdsView = values[view.result]
        coord, offsets = ([group.scalar(x) for x in xs] for xs in (view.coord, view.offsets))
        _shift(coord, bases, group.rank, buffer.shape)
        addresses, inside = _block(op, desc, buffer, coord, offsets)
        found = _read(op, group, desc, addresses, inside)
        for rank in ranks_of(group.rank, shared):
            owner, target = group, buffer
            if group.cluster is not None:
                owner = group.cluster.groups[rank]
                target = group.cluster.twin(buffer, group.rank, rank)
            barrier = barrier_of(op, group, values[view.barrier], rank & leads)
            group.check_refill(op, target)
            races_of(group).check_fence(op, target, writes=True)
            start_load(op, owner, target, found, barrier)

    return step


def _read(
    op: Operation, group: Workgroup, desc: Descriptor, addresses: Array, inside: Array
) -> Array:
    found = group.load(op, desc.element, addresses, inside)
    return np.where(inside, found, np.nan).astype(found.dtype) if desc.fills_nan else found


def _gather(op: Operation, context: Context) -> Step:
    view = tma.AsyncTmaGatherOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        values = group.values
        if not values[view.pred]:
            return
        group.fibers.pause()
        desc, buffer = values[view.desc], values[view.result]
        addresses, inside = _rows(op, group, desc, buffer, view.x_offsets, view.y_offset)
        found = _read(op, group, desc, addresses, inside)
        barrier = barrier_of(op, group, values[view.barrier])
        group.check_refill(op, buffer)
        races_of(group).check_fence(op, buffer, writes=True)
        start_load(op, group, buffer, found, barrier)

    return step


def _rows(
    op: Operation, group: Workgroup, desc: Descriptor, buffer: LdsView, rows: Value, start: Value
) -> tuple[Array, Array]:
    """Addresses of gathered or scattered rows, and which of their elements are inside.

    Raises:
        EmulationError: The descriptor has no rows.
    """
    if not isinstance(desc, Tiled):
        raise fault(op, "the TMA unit gathers and scatters through tiled descriptors only")
    try:
        return desc.rows(group.values[rows], group.scalar(start), buffer.shape[-1])
    except ValueError as error:
        raise fault(op, f"the TMA unit cannot do this: {error}") from error


def ranks_of(rank: int, shared: int) -> list[int]:
    """The CTAs that differ from one in some of these bits, itself in front."""
    found = [rank]
    for bit in range(shared.bit_length()):
        if shared >> bit & 1:
            found += [each | 1 << bit for each in found]
    return found


def _shift(
    coord: list[int], bases: Sequence[Sequence[int]], rank: int, shape: Sequence[int]
) -> None:
    """Moves a block's start to a CTA's share, as Triton's lowering of the copies does.

    The dimensions of an im2col block are w and the channels, the last two coordinates.
    """
    for bit, basis in enumerate(bases):
        if rank >> bit & 1:
            for dim, step in enumerate(basis):
                coord[dim - len(basis)] += step * shape[dim]


def start_load(
    op: Operation, group: Workgroup, buffer: LdsView, found: Array, barrier: Mbarrier
) -> None:
    """Puts a load into flight: the buffer is poison until it lands."""
    buffer.data[...] = buffer.element.poison()
    buffer.filling[...] += 1
    place = (op, buffer)
    group.copies.append(place)
    races = races_of(group)

    def land() -> None:
        group.copies.remove(place)
        buffer.filling[...] -= 1
        buffer.data[...] = np.reshape(found, buffer.data.shape)
        races.note_write(barrier.agent, op, buffer, is_async=True)

    size = buffer.data.size * buffer.element.size_bytes
    barrier.launch(op, group, land, size_bytes=size)


# ---- stores


@dataclass(slots=True, eq=False)
class _Store:
    """A store that was issued.

    Attributes:
        op: The operation.
        read: Reads shared memory; returns a function that writes global memory.
        flights: All that is in flight.
        write: That function, once shared memory was read.
        is_done: Whether global memory was written.
    """

    op: Operation
    read: Callable[[], Callable[[], None]]
    flights: list[Flight]
    write: Callable[[], None] | None = None
    is_done: bool = False

    def complete(self) -> None:
        """Reads shared memory, or writes global memory where that was done."""
        if self.write is None:
            self.write = self.read()
        elif not self.is_done:
            self.write()
            self.is_done = True
            self.flights.remove(self)


class _Stores:
    """The stores of one part of a kernel, oldest first; each is a bulk group of its own."""

    def __init__(self) -> None:
        self.flying: list[_Store] = []

    @classmethod
    def of(cls, group: Workgroup) -> _Stores:
        """Those of the part that runs."""
        found = group.own.get(cls)
        if not isinstance(found, cls):
            found = group.own[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def wait(self, pendings: int, *, read_only: bool) -> None:
        """Lets all but the last ones read shared memory, and write global memory."""
        for store in self.flying[: max(0, len(self.flying) - pendings)]:
            if store.write is None:
                store.complete()
            if not read_only:
                store.complete()
                self.flying.remove(store)

    def check_end(self, kernel: Operation) -> None:
        """Lets stores land that have read shared memory.

        Raises:
            EmulationError: The kernel ends while one may still read it.
        """
        for store in self.flying:
            if store.write is None:
                raise fault(
                    store.op,
                    "the kernel ends while this store may still read shared memory",
                    "the shared memory of a CTA that ended is given to another one: wait for 0 "
                    "stores at the end",
                )
        self.wait(0, read_only=False)


def _store(op: Operation, context: Context) -> Step:
    view = tma.AsyncTmaCopyLocalToGlobalOp.match(op)
    assert view is not None
    bases = cga_bases(context.type_of(view.src))

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        desc: Descriptor = values[view.desc]
        buffer: LdsView = values[view.src]
        coord = [group.scalar(x) for x in view.coord]
        _shift(coord, bases, group.rank, buffer.shape)
        addresses, inside = _block(op, desc, buffer, coord, [])
        _issue_store(op, group, desc, buffer, (addresses, inside))

    return step


def _issue_store(
    op: Operation,
    group: Workgroup,
    desc: Descriptor,
    buffer: LdsView,
    place: tuple[Array, Array],
    combine: Callable[[Array, Array], Array] | None = None,
) -> None:
    check_async_read(op, group, buffer)
    store = _start_store(op, group, desc, buffer, *place, combine)
    _Stores.of(group).flying.append(store)
    group.fibers.flights.append(store)


def _scatter(op: Operation, context: Context) -> Step:
    view = tma.AsyncTmaScatterOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        desc, buffer = group.values[view.desc], group.values[view.src]
        place = _rows(op, group, desc, buffer, view.x_offsets, view.y_offset)
        _issue_store(op, group, desc, buffer, place)

    return step


#: Reductions by their names; ``inc`` and ``dec`` of the TMA unit are none of Triton's.
_REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduce(op: Operation, context: Context) -> Step:
    view = tma.AsyncTmaReduceOp.match(op)
    assert view is not None
    combine = _REDUCTIONS.get(view.kind)
    if combine is None:
        raise fault(op, f"the emulator does not support the reduction '{view.kind}'")

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        desc, buffer = group.values[view.desc], group.values[view.src]
        coord = [group.scalar(x) for x in view.coord]
        place = _block(op, desc, buffer, coord, [])
        _issue_store(op, group, desc, buffer, place, combine)

    return step


def _start_store(
    op: Operation,
    group: Workgroup,
    desc: Descriptor,
    buffer: LdsView,
    addresses: Array,
    inside: Array,
    combine: Callable[[Array, Array], Array] | None,
) -> _Store:
    """Puts a store into flight: its destination is poison until it lands.

    A reduction combines with what is there, which other ones may change meanwhile.
    """
    memory, element = group.memory, desc.element
    try:
        memory.mark(element, addresses, inside, 1)
    except OutOfBoundsError as error:
        raise fault(op, f"writes outside of global memory: {error}") from error
    if combine is None:
        poison = np.full(addresses.shape, element.poison(), element.dtype)
        memory.write(element, addresses, inside, poison)
    buffer.draining[...] += 1
    place = (op, buffer)
    group.copies.append(place)

    def read() -> Callable[[], None]:
        group.copies.remove(place)
        buffer.draining[...] -= 1
        races_of(group).note_read(agent_of(group), op, buffer)
        found = buffer.contents().copy()

        def write() -> None:
            new = found
            if combine is not None:
                old, _ = memory.read(element, addresses, inside)
                new = element.rounded(combine(old, found))
            memory.write(element, addresses, inside, new)
            memory.mark(element, addresses, inside, -1)

        return write

    return _Store(op, read, group.fibers.flights)


def _store_wait(op: Operation, context: Context) -> Step:
    view = tma.TmaStoreWaitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        _Stores.of(group).wait(view.pendings, read_only=view.read_only)

    return step


COPIES: dict[str, Prepare] = {
    tma.AsyncTmaCopyGlobalToLocalOp.NAME: _load,
    tma.AsyncTmaCopyLocalToGlobalOp.NAME: _store,
    tma.AsyncTmaGatherOp.NAME: _gather,
    tma.AsyncTmaScatterOp.NAME: _scatter,
    tma.AsyncTmaReduceOp.NAME: _reduce,
    tma.TmaStoreWaitOp.NAME: _store_wait,
}
