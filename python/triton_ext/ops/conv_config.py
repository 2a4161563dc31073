"""Tile configurations of the forward convolution and the choice among them.

The choice is a model, not a measurement: it counts how long the busiest multiprocessor works.
Its two tables were measured on an H200 (``python -m benchmarks conv_fprop --sweep``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["CONFIGS", "ConvConfig", "choose_config"]

# Shared memory that a CTA can use on sm_90 and sm_100: 227 KiB.
SMEM_BYTES = 232448


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
    """

    block_m: int
    block_n: int
    block_k: int = 64
    num_stages: int
    num_warps: int
    store_parts: int = 1
    group_size_m: int = 8

    def smem_bytes(self, element_bytes: int) -> int:
        """Shared memory for the pipeline and the output tile, in bytes."""
        stage = (self.block_m + self.block_n) * self.block_k * element_bytes
        return self.num_stages * stage + self.block_m * self.block_n * element_bytes // (
            self.store_parts
        )

    def fits(self, element_bytes: int) -> bool:
        """Whether the configuration fits the shared memory of a CTA."""
        # 1 KiB for mbarriers and alignment.
        return self.smem_bytes(element_bytes) + 1024 <= SMEM_BYTES


CONFIGS: tuple[ConvConfig, ...] = (
    ConvConfig(block_m=128, block_n=256, num_stages=3, num_warps=8),
    ConvConfig(block_m=128, block_n=256, num_stages=4, num_warps=8, store_parts=2),
    ConvConfig(block_m=256, block_n=128, num_stages=3, num_warps=8),
    ConvConfig(block_m=256, block_n=128, num_stages=4, num_warps=8, store_parts=2),
    ConvConfig(block_m=128, block_n=128, num_stages=4, num_warps=8),
    ConvConfig(block_m=128, block_n=128, num_stages=5, num_warps=8),
    ConvConfig(block_m=128, block_n=128, num_stages=4, num_warps=4),
    ConvConfig(block_m=256, block_n=64, num_stages=4, num_warps=8),
    ConvConfig(block_m=128, block_n=64, num_stages=5, num_warps=4),
    ConvConfig(block_m=64, block_n=128, num_stages=5, num_warps=4),
    ConvConfig(block_m=64, block_n=256, num_stages=4, num_warps=4),
    ConvConfig(block_m=64, block_n=64, num_stages=6, num_warps=4),
)


def choose_config(m_gemm: int, co: int, num_sms: int, element_bytes: int = 2) -> ConvConfig:
    """Returns the configuration that the model expects to be fastest.

    Args:
        m_gemm: Output pixels.
        co: Output channels.
        num_sms: Multiprocessors of the GPU.
        element_bytes: Size of an element of x, w and y, in bytes.
    """

    def cost(config: ConvConfig) -> float:
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(co / config.block_n)
        return math.ceil(tiles / num_sms) * config.block_m * config.block_n

    return min((c for c in CONFIGS if c.fits(element_bytes)), key=cost)
