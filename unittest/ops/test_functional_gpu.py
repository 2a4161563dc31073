"""The operators within torch on a GPU: training, torch.compile, CUDA graphs, autocast, memory.

The kernels' results over many geometries are tested direction by direction in
``test_conformance.py``; here they run together.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
from gpu_comparison import MARKS, skip_without_gpu
from triton_ext import ops
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import channels_last

skip_without_gpu()
pytestmark = MARKS

F = torch.nn.functional
DTYPES = (torch.float16, torch.bfloat16)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed + sum(shape))
    return channels_last(torch.randn(shape, generator=generator, device="cuda").to(dtype))


def weight_of(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    scale = (shape[1] * 9) ** -0.5
    return channels_last(randn(*shape, dtype=dtype, seed=seed) * scale)


def resnet_block(conv, x, first, second, third):
    y = torch.relu(conv(x, first))
    y = torch.relu(conv(y, second, None, 1, 1))
    return torch.relu(conv(y, third) + x)


def unet_block(conv, x, first, second, third):
    down = torch.relu(conv(x, second_shape(first), None, 2, 1))
    up = F.interpolate(down, scale_factor=2.0)
    y = torch.cat([up, x], 1)
    return conv(y, torch.cat([third, third], 1))


def second_shape(weight):
    """A 3x3 filter of a 1x1 one."""
    return channels_last(weight.expand(-1, -1, 3, 3))


BLOCKS = {"resnet": resnet_block, "unet": unet_block}


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    x = randn(4, 128, 28, 28, dtype=dtype)
    return [
        x,
        weight_of(128, 128, 1, 1, dtype=dtype),
        weight_of(128, 128, 3, 3, dtype=dtype),
        weight_of(128, 128, 1, 1, dtype=dtype, seed=3),
    ]


def step(block, conv, tensors):
    """Returns y and all gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = block(conv, *leaves)
    y.backward(randn(*y.shape, dtype=y.dtype, seed=9))
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    other = other.double()
    return ((one.double() - other).norm() / other.norm()).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_trains_as_exactly_as_torchs(name, dtype):
    tensors = operands(dtype)
    block = BLOCKS[name]
    ours, theirs = step(block, ops.conv2d, tensors), step(block, F.conv2d, tensors)
    exact = step(block, F.conv2d, [t.double() for t in tensors])
    for our, their, right in zip(ours, theirs, exact, strict=True):
        assert distance(our, right) <= 2 * distance(their, right) + torch.finfo(dtype).eps / 8


@pytest.mark.parametrize("name", BLOCKS)
def test_reruns_give_the_same_bits(name):
    tensors = operands(torch.bfloat16)
    first, second = (step(BLOCKS[name], ops.conv2d, tensors) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_compiled_block_equals_an_eager_one(name):
    torch._dynamo.reset()
    tensors = operands(torch.bfloat16)
    block = BLOCKS[name]
    compiled = torch.compile(lambda *given: block(ops.conv2d, *given), fullgraph=True)
    eager = step(block, ops.conv2d, tensors)
    other = step(lambda _conv, *given: compiled(*given), None, tensors)
    for one, two in zip(eager, other, strict=True):
        assert distance(two, one) <= 4 * torch.finfo(torch.bfloat16).eps


def test_a_captured_training_step_replays_with_new_values():
    tensors = operands(torch.bfloat16)
    leaves = [t.clone().requires_grad_() for t in tensors]
    grad = randn(4, 128, 28, 28, seed=9)

    def train():
        for leaf in leaves:
            leaf.grad = None
        y = resnet_block(ops.conv2d, *leaves)
        y.backward(grad)
        return y

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            train()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = train()
    captured = [leaf.grad for leaf in leaves]
    for factor in (1.0, -0.5):
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(factor)
            y.fill_(float("nan"))
            for gradient in captured:
                gradient.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        results = [y.detach().clone(), *(gradient.clone() for gradient in captured)]
        expected = [train().detach(), *(leaf.grad for leaf in leaves)]
        for one, other in zip(results, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast(dtype):
    tensors = operands(torch.float32)
    results = []
    for conv in (ops.conv2d, F.conv2d):
        with torch.autocast("cuda", dtype=dtype):
            results.append(step(resnet_block, conv, tensors))
    for our, their in zip(*results, strict=True):
        assert our.dtype == their.dtype
        assert distance(our, their) <= 8 * torch.finfo(dtype).eps


def test_the_kernels_are_ours():
    tensors = operands(torch.bfloat16)
    step(resnet_block, ops.conv2d, tensors)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(resnet_block, ops.conv2d, tensors)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    for kernel in ("conv_fprop_kernel", "conv_dgrad_kernel", "conv_wgrad_kernel"):
        assert any(kernel in name for name in names), names


def test_what_is_saved_is_no_larger_than_torchs():
    tensors = operands(torch.bfloat16)
    kept = {}
    for name, conv in (("ours", ops.conv2d), ("torchs", F.conv2d)):
        leaves = [t.clone().requires_grad_() for t in tensors]
        resnet_block(conv, *leaves).sum().backward()
        before = torch.cuda.memory_allocated()
        y = resnet_block(conv, *leaves)
        kept[name] = torch.cuda.memory_allocated() - before
        del y
    assert kept["ours"] <= kept["torchs"]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_train(dims):
    size = (33, 17, 9)[:dims]
    x, weight = randn(2, 64, *size), weight_of(64, 32, *(3,) * dims)
    name = f"conv_transpose{dims}d"
    how = {"stride": 2, "padding": 1, "output_padding": 1}

    def block(functions, x, weight):
        return getattr(functions, name)(x, weight, **how)

    ours, theirs = (step(block, where, [x, weight]) for where in (ops, F))
    exact = step(block, F, [x.double(), weight.double()])
    for our, their, right in zip(ours, theirs, exact, strict=True):
        assert distance(our, right) <= 2 * distance(their, right) + 2**-10


def test_double_backward():
    x, weight = randn(2, 32, 9, 9), weight_of(32, 32, 3, 3)
    results = []
    for conv, dtype in ((ops.conv2d, torch.bfloat16), (F.conv2d, torch.float64)):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (x, weight)]
        y = conv(*leaves, None, 1, 1)
        (grad,) = torch.autograd.grad(y.float().square().mean(), leaves[0], create_graph=True)
        grad.float().square().sum().backward()
        results.append(leaves[1].grad)
    assert distance(*results) < 2e-2


def test_fp32_follows_torchs_setting():
    settings = torch.backends.cudnn.conv
    before = settings.fp32_precision
    x, weight = (
        randn(2, 32, 9, 9, dtype=torch.float32),
        weight_of(32, 32, 3, 3, dtype=torch.float32),
    )
    try:
        settings.fp32_precision = "tf32"
        y = ops.conv2d(x, weight)
        assert distance(y, F.conv2d(x.double(), weight.double())) < 1e-3
        settings.fp32_precision = "ieee"
        with pytest.raises(UnsupportedError, match="TF32"):
            ops.conv2d(x, weight)
        exact = ops.conv2d(x, weight, fallback="torch")
        assert distance(exact, F.conv2d(x.double(), weight.double())) < 1e-6
    finally:
        settings.fp32_precision = before
