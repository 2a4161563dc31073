"""Cached calls bypass torch's dispatcher, and only those that may; run in the interpreter."""

from __future__ import annotations

import pytest
from interpreted import why_not_interpreted

if reason := why_not_interpreted(im2col=True):
    pytest.skip(reason, allow_module_level=True)

import torch
from torch.utils.flop_counter import FlopCounterMode
from triton_ext import ops
from triton_ext.errors import UnsupportedError
from triton_ext.ops.api import operators
from triton_ext.ops.core import dispatch_cache
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.dispatch_cache import function_key
from triton_ext.ops.tuning import runs


@pytest.fixture(autouse=True)
def nothing_known():
    dispatch_cache.clear()


@pytest.fixture
def dispatched(monkeypatch):
    """Names what goes through the operators."""
    names = []
    real = operators.call

    def naming(call):
        names.append(call.operator.name)
        return real(call)

    monkeypatch.setattr(operators, "call", naming)
    return names


def operands(channels: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, channels, 5, 6, generator=generator).half()
    weight = torch.randn(16, channels, 3, 3, generator=generator).half()
    return channels_last(x), channels_last(weight), torch.randn(16, generator=generator).half()


def test_the_second_call_goes_past_the_dispatcher_and_gives_the_same_bits(dispatched):
    x, weight, bias = operands()
    first = ops.conv2d(x, weight, bias, padding=1)
    assert dispatched == ["fprop"]
    second = ops.conv2d(x, weight, bias, padding=1)
    assert dispatched == ["fprop"]
    assert torch.equal(first, second)
    # Another look is another call.
    ops.conv2d(x, weight, None, padding=1)
    ops.conv2d(x[:1], weight, bias, padding=1)
    ops.conv2d(x, weight, bias, padding=(1, 1))
    assert len(dispatched) == 4


def test_flops_of_calls_seen_before_are_counted():
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())

    def step() -> int:
        # A backward of a call from before, and a call.
        y = ops.conv2d(x, weight, bias, padding=1)
        with FlopCounterMode(display=False) as counter:
            (y + ops.conv2d(x, weight, bias, padding=1)).sum().backward()
        return counter.get_total_flops()

    once = 2 * 2 * 30 * 16 * 16 * 9
    assert [step() for _ in range(3)] == [5 * once] * 3


def test_so_does_one_with_an_epilogue(dispatched):
    x, weight, bias = operands()
    scale, residual = torch.rand(16), channels_last(torch.randn(2, 16, 5, 6).half())

    def call(activation: str) -> torch.Tensor:
        return ops.conv2d(
            x, weight, bias, padding=1, scale=scale, residual=residual, activation=activation
        )

    first, second = call("relu"), call("relu")
    assert dispatched == ["fprop_fused"]
    assert torch.equal(first, second)
    assert not torch.equal(call("none"), second)
    assert dispatched == ["fprop_fused"] * 2


def test_new_values_are_read():
    x, weight, _ = operands()
    first = ops.conv2d(x, weight)
    x.mul_(2)
    assert torch.equal(ops.conv2d(x, weight), first * 2)


def test_equal_numbers_of_other_types_are_still_refused():
    x, weight, _ = operands()
    for _ in range(2):
        ops.conv2d(x, weight, stride=1)
    for wrong in (1.0, True, (1, True), [1.0, 1.0]):
        with pytest.raises(ValueError, match="stride"):
            ops.conv2d(x, weight, stride=wrong)
    with pytest.raises(ValueError, match="activation"):
        ops.conv2d(x, weight, activation=["relu"])


def test_a_derivative_is_never_lost():
    x, weight, bias = operands()
    for _ in range(2):
        ops.conv2d(x, weight, bias, padding=1)
    weight.requires_grad_()
    y = ops.conv2d(x, weight, bias, padding=1)
    y.float().sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert not ops.conv2d(x, weight, bias, padding=1).requires_grad


def test_modes_and_transforms_see_every_call(dispatched):
    from torch.utils._python_dispatch import TorchDispatchMode

    x, weight, _ = operands()
    ops.conv2d(x, weight)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        ops.conv2d(x, weight)
    assert any("triton_ext" in name for name in seen)
    batched = torch.func.vmap(lambda one: ops.conv2d(one, weight))(torch.stack([x, x]))
    assert torch.equal(batched[0], batched[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.conv2d(x, weight).dtype == torch.bfloat16


def test_modes_are_told_of_operators_at_every_call(dispatched):
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, weight, _ = operands()
    for needs_grad in (False, True):
        weight.requires_grad_(needs_grad)
        for _ in range(3):
            seen: list[str] = []
            with Mode():
                ops.conv2d(x, weight)
            assert "triton_ext.fprop.default" in seen
            ops.conv2d(x, weight)
    # Before it is dispatched, a graph is recorded by such a mode.
    graph = make_fx(lambda x: ops.conv2d(x, weight.detach()), pre_dispatch=True)(x)
    assert "triton_ext.fprop.default" in graph.code
    # Of a default device no operator knows.
    dispatched.clear()
    with torch.device("cpu"):
        ops.conv2d(x, weight)
    assert dispatched == []


class Named(torch.Tensor):
    """A subclass: it may do anything with a call."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_negative_bit_is_seen(dtype):
    x, weight, _ = (tensor.to(dtype) for tensor in operands())
    expected = ops.conv2d(-x, weight, padding=1)
    ops.conv2d(x, weight, padding=1)
    for _ in range(2):
        assert torch.equal(ops.conv2d(torch._neg_view(x), weight, padding=1), expected)


def test_only_plain_tensors_are_known():
    x, weight, _ = operands()
    numbers = (1, 0, 1, 1)
    assert function_key("conv2d", (x, weight, None), numbers) is not None
    assert function_key("conv2d", (x.as_subclass(Named), weight, None), numbers) is None
    unaligned = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    assert function_key("conv2d", (unaligned, weight, None), numbers) is None
    assert function_key("conv2d", (x, weight, None), (1, 0, 1, [1])) is None
    nested = torch.nested.nested_tensor([torch.zeros(8, 6, 6, dtype=x.dtype)] * 2)
    assert function_key("conv2d", (nested, weight, None), numbers) is None


def test_forgotten_plans_are_forgotten_here_too(dispatched):
    x, weight, _ = operands()
    ops.conv2d(x, weight)
    dispatch_cache.clear()
    ops.conv2d(x, weight)
    assert len(dispatched) == 2


# --- gradients ----------------------------------------------------------------------------------


def test_gradients_of_the_second_call_go_past_the_dispatcher(dispatched):
    x, weight, _ = operands()
    dy = channels_last(torch.randn(2, 16, 5, 6).half())

    def both() -> list[torch.Tensor]:
        return [
            ops.conv2d_input(x.shape, weight, dy, padding=1),
            ops.conv2d_weight(x, weight.shape, dy, padding=1),
        ]

    first, second = both(), both()
    assert dispatched == ["dgrad", "wgrad"]
    assert all(map(torch.equal, first, second))
    # Sizes are part of the look, in whatever sequence they come.
    ops.conv2d_input((2, 16, 5, 6), weight, dy, padding=1)
    assert len(dispatched) == 2
    for wrong in ((2, 16, 5, 7), (2, 16, 5.0, 6), (True, 16, 5, 6)):
        with pytest.raises(ValueError, match="conv2d_input"):
            ops.conv2d_input(wrong, weight, dy, padding=1)
    weight.requires_grad_()
    assert ops.conv2d_input(x.shape, weight, dy, padding=1).requires_grad


def leaves(bias: bool = True) -> list[torch.Tensor]:
    x, weight, added = operands()
    return [t.requires_grad_() for t in ((x, weight, added) if bias else (x, weight))]


def gradients(tensors: list[torch.Tensor], dy: torch.Tensor, **options: bool) -> list[torch.Tensor]:
    y = ops.conv2d(*tensors, padding=1)
    return [y, *torch.autograd.grad(y, tensors, dy, **options)]


def test_a_step_of_training_goes_past_the_dispatcher_and_gives_the_same_bits(dispatched):
    tensors, dy = leaves(), channels_last(torch.randn(2, 16, 5, 6).half())
    first = gradients(tensors, dy)
    assert dispatched == ["fprop", "dgrad", "wgrad"]
    for _ in range(3):
        again = gradients(tensors, dy)
        assert all(map(torch.equal, first, again))
    # The backward of the first forward that was seen is looked at.
    assert dispatched == ["fprop", *["dgrad", "wgrad"] * 2]
    # Fewer gradients, and a gradient in another memory order, are right as well.
    y = ops.conv2d(*tensors, padding=1)
    assert torch.equal(torch.autograd.grad(y, tensors[1], dy.contiguous())[0], first[2])
    frozen = [t.detach() for t in tensors]
    frozen[1].requires_grad_()
    y = ops.conv2d(*frozen, padding=1)
    y.backward(dy)
    assert torch.equal(frozen[1].grad, first[2])
    assert frozen[0].grad is None


def test_derivatives_of_gradients_are_there_after_a_step_was_seen():
    tensors, dy = leaves(bias=False), channels_last(torch.randn(2, 16, 5, 6).half())

    def second_derivatives() -> list[torch.Tensor]:
        _, dx, dw = gradients(tensors, dy, create_graph=True)
        return list(torch.autograd.grad((dx * dx).sum() + (dw * dw).sum(), tensors))

    first = second_derivatives()
    for _ in range(3):
        gradients(tensors, dy)
    assert all(map(torch.equal, first, second_derivatives()))


def test_tensors_that_hooks_put_in_the_place_of_saved_ones_are_looked_at():
    tensors, dy = leaves(bias=False), channels_last(torch.randn(2, 16, 5, 6).half())
    for _ in range(4):
        first = gradients(tensors, dy)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.clone().contiguous()):
        y = ops.conv2d(*tensors, padding=1)
    for expected, got in zip(first[1:], torch.autograd.grad(y, tensors, dy), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
    y = ops.conv2d(*tensors, padding=1)
    with torch.no_grad():
        tensors[1].add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, tensors, dy)


def test_autocast_is_known_behind_its_casts(dispatched):
    x, weight, bias = (t.float().requires_grad_() for t in operands())
    dy = channels_last(torch.randn(2, 16, 5, 6).bfloat16())
    results = []
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = ops.conv2d(x, weight, bias, padding=1)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), dy)])
    assert dispatched == ["fprop", *["dgrad", "wgrad"] * 2]
    assert results[0][0].dtype == torch.bfloat16
    assert {t.dtype for t in results[-1][1:]} == {torch.float32}
    for again in results[1:]:
        assert all(map(torch.equal, results[0], again))


def test_modes_see_a_step_that_was_seen():
    from torch.utils._python_dispatch import TorchDispatchMode

    tensors, dy = leaves(bias=False), channels_last(torch.randn(2, 16, 5, 6).half())
    for _ in range(4):
        gradients(tensors, dy)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    y = ops.conv2d(*tensors, padding=1)
    with Mode():
        torch.autograd.grad(y, tensors, dy)
    assert {"triton_ext.dgrad.default", "triton_ext.wgrad.default"} <= set(seen)


def test_what_a_transform_left_behind_is_not_known():
    x, weight, _ = operands()
    kept = []

    def keeping(one: torch.Tensor) -> torch.Tensor:
        kept.append(one * 1)
        return one.sum()

    torch.func.grad(keeping)(x)
    assert function_key("conv2d", (kept[0], weight, None), (1, 0, 1, 1)) is None
    weight.requires_grad_()
    assert ops.conv2d(kept[0], weight, padding=1).requires_grad


def test_a_step_of_a_transposed_convolution_is_seen(dispatched):
    x, weight, bias = (t.requires_grad_() for t in operands())
    dy = channels_last(torch.randn(2, 16, 10, 12).half())
    results = []
    for _ in range(4):
        y = ops.conv_transpose2d(x, weight, bias, 2, 1, 1)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), dy)])
    assert dispatched == ["dgrad", *["fprop", "wgrad"] * 2]
    for again in results[1:]:
        assert all(map(torch.equal, results[0], again))
    expected = torch.nn.functional.conv_transpose2d(x, weight, bias, 2, 1, 1)
    wanted = torch.autograd.grad(expected, (x, weight, bias), dy)
    for one, other in zip(results[-1], (expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=5e-2)
    # Another output padding is another call, and all of it is where nothing is differentiated, too.
    with torch.no_grad():
        assert torch.equal(ops.conv_transpose2d(x, weight, bias, 2, 1, 1), results[0][0])
        assert ops.conv_transpose2d(x, weight, bias, 2, 1, 0).shape[2:] == (9, 11)


def test_graphs_do_not_depend_on_what_was_seen():
    x, weight, bias = operands()
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda: ops.conv2d(x, weight, bias, padding=1), backend=backend, fullgraph=True
    )
    expected = compiled()
    for _ in range(3):
        for size in (3, 4):
            ops.conv2d(x[:, :, :size], weight, bias, padding=1)
        assert torch.equal(compiled(), expected)
    assert len(graphs) == 1
    assert torch.equal(ops.conv2d(x, weight, bias, padding=1), expected)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_traces_are_differentiated_whoever_traces(activation):
    x, weight, bias = operands()
    weight.requires_grad_()

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, weight, bias, padding=1, activation=activation)

    expected = call(x, weight)
    dy = torch.ones_like(expected)
    (wanted,) = torch.autograd.grad(expected, weight, dy)
    for traces_with_grad in (True, False):
        with torch.set_grad_enabled(traces_with_grad):
            traced = torch.jit.trace(call, (x, weight))
        kinds = {node.kind() for node in traced.graph.nodes()}
        assert kinds & {"triton_ext::conv", "triton_ext::conv_fused"}
        y = traced(x, weight)
        assert torch.equal(y, expected)
        assert torch.equal(torch.autograd.grad(y, weight, dy)[0], wanted)


def test_traces_have_torchs_transposed_convolution():
    x, weight, bias = operands()

    def call(x: torch.Tensor, fallback: str = "torch") -> torch.Tensor:
        return ops.conv_transpose2d(x, weight, bias, 2, 1, 1, fallback=fallback)

    traced = torch.jit.trace(call, (x,))
    torch.testing.assert_close(traced(x), call(x), rtol=1e-2, atol=5e-2)
    with pytest.raises(UnsupportedError, match=r"conv_transpose2d: torch\.jit\.trace takes no"):
        torch.jit.trace(lambda x: call(x, "error"), (x,))


def test_calls_that_prefer_the_fastest_go_to_torch_where_that_is_faster(monkeypatch, dispatched):
    is_faster = []
    monkeypatch.setattr(runs, "is_torch_faster", lambda *_: is_faster.append(1) or True)
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())
    y = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    dy = torch.ones_like(y)
    expected = (y, *torch.autograd.grad(y, (x, weight, bias), dy))
    for _ in range(2):
        y = ops.conv2d(x, weight, bias, padding=1, prefer="fastest")
        torch.testing.assert_close((y, *torch.autograd.grad(y, (x, weight, bias), dy)), expected)
        with torch.no_grad():
            dx = ops.conv2d_input(x.shape, weight, dy, padding=1, prefer="fastest")
            dw = ops.conv2d_weight(x, weight.shape, dy, padding=1, prefer="fastest")
            t = ops.conv_transpose2d(dy, weight, padding=1, prefer="fastest")
        torch.testing.assert_close((dx, dw, t), (*expected[1:3], expected[1]))
    # Kept after the first calls, and no operator of ours.
    assert len(is_faster) == 4
    assert dispatched == []
    ops.conv2d(x, weight, bias, padding=1)
    assert dispatched == ["fprop"]
