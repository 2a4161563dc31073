"""All of a convolution's launch that does not depend on addresses, made once per geometry.

Building descriptors, checking a geometry and choosing a configuration take longer than a small
kernel runs, so they are done once and kept.  A plan holds no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends, plugin
from triton_ext.errors import UnsupportedError
from triton_ext.ops.conv_config import ConvConfig, choose_config
from triton_ext.ops.conv_fprop import conv_fprop_kernel, kernel_constants
from triton_ext.ops.machine import machine_of

__all__ = ["DTYPES", "ConvPlan", "conv_geometry", "make_plan"]

ConvGeometry = backends.load("nvidia", "ConvGeometry")
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

# TMA wants rows of a multiple of 16 bytes.
_ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Layout:
    """A tensor without memory, to validate a geometry with."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return 0


@dataclass(slots=True, kw_only=True)
class ConvPlan:
    """A forward convolution of one geometry on one device.

    Attributes:
        config: The tile configuration.
        x_desc: im2col descriptor of x [N, H, W, Ci], channels padded, without memory.
        y_shape: [N, Co, out_h, out_w].
        missing_channels: Zeros to add to Ci so that rows are multiples of 16 bytes.
        store_through_tma: Whether rows of y are multiples of 16 bytes.
        grid: Number of programs, in three dimensions.
        scalars: Runtime arguments of the kernel behind the tensors.
        constants: Constexpr arguments of the kernel, in the order of its parameters.
        options: Launch options.
    """

    config: ConvConfig
    x_desc: Im2ColDescriptor
    y_shape: tuple[int, int, int, int]
    missing_channels: int
    store_through_tma: bool
    grid: tuple[int, int, int]
    scalars: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, int]
    _launch: dict[tuple[bool | None, tuple[str, ...]], Callable[..., Any]] = field(
        default_factory=dict
    )

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Launches the kernel.

        Args:
            x: [N, Ci, H, W], of the layout that the plan was made for.
            weight: [Co, Ci, R, S] in any memory format.
            bias: [Co] or None.

        Returns:
            y [N, Co, out_h, out_w], channels-last.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, bias)
        co, _, r, s = weight.shape
        x_rows = self._pad_channels(x.permute(0, 2, 3, 1))
        w_rows = self._pad_channels(weight.permute(0, 2, 3, 1)).contiguous()
        if w_rows.data_ptr() % _ROW_BYTES:
            w_rows = w_rows.clone()
        if bias is not None:
            bias = bias.contiguous()
        ci = w_rows.shape[3]
        y = torch.empty(
            self.y_shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last
        )
        config = self.config
        w_block = [config.block_n, 1, config.block_k]
        y_desc = None
        if self.store_through_tma:
            y_block = [config.block_m, config.block_n // config.store_parts]
            y_desc = TensorDescriptor(y, [self.scalars[0], co], [co, 1], y_block)
        tensors = (
            self.x_desc.with_base(x_rows),
            TensorDescriptor(w_rows, [co, r * s, ci], [r * s * ci, ci, 1], w_block),
            y_desc,
            None if self.store_through_tma else y,
            bias,
        )
        self._launch_kernel(tensors)
        return y

    def _launch_kernel(self, tensors: tuple[Any, ...]) -> None:
        """Launches through Triton's front door once, then the compiled kernel itself.

        The front door specializes a kernel on its arguments: types, integers that are 1 or a
        multiple of 16, pointers on 16-byte boundaries.  A plan fixes them all but the bias: whether
        there is one, and whether it is aligned.  Going around the front door saves 25 us of 70 a
        call (H200 machine, 2026-11-20).
        """
        bias = tensors[-1]
        aligned = None if bias is None else bias.data_ptr() % 16 == 0
        variant = (aligned, plugin.passes_key())
        launch = self._launch.get(variant)
        if launch is not None and plugin.is_installed() and not conv_fprop_kernel.pre_run_hooks:
            launch(*tensors, *self.scalars, *self.constants.values())
            return
        compiled = conv_fprop_kernel[self.grid](
            *tensors, *self.scalars, **self.constants, **self.options
        )
        # The interpreter compiles nothing.
        if compiled is not None:
            self._launch[variant] = compiled[self.grid]

    def _pad_channels(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.missing_channels:
            return rows
        return torch.nn.functional.pad(rows, (0, self.missing_channels))


def conv_geometry(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ConvGeometry:
    """Returns the geometry of a convolution given as torch gives it.

    Args:
        x_shape: [N, Ci, H, W].
        w_shape: [Co, Ci, R, S].
        stride: (h, w).
        padding: (top, bottom, left, right).
        dilation: (h, w).

    Raises:
        DescriptorError: TMA cannot express it; every violation is listed.
    """
    n, ci, height, width = x_shape
    top, bottom, left, right = padding
    conv = ConvGeometry.make(
        (n, height, width, ci),
        tuple(w_shape[2:]),
        tuple(stride),
        ((top, bottom), (left, right)),
        tuple(dilation),
    )
    problems = conv_violations(conv)
    if problems:
        raise descriptor_error(problems)
    return conv


@lru_cache(maxsize=4096)
def make_plan(
    x_shape: tuple[int, ...],
    x_strides: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    config: ConvConfig | None = None,
) -> ConvPlan:
    """Returns the plan of a convolution.

    Args:
        x_shape: [N, Ci, H, W].
        x_strides: In elements; channels-last.
        w_shape: [Co, Ci, R, S].
        dtype: Of x, weight and y.
        device: Where x is.
        stride: (h, w).
        padding: (top, bottom, left, right).
        dilation: (h, w).
        config: The tile configuration; ``None`` lets :func:`choose_config` choose.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No GPU, too old a GPU or too old a Triton.
    """
    machine = machine_of(device, "conv2d")
    conv = conv_geometry(x_shape, w_shape, stride, padding, dilation)
    co = w_shape[0]
    n, height, width, ci = conv.input_shape
    missing = -ci % (_ROW_BYTES // dtype.itemsize)
    ci += missing
    strides = tuple(x_strides[i] for i in (0, 2, 3, 1))
    if missing:
        strides = (height * width * ci, width * ci, ci, 1)
    store_through_tma = co * dtype.itemsize % _ROW_BYTES == 0
    if config is None:
        config = choose_config(
            conv.m_gemm,
            co,
            ci,
            math.prod(conv.filter_size),
            machine.num_sms,
            element_bytes=dtype.itemsize,
            whole_tile=not store_through_tma or machine.capability >= (10, 0),
            available_bytes=machine.smem_bytes,
        )
    if config is None:
        raise UnsupportedError(
            f"conv2d: {device} gives a CTA {machine.smem_bytes} bytes of shared memory, the "
            "smallest tile configuration needs more"
        )
    x_desc = Im2ColDescriptor.for_conv(
        _Layout((n, height, width, ci), strides, dtype),
        conv.filter_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        block_shape=[config.block_m, config.block_k],
    )
    m_gemm, (out_h, out_w) = conv.m_gemm, conv.output_size
    tiles = triton.cdiv(m_gemm, config.block_m) * triton.cdiv(co, config.block_n)
    return ConvPlan(
        config=config,
        x_desc=x_desc,
        y_shape=(n, co, out_h, out_w),
        missing_channels=missing,
        store_through_tma=store_through_tma,
        grid=(min(tiles, machine.num_sms), 1, 1),
        scalars=(m_gemm, co, out_h, out_w, *stride, padding[0], padding[2], *dilation),
        constants=kernel_constants(config, conv.filter_size, ci, DTYPES[dtype]),
        options={"num_stages": config.num_stages, "num_warps": config.num_warps},
    )
