"""Convolutions of examples/gluon/hopper on a GPU, against cuDNN.

Tolerance: the largest and the mean error against an fp32 reference (cuDNN, TF32 off) are at most
twice torch's own in the same dtype, plus 1/8 of the dtype's epsilon relative to the largest and the
mean absolute value of the reference.

Outputs are written into memory that was filled with NaN before, and every case runs twice for
identical bits.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
import sys
from dataclasses import dataclass

import pytest
from triton_ext.host import capabilities

torch = pytest.importorskip("torch", reason="the examples' launchers need torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0 (WGMMA)", allow_module_level=True)

# The examples are not installed; they are imported from the root of the checkout.  E402: hosts
# without im2col cannot import them.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from examples.gluon.hopper import dgrad, fprop  # noqa: E402
from examples.gluon.hopper.tiles import TileConfig, keep_filter  # noqa: E402

pytestmark = pytest.mark.gpu

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

    def ours(
        self, x: torch.Tensor, w: torch.Tensor, config: TileConfig | None = None
    ) -> torch.Tensor:
        """What the example gives, into poisoned memory."""
        poison(self.m_gemm * self.co)
        return fprop.conv_fprop(x, w, self.stride, self.padding, self.dilation, config=config)


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


def check(case: Case, config: TileConfig | None = None) -> None:
    """Compares a result with cuDNN within the tolerance above, and a second run with the first."""
    x, w = case.tensors()
    y = case.ours(x, w, config)
    reference = case.torch(x.float(), w.float())
    assert y.shape == reference.shape
    assert torch.isfinite(y).all(), "part of the output was not written, or is not finite"
    scale = errors(torch.zeros_like(reference), reference)
    torchs = errors(case.torch(x, w), reference)
    for what, found, other, size in zip(
        ("largest", "mean"), errors(y, reference), torchs, scale, strict=True
    ):
        allowed = 2 * other + torch.finfo(x.dtype).eps / 8 * size
        assert found <= allowed, f"{what} error {found}, allowed {allowed}, torch's {other}"
    for _ in range(3):
        assert torch.equal(case.ours(x, w, config).view(torch.int16), y.view(torch.int16))


@pytest.fixture(scope="module", autouse=True)
def cudnn_in_full_precision():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_the_cases_cover_what_they_are_meant_to():
    assert len(set(RANDOM_CASES)) == CASES
    assert {len(case.size) for case in RANDOM_CASES} == {1, 2, 3}
    assert {case.dtype for case in RANDOM_CASES} == {"float16", "bfloat16"}
    assert {s for case in RANDOM_CASES for s in case.stride} == {1, 2, 3}
    assert {d for case in RANDOM_CASES for d in case.dilation} == {1, 2, 3}
    assert sum(case.ci % 64 != 0 for case in RANDOM_CASES) >= 10
    assert sum(case.co % 64 != 0 for case in RANDOM_CASES) >= 10
    assert sum(any(low != high for low, high in case.padding) for case in RANDOM_CASES) >= 20


@pytest.mark.parametrize("case", RANDOM_CASES, ids=str)
def test_random_geometry(case):
    check(case)


@pytest.mark.parametrize("case", [TAILS, MANY_TILES], ids=str)
@pytest.mark.parametrize("config", fprop.CONFIGS, ids=str)
def test_every_configuration(config, case):
    check(case, config)


@pytest.mark.parametrize("base", fprop.KEEPING_CONFIGS, ids=str)
def test_a_filter_that_stays(base):
    kept = keep_filter(base, 9)
    if kept is None:
        pytest.skip("the filter does not fit")
    check(MANY_TILES, kept)


def test_infinite_weights_stay_in_their_output_channel():
    # Ci = 72 ends inside a block of channels.  Were the filter read as rows of R * S * Ci, the tail
    # of the last tap of channel 4 would be the first tap of channel 5, times zeros: NaN.
    x, w = TAILS.tensors()
    w[5] = float("inf")
    y = TAILS.ours(x, w)
    assert not torch.isfinite(y[..., 5]).any()
    assert torch.isfinite(y[..., :5]).all()
    assert torch.isfinite(y[..., 6:]).all()


# ---- dgrad -------------------------------------------------------------------------------------


def torch_dgrad(case: Case, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What torch gives, channels last."""
    gradient = {1: torch.nn.grad.conv1d_input, 2: torch.nn.grad.conv2d_input}.get(
        len(case.size), torch.nn.grad.conv3d_input
    )
    low = [pair[0] for pair in case.padding]
    shape = (case.n, case.ci, *case.size)
    dx = gradient(shape, w.movedim(-1, 1), dy.movedim(-1, 1), case.stride, low, case.dilation)
    return dx.movedim(1, -1)


def check_dgrad(case: Case, config: TileConfig | None = None) -> None:
    """As :func:`check`, for the gradient of the input."""
    _, w = case.tensors()
    generator = torch.Generator("cuda").manual_seed(SEED + 1)
    dy = torch.randn(case.n, *case.output_size, case.co, generator=generator, device="cuda")
    dy = dy.to(w.dtype)
    low = tuple(pair[0] for pair in case.padding)

    def ours() -> torch.Tensor:
        poison(case.n * math.prod(case.size) * case.ci)
        return dgrad.conv_dgrad(dy, w, case.size, case.stride, low, case.dilation, config=config)

    dx = ours()
    reference = torch_dgrad(case, dy.float(), w.float())
    assert dx.shape == reference.shape
    assert torch.isfinite(dx).all(), "part of the output was not written, or is not finite"
    scale = errors(torch.zeros_like(reference), reference)
    torchs = errors(torch_dgrad(case, dy, w), reference)
    for what, found, other, size in zip(
        ("largest", "mean"), errors(dx, reference), torchs, scale, strict=True
    ):
        allowed = 2 * other + torch.finfo(dx.dtype).eps / 8 * size
        assert found <= allowed, f"{what} error {found}, allowed {allowed}, torch's {other}"
    for _ in range(3):
        assert torch.equal(ours().view(torch.int16), dx.view(torch.int16))


def symmetric(case: Case) -> Case | None:
    """The case with the lower padding on both sides, which torch can do; None without output."""
    padding = tuple((low, low) for low, _ in case.padding)
    changed = dataclasses.replace(case, padding=padding)
    return changed if changed.affordable else None


DGRAD_CASES = [c for c in map(symmetric, RANDOM_CASES) if c is not None]
# Three of four residue classes have no tap: a 1x1 filter with stride 2.
EMPTY_CLASSES = Case(
    n=5,
    size=(23, 18),
    ci=136,
    co=72,
    filter_size=(1, 1),
    stride=(2, 2),
    padding=((0, 0), (0, 0)),
    dilation=(1, 1),
)
# Stride and dilation have a common divisor: whole residues are never reached.
COMMON_DIVISOR = Case(
    n=3,
    size=(29, 31),
    ci=64,
    co=64,
    filter_size=(3, 4),
    stride=(2, 4),
    padding=((2, 2), (3, 3)),
    dilation=(2, 2),
)
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


@pytest.mark.parametrize("case", DGRAD_CASES, ids=str)
def test_dgrad_of_random_geometry(case):
    check_dgrad(case)


@pytest.mark.parametrize("case", [EMPTY_CLASSES, COMMON_DIVISOR, STRIDED], ids=str)
def test_dgrad_of_residue_classes(case):
    check_dgrad(case)


@pytest.mark.parametrize("case", [TAILS, MANY_TILES, STRIDED], ids=str)
@pytest.mark.parametrize("config", fprop.CONFIGS, ids=str)
def test_dgrad_with_every_configuration(config, case):
    check_dgrad(case, config)


@pytest.mark.parametrize("base", fprop.KEEPING_CONFIGS, ids=str)
def test_dgrad_with_a_filter_that_stays(base):
    # 40 x 40 pixels, 64 images; with Co = 64 the reduction has 9 steps.
    case = dataclasses.replace(MANY_TILES, ci=128, co=64)
    kept = keep_filter(base, 9)
    if kept is None:
        pytest.skip("the filter does not fit")
    check_dgrad(case, kept)
