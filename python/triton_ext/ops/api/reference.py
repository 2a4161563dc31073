"""The same convolutions by torch's own operators, for calls with ``fallback="torch"``.

They have derivatives of any kind.  Padding whose two sides differ, which torch's operators do not
have, is applied to x before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from triton_ext.ops.core.descriptors import channels_last, channels_last_strides
from triton_ext.ops.core.epilogue import EpilogueArguments, output_dtype
from triton_ext.ops.core.problem import ConvParameters

if TYPE_CHECKING:
    from triton_ext.ops.api.operators import ConvCall

Tensor = torch.Tensor


def by_torch(c: ConvCall) -> Tensor:
    """Returns the output of a call without a function; writes ``epilogue.amax``."""
    first, second, epilogue, parameters = c[1:5]
    size: Any = c.size
    bias, direction, is_fused = epilogue.bias, c.operator.direction, bool(c.operator.others)
    if direction == "wgrad":
        return _wgrad(first, second, parameters, tuple(size))
    if direction == "dgrad":
        dx = _dgrad(first, second, parameters, tuple(size))
        return dx if bias is None else _as_promised(dx + bias.view(-1, *(1,) * len(size)))
    if not is_fused:
        return _fprop(first, second, bias, parameters)
    dtype = output_dtype(first.dtype, epilogue.out_dtype)
    if first.dtype.itemsize == 2 and (epilogue.scale is not None or dtype is torch.float32):
        # fp16 or bf16 may not hold sums that the scale brings into their range.
        first, second = first.float(), second.float()
    return apply_epilogue(_fprop(first, second, None, parameters), epilogue, dtype)


def _is_equal(padding: Sequence[int]) -> bool:
    return tuple(padding[::2]) == tuple(padding[1::2])


def _pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Pads with zeros, or crops; torch's pad begins with the last dimension."""
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return F.pad(x, [side for pair in reversed(list(pairs)) for side in pair])


def _as_promised(y: Tensor) -> Tensor:
    """Returns y with exactly the strides that a fake tensor of the operator has."""
    strides = channels_last_strides(y.shape)
    return y if y.stride() == strides else channels_last(y).as_strided(y.shape, strides)


def _fprop(x: Tensor, weight: Tensor, bias: Tensor | None, parameters: ConvParameters) -> Tensor:
    """Returns y; of int8 it is int32, as from the kernels: torch's is modulo 256, on CPUs only."""
    stride, padding, dilation, groups = parameters
    zeros = [0] * len(stride)
    is_int8 = x.dtype == torch.int8
    if is_int8:
        # Exact, up to sums of 2^53.
        x, weight = x.double(), weight.double()
    sides = list(padding[::2])
    if not _is_equal(padding):
        x, sides = _pad(x, padding), zeros
    y = torch.ops.aten.convolution(x, weight, bias, stride, sides, dilation, False, zeros, groups)
    # A larger sum wraps around, in an int32 accumulator too.
    return _as_promised(y.long().int() if is_int8 else y)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, parameters: ConvParameters, operand: int
) -> Tensor:
    """Returns the gradient of x, 0, or of the weight, 1; unequal padding is part of x."""
    stride, padding, dilation, groups = parameters
    zeros = [0] * len(stride)
    sides = list(padding[::2]) if _is_equal(padding) else zeros
    mask = [operand == 0, operand == 1, False]
    found: Tensor = torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, sides, dilation, False, zeros, groups, mask
    )[operand]
    return found


def _dgrad(
    dy: Tensor, weight: Tensor, parameters: ConvParameters, input_size: Sequence[int]
) -> Tensor:
    padding, equal, size = parameters.padding, _is_equal(parameters.padding), list(input_size)
    if not equal:
        sides = zip(input_size, padding[::2], padding[1::2], strict=True)
        size = [low + count + high for count, low, high in sides]
    # torch reads only the shape of x.
    x = dy.new_empty(()).expand(dy.shape[0], weight.shape[1] * parameters.groups, *size)
    dx = _backward(dy, x, weight, parameters, 0)
    return _as_promised(dx if equal else _pad(dx, [-side for side in padding]))


def _wgrad(x: Tensor, dy: Tensor, parameters: ConvParameters, filter_size: Sequence[int]) -> Tensor:
    shape = (dy.shape[1], x.shape[1] // parameters.groups, *filter_size)
    padded = x if _is_equal(parameters.padding) else _pad(x, parameters.padding)
    weight = x.new_empty(()).expand(shape)
    return _as_promised(_backward(dy, padded, weight, parameters, 1))


def apply_activation(z: Tensor, activation: str) -> Tensor:
    """Returns the activation of z by its name in ``EpilogueSpec``."""
    if activation == "none":
        return z
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(z, approximate="none" if activation == "gelu" else "tanh")
    functions = {"relu": torch.relu, "silu": F.silu, "tanh": torch.tanh}
    return functions[activation](z)


def apply_epilogue(y: Tensor, epilogue: EpilogueArguments, out_dtype: torch.dtype) -> Tensor:
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
