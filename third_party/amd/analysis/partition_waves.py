"""Reorders the waves of a WMMA encoding, so that neighbours read different operands.

Triton gives neighbouring waves tiles in one row (or column) of the result: they read the same rows
of the left operand (columns of the right one), and conflict in its partition.  If the first basis
of the waves is replaced by its sum with one along the other dimension, waves 0 and 1 differ in
both dimensions, and every wave still has one tile::

    warp = [[0, 1], [1, 0]]      0 1        warp = [[1, 1], [1, 0]]      0 3
                                 2 3                                     2 1

Alternatively each wave gets adjacent tiles, and the registers of neighbours visit common rows in
another order, so that one TDM instruction can fill a piece::

    register = [[0, 1], [0, 2], [1, 0], [4, 0]], warp = [[4, 4], [2, 0]]

Either gives the same tiles to other waves and registers, so an operation is unchanged if the
encodings of *all* its tensors change alike.  The encoding occurs in many types (results, operands,
slices for pointers); the order changes if every operation with the encoding in a type

1. is elementwise, a load, a store, a dot, or makes pointers, and all of its tensors have it, or
   passes on values that all change;
2. moves a tensor between registers and LDS (``ttg.local_load``, ``ttg.local_store``; a
   ``ttg.local_alloc`` of a tensor is split into allocation and store); or
3. is a ``tt.trans`` whose other side does not change by it; or
4. on hosts that lower them for such bases (3.9), is a ``ttg.convert_layout`` that keeps elements in
   their wave if they stayed there before, or one of ``amdg``'s buffer operations.

Other operations (``tt.reduce``, atomics, ...) have no lowering if a basis of the waves moves two
dimensions: Triton 3.8 and 3.9 refuse them, or fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from triton_ext.analysis.linear_layout import conversion
from triton_ext.ir import Module, Operation, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import OpReader, ttg
from triton_ext.ir.encodings import (
    AmdWmmaEncoding,
    DistributedEncoding,
    DotOperandEncoding,
    SliceEncoding,
)
from triton_ext.ir.linear_layout import log2
from triton_ext.ir.types import MemDescType, TensorType

from ..dialect import amdg
from .partition_group import CARRIERS, Trouble

__all__ = ["WaveOrder", "wave_orders"]

_TILE: Final = 16
#: Moves between registers and LDS (point 2).
_MOVES: Final = frozenset({ttg.LocalLoadOp.NAME, ttg.LocalStoreOp.NAME, ttg.LocalAllocOp.NAME})
_DIALECTS: Final = ("arith.", "math.")
#: Point 1.
_PLAIN_NAMES: Final = """
    addptr bitcast broadcast clampf dot elementwise_inline_asm expand_dims extern_elementwise
    fp_to_fp load make_range mulhiui precise_divf precise_sqrt splat store
"""
_PLAIN: Final = frozenset(f"tt.{name}" for name in _PLAIN_NAMES.split())
#: Point 4.
_BUFFERS: Final = frozenset({amdg.BufferLoadOp.NAME, amdg.BufferStoreOp.NAME})


@dataclass(frozen=True, slots=True)
class WaveOrder:
    """Another order of the waves of one encoding.

    Attributes:
        old: The encoding.
        new: The encoding with reordered waves.
        types: The values that change, with their new types.
        renamed: New encodings of tensors, by their old ones.
        filled: ``ttg.local_alloc`` of tensors that change.
        trouble: Why the order cannot change, or ``None``.
    """

    old: AmdWmmaEncoding
    new: AmdWmmaEncoding
    types: Mapping[Value, TensorType]
    renamed: Mapping[DistributedEncoding, DistributedEncoding]
    filled: tuple[Operation, ...]
    trouble: Trouble | None


def wave_orders(
    module: Module, links: Mapping[Value, tuple[Value, ...]], *, lowers_more: bool
) -> Iterator[WaveOrder]:
    """Yields better orders of the waves for the encodings of a module's dots.

    Args:
        module: The module.
        links: Its :func:`~.partition_group.flow_links`.
        lowers_more: Whether the host lowers conversions and buffer operations for such bases.
    """
    types = AliasTable(module.aliases)
    seen: set[AmdWmmaEncoding] = set()
    for op in module.walk():
        if op.name != "tt.dot":
            continue
        type_ = types.type(op.results[0].type)
        encoding = type_.encoding if isinstance(type_, TensorType) else None
        if not isinstance(encoding, AmdWmmaEncoding) or encoding in seen:
            continue
        seen.add(encoding)
        assert isinstance(type_, TensorType)
        for new in (_reordered(encoding), _spread(encoding, type_.static_shape)):
            if new is not None:
                yield _plan(module, types, links, encoding, new, lowers_more)


def _reordered(encoding: AmdWmmaEncoding) -> AmdWmmaEncoding | None:
    """Returns the encoding with a first basis along both dimensions; ``None`` if there is none."""
    if encoding.rank != 2 or not encoding.warp_bases:
        return None
    first, *others = encoding.warp_bases
    moved = [dim for dim, x in enumerate(first) if x]
    if len(moved) != 1:
        return None
    other = next((b for b in others if b[1 - moved[0]] and not b[moved[0]]), None)
    if other is None:
        return None
    both = tuple(x ^ y for x, y in zip(first, other, strict=True))
    return replace(encoding, warp_bases=(both, *others), as_warps=False)


def _spread(encoding: AmdWmmaEncoding, shape: Sequence[int]) -> AmdWmmaEncoding | None:
    """Returns the encoding with adjacent tiles per wave; ``None`` if there is none.

    The first basis of the waves moves by half of both dimensions, the others by the largest smaller
    steps of their dimension.  The registers enumerate the rest, ending with the halves that the
    first basis combines.
    """
    if encoding.rank != 2 or encoding.reg_bases or encoding.instr_shape[:2] != (16, 16):
        return None
    moved = [[dim for dim, x in enumerate(basis) if x] for basis in encoding.warp_bases]
    if not moved or any(len(dims) != 1 for dims in moved):
        return None
    if any(size < 2 * _TILE for size in shape):
        return None
    left = [[1 << bit for bit in range(log2(size // _TILE))] for size in shape]
    halves = [steps.pop() for steps in left]
    warps = [(halves[0], halves[1])]
    for (dim,) in moved[1:]:
        if not left[dim]:
            return None
        step = left[dim].pop()
        warps.append((step, 0) if dim == 0 else (0, step))
    common = 1 - moved[0][0]
    registers = [(0, step) for step in left[1]] + [(step, 0) for step in left[0]]
    registers.append((halves[0], 0) if common == 0 else (0, halves[1]))
    return replace(encoding, warp_bases=tuple(warps), reg_bases=tuple(registers), as_warps=False)


def _plan(
    module: Module,
    types: AliasTable,
    links: Mapping[Value, tuple[Value, ...]],
    old: AmdWmmaEncoding,
    new: AmdWmmaEncoding,
    lowers_more: bool,
) -> WaveOrder:
    changed: dict[Value, TensorType] = {}
    renamed: dict[DistributedEncoding, DistributedEncoding] = {}
    trouble: Trouble | None = None
    for op in module.walk():
        arguments = [arg for region in op.regions for block in region.blocks for arg in block.args]
        for value in (*op.results, *arguments):
            type_ = types.type(value.known_type) if value.known_type is not None else None
            held = type_.encoding if isinstance(type_, TensorType) else None
            if not isinstance(type_, TensorType) or not isinstance(held, DistributedEncoding):
                continue
            wanted = _substituted(held, old, new)
            if wanted is not None:
                changed[value] = replace(type_, encoding=wanted)
                renamed[held] = wanted
                if trouble is None and not _holds_as_much(type_, changed[value]):
                    trouble = Trouble(op, "a tensor of another shape has the same encoding")
    if trouble is not None:
        return WaveOrder(old, new, changed, renamed, (), trouble)
    for op in module.walk():
        reason = _reason_against(op, types, links, changed, lowers_more)
        if reason:
            trouble = Trouble(op, reason)
            break
    filled = [
        op
        for op in module.walk()
        if op.name == ttg.LocalAllocOp.NAME and any(value in changed for value in op.operands)
    ]
    return WaveOrder(old, new, changed, renamed, tuple(filled), trouble)


def _holds_as_much(one: TensorType, two: TensorType) -> bool:
    """Returns whether a thread holds equally many distinct elements in two encodings."""
    return one.encoding == two.encoding or _different(one) == _different(two)


def _different(type_: TensorType) -> int:
    assert isinstance(type_.encoding, DistributedEncoding)
    layout = type_.encoding.to_linear_layout(type_.static_shape)
    return layout.without_zero_bases("register").in_dim_size("register")


def _substituted(
    encoding: DistributedEncoding, old: AmdWmmaEncoding, new: AmdWmmaEncoding
) -> DistributedEncoding | None:
    """Returns the encoding with ``old`` replaced by ``new``; ``None`` if it has no ``old``."""
    if encoding == old:
        return new
    if isinstance(encoding, (DotOperandEncoding, SliceEncoding)):
        parent = encoding.parent
        if isinstance(parent, DistributedEncoding):
            inner = _substituted(parent, old, new)
            return None if inner is None else replace(encoding, parent=inner)
    return None


def _reason_against(
    op: Operation,
    types: AliasTable,
    links: Mapping[Value, tuple[Value, ...]],
    changed: Mapping[Value, TensorType],
    lowers_more: bool,
) -> str:
    """Returns why an operation keeps the order of the waves; empty if it does not."""
    values = [value for value in (*op.operands, *op.results) if value in changed]
    if not values:
        return ""
    if op.name in CARRIERS:
        # The values it passes on are compared one by one, here and at their destination.
        linked = all(value in changed for each in values for value in links.get(each, ()))
        return "" if linked else f"'{op.name}' passes it on in an unknown way"
    if op.name in _MOVES:
        filled = op.name == ttg.LocalAllocOp.NAME and not _is_mutable(op, types)
        return "an immutable buffer is created from its elements" if filled else ""
    tensors = [v for v in (*op.operands, *op.results) if isinstance(types.type(v.type), TensorType)]
    everything_changes = all(value in changed for value in tensors)
    if op.name == "tt.trans" and not everything_changes:
        return _reason_of_transpose(op, types, changed)
    if op.name == ttg.ConvertLayoutOp.NAME and lowers_more:
        return _reason_of_conversion(op, types, changed)
    known = _PLAIN | _BUFFERS if lowers_more else _PLAIN
    if op.name not in known and not op.name.startswith(_DIALECTS):
        return f"Triton cannot lower '{op.name}' for such waves"
    if not everything_changes:
        return f"'{op.name}' also has tensors of other encodings"
    return ""


def _is_mutable(op: Operation, types: AliasTable) -> bool:
    type_ = types.type(op.results[0].type)
    return isinstance(type_, MemDescType) and type_.mutable


def _reason_of_conversion(
    op: Operation, types: AliasTable, changed: Mapping[Value, TensorType]
) -> str:
    values = (op.operands[0], op.results[0])
    now = [types.type(value.type) for value in values]
    then = [changed.get(value, type_) for value, type_ in zip(values, now, strict=True)]
    if _stays_in_wave(*now) and not _stays_in_wave(*then):
        return "elements that stay in their wave in this conversion would leave it"
    return ""


def _stays_in_wave(source: object, target: object) -> bool:
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        return False
    one, two = source.encoding, target.encoding
    if not isinstance(one, DistributedEncoding) or not isinstance(two, DistributedEncoding):
        return False
    layout = conversion(one, two, source.static_shape)
    at = layout.out_dim_names.index("warp")
    return all(
        basis[at] == (1 << bit if name == "warp" else 0)
        for name, bases in layout.bases
        for bit, basis in enumerate(bases)
    )


def _reason_of_transpose(
    op: Operation, types: AliasTable, changed: Mapping[Value, TensorType]
) -> str:
    source, result = (types.type(value.type) for value in (op.operands[0], op.results[0]))
    source, result = changed.get(op.operands[0], source), changed.get(op.results[0], result)
    assert isinstance(source, TensorType)
    assert isinstance(result, TensorType)
    one, two = source.encoding, result.encoding
    if isinstance(one, DistributedEncoding) and isinstance(two, DistributedEncoding):
        order = OpReader(op).integers("order")
        before = one.to_linear_layout(source.static_shape)
        after = two.to_linear_layout(result.static_shape)
        moved = {
            name: tuple(tuple(basis[dim] for dim in order) for basis in bases)
            for name, bases in before.bases
        }
        if moved == dict(after.bases):
            return ""
    return "the transposed tensor would need another encoding"
