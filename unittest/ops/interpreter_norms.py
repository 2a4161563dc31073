"""BatchNorm and GroupNorm in the interpreter.

Against torch in float64, gradients against its autograd.
"""

from __future__ import annotations

import gc
import re

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

from norm_cases import (
    FLOAT_DTYPES,
    NormCase,
    assert_close,
    expected_of,
    gradients_of,
    random_case,
    rows_of,
    run_ours,
)
from recorded_graphs import recording
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.multiprocessing.reductions import StorageWeakRef
from triton_ext.errors import UnsupportedError
from triton_ext.ops import batch_norm, group_norm, norm_problem
from triton_ext.ops.core.launcher import Launches
from triton_ext.ops.norms.checks import IS_OPERATOR

HALF = torch.float16


@pytest.mark.parametrize("seed", range(36))
def test_batch_norm_and_its_gradients(seed):
    case = random_case("batch", seed)
    assert_close(run_ours(case), expected_of(case), case)


@pytest.mark.parametrize("seed", range(36))
def test_group_norm_and_its_gradients(seed):
    case = random_case("group", seed)
    assert_close(run_ours(case), expected_of(case), case)


@pytest.mark.parametrize("kind", ["batch", "group"])
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "gelu_tanh", "tanh"])
def test_every_activation(kind, activation):
    case = NormCase(kind, (2, 24, 9, 7), torch.float32, groups=8, activation=activation, scale=3.0)
    assert_close(run_ours(case), expected_of(case), case)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_a_mean_far_from_zero_costs_no_digits(kind):
    """The difference of means of squares would have a relative error of 0.06 here."""
    case = NormCase(kind, (2, 32, 40, 31), torch.float32, groups=8, mean=1e3)
    # x itself is rounded to 6e-5 of its standard deviation.
    assert_close(run_ours(case), expected_of(case), case, tolerance=2e-4)


def test_chunks_whose_means_differ_are_merged():
    x = rows_of((1, 8, 4000), torch.float32, 0)
    x += torch.linspace(0, 100, 4000)
    y = batch_norm(x, None, None, None, None, training=True)
    expected = torch.nn.functional.batch_norm(x.double(), None, None, training=True)
    assert (y - expected).abs().max() < 1e-5


def test_the_first_tile_may_be_an_outlier():
    x = rows_of((1, 8, 40000), torch.float32, 0) + 1000
    x[:, :, :500] = 0
    y = group_norm(x, 4)
    expected = torch.nn.functional.group_norm(x.double(), 4)
    assert (y - expected).abs().max() < 1e-4


def running(channels: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, channels).to(dtype), torch.linspace(0.5, 2, channels).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_running_statistics(momentum, dtype):
    x = rows_of((2, 24, 5, 3), HALF, 0)
    mean, variance = running(24, dtype)
    expected = [t.double() for t in running(24, dtype)]
    versions = mean._version, variance._version
    batch_norm(x, None, None, mean, variance, training=True, momentum=momentum)
    torch.nn.functional.batch_norm(x.double(), *expected, training=True, momentum=momentum or 0.0)
    limit = 1e-3 if dtype == HALF else 1e-5
    assert (mean - expected[0]).abs().max() < limit
    assert (variance - expected[1]).abs().max() < limit
    # As behind torch's: what torch's own has saved of them may go through its backward.
    assert (mean._version, variance._version) == versions


@pytest.mark.parametrize("training", [False, True])
def test_torchs_backward_runs_behind_our_forward(training):
    """One norm over several levels of a network, of which the first one is torch's."""
    x = rows_of((2, 24, 5, 3), torch.float32, 0).requires_grad_()

    def gradient(norm):
        mean, variance = running(24, torch.float32)
        y = torch.nn.functional.batch_norm(x, mean, variance, training=training)
        with torch.no_grad():
            norm(x.detach() + 1, mean, variance)
        (found,) = torch.autograd.grad(y.square().sum(), x)
        return found

    def ours(x, mean, variance):
        batch_norm(x, None, None, mean, variance, training=True)

    def torchs(x, mean, variance):
        torch.nn.functional.batch_norm(x, mean, variance, training=True)

    expected = gradient(torchs)
    assert (gradient(ours) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_statistics_may_move_between_an_evaluation_and_its_backward():
    x, weight = rows_of((2, 24, 5, 3), torch.float32, 0).requires_grad_(), torch.rand(24)
    expected, found = [], []
    for moves, gradients in ((False, expected), (True, found)):
        mean, variance = running(24, torch.float32)
        y = batch_norm(x, weight, None, mean, variance, training=False, activation="silu")
        if moves:
            batch_norm(9 * x.detach(), None, None, mean, variance, training=True)
        gradients += torch.autograd.grad(y.sum(), x)
    assert torch.equal(found[0], expected[0])


def test_running_statistics_in_inference_mode():
    x, weight = rows_of((2, 24, 5, 3), HALF, 0), torch.rand(24)
    with torch.inference_mode():
        mean, variance = running(24, torch.float32)
        before = mean.clone()
        y = batch_norm(x, weight, None, mean, variance, training=True)
    assert y.isfinite().all()
    assert not torch.equal(mean, before)


@pytest.mark.parametrize("with_residual", [False, True])
def test_evaluation_uses_running_statistics(with_residual):
    case = NormCase(
        "batch", (2, 40, 5, 3), HALF, activation="relu", residual=with_residual, training=False
    )
    assert_close(run_ours(case), expected_of(case), case)


def test_only_what_is_asked_for_is_differentiated():
    for needs in ("x", "weight", "bias", "residual", "weight bias", "x residual"):
        for training in (True, False):
            case = NormCase(
                "batch", (2, 16, 5, 3), torch.float32, activation="relu", residual=True,
                training=training, needs=tuple(needs.split()),
            )  # fmt: skip
            ours, expected = run_ours(case), expected_of(case)
            assert ours.keys() == expected.keys() == {"y", *needs.split()}
            assert_close(ours, expected, case)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_derivatives_of_gradients_are_torchs(kind):
    case = NormCase(kind, (2, 8, 4, 3), torch.float32, groups=2, activation="tanh")
    ours, expected = (gradients_of(case, twice=True, ours=which) for which in (True, False))
    for found, other in zip(ours, expected, strict=True):
        assert (found - other).abs().max() < 1e-4 * other.abs().max()


@pytest.mark.parametrize("residual", [False, True])
def test_many_gradients_at_a_time(residual):
    x, dy = (rows_of((n, 16, 5, 3), torch.float32, n).requires_grad_(n == 2) for n in (2, 6))
    added = torch.ones_like(x, requires_grad=True) if residual else None
    weight = torch.rand(16, requires_grad=True)
    leaves = [x, weight, *([added] if residual else [])]
    y = batch_norm(x, weight, None, None, None, training=True, activation="relu", residual=added)
    many = dy.unflatten(0, (3, 2))
    found = torch.autograd.grad(y, leaves, many, is_grads_batched=True, retain_graph=True)
    for index, one in enumerate(many):
        for batched, alone in zip(
            found, torch.autograd.grad(y, leaves, one, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(batched[index], alone, atol=1e-5, rtol=1e-4)


def test_compiled_autograd_leaves_kernels_to_the_eager_backward():
    from torch._dynamo import compiled_autograd

    x = rows_of((2, 16, 5, 3), torch.float32, 4).requires_grad_()
    leaves = [x, torch.rand(16, requires_grad=True)]

    def loss() -> torch.Tensor:
        y = batch_norm(*leaves, None, None, None, training=True, activation="relu")
        return group_norm(y, 4).square().sum()

    expected = torch.autograd.grad(loss(), leaves)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss().backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        assert torch.equal(leaf.grad, gradient)


def test_derivatives_of_gradients_behind_a_residual():
    case = NormCase("batch", (2, 8, 4, 3), torch.float32, activation="relu", residual=True)
    ours, expected = (gradients_of(case, twice=True, ours=which) for which in (True, False))
    for found, other in zip(ours, expected, strict=True):
        assert (found - other).abs().max() < 1e-4 * other.abs().max()


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_calls_that_were_seen_are_looked_at_anew(kind):
    """What decides what is computed, and where: each call differs from the first in one thing."""
    x, weight, bias = rows_of((2, 16, 5, 3), HALF, 0), torch.rand(16), torch.rand(16)
    odd = torch.rand(17)[1:].copy_(weight)  # not on a 16-byte boundary
    wide = torch.nn.Parameter(weight.clone())

    def y(x=x, weight=weight, bias=bias, eps=1e-5, activation="relu", groups=4):
        if kind == "group":
            return group_norm(x, groups, weight, bias, eps=eps, activation=activation)
        return batch_norm(
            x, weight, bias, None, None, training=True, eps=eps, activation=activation
        )

    first = y()
    for _ in range(2):
        assert torch.equal(y(), first)
        assert torch.equal(y(weight=odd), first)
        assert torch.equal(y(weight=wide).detach(), first)
        assert y(weight=wide).requires_grad
        assert not torch.equal(y(eps=1.0), first)
        assert torch.equal(y(eps=1), y(eps=1.0))
        assert not torch.equal(y(activation="silu"), first)
        assert not torch.equal(y(bias=None), first)
        assert torch.equal(y(weight=torch._neg_view(-weight).resolve_neg()), first)
        with pytest.raises(UnsupportedError, match="negated view"):
            y(weight=torch._neg_view(weight))
        with pytest.raises(UnsupportedError, match="not channels-last"):
            y(x.contiguous())
        with pytest.raises(ValueError, match=f"^{kind}_norm: expected weight"):
            y(weight=weight[:8])
        if kind == "group":
            assert not torch.equal(y(groups=2), first)
            with torch.autocast("cpu", torch.bfloat16):
                assert y().dtype == torch.float32
            assert y().dtype == HALF


def test_what_a_transform_left_behind():
    """A tensor of a class like any other, without memory."""
    x, weight = rows_of((2, 16, 5, 3), torch.float32, 0), torch.rand(16, requires_grad=True)
    left = []
    torch.func.grad(lambda t: (left.append(t * 2), t.sum())[1])(x)
    expected = batch_norm(x * 2, weight, None, None, None, training=True)
    for _ in range(2):
        y = batch_norm(left[0], weight, None, None, None, training=True)
        assert torch.equal(y, expected)


def test_saved_tensors_may_come_back_in_another_order():
    """As of ``save_on_cpu(pin_memory=True)``, which copies them into contiguous memory."""
    x = rows_of((2, 16, 5, 3), torch.float32, 0)
    residual, weight = (
        torch.randn(2, 16, 5, 3).to(memory_format=torch.channels_last),
        torch.rand(16),
    )

    def gradients(pack):
        leaves = [t.clone().requires_grad_() for t in (x, residual, weight)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = batch_norm(
                leaves[0], leaves[2], None, None, None,
                training=True, activation="relu", residual=leaves[1],
            )  # fmt: skip
        return torch.autograd.grad(y.square().sum(), leaves)

    found = zip(gradients(lambda t: t.contiguous()), gradients(lambda t: t), strict=True)
    assert all(torch.equal(ours, expected) for ours, expected in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_saved_tensors_may_not_come_back_in_another_dtype(dtype):
    # The kernels would read behind the end of smaller ones.
    def pack(tensor):
        return tensor.half() if tensor.dtype == torch.float32 else tensor

    x = rows_of((2, 16, 5, 3), dtype, 0).requires_grad_()
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = batch_norm(x, None, None, None, None, training=True)
        with pytest.raises(TypeError, match=r"gave back x as torch.float16 and means as"):
            y.sum().backward()


@pytest.mark.parametrize("name", ["mean", "weight", "y"])
def test_frozen_statistics_may_not_come_back_in_another_dtype(name):
    x = rows_of((2, 16, 5, 3), HALF, 0).requires_grad_()
    mean, variance = running(16, torch.float32)
    weight = torch.rand(16, requires_grad=True)
    saved = []

    def pack(tensor):
        saved.append(tensor)
        of = {"mean": mean, "weight": weight}.get(name)
        # Statistics are copies.
        is_meant = len(saved) == 5 if of is None else torch.equal(tensor.flatten()[:16], of)
        return tensor.bfloat16() if is_meant else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = batch_norm(
            x, weight, None, mean, variance, training=False, activation="relu", residual=x
        )
    assert len(saved) == 5
    with pytest.raises(TypeError, match="hooks on saved tensors"):
        y.sum().backward()


def test_the_layout_is_that_of_x():
    x = rows_of((2, 24, 5, 3), HALF, 0).requires_grad_()
    y = group_norm(x, 8)
    assert y.is_contiguous(memory_format=torch.channels_last)
    # A gradient in another order, and one without memory of its own.
    for dy in (
        torch.randn(2, 24, 5, 3).half(),
        torch.ones((), dtype=HALF).expand(2, 24, 5, 3),
        torch._neg_view(rows_of((2, 24, 5, 3), HALF, 1)),
    ):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        assert dx.is_contiguous(memory_format=torch.channels_last)
        other = x.detach().double().requires_grad_()
        expected = torch.nn.functional.group_norm(other, 8)
        (expected,) = torch.autograd.grad(expected, other, dy.double())
        assert (dx - expected).abs().max() < 2e-3


def test_a_copied_gradient_is_the_residuals():
    x = rows_of((2, 24, 5, 3), HALF, 0).requires_grad_()
    residual = rows_of((2, 24, 5, 3), HALF, 1).requires_grad_()
    y = batch_norm(x, None, None, None, None, training=True, residual=residual, activation="relu")
    dy = rows_of((2, 24, 5, 3), HALF, 2)
    plain = torch.autograd.grad(y, (x, residual), dy, retain_graph=True)
    for other in (dy.contiguous(), torch._neg_view(-dy)):
        before = other.clone()
        found = torch.autograd.grad(y, (x, residual), other, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
        # The one that autograd keeps is not written to.
        assert torch.equal(other, before)
        assert found[1].data_ptr() != other.data_ptr()


@pytest.mark.parametrize("keeps", [False, True])
def test_the_gradient_of_the_input_waits_for_the_memory_of_y(keeps, monkeypatch):
    # As at the end of a network: nothing else has y, and the gradient has to be copied.
    x = rows_of((2, 24, 5, 3), HALF, 0).requires_grad_()
    residual = rows_of((2, 24, 5, 3), HALF, 1).requires_grad_()
    dy = torch.randn(2, 24, 5, 3).half()

    def times_dy(order):
        y = batch_norm(
            x, None, None, None, None, training=True, residual=residual, activation="relu"
        )
        # Adding keeps no y.
        return y + 0, y.untyped_storage(), dy.contiguous(memory_format=order)

    end, _, grad = times_dy(torch.channels_last)
    expected = torch.autograd.grad(end, (x, residual), grad)
    end, storage, grad = times_dy(torch.contiguous_format)
    of_y = StorageWeakRef(storage)
    del storage
    launch = Launches.launch
    was_freed = []

    def noted(self, tensors, is_aligned):
        gc.collect()  # the interpreter leaves cycles
        was_freed.append(of_y.expired())
        launch(self, tensors, is_aligned)

    monkeypatch.setattr(Launches, "launch", noted)
    found = torch.autograd.grad(end, (x, residual), grad, retain_graph=keeps)
    assert was_freed == [False, not keeps]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_autocast_gives_what_torch_gives_on_a_gpu():
    x = rows_of((2, 24, 5, 3), torch.bfloat16, 0).requires_grad_()
    weight = torch.randn(24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = group_norm(x, 8, weight, activation="silu")
        z = batch_norm(x, weight, None, None, None, training=True)
    assert (y.dtype, z.dtype) == (torch.float32, torch.bfloat16)
    other = x.detach().double().requires_grad_()
    expected = torch.nn.functional.group_norm(other, 8, weight.double())
    expected = torch.nn.functional.silu(expected)
    assert (y - expected).abs().max() < 1e-5
    dy = torch.randn(2, 24, 5, 3)
    (dx,) = torch.autograd.grad(y, x, dy)
    (expected,) = torch.autograd.grad(expected, other, dy.double())
    assert dx.dtype == torch.bfloat16
    assert (dx - expected).abs().max() < 1e-2 * expected.abs().max()


# ---- Graphs of torch.compile --------------------------------------------------------------------


def assert_compiles_to(calls, block, inputs, dynamic=None, as_exact=True):
    """Compares outputs and gradients with an eager call, and operators in the graphs."""
    torch._dynamo.reset()
    found = []
    compiled = torch.compile(block, backend=recording(found), fullgraph=True, dynamic=dynamic)
    results = []
    for function in (block, compiled):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        y = function(*leaves)
        dy = rows_of(y.shape, y.dtype, 7)
        results.append([y, *torch.autograd.grad(y, leaves, dy)])
    assert found == calls
    for expected, other in zip(*results, strict=True):
        assert (other.dtype, other.stride()) == (expected.dtype, expected.stride())
        limit = 0.0 if as_exact else 1e-4 * expected.abs().max()
        assert (other - expected).abs().max() <= limit
    return compiled


GROUP_CALLS = ["norm_forward", "norm_backward"]
BATCH_CALLS = ["batch_moments", *GROUP_CALLS]


@pytest.fixture
def everything_is_ours(monkeypatch):
    for kind in IS_OPERATOR:
        monkeypatch.setitem(IS_OPERATOR, kind, True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_graphs_have_our_group_norm(dynamic):
    def block(x, weight, bias):
        return group_norm(x * 2, 8, weight, bias, activation="silu")

    inputs = (rows_of((2, 24, 5, 3), HALF, 0), torch.rand(24), torch.rand(24))
    compiled = assert_compiles_to(GROUP_CALLS, block, inputs, dynamic)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(compiled(*inputs), block(*inputs))
    other = (rows_of((3, 24, 4, 6), HALF, 1), *inputs[1:])
    assert torch.equal(compiled(*other), block(*other))
    # NCHW order, which no kernel takes.
    nchw = torch.randn(2, 24, 5, 3), *inputs[1:]
    expected = torch.nn.functional.silu(torch.nn.functional.group_norm(nchw[0] * 2, 8, *nchw[1:]))
    assert (compiled(*nchw) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_graphs_under_autocast(dtype):
    def block(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            return group_norm(x * 1, 8, weight, activation="gelu")

    assert_compiles_to(GROUP_CALLS, block, (rows_of((2, 24, 5, 3), dtype, 0), torch.rand(24)))


@pytest.mark.parametrize("activation", ["identity", "relu", "silu"])
def test_graphs_with_our_batch_norm(activation, everything_is_ours):
    """Running statistics are moved once per call, by the same bits."""
    x, weight, bias = rows_of((2, 24, 5, 3), torch.float32, 0), torch.rand(24), torch.rand(24)
    for training in (True, False):

        def block(x, weight, bias, *running, training=training):
            residual = None if activation == "silu" else x * 3
            return batch_norm(
                x * 1, weight, bias, *running, training=training, activation=activation,
                residual=residual,
            )  # fmt: skip

        torch._dynamo.reset()
        calls, statistics = [], [running_statistics() for _ in range(2)]
        compiled = torch.compile(block, backend=recording(calls), fullgraph=True)
        for step in range(3):
            results = []
            for running_of, function in zip(statistics, (block, compiled), strict=True):
                leaves = [t.clone().requires_grad_() for t in (x + step, weight, bias)]
                y = function(*leaves, *running_of)
                results.append([y, *torch.autograd.grad(y.sin().sum(), leaves), *running_of])
            for expected, found in zip(*results, strict=True):
                assert torch.equal(found, expected)
        assert calls == BATCH_CALLS[0 if training else 1 :]
        assert torch.equal(statistics[0][0], running_statistics()[0]) is not training


def running_statistics():
    return running(24, torch.float32)


def test_statistics_of_graphs_that_nobody_keeps(everything_is_ours):
    mean, variance = running_statistics()
    before = mean.clone()

    def block(x, weight, momentum, *tensors):
        return batch_norm(x * 1, weight, None, *tensors, training=True, momentum=momentum)

    inputs = rows_of((2, 24, 5, 3), torch.float32, 0), torch.rand(24)
    for rest in ((None, mean, variance), (0.1, None, None)):
        assert_compiles_to(BATCH_CALLS, lambda *tensors, r=rest: block(*tensors, *r), inputs)
    assert torch.equal(mean, before)
    # A checkpoint computes y again, and the eager one moves statistics again: torch's as well.
    moved = [running_statistics() for _ in range(2)]

    def checkpointed(x, weight, tensors):
        return torch.utils.checkpoint.checkpoint(
            block, x, weight, 0.1, *tensors, use_reentrant=False
        ).sin()

    compiled = torch.compile(checkpointed, backend="aot_eager", fullgraph=True)
    x, weight = (tensor.requires_grad_() for tensor in inputs)
    compiled(x, weight, moved[0]).sum().backward()
    block(x, weight, 0.1, *moved[1])
    assert torch.equal(moved[0][0], moved[1][0])
    assert torch.equal(moved[0][1], moved[1][1])


def test_which_norms_of_graphs_are_torchs():
    assert IS_OPERATOR == {"group": True, "training": False, "evaluation": False}
    mean, variance = running_statistics()

    def block(x, training=True):
        y = batch_norm(
            x, None, None, mean, variance, training=training, activation="relu", residual=x
        )
        return y * 2

    x = rows_of((2, 24, 5, 3), torch.float32, 0)
    assert_compiles_to([], block, (x,), as_exact=False)
    assert_compiles_to([], lambda x: block(x, False), (x,), as_exact=False)
    assert not torch.equal(mean, running_statistics()[0])
    other = torch.compile(lambda x: group_norm(x, 8, activation="RELU"), backend="eager")
    with pytest.raises(ValueError, match=r"^group_norm: expected an activation of identity"):
        other(x)


class Normed(torch.nn.Module):
    def forward(self, x):
        return group_norm(x * 1, 8, activation="silu")


def test_what_compiled_functions_show_of_operators(everything_is_ours):
    """Transforms, derivatives forwards and programs that are exported have torch's."""
    x = rows_of((2, 24, 5, 3), torch.float32, 0)

    def norm(x):
        return batch_norm(x * 1, None, None, None, None, training=True, activation="silu")

    def compiled(function):
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    for function in (norm, Normed()):
        grad = torch.func.grad(lambda x, f=function: f(x).sin().sum())
        assert (compiled(lambda x, g=grad: g(x))(x) - grad(x)).abs().max() < 1e-5
    # torch's GroupNorm of channels-last tensors knows neither vmap nor jvp.
    batch, mapped = torch.stack([x, x + 1]), torch.func.vmap(norm)
    assert (compiled(lambda x: mapped(x))(batch) - mapped(batch)).abs().max() < 1e-5
    _, expected = torch.func.jvp(norm, (x,), (x + 1,))
    found = compiled(lambda x: torch.func.jvp(norm, (x,), (x + 1,))[1])(x)
    assert (found - expected).abs().max() < 1e-5
    # Compiled before, for calls without a level.
    torch._dynamo.reset()
    again = torch.compile(norm, backend="aot_eager")
    assert torch.equal(again(x), norm(x))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(again(forward_ad.make_dual(x, x + 1))).tangent
    assert (found - expected).abs().max() < 1e-5
    for strict in (False, True):
        exported = torch.export.export(Normed(), (x,), strict=strict)
        assert "triton_ext" not in str(exported.graph)
        assert (exported.module()(x) - Normed()(x)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_derivatives_of_gradients_of_graphs(kind, everything_is_ours):
    """Where the backend keeps autograd; others refuse them, as torch says."""
    torch._dynamo.reset()

    def block(x, weight, residual):
        if kind == "group":
            return group_norm(x, 4, weight, activation="tanh") + residual
        running = None, None
        return batch_norm(
            x, weight, None, *running, training=True, activation="relu", residual=residual
        )

    results = []
    for function in (block, torch.compile(block, backend="eager", fullgraph=True)):
        leaves = [
            t.requires_grad_()
            for t in (
                rows_of((2, 8, 4, 3), torch.float32, 0), torch.rand(8, generator=seeded()),
                rows_of((2, 8, 4, 3), torch.float32, 1),
            )
        ]  # fmt: skip
        first = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def seeded():
    return torch.Generator().manual_seed(3)


def test_operators_are_what_torch_asks_of_them():
    ops = torch.ops.triton_ext
    x, dy = rows_of((2, 24, 5, 3), torch.float32, 0), rows_of((2, 24, 5, 3), torch.float32, 1)
    weight, (mean, variance) = torch.rand(24), running_statistics()
    moments = ops.batch_moments(x, None, None, 0.0, 1e-5)
    none, words, silu = [None] * 2, (1e-5, "relu", x.dtype), (8, 1e-5, "silu")
    tests = ("test_schema", "test_faketensor")
    for operator, arguments in (
        (ops.norm_forward, (x, weight, *none, None, *none, *silu, HALF)),
        (ops.batch_moments, (x, mean, variance, 0.1, 1e-5)),
        (ops.norm_forward, (x, weight, None, dy, moments, *none, None, *words)),
        (ops.norm_forward, (x, *none, None, None, mean, variance, None, *words)),
        (
            ops.norm_backward,
            (dy, x, weight, None, moments, *none, x, None, *words, [True, True, False, True]),
        ),
    ):  # fmt: skip
        torch.library.opcheck(operator.default, arguments, test_utils=tests)
    # What lies in another order, or negated, all the same.
    rest = (weight, *none, None, *none, *silu, x.dtype)
    y, _ = ops.norm_forward(torch._neg_view(x), *rest)
    assert torch.equal(y, group_norm(-x, 8, weight, activation="silu"))
    y, _ = ops.norm_forward(x.contiguous(), *rest)
    assert torch.equal(y, group_norm(x, 8, weight, activation="silu"))


def test_checkpoints_and_equal_bits():
    x = rows_of((2, 24, 9, 7), HALF, 0).requires_grad_()
    weight = torch.randn(24, requires_grad=True)

    def block(x):
        return group_norm(batch_norm(x, weight, None, None, None, training=True), 8)

    dy = rows_of((2, 24, 9, 7), HALF, 1)
    plain = torch.autograd.grad(block(x), (x, weight), dy)
    again = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    for found, expected in zip(torch.autograd.grad(again, (x, weight), dy), plain, strict=True):
        assert torch.equal(found, expected)


REFUSED = {
    "channels-last": {"x": torch.zeros(2, 8, 4, 4)},
    "one to three": {"x": torch.zeros(2, 8)},
    "float64": {"x": rows_of((2, 8, 4, 4), torch.float64, 0)},
    "empty": {"x": rows_of((0, 8, 4, 4), HALF, 0)},
    "more than one value per channel": {"x": rows_of((1, 8, 1, 1), HALF, 0)},
    "weight has strides": {"weight": torch.zeros(16)[::2]},
    "not before silu": {"activation": "silu", "residual": rows_of((2, 8, 4, 4), torch.float32, 0)},
    "residual of strides [128, 16, 4, 1] is not channels-last": {
        "residual": torch.zeros(2, 8, 4, 4)
    },
    "x is a negated view": {"x": torch._neg_view(rows_of((2, 8, 4, 4), torch.float32, 0))},
    "weight is a negated view": {"weight": torch._neg_view(torch.ones(8))},
}

# By the words of the error: its class, and the argument that is wrong.
MISTAKES = {
    "x must be a tensor, got list": (TypeError, {"x": [1.0]}),
    "x must be a dense tensor": (TypeError, {"x": torch.eye(8).to_sparse_csr()}),
    "expected x of a floating-point dtype, got torch.int64": (
        TypeError, {"x": rows_of((2, 8, 4, 4), torch.float32, 0).long()},
    ),
    r"expected x \[N, C, \*size\], got \[8\]": (ValueError, {"x": torch.zeros(8)}),
    "weight must be a tensor, got float": (TypeError, {"weight": 1.0}),
    r"expected weight \[8\], got \[4\]": (ValueError, {"weight": torch.zeros(4)}),
    "weight is torch.float16, x is torch.float32": (TypeError, {"weight": torch.zeros(8).half()}),
    "weight is on meta, x is on cpu": (ValueError, {"weight": torch.zeros(8, device="meta")}),
    r"an activation of identity, .* got 'none'": (ValueError, {"activation": "none"}),
    r"an activation of identity, .* got \['relu'\]": (ValueError, {"activation": ["relu"]}),
}  # fmt: skip
OF_BATCH = {
    "residual must be a dense tensor": (TypeError, {"residual": torch.eye(8).to_sparse()}),
    r"expected residual \[2, 8, 4, 4\], got \[2, 8, 4, 1\]": (
        ValueError, {"residual": rows_of((2, 8, 4, 1), torch.float32, 0)},
    ),
    "residual is torch.float16": (TypeError, {"residual": rows_of((2, 8, 4, 4), HALF, 0)}),
    r"expected running_mean \[8\], got \[4\]": (ValueError, {"running_mean": torch.zeros(4)}),
    "running_mean is torch.bfloat16": (TypeError, {"running_mean": torch.zeros(8).bfloat16()}),
    "running_var must be a tensor, got float": (TypeError, {"running_var": 0.0}),
}  # fmt: skip
OF_GROUP = {
    "8 channels do not divide into 3 groups": (ValueError, {"groups": 3}),
    "groups must be at least 1, got 0": (ValueError, {"groups": 0}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_say_why(reason):
    arguments = {"x": rows_of((2, 8, 4, 4), torch.float32, 0), "activation": "relu"}
    arguments |= {"weight": None, "residual": None, **REFUSED[reason]}
    x, weight, residual = (arguments[name] for name in ("x", "weight", "residual"))
    problem = norm_problem("batch", x, None, weight, None, residual, arguments["activation"])
    assert reason in problem
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        batch_norm(
            x, weight, None, None, None, training=True, residual=residual,
            activation=arguments["activation"],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *(("batch", words) for words in (*MISTAKES, *OF_BATCH)),
        *(("group", words) for words in (*MISTAKES, *OF_GROUP)),
    ],
)
def test_mistakes_are_those_of_convolutions(kind, words):
    """No UnsupportedError: nothing would take them."""
    error, given = {**MISTAKES, **OF_BATCH, **OF_GROUP}[words]
    x, weight = rows_of((2, 8, 4, 4), torch.float32, 0), None
    arguments = {"x": x, "weight": weight, "bias": None, **given}
    if kind == "batch":
        running = {"running_mean": None, "running_var": None, "training": True}
        arguments = {**running, **arguments}
    else:
        arguments = {"groups": 2, **arguments}
    norm = {"batch": batch_norm, "group": group_norm}[kind]
    for _ in range(2):
        with pytest.raises(error, match=f"^{kind}_norm: .*{words}") as raised:
            norm(**arguments)
        assert not isinstance(raised.value, UnsupportedError)


def test_groups_are_checked_and_statistics_needed():
    x = rows_of((2, 8, 4, 4), HALF, 0)
    assert "do not divide into 3 groups" in norm_problem("group", x, 3, None, None, None, "relu")
    assert "BatchNorm only" in norm_problem("group", x, 2, None, None, x, "relu")
    wide = rows_of((1, 16392, 1, 2), torch.float32, 0)
    assert "the kernels add 8192" in norm_problem("group", wide, 1, None, None, None, "relu")
    assert norm_problem("group", wide, 3, None, None, None, "relu") is None
    assert norm_problem("group", x, 2, None, None, None, "relu") is None
    with pytest.raises(ValueError, match="expected running_mean"):
        batch_norm(x, None, None, None, None, training=False)
    for mean, reason in (
        (torch.zeros(16)[::2], "running_mean has strides"),
        (torch._neg_view(torch.zeros(8)), "running_mean is a negated view"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            batch_norm(x, None, None, mean, None, training=True)


def test_numbers_are_checked_and_read_at_every_call():
    x = rows_of((2, 8, 4, 4), torch.float32, 0)
    expected = group_norm(x, 1)
    # Equal to an int that is known, and of another type.
    for groups in (1.0, True, "1", [1], None):
        with pytest.raises(ValueError, match=r"^group_norm: groups must be an integer"):
            group_norm(x, groups)
    for groups in (1.0, True, "1", [1], torch.tensor(1)):
        assert "expected groups as an int" in norm_problem("group", x, groups, *[None] * 3, "relu")
    # As for convolutions.
    for groups in (1, torch.tensor(1)):
        assert torch.equal(group_norm(x, groups), expected)
    for value in ("0.1", [0.1], True, torch.ones(2)):
        with pytest.raises(TypeError, match="group_norm: eps must be a number"):
            group_norm(x, 1, eps=value)
        with pytest.raises(TypeError, match="batch_norm: momentum must be a number"):
            batch_norm(x, None, None, None, None, training=True, momentum=value)
    for value in (-1e-5, float("nan")):
        with pytest.raises(ValueError, match="group_norm: eps must not be negative"):
            group_norm(x, 1, eps=value)
        with pytest.raises(ValueError, match="batch_norm: eps must not be negative"):
            batch_norm(x, None, None, None, None, training=True, eps=value)
    assert group_norm(x, 1, eps=1e300).count_nonzero() == 0
    eps = torch.tensor(1e-5)
    assert torch.equal(group_norm(x, 1, eps=eps), expected)
    assert torch.equal(group_norm(x, 1, eps=eps.fill_(9.0)), group_norm(x, 1, eps=9.0))
    assert "expected a kind of batch, group" in norm_problem("layer", x, 1, *[None] * 3, "relu")


def test_what_looks_at_operators_is_shown_torchs():
    x, tangent = rows_of((2, 8, 4, 4), torch.float32, 0), rows_of((2, 8, 4, 4), torch.float32, 1)
    mean, variance = torch.zeros(8), torch.ones(8)

    def ours(x):
        y = batch_norm(x, None, None, mean, variance, training=False, activation="silu")
        return group_norm(y, 2, activation="relu")

    def torchs(x):
        y = torch.nn.functional.silu(torch.nn.functional.batch_norm(x, mean, variance))
        return torch.nn.functional.group_norm(y, 2).relu()

    expected = torchs(x)
    for traced in (make_fx(ours)(x), torch.jit.trace(ours, (x,)), torch.fx.symbolic_trace(ours)):
        assert (traced(x) - expected).abs().max() < 1e-5
    found, other = (torch.func.grad(lambda x, f=f: f(x).sin().sum())(x) for f in (ours, torchs))
    assert (found - other).abs().max() < 1e-5

    def norm(x):
        return batch_norm(x, None, None, None, None, training=True)

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(norm(forward_ad.make_dual(x, tangent))).tangent
    _, expected = torch.func.jvp(norm, (x,), (tangent,))
    assert (found - expected).abs().max() < 1e-5
    with FakeTensorMode() as mode:
        assert group_norm(mode.from_tensor(x), 2).shape == x.shape
    with torch.device("cpu"):  # a mode, but of functions
        assert group_norm(x, 2).is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(UnsupportedError, match="x is on meta"):
        group_norm(x.to("meta"), 2)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_nan_and_infinity_stay_in_their_statistics(dtype):
    x = rows_of((2, 16, 5, 3), dtype, 0)
    x[1, 5, 2, 2] = torch.nan
    x[0, 9, 2, 2] = torch.inf
    for found, expected in (
        (group_norm(x, 4), torch.nn.functional.group_norm(x.double(), 4)),
        (
            batch_norm(x, None, None, None, None, training=True),
            torch.nn.functional.batch_norm(x.double(), None, None, training=True),
        ),
    ):
        assert torch.equal(found.isfinite(), expected.isfinite())
