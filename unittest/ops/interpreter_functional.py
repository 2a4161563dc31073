"""Every operator of ``triton_ext.ops`` in Triton's interpreter.

Tolerance: the largest error against float64 is at most twice torch's own in the same dtype, plus a
floor, relative to the largest value of the reference: 1/8 of the dtype's epsilon, for bf16 two of
them, because the interpreter truncates instead of rounding.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from interpreted import why_not_interpreted
from problem_cases import finite_of_torch

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

from triton_ext import ops
from triton_ext.errors import DescriptorError, TritonExtError, UnsupportedError
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.epilogue import apply_activation

F = torch.nn.functional
NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
EXAMPLES = 400 if NIGHTLY else 20
FLOOR = {
    torch.float16: torch.finfo(torch.float16).eps / 8,
    torch.bfloat16: 2 * torch.finfo(torch.bfloat16).eps,
    torch.float32: torch.finfo(torch.float32).eps * 8,
}

CONV = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TRANSPOSE = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}
TORCH_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TORCH_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution; one number per dimension, padding as pairs."""

    n: int
    ci: int
    co: int
    groups: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    dtype: torch.dtype
    bias: bool

    @property
    def dims(self) -> int:
        return len(self.size)

    @property
    def output_size(self) -> list[int]:
        return [
            (size + low + high - (taps - 1) * step - 1) // jump + 1
            for size, taps, jump, (low, high), step in zip(
                self.size, self.taps, self.stride, self.padding, self.dilation, strict=True
            )
        ]

    def tensor(self, *shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed + sum(shape))
        return channels_last(torch.randn(shape, generator=generator).to(self.dtype))

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        x = self.tensor(self.n, self.ci, *self.size)
        weight = self.tensor(self.co, self.ci // self.groups, *self.taps)
        return x, weight, self.tensor(1, self.co, 1)[0, :, 0] if self.bias else None

    @property
    def walk(self) -> tuple[object, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def torch(self, x, weight, bias) -> torch.Tensor:
        """What torch gives; it knows equal sides only, so all padding is done in front."""
        sides = [side for pair in reversed(self.padding) for side in pair]
        padded = F.pad(x, sides)
        return TORCH_CONV[self.dims](
            padded, weight, bias, self.stride, 0, self.dilation, self.groups
        )


@st.composite
def draw_case(draw: st.DrawFn) -> Case:
    dims = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2, 3, 8]))
    # Of a group; eight groups of one are a depthwise convolution.
    channels = st.integers(1, 12) | st.sampled_from([16, 32]) if groups < 8 else st.just(1)

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    longest = {1: 14, 2: 8, 3: 5}[dims]
    return Case(
        n=draw(st.integers(1, 2)),
        ci=groups * draw(channels),
        co=groups * draw(channels),
        groups=groups,
        size=per_dim(1, longest),
        taps=per_dim(1, 3),
        stride=per_dim(1, 3),
        padding=tuple(zip(per_dim(0, 2), per_dim(0, 2), strict=True)),
        dilation=per_dim(1, 2),
        dtype=draw(st.sampled_from([torch.float16, torch.bfloat16])),
        bias=draw(st.booleans()),
    )


def as_exact(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """Asserts that a result is as exact as torch's."""
    assert ours.shape == theirs.shape == exact.shape
    assert ours.dtype == theirs.dtype
    theirs = finite_of_torch(theirs, exact)
    error, torchs = ((t.double() - exact).abs().max().item() for t in (ours, theirs))
    # "not greater" would let NaN through.
    assert error <= 2 * torchs + FLOOR[ours.dtype] * exact.abs().max().item()


def doubled(*tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def fresh(*tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


# --- every direction, any geometry ---------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(draw_case())
def test_forward_and_backward(case):
    """y and all gradients; where no kernel takes the forward, support and the call agree."""
    assume(min(case.output_size) >= 1)
    tensors = case.operands()
    supported = ops.support(*tensors, *case.walk)
    if not supported:
        with pytest.raises((TritonExtError, ValueError)):
            CONV[case.dims](*tensors, *case.walk)
    fallback = "error" if supported else "torch"
    ours, theirs, exact = fresh(*tensors), fresh(*tensors), doubled(*tensors)
    y = CONV[case.dims](*ours, *case.walk, fallback=fallback)
    z, reference = case.torch(*theirs), case.torch(*exact)
    as_exact(y, z, reference)
    grad = case.tensor(*y.shape, seed=7)
    for result in (y, z, reference):
        result.backward(grad.to(result.dtype))
    for our, their, right in zip(ours, theirs, exact, strict=True):
        if our is not None:
            as_exact(our.grad, their.grad, right.grad)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(draw_case())
def test_gradients_by_name(case):
    assume(min(case.output_size) >= 1)
    x, weight, _ = case.operands()
    dy = case.tensor(case.n, case.co, *case.output_size, seed=7)
    supported = ops.support(x, weight, None, *case.walk)
    theirs, exact = fresh(x, weight), doubled(x, weight)
    for group in (theirs, exact):
        case.torch(*group, None).backward(dy.to(group[0].dtype))
    functions = {
        "dgrad": lambda **how: getattr(ops, f"conv{case.dims}d_input")(
            x.shape, weight, dy, *case.walk, **how
        ),
        "wgrad": lambda **how: getattr(ops, f"conv{case.dims}d_weight")(
            x, weight.shape, dy, *case.walk, **how
        ),
    }
    for index, (direction, function) in enumerate(functions.items()):
        how = {}
        if getattr(supported, direction):
            with pytest.raises((TritonExtError, ValueError)):
                function()
            how = {"fallback": "torch"}
        as_exact(function(**how), theirs[index].grad, exact[index].grad)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(draw_case(), st.data())
def test_transposed_convolutions(case, data):
    low = [min(pair) for pair in case.padding]
    extra = [data.draw(st.integers(0, step - 1)) for step in case.stride]
    walk = (case.stride, low, extra, case.groups, case.dilation)
    x = case.tensor(case.n, case.ci, *case.size)
    weight = case.tensor(case.ci, case.co // case.groups, *case.taps)
    bias = case.operands()[2]
    sizes = [
        (size - 1) * step - 2 * pad + (taps - 1) * distance + add + 1
        for size, step, pad, taps, distance, add in zip(
            case.size, case.stride, low, case.taps, case.dilation, extra, strict=True
        )
    ]
    assume(min(sizes) >= 1)
    supported = ops.support(
        x, weight, bias, case.stride, low, case.dilation, case.groups,
        transposed=True, output_padding=extra,
    )  # fmt: skip
    how = {}
    if not supported:
        with pytest.raises((TritonExtError, ValueError)):
            TRANSPOSE[case.dims](x, weight, bias, *walk)
        how = {"fallback": "torch"}
    ours, theirs, exact = fresh(x, weight, bias), fresh(x, weight, bias), doubled(x, weight, bias)
    y = TRANSPOSE[case.dims](*ours, *walk, **how)
    z, reference = (TORCH_TRANSPOSE[case.dims](*group, *walk) for group in (theirs, exact))
    as_exact(y, z, reference)
    grad = case.tensor(*y.shape, seed=7)
    for result in (y, z, reference):
        result.backward(grad.to(result.dtype))
    for our, their, right in zip(ours, theirs, exact, strict=True):
        if our is not None:
            as_exact(our.grad, their.grad, right.grad)


# --- epilogues -----------------------------------------------------------------------------------

BLOCK = Case(
    n=2, ci=8, co=16, groups=1, size=(6, 5), taps=(3, 3), stride=(1, 1), padding=((1, 1), (1, 1)),
    dilation=(1, 1), dtype=torch.float16, bias=True,
)  # fmt: skip


@triton.jit
def clip(tile, rows, columns, limit_ptr):
    return tl.minimum(tile, tl.load(limit_ptr))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu", "tanh"])
@pytest.mark.parametrize("channels", [16, 7])
def test_an_epilogue_with_everything(activation, channels):
    x, weight, _ = BLOCK.operands()
    weight, residual = weight[:channels], BLOCK.tensor(2, 16, 6, 5, seed=3)[:, :channels]
    bias = torch.randn(channels).half()
    scale = torch.rand(channels) + 0.5
    y = ops.conv2d(
        x, weight, bias, padding=1, scale=scale, residual=residual, activation=activation
    )
    z = F.conv2d(x.double(), weight.double(), padding=1)
    z = z * scale.double().view(-1, 1, 1) + bias.double().view(-1, 1, 1) + residual.double()
    z = apply_activation(z, activation)
    as_exact(y, z.half(), z)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_another_dtype_with_amax(out_dtype):
    x, weight, bias = BLOCK.operands()
    amax = torch.full((1,), float("nan"))
    y = ops.conv2d(
        x, weight, bias, padding=1, out_dtype=out_dtype, out_scale=torch.tensor(0.25), amax=amax
    )
    z = F.conv2d(x.float(), weight.float(), bias.float(), padding=1)
    assert y.dtype == out_dtype
    assert amax.item() == pytest.approx(z.abs().max().item(), rel=1e-5)
    eps = torch.finfo(out_dtype).eps
    torch.testing.assert_close(y.float(), z / 4, rtol=eps, atol=eps * z.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_outputs_are_refused_because_the_interpreter_casts_them_wrongly(dtype):
    x, weight, _ = BLOCK.operands()
    match = f"conv2d: Triton's interpreter casts to {dtype} wrongly; a GPU"
    with pytest.raises(UnsupportedError, match=match):
        ops.conv2d(x, weight, out_dtype=dtype)
    with pytest.raises(UnsupportedError, match=match):
        ops.conv2d(x.to(dtype), weight.to(dtype))
    assert "casts to" in ops.support(x.to(dtype), weight.to(dtype)).fprop[0]
    assert ops.conv2d(x, weight, out_dtype=dtype, fallback="torch").dtype == dtype


VIEWS = {
    "images that are one": lambda t: t[:1].expand(2, -1, -1, -1),
    "lines that are one": lambda t: t[:, :, :1].expand(-1, -1, 8, -1),
    "rows of 40 bytes": lambda t: t[:, :16],
    "lines as columns": lambda t: channels_last(t).transpose(2, 3),
    "every second line": lambda t: channels_last(t)[:, :, ::2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_support_knows_views(view):
    x = view(channels_last(torch.ones(2, 20, 8, 8, dtype=torch.float16)))
    channels = x.shape[1]
    weight = torch.ones(16, channels, 3, 3, dtype=torch.float16)
    dy = channels_last(torch.ones(2, 16, *(size - 2 for size in x.shape[2:]), dtype=torch.float16))
    found = ops.support(x, weight)
    calls = [
        (found.fprop, lambda: ops.conv2d(x, weight)),
        (found.wgrad, lambda: ops.conv2d_weight(x, weight.shape, dy)),
    ]
    filters = weight.transpose(0, 1)
    found = ops.support(x, filters, transposed=True)
    calls.append((found.refusals, lambda: ops.conv_transpose2d(x, filters)))
    for reasons, call in calls:
        if reasons:
            with pytest.raises((TritonExtError, ValueError)) as error:
                call()
            assert error.match(re.escape(reasons[0]))
        else:
            call()


def test_a_function_of_the_users():
    x, weight, bias = BLOCK.operands()
    limit = torch.tensor([0.5])

    def ours(x, weight, bias, limit):
        return ops.conv2d(x, weight, bias, 1, 1, epilogue=clip, epilogue_operands=(limit,))

    y = ours(x, weight, bias, limit)
    z = F.conv2d(x.double(), weight.double(), bias.double(), padding=1).clamp(max=0.5)
    as_exact(y, z.half(), z)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, bias, limit), y)
    with pytest.raises(NotImplementedError, match="epilogue= has no derivative"):
        ours(x, weight.clone().requires_grad_(), bias, limit)
    with pytest.raises(NotImplementedError, match="epilogue= has no derivative"):
        ours(x, weight, bias, limit.clone().requires_grad_())


def test_out_is_written_and_returned():
    x, weight, bias = BLOCK.operands()
    out = channels_last(torch.full((2, 16, 6, 5), float("nan"), dtype=torch.float16))
    result = ops.conv2d(x, weight, bias, padding=1, out=out)
    assert result is out
    assert torch.equal(out, ops.conv2d(x, weight, bias, padding=1))


@pytest.mark.parametrize("pixels", [(6, 5), (1, 1)], ids=str)
def test_epilogues_have_gradients(pixels):
    case = BLOCK
    x, weight, bias = case.operands()
    residual, scale = case.tensor(2, 16, *pixels, seed=3), torch.rand(16).half() + 0.5
    ours, exact = fresh(x, weight, bias, scale, residual), doubled(x, weight, bias, scale, residual)
    theirs = fresh(x, weight, bias, scale, residual)
    y = ops.conv2d(*ours[:3], padding=1, scale=ours[3], residual=ours[4], activation="relu")
    results = [y]
    for group in (theirs, exact):
        z = F.conv2d(group[0], group[1], padding=1) * group[3].view(-1, 1, 1)
        results.append(torch.relu(z + group[2].view(-1, 1, 1) + group[4]))
    grad = case.tensor(*y.shape, seed=9)
    for result in results:
        result.backward(grad.to(result.dtype))
    for our, their, right in zip(ours, theirs, exact, strict=True):
        as_exact(our.grad, their.grad, right.grad)


# --- what surrounds the kernels ------------------------------------------------------------------


def test_double_backward():
    case = BLOCK
    x, weight, _ = case.operands()
    results = []
    for group, function in ((fresh(x, weight), ops.conv2d), (doubled(x, weight), F.conv2d)):
        y = function(*group, None, 1, 1)
        (grad,) = torch.autograd.grad((y * y).sum() / 64, group[0], create_graph=True)
        (grad * grad).sum().backward()
        results.append(group[1].grad)
    error = (results[0].double() - results[1]).abs().max() / results[1].abs().max()
    assert error < 2e-2


def test_unbatched():
    x, weight, bias = BLOCK.operands()
    for keywords in ({}, {"activation": "relu"}):
        whole = ops.conv2d(x[:1], weight, bias, **keywords)
        assert torch.equal(ops.conv2d(x[0], weight, bias, **keywords), whole[0])
    back = BLOCK.tensor(8, 16, 3, 3)
    assert torch.equal(ops.conv_transpose2d(x[0], back), ops.conv_transpose2d(x[:1], back)[0])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_same_and_valid(dims):
    x = BLOCK.tensor(1, 8, *(7, 6, 5)[:dims])
    weight = BLOCK.tensor(8, 8, *(3, 2, 3)[:dims])
    how = {"dilation": 2}
    for padding in ("same", "valid"):
        y = CONV[dims](x, weight, padding=padding, **how)
        z = TORCH_CONV[dims](x.double(), weight.double(), padding=padding, **how)
        as_exact(y, z.half(), z)


def test_numbers_mean_every_direction():
    x, weight, _ = BLOCK.operands()
    y = ops.conv2d(x, weight, stride=2, padding=2, dilation=2)
    pairs = ((2, 2), (2, 2))
    assert torch.equal(y, ops.conv2d(x, weight, None, (2, 2), pairs, (2, 2)))
    assert y.is_contiguous(memory_format=torch.channels_last)
    y = ops.conv2d(x, weight, padding=(1, 2))
    assert torch.equal(y, ops.conv2d(x, weight, None, 1, [[1, 1], [2, 2]]))


@pytest.mark.parametrize("stride", [0, 2])
def test_a_bias_of_any_stride(stride):
    x, weight, _ = BLOCK.operands()
    bias = torch.randn(32).half().as_strided((16,), (stride,))
    z = F.conv2d(x.double(), weight.double(), bias.double())
    as_exact(ops.conv2d(x, weight, bias), z.half(), z)


@pytest.mark.parametrize(
    ("walk", "match"),
    [
        ({"dilation": 3}, r"filter \(dilated extent 7\) larger than padded input 5"),
        ({"stride": 0}, r"conv stride 0 in .*: TMA supports 1\.\.8"),
        ({"stride": (1, 9)}, r"conv stride 9 in .*: TMA supports 1\.\.8"),
        ({"padding": 200}, "padding 200 in H too large"),
        ({"stride": 9, "padding": 200}, r"(?s)conv stride 9.*padding 200"),
    ],
)
@pytest.mark.parametrize("images", [0, 2])
def test_what_tma_has_not_is_refused(walk, match, images):
    x, weight, _ = BLOCK.operands()
    with pytest.raises(DescriptorError, match=match):
        ops.conv2d(x[:images], weight if "dilation" in walk else weight[..., :1, :1], **walk)


def test_only_the_gradients_that_are_asked_for():
    x, weight, _ = BLOCK.operands()
    ops.conv2d(x, weight.requires_grad_()).sum().backward()
    assert weight.grad is not None
    assert x.grad is None


def test_an_empty_batch():
    x, weight, bias = BLOCK.operands()
    empty = x[:0].requires_grad_()
    weight.requires_grad_()
    y = ops.conv2d(empty, weight, bias, padding=1)
    assert y.shape == (0, 16, 6, 5)
    y.sum().backward()
    assert empty.grad.shape == empty.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    amax = torch.full((1,), float("nan"))
    with torch.no_grad():
        assert ops.conv2d(empty, weight, bias, amax=amax).shape == (0, 16, 4, 3)
    assert amax.item() == 0
    assert ops.conv_transpose2d(x[:0], BLOCK.tensor(8, 16, 3, 3)).shape == (0, 16, 8, 7)


def test_gradients_in_another_memory_order():
    x, weight, _ = BLOCK.operands()
    (our,), (their,) = fresh(weight), fresh(weight)
    grad = torch.randn(2, 16, 6, 5).half().contiguous()
    ops.conv2d(x, our, padding=1).backward(grad)
    F.conv2d(x, their, padding=1).backward(grad)
    torch.testing.assert_close(our.grad, their.grad, rtol=1e-2, atol=1e-2)


def test_per_sample_gradients_with_groups_where_kernels_have_them():
    x, weight, _ = BLOCK.operands()

    def loss(weight, sample, convolution):
        return (convolution(sample.unsqueeze(0), weight, None, 1, 1).float() ** 2).sum() / 64

    def ours(*arguments):
        return ops.conv2d(*arguments, fallback="torch")

    results = [
        torch.vmap(torch.func.grad(lambda w, s, c=c: loss(w, s, c)), (None, 0))(weight, x)
        for c in (ours, F.conv2d)
    ]
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_block_compiles_into_one_graph_with_a_dynamic_batch(requires_grad):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    case = BLOCK
    first, second = case.tensor(16, 8, 3, 3), case.tensor(8, 16, 3, 3, seed=1)
    bias = torch.randn(8).half()

    def block(x, first, second, bias):
        y = torch.relu(ops.conv2d(x, first, None, 1, 1))
        return ops.conv2d(y, second, bias, 1, "same", residual=x, activation="relu")

    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for n in (2, 3):
        x = case.tensor(n, 8, 6, 5)
        torch._dynamo.mark_dynamic(x, 0)
        groups = []
        for function in (block, compiled):
            tensors = [t.clone().requires_grad_(requires_grad) for t in (first, second, bias)]
            y = function(x, *tensors)
            if requires_grad:
                y.float().sum().backward()
            groups.append([y.detach(), *(t.grad for t in tensors if requires_grad)])
        for eager, other in zip(*groups, strict=True):
            assert torch.equal(eager, other)
    assert counter.frame_count == 1


def test_autocast():
    x, weight, bias = (t.float().requires_grad_() for t in BLOCK.operands())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.conv2d(x, weight, bias, padding=1)
        z = F.conv2d(x, weight, bias, padding=1)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
    y.float().sum().backward()
    assert x.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32


def test_autocast_of_out_and_amax():
    x, weight, _ = (t.float() for t in BLOCK.operands())
    amax = torch.zeros(1)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.conv2d(x, weight, None, padding=1)
        again = ops.conv2d(x, weight, None, padding=1, amax=amax)
        assert again.dtype == torch.bfloat16
        assert torch.equal(y, again)
        assert amax.item() == pytest.approx(y.float().abs().max().item(), rel=1e-2)
        out = torch.empty_like(y)
        assert torch.equal(ops.conv2d(x, weight, None, padding=1, out=out), y)
        with pytest.raises(ValueError, match=r"expected out .* of torch\.bfloat16, got"):
            ops.conv2d(x, weight, None, padding=1, out=out.float())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_and_inf_go_where_torch_puts_them(value):
    x, weight, _ = BLOCK.operands()
    x = x.clone()
    x[0, 3, 2, 2] = value
    y, z = (f(x, weight, None, 1, 1) for f in (ops.conv2d, F.conv2d))
    assert torch.equal(y.isfinite(), z.isfinite())
    assert torch.equal(y.isnan(), z.isnan())


# --- other types ---------------------------------------------------------------------------------


def test_fp32():
    x, weight, bias = (t.float() for t in BLOCK.operands())
    y, z = ops.conv2d(x, weight, bias), F.conv2d(x, weight, bias)
    as_exact(y, z, F.conv2d(*(t.double() for t in (x, weight, bias))))


def test_int8_sums_exactly():
    shapes = ((2, 32, 5, 5), (16, 32, 3, 3))
    x, weight = (channels_last(torch.randint(-128, 128, s).to(torch.int8)) for s in shapes)
    y = ops.conv2d(x, weight, padding=1)
    assert y.dtype == torch.int32
    assert torch.equal(y.double(), F.conv2d(x.double(), weight.double(), padding=1))
    fake_y = ops.conv2d(x.to("meta"), weight.to("meta"), padding=1)
    assert (fake_y.dtype, fake_y.stride()) == (y.dtype, y.stride())


# No kernel takes a stride of 9; torch has no int8 -> int32.
@pytest.mark.parametrize("stride", [8, 9])
def test_int8_sums_exactly_in_the_fallback_too(stride):
    shapes = ((2, 32, 20, 20), (16, 32, 3, 3))
    x, weight = (channels_last(torch.full(s, 100, dtype=torch.int8)) for s in shapes)
    walk = {"stride": stride, "padding": (0, 1), "fallback": "torch"}
    exact = F.conv2d(x.double(), weight.double(), stride=stride, padding=(0, 1))
    assert exact.max() == 9 * 32 * 10000
    for out_dtype in (None, torch.int32):
        y = ops.conv2d(x, weight, out_dtype=out_dtype, **walk)
        assert y.dtype == torch.int32
        assert torch.equal(y, exact.int())
    scaled = ops.conv2d(x, weight, scale=torch.tensor(1e-3), out_dtype=torch.float16, **walk)
    torch.testing.assert_close(scaled, (exact * 1e-3).half())
    # A bias of int8 would be added to a sum modulo 256 there.
    with pytest.raises(UnsupportedError, match="int8 needs an out_dtype of floating point"):
        ops.conv2d(x, weight, torch.ones(16), **walk)
    with pytest.raises(UnsupportedError, match="int8 needs an out_dtype of floating point"):
        ops.conv2d(x, weight, activation="relu", **walk)


@pytest.mark.parametrize("stride", [8, 9])
def test_sums_are_scaled_before_they_are_rounded(stride):
    x = channels_last(torch.full((1, 16, 20, 20), 200.0).half())
    weight = channels_last(torch.full((32, 16, 1, 1), 200.0).half())
    walk = {"stride": stride, "fallback": "torch"}
    # 640000 is more than fp16 has.
    assert (ops.conv2d(x, weight, scale=torch.tensor(1e-3), **walk) == 640).all()
    assert (ops.conv2d(x, weight, out_dtype=torch.float32, **walk) == 640000).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_with_a_bias_of_another_type(dtype):
    x, weight = (t.to(dtype) for t in BLOCK.operands()[:2])
    bias = torch.randn(16)
    y = ops.conv2d(x, weight, bias, out_dtype=torch.float16, scale=torch.tensor(0.5))
    z = F.conv2d(x.double(), weight.double()) * 0.5 + bias.double().view(-1, 1, 1)
    as_exact(y, z.half(), z)
