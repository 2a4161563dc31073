"""All of a convolution's launch that does not depend on addresses, made once per geometry.

Building descriptors, checking a geometry and choosing a configuration take longer than a small
kernel runs, so they are done once and kept.  A plan holds no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.conv_config import ConvConfig, OutputTile, channel_block, choose_config
from triton_ext.ops.conv_direct import (
    MIN_GROUP_CHANNELS,
    DirectConfig,
    DirectPlan,
    choose_direct_config,
    conv_direct_kernel,
    direct_constants,
    direct_scalars,
)
from triton_ext.ops.conv_fprop import TRITON_DTYPES, conv_fprop_kernel, kernel_constants
from triton_ext.ops.conv_launch import TO_LAST, ForwardPlan, three
from triton_ext.ops.descriptors import ROUNDS_TO_TF32, ROW_BYTES, Layout, packed_strides
from triton_ext.ops.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.machine import IS_INTERPRETED, Machine, machine_of
from triton_ext.ops.problem import ConvProblem

__all__ = [
    "DTYPES",
    "INPUT_DTYPES",
    "OUT_DTYPES",
    "ConvPlan",
    "conv_geometry",
    "fp8_output_reason",
    "make_plan",
    "reasons",
]

ConvGeometry = backends.load("nvidia", "ConvGeometry")
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

#: Types of x and weight that all three directions have.
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
#: What x and weight may be; WGMMA takes 8-bit and 32-bit types as they lie here, channels inside.
INPUT_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
)
#: What y may be, through a cast of the accumulators.
OUT_DTYPES = (*INPUT_DTYPES[:-1], torch.int32)

_INT32 = EpilogueSpec(out_dtype=torch.int32)


@dataclass(slots=True, kw_only=True)
class ConvPlan(ForwardPlan):
    """A plan of the implicit GEMM.

    Attributes:
        config: The tile configuration.
        x_desc: im2col descriptor of x [N, *input_size, Ci], channels padded, without memory.
        x_row_stride: Distance of two pixels in elements where x is read as a matrix, else None.
        missing_channels: Zeros to add to Ci so that rows are multiples of 16 bytes.
        missing_taps: The same for the weight's Ci / groups.
    """

    config: ConvConfig
    x_desc: Im2ColDescriptor
    x_row_stride: int | None
    missing_channels: int
    missing_taps: int

    # shape, strides and block of the descriptors of w and of x as a matrix: lists that nobody
    # changes, made once because making them takes as long as a descriptor.
    _w_layout: tuple[list[int], list[int], list[int]] = field(init=False)
    _x_layout: tuple[list[int], list[int], list[int]] | None = field(init=False)
    _options: dict[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        ForwardPlan.__post_init__(self)
        problem, config = self.problem, self.config
        co, taps = problem.out_channels, problem.taps
        ci = problem.in_channels // problem.groups + self.missing_taps
        block = [config.block_n, 1, config.block_k]
        self._w_layout = ([co, taps, ci], [taps * ci, ci, 1], block)
        self._x_layout = None
        if self.x_row_stride is not None:
            shape = [problem.geometry.m_gemm, problem.in_channels + self.missing_channels]
            self._x_layout = (shape, [self.x_row_stride, 1], [config.block_m, config.block_k])
        # fp32 is rounded to tf32 where Triton can (from 3.7 on); tensor cores cut off what tf32
        # has not, which is an error of twice the size, in one direction.
        rounds = self.x_desc.round_f32_to_tf32 and ROUNDS_TO_TF32
        self._options = {"round_f32_to_tf32": True} if rounds else {}

    def _inputs(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[tuple[Any, Any], None]:
        to_last = TO_LAST[self.problem.dims]
        x_rows, w_rows = x.permute(to_last), weight.permute(to_last)
        if self.missing_channels:
            x_rows = torch.nn.functional.pad(x_rows, (0, self.missing_channels))
        if self.missing_taps:
            w_rows = torch.nn.functional.pad(w_rows, (0, self.missing_taps))
        w_rows = w_rows.contiguous()
        if w_rows.data_ptr() % ROW_BYTES:
            w_rows = w_rows.clone()
        # Also where it is not used: it checks the address.
        x_desc = self.x_desc.with_base(x_rows)
        if self._x_layout is not None:
            x_desc = TensorDescriptor(x_rows, *self._x_layout, **self._options)
        return (x_desc, TensorDescriptor(w_rows, *self._w_layout, **self._options)), None

    def _tile_shape(self) -> list[int]:
        return [self.config.block_m, self.config.block_n // self.config.store_parts]


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


def reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Machine | None = None
) -> tuple[str, ...]:
    """Returns why no kernel of this direction takes a problem; nothing if one does.

    Args:
        problem: What is computed; its batch is not looked at.
        dtype: Of x and weight.
        machine: The device; ``None`` where only the problem is asked about.
    """
    found: list[str] = []
    if dtype not in INPUT_DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in INPUT_DTYPES)
        found.append(f"dtype {dtype} is not supported; supported are {names}")
    if machine is not None and machine.capability < (9, 0):
        major, minor = machine.capability
        found.append(f"TMA im2col needs sm_90 or newer, the GPU is sm_{major}{minor}")
    groups = problem.groups
    if groups < 1 or problem.in_channels % groups or problem.out_channels % groups:
        found.append(
            f"groups={groups} must divide both {problem.in_channels} input channels and "
            f"{problem.out_channels} output channels"
        )
    if not 1 <= problem.dims <= 3:
        found.append(f"1 to 3 spatial dimensions are supported, not {problem.dims}")
    else:
        found += conv_violations(replace(problem, batch=max(1, problem.batch)).geometry)
    return tuple(found)


def fp8_output_reason(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns why y cannot be of a dtype where kernels are interpreted; None where it can."""
    is_fp8 = dtype.itemsize == 1 and dtype.is_floating_point
    if not is_fp8 or device.type != "cpu" or not IS_INTERPRETED:
        return None
    return (
        f"Triton's interpreter casts to {dtype} wrongly; a GPU and the emulator round right, and "
        "out_dtype=torch.float16 works here"
    )


def _check(
    problem: ConvProblem,
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec,
    name: str,
) -> None:
    """Refuses what no kernel takes.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: Anything else.
    """
    # Geometry has an error of its own, which lists what is wrong.
    violations = conv_violations(problem.geometry) if 1 <= problem.dims <= 3 else []
    other = [reason for reason in reasons(problem, dtype) if reason not in violations]
    is_float = epilogue.out_dtype is not None and epilogue.out_dtype.is_floating_point
    if dtype == torch.int8 and not is_float and epilogue not in (PLAIN, _INT32):
        other.append("an epilogue of int8 needs an out_dtype of floating point")
    if epilogue.out_dtype is not None and epilogue.out_dtype not in OUT_DTYPES:
        other.append(f"out_dtype {epilogue.out_dtype} is not supported")
    fp8_reason = fp8_output_reason(epilogue.out_dtype or dtype, device)
    if fp8_reason is not None:
        other.append(fp8_reason)
    if other:
        raise UnsupportedError(f"{name}: " + "; ".join(other))
    if violations:
        raise descriptor_error(violations)


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec = PLAIN,
    config: ConvConfig | DirectConfig | None = None,
) -> ForwardPlan:
    """Returns the plan of a convolution.

    Args:
        problem: What is computed; its batch is not empty.
        x_strides: Of x [N, Ci, *input_size], in elements; channels-last.
        dtype: Of x and weight.
        device: Where x is.
        epilogue: What is done to the output before it is stored.
        config: The tile configuration, whose class says which kernel; ``None`` lets a model choose.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No GPU, too old a GPU or too old a Triton, or a problem with
            :func:`reasons`.
    """
    name = f"conv{problem.dims}d"
    machine = machine_of(device, name)
    _check(problem, dtype, device, epilogue, name)
    out_dtype = epilogue.out_dtype or (torch.int32 if dtype == torch.int8 else dtype)
    is_small = problem.groups > 1 and problem.in_channels // problem.groups < MIN_GROUP_CHANNELS
    if isinstance(config, DirectConfig) or (config is None and is_small):
        return _direct_plan(problem, x_strides, dtype, out_dtype, machine, epilogue, config)
    group_ci, group_co = (c // problem.groups for c in (problem.in_channels, problem.out_channels))
    conv = problem.geometry
    unit = ROW_BYTES // dtype.itemsize
    missing = -problem.in_channels % unit
    shape = (problem.batch, *problem.input_size, problem.in_channels + missing)
    strides = tuple(x_strides[i] for i in TO_LAST[problem.dims])
    if missing:
        strides = packed_strides(shape)
    # TMA does not stop at the end of a group: its tiles have to.
    column_unit = 1 if problem.groups == 1 else 16 if config is None else config.block_n
    store_through_tma = (
        problem.out_channels * out_dtype.itemsize % ROW_BYTES == 0 and group_co % column_unit == 0
    )
    if config is None:
        config = choose_config(
            conv.m_gemm,
            group_co,
            group_ci + (missing if problem.groups == 1 else 0),
            problem.taps,
            machine.num_sms,
            element_bytes=dtype.itemsize,
            groups=problem.groups,
            block_k=channel_block(group_ci, dtype.itemsize, problem.groups),
            output=_output_tile(epilogue, out_dtype, store_through_tma, machine),
            available_bytes=machine.smem_bytes,
        )
    if config is None:
        raise UnsupportedError(
            f"{name}: {device} gives a CTA {machine.smem_bytes} bytes of shared memory, the "
            "smallest tile configuration needs more"
        )
    x_desc = Im2ColDescriptor.for_conv(
        Layout(shape, strides, dtype),
        conv.filter_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        block_shape=[config.block_m, config.block_k],
        round_f32_to_tf32=dtype == torch.float32,
    )
    row_stride = _matrix_row_stride(x_desc)
    if problem.groups > 1 and group_ci % unit:
        # Tiled loads are only known to begin on 16-byte boundaries.
        row_stride = None
    tiles = math.ceil(conv.m_gemm / config.block_m) * math.ceil(group_co / config.block_n)
    return ConvPlan(
        problem=problem,
        config=config,
        epilogue=epilogue,
        x_desc=x_desc,
        x_row_stride=row_stride,
        y_shape=problem.y_shape,
        out_dtype=out_dtype,
        missing_channels=missing,
        missing_taps=-group_ci % unit,
        store_through_tma=store_through_tma,
        launcher=Launcher(
            kernel=conv_fprop_kernel,
            grid=(min(tiles * problem.groups, machine.num_sms), 1, 1),
            scalars=(
                conv.m_gemm,
                problem.out_channels,
                *three(conv.output_size),
                *three(conv.stride),
                *three([low for low, _ in conv.padding]),
                *three(conv.dilation),
            ),
            constants=kernel_constants(
                config,
                conv.filter_size,
                group_ci,
                TRITON_DTYPES[dtype],
                epilogue,
                groups=problem.groups,
                x_is_matrix=row_stride is not None,
            ),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
    )


def _direct_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec,
    config: DirectConfig | None,
) -> DirectPlan:
    m_gemm, co = problem.geometry.m_gemm, problem.out_channels
    if config is None:
        config = choose_direct_config(m_gemm, co, machine.num_sms)
    triton_dtype, triton_out = TRITON_DTYPES[dtype], TRITON_DTYPES[out_dtype]
    return DirectPlan(
        problem=problem,
        config=config,
        epilogue=epilogue,
        y_shape=problem.y_shape,
        out_dtype=out_dtype,
        store_through_tma=False,
        launcher=Launcher(
            kernel=conv_direct_kernel,
            grid=(math.ceil(m_gemm / config.block_m) * math.ceil(co / config.block_n), 1, 1),
            scalars=direct_scalars(problem, x_strides),
            constants=direct_constants(config, problem, triton_dtype, triton_out, epilogue),
            options={"num_warps": config.num_warps},
        ),
    )


def _matrix_row_stride(x_desc: Im2ColDescriptor) -> int | None:
    """Distance of two pixels where x is a matrix and im2col the identity; None where not."""
    conv, geometry = x_desc.conv, x_desc.geometry
    is_identity = (
        math.prod(conv.filter_size) == 1
        and set(conv.stride) == {1}
        and all(sides == (0, 0) for sides in conv.padding)
    )
    row_stride = geometry.strides[-2]
    pixels = 1
    for size, stride in zip(geometry.shape[-2::-1], geometry.strides[-2::-1], strict=True):
        # Strides of size-1 dimensions mean nothing.
        is_identity &= size == 1 or stride == row_stride * pixels
        pixels *= size
    return row_stride if is_identity else None


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
    return OutputTile(
        element_bytes=4 if more else out_dtype.itemsize, through_pointers=True, whole=whole
    )
