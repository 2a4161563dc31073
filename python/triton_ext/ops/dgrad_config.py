"""Tile configurations of the gradient of the input and the choice among them.

The model is that of the forward convolution (``conv_config.py``): the time of the busiest
multiprocessor.  What differs are the tiles: every residue class has its own, with the steps of its
own taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from triton_ext.ops.conv_config import SMEM_BYTES, ConvConfig, Cost

__all__ = [
    "CONFIGS",
    "NARROW_CONFIGS",
    "choose_config",
    "expected_times",
    "group_channels",
    "problems_of",
    "rank_configs",
    "with_steps",
]


def _config(
    block_m: int,
    block_n: int,
    num_stages: int,
    num_warps: int,
    *,
    parts: int = 1,
    group: int = 8,
    taps_inner: bool = True,
) -> ConvConfig:
    """A row of the table below, short enough to be read as one."""
    return ConvConfig(
        block_m=block_m,
        block_n=block_n,
        num_stages=num_stages,
        num_warps=num_warps,
        store_parts=parts,
        group_size_m=group,
        taps_inner=taps_inner,
    )


# The tiles and costs of the forward convolution (H200): a step loads and multiplies the same.  To
# be fitted to this kernel's own times by `python -m benchmarks.fit_config`.
_COSTS: dict[ConvConfig, Cost] = {
    _config(256, 64, 5, 4, parts=2): Cost(0.421, 1.18, 7.06),
    _config(256, 64, 3, 4, parts=2): Cost(0.501, 0.91, 8.82),
    _config(128, 64, 5, 4): Cost(0.240, 0.64, 7.40),
    _config(64, 64, 7, 4): Cost(0.222, 0.41, 5.98),
    _config(128, 128, 6, 4): Cost(0.327, 1.11, 6.36),
    _config(128, 128, 6, 4, taps_inner=False): Cost(0.329, 1.10, 6.11),
    _config(128, 128, 5, 4, group=1): Cost(0.324, 1.11, 6.49),
    _config(64, 128, 6, 4, group=4, taps_inner=False): Cost(0.205, 0.69, 6.12),
    _config(64, 256, 5, 4, parts=2): Cost(0.336, 1.26, 5.27),
    _config(256, 128, 4, 8, parts=2, group=4, taps_inner=False): Cost(0.658, 2.27, 6.06),
    _config(128, 256, 4, 8, parts=2): Cost(0.609, 2.32, 5.53),
    _config(128, 256, 4, 8, parts=2, group=4, taps_inner=False): Cost(0.616, 2.34, 5.12),
}

# Narrow tiles for few input channels, of a group or of all, which a wider tile would waste.  Not
# measured: those of the forward convolution, where they are for few output channels.
_NARROW_COSTS: dict[ConvConfig, Cost] = {
    _config(128, 32, 6, 4): Cost(0.205, 0.50, 6.5),
    _config(128, 16, 6, 4): Cost(0.190, 0.45, 6.5),
    _config(64, 32, 8, 4): Cost(0.170, 0.35, 6.0),
    _config(64, 16, 8, 4): Cost(0.150, 0.30, 6.0),
}

CONFIGS: tuple[ConvConfig, ...] = tuple(_COSTS)
NARROW_CONFIGS: tuple[ConvConfig, ...] = tuple(_NARROW_COSTS)

# The widest of the narrow tiles.
_NARROW_COLUMNS = 32

# What groups are filled up to multiples of: as many channels of 16 and of 32 bits are an operand of
# a matrix product with every Triton.
_GROUP_UNIT = 16


def choose_config(*sizes: Any, **options: Any) -> ConvConfig | None:
    """Returns the configuration that the model expects to be fastest; ``None`` if none fits.

    Arguments as for :func:`rank_configs`.
    """
    return next(iter(rank_configs(*sizes, **options)), None)


def rank_configs(*sizes: Any, **options: Any) -> list[ConvConfig]:
    """Returns the configurations that fit, in the order of the times that the model expects.

    Arguments as for :func:`expected_times`.
    """
    times = expected_times(*sizes, **options)
    return sorted(times, key=lambda config: times[config])


def expected_times(
    m_gemm: int,
    class_taps: Sequence[float],
    ci: int,
    co: int,
    num_sms: int,
    *,
    repeats: int = 1,
    groups: int = 1,
    element_bytes: int = 2,
    whole_tile: bool = False,
    available_bytes: int = SMEM_BYTES,
) -> dict[ConvConfig, float]:
    """Returns the configurations that fit, with the microseconds that the model expects.

    Args:
        m_gemm: Pixels of a class.
        class_taps: Filter taps of every class.
        ci: Input channels of a group.
        co: Output channels of a group.
        num_sms: Multiprocessors of the GPU.
        repeats: How often there are these classes.
        groups: Into how many parts the channels are divided.
        element_bytes: Size of an element of dy, w and dx, in bytes.
        whole_tile: Whether the output tile lies in shared memory as a whole: where dx is stored by
            TMA on sm_100.
        available_bytes: Shared memory that a CTA can use.

    Returns:
        Those of ``CONFIGS``, with shorter steps where groups or the type want them; for few input
        channels those of ``NARROW_CONFIGS`` too.
    """
    table = _COSTS | _NARROW_COSTS if ci <= _NARROW_COLUMNS else _COSTS

    def microseconds(shipped: ConvConfig) -> float:
        config = with_steps(shipped, co, groups, element_bytes)
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n)
        # A shorter step costs its part of one.
        part = config.block_k * element_bytes / (shipped.block_k * 2)
        steps = [taps * math.ceil(co / config.block_k) * part for taps in class_taps]
        return table[shipped].expected_us(tiles * groups * repeats, steps, num_sms)

    def fits(shipped: ConvConfig) -> bool:
        config = with_steps(shipped, co, groups, element_bytes)
        return config.fits(element_bytes, whole_tile, available_bytes)

    return {
        with_steps(config, co, groups, element_bytes): microseconds(config)
        for config in filter(fits, table)
    }


def group_channels(co: int, groups: int) -> int:
    """Returns the output channels of a group that the kernel walks, zeros at its end among them.

    Args:
        co: Output channels.
        groups: Into how many parts they are divided.
    """
    return co if groups == 1 else math.ceil(co // groups / _GROUP_UNIT) * _GROUP_UNIT


def problems_of(config: ConvConfig, co: int, groups: int, element_bytes: int) -> list[str]:
    """Returns why the kernel does not compute a problem so; nothing where it does.

    Args:
        config: The tile configuration.
        co: Output channels.
        groups: Into how many parts they are divided.
        element_bytes: Size of an element of dy.
    """
    found, walked = config.problems(element_bytes), group_channels(co, groups)
    if not found and groups > 1 and walked % config.block_k:
        # Groups begin at multiples of blocks.
        found.append(f"block_k is {config.block_k}: expected a divisor of {walked}, a group's")
    return found


def with_steps(config: ConvConfig, co: int, groups: int, element_bytes: int) -> ConvConfig:
    """Returns the configuration with steps of a 128-byte row that stay in their group.

    Args:
        config: One for 16-bit elements.
        co: Output channels of a group; with several groups a multiple of 16.
        groups: Into how many parts the channels are divided.
        element_bytes: Size of an element of dy.
    """
    block_k = config.block_k * 2 // element_bytes
    if groups > 1:
        block_k = math.gcd(co, block_k)
    return config if block_k == config.block_k else replace(config, block_k=block_k)
