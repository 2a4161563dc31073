"""Tile configurations of the forward convolution and the choice among them.

The choice is a model, not a measurement: the time of the busiest multiprocessor, which works on
ceil(tiles / multiprocessors) tiles one after another.  The model's three numbers per configuration
were fitted to 41 shapes on an H200 (Triton 3.9.0, fp16, 2026-11-20; docs/performance.md): its
choice is as fast as the best of the table within 1.2 % in the geometric mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth
from triton_ext.ops.core.config_checks import (
    depth_problems,
    power_problems,
    range_problems,
    type_problems,
)

__all__ = [
    "CONFIGS",
    "NARROW_CONFIGS",
    "SMEM_BYTES",
    "ConvConfig",
    "OutputTile",
    "busiest",
    "channel_block",
    "choose_config",
    "expected_times",
    "least_block",
    "rank_configs",
]

# Shared memory that a CTA can use on sm_90 and sm_100: 227 KiB.
SMEM_BYTES = 232448


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTile:
    """What the store of an output tile asks of shared memory.

    Attributes:
        element_bytes: Size of an element of y; of an accumulator where they go through shared
            memory.
        residual_bytes: Size of an element of the residual that is loaded by TMA; 0 without one.
        through_pointers: Whether y is stored through pointers, not by TMA.
        whole: Whether the output tile lies in shared memory as a whole, whatever ``store_parts``
            says: where y is not stored by TMA, and on sm_100.
    """

    element_bytes: int = 2
    residual_bytes: int = 0
    through_pointers: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvConfig:
    """One way to compile the kernel.

    Attributes:
        block_m: Output pixels per tile.
        block_n: Output channels per tile.
        block_k: Input channels per step; 64 16-bit channels are one 128-byte swizzle row.
        num_stages: Depth of the pipeline of loads.
        num_warps: Warps per CTA; 4 is one warp group, 8 are two that split the rows.
        store_parts: Parts in which the output tile goes through shared memory.
        group_size_m: Rows of tiles that are walked together.
        taps_inner: Whether filter taps are the inner loop and blocks of channels the outer one.
    """

    block_m: int
    block_n: int
    block_k: int = 64
    num_stages: int
    num_warps: int
    store_parts: int = 1
    group_size_m: int = 8
    taps_inner: bool = True

    def problems(self, element_bytes: int) -> list[str]:
        """Returns why the kernels cannot be compiled so; nothing where they can.

        Args:
            element_bytes: Size of an element of the operands.
        """
        # Numbers are compared below.
        if wrong := type_problems(self):
            return wrong
        return [
            *power_problems(self, 16, 1024, "block_m"),
            *power_problems(self, 8, 1024, "block_n"),
            *(
                depth_problems(self, element_bytes, "block_k")
                or power_problems(self, 8, 256, "block_k")
            ),
            *power_problems(self, 4, 8, "num_warps"),
            *range_problems(self, 1, 64, "num_stages"),
            *range_problems(self, 1, 2, "store_parts"),
            *range_problems(self, 1, 1 << 16, "group_size_m"),
        ]

    def smem_bytes(
        self, element_bytes: int, whole_tile: bool = False, output: OutputTile | None = None
    ) -> int:
        """Shared memory for the pipeline and the output tile, in bytes.

        Args:
            element_bytes: Size of an element of x and w.
            whole_tile: ``OutputTile.whole`` of a tile of elements like those of x.
            output: How the output tile is stored, where more is to be said.
        """
        tile = output or OutputTile(element_bytes=element_bytes, whole=whole_tile)
        stage = (self.block_m + self.block_n) * self.block_k * element_bytes
        parts = 1 if tile.whole else self.store_parts
        # Triton gives the residual's tile and y's memory of their own.
        tile_bytes = tile.element_bytes + tile.residual_bytes
        return self.num_stages * stage + self.block_m * self.block_n * tile_bytes // parts

    def fits(
        self,
        element_bytes: int,
        whole_tile: bool = False,
        available_bytes: int = SMEM_BYTES,
        output: OutputTile | None = None,
    ) -> bool:
        """Whether the configuration fits the shared memory that a CTA can use."""
        # 1 KiB for mbarriers and alignment.
        return self.smem_bytes(element_bytes, whole_tile, output) + 1024 <= available_bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """What a configuration costs on one multiprocessor, in microseconds.

    Attributes:
        step_us: One step of the K loop: block_k channels of one tap.
        tile_us: A tile besides its steps: filling the pipeline, the part of the store that does not
            overlap.
        launch_us: The kernel besides its tiles.
    """

    step_us: float
    tile_us: float
    launch_us: float

    def expected_us(self, tiles: int, steps: Sequence[float], programs: int) -> float:
        """Returns the time of the busiest program.

        Args:
            tiles: Of every class.
            steps: Of a tile, by class; one where there is one class.
            programs: Among which tiles are dealt out.
        """
        tiles_us = [count * self.step_us + self.tile_us for count in steps]
        return busiest(tiles, tiles_us, programs) + self.launch_us


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


# Fitted by `python -m benchmarks.fit_config SWEEP.json --fit`.
_COSTS: dict[ConvConfig, Cost] = {
    _config(256, 64, 5, 4, parts=2): Cost(0.421, 1.18, 7.06),
    _config(256, 64, 3, 4): Cost(0.501, 0.91, 8.82),
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

CONFIGS: tuple[ConvConfig, ...] = tuple(_COSTS)


# Narrow tiles for few output channels, of a group or of all, which a wider tile would waste.  Not
# measured: the time of a step is that of the table's, by the bytes of its loads.
_NARROW_COSTS: dict[ConvConfig, Cost] = {
    _config(128, 32, 6, 4): Cost(0.205, 0.50, 6.5),
    _config(128, 16, 6, 4): Cost(0.190, 0.45, 6.5),
    _config(64, 32, 8, 4): Cost(0.170, 0.35, 6.0),
    _config(64, 16, 8, 4): Cost(0.150, 0.30, 6.0),
}

NARROW_CONFIGS: tuple[ConvConfig, ...] = tuple(_NARROW_COSTS)

# The widest of the narrow tiles.
_NARROW_COLUMNS = 32


def choose_config(*sizes: int, **options: Any) -> ConvConfig | None:
    """Returns the configuration that the model expects to be fastest; ``None`` if none fits.

    Arguments as for :func:`rank_configs`.
    """
    return next(iter(rank_configs(*sizes, **options)), None)


def rank_configs(*sizes: int, **options: Any) -> list[ConvConfig]:
    """Returns the configurations that fit, in the order of the times that the model expects.

    Arguments as for :func:`expected_times`.
    """
    times = expected_times(*sizes, **options)
    return sorted(times, key=lambda config: times[config])


def expected_times(
    m_gemm: int,
    co: int,
    ci: int,
    taps: int,
    num_sms: int,
    *,
    element_bytes: int = 2,
    groups: int = 1,
    block_k: int | None = None,
    whole_tile: bool = False,
    output: OutputTile | None = None,
    available_bytes: int = SMEM_BYTES,
) -> dict[ConvConfig, float]:
    """Returns the configurations that fit, with the microseconds that the model expects.

    Args:
        m_gemm: Output pixels.
        co: Output channels of a group.
        ci: Input channels of a group.
        taps: Filter taps.
        num_sms: Multiprocessors of the GPU.
        element_bytes: Size of an element of x and w, in bytes.
        groups: Groups of channels.
        block_k: Channels per step, as :func:`channel_block` says; by default as in the table.
        whole_tile: ``OutputTile.whole`` of a tile of elements like those of x.
        output: How the output tile is stored, where more is to be said.
        available_bytes: Shared memory that a CTA can use.

    Returns:
        Those of ``CONFIGS``, with the given channels per step, and fewer stages where a residual or
        32-bit outputs need their memory; narrower ones for few output channels.
    """
    tile = output or OutputTile(element_bytes=element_bytes, whole=whole_tile)

    def microseconds(config: ConvConfig, cost: Cost) -> float:
        tiles = math.ceil(m_gemm / config.block_m) * groups * math.ceil(co / config.block_n)
        return cost.expected_us(tiles, (taps * math.ceil(ci / config.block_k),), num_sms)

    return {
        config: microseconds(config, cost)
        for config, cost in _candidates(co, block_k, groups, tile).items()
        if config.fits(element_bytes, available_bytes=available_bytes, output=tile)
    }


def busiest(tiles: int, costs: Sequence[float], programs: int) -> float:
    """Returns what the busiest program has to do, where every programs-th tile is one of its own.

    Args:
        tiles: Of a class; those of the next class follow.
        costs: Of a tile, by class.
        programs: Among which tiles are dealt out.
    """
    every, rest = divmod(tiles, programs)
    if len(costs) == 1:
        return (every + (rest > 0)) * costs[0]
    # By how much more a program has to do than the one before it.
    steps = [0.0] * (programs + 1)
    for number, cost in enumerate(costs):
        first = number * tiles % programs
        end = first + rest
        steps[first] += cost
        steps[min(end, programs)] -= cost
        if end > programs:
            steps[0] += cost
            steps[end - programs] -= cost
    return every * sum(costs) + max(itertools.accumulate(steps[:programs]))


def channel_block(ci: int, element_bytes: int, groups: int) -> int:
    """Returns the channels of a step: one 128-byte swizzle row, or less where there are fewer.

    A block of a group should not reach into the next group: there it divides the group's channels
    if it can be at least :func:`least_block`.

    Args:
        ci: Input channels of a group.
        element_bytes: Size of an element.
        groups: Groups of channels.
    """
    largest, smallest = 128 // element_bytes, least_block(element_bytes)
    if groups > 1:
        divisor = math.gcd(ci, largest)
        if divisor >= smallest:
            return divisor
    return min(largest, max(smallest, 1 << (ci - 1).bit_length()))


def least_block(element_bytes: int) -> int:
    """Returns the fewest channels of a step: a matrix instruction's, or more where Triton wants it.

    Args:
        element_bytes: Size of an element.
    """
    bits = 8 * element_bytes
    return max(INSTRUCTION_BITS // bits, least_dot_depth(bits))


def _candidates(
    co: int, block_k: int | None, groups: int, tile: OutputTile
) -> dict[ConvConfig, Cost]:
    """The table, for blocks of some channels, with what groups and residuals add to it."""
    table = dict(_COSTS)
    if groups > 1 or co <= _NARROW_COLUMNS:
        table |= _NARROW_COSTS
    # TMA stores whole tiles, which must not reach into the next group.
    if groups > 1 and not tile.through_pointers:
        table = {config: cost for config, cost in table.items() if co % config.block_n == 0}
    # Up to two stages less for a residual or 32-bit outputs; what that costs was not measured.
    fewer = (0, 1, 2) if tile.element_bytes + tile.residual_bytes > 2 else (0,)
    return {
        replace(
            config, block_k=block_k or config.block_k, num_stages=config.num_stages - less
        ): cost
        for less in fewer
        for config, cost in table.items()
        if config.num_stages - less >= 2
    }
