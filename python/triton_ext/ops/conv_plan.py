"""The forward convolution: which kernel takes a problem, the choice among them, the plan.

A plan is all of a launch that does not depend on addresses; it holds no tensor.  Building
descriptors, checking a geometry and choosing a configuration take longer than a small kernel runs,
so they are done once per geometry and kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.col2im_config import Col2ImConfig, col2im_reasons, has_full_loads
from triton_ext.ops.col2im_config import best_config as best_col2im_config
from triton_ext.ops.conv_col2im import col2im_plan
from triton_ext.ops.conv_config import ConvConfig, OutputTile, channel_block, expected_times
from triton_ext.ops.conv_direct import (
    MIN_GROUP_BYTES,
    DirectConfig,
    choose_direct_config,
    direct_plan,
)
from triton_ext.ops.conv_gather import gather_plan
from triton_ext.ops.conv_gemm import Walked, gemm_plan
from triton_ext.ops.conv_launch import ForwardPlan
from triton_ext.ops.conv_refusals import (
    DTYPES,
    INPUT_DTYPES,
    OUT_DTYPES,
    check_problem,
    conv_violations,
    reasons,
)
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.depthwise_config import DepthwiseConfig, Walk, is_depthwise
from triton_ext.ops.depthwise_config import ranking as depthwise_ranking
from triton_ext.ops.depthwise_plan import forward_plan as depthwise_plan
from triton_ext.ops.gather_config import GatherConfig, Window, best_config, gather_reasons
from triton_ext.ops.hopper import fprop_plan
from triton_ext.ops.hopper.tiles import TileConfig
from triton_ext.ops.machine import Machine, machine_of
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.row_packing import KERNEL_US, PackedConfig, RowPacking
from triton_ext.ops.tuning_store.cases import Case
from triton_ext.ops.tuning_store.lookup import find

__all__ = [
    "DTYPES",
    "INPUT_DTYPES",
    "MOST_OF_OTHERS",
    "OUT_DTYPES",
    "col2im_pays",
    "col2im_share",
    "conv_geometry",
    "gathering_pays",
    "make_plan",
    "ranking",
    "reasons",
]

ConvGeometry = backends.load("nvidia", "ConvGeometry")
descriptor_error = backends.load("nvidia", "descriptor_error")

# Columns of K, of one step, up to which a model may choose to gather: filters of 154 and more were
# slower than packed rows.  Larger ones are gathered where that is asked for, or was measured.
_MOST_GATHERED = 64
# The share of what other kernels should take, from which on shifted products are not added: their
# model was measured on two layers only, which take 0.91 and 1.14 of what it expects.
MOST_OF_OTHERS = 0.5


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
    config: Col2ImConfig
    | ConvConfig
    | DepthwiseConfig
    | DirectConfig
    | GatherConfig
    | PackedConfig
    | TileConfig
    | None = None,
    pack_rows: bool | RowPacking | None = None,
) -> ForwardPlan:
    """Returns the plan of a convolution.

    Args:
        problem: What is computed; its batch is not empty.
        x_strides: Of x [N, Ci, *input_size], in elements; channels-last.
        dtype: Of x and weight.
        device: Where x is.
        epilogue: What is done to the output before it is stored.
        config: The tile configuration, whose class says which kernel; ``None`` lets a model choose.
        pack_rows: Whether rows of the filter become channels (``row_packing.py``) if they can, or
            in which way; ``None``: as a model expects, and not where a configuration is given.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No GPU, too old a GPU or too old a Triton, or a problem with
            :func:`reasons`; a configuration that cannot be compiled.
    """
    name = f"conv{problem.dims}d"
    machine = machine_of(device, name)
    check_problem(problem, dtype, device, epilogue, name)
    kept = config is None and pack_rows is None
    if kept:
        config = find(
            Case(direction="fprop", problem=problem, dtype=dtype, epilogue=epilogue), machine
        )
        # A table's choice was measured over an x without gaps.
        if isinstance(config, Col2ImConfig) and not has_full_loads(problem, x_strides):
            config = None
    if isinstance(config, GatherConfig):
        return gather_plan(problem, x_strides, dtype, machine, epilogue, config)
    if isinstance(config, Col2ImConfig):
        return col2im_plan(problem, x_strides, dtype, machine, epilogue, config)
    if isinstance(config, PackedConfig):
        inner: ConvConfig | TileConfig = config.config
        config, pack_rows = inner, True
    if isinstance(config, ConvConfig):
        wrong = config.problems(dtype.itemsize)
        if wrong:
            raise UnsupportedError(f"{name}: configuration {config}: " + "; ".join(wrong))
    if pack_rows is None and config is not None:
        pack_rows = False
    packing = _packing(problem, x_strides, dtype, machine, pack_rows)
    if kept and isinstance(config, TileConfig):
        # A table says what was fastest, not that it can run here, nor which rows were packed.
        tiled, strides = _tiled(problem, x_strides, packing)
        if fprop_plan.reasons(tiled, dtype, machine, epilogue, config, strides):
            config, packing = None, _packing(problem, x_strides, dtype, machine, None)
    if kept and config is None and gathering_pays(problem, x_strides, dtype, machine, epilogue):
        return gather_plan(problem, x_strides, dtype, machine, epilogue)
    if kept and config is None and col2im_pays(problem, x_strides, dtype, machine, epilogue):
        return col2im_plan(problem, x_strides, dtype, machine, epilogue)
    if isinstance(config, TileConfig):
        return fprop_plan.make_plan(problem, x_strides, dtype, machine, epilogue, config, packing)
    out_dtype = epilogue.out_dtype or (torch.int32 if dtype == torch.int8 else dtype)
    if isinstance(config, DepthwiseConfig) or (config is None and is_depthwise(problem)):
        return depthwise_plan(problem, x_strides, dtype, out_dtype, machine, epilogue, config)
    group_bytes = problem.in_channels // problem.groups * dtype.itemsize
    is_small = problem.groups > 1 and group_bytes < MIN_GROUP_BYTES
    if isinstance(config, DirectConfig) or (config is None and is_small):
        return direct_plan(problem, x_strides, dtype, out_dtype, machine, epilogue, config)
    walked = Walked.make(problem, x_strides, dtype, packing)
    # TMA does not stop at the end of a group: its tiles have to.
    column_unit = 1 if problem.groups == 1 else 16 if config is None else config.block_n
    group_co = problem.out_channels // problem.groups
    through_tma = (
        problem.out_channels * out_dtype.itemsize % ROW_BYTES == 0 and group_co % column_unit == 0
    )
    if config is None:
        output = _output_tile(epilogue, out_dtype, through_tma, machine)
        tiled, strides = _tiled(problem, x_strides, packing)
        chosen, _ = _choose(walked, tiled, strides, dtype, machine, epilogue, output)
        if isinstance(chosen, TileConfig):
            return fprop_plan.make_plan(
                problem, x_strides, dtype, machine, epilogue, chosen, packing
            )
        config = chosen
    if config is None:
        raise UnsupportedError(
            f"{name}: {device} gives a CTA {machine.smem_bytes} bytes of shared memory, the "
            "smallest tile configuration needs more"
        )
    return gemm_plan(problem, walked, dtype, out_dtype, machine, epilogue, config, through_tma)


def _packing(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    pack_rows: bool | RowPacking | None,
) -> RowPacking | None:
    """Returns how rows of the filter become channels; None where they do not."""
    if isinstance(pack_rows, RowPacking):
        return pack_rows
    if pack_rows is False:
        return None
    packing = RowPacking.make(problem, x_strides, dtype.itemsize, machine.num_sms)
    if packing is None or pack_rows or packing.cost(machine.num_sms).pays:
        return packing
    return None


def _tiled(
    problem: ConvProblem, x_strides: tuple[int, ...], packing: RowPacking | None
) -> tuple[ConvProblem, tuple[int, ...]]:
    """Returns what the Gluon kernel computes, and the strides of its x."""
    return (problem, x_strides) if packing is None else (packing.padded, packing.x_strides)


def _choose(
    walked: Walked,
    tiled: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec,
    output: OutputTile,
) -> tuple[ConvConfig | TileConfig | None, float]:
    """Returns the configuration that the models of both kernels expect to be fastest.

    And the microseconds that they expect, without copies; infinite where nothing fits.

    Args:
        walked: What the ``@triton.jit`` kernel walks over.
        tiled: What the Gluon kernel computes.
        x_strides: Of its x, in elements.
        dtype: Of x and weight.
        machine: The device.
        epilogue: What is done to the output before it is stored.
        output: How the ``@triton.jit`` kernel stores a tile.
    """
    problem = walked.problem
    times = expected_times(
        problem.geometry.m_gemm,
        problem.out_channels // problem.groups,
        walked.group_ci,
        problem.taps,
        machine.num_sms,
        element_bytes=dtype.itemsize,
        groups=problem.groups,
        block_k=walked.block_k,
        output=output,
        available_bytes=machine.smem_bytes,
    )
    config = min(times, key=lambda config: times[config], default=None)
    if not fprop_plan.reasons(tiled, dtype, machine, epilogue):
        gluon, us = fprop_plan.best_config(
            tiled, machine.num_sms, dtype, epilogue.out_dtype, x_strides
        )
        if config is None or us <= fprop_plan.most_expected(gluon) * times[config]:
            return gluon, us
    return config, math.inf if config is None else times[config]


def gathering_pays(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec = PLAIN,
) -> bool:
    """Tells whether gathering few channels is expected to be faster than all else.

    Both models were measured, and that of the others expects less than they take (0.87 of it in
    the geometric mean of 13 layers; docs/performance.md).

    Args:
        problem: What is computed.
        x_strides: Of x, in elements.
        dtype: Of x and weight.
        machine: The device.
        epilogue: What is done to the output before it is stored.
    """
    if gather_reasons(problem, dtype):
        return False
    window = Window.make(problem, x_strides)
    if window.columns > _MOST_GATHERED:
        return False
    _, us = best_config(problem, window, machine)
    return us < _other_us(problem, x_strides, dtype, machine, epilogue)


def col2im_pays(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec = PLAIN,
) -> bool:
    """Tells whether adding shifted products is expected to be far faster than all else.

    Args: as for :func:`col2im_share`.
    """
    return col2im_share(problem, x_strides, dtype, machine, epilogue) < MOST_OF_OTHERS


def col2im_share(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec = PLAIN,
) -> float:
    """Returns what adding shifted products should take, over what the fastest other kernel should.

    Infinity where the kernel does not take the problem.

    Args:
        problem: What is computed.
        x_strides: Of x, in elements.
        dtype: Of x and weight.
        machine: The device.
        epilogue: What is done to the output before it is stored.
    """
    if problem.taps == 1 or col2im_reasons(problem, dtype):
        return math.inf
    config, us = best_col2im_config(problem, x_strides, machine)
    if config is None:
        return math.inf
    return us / _other_us(problem, x_strides, dtype, machine, epilogue)


def _other_us(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec,
) -> float:
    """Returns what the implicit GEMMs and their copies should take, in microseconds."""
    packing = _packing(problem, x_strides, dtype, machine, None)
    walked = Walked.make(problem, x_strides, dtype, packing)
    out_dtype = epilogue.out_dtype or dtype
    through_tma = problem.out_channels * out_dtype.itemsize % ROW_BYTES == 0
    output = _output_tile(epilogue, out_dtype, through_tma, machine)
    tiled, strides = _tiled(problem, x_strides, packing)
    _, other_us = _choose(walked, tiled, strides, dtype, machine, epilogue, output)
    if packing is not None:
        other_us += packing.copy_us
    elif walked.missing:
        other_us += KERNEL_US
    return other_us


def ranking(
    problem: ConvProblem,
    dtype: torch.dtype,
    machine: Machine,
    epilogue: EpilogueSpec = PLAIN,
) -> list[ConvConfig | DepthwiseConfig | DirectConfig | TileConfig]:
    """Returns the configurations that fit, in the order of the times that the models expect."""
    out_dtype = epilogue.out_dtype or (torch.int32 if dtype == torch.int8 else dtype)
    groups, m_gemm = problem.groups, problem.geometry.m_gemm
    group_ci, group_co = problem.in_channels // groups, problem.out_channels // groups
    if is_depthwise(problem):
        direct = choose_direct_config(m_gemm, problem.out_channels, machine.num_sms)
        return [*depthwise_ranking(Walk.forward(problem), machine.num_sms), direct]
    if groups > 1 and group_ci * dtype.itemsize < MIN_GROUP_BYTES:
        return [choose_direct_config(m_gemm, problem.out_channels, machine.num_sms)]
    group_ci += -group_ci % (ROW_BYTES // dtype.itemsize)
    column_unit = 1 if groups == 1 else 16
    through_tma = problem.out_channels * out_dtype.itemsize % ROW_BYTES == 0
    through_tma &= group_co % column_unit == 0
    times: dict[ConvConfig | DepthwiseConfig | DirectConfig | TileConfig, float] = dict(
        expected_times(
            m_gemm,
            group_co,
            group_ci,
            problem.taps,
            machine.num_sms,
            element_bytes=dtype.itemsize,
            groups=groups,
            block_k=channel_block(group_ci, dtype.itemsize, groups),
            output=_output_tile(epilogue, out_dtype, through_tma, machine),
            available_bytes=machine.smem_bytes,
        ).items()
    )
    if not fprop_plan.reasons(problem, dtype, machine, epilogue):
        ranked = fprop_plan.ranking(problem, machine.num_sms, dtype, epilogue.out_dtype)
        for tiles, us in ranked.items():
            times[tiles] = us / fprop_plan.most_expected(tiles)
    return sorted(times, key=lambda config: times[config])


def _output_tile(
    epilogue: EpilogueSpec, out_dtype: torch.dtype, through_tma: bool, machine: Machine
) -> OutputTile:
    """What the end of a tile asks of shared memory, measured at compiled kernels."""
    whole = not through_tma or machine.capability >= (10, 0)
    if through_tma:
        residual_bytes = max(out_dtype.itemsize, 2) if epilogue.residual else 0
        if epilogue.residual_per_image:
            # It comes through pointers, and meets the accumulators in the order of either, in fp32.
            residual_bytes = 4
        return OutputTile(
            element_bytes=out_dtype.itemsize, residual_bytes=residual_bytes, whole=whole
        )
    # Where pointers are more than one, accumulators take their order in fp32.
    more = epilogue.residual or epilogue.amax or epilogue.function is not None
    return OutputTile(
        element_bytes=4 if more else out_dtype.itemsize, through_pointers=True, whole=whole
    )
