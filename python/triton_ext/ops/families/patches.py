"""dgrad where patches do not overlap: one GEMM whose columns are the elements of a patch.

``kernels/patches.py`` has the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    Layout,
    aligned_rows,
    packed_strides,
    pixel_stride,
    rounding,
)
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, TRITON_DTYPES, DgradPlan, config_constants, dot_dtype
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refused, smem_refusals
from triton_ext.ops.families.gemm_config import (
    ConvConfig,
    OutputTile,
    channel_block,
    expected_times,
)
from triton_ext.ops.kernels.patches import patch_dgrad_kernel
from triton_ext.ops.kernels.row_copy import FilledChannels

__all__ = ["PATCHES", "PatchConfig", "has_patches"]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

# Its times count as much more.  The kernel's time was not measured: it is taken where its model
# leaves no doubt, which is what few channels make of stride phases.
_CORRECTION = 1 / 0.6


@dataclass(frozen=True, slots=True)
class PatchConfig:
    """One way to compile the kernel."""

    config: ConvConfig  # the tiles of patches and of their elements, and the pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patches:
    """Sizes of patches; triples are (d, h, w)."""

    taps: tuple[int, ...]  # of the filter, which are its strides
    size: tuple[int, ...]  # pixels of dx
    output: tuple[int, ...]  # patches of dy
    covering: tuple[int, ...]  # patches of dx, incomplete ones at its end included
    row: int  # S * Ci, elements of a row of a patch
    columns: int  # T * R * S * Ci, elements of a patch
    unit: int  # elements of which rows of patches and rows of dx are multiples: 1 to 8

    @classmethod
    def of(cls, problem: ConvProblem) -> _Patches:
        ones, ci = (1,) * (3 - problem.dims), problem.in_channels
        taps, size = (*ones, *problem.filter_size), (*ones, *problem.input_size)
        return cls(
            taps=taps,
            size=size,
            output=(*ones, *problem.output_size),
            covering=tuple(-(-extent // count) for extent, count in zip(size, taps, strict=True)),
            row=taps[-1] * ci,
            columns=math.prod(taps) * ci,
            unit=math.gcd(taps[-1] * ci, size[-1] * ci, 8),
        )


def has_patches(problem: ConvProblem) -> bool:
    """Tells whether the filter's windows are adjacent patches, from the first pixel on."""
    dims = zip(
        problem.filter_size, problem.dilation, problem.padding, problem.output_size,
        problem.input_size, strict=True,
    )  # fmt: skip
    # Patches that begin in the padding behind x would be patches that dx does not have.
    return (
        problem.taps > 1
        and problem.groups == 1
        and problem.filter_size == problem.stride
        and all(
            low == 0 and (taps == 1 or dilation == 1) and out * taps <= size
            for taps, dilation, (low, _), out, size in dims
        )
    )


def _describe(
    problem: ConvProblem,
    config: ConvConfig,
    dy_desc: Any,
    dy_row_stride: int | None,
    filling: FilledChannels,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[Any, ...]]:
    """Returns what describes dy, weight and dx to the kernel.

    ``dy_desc`` is an im2col descriptor of dy [N, out_d, out_h, out_w, Co] without memory;
    ``dy_row_stride`` the distance of two pixels where dy is read as a matrix, else None;
    ``filling`` fills up channels of dy, and rows of w, to multiples of 16 bytes.
    """
    to_last, ones = TO_LAST[problem.dims], (1,) * (3 - problem.dims)

    def described(dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor) -> tuple[Any, ...]:
        dy_rows = dy.permute(to_last).unflatten(0, (-1, *ones)) if ones else dy.permute(to_last)
        w_rows = weight.permute(to_last).reshape(problem.out_channels, -1)
        w_block = [config.block_k, config.block_n]
        if dy.dtype == torch.float32:
            w_rows, w_block = w_rows.t(), [config.block_n, config.block_k]
        dy_rows, w_rows = filling.fill(dy_rows, w_rows)
        w_rows = aligned_rows(w_rows)
        options = rounding(dy.dtype)
        # Also where dy is read as a matrix: it checks the address.
        rows_desc = dy_desc.with_base(dy_rows)
        if dy_row_stride is not None:
            shape = [math.prod(dy_rows.shape[:-1]), dy_rows.shape[-1]]
            block = [config.block_m, config.block_k]
            rows_desc = TensorDescriptor(dy_rows, shape, [dy_row_stride, 1], block, **options)
        w_desc = TensorDescriptor(w_rows, [*w_rows.shape], [w_rows.shape[1], 1], w_block, **options)
        return rows_desc, w_desc, dx

    return described


class Patches(Family[PatchConfig]):
    """dgrad."""

    kind = "patches"
    direction = "dgrad"
    config_type = PatchConfig

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        if has_patches(case.problem):
            return ()
        # Amounts of padding are not in keys.
        return refused("windows of the filter are no patches beside each other", in_key=False)

    def number_refusals(
        self, config: PatchConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        tiles, size = config.config, case.dtype.itemsize
        return tiles.refusals(size) or smem_refusals(
            tiles.smem_bytes(size, output=_output_tile(size)), device
        )

    def candidates(self, case: Case, device: Device) -> Mapping[PatchConfig, Expected]:
        problem, size = case.problem, case.dtype.itemsize
        patches, co = _Patches.of(problem), problem.out_channels
        times = expected_times(
            problem.batch * math.prod(patches.covering),
            patches.columns,
            co,
            (1,),
            device.num_sms,
            element_bytes=size,
            block_k=channel_block(co, size, 1),
            output=_output_tile(size),
            available_bytes=device.smem_bytes,
        )
        # Without reuse: dy is read once, dx written.
        elements = math.prod(problem.y_shape) + math.prod(problem.x_shape)
        least_us = H200.launch_us + elements * size / H200.copy_bytes_per_us
        return ranked(
            {
                PatchConfig(tiles): Expected.of(max(us, least_us), correction=_CORRECTION)
                for tiles, us in times.items()
            }
        )

    def bind(self, config: PatchConfig, case: Case, device: Device) -> DgradPlan:
        problem, dtype, tiles = case.problem, case.dtype, config.config
        patches, co = _Patches.of(problem), problem.out_channels
        unit, is_fp32 = ROW_BYTES // dtype.itemsize, dtype == torch.float32
        missing_co = -co % unit
        shape = (problem.batch, *patches.output, co + missing_co)
        strides = packed_strides(shape)
        if not missing_co:
            dy_strides = case.strides_of_dy
            inner = (*dy_strides[2:], dy_strides[1])
            # Those of missing dimensions, as a tensor's view has them.
            outer = (patches.output[-problem.dims] * inner[0],) * (3 - problem.dims)
            strides = (dy_strides[0], *outer, *inner)
        dy_desc = Im2ColDescriptor(
            Layout(shape, strides, dtype),
            shape,
            strides,
            [tiles.block_m, tiles.block_k],
            pixel_box_lower_corner=[0, 0, 0],
            pixel_box_upper_corner=[
                count - whole for count, whole in zip(patches.covering, patches.output, strict=True)
            ],
            round_f32_to_tf32=is_fp32,
        )
        is_whole = patches.covering == patches.output
        row_stride = pixel_stride(dy_desc.geometry) if is_whole else None
        m_gemm, ci = problem.batch * math.prod(patches.covering), problem.in_channels
        num_tiles = math.ceil(m_gemm / tiles.block_m) * math.ceil(patches.columns / tiles.block_n)
        filling = FilledChannels(missing_co, missing_co if is_fp32 else -patches.columns % unit)
        return DgradPlan(
            problem=problem,
            dtype=dtype,
            config=tiles,
            describe=_describe(problem, tiles, dy_desc, row_stride, filling),
            stores_aligned=False,
            launcher=Launcher(
                kernel=patch_dgrad_kernel,
                grid=(min(num_tiles, device.num_sms), 1, 1),
                scalars=(
                    m_gemm,
                    *patches.covering,
                    *patches.output,
                    *patches.size[:2],
                    patches.size[-1] * ci // patches.unit,
                ),
                constants={
                    "T": patches.taps[0],
                    "R": patches.taps[1],
                    "ROW": patches.row,
                    "CI": ci,
                    "UNIT": patches.unit,
                    "CHANNEL_BLOCKS": math.ceil(co / tiles.block_k),
                    "DY_IS_MATRIX": row_stride is not None,
                    "W_IS_NK": is_fp32,
                    **config_constants(tiles, "block_m", "block_n", "block_k"),
                    "DTYPE": TRITON_DTYPES[dtype],
                    "DOT_DTYPE": dot_dtype(dtype),
                },
                options={"num_stages": tiles.num_stages, "num_warps": tiles.num_warps},
            ),
        )


def _output_tile(element_bytes: int) -> OutputTile:
    return OutputTile(element_bytes=element_bytes, through_pointers=True, whole=True)


PATCHES = Patches()
