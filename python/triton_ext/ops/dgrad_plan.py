"""All of a launch of the gradient of the input that does not depend on addresses.

A plan is made once per geometry and holds no tensor.  A transposed convolution is such a launch:
its input is dy, its output dx.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops import conv_dgrad
from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.conv_dgrad import DgradProblem, kernel_constants, three_dims
from triton_ext.ops.conv_launch import TO_LAST
from triton_ext.ops.descriptors import ROUNDS_TO_TF32, ROW_BYTES, Layout, packed_strides
from triton_ext.ops.dgrad_config import choose_config
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.machine import Machine, machine_of
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.residues import Residues

__all__ = ["DTYPES", "DgradPlan", "make_plan", "reasons", "residues_of"]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
SPATIAL_LIMITS = backends.load("nvidia", "SPATIAL_LIMITS")
descriptor_error = backends.load("nvidia", "descriptor_error")

# fp32 is multiplied as tf32.
DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}

_MAX_INT32 = (1 << 31) - 1
# Fewer channels than this are no operand of a matrix product.
_MIN_BLOCK_K = 16
_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(slots=True, kw_only=True)
class DgradPlan:
    """The gradient of the input of one geometry on one device.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        config: The tile configuration.
        dy_desc: im2col descriptor of dy [N, *output_size, Co], channels padded, without memory.
        launcher: The kernel with all that is fixed.
        missing_co: Zeros to add to dy's channels so that rows are multiples of 16 bytes.
        missing_ci: The same for the weight's channels.
        store_through_tma: Whether tiles of dx are boxes of rows of a multiple of 16 bytes.
    """

    problem: ConvProblem
    dtype: torch.dtype
    config: ConvConfig
    dy_desc: Im2ColDescriptor
    launcher: Launcher
    missing_co: int
    missing_ci: int
    store_through_tma: bool

    def run(
        self,
        dy: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernel.

        Args:
            dy: [N, Co, *output_size], of the layout that the plan was made for.
            weight: [Co, Ci / groups, *filter_size] in any memory format.
            out: Where to put dx; a new tensor by default.
            bias: [Ci] or None; added to dx, for transposed convolutions.

        Returns:
            dx [N, Ci, *input_size], channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or layout, or the bias another shape.
        """
        if dy.is_cuda and dy.device.index != torch.cuda.current_device():
            with torch.cuda.device(dy.device):
                return self.run(dy, weight, out, bias)
        problem, config = self.problem, self.config
        dx = self._new_output(dy.device) if out is None else self._checked_output(out)
        if bias is not None:
            if tuple(bias.shape) != (problem.in_channels,):
                raise ValueError(f"bias: expected [{problem.in_channels}], got {list(bias.shape)}")
            bias = bias.contiguous()
        dy_rows = _pad(dy.permute(TO_LAST[problem.dims]), self.missing_co)
        dx_desc = None
        if self.store_through_tma:
            rows, columns = dx.numel() // problem.in_channels, problem.in_channels
            dx_block = [config.block_m, config.block_n // config.store_parts]
            dx_desc = TensorDescriptor(dx, [rows, columns], [columns, 1], dx_block)
        tensors = (
            self.dy_desc.with_base(dy_rows),
            self._filter_descriptor(weight),
            dx_desc,
            None if self.store_through_tma else dx,
            bias,
        )
        variant = (
            self.store_through_tma or dx.data_ptr() % 16 == 0,
            None if bias is None else (bias.dtype, bias.data_ptr() % 16 == 0),
        )
        self.launcher.launch(tensors, variant)
        return dx

    def _filter_descriptor(self, weight: torch.Tensor) -> TensorDescriptor:
        """Returns the descriptor of the filter as the kernel wants it, copied where it is not."""
        config = self.config
        if self.dtype == torch.float32:
            # [Ci / groups, taps, Co]; a step's block is [BLOCK_N, 1, BLOCK_K].
            rows = _pad(weight.movedim(0, -1), self.missing_co)
            block = [config.block_n, 1, config.block_k]
        else:
            rows = _pad(weight.permute(TO_LAST[self.problem.dims]), self.missing_ci)
            block = [config.block_k, 1, config.block_n]
        rows = rows.contiguous()
        if rows.data_ptr() % ROW_BYTES:
            rows = rows.clone()
        taps, columns = self.problem.taps, rows.shape[-1]
        rounding = (
            {"round_f32_to_tf32": True} if ROUNDS_TO_TF32 and self.dtype == torch.float32 else {}
        )
        shape, strides = [rows.shape[0], taps, columns], [taps * columns, columns, 1]
        return TensorDescriptor(rows, shape, strides, block, **rounding)

    def _new_output(self, device: torch.device) -> torch.Tensor:
        """Returns a new dx, channels-last."""
        if self.problem.dims == 1:
            n, ci, length = self.problem.x_shape
            return torch.empty((n, length, ci), device=device, dtype=self.dtype).mT
        packed = torch.channels_last if self.problem.dims == 2 else torch.channels_last_3d
        shape = self.problem.x_shape
        return torch.empty(shape, device=device, dtype=self.dtype, memory_format=packed)

    def _checked_output(self, out: torch.Tensor) -> torch.Tensor:
        shape = self.problem.x_shape
        if tuple(out.shape) != shape or out.dtype != self.dtype:
            raise ValueError(
                f"out: expected {list(shape)} of {self.dtype}, got {list(out.shape)} of {out.dtype}"
            )
        if not out.permute(TO_LAST[self.problem.dims]).is_contiguous():
            raise ValueError(
                f"out: expected channels-last and packed, got strides {list(out.stride())}"
            )
        if self.store_through_tma and out.data_ptr() % ROW_BYTES:
            raise ValueError(f"out: expected an address that is a multiple of {ROW_BYTES}")
        return out


def reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Machine | None = None
) -> tuple[str, ...]:
    """Returns why the kernel does not take a problem; nothing if it does.

    Args:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        machine: Where it is to run; ``None`` asks about no machine.
    """
    return (*_geometry_reasons(problem), *_other_reasons(problem, dtype, machine))


def residues_of(problem: ConvProblem) -> list[Residues]:
    """Returns the residue classes of each spatial dimension."""
    return [
        Residues(size=size, taps=taps, stride=stride, dilation=dilation, low=low)
        for size, taps, stride, dilation, (low, _) in zip(
            problem.input_size,
            problem.filter_size,
            problem.stride,
            problem.dilation,
            problem.padding,
            strict=True,
        )
    ]


def _corners(dims: Sequence[Residues], output_size: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (lower, upper) corner of the pixel box of dy per spatial dimension."""
    return [
        (dim.lower, dim.lower + dim.walk_size - out)
        for dim, out in zip(dims, output_size, strict=True)
    ]


def _geometry_reasons(problem: ConvProblem) -> list[str]:
    """Returns what TMA cannot express, in the convolution's words."""
    names = ("filter size", "stride", "dilation", "input size")
    values = (problem.filter_size, problem.stride, problem.dilation, problem.input_size)
    found = [
        f"{name} {value}: must be at least 1"
        for name, value in zip(names, values, strict=True)
        if min(value) < 1
    ]
    found += [f"padding {pair}: must not be negative" for pair in problem.padding if min(pair) < 0]
    if found:
        return found
    letters, dims = _LETTERS[problem.dims], residues_of(problem)
    empty = [name for name, out in zip(letters, problem.output_size, strict=True) if out < 1]
    if empty:
        return [f"filter larger than the padded input in {name}: empty output" for name in empty]
    limits = SPATIAL_LIMITS[problem.dims]
    corners = _corners(dims, problem.output_size)
    for name, dim, (lower, upper) in zip(letters, dims, corners, strict=True):
        if dim.largest_offset > limits.offset_max:
            found.append(
                f"taps of a residue class in {name} reach over {dim.largest_offset} pixels of dy: "
                f"im2col offsets go to {limits.offset_max}"
            )
        for corner, value in (("lower", lower), ("upper", upper)):
            if not limits.corner_min <= value <= limits.corner_max:
                found.append(
                    f"{corner} corner {value} of the pixel box in {name}: must be "
                    f"{limits.corner_min} to {limits.corner_max}; it follows from (R-1)*dilation, "
                    "padding and stride"
                )
    # Some of a class may lie outside of dx, by less than a stride.
    pixels = problem.batch * math.prod(dim.walk_size * dim.stride for dim in dims)
    if pixels > _MAX_INT32:
        found.append(f"dx has {pixels} pixels, int32 pixel index overflows")
    return found


def _other_reasons(problem: ConvProblem, dtype: torch.dtype, machine: Machine | None) -> list[str]:
    """Returns what has nothing to do with TMA's rules for pixels."""
    found = []
    if dtype not in DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        found.append(f"dtype {dtype}: expected {names}")
    co = problem.out_channels // problem.groups
    if problem.groups > 1 and co % _MIN_BLOCK_K:
        found.append(
            f"{co} output channels in each of {problem.groups} groups: must be a multiple of "
            f"{_MIN_BLOCK_K}"
        )
    if not found and machine is not None and _choose(problem, dtype, machine) is None:
        found.append(
            f"a CTA has {machine.smem_bytes} bytes of shared memory, the smallest tile "
            "configuration needs more"
        )
    return found


def _is_packed(problem: ConvProblem, dtype: torch.dtype) -> bool:
    """Tells whether rows of a tile are neighbours in dx, of a multiple of 16 bytes."""
    packed = all(stride == 1 for stride in problem.stride)
    return packed and problem.in_channels * dtype.itemsize % ROW_BYTES == 0


def _choose(problem: ConvProblem, dtype: torch.dtype, machine: Machine) -> ConvConfig | None:
    """Returns the configuration that the model expects to be fastest; ``None`` if none fits."""
    dims, groups = residues_of(problem), problem.groups
    through_tma = _is_packed(problem, dtype) and groups == 1
    return choose_config(
        problem.batch * math.prod(dim.walk_size for dim in dims),
        math.prod(problem.stride),
        math.prod(dim.mean_taps for dim in dims),
        problem.in_channels // groups,
        problem.out_channels // groups,
        machine.num_sms,
        groups=groups,
        element_bytes=dtype.itemsize,
        # Measured: what goes through pointers takes less than its parts.
        whole_tile=through_tma and machine.capability >= (10, 0),
        available_bytes=machine.smem_bytes,
    )


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: ConvConfig | None = None,
) -> DgradPlan:
    """Returns the plan of a gradient of the input.

    Args:
        problem: The convolution.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx.
        device: Where dy is.
        config: The tile configuration; ``None`` lets the model choose.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: The kernel does not take the problem, or the device cannot run it.
    """
    machine = machine_of(device, "conv_dgrad")
    wrong = _geometry_reasons(problem)
    if wrong:
        raise descriptor_error(wrong)
    wrong = _other_reasons(problem, dtype, machine)
    if wrong:
        raise UnsupportedError("conv_dgrad: " + "; ".join(wrong))
    config = config or _choose(problem, dtype, machine)
    assert config is not None  # _other_reasons has asked
    groups = problem.groups
    ci, co = problem.in_channels // groups, problem.out_channels // groups
    unit = ROW_BYTES // dtype.itemsize
    missing_co = -problem.out_channels % unit
    padded_co = problem.out_channels + missing_co
    n, size = problem.batch, problem.output_size
    strides = (dy_strides[0], *dy_strides[2:], dy_strides[1])
    if missing_co:
        strides = packed_strides((n, *size, padded_co))
    dims = residues_of(problem)
    corners = _corners(dims, size)
    through_tma = _is_packed(problem, dtype) and (groups == 1 or ci % config.block_n == 0)
    dy_desc = Im2ColDescriptor(
        Layout((n, *size, padded_co), strides, dtype),
        (n, *size, padded_co),
        strides,
        [config.block_m, config.block_k],
        pixel_box_lower_corner=[lower for lower, _ in corners],
        pixel_box_upper_corner=[upper for _, upper in corners],
        round_f32_to_tf32=dtype == torch.float32,
    )
    m_gemm = n * math.prod(dim.walk_size for dim in dims)
    padded = three_dims(dims)
    scalars = DgradProblem(
        m_gemm=m_gemm,
        channel_blocks=math.ceil(co / config.block_k),
        size=tuple(dim.size for dim in padded),
        walk_size=tuple(dim.walk_size for dim in padded),
        padding=tuple(dim.low for dim in padded),
        dilation=tuple(dim.dilation for dim in padded),
        lower=tuple(dim.lower for dim in padded),
    )
    tiles = triton.cdiv(m_gemm, config.block_m) * triton.cdiv(ci, config.block_n)
    tiles *= groups * math.prod(problem.stride)
    return DgradPlan(
        problem=problem,
        dtype=dtype,
        config=config,
        dy_desc=dy_desc,
        launcher=Launcher(
            kernel=conv_dgrad.conv_dgrad_kernel,
            grid=(min(tiles, machine.num_sms), 1, 1),
            scalars=(ci, scalars),
            constants=kernel_constants(config, dims, ci, groups, DTYPES[dtype]),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
        missing_co=missing_co,
        missing_ci=-ci % unit,
        store_through_tma=through_tma,
    )


def _pad(rows: torch.Tensor, missing: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows
