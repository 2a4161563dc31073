"""Emulates ``amdg`` TDM operations and their descriptors.

Assumptions about the hardware, where public documents are silent:

* row indices of gathers and scatters are compared unsigned with the number of rows; out-of-bounds
  rows are filled with zeros, or dropped;
* negative offsets address memory before the tensor, as for blocks, and are not out of bounds;
* a copy whose predicate is 0 moves nothing, and waits count it like any other;
* rows that a scatter names twice are written in the order of the indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from triton_ext.emulator.elements import Array, Element, element_of
from triton_ext.emulator.faults import fault
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects.view import OpReader
from triton_ext.ir.types import MemDescType, TensorType

from ..analysis.instruction_count import tdm_copy_instructions, tdm_rows_instructions
from ..analysis.target import Lowering
from ..dialect import amdg
from .by_address import BY_ADDRESS
from .tdm_queue import InFlight, TdmQueue
from .transfer import Transfer

__all__ = ["OPERATIONS", "Descriptor"]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A TDM descriptor.

    Attributes:
        element: Element type.
        address: Address of the position.
        bounds: Sizes from the position on, outermost first.
        strides: In elements.
        pred: Whether copies are executed.
    """

    element: Element
    address: int
    bounds: tuple[int, ...]
    strides: tuple[int, ...]
    pred: bool = True

    def moved(self, offsets: Sequence[int], *, clamp: bool) -> Descriptor:
        """Returns the descriptor at another position; ``clamp`` shrinks the bounds."""
        step = sum(o * s for o, s in zip(offsets, self.strides, strict=True))
        bounds = self.bounds
        if clamp:
            bounds = tuple(max(0, b - o) for b, o in zip(bounds, offsets, strict=True))
        address = self.address + step * self.element.size_bytes
        return replace(self, address=address, bounds=bounds)

    def block(self, shape: Sequence[int]) -> tuple[Array, Array]:
        """Returns the addresses of a block at the position, and which are in bounds."""
        indices = np.indices(tuple(shape), np.int64)
        rank = len(self.bounds)
        # The rank of the buffer may differ from the tensor's by leading dimensions of size 1.
        indices = indices.reshape(len(shape), *shape)[len(shape) - rank :]
        offsets: Array = np.zeros(tuple(shape), np.int64)
        inside = np.full(tuple(shape), self.pred)
        for index, stride, bound in zip(indices, self.strides, self.bounds, strict=True):
            offsets += index * stride
            inside &= index < bound
        return self.address + offsets * self.element.size_bytes, inside

    def rows(self, rows: Array, columns: int) -> tuple[Array, Array]:
        """Returns the addresses of rows at the position, and which are in bounds."""
        numbers = np.asarray(rows).astype(np.int64)[:, None]
        index: Array = np.arange(columns, dtype=np.int64)[None, :]
        inside = (numbers >= 0) & (numbers < self.bounds[0]) & (index < self.bounds[1]) & self.pred
        offsets = numbers * self.strides[0] + index * self.strides[1]
        return self.address + offsets * self.element.size_bytes, inside


# ---- descriptors


def _make_descriptor(op: Operation, context: Context) -> Step:
    reader = OpReader(op)
    base, shape, strides = reader.take(), reader.take_bracket(), reader.take_bracket()
    (result,) = op.results
    element = element_of(context.type_of(result).element)

    def step(group: Workgroup) -> None:
        group.values[result] = Descriptor(
            element,
            group.scalar(base),
            tuple(group.scalar(x) for x in shape),
            tuple(group.scalar(x) for x in strides),
        )

    return step


def _update_descriptor(op: Operation, context: Context) -> Step:
    view = amdg.UpdateTensorDescriptorOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        desc: Descriptor = group.values[view.desc]
        if view.add_offsets:
            offsets = [group.scalar(x) for x in view.add_offsets]
            desc = desc.moved(offsets, clamp=view.clamp_bounds)
        if view.set_bounds:
            desc = replace(desc, bounds=tuple(max(0, group.scalar(x)) for x in view.set_bounds))
        if view.pred is not None:
            desc = replace(desc, pred=group.scalar(view.pred) != 0)
        group.values[view.result] = desc

    return step


# ---- copies


@dataclass(frozen=True, slots=True)
class _Copy:
    """One issued TDM copy.

    Attributes:
        transfer: The data to move.
        pred: Whether the copy is executed.
    """

    transfer: Transfer
    pred: bool

    def start(self, *, is_store: bool) -> Callable[[], None]:
        """Starts the copy and returns a function that completes it."""
        if not self.pred:
            return _nothing
        return self.transfer.start_store() if is_store else self.transfer.start_load()


def _nothing() -> None:
    """Completes a copy that is switched off: does nothing."""


def _issue(copies: list[_Copy], count: int, *, is_store: bool) -> InFlight:
    """Issues copies as one operation of ``count`` instructions."""
    finishes = [copy.start(is_store=is_store) for copy in copies]

    def finish() -> None:
        for each in finishes:
            each()

    first = copies[0].transfer
    entry = InFlight(first.op, count, finish, is_store)
    return TdmQueue.of(first.group).issue(entry)


def _block_copy(op: Operation, context: Context) -> Step:
    is_load = op.name == amdg.AsyncTdmCopyGlobalToLocalOp.NAME
    view: amdg.TdmCopy | None = (
        amdg.AsyncTdmCopyGlobalToLocalOp.match(op)
        if is_load
        else amdg.AsyncTdmCopyLocalToGlobalOp.match(op)
    )
    assert view is not None
    _refuse_barrier(op, view.barrier)
    buffer_type = context.type_of(view.buffer)
    assert isinstance(buffer_type, MemDescType)
    count = tdm_copy_instructions(buffer_type, context.num_warps).hi

    def step(group: Workgroup) -> None:
        desc: Descriptor = group.values[view.desc]
        if view.indices:
            desc = desc.moved([group.scalar(x) for x in view.indices], clamp=True)
        if view.pred is not None:
            desc = replace(desc, pred=bool(group.scalar(view.pred)))
        buffer: LdsView = group.values[view.buffer]
        transfer = Transfer(op, group, desc.element, *desc.block(buffer.shape), buffer)
        entry = _issue([_Copy(transfer, desc.pred)], count, is_store=not is_load)
        if view.token is not None:
            group.values[view.token] = entry

    return step


def _fused_copy(op: Operation, context: Context) -> Step:
    view = amdg.AsyncTdmFusedCopyGlobalToLocalOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        copies = []
        for desc_value, buffer_value in zip(view.descs, view.buffers, strict=True):
            desc: Descriptor = group.values[desc_value]
            buffer: LdsView = group.values[buffer_value]
            transfer = Transfer(op, group, desc.element, *desc.block(buffer.shape), buffer)
            copies.append(_Copy(transfer, desc.pred))
        entry = _issue(copies, 1, is_store=False)
        if view.token is not None:
            group.values[view.token] = entry

    return step


def _rows_copy(op: Operation, context: Context) -> Step:
    is_load = op.name == amdg.AsyncTdmGatherOp.NAME
    view = (amdg.AsyncTdmGatherOp if is_load else amdg.AsyncTdmScatterOp).match(op)
    assert view is not None
    _refuse_barrier(op, view.barrier)
    indices_type = context.type_of(view.row_indices)
    assert isinstance(indices_type, TensorType)
    # The split of the rows over instructions does not change when the last of them is done.
    count = tdm_rows_instructions(indices_type, Lowering(rows_split_at_runs=True)).hi

    def step(group: Workgroup) -> None:
        desc: Descriptor = group.values[view.desc]
        if view.column is not None:
            desc = desc.moved([0, group.scalar(view.column)], clamp=True)
        if view.pred is not None:
            desc = replace(desc, pred=bool(group.scalar(view.pred)))
        buffer: LdsView = group.values[view.buffer]
        rows = desc.rows(group.values[view.row_indices], buffer.shape[-1])
        transfer = Transfer(op, group, desc.element, *rows, buffer)
        entry = _issue([_Copy(transfer, desc.pred)], count, is_store=not is_load)
        if view.token is not None:
            group.values[view.token] = entry

    return step


def _refuse_barrier(op: Operation, barrier: Value | None) -> None:
    if barrier is not None:
        raise fault(
            op,
            f"'{op.name}' arrives at an mbarrier, which the emulator does not model for AMD GPUs",
            "remove the barrier and wait for the copy by number",
        )


def _prefetch(op: Operation, context: Context) -> Step:
    """Does nothing: there are no caches, and no wait covers a prefetch."""
    if op.results:
        raise fault(
            op,
            f"the emulator does not support '{op.name}' with a result",
            "remove 'returnOffsets', an option for Triton's tests",
        )
    return lambda group: None


# ---- waits


def _wait(op: Operation, context: Context) -> Step:
    view = amdg.TdmWaitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        queue = TdmQueue.of(group)
        if view.counts_instructions:
            queue.wait_instructions(view.num)
        elif view.tokens:
            queue.wait_tokens(tuple(group.values.get(token) for token in view.tokens))
        else:
            queue.wait_operations(view.num)
        if view.token is not None:
            group.values[view.token] = None

    return step


OPERATIONS: dict[str, Prepare] = {
    **BY_ADDRESS,
    "tt.make_tensor_descriptor": _make_descriptor,
    amdg.UpdateTensorDescriptorOp.NAME: _update_descriptor,
    amdg.AsyncTdmCopyGlobalToLocalOp.NAME: _block_copy,
    amdg.AsyncTdmCopyLocalToGlobalOp.NAME: _block_copy,
    amdg.AsyncTdmFusedCopyGlobalToLocalOp.NAME: _fused_copy,
    amdg.AsyncTdmGatherOp.NAME: _rows_copy,
    amdg.AsyncTdmScatterOp.NAME: _rows_copy,
    "amdg.tdm_prefetch": _prefetch,
    amdg.TdmWaitOp.NAME: _wait,
    amdg.TdmWaitOp.INTRINSIC: _wait,
}
