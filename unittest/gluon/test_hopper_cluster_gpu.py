"""Forward convolutions in clusters of two CTAs on a GPU: the same bits as without clusters.

A CTA of a cluster multiplies the same blocks in the same order as one that is alone, so nothing is
allowed to differ.  Outputs are written into memory that was filled with NaN before.
"""

from __future__ import annotations

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

from hopper_cases import MANY_TILES, RANDOM_CASES, TAILS, Case, poison  # noqa: E402
from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.ops.families.gluon_config import CONFIGS, TileConfig  # noqa: E402

from examples.gluon.hopper import fprop, fprop_cluster  # noqa: E402

pytestmark = pytest.mark.gpu

try:
    fprop_cluster.check_host()
except UnsupportedError as error:
    pytest.skip(str(error), allow_module_level=True)

# A 1x1 filter, whose pixels are rows of a matrix: a tiled load that the CTAs split.
PLAIN = Case(
    n=3,
    size=(19, 21),
    ci=136,
    co=72,
    filter_size=(1, 1),
    stride=(1, 1),
    padding=((0, 0), (0, 0)),
    dilation=(1, 1),
)
# One image, fewer pixels than a CTA's tile: CTA 1 has none.
ONE_CTA = Case(
    n=1,
    size=(5, 6),
    ci=64,
    co=64,
    filter_size=(3, 3),
    stride=(1, 1),
    padding=((1, 1), (1, 1)),
    dilation=(1, 1),
)
RUNS = 4


def convolve(case: Case, x: torch.Tensor, w: torch.Tensor, config: TileConfig) -> torch.Tensor:
    """The example's result, in poisoned memory."""
    poison(case.m_gemm * case.co)
    y = fprop.conv_fprop(x, w, case.stride, case.padding, case.dilation, config=config)
    return y.view(torch.int16)


def check(case: Case, config: TileConfig) -> None:
    """Compares runs in clusters, and in between, with one without."""
    x, w = case.tensors()
    expected = convolve(case, x, w, config)
    for _ in range(RUNS):
        found = convolve(case, x, w, fprop_cluster.in_cluster(config))
        wrong = int((found != expected).sum())
        assert wrong == 0, f"{wrong} of {expected.numel()} elements differ"


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_configuration(config: TileConfig) -> None:
    check(TAILS, config)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[3], CONFIGS[5]], ids=str)
def test_clusters_that_compute_many_tiles(config: TileConfig) -> None:
    check(MANY_TILES, config)


@pytest.mark.parametrize("case", [PLAIN, ONE_CTA], ids=str)
@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[6]], ids=str)
def test_special_cases(case: Case, config: TileConfig) -> None:
    check(case, config)


@pytest.mark.parametrize(("index", "case"), enumerate(RANDOM_CASES[:10]), ids=str)
def test_random_geometry(index: int, case: Case) -> None:
    check(case, CONFIGS[index % len(CONFIGS)])
