"""BatchNorm and GroupNorm on a GPU, against torch in float64 and beside torch in the same dtype."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from gpu_comparison import MARKS, bits, poison, skip_without_gpu
from norm_cases import NormCase, assert_close, expected_of, random_case, rows_of, run_ours
from recorded_graphs import recording
from torch.nn import functional
from triton_ext.ops import batch_norm, group_norm
from triton_ext.ops.norms.checks import IS_OPERATOR
from triton_ext.ops.norms.plan import NormPlan

skip_without_gpu()
pytestmark = MARKS

BF16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


def on_gpu(*arguments, **options) -> NormCase:
    return NormCase(*arguments, **options, device="cuda")


LARGE = {
    "resnet, first": on_gpu("batch", (16, 64, 112, 112), BF16, activation="relu"),
    "resnet, add": on_gpu("batch", (16, 256, 56, 56), BF16, activation="relu", residual=True),
    "resnet, last": on_gpu("batch", (64, 2048, 7, 7), HALF, activation="relu", residual=True),
    "mean far off": on_gpu("batch", (8, 96, 40, 40), FLOAT, mean=100.0, activation="gelu"),
    "evaluation": on_gpu("batch", (8, 320, 32, 32), BF16, activation="relu", training=False),
    "1-D": on_gpu("batch", (4, 24, 100_000), HALF, activation="silu"),
    "3-D": on_gpu("batch", (2, 40, 17, 33, 35), BF16, residual=True),
    "unet": on_gpu("group", (2, 320, 128, 128), BF16, groups=32, terms=BF16, activation="silu"),
    "unet, inner": on_gpu("group", (8, 640, 32, 32), HALF, groups=32, activation="silu"),
    "vae": on_gpu("group", (1, 128, 512, 512), BF16, groups=32, terms=BF16, activation="silu"),
    "vae, inner": on_gpu("group", (1, 512, 64, 64), FLOAT, groups=32, activation="silu"),
    "one group": on_gpu("group", (4, 96, 56, 56), BF16, groups=1, activation="gelu_tanh"),
    "instances": on_gpu("group", (4, 96, 56, 56), BF16, groups=96, activation="tanh"),
    "many images": on_gpu("group", (600, 64, 9, 9), HALF, groups=8, activation="relu"),
    "ragged": on_gpu("group", (3, 1001, 31, 29), BF16, groups=7, activation="silu"),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tensors(name):
    case = LARGE[name]
    # What is not written would be seen.
    poison(4 << 20)
    # fp32: another order of sums than float64's.  ReLU: what is 0 but for rounding is in the sums.
    tolerance = 5e-3 if case.activation == "relu" else 1e-4
    found, again = run_ours(case), run_ours(case)
    for key, tensor in found.items():
        assert torch.equal(bits(tensor), bits(again[key])), f"{key}: another run gave other bits"
    assert_close(found, expected_of(case), case, tolerance)


@pytest.mark.parametrize("kind", ["batch", "group"])
@pytest.mark.parametrize("seed", range(12))
def test_random_cases(kind, seed):
    case = random_case(kind, seed)
    case = NormCase(**{**case.__dict__, "device": "cuda"})
    assert_close(run_ours(case), expected_of(case), case)


def test_running_statistics_are_torchs():
    x = rows_of((16, 256, 28, 28), BF16, 0, "cuda") + 5
    ours = [torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")]
    theirs = [tensor.double() for tensor in ours]
    for _ in range(3):
        batch_norm(x, None, None, *ours, training=True, momentum=0.2)
        functional.batch_norm(x.double(), *theirs, training=True, momentum=0.2)
    for found, expected in zip(ours, theirs, strict=True):
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_autocast_is_torchs():
    x = rows_of((2, 320, 32, 32), BF16, 0, "cuda").requires_grad_()
    weight = torch.rand(320, device="cuda", requires_grad=True)
    dy = rows_of((2, 320, 32, 32), FLOAT, 1, "cuda")
    with torch.autocast("cuda", BF16):
        y = group_norm(x, 32, weight, activation="silu")
        expected = functional.silu(functional.group_norm(x, 32, weight))
    assert y.dtype == expected.dtype == FLOAT
    assert (y - expected).abs().max() < 1e-5
    ours, theirs = (torch.autograd.grad(out, (x, weight), dy) for out in (y, expected))
    for found, other in zip(ours, theirs, strict=True):
        assert found.dtype == other.dtype
        assert (found.float() - other.float()).abs().max() <= 8e-3 * other.abs().max()


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_a_graph_computes_again(kind):
    shape = (8, 256, 28, 28)
    x = rows_of(shape, BF16, 0, "cuda").requires_grad_()
    weight = torch.rand(256, device="cuda", requires_grad=True)
    dy = rows_of(shape, BF16, 1, "cuda")
    running = torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")

    def step():
        if kind == "group":
            y = group_norm(x, 32, weight, activation="silu")
        else:
            y = batch_norm(x, weight, None, *running, training=True, activation="relu")
        return (y, *torch.autograd.grad(y, (x, weight), dy))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        x.mul_(0.5).add_(1)
    before = running[0].clone()
    graph.replay()
    # Captured launches move the running statistics at each replay.
    assert torch.equal(before, running[0]) == (kind == "group")
    for found, expected in zip(recorded, step(), strict=True):
        assert torch.equal(bits(found.detach()), bits(expected.detach()))


# ---- Graphs of torch.compile --------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """Makes every norm of a graph ours; notes which kernels run, in graphs of CUDA at capture."""
    for kind in IS_OPERATOR:
        monkeypatch.setitem(IS_OPERATOR, kind, True)
    calls = []

    def noting(name):
        run = getattr(NormPlan, name)

        def noted(*arguments, **keywords):
            calls.append(name)
            return run(*arguments, **keywords)

        return noted

    for name in ("forward", "backward"):
        monkeypatch.setattr(NormPlan, name, noting(name))
    return calls


def normed(kind, x, weight, bias, mean, variance):
    if kind == "group":
        return group_norm(x * 1, 32, weight, bias, activation="silu")
    return batch_norm(
        x * 1, weight, bias, mean, variance, training=kind == "training", activation="relu",
        residual=x * 2,
    )  # fmt: skip


def step(function, kind, seed, x_dtype, running):
    inputs = rows_of((8, 256, 28, 28), x_dtype, seed, "cuda").requires_grad_()
    terms = [torch.full((256,), seed + 1.5, device="cuda", requires_grad=True) for _ in range(2)]
    y = function(kind, inputs, *terms, *running)
    found = torch.autograd.grad(y, (inputs, *terms), rows_of(y.shape, y.dtype, 9, "cuda"))
    return [bits(tensor.detach().clone()) for tensor in (y, *found, *running)]


@pytest.mark.parametrize("mode", ["recorded", "default", "reduce-overhead"])
@pytest.mark.parametrize("kind", ["group", "training", "evaluation"])
def test_compiled_functions_run_the_same_kernels(kind, mode, launched):
    """Bit for bit, running statistics too; ``reduce-overhead`` replays graphs of CUDA."""
    torch._dynamo.reset()
    calls = []
    how = {"backend": recording(calls)} if mode == "recorded" else {"mode": mode}
    compiled = torch.compile(normed, fullgraph=True, **how)
    running = [(torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")) for _ in range(2)]
    for seed in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        results = []
        for function, statistics in zip((normed, compiled), running, strict=True):
            launched.clear()
            results.append(step(function, kind, seed, BF16, statistics))
            if function is normed or seed == 0:
                assert set(launched) == {"forward", "backward"}
        for expected, found in zip(*results, strict=True):
            assert torch.equal(found, expected)
    if mode == "recorded":
        moments = ["batch_moments"] if kind == "training" else []
        assert calls == [*moments, "norm_forward", "norm_backward"]


def test_compiled_functions_under_autocast(launched):
    torch._dynamo.reset()

    def block(kind, *tensors):
        with torch.autocast("cuda", BF16):
            return normed(kind, *tensors)

    compiled = torch.compile(block, fullgraph=True)
    running = [torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")]
    expected = step(block, "group", 0, BF16, running)
    launched.clear()
    for found, other in zip(step(compiled, "group", 0, BF16, running), expected, strict=True):
        assert found.dtype == other.dtype
        assert torch.equal(found, other)
    assert "forward" in launched


def test_compiled_functions_without_gradients(launched):
    torch._dynamo.reset()
    compiled = torch.compile(normed, fullgraph=True, dynamic=True)
    for images in (2, 5):
        x = rows_of((images, 256, 28, 28 + images), HALF, 0, "cuda")
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                expected = normed("group", x, None, None, None, None)
                launched.clear()
                assert torch.equal(compiled("group", x, None, None, None, None), expected)
                assert launched == ["forward"]


def test_a_tensor_that_is_not_aligned():
    memory = torch.randn(4 * 64 * 100 + 1, device="cuda").half()[1:]
    x = memory.view(4, 100, 64).movedim(-1, 1)
    y = group_norm(x, 8)
    expected = functional.group_norm(x.double(), 8)
    assert (y - expected).abs().max() < 5e-3
