"""Gradients of the filters of depthwise convolutions, without tensor cores and without atomics.

Symbols: x [N, ([D, ]H, )W, C], dy [N, ([out_d, ]out_h, )out_w, C], dw [C, T * R * S].  A position
is QW neighbouring pixels of a row of dy, as in ``kernels/depthwise.py``.

A program goes over a part of the positions, BLOCK_P at a time, for BLOCK_C channels and the taps of
LINES rows of the filter, TAPS of each: their sums stay in registers.  Each column of x that a
position reaches is loaded once per row of the filter.  What BLOCK_P threads found for a tap is
added at the end and written to a workspace [parts, T * R * S, C] in fp32; a second kernel adds the
parts, always in the same order.
"""

# Tuples of a kernel have no starred items.
# ruff: noqa: RUF005, SIM108
# mypy: disable-error-code="assignment"
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.compiling_ahead import compile_ahead
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise.config import DepthwiseWgradConfig, Walk, rank_wgrad
from triton_ext.ops.families.depthwise.plan import PixelStrides
from triton_ext.ops.kernels.depthwise_columns import columns_of, tap_of

__all__ = [
    "DepthwiseWgradPlan",
    "compile_depthwise_wgrad",
    "depthwise_reduce_kernel",
    "depthwise_wgrad_kernel",
    "wgrad_plan",
]

# Of the second kernel.
_PARTS_AT_A_TIME = 16
_CHANNELS = 64


@triton.jit
def depthwise_wgrad_kernel(
    x_ptr,
    dy_ptr,
    parts_ptr,  # fp32 [parts, T * R * S, C]
    positions,
    tiles_of_part,
    size_d,  # pixels of x; these per spatial dimension, None for dimensions that are not there
    size_h,
    size_w,
    out_d,
    out_h,
    out_w,
    groups_w,  # positions in a row
    low_d,
    low_h,
    low_w,
    x_stride_d,  # in pixels
    x_stride_h,
    x_stride_n,
    dy_stride_d,
    dy_stride_h,
    dy_stride_n,
    DIMS: tl.constexpr,
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    C: tl.constexpr,
    X_STRIDE_W: tl.constexpr,  # elements of a pixel
    DY_STRIDE_W: tl.constexpr,
    STRIDE_D: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    DILATION_D: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    IS_WIDE: tl.constexpr,  # offsets need 64 bits
    HAS_TAIL: tl.constexpr,  # a row's last position may reach over its end
    QW: tl.constexpr,
    LINES: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    NUM_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    TAP_CHUNKS: tl.constexpr = (S + TAPS - 1) // TAPS
    part = tl.program_id(0) // NUM_C
    channels = tl.program_id(0) % NUM_C * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = (channels < C)[None, :]
    first_line = tl.program_id(1) // TAP_CHUNKS * LINES
    first_tap = tl.program_id(1) % TAP_CHUNKS * TAPS

    accs = ()
    for _ in tl.static_range(LINES * TAPS):
        accs = accs + (tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32),)
    last = min((part + 1) * tiles_of_part, (positions + BLOCK_P - 1) // BLOCK_P)
    for tile in range(part * tiles_of_part, last):
        position = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        valid = position < positions
        first = position % groups_w * QW
        image = position // groups_w
        h = first
        d = first
        dy_pixel = first
        if DIMS > 1:
            h = image % out_h
            image = image // out_h
            dy_pixel += h * dy_stride_h
        if DIMS > 2:
            d = image % out_d
            image = image // out_d
            dy_pixel += d * dy_stride_d
        if IS_WIDE:
            image = image.to(tl.int64)
        column = first * STRIDE_W + (first_tap * DILATION_W - low_w)
        x_pixel = image * x_stride_n + column
        dy_pixel = dy_pixel + image * dy_stride_n
        width = (tl.zeros_like(column) + size_w).to(tl.uint32, bitcast=True)
        dy_from = dy_ptr + (dy_pixel * DY_STRIDE_W)[:, None] + channels[None, :]
        dys = ()
        for q in tl.static_range(QW):
            mask = valid & (first + q < out_w) if HAS_TAIL else valid
            dy = tl.load(dy_from + q * DY_STRIDE_W, mask=mask[:, None] & is_channel, other=0.0)
            dys = dys + (dy.to(tl.float32),)
        for line in tl.static_range(LINES):
            inside = valid
            pixels = x_pixel
            if DIMS > 1:
                row = h * STRIDE_H + ((first_line + line) % R * DILATION_H - low_h)
                inside = inside & (row >= 0) & (row < size_h)
                pixels = pixels + row * x_stride_h
            if DIMS > 2:
                plane = d * STRIDE_D + ((first_line + line) // R * DILATION_D - low_d)
                inside = inside & (plane >= 0) & (plane < size_d)
                pixels = pixels + plane * x_stride_d
            mask = inside[:, None] & is_channel
            x_from = x_ptr + (pixels * X_STRIDE_W)[:, None] + channels[None, :]
            sums = ()
            for tap in tl.static_range(TAPS):
                sums = sums + (accs[line * TAPS + tap],)
            for j in tl.static_range(columns_of(QW, TAPS, STRIDE_W, 1, DILATION_W, 0)):
                sums = _add_column(
                    sums, dys, x_from + j * X_STRIDE_W, mask, column + j, width, out_w - first,
                    j, QW, TAPS, STRIDE_W, DILATION_W, HAS_TAIL,
                )  # fmt: skip
            others = ()
            for i in tl.static_range(LINES * TAPS):
                if i // TAPS == line:
                    others = others + (sums[i % TAPS],)
                else:
                    others = others + (accs[i],)
            accs = others
    to = parts_ptr + (part * (T * R * S)).to(tl.int64) * C + channels
    for i in tl.static_range(LINES * TAPS):
        line = first_line + i // TAPS
        tap = first_tap + i % TAPS
        found = tl.sum(accs[i], axis=0)
        written = tl.where((line < T * R) & (tap < S), C, 0)
        tl.store(to + (line * S + tap) * C, found, mask=channels < written)


@triton.jit
def _add_column(
    sums,
    dys,
    x_from,
    mask,
    column,
    width,
    pixels_left,
    j: tl.constexpr,
    QW: tl.constexpr,
    TAPS: tl.constexpr,
    STRIDE: tl.constexpr,
    DILATION: tl.constexpr,
    HAS_TAIL: tl.constexpr,
):
    """Multiplies column j of positions by the pixels of dy that see it."""
    result = sums
    is_column = column.to(tl.uint32, bitcast=True) < width
    x = tl.load(x_from, mask=mask & is_column[:, None], other=0.0).to(tl.float32)
    for q in tl.static_range(QW):
        if tap_of(j, q, TAPS, STRIDE, 1, DILATION, 0) >= 0:
            more = ()
            for tap in tl.static_range(TAPS):
                if tap == tap_of(j, q, TAPS, STRIDE, 1, DILATION, 0):
                    added = tl.fma(x, dys[q], result[tap])
                    if HAS_TAIL:
                        # No zero for a pixel that is not there: infinity times zero is NaN.
                        added = tl.where((q < pixels_left)[:, None], added, result[tap])
                    more = more + (added,)
                else:
                    more = more + (result[tap],)
            result = more
    return result


@triton.jit
def depthwise_reduce_kernel(
    parts_ptr,  # fp32 [parts, TAPS, C]
    dw_ptr,  # [C, TAPS]
    parts,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    PARTS_AT_A_TIME: tl.constexpr,
    BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Adds the parts of a tap's gradient, in a fixed order."""
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    tap = tl.program_id(1)
    numbers = tl.arange(0, PARTS_AT_A_TIME)
    offsets = (numbers.to(tl.int64) * TAPS + tap)[:, None] * C + channels[None, :]
    acc = tl.zeros((PARTS_AT_A_TIME, BLOCK_C), dtype=tl.float32)
    for first in range(0, parts, PARTS_AT_A_TIME):
        mask = (first + numbers < parts)[:, None] & (channels < C)[None, :]
        acc += tl.load(parts_ptr + offsets, mask=mask, other=0.0)
        offsets += PARTS_AT_A_TIME * TAPS * C
    dw = tl.sum(acc, axis=0).to(DTYPE)
    tl.store(dw_ptr + channels * TAPS + tap, dw, mask=channels < C)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseWgradPlan:
    """A gradient of depthwise filters, of one geometry on one device.

    Attributes:
        problem: The convolution.
        config: The configuration.
        out_dtype: Of dw.
        parts: Into how many parts the positions are divided.
    """

    problem: ConvProblem
    config: DepthwiseWgradConfig
    out_dtype: torch.dtype
    parts: int
    _x: PixelStrides
    _dy: PixelStrides
    _launcher: Launcher
    _reducer: Launcher

    @property
    def workspace_elements(self) -> int:
        """Of all parts, fp32."""
        return self.parts * self.problem.taps * self.problem.in_channels

    def run(
        self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Launches the kernels.

        Args:
            x: [N, C, *input_size], of the layout that the plan was made for.
            dy: [N, C, *output_size], of the layout that the plan was made for.
            out: Where dw goes, of ``out_dtype``; written in place where it is dense.

        Returns:
            dw [C, 1, *filter_size], channels-last; ``out`` if given.

        Raises:
            ValueError: ``out`` has another shape or dtype.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, dy, out)
        shape = self.problem.w_shape
        if out is not None and (tuple(out.shape) != shape or out.dtype != self.out_dtype):
            raise ValueError(
                f"out: expected {list(shape)} of {self.out_dtype}, got {list(out.shape)} of "
                f"{out.dtype}"
            )
        dw = out
        if dw is None or not dw.is_contiguous() or dw.data_ptr() % ROW_BYTES:
            rows = torch.empty((*shape[:1], *shape[2:], 1), device=x.device, dtype=self.out_dtype)
            dw = rows.movedim(-1, 1)
        if self.problem.batch == 0:
            dw.zero_()
        else:
            for launcher, tensors in self.launches(x, dy, dw):
                launcher.launch(tensors, tuple(t.data_ptr() % ROW_BYTES == 0 for t in tensors))
        return dw if out is None or dw is out else out.copy_(dw)

    def launches(
        self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor
    ) -> list[tuple[Launcher, tuple[torch.Tensor, ...]]]:
        """Returns what is launched, in this order, with which tensors; ``dw`` is dense."""
        shape = (self.parts, self.problem.taps, self.problem.in_channels)
        parts = torch.empty(shape, device=x.device, dtype=torch.float32)
        rows = (self._x.rows(x), self._dy.rows(dy))
        return [(self._launcher, (*rows, parts)), (self._reducer, (parts, dw))]


def wgrad_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
    out_dtype: torch.dtype,
    device: Device,
    config: DepthwiseWgradConfig | None = None,
) -> DepthwiseWgradPlan:
    """Returns the plan of a gradient of depthwise filters; the arguments have been checked.

    Args:
        problem: The convolution.
        x_strides: Of x [N, C, *input_size], in elements.
        dy_strides: Of dy [N, C, *output_size], in elements.
        out_dtype: Of dw.
        device: The device.
        config: The configuration; ``None`` lets a model choose.
    """
    walk = Walk.forward(problem)
    if config is None:
        config = rank_wgrad(walk, device.num_sms)[0]
    x = PixelStrides.make(problem.x_shape, x_strides)
    dy = PixelStrides.make(problem.y_shape, dy_strides)
    parts, tiles = config.parts(walk, device.num_sms)
    channel_blocks = math.ceil(problem.in_channels / config.block_c)
    return DepthwiseWgradPlan(
        problem=problem,
        config=config,
        out_dtype=out_dtype,
        parts=parts,
        _x=x,
        _dy=dy,
        _launcher=Launcher(
            kernel=depthwise_wgrad_kernel,
            grid=(parts * channel_blocks, config.chunks(walk), 1),
            scalars=_scalars(config, walk, tiles, x.outer, dy.outer),
            constants=_constants(config, walk, x.pixel, dy.pixel),
            options={"num_warps": config.num_warps, "maxnreg": config.max_registers},
        ),
        _reducer=Launcher(
            kernel=depthwise_reduce_kernel,
            grid=(math.ceil(problem.in_channels / _CHANNELS), problem.taps, 1),
            scalars=(parts,),
            constants={
                "C": problem.in_channels,
                "TAPS": problem.taps,
                "PARTS_AT_A_TIME": _PARTS_AT_A_TIME,
                "BLOCK_C": _CHANNELS,
                "DTYPE": TRITON_DTYPES[out_dtype],
            },
            options={"num_warps": 4},
        ),
    )


def _constants(
    config: DepthwiseWgradConfig, walk: Walk, x_pixel: int, dy_pixel: int
) -> dict[str, Any]:
    ones = (1,) * (3 - walk.dims)
    names = zip(
        [f"{kind}_{letter}" for kind in ("STRIDE", "DILATION") for letter in "DHW"],
        (*ones, *walk.step, *ones, *walk.dilation),
        strict=True,
    )
    return {
        "DIMS": walk.dims,
        **dict(zip("TRS", (*ones, *walk.taps), strict=True)),
        "C": walk.channels,
        "X_STRIDE_W": x_pixel,
        "DY_STRIDE_W": dy_pixel,
        **dict(names),
        "IS_WIDE": walk.is_wide(max(x_pixel, dy_pixel), config.qw),
        "HAS_TAIL": walk.out_size[-1] % config.qw != 0,
        "QW": config.qw,
        "LINES": config.lines,
        "TAPS": config.taps,
        "BLOCK_P": config.block_p,
        "BLOCK_C": config.block_c,
    }


def _scalars(
    config: DepthwiseWgradConfig,
    walk: Walk,
    tiles: int,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
) -> tuple[int | None, ...]:
    (x_d, x_h, _), (dy_d, dy_h, _) = three((*x_strides[1:], 0)), three((*dy_strides[1:], 0))
    return (
        config.positions(walk),
        tiles,
        *three(walk.in_size),
        *three(walk.out_size),
        math.ceil(walk.out_size[-1] / config.qw),
        *three(walk.low),
        x_d,
        x_h,
        x_strides[0],
        dy_d,
        dy_h,
        dy_strides[0],
    )


def compile_depthwise_wgrad(
    config: DepthwiseWgradConfig, walk: Walk, capability: int, *, dtype: tl.dtype = tl.float16
) -> Any:
    """Compiles the first kernel ahead of time, without a GPU, for packed tensors.

    Args:
        config: The configuration.
        walk: Forward over x.
        capability: Compute capability of the target times ten: 90, 100.
        dtype: Of x and dy.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    constants = _constants(config, walk, walk.channels, walk.channels)
    for letter in "dh"[: 3 - walk.dims]:
        kinds = ("size", "out", "low", "x_stride", "dy_stride")
        constants |= dict.fromkeys(f"{kind}_{letter}" for kind in kinds)
    pointers = {"x_ptr": f"*{dtype}", "dy_ptr": f"*{dtype}", "parts_ptr": "*fp32"}
    return compile_ahead(
        depthwise_wgrad_kernel,
        pointers,
        constants,
        capability,
        num_warps=config.num_warps,
        maxnreg=config.max_registers,
    )
