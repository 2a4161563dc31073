"""The arguments of the operators: every spelling and every refusal.

``interpreter_functional.py`` has the results, in a process whose kernels are interpreted.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
import triton
from torch.autograd import forward_ad
from triton_ext import ops
from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.dispatch_cache import DispatchCache
from triton_ext.ops.core.problem import ConvParameters, numbers

F = torch.nn.functional


def half(*shape: int) -> torch.Tensor:
    return channels_last(torch.ones(shape, dtype=torch.float16))


X, WEIGHT, BIAS = half(2, 8, 6, 5), half(16, 8, 3, 3), torch.ones(16, dtype=torch.float16)
DY = half(2, 16, 4, 3)


# --- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dims", "expected"),
    [
        (2, 1, [2]),
        (2, 3, [2, 2, 2]),
        ((1, 2), 2, [1, 2]),
        ([3], 2, [3, 3]),
        (torch.tensor(2), 2, [2, 2]),
        (torch.Size((1, 2, 3)), 3, [1, 2, 3]),
    ],
)
def test_numbers(value, dims, expected):
    assert numbers("stride", value, dims) == tuple(expected)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (1, [1, 1, 1, 1]),
        ((1, 2), [1, 1, 2, 2]),
        ((3,), [3, 3, 3, 3]),
        (((1, 2), (3, 4)), [1, 2, 3, 4]),
        ([1, (3, 4)], [1, 1, 3, 4]),
        ("valid", [0, 0, 0, 0]),
        # Reach 2 * 2 and 3 * 1: the odd one is larger at its high side.
        ("same", [2, 2, 1, 2]),
    ],
)
def test_padding(padding, expected):
    assert ConvParameters.parse((1, padding, (2, 1), 1), (3, 4)).padding == tuple(expected)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_sizes_are_torchs(stride, extra):
    if extra >= stride:
        return
    y = F.conv_transpose2d(torch.ones(1, 1, 5, 6), torch.ones(1, 1, 3, 2), None, stride, 1, extra)
    found = ConvParameters.parse((stride, 1, 1, 1), (3, 2))
    size = found.transposed_size((5, 6), (3, 2), (extra, extra))
    assert tuple(size) == y.shape[2:]
    assert found.output_size(size, (3, 2)) == [5, 6]


def test_the_oldest_plans_go():
    cache: DispatchCache[int] = DispatchCache(size=2)
    for key in range(3):
        cache.keep(key, key * 10)
    assert [cache.get(key) for key in range(3)] == [None, 10, 20]
    cache.clear()
    assert cache.get(2) is None


def test_threads_wait_for_each_other_where_a_cache_changes():
    cache: DispatchCache[int] = DispatchCache(size=1)
    other = threading.Thread(target=cache.clear)

    class Interrupted(dict):
        def __len__(self):
            size = super().__len__()
            if not other.ident:
                other.start()
                other.join(0.05)
            return size

    cache._values = Interrupted(first=1)
    assert cache.keep("second", 2) == 2
    other.join()
    assert not cache._values


# --- refusals of all ------------------------------------------------------------------------------


def refused(error, match, function, *given, **keywords):
    with pytest.raises(error, match=match):
        function(*given, **keywords)


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        (
            {"stride": "1"},
            ValueError,
            r"stride: expected one integer or \(h, w\), below 2\*\*31, got '1'",
        ),
        ({"stride": (1, 2, 3)}, ValueError, r"stride: expected one integer or \(h, w\)"),
        ({"stride": (1, 1 << 31)}, ValueError, r"stride: expected .* got \(1, 2147483648\)"),
        ({"padding": 1 << 62}, ValueError, f"padding: expected .* got {1 << 62}"),
        ({"padding": ((1 << 63, 0), (0, 0))}, ValueError, "padding: expected .* below"),
        ({"dilation": -1 << 70}, ValueError, f"dilation: expected .* got -{1 << 70}"),
        ({"groups": 1 << 70}, ValueError, f"groups must be an integer .* got {1 << 70}"),
        ({"dilation": 1.5}, ValueError, "dilation: expected one integer .* got 1.5"),
        ({"padding": (1, 2, 3)}, ValueError, r'\(\(top, bottom\), \(left, right\)\), "same" or'),
        ({"padding": "full"}, ValueError, "padding: expected .* got 'full'"),
        ({"padding": -1}, ValueError, "padding: must not be negative, got -1"),
        ({"padding": "same", "stride": 2}, ValueError, r'"same" needs stride 1, got .*\(2, 2\)'),
        ({"groups": 0}, ValueError, "conv2d: groups must be at least 1, got 0"),
        ({"groups": 3}, ValueError, r"16 channels of weight .* do not divide into 3 groups"),
        ({"groups": 2}, ValueError, r"x has 8 channels, weight .* with groups=2 expects 16"),
        ({"fallback": "cudnn"}, ValueError, 'expected "error" or "torch", got \'cudnn\''),
        ({"bias": BIAS[:3]}, ValueError, r"expected bias \[16\], got \[3\]"),
        ({"bias": 1}, TypeError, "conv2d: bias must be a tensor, got int"),
        ({"bias": BIAS.float()}, TypeError, "bias is torch.float32, x is torch.float16"),
        ({"bias": BIAS.to("meta")}, ValueError, "bias is on meta, x is on cpu"),
        ({"activation": "swish"}, ValueError, "an activation of none, relu, .*, got 'swish'"),
        (
            {"residual": DY[:1]},
            ValueError,
            r"residual \[2, 16, 4, 3\] or \[2, 16, 1, 1\], got \[1, 16, 4, 3\]",
        ),
        ({"residual": DY[:1, :, :1, :1]}, ValueError, r"\[2, 16, 1, 1\], got \[1, 16, 1, 1\]"),
        ({"residual": DY[:, :1, :1, :1]}, ValueError, r"\[2, 16, 1, 1\], got \[2, 1, 1, 1\]"),
        ({"residual": DY[:, :, :1]}, ValueError, r"\[2, 16, 1, 1\], got \[2, 16, 1, 3\]"),
        ({"residual": 1}, TypeError, "residual must be a tensor, got int"),
        ({"scale": BIAS[:3]}, ValueError, r"expected scale \[16\] or one number, got \[3\]"),
        ({"scale": BIAS.to("meta")}, ValueError, "scale is on meta, x is on cpu"),
        ({"amax": torch.zeros(2)}, ValueError, r"amax of one float32, got \[2\]"),
        ({"out_scale": BIAS[:1]}, ValueError, r"out_scale of one float32, got .*float16"),
        ({"out": DY.float()}, ValueError, r"expected out .* of torch.float16, got .*float32"),
        ({"out": DY[:1]}, ValueError, r"expected out \[2, 16, 4, 3\]"),
        ({"out": DY.to("meta")}, ValueError, "conv2d: out is on meta, x is on cpu"),
        ({"out": DY.clone().requires_grad_()}, RuntimeError, "out= and amax= do not support auto"),
        ({"amax": torch.zeros(1, device="meta")}, ValueError, "amax is on meta, x is on cpu"),
        ({"out": DY.contiguous()}, ValueError, r"expected out dense and channels-last, got"),
        ({"groups": 1.0}, ValueError, r"conv2d: groups must be an integer below 2\*\*31, got 1.0"),
        ({"groups": "2", "activation": "relu"}, ValueError, "groups must be an integer .* got '2'"),
        ({"groups": True}, ValueError, "groups must be an integer .* got True"),
        ({"stride": True}, ValueError, "stride: expected one integer .* got True"),
        ({"padding": (True, 1)}, ValueError, "padding: expected one integer"),
        ({"out_dtype": "float32"}, TypeError, "out_dtype must be a torch.dtype, got 'float32'"),
        ({"out_dtype": torch.int32}, TypeError, "torch.int32 would cut off the fractions"),
        ({"scale": BIAS.to(torch.complex64)}, TypeError, "scale must be real, got torch.complex64"),
        ({"residual": DY.double()}, TypeError, "expected floating-point numbers of at most 2 byte"),
        ({"residual": DY.bool()}, TypeError, "residual must hold real numbers, got torch.bool"),
        ({"epilogue_operands": (BIAS,)}, ValueError, "epilogue_operands without epilogue"),
        ({"epilogue_operands": BIAS}, TypeError, "a sequence of tensors, got Tensor"),
        ({"epilogue_operands": (1.0,)}, TypeError, "a sequence of tensors, got float"),
        ({"epilogue": max}, TypeError, r"expected a @triton.jit function"),
    ],
)
def test_arguments_that_do_not_fit(keywords, error, match):
    refused(error, match, ops.conv2d, X, WEIGHT, **keywords)


@pytest.mark.parametrize("fallback", ["error", "torch"])
@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ((1, WEIGHT), TypeError, "x must be a tensor, got int"),
        ((X, None), TypeError, "weight must be a tensor, got NoneType"),
        ((X[0, 0], WEIGHT), ValueError, r"expected x \[N, Ci, H, W\] and weight \[Co, Ci / groups"),
        ((half(2, 8, 6), half(16, 8, 3)), ValueError, r"got \[1, 2, 8, 6\] and \[16, 8, 3\]"),
        ((X[:, :4], WEIGHT), ValueError, r"x has 4 channels, weight \[16, 8, 3, 3\] expects 8"),
        ((X, WEIGHT.bfloat16()), TypeError, "weight is torch.bfloat16, x is torch.float16"),
        ((X, WEIGHT.to("meta")), ValueError, "weight is on meta, x is on cpu"),
        ((X[:, :, :0], WEIGHT), ValueError, "only the batch may be empty"),
    ],
)
def test_tensors_that_do_not_fit(given, error, match, fallback):
    refused(error, f"conv2d: {match}|{match}", ops.conv2d, *given, fallback=fallback)


def test_arrays_of_numpy_are_named_with_the_way_out():
    numpy = pytest.importorskip("numpy")
    array, way_out = numpy.zeros((2, 16, 6, 6)), "a ndarray of numpy; torch.from_numpy makes"
    for call, which in (
        (lambda: ops.conv2d(array, WEIGHT), "conv2d: x"),
        (lambda: ops.conv2d(X, array), "conv2d: weight"),
        (lambda: ops.conv2d(X, WEIGHT, array), "conv2d: bias"),
        (lambda: ops.conv2d(X, WEIGHT, residual=array), "conv2d: residual"),
        (lambda: ops.conv2d_weight(X, (32, 16, 3, 3), array), "conv2d_weight: grad_output"),
    ):
        with pytest.raises(TypeError, match=f"^{which} must be a tensor, got {way_out}"):
            call()


def test_steps_of_nothing_are_refused():
    """Sizes are divided by strides before a plan looks at them."""
    given = {"stride": 0, "dilation": (1, -1)}
    for name, value in given.items():
        refused(
            ValueError, f"^conv2d_input: stride and dilation must be at least 1, got .*{value}",
            ops.conv2d_input, X.shape, WEIGHT, DY, **{name: value},
        )  # fmt: skip
        refused(
            ValueError, f"^conv2d_weight: stride and dilation must be at least 1, got .*{value}",
            ops.conv2d_weight, X, WEIGHT.shape, DY, **{name: value},
        )  # fmt: skip


def test_an_endless_stride_is_refused_and_not_walked():
    found = ops.support(X.to("meta"), WEIGHT.to("meta"), stride=1 << 30)
    assert f"stride {1 << 30} in H: must be at most 46340" in "".join(found.dgrad)


def test_padding_as_an_array():
    numpy = pytest.importorskip("numpy")
    found = ConvParameters.parse((1, numpy.array([1, 2]), 1, 1), (3, 3))
    assert found.padding == (1, 1, 2, 2)


def test_a_gradient_of_no_channels_is_refused():
    with pytest.raises(ValueError, match=r"expected sizes of at least 1 .*\[1, 0, 6"):
        ops.conv2d_weight(torch.zeros(1, 8, 8, 8), (0, 8, 3, 3), torch.zeros(1, 0, 6, 6))


def test_nested_tensors_are_named():
    images = [torch.ones(8, 6, 5), torch.ones(8, 6, 5)]
    nested = torch.nested.nested_tensor(images)
    refused(TypeError, "x must be a dense tensor, got a nested one", ops.conv2d, nested, WEIGHT)


def test_other_numbers_of_dimensions():
    refused(ValueError, r"conv1d: expected x \[N, Ci, L\]", ops.conv1d, X, WEIGHT)
    refused(ValueError, r"conv3d: expected x \[N, Ci, D, H, W\]", ops.conv3d, X[0], WEIGHT)
    refused(
        ValueError,
        r"conv_transpose1d: expected x \[N, Ci, L\] and weight \[Ci, Co",
        ops.conv_transpose1d,
        X,
        WEIGHT,
    )


@triton.jit
def takes_one_operand(tile, rows, columns, operand):
    return tile


def test_epilogues_with_other_parameters_are_named():
    match = r"takes_one_operand\(tile, rows, columns, operand\) .* and {} epilogue_operands"
    for operands in ((), (BIAS, BIAS)):
        keywords = {"epilogue": takes_one_operand, "epilogue_operands": operands}
        refused(TypeError, match.format(len(operands)), ops.conv2d, X, WEIGHT, **keywords)


def test_tensors_that_are_not_dense():
    match = "x must be a dense tensor, got torch.sparse_coo"
    refused(TypeError, match, ops.conv2d, X.to_sparse(), WEIGHT)


def test_unbatched_tensors_go_together():
    match = r"x has no batch dimension, so residual must have 3 dimensions, got \[1, 16, 4, 3\]"
    refused(ValueError, match, ops.conv2d, X[0], WEIGHT, residual=DY[:1])


def test_gradients_name_their_own_arguments():
    match = r"conv2d_input: expected input_size of 4 integers below 2\*\*31, got "
    for size, found in ((6, "6"), (None, "NoneType"), (X, "Tensor"), ((2, 8, 6.0, 5), "")):
        refused(ValueError, match + found, ops.conv2d_input, size, WEIGHT, DY)
    refused(ValueError, match, ops.conv2d_input, (2, 8, 1 << 70, 5), WEIGHT, DY)
    match = r"conv2d_weight: expected weight_size of 4 integers below 2\*\*31, got 3"
    refused(ValueError, match, ops.conv2d_weight, X, 3, DY)
    match = "conv2d_weight: grad_output must be a tensor, got NoneType"
    refused(TypeError, match, ops.conv2d_weight, X, WEIGHT.shape, None)
    match = r"conv2d_input: grad_output has 16 channels, weight \[8, 8, 3, 3\] expects 8"
    refused(ValueError, match, ops.conv2d_input, X.shape, WEIGHT[:8], DY)
    match = "conv2d_input: weight is torch.float16, grad_output is torch.float32"
    refused(TypeError, match, ops.conv2d_input, X.shape, WEIGHT.half(), DY.float())
    match = "conv_transpose2d: weight is torch.float16, x is torch.float32"
    refused(TypeError, match, ops.conv_transpose2d, DY.float(), WEIGHT.half())
    match = "conv2d_input: weight is on cpu, grad_output is on meta"
    refused(ValueError, match, ops.conv2d_input, X.shape, WEIGHT, DY.to("meta"))
    match = "conv2d_input: 16 channels of weight .* do not divide into 3 groups"
    refused(ValueError, match, ops.conv2d_input, X.shape, WEIGHT, DY, groups=3)
    match = "conv_transpose2d: stride and dilation must be at least 1"
    refused(ValueError, match, ops.conv_transpose2d, DY, WEIGHT, stride=0)


def test_what_is_written_lies_nowhere_else():
    one, bias, y = torch.ones(1), torch.ones(16), DY.float()
    for keywords in (
        {"scale": one},
        {"out_scale": one},
        {"bias": bias, "amax": bias[3:4]},
        {"residual": y, "amax": y[0, 0, 0, :1]},
        {"out": y, "amax": y[1, 0, 0, :1]},
    ):
        match = "conv2d: amax lies in the memory of an operand"
        refused(
            ValueError, match, ops.conv2d, X.float(), WEIGHT.float(), **{"amax": one, **keywords}
        )
    x, weight = X.float(), WEIGHT.float()
    for amax in (x[0, 0, 0, :1], weight[0, 0, 0, :1]):
        refused(ValueError, "amax lies in the memory", ops.conv2d, x, weight, amax=amax)
    refused(ValueError, "out lies in the memory", ops.conv2d, x, weight, out=y, residual=y)


# --- what kernels do not take ---------------------------------------------------------------------


def test_memory_order_is_named_with_what_to_do():
    for x, weight, function, advice in (
        (X, WEIGHT, ops.conv2d, r"x.contiguous\(memory_format=torch.channels_last\)"),
        (half(1, 8, 3, 4, 5), half(4, 8, 1, 1, 1), ops.conv3d, r"torch.channels_last_3d\)"),
        (half(1, 8, 7), half(4, 8, 3), ops.conv1d, r"x.transpose\(1, 2\).contiguous\(\).transp"),
    ):
        match = rf"channels must be contiguous .* channel stride \d+ of x; call .*{advice}"
        refused(ValueError, match, function, x.contiguous(), weight)
    name = "conv_transpose2d: channels must .* of x"
    refused(ValueError, name, ops.conv_transpose2d, DY.contiguous(), half(16, 8, 3, 3))
    name = "conv2d_input: channels must .* of grad_output"
    refused(ValueError, name, ops.conv2d_input, X.shape, WEIGHT, DY.contiguous())
    name = "conv2d_weight: channels must .* of grad_output"
    refused(ValueError, name, ops.conv2d_weight, X, WEIGHT.shape, DY.contiguous())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64], ids=str)
def test_dtypes_are_named_with_those_that_work(dtype):
    match = rf"dtype {dtype} is not supported, use float16, bfloat16"
    refused(TypeError, match, ops.conv2d, X.to(dtype), WEIGHT.to(dtype))


def test_without_a_gpu_the_way_out_is_named():
    if torch.cuda.is_available():
        pytest.skip("tensors on the CPU are refused all the same, with the same words")
    for function in (
        lambda: ops.conv2d(X, WEIGHT),
        lambda: ops.conv_transpose2d(DY, WEIGHT),
        lambda: ops.conv2d_weight(X, WEIGHT.shape, DY),
        lambda: ops.conv2d(X, WEIGHT, activation="relu"),
    ):
        # Before 3.6 there is nothing; every release that is supported has im2col.
        refused(UnsupportedError, r"set TRITON_INTERPRET=1 before importing", function)


# --- transposed convolutions and gradients --------------------------------------------------------

BACK = half(16, 8, 3, 3)


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        ({"padding": "same"}, ValueError, "conv_transpose2d: padding must be numbers, got 'same'"),
        (
            {"output_padding": 1},
            ValueError,
            r"output_padding must be .* smaller than stride or dil",
        ),
        ({"output_padding": -1}, ValueError, "output_padding must be at least 0"),
        ({"output_padding": 1, "dilation": 2}, UnsupportedError, 'fallback="torch" takes it'),
        ({"padding": 4}, ValueError, r"output sizes of at least 1, got \[-2, -3\]"),
        ({"bias": BIAS}, ValueError, r"expected bias \[8\], got \[16\]"),
        ({"groups": 3}, ValueError, "16 channels of weight .* do not divide into 3 groups"),
    ],
)
def test_transposed_arguments_that_do_not_fit(keywords, error, match):
    refused(error, match, ops.conv_transpose2d, DY, BACK, **keywords)


def test_an_output_padding_beyond_the_stride_is_left_to_torch():
    x, weight = DY.float(), BACK.float()
    how = {"output_padding": 1, "dilation": 2}
    y = ops.conv_transpose2d(x, weight, fallback="torch", **how)
    torch.testing.assert_close(y, F.conv_transpose2d(x, weight, **how))


def test_gradients_of_what_does_not_fit():
    refused(
        ValueError,
        r"conv2d_input: expected input_size \[2, 8, \.\.\.\], got \[2, 4",
        ops.conv2d_input,
        (2, 4, 6, 5),
        WEIGHT,
        DY,
    )
    refused(
        ValueError,
        r"conv2d_input: expected grad_output \[N, Co, 5, 3\] for an input of \[7, 5\] pixels, got",
        ops.conv2d_input,
        (2, 8, 7, 5),
        WEIGHT,
        DY,
    )
    refused(
        ValueError,
        r"conv2d_weight: expected weight_size of 4 integers below 2\*\*31, got \(16, 8, 3\)",
        ops.conv2d_weight,
        X,
        (16, 8, 3),
        DY,
    )
    refused(
        ValueError,
        r"conv2d_weight: expected grad_output \[N, Co, 5, 3\]",
        ops.conv2d_weight,
        X,
        (16, 8, 2, 3),
        DY,
    )
    refused(
        ValueError,
        "conv2d_weight: 8 channels of x and 16 of grad_output do not divide into 3 groups",
        ops.conv2d_weight,
        X,
        (16, 2, 3, 3),
        DY,
        groups=3,
    )
    refused(
        ValueError,
        "conv2d_weight: expected x and grad_output of rank 4",
        ops.conv2d_weight,
        X[0],
        (16, 8, 3, 3),
        DY,
    )
    refused(
        ValueError,
        "conv2d_weight: x has 2 images, grad_output has 1",
        ops.conv2d_weight,
        X,
        (16, 8, 3, 3),
        DY[:1],
    )
    refused(
        TypeError,
        "conv2d_weight: grad_output is torch.float32, x is",
        ops.conv2d_weight,
        X,
        (16, 8, 3, 3),
        DY.float(),
    )


def test_operators_called_by_name_check_too():
    walk = ([1, 1], [0, 0, 0, 0], [1, 1], 1)
    dgrad, wgrad = torch.ops.triton_ext.dgrad, torch.ops.triton_ext.wgrad
    refused(
        ValueError,
        r"expected dy \[N, Co, 5, 3\] for an input of \[7, 5\] pixels, got \[2, 16, 4, 3\]",
        dgrad,
        DY,
        WEIGHT,
        None,
        *walk,
        [7, 5],
        True,
    )
    refused(ValueError, r"x and dy of the same rank", wgrad, X[0, 0], DY, *walk, [3, 3], True)
    refused(
        ValueError,
        "8 channels of x and 16 of dy do not divide into 3",
        wgrad,
        X,
        DY,
        *walk[:3],
        3,
        [3, 3],
        True,
    )


# --- derivatives that there are not ---------------------------------------------------------------


def test_out_and_amax_are_not_differentiated():
    weight = WEIGHT.clone().requires_grad_()
    for keywords in ({"out": DY.clone()}, {"amax": torch.zeros(1)}):
        match = "out= and amax= do not support automatic differentiation"
        refused(RuntimeError, match, ops.conv2d, X, weight, **keywords)


def test_out_must_not_lie_in_an_operand():
    memory = half(2, 16, 4, 3)
    weight = half(16, 16, 1, 1)
    for keywords in ({}, {"residual": memory}):
        x = memory if not keywords else memory.clone()
        match = "out lies in the memory of an operand"
        refused(ValueError, match, ops.conv2d, x, weight, out=memory, **keywords)


@pytest.mark.parametrize("name", ["weight", "residual"])
def test_forward_mode_is_not_silently_zero(name):
    with forward_ad.dual_level():
        tensors = {"weight": WEIGHT, "residual": DY}
        primal = tensors[name]
        tensors[name] = forward_ad.make_dual(primal, torch.ones_like(primal))
        match = "forward-mode derivatives are not supported"
        refused(NotImplementedError, match, ops.conv2d, X, **tensors)


# --- left to torch --------------------------------------------------------------------------------


def _forward(operator, activation="none"):
    """Returns a convolution of either: the functions', or torch's as it would be written."""

    def ours(x, weight, bias):
        keywords = {} if activation == "none" else {"activation": activation}
        return getattr(ops, operator)(x, weight, bias, stride=2, fallback="torch", **keywords)

    def torchs(x, weight, bias):
        y = getattr(F, operator)(x, weight, bias, stride=2)
        return y.relu() if activation == "relu" else y

    return ours, torchs


@pytest.mark.parametrize(
    ("operator", "activation"),
    [("conv2d", "none"), ("conv2d", "relu"), ("conv_transpose2d", "none")],
)
def test_fallback_has_forward_mode_derivatives(operator, activation):
    ours, torchs = _forward(operator, activation)
    operands = (torch.randn(1, 3, 4, 4), torch.randn(3, 3, 2, 2), torch.randn(3))
    tangents = tuple(map(torch.randn_like, operands))
    found, expected = (torch.func.jvp(each, operands, tangents) for each in (ours, torchs))
    torch.testing.assert_close(found, expected)
    assert expected[1].abs().max() > 0

    def of_x(function, transform):
        return transform(lambda x: function(x, *operands[1:]).square().sum())(operands[0])

    for transform in (torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(of_x(ours, transform), of_x(torchs, transform))


def test_fallback_has_tangents_of_dual_tensors():
    ours, torchs = _forward("conv2d")
    x, weight, bias = torch.randn(1, 3, 4, 4), torch.randn(3, 3, 2, 2), torch.randn(3)
    found = []
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight.requires_grad_(), torch.ones_like(weight))
        for function in (ours, torchs):
            y = function(x, dual, bias)
            (dw,) = torch.autograd.grad(y.square().sum(), dual, create_graph=True)
            found.append([forward_ad.unpack_dual(each).tangent for each in (y, dw)])
    torch.testing.assert_close(*found)


def test_gradients_left_to_torch_have_forward_mode_derivatives():
    x, weight, dy = torch.randn(2, 3, 4, 4), torch.randn(5, 3, 3, 3), torch.randn(2, 5, 2, 2)
    for ours, torchs, first, other, size in (
        (ops.conv2d_input, torch.nn.grad.conv2d_input, dy, weight, x.shape),
        (ops.conv2d_weight, torch.nn.grad.conv2d_weight, dy, x, weight.shape),
    ):
        arguments = (size, other) if other is weight else (other, size)

        def found(function, arguments=arguments, first=first, **keywords):
            tangent = torch.ones_like(first)
            return torch.func.jvp(
                lambda t: function(*arguments, t, **keywords), (first,), (tangent,)
            )

        torch.testing.assert_close(found(ours, fallback="torch"), found(torchs))


def test_what_has_no_derivative_has_none_by_torch():
    out = torch.empty_like(DY)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, torch.ones_like(X))
        match = "forward-mode derivatives are not supported"
        with pytest.raises(NotImplementedError, match=match):
            ops.conv2d(x, WEIGHT, out=out, fallback="torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fallback_is_torchs_result(dtype):
    x, weight, bias = (torch.randn(t.shape).to(dtype) for t in (X, WEIGHT, BIAS))
    how = {"stride": (2, 1), "padding": 1, "dilation": 2}
    y = ops.conv2d(x, weight, bias, fallback="torch", **how)
    torch.testing.assert_close(y, F.conv2d(x, weight, bias, **how))
    assert y.is_contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(y)
    amax = torch.zeros(1)
    ops.conv2d(x, weight, bias, out=out, amax=amax, fallback="torch", **how)
    torch.testing.assert_close(out, y, rtol=1e-4, atol=1e-4)
    assert amax.item() == pytest.approx(y.abs().max().item(), rel=1e-4)


def test_fallback_takes_strides_that_tma_has_not():
    x, weight = torch.randn(1, 4, 30, 30), torch.randn(4, 4, 1, 1)
    y = ops.conv2d(x, weight, stride=9, fallback="torch")
    torch.testing.assert_close(y, F.conv2d(x, weight, stride=9))
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fakes = [channels_last(mode.from_tensor(t).half()) for t in (x, weight)]
        refused(DescriptorError, "conv stride 9 in H", ops.conv2d, *fakes, stride=9)
        assert ops.conv2d(*fakes, stride=9, fallback="torch").shape == (1, 4, 4, 4)


# --- who refuses ---------------------------------------------------------------------------------

DOUBLE_DY, DOUBLE_WEIGHT, DOUBLE_X = (tensor.double() for tensor in (DY, WEIGHT, X))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("conv_transpose2d", lambda: ops.conv_transpose2d(DOUBLE_DY, DOUBLE_WEIGHT)),
        ("conv2d_input", lambda: ops.conv2d_input(X.shape, DOUBLE_WEIGHT, DOUBLE_DY)),
        ("conv2d_weight", lambda: ops.conv2d_weight(DOUBLE_X, WEIGHT.shape, DOUBLE_DY)),
    ],
)
def test_a_refused_dtype_is_refused_by_the_function_that_was_called(name, call):
    with pytest.raises(TypeError, match=rf"^{name}: dtype torch.float64 is not supported, use "):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may take it")
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("conv_transpose2d", lambda: ops.conv_transpose2d(DY, WEIGHT)),
        ("conv2d_input", lambda: ops.conv2d_input(X.shape, WEIGHT, DY)),
        ("conv2d_weight", lambda: ops.conv2d_weight(X, WEIGHT.shape, DY)),
    ],
)
def test_a_refused_device_is_refused_by_the_function_that_was_called(name, call):
    with pytest.raises(UnsupportedError, match=rf"^{name}: "):
        call()


def test_a_refusal_has_the_words_of_the_function():
    from triton_ext.ops.api.convolve import renamed

    refusal = UnsupportedError("conv_dgrad: dy has 1 output channels in each of 2 groups")
    found = renamed("conv_transpose1d", refusal, {"dy": "x", "output channels": "input channels"})
    assert str(found) == "conv_transpose1d: x has 1 input channels in each of 2 groups"
    assert type(found) is UnsupportedError
    other = ValueError("conv1d: something else")
    assert renamed("conv_transpose1d", other, {}) is other


@triton.jit
def returns_nothing(tile, rows, columns):
    tile + 1


@triton.jit
def returns_none(tile, rows, columns):
    if columns is None:
        return tile
    return None


@triton.jit
def returns_two(tile, rows, columns):
    return tile, rows


@triton.jit
def returns_from_both_branches(tile, rows, columns):
    if rows is None:
        return tile
    else:
        return tile * 2


@pytest.mark.parametrize(
    ("function", "what"),
    [(returns_nothing, "nothing"), (returns_none, "nothing"), (returns_two, "a tuple")],
)
def test_an_epilogue_returns_a_tile(function, what):
    name = function.fn.__name__
    message = rf"^epilogue: {name}\(tile, rows, columns\) returns {what}, expected a tile of the "
    with pytest.raises(TypeError, match=message):
        ops.conv2d(X, WEIGHT, epilogue=function)


def test_an_epilogue_may_return_in_branches():
    from triton_ext.ops.core.epilogue import result_refusal

    assert result_refusal(returns_from_both_branches) == ""
    # Without a source there is nothing to read.
    assert result_refusal(SimpleNamespace(fn=len)) == ""
