"""Tile configurations of the Gluon kernels of fprop and dgrad, and the times that a model expects.

The model is the busiest multiprocessor, which computes ceil(tiles / multiprocessors) tiles one
after another.  A filter that stays in shared memory ties a multiprocessor to its columns.  Pure
arithmetic: nothing here imports a kernel, which only hosts with im2col loads in Gluon can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from triton_ext.errors import LaunchError
from triton_ext.host import capabilities
from triton_ext.ops.core import refusals
from triton_ext.ops.core.descriptors import ELEMENT_BYTES
from triton_ext.ops.core.device import RESERVED_BYTES, SMEM_BYTES, Expected
from triton_ext.ops.core.loads import LINE_BYTES
from triton_ext.ops.core.packing import channel_block
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.families.gemm_config import Cost, Product


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """How the kernel of fprop or dgrad is compiled; in the words of fprop."""

    rows: int  # pixels of a group of rows, 64 or 128: what one consumer multiplies
    consumers: int = 2  # consumer warp groups, 1 to 3
    ping_pong: bool  # whether consumers take turns with whole tiles; else they share each tile
    block_n_main: int  # output channels of the first accumulator
    block_n_rest: int = 0  # output channels of the second accumulator, 0 for none
    block_k: int = 64  # input channels of a step, one swizzle row of 32, 64 or 128 bytes
    stages: int  # depth of the ring of loads
    store_n: int = 64  # output channels of one TMA store
    store_buffers: int = 1  # staging buffers of a consumer: with 2 it converts during a store
    group_m: int = 8  # rows of tiles that go column by column, so that the filter stays in L2
    # Steps of the whole reduction, to keep the filter in shared memory; 0 to load it for each tile.
    filter_steps: int = 0
    # Bytes of an element of the operands, 2 for fp16 and bf16, 1 for fp8; and of the output, 2, or
    # 1 to 4 where operands are fp8.  Entries of tables that were written before these fields leave
    # them out.
    element_bytes: int = field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    out_bytes: int = field(default=ELEMENT_BYTES, metadata={"omit": ELEMENT_BYTES})
    # Pixels and output channels change places in all of the above, for x that is a matrix.
    # Columns may be 96 or 144, rows may not: what splits evenly over the multiprocessors may need
    # them in either.
    rows_from_w: bool = field(default=False, metadata={"omit": False})

    def __post_init__(self) -> None:
        """Raises LaunchError for fields of another type and for numbers that are too small."""
        found = refusals.field_refusals(self, may_be_zero=("block_n_rest", "filter_steps"))
        if found:
            raise LaunchError("configuration: " + "; ".join(map(str, found)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Output channels of each accumulator."""
        return (self.block_n_main, self.block_n_rest)[: 1 + (self.block_n_rest > 0)]

    @property
    def joins(self) -> bool:
        """True where fprop has one WGMMA for both accumulators; dgrad never has."""
        # A WGMMA has at most 256 columns (PTX ISA, wgmma shapes).
        fits = 0 < self.block_n_rest < self.block_n_main and self.block_n <= 256
        if not fits or not capabilities()["wgmma-join"].available:
            return False
        # The last of the pieces may be of no use.
        pieces_bytes = self.w_pieces * self.block_n_rest * self.block_k * self.element_bytes
        spare_bytes = pieces_bytes - self.w_blocks * self.w_bytes
        return self.smem_bytes + spare_bytes + RESERVED_BYTES <= SMEM_BYTES

    @property
    def fprop_boxes(self) -> tuple[int, ...]:
        """Columns of the TMA copies of w: of each accumulator; of two pieces and one, if joined."""
        return (2 * self.block_n_rest, self.block_n_rest) if self.joins else self.widths

    @property
    def row_groups(self) -> int:
        """Groups of rows in a tile: of all consumers, or of each."""
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

        An even number, because they are copied in twos.
        """
        count = self.w_blocks * self.block_n // self.block_n_rest
        return count + count % 2

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

    def refusals(self) -> Refusals:
        """Returns why the configuration cannot run; nothing where it can."""
        size, out_size = self.element_bytes, self.out_bytes
        found = refusals.range_refusals(self, consumers=(1, 3))
        found += refusals.power_refusals(self, element_bytes=(1, 2), out_bytes=(1, 4))
        if found:
            return found
        found += refusals.power_refusals(self, rows=(64, 128), block_n_main=(16, 256))
        if self.block_n_rest:
            found += refusals.power_refusals(self, block_n_rest=(16, 256))
        # A tile narrower than a swizzle row of 32 bytes has another layout in shared memory.
        least = max(16, 32 // out_size)
        found += refusals.power_refusals(
            self, block_k=(32 // size, 128 // size), store_n=(least, 256)
        )
        for n in self.widths:
            if n % self.store_n:
                found += refused(f"store_n is {self.store_n}: it must divide {n}")
        if self.ping_pong and self.consumers != 2:
            found += refused(f"ping-pong is for 2 consumers, not {self.consumers}")
        if self.filter_steps and self.block_n_rest:
            found += refused("a filter that stays in shared memory has one accumulator")
        if self.rows_from_w and (self.rows != 64 or self.filter_steps or out_size != 2):
            found += refused(
                "rows_from_w: a consumer has 64 output channels of 16 bits, one swizzle row, and "
                "no filter stays"
            )
        # Some 30 registers hold addresses and counters beside the accumulators of 128 threads.
        return found + capacity_refusals(self, self.rows * self.block_n // 128, 30)

    def fit_refusals(self, product: Product, num_sms: int) -> Refusals:
        """Returns why a configuration that can run does not compute a product."""
        found = []
        for name in ("element_bytes", "out_bytes"):
            value, expected = getattr(self, name), getattr(product, name)
            if value != expected:
                found.append(f"{name} is {value}, the convolution has {expected}")
        if self.rows_from_w and not product.is_matrix:
            found.append("rows_from_w: rows are output channels where forward x is a matrix only")
        steps, num_n = product.steps(self.block_k), product.tiles(self)[1]
        if self.filter_steps not in (0, steps):
            found.append(f"filter_steps is {self.filter_steps}, the convolution has {steps}")
        if self.filter_steps and num_n > num_sms:
            found.append(f"{num_n} tiles of columns on {num_sms} multiprocessors: filters change")
        return refused(*found)

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


def capacity_refusals(config: Any, accumulators: int, others: int) -> Refusals:
    """Returns why a configuration does not fit a CTA: stages, shared memory, registers.

    ``accumulators`` and ``others`` are registers of a consumer's thread.
    """
    found = []
    if config.stages < 2:
        found.append(f"stages is {config.stages}: the producer needs at least 2")
    if config.smem_bytes + RESERVED_BYTES > SMEM_BYTES:
        found.append(f"{config.smem_bytes} B of shared memory, a CTA has {SMEM_BYTES}")
    if accumulators + others > config.consumer_registers:
        found.append(
            f"accumulators take {accumulators} registers of a thread's {config.consumer_registers}"
        )
    return refused(*found)


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


# An element of a tile takes so much longer to be stored in dgrad's stride phases.
_PHASE_STORE_NS = 0.03
# Launches were measured with a part of DRAM's time in them.
_LESS_LAUNCH_US = 0.8

# A consumer converts 32 columns of a tile while the last store reads 32 others.
_S32: dict[str, Any] = {"store_n": 32, "store_buffers": 2}
_W32: dict[str, Any] = {**_S32, "rows_from_w": True}
_W16: dict[str, Any] = {**_W32, "store_n": 16}

# Shipped configurations by what they are for, with their costs.  Measured on an H200 (Triton 3.9.0,
# fp16; docs/gluon-conv.md) from 2026-11-20 to 2026-11-23.
COSTS: dict[str, dict[TileConfig, Cost]] = {
    # Over 29 shapes, joined WGMMAs 128+32 and 256+64 over ten layers, the others over up to three
    # 1x1 layers.
    "any": {
        ping_pong(128, 128, 6, **_S32, group_m=2): Cost(0.323, 0.55, 4.0),
        ping_pong(64, 128, 8, **_S32, group_m=2): Cost(0.165, 1.10, 3.7),
        ping_pong(64, 64, 10): Cost(0.130, 0.40, 4.1),
        cooperative(64, 3, 128, 5, group_m=2): Cost(0.468, 1.25, 4.8),
        cooperative(64, 2, 256, 4, store_buffers=2): Cost(0.633, 2.06, 4.1),
        cooperative(64, 2, 256, 3, block_n_rest=64, store_buffers=2, group_m=1): (
            Cost(0.815, 2.1, 4.0)
        ),
        cooperative(64, 2, 128, 5, block_n_rest=32, **_S32): Cost(0.436, 1.6, 3.7, (0.408, 1.6)),
        cooperative(64, 2, 128, 6, store_buffers=2, group_m=2): Cost(0.323, 1.14, 3.5),
        # 192 and 384 columns without waste.  Not measured: interpolated between the others, and
        # joined as turned round, below.
        cooperative(64, 2, 128, 5, block_n_rest=64, group_m=2): (
            Cost(0.500, 1.80, 3.9, (0.478, 1.80))
        ),
        # Over two layers, joined over one.
        cooperative(64, 3, 128, 4, block_n_rest=64, group_m=2): (
            Cost(0.800, 1.36, 4.8, (0.775, 1.50))
        ),
    },
    # For x that is no matrix, where WGMMAs are joined: measured so only, over seven layers.
    "joined": {
        ping_pong(128, 128, 5, block_n_rest=32, **_S32, group_m=2): Cost(0.408, 1.05, 3.7),
    },
    # Over one layer, of three dimensions, where the model expects too little of the other tiles.
    "few columns": {
        cooperative(128, 3, 64, 3, **_S32): Cost(0.869, 1.40, 4.0),
        cooperative(128, 2, 64, 4, **_S32): Cost(0.577, 1.20, 4.0),
    },
    # For x that is a matrix: its tiled copies bring more pixels in a time than im2col does.  Over
    # 1x1 layers, up to three for a configuration.
    "matrix": {
        ping_pong(128, 128, 5, block_n_rest=32, **_S32, group_m=2): (
            Cost(0.423, 1.52, 4.0, (0.398, 1.42))
        ),
        cooperative(64, 3, 64, 6, **_S32, group_m=2): Cost(0.266, 0.90, 5.0),
    },
    # For the same, with output channels as rows and pixels as columns.
    "turned": {
        cooperative(64, 2, 64, 7, block_n_rest=32, **_W32): Cost(0.246, 2.26, 3.6, (0.222, 2.20)),
        cooperative(64, 2, 128, 6, block_n_rest=16, **_W16): Cost(0.417, 1.58, 3.6, (0.368, 1.72)),
        cooperative(64, 3, 64, 5, block_n_rest=32, **_W32): Cost(0.411, 1.25, 4.8, (0.360, 1.60)),
        # A step costs by columns what it does with 144 of them.
        cooperative(64, 3, 128, 5, block_n_rest=16, **_W16): Cost(0.625, 1.50, 4.0, (0.552, 1.45)),
        cooperative(64, 2, 128, 5, block_n_rest=64, **_W32): Cost(0.500, 2.73, 3.6, (0.478, 2.60)),
    },
    # With the filter kept in shared memory, where it fits; keep_filter sets the stages.
    "kept": {
        ping_pong(128, 64, 4, **_S32): Cost(0.205, 0.70, 4.0),
        ping_pong(128, 128, 4, **_S32): Cost(0.323, 0.50, 4.0),
    },
}
CONFIGS: tuple[TileConfig, ...] = tuple(COSTS["any"])


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
    product: Product, num_sms: int, block_k: int | None = None, dram_us: float = 0.0
) -> dict[TileConfig, Expected]:
    """Returns the configurations that can run, with the times that the model expects.

    A step has ``block_k`` channels, by default :func:`step_channels`.  Steps of fp8 were not
    measured: they count as those of as many bytes of fp16, which take as long to load and to
    multiply.  ``dram_us`` is the time in which operands and output come from and go to DRAM.
    """
    block_k = block_k or step_channels(product.channels, product.element_bytes)
    has_phases = product.is_dgrad and len(product.taps) * product.repeats > 1
    is_fitted = product.element_bytes == ELEMENT_BYTES
    times = {}
    for config, cost in _tried(product, block_k):
        if config.filter_steps and product.tiles(config)[1] > num_sms:
            continue
        times[config] = product.expected(
            config,
            cost,
            num_sms,
            counts_part=is_fitted or product.channels > block_k,
            dram_us=dram_us,
            store_us=has_phases * config.block_m * config.block_n * _PHASE_STORE_NS / 1e3,
            less_launch_us=is_fitted * _LESS_LAUNCH_US,
        )
    return times


def _tried(product: Product, block_k: int) -> Iterator[tuple[TileConfig, Cost]]:
    """Yields the configurations for a product, with their costs.

    Narrow ones come first, so that they precede what is expected to take as long.
    """
    steps = product.steps(block_k)
    # Steps of fewer than 128 bytes multiply their part of one, and there is memory for more.  fp8
    # over 320 channels, in steps of 64 instead of 128, with tiles of 256+64 columns: 0.500 of a
    # step's time (H200, Triton 3.9.0, 2026-11-23).
    part = block_k * product.element_bytes / LINE_BYTES if product.channels > block_k else 1.0
    if product.is_dgrad:
        yield from narrow_configs(product.columns, block_k, steps).items()

    def specialize(base: TileConfig) -> TileConfig:
        # Staging buffers of fp32 have half of the columns, and the same bytes.
        config = replace(
            base,
            block_k=block_k,
            store_n=base.store_n * 2 // max(product.out_bytes, 2),
            element_bytes=product.element_bytes,
            out_bytes=product.out_bytes,
        )
        counts = range(round(base.stages / part), base.stages, -1)
        deeper = (replace(config, stages=count) for count in counts)
        # Joined WGMMAs stay joined.
        fitting = (c for c in deeper if not c.refusals() and c.joins == config.joins)
        return next(fitting, config)

    is_for = {
        "any": True,
        "joined": not product.is_matrix,
        "few columns": product.columns <= 64,
        "matrix": product.is_matrix,
        "turned": product.is_matrix and product.out_bytes == 2,
        "kept": steps > 0,
    }
    for use, costs in COSTS.items():
        for base, cost in costs.items() if is_for[use] else ():
            kept = keep_filter(specialize(base), steps) if use == "kept" else specialize(base)
            if (config := kept) is None:
                continue
            joins = config.joins and not product.is_dgrad
            if joins and cost.joined is not None:
                cost = Cost(*cost.joined, cost.more_launch_us)
            if joins or use != "joined":
                yield config, cost


def narrow_configs(ci: int, block_k: int, steps: int) -> dict[TileConfig, Cost]:
    """Returns the configurations of dgrad for up to 32 input channels, with what they cost at most.

    The 64 columns and more of the others would multiply and load columns of the filter that nobody
    stores.  Not measured: these are the costs of the same tiles with 64 columns.  A narrow tile
    loads as many pixels and less of the filter, multiplies less and stores no more.  The whole
    reduction has ``steps``; 0 with a stride, where the filter cannot stay.
    """
    if ci > 32:
        return {}
    # With a stride, 16 columns spill a value that rows are stored with; 32 do not.
    columns = 16 if ci <= 16 and steps else 32
    store = {"block_k": block_k, "store_n": columns, "store_buffers": 2}
    found = {ping_pong(64, columns, 12, **store): COSTS["any"][ping_pong(64, 64, 10)]}
    kept = keep_filter(ping_pong(128, columns, 4, **store), steps) if steps else None
    if kept is not None:
        # More stages than these hide nothing.
        kept = replace(kept, stages=min(kept.stages, 12))
        found[kept] = COSTS["kept"][ping_pong(128, 64, 4, **_S32)]
    return found
