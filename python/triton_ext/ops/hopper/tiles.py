"""Tile configurations of the convolutions: what the kernels are compiled for.  Pure arithmetic."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LaunchError
from triton_ext.host import capabilities
from triton_ext.ops import conv_config
from triton_ext.ops.core.config_checks import type_problems

__all__ = [
    "RESERVED_BYTES",
    "SMEM_BYTES",
    "Barrier",
    "Cost",
    "TileConfig",
    "cooperative",
    "keep_filter",
    "launch_problems",
    "num_programs",
    "ping_pong",
    "with_stages",
]

# Shared memory that a CTA can use on sm_90 (CUDA C++ Programming Guide, compute capabilities).
SMEM_BYTES = 232448
# Triton's own: alignment of the buffers, a few words for the warp groups.
RESERVED_BYTES = 1024
# Bytes of an element of fp16 and bf16, which all kernels here take.
ELEMENT_BYTES = 2
WARP_GROUP_THREADS = 128
# The swizzle rows of shared memory; what is narrower has another layout.
SWIZZLE_BYTES = (32, 64, 128)
# Narrowest accumulator, and with it the narrowest store.
MIN_STORE_N = 16
# Largest N of a WGMMA (PTX ISA, wgmma shapes).
WGMMA_MAX_N = 256


class Barrier(enum.Enum):
    """The kernel's mbarriers; the module's docstring says who arrives and who waits."""

    READY = "stage is full"
    EMPTY = "stage may be refilled"
    TURN = "consumer may multiply"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """How the kernel is compiled.

    Attributes:
        rows: Pixels of a group of rows, 64 or 128: what one consumer multiplies.  With rows_from_w
            output channels, and what is said of output channels holds for pixels.
        consumers: Consumer warp groups, 1 to 3.
        ping_pong: Whether consumers take turns with whole tiles; otherwise they share each tile.
        block_n_main: Output channels of the first accumulator.
        block_n_rest: Output channels of the second accumulator, 0 for none.
        block_k: Input channels of a step; 64 of 16 bits, and 128 of 8, are one 128-byte swizzle
            row.
        stages: Depth of the ring of loads.
        store_n: Output channels of one TMA store.
        store_buffers: Staging buffers of a consumer: 2 let it convert while the last store reads.
        group_m: Rows of tiles that are walked together, so that the filter stays in L2.
        filter_steps: Steps of the whole reduction, to keep the filter in shared memory; 0 to load
            it again for every tile.
        element_bytes: Bytes of an element of the operands: 2 for fp16 and bf16, 1 for fp8.
        out_bytes: Bytes of an element of the output: 2, or 1 to 4 where operands are fp8.
        rows_from_w: Whether rows of the product are output channels and its columns pixels, for
            x that is a matrix.  Columns may be 96 or 144, rows may not: what splits evenly over
            the multiprocessors may need them in either.
    """

    rows: int
    consumers: int = 2
    ping_pong: bool
    block_n_main: int
    block_n_rest: int = 0
    block_k: int = 64
    stages: int
    store_n: int = 64
    store_buffers: int = 1
    group_m: int = 8
    filter_steps: int = 0
    # What tables leave out of these is what was the only way before they were there.
    element_bytes: int = dataclasses.field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    out_bytes: int = dataclasses.field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    rows_from_w: bool = dataclasses.field(default=False, metadata={"omit": False})

    def __post_init__(self) -> None:
        """Refuses what cannot be computed with: anything but whole numbers, and those too small."""
        # 0 is what these two say where there is none.
        found = type_problems(self, may_be_zero=("block_n_rest", "filter_steps"))
        if found:
            raise LaunchError("configuration: " + "; ".join(found))

    @property
    def joins(self) -> bool:
        """Whether the two accumulators are those of one WGMMA in fprop; in dgrad they never are."""
        fits = 0 < self.block_n_rest < self.block_n_main and self.block_n <= WGMMA_MAX_N
        if not fits or not capabilities()["wgmma-join"].available:
            return False
        return self.smem_bytes + self.spare_bytes + RESERVED_BYTES <= SMEM_BYTES

    @property
    def fprop_boxes(self) -> tuple[int, ...]:
        """Columns of the TMA copies of w: of each accumulator; of two pieces and one, if joined."""
        if self.joins:
            return 2 * self.block_n_rest, self.block_n_rest
        return (self.block_n_main, self.block_n_rest)[: 1 + (self.block_n_rest > 0)]

    @property
    def row_groups(self) -> int:
        """Groups of rows in a tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def block_m(self) -> int:
        """Pixels of a tile."""
        return self.rows * self.row_groups

    @property
    def block_n(self) -> int:
        """Output channels of a tile."""
        return self.block_n_main + self.block_n_rest

    @property
    def y_block(self) -> list[int]:
        """Pixels and output channels of one TMA store."""
        block = [self.rows, self.store_n]
        return block[::-1] if self.rows_from_w else block

    @property
    def x_bytes(self) -> int:
        """What a stage loads of x."""
        return self.block_m * self.block_k * self.element_bytes

    @property
    def w_bytes(self) -> int:
        """What a step needs of w."""
        return self.block_n * self.block_k * self.element_bytes

    @property
    def w_blocks(self) -> int:
        """Blocks of the filter in shared memory: one per stage, or all."""
        return self.filter_steps or self.stages

    @property
    def w_pieces(self) -> int:
        """Pieces of BLOCK_N_REST columns in the buffer of w, where WGMMAs are joined.

        An even number, because they are copied in twos: the last one may be of no use.
        """
        count = self.w_blocks * self.block_n // self.block_n_rest
        return count + count % 2

    @property
    def spare_bytes(self) -> int:
        """Shared memory of a last piece that is of no use, where WGMMAs are joined."""
        piece_bytes = self.block_n_rest * self.block_k * self.element_bytes
        return self.w_pieces * piece_bytes - self.w_blocks * self.w_bytes

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the ring, the filter, the staging buffers and the barriers."""
        staging = self.consumers * self.store_buffers * self.rows * self.store_n * self.out_bytes
        barriers = 8 * (2 * self.stages + 2)
        return self.stages * self.x_bytes + self.w_blocks * self.w_bytes + staging + barriers

    @property
    def accumulator_registers(self) -> int:
        """fp32 registers of the accumulators, per thread."""
        return self.rows * self.block_n // WARP_GROUP_THREADS

    @property
    def consumer_registers(self) -> int:
        """Registers per consumer thread; the producer gives up most of its own."""
        return {1: 240, 2: 232, 3: 152}[self.consumers]

    @property
    def producer_registers(self) -> int:
        """Registers per producer thread."""
        return {1: 24, 2: 40, 3: 56}[self.consumers]

    def problems(self) -> list[str]:
        """Returns why the configuration cannot run; nothing where it can."""
        found = []
        if self.rows not in (64, 128):
            found.append(f"rows is {self.rows}: a consumer multiplies 64 or 128")
        if not 1 <= self.consumers <= 3:
            found.append(f"consumers is {self.consumers}: expected 1 to 3")
            return found
        if self.ping_pong and self.consumers != 2:
            found.append(f"ping-pong is for 2 consumers, not {self.consumers}")
        widths = [self.block_n_main] + [self.block_n_rest] * (self.block_n_rest > 0)
        for width in widths:
            if width not in (16, 32, 64, 128, 256):
                found.append(
                    f"block_n of {width}: an accumulator has 16 to {WGMMA_MAX_N} columns, "
                    "a power of two"
                )
            if width % self.store_n:
                found.append(f"store_n is {self.store_n}: it must divide {width}")
        if self.element_bytes not in (1, 2):
            found.append(f"element_bytes is {self.element_bytes}: WGMMA reads 8 or 16 bits here")
            return found
        if self.out_bytes not in (1, 2, 4):
            found.append(f"out_bytes is {self.out_bytes}: expected 1, 2 or 4")
            return found
        least = max(MIN_STORE_N, SWIZZLE_BYTES[0] // self.out_bytes)
        if self.store_n < least:
            found.append(f"store_n is {self.store_n}: expected at least {least}, one swizzle row")
        steps = [row // self.element_bytes for row in SWIZZLE_BYTES]
        if self.block_k not in steps:
            found.append(
                f"block_k is {self.block_k}: {steps[0]}, {steps[1]} or {steps[2]} are one "
                "swizzle row"
            )
        if self.stages < 2:
            found.append(f"stages is {self.stages}: the producer needs at least 2")
        if self.smem_bytes + RESERVED_BYTES > SMEM_BYTES:
            found.append(f"{self.smem_bytes} B of shared memory, a CTA has {SMEM_BYTES}")
        if self.filter_steps and self.block_n_rest:
            found.append("a filter that stays in shared memory has one accumulator")
        if self.rows_from_w and (self.rows != 64 or self.filter_steps or self.out_bytes != 2):
            found.append(
                "rows_from_w: a consumer has 64 output channels of 16 bits, one swizzle row, and "
                "no filter stays"
            )
        # Some 30 registers hold addresses and counters beside the accumulators.
        if self.accumulator_registers + 30 > self.consumer_registers:
            found.append(
                f"accumulators take {self.accumulator_registers} registers of a thread's "
                f"{self.consumer_registers}"
            )
        return found

    def __str__(self) -> str:
        rest = f"+{self.block_n_rest}" if self.block_n_rest else ""
        role = "pp" if self.ping_pong else f"co{self.consumers}"
        kept = f"_f{self.filter_steps}" if self.filter_steps else ""
        step = f"_k{self.block_k}" if self.block_k != 64 else ""
        bits = "" if self.element_bytes == 2 else f"_b{8 * self.element_bytes}"
        bits += "" if self.out_bytes == 2 else f"_y{8 * self.out_bytes}"
        bits += "_w" * self.rows_from_w
        return (
            f"{self.block_m}x{self.block_n_main}{rest}_{role}_s{self.stages}"
            f"_e{self.store_n}x{self.store_buffers}_g{self.group_m}{kept}{step}{bits}"
        )


@dataclass(frozen=True, slots=True)
class Cost(conv_config.Cost):
    """What a configuration costs on one multiprocessor, in microseconds.

    Attributes:
        joined: What it costs where WGMMAs are joined; ``None`` where they never are.
    """

    joined: Cost | None = None


def ping_pong(rows: int, columns: int, stages: int, **others: Any) -> TileConfig:
    """Returns a configuration of two consumers that take turns."""
    return TileConfig(rows=rows, ping_pong=True, block_n_main=columns, stages=stages, **others)


def cooperative(rows: int, consumers: int, columns: int, stages: int, **others: Any) -> TileConfig:
    """Returns a configuration of consumers that share every tile."""
    return TileConfig(
        rows=rows,
        consumers=consumers,
        ping_pong=False,
        block_n_main=columns,
        stages=stages,
        **others,
    )


def keep_filter(config: TileConfig, steps: int) -> TileConfig | None:
    """Returns a configuration that keeps the filter in shared memory, with all stages that fit.

    Args:
        config: A configuration with one accumulator.
        steps: Steps of the whole reduction.

    Returns:
        The configuration, or ``None`` if fewer than 4 stages are left: then it does not pay.
    """
    kept = dataclasses.replace(config, filter_steps=steps, stages=4)
    spare_bytes = SMEM_BYTES - RESERVED_BYTES - kept.smem_bytes
    if spare_bytes < 0:
        return None
    # A stage also has two mbarriers.
    return dataclasses.replace(kept, stages=4 + spare_bytes // (config.x_bytes + 16))


def with_stages(config: TileConfig, stages: int) -> TileConfig:
    """Returns a configuration with more stages: so many, or as many as fit.

    Where WGMMAs are joined they still are.

    Args:
        config: A configuration that fits.
        stages: How many it should have.
    """
    for count in range(stages, config.stages, -1):
        deeper = dataclasses.replace(config, stages=count)
        if not deeper.problems() and deeper.joins == config.joins:
            return deeper
    return config


def launch_problems(
    config: TileConfig,
    steps: int,
    columns: int,
    num_sms: int,
    *,
    element_bytes: int = 2,
    out_bytes: int = 2,
    may_turn: bool = False,
) -> list[str]:
    """Returns why a configuration cannot run, or not this convolution; nothing where it can.

    Args:
        config: The configuration.
        steps: Steps of the whole reduction, 0 where the filter cannot stay in shared memory.
        columns: Columns of the product.
        num_sms: Multiprocessors of the GPU.
        element_bytes: Bytes of an element of the convolution's operands.
        out_bytes: Those of its output.
        may_turn: Whether rows of the product can be output channels.
    """
    problems = config.problems()
    for name, expected in (("element_bytes", element_bytes), ("out_bytes", out_bytes)):
        found = getattr(config, name)
        if found != expected:
            problems.append(f"{name} is {found}, the convolution has {expected}")
    if config.rows_from_w and not may_turn:
        problems.append("rows_from_w: rows are output channels where forward x is a matrix only")
    if config.filter_steps not in (0, steps):
        problems.append(f"filter_steps is {config.filter_steps}, the convolution has {steps}")
    num_n = math.ceil(columns / config.block_n)
    if config.filter_steps and num_n > num_sms:
        problems.append(f"{num_n} tiles of columns on {num_sms} multiprocessors: filters change")
    return problems


def num_programs(config: TileConfig, tiles: int, columns: int, num_sms: int) -> int:
    """Returns the CTAs; where the filter stays, a multiple of the tiles of columns.

    Args:
        config: How the kernel is compiled.
        tiles: All tiles.
        columns: Columns of the product.
        num_sms: Multiprocessors of the GPU.
    """
    num_n = math.ceil(columns / config.block_n)
    return min(tiles, num_sms // num_n * num_n if config.filter_steps else num_sms)
