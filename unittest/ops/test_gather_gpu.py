"""Gathered few channels on a GPU: random geometries, stems, what is not finite, odd addresses."""

from __future__ import annotations

import contextlib
import random
import sys

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import family_plans
import torch
import triton_ext
from fprop_cases import ACTIVATIONS, Case, check, convolve
from gather_cases import DTYPES, draw, draw_config, draw_problem
from gpu_comparison import MARKS, NIGHTLY, bits, compile_ahead, skip_without_gpu
from problem_cases import channels_last, problem_of
from triton_ext.ops import conv2d
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.families.few_channels import FEW_CHANNELS, GatherConfig

skip_without_gpu()
pytestmark = MARKS

CASES = range(400 if NIGHTLY else 32)
CUDA = torch.device("cuda")
SMALL = GatherConfig(block_m=64, block_n=16, block_k=16, programs_per_sm=1)


def drawn(number: int) -> tuple[Case, GatherConfig | None]:
    """The same case at every call and on every machine."""
    rng = random.Random(number)
    return draw(rng, pixels=40, activations=tuple(ACTIVATIONS)), draw_config(rng)


def plan_of(problem, x, config=None, spec=PLAIN):
    return family_plans.plan_of(FEW_CHANNELS, problem, x, device_of(CUDA, "test"), config, spec)


def config_of(case, config):
    x, _, _ = case.tensors("cuda")
    return plan_of(case.problem, x, config, case.spec).config


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, len(CASES), timeout_s=900 if NIGHTLY else 60)


@pytest.mark.parametrize("number", CASES)
def test_random_geometry(number):
    case, config = drawn(number)
    config = config_of(case, config)
    first = check(case, "cuda", config)
    # The second launch goes around Triton's front door.
    second = check(case, "cuda", config)
    assert torch.equal(bits(first), bits(second))


STEMS = {
    "efficientnet": problem_of(n=8, ci=3, co=32, size=(224, 224), stride=2, padding=1),
    "vae": problem_of(ci=4, co=512, size=(64, 64), padding=1),
    "vae encoder": problem_of(ci=3, co=128, size=(256, 256), padding=1),
    "resnet": problem_of(n=4, ci=3, co=64, size=(224, 224), taps=(7, 7), stride=2, padding=3),
    "convnext": problem_of(n=4, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4),
    "patches": problem_of(n=4, ci=3, co=384, size=(224, 224), taps=(16, 16), stride=16),
    "audio": problem_of(n=4, ci=1, co=512, size=(16000,), taps=(10,), stride=5),
    "windows": problem_of(n=2, ci=1, co=80, size=(16000,), taps=(400,), stride=160),
    "video": problem_of(
        ci=3, co=64, size=(9, 112, 112), taps=(3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STEMS)
def test_stems(name, dtype):
    problem = STEMS[name]
    case = Case(problem=problem, dtype=dtype, spec=EpilogueSpec(bias=True))
    for config in family_plans.configs_of(FEW_CHANNELS, problem, dtype, device_of(CUDA, "test")):
        check(case, "cuda", config)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 12))
def test_what_is_not_finite_shows_where_torch_has_it(number, bad):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=12)
    shapes = (problem.x_shape, problem.w_shape)
    tensors = [channels_last(shape, torch.float16, i, "cuda") for i, shape in enumerate(shapes)]
    # Infinity times zero is NaN: the only zeros are those of the padding.
    x, weight = (torch.where(t == 0, torch.ones_like(t), t) for t in tensors)
    changed = (x, weight)[number % 2]
    changed[tuple(rng.randrange(extent) for extent in changed.shape)] = bad
    y = plan_of(problem, x, SMALL, EpilogueSpec(out_dtype=torch.float32)).run(x, weight)
    expected = convolve(problem, x.double().cpu(), weight.double().cpu())
    assert torch.equal(y.isnan().cpu(), expected.isnan())
    assert torch.equal(y.isfinite().cpu(), expected.isfinite())


@pytest.mark.parametrize("beside", [torch.nan, torch.inf])
def test_pixels_beside_a_window_are_not_read(beside):
    # Vectors of 4 elements, windows of 6 that begin at multiples of 12.
    problem = problem_of(ci=2, co=16, size=(4, 24), taps=(1, 3), stride=(1, 6))
    shapes = (problem.x_shape, problem.w_shape)
    x, weight = (channels_last(shape, torch.float16, 1, "cuda") for shape in shapes)
    x[..., 3] = beside
    plan = plan_of(problem, x)
    assert plan.launcher.constants["ROW"] > 6
    assert plan.run(x, weight).isfinite().all()


def test_an_odd_address_is_read():
    problem = STEMS["efficientnet"]
    x, weight = (
        channels_last(shape, torch.float16, 1, "cuda")
        for shape in (problem.x_shape, problem.w_shape)
    )
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    moved = memory[1:].as_strided(x.shape, x.stride()).copy_(x)
    plan = plan_of(problem, x)
    assert torch.equal(bits(plan.run(moved, weight)), bits(plan.run(x, weight)))


def test_a_graph_of_a_stem_replays():
    problem = STEMS["efficientnet"]
    x, weight = (
        channels_last(shape, torch.float16, 1, "cuda")
        for shape in (problem.x_shape, problem.w_shape)
    )
    with torch.no_grad():
        conv2d(x, weight, stride=2, padding=1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = conv2d(x, weight, stride=2, padding=1)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, conv2d(x, weight, stride=2, padding=1))


def warm(index: int, count: int) -> None:
    """Runs a share of the cases, for Triton's cache."""
    for number in CASES[index::count]:
        case, config = drawn(number)
        x, weight, operands = case.tensors("cuda")
        with contextlib.suppress(Exception):
            plan_of(case.problem, x, config, case.spec).run(x, weight, operands)


if __name__ == "__main__":
    warm(int(sys.argv[1]), int(sys.argv[2]))
