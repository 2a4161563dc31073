"""Attributes and errors of the passes that allocate shared memory."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from triton_ext.analysis.allocation import (
    SCRATCH_OPERATIONS,
    Buffer,
    BufferKind,
    FunctionAllocation,
    ModuleAllocation,
    Scratch,
    allocate,
    unknown_scratch,
)
from triton_ext.analysis.memory_effects import is_listed
from triton_ext.errors import NotModelledError, ParseError, VerifyError
from triton_ext.ir import Module, Operation
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.functions import symbol_of
from triton_ext.passes.context import PassContext
from triton_ext.passes.places import error_at, place_of

__all__ = [
    "allocation_of",
    "annotate",
    "check_capacity",
    "check_capacity_option",
    "name_of",
    "remark_capacity",
]

_OFFSET, _SIZE = "allocation.offset", "allocation.size"


def allocation_of(
    module: Module,
    partition_size: int = 0,
    *,
    features: Set[str] | None = None,
    target: str | None = None,
    as_triton: bool = False,
) -> ModuleAllocation:
    """Places the buffers of a module.

    Args:
        module: The module.
        partition_size: Bytes of a physical partition; 0 where memory is not partitioned.
        features: What the host can do; ``None`` if it is not known.
        target: Whose lowering it is, ``"cuda:90"``, ``""`` for no vendor's; by default what the
            module says.
        as_triton: Whether buffers lie where Triton puts them.

    Raises:
        NotModelledError: What an operation or a buffer needs is not known, or not valid here.
    """
    try:
        aliases = AliasTable.of(module.aliases)
        scratch = Scratch(module.op, aliases, features, target, recomputes=True)
        _check_known(module, scratch, features)
        return allocate(
            module,
            partition_size=partition_size,
            scratch=scratch,
            features=features,
            as_triton=as_triton,
        )
    except (ParseError, VerifyError) as error:
        raise NotModelledError.of(error) from error


def _check_known(module: Module, scratch: Scratch, features: Set[str] | None) -> None:
    """Refuses operations whose scratch memory is not known.

    Raises:
        NotModelledError: There is one.
    """
    unknown = unknown_scratch(module, scratch=scratch)
    if unknown:
        errors = [
            error_at(
                op,
                f"the shared memory that '{op.name}' needs while it runs is not known: "
                f"{_why_unknown(op, features)}",
                "--pass-provider=host runs Triton's pass; that of 3.9 and newer leaves the size in "
                f"'{_SIZE}', which is taken from there",
            )
            for op in unknown
        ]
        raise NotModelledError.of(errors[0], *errors[1:])


def _why_unknown(op: Operation, features: Set[str] | None) -> str:
    if not is_listed(op.name):
        return "no Triton that triton-ext supports has this operation"
    if features is None:
        return "Triton's releases differ, and which one compiles the module is not known"
    return "Triton's lowering of it is not known for this GPU or layout"


def annotate(module: Module, allocation: ModuleAllocation) -> None:
    """Writes offsets, sizes of what is not an allocation's, and the module's total.

    As Triton does, attributes of operations without a buffer are left as they are.

    Raises:
        NotModelledError: An ``llvm.func`` needs memory, which Triton's passes give it as well.
    """
    functions = [op for op in module.walk() if op.name == "llvm.func" and op.regions]
    takes = {ttg.LocalAllocOp.NAME, *SCRATCH_OPERATIONS}
    found = [op for function in functions for op in function.walk() if op.name in takes]
    if found:
        raise NotModelledError.of(
            *(
                error_at(
                    op,
                    f"the shared memory that '{op.name}' needs in an llvm.func is given by "
                    "Triton's pass only",
                )
                for op in found
            )
        )
    for function in allocation.functions.values():
        owned: dict[Operation, list[Buffer]] = {}
        for buffer in function.buffers:
            owned.setdefault(buffer.op, []).append(buffer)
        for op, buffers in owned.items():
            _write(op, buffers)
    module.op.set_attribute("ttg.shared", f"{allocation.total} : i32")


def _write(op: Operation, buffers: Sequence[Buffer]) -> None:
    offsets = [f"{buffer.offset} : i32" for buffer in buffers]
    op.set_attribute(_OFFSET, offsets[0] if len(offsets) == 1 else f"[{', '.join(offsets)}]")
    if buffers[0].kind is not BufferKind.EXPLICIT:
        op.set_attribute(_SIZE, f"{buffers[0].size} : i32")


def check_capacity_option(capacity: int) -> None:
    """Refuses what is not a number of bytes as an option ``capacity``.

    Raises:
        ValueError: It is negative.
    """
    if capacity < 0:
        raise ValueError(f"expected a number of bytes as 'capacity', or 0, found {capacity}")


def remark_capacity(
    context: PassContext, allocation: ModuleAllocation, capacity: int, memory: str
) -> None:
    """Makes a remark where :func:`check_capacity` would refuse."""
    found = _overflow(allocation, capacity, memory)
    if found is not None:
        context.remark(found.op, found.message, *found.notes)


def check_capacity(allocation: ModuleAllocation, capacity: int, memory: str) -> None:
    """Refuses a module that needs more than there is.

    Args:
        allocation: The module's.
        capacity: Bytes.
        memory: Whose, ``"LDS of gfx1250"``.

    Raises:
        PassError: It does not fit; the error is at the buffer that ends highest and lists what is
            alive together with it.
    """
    found = _overflow(allocation, capacity, memory)
    if found is not None:
        raise error_at(found.op, found.message, *found.notes)


@dataclass(frozen=True, slots=True)
class _Overflow:
    """More memory than there is: where, how much, and what is alive there."""

    op: Operation
    message: str
    notes: tuple[str, ...]


def _overflow(allocation: ModuleAllocation, capacity: int, memory: str) -> _Overflow | None:
    if allocation.total <= capacity:
        return None
    function = next(f for f in allocation.functions.values() if f.total == allocation.total)
    top = max(function.buffers, key=lambda buffer: (buffer.end, buffer.offset))
    missing = allocation.total - capacity
    notes = [_why(function, capacity)]
    notes += [_note(buffer) for buffer in _alive_with(top, function)]
    return _Overflow(
        top.op,
        f"out of {memory}: '{symbol_of(function.function)}' needs {allocation.total} bytes, there "
        f"are {capacity}, {missing} bytes are missing",
        tuple(notes),
    )


def _why(function: FunctionAllocation, capacity: int) -> str:
    if function.lower_bound > capacity:
        return f"what is alive at once takes {function.lower_bound} bytes, wherever it lies"
    if function.is_optimal:
        return "it would fit but for gaps, and no order of the buffers is without them"
    return "it would fit but for gaps; no better order of the buffers was found"


def _alive_with(top: Buffer, function: FunctionAllocation) -> list[Buffer]:
    """Returns the buffers alive at the point in the life of ``top`` where they need most."""
    together = [buffer for buffer in function.buffers if buffer.live.meets(top.live)]
    points = sorted({max(buffer.live.start, top.live.start) for buffer in together})

    def alive(point: int) -> list[Buffer]:
        return [
            b
            for b in together
            if b.live.start <= point < b.live.end or b.live.regions != top.live.regions
        ]

    best = max(points, key=lambda point: sum(buffer.size for buffer in alive(point)))
    return sorted(alive(best), key=lambda buffer: buffer.offset)


def _note(buffer: Buffer) -> str:
    place = place_of(buffer.op)
    where = f"{place.filename}:{place.line}" if place.line else buffer.op.name
    return f"{buffer.offset} to {buffer.end}: {name_of(buffer)} of {buffer.size} bytes, {where}"


def name_of(buffer: Buffer) -> str:
    """Returns the name of a buffer for messages."""
    if buffer.value is None:
        what = "a call" if buffer.kind is BufferKind.VIRTUAL else f"scratch of '{buffer.op.name}'"
        return what
    return f"'{buffer.value.name}'" + (f" in partition {buffer.index}" if buffer.index else "")
