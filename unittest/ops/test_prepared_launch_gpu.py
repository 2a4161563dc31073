"""Prepared launches on a GPU give the bits that Triton's launcher gives, captured in graphs too."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton
from gpu_comparison import MARKS, skip_without_gpu
from triton_ext import ops
from triton_ext.backends.nvidia.backend.prepared import PreparedLaunch
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.launcher import LaunchGroup

skip_without_gpu()
pytestmark = MARKS


def randn(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return channels_last(torch.randn(shape, generator=generator, device="cuda").bfloat16())


def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """New x, weight, dy and bias."""
    bias = torch.randn(64, device="cuda").bfloat16()
    return (
        randn(4, 64, 28, 28, seed=seed),
        randn(64, 64, 3, 3, seed=seed + 1) / 24,
        randn(4, 64, 28, 28, seed=seed + 2),
        bias,
    )


CALLS = {
    "fprop": lambda x, w, dy, b: ops.conv2d(x, w, None, 1, 1),
    "relu": lambda x, w, dy, b: ops.conv2d(x, w, b, 1, 1, residual=dy, activation="relu"),
    "matrix": lambda x, w, dy, b: ops.conv2d(x, w[:, :, :1, :1].contiguous(
        memory_format=torch.channels_last), b),
    "dgrad": lambda x, w, dy, b: ops.conv2d_input(x.shape, w, dy, 1, 1),
    "wgrad": lambda x, w, dy, b: ops.conv2d_weight(x, w.shape, dy, 1, 1),
    "depthwise": lambda x, w, dy, b: ops.conv2d(x, w[:, :1].contiguous(), None, 1, 1, groups=64),
    "direct": lambda x, w, dy, b: ops.conv2d(x, w[:, :8].contiguous(), None, 1, 1, groups=8),
    "stem": lambda x, w, dy, b: ops.conv2d(channels_last(x[:, :3]), w[:, :3].contiguous(), None, 2),
}  # fmt: skip


@pytest.fixture
def launches(monkeypatch) -> list[bool]:
    """Whether each prepared launch launched, or all those of a call together."""
    seen: list[bool] = []

    def watching(real):
        def watched(self, tensors):
            seen.append(real(self, tensors))
            return seen[-1]

        return watched

    for kind in (PreparedLaunch, LaunchGroup):
        monkeypatch.setattr(kind, "__call__", watching(kind.__call__))
    return seen


def take_tritons_launcher(monkeypatch) -> None:
    for kind in (PreparedLaunch, LaunchGroup):
        monkeypatch.setattr(kind, "__call__", lambda self, tensors: False)


@pytest.mark.parametrize("name", CALLS)
def test_same_bits(name, launches, monkeypatch):
    call = CALLS[name]
    for seed in (0, 1, 8):
        call(*operands(seed))
    launches.clear()
    given = operands(2)
    got = call(*given)
    assert launches
    assert all(launches)
    take_tritons_launcher(monkeypatch)
    assert torch.equal(got, call(*given))


@pytest.mark.parametrize("stride", [1, 2])
def test_same_bits_in_training(stride, launches, monkeypatch):
    def step(seed: int) -> list[torch.Tensor]:
        x, weight, dy, bias = operands(seed)
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        y = ops.conv2d(x, weight, bias, stride, 1)
        dy = channels_last(dy[:, :, ::stride, ::stride])
        return [y, *torch.autograd.grad(y, leaves, dy)]

    for seed in range(5):
        step(seed)
    launches.clear()
    got = step(9)
    # Forward, gradient of x, gradient of weight.
    assert launches == [True] * 3
    take_tritons_launcher(monkeypatch)
    # The bias is another one; the gradients of x and weight do not depend on it.
    assert all(map(torch.equal, got[1:3], step(9)[1:3]))


@pytest.mark.parametrize("name", CALLS)
def test_captured(name, launches):
    call = CALLS[name]
    given = operands(3)
    for _ in range(3):
        call(*given)
    launches.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(*given)
    assert all(launches)
    for tensor, new in zip(given, operands(4), strict=True):
        tensor.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, call(*given))


def test_other_streams_and_threads(launches):
    call, given = CALLS["relu"], operands(5)
    expected = [call(*given) for _ in range(3)][-1]
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results.extend(call(*given) for _ in range(50))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(torch.equal(y, expected) for y in results)


def test_hooks_see_launches(launches):
    call, given = CALLS["fprop"], operands(6)
    for _ in range(3):
        call(*given)
    seen: list[str] = []

    def enter(metadata) -> None:
        seen.append(metadata.get()["name"])

    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(enter)
    try:
        call(*given)
    finally:
        hook.remove(enter)
    assert len(seen) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device(launches):
    call, given = CALLS["relu"], operands(7)
    expected = [call(*given) for _ in range(3)][-1]
    # Tensors of the first device while the second is current.
    with torch.cuda.device(1):
        assert torch.equal(call(*given), expected)
        there = tuple(channels_last(t.to(1)) if t.dim() == 4 else t.to(1) for t in given)
        for _ in range(3):
            y = call(*there)
    assert torch.equal(y.to(0), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_packed_rows_on_a_device_that_is_not_current():
    # Three channels are packed by a kernel of their own, on the tensors' device as well.
    x = channels_last(torch.randn(2, 3, 18, 18, device=1).half())
    weight = torch.randn(16, 3, 3, 3, device=1).half()
    expected = torch.nn.functional.conv2d(x.double(), weight.double())
    with torch.no_grad():
        results = [ops.conv2d(x, weight) for _ in range(4)]
    assert all(torch.equal(result, results[0]) for result in results)
    assert (results[0] - expected).abs().max() <= 1e-2
