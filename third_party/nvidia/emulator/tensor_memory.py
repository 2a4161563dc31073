"""Tensor memory of sm_100: 128 lanes of 32-bit columns (PTX ISA, "Tensor Memory").

A buffer is a block of columns with memory of its own.  A view knows for each element at which byte
it lies, so slices, arrays of buffers and views of another type or layout share the bytes that they
share on the GPU.  Copies and matrix products in flight, and the accesses that
:mod:`triton_ext.emulator.races` compares, are counted for each cell of 32 bits, which is what the
unit accesses.

Loads and stores of registers are complete when they return: Triton waits for each of them
(``tcgen05.wait``).  Where a buffer lies among the 512 columns is not modelled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from triton_ext.emulator.elements import Array, Element
from triton_ext.emulator.faults import at_place, fault
from triton_ext.emulator.operations_ttg import TTG, buffer_name
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import OpReader
from triton_ext.ir.encodings import Encoding

from ..dialect import mma
from .mbarriers import agent_of, races_of

__all__ = ["TENSOR_MEMORY", "VIEWS", "TmemView", "check_alone", "element_places"]

#: Lanes of tensor memory, and bytes of a cell.
_LANES, _CELL_BYTES = 128, 4

#: Owner of cells that products of several parts of a kernel read.
_SEVERAL = -1

#: Which cells of a block: an index of its arrays.
Cells = Any


class _Block:
    """The memory of one buffer.

    Args:
        columns: Its columns.
        op: What allocated it.

    Attributes:
        bytes: The contents.
        flying: For each cell, operations in flight that write it, and those that read it.
        owner: Number of the part of the kernel that started these.
        history: For each cell, its last write and the reads since (:mod:`~.races`).
        flights: The operations in flight, with the views that they access.
    """

    def __init__(self, columns: int, op: Operation) -> None:
        self.columns = columns
        self.op = op
        self.bytes: Array = np.full(_LANES * columns * _CELL_BYTES, 0xA5, np.uint8)
        self.flying: Array = np.zeros((2, _LANES, columns), np.uint8)
        self.owner: Array = np.zeros((_LANES, columns), np.int16)
        self.history: Array = np.zeros((2, _LANES, columns), np.int32)
        self.flights: list[tuple[Operation, TmemView]] = []


@functools.lru_cache(maxsize=256)
def element_places(
    encoding: Encoding, shape: tuple[int, int], size_bytes: int
) -> tuple[Array, Array, int]:
    """Lanes and bytes of the elements of one buffer, and the columns that it takes.

    Args:
        encoding: The layout.
        shape: Sizes of what one CTA holds.
        size_bytes: Size of an element.
    """
    bases: tuple[tuple[int, ...], ...] = getattr(encoding, "cga_bases", ())
    parts = [1 << sum(1 for basis in bases if basis[dim]) for dim in range(2)]
    layout = encoding.to_linear_layout([n * m for n, m in zip(shape, parts, strict=True)])
    lane: Array = np.zeros((1, 1), np.int64)
    byte: Array = np.zeros((1, 1), np.int64)
    numbers = [np.arange(shape[0]).reshape(-1, 1), np.arange(shape[1]).reshape(1, -1)]
    for name in ("row", "col"):
        for bit, basis in enumerate(layout.in_bases(name)):
            for dim, step in enumerate(basis):
                is_set = numbers[dim] & step != 0
                if name == "row":
                    lane = lane + is_set * (1 << bit)
                else:
                    byte = byte + is_set * (size_bytes << bit)
    columns = -(-layout.in_dim_size("col") * size_bytes // _CELL_BYTES)
    return np.broadcast_to(lane, shape), np.broadcast_to(byte, shape), columns


@functools.lru_cache(maxsize=256)
def _cells_of(columns: int, key: tuple[Any, ...]) -> dict[str, Cells]:
    """A place to keep the cells of views with the same layout."""
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class TmemView:
    """A buffer in tensor memory, an array of buffers, or a part of one.

    Attributes:
        element: Type of the elements.
        index: For each element, its first byte in the block.
        name: The buffer's name in the kernel.
        block: The memory.
    """

    element: Element
    index: Array
    name: str
    block: _Block
    _cells: list[Cells] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the view."""
        return tuple(self.index.shape)

    def view(self, key: Any) -> TmemView:
        """A part of the buffer, by basic indexing."""
        return replace(self, index=self.index[key], _cells=[])

    @property
    def cells(self) -> Cells:
        """The cells of the view, as an index of the arrays of its block."""
        if not self._cells:
            index = self.index
            ends = (int(index.flat[0]), int(index.flat[-1]))
            key = (index.shape, index.strides, ends)
            known = _cells_of(self.block.columns, key)
            if "cells" not in known:
                known["cells"] = _cells(index, self.block.columns)
            self._cells.append(known["cells"])
        return self._cells[0]

    def accesses(self, slot: int) -> Array:
        """The accesses that the cells remember: writes (0) or reads (1)."""
        found: Array = self.block.history[slot][self.cells]
        return found

    def remember(self, slot: int, number: int, instead_of: int | None = None) -> None:
        """Makes the cells remember an access; with ``instead_of``, those that hold that one."""
        if instead_of is not None:
            old = self.accesses(slot)
            self.block.history[slot][self.cells] = np.where(old == instead_of, number, old)
        else:
            self.block.history[slot][self.cells] = number

    def twin(self, group: Workgroup) -> TmemView:
        """The buffer of another CTA at the place of this one."""
        block: _Block = group.extensions[_Block][self.block.op]
        return replace(self, block=block)

    # ---- contents

    def read(self) -> Array:
        """The values."""
        raw = self.block.bytes.view(f"u{self.element.size_bytes}")
        return self.element.from_memory(raw[self.index // self.element.size_bytes])

    def write(self, values: Array) -> None:
        """Replaces the values."""
        raw = self.block.bytes.view(f"u{self.element.size_bytes}")
        raw[self.index // self.element.size_bytes] = self.element.to_memory(values)

    # ---- operations in flight

    def start(self, op: Operation, owner: int, *, writes: bool) -> None:
        """Notes an operation in flight that accesses the view."""
        self.block.flights.append((op, self))
        flying, cells = self.block.flying, self.cells
        others = (flying[0][cells] + flying[1][cells] > 0) & (self.block.owner[cells] != owner)
        self.block.owner[cells] = np.where(others, _SEVERAL, owner)
        flying[0 if writes else 1][cells] += 1

    def finish(self, op: Operation, *, writes: bool) -> None:
        """Notes that the operation is complete."""
        self.block.flights.remove((op, self))
        self.block.flying[0 if writes else 1][self.cells] -= 1


def _cells(index: Array, columns: int) -> Cells:
    """The cells of bytes, as slices where they are a rectangle without gaps."""
    numbers = np.unique(index // _CELL_BYTES)
    lanes, cols = np.unique(numbers // columns), np.unique(numbers % columns)
    if lanes.size * cols.size != numbers.size:
        return numbers // columns, numbers % columns
    if all(int(x[-1]) - int(x[0]) == x.size - 1 for x in (lanes, cols)):
        return tuple(slice(int(x[0]), int(x[-1]) + 1) for x in (lanes, cols))
    return np.ix_(lanes, cols)


def check_alone(op: Operation, view: TmemView, does: str, owner: int, *, writes: bool) -> None:
    """Refuses to access a buffer that an operation in flight accesses.

    Args:
        op: The operation.
        view: The buffer.
        does: What it does to the buffer, for the message.
        owner: Number of the part of the kernel that starts the operation, whose earlier ones are
            in order with it; 0 for loads and stores, which are in order with none.
        writes: Whether it writes.

    Raises:
        EmulationError: There is one.
    """
    block, cells = view.block, view.cells
    busy = block.flying[0][cells] > 0
    if writes:
        busy = busy | (block.flying[1][cells] > 0)
    if owner:
        busy = busy & (block.owner[cells] != owner)
    if not busy.any():
        return
    mask: Array = np.zeros((_LANES, block.columns), np.bool_)
    mask[cells] = busy
    notes = [
        at_place("in flight", flight) for flight, other in block.flights if mask[other.cells].any()
    ]
    raise fault(
        op,
        f"{does} '{view.name}' in tensor memory while an operation that accesses it is in flight",
        *dict.fromkeys(notes),
        "commit it to an mbarrier (tcgen05_commit) and wait for that first",
    )


# ---- operations


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the elements of a buffer lie, or of an array of buffers, from its first byte on.

    Attributes:
        lane: Lanes of the elements.
        byte: Bytes of the elements in their lane.
        columns: Columns of all.
    """

    lane: Array
    byte: Array
    columns: int

    @classmethod
    def of(cls, value: Value, context: Context) -> _Layout:
        """The layout of a value's type."""
        encoding, shape = context.type_of(value).encoding, context.shape(value)
        size_bytes = context.element(value).size_bytes
        lane, byte, columns = element_places(encoding, (shape[-2], shape[-1]), size_bytes)
        for count in reversed(shape[:-2]):
            steps: Array = np.arange(count).reshape(-1, *(1,) * byte.ndim)
            byte = byte + steps * (columns * _CELL_BYTES)
            columns *= count
        return cls(np.broadcast_to(lane, byte.shape), byte, columns)

    def place(self, columns: int, start: int = 0) -> Array | None:
        """Bytes of the elements in a block of columns; ``None`` where it is too small."""
        pitch = columns * _CELL_BYTES
        first_lane, first_byte = divmod(start, pitch)
        if (
            int(self.byte.max()) + first_byte >= pitch
            or int(self.lane.max()) + first_lane >= _LANES
        ):
            return None
        return start + self.lane * pitch + self.byte


def _alloc(op: Operation, context: Context) -> Step:
    view = mma.TmemAllocOp.match(op)
    assert view is not None
    element, name = context.element(view.result), buffer_name(op)
    layout = _Layout.of(view.result, context)
    index = layout.place(layout.columns)
    assert index is not None

    def step(group: Workgroup) -> None:
        buffer = TmemView(element, index, name, _Block(layout.columns, op))
        group.extensions.setdefault(_Block, {})[op] = buffer.block
        if view.src is not None:
            _write(op, group, buffer, group.values[view.src])
        group.values[view.result] = buffer
        if view.token is not None:
            group.values[view.token] = None

    return step


def _write(op: Operation, group: Workgroup, buffer: TmemView, values: Array) -> None:
    check_alone(op, buffer, "overwrites", 0, writes=True)
    races, agent = races_of(group), agent_of(group)
    races.check_write(agent, op, buffer)
    races.note_write(agent, op, buffer, is_async=True)
    buffer.write(np.asarray(values))


def _store(op: Operation, context: Context) -> Step:
    view = mma.TmemStoreOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        if group.values[view.pred]:
            _write(op, group, group.values[view.dst], group.values[view.src])
        if view.token is not None:
            group.values[view.token] = None

    return step


def _load(op: Operation, context: Context) -> Step:
    view = mma.TmemLoadOp.match(op)
    assert view is not None
    reduce = _reduction(op)

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        buffer: TmemView = group.values[view.src]
        check_alone(op, buffer, "reads", 0, writes=False)
        races, agent = races_of(group), agent_of(group)
        races.check_read(agent, op, buffer)
        races.note_read(agent, op, buffer)
        group.values[view.result] = found = buffer.read()
        for other in view.others:
            is_token = other.type == "!ttg.async.token"
            group.values[other] = None if is_token else reduce(found)

    return step


def _reduction(op: Operation) -> Callable[[Array], Array]:
    """The reduction of a load along the columns (``redOp``)."""
    reader = OpReader(op)
    is_max = "max" in op.attributes.get("redOp", "")
    skips_nan = (np.fmax if is_max else np.fmin).reduce
    function = (np.maximum if is_max else np.minimum).reduce if reader.flag("NaN") else skips_nan
    takes_size = reader.flag("abs")
    return lambda values: function(np.abs(values) if takes_size else values, axis=-1)


def _subslice(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results
    reader = OpReader(op)
    offset = reader.integer("N") if "N" in op.attributes else reader.integer("offset")
    dim = reader.integer("dim", 1)
    size = context.shape(result)[dim]

    def step(group: Workgroup) -> None:
        key = tuple(
            slice(offset, offset + size) if each == dim else slice(None) for each in range(dim + 1)
        )
        group.values[result] = group.values[source].view(key)

    return step


def _reinterpret(op: Operation, context: Context) -> Step:
    """Another type, shape or layout of the bytes from a buffer's first one on."""
    (source,), (result,) = op.operands, op.results
    if not getattr(context.type_of(source), "in_tensor_memory", False):
        return TTG[op.name](op, context)
    element, layout = context.element(result), _Layout.of(result, context)

    def step(group: Workgroup) -> None:
        buffer: TmemView = group.values[source]
        index = layout.place(buffer.block.columns, int(buffer.index.flat[0]))
        if index is None:
            raise fault(
                op,
                f"a view of {layout.columns} columns does not fit into '{buffer.name}', which has "
                f"{buffer.block.columns}",
            )
        group.values[result] = replace(buffer, element=element, index=index, _cells=[])

    return step


TENSOR_MEMORY: dict[str, Prepare] = {
    mma.TmemAllocOp.NAME: _alloc,
    mma.TmemLoadOp.NAME: _load,
    mma.TmemStoreOp.NAME: _store,
    "ttng.tmem_subslice": _subslice,
}

#: Operations that shared memory has as well.
VIEWS: dict[str, Prepare] = {"ttg.memdesc_reinterpret": _reinterpret}
