"""The copies of row packing: x into rows with zeros around them, the weight into packed rows.

Both are one kernel: rows of pixels of channels are copied into rows of more pixels of more
channels, and what is new is zero.  A pixel of the target may hold several pixels of a column of the
source, one below the other.  Elements are copied as bits, whatever their type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triton_ext.ops.conv_launch import TO_LAST
from triton_ext.ops.descriptors import ROW_BYTES
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.row_packing import RowPacking

__all__ = ["RowCopies", "compile_row_copy", "row_copy_kernel"]

# Of bits, by the bytes of an element.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_NUM_WARPS = 4
# Elements of a CTA's tile: 8 per thread, 16 bytes of 16-bit types.
_TILE = 1024
_MANY_ELEMENTS = 1 << 21


@triton.jit
def row_copy_kernel(
    source_ptr,  # [N, D, H, W, CHANNELS] of any strides
    target_ptr,  # [N, D, H', W', TARGET_CHANNELS], packed
    rows,  # N * D * H'
    size_d,
    size_h,  # H
    size_w,  # W
    target_h,  # H'
    target_units,  # elements of a row of the target, in units of UNIT
    low_h,  # rows of zeros above
    low_w,  # pixels of zeros in front of a row
    step_h,  # rows of the source from one row of the target to the next
    dilation_h,  # rows of the source from one pixel of a column to the next
    stride_n,  # of the source, in elements
    stride_d,
    stride_h,
    stride_w,
    stride_c,
    CHANNELS: tl.constexpr,
    COLUMN: tl.constexpr,  # pixels of a column
    TARGET_CHANNELS: tl.constexpr,
    UNIT: tl.constexpr,  # elements of 16 bytes: tells the compiler how rows are aligned
    WIDE: tl.constexpr,  # whether offsets within an image of the source need 64 bits
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # elements of a row
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h = row % target_h * step_h - low_h
    d = row // target_h % size_d
    n = row // target_h // size_d
    images = n.to(tl.int64) * stride_n + d.to(tl.int64) * stride_d
    in_pixel = element % TARGET_CHANNELS
    # Said twice, because the compiler would not see that neighbours are neighbours in memory.
    channel = in_pixel if COLUMN == 1 else in_pixel % CHANNELS
    w = element // TARGET_CHANNELS - low_w
    target_elements = target_units * UNIT
    is_source = (element < target_elements) & (w >= 0) & (w < size_w)
    if CHANNELS * COLUMN < TARGET_CHANNELS:
        is_source = is_source & (in_pixel < CHANNELS * COLUMN)
    is_row = row < rows
    mask = is_row[:, None] & is_source[None, :]
    if WIDE:
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    within = (h * stride_h)[:, None] + (w * stride_w + channel * stride_c)[None, :]
    if COLUMN > 1:
        down = in_pixel // CHANNELS * dilation_h
        source_h = h[:, None] + down[None, :]
        mask = mask & (source_h >= 0) & (source_h < size_h)
        if WIDE:
            down = down.to(tl.int64)
        within = within + (down * stride_h)[None, :]
    bits = tl.load(source_ptr + images[:, None] + within, mask=mask, other=0)
    is_target = is_row[:, None] & (element < target_elements)[None, :]
    targets = row.to(tl.int64) * target_elements
    tl.store(target_ptr + targets[:, None] + element[None, :], bits, mask=is_target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """A copy, as the kernel's parameters have it.

    Attributes:
        size: [N, D, H, W] of the source.
        strides: Of the source [N, D, H, W, C], in elements.
        target_h: Rows of an image of the target.
        target_elements: Of a row of the target, a multiple of 16 bytes.
        low: Zeros above and in front of the source.
        step_h: Rows of the source from one row of the target to the next.
        dilation_h: Rows of the source from one pixel of a column to the next.
        channels: Of the source.
        column: Pixels of a column.
        target_channels: Of the target.
        element_bytes: Size of an element.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    target_h: int
    target_elements: int
    low: tuple[int, int] = (0, 0)
    step_h: int = 1
    dilation_h: int = 1
    channels: int
    column: int = 1
    target_channels: int
    element_bytes: int

    def launcher(self) -> Launcher:
        """Returns what launches the copy."""
        n, d, h, w = self.size
        rows = n * d * self.target_h
        unit = ROW_BYTES // self.element_bytes
        # What is computed of a column of a tile serves all its rows: more of them where there are
        # many, as long as every multiprocessor has some tiles.
        tile = _TILE if rows * self.target_elements < _MANY_ELEMENTS else 4 * _TILE
        block = min(_TILE, triton.next_power_of_2(self.target_elements))
        block_rows = min(tile // block, triton.next_power_of_2(rows))
        # Where padding is, offsets reach further than the image: twice as far at most.
        reach = 2 * max(h * abs(self.strides[2]), w * abs(self.strides[3]))
        return Launcher(
            kernel=row_copy_kernel,
            grid=(math.ceil(rows / block_rows), math.ceil(self.target_elements / block), 1),
            scalars=(
                rows,
                d,
                h,
                w,
                self.target_h,
                self.target_elements // unit,
                *self.low,
                self.step_h,
                self.dilation_h,
                *self.strides,
            ),
            constants={
                "CHANNELS": self.channels,
                "COLUMN": self.column,
                "TARGET_CHANNELS": self.target_channels,
                "UNIT": unit,
                "WIDE": reach >= 1 << 30,
                "BLOCK_ROWS": block_rows,
                "BLOCK": block,
            },
            options={"num_warps": _NUM_WARPS},
        )


class RowCopies:
    """Packs x and weights of one geometry; holds no tensor.

    Args:
        packing: The geometry; also an attribute.
        x_strides: Of x [N, Ci, *input_size], in elements.
    """

    def __init__(self, packing: RowPacking, x_strides: tuple[int, ...]) -> None:
        self.packing = packing
        self._bits = _INTEGERS[packing.element_bytes]
        self._dims = packing.problem.dims
        # A channels-last weight is then packed as it is.
        channels = math.prod(packing.problem.filter_size) * packing.problem.in_channels
        equal = channels == math.prod(packing.weight_shape[1:])
        self._weight_is_packed = equal and not packing.columns
        # A weight's strides are known when it is there.
        self._weights: dict[tuple[int, ...], Launcher] = {}
        self._x = self._x_launcher(x_strides) if packing.is_copied else None

    def x(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the overlapping view [N, ([D, ]H, )out_w, S * C'] of x or of a copy of it.

        Args:
            x: [N, Ci, *input_size], of the strides that were given.
        """
        packing = self.packing
        if self._x is None:
            return x.as_strided(packing.x_shape, packing.strides)
        memory = torch.empty(packing.memory_shape, device=x.device, dtype=x.dtype)
        self._copy(self._x, x, memory)
        return memory.as_strided(packing.x_shape, packing.strides)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the packed weight, of the packing's shape.

        Args:
            weight: [Co, Ci, *filter_size] in any memory format.
        """
        packing = self.packing
        if self._weight_is_packed:
            rows = weight.permute(TO_LAST[self._dims])
            if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
                return rows.view(packing.weight_shape)
        launcher = self._weights.get(weight.stride())
        if launcher is None:
            launcher = self._weights[weight.stride()] = self._weight_launcher(weight.stride())
        packed = torch.empty(packing.weight_shape, device=weight.device, dtype=weight.dtype)
        self._copy(launcher, weight, packed)
        return packed

    def _copy(self, launcher: Launcher, source: torch.Tensor, target: torch.Tensor) -> None:
        source, target = source.view(self._bits), target.view(self._bits)
        launcher.launch((source, target), source.data_ptr() % ROW_BYTES == 0)

    def _x_launcher(self, x_strides: tuple[int, ...]) -> Launcher:
        packing = self.packing
        problem = packing.problem
        size, strides = _four_dims(problem.x_shape, x_strides)
        low_w = problem.padding[-1][0]
        elements = packing.row_pixels * packing.channels
        if not packing.columns:
            return self._copy_of(size, strides, size[2], elements, low=(0, low_w)).launcher()
        low_h = problem.padding[-2][0]
        copy = self._copy_of(size, strides, problem.output_size[-2], elements, low=(low_h, low_w))
        return replace(
            copy,
            step_h=problem.stride[-2],
            dilation_h=problem.dilation[-2],
            column=problem.filter_size[-2],
        ).launcher()

    def _weight_launcher(self, strides: tuple[int, ...]) -> Launcher:
        packing = self.packing
        size, strides = _four_dims(packing.problem.w_shape, strides)
        elements = packing.weight_shape[-1]
        if not packing.columns:
            return self._copy_of(size, strides, size[2], elements).launcher()
        return replace(self._copy_of(size, strides, 1, elements), column=size[2]).launcher()

    def _copy_of(
        self,
        size: tuple[int, ...],
        strides: tuple[int, ...],
        target_h: int,
        elements: int,
        low: tuple[int, int] = (0, 0),
    ) -> _Copy:
        return _Copy(
            size=size,
            strides=strides,
            target_h=target_h,
            target_elements=elements,
            low=low,
            channels=self.packing.problem.in_channels,
            target_channels=self.packing.channels,
            element_bytes=self.packing.element_bytes,
        )


def _four_dims(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns [N, D, H, W] and the strides of [N, D, H, W, C] of a tensor in torch's order."""
    missing = 5 - len(shape)
    size = (shape[0], *(1,) * missing, *shape[2:])
    return size, (strides[0], *(0,) * missing, *strides[2:], strides[1])


def compile_row_copy(
    channels: tuple[int, int], capability: int, *, element_bytes: int = 2, column: int = 1
) -> Any:
    """Compiles the kernel ahead of time, without a GPU, for rows of up to 1024 elements.

    Args:
        channels: Of the source and of the target.
        capability: Compute capability of the target times ten: 90, 100.
        element_bytes: Size of an element.
        column: Pixels of a column.

    Returns:
        Triton's compiled kernel.
    """
    copy = _Copy(
        size=(1, 1, 64, 200),
        strides=(0, 0, 0, 0, 1),
        target_h=64,
        target_elements=1024,
        channels=channels[0],
        column=column,
        target_channels=channels[1],
        element_bytes=element_bytes,
    )
    constants = {**copy.launcher().constants, "stride_c": 1}
    signature = {
        name: "constexpr"
        if name in constants
        else f"*i{8 * element_bytes}"
        if name.endswith("_ptr")
        else "i32"
        for name in row_copy_kernel.arg_names
    }
    known = ["source_ptr", "target_ptr"]
    if channels[0] % 16 == 0:
        known += [f"stride_{letter}" for letter in "ndhw"]
    names = list(row_copy_kernel.arg_names)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in known}
    return triton.compile(
        ASTSource(row_copy_kernel, signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": _NUM_WARPS},
    )
