"""``triton-ext-align-partitioned-shared``: partitioned values get places that Triton can keep.

Triton's own allocation is wrong about some ``#ttg.partitioned_shared`` values, and nothing can run
between it and the lowering that reads it.  But it heeds the alignment of a buffer, so a buffer
that is aligned to more lies where it has to::

    %0 = ttg.local_alloc {alignment = 65536 : i32} : () -> !ttg.memdesc<3x512x32xf16, #p, ..>

* The buffers of a padded value may be reserved too small: what lies behind one is overwritten.
  With every buffer on a multiple of 128, as scratch memory always is, nothing lies in the bytes
  that are missing; and LDS is given out in larger units (LLVM's AMDGPU user guide, "LDS size").
* A host without ``amd-partition-placement`` never ends for some values that are alive at once.
  For values at the start of a physical partition it does: those are aligned with which the host
  needs least.
* A function with such values that is called starts anywhere, so that two buffers of one value may
  meet in a partition: the mark that keeps it from being inlined is taken away.

What the host gets right is not touched, and no encoding is.  Safe direction: what no alignment
mends is an error; a module whose memory is not known is aligned as a whole.
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

# Of scratch memory and called functions, in every release.
_SCRATCH_ALIGNMENT: Final = 128
# Values of which every subset is tried.
_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class AlignPartitionedShared(Pass):
    """Aligns the buffers that Triton would put somewhere wrong.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default what the module's ``ttg.target`` says.
    """

    name: ClassVar[str] = "triton-ext-align-partitioned-shared"

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch:
            check_arch(self.arch)

    def run(self, module: Module, context: PassContext) -> None:
        """Writes alignments to the buffers of ``module``.

        Raises:
            PassError: No alignment makes the host's allocation right.
            VerifyError: A buffer has no size that is known.
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
    """The allocations in LDS, and their types."""
    table = AliasTable.of(module.aliases)
    allocations = [op for op in module.walk() if op.name == ttg.LocalAllocOp.NAME]
    types = [(op, allocated_type(op, table)) for op in allocations]
    return [(op, type_) for op, type_ in types if type_ is not None]


def _align(op: Operation, alignment: int) -> None:
    if (given_alignment(op) or 0) < alignment:
        op.set_attribute("alignment", f"{alignment} : i32")


def _allow_inlining(partitioned: Iterable[Operation], context: PassContext) -> bool:
    """Unmarks functions with partitioned values; whether there are any."""
    functions = dict.fromkeys(_function_of(op) for op in partitioned)
    found = [f for f in functions if f.attributes.get("noinline") == "true"]
    for function in found:
        function.set_attribute("noinline", "false")
        context.remark(function, "inlined: a called function's LDS may start inside of a partition")
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
    """Whether buffers take bytes that the host does not reserve, which alignment keeps free.

    Raises:
        PassError: Alignment does not.
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
                f"which takes {size}: what lies behind it would be overwritten",
                "fewer groups, or more padding in each interval, and nothing is cut off",
            )
        context.remark(
            op, f"buffers are aligned: Triton reserves {reserved} of the {size} bytes of this one"
        )
        found = True
    return found


def _specializes(module: Module) -> bool:
    """Whether warps are handed captures and states in LDS, which are aligned to less."""
    return any(op.name == ttg.WarpSpecializeOp.NAME for op in module.walk())


def _make_it_end(
    module: Module,
    partitioned: Mapping[Operation, MemDescType],
    lds: Lds,
    context: PassContext,
    *,
    is_known: bool,
) -> None:
    """Aligns values so that the host's allocation ends, where it does not by itself.

    Raises:
        PassError: No alignment that was tried makes it end within the LDS.
    """
    if len(partitioned) < 2 and is_known:
        # Values are moved apart only because of others.
        return
    features = context.host_features()
    found = None
    if is_known and not unknown_scratch(module, features):
        # Of a buffer that is not known Triton knows more than we do.
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
                "this release's allocation of LDS does not end for partitioned values that are "
                f"alive together, or needs more than the {lds.bytes} bytes of {lds.arch}",
                f"3.9 and newer know partitions from the start: {function.total} bytes are enough",
                "pip install 'triton>=3.9'",
            )
        for op in chosen:
            _align(op, lds.partition_bytes)
            context.remark(op, "aligned to a partition, so that Triton's allocation ends")


def _choose(
    values: Sequence[Operation], total: Callable[[Sequence[Operation]], float], capacity: int
) -> Sequence[Operation] | None:
    """The values to align; ``None`` where no choice ends within the LDS."""
    if not values or total(()) <= capacity:
        return ()
    most = len(values) if len(values) <= _MOST else 1
    choices = [c for n in range(1, most + 1) for c in itertools.combinations(values, n)]
    best = min([*choices, tuple(values)], key=lambda choice: (total(choice), len(choice)))
    return best if total(best) <= capacity else None


def _total_with(
    function: FunctionAllocation, partitioned: Mapping[Operation, MemDescType], lds: Lds
) -> Callable[[Sequence[Operation]], float]:
    """Tells the bytes that the host needs if it aligns some values; infinite if it never ends."""
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
