"""Calls of the operators: with or without a backward, as ``library.py`` has two of each.

The operators are looked up when they are called, so that whatever is registered with one of them
(a gradient, a rule for vmap) can call the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "dgrad",
    "fprop",
    "function_handle",
    "function_of",
    "fused",
    "fused_into",
    "is_differentiated",
    "wgrad",
]

Tensor = torch.Tensor
Numbers = Sequence[Any]


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Tells whether torch may ask for a derivative of what is computed from these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    # torch.func's transforms do not show in requires_grad.
    return torch._C._functorch.peek_interpreter_stack() is not None


def fprop(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    fallback: bool,
) -> Tensor:
    """Returns y; arguments as for ``execution.run_fprop``."""
    ops = torch.ops.triton_ext
    op = ops.conv if is_differentiated(x, weight, bias) else ops.fprop
    return op.default(x, weight, bias, stride, padding, dilation, groups, fallback)


def dgrad(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    input_size: Numbers,
    fallback: bool,
) -> Tensor:
    """Returns dx; arguments as for ``execution.run_dgrad``."""
    ops = torch.ops.triton_ext
    op = ops.conv_input if is_differentiated(dy, weight, bias) else ops.dgrad
    return op.default(dy, weight, bias, stride, padding, dilation, groups, input_size, fallback)


def wgrad(
    x: Tensor,
    dy: Tensor,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    filter_size: Numbers,
    fallback: bool,
) -> Tensor:
    """Returns dw; arguments as for ``execution.run_wgrad``."""
    ops = torch.ops.triton_ext
    op = ops.conv_weight if is_differentiated(x, dy) else ops.wgrad
    return op.default(x, dy, stride, padding, dilation, groups, filter_size, fallback)


def fused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    out_scale: Tensor | None,
    extra: Sequence[Tensor],
    *rest: Any,
) -> Tensor:
    """Returns y with an epilogue; arguments as ``conv_fused`` has them."""
    ops = torch.ops.triton_ext
    differentiated = is_differentiated(x, weight, bias, scale, residual, out_scale, *extra)
    op = ops.conv_fused if differentiated else ops.fprop_fused
    return op.default(x, weight, bias, scale, residual, out_scale, extra, *rest)


def fused_into(*arguments: Any) -> None:
    """Writes y, and the largest absolute value; arguments as ``fprop_into`` has them."""
    torch.ops.triton_ext.fprop_into.default(*arguments)


# An operator takes no function: it goes by a name, which lasts as long as the process.
_functions: dict[str, Any] = {}


@torch.compiler.assume_constant_result
def function_handle(function: Any) -> str:
    """Returns the name under which an operator finds a ``@triton.jit`` function."""
    name = getattr(function, "__name__", "function")
    handle = f"{getattr(function, '__module__', '')}.{name}#{id(function)}"
    # What is in the table lives on, so that no other function gets its id.
    _functions[handle] = function
    return handle


def function_of(handle: str | None) -> Any:
    """Returns the function of a name; ``None`` for ``None``."""
    return None if handle is None else _functions[handle]
