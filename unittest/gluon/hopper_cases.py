"""Convolutions on which the kernels of examples/gluon/hopper are compared with torch on a GPU."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass

import torch

__all__ = [
    "CASES",
    "MANY_TILES",
    "RANDOM_CASES",
    "SEED",
    "STRIDED",
    "SYMMETRIC_CASES",
    "TAILS",
    "Case",
    "assert_close",
    "errors",
    "poison",
    "symmetric",
]

SEED = 2026
CASES = 40
MAX_ELEMENTS = 1 << 22
MAX_FLOPS = 20e9
CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution; tuples are per spatial dimension, padding is (low, high) pairs."""

    n: int
    size: tuple[int, ...]
    ci: int
    co: int
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    dtype: str = "float16"

    def __str__(self) -> str:
        def join(values: tuple[int, ...]) -> str:
            return ".".join(map(str, values))

        pads = join(tuple(side for pair in self.padding for side in pair))
        return (
            f"{self.n}x{join(self.size)}x{self.ci}-{self.co}-f{join(self.filter_size)}"
            f"-s{join(self.stride)}-d{join(self.dilation)}-p{pads}-{self.dtype}"
        )

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output pixels per dimension; not positive where the filter does not fit."""
        return tuple(
            (size + low + high - (taps - 1) * dilation - 1) // stride + 1
            for size, (low, high), taps, dilation, stride in zip(
                self.size, self.padding, self.filter_size, self.dilation, self.stride, strict=True
            )
        )

    @property
    def m_gemm(self) -> int:
        return self.n * math.prod(self.output_size)

    @property
    def affordable(self) -> bool:
        """Whether there is an output, and the case is small enough for a test."""
        if min(self.output_size) < 1:
            return False
        taps = math.prod(self.filter_size)
        largest = max(self.n * math.prod(self.size) * self.ci, self.m_gemm * self.co)
        return largest <= MAX_ELEMENTS and 2 * self.m_gemm * self.co * taps * self.ci <= MAX_FLOPS

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, (D, (H,)) W, Ci] and w [Co, (T, (R,)) S, Ci], standard normal."""
        generator = torch.Generator("cuda").manual_seed(SEED)

        def normal(*sizes: int) -> torch.Tensor:
            numbers = torch.randn(*sizes, generator=generator, device="cuda")
            return numbers.to(getattr(torch, self.dtype))

        return normal(self.n, *self.size, self.ci), normal(self.co, *self.filter_size, self.ci)

    def torch(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """What torch gives, channels last; it knows equal sides only, so x is padded in front."""
        sides = [side for pair in reversed(self.padding) for side in pair]
        padded = torch.nn.functional.pad(x.movedim(-1, 1), sides)
        conv = CONV[len(self.size)]
        return conv(padded, w.movedim(-1, 1), None, self.stride, 0, self.dilation).movedim(1, -1)


def draw(rng: random.Random) -> Case:
    """Draws one affordable case."""
    while True:
        rank = rng.choice((1, 2, 2, 2, 3))
        longest = {1: 400, 2: 40, 3: 14}[rank]

        def numbers(low: int, high: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(rank))

        case = Case(
            n=rng.choice((1, 1, 2, 3, 5, 8, 13, 32, 64)),
            size=numbers(1, longest),
            ci=8 * round(2 ** rng.uniform(0, 6)),
            co=8 * round(2 ** rng.uniform(0, 6)),
            filter_size=numbers(1, 4),
            stride=numbers(1, 3),
            padding=tuple(zip(numbers(0, 3), numbers(0, 3), strict=True)),
            dilation=numbers(1, 3),
            dtype=rng.choice(("float16", "bfloat16")),
        )
        if case.affordable:
            return case


def draw_all() -> list[Case]:
    """The same cases at every call and on every machine."""
    rng = random.Random(SEED)
    return [draw(rng) for _ in range(CASES)]


RANDOM_CASES = draw_all()

# Tails in every dimension of every tile: 1197 rows, 72 input and 328 output channels.
TAILS = Case(
    n=3,
    size=(19, 21),
    ci=72,
    co=328,
    filter_size=(3, 3),
    stride=(1, 1),
    padding=((1, 1), (1, 1)),
    dilation=(1, 1),
)
# Enough tiles that every CTA computes several, for the order of the consumers and the ring.
MANY_TILES = Case(
    n=64,
    size=(40, 40),
    ci=64,
    co=128,
    filter_size=(3, 3),
    stride=(1, 1),
    padding=((1, 1), (1, 1)),
    dilation=(1, 1),
    dtype="bfloat16",
)


def poison(elements: int) -> None:
    """Fills what the caching allocator will hand out next with NaN."""
    blocks = [
        torch.full((elements,), float("nan"), dtype=torch.float16, device="cuda") for _ in range(4)
    ]
    del blocks


def errors(y: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Largest and mean absolute error."""
    difference = (y.float() - reference).abs()
    return difference.max().item(), difference.mean().item()


def assert_close(result: torch.Tensor, torchs: torch.Tensor, reference: torch.Tensor) -> None:
    """Compares a result with an fp32 reference, within twice torch's own error plus a floor.

    The floor is 1/8 of the dtype's epsilon, of the largest and of the mean absolute value.
    """
    assert result.shape == reference.shape
    assert torch.isfinite(result).all(), "part of the output was not written, or is not finite"
    scale = errors(torch.zeros_like(reference), reference)
    for what, found, other, size in zip(
        ("largest", "mean"),
        errors(result, reference),
        errors(torchs, reference),
        scale,
        strict=True,
    ):
        allowed = 2 * other + torch.finfo(result.dtype).eps / 8 * size
        assert found <= allowed, f"{what} error {found}, allowed {allowed}, torch's {other}"


def symmetric(case: Case) -> Case | None:
    """The case with the lower padding on both sides, which torch can do; None without output."""
    padding = tuple((low, low) for low, _ in case.padding)
    changed = dataclasses.replace(case, padding=padding)
    return changed if changed.affordable else None


SYMMETRIC_CASES = [c for c in map(symmetric, RANDOM_CASES) if c is not None]
STRIDED = Case(
    n=16,
    size=(56, 56),
    ci=128,
    co=128,
    filter_size=(3, 3),
    stride=(2, 2),
    padding=((1, 1), (1, 1)),
    dilation=(1, 1),
    dtype="bfloat16",
)
