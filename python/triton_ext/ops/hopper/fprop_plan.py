"""Plans of the forward Gluon kernel: which problems it takes, when it is chosen, its launch.

Pure arithmetic and torch until a plan is made: only then is the kernel imported, which not every
host's Gluon can do.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES, Layout, matrix_row_stride, row_stride_of
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gluon_config import (
    DTYPES,
    FP8_DTYPES,
    TileConfig,
    Tiled,
    common_refusals,
    launch_refusals,
    num_programs,
)
from triton_ext.ops.families.gluon_cost import expected_times, step_channels
from triton_ext.ops.kernels.row_copy import RowCopies
from triton_ext.ops.rewrites.packing import RowPacking

__all__ = [
    "DTYPES",
    "FP8_DTYPES",
    "HopperPlan",
    "best_config",
    "is_matrix",
    "load_kernel",
    "make_plan",
    "ranking",
    "reasons",
]

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")

# The epilogue's arguments of this kernel among those of ForwardPlan._epilogue_arguments: bias,
# scale, one scale, the residual as a pointer, out_scale.
_USED_ARGUMENTS = (0, 1, 2, 4, 5)
_NO_ARGUMENTS = (None,) * len(_USED_ARGUMENTS)


def reasons(
    problem: ConvProblem,
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec = PLAIN,
    config: TileConfig | None = None,
    x_strides: tuple[int, ...] | None = None,
) -> tuple[str, ...]:
    """Returns why this kernel does not take a problem; nothing if it does.

    Args:
        problem: What is computed; its geometry is one that TMA can express.
        dtype: Of x and weight.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: A configuration, where that is given.
        x_strides: Of x, in elements; by default x is dense.
    """
    found = common_refusals(problem, dtype, device, takes_fp8=True)
    out_dtype = epilogue.out_dtype or dtype
    if dtype in FP8_DTYPES:
        if out_dtype not in (*DTYPES, *FP8_DTYPES, torch.float32):
            found.append(f"out_dtype is {out_dtype}, expected float32, float16, bfloat16 or fp8")
        co_unit = ROW_BYTES // out_dtype.itemsize
        if co_unit > 8 and problem.out_channels % co_unit:
            found.append(
                f"Co is {problem.out_channels}, TMA needs rows of a multiple of {co_unit} channels"
            )
    elif epilogue.out_dtype not in (None, *DTYPES):
        found.append(f"out_dtype is {epilogue.out_dtype}, expected float16 or bfloat16")
    if epilogue.function is not None:
        found.append("a function of the user's needs the @triton.jit kernel")
    if epilogue.amax:
        found.append("amax needs the @triton.jit kernel")
    if config is not None:
        steps = problem.taps * math.ceil(problem.in_channels / config.block_k)
        found += launch_refusals(
            config,
            steps,
            problem.out_channels,
            device.num_sms,
            element_bytes=dtype.itemsize,
            out_bytes=out_dtype.itemsize,
            may_turn=is_matrix(problem, x_strides),
        )
    return tuple(found)


def is_matrix(problem: ConvProblem, x_strides: tuple[int, ...] | None = None) -> bool:
    """Tells whether pixels of x are rows of a matrix, and those of y the same ones.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size], in elements; by default x is dense.
    """
    if not problem.is_pointwise or x_strides is None:
        return problem.is_pointwise
    last = TO_LAST[problem.dims]
    shape = (problem.batch, problem.in_channels, *problem.input_size)
    sizes, strides = ([values[i] for i in last[-2::-1]] for values in (shape, x_strides))
    return row_stride_of(sizes, strides) is not None


def ranking(
    problem: ConvProblem,
    num_sms: int,
    dtype: torch.dtype = torch.float16,
    out_dtype: torch.dtype | None = None,
    x_strides: tuple[int, ...] | None = None,
) -> dict[TileConfig, float]:
    """Returns the configurations that can run, by the microseconds that the model expects.

    Args:
        problem: One without :func:`reasons`.
        num_sms: Multiprocessors of the GPU.
        dtype: Of x and weight.
        out_dtype: Of y; that of x by default.
        x_strides: Of x, in elements; by default x is dense.
    """
    co, ci = problem.out_channels, problem.in_channels
    times = expected_times(
        problem.geometry.m_gemm,
        co,
        ci,
        problem.taps,
        num_sms,
        block_k=step_channels(ci, dtype.itemsize),
        element_bytes=dtype.itemsize,
        out_bytes=(out_dtype or dtype).itemsize,
        x_is_matrix=is_matrix(problem, x_strides),
    )
    return dict(sorted(times.items(), key=lambda item: item[1]))


def best_config(
    problem: ConvProblem,
    num_sms: int,
    dtype: torch.dtype = torch.float16,
    out_dtype: torch.dtype | None = None,
    x_strides: tuple[int, ...] | None = None,
) -> tuple[TileConfig, float]:
    """Returns the first of :func:`ranking`, and its microseconds."""
    return next(iter(ranking(problem, num_sms, dtype, out_dtype, x_strides).items()))


@cache
def load_kernel() -> Any:
    """Returns the kernel; hosts without im2col in Gluon cannot import it."""
    from triton_ext.ops.kernels.gluon_fprop import conv_fprop_kernel

    return conv_fprop_kernel


@dataclass(slots=True, kw_only=True)
class HopperPlan(ForwardPlan):
    """A plan of the Gluon kernel.

    Descriptors are Gluon's, without memory.

    Attributes:
        config: The tile configuration.
        x_desc: im2col descriptor of x [N, *input_size, Ci].
        matrix: That of the rows, x or with rows_from_w the weight, as a matrix; None where im2col
            is not the identity.
        column_tiles: Those of the columns, [Co, taps, Ci] or with rows_from_w [M_GEMM, 1, Ci], for
            each accumulator.
        y_tiles: That of y [M_GEMM, Co].
        row_copies: Packs rows of the filter, where x_desc describes packed pixels; else None.
    """

    config: TileConfig
    x_desc: Any
    matrix: Tiled | None
    column_tiles: tuple[Tiled, ...]
    y_tiles: Tiled
    row_copies: RowCopies | None = None

    def _inputs(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[tuple[Any, ...], Hashable]:
        if self.row_copies is None:
            to_last = TO_LAST[self.problem.dims]
            x_rows, w_rows = x.permute(to_last), weight.permute(to_last).contiguous()
            if w_rows.data_ptr() % ROW_BYTES:
                w_rows = w_rows.clone()
        else:
            x_rows, w_rows = self.row_copies.both(x, weight)
        # Also where it is not used: it checks the address.
        rows_desc = with_base(self.x_desc, x_rows)
        rows, columns = (w_rows, x_rows) if self.config.rows_from_w else (x_rows, w_rows)
        if self.matrix is not None:
            rows_desc = self.matrix.at(rows)
        main, rest = [*(tiles.at(columns) for tiles in self.column_tiles), None][:2]
        return (rows_desc, main, rest), None

    def _outputs(self, y: torch.Tensor) -> tuple[Any, ...]:
        return (self.y_tiles.at(y),)

    def _no_arguments(self) -> tuple[None, ...]:
        return _NO_ARGUMENTS

    def _epilogue_arguments(self, operands: EpilogueOperands) -> tuple[Any, ...]:
        arguments = ForwardPlan._epilogue_arguments(self, operands)
        return tuple(arguments[number] for number in _USED_ARGUMENTS)

    def _residual_descriptor(self, residual: torch.Tensor) -> None:
        """The residual is read through a pointer."""

    def _tile_shape(self) -> list[int]:
        return self.config.y_block


def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec = PLAIN,
    config: TileConfig | None = None,
    packing: RowPacking | None = None,
) -> HopperPlan:
    """Returns the plan of a convolution.

    Args:
        problem: What is computed; its batch is not empty.
        x_strides: Of x [N, Ci, *input_size], in elements; channels-last.
        dtype: Of x and weight.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: The tile configuration; by default the model's choice.
        packing: How rows of the filter become channels; by default they do not.

    Raises:
        UnsupportedError: The problem, or the configuration, has :func:`reasons`.
    """
    name = f"conv{problem.dims}d"
    asked, copies = problem, None
    if packing is not None:
        problem, copies = packing.padded, RowCopies(packing, x_strides)
        x_strides = packing.x_strides
    num_sms = device.num_sms
    found = reasons(problem, dtype, device, epilogue, config, x_strides)
    if found:
        raise UnsupportedError(f"{name}: the Gluon kernel does not take it: " + "; ".join(found))
    if config is None:
        config, _ = best_config(problem, num_sms, dtype, epilogue.out_dtype, x_strides)
    conv, co, ci = problem.geometry, problem.out_channels, problem.in_channels
    from triton_ext.ops.kernels.gluon_fprop import FpropProblem

    # Of packed pixels, what the weight is filled up with is none of x's channels.
    x_ci = ci if packing is None else packing.window_channels
    shape = (problem.batch, *problem.input_size, x_ci)
    strides = tuple(x_strides[i] for i in TO_LAST[problem.dims])
    x_block = [config.rows, config.block_k]
    x_desc = TensorDescriptorIm2Col.for_conv(
        Layout(shape, strides, dtype),
        conv.filter_size,
        conv.stride,
        conv.padding,
        conv.dilation,
        block_shape=x_block,
    )
    row_stride = matrix_row_stride(x_desc)
    out_dtype = epilogue.out_dtype or dtype
    # How many there are, channels of each, and from one to the next.
    pixels, filters = (conv.m_gemm, x_ci, row_stride), (co, ci, ci)
    rows, columns = (filters, pixels) if config.rows_from_w else (pixels, filters)
    (m_gemm, row_ci, row_step), (n_gemm, column_ci, column_step) = rows, columns
    assert column_step is not None  # pixels are columns where they are rows of a matrix only
    tiles = math.ceil(m_gemm / config.block_m) * math.ceil(n_gemm / config.block_n)

    return HopperPlan(
        problem=asked,
        config=config,
        epilogue=epilogue,
        x_desc=x_desc,
        matrix=(None if row_step is None else Tiled.of(dtype, [m_gemm, row_ci], row_step, x_block)),
        column_tiles=tuple(
            Tiled.of(
                dtype, [n_gemm, problem.taps, column_ci], column_step, [width, 1, config.block_k]
            )
            for width in config.fprop_boxes
        ),
        y_tiles=Tiled.of(out_dtype, [conv.m_gemm, co], co, config.y_block),
        row_copies=copies,
        y_shape=asked.y_shape,
        out_dtype=out_dtype,
        store_through_tma=True,
        launcher=Launcher(
            kernel=load_kernel(),
            grid=(num_programs(config, tiles, n_gemm, num_sms), 1, 1),
            scalars=(
                FpropProblem(
                    m_gemm=m_gemm,
                    co=n_gemm,
                    channel_blocks=math.ceil(ci / config.block_k),
                    filter_size=_padded(conv.filter_size),
                    dilation=_padded(conv.dilation),
                    output_size=conv.output_size,
                    stride=conv.stride,
                    padding=tuple(low for low, _ in conv.padding),
                ),
            ),
            constants={
                "CONFIG": config,
                "ACTIVATION": epilogue.activation,
                "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
            },
            options={"num_warps": 4},
        ),
    )


def _padded(values: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns (d, h, w), 1 for missing dimensions."""
    d, h, w = (1,) * (3 - len(values)) + tuple(values)
    return d, h, w
