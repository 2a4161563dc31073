"""``triton-ext-align-partitioned-shared``: aligns partitioned values to get right placements.

Triton's allocation misplaces some ``#ttg.partitioned_shared`` values, and no pass can run between
it and the lowering that reads it.  But it respects the alignment of a buffer, so a larger
alignment moves the buffer to a correct place::

    %0 = ttg.local_alloc {alignment = 65536 : i32} : () -> !ttg.memdesc<3x512x32xf16, #p, ..>

* Triton may reserve too few bytes for the buffers of a padded value, and overwrite the value that
  follows.  If every buffer starts at a multiple of 128, as scratch memory always does, the missing
  bytes stay free.  LDS is allocated in larger units (LLVM's AMDGPU user guide, "LDS size").
* A host without ``amd-partition-placement`` does not terminate for some values with overlapping
  live ranges, but does if they start at a physical partition.  The pass aligns the values with
  which the host needs the least LDS.
* A called function with such values may start anywhere, so two buffers of one value may share a
  partition.  The pass removes the attribute that prevents inlining.

The pass leaves values alone that the host places correctly, and never changes an encoding.  Safe
direction: a placement that no alignment repairs is an error; a module with unknown memory use is
aligned as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from triton_ext.analysis.allocation import (
    FunctionAllocation,
    Item,
    allocate,
    allocated_type,
    buffer_size,
    given_alignment,
    reserved_bytes,
    triton_ranks,
    unknown_scratch,
)
from triton_ext.analysis.allocation.triton_order import offsets_by_rank
from triton_ext.errors import VerifyError
from triton_ext.ir import Module, Operation
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import PartitionedSharedEncoding
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.ir.types import MemDescType
from triton_ext.passes import Pass, PassContext, error_at

from ..analysis.lds import Lds, check_arch

__all__ = ["AlignPartitionedShared"]

# Alignment of scratch memory and of called functions, in every release.
_SCRATCH_ALIGNMENT: Final = 128
# Largest number of values for which every subset is tried.
_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class AlignPartitionedShared(Pass):
    """Aligns the buffers that Triton would misplace.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default that of the module's ``ttg.target``.
    """

    name: ClassVar[str] = "triton-ext-align-partitioned-shared"

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch:
            check_arch(self.arch)

    def run(self, module: Module, context: PassContext) -> None:
        """Adds alignments to the buffers of ``module``.

        Raises:
            PassError: No alignment repairs the host's allocation.
            VerifyError: The size of a buffer is unknown.
        """
        buffers = _buffers(module)
        partitioned = {
            op: type_
            for op, type_ in buffers
            if isinstance(type_.encoding, PartitionedSharedEncoding)
        }
        if not partitioned:
            return
        lds = Lds.of_module(module, self.arch)
        inlined = _allow_inlining(partitioned, context)
        if _is_short(module, partitioned, context):
            for op, _ in buffers:
                _align(op, _SCRATCH_ALIGNMENT)
        features = context.host_features()
        if lds is None or not lds.partition_bytes:
            return
        if features is None or "amd-partition-placement" not in features:
            _make_it_end(module, partitioned, lds, context, is_known=not inlined)


def _buffers(module: Module) -> list[tuple[Operation, MemDescType]]:
    """Returns the allocations in LDS, and their types."""
    table = AliasTable.of(module.aliases)
    allocations = [op for op in module.walk() if op.name == ttg.LocalAllocOp.NAME]
    types = [(op, allocated_type(op, table)) for op in allocations]
    return [(op, type_) for op, type_ in types if type_ is not None]


def _align(op: Operation, alignment: int) -> None:
    if (given_alignment(op) or 0) < alignment:
        op.set_attribute("alignment", f"{alignment} : i32")


def _allow_inlining(partitioned: Iterable[Operation], context: PassContext) -> bool:
    """Removes ``noinline`` from functions with partitioned values; returns whether any had it."""
    functions = dict.fromkeys(_function_of(op) for op in partitioned)
    found = [f for f in functions if f.attributes.get("noinline") == "true"]
    for function in found:
        function.set_attribute("noinline", "false")
        context.remark(function, "inlined: a called function's LDS may start inside a partition")
    return bool(found)


def _function_of(op: Operation) -> Operation:
    while op.name not in FUNCTIONS:
        around = op.parent_op
        if around is None:
            break
        op = around
    return op


def _is_short(
    module: Module, partitioned: Mapping[Operation, MemDescType], context: PassContext
) -> bool:
    """Returns whether buffers use bytes that the host does not reserve, but alignment keeps free.

    Raises:
        PassError: Alignment does not keep them free.
    """
    found = False
    for op, type_ in partitioned.items():
        size, reserved = buffer_size(type_).bytes, reserved_bytes(type_)
        if reserved >= size:
            continue
        if -(-reserved // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT < size or _specializes(module):
            raise error_at(
                op,
                f"Triton reserves {reserved} bytes for each buffer of '{op.results[0].name}', "
                f"which takes {size}: the value after it would be overwritten",
                "use fewer groups, or more padding in each interval",
            )
        context.remark(
            op, f"buffers are aligned: Triton reserves {reserved} of the {size} bytes of this one"
        )
        found = True
    return found


def _specializes(module: Module) -> bool:
    """Returns whether warps get captures and states in LDS, which have smaller alignments."""
    return any(op.name == ttg.WarpSpecializeOp.NAME for op in module.walk())


def _make_it_end(
    module: Module,
    partitioned: Mapping[Operation, MemDescType],
    lds: Lds,
    context: PassContext,
    *,
    is_known: bool,
) -> None:
    """Aligns values so that the host's allocation terminates.

    Raises:
        PassError: No tried alignment makes it terminate within the LDS.
    """
    if len(partitioned) < 2 and is_known:
        # Only several values conflict with each other.
        return
    features = context.host_features()
    found = None
    if is_known and not unknown_scratch(module, features):
        # Triton may know the size of a buffer that is unknown here.
        with suppress(VerifyError):
            found = allocate(module, partition_size=lds.partition_bytes, features=features)
    if found is None:
        for op in partitioned:
            _align(op, lds.partition_bytes)
        return
    for function in found.functions.values():
        values = [op for op in partitioned if _function_of(op) is function.function]
        chosen = _choose(values, _total_with(function, partitioned, lds), lds.bytes)
        if chosen is None:
            raise error_at(
                values[0],
                "this release's allocation of LDS does not terminate for partitioned values with "
                f"overlapping live ranges, or needs more than the {lds.bytes} bytes of {lds.arch}",
                f"3.9 and newer place them correctly, in {function.total} bytes",
                "pip install 'triton>=3.9'",
            )
        for op in chosen:
            _align(op, lds.partition_bytes)
            context.remark(op, "aligned to a partition, so that Triton's allocation terminates")


def _choose(
    values: Sequence[Operation], total: Callable[[Sequence[Operation]], float], capacity: int
) -> Sequence[Operation] | None:
    """Returns the values to align, or ``None`` if no choice fits the LDS."""
    if not values or total(()) <= capacity:
        return ()
    most = len(values) if len(values) <= _MOST else 1
    choices = [c for n in range(1, most + 1) for c in itertools.combinations(values, n)]
    best = min([*choices, tuple(values)], key=lambda choice: (total(choice), len(choice)))
    return best if total(best) <= capacity else None


def _total_with(
    function: FunctionAllocation, partitioned: Mapping[Operation, MemDescType], lds: Lds
) -> Callable[[Sequence[Operation]], float]:
    """Returns a function from aligned values to the host's bytes; infinite if it never ends."""
    groups = {b.op: n for n, b in enumerate(function.buffers) if b.index}
    buffers = function.buffers
    ranks = triton_ranks(function.function, buffers)
    sizes = {op: reserved_bytes(type_) for op, type_ in partitioned.items()}

    def total(aligned: Sequence[Operation]) -> float:
        items = [
            Item(
                sizes.get(buffer.op, buffer.size),
                buffer.live,
                lds.partition_bytes if buffer.op in aligned else buffer.alignment,
                groups.get(buffer.op, -1),
            )
            for buffer in buffers
        ]
        offsets = offsets_by_rank(items, ranks, lds.partition_bytes)
        if offsets is None:
            return math.inf
        return max((at + item.size for at, item in zip(offsets, items, strict=True)), default=0)

    return total
