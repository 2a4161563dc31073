"""Folded forwards: one kernel call for a convolution and the modules that follow it.

BatchNorm becomes a scale and a bias per channel of the epilogue, in fp32.  It is not folded into
the weight, which would be rounded to its dtype once more, and would no longer be the parameter.  So
the result is rounded once where torch rounds after every layer.

Every call checks whether the kernel may replace the modules, which may have changed since the model
was folded.  If not (gradients are recorded, a module has hooks, is in training mode or was
replaced, a residual has another shape or dtype), the modules are called one by one, as in the
model's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.nn import norms
from triton_ext.nn.modules import Conv1d, Conv2d, Conv3d
from triton_ext.nn.steps import (
    add_and_activate,
    drops_nothing,
    has_hooks,
    is_watched,
    name_of,
    own_activation,
)
from triton_ext.nn.subclasses import is_plain
from triton_ext.ops.api.operators import is_differentiated
from triton_ext.ops.core.dispatch_cache import is_autocast

__all__ = ["CONVOLUTIONS", "Fold", "convolve_folded", "is_foldable"]

Tensor = torch.Tensor

#: Convolutions whose kernels have an epilogue.
CONVOLUTIONS = (Conv1d, Conv2d, Conv3d)
_NORMS = (
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d),
    *(norms.BatchNorm1d, norms.BatchNorm2d, norms.BatchNorm3d),
)

# Dtypes whose values fp32 holds exactly, so that an epilogue in fp32 loses nothing.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


# --- BatchNorm as two vectors -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Vectors:
    """A norm's scale and bias, and the tensors that they were computed from.

    Keeping the sources keeps their addresses, which are part of the key, from being reused.
    Without a key the values are stale, and only the memory of scale and bias is still used.
    """

    key: tuple[object, ...] | None
    sources: tuple[Tensor | None, ...]
    scale: Tensor
    bias: Tensor


class Fold:
    """A norm behind a convolution as scale and bias, computed again when a tensor changed.

    Changes of a tensor's version or memory are noticed: optimizers, ``load_state_dict``, ``copy_``,
    ``lerp_``, ``to``, another tensor in its place or behind ``.data``.  Other writes are not:
    ``tensor.data.mul_``, a collective, a replayed CUDA graph; call :meth:`clear` after them.  Fused
    optimizers also write unnoticed, any time after a call that records derivatives by parameters.
    So nothing is cached from such a call to the next :meth:`clear`.

    Copies and pickles of a fold are empty: they follow the copies of the modules.
    """

    __slots__ = ("_is_recorded", "_known")

    def __init__(self) -> None:
        self._is_recorded = False
        self._known: _Vectors | None = None

    def __reduce__(self) -> tuple[type[Fold], tuple[()]]:
        return Fold, ()

    def clear(self) -> None:
        """Marks scale and bias as stale; keeps their memory, which captured graphs read."""
        self._is_recorded = False
        if self._known is not None:
            self._known = replace(self._known, key=None, sources=())

    def record(self, *modules: Any) -> None:
        """Notes that modules are called one by one, maybe for derivatives by their parameters.

        Args:
            modules: The norm and the convolution, each may be None; without arguments, any module
                may be trained.
        """
        if not torch.is_grad_enabled():
            return
        # Traced code must not depend on what this changes.
        if torch.compiler.is_compiling():
            self._is_recorded = True
        elif not self._is_recorded:
            self._is_recorded = not modules or _are_trained(modules)

    def vectors(self, norm: Any, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns scale and bias, fp32 [C] each.

        Args:
            norm: A BatchNorm with running statistics.
            bias: The convolution's own, or None.
        """
        if torch.compiler.is_compiling():
            return _vectors(norm, bias)
        tensors, buffers = norm._parameters, norm._buffers
        mean, variance = buffers["running_mean"], buffers["running_var"]
        weight, addend = tensors["weight"], tensors["bias"]
        # A norm in training mode changes its statistics without their versions, but counts batches.
        batches = buffers["num_batches_tracked"]
        if batches is None or type(mean) is FakeTensor:
            return _vectors(norm, bias)  # changes would go unnoticed
        try:
            key = (
                norm.eps,
                batches._version,
                batches.data_ptr(),
                mean._version,
                mean.data_ptr(),
                variance._version,
                variance.data_ptr(),
                None if weight is None else (weight._version, weight.data_ptr()),
                None if addend is None else (addend._version, addend.data_ptr()),
                None if bias is None else (bias._version, bias.data_ptr()),
            )
        except RuntimeError:  # a tensor that was made in inference mode counts no versions
            return _vectors(norm, bias)
        known = self._known
        if known is not None and known.key == key and not self._is_recorded:
            return known.scale, known.bias
        # The cached tensors are used with and without inference mode.
        with torch.inference_mode(False), torch.no_grad():
            scale, shift = _vectors(norm, bias)
            if type(scale) is FakeTensor:
                return scale, shift  # a fake run must not replace cached values
            if scale.is_cuda and torch.cuda.is_current_stream_capturing():
                return scale, shift  # they get their values when the graph is replayed
            if known is not None and known.scale.device == scale.device:
                # In place: a captured graph reads these.
                scale, shift = known.scale.copy_(scale), known.bias.copy_(shift)
            sources = (batches, mean, variance, weight, addend, bias)
            kept = tuple(None if t is None else t.detach() for t in sources)
        self._known = _Vectors(key, kept, scale, shift)
        return scale, shift


def _are_trained(modules: tuple[Any, ...]) -> bool:
    """Tells whether an optimizer may change parameters of one of the modules."""
    for module in modules:
        if module is not None and any(p.requires_grad for p in module.parameters()):
            return True
    return False


def _vectors(norm: Any, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Computes scale and bias of ``(y + bias - mean) / sqrt(var + eps) * weight + norm.bias``."""
    scale = torch.rsqrt(norm.running_var.float() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.float()
    mean = norm.running_mean.float()
    shift = -mean * scale if bias is None else (bias.float() - mean) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.float()
    return scale, shift


# --- the call -----------------------------------------------------------------------------------


def convolve_folded(
    conv: Any,
    norm: Any,
    activation: Any,
    fold: Fold,
    x: Any,
    residual: Any,
    adds: str,
) -> Any:
    """Convolves, normalizes, adds and activates; generated forwards call it.

    Args:
        conv: The convolution.
        norm: The BatchNorm behind it, or None.
        activation: The module of the activation, its name where it is a function, or None.
        fold: The fold of this place in the model.
        x: The convolution's input.
        residual: The tensor to add, or None.
        adds: ``"+"``, ``"+="``, or empty if nothing is added.
    """
    name, late = name_of(activation), None
    if name is None and norm is not None and activation is own_activation(norm):
        name, late = "none", activation
    if name is None or not _may_fold(conv, norm, activation, x, residual, adds):
        fold.record(norm, conv)
        return _one_by_one(conv, norm, activation, x, residual, adds)
    weight, bias = conv._parameters["weight"], conv._parameters["bias"]
    scale = None
    if norm is not None:
        scale, bias = fold.vectors(norm, bias)
    epilogue = {"scale": scale, "residual": residual if adds else None, "activation": name}
    device = x.device.type
    if not is_autocast(device):
        y = conv.convolve(x, weight, bias, **epilogue)
        return y if late is None else late(y)
    # By hand, because autocast would round the bias as well.
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        y = conv.convolve(x.to(dtype), weight.to(dtype), bias, **epilogue)
    return y if late is None else late(y)


def _one_by_one(conv: Any, norm: Any, activation: Any, x: Any, residual: Any, adds: str) -> Any:
    y = conv(x)
    if norm is None:
        return add_and_activate(y, activation, residual, adds)
    if activation is not None and activation is own_activation(norm):
        return norm(y)
    # Two calls instead of one where the norm has a kernel.
    return norms.normalize(norm, activation, y, residual, adds)


def _may_fold(conv: Any, norm: Any, activation: Any, x: Any, residual: Any, adds: str) -> bool:
    """Tells whether the kernel gives the modules' result without a visible difference."""
    if not is_plain(type(conv), CONVOLUTIONS) or is_watched(conv, activation):
        return False
    weight, bias = conv._parameters.get("weight"), conv._parameters.get("bias")
    if not _is_plain(x) or not _is_plain(weight):
        return False
    if x.dim() != weight.dim() or x.dtype not in _DTYPES or weight.dtype not in _DTYPES:
        return False
    # Inputs that are not channels-last are torch's; its own norm is faster than torch's epilogue.
    if conv.fallback != "torch" and x.stride(1) != 1 and x.shape[1] != 1:
        return False
    tensors = [x, weight, bias]
    if norm is not None:
        if norm.training or not is_foldable(norm, conv.out_channels):
            return False
        act = own_activation(norm)
        if not (act is None or act is activation or type(act) is torch.nn.Identity):
            return False
        tensors += norm._parameters.values()
    if adds:
        if not _is_plain(residual) or not _is_addend(conv, x, residual):
            return False
        tensors.append(residual)
    return not is_differentiated(*tensors)


def _is_plain(tensor: object) -> bool:
    """Tells whether something is a plain tensor, not a subclass that computes by itself.

    A fake tensor counts as plain, so that a fake run makes the same calls as a real one.
    """
    return type(tensor) in (Tensor, torch.nn.Parameter, FakeTensor) or (
        torch.compiler.is_compiling() and isinstance(tensor, Tensor)
    )


def is_foldable(norm: Any, channels: int) -> bool:
    """Tells whether a norm, in eval mode, is one scale and one bias per channel.

    Args:
        norm: Any module.
        channels: Output channels of the convolution in front of it.
    """
    return (
        isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)
        and (type(norm) in _NORMS or (own_activation(norm) is not None and drops_nothing(norm)))
        and norm._buffers.get("running_mean") is not None
        and norm.num_features == channels
        and not has_hooks(norm)
        and "forward" not in norm.__dict__
    )


def _is_addend(conv: Any, x: Tensor, residual: Tensor) -> bool:
    """Tells whether a tensor has dtype and device of the convolution's output, and fits its shape.

    That is: it has the output's shape, or one number per image and channel, [N, Co, 1, ...].
    """
    device = x.device
    dtype = torch.get_autocast_dtype(device.type) if is_autocast(device.type) else x.dtype
    shape = residual.shape
    if residual.dtype != dtype or residual.device != device or len(shape) != x.dim():
        return False
    if shape[0] != x.shape[0] or shape[1] != conv.out_channels:
        return False
    if all(size == 1 for size in shape[2:]):
        return True
    # torch's modules have (low, high) of every dimension, the last one first, in every mode.
    sides = conv._reversed_padding_repeated_twice
    numbers = (conv.kernel_size[::-1], conv.stride[::-1], conv.dilation[::-1])
    walk = zip(x.shape[:1:-1], *numbers, strict=True)
    for index, (pixels, taps, step, distance) in enumerate(walk):
        reach = pixels + sides[2 * index] + sides[2 * index + 1] - (taps - 1) * distance - 1
        if shape[-1 - index] != reach // step + 1:
            return False
    return True
