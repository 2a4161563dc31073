"""The copies of row packing: x into rows with zeros around them, the weight into packed rows.

Both are one kernel: rows of pixels of channels are copied into rows of more pixels of more
channels, and what is new is zero.  A pixel of the target may hold several pixels of a column of the
source, one below the other.  Elements are copied as bits, whatever their type.

x and the weight are copied in one launch where both are: its first programs make the one copy, the
others the other.  Channels that TMA's rows of 16 bytes lack are filled up by the same kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST
from triton_ext.ops.rewrites.packing import RowPacking

__all__ = [
    "CopyLauncher",
    "CopySizes",
    "FilledChannels",
    "RowCopies",
    "RowCopy",
    "compile_row_copy",
    "row_copy_kernel",
]

# Of bits, by the bytes of an element.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_NUM_WARPS = 4
# Elements of a CTA's tile: 8 per thread, 16 bytes of 16-bit types.
_TILE = 1024
_MANY_ELEMENTS = 1 << 21
# Of a row of the target: the kernel counts them, and those of its last tile, in 32 bits.
_MOST_ELEMENTS = (1 << 31) - (1 << 16)


class CopySizes(NamedTuple):
    """Sizes of a copy that the kernel is told at run time.

    The source is [N, D, H, W, CHANNELS] of any strides, the target [N, D, H', W', TARGET_CHANNELS],
    packed; sizes in elements, pixels and rows.

    Attributes:
        rows: N * D * H'.
        size_d: D.
        size_h: H.
        size_w: W.
        target_h: H'.
        target_units: Elements of a row of the target, in units of UNIT.
        low_h: Rows of zeros above.
        low_w: Pixels of zeros in front of a row.
        step_h: Rows of the source from one row of the target to the next.
        dilation_h: Rows of the source from one pixel of a column to the next.
        start: Of the first element of the source; strides may be negative.
        stride_n: Of the source.
        stride_d: Of the source.
        stride_h: Of the source.
        stride_w: Of the source.
        stride_c: Of the source.
    """

    rows: int
    size_d: int
    size_h: int
    size_w: int
    target_h: int
    target_units: int
    low_h: int
    low_w: int
    step_h: int
    dilation_h: int
    start: int
    stride_n: int
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

    Attributes:
        size: [N, D, H, W] of the source.
        strides: Of the source [N, D, H, W, C], in elements.
        start: Of the source's first element; not 0 where strides are negative.
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
    start: int = 0
    target_h: int
    target_elements: int
    low: tuple[int, int] = (0, 0)
    step_h: int = 1
    dilation_h: int = 1
    channels: int
    column: int = 1
    target_channels: int
    element_bytes: int

    def __post_init__(self) -> None:
        if self.target_elements > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"a copy of rows of {self.target_elements} elements: the kernel counts to "
                f"{_MOST_ELEMENTS}; split the tensor along its last dimension"
            )

    @property
    def rows(self) -> int:
        """Of the target, all images together."""
        return self.size[0] * self.size[1] * self.target_h

    @property
    def unit(self) -> int:
        """Elements of 16 bytes."""
        return ROW_BYTES // self.element_bytes

    @property
    def block(self) -> tuple[int, int]:
        """Rows and elements of a CTA's tile."""
        # What is computed of a column of a tile serves all its rows: more of them where there are
        # many, as long as every multiprocessor has some tiles.
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
        """What the kernel is told at run time."""
        _, d, h, w = self.size
        units = self.target_elements // self.unit
        return CopySizes(
            self.rows, d, h, w, self.target_h, units, *self.low, self.step_h, self.dilation_h,
            self.start, *self.strides,
        )  # fmt: skip

    @property
    def constants(self) -> tuple[object, ...]:
        """What the kernel is compiled for, in the order of its parameters."""
        _, _, h, w = self.size
        # Where padding is, offsets reach further than the image: twice as far at most.
        reach = 2 * max(h * abs(self.strides[2]), w * abs(self.strides[3]))
        wide = reach >= 1 << 30
        return (self.channels, self.column, self.target_channels, self.unit, wide, *self.block)


class CopyLauncher:
    """Makes one copy, or two in one launch; holds no tensor.

    Args:
        first: A copy.
        second: Another one, of elements of the same size.
    """

    def __init__(self, first: RowCopy, second: RowCopy | None = None) -> None:
        names = row_copy_kernel.arg_names[-2 * len(first.constants) :]
        # Integers are no types to compile for where nothing reads them.
        of_second = (None,) * len(first.constants) if second is None else second.constants
        constants = dict(zip(names, (*first.constants, *of_second), strict=True))
        self._bits = _INTEGERS[first.element_bytes]
        self.launcher = Launcher(
            kernel=row_copy_kernel,
            grid=(first.programs + (0 if second is None else second.programs), 1, 1),
            scalars=(first.programs, first.sizes, None if second is None else second.sizes),
            constants=constants,
            options={"num_warps": _NUM_WARPS},
        )

    def launch(
        self,
        first: tuple[torch.Tensor, torch.Tensor],
        second: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Launches.

        Args:
            first: Source and target of the first copy.
            second: Of the second, if there is one.
        """
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
        self._dims = packing.problem.dims
        # A channels-last weight is then packed as it is.
        channels = math.prod(packing.problem.filter_size) * packing.problem.in_channels
        equal = channels == math.prod(packing.weight_shape[1:])
        self._weight_is_packed = equal and not packing.columns and not packing.is_turned
        self._x_copy = self._copy_of_x(x_strides) if packing.is_copied else None
        self._x = None if self._x_copy is None else CopyLauncher(self._x_copy)
        # A weight's strides are known when it is there: copies of it, with x's and without.
        self._both: dict[tuple[int, ...], CopyLauncher] = {}
        self._weights: dict[tuple[int, ...], CopyLauncher] = {}

    def __repr__(self) -> str:
        return f"RowCopies({self.packing.kind}, is_copied={self.packing.is_copied})"

    def both(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what :meth:`x` and :meth:`weight` do, of one launch where both are copied."""
        rows = self._rows_of(weight)
        if self._x_copy is None or rows is not None:
            return self.x(x), self.weight(weight) if rows is None else rows
        strides = weight.stride()
        launcher = self._both.get(strides)
        if launcher is None:
            # The short copy first: the long one hides it.
            launcher = CopyLauncher(self._copy_of_weight(strides), self._x_copy)
            self._both[strides] = launcher
        packed, memory = self._new_weight(weight), self._new_memory(x)
        launcher.launch((weight, packed), (x, memory))
        return memory.as_strided(self.packing.x_shape, self.packing.strides), packed

    def x(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the overlapping view of x or of a copy of it, as the packing describes it.

        Args:
            x: [N, Ci, *input_size], of the strides that were given.
        """
        packing = self.packing
        if self._x is None:
            return x.as_strided(packing.x_shape, packing.strides)
        memory = self._new_memory(x)
        self._x.launch((x, memory))
        return memory.as_strided(packing.x_shape, packing.strides)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the packed weight, of the packing's shape.

        Args:
            weight: [Co, Ci, *filter_size] in any memory format.
        """
        rows = self._rows_of(weight)
        if rows is not None:
            return rows
        strides = weight.stride()
        launcher = self._weights.get(strides)
        if launcher is None:
            launcher = self._weights[strides] = CopyLauncher(self._copy_of_weight(strides))
        packed = self._new_weight(weight)
        launcher.launch((weight, packed))
        return packed

    def _rows_of(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Returns a weight that is packed as it is; None for others."""
        if self._weight_is_packed:
            rows = weight.permute(TO_LAST[self._dims])
            if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
                return rows.view(self.packing.weight_shape)
        return None

    def _new_memory(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(self.packing.memory_shape, device=x.device, dtype=x.dtype)

    def _new_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.empty(self.packing.weight_shape, device=weight.device, dtype=weight.dtype)

    def _copy_of_x(self, x_strides: tuple[int, ...]) -> RowCopy:
        packing = self.packing
        problem = packing.problem
        size, strides = _four_dims(problem.x_shape, x_strides)
        low_w = problem.padding[-1][0]
        elements = packing.row_pixels * packing.channels
        if not packing.columns:
            return self._copy_of(size, strides, size[2], elements, low=(0, low_w))
        low_h = problem.padding[-2][0]
        copy = self._copy_of(size, strides, problem.output_size[-2], elements, low=(low_h, low_w))
        return replace(
            copy,
            step_h=problem.stride[-2],
            dilation_h=problem.dilation[-2],
            column=problem.filter_size[-2],
        )

    def _copy_of_weight(self, strides: tuple[int, ...]) -> RowCopy:
        packing, start = self.packing, 0
        if packing.is_turned:
            steps = zip(packing.problem.filter_size, strides[2:], strict=True)
            start = sum((taps - 1) * stride for taps, stride in steps)
            strides = (*strides[:2], *(-stride for stride in strides[2:]))
        size, strides = _four_dims(packing.problem.w_shape, strides)
        elements = packing.weight_shape[-1]
        if not packing.columns:
            copy = self._copy_of(size, strides, size[2], elements)
        else:
            copy = replace(self._copy_of(size, strides, 1, elements), column=size[2])
        return replace(copy, start=start)

    def _copy_of(
        self,
        size: tuple[int, ...],
        strides: tuple[int, ...],
        target_h: int,
        elements: int,
        low: tuple[int, int] = (0, 0),
    ) -> RowCopy:
        return RowCopy(
            size=size,
            strides=strides,
            target_h=target_h,
            target_elements=elements,
            low=low,
            channels=self.packing.problem.in_channels,
            target_channels=self.packing.channels,
            element_bytes=self.packing.element_bytes,
        )


class FilledChannels:
    """Gives two tensors zeros as further channels, in one launch; holds no tensor.

    TMA wants rows of multiples of 16 bytes.

    Args:
        missing: Zeros behind the channels of each tensor; 0: it is not copied.  A number that is
            not 0 makes the channels a multiple of 16 bytes.
    """

    def __init__(self, *missing: int) -> None:
        self._missing = missing
        self._launchers: dict[tuple[object, ...], CopyLauncher] = {}

    def fill(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the tensors with more channels, packed; what misses none as it is.

        Args:
            tensors: [rows, *up to three, channels] of any strides, of one dtype.
        """
        sources = [t for t, more in zip(tensors, self._missing, strict=True) if more]
        if not sources:
            return tensors
        targets = [
            torch.empty((*t.shape[:-1], t.shape[-1] + more), device=t.device, dtype=t.dtype)
            for t, more in zip(tensors, self._missing, strict=True)
            if more
        ]
        key = (sources[0].itemsize, *((t.shape, t.stride()) for t in sources))
        launcher = self._launchers.get(key)
        if launcher is None:
            copies = [_filling(s, t) for s, t in zip(sources, targets, strict=True)]
            launcher = self._launchers[key] = CopyLauncher(*copies)
        launcher.launch(*zip(sources, targets, strict=True))
        filled = iter(targets)
        pairs = zip(tensors, self._missing, strict=True)
        return tuple(next(filled) if more else tensor for tensor, more in pairs)


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


def _four_dims(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns [N, D, H, W] and the strides of [N, D, H, W, C] of a tensor in torch's order."""
    missing = 5 - len(shape)
    size = (shape[0], *(1,) * missing, *shape[2:])
    return size, (strides[0], *(0,) * missing, *strides[2:], strides[1])


def compile_row_copy(
    channels: tuple[int, int],
    capability: int,
    *,
    element_bytes: int = 2,
    column: int = 1,
    second: tuple[int, int] | None = None,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU, for rows of up to 1024 elements.

    Args:
        channels: Of the source and of the target.
        capability: Compute capability of the target times ten: 90, 100.
        element_bytes: Size of an element.
        column: Pixels of a column.
        second: Channels of a second copy in the same launch; ``None`` for one copy.

    Returns:
        Triton's compiled kernel.
    """

    def copy_of(channels: tuple[int, int]) -> RowCopy:
        return RowCopy(
            size=(1, 1, 64, 200),
            strides=(0, 0, 0, 0, 1),
            target_h=64,
            target_elements=1024,
            channels=channels[0],
            column=column,
            target_channels=channels[1],
            element_bytes=element_bytes,
        )

    launcher = CopyLauncher(
        *(copy_of(each) for each in (channels, second) if each is not None)
    ).launcher
    names = list(row_copy_kernel.arg_names)
    constants: dict[Any, Any] = dict(launcher.constants)
    pointers = {name: f"*i{8 * element_bytes}" for name in names if name.endswith("_ptr")}
    of_sizes: dict[str, Any] = {"programs": "i32"}
    attributes: dict[tuple[int, ...], Any] = {}
    innermost = len(CopySizes._fields) - 1
    for name, each in (("sizes", channels), ("second_sizes", second)):
        if each is None:
            constants |= dict.fromkeys(("second_source_ptr", "second_target_ptr", name))
            continue
        index = names.index(name)
        # As Triton's front door does: dense channels, rows of whole vectors.
        of_sizes[name] = CopySizes._make((*("i32",) * innermost, "constexpr"))
        constants[index, innermost] = 1
        if each[0] % 16 == 0:
            for number, field in enumerate(CopySizes._fields[:-1]):
                if field == "start" or field.startswith("stride_"):
                    attributes[index, number] = [["tt.divisibility", 16]]
    signature = {
        name: "constexpr" if name in constants else {**pointers, **of_sizes}[name] for name in names
    }
    for name in pointers:
        if name not in constants:
            attributes[(names.index(name),)] = [["tt.divisibility", 16]]
    return triton.compile(
        ASTSource(row_copy_kernel, signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": _NUM_WARPS},
    )
