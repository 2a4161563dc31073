"""Implicit GEMM in Gluon for Hopper: fprop, and dgrad by stride phases.

The kernels are imported when a plan is made, which not every host's Gluon can do.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from triton_ext import backends
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import (
    Layout,
    aligned_rows,
    matrix_row_stride,
    pixel_stride,
    row_stride_of,
)
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, DgradPlan, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refuse, refused
from triton_ext.ops.core.stride_phases import phases_of
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gemm_config import channel_block
from triton_ext.ops.families.gluon_config import (
    DTYPES,
    FP8_DTYPES,
    TileConfig,
    Tiled,
    common_refusals,
    host_refusals,
    launch_refusals,
    num_programs,
    problem_refusals,
)
from triton_ext.ops.families.gluon_cost import dgrad_times, expected_times, step_channels
from triton_ext.ops.kernels.row_copy import RowCopies

__all__ = ["GLUON", "GLUON_DGRAD"]

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")

# How many times the @triton.jit kernel's time a configuration may be expected to take.  Measured on
# 42 shapes (fprop and dgrad; H200, fp16, 2026-11-22; docs/gluon-conv.md): those above were slower
# with Gluon, by 1 to 5 %, and those between 1 and this no slower.
_MOST_EXPECTED = 1.025
# The model counts steps of less than 128 bytes of channels as those of 128.
_MOST_EXPECTED_NARROW = 1.08

# The arguments of the fprop kernel among those of ForwardPlan: bias, scale, one scale, the residual
# as a pointer, out_scale.
_USED_ARGUMENTS = (0, 1, 2, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """Gluon's descriptors of the operands of a product, without memory.

    Attributes:
        pixels: im2col descriptor of x [N, *input_size, Ci], or of dy.
        matrix: That of the rows of the product as a matrix; ``None`` where im2col is not the
            identity.  Rows are the pixels, with ``rows_from_w`` the filter.
        columns: Those of the columns, for each accumulator.
        out: That of y or dx as a matrix [pixels, channels].
        rows_from_w: As in the configuration.
        dims: Spatial dimensions of tensors in torch's order; ``None`` where both are packed,
            channels-last rows.
    """

    pixels: Any
    matrix: Tiled | None
    columns: tuple[Tiled, ...]
    out: Tiled
    dims: int | None
    rows_from_w: bool = False

    def __call__(self, pixels: torch.Tensor, filters: torch.Tensor) -> tuple[Any, Any, Any]:
        """Returns the kernel's descriptors of rows and columns."""
        if self.dims is not None:
            pixels = pixels.permute(TO_LAST[self.dims])
            filters = aligned_rows(filters.permute(TO_LAST[self.dims]))
        # Also where it is not used: it checks the address.
        rows_desc = with_base(self.pixels, pixels)
        rows, columns = (filters, pixels) if self.rows_from_w else (pixels, filters)
        if self.matrix is not None:
            rows_desc = self.matrix.at(rows)
        main, rest = [*(tiles.at(columns) for tiles in self.columns), None][:2]
        return rows_desc, main, rest


class _Gluon(Family[TileConfig]):
    """Both directions."""

    kind: ClassVar[str] = "gluon"
    config_type: ClassVar[type[TileConfig]] = TileConfig
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = (
        *("rows", "consumers", "ping_pong", "block_n_main", "block_n_rest"),
    )

    def bind(self, config: TileConfig, case: Case, device: Device) -> Any:
        found = self.refusals(case, device, config)
        refuse(f"{case.operator}: the Gluon kernel does not take it", found)
        return self._plan(config, case, device)

    @abstractmethod
    def _plan(self, config: TileConfig, case: Case, device: Device) -> Any:
        """Returns the plan of a configuration without refusals."""


def _ranked(
    times: Mapping[TileConfig, float], copies_us: float = 0.0
) -> dict[TileConfig, Expected]:
    def correction(config: TileConfig) -> float:
        is_narrow = config.block_k * config.element_bytes < 128
        return 1 / (_MOST_EXPECTED_NARROW if is_narrow else _MOST_EXPECTED)

    return ranked({c: Expected.of(us, copies_us, correction(c)) for c, us in times.items()})


class GluonFprop(_Gluon):
    """fprop; x is read as pixels or as a matrix of them."""

    direction: ClassVar[Direction] = "fprop"
    reads_packed: ClassVar[bool] = True

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        problem, out_dtype = _read(case)[0], case.output_dtype
        allowed, expected = {*DTYPES}, "float16 or bfloat16"
        if case.dtype in FP8_DTYPES:
            allowed |= {*FP8_DTYPES, torch.float32}
            expected = "float32, float16, bfloat16 or fp8"
        co_unit = 16 if out_dtype in FP8_DTYPES else 8
        found = (*host_refusals(device), *tap_refusals(case))
        found += problem_refusals(problem, case.dtype, takes_fp8=True, co_unit=co_unit)
        if case.epilogue.out_dtype not in {None, *allowed}:
            found += refused(f"out_dtype is {out_dtype}, expected {expected}")
        if case.epilogue.function is not None:
            found += refused("a function of the user's needs the @triton.jit kernel")
        if case.epilogue.amax:
            found += refused("amax needs the @triton.jit kernel")
        return found

    def fit_refusals(self, config: TileConfig, case: Case, device: Device) -> tuple[Refusal, ...]:
        problem, x_strides = _read(case)
        return launch_refusals(
            config,
            problem.taps * math.ceil(problem.in_channels / config.block_k),
            problem.out_channels,
            device.num_sms,
            element_bytes=case.dtype.itemsize,
            out_bytes=case.output_dtype.itemsize,
            may_turn=_is_matrix(problem, x_strides),
        )

    def candidates(self, case: Case, device: Device) -> Mapping[TileConfig, Expected]:
        problem, x_strides = _read(case)
        times = expected_times(
            problem.geometry.m_gemm,
            problem.out_channels,
            problem.in_channels,
            problem.taps,
            device.num_sms,
            block_k=step_channels(problem.in_channels, case.dtype.itemsize),
            element_bytes=case.dtype.itemsize,
            out_bytes=case.output_dtype.itemsize,
            x_is_matrix=_is_matrix(problem, x_strides),
        )
        return _ranked(times, 0.0 if case.packing is None else case.packing.copy_us)

    def _plan(self, config: TileConfig, case: Case, device: Device) -> ForwardPlan:
        from triton_ext.ops.kernels import gluon_fprop

        problem, x_strides = _read(case)
        conv, co, ci = problem.geometry, problem.out_channels, problem.in_channels
        # The weight of packed pixels is filled up with channels that x does not have.
        x_ci = ci if case.packing is None else case.packing.window_channels
        x_block = [config.rows, config.block_k]
        strides = tuple(x_strides[i] for i in TO_LAST[problem.dims])
        x_desc = TensorDescriptorIm2Col.for_conv(
            Layout((problem.batch, *problem.input_size, x_ci), strides, case.dtype),
            conv.filter_size, conv.stride, conv.padding, conv.dilation, block_shape=x_block,
        )  # fmt: skip
        # How many there are, channels of each, and from one to the next.
        pixels, filters = (conv.m_gemm, x_ci, matrix_row_stride(x_desc)), (co, ci, ci)
        rows, columns = (filters, pixels) if config.rows_from_w else (pixels, filters)
        (m_gemm, row_ci, row_step), (n_gemm, column_ci, column_step) = rows, columns
        assert column_step is not None  # pixels are columns where they are rows of a matrix only
        matrix = None
        if row_step is not None:
            matrix = Tiled.of(case.dtype, [m_gemm, row_ci], row_step, x_block)
        column_shape = [n_gemm, problem.taps, column_ci]
        operands = _Operands(
            pixels=x_desc,
            matrix=matrix,
            columns=tuple(
                Tiled.of(case.dtype, column_shape, column_step, [width, 1, config.block_k])
                for width in config.fprop_boxes
            ),
            out=Tiled.of(case.output_dtype, [conv.m_gemm, co], co, config.y_block),
            rows_from_w=config.rows_from_w,
            dims=problem.dims if case.packing is None else None,
        )
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(n_gemm / config.block_n)
        ones = (1,) * (3 - problem.dims)
        kernel_problem = gluon_fprop.FpropProblem(
            m_gemm=m_gemm,
            co=n_gemm,
            channel_blocks=math.ceil(ci / config.block_k),
            filter_size=(*ones, *conv.filter_size),
            dilation=(*ones, *conv.dilation),
            output_size=conv.output_size,
            stride=conv.stride,
            padding=tuple(low for low, _ in conv.padding),
        )
        launcher = _launcher(
            gluon_fprop.conv_fprop_kernel, num_programs(config, tiles, n_gemm, device.num_sms),
            kernel_problem, CONFIG=config, ACTIVATION=case.epilogue.activation,
            RESIDUAL_PER_IMAGE=case.epilogue.residual_per_image,
        )  # fmt: skip
        return ForwardPlan.make(
            case,
            config,
            operands,
            launcher,
            outputs=lambda y: (operands.out.at(y),),
            arguments_read=_USED_ARGUMENTS,
            row_copies=None if case.packing is None else RowCopies(case.packing, case.strides_of_x),
        )


def _read(case: Case) -> tuple[ConvProblem, tuple[int, ...]]:
    """Returns what fprop computes, and the strides of its x."""
    if case.packing is None:
        return case.problem, case.strides_of_x
    return case.packing.padded, case.packing.x_strides


def _is_matrix(problem: ConvProblem, x_strides: tuple[int, ...]) -> bool:
    """Tells whether pixels of x [N, Ci, *input_size] are rows of a matrix, and y's the same."""
    last = TO_LAST[problem.dims]
    shape = (problem.batch, problem.in_channels, *problem.input_size)
    sizes, strides = ([values[i] for i in last[-2::-1]] for values in (shape, x_strides))
    return problem.is_pointwise and row_stride_of(sizes, strides) is not None


class GluonDgrad(_Gluon):
    """dgrad by stride phases."""

    direction: ClassVar[Direction] = "dgrad"

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        return common_refusals(case.problem, case.dtype, device)

    def fit_refusals(self, config: TileConfig, case: Case, device: Device) -> tuple[Refusal, ...]:
        problem = case.problem
        # Pixels see different taps with a stride, and no filter can stay.
        blocks = math.ceil(problem.out_channels / config.block_k)
        steps = problem.taps * blocks if set(problem.stride) == {1} else 0
        return launch_refusals(config, steps, problem.in_channels, device.num_sms)

    def candidates(self, case: Case, device: Device) -> Mapping[TileConfig, Expected]:
        problem = case.problem
        ci, co = problem.in_channels, problem.out_channels
        block_k = channel_block(co, 2, problem.groups)
        dims = phases_of(problem)
        times = dgrad_times(dims, problem.batch, ci, co, device.num_sms, block_k=block_k)
        return _ranked(times)

    def _plan(self, config: TileConfig, case: Case, device: Device) -> DgradPlan:
        from triton_ext.ops.kernels import gluon_dgrad

        problem, dims = case.problem, phases_of(case.problem)
        n, ci, co = problem.batch, problem.in_channels, problem.out_channels
        classes = math.prod(problem.stride)
        m_gemm = n * math.prod(dim.walk_size for dim in dims)
        shape = (n, *problem.output_size, co)
        strides = tuple(case.strides_of_dy[i] for i in TO_LAST[problem.dims])
        block = [config.rows, config.block_k]
        corners = [
            (dim.lower, dim.lower + dim.walk_size - out)
            for dim, out in zip(dims, problem.output_size, strict=True)
        ]
        dy_desc = TensorDescriptorIm2Col(
            Layout(shape, strides, case.dtype), shape, strides, block,
            pixel_box_lower_corner=[lower for lower, _ in corners],
            pixel_box_upper_corner=[upper for _, upper in corners],
        )  # fmt: skip
        row = pixel_stride(dy_desc.geometry) if problem.is_pointwise else None
        pixels = n * math.prod(problem.input_size)
        operands = _Operands(
            pixels=dy_desc,
            matrix=None if row is None else Tiled.of(case.dtype, [m_gemm, co], row, block),
            columns=tuple(
                Tiled.of(case.dtype, [co, problem.taps, ci], ci, [config.block_k, 1, width])
                for width in config.widths
            ),
            out=Tiled.of(case.dtype, [pixels, ci], ci, config.y_block),
            dims=problem.dims,
        )
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n) * classes
        return DgradPlan(
            problem=problem,
            dtype=case.dtype,
            config=config,
            describe=lambda dy, weight, dx: (*operands(dy, weight), operands.out.at(dx), dx),
            stores_aligned=True,
            launcher=_launcher(
                gluon_dgrad.conv_dgrad_kernel, num_programs(config, tiles, ci, device.num_sms),
                gluon_dgrad.dgrad_problem(dims, n, ci, math.ceil(co / config.block_k)),
                CONFIG=config, CLASSES=gluon_dgrad.residue_classes(dims),
            ),
        )  # fmt: skip


def _launcher(kernel: Any, programs: int, problem: Any, **constants: Any) -> Launcher:
    return Launcher(
        kernel=kernel, grid=(programs, 1, 1), scalars=(problem,), constants=constants,
        options={"num_warps": 4},
    )  # fmt: skip


GLUON: GluonFprop = GluonFprop()
GLUON_DGRAD: GluonDgrad = GluonDgrad()
