"""dgrad where patches do not overlap: one GEMM whose columns are the elements of a patch.

``kernels/patches.py`` has the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ELEMENT_BYTES, ROW_BYTES, pixel_stride, rounding
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.loads import dram_us
from triton_ext.ops.core.packing import channel_block
from triton_ext.ops.core.plan import ForwardPlan, three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusals, refused, smem_refusals
from triton_ext.ops.families import gemm_config
from triton_ext.ops.families.gemm import described_inputs, dy_descriptor, tiled
from triton_ext.ops.families.gemm_config import ConvConfig, OutputTile, Product
from triton_ext.ops.kernels.patches import patch_dgrad_kernel
from triton_ext.ops.kernels.row_copy import fill_channels

# How much of another kernel's time the model may expect, over types that were not measured.
_MOST_EXPECTED = 0.6


@dataclass(frozen=True, slots=True)
class PatchConfig:
    """A configuration: tiles of the kernel."""

    config: ConvConfig  # the tiles of patches and of their elements, and the pipeline


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


def _covering(problem: ConvProblem) -> tuple[int, ...]:
    """Returns the patches of dx per dimension, incomplete ones at its end included."""
    sizes = zip(problem.input_size, problem.filter_size, strict=True)
    return tuple(math.ceil(size / taps) for size, taps in sizes)


class Patches(Family[PatchConfig]):
    """dgrad of patches that do not overlap, as one matrix product."""

    kind = "patches"
    direction = "dgrad"
    config_type = PatchConfig
    tile_fields = ("block_m", "block_n")
    has_stages = is_wrapped = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        if has_patches(case.problem):
            return ()
        # Amounts of padding are not in keys.
        return refused("windows of the filter are no patches beside each other", in_key=False)

    def number_refusals(self, config: PatchConfig, case: Case, device: Device) -> Refusals:
        tiles, size = config.config, case.dtype.itemsize
        return tiles.refusals(size) or smem_refusals(
            tiles.smem_bytes(size, output=_output_tile(size)), device
        )

    def candidates(self, case: Case, device: Device) -> Mapping[PatchConfig, Expected]:
        problem, size = case.problem, case.dtype.itemsize
        co, row = problem.out_channels, problem.filter_size[-1] * problem.in_channels
        product = Product(
            pixels=problem.batch * math.prod(_covering(problem)),
            columns=problem.taps * problem.in_channels, channels=co, taps=(1,), element_bytes=size,
        )  # fmt: skip
        times = gemm_config.expected_times(
            product, device, channel_block(co, size, 1),
            output=replace(_output_tile(size), element_ns=gemm_config.pointer_store_ns(row, size)),
            dram_us=dram_us(case, device),
        )  # fmt: skip
        if size != ELEMENT_BYTES:
            # Not measured: taken where the model leaves no doubt.  dy is read once, dx written.
            elements = math.prod(problem.y_shape) + math.prod(problem.x_shape)
            least_us = H200.launch_us + H200.dram_us(elements * size)
            for tiles, expected in times.items():
                times[tiles] = Expected.of(max(expected.counted_us, least_us) / _MOST_EXPECTED)
        return ranked({PatchConfig(tiles): expected for tiles, expected in times.items()})

    def bind(self, config: PatchConfig, case: Case, device: Device) -> ForwardPlan:
        problem, dtype, tiles = case.problem, case.dtype, config.config
        output, covering = problem.output_size, _covering(problem)
        ci, co, is_fp32 = problem.in_channels, problem.out_channels, dtype == torch.float32
        row, columns = problem.filter_size[-1] * ci, problem.taps * ci
        # Elements of which rows of patches and rows of dx are multiples: 1 to 8.
        unit = math.gcd(row, problem.input_size[-1] * ci, 8)
        missing_co, missing_w = (-count % (ROW_BYTES // dtype.itemsize) for count in (co, columns))
        dy_block, w_block = [tiles.block_m, tiles.block_k], [tiles.block_k, tiles.block_n]
        if is_fp32:
            missing_w, w_block = missing_co, w_block[::-1]
        dy_desc = dy_descriptor(case, co + missing_co, dy_block)
        row_stride = pixel_stride(dy_desc.geometry) if covering == output else None
        pixels, options, matrix = problem.batch * math.prod(output), rounding(dtype), None
        if row_stride is not None:
            matrix = tiled([pixels, co + missing_co], row_stride, dy_block, **options)

        def fill(dy_rows: torch.Tensor, w_rows: torch.Tensor) -> list[torch.Tensor]:
            w_rows = w_rows.reshape(co, -1)
            w_rows = w_rows.t() if is_fp32 else w_rows
            return fill_channels((dy_rows, missing_co), (w_rows, missing_w))

        w_shape = [columns, co + missing_w] if is_fp32 else [co, columns + missing_w]
        inputs = partial(
            described_inputs,
            pixels=dy_desc.with_base,
            matrix=matrix,
            columns=[tiled(w_shape, w_shape[1], w_block, **options)],
            dims=problem.dims,
            fill=fill,
        )
        m_gemm = problem.batch * math.prod(covering)
        num_tiles = math.ceil(m_gemm / tiles.block_m) * math.ceil(columns / tiles.block_n)
        launcher = Launcher(
            kernel=patch_dgrad_kernel,
            grid=(min(num_tiles, device.num_sms), 1, 1),
            scalars=(
                m_gemm, three(covering, 1), three(output, 1), three(problem.input_size, 1)[:2],
                problem.input_size[-1] * ci // unit,
            ),
            constants={
                "DIMS": problem.dims,
                "TAPS": three(problem.filter_size, 1),
                "ROW": row,
                "CI": ci,
                "UNIT": unit,
                "CO": co,
                "DY_IS_MATRIX": row_stride is not None,
                "W_IS_NK": is_fp32,
                "CONFIG": tiles,
            },
            options={"num_stages": tiles.num_stages, "num_warps": tiles.num_warps},
        )  # fmt: skip
        return ForwardPlan.make(case, tiles, inputs, launcher)


def _output_tile(element_bytes: int) -> OutputTile:
    return OutputTile(element_bytes=element_bytes, whole=True)


PATCHES = Patches()
