"""Cuts allocations of shared memory into the slots that a kernel tells apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ...ir import Operation, Value
from ...ir.dialects import ttg
from ...ir.types import MemDescType, parse_type
from ..alias_sets import AliasSets
from .program import Root, View, fail

__all__ = [
    "MEMORY_VIEWS",
    "is_memdesc",
    "roots_of",
    "size_bytes",
    "slice_pieces",
    "type_of",
    "whole",
]

#: Views that name the same slots as their source.
SAME: Final = frozenset({"ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret"})
MEMORY_VIEWS: Final = SAME | {"ttg.memdesc_index", "ttg.memdesc_subslice"}


def is_memdesc(value: Value) -> bool:
    """Returns whether a value is a buffer."""
    return value.type.startswith("!ttg.memdesc<")


def type_of(value: Value) -> MemDescType:
    """The type of a buffer.

    Raises:
        NotDecided: It cannot be read.
    """
    owner = value.owner
    op = owner if isinstance(owner, Operation) else owner.parent_op
    module = op.module
    type_ = parse_type(value.type, module.aliases if module is not None else None)
    if not isinstance(type_, MemDescType) or type_.in_tensor_memory:
        fail(op, f"'{value.name}' is not a buffer in shared memory")
    return type_


def size_bytes(value: Value) -> int:
    """The bytes of a buffer."""
    type_ = type_of(value)
    width = type_.element.bit_width or 8
    return math.prod(type_.static_shape) * width // 8


def roots_of(function: Operation, allocations: Sequence[Operation], sets: AliasSets) -> list[Root]:
    """Cuts the allocations of a kernel into slots.

    Raises:
        NotDecided: Views of one do not fit each other.
    """
    views: dict[Value, list[Operation]] = {op.results[0]: [] for op in allocations}
    for op in function.walk():
        if op.name in MEMORY_VIEWS:
            found = sets.alias_set(op.operands[0])
            if not found.is_complete:
                fail(op, "it is not known which buffer this is a part of")
            for allocation in found.allocations:
                if allocation in views:
                    views[allocation].append(op)
    roots: list[Root] = []
    base = 0
    for allocation, ops in views.items():
        size = size_bytes(allocation)
        atoms = 1
        for op in ops:
            if op.name == "ttg.memdesc_index":
                part = size_bytes(op.results[0])
                if size % part:
                    fail(op, "its parts are not equal parts of the allocation")
                atoms = math.lcm(atoms, size // part)
        cuts = _cuts(ops)
        pieces = math.prod(len(each) - 1 for each in cuts)
        roots.append(Root(allocation, base, atoms, pieces, cuts, size))
        base += atoms * pieces
    return roots


def _cuts(ops: Sequence[Operation]) -> tuple[tuple[int, ...], ...]:
    found: list[set[int]] = []
    shape: tuple[int, ...] | None = None
    for op in ops:
        view = ttg.MemDescSubsliceOp.match(op)
        if view is None:
            continue
        source, target = type_of(view.src).static_shape, type_of(view.result).static_shape
        if shape is not None and shape != source:
            fail(op, "slices of buffers of different shapes are not followed")
        if shape is None:
            shape = source
            found = [{0, size} for size in source]
        for dim, (offset, size) in enumerate(zip(view.offsets, target, strict=True)):
            found[dim] |= {offset, offset + size}
    return tuple(tuple(sorted(each)) for each in found)


def slice_pieces(root: Root, op: Operation) -> int:
    """The pieces of an atom that a slice covers."""
    view = ttg.MemDescSubsliceOp.match(op)
    assert view is not None
    target = type_of(view.result).static_shape
    covered = [0]
    for cuts, offset, size in zip(root.cuts, view.offsets, target, strict=True):
        inside = [
            i
            for i, start in enumerate(cuts[:-1])
            if offset <= start and cuts[i + 1] <= offset + size
        ]
        covered = [number * (len(cuts) - 1) + i for number in covered for i in inside]
    return sum(1 << number for number in covered)


def whole(number: int, root: Root) -> View:
    """All of an allocation."""
    return View(number, 0, root.atoms, (1 << root.pieces) - 1)
