"""Copies into channels-last memory: from torch's order, and with replicated or reflected borders.

torch's own copy between these orders reads or writes single elements; this kernel turns tiles of
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
def transpose_kernel(
    x_ptr,  # [N, C, P], pixels contiguous
    y_ptr,  # [N, P, C], dense
    pixels,
    channels,
    stride_n,  # of x, in elements
    stride_c,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (p[None, :] < pixels) & (c[:, None] < channels)
    tile = tl.load(
        x_ptr + image * stride_n + c.to(tl.int64)[:, None] * stride_c + p[None, :], inside
    )
    y = y_ptr + image * pixels * channels + p[None, :] * channels + c[:, None]
    tl.store(y, tile, inside)


@triton.jit
def _border(i, size, IS_REFLECTED: tl.constexpr):
    """The pixel of x that a pixel of y shows; both count from x's first."""
    if IS_REFLECTED:
        return size - 1 - tl.abs(size - 1 - tl.abs(i))
    else:
        return tl.minimum(tl.maximum(i, 0), size - 1)


@triton.jit
def pad_kernel(
    x_ptr,  # [N, D, H, W, C], channels contiguous
    y_ptr,  # [N, D', H', W', C], dense
    pixels,  # of y
    channels,
    size_d,  # of x
    size_h,
    size_w,
    out_d,  # of y
    out_h,
    out_w,
    low_d,  # pixels in front of x
    low_h,
    low_w,
    stride_n,  # of x, in elements
    stride_d,
    stride_h,
    stride_w,
    IS_REFLECTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    w = _border(p % out_w - low_w, size_w, IS_REFLECTED)
    h = _border(p // out_w % out_h - low_h, size_h, IS_REFLECTED)
    d = _border(p // out_w // out_h % out_d - low_d, size_d, IS_REFLECTED)
    image = p // out_w // out_h // out_d
    source = image * stride_n + d * stride_d + h * stride_h + w * stride_w
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    tile = tl.load(x_ptr + source[:, None] + c[None, :], inside)
    tl.store(y_ptr + p[:, None] * channels + c[None, :], tile, inside)


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
    n, channels, *size = x.shape
    pixels, blocks = math.prod(size), triton.cdiv(channels, _BLOCK)
    if pixels < 2 or not x.numel() or max(n, blocks) > _MOST_PROGRAMS or x.is_complex():
        return None
    if not x.select(0, 0).select(0, 0).is_contiguous():
        return None
    return Launcher(
        kernel=transpose_kernel,
        grid=(triton.cdiv(pixels, _BLOCK), blocks, n),
        scalars=(pixels, channels, x.stride(0), x.stride(1)),
        constants={"BLOCK": _BLOCK},
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
        x: [N, C, *size], channels contiguous.
        pad: Pixels in front of and behind each dimension, the last dimension first, as for
            ``torch.nn.functional.pad``.
        mode: As there; the kernel knows ``"replicate"`` and ``"reflect"``.
    """
    dims = x.dim() - 2
    if mode not in ("replicate", "reflect") or dims not in (1, 2, 3) or x.stride(1) != 1:
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
    launcher = Launcher(
        kernel=pad_kernel,
        grid=(triton.cdiv(pixels, _BLOCK), triton.cdiv(channels, _BLOCK), 1),
        scalars=(
            *(pixels, channels, *ones, *size, *ones, *out, *zeros, *low),
            *(x.stride(0), *zeros, *x.stride()[2:]),
        ),
        constants={"IS_REFLECTED": is_reflected, "BLOCK": _BLOCK},
        options={"num_warps": 4},
    )
    return (n, channels, *out), launcher
