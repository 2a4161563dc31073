"""BatchNorm and GroupNorm with what follows them, channels-last, beside torch eager.

ResNet-50's BatchNorm + ReLU and BatchNorm + add + ReLU in training at 64 images, GroupNorm(32) +
SiLU of a UNet and of a VAE's decoder.  Weights are fp32 for BatchNorm, of x's dtype for GroupNorm.
y and all gradients are checked against torch in fp32 (norm of the difference over the norm), then
forward alone, without autograd, and forward with backward are timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import (
    Deadline,
    collect_environment,
    emit,
    geometric_mean,
    measure_each,
    measure_errors,
    time_interleaved,
    write_rows,
)
from benchmarks.options import add_timing_arguments, has_gpu, make_timer, prepare_torch

__all__ = ["LAYERS", "Layer", "add_arguments", "run"]

TORCH, OURS = "torch", "ours"
# Floor for a gradient that sums many products in fp32, in another order than torch.
FLOOR = 1e-4


@dataclass(frozen=True, slots=True)
class Layer:
    """A normalization and what follows it."""

    name: str  # for the table
    shape: tuple[int, int, int, int]  # of x, [N, C, H, W]
    groups: int = 0  # of GroupNorm; 0 for BatchNorm
    with_residual: bool = False  # whether a tensor is added in front of the activation

    @property
    def activation(self) -> str:
        """Activation that the networks have there."""
        return "silu" if self.groups else "relu"

    def tensor_passes(self, with_backward: bool) -> int:
        """How often a tensor of x's size is read or written, where nothing stays in a cache.

        Forward: x for the statistics; x and the residual; y.  Backward: x, dy, with a residual y
        and the gradient in front of the ReLU, for the sums; x, that gradient and dx.
        """
        forward = 3 + self.with_residual
        return forward + (5 + 2 * self.with_residual if with_backward else 0)

    def gigabytes(self, element_bytes: int, with_backward: bool) -> float:
        """Bytes of :meth:`tensor_passes`."""
        n, c, h, w = self.shape
        return n * c * h * w * element_bytes * self.tensor_passes(with_backward) / 1e9


_RESNET = (
    (64, 64, 112, 112),
    (64, 256, 56, 56),
    (64, 512, 28, 28),
    (64, 1024, 14, 14),
    (64, 2048, 7, 7),
)
_GROUPED = {
    "unet 128": (2, 320, 128, 128),
    "unet 32": (8, 640, 32, 32),
    "vae 1024": (1, 128, 1024, 1024),
    "vae 256": (1, 512, 256, 256),
}
LAYERS: dict[str, Layer] = {
    layer.name: layer
    for layer in (
        *(Layer(f"bn relu {shape[1]}x{shape[2]}", shape) for shape in _RESNET),
        *(
            Layer(f"bn add relu {shape[1]}x{shape[2]}", shape, with_residual=True)
            for shape in _RESNET[1:]
        ),
        *(Layer(f"gn silu {name}", shape, groups=32) for name, shape in _GROUPED.items()),
    )
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_timing_arguments(parser, f"names of layers: {', '.join(LAYERS)}; all by default")
    parser.set_defaults(dtype="bfloat16", rounds=4, target_ms=4.0)


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
        return group_norm(t["x"], layer.groups, *terms, activation=layer.activation)
    return batch_norm(
        t["x"], *terms, None, None, training=True, activation=layer.activation,
        residual=t.get("residual"),
    )  # fmt: skip


def _both(forward: Callable[[Layer, Any], Any], layer: Layer, t: dict[str, Any]) -> dict[str, Any]:
    """y and the gradients of a layer."""
    import torch

    inputs = {name: tensor for name, tensor in t.items() if name != "dy"}
    y = forward(layer, t)
    found = torch.autograd.grad(y, tuple(inputs.values()), t["dy"])
    return {"y": y.detach(), **dict(zip(inputs, found, strict=True))}


def _wrong(layer: Layer, t: dict[str, Any]) -> list[str]:
    """Results that are farther from torch in fp32 than twice torch's own, with both errors."""
    wide = {name: tensor.detach().float() for name, tensor in t.items()}
    for name in wide.keys() - {"dy"}:
        wide[name].requires_grad_()
    expected = _both(_torch_forward, layer, wide)
    torchs, ours = (_both(forward, layer, t) for forward in (_torch_forward, _our_forward))
    found = []
    for name, reference in expected.items():
        error = measure_errors(ours[name], reference).l2
        limit = 2 * measure_errors(torchs[name], reference).l2 + FLOOR
        # "not greater" would let NaN through.
        if not error <= limit:
            found.append(f"{name}: error {error:.2e}, allowed {limit:.2e}")
    return found


def _measure(layer: Layer, arguments: argparse.Namespace, timer: Any) -> dict[str, Any]:
    """Checks and times a layer."""
    import torch

    dtype = getattr(torch, arguments.dtype)
    tensors = _tensors(layer, dtype)
    row: dict[str, Any] = {"layer": layer.name, "shape": "x".join(map(str, layer.shape))}
    row["wrong"] = "; ".join(_wrong(layer, tensors))
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    forwards = {TORCH: _torch_forward, OURS: _our_forward}
    variants = {f"{name} forward": lambda f=f: f(layer, plain) for name, f in forwards.items()}
    variants |= {
        f"{name} both": lambda f=f: _both(f, layer, tensors) for name, f in forwards.items()
    }
    times = time_interleaved(variants, timer, arguments.rounds)
    for part in ("forward", "both"):
        torch_us, our_us = (times[f"{name} {part}"].ms * 1e3 for name in (TORCH, OURS))
        row |= {
            f"{part}_torch_us": torch_us,
            f"{part}_us": our_us,
            f"{part}_ratio": torch_us / our_us,
            f"{part}_gb_s": layer.gigabytes(dtype.itemsize, part == "both") / our_us * 1e6,
            f"{part}_host_us": times[f"{OURS} {part}"].host_us,
        }
    return row


def _show(rows: list[dict[str, Any]]) -> None:
    row = rows[-1]
    parts = [
        f"{part} torch {row[f'{part}_torch_us']:7.1f} us, ours {row[f'{part}_us']:7.1f}, "
        f"{row[f'{part}_ratio']:.2f}x, {row[f'{part}_gb_s']:5.0f} GB/s, "
        f"host {row[f'{part}_host_us']:.0f} us"
        for part in ("forward", "both")
    ]
    emit(f"{row['layer']:<22} {'; '.join(parts)}{'  WRONG ' if row['wrong'] else ''}{row['wrong']}")


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a layer failed."""
    names = arguments.shapes or list(LAYERS)
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        emit(f"unknown layers: {', '.join(unknown)}; there are {', '.join(LAYERS)}")
        return 2
    layers = [LAYERS[name] for name in names]
    if arguments.dry_run:
        for layer in layers:
            sizes = [layer.gigabytes(2, with_backward) for with_backward in (False, True)]
            emit(f"{layer.name}: forward {sizes[0]:.3f} GB, with backward {sizes[1]:.3f} GB")
        return 0
    if not has_gpu("--dry-run shows what would be measured"):
        return 2
    prepare_torch()
    environment = collect_environment()
    for line in environment.lines():
        emit(line)
    emit("bytes: those that our passes read and write where nothing stays in L2")
    emit()
    timer = make_timer(arguments)
    rows, missing = measure_each(
        layers,
        lambda layer: _measure(layer, arguments, timer),
        _show,
        Deadline(arguments.time_limit),
    )
    for part in ("forward", "both"):
        mean = geometric_mean([row[f"{part}_ratio"] for row in rows])
        emit(f"geometric mean of {len(rows)} ratios, {part}: {mean:.3f}")
    for name in missing:
        emit(f"missing: {name}")
    if arguments.out:
        write_rows(arguments.out, environment, rows)
    return int(bool(missing) or any(row["wrong"] for row in rows))
