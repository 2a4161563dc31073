"""The buffers of a function and of a module, and their offsets.

A function's buffers are those of its ``ttg.local_alloc`` (*explicit*; several for a partitioned
encoding), the scratch of operations (*scratch*) and, for each call, all of the callee's memory in
one piece (*virtual*): offsets in a function are relative to its memory in the caller.

The memory of a function that returns a buffer belongs to its caller while the result is used.

Guarantees: buffers that are live at the same time never overlap; offsets have the alignment of the
encoding, in called functions too; buffers of one partitioned value never touch the same physical
partition.  Triton's own placement guarantees less: it loses the buffer that a call returns when the
call ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum

from ...errors import ParseError, UnsupportedError, VerifyError
from ...ir import Module, Operation, Value
from ...ir.aliases import AliasTable
from ...ir.dialects import ttg
from ...ir.functions import CALLS, FUNCTIONS, callee_of, symbol_of
from ...ir.integers import read_integer
from ...ir.types import MemDescType
from ..liveness import Liveness, LiveRange
from .placement import Item, Placement, Problem, place
from .scratch import SCRATCH_ALIGNMENT, Scratch
from .sizes import BufferSize, buffer_size, reserved_size
from .sweep import are_many
from .triton_order import offsets_by_rank

#: Pairs of buffers alive at once up to which Triton's order is found, in a few seconds.
_MOST_FOR_TRITON = 200_000

__all__ = [
    "Buffer",
    "BufferKind",
    "FunctionAllocation",
    "ModuleAllocation",
    "allocate",
    "allocated_type",
    "given_alignment",
    "triton_ranks",
    "unknown_scratch",
]

ScratchSize = Callable[[Operation], tuple[int, int] | None]


class BufferKind(Enum):
    """Owner of a buffer.

    Attributes:
        EXPLICIT: The result of a ``ttg.local_alloc``.
        SCRATCH: An operation while it runs; a function for its warps.
        VIRTUAL: A called function.
    """

    EXPLICIT = "explicit"
    SCRATCH = "scratch"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A piece of shared memory.

    Attributes:
        kind: Kind of the owner.
        op: The owner.
        value: The value that it belongs to; ``None`` for scratch and virtual ones.
        index: Its number among those of the value: the partition.
        size: In bytes.
        alignment: Alignment of the offset, in bytes.
        live: Live range.
        offset: In bytes, relative to the function's memory.
    """

    kind: BufferKind
    op: Operation
    value: Value | None = None
    index: int = 0
    size: int
    alignment: int
    live: LiveRange
    offset: int = 0

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAllocation:
    """The memory of one function.

    Attributes:
        function: The function.
        buffers: In the order of their operations.
        total: Bytes that it needs, including called functions.
        lower_bound: No placement of these buffers needs less.
        is_optimal: Whether the total is proven minimal.
        alignment: Alignment of its memory.
    """

    function: Operation
    buffers: tuple[Buffer, ...]
    total: int
    lower_bound: int
    is_optimal: bool
    alignment: int

    def of(self, op: Operation) -> tuple[Buffer, ...]:
        """Returns the buffers of an operation."""
        return tuple(buffer for buffer in self.buffers if buffer.op is op)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAllocation:
    """The memory of a module.

    Attributes:
        functions: The functions with a body, callees before their callers.
        total: Bytes of the kernel that needs most.
        partition_size: Bytes of a physical partition; 0 if the memory is not partitioned.
    """

    functions: Mapping[Operation, FunctionAllocation]
    total: int
    partition_size: int = 0


def allocate(
    module: Module | Operation,
    *,
    partition_size: int = 0,
    scratch: ScratchSize | None = None,
    features: Set[str] | None = None,
    as_triton: bool = False,
) -> ModuleAllocation:
    """Places the buffers of a module.

    Args:
        module: The module.
        partition_size: Bytes of one physical partition; 0 if the memory is not partitioned.
        scratch: Returns size and alignment of the scratch of an operation (or function), or
            ``None`` if unknown; :class:`~.scratch.Scratch` by default.
        features: Capabilities of the host (``triton_ext.host.features``), which decide some of
            these sizes; ``None`` if unknown.
        as_triton: Whether to use that Triton's offsets and sizes, even if they are wrong.

    Raises:
        VerifyError: The size of a type is unknown, or Triton's own placement would not terminate,
            or would compare more than 200,000 pairs of buffers; the error is at the operation.
        UnsupportedError: A scratch size is unknown: run the host's pass first.
    """
    top = module.op if isinstance(module, Module) else module
    return _Allocator(top, partition_size, scratch, features, as_triton).run()


def unknown_scratch(
    module: Module, features: Set[str] | None = None, scratch: ScratchSize | None = None
) -> tuple[Operation, ...]:
    """Returns the operations in functions whose scratch size is unknown.

    Args:
        module: The module.
        features: As for :func:`allocate`.
        scratch: As for :func:`allocate`.
    """
    scratch = scratch or Scratch(module.op, AliasTable.of(module.aliases), features)
    known = {ttg.LocalAllocOp.NAME, *CALLS}
    functions = [op for op in module.walk() if op.name in FUNCTIONS and op.regions]
    return tuple(
        op
        for function in functions
        for op in function.walk()
        if op.name not in known and scratch(op) is None
    )


def allocated_type(op: Operation, aliases: AliasTable) -> MemDescType | None:
    """Returns the type of an allocation; ``None`` if it is not in shared memory.

    Args:
        op: A ``ttg.local_alloc``.
        aliases: The module's type aliases.

    Raises:
        VerifyError: The type cannot be read; the error is at the operation.
    """
    value = op.results[0]
    try:
        type_ = aliases.type(value.type)
    except ParseError as error:
        where = "" if error.filename == value.type else f", in '{error.filename}'"
        raise op.error(
            f"the type of '{value.name}' cannot be read{where}: {error.message}"
        ) from error
    if not isinstance(type_, MemDescType) or type_.in_tensor_memory:
        return None
    return type_


def given_alignment(op: Operation) -> int | None:
    """Returns the alignment attribute of an allocation in bytes, or ``None``.

    Raises:
        VerifyError: It is not a power of two.
    """
    text = op.attributes.get("alignment")
    if text is None:
        return None
    found = read_integer(text)
    if found is None or found < 1 or found & (found - 1):
        op.fail(f"expected a power of two as 'alignment', found {text.strip()}")
    return found


def triton_ranks(function: Operation, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """Returns the order in which Triton considers buffers of one size.

    Values come first, then scratch, then calls; each in program order, enclosing operations before
    nested ones.
    """
    kinds = list(BufferKind)
    places = {op: place for place, op in enumerate(function.walk())}
    return [(kinds.index(buffer.kind), places[buffer.op]) for buffer in buffers]


class _Allocator:
    def __init__(
        self,
        top: Operation,
        partition_size: int,
        scratch: ScratchSize | None,
        features: Set[str] | None,
        as_triton: bool,
    ) -> None:
        self.top = top
        self.as_triton = as_triton
        self.knows_partitions = features is None or "amd-partition-placement" in features
        self.partition_size = partition_size
        module = top.module
        self.aliases = AliasTable.of(module.aliases if module is not None else None)
        self.scratch = scratch or Scratch(top, self.aliases, features)
        self.functions = {
            symbol_of(op): op for op in top.walk() if op.name in FUNCTIONS and op.regions
        }
        self.done: dict[Operation, FunctionAllocation] = {}
        self.called: set[Operation] = set()
        self.open: list[Operation] = []

    def run(self) -> ModuleAllocation:
        for function in self.functions.values():
            self.allocation(function)
        kernels = [done.total for op, done in self.done.items() if op not in self.called]
        return ModuleAllocation(
            functions=self.done,
            total=max(kernels, default=0),
            partition_size=self.partition_size,
        )

    def allocation(self, function: Operation) -> FunctionAllocation:
        found = self.done.get(function)
        if found is None:
            if function in self.open:
                function.fail(f"'{symbol_of(function)}' calls itself: its memory is unbounded")
            self.open.append(function)
            found = self.done[function] = self._function(function)
            self.open.pop()
        return found

    def _function(self, function: Operation) -> FunctionAllocation:
        liveness = Liveness(function)
        buffers: list[Buffer] = []
        for op in liveness.order:
            buffers += self._buffers(op, liveness)
        groups: dict[Operation, int] = {}
        items = []
        counts = Counter(buffer.op for buffer in buffers)
        for buffer in buffers:
            is_partitioned = counts[buffer.op] > 1
            group = groups.setdefault(buffer.op, len(groups)) if is_partitioned else -1
            live = buffer.live
            if self.as_triton and buffer.kind is BufferKind.VIRTUAL:
                # Triton ignores the buffers that a call returns.
                live = liveness.at(buffer.op)
            items.append(Item(buffer.size, live, buffer.alignment, group))
        if self.as_triton:
            placed = self._as_triton(function, buffers, items)
        else:
            # Equally good offsets of Triton are preferred; for very many buffers computing them
            # takes too long.
            theirs = None
            if not are_many(items):
                theirs = self._offsets_of_triton(function, buffers, items)
            placed = place(items, self.partition_size, theirs)
        alignment = max([buffer.alignment for buffer in buffers], default=1)
        if groups or any(self._starts_partition(buffer) for buffer in buffers):
            alignment = max(alignment, self.partition_size)
        return FunctionAllocation(
            function=function,
            buffers=tuple(
                replace(buffer, offset=offset)
                for buffer, offset in zip(buffers, placed.offsets, strict=True)
            ),
            total=placed.total,
            lower_bound=placed.lower_bound,
            is_optimal=placed.is_optimal,
            alignment=alignment,
        )

    def _as_triton(
        self, function: Operation, buffers: Sequence[Buffer], items: Sequence[Item]
    ) -> Placement:
        """Returns Triton's placement."""
        if are_many(items, _MOST_FOR_TRITON):
            function.fail(
                f"expected at most {_MOST_FOR_TRITON:,} pairs of buffers of "
                f"'{symbol_of(function)}' that are live at the same time, found more: Triton's own "
                "placement takes quadratic time and is not computed"
            )
        offsets = self._offsets_of_triton(function, buffers, items)
        if offsets is None:
            function.fail(
                f"Triton's own allocation of the partitioned values of '{symbol_of(function)}' "
                "does not terminate on this release"
            )
        problem = Problem(items, self.partition_size)
        bound, total = problem.lower_bound(), problem.total(offsets)
        return Placement(tuple(offsets), total, bound, total == bound)

    def _offsets_of_triton(
        self, function: Operation, buffers: Sequence[Buffer], items: Sequence[Item]
    ) -> list[int] | None:
        """Returns Triton's offsets; ``None`` if its search does not terminate."""
        return offsets_by_rank(
            items,
            triton_ranks(function, buffers),
            self.partition_size,
            knows_partitions=self.knows_partitions,
        )

    def _starts_partition(self, buffer: Buffer) -> bool:
        return 0 < self.partition_size == buffer.alignment

    def _buffers(self, op: Operation, liveness: Liveness) -> list[Buffer]:
        if op.name == ttg.LocalAllocOp.NAME:
            return self._explicit(op, liveness)
        if op.name in CALLS:
            return self._virtual(op, liveness)
        found = self.scratch(op)
        if found is None:
            raise UnsupportedError(
                f"the shared memory that '{op.name}' needs is not known: it depends on the host's "
                "lowering; run the host's own pass first, whose sizes are used"
            )
        size, alignment = found
        if not size:
            return []
        live = liveness.whole if op is liveness.function else liveness.at(op)
        return [Buffer(kind=BufferKind.SCRATCH, op=op, size=size, alignment=alignment, live=live)]

    def _explicit(self, op: Operation, liveness: Liveness) -> list[Buffer]:
        value = op.results[0]
        type_ = allocated_type(op, self.aliases)
        if type_ is None:
            return []
        try:
            size = self._size(type_)
        except VerifyError as error:
            raise op.error(error.message) from error
        given = given_alignment(op)
        alignment = size.alignment if given is None else given
        live = liveness.of_buffer(value)
        return [
            Buffer(
                kind=BufferKind.EXPLICIT,
                op=op,
                value=value,
                index=index,
                size=size.bytes,
                alignment=alignment,
                live=live,
            )
            for index in range(size.count)
        ]

    def _size(self, type_: MemDescType) -> BufferSize:
        if self.as_triton:
            return reserved_size(type_)
        return buffer_size(type_)

    def _virtual(self, op: Operation, liveness: Liveness) -> list[Buffer]:
        callee = self.functions.get(callee_of(op))
        if callee is None:
            return []
        self.called.add(callee)
        needs = self.allocation(callee)
        if not needs.total:
            return []
        return [
            Buffer(
                kind=BufferKind.VIRTUAL,
                op=op,
                size=needs.total,
                alignment=max(SCRATCH_ALIGNMENT, 1 if self.as_triton else needs.alignment),
                live=liveness.of_call(op),
            )
        ]
