"""Calls seen before go past torch's dispatcher, and only those that may; run in the interpreter."""

from __future__ import annotations

import pytest
import torch
from triton_ext import ops
from triton_ext.ops import calls, execution, shortcut
from triton_ext.ops.arguments import channels_last


@pytest.fixture(autouse=True)
def nothing_known():
    execution.clear_plans()


@pytest.fixture
def dispatched(monkeypatch):
    """Names what goes through the operators."""
    names = []
    for name in ("fprop", "fused"):
        real = getattr(calls, name)

        def naming(*arguments, real=real):
            names.append(real.__name__)
            return real(*arguments)

        monkeypatch.setattr(calls, name, naming)
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


def test_so_does_one_with_an_epilogue(dispatched):
    x, weight, bias = operands()
    scale, residual = torch.rand(16), channels_last(torch.randn(2, 16, 5, 6).half())

    def call(activation: str) -> torch.Tensor:
        return ops.conv2d(
            x, weight, bias, padding=1, scale=scale, residual=residual, activation=activation
        )

    first, second = call("relu"), call("relu")
    assert dispatched == ["fused"]
    assert torch.equal(first, second)
    assert not torch.equal(call("none"), second)
    assert dispatched == ["fused"] * 2


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


class Named(torch.Tensor):
    """A subclass: it may do anything with a call."""


def test_only_plain_tensors_are_known():
    x, weight, _ = operands()
    numbers = (1, 0, 1, 1)
    assert shortcut.key_of("conv2d", (x, weight, None), numbers) is not None
    assert shortcut.key_of("conv2d", (x.as_subclass(Named), weight, None), numbers) is None
    unaligned = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    assert shortcut.key_of("conv2d", (unaligned, weight, None), numbers) is None
    assert shortcut.key_of("conv2d", (x, weight, None), (1, 0, 1, [1])) is None
    nested = torch.nested.nested_tensor([torch.zeros(8, 6, 6, dtype=x.dtype)] * 2)
    assert shortcut.key_of("conv2d", (nested, weight, None), numbers) is None


def test_forgotten_plans_are_forgotten_here_too(dispatched):
    x, weight, _ = operands()
    ops.conv2d(x, weight)
    execution.clear_plans()
    ops.conv2d(x, weight)
    assert len(dispatched) == 2
