"""Counts the instructions that one wave issues for an asynchronous operation.

A wait leaves the newest n instructions of a counter in flight, so it retires an operation only if
at least n instructions of the same queue were really issued after it.  Counts are therefore
intervals: ``lo`` is certainly issued on every path and by every wave, ``hi`` is the most that can
be outstanding.  Errors are in the safe direction only: a wrong ``lo`` is too low.

Rules of a copy by address.  ``layout`` maps registers, lanes and waves of the global side to
offsets in the buffer, without padding; ``b`` is the element width in bits.

1. ``c0 = min(128 / b, elements per thread in the fastest dimension, proven contiguity)``.
2. With a mask, ``c1 = min(c0, elements over which it is constant in its fastest dimension)``.
3. ``c2 = max(c1, contiguity attribute)``: the attribute overrules the analysis.
4. ``c = min(c2, consecutive run of layout, smallest padding interval)``.
5. Registers that repeat another one are not copied: ``n = max(1, registers / c)``.
6. A vector of ``c * b`` bits is one instruction; one of more than 128 bits several, and a store of
   16 bits two of 8.
7. Waves that hold the same elements as others may issue nothing: ``lo = 0``.
8. If the host puts a masked copy behind a branch, a fully masked wave skips it: ``lo = 0``.  This
   applies to copies by pointers on gfx942 and gfx950, and on gfx1250 as in :class:`Lowering`.
   Buffer copies are masked by an out-of-range offset instead, unless masked elements get a value
   (``other``): then they are in the other arm of the branch that stores it.
9. If CTAs of a cluster hold the same elements, one of them stores for all and the others branch
   around the store: ``lo = 0``.  Loads and TDM operations are issued by each CTA.

Rules of the tensor data mover (TDM), which ignores masks of lanes and waves:

10. A load or store is one instruction, as is a fused load.
11. A load into pieces, ``L = partitions * groups``: ``ceil(L / gcd(waves, L))``.
12. A gather or scatter instruction takes up to 8 rows with 32-bit or 16 with 16-bit indices, from
    contiguous registers: ``ceil(index registers of a thread / rows)``, without repeated registers.
    Some hosts do not check contiguity (:class:`Lowering`).

If an analysis meets an unknown operation, the host may have proven more: ``lo`` is then the count
for the largest vector that rules 1 and 4 allow, ``hi`` the count for what is proven here.

Precondition: the module is canonical, as Triton's own passes leave it.  The host inlines and
canonicalizes before it lowers a copy; what it can prove then, beyond the identities of
:mod:`triton_ext.analysis.axis_info`, is not bounded from above.

Encodings that this package does not know are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

from triton_ext.analysis import consecutive_run, register_to_shared
from triton_ext.analysis.axis_info.layout import order_and_run
from triton_ext.analysis.warps import num_warps_of
from triton_ext.errors import VerifyError
from triton_ext.ir import Operation, OpResult, Value, parse_type
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import (
    DistributedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
)
from triton_ext.ir.types import MemDescType, TensorType

from ..dialect import amdg
from .target import Counter, Direction, Lowering, Queue, Target

if TYPE_CHECKING:
    from triton_ext.analysis.axis_info import AxisInfoAnalysis

__all__ = [
    "ISSUING",
    "AsyncIssue",
    "CopyKind",
    "Interval",
    "Proven",
    "copy_instructions",
    "count",
    "tdm_copy_instructions",
    "tdm_rows_instructions",
]

#: Bits per lane that the widest copy instruction moves.
_WIDEST = 128


@dataclass(frozen=True, slots=True)
class Interval:
    """Instructions that one wave issues for one execution of an operation.

    Attributes:
        lo: Instructions that are certainly issued.
        hi: The most that can be outstanding.
    """

    lo: int
    hi: int

    @classmethod
    def exactly(cls, count: int) -> Interval:
        """Returns the interval of one number."""
        return cls(count, count)

    @property
    def is_exact(self) -> bool:
        """Returns whether every wave issues the same number."""
        return self.lo == self.hi

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)


@dataclass(frozen=True, slots=True)
class Proven:
    """A number of elements that this analysis and the host's may determine differently.

    Attributes:
        at_least: Proven here.
        at_most: Upper bound of the host's result; larger if an operation is unknown here.
    """

    at_least: int
    at_most: int

    @classmethod
    def exactly(cls, count: int) -> Proven:
        """Returns a number that both agree on."""
        return cls(count, count)


class CopyKind(Enum):
    """Copies by address; the value is the operation's name."""

    LOAD = "ttg.async_copy_global_to_local"
    BUFFER_LOAD = "amdg.buffer_load_to_local"
    STORE = "amdg.async_copy_local_to_global"


def copy_instructions(
    tensor: TensorType,
    buffer: MemDescType,
    target: Target,
    lowering: Lowering,
    *,
    kind: CopyKind,
    contiguity: Proven,
    mask: Proven | None = None,
    has_other: bool = False,
    hint: int = 1,
) -> Interval:
    """Counts the instructions of a copy by address between global memory and LDS.

    Args:
        tensor: The pointers, or the offsets of a buffer copy; only shape and encoding matter.
        buffer: The LDS side.
        target: The GPU.
        lowering: The host's lowering.
        kind: The kind of copy.
        contiguity: Contiguous elements of the pointers in the fastest dimension; for a buffer
            copy, of offsets and base pointer together.
        mask: Elements over which the mask is constant in the same dimension; ``None`` without mask.
        has_other: Whether masked elements get a value.
        hint: The attribute ``contiguity``.

    Raises:
        VerifyError: An encoding is unknown or does not fit the shape.
    """
    facts = _facts_of(tensor, buffer)
    bits = _bits(buffer)

    def instructions(proven: int, constant: int | None) -> int:
        vector = min(max(1, _WIDEST // bits), facts.per_thread, proven)  # rule 1
        if constant is not None:
            vector = min(vector, constant)  # rule 2
        vector = min(max(vector, hint), facts.run)  # rules 3 and 4
        vector = 1 << (vector.bit_length() - 1)
        return max(1, facts.registers // vector) * _pieces(vector * bits, kind)  # rules 5 and 6

    hi = instructions(contiguity.at_least, None if mask is None else mask.at_least)
    lo = instructions(contiguity.at_most, None if mask is None else mask.at_most)
    if facts.has_redundant_waves:
        return Interval(0, hi)  # rule 7
    if mask is not None and _branches(kind, has_other, target, lowering):
        return Interval(0, hi)  # rule 8
    if kind is CopyKind.STORE and facts.has_redundant_ctas:
        return Interval(0, hi)  # rule 9
    return Interval(lo, hi)


def _branches(kind: CopyKind, has_other: bool, target: Target, lowering: Lowering) -> bool:
    """Returns whether a wave without an active lane skips a masked copy."""
    if kind is CopyKind.BUFFER_LOAD:
        return has_other
    if kind is CopyKind.STORE:
        return lowering.masked_stores_branch
    return target.copy_counter is Counter.VMCNT or lowering.masked_loads_branch


def tdm_copy_instructions(buffer: MemDescType, waves: int) -> Interval:
    """Counts the instructions of a TDM load or store of a whole block.

    Args:
        buffer: The LDS side.
        waves: Number of waves that execute the operation.
    """
    encoding = buffer.encoding
    if not isinstance(encoding, PartitionedSharedEncoding):
        return Interval.exactly(1)  # rule 10
    pieces = encoding.num_pieces
    return Interval.exactly(-(-pieces // gcd(waves, pieces)))  # rule 11


def tdm_rows_instructions(indices: TensorType, lowering: Lowering) -> Interval:
    """Counts the instructions of a TDM gather or scatter.

    Args:
        indices: Row indices, of 16 or 32 bits.
        lowering: The host's lowering.

    Raises:
        VerifyError: The encoding is unknown or does not fit the shape.
    """
    layout = _distributed(indices).to_linear_layout(indices.static_shape)
    distinct = layout.without_zero_bases("register")
    most = 8 if (indices.bit_width or 0) > 16 else 16
    rows = min(most, consecutive_run(distinct, "register", layout.out_dim_names[0]))
    # Rule 12; hosts that do not check contiguity count repeated registers as rows too.
    split = -(-distinct.in_dim_size("register") // rows)
    full = -(-layout.in_dim_size("register") // most)
    if lowering.rows_split_at_runs is None:
        return Interval(min(full, split), max(full, split))
    return Interval.exactly(split if lowering.rows_split_at_runs else full)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopyFacts:
    """Properties of a copy that its two layouts determine.

    Attributes:
        per_thread: Contiguous elements of a thread in the fastest dimension (rule 1).
        run: Contiguous elements on both sides (rule 4).
        registers: Registers with distinct elements (rule 5).
        has_redundant_waves: Whether waves hold the same elements as others (rule 7).
        has_redundant_ctas: Whether CTAs of a cluster do (rule 9).
    """

    per_thread: int
    run: int
    registers: int
    has_redundant_waves: bool
    has_redundant_ctas: bool


@lru_cache(maxsize=256)
def _facts_of(tensor: TensorType, buffer: MemDescType) -> _CopyFacts:
    # Cached: a kernel's copies have few types, and this takes longer than the rest.
    source, shape = _distributed(tensor), tensor.static_shape
    if not isinstance(buffer.encoding, SharedEncoding):
        raise VerifyError(f"expected a buffer with a known encoding, found '{buffer.encoding}'")
    held = source.to_linear_layout(shape)
    layout = register_to_shared(source, buffer.encoding, shape, buffer.full_alloc_shape)
    layout = layout.without_zero_bases("register")
    run = consecutive_run(layout)
    if isinstance(buffer.encoding, PaddedSharedEncoding):
        run = min(run, *(interval for interval, _ in buffer.encoding.interval_padding_pairs))
    return _CopyFacts(
        per_thread=order_and_run(source, shape)[1],
        run=run,
        registers=layout.in_dim_size("register"),
        has_redundant_waves=layout.free_variable_masks().get("warp", 0) != 0,
        has_redundant_ctas=held.free_variable_masks().get("block", 0) != 0,
    )


def _distributed(tensor: TensorType) -> DistributedEncoding:
    if not isinstance(tensor.encoding, DistributedEncoding):
        raise VerifyError(f"expected a tensor with a known encoding, found '{tensor.encoding}'")
    return tensor.encoding


def _bits(buffer: MemDescType) -> int:
    bits = buffer.bit_width
    if bits is None:
        raise VerifyError(f"expected a buffer of numbers, found elements of '{buffer.element}'")
    return bits


def _pieces(width: int, kind: CopyKind) -> int:
    """Counts the instructions for one vector of a width in bits."""
    if kind is CopyKind.STORE and width == 16:
        return 2
    return max(1, width // _WIDEST)


# ---- operations


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncIssue:
    """The instructions of an asynchronous operation, and what they access.

    Attributes:
        op: The operation.
        queue: The queue in which its instructions retire in order.
        direction: Direction of the data.
        instructions: Instructions per wave.
        writes: LDS buffers that it writes.
        reads: LDS buffers that it reads.
        is_masked: Whether it may move less than the whole block, or nothing.
        unknown: Why the number is unknown (then at least 0); empty if it is known.
    """

    op: Operation
    queue: Queue
    direction: Direction
    instructions: Interval
    writes: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()
    is_masked: bool = False
    unknown: str = ""


def count(
    op: Operation, analysis: Callable[[], AxisInfoAnalysis], target: Target, lowering: Lowering
) -> AsyncIssue | None:
    """Returns the instructions of an operation, or ``None`` if it is not asynchronous.

    Operations without LDS traffic (prefetches, descriptor updates) use no counter of a wait.

    Args:
        op: The operation.
        analysis: Returns the axis info of its module; called only for copies by address, because
            it takes longer than the rest.
        target: The GPU.
        lowering: The host's lowering.

    Raises:
        VerifyError: The operation cannot be read.
    """
    if op.name in _COPIES:
        return _count_copy(op, CopyKind(op.name), analysis(), target, lowering)
    return _count_tdm(op, target, lowering) if op.name in ISSUING else None


_COPIES = frozenset(kind.value for kind in CopyKind)
#: Names of the operations that use a counter.
ISSUING = _COPIES | {
    amdg.AsyncTdmCopyGlobalToLocalOp.NAME,
    amdg.AsyncTdmCopyLocalToGlobalOp.NAME,
    amdg.AsyncTdmFusedCopyGlobalToLocalOp.NAME,
    amdg.AsyncTdmGatherOp.NAME,
    amdg.AsyncTdmScatterOp.NAME,
}
#: More than any number of elements or instructions: the host's result is unbounded.
_UNBOUNDED = 1 << 20


def _count_copy(
    op: Operation,
    kind: CopyKind,
    analysis: AxisInfoAnalysis,
    target: Target,
    lowering: Lowering,
) -> AsyncIssue:
    load, buffered = ttg.AsyncCopyGlobalToLocalOp.match(op), amdg.BufferLoadToLocalOp.match(op)
    store = amdg.AsyncCopyLocalToGlobalOp.match(op)
    base: Value | None = None
    other: Value | None = None
    if load is not None:
        place, lds, mask, hint = load.src, load.dst, load.mask, load.contiguity
        other = load.other
    elif buffered is not None:
        place, lds, mask, hint = buffered.offsets, buffered.dst, buffered.mask, buffered.contiguity
        base, other = buffered.ptr, buffered.other
    elif store is not None:
        place, lds, mask, hint = store.dst, store.src, store.mask, store.contiguity
    else:
        raise AssertionError(f"CopyKind lists '{op.name}', which has no view here")

    def instructions() -> Interval:
        if target.waits_count_groups:
            return Interval.exactly(1)
        tensor, buffer = _tensor(op, place), _buffer(op, lds)
        bits = _bits(buffer)
        proven = analysis.pointer_contiguity(place, bits)
        complete = analysis.info(place).complete
        if base is not None:
            # Pointer divisibility is in bytes.
            aligned = analysis.info(base)
            proven = min(proven, max(1, aligned.divisibility[0] * 8 // max(8, bits)))
            complete = complete and aligned.complete
        constant: Proven | None = None
        if mask is not None:
            known = analysis.mask_alignment(mask)
            constant = Proven(known, known if analysis.info(mask).complete else _UNBOUNDED)
        return copy_instructions(
            tensor,
            buffer,
            target,
            lowering,
            kind=kind,
            contiguity=Proven(proven, proven if complete else _UNBOUNDED),
            mask=constant,
            has_other=other is not None,
            hint=hint,
        )

    direction = Direction.STORE if kind is CopyKind.STORE else Direction.LOAD
    number, unknown = _as_far_as_known(instructions)
    return AsyncIssue(
        op=op,
        queue=target.copy_queue(direction),
        direction=direction,
        instructions=number,
        writes=(lds,) if direction is Direction.LOAD else (),
        reads=(lds,) if direction is Direction.STORE else (),
        is_masked=mask is not None,
        unknown=unknown,
    )


def _as_far_as_known(instructions: Callable[[], Interval]) -> tuple[Interval, str]:
    """Returns a number of instructions, or an unbounded one with the reason.

    An unknown type must not stop a compile, and counting none of its instructions is safe.
    """
    try:
        return instructions(), ""
    except VerifyError as error:
        return Interval(0, _UNBOUNDED), error.message


def _count_tdm(op: Operation, target: Target, lowering: Lowering) -> AsyncIssue:
    load = amdg.AsyncTdmCopyGlobalToLocalOp.match(op)
    store = amdg.AsyncTdmCopyLocalToGlobalOp.match(op)
    fused = amdg.AsyncTdmFusedCopyGlobalToLocalOp.match(op)
    gather, scatter = amdg.AsyncTdmGatherOp.match(op), amdg.AsyncTdmScatterOp.match(op)
    rows, copy = gather or scatter, load or store
    if fused is not None:
        lds, is_masked = fused.buffers, any(map(_is_predicated, fused.descs))
        number, unknown = Interval.exactly(1), ""  # rule 10
    elif copy is not None:
        lds, is_masked = (copy.buffer,), copy.pred is not None or _is_predicated(copy.desc)
        buffer = copy.buffer
        number, unknown = _as_far_as_known(
            lambda: tdm_copy_instructions(_buffer(op, buffer), num_warps_of(op))
        )
    elif rows is not None:
        lds, is_masked = (rows.buffer,), rows.pred is not None or _is_predicated(rows.desc)
        indices = rows.row_indices
        number, unknown = _as_far_as_known(
            lambda: tdm_rows_instructions(_tensor(op, indices), lowering)
        )
    else:
        raise AssertionError(f"ISSUING lists '{op.name}', which has no view here")
    is_store = store is not None or scatter is not None
    return AsyncIssue(
        op=op,
        queue=target.tdm_queue,
        direction=Direction.STORE if is_store else Direction.LOAD,
        instructions=number,
        writes=() if is_store else lds,
        reads=lds if is_store else (),
        is_masked=is_masked,
        unknown=unknown,
    )


def _is_predicated(desc: Value) -> bool:
    """Returns whether the last update of a descriptor gave it a predicate (Triton 3.8 on)."""
    while isinstance(desc, OpResult):
        update = amdg.UpdateTensorDescriptorOp.match(desc.owner)
        if update is None:
            return False
        if update.pred is not None:
            return True
        desc = update.desc
    return False


def _tensor(op: Operation, value: Value) -> TensorType:
    type_ = parse_type(value.type, op.module.aliases if op.module is not None else None)
    if not isinstance(type_, TensorType):
        op.fail(f"expected a tensor as '{value.name}', found '{value.type}'")
    return type_


def _buffer(op: Operation, value: Value) -> MemDescType:
    type_ = parse_type(value.type, op.module.aliases if op.module is not None else None)
    if not isinstance(type_, MemDescType):
        op.fail(f"expected a buffer as '{value.name}', found '{value.type}'")
    return type_
