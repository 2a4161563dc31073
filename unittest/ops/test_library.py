"""The operators as torch sees them: fake tensors, autograd, autocast, vmap, torch.compile.

Nothing here runs a kernel: with ``fallback="torch"`` on the CPU every direction is torch's, so
these tests are about what surrounds the kernels.  ``interpreter_functional.py`` has the kernels.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from triton_ext import ops
from triton_ext.ops.api import operators as registered
from triton_ext.ops.core.descriptors import channels_last, channels_last_strides
from triton_ext.ops.core.epilogue import EpilogueArguments, apply_activation, apply_epilogue

F = torch.nn.functional
OPS = torch.ops.triton_ext

CONV = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TORCH_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}
TORCH_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return channels_last(tensor) if len(shape) > 2 else tensor


def operands(dims: int, groups: int = 1, dtype: torch.dtype = torch.float64, n: int = 2):
    size, taps = (7, 6, 5)[:dims], (3, 2, 3)[:dims]
    x = randn(n, 4, *size, dtype=dtype)
    return x, randn(6, 4 // groups, *taps, dtype=dtype), randn(6, dtype=dtype)


def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


# --- what torch checks ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dims"), [("fprop", 2), ("conv", 1), ("conv", 3)])
def test_opcheck_fprop(name, dims):
    x, weight, bias = operands(dims, groups=2)
    walk = ([2, 1, 1][:dims], [1, 0, 2, 1, 0, 0][: 2 * dims], [1, 2, 1][:dims], 2)
    tensors = (t.requires_grad_(name == "conv") for t in (x, weight, bias))
    torch.library.opcheck(getattr(OPS, name).default, (*tensors, *walk, True))


@pytest.mark.parametrize(("name", "dims"), [("dgrad", 2), ("conv_input", 1), ("conv_input", 3)])
def test_opcheck_dgrad(name, dims):
    _, weight, _ = operands(dims, groups=2)
    padding = [1, 0, 2, 1, 0, 0][: 2 * dims]
    walk = ([2, 1, 1][:dims], padding, [1, 2, 1][:dims], 2)
    size = (7, 6, 5)[:dims]
    x = randn(2, 4, *size)
    dy = OPS.fprop.default(x, weight, None, *walk, True)
    tensors = (t.requires_grad_(name == "conv_input") for t in (dy, weight, randn(4)))
    torch.library.opcheck(getattr(OPS, name).default, (*tensors, *walk, list(size), True))


@pytest.mark.parametrize(("name", "dims"), [("wgrad", 2), ("conv_weight", 1), ("conv_weight", 3)])
def test_opcheck_wgrad(name, dims):
    x, weight, _ = operands(dims, groups=2)
    walk = ([2, 1, 1][:dims], [1, 0, 2, 1, 0, 0][: 2 * dims], [1, 2, 1][:dims], 2)
    dy = OPS.fprop.default(x, weight, None, *walk, True)
    tensors = (t.requires_grad_(name == "conv_weight") for t in (x, dy))
    taps = list(weight.shape[2:])
    torch.library.opcheck(getattr(OPS, name).default, (*tensors, *walk, taps, True))


@pytest.mark.parametrize(
    ("name", "activation", "pixels"),
    [("fprop_fused", "silu", 7), ("conv_fused", "relu", 1), ("conv_fused", "gelu", 7)],
)
def test_opcheck_fused(name, activation, pixels):
    x, weight, bias = operands(2, dtype=torch.float32)
    residual = randn(2, 6, pixels, pixels, dtype=torch.float32, seed=3)
    tensors = [
        t.requires_grad_(name == "conv_fused")
        for t in (x, weight, bias, randn(6, dtype=torch.float32), residual)
    ]
    walk = ([1, 1], [1, 1, 1, 1], [1, 1], 1)
    arguments = (*tensors, None, [], *walk, activation, None, None, True)
    torch.library.opcheck(getattr(OPS, name).default, arguments)


def test_opcheck_into():
    x, weight, bias = operands(2, dtype=torch.float32)
    walk = ([1, 1], [1, 1, 1, 1], [1, 1], 1)
    out, amax = randn(2, 6, 7, 7, dtype=torch.float32), torch.zeros(1)
    operands_ = (x, weight, bias, None, None, None, [], *walk, "relu", None, None, True)
    torch.library.opcheck(OPS.fprop_into.default, (*operands_, out, amax))


# --- fakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_fakes_are_what_real_tensors_are(dims, n):
    x, weight, bias = operands(dims, groups=2, n=n)
    how = {"stride": 2, "padding": 1, "groups": 2, "fallback": "torch"}
    back = randn(4, 3, *weight.shape[2:])
    functions = [
        lambda x, w, b: CONV[dims](x, w, b, **how),
        lambda x, w, b: TRANSPOSE[dims](x, w, b, output_padding=1, **how),
    ]
    for function, w in zip(functions, (weight, back), strict=True):
        real = function(x, w, bias)
        with FakeTensorMode() as mode:
            fake = function(*(mode.from_tensor(t) for t in (x, w, bias)))
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
        assert real.stride() == channels_last_strides(real.shape)


def test_meta_tensors_have_outputs():
    x, weight, bias = (t.half().to("meta") for t in operands(2))
    for requires_grad in (False, True):
        y = ops.conv2d(channels_last(x), weight.requires_grad_(requires_grad), bias, padding=1)
        assert (y.shape, y.device.type) == ((2, 6, 7, 7), "meta")


# --- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("dims", "groups"), [(1, 2), (2, 1), (3, 2)])
def test_derivatives_of_any_order(dims, groups):
    x, weight, bias = leaves(*operands(dims, groups, n=1))
    padding = ((1, 0), (2, 1), (0, 1))[:dims]

    def function(x, weight, bias):
        return CONV[dims](x, weight, bias, 2, padding, 1, groups, fallback="torch")

    assert torch.autograd.gradcheck(function, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, weight, bias), fast_mode=True)


@pytest.mark.parametrize(("dims", "groups"), [(1, 2), (2, 1), (3, 2)])
def test_derivatives_of_transposed_convolutions(dims, groups):
    size = (4, 3, 3)[:dims]
    x, weight, bias = leaves(randn(1, 4, *size), randn(4, 6 // groups, *(3, 2, 3)[:dims]), randn(6))

    def function(x, weight, bias):
        return TRANSPOSE[dims](x, weight, bias, 2, 1, 1, groups, fallback="torch")

    assert torch.autograd.gradcheck(function, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, weight, bias), fast_mode=True)


def test_derivatives_of_the_gradient_of_the_filter():
    x, weight, _ = operands(2, n=1)
    dy = randn(1, 6, 4, 5)

    def function(x, dy):
        return ops.conv2d_weight(x, weight.shape, dy, 2, ((1, 1), (2, 3)), fallback="torch")

    assert torch.autograd.gradcheck(function, leaves(x, dy), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves(x, dy), fast_mode=True)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu", "tanh"])
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("pixels", [(7, 7), (1, 1)], ids=str)
def test_derivatives_of_epilogues(activation, decomposed, pixels):
    x, weight, bias = operands(2, dtype=torch.float32)
    scale, residual = (
        randn(6, dtype=torch.float32),
        randn(2, 6, *pixels, dtype=torch.float32, seed=5),
    )
    ours = leaves(x, weight, bias, scale, residual)
    exact = [t.detach().double().requires_grad_() for t in ours]
    if decomposed:
        y = ops.conv2d(
            *ours[:3], padding=1, scale=ours[3], residual=ours[4], activation=activation,
            fallback="torch",
        )  # fmt: skip
    else:
        walk = ([1, 1], [1, 1, 1, 1], [1, 1], 1)
        y = OPS.conv_fused.default(*ours, None, [], *walk, activation, None, None, True)
    z = F.conv2d(exact[0], exact[1], padding=1) * exact[3].view(-1, 1, 1)
    z = apply_activation(z + exact[2].view(-1, 1, 1) + exact[4], activation)
    torch.testing.assert_close(y.double(), z, rtol=1e-4, atol=1e-4)
    grad = randn(*z.shape, seed=9)
    y.backward(grad.float())
    z.backward(grad)
    for our, their in zip(ours, exact, strict=True):
        torch.testing.assert_close(our.grad.double(), their.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_residual_per_image_is_added_to_its_pixels(dims):
    x, weight, bias = operands(dims, dtype=torch.float32)
    residual = randn(2, 6, *(1,) * dims, dtype=torch.float32, seed=5)
    ours, theirs = leaves(x, weight, bias, residual), leaves(x, weight, bias, residual)
    how = {"residual": ours[3], "fallback": "torch"}
    y = getattr(ops, f"conv{dims}d")(*ours[:3], padding=1, **how)
    z = getattr(F, f"conv{dims}d")(*theirs[:3], padding=1) + theirs[3]
    torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)
    grad = randn(*z.shape, dtype=torch.float32, seed=9)
    for result in (y, z):
        result.backward(grad)
    for our, their in zip(ours, theirs, strict=True):
        assert our.grad.shape == their.grad.shape
        torch.testing.assert_close(our.grad, their.grad, rtol=1e-4, atol=1e-4)
    one = getattr(ops, f"conv{dims}d")(
        x[1], weight, bias, padding=1, residual=residual[1], fallback="torch"
    )
    torch.testing.assert_close(one, y[1].detach())


def test_a_residual_per_image_is_compiled():
    x, weight, bias = operands(2, dtype=torch.float32)
    residual = randn(2, 6, dtype=torch.float32, seed=5).requires_grad_()

    def function(x, residual):
        how = {"padding": 1, "activation": "relu", "fallback": "torch"}
        return ops.conv2d(x, weight, bias, residual=residual[:, :, None, None], **how)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (7, 9):
        given = torch.nn.functional.interpolate(x, size).contiguous(
            memory_format=torch.channels_last
        )
        results = [f(given, residual) for f in (function, compiled)]
        grads = [torch.autograd.grad(y.square().sum(), residual)[0] for y in results]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*grads)


def test_one_number_as_scale_has_a_gradient():
    x, weight, _ = operands(2)
    (scale,) = leaves(torch.tensor(0.7, dtype=torch.float32))
    y = ops.conv2d(x.float(), weight.float(), scale=scale, fallback="torch")
    y.sum().backward()
    torch.testing.assert_close(scale.grad.double(), F.conv2d(x, weight).sum(), rtol=1e-3, atol=1e-3)


def test_gradients_that_nobody_asked_for_are_not_computed(monkeypatch):
    x, weight, _ = operands(2)
    called, real = [], registered._gradient
    monkeypatch.setattr(
        registered, "_gradient", lambda c: called.append(c.operator.direction) or real(c)
    )
    (only_weight,) = leaves(weight)
    ops.conv2d(x, only_weight, fallback="torch").sum().backward()
    assert called == ["wgrad"]


@pytest.mark.parametrize("make", [torch.func.grad, torch.func.jacrev])
def test_torch_func(make):
    x, weight, _ = operands(2)
    reduce = (lambda y: (y * y).sum()) if make is torch.func.grad else (lambda y: y.sum((0, 2, 3)))
    ours = make(lambda w: reduce(ops.conv2d(x, w, padding=1, fallback="torch")))(weight)
    theirs = make(lambda w: reduce(F.conv2d(x, w, padding=1)))(weight)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"out_scale": torch.tensor(2.0)}, "out_scale= has no derivative"),
        ({"out_dtype": torch.float8_e4m3fn}, "float8_e4m3fn has no derivative"),
    ],
)
def test_what_has_no_derivative_is_named(keywords, match):
    x, weight, _ = operands(2, dtype=torch.float32)
    weight.requires_grad_()
    with pytest.raises(NotImplementedError, match=f"conv2d: .*{match}"):
        ops.conv2d(x, weight, fallback="torch", **keywords)
    with torch.no_grad():
        ops.conv2d(x, weight, fallback="torch", **keywords)


# --- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_what_torch_casts(dtype):
    x, weight, bias = leaves(*operands(2, dtype=torch.float32))
    their_x, their_weight, their_bias = leaves(x, weight, bias)
    with torch.autocast("cpu", dtype=dtype):
        y = ops.conv2d(x, weight, bias, padding=1, fallback="torch")
        z = F.conv2d(their_x, their_weight, their_bias, padding=1)
    assert y.dtype == z.dtype == dtype
    torch.testing.assert_close(y, z)
    y.float().sum().backward()
    z.float().sum().backward()
    for our, their in ((x, their_x), (weight, their_weight), (bias, their_bias)):
        assert our.grad.dtype == torch.float32
        torch.testing.assert_close(our.grad, their.grad, rtol=2e-2, atol=2e-2)


def test_autocast_reaches_every_operator():
    x, weight, bias = operands(2, dtype=torch.float32)
    amax = torch.zeros(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.conv2d(x, weight, bias, fallback="torch")
        results = [
            ops.conv_transpose2d(x, weight.transpose(0, 1), fallback="torch"),
            ops.conv2d_input(x.shape, weight, y, fallback="torch"),
            ops.conv2d_weight(x, weight.shape, y, fallback="torch"),
            ops.conv2d(x, weight, bias, activation="relu", fallback="torch"),
        ]
    assert [t.dtype for t in results] == [torch.bfloat16] * 4
    assert amax.dtype == torch.float32


def test_autocast_leaves_doubles():
    x, weight, _ = operands(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.conv2d(x, weight, fallback="torch").dtype == torch.float64


# --- vmap ----------------------------------------------------------------------------------------


def batch(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Three different ones like a tensor, along a new dimension."""
    return torch.stack([tensor * (i + 1) + i for i in range(3)], dim)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "dims",
    [(0, None, None), (1, None, None), (None, 0, None), (None, 2, 0), (0, 0, 0), (3, 1, None)],
)
def test_vmap_of_convolutions(dims, groups):
    x, weight, bias = operands(2, groups)
    mapped = [t if d is None else batch(t, d) for t, d in zip((x, weight, bias), dims, strict=True)]

    def ours(x, weight, bias):
        return ops.conv2d(x, weight, bias, 2, ((1, 2), (0, 1)), 1, groups, fallback="torch")

    def theirs(x, weight, bias):
        return F.conv2d(F.pad(x, (0, 1, 1, 2)), weight, bias, 2, 0, 1, groups)

    torch.testing.assert_close(
        torch.vmap(ours, in_dims=dims)(*mapped), torch.vmap(theirs, in_dims=dims)(*mapped)
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "dims", [(0, None, None), (2, None, None), (None, 0, None), (None, 1, 0), (0, 0, 0)]
)
def test_vmap_of_transposed_convolutions(dims, groups):
    x, weight, bias = randn(2, 4, 5, 4), randn(4, 6 // groups, 3, 2), randn(6)
    mapped = [t if d is None else batch(t, d) for t, d in zip((x, weight, bias), dims, strict=True)]

    def ours(x, weight, bias):
        return ops.conv_transpose2d(x, weight, bias, 2, 1, 1, groups, fallback="torch")

    def theirs(x, weight, bias):
        return F.conv_transpose2d(x, weight, bias, 2, 1, 1, groups)

    torch.testing.assert_close(
        torch.vmap(ours, in_dims=dims)(*mapped), torch.vmap(theirs, in_dims=dims)(*mapped)
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 2), (0, 0)])
def test_vmap_of_the_gradient_of_the_filter(dims, groups):
    x, weight, _ = operands(2, groups)
    dy = randn(2, 6, 3, 3)
    mapped = [t if d is None else batch(t, d) for t, d in zip((x, dy), dims, strict=True)]

    def ours(x, dy):
        return ops.conv2d_weight(x, weight.shape, dy, 2, (0, 0), 1, groups, fallback="torch")

    def theirs(x, dy):
        return torch.ops.aten.convolution_backward(
            dy, x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], groups, [False, True, False]
        )[1]

    torch.testing.assert_close(
        torch.vmap(ours, in_dims=dims)(*mapped), torch.vmap(theirs, in_dims=dims)(*mapped)
    )


def test_gradients_per_sample():
    x, weight, bias = operands(2, n=5)

    def loss(conv, weight, bias, sample):
        return (conv(sample.unsqueeze(0), weight, bias, padding=1) ** 2).sum()

    def ours(*arguments, **keywords):
        return ops.conv2d(*arguments, **keywords, fallback="torch")

    results = [
        torch.vmap(
            torch.func.grad(lambda *a, c=conv: loss(c, *a), argnums=(0, 1)), (None, None, 0)
        )(weight, bias, x)
        for conv in (ours, F.conv2d)
    ]
    for our, their in zip(*results, strict=True):
        assert our.shape[0] == 5
        torch.testing.assert_close(our, their)


@pytest.mark.parametrize("pixels", [7, 1])
def test_vmap_of_an_epilogue(pixels):
    x, weight, bias = operands(2, dtype=torch.float32)
    residual = randn(2, 6, pixels, pixels, dtype=torch.float32)
    xs, residuals = batch(x, 1), batch(residual, 0)

    def ours(x, residual):
        return ops.conv2d(
            x, weight, bias, padding=1, residual=residual, activation="relu", fallback="torch"
        )

    def theirs(x, residual):
        return torch.relu(F.conv2d(x, weight, bias, padding=1) + residual)

    for dims, given in (((1, 0), (xs, residuals)), ((1, None), (xs, residual))):
        torch.testing.assert_close(
            torch.vmap(ours, in_dims=dims)(*given),
            torch.vmap(theirs, in_dims=dims)(*given),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.parametrize("pixels", [7, 1])
def test_vmap_of_a_residual_alone(pixels):
    x, weight, bias = operands(2, dtype=torch.float32)
    residuals = batch(randn(2, 6, pixels, pixels, dtype=torch.float32), 1)

    def ours(residual):
        return ops.conv2d(
            x, weight, bias, padding=1, residual=residual, activation="relu", fallback="torch"
        )

    expected = torch.stack([ours(residual) for residual in residuals.unbind(1)])
    torch.testing.assert_close(torch.vmap(ours, in_dims=1)(residuals), expected)


def test_vmap_says_what_it_does_not_do():
    x, weight, bias = operands(2, dtype=torch.float32)
    weights, biases = batch(weight, 0), batch(bias, 0)
    out = torch.zeros(6, 5, 5)
    how = {"fallback": "torch"}
    cases = {
        "a mapped bias with a filter that is not": lambda b: ops.conv2d(x, weight, b, **how),
        "anything but x and residual": lambda w: ops.conv2d(x, w, activation="relu", **how),
        "out= or amax=": lambda w: ops.conv2d(x, w, amax=out[0, 0, :1], **how),
    }
    for match, function in cases.items():
        with torch.no_grad(), pytest.raises(NotImplementedError, match=match):
            torch.vmap(function)(biases if "bias" in match else weights)


# --- torch.compile -------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x, conv, fused):
        y = torch.relu(conv(x, self.first.weight, None, 1, 1))
        if fused:
            return ops.conv2d(
                y, self.second.weight, self.second.bias, 1, "same", residual=x, activation="relu",
                fallback="torch",
            )  # fmt: skip
        return torch.relu(conv(y, self.second.weight, self.second.bias, 1, 1) + x)


def ours(*arguments, **keywords):
    return ops.conv2d(*arguments, **keywords, fallback="torch")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_block_compiles_into_one_graph(backend, fused):
    torch._dynamo.reset()
    block = Block().to(memory_format=torch.channels_last)
    x = randn(2, 8, 6, 6, dtype=torch.float32)
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for convolution, module in ((F.conv2d, block), (ours, compiled)):
        module.zero_grad()
        given = x.clone().requires_grad_()
        y = module(given, convolution, fused and convolution is ours)
        y.sum().backward()
        grads = [given.grad, *(p.grad.clone() for p in block.parameters())]
        if convolution is F.conv2d:
            expected = [y, *grads]
    for our, their in zip([y, *grads], expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


def test_a_dynamic_batch_does_not_compile_again():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    weight = randn(6, 4, 3, 3, dtype=torch.float32)

    def function(x):
        y = ops.conv2d(x, weight, None, 1, "same", fallback="torch")
        return ops.conv_transpose2d(y, weight, None, 2, fallback="torch")

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for n in (2, 3, 5, 8):
        x = randn(n, 4, 7, 6, dtype=torch.float32)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), function(x))
    assert counter.frame_count == 1


def test_dynamic_sizes_do_not_compile_again():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    weight = randn(6, 4, 3, 3, dtype=torch.float32)

    def function(x, weight):
        return ops.conv2d(x, weight, None, 2, ((1, 0), (0, 1)), activation="relu", fallback="torch")

    compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for n, size in ((2, 7), (3, 9), (5, 12)):
        x = randn(n, 4, size, size + 2, dtype=torch.float32)
        torch.testing.assert_close(compiled(x, weight), function(x, weight))
    assert counter.frame_count == 1


def test_out_and_amax_compile():
    torch._dynamo.reset()
    x, weight, bias = operands(2, dtype=torch.float32)

    def function(x, out, amax):
        ops.conv2d(x, weight, bias, padding=1, out=out, amax=amax, fallback="torch")
        return out + amax

    tensors = [(randn(2, 6, 7, 7, dtype=torch.float32), torch.zeros(1)) for _ in range(2)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, *tensors[0]), function(x, *tensors[1]))
    torch.testing.assert_close(*(out for out, _ in tensors))
    torch.testing.assert_close(*(amax for _, amax in tensors))


def test_autocast_compiles():
    torch._dynamo.reset()
    x, weight, bias = operands(2, dtype=torch.float32)

    def function(x, weight, bias):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ops.conv2d(x, weight, bias, fallback="torch")

    y = torch.compile(function, fullgraph=True, backend="aot_eager")(x, weight, bias)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, function(x, weight, bias))


def test_the_graph_has_our_operators():
    torch._dynamo.reset()
    x, weight, _ = operands(2, dtype=torch.float16)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph

    def function(x, weight):
        return ops.conv2d(x, weight, fallback="torch")

    torch.compile(function, fullgraph=True, backend=backend)(x, weight)
    torch.compile(function, fullgraph=True, backend=backend)(x, weight.requires_grad_())
    targets = [
        str(node.target)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_function"
    ]
    # Without a derivative, the operator that costs less.
    assert targets == ["triton_ext.fprop.default", "triton_ext.conv.default"]


def test_transforms_in_a_compiled_function_are_refused():
    torch._dynamo.reset()
    x, weight, _ = operands(2)

    def function(weight):
        return torch.func.grad(lambda w: (ops.conv2d(x, w, fallback="torch") ** 2).sum())(weight)

    # torch would answer with zeros.
    with pytest.raises(Exception, match=r"under a transform of torch.func do not compile"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(weight)


def test_the_reference_of_epilogues_writes_what_it_is_given():
    y, amax = randn(1, 2, 3, 3, dtype=torch.float32), torch.zeros(1)
    epilogue = EpilogueArguments(out_scale=torch.tensor(2.0), amax=amax)
    torch.testing.assert_close(apply_epilogue(y, epilogue), 2 * y)
    assert amax.item() == y.abs().max().item()


# --- torch.utils.flop_counter ---------------------------------------------------------------------


def flops_of(function, shapes, training, **keywords) -> int:
    tensors = [randn(*shape).requires_grad_(training) for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        y = function(*tensors, **keywords)
        if training:
            y.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("name", "shapes", "keywords"),
    [
        ("conv2d", [(2, 4, 6, 6), (8, 4, 3, 3), (8,)], {}),
        ("conv3d", [(2, 4, 6, 6, 5), (8, 4, 3, 3, 1)], {"dilation": 2}),
        ("conv2d", [(2, 4, 6, 6), (8, 2, 3, 3)], {"groups": 2, "padding": 1, "stride": 2}),
        ("conv_transpose2d", [(2, 4, 6, 6), (4, 8, 3, 3), (8,)], {"stride": 2}),
        ("conv_transpose2d", [(2, 4, 6, 6), (4, 4, 3, 3)], {"groups": 2, "padding": 1}),
    ],
)
def test_flops_are_counted_as_torchs_are(name, shapes, keywords, training):
    expected = flops_of(getattr(F, name), shapes, training, **keywords)
    assert expected > 0
    assert flops_of(getattr(ops, name), shapes, training, fallback="torch", **keywords) == expected


def test_flops_with_an_epilogue_are_those_of_the_convolution():
    shapes = [(2, 4, 6, 6), (8, 4, 3, 3)]
    found = {"activation": "relu", "fallback": "torch"}
    expected = flops_of(F.conv2d, shapes, training=False)
    assert flops_of(ops.conv2d, shapes, training=False, **found) == expected
    found["out"] = randn(2, 8, 4, 4)
    assert flops_of(ops.conv2d, shapes, training=False, **found) == expected
    found.pop("out")
    expected = flops_of(F.conv2d, shapes, training=True)
    assert flops_of(ops.conv2d, shapes, training=True, **found) == expected
