"""Convolutions that the emulator's tests run on the CPU, and how they are compared with torch."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

__all__ = ["Case", "assert_close", "draw"]

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution; tuples are per spatial dimension, padding is on both sides."""

    n: int
    size: tuple[int, ...]
    ci: int
    co: int
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str = "float16"

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output pixels per dimension; not positive where the filter does not fit."""
        return tuple(
            (size + 2 * pad - (taps - 1) * dilation - 1) // stride + 1
            for size, pad, taps, dilation, stride in zip(
                self.size, self.padding, self.filter_size, self.dilation, self.stride, strict=True
            )
        )

    @property
    def m_gemm(self) -> int:
        """Output pixels."""
        return self.n * math.prod(self.output_size)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [N, (D, (H,)) W, Ci], w [Co, (T, (R,)) S, Ci] and dy, standard normal."""
        generator = torch.Generator().manual_seed(7)

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator).to(getattr(torch, self.dtype))

        x, w = normal(self.n, *self.size, self.ci), normal(self.co, *self.filter_size, self.ci)
        return x, w, normal(self.n, *self.output_size, self.co)

    def fprop(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """What torch gives in float64, channels last."""
        conv = CONV[len(self.size)]
        arguments = x.double().movedim(-1, 1), w.double().movedim(-1, 1)
        y = conv(*arguments, None, self.stride, self.padding, self.dilation)
        return y.movedim(1, -1)

    def gradients(
        self, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """dx and dw in float64, channels last."""
        x, w = x.double().requires_grad_(), w.double().requires_grad_()
        return torch.autograd.grad(self.fprop(x, w), (x, w), dy.double())


def draw(rng: random.Random, rank: int, most_flops: float = 3e8) -> Case:
    """Draws a case that the emulator runs in a fraction of a second."""
    longest = {1: 200, 2: 14, 3: 6}[rank]
    while True:

        def numbers(low: int, high: int) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(rank))

        case = Case(
            n=rng.choice((1, 2, 3, 5)),
            size=numbers(1, longest),
            ci=8 * rng.randint(1, 20),
            co=8 * rng.randint(1, 20),
            filter_size=numbers(1, 3),
            stride=numbers(1, 3),
            padding=numbers(0, 2),
            dilation=numbers(1, 2),
            dtype=rng.choice(("float16", "bfloat16")),
        )
        flops = 2 * case.m_gemm * case.co * case.ci * math.prod(case.filter_size)
        if min(case.output_size) >= 1 and flops <= most_flops:
            return case


def assert_close(found: torch.Tensor, reference: torch.Tensor) -> None:
    """Compares with a float64 reference: half a unit in the last place, and sums in float32."""
    assert found.shape == reference.shape
    assert torch.isfinite(found).all(), "part of the result was not written, or is poison"
    eps = torch.finfo(found.dtype).eps
    error = (found.double() - reference).abs()
    allowed = reference.abs() * eps / 2 + reference.abs().mean() * 1e-4
    assert (error <= allowed).all(), f"{(error - allowed).max()} too much"
