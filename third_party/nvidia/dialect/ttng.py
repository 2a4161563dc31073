"""Views of ``ttng`` operations and types for the im2col lowering.

Views of all operations are in :mod:`.tma`, :mod:`.mbarrier` and :mod:`.mma`; those here are for
the two forms of one load.  A view wraps an operation without owning it; it is made by ``match``,
which returns ``None`` for every other operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from triton_ext.ir import BlockArgument, Module, Operation, Value
from triton_ext.ir.encodings import SharedEncoding
from triton_ext.ir.types import MemDescType, parse_type

__all__ = [
    "Im2ColLoad",
    "TmaLoad",
    "cga_bases",
    "descriptor_arguments",
    "im2col_descriptor_type",
    "is_descriptor_type",
    "kernel_argument",
    "pixels_per_cta",
]

TILED: Final = "!tt.tensordesc<"
IM2COL: Final = "!ttng.tensordesc_im2col<"


def is_descriptor_type(type_text: str) -> bool:
    """Tells whether a printed type is a tiled or an im2col tensor descriptor."""
    return type_text.startswith((TILED, IM2COL))


def im2col_descriptor_type(tiled: str) -> str:
    """Returns the im2col descriptor type with the block type and layout of a tiled one.

    Both are spelled alike on each host: ``<128x64xf16, #shared>`` from 3.8 on.
    """
    return IM2COL + tiled.removeprefix(TILED)


@dataclass(frozen=True, slots=True)
class TmaLoad:
    """``ttng.async_tma_copy_global_to_local`` with a tiled descriptor of a rank-2 block.

    Attributes:
        op: The operation.
        desc: The descriptor.
        coord: The two indices, outermost first.
        result: The shared-memory buffer that is written.
        barrier: The mbarrier that counts the bytes.
        pred: Whether the copy is issued.
    """

    op: Operation
    desc: Value
    coord: tuple[Value, Value]
    result: Value
    barrier: Value
    pred: Value

    NAME = "ttng.async_tma_copy_global_to_local"

    @classmethod
    def match(cls, op: Operation) -> TmaLoad | None:
        """Returns the view, or ``None`` if ``op`` is something else."""
        if op.name != cls.NAME or len(op.operands) != 6:
            return None
        desc, outer, inner, result, barrier, pred = op.operands
        if not desc.type.startswith(TILED):
            return None
        return cls(op, desc, (outer, inner), result, barrier, pred)


@dataclass(frozen=True, slots=True)
class Im2ColLoad:
    """``ttng.async_tma_copy_global_to_local`` with an im2col descriptor.

    Attributes:
        op: The operation; operands: descriptor, rank coordinates, rank - 2 offsets, buffer,
            mbarrier, predicate.
        desc: The descriptor.
        rank: Rank of the tensor, 3 to 5.
    """

    op: Operation
    desc: Value
    rank: int

    @classmethod
    def match(cls, op: Operation) -> Im2ColLoad | None:
        """Returns the view, or ``None`` if ``op`` is something else."""
        if op.name != TmaLoad.NAME or not op.operands[0].type.startswith(IM2COL):
            return None
        return cls(op, op.operands[0], (len(op.operands) - 2) // 2)


def descriptor_arguments(module: Module) -> tuple[BlockArgument, ...]:
    """Returns the tensor descriptors among the kernel's arguments, in order."""
    for op in module.walk():
        if op.name == "tt.func" and not _is_helper(op):
            arguments = op.regions[0].blocks[0].args
            return tuple(arg for arg in arguments if is_descriptor_type(arg.type))
    return ()


def kernel_argument(desc: Value) -> BlockArgument | None:
    """Returns the kernel argument that a descriptor comes from.

    Followed through captures of ``ttg.warp_specialize``; ``None`` for one that is made, chosen or
    carried inside the kernel, or belongs to a function it calls.
    """
    value = desc
    while isinstance(value, BlockArgument):
        op = value.owner.parent_op
        if op is None:
            return None
        if op.name == "tt.func":
            return None if _is_helper(op) else value
        if op.name != "ttg.warp_specialize":
            return None
        value = op.operands[value.index]
    return None


def _is_helper(func: Operation) -> bool:
    """Tells whether a function is called by the kernel; all others were inlined."""
    return func.attributes.get("noinline") == "true"


def cga_bases(memdesc_type: str, module: Module) -> list[list[int]]:
    """Returns how a shared buffer is split over the CTAs of a cluster.

    Args:
        memdesc_type: Printed type of the buffer.
        module: Where its encoding alias is defined.

    Returns:
        One basis vector (block dimension steps) per power of two of the CTA count; empty for one
        CTA.
    """
    type_ = parse_type(memdesc_type, module.aliases)
    encoding = type_.encoding if isinstance(type_, MemDescType) else None
    return [list(b) for b in encoding.cga_bases] if isinstance(encoding, SharedEncoding) else []


def pixels_per_cta(memdesc_type: str, module: Module) -> int | None:
    """Returns the rows of a shared buffer that one CTA of a cluster holds.

    Args:
        memdesc_type: Printed type of the buffer.
        module: Where its encoding alias is defined.

    Returns:
        The rows; ``None`` for a type that cannot be read.
    """
    type_ = parse_type(memdesc_type, module.aliases)
    rows = type_.shape[0] if isinstance(type_, MemDescType) and type_.shape else None
    if rows is None:
        return None
    return rows >> sum(bool(basis[0]) for basis in cga_bases(memdesc_type, module))
