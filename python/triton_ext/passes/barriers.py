"""Shared by the passes that insert barriers: offsets of buffers, and writing a barrier."""

from __future__ import annotations

from collections.abc import Set

from triton_ext.analysis.allocation import (
    ModuleAllocation,
    Scratch,
    allocate,
    as_written,
    has_offsets,
    unknown_scratch,
)
from triton_ext.analysis.membar import Barriers
from triton_ext.analysis.memory_effects import effects_of
from triton_ext.ir import Builder, Module
from triton_ext.ir.aliases import AliasTable
from triton_ext.passes.shared_memory import allocation_of

__all__ = ["insert_barriers", "placed_buffers"]


def placed_buffers(
    module: Module, features: Set[str] | None, target: str | None = None
) -> ModuleAllocation:
    """Returns where the buffers of a module lie: as its text says, else where Triton puts them.

    Args:
        module: The module.
        features: What the host can do; ``None`` if it is not known.
        target: Whose lowering it is (:func:`~triton_ext.passes.shared_memory.allocation_of`).

    Raises:
        PassError: The scratch of an operation is not known.
        VerifyError: A buffer has no size that is known, or an offset is malformed.
    """
    if "ttg.shared" in module.op.attributes:
        scratch = Scratch(module.op, AliasTable.of(module.aliases), features, target)
        if not unknown_scratch(module, scratch=scratch):
            placed = allocate(module, scratch=scratch, features=features)
            if has_offsets(placed):
                return as_written(placed)
    return allocation_of(module, features=features, target=target, as_triton=True)


def insert_barriers(found: Barriers, features: Set[str] | None) -> int:
    """Writes the barriers that were found, and returns their number.

    Args:
        found: Where they are missing.
        features: What the host can do; ``None`` for the newest that is known.
    """
    is_renamed = features is None or "ttg-barrier" in features
    name = "ttg.barrier local" if is_renamed else "gpu.barrier"
    for op in found.relaxed:
        op.set_attribute(effects_of(op).relaxed_by, "unit")
    for op in found.before:
        Builder.before(op).parse(name)
    for op in found.after:
        Builder.after(op).parse(name)
    return len(found.before) + len(found.after)
