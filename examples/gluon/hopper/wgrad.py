"""Gradient of a convolution's filter (wgrad) on Hopper: how the Gluon kernel is launched.

The kernel is ``triton_ext.ops.kernels.gluon_wgrad``, the one that ``triton_ext.ops`` launches: its
module opens with symbols, GEMM mapping, warp roles, barriers and a timeline, and is what to copy
from.  Here are descriptors, the choice of a configuration and the grid, for tensors that lie packed
with channels last, x [N, (D, (H,)) W, Ci] and dy [N, (out_d, (out_h,)) out_w, Co].

1-D, 2-D and 3-D with any stride, dilation and padding.  fp16 and bf16, fp32 accumulation, the same
bits in every run; stock Triton 3.6 or newer, sm_90.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton_ext.errors import DescriptorError, LaunchError
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.launcher import zeroed_flags
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gluon_wgrad import (
    GLUON_WGRAD,
    WgradTileChoice,
    WgradTileConfig,
    reduction_of,
    tile_refusals,
)
from triton_ext.ops.kernels.gemm_wgrad import BLOCK_C
from triton_ext.ops.kernels.gluon_wgrad import WgradProblem, conv_wgrad_kernel, reduce_kernel

from .arguments import check_compile, check_parameters, check_tensors
from .launch import (
    Launcher,
    compile_kernel,
    filter_descriptor,
    im2col_descriptor,
    is_plain_product,
    matrix_descriptor,
    multiprocessors,
    operand_problems,
    pixels_type,
    tiled_type,
)

__all__ = [
    "WgradProblem",
    "compile_conv_wgrad",
    "compile_reduce",
    "conv_wgrad",
    "conv_wgrad_kernel",
]


def _check_arguments(x: torch.Tensor, dy: torch.Tensor, launcher: Launcher | None) -> None:
    """Refuses what the descriptors do not.

    Raises:
        DescriptorError: All that is wrong with the tensors.
    """
    channels = {"Ci": x.shape[-1], "Co": dy.shape[-1]}
    problems = operand_problems({"x": x, "dy": dy}, ("dy",), channels, launcher)
    if not 3 <= x.ndim <= 5 or dy.ndim != x.ndim or dy.shape[0] != x.shape[0]:
        problems.append(
            f"x is {list(x.shape)} and dy {list(dy.shape)}: expected [N, (D, (H,)) W, Ci] and "
            "[N, (out_d, (out_h,)) out_w, Co]"
        )
    if problems:
        raise DescriptorError("; ".join(problems))


def conv_wgrad(
    x: torch.Tensor,
    dy: torch.Tensor,
    filter_size: tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    *,
    config: WgradTileConfig | None = None,
    add_in_place: bool = False,
    launcher: Launcher | None = None,
) -> torch.Tensor:
    """Returns the gradient of a convolution's filter.

    Args:
        x: [N, (D, (H,)) W, Ci], fp16 or bf16; Ci a multiple of 8.
        dy: [N, (out_d, (out_h,)) out_w, Co], contiguous, of x's dtype; Co a multiple of 8.
        filter_size: Taps per spatial dimension.
        stride: 1 to 8; one int, or one per spatial dimension.
        padding: One int, one per spatial dimension, or (low, high) per spatial dimension.
        dilation: One int, or one per spatial dimension.
        config: How to compile; by default the first of
            ``GLUON_WGRAD.candidates``.
        add_in_place: With a configuration: which kernel adds the parts of a tile.
        launcher: What is launched in place of a kernel: ``xnv.emulated`` runs it on CPU tensors.

    Returns:
        dw [Co, (T, (R,)) S, Ci], contiguous.

    Raises:
        DescriptorError: TMA cannot express the convolution, or dy is not of its size.
        LaunchError: An argument has a wrong type, count or range; the configuration cannot run.
    """
    check_tensors(x=x, dy=dy)
    _check_arguments(x, dy, launcher)
    check_parameters(
        x.ndim - 2, (WgradTileConfig,), config, launcher, sizes=("filter_size", filter_size),
        stride=stride, padding=padding, dilation=dilation,
    )  # fmt: skip
    co, ci, taps = dy.shape[-1], x.shape[-1], math.prod(filter_size)

    def describe(pixels: int) -> Any:
        return im2col_descriptor(x, filter_size, stride, padding, dilation, [pixels, BLOCK_C])

    # Everything but the block is the convolution's, so the geometry is known before the block is.
    x_desc = describe(64)
    conv = x_desc.conv
    if tuple(dy.shape[1:-1]) != tuple(conv.output_size):
        raise DescriptorError(f"dy has {tuple(dy.shape[1:-1])} pixels, expected {conv.output_size}")
    problem = ConvProblem(
        batch=x.shape[0],
        in_channels=ci,
        out_channels=co,
        input_size=tuple(x.shape[1:-1]),
        filter_size=tuple(filter_size),
        stride=tuple(conv.stride),
        padding=tuple(conv.padding),
        dilation=tuple(conv.dilation),
    )
    num_sms = multiprocessors(x.device)
    if config is None:
        case = Case(direction="wgrad", problem=problem, dtype=x.dtype)
        choice = next(iter(GLUON_WGRAD.candidates(case, Device(num_sms, (9, 0), SMEM_BYTES))))
    else:
        choice = WgradTileChoice(config=config, add_in_place=add_in_place)
    work = choice.tiles(problem, num_sms)
    if found := (*choice.refusals(), *tile_refusals(work)):
        raise LaunchError(f"configuration {work}: " + "; ".join(map(str, found)))
    config = work.config
    block = [config.pixels, BLOCK_C]
    if is_plain_product(x, taps, conv):
        x_desc = matrix_descriptor(x, block)
    elif config.pixels != 64:
        x_desc = describe(config.pixels)
    dw = torch.empty((co, *filter_size, ci), device=x.device, dtype=x.dtype)
    partial = torch.empty(max(work.workspace_elements, 4), device=x.device, dtype=torch.float32)
    told = WgradProblem.make(work, problem)
    kernel = conv_wgrad_kernel if launcher is None else launcher(conv_wgrad_kernel)
    kernel[(work.partition.programs,)](
        x_desc,
        matrix_descriptor(dy, block),
        filter_descriptor(dw, [BLOCK_C, 1, BLOCK_C]),
        partial,
        zeroed_flags(x.device, work.partition.programs * config.consumers),
        told,
        config,
        num_warps=4,
    )
    if work.split_tiles and not work.add_in_place:
        blocks = config.row_blocks * config.column_blocks
        parts, columns, num_warps = reduction_of(work.parts, blocks * work.split_tiles)
        grid = (blocks * 4 * (BLOCK_C // columns), work.split_tiles)
        # Starts while the first kernel's last CTAs run.  Not earlier: its CTAs would all gather on
        # multiprocessors that the first kernel leaves free, if any.
        second = reduce_kernel if launcher is None else launcher(reduce_kernel)
        second[grid](
            partial, dw, told, config, columns, parts, num_warps=num_warps, launch_pdl=True
        )
    return dw


def compile_conv_wgrad(
    config: WgradTileConfig, *, rank: int = 4, dtype: Any = gl.float16, capability: int = 90
) -> Any:
    """Compiles the first kernel ahead of time, without a GPU.

    Args:
        config: How to compile.
        rank: Rank of x: 3, 4 or 5; 2 for a 1x1 filter, with which x is a matrix.
        dtype: Of x, dy and dw.
        capability: Compute capability times ten.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.

    Raises:
        LaunchError: All that is wrong with the arguments.
    """
    check_compile(WgradTileConfig, config, rank, dtype, capability)
    block = [config.pixels, BLOCK_C]
    signature = {
        "x_desc": pixels_type(dtype, block, rank),
        "dy_desc": tiled_type(dtype, block),
        "partial_ptr": "*fp32",
        "flag_ptr": "*i32",
        "dw_desc": tiled_type(dtype, [BLOCK_C, 1, BLOCK_C]),
        "problem": problem_type(max(rank - 2, 1)),
    }
    return compile_kernel(conv_wgrad_kernel, signature, {"CONFIG": config}, capability)


def compile_reduce(
    config: WgradTileConfig,
    parts: int,
    *,
    blocks: int = 64,
    dtype: Any = gl.float16,
    capability: int = 90,
) -> Any:
    """Compiles the second kernel ahead of time, as :func:`compile_conv_wgrad` does the first.

    Args:
        config: How the first kernel is compiled.
        parts: Parts of a tile.
        blocks: Blocks of all tiles that are split.
        dtype: Of dw.
        capability: Compute capability times ten.

    Raises:
        LaunchError: All that is wrong with the arguments.
    """
    check_compile(WgradTileConfig, config, 4, dtype, capability, parts=parts, blocks=blocks)
    part, columns, num_warps = reduction_of(parts, blocks)
    signature = {"partial_ptr": "*fp32", "dw_ptr": f"*{dtype}", "problem": problem_type(2)}
    constants = {"CONFIG": config, "COLUMNS": columns, "PARTS": part}
    return compile_kernel(reduce_kernel, signature, constants, capability, num_warps)


def problem_type(spatial_rank: int) -> WgradProblem:
    """Returns how a signature spells the problem."""
    spatial = ("i32",) * spatial_rank
    return WgradProblem(*("i32",) * 10, *(("i32",) * 3,) * 2, *(spatial,) * 3)
