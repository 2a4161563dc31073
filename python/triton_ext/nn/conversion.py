"""Models with torch's convolutions, turned into models with ours and back.

A module stays the same object with the same parameters: only its class changes.  So hooks, shared
and frozen weights, optimizers and names are what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.nn import modules
from triton_ext.ops import support
from triton_ext.ops.arguments import channels_last
from triton_ext.ops.checks import Fallback, parse_fallback

__all__ = ["Conversion", "Layer", "convert", "revert"]

_OURS: dict[type[torch.nn.Module], Any] = {
    getattr(torch.nn, name): getattr(modules, name) for name in modules.__all__
}
_TORCHS = {ours: theirs for theirs, ours in _OURS.items()}

# Pixels per dimension of the input that a layer is asked about; filters that are larger get more.
_NOMINAL_SIZE = 64


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of a model.

    Attributes:
        name: As ``named_modules`` calls it.
        text: The module's own.
        reason: Why it was left; empty if it was converted.
    """

    name: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a model's convolutions; its text is a table."""

    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        if not self.layers:
            return "no convolutions"
        width = max(len(layer.name) for layer in self.layers)
        return "\n".join(
            f"{layer.name:<{width}}  {layer.text}  "
            + (f"left: {layer.reason}" if layer.reason else "converted")
            for layer in self.layers
        )


def convert(model: torch.nn.Module, fallback: Fallback = "torch") -> Conversion:
    """Gives the convolutions of a model the kernels of this package, in place.

    A layer is left, with the reason, where its numbers or its dtype are such that no kernel
    computes its output, or where it is something else than a plain module of torch.  Whether a
    kernel takes an input turns out when it is there; its memory order is the model's affair
    (``model.to(memory_format=torch.channels_last)``, and the same for the input).

    Args:
        model: Any module; of convolutions, their subclasses are left.
        fallback: What converted layers do with an input that no kernel takes.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: expected a torch.nn.Module, got {type(model).__name__}")
    parse_fallback(fallback)
    layers = []
    for name, module in model.named_modules():
        if not isinstance(module, tuple(_OURS)):
            continue
        reason = _reason_to_leave(module)
        text = repr(module)
        if not reason:
            module.__class__ = _OURS[type(module)]
            module.fallback = fallback
            module.pack_weight()
        layers.append(Layer(name, text, reason))
    return Conversion(tuple(layers))


def revert(model: torch.nn.Module) -> None:
    """Turns a model's convolutions back into torch's, in place; parameters stay as they are."""
    for module in model.modules():
        if type(module) in _TORCHS:
            module.__class__ = _TORCHS[type(module)]
            module.__dict__.pop("fallback", None)


def _reason_to_leave(module: Any) -> str:
    if type(module) in _TORCHS:
        return "it is ours already"
    if type(module) not in _OURS:
        return f"it is a {type(module).__name__}"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    weight = module.weight
    if not isinstance(weight, torch.nn.Parameter):
        return "its weight is no parameter"
    transposed = isinstance(module, torch.nn.modules.conv._ConvTransposeNd)
    size = [
        max(_NOMINAL_SIZE, (taps - 1) * step + 1)
        for taps, step in zip(module.kernel_size, module.dilation, strict=True)
    ]
    x = torch.empty(1, module.in_channels, *size, dtype=weight.dtype, device="meta")
    padding = module.padding if module.padding_mode == "zeros" else 0
    found = support(
        channels_last(x),
        torch.empty(weight.shape, dtype=weight.dtype, device="meta"),
        None,
        module.stride,
        padding,
        module.dilation,
        module.groups,
        transposed=transposed,
        output_padding=module.output_padding if transposed else 0,
    )
    return "; ".join(found.reasons)
