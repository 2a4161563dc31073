"""Times that a model expects of the Gluon kernels of fprop and dgrad, by tile configuration.

The model is the busiest multiprocessor, which computes ceil(tiles / multiprocessors) tiles one
after another.  A filter that stays in shared memory ties a multiprocessor to its columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.ops.core.stride_phases import StridePhases, phase_taps
from triton_ext.ops.families import gemm_config
from triton_ext.ops.families.gemm_config import channel_block
from triton_ext.ops.families.gluon_config import (
    ELEMENT_BYTES,
    SWIZZLE_BYTES,
    TileConfig,
    cooperative,
    keep_filter,
    ping_pong,
    with_stages,
)

__all__ = [
    "CONFIGS",
    "FEW_COLUMNS_CONFIGS",
    "JOINED_CONFIGS",
    "KEEPING_CONFIGS",
    "MATRIX_CONFIGS",
    "TURNED_CONFIGS",
    "dgrad_times",
    "expected_times",
    "narrow_configs",
    "step_channels",
]


@dataclass(frozen=True, slots=True)
class Cost(gemm_config.Cost):
    """What a configuration costs on one multiprocessor, in microseconds.

    Attributes:
        joined: ``step_us`` and ``tile_us`` where WGMMAs are joined; ``None`` where they never are.
    """

    joined: tuple[float, float] | None = None


# A consumer converts 32 columns of a tile while the last store reads 32 others.
_S32: dict[str, int] = {"store_n": 32, "store_buffers": 2}

# Measured on an H200 (Triton 3.9.0, fp16) over 29 shapes on 2026-11-20 (docs/gluon-conv.md), joined
# WGMMAs on 2026-11-23: 128+32 and 256+64 over ten layers, the others over up to three 1x1 layers.
_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 128, 6, **_S32, group_m=2): Cost(0.323, 0.55, 7.0),
    ping_pong(64, 128, 8, **_S32, group_m=2): Cost(0.165, 1.10, 6.7),
    ping_pong(64, 64, 10): Cost(0.130, 0.40, 7.1),
    cooperative(64, 3, 128, 5, group_m=2): Cost(0.468, 1.25, 7.8),
    cooperative(64, 2, 256, 4, store_buffers=2): Cost(0.633, 2.06, 7.1),
    cooperative(64, 2, 256, 3, block_n_rest=64, store_buffers=2, group_m=1): Cost(0.815, 2.1, 7.0),
    cooperative(64, 2, 128, 5, block_n_rest=32, **_S32): Cost(0.436, 1.6, 6.7, (0.408, 1.6)),
    cooperative(64, 2, 128, 6, store_buffers=2, group_m=2): Cost(0.323, 1.14, 6.5),
    # 192 and 384 columns without waste.  Not measured: interpolated between the others, and joined
    # as turned round, below.
    cooperative(64, 2, 128, 5, block_n_rest=64, group_m=2): Cost(0.500, 1.80, 6.9, (0.478, 1.80)),
    # Measured over two layers (2026-11-22), joined over one.
    cooperative(64, 3, 128, 4, block_n_rest=64, group_m=2): Cost(0.800, 1.36, 7.8, (0.775, 1.50)),
}

# For x that is no matrix, where WGMMAs are joined: measured so only, over seven layers (H200,
# Triton 3.9.0, fp16, 2026-11-23).
_JOINED_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 128, 5, block_n_rest=32, **_S32, group_m=2): Cost(0.408, 1.05, 6.7),
}

# With the filter kept in shared memory, where it fits; keep_filter sets the stages.
_KEEPING_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 64, 4, **_S32): Cost(0.205, 0.70, 7.0),
    ping_pong(128, 128, 4, **_S32): Cost(0.323, 0.50, 7.0),
}

# For few columns.  Measured over one layer, of three dimensions (H200, Triton 3.9.0, fp16,
# 2026-11-23), where the model expects too little of the other tiles.
_FEW_COLUMNS = 64
_FEW_COLUMNS_COSTS: dict[TileConfig, Cost] = {
    cooperative(128, 3, 64, 3, **_S32): Cost(0.869, 1.40, 7.0),
    cooperative(128, 2, 64, 4, **_S32): Cost(0.577, 1.20, 7.0),
}

# For x that is a matrix: its tiled copies bring more pixels in a time than im2col does.  Measured
# over 1x1 layers, up to three for a configuration (H200, Triton 3.9.0, fp16, 2026-11-23;
# docs/gluon-conv.md).
_MATRIX_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 128, 5, block_n_rest=32, **_S32, group_m=2): Cost(
        0.423, 1.52, 7.0, (0.398, 1.42)
    ),
    cooperative(64, 3, 64, 6, **_S32, group_m=2): Cost(0.266, 0.90, 8.0),
}

# For the same, with output channels as rows and pixels as columns.
_W32: dict[str, Any] = {**_S32, "rows_from_w": True}
_W16: dict[str, Any] = {**_W32, "store_n": 16}
_TURNED_COSTS: dict[TileConfig, Cost] = {
    cooperative(64, 2, 64, 7, block_n_rest=32, **_W32): Cost(0.246, 2.26, 6.6, (0.222, 2.20)),
    cooperative(64, 2, 128, 6, block_n_rest=16, **_W16): Cost(0.417, 1.58, 6.6, (0.368, 1.72)),
    cooperative(64, 3, 64, 5, block_n_rest=32, **_W32): Cost(0.411, 1.25, 7.8, (0.360, 1.60)),
    # A step costs by columns what it does with 144 of them.
    cooperative(64, 3, 128, 5, block_n_rest=16, **_W16): Cost(0.625, 1.50, 7.0, (0.552, 1.45)),
    cooperative(64, 2, 128, 5, block_n_rest=64, **_W32): Cost(0.500, 2.73, 6.6, (0.478, 2.60)),
}

CONFIGS, JOINED_CONFIGS, KEEPING_CONFIGS, FEW_COLUMNS_CONFIGS, MATRIX_CONFIGS, TURNED_CONFIGS = (
    tuple(costs)
    for costs in (
        _COSTS, _JOINED_COSTS, _KEEPING_COSTS, _FEW_COLUMNS_COSTS, _MATRIX_COSTS, _TURNED_COSTS,
    )
)  # fmt: skip

# Up to so many input channels dgrad has narrow tiles beside fprop's, whose 64 columns and more
# would multiply and load columns of the filter that nobody stores.
_NARROW_COLUMNS = 32

# Not measured.  These are the costs of the same tiles with 64 columns: a narrow tile loads as many
# pixels and less of the filter, multiplies less and stores no more.
_NARROW_COST = Cost(0.130, 0.40, 7.1)  # 64 pixels in ping-pong
_NARROW_KEEPING_COST = Cost(0.205, 0.70, 7.0)  # 128 pixels, and the filter stays


def step_channels(ci: int, element_bytes: int) -> int:
    """Returns the channels of a step: one swizzle row of 128 bytes, for fp8 of 64 where that helps.

    Half a row does where the last whole one would have nothing in its other half: 320 channels of
    fp8 are five steps of 64, not three of 128.  fp16 was not measured with it.
    """
    whole = channel_block(ci, element_bytes, 1)
    half = whole // 2
    is_half_empty = ci > whole and 0 < ci % whole <= half
    return half if element_bytes < ELEMENT_BYTES and is_half_empty else whole


def expected_times(
    m_gemm: int,
    co: int,
    ci: int,
    taps: int | Sequence[float],
    num_sms: int,
    *,
    repeats: int = 1,
    block_k: int = 64,
    element_bytes: int = 2,
    out_bytes: int = 2,
    may_keep_filter: bool = True,
    x_is_matrix: bool = False,
    may_join: bool = True,
) -> dict[TileConfig, float]:
    """Returns the configurations that can run, with the microseconds that the model expects.

    Tiles of several classes are dealt out class by class, as the kernel does.

    Args:
        m_gemm: Output pixels; of each class.
        taps: Filter taps; of every class of pixels, where they differ.
        repeats: How often there are these classes of pixels; 1 where a filter may stay.
        block_k: Channels of a step.  Steps of fewer than 128 bytes cost their part of one, where
            there are several; a single one was not measured, and counts as a whole one.
        element_bytes: Bytes of an element of the operands.  Not measured: what a step of fp8 costs
            counts as that of as many bytes of fp16, which take as long to load and to multiply.
        out_bytes: Bytes of an element of the output.
        may_keep_filter: Whether the kernel can keep the filter in shared memory.
        x_is_matrix: Whether the kernel reads x as a matrix.
        may_join: Whether the kernel joins WGMMAs, where a configuration ``joins``.
    """
    times: dict[TileConfig, float] = {}
    class_taps = (taps,) if isinstance(taps, int) else taps
    blocks = math.ceil(ci / block_k)
    # fp8 over 320 channels, in steps of 64 instead of 128, with tiles of 256+64 columns: 0.500 of
    # a step's time (H200, Triton 3.9.0, 2026-11-23).
    part = block_k * element_bytes / SWIZZLE_BYTES[-1] if blocks > 1 else 1.0
    class_steps = [count * blocks * part for count in class_taps]

    def specialize(base: TileConfig) -> TileConfig:
        # Staging buffers of fp32 have half of the columns, and the same bytes.
        config = replace(
            base,
            block_k=block_k,
            store_n=base.store_n * 2 // max(out_bytes, 2),
            element_bytes=element_bytes,
            out_bytes=out_bytes,
        )
        return config if part == 1 else with_stages(config, round(base.stages / part))

    def consider(
        costs: dict[TileConfig, Cost], rows: int, columns: int, *, joined_only: bool = False
    ) -> None:
        for base, cost in costs.items():
            config = specialize(base)
            joins = may_join and config.joins
            if joins or not joined_only:
                tiles = math.ceil(rows / config.block_m) * math.ceil(columns / config.block_n)
                if joins and cost.joined is not None:
                    cost = Cost(*cost.joined, cost.launch_us)
                times[config] = cost.expected_us(tiles * repeats, class_steps, num_sms)

    consider(_COSTS, m_gemm, co)
    if not x_is_matrix:
        consider(_JOINED_COSTS, m_gemm, co, joined_only=True)
    if co <= _FEW_COLUMNS:
        consider(_FEW_COLUMNS_COSTS, m_gemm, co)
    if x_is_matrix:
        consider(_MATRIX_COSTS, m_gemm, co)
        if out_bytes == 2:
            consider(_TURNED_COSTS, co, m_gemm)
    for base, cost in _KEEPING_COSTS.items() if may_keep_filter else ():
        kept = keep_filter(specialize(base), round(class_taps[0]) * blocks)
        num_n = math.ceil(co / base.block_n)
        if kept is not None and num_n <= num_sms:
            tiles = math.ceil(m_gemm / kept.block_m)
            times[kept] = cost.expected_us(tiles, class_steps, num_sms // num_n)
    return times


def dgrad_times(
    dims: Sequence[StridePhases], n: int, ci: int, co: int, num_sms: int, *, block_k: int = 64
) -> dict[TileConfig, float]:
    """Returns the configurations of dgrad that can run, with the microseconds that are expected.

    Narrow tiles come first, so that they precede what is expected to take as long.

    Args:
        dims: The stride phases of the spatial dimensions.
        n: Images.
        block_k: Output channels of a step.
    """
    class_pixels, class_taps, repeats = phase_taps(dims)
    pixels = n * class_pixels
    # With several classes a CTA needs several filters.
    one_class = all(dim.stride == 1 for dim in dims)
    class_steps = [taps * math.ceil(co / block_k) for taps in class_taps]
    narrow = narrow_configs(ci, block_k, round(class_steps[0]) if one_class else 0)
    times = {
        config: cost.expected_us(math.ceil(pixels / config.block_m) * repeats, class_steps, num_sms)
        for config, cost in narrow.items()
    }
    return times | expected_times(
        pixels, ci, co, class_taps, num_sms, repeats=repeats, block_k=block_k,
        may_keep_filter=one_class, may_join=False,
    )  # fmt: skip


def narrow_configs(ci: int, block_k: int, steps: int) -> dict[TileConfig, Cost]:
    """Returns the configurations of dgrad for few input channels, with what they cost at most.

    Args:
        ci: Input channels; there are no such configurations above 32.
        block_k: Output channels of a step.
        steps: Steps of the whole reduction; 0 with a stride, where the filter cannot stay.
    """
    if ci > _NARROW_COLUMNS:
        return {}
    # With a stride, 16 columns spill a value that rows are stored with; 32 do not.
    columns = 16 if ci <= 16 and steps else 32
    store = {"block_k": block_k, "store_n": columns, "store_buffers": 2}
    found = {ping_pong(64, columns, 12, **store): _NARROW_COST}
    kept = keep_filter(ping_pong(128, columns, 4, **store), steps) if steps else None
    if kept is not None:
        # More stages than these hide nothing.
        found[replace(kept, stages=min(kept.stages, 12))] = _NARROW_KEEPING_COST
    return found
