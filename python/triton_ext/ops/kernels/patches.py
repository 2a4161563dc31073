"""Gradient of the input where patches do not overlap: one plain GEMM, stored patch by patch.

With a filter as large as its stride and no padding, as in front of a vision transformer, in the
stem of a ConvNeXt, or transposed in a decoder, every pixel of dx belongs to one patch at most.

Symbols: dy [N, out_d, out_h, out_w, Co], w [Co, T, R, S, Ci], dx [N, D, H, W, Ci], channels-last;
dimensions that a problem lacks come first, of one pixel.

GEMM mapping: M_GEMM = patches, N_GEMM = T * R * S * Ci, K_GEMM = Co.  The filter is [Co, N_GEMM] as
it lies in memory.  S * Ci columns of a row are neighbours in dx, and so are those of the next patch
beside it; they are stored through pointers, because a tile's patches are no box of any tensor.

Patches are counted to the end of dx, so that all of it is written: those that dy does not have are
zeros, whatever the filter holds.

The kernels of residue classes (``gemm_dgrad.py``) compute a tile of at least 16 columns per pixel
of a patch, of which Ci are used; this one is for few channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_ext.language as tle
from triton_ext import backends
from triton_ext.ops.core.descriptors import (
    ROUNDS_TO_TF32,
    ROW_BYTES,
    Layout,
    packed_strides,
    pixel_stride,
)
from triton_ext.ops.core.device import H200, IS_INTERPRETED, Device
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, DgradRun
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm_config import (
    ConvConfig,
    OutputTile,
    channel_block,
    expected_times,
)
from triton_ext.ops.kernels.row_copy import FilledChannels

__all__ = [
    "PatchDgradPlan",
    "compile_patch_dgrad",
    "has_patches",
    "make_plan",
    "patch_dgrad_kernel",
    "ranking",
]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")


@triton.jit
def patch_dgrad_kernel(
    dy_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of dy; tiled where DY_IS_MATRIX
    w_desc,  # tiled: [BLOCK_K, BLOCK_N] tiles of w [Co, T * R * ROW]; W_IS_NK: of its transpose
    dx_ptr,  # [N, D, H, W * Ci]
    bias_ptr,  # [Ci] or None
    m_gemm,
    walk_d,  # patches of dx, those at its end that are not whole among them
    walk_h,
    walk_w,
    out_d,  # patches of dy
    out_h,
    out_w,
    size_d,  # D
    size_h,  # H
    row_units,  # W * Ci in units of UNIT
    T: tl.constexpr,
    R: tl.constexpr,
    ROW: tl.constexpr,  # S * Ci
    CI: tl.constexpr,
    UNIT: tl.constexpr,  # a divisor of ROW and of W * Ci: 1 to 8
    CHANNEL_BLOCKS: tl.constexpr,  # cdiv(Co, BLOCK_K)
    DY_IS_MATRIX: tl.constexpr,
    W_IS_NK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DTYPE: tl.constexpr,  # of dx
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; DTYPE on every GPU
):
    COLUMNS: tl.constexpr = T * R * ROW
    num_n: tl.constexpr = (COLUMNS - 1) // BLOCK_N + 1
    num_m = (m_gemm - 1) // BLOCK_M + 1
    # Columns of the same patches one after another: dy comes from L2.
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        row = tile // num_n * BLOCK_M
        column = tile % num_n * BLOCK_N
        start = tle.im2col_start(row, (walk_d, walk_h, walk_w), (1, 1, 1), (0, 0, 0))
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(CHANNEL_BLOCKS):
            channel = block * BLOCK_K
            if DY_IS_MATRIX:
                dy = dy_desc.load([row, channel])
            else:
                dy = tle.load_im2col(
                    dy_desc, [start[0], start[1], start[2], start[3], channel], [0, 0, 0]
                )
            if W_IS_NK:
                weight = w_desc.load([column, channel])
                acc = tl.dot(dy.to(DOT_DTYPE), weight.to(DOT_DTYPE).T, acc)
            else:
                weight = w_desc.load([channel, column])
                acc = tl.dot(dy.to(DOT_DTYPE), weight.to(DOT_DTYPE), acc)
        offs_m = row + tl.arange(0, BLOCK_M)
        offs_n = column + tl.arange(0, BLOCK_N)
        q = offs_m % walk_w
        rest = offs_m // walk_w
        p_h = rest % walk_h
        rest = rest // walk_h
        p_d = rest % walk_d
        n = rest // walk_d
        is_patch = (q < out_w) & (p_h < out_h) & (p_d < out_d)
        values = tl.where(is_patch[:, None], acc, 0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + offs_n % CI, mask=offs_n < COLUMNS, other=0.0)
            values += bias.to(tl.float32)[None, :]
        # Multiples of UNIT are in or out together: the compiler sees it where all comes from them.
        unit = offs_n // UNIT
        r = unit // (ROW // UNIT) % R
        t = unit // (ROW // UNIT * R)
        reached = (q * (ROW // UNIT))[:, None] + (unit % (ROW // UNIT))[None, :] < row_units
        reached = reached & ((p_h * R)[:, None] + r[None, :] < size_h)
        reached = reached & ((p_d * T)[:, None] + t[None, :] < size_d)
        mask = reached & (offs_m < m_gemm)[:, None] & (unit < COLUMNS // UNIT)[None, :]
        image_row = (n.to(tl.int64) * size_d + p_d * T) * size_h + p_h * R
        first = image_row * row_units * UNIT + q.to(tl.int64) * ROW
        down = (t.to(tl.int64) * size_h + r) * row_units * UNIT
        tl.store(
            dx_ptr + first[:, None] + (down + offs_n % ROW)[None, :], values.to(DTYPE), mask=mask
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patches:
    """Sizes of patches; triples are (d, h, w).

    Attributes:
        taps: Of the filter, and steps of it.
        size: Pixels of dx.
        output: Patches of dy.
        channels: Ci.
    """

    taps: tuple[int, ...]
    size: tuple[int, ...]
    output: tuple[int, ...]
    channels: int

    @classmethod
    def of(cls, problem: ConvProblem) -> _Patches:
        ones = (1,) * (3 - problem.dims)
        return cls(
            taps=(*ones, *problem.filter_size),
            size=(*ones, *problem.input_size),
            output=(*ones, *problem.output_size),
            channels=problem.in_channels,
        )

    @property
    def walk(self) -> tuple[int, ...]:
        """Patches of dx, those at its end that are not whole among them."""
        return tuple(-(-size // taps) for size, taps in zip(self.size, self.taps, strict=True))

    @property
    def row(self) -> int:
        """S * Ci, elements of a row of a patch."""
        return self.taps[-1] * self.channels

    @property
    def columns(self) -> int:
        """T * R * S * Ci, elements of a patch."""
        return math.prod(self.taps) * self.channels

    @property
    def unit(self) -> int:
        """Elements of which rows of patches and rows of dx are multiples: 1 to 8."""
        return math.gcd(self.row, self.size[-1] * self.channels, 8)


def has_patches(problem: ConvProblem) -> bool:
    """Whether the filter's windows are patches beside each other, from the first pixel on.

    Args:
        problem: The convolution.
    """
    beside = problem.filter_size == problem.stride and problem.groups == 1
    unpadded = all(low == 0 for low, _ in problem.padding)
    dense = all(
        taps == 1 or step == 1
        for taps, step in zip(problem.filter_size, problem.dilation, strict=True)
    )
    # Patches that begin in padding behind x would be patches that dx has not.
    inside = all(
        out * taps <= size
        for out, taps, size in zip(
            problem.output_size, problem.filter_size, problem.input_size, strict=True
        )
    )
    return beside and unpadded and dense and inside and problem.taps > 1


def ranking(problem: ConvProblem, dtype: torch.dtype, device: Device) -> dict[ConvConfig, float]:
    """Returns the configurations that fit, by the microseconds that the model expects.

    Args:
        problem: One that :func:`has_patches`.
        dtype: Of dy, weight and dx.
        device: The device.
    """
    patches = _Patches.of(problem)
    co, m_gemm = problem.out_channels, problem.batch * math.prod(patches.walk)
    times = expected_times(
        m_gemm,
        patches.columns,
        co,
        1,
        device.num_sms,
        element_bytes=dtype.itemsize,
        block_k=channel_block(co, dtype.itemsize, 1),
        output=OutputTile(element_bytes=dtype.itemsize, through_pointers=True, whole=True),
        available_bytes=device.smem_bytes,
    )
    # Without reuse: dy is read once, dx written.
    elements = math.prod(problem.y_shape) + math.prod(problem.x_shape)
    least_us = H200.launch_us + elements * dtype.itemsize / H200.copy_bytes_per_us
    found = {config: max(us, least_us) for config, us in times.items()}
    return dict(sorted(found.items(), key=lambda item: item[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchDgradPlan(DgradRun):
    """The gradient of the input of one geometry on one device; holds no tensor.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        config: The tile configuration.
        dy_desc: im2col descriptor of dy [N, out_d, out_h, out_w, Co], without memory.
        dy_row_stride: Distance of two of its pixels where it is read as a matrix, else None.
        launcher: The kernel with all that is fixed.
    """

    problem: ConvProblem
    dtype: torch.dtype
    config: ConvConfig
    dy_desc: Any
    dy_row_stride: int | None
    launcher: Launcher
    _fill: FilledChannels = field(init=False)

    def __post_init__(self) -> None:
        unit = ROW_BYTES // self.dtype.itemsize
        missing_co = -self.problem.out_channels % unit
        is_nk = self.dtype == torch.float32
        missing_of_w = missing_co if is_nk else -_Patches.of(self.problem).columns % unit
        object.__setattr__(self, "_fill", FilledChannels(missing_co, missing_of_w))

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return False

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        problem = self.problem
        to_last = TO_LAST[problem.dims]
        ones = (1,) * (3 - problem.dims)
        dy_rows = dy.permute(to_last).unflatten(0, (-1, *ones)) if ones else dy.permute(to_last)
        w_rows = weight.permute(to_last).reshape(problem.out_channels, -1)
        if self.dtype == torch.float32:
            w_rows = w_rows.t()
        dy_rows, w_rows = self._fill.fill(dy_rows, w_rows)
        tensors = (self._dy_descriptor(dy_rows), self._w_descriptor(w_rows), dx, bias)
        variant = (
            dx.data_ptr() % ROW_BYTES == 0,
            None if bias is None else (bias.dtype, bias.data_ptr() % ROW_BYTES == 0),
        )
        self.launcher.launch(tensors, variant)

    def _dy_descriptor(self, rows: torch.Tensor) -> Any:
        # Also where it is not used: it checks the address.
        dy_desc = self.dy_desc.with_base(rows)
        if self.dy_row_stride is None:
            return dy_desc
        shape = [math.prod(rows.shape[:-1]), rows.shape[-1]]
        block = [self.config.block_m, self.config.block_k]
        return TensorDescriptor(rows, shape, [self.dy_row_stride, 1], block, **self._rounding)

    def _w_descriptor(self, rows: torch.Tensor) -> TensorDescriptor:
        config = self.config
        block = [config.block_k, config.block_n]
        if self.dtype == torch.float32:
            block = [config.block_n, config.block_k]
        rows = rows.contiguous()
        if rows.data_ptr() % ROW_BYTES:
            rows = rows.clone()
        return TensorDescriptor(rows, [*rows.shape], [rows.shape[1], 1], block, **self._rounding)

    @property
    def _rounding(self) -> dict[str, bool]:
        if ROUNDS_TO_TF32 and self.dtype == torch.float32:
            return {"round_f32_to_tf32": True}
        return {}


def make_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    config: ConvConfig,
) -> PatchDgradPlan:
    """Returns the plan of a gradient of the input; arguments were checked.

    Args:
        problem: One that :func:`has_patches`.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx: float16, bfloat16 or float32.
        device: The device.
        config: One of :func:`ranking`.
    """
    patches = _Patches.of(problem)
    co, walk = problem.out_channels, patches.walk
    missing = -co % (ROW_BYTES // dtype.itemsize)
    shape = (problem.batch, *patches.output, co + missing)
    strides = packed_strides(shape)
    if not missing:
        inner = (*dy_strides[2:], dy_strides[1])
        # Strides of dimensions of one pixel mean nothing: as a tensor's view has them.
        outer = (patches.output[-problem.dims] * inner[0],) * (3 - problem.dims)
        strides = (dy_strides[0], *outer, *inner)
    dy_desc = Im2ColDescriptor(
        Layout(shape, strides, dtype),
        shape,
        strides,
        [config.block_m, config.block_k],
        pixel_box_lower_corner=[0, 0, 0],
        pixel_box_upper_corner=[
            all_of - whole for all_of, whole in zip(walk, patches.output, strict=True)
        ],
        round_f32_to_tf32=dtype == torch.float32,
    )
    row_stride = pixel_stride(dy_desc.geometry) if walk == patches.output else None
    m_gemm = problem.batch * math.prod(walk)
    tiles = math.ceil(m_gemm / config.block_m) * math.ceil(patches.columns / config.block_n)
    row_units = patches.size[-1] * patches.channels // patches.unit
    triton_dtype = _DTYPES[dtype]
    return PatchDgradPlan(
        problem=problem,
        dtype=dtype,
        config=config,
        dy_desc=dy_desc,
        dy_row_stride=row_stride,
        launcher=Launcher(
            kernel=patch_dgrad_kernel,
            grid=(min(tiles, device.num_sms), 1, 1),
            scalars=(m_gemm, *walk, *patches.output, *patches.size[:2], row_units),
            constants=_constants(patches, config, triton_dtype, co, row_stride is not None),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
    )


_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


def _constants(
    patches: _Patches, config: ConvConfig, dtype: tl.dtype, co: int, is_matrix: bool
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters."""
    t, r, _ = patches.taps
    return {
        "T": t,
        "R": r,
        "ROW": patches.row,
        "CI": patches.channels,
        "UNIT": patches.unit,
        "CHANNEL_BLOCKS": math.ceil(co / config.block_k),
        "DY_IS_MATRIX": is_matrix,
        "W_IS_NK": dtype == tl.float32,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "DTYPE": dtype,
        # Triton's interpreter multiplies the bits of bf16 operands as integers (3.6 to 3.9).
        "DOT_DTYPE": tl.float32 if IS_INTERPRETED else dtype,
    }


def compile_patch_dgrad(
    config: ConvConfig,
    problem: ConvProblem,
    capability: int,
    *,
    dtype: tl.dtype = tl.float16,
    is_matrix: bool = True,
    has_bias: bool = False,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU; its pointers are 16-byte aligned.

    Args:
        config: The tile configuration.
        problem: One that :func:`has_patches`; its channels and filter are compiled in.
        capability: Compute capability of the target times ten: 90, 100.
        dtype: Of dy, w and dx.
        is_matrix: Whether dy is read as a matrix.
        has_bias: Whether a bias is added.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    constants = _constants(_Patches.of(problem), config, dtype, problem.out_channels, is_matrix)
    m, n, k = config.block_m, config.block_n, config.block_k
    tensors = {
        "dy_desc": f"tensordesc<{dtype}[{m}, {k}]>",
        "w_desc": f"tensordesc<{dtype}{[n, k] if dtype == tl.float32 else [k, n]}>",
        "dx_ptr": f"*{dtype}",
    }
    if has_bias:
        tensors["bias_ptr"] = f"*{dtype}"
    else:
        constants["bias_ptr"] = None
    names = patch_dgrad_kernel.arg_names
    signature = {
        name: tensors.get(name, "constexpr" if name in constants else "i32") for name in names
    }
    return triton.compile(
        ASTSource(
            patch_dgrad_kernel,
            signature,
            constexprs=constants,
            attrs={(names.index("dx_ptr"),): [["tt.divisibility", 16]]},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
