"""wgrad of examples/gluon/hopper on a GPU, against cuDNN; tolerance as in hopper_cases.

dw and the workspace are memory that was filled with NaN before, and every case runs four times for
identical bits.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import pytest
from triton_ext.errors import DescriptorError, LaunchError
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
    MANY_TILES,
    RANDOM_CASES,
    SEED,
    STRIDED,
    TAILS,
    Case,
    assert_close,
    poison,
)
from triton_ext.ops.families.gluon_wgrad import CONFIGS, WgradTileConfig  # noqa: E402

from examples.gluon.hopper import wgrad  # noqa: E402

pytestmark = pytest.mark.gpu

# 1x1 without padding: x is a matrix.
POINTWISE = dataclasses.replace(
    TAILS, filter_size=(1, 1), padding=((0, 0), (0, 0)), dtype="bfloat16"
)
# More tiles than multiprocessors, of which some are left after the last round.
ROUNDS = dataclasses.replace(TAILS, ci=584, co=1096, dtype="bfloat16")
SHARED_ROWS = WgradTileConfig(
    share="rows", main_blocks=4, rest_blocks=1, rest_consumers=1, pixels=32, stages=5
)


@pytest.fixture(scope="module", autouse=True)
def cudnn_in_full_precision():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def operands(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """x [N, (D, (H,)) W, Ci] and dy [N, (out_d, (out_h,)) out_w, Co], standard normal."""
    x, _ = case.tensors()
    generator = torch.Generator("cuda").manual_seed(SEED + 2)
    dy = torch.randn(case.n, *case.output_size, case.co, generator=generator, device="cuda")
    return x, dy.to(x.dtype)


def torch_wgrad(case: Case, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """What torch gives, channels last; it knows equal sides only, so x is padded in front."""
    rank = len(case.size)
    sides = [side for pair in reversed(case.padding) for side in pair]
    padded = torch.nn.functional.pad(x.movedim(-1, 1), sides)
    w = torch.empty(case.co, case.ci, *case.filter_size, dtype=x.dtype, device=x.device)
    gradients = torch.ops.aten.convolution_backward(
        dy.movedim(-1, 1), padded, w, None, case.stride, [0] * rank, case.dilation, False,
        [0] * rank, 1, [False, True, False],
    )  # fmt: skip
    return gradients[1].movedim(1, -1)


def check(case: Case, config: WgradTileConfig | None = None, *, add_in_place: bool = False) -> None:
    """Compares a result with cuDNN within the tolerance, and more runs with the first."""
    x, dy = operands(case)

    def ours() -> torch.Tensor:
        # The workspace has up to 132 tiles of 4-byte elements.
        poison(1 << 24)
        poison(case.co * case.ci)
        return wgrad.conv_wgrad(
            x, dy, case.filter_size, case.stride, case.padding, case.dilation,
            config=config, add_in_place=add_in_place,
        )  # fmt: skip

    dw = ours()
    assert_close(dw, torch_wgrad(case, x, dy), torch_wgrad(case, x.float(), dy.float()))
    for _ in range(3):
        assert torch.equal(ours().view(torch.int16), dw.view(torch.int16))


@pytest.mark.parametrize("case", RANDOM_CASES, ids=str)
def test_random_geometry(case):
    check(case)


@pytest.mark.parametrize("add_in_place", [False, True], ids=["second kernel", "in place"])
@pytest.mark.parametrize("case", [TAILS, MANY_TILES, STRIDED, POINTWISE, ROUNDS], ids=str)
@pytest.mark.parametrize("config", [*CONFIGS, SHARED_ROWS], ids=str)
def test_every_configuration(config, case, add_in_place):
    if config.share == "tile" and (add_in_place or case is ROUNDS):
        with pytest.raises(LaunchError, match="share a tile"):
            check(case, config, add_in_place=add_in_place)
    else:
        check(case, config, add_in_place=add_in_place)


def test_two_streams_do_not_share_flags():
    x, dy = operands(STRIDED)
    config = CONFIGS[0]

    def ours() -> torch.Tensor:
        return wgrad.conv_wgrad(
            x, dy, (3, 3), STRIDED.stride, STRIDED.padding, config=config, add_in_place=True
        )

    expected = ours()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(ours())
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


def test_in_a_graph():
    x, dy = operands(STRIDED)

    def ours() -> torch.Tensor:
        return wgrad.conv_wgrad(
            x, dy, (3, 3), STRIDED.stride, STRIDED.padding, config=CONFIGS[0], add_in_place=True
        )

    expected = ours()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ours()
    for _ in range(5):
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, expected)


def test_a_gradient_of_another_size_is_refused():
    x, dy = operands(STRIDED)
    with pytest.raises(DescriptorError, match=r"dy has \(28, 28\) pixels, expected \(56, 56\)"):
        wgrad.conv_wgrad(x, dy, (3, 3), 1, 1)
