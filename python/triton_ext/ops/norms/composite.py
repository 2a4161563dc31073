"""The same normalizations of torch's operators.

For what torch itself differentiates, or compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from triton_ext.ops.norms.norm_arguments import activation_mistake
from triton_ext.ops.norms.norm_config import NormShape

__all__ = ["activated", "differentiable_gradients"]

Tensor = torch.Tensor


def activated(y: Tensor, activation: str) -> Tensor:
    """Applies an activation by its name.

    Raises:
        ValueError: There is none of this name.
    """
    if activation == "relu":
        return functional.relu(y)
    if activation == "silu":
        return functional.silu(y)
    if activation == "gelu":
        return functional.gelu(y)
    if activation == "gelu_tanh":
        return functional.gelu(y, approximate="tanh")
    if activation == "tanh":
        return torch.tanh(y)
    mistake = activation_mistake(activation)
    if mistake is not None:
        raise mistake[0](mistake[1])
    return y


def _normalized(
    x: Tensor,
    shape: NormShape,
    statistics: Sequence[Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
    eps: float,
    out_dtype: torch.dtype,
) -> Tensor:
    """Normalizes in fp32, differentiable to any order.

    Args:
        x: [N, C, *size].
        shape: Which elements are normalized together.
        statistics: Mean and variance [C]; ``None`` for those of x.
        weight: [C] or None.
        bias: [C] or None.
        activation: Its name.
        eps: Added to variances.
        out_dtype: Dtype of the result.
    """
    channel = (1, -1, *(1,) * (x.dim() - 2))
    wide = x.float()
    if statistics is not None:
        mean, variance = (each.float().view(channel) for each in statistics)
        y = (wide - mean) * torch.rsqrt(variance + eps)
    elif shape.images == shape.group_channels == 1:
        # Channels of all images, or of one image whose groups are channels.
        dims = [0, *range(2, x.dim())]
        variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
        y = (wide - mean) * torch.rsqrt(variance + eps)
    else:
        parts = wide.unflatten(1, (shape.groups, -1)).flatten(2)
        variance, mean = torch.var_mean(parts, 2, correction=0, keepdim=True)
        y = ((parts - mean) * torch.rsqrt(variance + eps)).view(x.shape)
    if weight is not None:
        y = y * weight.float().view(channel)
    if bias is not None:
        y = y + bias.float().view(channel)
    return activated(y, activation).to(out_dtype)


def differentiable_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    *,
    shape: NormShape,
    statistics: Sequence[Tensor] | None,
    activation: str,
    eps: float,
    out_dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Returns gradients of x, weight, bias and residual, which torch differentiates again.

    Args:
        dy: Gradient of the result.
        x: [N, C, *size].
        weight: [C] or None.
        bias: [C] or None.
        y: Output of a ReLU after a residual, which tells where it passed; or None.
        shape: Which elements are normalized together.
        statistics: Mean and variance [C]; ``None`` for those of x.
        activation: ``"identity"`` where there was a residual.
        eps: Added to variances.
        out_dtype: Dtype of the result.
        needs: Which gradients are computed.
    """
    if y is not None:
        dy = dy * (y > 0)
    found = _normalized(x, shape, statistics, weight, bias, activation, eps, out_dtype)
    terms = zip((x, weight, bias), needs[:3], strict=True)
    inputs = [term for term, is_needed in terms if is_needed]
    gradients: Any = iter(())
    if inputs:
        gradients = iter(torch.autograd.grad(found, inputs, dy, create_graph=True))
    return (
        *(next(gradients) if is_needed else None for is_needed in needs[:3]),
        dy if needs[3] else None,
    )
