"""Copies into channels-last memory: from torch's order, and with replicated or reflected borders.

torch's own copy between these orders reads or writes single elements; the kernel turns tiles of
pixels and channels, so that both sides are whole cache lines.  torch pads volumes in its own order
only, so a channels-last volume would be copied twice.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from triton_ext.ops.core.descriptors import channels_last, empty_channels_last
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import cached, is_differentiated, keep, tensor_key
from triton_ext.ops.core.launcher import Launcher

Tensor = torch.Tensor

_BLOCK = 64
_MOST_PROGRAMS = 65535  # of the grid's second and third dimension


@triton.jit
def _border(i, low, size, IS_REFLECTED: tl.constexpr):
    """The pixel of x that pixel i of y shows."""
    i = i - low
    if IS_REFLECTED:
        return size - 1 - tl.abs(size - 1 - tl.abs(i))
    else:
        return tl.minimum(tl.maximum(i, 0), size - 1)


@triton.jit
def channels_last_kernel(
    x_ptr,  # [N, C, D, H, W] of any strides
    y_ptr,  # [N, D', H', W', C], dense
    pixels,  # of y; without a border of an image
    channels,
    strides,  # of x in elements, (n, c, d, h, w); without a border (n, c)
    size,  # of x, (d, h, w); as the others None without a border: y has x's pixels in their order
    out_size,  # of y
    low,  # pixels in front of x
    IS_REFLECTED: tl.constexpr,  # or replicated; None: there is no border
    BLOCK: tl.constexpr,
):
    image = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = image * pixels + p
    if IS_REFLECTED is None:
        source = image * strides[0] + p
    else:
        w = _border(p % out_size[2], low[2], size[2], IS_REFLECTED)
        h = _border(p // out_size[2] % out_size[1], low[1], size[1], IS_REFLECTED)
        d = _border(p // out_size[2] // out_size[1] % out_size[0], low[0], size[0], IS_REFLECTED)
        source = p // out_size[2] // out_size[1] // out_size[0] * strides[0]
        source += d * strides[2] + h * strides[3] + w * strides[4]
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    of_channel = c.to(tl.int64)[None, :] * strides[1]
    tile = tl.load(x_ptr + source[:, None] + of_channel, inside)
    tl.store(y_ptr + y[:, None] * channels + c[None, :], tile, inside)


def to_channels_last(x: Tensor) -> Tensor:
    """Returns a tensor [N, C, *size] in channels-last memory: itself, or a dense copy.

    Differentiable.  The kernel copies plain tensors of a GPU whose pixels are contiguous; torch
    copies all others.

    Args:
        x: [N, C, *size], one to three spatial dimensions, any dtype.
    """
    if x.stride(1) == 1 or x.shape[1] == 1:
        return x
    key = tensor_key(("to_channels_last",), (x,)) if x.is_cuda or IS_INTERPRETED else None
    launcher = channels_last if key is None else cached(key)
    if launcher is None:
        launcher = keep(key, _transposing(x) or channels_last)
    if launcher is channels_last:
        return channels_last(x)
    copy: Any = _Differentiable.apply if is_differentiated(x) else _copy
    result: Tensor = copy(x, launcher)
    return result


def _transposing(x: Tensor) -> Launcher | None:
    """Returns the launch of tensors like x; ``None`` where torch copies them."""
    pixels = math.prod(x.shape[2:])
    if pixels < 2 or not x.numel() or x.is_complex():
        return None
    if not x.select(0, 0).select(0, 0).is_contiguous():
        return None
    return _launcher(x, pixels, x.shape[0], (x.stride()[:2], None, None, None), None)


def _launcher(
    x: Tensor, pixels: int, images: int, geometry: tuple[Any, ...], is_reflected: bool | None
) -> Launcher | None:
    blocks = triton.cdiv(x.shape[1], _BLOCK)
    if max(images, blocks) > _MOST_PROGRAMS:
        return None
    return Launcher(
        kernel=channels_last_kernel,
        grid=(triton.cdiv(pixels, _BLOCK), blocks, images),
        scalars=(pixels, x.shape[1], *geometry),
        constants={"IS_REFLECTED": is_reflected, "BLOCK": _BLOCK},
        options={"num_warps": 4},
    )


def _copy(x: Tensor, launcher: Launcher, shape: tuple[int, ...] | None = None) -> Tensor:
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            return _copy(x, launcher, shape)
    y = empty_channels_last(shape or x.shape, x.dtype, x.device)
    launcher.launch((x, y))
    return y


class _Differentiable(torch.autograd.Function):
    """The copy; its gradient is the output's, in whatever memory order that has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, launcher: Launcher) -> Tensor:
        return _copy(x, launcher)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def pad_channels_last(x: Tensor, pad: tuple[int, ...], mode: str) -> Tensor | None:
    """Returns a padded tensor, channels-last; ``None`` where torch is to pad.

    Args:
        x: [N, C, *size], in any memory order.
        pad: Pixels in front of and behind each dimension, the last dimension first, as for
            ``torch.nn.functional.pad``.
        mode: As there; the kernel knows ``"replicate"`` and ``"reflect"``.
    """
    dims = x.dim() - 2
    if mode not in ("replicate", "reflect") or dims not in (1, 2, 3):
        return None
    if len(pad) != 2 * dims or min(pad) < 0 or is_differentiated(x):
        return None
    if not (x.is_cuda or IS_INTERPRETED):
        return None
    key = tensor_key(("pad_channels_last", pad, mode), (x,))
    if key is None:
        return None
    shape, launcher = cached(key) or keep(key, _padding(x, pad, mode == "reflect"))
    return None if launcher is None else _copy(x, launcher, shape)


def _padding(x: Tensor, pad: tuple[int, ...], is_reflected: bool) -> tuple[Any, Launcher | None]:
    """Returns the shape and the launch of a padding; no launch where torch refuses it."""
    n, channels, *size = x.shape
    sides = list(zip(pad[-2::-2], size, pad[::-2], strict=True))
    low, out = pad[-2::-2], [sum(each) for each in sides]
    pixels = n * math.prod(out)
    if is_reflected and any(max(a, b) >= extent for a, extent, b in sides):
        return None, None  # torch's error
    if not x.numel() or pixels >= 1 << 31:
        return None, None
    ones, zeros = (1,) * (3 - len(size)), (0,) * (3 - len(size))
    strides = (*x.stride()[:2], *zeros, *x.stride()[2:])
    geometry = (strides, (*ones, *size), (*ones, *out), (*zeros, *low))
    return (n, channels, *out), _launcher(x, pixels, 1, geometry, is_reflected)
