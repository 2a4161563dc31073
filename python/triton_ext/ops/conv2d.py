"""``conv2d`` for torch: geometry, refusals, launch, and the registration as a torch operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.seams import interpreting
from triton_ext.ops.conv_config import ConvConfig, choose_config
from triton_ext.ops.conv_fprop import conv_fprop_kernel

__all__ = ["conv2d", "conv2d_with_config"]

ConvGeometry = backends.load("nvidia", "ConvGeometry")
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

# The interpreter runs the programs one after another; a few show that the kernel is persistent.
_INTERPRETED_PROGRAMS = 2


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
) -> torch.Tensor:
    """Convolves x with weight, like ``torch.nn.functional.conv2d`` with ``groups=1``.

    Accumulates in fp32 and rounds once.  Deterministic: the same input gives the same bits.
    Differentiable; the gradients are torch's own (cuDNN's on a GPU).

    Args:
        x: [N, Ci, H, W], fp16 or bf16, in ``torch.channels_last`` memory format; on an NVIDIA GPU
            of compute capability 9.0 or newer, or on the CPU under ``TRITON_INTERPRET=1``.
        weight: [Co, Ci, R, S], dtype and device of x.  In another memory format than channels-last
            it is copied at every call; ``module.to(memory_format=torch.channels_last)`` avoids it.
        bias: [Co], dtype and device of x, or None.
        stride: One number or (h, w), 1 to 8.
        padding: One number, (h, w), or ((top, bottom), (left, right)); zeros.
        dilation: One number or (h, w).

    Returns:
        [N, Co, out_h, out_w], dtype and device of x, channels-last.

    Raises:
        ValueError: Shapes that do not fit each other; ``DescriptorError``, a ValueError, for a
            geometry that TMA cannot express, with every violation.
        TypeError: Another dtype than fp16 or bf16, or mixed ones.
        UnsupportedError: No GPU, too old a GPU or too old a Triton.
    """
    strides = _pair("stride", stride)
    dilations = _pair("dilation", dilation)
    paddings = _sides(padding)
    _check_tensors(x, weight, bias)
    return _conv2d(x, weight, bias, strides, paddings, dilations)


def conv2d_with_config(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    config: ConvConfig | None,
) -> torch.Tensor:
    """Convolves with a given tile configuration; tests and benchmarks use it.

    Args:
        x: As for :func:`conv2d`.
        weight: As for :func:`conv2d`.
        bias: As for :func:`conv2d`.
        stride: (h, w).
        padding: (top, bottom, left, right).
        dilation: (h, w).
        config: The configuration; ``None`` lets :func:`choose_config` choose.
    """
    co, _, r, s = weight.shape
    conv = _geometry(x, weight, stride, padding, dilation)
    num_sms = _num_sms(x.device)
    if config is None:
        config = choose_config(conv.m_gemm, co, num_sms)
    x_nhwc = _pad_channels(x.permute(0, 2, 3, 1))
    x_desc = Im2ColDescriptor.for_conv(
        x_nhwc,
        conv.filter_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        block_shape=[config.block_m, config.block_k],
    )
    m_gemm, (out_h, out_w) = conv.m_gemm, conv.output_size
    w_rsc = _pad_channels(weight.permute(0, 2, 3, 1)).contiguous()
    ci = x_nhwc.shape[3]
    y = torch.empty((x.shape[0], out_h, out_w, co), device=x.device, dtype=x.dtype)
    w_desc = TensorDescriptor(
        w_rsc.view(co, r * s, ci),
        [co, r * s, ci],
        [r * s * ci, ci, 1],
        [config.block_n, 1, config.block_k],
    )
    y_rows = y.view(m_gemm, co)
    tma_store = co * y.element_size() % 16 == 0
    y_block = [config.block_m, config.block_n // config.store_parts]
    tiles = triton.cdiv(m_gemm, config.block_m) * triton.cdiv(co, config.block_n)
    conv_fprop_kernel[(min(tiles, num_sms),)](
        x_desc,
        w_desc,
        TensorDescriptor(y_rows, [m_gemm, co], [co, 1], y_block) if tma_store else None,
        None if tma_store else y,
        bias,
        m_gemm,
        co,
        out_h,
        out_w,
        stride[0],
        stride[1],
        padding[0],
        padding[2],
        dilation[0],
        dilation[1],
        R=r,
        S=s,
        CHANNEL_BLOCKS=math.ceil(ci / config.block_k),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP_SIZE_M=config.group_size_m,
        STORE_PARTS=config.store_parts,
        DTYPE=_DTYPES[x.dtype],
        num_stages=config.num_stages,
        num_warps=config.num_warps,
    )
    return y.permute(0, 3, 1, 2)


@torch.library.custom_op("triton_ext::conv2d", mutates_args=())
def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    if x.shape[0] == 0:
        return _empty_output(x, weight, stride, padding, dilation)
    _check_machine(x)
    return conv2d_with_config(x, weight, bias, stride, padding, dilation, None)


@_conv2d.register_fake
def _(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    return _empty_output(x, weight, stride, padding, dilation)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, ctx.stride, ctx.padding, ctx.dilation = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    top, bottom, left, right = ctx.padding
    # torch's backward knows equal sides only: what is unequal is padded in front of it.
    equal = top == bottom and left == right
    padded = x if equal else torch.nn.functional.pad(x, (left, right, top, bottom))
    grad_x, grad_w, grad_b = torch.ops.aten.convolution_backward(
        grad,
        padded,
        weight,
        [weight.shape[0]] if ctx.has_bias else None,
        ctx.stride,
        [top, left] if equal else [0, 0],
        ctx.dilation,
        False,
        [0, 0],
        1,
        [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias],
    )
    if not equal and grad_x is not None:
        grad_x = grad_x[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return grad_x, grad_w, grad_b, None, None, None


_conv2d.register_autograd(_backward, setup_context=_setup_context)


def _pair(name: str, value: int | Sequence[int]) -> list[int]:
    if isinstance(value, int):
        return [value, value]
    values = list(value)
    if len(values) != 2 or not all(isinstance(v, int) for v in values):
        raise ValueError(f"{name}: expected one integer or (h, w), got {value!r}")
    return values


def _sides(padding: int | Sequence[int] | Sequence[Sequence[int]]) -> list[int]:
    """Returns (top, bottom, left, right)."""
    if isinstance(padding, int):
        return [padding] * 4
    pairs = [(p, p) if isinstance(p, int) else p for p in padding]
    if len(pairs) != 2 or not all(len(p) == 2 and all(isinstance(v, int) for v in p) for p in pairs):
        raise ValueError(
            "padding: expected one integer, (h, w) or ((top, bottom), (left, right)), "
            f"got {padding!r}"
        )
    return [side for pair in pairs for side in pair]


def _check_tensors(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.dim() != 4 or weight.dim() != 4:
        raise ValueError(
            "conv2d: expected x [N, Ci, H, W] and weight [Co, Ci, R, S], "
            f"got {list(x.shape)} and {list(weight.shape)}"
        )
    if x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"conv2d: x has {x.shape[1]} channels, weight {list(weight.shape)} expects "
            f"{weight.shape[1]}; groups are not supported"
        )
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise ValueError(f"conv2d: expected bias [{weight.shape[0]}], got {list(bias.shape)}")
    others = [("weight", weight)] + ([("bias", bias)] if bias is not None else [])
    if x.dtype not in _DTYPES:
        raise TypeError(f"conv2d: dtype {x.dtype} is not supported, use float16 or bfloat16")
    for name, tensor in others:
        if tensor.dtype != x.dtype:
            raise TypeError(f"conv2d: {name} is {tensor.dtype}, x is {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"conv2d: {name} is on {tensor.device}, x is on {x.device}")
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise ValueError(
            f"conv2d: channels must be contiguous (channels-last), got channel stride "
            f"{x.stride(1)}; call x.contiguous(memory_format=torch.channels_last)"
        )


def _check_machine(x: torch.Tensor) -> None:
    require("im2col")
    if x.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(x.device)
        if major < 9:
            raise UnsupportedError(
                f"conv2d: TMA im2col needs sm_90 or newer, {x.device} is sm_{major}{minor}"
            )
    elif not (x.device.type == "cpu" and interpreting()):
        raise UnsupportedError(
            f"conv2d: needs an NVIDIA GPU of sm_90 or newer, x is on {x.device}; to try it on a "
            "CPU, set TRITON_INTERPRET=1 before importing triton_ext.ops"
        )


def _geometry(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ConvGeometry:
    n, ci, height, width = x.shape
    top, bottom, left, right = padding
    return ConvGeometry.make(
        (n, height, width, ci),
        tuple(weight.shape[2:]),
        tuple(stride),
        ((top, bottom), (left, right)),
        tuple(dilation),
    )


def _empty_output(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    out_h, out_w = _geometry(x, weight, stride, padding, dilation).output_size
    y = x.new_empty((x.shape[0], out_h, out_w, weight.shape[0]))
    return y.permute(0, 3, 1, 2)


def _pad_channels(tensor: torch.Tensor) -> torch.Tensor:
    """Pads the last dimension with zeros so that its rows are multiples of 16 bytes, as TMA asks."""
    missing = -tensor.shape[-1] % (16 // tensor.element_size())
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS
    return torch.cuda.get_device_properties(device).multi_processor_count
