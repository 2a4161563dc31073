"""Memory effects of operations: what each one reads, writes, allocates and waits for.

One table serves every analysis.  The rows of ``tt`` and ``ttg`` are here, those of ``ttng`` and
``amdg`` in the vendors' packages (exported as ``memory-effects``).

1. An effect concerns one value: a memory descriptor, a pointer or a tensor descriptor.  Effects of
   nested operations are theirs, not those of the enclosing operation.
2. An operation's own scratch memory is no effect: see :mod:`~triton_ext.analysis.allocation`.
3. Asynchronous operations have their effects where they are issued.  A wait for them sets
   :attr:`Effects.waits`; a wait for an mbarrier is an effect on the mbarrier.
4. :attr:`Effects.barrier` tells which barriers the operation itself is or contains.

Safe direction: an operation without a row may read and write every buffer among its operands, and
is no barrier.  So may one in the generic form whose operands have another order there.  Sources:
the ``.td`` files of Triton 3.9 and ``lib/Analysis/Membar.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import cache
from typing import Final

from .. import backends
from ..ir import Operation, Value
from ..ir.dialects.view import OpReader
from ..ir.integers import read_integer
from .type_text import type_text

__all__ = [
    "AFTER",
    "BEFORE",
    "NO_BARRIER",
    "ORDERS_THREADS",
    "Access",
    "Barrier",
    "BufferUse",
    "Effect",
    "Effects",
    "Kind",
    "Memory",
    "Row",
    "atomic_barrier",
    "effects_of",
    "is_listed",
    "known_names",
    "memory_of",
    "row_of",
]


class Access(Flag):
    """Kinds of access to memory, which may be joined.

    Attributes:
        READ: Read.
        WRITE: Written.
        ALLOCATE: Allocated.
        FREE: No longer used.
        HOLD: Kept alive for an operation in flight that is awaited here.
    """

    READ = auto()
    WRITE = auto()
    ALLOCATE = auto()
    FREE = auto()
    HOLD = auto()


class Memory(Enum):
    """The memory that a value names."""

    SHARED = "shared"
    TENSOR = "tensor"
    GLOBAL = "global"


class Kind(Enum):
    """The ways to access shared memory.

    Attributes:
        GENERIC: By the threads, or in order with them.
        ASYNC: By a unit that needs a proxy fence after writes of threads.
        BARRIER: As an mbarrier.
    """

    GENERIC = "generic"
    ASYNC = "async"
    BARRIER = "barrier"


class Barrier(Flag):
    """Where the threads of a CTA synchronize, with all accesses to shared memory done.

    Attributes:
        BEFORE: Before the operation's own effects.
        AFTER: After them; for an operation that exchanges its result through scratch, in between.
        CLUSTER: The threads of the other CTAs of the cluster synchronize too.
    """

    BEFORE = auto()
    AFTER = auto()
    CLUSTER = auto()


NO_BARRIER: Final = Barrier(0)
BEFORE: Final = Barrier.BEFORE
AFTER: Final = Barrier.AFTER


@dataclass(frozen=True, slots=True)
class BufferUse:
    """The effect of an operation on one of its memory descriptors."""

    access: Access
    kind: Kind = Kind.GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        buffers: Uses of the first memory descriptors among the operands, in printed order.
        others: Use of each further one; ``None`` for no use.
        pointer: Access to the global memory of a pointer or tensor descriptor.
        pointer_at: Which of these it is; ``None`` for all of them.
        result: Access to the memory that the first result names.
        barrier: Where threads synchronize.
        barrier_needs: The feature of hosts with this barrier; empty for all hosts.
        waits: Whether threads wait for their own memory operations in flight.
        relaxed_by: A unit attribute that removes the barrier, or empty.
        is_view: Whether a result names the memory of an operand.
        is_ordered: Whether it keeps its place among accesses to memory, without having one.
        is_reordered: Whether the generic form has the memory descriptors in another order.
        is_opaque: Whether it may do anything to its buffers unless it is marked as ``pure``.
    """

    buffers: tuple[BufferUse, ...] = ()
    others: BufferUse | None = None
    pointer: Access | None = None
    pointer_at: int | None = 0
    result: Access | None = None
    barrier: Barrier | Callable[[Operation], Barrier] = NO_BARRIER
    barrier_needs: str = ""
    waits: bool = False
    relaxed_by: str = ""
    is_view: bool = False
    is_ordered: bool = False
    is_reordered: bool = False
    is_opaque: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an operation on the memory of one value.

    Attributes:
        value: The memory descriptor, pointer or tensor descriptor.
        access: Kinds of access.
        memory: The memory that the value names.
        kind: The way of access.
    """

    value: Value
    access: Access
    memory: Memory
    kind: Kind = Kind.GENERIC

    @property
    def reads(self) -> bool:
        """Returns whether the memory is read."""
        return Access.READ in self.access

    @property
    def writes(self) -> bool:
        """Returns whether the memory is written."""
        return Access.WRITE in self.access


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of one operation.

    Attributes:
        effects: The effects on values.
        barrier: Where threads synchronize, on hosts with this barrier.
        barrier_needs: The feature of hosts with this barrier; empty for all hosts.
        waits: Whether threads wait for their own memory operations in flight.
        relaxed_by: A unit attribute that removes the barrier, or empty.
        is_view: Whether it only creates another view of a buffer.
        is_free: Whether it may move freely among accesses to memory.
        is_known: Whether the operation is in the table, or names no buffer.
    """

    effects: tuple[Effect, ...] = ()
    barrier: Barrier = NO_BARRIER
    barrier_needs: str = ""
    waits: bool = False
    relaxed_by: str = ""
    is_view: bool = False
    is_free: bool = False
    is_known: bool = True

    def barrier_on(self, features: Set[str] | None) -> Barrier:
        """Returns where threads synchronize on a host.

        Args:
            features: Its capabilities (``triton_ext.host.features``); ``None`` for the newest host.
        """
        is_there = not self.barrier_needs or features is None or self.barrier_needs in features
        return self.barrier if is_there else NO_BARRIER

    @property
    def shared(self) -> tuple[Effect, ...]:
        """Returns the effects on shared memory."""
        return tuple(each for each in self.effects if each.memory is Memory.SHARED)


def effects_of(op: Operation) -> Effects:
    """Returns the memory effects of an operation."""
    row = _table().get(op.name)
    if row is None:
        if op.name.startswith(_PURE):
            return _NO_EFFECTS
        return Effects(effects=_anything(op), is_known=_names_no_memory(op))
    if row is _NOTHING:
        return _NO_EFFECTS
    if row.is_opaque:
        is_pure = op.attributes.get("pure", "").strip() == "true"
        return _NO_EFFECTS if is_pure else Effects(effects=_anything(op))
    found = _on_pointers(op, row)
    if row.is_reordered and op.is_quoted:
        found += _anything(op)
    else:
        found += _on_buffers(op, row)
    found += _on_result(op, row)
    barrier = row.barrier if isinstance(row.barrier, Barrier) else row.barrier(op)
    return Effects(
        effects=found,
        barrier=barrier,
        barrier_needs=row.barrier_needs,
        waits=row.waits,
        relaxed_by=row.relaxed_by,
        is_view=row.is_view,
        is_free=not (found or row.barrier or row.waits or row.is_ordered),
    )


def known_names() -> frozenset[str]:
    """Returns the names of the operations in the table."""
    return frozenset(_table())


def row_of(name: str) -> Row | None:
    """Returns the row of an operation name, or ``None``."""
    return _table().get(name)


def is_listed(name: str) -> bool:
    """Returns whether an operation is in the table, or not of one of Triton's dialects.

    An unlisted operation of Triton's dialects may need scratch memory or be asynchronous: analyses
    that depend on either must refuse it by name.
    """
    return name in _table() or name.partition(".")[0] not in _DIALECTS


def memory_of(value: Value) -> Memory | None:
    """Returns the memory that a value names, or ``None``."""
    text = type_text(value)
    if text.startswith("!ttg.memdesc"):
        return Memory.TENSOR if "#ttng.tensor_memory" in text else Memory.SHARED
    if text.startswith(("!tt.ptr", "!tt.tensordesc", "!ttng.tensordesc_im2col")):
        return Memory.GLOBAL
    return Memory.GLOBAL if text.startswith("tensor<") and "x!tt.ptr<" in text else None


# ---- reading rows


def _on_buffers(op: Operation, row: Row) -> tuple[Effect, ...]:
    if not row.buffers and row.others is None:
        return ()
    found = []
    buffers = [(value, memory_of(value)) for value in op.operands]
    named = [(value, memory) for value, memory in buffers if memory in _DESCRIBED]
    for number, (value, memory) in enumerate(named):
        use = row.buffers[number] if number < len(row.buffers) else row.others
        if use is not None and memory is not None:
            found.append(Effect(value, use.access, memory, use.kind))
    return tuple(found)


def _on_pointers(op: Operation, row: Row) -> tuple[Effect, ...]:
    if row.pointer is None:
        return ()
    values = [value for value in op.operands if memory_of(value) is Memory.GLOBAL]
    if row.pointer_at is not None and values:
        values = [values[row.pointer_at]]
    return tuple(Effect(value, row.pointer, Memory.GLOBAL) for value in values)


def _on_result(op: Operation, row: Row) -> tuple[Effect, ...]:
    if row.result is None or not op.results:
        return ()
    memory = memory_of(op.results[0])
    if memory is None:
        return ()
    access = row.result
    if memory in _DESCRIBED and op.operands:
        access |= Access.WRITE  # the allocation starts with the operand's value
    return (Effect(op.results[0], access, memory),)


def _anything(op: Operation) -> tuple[Effect, ...]:
    """Returns reads and writes of every buffer among the operands."""
    found = []
    for value in op.operands:
        memory = memory_of(value)
        if memory is not None and memory in _DESCRIBED:
            found.append(Effect(value, Access.READ | Access.WRITE, memory))
    return tuple(found)


def _names_no_memory(op: Operation) -> bool:
    return not any(memory_of(value) in _DESCRIBED for value in (*op.operands, *op.results))


# ---- barriers


def _barrier(op: Operation) -> Barrier:
    """``ttg.barrier local|global_read``: a barrier if it covers shared memory."""
    spaces = op.attributes.get("addrSpace")
    if spaces is not None:
        # The generic form has a bit mask; the lowest bit is shared memory.
        number = read_integer(spaces)
        is_local = number & 1 == 1 if number is not None else "local" in spaces
    else:
        words = OpReader(op).head.replace("|", " ").split()
        is_local = bool({"local", "all"} & set(words)) or not words
    return BEFORE if is_local else NO_BARRIER


_SEMANTICS: Final = {1: "relaxed", 2: "acquire", 3: "release", 4: "acq_rel"}
_ORDERED: Final = {
    "acquire": AFTER,
    "release": BEFORE,
    "acq_rel": BEFORE | AFTER,
    "relaxed": NO_BARRIER,
}


def atomic_barrier(op: Operation) -> Barrier:
    """Returns the barriers that an atomic operation's memory semantics require.

    Unreadable semantics count as relaxed, which orders nothing.
    """
    raw = op.attributes.get("sem")
    if raw is not None:
        return _ORDERED.get(_SEMANTICS.get(read_integer(raw) or 0, ""), NO_BARRIER)
    for word in OpReader(op).head.replace(",", " ").split():
        if word in _ORDERED:
            return _ORDERED[word]
    return NO_BARRIER


# ---- the table

_DIALECTS: Final = frozenset({"amdg", "tt", "ttg", "ttng"})
_DESCRIBED: Final = frozenset({Memory.SHARED, Memory.TENSOR})
_NOTHING: Final = Row()
_NO_EFFECTS: Final = Effects(is_free=True)
_ORDERED_ROW: Final = Row(is_ordered=True)
#: Dialects whose operations compute values from values.
_PURE: Final = ("arith.", "math.")
_READ: Final = BufferUse(Access.READ)
_WRITE: Final = BufferUse(Access.WRITE)
_BOTH: Final = Access.READ | Access.WRITE
_VIEW: Final = Row(is_view=True)
#: Hosts whose atomic operations and waits for WGMMAs contain barriers.
ORDERS_THREADS: Final = "ordering-barriers"
_ATOMIC: Final = Row(pointer=_BOTH, barrier=atomic_barrier, barrier_needs=ORDERS_THREADS)

#: Operations that access no memory except their scratch.
_NO_MEMORY: Final = (
    *("cf.br", "cf.cond_br", "cf.switch", "func.return", "scf.condition", "scf.yield"),
    *("scf.reduce.return", "ub.poison"),
    *("tt.addptr", "tt.advance", "tt.approx_divf", "tt.bitcast", "tt.broadcast", "tt.cat"),
    *("tt.clampf", "tt.dot", "tt.dot_scaled", "tt.expand_dims", "tt.fp_to_fp", "tt.gather"),
    *("tt.get_num_programs", "tt.get_program_id", "tt.histogram", "tt.int_to_ptr", "tt.join"),
    *("tt.make_range", "tt.make_tensor_descriptor", "tt.make_tensor_ptr", "tt.mulhiui"),
    *("tt.map_elementwise.return", "tt.precise_divf", "tt.precise_sqrt", "tt.ptr_to_int"),
    *("tt.reduce", "tt.reduce.return", "tt.reshape", "tt.return", "tt.scan", "tt.scan.return"),
    *("tt.splat", "tt.split", "tt.trans", "tt.unsplat"),
    *("ttg.convert_layout", "ttg.fp4_to_fp", "ttg.mask.return", "ttg.predicate_stage"),
    *("ttg.warp_id", "ttg.warp_return", "ttg.warp_yield"),
)
#: The same, but they keep their place among accesses to memory.
_NO_MEMORY_IN_ORDER: Final = (
    *("builtin.module", "cf.assert", "func.call", "func.func", "llvm.intr.assume"),
    *("scf.execute_region", "scf.for", "scf.if", "scf.index_switch", "scf.reduce", "scf.while"),
    *("tt.assert", "tt.call", "tt.func", "tt.grid_dependency_launch_dependents"),
    *("tt.grid_dependency_wait", "tt.map_elementwise", "tt.print"),
    *("ttg.async_commit_group", "ttg.mask", "ttg.warp_specialize"),
)

_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(_NO_MEMORY, _NOTHING),
    **dict.fromkeys(_NO_MEMORY_IN_ORDER, _ORDERED_ROW),
    "arith.select": _VIEW,
    "gpu.barrier": Row(barrier=BEFORE),
    # tt
    "tt.atomic_cas": _ATOMIC,
    "tt.atomic_load": _ATOMIC,
    # Whatever its memory order, it ends with a barrier of all threads.
    "tt.atomic_poll": Row(pointer=_BOTH, barrier=AFTER),
    "tt.atomic_rmw": _ATOMIC,
    "tt.atomic_store": Row(
        pointer=Access.WRITE, barrier=atomic_barrier, barrier_needs=ORDERS_THREADS
    ),
    "tt.descriptor_gather": Row(pointer=Access.READ),
    "tt.descriptor_load": Row(pointer=Access.READ),
    "tt.descriptor_reduce": Row(pointer=_BOTH),
    "tt.descriptor_scatter": Row(pointer=_BOTH),
    "tt.descriptor_store": Row(pointer=_BOTH),
    "tt.elementwise_inline_asm": Row(is_opaque=True),
    "tt.extern_elementwise": Row(is_opaque=True),
    "tt.load": Row(pointer=Access.READ),
    "tt.store": Row(pointer=Access.WRITE),
    # ttg
    "ttg.async_copy_global_to_local": Row(buffers=(_WRITE,), pointer=Access.READ),
    "ttg.async_wait": Row(waits=True),
    "ttg.barrier": Row(barrier=_barrier),
    "ttg.global_scratch_alloc": Row(result=Access.ALLOCATE),
    "ttg.inline_asm": Row(is_opaque=True),
    "ttg.local_alloc": Row(result=Access.ALLOCATE),
    "ttg.local_atomic_scatter_rmw": Row(buffers=(BufferUse(_BOTH),)),
    "ttg.local_barrier": Row(barrier=BEFORE),  # its name in Triton 3.6
    "ttg.local_dealloc": Row(buffers=(BufferUse(Access.FREE),)),
    "ttg.local_gather": Row(buffers=(_READ,)),
    "ttg.local_load": Row(buffers=(_READ,)),
    "ttg.local_scatter": Row(buffers=(_WRITE,)),
    "ttg.local_store": Row(buffers=(_WRITE,)),
    "ttg.memdesc_index": _VIEW,
    "ttg.memdesc_reinterpret": _VIEW,
    "ttg.memdesc_reshape": _VIEW,
    "ttg.memdesc_subslice": _VIEW,
    "ttg.memdesc_trans": _VIEW,
    # The warps of the partitions start after those of the default region arrive.
    "ttg.warp_specialize.partitions": Row(barrier=BEFORE),
    # tti
    "tti.experimental_gsan_atomic_cas": _ATOMIC,
    "tti.experimental_gsan_atomic_rmw": _ATOMIC,
}


@cache
def _table() -> Mapping[str, Row]:
    """Returns the rows of the core and of the vendors."""
    table = dict(_ROWS)
    for vendor in backends.VENDORS:
        table.update(backends.load(vendor, "memory-effects"))
    return table
