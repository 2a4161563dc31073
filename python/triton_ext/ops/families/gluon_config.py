"""Tile configurations of the Gluon kernels for Hopper, and what the kernels cannot compute.

Pure arithmetic: nothing here imports a kernel, which only hosts with im2col loads in Gluon can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from triton_ext.errors import LaunchError
from triton_ext.host import capabilities
from triton_ext.ops.core.descriptors import Layout
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, field_refusals, refused

__all__ = [
    "DTYPES",
    "FP8_DTYPES",
    "RESERVED_BYTES",
    "SMEM_BYTES",
    "TileConfig",
    "Tiled",
    "common_refusals",
    "cooperative",
    "host_refusals",
    "keep_filter",
    "launch_refusals",
    "num_programs",
    "ping_pong",
    "problem_refusals",
    "with_stages",
]

#: Dtypes that all Gluon kernels take.
DTYPES = (torch.float16, torch.bfloat16)
#: Dtypes that fprop takes as well: WGMMA reads 8-bit operands along K only, as fprop has them.
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

# Shared memory that a CTA can use on sm_90 (CUDA C++ Programming Guide, compute capabilities).
SMEM_BYTES = 232448
# Triton's own: alignment of the buffers, a few words for the warp groups.
RESERVED_BYTES = 1024
# Bytes of an element of fp16 and bf16.
ELEMENT_BYTES = 2
WARP_GROUP_THREADS = 128
# The swizzle rows of shared memory; what is narrower has another layout.
SWIZZLE_BYTES = (32, 64, 128)
# Narrowest accumulator, and with it the narrowest store.
MIN_STORE_N = 16
# Largest N of a WGMMA (PTX ISA, wgmma shapes).
WGMMA_MAX_N = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """How the kernel of fprop or dgrad is compiled; in the words of fprop.

    Attributes:
        rows: Pixels of a group of rows, 64 or 128: what one consumer multiplies.  With
            ``rows_from_w`` pixels and output channels change places, here and below.
        consumers: Consumer warp groups, 1 to 3.
        ping_pong: Whether consumers take turns with whole tiles; otherwise they share each tile.
        block_n_main: Output channels of the first accumulator.
        block_n_rest: Output channels of the second accumulator, 0 for none.
        block_k: Input channels of a step, one swizzle row of 32, 64 or 128 bytes.
        stages: Depth of the ring of loads.
        store_n: Output channels of one TMA store.
        store_buffers: Staging buffers of a consumer: 2 let it convert while the last store reads.
        group_m: Rows of tiles in a group, which is computed column by column: the filter stays in
            L2.
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
    # Entries of tables that were written before these fields leave them out.
    element_bytes: int = field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    out_bytes: int = field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    rows_from_w: bool = field(default=False, metadata={"omit": False})

    def __post_init__(self) -> None:
        """Refuses what cannot be computed with: anything but whole numbers, and those too small."""
        found = field_refusals(self, may_be_zero=("block_n_rest", "filter_steps"))
        if found:
            raise LaunchError("configuration: " + "; ".join(map(str, found)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Output channels of each accumulator."""
        return (self.block_n_main, self.block_n_rest)[: 1 + (self.block_n_rest > 0)]

    @property
    def joins(self) -> bool:
        """Whether fprop has one WGMMA for both accumulators; dgrad never has."""
        fits = 0 < self.block_n_rest < self.block_n_main and self.block_n <= WGMMA_MAX_N
        if not fits or not capabilities()["wgmma-join"].available:
            return False
        return self.smem_bytes + self.spare_bytes + RESERVED_BYTES <= SMEM_BYTES

    @property
    def fprop_boxes(self) -> tuple[int, ...]:
        """Columns of the TMA copies of w: of each accumulator; of two pieces and one, if joined."""
        return (2 * self.block_n_rest, self.block_n_rest) if self.joins else self.widths

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
        """Bytes of x that a stage loads."""
        return self.block_m * self.block_k * self.element_bytes

    @property
    def w_bytes(self) -> int:
        """Bytes of w that a step needs."""
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
    def consumer_registers(self) -> int:
        """Registers per consumer thread; the producer gives up most of its own."""
        return {1: 240, 2: 232, 3: 152}[self.consumers]

    @property
    def producer_registers(self) -> int:
        """Registers per producer thread."""
        return {1: 24, 2: 40, 3: 56}[self.consumers]

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the configuration cannot run; nothing where it can."""
        if not 1 <= self.consumers <= 3:
            return refused(f"consumers is {self.consumers}: expected 1 to 3")
        if self.element_bytes not in (1, 2):
            return refused(f"element_bytes is {self.element_bytes}: WGMMA reads 8 or 16 bits here")
        if self.out_bytes not in (1, 2, 4):
            return refused(f"out_bytes is {self.out_bytes}: expected 1, 2 or 4")
        small, middle, large = (row // self.element_bytes for row in SWIZZLE_BYTES)
        least = max(MIN_STORE_N, SWIZZLE_BYTES[0] // self.out_bytes)
        registers = self.rows * self.block_n // WARP_GROUP_THREADS  # of the fp32 accumulators
        turns = self.rows == 64 and not self.filter_steps and self.out_bytes == 2
        is_wrong = {
            f"rows is {self.rows}: a consumer multiplies 64 or 128": self.rows not in (64, 128),
            f"ping-pong is for 2 consumers, not {self.consumers}": (
                self.ping_pong and self.consumers != 2
            ),
            f"store_n is {self.store_n}: expected at least {least}, one swizzle row": (
                self.store_n < least
            ),
            f"block_k is {self.block_k}: {small}, {middle} or {large} are one swizzle row": (
                self.block_k not in (small, middle, large)
            ),
            f"stages is {self.stages}: the producer needs at least 2": self.stages < 2,
            f"{self.smem_bytes} B of shared memory, a CTA has {SMEM_BYTES}": (
                self.smem_bytes + RESERVED_BYTES > SMEM_BYTES
            ),
            "a filter that stays in shared memory has one accumulator": (
                bool(self.filter_steps and self.block_n_rest)
            ),
            "rows_from_w: a consumer has 64 output channels of 16 bits, one swizzle row, and "
            "no filter stays": self.rows_from_w and not turns,
            # Some 30 registers hold addresses and counters beside the accumulators.
            f"accumulators take {registers} registers of a thread's {self.consumer_registers}": (
                registers + 30 > self.consumer_registers
            ),
        }
        for n in self.widths:
            message = f"block_n of {n}: an accumulator has 16 to 256 columns, a power of two"
            is_wrong[message] = n not in (16, 32, 64, 128, 256)
            is_wrong[f"store_n is {self.store_n}: it must divide {n}"] = n % self.store_n != 0
        return refused(*(message for message, holds in is_wrong.items() if holds))

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


def ping_pong(rows: int, columns: int, stages: int, **others: Any) -> TileConfig:
    """Returns a configuration of two consumers that take turns."""
    return TileConfig(rows=rows, ping_pong=True, block_n_main=columns, stages=stages, **others)


def cooperative(rows: int, consumers: int, columns: int, stages: int, **others: Any) -> TileConfig:
    """Returns a configuration of consumers that share every tile."""
    return TileConfig(
        rows=rows, consumers=consumers, ping_pong=False, block_n_main=columns, stages=stages,
        **others,
    )  # fmt: skip


def keep_filter(config: TileConfig, steps: int) -> TileConfig | None:
    """Returns a configuration that keeps the filter in shared memory, with all stages that fit.

    ``config`` has one accumulator, ``steps`` are those of the whole reduction.  ``None`` where
    fewer than 4 stages are left: then it does not pay.
    """
    kept = replace(config, filter_steps=steps, stages=4)
    spare_bytes = SMEM_BYTES - RESERVED_BYTES - kept.smem_bytes
    if spare_bytes < 0:
        return None
    # A stage also has two mbarriers.
    return replace(kept, stages=4 + spare_bytes // (config.x_bytes + 16))


def with_stages(config: TileConfig, stages: int) -> TileConfig:
    """Returns a configuration that fits with up to ``stages``; joined WGMMAs stay joined."""
    for count in range(stages, config.stages, -1):
        deeper = replace(config, stages=count)
        if not deeper.refusals() and deeper.joins == config.joins:
            return deeper
    return config


def num_programs(config: TileConfig, tiles: int, columns: int, num_sms: int) -> int:
    """Returns the CTAs; where the filter stays, a multiple of the tiles along the columns."""
    num_n = math.ceil(columns / config.block_n)
    return min(tiles, num_sms // num_n * num_n if config.filter_steps else num_sms)


def launch_refusals(
    config: TileConfig,
    steps: int,
    columns: int,
    num_sms: int,
    *,
    element_bytes: int = 2,
    out_bytes: int = 2,
    may_turn: bool = False,
) -> tuple[Refusal, ...]:
    """Returns why a configuration cannot run, or not this convolution; nothing where it can.

    Args:
        steps: Steps of the whole reduction, 0 where the filter cannot stay in shared memory.
        columns: Columns of the product.
        element_bytes: Bytes of an element of the operands.
        out_bytes: Bytes of an element of the output.
        may_turn: Whether rows of the product can be output channels.
    """
    wrong = []
    for name, expected in (("element_bytes", element_bytes), ("out_bytes", out_bytes)):
        found = getattr(config, name)
        if found != expected:
            wrong.append(f"{name} is {found}, the convolution has {expected}")
    if config.rows_from_w and not may_turn:
        wrong.append("rows_from_w: rows are output channels where forward x is a matrix only")
    if config.filter_steps not in (0, steps):
        wrong.append(f"filter_steps is {config.filter_steps}, the convolution has {steps}")
    num_n = math.ceil(columns / config.block_n)
    if config.filter_steps and num_n > num_sms:
        wrong.append(f"{num_n} tiles of columns on {num_sms} multiprocessors: filters change")
    return (*config.refusals(), *refused(*wrong))


def common_refusals(
    problem: ConvProblem, dtype: torch.dtype, device: Device
) -> tuple[Refusal, ...]:
    """Returns why no Gluon kernel computes a problem on this host and device."""
    return (*host_refusals(device), *problem_refusals(problem, dtype))


def host_refusals(device: Device) -> tuple[Refusal, ...]:
    """Returns why no Gluon kernel runs on this host and device."""
    gluon = capabilities()["im2col-gluon"]
    found = [] if gluon.available else [gluon.reason]
    if IS_INTERPRETED:
        found = ["Triton's interpreter does not run Gluon kernels"]
    if device.capability != (9, 0):
        major, minor = device.capability
        found.append(f"WGMMA is an instruction of sm_90 alone, the GPU is sm_{major}{minor}")
    if device.smem_bytes < SMEM_BYTES:
        found.append(
            f"a CTA needs {SMEM_BYTES} bytes of shared memory, the GPU has {device.smem_bytes}"
        )
    return refused(*found, in_key=False)


def problem_refusals(
    problem: ConvProblem, dtype: torch.dtype, *, takes_fp8: bool = False, co_unit: int = 8
) -> tuple[Refusal, ...]:
    """Returns why no Gluon kernel computes a problem; rows of Co are multiples of ``co_unit``."""
    found: list[str] = []
    is_fp8 = takes_fp8 and dtype in FP8_DTYPES
    if dtype not in DTYPES and not is_fp8:
        expected = "float16, bfloat16 or fp8" if takes_fp8 else "float16 or bfloat16"
        found.append(f"dtype is {dtype}, expected {expected}")
    if problem.groups != 1:
        found.append(f"groups={problem.groups}, expected 1")
    ci, co, ci_unit = problem.in_channels, problem.out_channels, 16 if is_fp8 else 8
    for name, count, unit in (("Ci", ci, ci_unit), ("Co", co, co_unit)):
        if count % unit:
            found.append(f"{name} is {count}, TMA needs rows of a multiple of {unit} channels")
    return refused(*found)


@dataclass(frozen=True, slots=True)
class Tiled:
    """A tiled descriptor of Gluon's that was checked, without memory."""

    desc: Any

    @classmethod
    def of(cls, dtype: torch.dtype, shape: list[int], row: int, block: list[int]) -> Tiled:
        """Returns a descriptor; ``row`` is the stride of the last dimension but one."""
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        from triton_ext.ops.kernels.gluon_pipeline import smem_layout

        strides = [*(row * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)), 1]
        stand_in = Layout(tuple(shape), tuple(strides), dtype)
        layout = smem_layout(block, dtype.itemsize)
        return cls(TensorDescriptor(stand_in, shape, strides, block, layout))

    def at(self, base: torch.Tensor) -> Any:
        """Returns the descriptor of a tensor on a 16-byte boundary, without checking all again."""
        made = object.__new__(type(self.desc))
        made.__dict__.update(self.desc.__dict__, base=base)
        return made
