"""Device code of merged groups: the block-diagonal filter, and the repair of outputs.

Symbols: w [Co, taps, Ci / groups] of the convolution, channels last; M groups are merged into one,
whose filter is [rows, taps, M * K], where a row is an output channel of what is computed (Co in
fprop, Ci in a gradient of the input) and K the channels of a group that it sums over.

A product with a zero of the block-diagonal filter is NaN where the other group's pixel is NaN or
infinity.  So a kernel reports whether there was one, and ``repair_groups_kernel`` then computes all
outputs again, group by group and without tensor cores.  Where there was none, its programs end
after a look at the flags.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueOperands
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_run import DgradRun
from triton_ext.ops.kernels.epilogue import finish_tile, scale_and_shift

__all__ = ["MergedDgradPlan", "MergedFilter", "MergedPlan", "merged_filter"]

_BLOCK = 1024
_REPAIR_TILE = (64, 32)

# The bits of infinity: fp32 numbers without a sign that are larger as integers are NaN.
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def merge_filter_kernel(
    w_ptr,  # w [Co, TAPS, Ci / groups]
    merged_ptr,  # [rows, TAPS, FACTOR * GROUP_K]
    pixels_ptr,  # x or dy as dense elements, to look for NaN and infinity; None: nobody looks
    flags_ptr,  # int32, one per program that looks; one if none does; None for integers
    elements,  # of merged
    filter_programs,  # those that write merged, the first ones
    blocks,  # of BLOCK elements of pixels
    pixel_elements,  # in the last block
    TAPS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,  # rows of a group
    GROUP_K: tl.constexpr,  # K
    FACTOR: tl.constexpr,  # M
    IS_TURNED: tl.constexpr,  # rows are input channels, taps are counted from the last
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    if pixels_ptr is None and flags_ptr is not None:
        # A maximum of bits of fp32, which the convolution raises.
        tl.store(flags_ptr, 0, mask=program == 0)
    if program < filter_programs:
        offsets = program * BLOCK + tl.arange(0, BLOCK)
        channel = offsets % (FACTOR * GROUP_K)
        rest = offsets // (FACTOR * GROUP_K)
        tap = rest % TAPS
        row = rest // TAPS
        group = row // GROUP_ROWS
        is_own = (channel // GROUP_K == group % FACTOR) & (offsets < elements)
        if IS_TURNED:
            source = (group * GROUP_K + channel % GROUP_K) * TAPS + (TAPS - 1 - tap)
            source = source * GROUP_ROWS + row % GROUP_ROWS
        else:
            source = (row * TAPS + tap) * GROUP_K + channel % GROUP_K
        ZERO: tl.constexpr = 0 if w_ptr.dtype.element_ty.is_int() else 0.0
        weight = tl.load(w_ptr + source, mask=is_own, other=ZERO)
        tl.store(merged_ptr + offsets, weight, mask=offsets < elements)
    elif pixels_ptr is not None:
        looks = program - filter_programs
        found = tl.zeros((BLOCK,), dtype=tl.int32)
        for block in range(looks, blocks, tl.num_programs(0) - filter_programs):
            inside = tl.arange(0, BLOCK) < tl.where(block == blocks - 1, pixel_elements, BLOCK)
            pointers = pixels_ptr + tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
            pixels = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
            # Infinity without itself is NaN, and NaN is not itself.
            found = found | (pixels - pixels != 0).to(tl.int32)
        tl.store(flags_ptr + looks, tl.where(tl.max(found, axis=0) > 0, _NAN, 0))


@triton.jit
def repair_groups_kernel(
    flags_ptr,  # int32: bits of fp32, above those of infinity where outputs are computed again
    x_ptr,  # x or dy [N, pixels, channels], pixels of any stride, channels side by side
    w_ptr,  # w [Co, TAPS, Ci / groups]
    y_ptr,  # [M_GEMM, columns]
    bias_ptr,  # from here to out_scale_ptr: as for conv_fprop_kernel
    scale_ptr,
    tile_scale_ptr,
    residual_ptr,
    out_scale_ptr,
    flags,  # how many there are
    m_gemm,
    columns,  # output channels
    tiles,
    size,  # (d, h, w) of the input; 1 for dimensions that are not there, as in all of these
    out_size,
    step,  # output pixel i sees through tap t the pixel (i * step + t * dilation - low) / up
    up,
    low,
    dilation,
    strides,  # of the input, (n, d, h, w), in elements
    FLAGS: tl.constexpr,  # flags, rounded up to a power of two
    R: tl.constexpr,
    S: tl.constexpr,
    TAPS: tl.constexpr,
    GROUP_COLUMNS: tl.constexpr,  # output channels of a group
    GROUP_K: tl.constexpr,  # input channels of a group
    IS_TURNED: tl.constexpr,  # as in merge_filter_kernel
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DTYPE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
):
    numbers = tl.arange(0, FLAGS)
    worst = tl.max(tl.load(flags_ptr + numbers, mask=numbers < flags, other=0), axis=0)
    if worst > _INFINITY:
        image_pixels = out_size[0] * out_size[1] * out_size[2] if RESIDUAL_PER_IMAGE else None
        num_n = tl.cdiv(columns, BLOCK_N)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            row = tile // num_n * BLOCK_M
            column = tile % num_n * BLOCK_N
            rows = tl.cast(row, tl.int64) + tl.arange(0, BLOCK_M)
            offs_n = column + tl.arange(0, BLOCK_N)
            mask_n = offs_n < columns
            first_w = rows % out_size[2] * step[2] - low[2]
            rest = rows // out_size[2]
            first_h = rest % out_size[1] * step[1] - low[1]
            rest = rest // out_size[1]
            first_d = rest % out_size[0] * step[0] - low[0]
            images = x_ptr + rest // out_size[0] * strides[0]
            group = offs_n // GROUP_COLUMNS
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for tap in range(TAPS):
                d = first_d + tap // (R * S) * dilation[0]
                h = first_h + tap // S % R * dilation[1]
                w = first_w + tap % S * dilation[2]
                is_pixel = (rows < m_gemm) & (d % up[0] == 0) & (h % up[1] == 0) & (w % up[2] == 0)
                d, h, w = d // up[0], h // up[1], w // up[2]
                is_pixel = is_pixel & (d >= 0) & (h >= 0) & (w >= 0)
                is_pixel = is_pixel & (d < size[0]) & (h < size[1]) & (w < size[2])
                pixels = images + d * strides[1] + h * strides[2] + w * strides[3]
                mask = is_pixel[:, None] & mask_n[None, :]
                for k in range(GROUP_K):
                    if IS_TURNED:
                        source = (group * GROUP_K + k) * TAPS + (TAPS - 1 - tap)
                        source = source * GROUP_COLUMNS + offs_n % GROUP_COLUMNS
                    else:
                        source = (offs_n * TAPS + tap) * GROUP_K + k
                    channels = (group * GROUP_K + k)[None, :]
                    x = tl.load(pixels[:, None] + channels, mask=mask, other=0.0)
                    weight = tl.load(w_ptr + source, mask=mask_n, other=0.0)
                    acc += x.to(tl.float32) * weight.to(tl.float32)[None, :]
            if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
                acc = scale_and_shift(acc, offs_n, columns, bias_ptr, scale_ptr, tile_scale_ptr)
            finish_tile(
                acc, row, column, m_gemm, columns, columns, None, y_ptr, None, residual_ptr,
                image_pixels, out_scale_ptr, None, None, ACTIVATION, None, DTYPE,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFilter:
    """How the filter of merged groups is written, and outputs are repaired; holds no tensor.

    Attributes:
        shape: Of the merged filter, [rows, channels, *taps], torch's order.
        flags: Numbers that say whether outputs are to be repaired; 0 for integers.
        looks: Whether the kernel that writes the filter looks at the pixels.
        merging: Writes it.
        repairing: Computes outputs again; ``None`` for integers.
    """

    shape: tuple[int, ...]
    flags: int
    looks: bool
    merging: Launcher
    repairing: Launcher | None

    def merge(
        self, pixels: torch.Tensor, w_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the merged filter and the flags.

        Args:
            pixels: x or dy.
            w_rows: The filter [Co, *taps, Ci / groups], dense.
        """
        rows, channels, *taps = self.shape
        merged = torch.empty((rows, *taps, channels), device=w_rows.device, dtype=w_rows.dtype)
        flags = None
        if self.flags:
            flags = torch.empty((self.flags,), device=w_rows.device, dtype=torch.int32)
        looked_at = pixels if self.looks else None
        self.merging.launch((w_rows, merged, looked_at, flags), _alignment(w_rows, looked_at))
        return merged.movedim(-1, 1), flags

    def repair(
        self,
        flags: torch.Tensor | None,
        pixels: torch.Tensor,
        w_rows: torch.Tensor,
        out: torch.Tensor,
        others: tuple[torch.Tensor | None, ...] = (None,) * 5,
    ) -> None:
        """Computes the output again where a flag says so.

        Args:
            flags: As :meth:`merge` returns them; raised by the convolution where it reports.
            pixels: x or dy.
            w_rows: As for :meth:`merge`.
            out: The output, channels-last.
            others: Bias, scale, scale of one number, residual, output scale.
        """
        if self.repairing is not None:
            tensors = (pixels, w_rows, out, *others)
            self.repairing.launch((flags, *tensors), _alignment(*tensors))


def _alignment(*tensors: torch.Tensor | None) -> Hashable:
    """Returns what Triton specializes on."""
    return tuple(None if t is None else (t.dtype, t.data_ptr() % ROW_BYTES == 0) for t in tensors)


def merged_filter(
    case: Case, factor: int, device: Device, *, is_turned: bool, looks: bool
) -> MergedFilter:
    """Returns how the filter of a case is merged, where a gradient of the input may be fprop."""
    problem, is_gradient = case.problem, case.direction == "dgrad"
    groups, taps = problem.groups, problem.taps
    of_x, of_y = problem.in_channels // groups, problem.out_channels // groups
    rows, k = (of_x, of_y) if is_turned else (of_y, of_x)
    elements = rows * groups * taps * k * factor
    is_integer = not case.dtype.is_floating_point
    programs = math.ceil(elements / _BLOCK)
    read = math.prod(problem.y_shape if is_gradient else problem.x_shape)
    blocks = math.ceil(read / _BLOCK) if looks and not is_integer else 0
    lookers = min(math.ceil(blocks / 4), 8 * device.num_sms)
    flags = 0 if is_integer else max(lookers, 1)
    merging = Launcher(
        kernel=merge_filter_kernel,
        grid=(programs + lookers, 1, 1),
        scalars=(elements, programs, blocks, read - (blocks - 1) * _BLOCK),
        constants={
            "TAPS": taps,
            "GROUP_ROWS": rows,
            "GROUP_K": k,
            "FACTOR": factor,
            "IS_TURNED": is_turned,
            "BLOCK": _BLOCK,
        },
        options={"num_warps": 4},
    )
    return MergedFilter(
        shape=(rows * groups, k * factor, *problem.filter_size),
        flags=flags,
        looks=blocks > 0,
        merging=merging,
        repairing=None if is_integer else _repairing(case, flags, device),
    )


def _repairing(case: Case, flags: int, device: Device) -> Launcher:
    problem, is_gradient = case.problem, case.direction == "dgrad"
    groups, ones = problem.groups, (1,) * problem.dims
    channels, columns = problem.in_channels // groups, problem.out_channels // groups
    size, out_size, step, up = problem.input_size, problem.output_size, problem.stride, ones
    low = tuple(low for low, _ in problem.padding)
    strides = case.strides_of_x
    if is_gradient:
        channels, columns, size, out_size, step, up = columns, channels, out_size, size, up, step
        # Taps are counted from the last.
        low = tuple(
            (taps - 1) * dilation - before
            for taps, dilation, before in zip(
                problem.filter_size, problem.dilation, low, strict=True
            )
        )
        strides = case.strides_of_dy
    m_gemm = problem.batch * math.prod(out_size)
    block_m, block_n = _REPAIR_TILE
    tiles = math.ceil(m_gemm / block_m) * math.ceil(columns * groups / block_n)
    _, r, s = _three(problem.filter_size, 1)
    spec = case.epilogue
    return Launcher(
        kernel=repair_groups_kernel,
        grid=(min(tiles, 4 * device.num_sms), 1, 1),
        scalars=(
            flags,
            m_gemm,
            columns * groups,
            tiles,
            *(_three(each, 1) for each in (size, out_size, step, up)),
            _three(low, 0),
            _three(problem.dilation, 1),
            (strides[0], *_three(strides[2:], 0)),
        ),
        constants={
            "FLAGS": 1 << (flags - 1).bit_length(),
            "R": r,
            "S": s,
            "TAPS": problem.taps,
            "GROUP_COLUMNS": columns,
            "GROUP_K": channels,
            "IS_TURNED": is_gradient,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "DTYPE": TRITON_DTYPES[case.output_dtype],
            "ACTIVATION": spec.activation,
            "RESIDUAL_PER_IMAGE": spec.residual_per_image,
        },
        options={"num_warps": 4},
    )


def _three(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    return (missing,) * (3 - len(values)) + tuple(values)


@dataclass(frozen=True, slots=True)
class MergedPlan:
    """fprop, or a gradient of the input as fprop, over merged groups.

    Attributes:
        problem: The convolution, as it was asked for.
        inner: The plan of the merged groups.
        filter: How their filter is written.
    """

    problem: ConvProblem
    inner: Any
    filter: MergedFilter

    @property
    def config(self) -> Any:
        """That of the inner plan."""
        return self.inner.config

    @property
    def y_shape(self) -> tuple[int, ...]:
        """[N, Co, *output_size]."""
        return self.inner.y_shape

    @property
    def out_dtype(self) -> torch.dtype:
        """Of y."""
        return self.inner.out_dtype

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        return self.inner.launcher

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueOperands = NO_OPERANDS,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernels; as ``ForwardPlan.run``."""
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, operands, out)
        inner = self.inner
        y: torch.Tensor = inner._output(x.device) if out is None else inner._check_output(out)
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        merged, flags = self.filter.merge(x, w_rows)
        if inner.epilogue.amax:
            assert flags is not None
            amax = flags.view(torch.float32)
            operands = replace(operands, amax=amax, is_amax_zeroed=True)
        # Both read the same copies of operands that are not packed.
        bias, scale, one_scale, described, residual, out_scale, _, _ = (
            ForwardPlan._epilogue_arguments(inner, operands)
        )
        arguments, variant = inner.arguments(x, merged, y, operands)
        inner.launcher.launch(arguments, variant)
        residual = described.base if described is not None else residual
        self.filter.repair(flags, x, w_rows, y, (bias, scale, one_scale, residual, out_scale))
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedDgradPlan(DgradRun):
    """A gradient of the input over merged groups, tap by tap.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        inner: The plan of the merged groups.
        filter: How their filter is written.
    """

    problem: ConvProblem
    dtype: torch.dtype
    inner: Any
    filter: MergedFilter

    @property
    def config(self) -> Any:
        """That of the inner plan."""
        return self.inner.config

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        return self.inner.launcher

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return self.inner.stores_aligned

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        merged, flags = self.filter.merge(dy, w_rows)
        self.inner.launch(dy, merged, dx, bias)
        self.filter.repair(flags, dy, w_rows, dx, (bias, None, None, None, None))
