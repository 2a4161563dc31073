"""Forward-mode derivatives: torch has them of its own convolutions, which are called for them.

The operators have none: torch would answer with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from triton_ext.ops.reference import torch_dgrad, torch_fprop, torch_fused, torch_wgrad

__all__ = ["by_torch", "has_tangent", "is_forward_mode"]

Tensor = torch.Tensor


def has_tangent(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether any of the tensors is a dual one, as far as the innermost transform sees."""
    if forward_ad._current_level < 0:
        return False
    return any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
        for tensor in tensors
    )


def is_forward_mode(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether forward-mode derivatives of a call may be asked for.

    Under the transforms of torch.func that is any call within one of forward mode, because the
    innermost transform does not see the tangents of those around it.
    """
    if forward_ad._current_level < 0:
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0 or has_tangent(tensors)


def by_torch(plain: str, tensors: Sequence[Tensor | None], rest: Sequence[Any]) -> Tensor:
    """Returns the result of an operator by torch's own, which have derivatives of any kind.

    Args:
        plain: The operator's name without a backward.
        tensors: Its operands, as autocast wants them.
        rest: Its other arguments.
    """
    return _BY_TORCH[plain](*tensors, *rest[:-1])


def _dgrad(dy: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    dx = torch_dgrad(dy, weight, *rest)
    return dx if bias is None else dx + bias.view(-1, *(1,) * (dx.dim() - 2))


def _fused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    out_scale: Tensor | None,
    extra: Sequence[Tensor],
    *rest: Any,
) -> Tensor:
    *walk, activation, out_dtype, function = rest
    if function is not None or extra:
        raise NotImplementedError("epilogue= has no derivative of forward mode")
    operands = (bias, scale, residual, out_scale)
    return torch_fused(x, weight, *operands, walk, activation, out_dtype)


_BY_TORCH: dict[str, Callable[..., Tensor]] = {
    "fprop": torch_fprop,
    "dgrad": _dgrad,
    "wgrad": torch_wgrad,
    "fprop_fused": _fused,
}
