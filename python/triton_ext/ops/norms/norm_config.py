"""What a normalization is over, and the tiles in which its kernels walk a tensor.

A channels-last tensor is a matrix [images, rows, C].  BatchNorm is one image of N * pixels rows
whose groups are single channels, GroupNorm N images of pixels rows.  A program walks some rows of
some channels of one image, a chunk, in tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triton_ext.ops.core.config_checks import power_problems

__all__ = ["MergeTiles", "NormShape", "NormTiles", "choose_merge_tiles", "choose_tiles"]

_LOAD_BYTES = 16
_NUM_WARPS = 8
# 16-byte loads of a thread and tensor in flight.  More cost registers, and so programs that run at
# a time: kernels with 48 to 104 registers have 32 to 40 KB in flight on a multiprocessor of sm_90.
_UNROLL = 2
# Channels of a tile are a row's neighbours: more than 512 bytes bring nothing.
_MOST_BLOCK_C = 256
# How much of the memory's rate rows of a tile of so many bytes get; not measured.
_RATES = {16: 0.4, 32: 0.7, 64: 0.9}
_MERGE_ELEMENTS = 8192
_MERGE_CHANNELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NormShape:
    """A channels-last tensor and what is normalized together.

    Attributes:
        images: Parts with statistics of their own.
        rows: Pixels of each part.
        channels: C.
        groups: Statistics of each part, each of ``channels / groups`` neighbours.
    """

    images: int
    rows: int
    channels: int
    groups: int

    @property
    def group_channels(self) -> int:
        """Channels that share statistics."""
        return self.channels // self.groups

    @property
    def statistics(self) -> int:
        """Means of the tensor."""
        return self.images * self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class NormTiles:
    """How a kernel walks a tensor.

    Attributes:
        unit: Channels come in multiples of it; what a thread loads at once.
        block_c: Channels of a tile.
        block_rows: Rows of a tile that the threads of a program hold side by side.
        unroll: How many such rows a tile has below each other: loads in flight of a thread.
        chunk_rows: Rows of a chunk.
        chunks: Chunks of an image.
        num_warps: Warps of a program.
    """

    unit: int
    block_c: int
    block_rows: int
    unroll: int
    chunk_rows: int
    chunks: int
    num_warps: int

    def problems(self) -> list[str]:
        """Returns why no kernel can be compiled so; nothing where it can."""
        names = ("unit", "block_c", "block_rows", "unroll")
        return [*power_problems(self, 1, 4096, *names), *power_problems(self, 1, 32, "num_warps")]

    def grid(self, shape: NormShape) -> tuple[int, int, int]:
        """Programs of a kernel."""
        return (shape.images * self.chunks * math.ceil(shape.channels / self.block_c), 1, 1)


def _power_up(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _choose_block_c(channels: int, element_bytes: int) -> int:
    def rate(block_c: int) -> float:
        used = channels / (math.ceil(channels / block_c) * block_c)
        return used * _RATES.get(block_c * element_bytes, 1.0)

    most = min(_MOST_BLOCK_C, _power_up(channels))
    least = min(most, _LOAD_BYTES // element_bytes)
    sizes = [1 << power for power in range(least.bit_length() - 1, most.bit_length())]
    # The widest of equals.
    return max(reversed(sizes), key=rate)


def choose_tiles(
    shape: NormShape, element_bytes: int, num_sms: int, programs_per_sm: int, least_tiles: int = 1
) -> NormTiles:
    """Returns tiles that keep every multiprocessor's loads in flight; not measured.

    Args:
        shape: What is walked.
        element_bytes: Of the widest type that is loaded.
        num_sms: Multiprocessors.
        programs_per_sm: Programs of 8 warps that are wanted for each multiprocessor.
        least_tiles: Of a chunk that is not all rows.
    """
    vector = _LOAD_BYTES // element_bytes
    block_c = _choose_block_c(shape.channels, element_bytes)
    block_rows = max(1, 32 * _NUM_WARPS * vector // block_c)
    block_rows = min(block_rows, _power_up(shape.rows))
    unroll = min(_UNROLL, _power_up(math.ceil(shape.rows / block_rows)))
    num_warps = max(1, min(_NUM_WARPS, block_rows * block_c // (32 * vector)))
    columns = shape.images * math.ceil(shape.channels / block_c)
    wanted = programs_per_sm * num_sms * _NUM_WARPS // num_warps
    # Where images and channels alone are about as many, no fraction of them may be left over.
    wanted = wanted // columns if columns <= wanted // 2 else math.ceil(4 * wanted / columns)
    chunks = max(1, min(wanted, math.ceil(shape.rows / (least_tiles * block_rows * unroll))))
    chunk_rows = math.ceil(math.ceil(shape.rows / chunks) / block_rows) * block_rows
    return NormTiles(
        unit=math.gcd(shape.channels, vector),
        block_c=block_c,
        block_rows=block_rows,
        unroll=unroll,
        chunk_rows=chunk_rows,
        chunks=math.ceil(shape.rows / chunk_rows),
        num_warps=num_warps,
    )


@dataclass(frozen=True, slots=True)
class MergeTiles:
    """A tile of parts that a program adds.

    Attributes:
        parts: Of a tile.
        block_c: Channels of a tile: a whole group, or some groups of one channel.
    """

    parts: int
    block_c: int


def choose_merge_tiles(parts: int, group_channels: int) -> MergeTiles:
    """Returns tiles for adding parts: as few rounds as registers allow.

    Args:
        parts: To be added.
        group_channels: Channels that are added, too; 1 for none.
    """
    block_c = _MERGE_CHANNELS if group_channels == 1 else _power_up(group_channels)
    return MergeTiles(min(_power_up(parts), max(1, _MERGE_ELEMENTS // block_c)), block_c)
