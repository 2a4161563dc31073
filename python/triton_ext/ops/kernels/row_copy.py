"""Copies into the layouts that kernels read: packed rows, rows with zeros around, more channels.

One kernel copies rows of pixels of channels into rows of more pixels of more channels; new elements
are zero.  A pixel of the target may hold several pixels of a column of the source, one below the
other.  Elements are copied as bits, whatever their type.

One launch makes up to two copies, as of x and the weight: its first programs make the one copy, the
others the other.  Partial im2col copies x, the weight and, from the packed one, dw; other kernels
fill up channels that TMA's rows of 16 bytes lack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.plan import TO_LAST

# By the bytes of an element.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_NUM_WARPS = 4
# Elements of a CTA's tile: 8 per thread, 16 bytes of 16-bit types.
_TILE = 1024
_MANY_ELEMENTS = 1 << 21
# The most elements of a target's row: the kernel counts them, its last tile too, in 32 bits.
_MOST_ELEMENTS = (1 << 31) - (1 << 16)


class CopySizes(NamedTuple):
    """Sizes of a copy that the kernel gets at run time.

    The source is [N, D, H, W, C] of any strides, the target [N, D, H', W', C'], packed; sizes in
    elements, pixels and rows.
    """

    rows: int  # N * D * H'
    size: tuple[int, ...]  # (D, H, W)
    target_h: int  # H'
    target_units: int  # elements of a row of the target, in the tile's units
    low: tuple[int, int]  # rows of zeros above, pixels of zeros in front of a row
    step_h: int  # rows of the source from one row of the target to the next
    dilation_h: int  # rows of the source from one pixel of a column to the next
    start: int  # of the first element of the source; strides may be negative
    strides: tuple[int, ...]  # of the source, (n, d, h, w, c)


@dataclass(frozen=True, slots=True)
class CopyTile:
    """How the kernel is compiled for a copy."""

    channels: int  # C
    column: int  # pixels of a column
    target_channels: int  # C', columns' channels among them
    unit: int  # divides rows of the target, up to 16 bytes: tells the compiler how they are aligned
    is_wide: bool  # whether offsets within an image of the source need 64 bits
    block_rows: int
    block: int  # elements of a row


@triton.jit
def _copy_tile(program, source_ptr, target_ptr, sizes, TILE: tl.constexpr):
    CHANNELS: tl.constexpr = TILE.channels
    COLUMN: tl.constexpr = TILE.column
    TARGET_CHANNELS: tl.constexpr = TILE.target_channels
    target_elements = sizes.target_units * TILE.unit
    blocks = tl.cdiv(target_elements, TILE.block)
    row = program // blocks * TILE.block_rows + tl.arange(0, TILE.block_rows)
    element = program % blocks * TILE.block + tl.arange(0, TILE.block)
    size_d, size_h, size_w = sizes.size
    stride_n, stride_d, stride_h, stride_w, stride_c = sizes.strides
    h = row % sizes.target_h * sizes.step_h - sizes.low[0]
    d = row // sizes.target_h % size_d
    n = row // sizes.target_h // size_d
    images = n.to(tl.int64) * stride_n + d.to(tl.int64) * stride_d + sizes.start
    in_pixel = element % TARGET_CHANNELS
    # Two expressions: in the second, the compiler does not see that elements are neighbours.
    channel = in_pixel if COLUMN == 1 else in_pixel % CHANNELS
    w = element // TARGET_CHANNELS - sizes.low[1]
    is_source = (element < target_elements) & (w >= 0) & (w < size_w)
    if CHANNELS * COLUMN < TARGET_CHANNELS:
        is_source = is_source & (in_pixel < CHANNELS * COLUMN)
    is_row = row < sizes.rows
    mask = is_row[:, None] & is_source[None, :]
    if TILE.is_wide:
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    within = (h * stride_h)[:, None] + (w * stride_w + channel * stride_c)[None, :]
    if COLUMN > 1:
        down = in_pixel // CHANNELS * sizes.dilation_h
        source_h = h[:, None] + down[None, :]
        mask = mask & (source_h >= 0) & (source_h < size_h)
        if TILE.is_wide:
            down = down.to(tl.int64)
        within = within + (down * stride_h)[None, :]
    bits = tl.load(source_ptr + images[:, None] + within, mask=mask, other=0)
    is_target = is_row[:, None] & (element < target_elements)[None, :]
    targets = row.to(tl.int64) * target_elements
    tl.store(target_ptr + targets[:, None] + element[None, :], bits, mask=is_target)


@triton.jit
def row_copy_kernel(
    source_ptr,  # [N, D, H, W, C] of any strides
    target_ptr,  # [N, D, H', W', C'], packed
    second_source_ptr,  # of a second copy; None: there is none
    second_target_ptr,
    programs,  # of the first copy; those of the second come behind
    sizes,  # CopySizes
    second_sizes,
    TILE: tl.constexpr,  # CopyTile
    SECOND_TILE: tl.constexpr,
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    sizes = sizes
    second_sizes = second_sizes
    program = tl.program_id(0)
    if program < programs:
        _copy_tile(program, source_ptr, target_ptr, sizes, TILE)
    elif second_source_ptr is not None:
        _copy_tile(
            program - programs, second_source_ptr, second_target_ptr, second_sizes, SECOND_TILE
        )


class RowCopy(NamedTuple):
    """How rows of pixels are copied into rows of more pixels of more channels."""

    elements: int  # of a row of the target
    channels: int  # of a pixel of the target
    is_turned: bool = False  # whether the source is read from the end of its spatial dimensions
    target_h: int | None = None  # rows of an image of the target; None: as many as of the source
    low: tuple[int, int] = (0, 0)  # zeros above and in front of the source
    step_h: int = 1  # rows of the source from one row of the target to the next
    dilation_h: int = 1  # rows of the source from one pixel of a column to the next
    column: int = 1  # pixels of a column

    def arguments(
        self, shape: tuple[int, ...], strides: tuple[int, ...], element_bytes: int
    ) -> tuple[CopySizes, CopyTile, int]:
        """Returns the kernel's arguments and how many CTAs copy a source [N, ([D, [H, ]]W, )C].

        Raises:
            UnsupportedError: Rows of the target have more elements than the kernel counts.
        """
        elements, start, missing = self.elements, 0, 5 - len(shape)
        if elements > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"a copy of rows of {elements} elements: the kernel counts to {_MOST_ELEMENTS}; "
                "split the tensor along its last dimension"
            )
        step_n, *steps, step_c = strides
        if self.is_turned:
            start = sum((size - 1) * step for size, step in zip(shape[1:-1], steps, strict=True))
            steps = [-step for step in steps]
        size, steps = (1,) * missing + shape[1:-1], [0] * missing + steps
        (size_d, size_h, size_w), (_, step_h, step_w) = size, steps
        target_h = size_h if self.target_h is None else self.target_h
        rows, unit = shape[0] * size_d * target_h, math.gcd(elements, ROW_BYTES // element_bytes)
        sizes = CopySizes(
            rows, size, target_h, elements // unit, self.low, self.step_h, self.dilation_h, start,
            (step_n, *steps, step_c),
        )  # fmt: skip
        # All rows of a tile share what is computed of a column: more of them where there are many,
        # as long as every multiprocessor has some tiles.
        tile = _TILE if rows * elements < _MANY_ELEMENTS else 4 * _TILE
        block = min(_TILE, triton.next_power_of_2(elements))
        block_rows = min(tile // block, triton.next_power_of_2(rows))
        # With padding, offsets reach further than the image: twice as far at most.
        is_wide = 2 * max(size_h * abs(step_h), size_w * abs(step_w)) >= 1 << 30
        made = CopyTile(shape[-1], self.column, self.channels, unit, is_wide, block_rows, block)
        return sizes, made, math.ceil(rows / block_rows) * math.ceil(elements / block)


# A launcher keeps what it compiled, for one device.
@lru_cache(maxsize=1024)
def _launcher(kernel: Any, device: torch.device, *given: tuple[RowCopy, Any, Any, int]) -> Launcher:
    made = [copy.arguments(*source) for copy, *source in given]
    # None compiles for no type where nothing reads an integer.
    sizes, tiles, programs = zip(*made, *[(None, None, 0)] * (2 - len(made)), strict=True)
    return Launcher(
        kernel=kernel,
        grid=(sum(programs), 1, 1),
        scalars=(programs[0], *sizes),
        constants=dict(zip(("TILE", "SECOND_TILE"), tiles, strict=True)),
        options={"num_warps": _NUM_WARPS},
    )


def copy_rows(*made: tuple[RowCopy, torch.Tensor, torch.Tensor]) -> None:
    """Makes a copy from a source to a target; two, of elements of one size, in one launch."""
    tensors: list[torch.Tensor | None] = []
    for _, *pair in made:
        tensors += [each.view(_INTEGERS[each.itemsize]) for each in pair]
    tensors += [None] * (4 - len(tensors))
    given = ((copy, tuple(t.shape), t.stride(), t.itemsize) for copy, t, _ in made)
    launcher = _launcher(row_copy_kernel, made[0][1].device, *given)
    launcher.launch(tuple(tensors))


def fill_channels(*given: tuple[torch.Tensor, int]) -> list[torch.Tensor]:
    """Returns tensors with zeros behind their channels, packed, in one launch.

    Args:
        given: [rows, *up to three, channels] of any strides, of one dtype, and how many zeros; a
            tensor without any is returned as it is.  TMA needs rows of multiples of 16 bytes.
    """
    filled, copies = [], []
    for source, missing in given:
        target = source
        if missing:
            *pixels, channels = source.shape
            target = source.new_empty((*pixels, channels + missing))
            row = math.prod(target.shape[max(1, source.dim() - 2) :])
            copies.append((RowCopy(row, channels + missing), source, target))
        filled.append(target)
    if copies:
        copy_rows(*copies)
    return filled


@dataclass(frozen=True, slots=True)
class RowCopies:
    """Packs x and weights, and unpacks dw, as a packing says; holds no tensor."""

    packing: RowPacking

    def pack(self, x: torch.Tensor | None, weight: torch.Tensor | None) -> tuple[Any, Any]:
        """Returns x and the weight, packed, ``None`` for ``None``; one launch makes both copies.

        Args:
            x: [N, Ci, *input_size], of the strides that the packing was made for.
            weight: [Co, Ci, *filter_size] in any memory format.

        Returns:
            The overlapping view of x or of a copy of it, of the packing's strides, and the packed
            weight, of the packing's shape.
        """
        packing, problem, copies = self.packing, self.packing.problem, []
        if weight is not None:
            weight = weight.transpose(0, 1) if packing.is_turned else weight
            rows, shape = weight.permute(TO_LAST[problem.dims]), packing.weight_shape
            # Windows may have the order and the elements of a channels-last weight.
            if (
                rows.is_contiguous()
                and rows.data_ptr() % ROW_BYTES == 0
                and rows.numel() == math.prod(shape)
                and not (packing.columns or packing.is_turned)
            ):
                weight = rows.view(shape)
            else:
                # The short copy first: the long one hides it.
                weight = weight.new_empty(shape)
                copy = RowCopy(shape[-1], packing.channels, packing.is_turned)
                if packing.columns:
                    copy = copy._replace(target_h=1, column=problem.filter_size[-2])
                copies.append((copy, rows, weight))
        if x is not None and packing.is_copied:
            rows, x = x.permute(TO_LAST[problem.dims]), x.new_empty(packing.memory_shape)
            low_w, channels = problem.padding[-1][0], packing.channels
            copy = RowCopy(packing.row_pixels * channels, channels, low=(0, low_w))
            if packing.columns:
                copy = copy._replace(
                    target_h=problem.output_size[-2], low=(problem.padding[-2][0], low_w),
                    step_h=problem.stride[-2], dilation_h=problem.dilation[-2],
                    column=problem.filter_size[-2],
                )  # fmt: skip
            copies.append((copy, rows, x))
        if copies:
            copy_rows(*copies)
        return x if x is None else x.as_strided(packing.x_shape, packing.strides), weight

    def unpack(self, packed: torch.Tensor, dw: torch.Tensor, *, is_swapped: bool) -> None:
        """Writes dw [Co, *filter_size, Ci], dense, from the gradient of the packed filter.

        ``is_swapped``: rows of dy are packed, so dw is turned round and its channels swapped.
        """
        packing, taps = self.packing, self.packing.problem.filter_size
        channels = packing.problem.in_channels
        of_filter, *of_rows, _ = packed_strides(packing.weight_shape)
        # Planes have a dimension of 1 in front; a pixel's channels hold a column.
        of_im2col = of_rows[1:] if packing.planes else of_rows[: packing.im2col_dims]
        of_taps = (*of_im2col, *((channels,) if packing.columns else ()), packing.channels)
        strides = (1, *of_taps, of_filter) if is_swapped else (of_filter, *of_taps, 1)
        row = RowCopy(taps[-1] * dw.shape[-1], dw.shape[-1], is_turned=is_swapped)
        copy_rows((row, packed.as_strided(dw.shape, strides), dw))
