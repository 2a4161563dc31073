"""Copies of partial im2col: x into rows with zeros around them, the weight into packed rows.

One kernel copies rows of pixels of channels into rows of more pixels of more channels; new elements
are zero.  A pixel of the target may hold several pixels of a column of the source, one below the
other.  Elements are copied as bits, whatever their type.

One launch copies x and the weight where both are copied: its first programs make the one copy, the
others the other.  The same kernel fills up channels that TMA's rows of 16 bytes lack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.plan import TO_LAST

__all__ = ["CopyLauncher", "CopySizes", "FilledChannels", "RowCopies", "RowCopy"]

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
    # Assigning a tuple makes its type anew, as in conv_dgrad.py.
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

    size: tuple[int, ...]  # [N, D, H, W] of the source
    strides: tuple[int, ...]  # of the source [N, D, H, W, C], in elements
    start: int = 0  # of the source's first element; not 0 where strides are negative
    target_h: int  # rows of an image of the target
    target_elements: int  # of a row of the target, a multiple of 16 bytes
    low: tuple[int, int] = (0, 0)  # zeros above and in front of the source
    step_h: int = 1  # rows of the source from one row of the target to the next
    dilation_h: int = 1  # rows of the source from one pixel of a column to the next
    channels: int  # of the source
    column: int = 1  # pixels of a column
    target_channels: int  # of the target
    element_bytes: int  # size of an element

    def __post_init__(self) -> None:
        if self.target_elements > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"a copy of rows of {self.target_elements} elements: the kernel counts to "
                f"{_MOST_ELEMENTS}; split the tensor along its last dimension"
            )

    @property
    def rows(self) -> int:
        """Rows of the target, all images together."""
        return self.size[0] * self.size[1] * self.target_h

    @property
    def block(self) -> tuple[int, int]:
        """Rows and elements of a CTA's tile."""
        # All rows of a tile share what is computed of a column: more of them where there are many,
        # as long as every multiprocessor has some tiles.
        tile = _TILE if self.rows * self.target_elements < _MANY_ELEMENTS else 4 * _TILE
        block = min(_TILE, triton.next_power_of_2(self.target_elements))
        return min(tile // block, triton.next_power_of_2(self.rows)), block

    @property
    def programs(self) -> int:
        """CTAs of the copy."""
        block_rows, block = self.block
        return math.ceil(self.rows / block_rows) * math.ceil(self.target_elements / block)

    @property
    def sizes(self) -> CopySizes:
        """The kernel's runtime arguments."""
        _, d, h, w = self.size
        units = self.target_elements * self.element_bytes // ROW_BYTES
        return CopySizes(
            self.rows, d, h, w, self.target_h, units, *self.low, self.step_h, self.dilation_h,
            self.start, *self.strides,
        )  # fmt: skip

    @property
    def constants(self) -> tuple[object, ...]:
        """The kernel's constants, in the order of its parameters."""
        _, _, h, w = self.size
        # With padding, offsets reach further than the image: twice as far at most.
        reach = 2 * max(h * abs(self.strides[2]), w * abs(self.strides[3]))
        unit = ROW_BYTES // self.element_bytes
        shape = (self.channels, self.column, self.target_channels)
        return (*shape, unit, reach >= 1 << 30, *self.block)


class CopyLauncher:
    """Makes one copy, or two in one launch, of elements of the same size; holds no tensor."""

    def __init__(self, first: RowCopy, second: RowCopy | None = None) -> None:
        names = row_copy_kernel.arg_names[-2 * len(first.constants) :]
        # None compiles for no type where nothing reads an integer.
        others = (None,) * len(first.constants) if second is None else second.constants
        self._bits = _INTEGERS[first.element_bytes]
        self.launcher = Launcher(
            kernel=row_copy_kernel,
            grid=(first.programs + (0 if second is None else second.programs), 1, 1),
            scalars=(first.programs, first.sizes, None if second is None else second.sizes),
            constants=dict(zip(names, (*first.constants, *others), strict=True)),
            options={"num_warps": _NUM_WARPS},
        )

    def launch(
        self,
        first: tuple[torch.Tensor, torch.Tensor],
        second: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Launches; each copy has a source and a target."""
        tensors = tuple(
            None if tensor is None else tensor.view(self._bits)
            for tensor in (*first, *(second or (None, None)))
        )
        sources = (tensors[0], tensors[2])
        aligned = tuple(t is not None and t.data_ptr() % ROW_BYTES == 0 for t in sources)
        self.launcher.launch(tensors, aligned)


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
        self._x = None if self._x_copy is None else CopyLauncher(self._x_copy)
        # By the strides of a weight, and whether x is copied as well.
        self._launchers: dict[tuple[tuple[int, ...], bool], CopyLauncher] = {}

    def __repr__(self) -> str:
        return f"RowCopies({self.packing.kind}, is_copied={self.packing.is_copied})"

    def both(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what :meth:`x` and :meth:`weight` do, of one launch where both are copied."""
        rows = self._packed_already(weight)
        if self._x_copy is None or rows is not None:
            return self.x(x), self.weight(weight) if rows is None else rows
        packed, memory = self._new(weight), self._new(x, of_x=True)
        self._launcher(weight.stride(), True).launch((weight, packed), (x, memory))
        return memory.as_strided(self.packing.x_shape, self.packing.strides), packed

    def x(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the overlapping view of x or of a copy of it, of the packing's strides.

        Args:
            x: [N, Ci, *input_size], of the strides that were given.
        """
        if self._x is not None:
            memory = self._new(x, of_x=True)
            self._x.launch((x, memory))
            x = memory
        return x.as_strided(self.packing.x_shape, self.packing.strides)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the packed weight, of the packing's shape.

        Args:
            weight: [Co, Ci, *filter_size] in any memory format.
        """
        packed = self._packed_already(weight)
        if packed is None:
            packed = self._new(weight)
            self._launcher(weight.stride(), False).launch((weight, packed))
        return packed

    def _packed_already(self, weight: torch.Tensor) -> torch.Tensor | None:
        if self._weight_is_packed:
            rows = weight.permute(TO_LAST[weight.dim() - 2])
            if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
                return rows.view(self.packing.weight_shape)
        return None

    def _new(self, like: torch.Tensor, of_x: bool = False) -> torch.Tensor:
        shape = self.packing.memory_shape if of_x else self.packing.weight_shape
        return torch.empty(shape, device=like.device, dtype=like.dtype)

    def _launcher(self, strides: tuple[int, ...], with_x: bool) -> CopyLauncher:
        launcher = self._launchers.get((strides, with_x))
        if launcher is None:
            # The short copy first: the long one hides it.
            copy = self._copy_of_weight(strides)
            launcher = CopyLauncher(copy, self._x_copy if with_x else None)
            self._launchers[strides, with_x] = launcher
        return launcher

    def _copy_of_x(self, x_strides: tuple[int, ...]) -> RowCopy:
        packing, problem = self.packing, self.packing.problem
        copy = self._copy(problem.x_shape, x_strides, packing.row_pixels * packing.channels)
        if not packing.columns:
            return replace(copy, low=(0, problem.padding[-1][0]))
        return replace(
            copy,
            target_h=problem.output_size[-2],
            low=(problem.padding[-2][0], problem.padding[-1][0]),
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
        copy = self._copy(problem.w_shape, strides, packing.weight_shape[-1])
        if packing.columns:
            copy = replace(copy, target_h=1, column=copy.size[2])
        return replace(copy, start=start)

    def _copy(
        self, shape: tuple[int, ...], strides: tuple[int, ...], target_elements: int
    ) -> RowCopy:
        """Returns the copy of a tensor in torch's order, of as many rows."""
        missing = 5 - len(shape)
        size = (shape[0], *(1,) * missing, *shape[2:])
        return RowCopy(
            size=size,
            strides=(strides[0], *(0,) * missing, *strides[2:], strides[1]),
            target_h=size[2],
            target_elements=target_elements,
            channels=self.packing.problem.in_channels,
            target_channels=self.packing.channels,
            element_bytes=self.packing.element_bytes,
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
    ones = 5 - source.dim()
    n, *inner, channels = source.shape
    outer, *strides = source.stride()
    size = (n, *(1,) * ones, *inner)
    return RowCopy(
        size=size,
        strides=(outer, *(0,) * ones, *strides),
        target_h=size[2],
        target_elements=size[3] * target.shape[-1],
        channels=channels,
        target_channels=target.shape[-1],
        element_bytes=source.itemsize,
    )
