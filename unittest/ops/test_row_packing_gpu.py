"""Row packing on a GPU: random geometries of every dtype, stems, and what lies beside a window."""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from fprop_cases import ACTIVATIONS, check, convolve
from gpu_comparison import MARKS, NIGHTLY, bits, compile_ahead, skip_without_gpu, twice
from packing_cases import PackedCase, dgrad_plan_of, draw, draw_problem, finite_where_torch_is
from planned import plan_wgrad
from problem_cases import channels_last, problem_of
from triton_ext.ops import conv2d
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.gluon_config import ping_pong
from triton_ext.ops.families.wgrad import PackedWgradPlan

skip_without_gpu()
pytestmark = MARKS

CASES = [(dtype, number) for number in range(500 if NIGHTLY else 16) for dtype in DTYPES["fprop"]]


def drawn(dtype: torch.dtype, number: int) -> PackedCase:
    """The same case at every call and on every machine."""
    rng = random.Random(f"{dtype} {number}")
    return draw(rng, (dtype,), activations=tuple(ACTIVATIONS), pixels=30, fp8_out=True)


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, len(CASES), timeout_s=900 if NIGHTLY else 60)


@pytest.mark.parametrize(("dtype", "number"), CASES, ids=str)
def test_random_geometry(dtype, number):
    case = drawn(dtype, number)
    first = check(case, "cuda")
    # The second launch goes around Triton's front door.
    second = check(case, "cuda")
    assert torch.equal(bits(first), bits(second))


def gradients(problem, x, weight, dy):
    """torch's dx and dw; all padding is done in front, because torch knows equal sides only."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    return torch.autograd.grad(convolve(problem, x, weight), (x, weight), dy)


def check_gradient(found, problem, tensors, index):
    """Compares dx (0) or dw (1) with torch's in fp64; twice torch's own error is allowed."""
    exact = gradients(problem, *(t.double() for t in tensors))[index]
    torchs = gradients(problem, *tensors)[index]
    assert found.isfinite().all()
    error, torch_error = ((t.double() - exact).abs().max().item() for t in (found, torchs))
    allowed = 2 * torch_error + torch.finfo(found.dtype).eps / 2 * exact.abs().max().item()
    assert error <= allowed, f"{error}, torch's {torch_error}: {problem}"


def draw_gradient(number: int, stride: bool) -> tuple[ConvProblem, list[torch.Tensor]]:
    rng = random.Random(number)
    while True:
        problem = draw_problem(rng, pixels=30)
        if not stride:
            problem = replace(problem, stride=(1,) * problem.dims)
            channels = (problem.out_channels, problem.in_channels)
            problem = replace(problem, in_channels=channels[0], out_channels=channels[1])
        if 0 not in problem.output_size:
            break
    dtype = rng.choice((torch.float16, torch.bfloat16))
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    return problem, [channels_last(shape, dtype, seed, "cuda") for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("number", range(300 if NIGHTLY else 16))
def test_gradients_of_filters(number):
    problem, (x, weight, dy) = draw_gradient(number, stride=True)
    way = RowPacking.ways(problem, x.stride(), x.itemsize)[-(number % 2)]
    common = (problem, x.stride(), dy.stride(), x.dtype, x.device)
    plan = plan_wgrad(*common, pack_rows=way)
    assert isinstance(plan, PackedWgradPlan)
    dw = twice(lambda: plan.run(x, dy))
    check_gradient(dw, problem, (x, weight, dy), 1)


@pytest.mark.parametrize("number", range(300 if NIGHTLY else 16))
def test_gradients_of_inputs(number):
    problem, (x, weight, dy) = draw_gradient(number, stride=False)
    way = RowPacking.ways(as_forward(problem), dy.stride(), dy.itemsize)[-(number % 2)]
    plan = dgrad_plan_of(problem, dy, way)
    dx = twice(lambda: plan.run(dy, weight))
    check_gradient(dx, problem, (x, weight, dy), 0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 12))
def test_a_window_sees_its_own_pixels_only(number, bad):
    rng = random.Random(number)
    case = PackedCase(
        problem=draw_problem(rng, pixels=12),
        dtype=rng.choice((torch.float16, torch.bfloat16)),
        spec=EpilogueSpec(out_dtype=torch.float32),
        columns=number % 2 == 1,
    )
    finite_where_torch_is(case, bad, "cuda", rng)


STEMS = {
    "resnet": problem_of(n=4, ci=3, co=64, size=(224, 224), taps=(7, 7), stride=2, padding=3),
    "convnext": problem_of(n=4, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4),
    "unet": problem_of(n=2, ci=4, co=320, size=(64, 64), taps=(3, 3), padding=1),
    "audio": problem_of(n=4, ci=1, co=512, size=(16000,), taps=(10,), stride=5),
    "video": problem_of(
        ci=3, co=64, size=(9, 112, 112), taps=(3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", STEMS)
@pytest.mark.parametrize("columns", [False, True])
def test_stems(name, dtype, columns):
    spec = EpilogueSpec(bias=True)
    check(PackedCase(problem=STEMS[name], dtype=dtype, spec=spec, columns=columns), "cuda")


KERNELS = [
    None,
    ConvConfig(block_m=128, block_n=64, block_k=32, num_stages=5, num_warps=4),
    ping_pong(64, 64, 4, block_k=32),
]


@pytest.mark.parametrize("config", KERNELS, ids=str)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("beside", [torch.nan, torch.inf])
def test_what_lies_behind_the_last_tap_is_not_read(beside, batch, config, columns):
    # Windows of 28 channels, 56 bytes: their last 16 bytes hold the first pixel of the next ones.
    problem = problem_of(n=batch, ci=4, co=64, size=(40, 40), taps=(7, 7), stride=2)
    case = PackedCase(problem=problem, dtype=torch.float16, columns=columns)
    x, weight, _ = case.tensors("cuda")
    x[..., 7] = beside
    y = case.plan(x, config).run(x, weight)
    # The windows of column 0 end in front of pixel 7; those of columns 4 and up begin behind it.
    seen = ~y.isfinite().all(dim=(0, 1, 2))
    assert seen.tolist() == [0 < out_w < 4 for out_w in range(y.shape[-1])]


def test_a_graph_of_a_stem_replays():
    x, weight, _ = PackedCase(problem=STEMS["resnet"], dtype=torch.float16).tensors("cuda")
    with torch.no_grad():
        conv2d(x, weight, stride=2, padding=3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = conv2d(x, weight, stride=2, padding=3)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, conv2d(x, weight, stride=2, padding=3))


def warm(index: int, count: int) -> None:
    """Runs a share of the cases, for Triton's cache."""
    for dtype, number in CASES[index::count]:
        case = drawn(dtype, number)
        x, weight, operands = case.tensors("cuda")
        with contextlib.suppress(Exception):
            case.plan(x).run(x, weight, operands)


if __name__ == "__main__":
    warm(int(sys.argv[1]), int(sys.argv[2]))
