"""Implicit GEMM in Gluon for Hopper: fprop, and dgrad by stride phases.

The kernels are imported when a plan is made, which not every host's Gluon can do.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    Layout,
    matrix_row_stride,
    pixel_stride,
    row_stride_of,
)
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import EpilogueOperands
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, DgradRun, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.stride_phases import phases_of
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gemm_config import channel_block
from triton_ext.ops.families.gluon_config import (
    DTYPES,
    FP8_DTYPES,
    TileConfig,
    Tiled,
    host_refusals,
    launch_refusals,
    num_programs,
    problem_refusals,
)
from triton_ext.ops.families.gluon_cost import dgrad_times, expected_times, step_channels
from triton_ext.ops.kernels.row_copy import RowCopies

__all__ = ["GLUON", "GLUON_DGRAD", "GluonDgradPlan", "GluonPlan"]

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
_NO_ARGUMENTS = (None,) * len(_USED_ARGUMENTS)


# ---- Plans -------------------------------------------------------------------------------------


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
    """

    pixels: Any
    matrix: Tiled | None
    columns: tuple[Tiled, ...]
    out: Tiled
    rows_from_w: bool = False

    def at(self, pixels: torch.Tensor, filters: torch.Tensor) -> tuple[Any, Any, Any]:
        """Returns the kernel's descriptors of rows and columns, channels-last tensors."""
        # Also where it is not used: it checks the address.
        rows_desc = with_base(self.pixels, pixels)
        rows, columns = (filters, pixels) if self.rows_from_w else (pixels, filters)
        if self.matrix is not None:
            rows_desc = self.matrix.at(rows)
        main, rest = [*(tiles.at(columns) for tiles in self.columns), None][:2]
        return rows_desc, main, rest


def _filter_rows(weight: torch.Tensor, dims: int) -> torch.Tensor:
    """Returns a filter packed, channels-last, on a 16-byte boundary."""
    rows = weight.permute(TO_LAST[dims]).contiguous()
    return rows.clone() if rows.data_ptr() % ROW_BYTES else rows


@dataclass(slots=True, kw_only=True)
class GluonPlan(ForwardPlan):
    """A plan of fprop.

    Attributes:
        config: The tile configuration.
        operands: The descriptors.
        row_copies: Packs rows of the filter, where pixels are packed; else ``None``.
    """

    config: TileConfig
    operands: _Operands
    row_copies: RowCopies | None = None

    def _inputs(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[tuple[Any, ...], Hashable]:
        if self.row_copies is None:
            dims = self.problem.dims
            x_rows, w_rows = x.permute(TO_LAST[dims]), _filter_rows(weight, dims)
        else:
            x_rows, w_rows = self.row_copies.both(x, weight)
        return self.operands.at(x_rows, w_rows), None

    def _outputs(self, y: torch.Tensor) -> tuple[Any, ...]:
        return (self.operands.out.at(y),)

    def _no_arguments(self) -> tuple[None, ...]:
        return _NO_ARGUMENTS

    def _epilogue_arguments(self, operands: EpilogueOperands) -> tuple[Any, ...]:
        arguments = ForwardPlan._epilogue_arguments(self, operands)
        return tuple(arguments[number] for number in _USED_ARGUMENTS)

    def _residual_descriptor(self, residual: torch.Tensor) -> None:
        """The residual is read through a pointer."""

    def _tile_shape(self) -> list[int]:
        return self.config.y_block


@dataclass(slots=True, kw_only=True)
class GluonDgradPlan(DgradRun):
    """A plan of dgrad.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        config: The tile configuration.
        operands: The descriptors.
        launcher: The kernel with all that is fixed.
    """

    problem: ConvProblem
    dtype: torch.dtype
    config: TileConfig
    operands: _Operands
    launcher: Launcher

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return True

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        dims = self.problem.dims
        inputs = self.operands.at(dy.permute(TO_LAST[dims]), _filter_rows(weight, dims))
        variant = None if bias is None else (bias.dtype, bias.data_ptr() % ROW_BYTES == 0)
        self.launcher.launch((*inputs, self.operands.out.at(dx), dx, bias), variant)


# ---- Families ----------------------------------------------------------------------------------


class _Gluon(Family[TileConfig]):
    """Both directions."""

    kind: ClassVar[str] = "gluon"
    config_type: ClassVar[type[TileConfig]] = TileConfig

    @abstractmethod
    def _case_refusals(self, case: Case) -> list[str]:
        """Returns why the kernel does not compute a case, on whatever host and device."""

    @abstractmethod
    def _launch_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        """Returns why a configuration does not compute a case that the kernel computes."""

    def refusals(self, case: Case, device: Device, config: TileConfig | None = None) -> list[str]:
        found = [*host_refusals(device), *self._case_refusals(case)]
        return found if config is None else found + self._launch_refusals(config, case, device)

    def number_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        return config.problems()

    def config_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        return self._case_refusals(case) or self._launch_refusals(config, case, device)

    def _ranked(
        self, times: Mapping[TileConfig, float], copies_us: float = 0.0
    ) -> dict[TileConfig, Expected]:
        def counted(config: TileConfig) -> float:
            is_narrow = config.block_k * config.element_bytes < 128
            return 1 / (_MOST_EXPECTED_NARROW if is_narrow else _MOST_EXPECTED)

        return ranked({c: Expected.of(us, copies_us, counted(c)) for c, us in times.items()})

    def _check(self, config: TileConfig, case: Case, device: Device) -> None:
        """Refuses to bind.

        Raises:
            UnsupportedError: The case, or the configuration, has :meth:`refusals`.
        """
        found = _Gluon.refusals(self, case, device, config)
        if found:
            raise UnsupportedError(
                f"{case.operator}: the Gluon kernel does not take it: {'; '.join(found)}"
            )


class GluonFprop(_Gluon):
    """fprop; x is read as pixels or as a matrix of them."""

    direction: ClassVar[Direction] = "fprop"
    reads_packed: ClassVar[bool] = True

    def refusals(self, case: Case, device: Device, config: TileConfig | None = None) -> list[str]:
        return [*tap_refusals(case), *super().refusals(case, device, config)]

    def config_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        return tap_refusals(case) or super().config_refusals(config, case, device)

    def _case_refusals(self, case: Case) -> list[str]:
        problem, _ = _read(case)
        out_dtype = case.epilogue.out_dtype or case.dtype
        found = problem_refusals(problem, case.dtype, takes_fp8=True)
        if case.dtype in FP8_DTYPES:
            if out_dtype not in (*DTYPES, *FP8_DTYPES, torch.float32):
                found.append(
                    f"out_dtype is {out_dtype}, expected float32, float16, bfloat16 or fp8"
                )
            unit = ROW_BYTES // out_dtype.itemsize
            if unit > 8 and problem.out_channels % unit:
                found.append(
                    f"Co is {problem.out_channels}, TMA needs rows of a multiple of {unit} channels"
                )
        elif case.epilogue.out_dtype not in (None, *DTYPES):
            found.append(f"out_dtype is {out_dtype}, expected float16 or bfloat16")
        if case.epilogue.function is not None:
            found.append("a function of the user's needs the @triton.jit kernel")
        if case.epilogue.amax:
            found.append("amax needs the @triton.jit kernel")
        return found

    def _launch_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        problem, x_strides = _read(case)
        return launch_refusals(
            config,
            problem.taps * math.ceil(problem.in_channels / config.block_k),
            problem.out_channels,
            device.num_sms,
            element_bytes=case.dtype.itemsize,
            out_bytes=(case.epilogue.out_dtype or case.dtype).itemsize,
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
            out_bytes=(case.epilogue.out_dtype or case.dtype).itemsize,
            x_is_matrix=_is_matrix(problem, x_strides),
        )
        return self._ranked(times, 0.0 if case.packing is None else case.packing.copy_us)

    def bind(self, config: TileConfig, case: Case, device: Device) -> GluonPlan:
        self._check(config, case, device)
        from triton_ext.ops.kernels import gluon_fprop

        problem, x_strides = _read(case)
        conv, co, ci = problem.geometry, problem.out_channels, problem.in_channels
        # Of packed pixels, what the weight is filled up with is none of x's channels.
        x_ci = ci if case.packing is None else case.packing.window_channels
        x_block = [config.rows, config.block_k]
        x_desc = TensorDescriptorIm2Col.for_conv(
            Layout(
                (problem.batch, *problem.input_size, x_ci),
                tuple(x_strides[i] for i in TO_LAST[problem.dims]),
                case.dtype,
            ),
            conv.filter_size,
            conv.stride,
            conv.padding,
            conv.dilation,
            block_shape=x_block,
        )
        # How many there are, channels of each, and from one to the next.
        pixels, filters = (conv.m_gemm, x_ci, matrix_row_stride(x_desc)), (co, ci, ci)
        rows, columns = (filters, pixels) if config.rows_from_w else (pixels, filters)
        (m_gemm, row_ci, row_step), (n_gemm, column_ci, column_step) = rows, columns
        assert column_step is not None  # pixels are columns where they are rows of a matrix only
        column_shape = [n_gemm, problem.taps, column_ci]
        out_dtype = case.epilogue.out_dtype or case.dtype
        operands = _Operands(
            pixels=x_desc,
            matrix=(
                None
                if row_step is None
                else Tiled.of(case.dtype, [m_gemm, row_ci], row_step, x_block)
            ),
            columns=tuple(
                Tiled.of(case.dtype, column_shape, column_step, [width, 1, config.block_k])
                for width in config.fprop_boxes
            ),
            out=Tiled.of(out_dtype, [conv.m_gemm, co], co, config.y_block),
            rows_from_w=config.rows_from_w,
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
        return GluonPlan(
            problem=case.problem,
            config=config,
            epilogue=case.epilogue,
            operands=operands,
            row_copies=None if case.packing is None else RowCopies(case.packing, case.strides_of_x),
            y_shape=case.problem.y_shape,
            out_dtype=out_dtype,
            store_through_tma=True,
            launcher=Launcher(
                kernel=gluon_fprop.conv_fprop_kernel,
                grid=(num_programs(config, tiles, n_gemm, device.num_sms), 1, 1),
                scalars=(kernel_problem,),
                constants={
                    "CONFIG": config,
                    "ACTIVATION": case.epilogue.activation,
                    "RESIDUAL_PER_IMAGE": case.epilogue.residual_per_image,
                },
                options={"num_warps": 4},
            ),
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

    def _case_refusals(self, case: Case) -> list[str]:
        return problem_refusals(case.problem, case.dtype)

    def _launch_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
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
        return self._ranked(
            dgrad_times(dims, problem.batch, ci, co, device.num_sms, block_k=block_k)
        )

    def bind(self, config: TileConfig, case: Case, device: Device) -> GluonDgradPlan:
        self._check(config, case, device)
        from triton_ext.ops.kernels import gluon_dgrad

        problem, dims = case.problem, phases_of(case.problem)
        n, ci, co = problem.batch, problem.in_channels, problem.out_channels
        classes = math.prod(problem.stride)
        m_gemm = n * math.prod(dim.walk_size for dim in dims)
        shape = (n, *problem.output_size, co)
        strides = tuple(case.strides_of_dy[i] for i in TO_LAST[problem.dims])
        block = [config.rows, config.block_k]
        dy_desc = TensorDescriptorIm2Col(
            Layout(shape, strides, case.dtype),
            shape,
            strides,
            block,
            pixel_box_lower_corner=[dim.lower for dim in dims],
            pixel_box_upper_corner=[
                dim.lower + dim.walk_size - out
                for dim, out in zip(dims, problem.output_size, strict=True)
            ],
        )
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
        )
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n) * classes
        blocks = math.ceil(co / config.block_k)
        return GluonDgradPlan(
            problem=problem,
            dtype=case.dtype,
            config=config,
            operands=operands,
            launcher=Launcher(
                kernel=gluon_dgrad.conv_dgrad_kernel,
                grid=(num_programs(config, tiles, ci, device.num_sms), 1, 1),
                scalars=(gluon_dgrad.dgrad_problem(dims, n, ci, blocks),),
                constants={"CONFIG": config, "CLASSES": gluon_dgrad.residue_classes(dims)},
                options={"num_warps": 4},
            ),
        )


GLUON: GluonFprop = GluonFprop()
GLUON_DGRAD: GluonDgrad = GluonDgrad()
