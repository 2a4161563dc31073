"""Forward-mode derivatives, which torch's own convolutions compute.

The operators have none, for which torch would return zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from triton_ext.ops.api.reference import torch_dgrad, torch_fprop, torch_fused, torch_wgrad
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.parameters import ConvParameters

__all__ = ["by_torch", "has_tangent", "is_forward_mode"]

Tensor = torch.Tensor


def has_tangent(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether any of the tensors is dual at the level of the innermost transform."""
    if forward_ad._current_level < 0:
        return False
    return any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
        for tensor in tensors
    )


def is_forward_mode(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether torch may ask for forward-mode derivatives of a call.

    Under the transforms of torch.func that is any call within one of forward mode, because the
    innermost transform does not see the tangents of those around it.
    """
    if forward_ad._current_level < 0:
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0 or has_tangent(tensors)


def by_torch(name: str, tensors: Sequence[Tensor | None], rest: Sequence[Any]) -> Tensor:
    """Returns the result of an operator by torch's own, which have derivatives of any kind.

    Args:
        name: Name of the operator without a backward.
        tensors: Its operands, as autocast casts them.
        rest: Its other arguments, parameters as one value, without the fallback.
    """
    return _BY_TORCH[name](*tensors, *rest)


def _dgrad(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    input_size: Sequence[int],
) -> Tensor:
    dx = torch_dgrad(dy, weight, parameters, input_size)
    return dx if bias is None else dx + bias.view(-1, *(1,) * (dx.dim() - 2))


def _fused(x: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    *operands, extra, parameters, activation, out_dtype, function = arguments
    if function is not None or extra:
        raise NotImplementedError("epilogue= has no derivative of forward mode")
    fields = (*operands, (), activation, out_dtype, None, None, None)
    epilogue = EpilogueArguments._make(fields)
    return torch_fused(x, weight, epilogue, parameters)


_BY_TORCH: dict[str, Callable[..., Tensor]] = {
    "fprop": torch_fprop,
    "dgrad": _dgrad,
    "wgrad": torch_wgrad,
    "fprop_fused": _fused,
}
