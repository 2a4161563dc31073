"""Copies of partial im2col: x into rows with zeros around them, the weight into packed rows.

One kernel copies rows of pixels of channels into rows of more pixels of more channels; new elements
are zero.  A pixel of the target may hold several pixels of a column of the source, one below the
other.  Elements are copied as bits, whatever their type.

One launch copies x and the weight where both are copied: its first programs make the one copy, the
others the other.  The same kernel fills up channels that TMA's rows of 16 bytes lack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES
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

    The source is [N, D, H, W, CHANNELS] of any strides, the target [N, D, H', W', TARGET_CHANNELS],
    packed; sizes in elements, pixels and rows.
    """

    rows: int  # N * D * H'
    size_d: int
    size_h: int
    size_w: int
    target_h: int  # H'
    target_units: int  # elements of a row of the target, in units of UNIT
    low_h: int  # rows of zeros above
    low_w: int  # pixels of zeros in front of a row
    step_h: int  # rows of the source from one row of the target to the next
    dilation_h: int  # rows of the source from one pixel of a column to the next
    start: int  # of the first element of the source; strides may be negative
    stride_n: int  # of the source, as are the others
    stride_d: int
    stride_h: int
    stride_w: int
    stride_c: int


@triton.jit
def _copy_tile(
    program,
    source_ptr,
    target_ptr,
    sizes,  # CopySizes
    CHANNELS: tl.constexpr,
    COLUMN: tl.constexpr,
    TARGET_CHANNELS: tl.constexpr,
    UNIT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    target_elements = sizes.target_units * UNIT
    blocks = tl.cdiv(target_elements, BLOCK)
    row = program // blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    h = row % sizes.target_h * sizes.step_h - sizes.low_h
    d = row // sizes.target_h % sizes.size_d
    n = row // sizes.target_h // sizes.size_d
    images = n.to(tl.int64) * sizes.stride_n + d.to(tl.int64) * sizes.stride_d + sizes.start
    in_pixel = element % TARGET_CHANNELS
    # Said twice, because the compiler would not see that neighbours are neighbours in memory.
    channel = in_pixel if COLUMN == 1 else in_pixel % CHANNELS
    w = element // TARGET_CHANNELS - sizes.low_w
    is_source = (element < target_elements) & (w >= 0) & (w < sizes.size_w)
    if CHANNELS * COLUMN < TARGET_CHANNELS:
        is_source = is_source & (in_pixel < CHANNELS * COLUMN)
    is_row = row < sizes.rows
    mask = is_row[:, None] & is_source[None, :]
    if WIDE:
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    within = (h * sizes.stride_h)[:, None] + (w * sizes.stride_w + channel * sizes.stride_c)[
        None, :
    ]
    if COLUMN > 1:
        down = in_pixel // CHANNELS * sizes.dilation_h
        source_h = h[:, None] + down[None, :]
        mask = mask & (source_h >= 0) & (source_h < sizes.size_h)
        if WIDE:
            down = down.to(tl.int64)
        within = within + (down * sizes.stride_h)[None, :]
    bits = tl.load(source_ptr + images[:, None] + within, mask=mask, other=0)
    is_target = is_row[:, None] & (element < target_elements)[None, :]
    targets = row.to(tl.int64) * target_elements
    tl.store(target_ptr + targets[:, None] + element[None, :], bits, mask=is_target)


@triton.jit
def row_copy_kernel(
    source_ptr,  # [N, D, H, W, CHANNELS] of any strides
    target_ptr,  # [N, D, H', W', TARGET_CHANNELS], packed
    second_source_ptr,  # of a second copy; None: there is none
    second_target_ptr,
    programs,  # of the first copy; those of the second come behind
    sizes,  # CopySizes
    second_sizes,
    CHANNELS: tl.constexpr,
    COLUMN: tl.constexpr,  # pixels of a column
    TARGET_CHANNELS: tl.constexpr,
    UNIT: tl.constexpr,  # elements of 16 bytes: tells the compiler how rows are aligned
    WIDE: tl.constexpr,  # whether offsets within an image of the source need 64 bits
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # elements of a row
    SECOND_CHANNELS: tl.constexpr,
    SECOND_COLUMN: tl.constexpr,
    SECOND_TARGET_CHANNELS: tl.constexpr,
    SECOND_UNIT: tl.constexpr,
    SECOND_WIDE: tl.constexpr,
    SECOND_BLOCK_ROWS: tl.constexpr,
    SECOND_BLOCK: tl.constexpr,
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    sizes = sizes
    second_sizes = second_sizes
    program = tl.program_id(0)
    if program < programs:
        _copy_tile(
            program, source_ptr, target_ptr, sizes,
            CHANNELS, COLUMN, TARGET_CHANNELS, UNIT, WIDE, BLOCK_ROWS, BLOCK,
        )  # fmt: skip
    elif second_source_ptr is not None:
        _copy_tile(
            program - programs, second_source_ptr, second_target_ptr, second_sizes,
            SECOND_CHANNELS, SECOND_COLUMN, SECOND_TARGET_CHANNELS, SECOND_UNIT, SECOND_WIDE,
            SECOND_BLOCK_ROWS, SECOND_BLOCK,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCopy:
    """A copy of rows of pixels into rows of more pixels of more channels.

    Raises:
        UnsupportedError: Rows of the target have more elements than the kernel counts.
    """

    shape: tuple[int, ...]  # of the source [N, ([D, [H, ]]W, )C]
    strides: tuple[int, ...]  # of the source, in elements
    start: int = 0  # of the source's first element; not 0 where strides are negative
    target_h: int | None = None  # rows of an image of the target; None: as many as of the source
    target_elements: int  # of a row of the target, a multiple of 16 bytes
    target_channels: int  # of a pixel of the target
    low: tuple[int, int] = (0, 0)  # zeros above and in front of the source
    step_h: int = 1  # rows of the source from one row of the target to the next
    dilation_h: int = 1  # rows of the source from one pixel of a column to the next
    column: int = 1  # pixels of a column
    element_bytes: int  # size of an element

    def __post_init__(self) -> None:
        if self.target_elements > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"a copy of rows of {self.target_elements} elements: the kernel counts to "
                f"{_MOST_ELEMENTS}; split the tensor along its last dimension"
            )

    @property
    def sizes(self) -> CopySizes:
        """The kernel's runtime arguments."""
        missing = 5 - len(self.shape)
        n, d, h, w = (self.shape[0], *(1,) * missing, *self.shape[1:-1])
        strides = (self.strides[0], *(0,) * missing, *self.strides[1:])
        target_h = h if self.target_h is None else self.target_h
        units = self.target_elements * self.element_bytes // ROW_BYTES
        return CopySizes(
            n * d * target_h, d, h, w, target_h, units, *self.low, self.step_h, self.dilation_h,
            self.start, *strides,
        )  # fmt: skip

    @property
    def block(self) -> tuple[int, int]:
        """Rows and elements of a CTA's tile."""
        # All rows of a tile share what is computed of a column: more of them where there are many,
        # as long as every multiprocessor has some tiles.
        rows = self.sizes.rows
        tile = _TILE if rows * self.target_elements < _MANY_ELEMENTS else 4 * _TILE
        block = min(_TILE, triton.next_power_of_2(self.target_elements))
        return min(tile // block, triton.next_power_of_2(rows)), block

    @property
    def programs(self) -> int:
        """CTAs of the copy."""
        block_rows, block = self.block
        return math.ceil(self.sizes.rows / block_rows) * math.ceil(self.target_elements / block)

    @property
    def constants(self) -> tuple[object, ...]:
        """The kernel's constants, in the order of its parameters."""
        sizes = self.sizes
        # With padding, offsets reach further than the image: twice as far at most.
        reach = 2 * max(sizes.size_h * abs(sizes.stride_h), sizes.size_w * abs(sizes.stride_w))
        channels = (self.shape[-1], self.column, self.target_channels)
        return (*channels, ROW_BYTES // self.element_bytes, reach >= 1 << 30, *self.block)


class CopyLauncher:
    """Makes one copy, or two in one launch, of elements of the same size; holds no tensor."""

    def __init__(self, *copies: RowCopy) -> None:
        # None compiles for no type where nothing reads an integer.
        nothing: tuple[Any, ...] = (None,) * (2 - len(copies))
        constants = [value for copy in copies for value in copy.constants]
        constants += len(copies[0].constants) * nothing
        self._bits = _INTEGERS[copies[0].element_bytes]
        self._others = 2 * nothing
        self.launcher = Launcher(
            kernel=row_copy_kernel,
            grid=(sum(copy.programs for copy in copies), 1, 1),
            scalars=(copies[0].programs, *(copy.sizes for copy in copies), *nothing),
            constants=dict(
                zip(row_copy_kernel.arg_names[-len(constants) :], constants, strict=True)
            ),
            options={"num_warps": _NUM_WARPS},
        )

    def launch(self, *pairs: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Launches; each copy has a source and a target."""
        tensors = (*(each.view(self._bits) for pair in pairs for each in pair), *self._others)
        self.launcher.launch(tensors)


class RowCopies:
    """Packs x and weights of one geometry; holds no tensor.

    Args:
        packing: The geometry; also an attribute.
        x_strides: Of x [N, Ci, *input_size], in elements.
    """

    def __init__(self, packing: RowPacking, x_strides: tuple[int, ...]) -> None:
        self.packing = packing
        # A channels-last weight is then packed already.
        elements = math.prod(packing.problem.filter_size) * packing.problem.in_channels
        equal = elements == math.prod(packing.weight_shape[1:])
        self._weight_is_packed = equal and not packing.columns and not packing.is_turned
        self._x_copy = self._copy_of_x(x_strides) if packing.is_copied else None
        # By the strides of a weight, if one is copied, and whether x is.
        self._launchers: dict[tuple[tuple[int, ...] | None, bool], CopyLauncher] = {}

    def __repr__(self) -> str:
        return f"RowCopies({self.packing.kind}, is_copied={self.packing.is_copied})"

    def pack(self, x: torch.Tensor | None, weight: torch.Tensor | None) -> tuple[Any, Any]:
        """Returns x and the weight, packed, ``None`` for ``None``; one launch makes both copies.

        Args:
            x: [N, Ci, *input_size], of the strides that were given.
            weight: [Co, Ci, *filter_size] in any memory format.

        Returns:
            The overlapping view of x or of a copy of it, of the packing's strides, and the packed
            weight, of the packing's shape.
        """
        packing, pairs, strides = self.packing, [], None
        x_copy = None if x is None else self._x_copy
        if weight is not None:
            weight = weight.transpose(0, 1) if packing.is_turned else weight
            rows = weight.permute(TO_LAST[weight.dim() - 2])
            is_packed = self._weight_is_packed and rows.is_contiguous()
            if is_packed and rows.data_ptr() % ROW_BYTES == 0:
                weight = rows.view(packing.weight_shape)
            else:
                # The short copy first: the long one hides it.
                strides = weight.stride()
                pairs.append((weight, weight.new_empty(packing.weight_shape)))
                weight = pairs[0][1]
        if x_copy is not None and x is not None:
            pairs.append((x, x.new_empty(packing.memory_shape)))
            x = pairs[-1][1]
        if pairs:
            key = (strides, x_copy is not None)
            launcher = self._launchers.get(key)
            if launcher is None:
                copies = [] if strides is None else [self._copy_of_weight(strides)]
                launcher = CopyLauncher(*copies, *(() if x_copy is None else (x_copy,)))
                self._launchers[key] = launcher
            launcher.launch(*pairs)
        return x if x is None else x.as_strided(packing.x_shape, packing.strides), weight

    def _copy_of_x(self, strides: tuple[int, ...]) -> RowCopy:
        packing, problem = self.packing, self.packing.problem
        elements = packing.row_pixels * packing.channels
        low_w = problem.padding[-1][0]
        if not packing.columns:
            return self._copy(problem.x_shape, strides, elements, low=(0, low_w))
        return self._copy(
            problem.x_shape,
            strides,
            elements,
            target_h=problem.output_size[-2],
            low=(problem.padding[-2][0], low_w),
            step_h=problem.stride[-2],
            dilation_h=problem.dilation[-2],
            column=problem.filter_size[-2],
        )

    def _copy_of_weight(self, strides: tuple[int, ...]) -> RowCopy:
        packing, problem, start = self.packing, self.packing.problem, 0
        if packing.is_turned:
            steps = zip(problem.filter_size, strides[2:], strict=True)
            start = sum((taps - 1) * stride for taps, stride in steps)
            strides = (*strides[:2], *(-stride for stride in strides[2:]))
        columns = {"target_h": 1, "column": problem.filter_size[-2]} if packing.columns else {}
        elements = packing.weight_shape[-1]
        return self._copy(problem.w_shape, strides, elements, start=start, **columns)

    def _copy(
        self, shape: tuple[int, ...], strides: tuple[int, ...], target_elements: int, **others: Any
    ) -> RowCopy:
        """Returns the copy of a tensor in torch's order; ``others`` are further fields."""
        return RowCopy(
            shape=(shape[0], *shape[2:], shape[1]),
            strides=(strides[0], *strides[2:], strides[1]),
            target_elements=target_elements,
            target_channels=self.packing.channels,
            element_bytes=self.packing.element_bytes,
            **others,
        )


class FilledChannels:
    """Gives two tensors zeros as further channels, in one launch; holds no tensor.

    TMA needs rows of multiples of 16 bytes.

    Args:
        missing: Zeros behind the channels of each tensor; 0: it is not copied.  A number that is
            not 0 makes the channels a multiple of 16 bytes.
    """

    def __init__(self, *missing: int) -> None:
        self._missing = missing
        self._launchers: dict[tuple[object, ...], CopyLauncher] = {}

    def fill(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the tensors with more channels, packed; complete ones unchanged.

        Args:
            tensors: [rows, *up to three, channels] of any strides, of one dtype.
        """
        filled = [
            t.new_empty((*t.shape[:-1], t.shape[-1] + more)) if more else t
            for t, more in zip(tensors, self._missing, strict=True)
        ]
        copies = [pair for pair in zip(tensors, filled, strict=True) if pair[0] is not pair[1]]
        if copies:
            key = (copies[0][0].itemsize, *((t.shape, t.stride()) for t, _ in copies))
            launcher = self._launchers.get(key)
            if launcher is None:
                launcher = CopyLauncher(*(_filling(*pair) for pair in copies))
                self._launchers[key] = launcher
            launcher.launch(*copies)
        return tuple(filled)


def _filling(source: torch.Tensor, target: torch.Tensor) -> RowCopy:
    """Returns the copy of a tensor into one of more channels."""
    pixels = source.shape[-2] if source.dim() > 2 else 1
    return RowCopy(
        shape=source.shape,
        strides=source.stride(),
        target_elements=pixels * target.shape[-1],
        target_channels=target.shape[-1],
        element_bytes=source.itemsize,
    )
