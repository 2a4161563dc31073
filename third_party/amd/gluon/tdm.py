"""TDM copies and waits for Gluon kernels, with the same spelling on every host.

Arguments are checked at the user's line (:mod:`.checks`), because the host would assert, fail in
lowering without a message, or compile to wrong code.

Offsets are in elements, outermost first.  Elements outside of the tensor are loaded as zeros and
not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from triton.experimental.gluon.language import _core as ttgl
from triton.language import core
from triton_ext.host.place import gluon_builtin

from . import checks, hosts
from .arguments import (
    constant,
    describe,
    flag,
    integer,
    integers,
    predicate,
    refuse,
    sequence,
    wave_mask,
)
from .waits import TdmStage

__all__ = [
    "async_gather",
    "async_load",
    "async_load_fused",
    "async_scatter",
    "async_store",
    "async_wait",
    "async_wait_instructions",
    "async_wait_stage",
    "make_tensor_descriptor",
    "update_tensor_descriptor",
    "wmma",
]


#: A number in a kernel: a scalar tensor, or a constant.
Scalar: TypeAlias = "core.tensor | core.constexpr | int"
#: Numbers in a kernel, one per dimension.
Scalars: TypeAlias = "Sequence[Scalar] | core.tuple"
Predicate: TypeAlias = "core.tensor | core.constexpr | bool"


@gluon_builtin
def make_tensor_descriptor(
    base: core.tensor,
    shape: Scalars,
    strides: Scalars,
    block_shape: Sequence[int | core.constexpr],
    layout: Any,
    _semantic: Any = None,
) -> Any:
    """Creates a TDM descriptor of a tensor in global memory.

    Args:
        base: Pointer to the first element.
        shape: Sizes, outermost first, int32.
        strides: In elements; the last one is 1.
        block_shape: Constant shape of the copied blocks, powers of two.
        layout: LDS layout of the blocks: padded, or unswizzled; partitioned for loads (3.8 or
            newer).

    Raises:
        ValueError: At compile time, at the line of the call: the data mover cannot copy the block
            or layout; lists all violations.
        UnsupportedError: The target is not gfx1250, or the host has no partitioned layouts.
    """
    name = "make_tensor_descriptor"
    hosts.check_target(name, _semantic.builder.options)
    block = [constant(name, "block_shape", x) for x in sequence(name, "block_shape", block_shape)]
    layout = core._unwrap_if_constexpr(layout)
    if not isinstance(base, core.tensor) or not isinstance(base.type, core.pointer_type):
        raise TypeError(f"{name}: base must be a pointer, got {describe(base)}")
    sizes = integers(name, "shape", shape)
    steps = integers(name, "strides", strides, 64)
    if not len(sizes) == len(steps) == len(block):
        raise ValueError(
            f"{name}: expected as many sizes, strides and block sizes, got {len(sizes)}, "
            f"{len(steps)} and {len(block)}"
        )
    bits = base.dtype.element_ty.primitive_bitwidth
    found = checks.block_problems(block, bits)
    found += checks.tensor_problems(
        *([x if isinstance(x, int) else None for x in of] for of in (sizes, steps))
    )
    if not found:
        found = _layout_problems(layout, block, bits, "load", _semantic)
    refuse(name, found)
    return hosts.tdm().make_tensor_descriptor(
        base, shape, strides, block, layout, _semantic=_semantic
    )


@gluon_builtin
def update_tensor_descriptor(
    desc: Any,
    add_offsets: Scalars | None = None,
    set_bounds: Scalars | None = None,
    pred: Predicate | None = None,
    clamp_bounds: core.constexpr | bool = False,
    _semantic: Any = None,
) -> Any:
    """Returns a descriptor that is moved, bounded or switched off (Triton 3.8 or newer).

    Args:
        desc: The descriptor.
        add_offsets: Added to the position; the bounds stay where they are.
        set_bounds: New sizes, counted from the position.
        pred: Whether copies through it are executed.
        clamp_bounds: Whether the bounds shrink by ``add_offsets``.

    Raises:
        ValueError: At compile time: a list of the wrong length, nothing to change, or bounds that
            are both set and clamped.
        UnsupportedError: The target is not gfx1250, or the host is older.
    """
    name = "update_tensor_descriptor"
    hosts.check_target(name, _semantic.builder.options)
    hosts.needs_positions(name)
    _check_descriptor(name, desc)
    # A literal None in the kernel arrives as a constexpr.
    add_offsets, set_bounds, pred, clamp_bounds = map(
        core._unwrap_if_constexpr, (add_offsets, set_bounds, pred, clamp_bounds)
    )
    rank = len(desc.block_shape)
    given = False
    for what, numbers in (("add_offsets", add_offsets), ("set_bounds", set_bounds)):
        if numbers is None:
            continue
        given = True
        if (count := len(integers(name, what, numbers))) != rank:
            raise ValueError(f"{name}: {what} has {count} numbers, the descriptor {rank}")
    if not predicate(name, pred) and not given:
        raise ValueError(f"{name}: expected add_offsets, set_bounds or pred, got none of them")
    clamp_bounds = flag(name, "clamp_bounds", clamp_bounds)
    if clamp_bounds and (add_offsets is None or set_bounds is not None):
        raise ValueError(f"{name}: clamp_bounds goes with add_offsets and without set_bounds")
    return hosts.tdm().update_tensor_descriptor(
        desc, add_offsets, set_bounds, pred, clamp_bounds, _semantic=_semantic
    )


@gluon_builtin
def async_load(
    desc: Any,
    offsets: Scalars,
    smem: ttgl.shared_memory_descriptor,
    pred: Predicate | None = None,
    warp_used_hint: core.constexpr | int | None = None,
    _semantic: Any = None,
) -> None:
    """Starts the copy of a block into LDS.

    Args:
        desc: The descriptor.
        offsets: Start of the block, relative to the descriptor's position.
        smem: LDS of the block's shape and layout; must not be read before a wait.
        pred: Whether to execute the copy; a predicated-off copy still counts for waits.
        warp_used_hint: Constant mask of the waves that share the work (3.8 or newer).

    Raises:
        ValueError, TypeError: At compile time, at the line of the call: an illegal argument.
        UnsupportedError: The target is not gfx1250, or the host has no ``warp_used_hint``.
    """
    _check_block("async_load", desc, offsets, smem, "load", _semantic)
    options: dict[str, Any] = {}
    if predicate("async_load", pred):
        options["pred"] = pred
    if core._unwrap_if_constexpr(warp_used_hint) is not None:
        hosts.needs_positions("warp_used_hint of async_load")
        num_warps = _semantic.builder.options.num_warps
        mask = wave_mask("async_load", "warp_used_hint", warp_used_hint, num_warps)
        options["warp_used_hint"] = mask
    hosts.tdm().async_load(desc, offsets, smem, **options, _semantic=_semantic)


@gluon_builtin
def async_load_fused(
    members: Sequence[tuple[Any, ttgl.shared_memory_descriptor, int]],
    _semantic: Any = None,
) -> None:
    """Starts 2 to 4 loads with one instruction (Triton 3.9 or newer).

    Args:
        members: For each load its descriptor, which carries the position, its LDS buffer and the
            mask of the waves that execute it.

    Raises:
        ValueError, TypeError: At compile time, at the line of the call: an illegal argument.
        UnsupportedError: The target is not gfx1250, or the host is older.
    """
    name = "async_load_fused"
    hosts.check_target(name, _semantic.builder.options)
    hosts.require_fused()
    members = [tuple(sequence(name, "members", x)) for x in sequence(name, "members", members)]
    if not 2 <= len(members) <= 4 or any(len(member) != 3 for member in members):
        raise ValueError(
            f"{name}: expected 2 to 4 members (descriptor, shared memory, mask of waves), got "
            f"{len(members)} of {sorted({len(member) for member in members})} parts"
        )
    taken = 0
    for number, (desc, smem, mask) in enumerate(members):
        _check_descriptor(name, desc)
        _check_smem(name, desc, smem)
        what = f"mask of member {number}"
        mask = wave_mask(name, what, mask, _semantic.builder.options.num_warps)
        if mask & taken:
            raise ValueError(f"{name}: {what} is {mask:#x}, it shares waves with an earlier member")
        taken |= mask
    hosts.tdm().async_load_fused(members, _semantic=_semantic)


@gluon_builtin
def async_store(
    desc: Any,
    offsets: Scalars,
    smem: ttgl.shared_memory_descriptor,
    _semantic: Any = None,
) -> None:
    """Starts the copy of a block from LDS.

    Args:
        desc: The descriptor.
        offsets: Start of the block, relative to the descriptor's position.
        smem: LDS of the block's shape and layout; must not be overwritten before a wait.

    Raises:
        ValueError, TypeError: At compile time, at the line of the call: an illegal argument.
        UnsupportedError: The target is not gfx1250.
    """
    _check_block("async_store", desc, offsets, smem, "store", _semantic)
    hosts.tdm().async_store(desc, offsets, smem, _semantic=_semantic)


@gluon_builtin
def async_gather(
    desc: Any,
    rows: core.tensor,
    column: Scalar,
    smem: ttgl.shared_memory_descriptor,
    pred: Predicate | None = None,
    _semantic: Any = None,
) -> None:
    """Starts the copy of rows of a matrix into the rows of an LDS buffer (3.7 or newer).

    Args:
        desc: Descriptor of the matrix.
        rows: Row indices, int16 or int32, one per row of the buffer, in a layout such as
            :func:`index_layout`; out-of-bounds rows are filled with zeros.
        column: First column.
        smem: LDS of the block's shape and layout; must not be read before a wait.
        pred: Whether to execute the copy (3.8 or newer).

    Raises:
        ValueError, TypeError: At compile time, at the line of the call: an illegal argument.
        UnsupportedError: The target is not gfx1250, or the host is older.
    """
    _copy_rows("async_gather", "gather", desc, rows, column, smem, pred, _semantic)


@gluon_builtin
def async_scatter(
    desc: Any,
    rows: core.tensor,
    column: Scalar,
    smem: ttgl.shared_memory_descriptor,
    _semantic: Any = None,
) -> None:
    """Starts the copy of the rows of an LDS buffer to rows of a matrix (3.7 or newer).

    Args:
        desc: Descriptor of the matrix.
        rows: Row indices as for :func:`async_gather`; out-of-bounds rows are dropped.
        column: First column.
        smem: LDS of the block's shape and layout; must not be overwritten before a wait.

    Raises:
        ValueError, TypeError: At compile time, at the line of the call: an illegal argument.
        UnsupportedError: The target is not gfx1250, or the host is older.
    """
    _copy_rows("async_scatter", "scatter", desc, rows, column, smem, None, _semantic)


@gluon_builtin
def async_wait(
    num_ops: core.constexpr | int = 0,
    _semantic: Any = None,
) -> None:
    """Waits until at most the newest ``num_ops`` TDM operations are in flight.

    Raises:
        ValueError: At compile time: not a constant from 0 to 63.
        UnsupportedError: The target is not gfx1250.
    """
    _wait("async_wait", num_ops, _semantic)


@gluon_builtin
def async_wait_stage(
    stage: TdmStage | core.constexpr,
    behind: core.constexpr | int = 0,
    newer: core.constexpr | int = 0,
    _semantic: Any = None,
) -> None:
    """Waits for all operations of a stage.

    Args:
        stage: Constant :class:`TdmStage`, the same for every stage of the pipeline.
        behind: Complete stages issued after the awaited one.
        newer: Further TDM operations issued after it.

    Raises:
        ValueError: At compile time: more instructions in flight than TENSORcnt can count.
        UnsupportedError: The target is not gfx1250.
    """
    name = "async_wait_stage"
    stage = _stage(name, stage)
    number = stage.behind(constant(name, "behind", behind), constant(name, "newer", newer))
    _wait(name, number, _semantic)


@gluon_builtin
def async_wait_instructions(
    count: core.constexpr | int,
    stage: TdmStage | core.constexpr,
    _semantic: Any = None,
) -> None:
    """Waits until at most ``count`` TDM instructions of a wave are in flight.

    Args:
        count: Constant number of instructions.
        stage: Constant :class:`TdmStage` that was issued last, repeatedly.

    Raises:
        ValueError: At compile time: not a constant from 0 to 63.
        UnsupportedError: The target is not gfx1250.
    """
    name = "async_wait_instructions"
    stage = _stage(name, stage)
    _wait(name, stage.within(constant(name, "count", count)), _semantic)


@gluon_builtin
def wmma(
    a: core.tensor,
    b: core.tensor,
    acc: core.tensor,
    _semantic: Any = None,
) -> core.tensor:
    """Computes ``a @ b + acc`` on the matrix cores.

    Args:
        a: [M, K], in the operand layout of ``acc``'s layout.
        b: [K, N], likewise.
        acc: [M, N], in a layout such as :func:`wmma_layout` returns.

    Raises:
        TypeError: At compile time, at the line of the call: an operand is not a matrix.
        UnsupportedError: The target is not gfx1250.
    """
    hosts.check_target("wmma", _semantic.builder.options)
    for what, operand in (("a", a), ("b", b), ("acc", acc)):
        if not isinstance(operand, core.tensor) or len(getattr(operand, "shape", ())) != 2:
            raise TypeError(
                f"wmma: {what}: expected a matrix in registers, got {describe(operand)}"
            )
    return hosts.cdna5().wmma(a, b, acc, _semantic=_semantic)


# ---- shared helpers


def _check_descriptor(name: str, desc: Any) -> None:
    if not isinstance(desc, hosts.tdm().tensor_descriptor):
        raise TypeError(
            f"{name}: expected a TDM descriptor, got {describe(desc)}; "
            "xamd.make_tensor_descriptor makes one"
        )


def _layout_problems(
    layout: Any, block: list[int], bits: int, kind: str, semantic: Any
) -> list[str]:
    if type(layout).__name__ == "PartitionedSharedLayout":
        hosts.require_partitions()
        num_warps = semantic.builder.options.num_warps
        return checks.partition_problems(layout, block, bits, num_warps, kind)
    store = kind in ("store", "scatter")
    found = checks.layout_problems(layout, block, bits, store=store)
    since = hosts.pads_since(kind)
    if type(layout).__name__ == "PaddedSharedLayout" and since:
        found.append(
            f"a {kind} of this Triton does not support padding ({since} or newer does): use an "
            "unswizzled layout"
        )
    return found


def _check_smem(name: str, desc: Any, smem: Any) -> None:
    if not isinstance(smem, ttgl.shared_memory_descriptor):
        raise TypeError(f"{name}: expected shared memory, got {describe(smem)}")
    wanted = ([*map(int, desc.block_shape)], desc.dtype, desc.layout)
    if ([*map(int, smem.shape)], smem.dtype, smem.layout) != wanted:
        raise ValueError(
            f"{name}: the descriptor's block is {wanted[1]}{wanted[0]} in {wanted[2]}, the shared "
            f"memory is {smem.dtype}{list(smem.shape)} in {smem.layout}"
        )


def _check_block(name: str, desc: Any, offsets: Any, smem: Any, kind: str, semantic: Any) -> None:
    hosts.check_target(name, semantic.builder.options)
    _check_descriptor(name, desc)
    rank = len(desc.block_shape)
    count = len(integers(name, "offsets", offsets))
    if count != rank:
        raise ValueError(f"{name}: expected {rank} offsets, outermost first, got {count}")
    _check_smem(name, desc, smem)
    block = [int(size) for size in desc.block_shape]
    bits = desc.dtype.primitive_bitwidth
    refuse(name, _layout_problems(desc.layout, block, bits, kind, semantic))


def _copy_rows(
    name: str, kind: str, desc: Any, rows: Any, column: Any, smem: Any, pred: Any, semantic: Any
) -> None:
    hosts.check_target(name, semantic.builder.options)
    hosts.require_rows()
    _check_descriptor(name, desc)
    _check_smem(name, desc, smem)
    block = [int(size) for size in desc.block_shape]
    bits = desc.dtype.primitive_bitwidth
    found = checks.block_problems(block, bits, of_rows=True)
    found += _layout_problems(desc.layout, block, bits, kind, semantic)
    found += _row_problems(name, rows, block[0], semantic)
    first = core._unwrap_if_constexpr(column)
    found += checks.column_problems(first if isinstance(first, int) else None, bits)
    refuse(name, found)
    integer(name, "column", column)
    copy = getattr(hosts.tdm(), name)
    has_pred = predicate(name, pred)
    if not hosts.has_positions():
        if has_pred:
            hosts.needs_positions(f"pred of {name}")
        copy(desc, rows, column, smem, _semantic=semantic)
        return
    options = {"pred": pred} if has_pred else {}
    moved = hosts.tdm().update_tensor_descriptor(
        desc, add_offsets=[0, column], clamp_bounds=True, **options, _semantic=semantic
    )
    copy(moved, rows, smem, _semantic=semantic)


def _row_problems(name: str, rows: Any, expected: int, semantic: Any) -> list[str]:
    if not isinstance(rows, core.tensor) or not rows.type.is_block():
        raise TypeError(f"{name}: expected a tensor of row indices, got {describe(rows)}")
    shape = [int(core._unwrap_if_constexpr(size)) for size in rows.shape]
    lanes = registers = None
    layout = rows.type.layout
    if type(layout).__name__ == "AutoLayout":
        raise TypeError(
            f"{name}: row indices need an explicit layout: xamd.index_layout(rows, num_warps)"
        )
    if len(shape) == 1:
        linear = core._unwrap_if_constexpr(semantic.to_linear_layout(layout, shape))
        lanes, registers = linear.lane_bases, linear.reg_bases
    found = checks.row_index_problems(shape, str(rows.dtype), expected, lanes, registers)
    if not found and registers is not None and not hosts.splits_rows():
        of_wave = [list(basis) for basis in registers if any(basis)]
        if of_wave != [[1 << bit] for bit in range(len(of_wave))]:
            found.append(
                "this Triton assumes that the rows of a wave are contiguous (3.8 or newer "
                "checks): use xamd.index_layout"
            )
    return found


def _stage(name: str, stage: Any) -> TdmStage:
    stage = core._unwrap_if_constexpr(stage)
    if not isinstance(stage, TdmStage):
        raise TypeError(f"{name}: expected a constant TdmStage, got {describe(stage)}")
    return stage


def _wait(name: str, number: Any, semantic: Any) -> None:
    hosts.check_target(name, semantic.builder.options)
    number = core._unwrap_if_constexpr(number)
    if isinstance(number, core.tensor):
        number = constant(name, "num_ops", number)
    refuse(name, checks.wait_problems(number))
    hosts.tdm().async_wait(number, _semantic=semantic)
