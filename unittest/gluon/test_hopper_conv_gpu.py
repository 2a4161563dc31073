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
import sys

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

from hopper_cases import (  # noqa: E402
    CASES,
    MANY_TILES,
    RANDOM_CASES,
    SEED,
    STRIDED,
    SYMMETRIC_CASES,
    TAILS,
    Case,
    assert_close,
    poison,
)
from triton_ext.ops.families.gluon_config import COSTS, TileConfig, keep_filter  # noqa: E402

from examples.gluon.hopper import dgrad, fprop  # noqa: E402

pytestmark = pytest.mark.gpu


def ours(case: Case, x: torch.Tensor, w: torch.Tensor, config: TileConfig | None) -> torch.Tensor:
    """What the example gives, into poisoned memory."""
    poison(case.m_gemm * case.co)
    return fprop.conv_fprop(x, w, case.stride, case.padding, case.dilation, config=config)


def check(case: Case, config: TileConfig | None = None) -> None:
    """Compares a result with cuDNN within the tolerance above, and more runs with the first."""
    x, w = case.tensors()
    y = ours(case, x, w, config)
    assert_close(y, case.torch(x, w), case.torch(x.float(), w.float()))
    for _ in range(3):
        assert torch.equal(ours(case, x, w, config).view(torch.int16), y.view(torch.int16))


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


@pytest.mark.parametrize("base", COSTS["kept"], ids=str)
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
    y = ours(TAILS, x, w, None)
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
    assert_close(dx, torch_dgrad(case, dy, w), torch_dgrad(case, dy.float(), w.float()))
    for _ in range(3):
        assert torch.equal(ours().view(torch.int16), dx.view(torch.int16))


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


@pytest.mark.parametrize("case", SYMMETRIC_CASES, ids=str)
def test_dgrad_of_random_geometry(case):
    check_dgrad(case)


@pytest.mark.parametrize("case", [EMPTY_CLASSES, COMMON_DIVISOR, STRIDED], ids=str)
def test_dgrad_of_residue_classes(case):
    check_dgrad(case)


@pytest.mark.parametrize("case", [TAILS, MANY_TILES, STRIDED], ids=str)
@pytest.mark.parametrize("config", fprop.CONFIGS, ids=str)
def test_dgrad_with_every_configuration(config, case):
    check_dgrad(case, config)


@pytest.mark.parametrize("base", COSTS["kept"], ids=str)
def test_dgrad_with_a_filter_that_stays(base):
    # 40 x 40 pixels, 64 images; with Co = 64 the reduction has 9 steps.
    case = dataclasses.replace(MANY_TILES, ci=128, co=64)
    kept = keep_filter(base, 9)
    if kept is None:
        pytest.skip("the filter does not fit")
    check_dgrad(case, kept)
