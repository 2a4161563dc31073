"""Convolution problems that are timed.  Pure arithmetic: no torch, no GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["FPROP_SHAPES", "ConvShape", "select_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """One 2-D convolution with equal stride in both directions and dilation 1.

    Attributes:
        n: Images.
        h: Rows of an image.
        w: Columns of an image.
        ci: Input channels.
        co: Output channels.
        r: Filter rows.
        s: Filter columns.
        stride: Step of the filter.
        padding: (h, w), the same on both sides.
    """

    n: int
    h: int
    w: int
    ci: int
    co: int
    r: int
    s: int
    stride: int
    padding: tuple[int, int]

    @classmethod
    def make(cls, *sizes: int) -> ConvShape:
        """Builds a shape from N, H, W, Ci, Co, R, S, stride; padded by half of the filter."""
        n, h, w, ci, co, r, s, stride = sizes
        padding = (r // 2, s // 2)
        return cls(n=n, h=h, w=w, ci=ci, co=co, r=r, s=s, stride=stride, padding=padding)

    @property
    def name(self) -> str:
        """``N,H,W,Ci,Co,R,S,stride``, which :func:`select_shapes` reads."""
        sizes = (self.n, self.h, self.w, self.ci, self.co, self.r, self.s, self.stride)
        return ",".join(map(str, sizes))

    def problem(self) -> Any:
        """The same in the package's terms."""
        from triton_ext.ops.core.problem import ConvProblem

        return ConvProblem(
            batch=self.n,
            in_channels=self.ci,
            out_channels=self.co,
            input_size=(self.h, self.w),
            filter_size=(self.r, self.s),
            stride=(self.stride,) * 2,
            padding=tuple((side, side) for side in self.padding),
            dilation=(1, 1),
        )

    @property
    def output_size(self) -> tuple[int, int]:
        """(out_h, out_w)."""
        pad_h, pad_w = self.padding
        return (
            (self.h + 2 * pad_h - self.r) // self.stride + 1,
            (self.w + 2 * pad_w - self.s) // self.stride + 1,
        )

    @property
    def m_gemm(self) -> int:
        """Output pixels of all images."""
        return self.n * math.prod(self.output_size)

    @property
    def k_gemm(self) -> int:
        """Reduction length."""
        return self.r * self.s * self.ci

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two; padding counts too."""
        return 2 * self.m_gemm * self.co * self.k_gemm


# ResNet-50 stages at batch 32 and 128, strided ones, diffusion U-Nets and VAEs, 1x1s, one 1-D.
FPROP_SHAPES: tuple[ConvShape, ...] = (
    ConvShape.make(32, 56, 56, 64, 64, 3, 3, 1),
    ConvShape.make(32, 28, 28, 128, 128, 3, 3, 1),
    ConvShape.make(32, 14, 14, 256, 256, 3, 3, 1),
    ConvShape.make(32, 7, 7, 512, 512, 3, 3, 1),
    ConvShape.make(128, 56, 56, 64, 64, 3, 3, 1),
    ConvShape.make(128, 28, 28, 128, 128, 3, 3, 1),
    ConvShape.make(128, 14, 14, 256, 256, 3, 3, 1),
    ConvShape.make(128, 7, 7, 512, 512, 3, 3, 1),
    ConvShape.make(32, 56, 56, 128, 128, 3, 3, 2),
    ConvShape.make(32, 28, 28, 256, 256, 3, 3, 2),
    ConvShape.make(8, 64, 64, 320, 320, 3, 3, 1),
    ConvShape.make(8, 32, 32, 640, 640, 3, 3, 1),
    ConvShape.make(8, 16, 16, 1280, 1280, 3, 3, 1),
    ConvShape.make(2, 128, 128, 320, 320, 3, 3, 1),
    ConvShape.make(1, 128, 128, 512, 512, 3, 3, 1),
    ConvShape.make(1, 256, 256, 256, 256, 3, 3, 1),
    ConvShape.make(1, 512, 512, 128, 128, 3, 3, 1),
    ConvShape.make(32, 56, 56, 256, 64, 1, 1, 1),
    ConvShape.make(32, 14, 14, 1024, 256, 1, 1, 1),
    ConvShape.make(64, 14, 14, 768, 3072, 1, 1, 1),
    ConvShape.make(3072, 1, 202, 128, 384, 1, 3, 1),
)


def select_shapes(words: list[str] | None) -> tuple[ConvShape, ...]:
    """Returns the shapes that the words name: an index into the table, or all eight sizes.

    Raises:
        ValueError: A word is neither; the text says what is expected.
    """
    if not words:
        return FPROP_SHAPES
    chosen = []
    for word in words:
        try:
            numbers = [int(part) for part in word.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) == 1 and 0 <= numbers[0] < len(FPROP_SHAPES):
            chosen.append(FPROP_SHAPES[numbers[0]])
        elif len(numbers) == 8 and min(numbers) > 0:
            chosen.append(ConvShape.make(*numbers))
        else:
            raise ValueError(
                f"shape {word!r}: expected an index 0..{len(FPROP_SHAPES) - 1} of the table or "
                "N,H,W,Ci,Co,R,S,stride"
            )
    return tuple(chosen)
