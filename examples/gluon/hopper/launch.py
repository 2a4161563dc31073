"""Shared code of the convolution launchers: checks, descriptors, compiling ahead."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton_ext.errors import LaunchError
from triton_ext.gluon import nvidia as xnv
from triton_ext.ops.families.gemm_config import Product
from triton_ext.ops.families.gluon_config import TileConfig
from triton_ext.ops.kernels.gluon_pipeline import smem_layout

__all__ = [
    "Launcher",
    "check_config",
    "compile_kernel",
    "filter_descriptor",
    "im2col_descriptor",
    "is_plain_product",
    "matrix_descriptor",
    "multiprocessors",
    "operand_problems",
    "per_dim",
    "pixels_type",
    "tiled_type",
]


#: Makes of a kernel what is launched in its place: ``xnv.emulated``, for CPU tensors.
Launcher = Callable[[Any], Any]

# CTAs of a launch on CPU tensors at most: few, so that each computes several tiles.
_EMULATED_MULTIPROCESSORS = 4


def operand_problems(
    operands: Mapping[str, torch.Tensor],
    packed: Iterable[str],
    channels: Mapping[str, int],
    launcher: Launcher | None,
) -> list[str]:
    """Returns what the descriptors would not refuse by themselves; nothing where all is well.

    Args:
        operands: The two tensors by name.
        packed: Names of those that must be contiguous.
        channels: Channel counts by name.
        launcher: What launches the kernel, where that is not the kernel itself.
    """
    (first, a), (second, b) = operands.items()
    problems = []
    if a.dtype not in (torch.float16, torch.bfloat16) or b.dtype != a.dtype:
        problems.append(
            f"{first} is {a.dtype} and {second} {b.dtype}: expected float16 or bfloat16 for both"
        )
    for name in packed:
        if not operands[name].is_contiguous() or operands[name].data_ptr() % 16:
            problems.append(f"{name} must be contiguous and start at a multiple of 16 bytes")
    for name, count in channels.items():
        if count % 8:
            problems.append(f"{name} is {count}: TMA needs rows of a multiple of 8 channels")
    expected = ""
    if b.device != a.device:
        expected = "one device"
    elif launcher is None and not a.is_cuda:
        expected = "one GPU of sm_90, or launcher=xnv.emulated for tensors of the CPU"
    elif launcher is None and (capability := torch.cuda.get_device_capability(a.device)) != (9, 0):
        expected = f"a GPU of sm_90, this one is sm_{capability[0]}{capability[1]}"
    if expected:
        problems.append(f"{first} is on {a.device} and {second} on {b.device}: expected {expected}")
    return problems


def check_config(config: TileConfig, product: Product, num_sms: int) -> None:
    """Refuses a configuration that cannot run, or not this convolution.

    Args:
        config: The configuration.
        product: The product that the convolution is.
        num_sms: Multiprocessors of the GPU.

    Raises:
        LaunchError: All that is wrong with the configuration.
    """
    problems = config.refusals() or config.fit_refusals(product, num_sms)
    if problems:
        raise LaunchError(f"configuration {config}: " + "; ".join(map(str, problems)))


def multiprocessors(device: torch.device) -> int:
    """Returns the multiprocessors of a GPU, or how many the CPU is taken to have."""
    if device.type == "cpu":
        return _EMULATED_MULTIPROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def per_dim(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Returns one int per spatial dimension."""
    return (value,) * count if isinstance(value, int) else tuple(value)


# ---- Descriptors -------------------------------------------------------------------------------


def im2col_descriptor(
    x: torch.Tensor, filter_size: Any, stride: Any, padding: Any, dilation: Any, block: list[int],
    layout: Any = None,
) -> Any:  # fmt: skip
    """Returns the descriptor through which a convolution reads x; ``.conv`` is its geometry.

    What depends only on shapes is kept: checking all of TMA's rules takes longer than a launch.
    """
    geometry = map(_freeze, (filter_size, stride, padding, dilation, block))
    kept = _im2col_template(tuple(x.shape), x.stride(), x.dtype, *geometry, layout)
    return xnv.with_base(kept, x)


@functools.lru_cache(maxsize=1024)
def _im2col_template(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, filter_size: Any,
    stride: Any, padding: Any, dilation: Any, block: tuple[int, ...], layout: Any,
) -> Any:  # fmt: skip
    # Without memory, so that the cache keeps no tensor alive.
    stand_in = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return xnv.TensorDescriptorIm2Col.for_conv(
        stand_in, filter_size, stride, padding, dilation, block_shape=list(block), layout=layout
    )


def _freeze(value: Any) -> Any:
    """Returns ints and sequences of them as something that can be a key."""
    return value if isinstance(value, int) else tuple(map(_freeze, value))


def is_plain_product(x: torch.Tensor, taps: int, conv: Any) -> bool:
    """Tells whether a convolution multiplies the matrix x [pixels, Ci]: nothing is stepped over.

    Args:
        x: Its input, channels-last.
        taps: Filter taps.
        conv: Its geometry.
    """
    steps_over = set(conv.stride) != {1} or set(conv.padding) != {(0, 0)}
    return taps == 1 and not steps_over and x.is_contiguous()


def filter_descriptor(w: torch.Tensor, block: list[int], layout: Any = None) -> TensorDescriptor:
    """Returns the descriptor of a filter as [Co, taps, Ci].

    The taps are a dimension of their own, so that a block ends with the channels of its tap.
    """
    co, ci, taps = w.shape[0], w.shape[-1], math.prod(w.shape[1:-1])
    strides = [taps * ci, ci, 1]
    return TensorDescriptor(w, [co, taps, ci], strides, block, layout or smem_layout(block))


def matrix_descriptor(
    pixels: torch.Tensor, block: list[int], layout: Any = None
) -> TensorDescriptor:
    """Returns the descriptor of a contiguous channels-last tensor as [pixels, channels]."""
    channels = pixels.shape[-1]
    shape = [pixels.numel() // channels, channels]
    return TensorDescriptor(pixels, shape, [channels, 1], block, layout or smem_layout(block))


# ---- Compiling ahead ---------------------------------------------------------------------------


def tiled_type(dtype: Any, block: list[int], layout: Any = None) -> str:
    """Returns how a signature spells a tiled descriptor."""
    return f"tensordesc<{dtype}{block},{layout or smem_layout(block)!r}>"


def pixels_type(dtype: Any, block: list[int], rank: int, layout: Any = None) -> str:
    """Returns how a signature spells an im2col descriptor of a tensor of that rank.

    Rank 2 is that of a matrix, whose descriptor is a tiled one.
    """
    if rank == 2:
        return tiled_type(dtype, block, layout)
    layout = layout or smem_layout(block)
    return f"tensordesc_im2col<{dtype}{block},input_rank={rank},{layout!r}>"


def compile_kernel(
    kernel: Any,
    signature: dict[str, Any],
    constants: dict[Any, Any],
    capability: int,
    num_warps: int = 4,
    num_ctas: int = 1,
) -> Any:
    """Compiles a kernel ahead of time, without a GPU; its pointers are 16-byte aligned.

    Args:
        kernel: The kernel.
        signature: Types of its runtime arguments by name.
        constants: Its constexpr arguments by name, and parts of tuples by (parameter, part).
        capability: Compute capability times ten.
        num_warps: Warps of a CTA, or of its first partition.
        num_ctas: CTAs of a cluster.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    types = signature | {name: "constexpr" for name in constants if isinstance(name, str)}
    attributes = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, type_name in signature.items()
        if isinstance(type_name, str) and type_name.startswith("*")
    }
    return triton.compile(
        GluonASTSource(kernel, types, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_ctas": num_ctas},
    )
