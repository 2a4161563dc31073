"""The same convolutions by torch's own operators, for calls with ``fallback="torch"``.

Padding whose two sides differ, which torch's operators do not have, is applied to x before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from triton_ext.ops.core.epilogue import EpilogueArguments, output_dtype
from triton_ext.ops.core.memory_format import channels_last, channels_last_strides
from triton_ext.ops.core.parameters import ConvParameters

__all__ = [
    "apply_activation",
    "apply_epilogue",
    "torch_dgrad",
    "torch_fprop",
    "torch_fused",
    "torch_wgrad",
]


def _is_equal(padding: Sequence[int]) -> bool:
    return all(low == high for low, high in zip(padding[::2], padding[1::2], strict=True))


def _pad(x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """Pads with zeros; torch's pad begins with the last dimension."""
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return F.pad(x, [side for pair in reversed(list(pairs)) for side in pair])


def _as_promised(y: torch.Tensor) -> torch.Tensor:
    """Returns y with exactly the strides that a fake tensor of the operator has."""
    strides = channels_last_strides(y.shape)
    return y if y.stride() == strides else channels_last(y).as_strided(y.shape, strides)


def torch_fprop(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    parameters: ConvParameters,
) -> torch.Tensor:
    """Returns y; arguments as for the operators.

    y of int8 is int32, as from the kernels; torch would compute int8 sums modulo 256, on CPUs only.
    """
    stride, padding, dilation, groups = parameters
    zeros = [0] * len(stride)
    is_int8 = x.dtype == torch.int8
    if is_int8:
        # Exact, up to sums of 2^53.
        x, weight = x.double(), weight.double()
    if _is_equal(padding):
        y = torch.ops.aten.convolution(
            x, weight, bias, stride, padding[::2], dilation, False, zeros, groups
        )
    else:
        y = torch.ops.aten.convolution(
            _pad(x, padding), weight, bias, stride, zeros, dilation, False, zeros, groups
        )
    # A larger sum wraps around, in an int32 accumulator too.
    return _as_promised(y.long().int() if is_int8 else y)


def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    parameters: ConvParameters,
    padding: Sequence[int],
    mask: list[bool],
) -> Any:
    stride, _, dilation, groups = parameters
    zeros = [0] * len(stride)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, padding, dilation, False, zeros, groups, mask
    )


def torch_dgrad(
    dy: torch.Tensor,
    weight: torch.Tensor,
    parameters: ConvParameters,
    input_size: Sequence[int],
) -> torch.Tensor:
    """Returns dx; arguments as for the operators."""
    padding = parameters.padding
    sides = list(zip(padding[::2], padding[1::2], strict=True))
    equal = _is_equal(padding)
    outer = [
        size if equal else low + size + high
        for size, (low, high) in zip(input_size, sides, strict=True)
    ]
    shape = (dy.shape[0], weight.shape[1] * parameters.groups, *outer)
    # torch reads only the shape of x.
    x = dy.new_empty(()).expand(shape)
    inner = list(padding[::2]) if equal else [0] * len(sides)
    dx = _backward(dy, x, weight, parameters, inner, [True, False, False])[0]
    if not equal:
        inner_pixels = [slice(low, low + n) for (low, _), n in zip(sides, input_size, strict=True)]
        at = (slice(None), slice(None), *inner_pixels)
        dx = dx[at]
    return _as_promised(dx)


def torch_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
) -> torch.Tensor:
    """Returns y with an epilogue without a function; writes ``epilogue.amax``."""
    dtype = output_dtype(x.dtype, epilogue.out_dtype)
    if x.dtype.itemsize == 2 and (epilogue.scale is not None or dtype is torch.float32):
        # fp16 or bf16 may not hold sums that the scale brings into their range.
        x, weight = x.float(), weight.float()
    y = torch_fprop(x, weight, None, parameters)
    return apply_epilogue(y, epilogue, dtype)


def torch_wgrad(
    x: torch.Tensor,
    dy: torch.Tensor,
    parameters: ConvParameters,
    filter_size: Sequence[int],
) -> torch.Tensor:
    """Returns dw; arguments as for the operators."""
    padding = parameters.padding
    shape = (dy.shape[1], x.shape[1] // parameters.groups, *filter_size)
    weight = x.new_empty(()).expand(shape)
    equal = _is_equal(padding)
    padded = x if equal else _pad(x, padding)
    inner = list(padding[::2]) if equal else [0] * len(filter_size)
    mask = [False, True, False]
    return _as_promised(_backward(dy, padded, weight, parameters, inner, mask)[1])


def apply_activation(z: torch.Tensor, activation: str) -> torch.Tensor:
    """Returns the activation of z by its name in ``EpilogueSpec``."""
    if activation == "none":
        return z
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(z, approximate="none" if activation == "gelu" else "tanh")
    functions = {"relu": torch.relu, "silu": F.silu, "tanh": torch.tanh}
    return functions[activation](z)


def apply_epilogue(
    y: torch.Tensor, epilogue: EpilogueArguments, out_dtype: torch.dtype
) -> torch.Tensor:
    """Returns an epilogue of y [N, Co, *output_size] in fp32; writes ``epilogue.amax``.

    Sums of int32 are converted to fp64, which holds every one of them.
    """
    bias, scale, residual, out_scale, _, activation, *_, amax = epilogue
    ones = (1,) * (y.dim() - 2)
    z = y.double() if y.dtype == torch.int32 else y.float()
    if scale is not None:
        z = z * (scale.float().view(-1, *ones) if scale.numel() > 1 else scale.float())
    if bias is not None:
        z = z + bias.float().view(-1, *ones)
    if residual is not None:
        z = z + residual.float()
    z = apply_activation(z, activation)
    if amax is not None:
        largest = z.abs().max() if z.numel() else z.new_zeros(())
        amax.copy_(largest.reshape(amax.shape))
    if out_scale is not None:
        z = z * out_scale.float()
    return _as_promised(z.to(out_dtype))
