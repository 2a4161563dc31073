"""dgrad as an implicit GEMM per stride phase: the kernel of ``kernels/gemm_dgrad.py``.

The model is that of fprop (``gemm_config.py``), but every stride phase has tiles of its own, with
the steps of its own taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    Layout,
    aligned_rows,
    packed_strides,
    rounding,
)
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, TRITON_DTYPES, DgradPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refuse, refused
from triton_ext.ops.core.stride_phases import phase_taps, phases_of
from triton_ext.ops.families.gemm import gemm_refusals
from triton_ext.ops.families.gemm_config import (
    COSTS,
    NARROW_COLUMNS,
    NARROW_COSTS,
    ConvConfig,
    OutputTile,
)
from triton_ext.ops.kernels.gemm_dgrad import DgradProblem, conv_dgrad_kernel, kernel_constants
from triton_ext.ops.kernels.row_copy import FilledChannels

__all__ = ["CONFIGS", "GEMM_DGRAD", "expected_times", "group_channels", "with_steps"]

_Tiled = tuple[list[int], list[int], list[int]]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

# The tiles and costs of fprop (H200): a step loads and multiplies the same.  To be fitted to this
# kernel's own times by `python -m benchmarks.fit_config`.
_COSTS = {
    replace(config, store_parts=2) if config.block_m == 256 else config: cost
    for config, cost in COSTS.items()
}
CONFIGS: tuple[ConvConfig, ...] = tuple(_COSTS)

# Groups are filled up to multiples of so many channels, which are an operand of a matrix product
# with every Triton, of 16 and of 32 bits.
_GROUP_UNIT = 16


def expected_times(
    m_gemm: int,  # pixels of a phase
    class_taps: Sequence[float],  # filter taps of every phase
    ci: int,  # input channels of a group
    co: int,  # output channels of a group
    num_sms: int,
    *,
    repeats: int = 1,  # how often there are these phases
    groups: int = 1,
    element_bytes: int = 2,  # size of an element of dy, w and dx, in bytes
    whole_tile: bool = False,  # ``OutputTile.whole``: where dx is stored by TMA on sm_100
    available_bytes: int = SMEM_BYTES,  # shared memory that a CTA can use
) -> dict[ConvConfig, float]:
    """Returns the configurations that fit, with the expected microseconds.

    They are those of ``CONFIGS``, with shorter steps where groups or the type want them; for few
    input channels narrower ones too.
    """
    output = OutputTile(element_bytes=element_bytes, whole=whole_tile)
    times = {}
    for shipped, cost in (_COSTS | NARROW_COSTS if ci <= NARROW_COLUMNS else _COSTS).items():
        config = with_steps(shipped, co, groups, element_bytes)
        if not config.fits(element_bytes, output, available_bytes):
            continue
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n)
        # A shorter step costs its part of one.
        part = config.block_k * element_bytes / (shipped.block_k * 2)
        steps = [taps * math.ceil(co / config.block_k) * part for taps in class_taps]
        times[config] = cost.expected_us(tiles * groups * repeats, steps, num_sms)
    return times


def group_channels(co: int, groups: int) -> int:
    """Returns the output channels of a group that the kernel walks, zeros at its end among them."""
    return co if groups == 1 else math.ceil(co // groups / _GROUP_UNIT) * _GROUP_UNIT


def with_steps(config: ConvConfig, co: int, groups: int, element_bytes: int) -> ConvConfig:
    """Returns the configuration with steps of a 128-byte row that stay in their group.

    Args:
        config: One for 16-bit elements.
        co: Output channels of a group; with several groups a multiple of 16.
        groups: Groups of channels.
        element_bytes: Size of an element of dy.
    """
    block_k = config.block_k * 2 // element_bytes
    if groups > 1:
        block_k = math.gcd(co, block_k)
    return config if block_k == config.block_k else replace(config, block_k=block_k)


class GemmDgrad(Family[ConvConfig]):
    """dgrad; groups are filled up with zeros as the kernel needs."""

    kind = "gemm"
    direction = "dgrad"
    config_type = ConvConfig
    is_gemm = True
    tile_fields = ("block_m", "block_n")

    def number_refusals(
        self, config: ConvConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        return gemm_refusals(config, case.dtype.itemsize, device) or _step_refusals(config, case)

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        problem = _padded(case.problem)
        groups = problem.groups
        class_pixels, class_taps, repeats = phase_taps(phases_of(problem))
        times = expected_times(
            problem.batch * class_pixels,
            class_taps,
            problem.in_channels // groups,
            problem.out_channels // groups,
            device.num_sms,
            repeats=repeats,
            groups=groups,
            element_bytes=case.dtype.itemsize,
            # Measured: what goes through pointers takes less than its parts.
            whole_tile=_is_packed(case) and groups == 1 and device.capability >= (10, 0),
            available_bytes=device.smem_bytes,
        )
        return ranked({config: Expected.of(us) for config, us in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> DgradPlan:
        wrong = config.refusals(case.dtype.itemsize) or _step_refusals(config, case)
        refuse(f"{case.operator}: configuration {config}", wrong)
        problem, dtype = _padded(case.problem), case.dtype
        n, size, groups, taps = problem.batch, problem.output_size, problem.groups, problem.taps
        ci, co = problem.in_channels // groups, problem.out_channels // groups
        unit = ROW_BYTES // dtype.itemsize
        missing_co, missing_ci = -problem.out_channels % unit, -ci % unit
        shape = (n, *size, problem.out_channels + missing_co)
        is_copied = missing_co or problem is not case.problem
        strides = tuple(case.strides_of_dy[i] for i in TO_LAST[problem.dims])
        dims = phases_of(problem)
        dy_desc = Im2ColDescriptor(
            Layout(shape, packed_strides(shape) if is_copied else strides, dtype),
            shape,
            packed_strides(shape) if is_copied else strides,
            [config.block_m, config.block_k],
            pixel_box_lower_corner=[dim.lower for dim in dims],
            pixel_box_upper_corner=[
                dim.lower + dim.walk_size - out for dim, out in zip(dims, size, strict=True)
            ],
            round_f32_to_tf32=dtype == torch.float32,
        )
        m_gemm = n * math.prod(dim.walk_size for dim in dims)
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n)
        tiles *= groups * math.prod(problem.stride)
        w_rows, w_columns = problem.out_channels, ci + missing_ci
        w_block = [config.block_k, 1, config.block_n]
        if dtype == torch.float32:
            w_rows, w_columns, w_block = ci, w_rows + missing_co, w_block[::-1]
        through_tma = _is_packed(case) and (groups == 1 or ci % config.block_n == 0)
        return DgradPlan(
            problem=case.problem,
            dtype=dtype,
            config=config,
            describe=_describe(
                case.problem,
                dy_desc,
                ([w_rows, taps, w_columns], [taps * w_columns, w_columns, 1], w_block),
                config.store_block if through_tma else None,
                co - case.problem.out_channels // groups,
                FilledChannels(missing_co, missing_co if dtype == torch.float32 else missing_ci),
            ),
            stores_aligned=through_tma,
            launcher=Launcher(
                kernel=conv_dgrad_kernel,
                grid=(min(tiles, device.num_sms), 1, 1),
                scalars=(
                    ci,
                    DgradProblem.of(dims, m_gemm, math.ceil(co / config.block_k)),
                ),
                constants=kernel_constants(config, dims, ci, groups, TRITON_DTYPES[dtype]),
                options={"num_stages": config.num_stages, "num_warps": config.num_warps},
            ),
        )


def _step_refusals(config: ConvConfig, case: Case) -> tuple[Refusal, ...]:
    """Returns why steps do not end where a group does."""
    groups = case.problem.groups
    walked = group_channels(case.problem.out_channels, groups)
    if groups == 1 or walked % config.block_k == 0:
        return ()
    return refused(f"block_k is {config.block_k}: expected a divisor of {walked}, a group's")


def _padded(problem: ConvProblem) -> ConvProblem:
    """Returns the problem whose groups have as many output channels as a block needs."""
    co = problem.groups * group_channels(problem.out_channels, problem.groups)
    if problem.groups == 1 or co == problem.out_channels:
        return problem
    return replace(problem, out_channels=co)


def _is_packed(case: Case) -> bool:
    """Tells whether rows of a tile are neighbours in dx, of a multiple of 16 bytes."""
    problem = case.problem
    row_bytes = problem.in_channels * case.dtype.itemsize
    return set(problem.stride) == {1} and row_bytes % ROW_BYTES == 0


def _describe(
    problem: ConvProblem,  # the convolution
    # im2col descriptor of dy [N, *output_size, Co], channels padded, without memory.
    dy_desc: Im2ColDescriptor,
    w_tiles: _Tiled,  # shape, strides and block of the descriptor of w
    # The block of the descriptor of dx [pixels, Ci]; None where it is stored through a pointer.
    dx_tile: list[int] | None,
    missing_group_co: int,  # zeros to add to the output channels of each group
    # Adds zeros to the channels of dy and of the weight, so that rows are multiples of 16
    # bytes.
    fill: FilledChannels,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[Any, ...]]:
    """Returns what describes dy, weight and dx to the kernel."""
    to_last, ci, groups = TO_LAST[problem.dims], problem.in_channels, problem.groups

    def described(dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor) -> tuple[Any, ...]:
        dy_rows = dy.permute(to_last)
        if missing_group_co:
            by_group = dy_rows.unflatten(-1, (groups, -1))
            dy_rows = pad(by_group, (0, missing_group_co)).flatten(-2)
            more = (0, 0) * (weight.dim() - 1) + (0, missing_group_co)
            weight = pad(weight.unflatten(0, (groups, -1)), more).flatten(0, 1)
        # [Ci / groups, *taps, Co] for fp32, else [Co, *taps, Ci / groups].
        is_nk = dy.dtype == torch.float32
        w_rows = weight.movedim(0, -1) if is_nk else weight.permute(to_last)
        dy_rows, w_rows = fill.fill(dy_rows, w_rows)
        w_desc = TensorDescriptor(aligned_rows(w_rows), *w_tiles, **rounding(dy.dtype))
        if dx_tile is None:
            return dy_desc.with_base(dy_rows), w_desc, None, dx
        dx_desc = TensorDescriptor(dx, [dx.numel() // ci, ci], [ci, 1], dx_tile)
        return dy_desc.with_base(dy_rows), w_desc, dx_desc, None

    return described


GEMM_DGRAD: GemmDgrad = GemmDgrad()
