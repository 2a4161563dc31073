"""The photograph and the filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Bank", "Job", "banks", "jobs", "photograph"]

_SMALL = {
    "sharpen": [[0, -1, 0], [-1, 5, -1], [0, -1, 0]],
    "box blur": [[1 / 9] * 3] * 3,
    "emboss": [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]],
    "edges": [[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]],
    "sobel x": [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
    "sobel y": [[-1, -2, -1], [0, 0, 0], [1, 2, 1]],
}


def _gaussian(sigma: float) -> np.ndarray:
    y, x = np.mgrid[-2:3, -2:3]
    g = np.exp(-(x * x + y * y) / (2 * sigma * sigma))
    return g / g.sum()


def _laplacian_of_gaussian(sigma: float) -> np.ndarray:
    y, x = np.mgrid[-2:3, -2:3]
    r2 = (x * x + y * y) / (2 * sigma * sigma)
    values = (r2 - 1) * np.exp(-r2)
    values -= values.mean()
    return values / np.abs(values).sum() * 6


def _large() -> dict[str, np.ndarray]:
    identity = np.zeros((5, 5))
    identity[2, 2] = 1
    blur = _gaussian(1.2)
    slope = np.arange(-2, 3)
    return {
        "gaussian": blur,
        "unsharp mask": identity + 2.5 * (identity - blur),
        "motion blur": np.eye(5)[::-1] / 5,
        "laplacian of gaussian": -_laplacian_of_gaussian(0.9),
        "wide sobel": np.outer([1, 4, 6, 4, 1], slope) / 16,
        "relief": identity + (slope[:, None] + slope[None, :]) / 6,
    }


@dataclass(frozen=True, slots=True)
class Bank:
    """Filters of one size.

    Attributes:
        names: One per filter.
        kernels: [filters, size, size].
    """

    names: tuple[str, ...]
    kernels: np.ndarray

    @property
    def size(self) -> int:
        """Taps per side."""
        return int(self.kernels.shape[-1])

    def weight(self) -> torch.Tensor:
        """Returns [3 * filters, 3, size, size] fp16: every filter on every colour by itself."""
        count = len(self.names)
        weight = np.zeros((count, 3, 3, self.size, self.size), np.float32)
        for colour in range(3):
            weight[:, colour, colour] = self.kernels
        dense = torch.from_numpy(weight.reshape(3 * count, 3, self.size, self.size))
        return dense.half().contiguous(memory_format=torch.channels_last)


def banks() -> tuple[Bank, Bank]:
    """Returns the 3x3 and the 5x5 filters."""
    pair = []
    for filters in (_SMALL, _large()):
        pair.append(Bank(tuple(filters), np.array(list(filters.values()), np.float32)))
    return pair[0], pair[1]


@dataclass(frozen=True, slots=True)
class Job:
    """A bank at a stride, in bands of output rows so that progress can be shown.

    Attributes:
        bank: Index into :func:`banks`.
        stride: 1 or 2.
    """

    bank: int
    stride: int

    @property
    def name(self) -> str:
        """As printed."""
        size = banks()[self.bank].size
        return f"{size}x{size}, stride {self.stride}"

    def bands(self, height: int, rows: int) -> Iterator[tuple[slice, tuple[int, int]]]:
        """Yields the input rows of each band and how much zero padding is above and below them."""
        size = banks()[self.bank].size
        pad = size // 2
        total = (height + 2 * pad - size) // self.stride + 1
        for first in range(0, total, rows):
            last = min(first + rows, total) - 1
            top, bottom = first * self.stride - pad, last * self.stride - pad + size
            yield slice(max(top, 0), min(bottom, height)), (max(-top, 0), max(bottom - height, 0))


def jobs() -> tuple[Job, ...]:
    """Returns the four jobs of the demo."""
    return tuple(Job(bank, stride) for bank in (0, 1) for stride in (1, 2))


def photograph() -> torch.Tensor:
    """Returns the photograph: [1, 3, H, W] fp16 in 0..1, channels-last.

    Grace Hopper, photographed by James S. Davis; public domain; a part of matplotlib.
    Every 2x2 pixels are averaged, because the interpreter is slow.
    """
    from matplotlib import cbook, image

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        pixels = image.imread(file, format="jpg").astype(np.float32) / 255
    height, width = pixels.shape[0] // 2 * 2, pixels.shape[1] // 2 * 2
    small = pixels[:height, :width].reshape(height // 2, 2, width // 2, 2, 3).mean(axis=(1, 3))
    picture = torch.from_numpy(small).permute(2, 0, 1)[None].half()
    return picture.contiguous(memory_format=torch.channels_last)
