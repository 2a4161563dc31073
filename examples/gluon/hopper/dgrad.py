"""Gradient of a convolution's input (dgrad) on Hopper: how the Gluon kernel is launched.

The kernel is ``triton_ext.ops.kernels.gluon_conv``, the one that ``triton_ext.ops`` launches.  Its
module describes symbols, stride phases, GEMM mapping, warp roles and stores; copy from there.
Here are descriptors, the choice of a configuration and the grid, for tensors that lie packed with
channels last, dy [N, (out_d, (out_h,)) out_w, Co] and w [Co, (T, (R,)) S, Ci].

1-D, 2-D and 3-D with any stride, dilation and padding, in one launch, without atomics and without
zeros written between pixels.  fp16 and bf16, fp32 accumulation, stock Triton 3.6 or newer, sm_90.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton_ext.errors import DescriptorError, LaunchError
from triton_ext.gluon import nvidia as xnv
from triton_ext.ops.core.epilogue import Operands
from triton_ext.ops.core.stride_phases import StridePhases, phase_refusals, phase_taps
from triton_ext.ops.families.gemm_config import Product
from triton_ext.ops.families.gluon_config import TileConfig, expected_times
from triton_ext.ops.kernels.gemm import DgradProblem, Phases
from triton_ext.ops.kernels.gluon_conv import conv_dgrad_kernel

from .arguments import check_compile, check_parameters, check_tensors, steps_of
from .launch import (
    Launcher,
    check_config,
    compile_kernel,
    filter_descriptor,
    matrix_descriptor,
    multiprocessors,
    operand_problems,
    per_dim,
    pixels_type,
    tiled_type,
)

__all__ = [
    "DgradProblem",
    "choose_config",
    "compile_conv_dgrad",
    "conv_dgrad",
    "conv_dgrad_kernel",
]


def _check_arguments(dy: torch.Tensor, w: torch.Tensor, launcher: Launcher | None) -> None:
    """Refuses what the descriptors do not.

    Raises:
        DescriptorError: All that is wrong with the tensors.
    """
    channels = {"Ci": w.shape[-1], "Co": w.shape[0]}
    problems = operand_problems({"dy": dy, "w": w}, ("dy", "w"), channels, launcher)
    if not 3 <= dy.ndim <= 5 or w.ndim != dy.ndim or w.shape[0] != dy.shape[-1]:
        problems.append(
            f"dy is {list(dy.shape)} and w {list(w.shape)}: expected "
            "[N, (out_d, (out_h,)) out_w, Co] and [Co, (T, (R,)) S, Ci]"
        )
    if problems:
        raise DescriptorError("; ".join(map(str, problems)))


@functools.lru_cache(maxsize=1024)
def _walk_template(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    corners: tuple[tuple[int, int], ...],
    rows: int,
    block_k: int,
) -> Any:
    """Returns the descriptor of dy without memory; the corners are per spatial dimension."""
    stand_in = torch.empty(shape, dtype=dtype, device="meta")
    return xnv.TensorDescriptorIm2Col.from_tensor(
        stand_in,
        [rows, block_k],
        pixel_box_lower_corner=[lower for lower, _ in corners],
        pixel_box_upper_corner=[upper for _, upper in corners],
    )


def product_of(dims: list[StridePhases], n: int, ci: int, co: int) -> Product:
    """Returns the product that a convolution of n images is."""
    pixels, taps, repeats = phase_taps(dims)
    return Product(
        pixels=n * pixels, columns=ci, channels=co, taps=taps, repeats=repeats, is_dgrad=True
    )


def choose_config(dims: list[StridePhases], n: int, ci: int, co: int, num_sms: int) -> TileConfig:
    """Returns the configuration that the model of ``triton_ext.ops`` expects to be fastest."""
    times = expected_times(product_of(dims, n, ci, co), num_sms)
    return min(times, key=lambda config: times[config].us)


def conv_dgrad(
    dy: torch.Tensor,
    w: torch.Tensor,
    input_size: tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    *,
    config: TileConfig | None = None,
    launcher: Launcher | None = None,
) -> torch.Tensor:
    """Returns the gradient of a convolution's input.

    Args:
        dy: [N, (out_d, (out_h,)) out_w, Co], contiguous, fp16 or bf16; Co a multiple of 8.
        w: [Co, (T, (R,)) S, Ci], contiguous, of dy's dtype; Ci a multiple of 8.
        input_size: Pixels of the input per spatial dimension.
        stride: One int, or one per spatial dimension.
        padding: In front of each dimension: one int, or one per spatial dimension.  What is behind
            follows from the sizes.  Not negative.
        dilation: One int, or one per spatial dimension.
        config: How to compile; by default :func:`choose_config` chooses.
        launcher: What is launched in place of the kernel: ``xnv.emulated`` runs it on CPU tensors.

    Returns:
        dx [N, (D, (H,)) W, Ci], contiguous.

    Raises:
        DescriptorError: TMA cannot express the convolution, or int32 does not count its tiles.
        LaunchError: An argument has a wrong type, count or range; the configuration cannot run.
    """
    check_tensors(dy=dy, w=w)
    _check_arguments(dy, w, launcher)
    check_parameters(
        dy.ndim - 2, (TileConfig,), config, launcher, sizes=("input_size", input_size),
        stride=stride, padding=padding, dilation=dilation, has_sides=False, least_padding=0,
    )  # fmt: skip
    rank = dy.ndim - 2
    co, ci = w.shape[0], w.shape[-1]
    dims = [
        StridePhases(size=size, taps=taps, stride=step, dilation=distance, low=low)
        for size, taps, step, distance, low in zip(
            input_size,
            w.shape[1:-1],
            per_dim(stride, rank),
            per_dim(dilation, rank),
            per_dim(padding, rank),
            strict=True,
        )
    ]
    problems = phase_refusals(dims, dy.shape[1:-1], dy.shape[0], ci)
    if problems:
        raise DescriptorError("; ".join(map(str, problems)))
    classes = math.prod(dim.stride for dim in dims)
    product = product_of(dims, dy.shape[0], ci, co)
    num_sms = multiprocessors(dy.device)
    if config is None:
        config = choose_config(dims, dy.shape[0], ci, co, num_sms)
    taps = math.prod(w.shape[1:-1])
    check_config(config, product, num_sms)
    dx = torch.empty((dy.shape[0], *input_size, ci), device=dy.device, dtype=dy.dtype)
    corners = tuple(
        (dim.lower, dim.lower + dim.phase_size - out)
        for dim, out in zip(dims, dy.shape[1:-1], strict=True)
    )
    kept = _walk_template(tuple(dy.shape), dy.dtype, corners, config.rows, config.block_k)
    dy_desc = xnv.with_base(kept, dy)
    same_pixels = tuple(dy.shape[1:-1]) == tuple(input_size) and not any(dim.low for dim in dims)
    if taps == classes == 1 and same_pixels:
        dy_desc = matrix_descriptor(dy, [config.rows, config.block_k])

    def w_desc(columns: int) -> Any:
        return filter_descriptor(w, [config.block_k, 1, columns])

    problem = DgradProblem.of(dims, dy.shape[0], ci, math.ceil(co / config.block_k))
    kernel = conv_dgrad_kernel if launcher is None else launcher(conv_dgrad_kernel)
    kernel[(product.programs(config, num_sms),)](
        dy_desc,
        w_desc(config.block_n_main),
        w_desc(config.block_n_rest) if config.block_n_rest else None,
        matrix_descriptor(dx, [config.rows, config.store_n]),
        dx,
        Operands(),
        problem,
        config,
        Phases.of(dims),
        num_warps=4,
    )
    return dx


def compile_conv_dgrad(
    config: TileConfig,
    *,
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
    rank: int = 4,
    dtype: Any = gl.float16,
    capability: int = 90,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: How to compile.
        stride: One int, or one per spatial dimension.  1 where the configuration keeps the filter,
            and for a matrix.
        dilation: As stride, of any size.
        rank: Rank of dy: 3, 4 or 5; 2 for a 1x1 filter, with which dy is a matrix.
        dtype: Of dy, w and dx.
        capability: Compute capability times ten.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.

    Raises:
        LaunchError: All that is wrong with the arguments.
    """
    check_compile(TileConfig, config, rank, dtype, capability)
    strides, dilations = steps_of(rank, stride=stride, dilation=dilation)
    if rank == 2 and stride != 1:
        raise LaunchError(f"stride is {stride}: expected 1 for a matrix, rank 2")
    if config.filter_steps and any(step != 1 for step in strides):
        raise LaunchError(
            f"configuration {config}: filter_steps is {config.filter_steps}, with a stride no "
            "filter stays in shared memory"
        )
    dims = [
        StridePhases(size=1, taps=1, stride=step, dilation=distance, low=0)
        for step, distance in zip(strides, dilations, strict=True)
    ]
    problems = phase_refusals(dims, (1,) * len(dims), 1, 1) if dims else []
    if problems:
        raise LaunchError("; ".join(map(str, problems)))
    signature: dict[str, Any] = {
        "dy_desc": pixels_type(dtype, [config.rows, config.block_k], rank),
        "w_main_desc": tiled_type(dtype, [config.block_k, 1, config.block_n_main]),
        "w_rest_desc": tiled_type(dtype, [config.block_k, 1, config.block_n_rest]),
        "dx_desc": tiled_type(dtype, [config.rows, config.store_n]),
        "dx_ptr": f"*{dtype}",
        "operands": Operands(*("constexpr",) * 7),
        "problem": DgradProblem(*("i32",) * 3, *(("i32",) * 3,) * 6),
    }
    constants: dict[Any, Any] = {
        **dict.fromkeys((5, i) for i in range(7)),
        "CONFIG": config,
        "PHASES": Phases.of(dims),
    }
    if not config.block_n_rest:
        del signature["w_rest_desc"]
        constants["w_rest_desc"] = None
    return compile_kernel(conv_dgrad_kernel, signature, constants, capability)
