"""Forward convolution (fprop) on Hopper: how the warp-specialised Gluon kernel is launched.

The kernel is ``triton_ext.ops.kernels.gluon_conv``, the one that ``triton_ext.ops`` launches.  Its
module describes symbols, GEMM mapping, warp roles, barriers and timeline; copy from there,
together with ``gluon_pipeline.py`` beside it (the ring, WGMMA over a stage, stores) and
``families/gluon_config.py`` (the configuration).  Here are descriptors, the choice of a
configuration and the grid, for tensors that lie packed with channels last, x [N, (D, (H,)) W, Ci]
and w [Co, (T, (R,)) S, Ci].

``fprop_cluster.py`` is the kernel for clusters of two CTAs that share the filter by multicast; a
``ClusterConfig`` chooses it.

1-D, 2-D and 3-D with any stride, dilation and padding; fp16 and bf16, fp32 accumulation, stock
Triton 3.6 or newer, sm_90.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton_ext.errors import DescriptorError
from triton_ext.ops.core.epilogue import PLAIN, Operands
from triton_ext.ops.families.gemm_config import Product
from triton_ext.ops.families.gluon_config import CONFIGS, TileConfig, expected_times
from triton_ext.ops.kernels.gluon_conv import FpropProblem, conv_fprop_kernel

from .arguments import check_compile, check_parameters, check_tensors
from .fprop_cluster import NUM_CTAS, ClusterConfig, conv_fprop_cluster_kernel
from .fprop_cluster import descriptors as cluster_descriptors
from .launch import (
    Launcher,
    check_config,
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
    "CONFIGS",
    "FpropProblem",
    "choose_config",
    "compile_conv_fprop",
    "conv_fprop",
    "conv_fprop_kernel",
]


def _check_arguments(x: torch.Tensor, w: torch.Tensor, launcher: Launcher | None) -> None:
    """Refuses what the descriptors do not.

    Raises:
        DescriptorError: All that is wrong with the tensors.
    """
    channels = {"Ci": x.shape[-1], "Co": w.shape[0]}
    problems = operand_problems({"x": x, "w": w}, ("w",), channels, launcher)
    if not 3 <= x.ndim <= 5 or w.ndim != x.ndim or w.shape[-1] != x.shape[-1]:
        problems.append(
            f"x is {list(x.shape)} and w {list(w.shape)}: expected [N, (D, (H,)) W, Ci] and "
            "[Co, (T, (R,)) S, Ci]"
        )
    if problems:
        raise DescriptorError("; ".join(problems))


def choose_config(m_gemm: int, co: int, ci: int, taps: int, num_sms: int) -> TileConfig:
    """Returns the configuration that the model of ``triton_ext.ops`` expects to be fastest."""
    product = Product(pixels=m_gemm, columns=co, channels=ci, taps=(taps,))
    times = expected_times(product, num_sms)
    return min(times, key=lambda config: times[config].us)


def conv_fprop(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    *,
    config: TileConfig | None = None,
    launcher: Launcher | None = None,
) -> torch.Tensor:
    """Convolves.

    Args:
        x: [N, (D, (H,)) W, Ci], fp16 or bf16; Ci a multiple of 8.
        w: [Co, (T, (R,)) S, Ci], contiguous, of x's dtype; Co a multiple of 8.
        stride: 1 to 8; one int, or one per spatial dimension.
        padding: One int, one per spatial dimension, or (low, high) per spatial dimension.
        dilation: One int, or one per spatial dimension.
        config: How to compile; by default :func:`choose_config` chooses, never a ``ClusterConfig``.
        launcher: What is launched in place of the kernel: ``xnv.emulated`` runs it on CPU tensors.

    Returns:
        y [N, (out_d, (out_h,)) out_w, Co], contiguous.

    Raises:
        DescriptorError: TMA cannot express the convolution; everything that is wrong is listed.
        LaunchError: An argument has a wrong type, count or range; the configuration cannot run.
        UnsupportedError: A configuration for clusters needs Triton 3.8 or newer.
    """
    check_tensors(x=x, w=w)
    _check_arguments(x, w, launcher)
    check_parameters(
        x.ndim - 2, (TileConfig, ClusterConfig), config, launcher,
        stride=stride, padding=padding, dilation=dilation,
    )  # fmt: skip
    filter_size = tuple(w.shape[1:-1])
    co, ci, taps = w.shape[0], w.shape[-1], math.prod(filter_size)
    num_sms = multiprocessors(x.device)

    def describe(rows: int, block_k: int) -> Any:
        return im2col_descriptor(x, filter_size, stride, padding, dilation, [rows, block_k])

    # Everything but the block is the convolution's, so the geometry is known before the block is.
    x_desc = describe(64, 64)
    conv = x_desc.conv
    if config is None:
        config = choose_config(conv.m_gemm, co, ci, taps, num_sms)
    product = Product(pixels=conv.m_gemm, columns=co, channels=ci, taps=(taps,))
    check_config(config, product, num_sms)
    plain = is_plain_product(x, taps, conv)
    if plain:
        x_desc = matrix_descriptor(x, [config.rows, config.block_k])
    elif config.rows != 64 or config.block_k != 64:
        x_desc = describe(config.rows, config.block_k)
    y = torch.empty((x.shape[0], *conv.output_size, co), device=x.device, dtype=x.dtype)

    def w_desc(columns: int) -> Any:
        return filter_descriptor(w, [columns, 1, config.block_k])

    problem = FpropProblem.of(conv, conv.m_gemm, co, math.ceil(ci / config.block_k))
    if isinstance(config, ClusterConfig):
        geometry = None if plain else (filter_size, stride, padding, dilation)
        in_clusters = conv_fprop_cluster_kernel
        cluster_kernel = in_clusters if launcher is None else launcher(in_clusters)
        cluster_kernel[(product.programs(config, num_sms // NUM_CTAS),)](
            *cluster_descriptors(x, w, y, geometry, config), problem, config,
            num_warps=4, num_ctas=NUM_CTAS,
        )  # fmt: skip
        return y
    kernel = conv_fprop_kernel if launcher is None else launcher(conv_fprop_kernel)
    kernel[(product.programs(config, num_sms),)](
        x_desc,
        *[*map(w_desc, config.fprop_boxes), None][:2],
        matrix_descriptor(y, [config.rows, config.store_n]),
        Operands(),
        problem,
        config,
        PLAIN.finish,
        num_warps=4,
    )
    return y


def compile_conv_fprop(
    config: TileConfig, *, rank: int = 4, dtype: Any = gl.float16, capability: int = 90
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: How to compile.
        rank: Rank of x: 3, 4 or 5; 2 for a 1x1 filter, with which x is a matrix.
        dtype: Of x, w and y.
        capability: Compute capability times ten.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.

    Raises:
        LaunchError: All that is wrong with the arguments.
    """
    check_compile(TileConfig, config, rank, dtype, capability)
    block = [config.rows, config.block_k]
    spatial = ("i32",) * max(rank - 2, 1)
    signature: dict[str, Any] = {
        "x_desc": pixels_type(dtype, block, rank),
        "w_main_desc": tiled_type(dtype, [config.fprop_boxes[0], 1, config.block_k]),
        "w_rest_desc": tiled_type(dtype, [config.fprop_boxes[-1], 1, config.block_k]),
        "y_desc": tiled_type(dtype, config.y_block),
        "operands": Operands(*("constexpr",) * 7),
        "problem": FpropProblem(*("i32",) * 3, *(("i32",) * 3,) * 2, *(spatial,) * 3),
    }
    constants: dict[Any, Any] = {
        **dict.fromkeys((4, i) for i in range(7)),
        "CONFIG": config,
        "FINISH": PLAIN.finish,
    }
    if not config.block_n_rest:
        del signature["w_rest_desc"]
        constants["w_rest_desc"] = None
    return compile_kernel(conv_fprop_kernel, signature, constants, capability)
