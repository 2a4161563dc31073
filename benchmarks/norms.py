"""BatchNorm and GroupNorm with what follows them, channels-last, beside torch eager.

ResNet-50's BatchNorm + ReLU and BatchNorm + add + ReLU in training at 64 images, GroupNorm(32) +
SiLU of a UNet and of a VAE's decoder.  Weights are fp32 for BatchNorm, of x's dtype for GroupNorm.
y and all gradients are checked against torch in fp32 (norm of the difference over the norm), then
forward alone, without autograd, and forward with backward are timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.compare import Row, add_timing_arguments, invented, run_rows
from benchmarks.harness import Deadline, Timer, emit, measure_errors, time_interleaved

__all__ = ["LAYERS", "Layer", "add_arguments", "run"]

TORCH, OURS = "torch", "ours"
# Floor for a gradient that sums many products in fp32, in another order than torch.
FLOOR = 1e-4


@dataclass(frozen=True, slots=True)
class Layer:
    """A normalization and what follows it, of bf16 or fp16."""

    title: str
    shape: tuple[int, int, int, int]  # of x, [N, C, H, W]
    groups: int = 0  # of GroupNorm; 0 for BatchNorm
    with_residual: bool = False  # whether a tensor is added in front of the activation
    with_backward: bool = False

    @property
    def suite(self) -> str:
        """Forward, or forward and backward."""
        return "forward and backward" if self.with_backward else "forward"

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.title}, {self.suite}"

    @property
    def work(self) -> int:
        """Bytes that our passes read and write, where nothing stays in a cache.

        Forward: x for the statistics; x and the residual; y.  Backward: x, dy, with a residual y
        and the gradient in front of the ReLU, for the sums; x, that gradient and dx.
        """
        passes = 3 + self.with_residual
        passes += 5 + 2 * self.with_residual if self.with_backward else 0
        return 2 * math.prod(self.shape) * passes


_RESNET = tuple(
    (64, channels, side, side)
    for channels, side in ((64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7))
)
_GROUPED = {
    "unet 128": (2, 320, 128, 128), "unet 32": (8, 640, 32, 32),
    "vae 1024": (1, 128, 1024, 1024), "vae 256": (1, 512, 256, 256),
}  # fmt: skip
LAYERS = {
    layer.title: layer
    for layer in (
        *(Layer(f"bn relu {s[1]}x{s[2]}", s) for s in _RESNET),
        *(Layer(f"bn add relu {s[1]}x{s[2]}", s, with_residual=True) for s in _RESNET[1:]),
        *(Layer(f"gn silu {name}", shape, groups=32) for name, shape in _GROUPED.items()),
    )
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    shapes = f"names of layers: {', '.join(LAYERS)}; all by default"
    add_timing_arguments(parser, shapes, ("bfloat16", "float16"), rounds=4)


def _tensors(layer: Layer, dtype: Any, device: str = "cuda") -> dict[str, Any]:
    """x, weight, bias, dy and the residual of a layer."""
    import torch

    torch.manual_seed(0)
    n, channels, *size = layer.shape

    def draw() -> Any:
        rows = torch.randn(n, *size, channels, device=device)
        return rows.to(dtype).movedim(-1, 1)

    terms = dtype if layer.groups else torch.float32
    drawn = {
        "x": draw(),
        "weight": (torch.rand(channels, device=device) + 0.5).to(terms),
        "bias": torch.randn(channels, device=device).to(terms),
    }
    if layer.with_residual:
        drawn["residual"] = draw()
    for tensor in drawn.values():
        tensor.requires_grad_()
    return {**drawn, "dy": draw()}


def _torch_forward(layer: Layer, t: dict[str, Any]) -> Any:
    """A layer of torch's operators."""
    from torch.nn import functional

    if layer.groups:
        y = functional.group_norm(t["x"], layer.groups, t["weight"], t["bias"])
        return functional.silu(y)
    y = functional.batch_norm(t["x"], None, None, t["weight"], t["bias"], training=True)
    return functional.relu(y + t["residual"] if layer.with_residual else y)


def _our_forward(layer: Layer, t: dict[str, Any]) -> Any:
    """A layer of ours."""
    from triton_ext.ops import batch_norm, group_norm

    terms = t["weight"], t["bias"]
    if layer.groups:
        return group_norm(t["x"], layer.groups, *terms, activation="silu")
    return batch_norm(
        t["x"], *terms, None, None, training=True, activation="relu",
        residual=t.get("residual"),
    )  # fmt: skip


FORWARDS = {TORCH: _torch_forward, OURS: _our_forward}


def _both(forward: Callable[[Layer, Any], Any], layer: Layer, t: dict[str, Any]) -> dict[str, Any]:
    """y and the gradients of a layer."""
    import torch

    inputs = {name: tensor for name, tensor in t.items() if name != "dy"}
    y = forward(layer, t)
    found = torch.autograd.grad(y, tuple(inputs.values()), t["dy"])
    return {"y": y.detach(), **dict(zip(inputs, found, strict=True))}


def _measure(layer: Layer, arguments: argparse.Namespace, timer: Timer) -> Row:
    """Checks y and all gradients of a layer, then times it."""
    import torch

    if arguments.dry_run:
        return invented(layer, (*FORWARDS,), timer, arguments.rounds)
    tensors = _tensors(layer, getattr(torch, arguments.dtype))
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    wide = {name: tensor.detach().float() for name, tensor in plain.items()}
    for name in wide.keys() - {"dy"}:
        wide[name].requires_grad_()
    expected = _both(_torch_forward, layer, wide)
    found = {name: _both(forward, layer, tensors) for name, forward in FORWARDS.items()}
    wrong: tuple[str, ...] = ()
    for tensor, reference in expected.items():
        torchs, ours = (measure_errors(found[name][tensor], reference).l2 for name in FORWARDS)
        # "not greater" would let NaN through.
        if not ours <= 2 * torchs + FLOOR:
            emit(f"{layer.name}: {tensor}: error {ours:.2e}, allowed {2 * torchs + FLOOR:.2e}")
            wrong = (OURS,)
    errors = {name: measure_errors(each["y"], expected["y"]) for name, each in found.items()}
    variants = {
        name: functools.partial(_both, forward, layer, tensors)
        if layer.with_backward
        else functools.partial(forward, layer, plain)
        for name, forward in FORWARDS.items()
    }
    timings = {} if wrong else time_interleaved(variants, timer, arguments.rounds)
    return Row(layer, (*FORWARDS,), errors=errors, wrong=wrong, timings=timings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a layer failed."""

    def select() -> tuple[Sequence[str], Sequence[Layer]]:
        names = arguments.shapes or list(LAYERS)
        unknown = [name for name in names if name not in LAYERS]
        if unknown:
            raise ValueError(f"unknown layers: {', '.join(unknown)}; there are {', '.join(LAYERS)}")
        parts = (False, True)
        layers = [dataclasses.replace(LAYERS[n], with_backward=p) for n in names for p in parts]
        return (*FORWARDS,), layers

    def prepare(
        layers: Sequence[Layer], names: Sequence[str], timer: Timer, deadline: Deadline
    ) -> Callable[[Layer], Row]:
        emit("TB/s: of bytes that our passes read and write where nothing stays in L2")
        return lambda layer: _measure(layer, arguments, timer)

    return run_rows(arguments, select, prepare, "TB/s", target_ms=4.0)
