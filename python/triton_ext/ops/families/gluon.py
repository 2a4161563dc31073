"""Implicit GEMM in Gluon for Hopper: fprop, and dgrad by stride phases.

The kernels are imported when a plan is made, which not every host's Gluon can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from triton_ext import backends
from triton_ext.host import capabilities
from triton_ext.ops.core import descriptors
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ELEMENT_BYTES
from triton_ext.ops.core.device import IS_INTERPRETED, SMEM_BYTES, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.loads import dram_us
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.core.stride_phases import phases_of
from triton_ext.ops.families import gemm
from triton_ext.ops.families.gemm_config import Product
from triton_ext.ops.families.gluon_config import TileConfig, expected_times
from triton_ext.ops.kernels.gemm import DgradProblem, Phases
from triton_ext.ops.kernels.row_copy import RowCopies

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")

#: Dtypes that all Gluon kernels take.
DTYPES = (torch.float16, torch.bfloat16)
#: Dtypes that fprop takes as well: WGMMA reads 8-bit operands along K only, as fprop has them.
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

# How many times the @triton.jit kernel's time a configuration over fp8 may take in the model, also
# with steps of less than 128 bytes, which count as whole (H200, 2026-11-22; docs/gluon-conv.md).
_MOST_EXPECTED, _MOST_EXPECTED_NARROW = 1.025, 1.08


def common_refusals(
    problem: ConvProblem, dtype: torch.dtype, device: Device, *, fp8: bool = False, co_unit: int = 8
) -> Refusals:
    """Returns why no Gluon kernel computes a problem; rows of Co are multiples of ``co_unit``."""
    gluon, (major, minor) = capabilities()["im2col-gluon"], device.capability
    host = [] if gluon.available else [gluon.reason]
    if IS_INTERPRETED:
        host = ["Triton's interpreter does not run Gluon kernels"]
    if (major, minor) != (9, 0):
        host.append(f"WGMMA is an instruction of sm_90 alone, the GPU is sm_{major}{minor}")
    if (found := device.smem_bytes) < SMEM_BYTES:
        host.append(f"a CTA needs {SMEM_BYTES} bytes of shared memory, the GPU has {found}")
    wrong = []
    is_fp8 = fp8 and dtype in FP8_DTYPES
    if dtype not in DTYPES and not is_fp8:
        expected = "float16, bfloat16 or fp8" if fp8 else "float16 or bfloat16"
        wrong.append(f"dtype is {dtype}, expected {expected}")
    if problem.groups != 1:
        wrong.append(f"groups={problem.groups}, expected 1")
    ci, co, ci_unit = problem.in_channels, problem.out_channels, 16 if is_fp8 else 8
    for name, count, unit in (("Ci", ci, ci_unit), ("Co", co, co_unit)):
        if count % unit:
            wrong.append(f"{name} is {count}, TMA needs rows of a multiple of {unit} channels")
    return refused(*host, in_key=False) + refused(*wrong)


def im2col_of(
    problem: ConvProblem, ci: int, strides: tuple[int, ...], dtype: torch.dtype, block: list[int]
) -> Any:
    """Returns the im2col descriptor of x [N, Ci, *input_size], with so many channels in memory."""
    strides = tuple(strides[i] for i in TO_LAST[problem.dims])
    x = descriptors.Layout((problem.batch, *problem.input_size, ci), strides, dtype)
    return gemm.im2col_of(TensorDescriptorIm2Col, problem, x, block)


def tiled(
    dtype: torch.dtype, shape: list[int], row: int, block: list[int]
) -> Callable[[torch.Tensor], Any]:
    """Returns a function that makes the tiled descriptor of a tensor on a 16-byte boundary.

    All but the address is checked here, once; ``row`` is the stride of the last dimension but one.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from triton_ext.ops.kernels.gluon_pipeline import smem_layout

    strides = [*(row * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)), 1]
    stand_in = descriptors.Layout(tuple(shape), tuple(strides), dtype)
    layout = smem_layout(block, dtype.itemsize)
    checked = TensorDescriptor(stand_in, shape, strides, block, layout).__dict__

    def describe(base: torch.Tensor) -> Any:
        made = object.__new__(TensorDescriptor)
        made.__dict__.update(checked, base=base)
        return made

    return describe


def product_of(case: Case) -> Product:
    """Returns the matrix product of a case of fprop or dgrad."""
    product = gemm.product_of(case)
    if case.direction == "dgrad":
        return product
    problem, x_strides = _read(case)
    # Pixels of x [N, Ci, *input_size] may be rows of a matrix, and y's the same.
    order = TO_LAST[problem.dims][-2::-1]
    sizes, strides = ([values[i] for i in order] for values in (problem.x_shape, x_strides))
    is_matrix = problem.is_pointwise and descriptors.row_stride_of(sizes, strides) is not None
    return replace(product, channels=problem.in_channels, is_matrix=is_matrix)


def _read(case: Case) -> tuple[ConvProblem, tuple[int, ...]]:
    """Returns the convolution that the kernel computes, and the strides of its x."""
    if case.packing is None:
        return case.problem, case.strides_of_x
    image, *pixels, one = case.packing.strides
    return case.packing.padded, (image, one, *pixels)


class _Gluon(Family[TileConfig]):
    """Warp-specialised implicit GEMM of fprop and dgrad."""

    kind = "gluon"
    is_interpreted = False
    config_type = TileConfig
    is_gemm = True
    tile_fields = ("rows", "consumers", "ping_pong", "block_n_main", "block_n_rest")

    def fit_refusals(self, config: TileConfig, case: Case, device: Device) -> Refusals:
        return config.fit_refusals(product_of(case), device.num_sms)

    def candidates(self, case: Case, device: Device) -> Mapping[TileConfig, Expected]:
        copies_us = 0.0 if case.packing is None else case.packing.copy_us
        product, found = product_of(case), {}
        times = expected_times(product, device.num_sms, dram_us=dram_us(case, device))
        for config, expected in times.items():
            if product.element_bytes != ELEMENT_BYTES:
                is_narrow = config.block_k * config.element_bytes < 128
                most = _MOST_EXPECTED_NARROW if is_narrow else _MOST_EXPECTED
                expected = expected.corrected(1 / most)
            found[config] = expected.plus("copies", copies_us)
        return ranked(found)


def _columns(
    dtype: torch.dtype, shape: list[int], row: int, blocks: Iterable[list[int]]
) -> list[Callable[[torch.Tensor], Any] | None]:
    """Returns functions that describe a product's columns to each of two accumulators."""
    return [*(tiled(dtype, shape, row, block) for block in blocks), None][:2]


def launcher(kernel: Any, programs: int, problem: Any, **constants: Any) -> Launcher:
    """Returns the launcher of a kernel whose first partition has 4 warps."""
    return Launcher(
        kernel=kernel, grid=(programs, 1, 1), scalars=(problem,), constants=constants,
        options={"num_warps": 4},
    )  # fmt: skip


class GluonFprop(_Gluon):
    """fprop; x is read as pixels or as a matrix of them."""

    direction = "fprop"
    reads_packed = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, out_dtype = _read(case)[0], case.output_dtype
        allowed, expected = {*DTYPES}, "float16 or bfloat16"
        if case.dtype in FP8_DTYPES:
            allowed |= {*FP8_DTYPES, torch.float32}
            expected = "float32, float16, bfloat16 or fp8"
        co_unit = 16 if out_dtype in FP8_DTYPES else 8
        found = common_refusals(problem, case.dtype, device, fp8=True, co_unit=co_unit)
        found += gemm.tap_refusals(case)
        if case.epilogue.out_dtype not in {None, *allowed}:
            found += refused(f"out_dtype is {out_dtype}, expected {expected}")
        if case.epilogue.function is not None:
            found += refused("a function of the user's needs the @triton.jit kernel")
        if case.epilogue.amax:
            found += refused("amax needs the @triton.jit kernel")
        return found

    def bind(self, config: TileConfig, case: Case, device: Device) -> ForwardPlan:
        from triton_ext.ops.kernels import gluon_conv

        problem, x_strides = _read(case)
        conv, co, ci = problem.geometry, problem.out_channels, problem.in_channels
        # The weight of packed pixels is filled up with channels that x does not have.
        x_ci = ci if case.packing is None else case.packing.window_channels
        x_block = [config.rows, config.block_k]
        x_desc = im2col_of(problem, x_ci, x_strides, case.dtype, x_block)
        # How many there are, channels of each, and from one to the next.
        pixels, filters = (conv.m_gemm, x_ci, descriptors.matrix_row_stride(x_desc)), (co, ci, ci)
        rows, columns = (filters, pixels) if config.rows_from_w else (pixels, filters)
        (m_gemm, row_ci, row_step), (n_gemm, column_ci, column_step) = rows, columns
        assert column_step is not None  # pixels are columns where they are rows of a matrix only
        matrix = None
        if row_step is not None:
            matrix = tiled(case.dtype, [m_gemm, row_ci], row_step, x_block)
        shape, out_shape = [n_gemm, problem.taps, column_ci], [conv.m_gemm, co]
        w_blocks = ([width, 1, config.block_k] for width in config.fprop_boxes)
        out = tiled(case.output_dtype, out_shape, co, config.y_block)
        blocks = math.ceil(ci / config.block_k)
        kernel_problem = gluon_conv.FpropProblem.of(conv, m_gemm, n_gemm, blocks)
        return ForwardPlan.make(
            case,
            config,
            partial(
                gemm.described_inputs,
                pixels=partial(with_base, x_desc),
                matrix=matrix,
                columns=_columns(case.dtype, shape, column_step, w_blocks),
                rows_from_w=config.rows_from_w,
                dims=problem.dims if case.packing is None else None,
            ),
            launcher(
                gluon_conv.conv_fprop_kernel, product_of(case).programs(config, device.num_sms),
                kernel_problem, CONFIG=config, FINISH=case.epilogue.finish,
            ),
            outputs=lambda y: (out(y),),
            row_copies=None if case.packing is None else RowCopies(case.packing),
        )  # fmt: skip


class GluonDgrad(_Gluon):
    """dgrad by stride phases."""

    direction = "dgrad"

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        return common_refusals(case.problem, case.dtype, device)

    def bind(self, config: TileConfig, case: Case, device: Device) -> ForwardPlan:
        from triton_ext.ops.kernels import gluon_conv

        problem, dims = case.problem, phases_of(case.problem)
        n, ci, co = problem.batch, problem.in_channels, problem.out_channels
        block = [config.rows, config.block_k]
        dy_desc = gemm.dy_descriptor(case, co, block, TensorDescriptorIm2Col)
        row = descriptors.pixel_stride(dy_desc.geometry) if problem.is_pointwise else None
        pixels = n * math.prod(problem.input_size)
        w_blocks = ([config.block_k, 1, width] for width in config.widths)
        inputs = partial(
            gemm.described_inputs,
            pixels=partial(with_base, dy_desc),
            # One phase, whose pixels are those of dx.
            matrix=None if row is None else tiled(case.dtype, [pixels, co], row, block),
            columns=_columns(case.dtype, [co, problem.taps, ci], ci, w_blocks),
            dims=problem.dims,
        )
        out = tiled(case.dtype, [pixels, ci], ci, config.y_block)
        return ForwardPlan.make(
            case,
            config,
            inputs,
            launcher(
                gluon_conv.conv_dgrad_kernel, product_of(case).programs(config, device.num_sms),
                DgradProblem.of(dims, n, ci, math.ceil(co / config.block_k)),
                CONFIG=config, PHASES=Phases.of(dims),
            ),
            outputs=lambda dx: (out(dx), dx),
        )  # fmt: skip


GLUON: GluonFprop = GluonFprop()
GLUON_DGRAD: GluonDgrad = GluonDgrad()
