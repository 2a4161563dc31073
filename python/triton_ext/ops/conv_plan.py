"""All of a convolution's launch that does not depend on addresses, made once per geometry.

Building descriptors, checking a geometry and choosing a configuration take longer than a small
kernel runs, so they are done once and kept.  A plan holds no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.conv_config import ConvConfig, OutputTile, choose_config
from triton_ext.ops.conv_fprop import conv_fprop_kernel, kernel_constants
from triton_ext.ops.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.machine import Machine, machine_of
from triton_ext.ops.problem import ConvProblem

__all__ = ["DTYPES", "ConvPlan", "conv_geometry", "make_plan"]

ConvGeometry = backends.load("nvidia", "ConvGeometry")
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

# TMA wants rows of a multiple of 16 bytes.
_ROW_BYTES = 16

# Arguments of the kernel from the bias to the function's, where there is no epilogue.
_NO_ARGUMENTS = (None,) * 8

# Permutations of torch's order [N, C, *spatial] to channels-last, by spatial dimensions.
_TO_LAST = {1: (0, 2, 1), 2: (0, 2, 3, 1), 3: (0, 2, 3, 4, 1)}


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
        problem: What is computed.
        config: The tile configuration.
        epilogue: What is done to the output before it is stored.
        x_desc: im2col descriptor of x [N, *input_size, Ci], channels padded, without memory.
        y_shape: [N, Co, *output_size].
        out_dtype: Of y.
        missing_channels: Zeros to add to Ci so that rows are multiples of 16 bytes.
        store_through_tma: Whether rows of y are multiples of 16 bytes.
        launcher: Launches the kernel; it has all arguments but the tensors.
    """

    problem: ConvProblem
    config: ConvConfig
    epilogue: EpilogueSpec
    x_desc: Im2ColDescriptor
    y_shape: tuple[int, ...]
    out_dtype: torch.dtype
    missing_channels: int
    store_through_tma: bool
    launcher: Launcher

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueOperands = NO_OPERANDS,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernel.

        Args:
            x: [N, Ci, *input_size], of the layout that the plan was made for.
            weight: [Co, Ci, *filter_size] in any memory format.
            operands: Those that the epilogue asks for.
            out: Where to put y; a new tensor by default.

        Returns:
            y [N, Co, *output_size], channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or layout, or an operand is missing.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, operands, out)
        to_last = _TO_LAST[self.problem.dims]
        x_rows = self._pad_channels(x.permute(to_last))
        w_rows = self._pad_channels(weight.permute(to_last)).contiguous()
        if w_rows.data_ptr() % _ROW_BYTES:
            w_rows = w_rows.clone()
        co, taps, ci = weight.shape[0], self.problem.taps, w_rows.shape[-1]
        y = self._output(x.device) if out is None else self._check_output(out)
        config = self.config
        w_block = [config.block_n, 1, config.block_k]
        tensors: tuple[Any, ...] = (
            self.x_desc.with_base(x_rows),
            TensorDescriptor(w_rows, [co, taps, ci], [taps * ci, ci, 1], w_block),
            self._rows_descriptor(y) if self.store_through_tma else None,
            None if self.store_through_tma else y,
        )
        if self.epilogue is PLAIN:
            self.launcher.launch((*tensors, *_NO_ARGUMENTS))
            return y
        arguments = self._epilogue_arguments(operands)
        if self.epilogue.function is None:
            variant = tuple(None if a is None else _specialization(a) for a in arguments)
            self.launcher.launch((*tensors, *arguments), variant)
        else:
            # The function's arguments can be specialized on in any way: through the front door.
            made = self.launcher
            made.kernel[made.grid](
                *tensors, *arguments, *made.scalars, **made.constants, **made.options
            )
        return y

    def _rows_descriptor(self, tensor: torch.Tensor) -> TensorDescriptor:
        """Returns a descriptor of y, or of something of its layout, as [M_GEMM, Co]."""
        m_gemm, co = self.launcher.scalars[:2]
        block = [self.config.block_m, self.config.block_n // self.config.store_parts]
        return TensorDescriptor(tensor, [m_gemm, co], [co, 1], block)

    def _epilogue_arguments(self, operands: EpilogueOperands) -> tuple[Any, ...]:
        """Returns the kernel's arguments from the bias to the function's.

        Raises:
            ValueError: An operand is missing, was not asked for, or has another shape or dtype.
        """
        spec = self.epilogue
        for name in ("bias", "scale", "residual", "out_scale", "amax"):
            if (getattr(operands, name) is None) == getattr(spec, name):
                asked = "asks for" if getattr(spec, name) else "does not ask for"
                given = "none" if getattr(operands, name) is None else "one"
                raise ValueError(f"epilogue: the plan {asked} {name}, the call has {given}")
        co = self.y_shape[1]
        bias, scale, residual = operands.bias, operands.scale, operands.residual
        if bias is not None:
            bias = _vector("bias", bias, co)
        one_scale = scale is not None and scale.numel() == 1
        if scale is not None and not one_scale:
            scale = _vector("scale", scale, co)
        residual_desc = None
        if residual is not None:
            residual = self._residual_rows(residual)
            if self.store_through_tma and co * residual.itemsize % _ROW_BYTES == 0:
                residual_desc, residual = self._rows_descriptor(residual), None
        amax = operands.amax
        if amax is not None:
            if amax.dtype != torch.float32 or amax.numel() != 1:
                raise ValueError(f"epilogue: amax must be one float32, got {_describe(amax)}")
            amax.zero_()
            amax = amax.view(torch.int32)
        out_scale = operands.out_scale
        if out_scale is not None and out_scale.numel() != 1:
            raise ValueError(f"epilogue: out_scale must be one number, got {_describe(out_scale)}")
        return (
            bias,
            None if one_scale else scale,
            scale if one_scale else None,
            residual_desc,
            residual,
            out_scale,
            amax,
            None if spec.function is None else operands.extra,
        )

    def _residual_rows(self, residual: torch.Tensor) -> torch.Tensor:
        """Returns the residual as packed rows on a 16-byte boundary, copied where it is not."""
        largest = max(self.out_dtype.itemsize, 2)
        if tuple(residual.shape) != self.y_shape or residual.itemsize > largest:
            raise ValueError(
                f"epilogue: expected a residual {list(self.y_shape)} of at most {largest} bytes "
                f"per element, got {_describe(residual)}"
            )
        rows = residual.permute(_TO_LAST[self.problem.dims]).contiguous()
        return rows.clone() if rows.data_ptr() % _ROW_BYTES else rows

    def _output(self, device: torch.device) -> torch.Tensor:
        """Returns a new y, channels-last."""
        if self.problem.dims == 1:
            n, co, length = self.y_shape
            return torch.empty((n, length, co), device=device, dtype=self.out_dtype).mT
        packed = torch.channels_last if self.problem.dims == 2 else torch.channels_last_3d
        return torch.empty(self.y_shape, device=device, dtype=self.out_dtype, memory_format=packed)

    def _check_output(self, out: torch.Tensor) -> torch.Tensor:
        rows = out.permute(_TO_LAST[self.problem.dims])
        if tuple(out.shape) != self.y_shape or out.dtype != self.out_dtype:
            raise ValueError(
                f"out: expected {list(self.y_shape)} of {self.out_dtype}, got {list(out.shape)} "
                f"of {out.dtype}"
            )
        if not rows.is_contiguous() or out.data_ptr() % _ROW_BYTES:
            raise ValueError(
                "out: expected packed channels-last memory on a 16-byte boundary, got strides "
                f"{list(out.stride())}"
            )
        return out

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
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec = PLAIN,
    config: ConvConfig | None = None,
) -> ConvPlan:
    """Returns the plan of a convolution.

    Args:
        problem: What is computed; its batch is not empty.
        x_strides: Of x [N, Ci, *input_size], in elements; channels-last.
        dtype: Of x and weight.
        device: Where x is.
        epilogue: What is done to the output before it is stored.
        config: The tile configuration; ``None`` lets :func:`choose_config` choose.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No GPU, too old a GPU or too old a Triton.
    """
    machine = machine_of(device, f"conv{problem.dims}d")
    conv = problem.geometry
    problems = conv_violations(conv)
    if problems:
        raise descriptor_error(problems)
    if problem.groups != 1:
        raise UnsupportedError(f"conv{problem.dims}d: groups are not there yet")
    co = problem.out_channels
    missing = -problem.in_channels % (_ROW_BYTES // dtype.itemsize)
    ci = problem.in_channels + missing
    shape = (problem.batch, *problem.input_size, ci)
    strides = tuple(x_strides[i] for i in _TO_LAST[problem.dims])
    if missing:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    out_dtype = epilogue.out_dtype or dtype
    store_through_tma = co * out_dtype.itemsize % _ROW_BYTES == 0
    if config is None:
        config = choose_config(
            conv.m_gemm,
            co,
            ci,
            problem.taps,
            machine.num_sms,
            element_bytes=dtype.itemsize,
            output=_output_tile(epilogue, out_dtype, store_through_tma, machine),
            available_bytes=machine.smem_bytes,
        )
    if config is None:
        raise UnsupportedError(
            f"conv{problem.dims}d: {device} gives a CTA {machine.smem_bytes} bytes of shared "
            "memory, the smallest tile configuration needs more"
        )
    x_desc = Im2ColDescriptor.for_conv(
        _Layout(shape, strides, dtype),
        conv.filter_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        block_shape=[config.block_m, config.block_k],
    )
    tiles = triton.cdiv(conv.m_gemm, config.block_m) * triton.cdiv(co, config.block_n)
    return ConvPlan(
        problem=problem,
        config=config,
        epilogue=epilogue,
        x_desc=x_desc,
        y_shape=problem.y_shape,
        out_dtype=out_dtype,
        missing_channels=missing,
        store_through_tma=store_through_tma,
        launcher=Launcher(
            kernel=conv_fprop_kernel,
            grid=(min(tiles, machine.num_sms), 1, 1),
            scalars=(
                conv.m_gemm,
                co,
                *_three(conv.output_size),
                *_three(conv.stride),
                *_three([low for low, _ in conv.padding]),
                *_three(conv.dilation),
            ),
            constants=kernel_constants(config, conv.filter_size, ci, DTYPES[dtype], epilogue),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
    )


def _output_tile(
    epilogue: EpilogueSpec, out_dtype: torch.dtype, through_tma: bool, machine: Machine
) -> OutputTile:
    """What the end of a tile asks of shared memory, measured at compiled kernels."""
    whole = not through_tma or machine.capability >= (10, 0)
    if through_tma:
        residual_bytes = max(out_dtype.itemsize, 2) if epilogue.residual else 0
        return OutputTile(
            element_bytes=out_dtype.itemsize, residual_bytes=residual_bytes, whole=whole
        )
    # Where pointers are more than one, accumulators take their order in fp32.
    more = epilogue.residual or epilogue.amax or epilogue.function is not None
    return OutputTile(element_bytes=4 if more else out_dtype.itemsize, whole=whole)


def _vector(name: str, tensor: torch.Tensor, co: int) -> torch.Tensor:
    if tuple(tensor.shape) != (co,):
        raise ValueError(f"epilogue: expected {name} [{co}], got {_describe(tensor)}")
    return tensor.contiguous()


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"


def _specialization(argument: Any) -> tuple[torch.dtype, bool]:
    """What Triton's front door specializes a tensor or a descriptor on, besides the plan's."""
    tensor = argument.base if isinstance(argument, TensorDescriptor) else argument
    return tensor.dtype, tensor.data_ptr() % _ROW_BYTES == 0


def _three(values: Sequence[int]) -> tuple[int | None, ...]:
    """One value per spatial dimension of the kernel, None for those that are not there."""
    return (None,) * (3 - len(values)) + tuple(values)
