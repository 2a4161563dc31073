"""Norms over the channels of every pixel, as networks of images and volumes write them.

    torchvision, timm, transformers    LayerNorm of [N, C, H, W] (ConvNeXt)
    timm                               RmsNorm2d
    diffusers                          RMS norm of the VAEs of Wan and Qwen-Image

torch takes one to eight passes over memory for one of these.  One kernel computes the norm and the
activation behind it, of channels-last tensors, in training too.  Other calls run the module's own
forward: other memory orders, mixed dtypes, autocast, and what ``torch.compile`` traces.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import torch

from triton_ext.nn import kernels
from triton_ext.nn.steps import refuse_scripting
from triton_ext.ops.core.descriptors import empty_channels_last
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import (
    PLAIN_TYPES,
    cached,
    is_autocast,
    is_differentiated,
    keep,
    tensor_key,
)
from triton_ext.ops.core.epilogue import apply_activation
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.norms.plan import in_order, is_channels_last

__all__ = ["ChannelNorm", "is_channel_norm"]

Tensor = torch.Tensor
Kind = Literal["layer", "rms", "l2"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOST_CHANNELS = 8192
_TILE = 4096  # elements of a program's tile
_MOST_PROGRAMS = 512  # of the kernel that adds: about four per multiprocessor


class _Norm(NamedTuple):
    """A norm over channels, as a module computes it.

    Attributes:
        kind: Distances from the mean over their deviation, x over its root mean square, or x over
            its norm times the root of the number of channels.
        weight: One number per channel, or None.
        bias: The same.
        eps: Added to the variance or the mean square; the least norm of ``"l2"``.
        rank: The dimensions of its input.
        channels: Of its input.
    """

    kind: Kind
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    rank: int
    channels: int


def _layer(module: Any) -> _Norm | None:
    shape = module.normalized_shape
    if len(shape) != 1 or getattr(module, "data_format", "channels_first") != "channels_first":
        return None
    return _Norm("layer", module.weight, module.bias, module.eps, 4, shape[0])


def _rms(module: Any) -> _Norm | None:
    (channels,) = module.normalized_shape
    return _Norm("rms", module.weight, None, module.eps, 4, channels)


def _l2(module: Any) -> _Norm | None:
    weight, bias = module.gamma, module.bias
    channels = weight.numel()
    if not module.channel_first or module.scale != channels**0.5:
        return None
    if not isinstance(bias, Tensor):
        if bias != 0.0:
            return None
        bias = None
    return _Norm("l2", weight, bias, 1e-12, weight.dim() + 1, channels)


# By module and name of a class, as the libraries have them.
_READERS: dict[tuple[str, str], Callable[[Any], _Norm | None]] = {
    ("torchvision.models.convnext", "LayerNorm2d"): _layer,
    ("timm.layers.norm", "LayerNorm2d"): _layer,
    ("timm.layers.norm", "RmsNorm2d"): _rms,
    ("transformers.models.convnext.modeling_convnext", "ConvNextLayerNorm"): _layer,
    ("transformers.models.convnextv2.modeling_convnextv2", "ConvNextV2LayerNorm"): _layer,
    ("diffusers.models.autoencoders.autoencoder_kl_wan", "WanRMS_norm"): _l2,
    ("diffusers.models.autoencoders.autoencoder_kl_qwenimage", "QwenImageRMS_norm"): _l2,
}


def _reader_of(kind: Any) -> Callable[[Any], _Norm | None] | None:
    return _READERS.get((kind.__module__, kind.__qualname__))


def is_channel_norm(module: torch.nn.Module) -> bool:
    """Tells whether a module is a norm over channels that a kernel here computes."""
    reader = _reader_of(type(module))
    return reader is not None and reader(module) is not None


class ChannelNorm:
    """Mixin of converted norms; their class is made from the library's and this one."""

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script asks every module which object to compile instead of it.
        refuse_scripting(self)

    @staticmethod
    def forward_for(kind: Any) -> Callable[[Any, Any], Any]:
        """Returns the forward of a class that is made from a library's class."""

        def forward(self: Any, x: Any) -> Any:
            y = self.normalized(x, None, "none")
            return kind.forward(self, x) if y is None else y

        return forward

    def normalized(self, x: Any, residual: Any, activation: str) -> Tensor | None:
        """Returns a kernel's output; ``None`` where torch has to compute it.

        Args:
            x: The module's input.
            residual: The tensor to add; there is no kernel with one.
            activation: Name of the activation, as in epilogues.
        """
        if residual is not None or type(x) not in PLAIN_TYPES or torch.compiler.is_compiling():
            return None
        reader = _reader_of(type(self))
        norm = None if reader is None else reader(self)
        if norm is None or x.dim() != norm.rank or x.shape[1] != norm.channels:
            return None
        if type(norm.eps) is not float or not (x.is_cuda or IS_INTERPRETED):
            return None
        if is_autocast(x.device.type):
            return None  # it computes some of these in fp32
        words = ("channel_norm", norm.kind, norm.eps, activation)
        key = tensor_key(words, (x, norm.weight, norm.bias))
        if key is None:
            return None
        plan: _Plan | None = cached(key)
        if plan is None:
            plan = keep(key, _Plan.of(x, norm, activation))
        if not plan.is_ours:
            return None
        tensors = (x, norm.weight, norm.bias)
        if is_differentiated(*tensors):
            y: Tensor = _Differentiable.apply(*tensors, plan)
            return y
        return plan.forward(*tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Launches of a norm of tensors of one geometry; none where ``is_ours`` is False."""

    is_ours: bool
    norm: _Norm  # without tensors
    activation: str
    rows: int
    tile: tuple[int, int]  # rows and channels of a program
    forward_launcher: Launcher
    backward_launcher: Launcher

    @classmethod
    def of(cls, x: Tensor, norm: _Norm, activation: str) -> _Plan:
        rows, channels = x.numel() // max(norm.channels, 1), norm.channels
        block = 1 << max(channels - 1, 0).bit_length()
        tile = (max(1, _TILE // block), block)
        scalars = (rows, channels, _bits(norm.eps))
        constants: dict[str, Any] = {"KIND": norm.kind, "ACTIVATION": activation}
        constants |= {"ROWS": tile[0], "BLOCK_C": tile[1]}
        options = {"num_warps": 8 if block > _TILE // 2 else 4}
        programs = math.ceil(rows / tile[0])

        def launcher(kernel: Any, count: int) -> Launcher:
            return Launcher(
                kernel=kernel,
                grid=(max(count, 1), 1, 1),
                scalars=scalars,
                constants=constants,
                options=options,
            )

        return cls(
            is_ours=_is_ours(x, norm),
            norm=norm._replace(weight=None, bias=None),
            activation=activation,
            rows=rows,
            tile=tile,
            forward_launcher=launcher(kernels.channel_norm_kernel, programs),
            backward_launcher=launcher(
                kernels.channel_norm_gradient_kernel, min(programs, _MOST_PROGRAMS)
            ),
        )

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Returns y."""
        y = empty_channels_last(x.shape, x.dtype, x.device)
        _launch(self.forward_launcher, (x, y, weight, bias))
        return y

    def backward(
        self, dy: Tensor, x: Tensor, terms: tuple[Tensor | None, ...], needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight and bias that are needed."""
        weight, bias = terms
        dx = empty_channels_last(x.shape, x.dtype, x.device) if needs[0] else None
        launcher, parts = self.backward_launcher, None
        if needs[1] or needs[2]:
            shape = (2, launcher.grid[0], self.norm.channels)
            parts = torch.empty(shape, dtype=torch.float32, device=x.device)
        _launch(launcher, (x, in_order(dy), dx, weight, bias, parts))
        found: list[Tensor | None] = [dx, None, None]
        for index, term in enumerate(terms):
            if needs[1 + index] and term is not None and parts is not None:
                found[1 + index] = parts[index].sum(0).to(term.dtype).view(term.shape)
        return tuple(found)

    def by_torch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Returns y in fp32, differentiable to any order."""
        wide, terms, eps = x.float(), (-1, *(1,) * (x.dim() - 2)), self.norm.eps
        if self.norm.kind == "layer":
            wide = wide - wide.mean(1, keepdim=True)
        if self.norm.kind == "l2":
            y = torch.nn.functional.normalize(wide, dim=1, eps=eps) * math.sqrt(x.shape[1])
        else:
            y = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)
        y = y if weight is None else y * weight.float().view(terms)
        y = y if bias is None else y + bias.float().view(terms)
        return y if self.activation == "none" else apply_activation(y, self.activation)


def _bits(number: float) -> int:
    """Returns the bits of an fp32, as an int32."""
    return int.from_bytes(struct.pack("<f", number), "little", signed=True)


def _is_ours(x: Tensor, norm: _Norm) -> bool:
    """Tells whether the kernels take such tensors."""
    for term in (norm.weight, norm.bias):
        if term is None:
            continue
        if term.dtype != x.dtype or term.device != x.device or not term.is_contiguous():
            return False
        if term.numel() != norm.channels:
            return False
    is_small = 0 < norm.channels <= _MOST_CHANNELS and x.numel() < 1 << 40
    return x.dtype in _DTYPES and x.numel() > 0 and is_small and is_channels_last(x)


def _launch(launcher: Launcher, tensors: tuple[Any, ...]) -> None:
    x = tensors[0]
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            launcher.launch(tensors)
    else:
        launcher.launch(tensors)


class _Differentiable(torch.autograd.Function):
    """A norm; gradients that are differentiated again are torch's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: _Plan
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.plan = plan
        return plan.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (x, weight, bias), plan = grads, ctx.saved_tensors, ctx.plan
        needs = ctx.needs_input_grad[:3]
        if not torch.is_grad_enabled() and torch._C._has_storage(dy):
            return *plan.backward(dy, x, (weight, bias), needs), None
        with torch.enable_grad():
            y = plan.by_torch(x, weight, bias).to(x.dtype)
            inputs = [t for t, is_needed in zip((x, weight, bias), needs, strict=True) if is_needed]
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
        return *(next(found) if is_needed else None for is_needed in needs), None
