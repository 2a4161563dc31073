"""conv2d in Triton's interpreter.

Tolerance: the largest error against an fp32 reference is at most twice torch's own in the same
dtype, plus a floor.  The floor is 1/8 of the dtype's epsilon, relative to the largest value of the
reference; for bf16 it is the whole epsilon, because the interpreter truncates instead of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from interpreted import why_not_interpreted
from problem_cases import finite_of_torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.functional import pad

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

from triton_ext.errors import DescriptorError
from triton_ext.ops import conv2d

FLOOR = {
    torch.float16: torch.finfo(torch.float16).eps / 8,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution; pairs are (h, w), padding is (top, bottom, left, right)."""

    n: int = 1
    ci: int = 8
    h: int = 6
    w: int = 6
    co: int = 8
    r: int = 3
    s: int = 3
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    dtype: torch.dtype = torch.float16
    bias: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is at least one output pixel."""
        top, bottom, left, right = self.padding
        return (
            self.h + top + bottom > (self.r - 1) * self.dilation[0]
            and self.w + left + right > (self.s - 1) * self.dilation[1]
        )

    @property
    def padding_pairs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding as conv2d takes it."""
        top, bottom, left, right = self.padding
        return (top, bottom), (left, right)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """x and weight, normal and channels-last, and the bias."""
        torch.manual_seed(0)
        x = torch.randn(self.n, self.h, self.w, self.ci).to(self.dtype).permute(0, 3, 1, 2)
        weight = torch.randn(self.co, self.r, self.s, self.ci).to(self.dtype).permute(0, 3, 1, 2)
        return x, weight, torch.randn(self.co).to(self.dtype) if self.bias else None

    def torch(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """What torch gives; it knows equal sides only, so all padding is done in front."""
        top, bottom, left, right = self.padding
        padded = pad(x, (left, right, top, bottom))
        return torch_conv2d(padded, weight, bias, self.stride, 0, self.dilation)


def check(case: Case, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias) -> None:
    reference = case.torch(x.float(), weight.float(), None if bias is None else bias.float())
    torchs = finite_of_torch(case.torch(x, weight, bias), reference)
    assert y.shape == reference.shape
    assert y.dtype == case.dtype
    error = (y.float() - reference).abs().max().item()
    torch_error = (torchs.float() - reference).abs().max().item()
    # "not greater" would let NaN through.
    assert error <= 2 * torch_error + FLOOR[case.dtype] * reference.abs().max().item()


def run(case: Case) -> torch.Tensor:
    x, weight, bias = case.tensors()
    y = conv2d(x, weight, bias, case.stride, case.padding_pairs, case.dilation)
    check(case, y, x, weight, bias)
    return y


def test_the_output_is_channels_last():
    y = run(Case(n=2, co=24))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_numbers_mean_both_directions():
    x, weight, _ = Case(h=9, w=9).tensors()
    y = conv2d(x, weight, stride=2, padding=1, dilation=2)
    z = conv2d(x, weight, stride=(2, 2), padding=((1, 1), (1, 1)), dilation=(2, 2))
    assert torch.equal(y, z)
    y = conv2d(x, weight, padding=(1, 2))
    z = conv2d(x, weight, None, 1, [[1, 1], [2, 2]])
    assert torch.equal(y, z)


def test_the_weight_may_have_any_memory_format():
    case = Case(ci=16)
    x, weight, _ = case.tensors()
    assert not weight.is_contiguous()
    check(case, conv2d(x, weight.contiguous()), x, weight, None)


def test_an_empty_batch_gives_an_empty_output():
    x, weight, bias = Case(n=1, bias=True).tensors()
    y = conv2d(x[:0], weight, bias, stride=2)
    assert y.shape == (0, 8, 2, 2)
    assert y.dtype == torch.float16
    with pytest.raises(DescriptorError, match="conv stride 9"):
        conv2d(x[:0], weight[..., :1], bias, stride=9)


@pytest.mark.parametrize("bias", ["every second", "expanded"])
def test_the_bias_may_have_any_stride(bias):
    case = Case(co=16)
    x, weight, _ = case.tensors()
    values = torch.randn(32).half()[::2] if bias == "every second" else torch.ones(1).half()
    values = values.expand(16)
    check(case, conv2d(x, weight, values), x, weight, values)


def test_an_unaligned_weight_is_copied():
    case = Case()
    x, weight, _ = case.tensors()
    storage = torch.empty(weight.numel() + 1, dtype=weight.dtype)
    rows = storage[1:].view(8, 3, 3, 8)
    rows.copy_(weight.permute(0, 2, 3, 1))
    check(case, conv2d(x, rows.permute(0, 3, 1, 2)), x, weight, None)


# --- refusals ---------------------------------------------------------------------------------


def refused(error, match, case=None, **changes):
    x, weight, bias = (case or Case()).tensors()
    arguments = {"x": x, "weight": weight, "bias": bias, **changes}
    with pytest.raises(error, match=match):
        conv2d(**arguments)


def test_refuses_channels_that_are_not_contiguous():
    x = Case().tensors()[0].contiguous()
    refused(ValueError, r"channels must be contiguous .* got channel stride 36", x=x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16], ids=str)
def test_refuses_other_dtypes(dtype):
    x, weight, _ = Case().tensors()
    match = rf"dtype {dtype} is not supported"
    refused(TypeError, match, x=x.to(dtype), weight=weight.to(dtype))


def test_refuses_mixed_dtypes():
    weight = Case().tensors()[1]
    refused(TypeError, "weight is torch.bfloat16, x is torch.float16", weight=weight.bfloat16())
    bias = torch.zeros(8)
    refused(TypeError, "bias is torch.float32, x is torch.float16", bias=bias)


def test_refuses_other_numbers_of_channels():
    weight = Case(ci=4).tensors()[1]
    refused(ValueError, r"x has 8 channels, weight \[8, 4, 3, 3\] expects 4", weight=weight)


def test_refuses_other_ranks():
    refused(ValueError, r"expected x \[N, Ci, H, W\] and weight", x=torch.ones(8, 6).half())
    refused(ValueError, r"expected x \[N, Ci, H, W\] and weight", weight=torch.ones(8, 8, 3).half())


def test_refuses_a_bias_of_another_size():
    refused(ValueError, r"expected bias \[8\], got \[7\]", bias=torch.zeros(7).half())


def test_refuses_a_filter_larger_than_the_image():
    refused(DescriptorError, r"filter \(dilated extent 7\) larger than padded input 6", Case(r=7))


def test_refuses_a_dilated_filter_larger_than_the_image():
    refused(DescriptorError, r"dilated extent 7.* larger than padded input 6", dilation=3)


@pytest.mark.parametrize("stride", [0, 9, (1, 9)])
def test_refuses_strides_that_tma_has_not(stride):
    one_tap = Case().tensors()[1][..., :1, :1]
    message = r"conv stride [09] in .*: TMA supports 1\.\.8"
    refused(DescriptorError, message, stride=stride, weight=one_tap)


def test_refuses_padding_that_tma_has_not():
    refused(DescriptorError, r"padding 200 in H too large", padding=200)


def test_refuses_negative_padding():
    refused(ValueError, "padding: must not be negative, got", padding=-1)


@pytest.mark.parametrize("name", ["x", "weight"])
def test_refuses_sizes_of_zero(name):
    x, weight, _ = Case().tensors()
    empty = {"x": x[:, :, :0], "weight": weight[:0]}[name]
    refused(ValueError, "only the batch may be empty", **{name: empty})


def test_lists_all_violations():
    refused(DescriptorError, r"(?s)conv stride 9.*padding 200", stride=9, padding=200)


def test_refuses_an_unaligned_base():
    x = Case(ci=16).tensors()[0]
    refused(DescriptorError, "16", x=x[:, 4:12])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stride", (1, 2, 3)),
        ("stride", (1.5, 1)),
        ("dilation", ()),
        ("padding", (1, 2, 3)),
        ("padding", ((1, 2, 3), (0, 0))),
    ],
)
def test_refuses_arguments_without_a_meaning(name, value):
    refused(ValueError, f"{name}: expected one integer", **{name: value})


# --- torch: autograd, fake tensors, compile -----------------------------------------------------


@pytest.mark.parametrize("dtype", FLOOR, ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case(n=2, padding=(1, 1, 1, 1), bias=True),
        Case(n=2, stride=(2, 1), dilation=(1, 2), h=9, w=9),
        Case(n=2, padding=(2, 0, 1, 3), stride=(2, 2), bias=True, ci=5, co=7),
    ],
    ids=["equal padding", "stride and dilation", "unequal padding"],
)
def test_gradients_are_as_exact_as_torchs(case, dtype):
    case = replace(case, dtype=dtype)
    tensors = [t for t in case.tensors() if t is not None]
    ours = [t.clone().requires_grad_() for t in tensors]
    theirs = [t.clone().requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    bias = {"bias": ours[2]} if case.bias else {}
    y = conv2d(
        *ours[:2],
        stride=case.stride,
        padding=case.padding_pairs,
        dilation=case.dilation,
        **bias,
    )
    grad = torch.randn(y.shape).to(dtype)
    y.backward(grad)
    for group in (theirs, exact):
        z = case.torch(*group[:2], group[2] if case.bias else None)
        z.backward(grad.to(z.dtype))
    for our, their, reference in zip(ours, theirs, exact, strict=True):
        assert our.grad is not None
        assert our.grad.dtype == dtype
        their_grad = finite_of_torch(their.grad, reference.grad)
        error, torchs = ((t.double() - reference.grad).abs().max() for t in (our.grad, their_grad))
        assert error <= 2 * torchs + FLOOR[dtype] * reference.grad.abs().max()


def test_only_the_gradients_that_are_asked_for():
    x, weight, _ = Case().tensors()
    weight.requires_grad_()
    conv2d(x, weight).sum().backward()
    assert weight.grad is not None
    assert x.grad is None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_operator_is_registered_correctly(bias, requires_grad):
    x, weight, offset = Case(n=2, bias=bias).tensors()
    for tensor in (x, weight, offset):
        if tensor is not None:
            tensor.requires_grad_(requires_grad)
    arguments = (x, weight, offset, [2, 1], [1, 0, 2, 1], [1, 2], 1, False)
    torch.library.opcheck(torch.ops.triton_ext.conv.default, arguments)


def test_fake_tensors_have_the_shape_and_strides_of_real_ones():
    tensors = Case(n=2, h=9, w=7).tensors()[:2]
    real = conv2d(*tensors, stride=2, padding=((1, 0), (2, 1)))
    with FakeTensorMode() as mode:
        fake = conv2d(*(mode.from_tensor(t) for t in tensors), stride=2, padding=((1, 0), (2, 1)))
    assert fake.shape == real.shape
    assert fake.stride() == real.stride()
    assert fake.dtype == real.dtype


def test_fake_tensors_are_refused_like_real_ones():
    x, weight, _ = Case(r=7).tensors()
    with FakeTensorMode() as mode, pytest.raises(DescriptorError, match="larger than padded input"):
        conv2d(mode.from_tensor(x), mode.from_tensor(weight))


def test_forward_mode_is_not_silently_zero():
    x, weight, _ = Case().tensors()
    with pytest.raises(NotImplementedError, match="forward-mode derivatives are not supported"):
        torch.func.jvp(lambda t: conv2d(t, weight), (x,), (torch.ones_like(x),))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight, torch.ones_like(weight))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            conv2d(x, dual)
        # A tensor without a tangent is none of its business.
        conv2d(x, weight)


def test_compiles_into_one_graph():
    x, weight, bias = Case(bias=True).tensors()

    def function(x, weight, bias):
        return conv2d(x, weight, bias, padding=1).relu()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, bias), function(x, weight, bias))
