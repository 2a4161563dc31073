"""Calls of the operators: with or without a backward, in eager mode, compiled or transformed.

The operators are looked up when they are called, so that whatever is registered with one of them
(a gradient, a rule for vmap) can call the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.autocast import cast_operands, is_autocast
from triton_ext.ops.epilogue import is_device_function, result_problem
from triton_ext.ops.forward_mode import by_torch, is_forward_mode

__all__ = [
    "Functions",
    "Walk",
    "dgrad",
    "fprop",
    "function_handle",
    "function_of",
    "functions",
    "fused",
    "fused_into",
    "is_differentiated",
    "is_traced",
    "is_transformed",
    "wgrad",
]

Tensor = torch.Tensor
Numbers = Sequence[Any]
#: Stride, padding, dilation and groups.
Walk = tuple[Numbers, Numbers, Numbers, int]


@dataclass(frozen=True, slots=True)
class Functions:
    """An operator with a backward as functions of autograd.

    Attributes:
        eager: Costs 20 us less a call than the operator, whose autograd torch.library generates
            (torch 2.13, CPU build, 2026-11-20).
        transformed: For the transforms of torch.func, which refuse the operator.
        casts: Which arguments autocast casts.
    """

    eager: type[torch.autograd.Function]
    transformed: type[torch.autograd.Function]
    casts: tuple[bool, ...]


#: Whether torch.compile can look for transforms: seen with torch 2.13, not with 2.11.
SEES_LAYERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

# The others have sizes among their arguments, SymInt[], which ends torch.jit.trace (torch 2.13).
_TRACEABLE = ("fprop", "fprop_fused")

#: By the name of the operator with a backward; ``library.py`` fills it.
functions: dict[str, Functions] = {}


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Tells whether torch may ask for a derivative of what is computed from these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return is_transformed()


def is_traced() -> bool:
    """Tells whether torch.jit.trace records what is called."""
    return not torch.compiler.is_compiling() and torch.jit.is_tracing()


def is_transformed() -> bool:
    """Tells whether a transform of torch.func is at work, which does not show in requires_grad."""
    if torch.compiler.is_compiling() and not SEES_LAYERS:
        # The operator's own refusal is what is left to say there.
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def _call(plain: str, differentiable: str, tensors: Sequence[Tensor | None], rest: Any) -> Tensor:
    """Calls the operator of a direction that costs least and has the derivatives asked for."""
    if rest[-1] and is_forward_mode(tensors):
        return by_torch(plain, _cast(differentiable, tensors), rest)
    if plain in _TRACEABLE and is_traced() and not is_transformed():
        # Who runs the graph may differentiate it, whether or not who traces it does.
        return getattr(torch.ops.triton_ext, differentiable).default(*tensors, *rest)
    if not is_differentiated(*tensors):
        return getattr(torch.ops.triton_ext, plain).default(*tensors, *rest)
    transformed = is_transformed()
    if torch.compiler.is_compiling():
        if transformed:
            raise NotImplementedError(
                "convolutions under a transform of torch.func do not compile; call the transform "
                "outside of torch.compile"
            )
        return getattr(torch.ops.triton_ext, differentiable).default(*tensors, *rest)
    ways = functions[differentiable]
    function = ways.transformed if transformed else ways.eager
    # What is saved for the backward is what was computed with.
    return function.apply(*_cast(differentiable, tensors), *rest)


def _cast(differentiable: str, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Returns the operands of a direction as autocast wants them."""
    device = tensors[0].device.type  # type: ignore[union-attr]
    if not is_autocast(device):
        return tensors
    return cast_operands(tensors, functions[differentiable].casts[: len(tensors)], device)


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
    rest = (stride, padding, dilation, groups, fallback)
    return _call("fprop", "conv", (x, weight, bias), rest)


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
    rest = (stride, padding, dilation, groups, input_size, fallback)
    return _call("dgrad", "conv_input", (dy, weight, bias), rest)


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
    rest = (stride, padding, dilation, groups, filter_size, fallback)
    return _call("wgrad", "conv_weight", (x, dy), rest)


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
    tensors = (x, weight, bias, scale, residual, out_scale)
    if extra and is_differentiated(*extra):
        raise NotImplementedError("epilogue= has no derivative; call it under torch.no_grad()")
    return _call("fprop_fused", "conv_fused", tensors, (extra, *rest))


def fused_into(*arguments: Any) -> None:
    """Writes y, and the largest absolute value; arguments as ``fprop_into`` has them."""
    torch.ops.triton_ext.fprop_into.default(*arguments)


# An operator takes no function: it goes by a name, which lasts as long as the process.
_functions: dict[str, Any] = {}
_fitting: set[tuple[str, int]] = set()


@torch.compiler.assume_constant_result
def function_handle(function: Any, operands: int) -> str:
    """Returns the name under which an operator finds a ``@triton.jit`` function.

    Args:
        function: The function.
        operands: How many tensors it gets behind tile, rows and columns.

    Raises:
        TypeError: It does not take as many, or returns nothing or a tuple.
    """
    name = getattr(function, "__name__", "function")
    handle = f"{getattr(function, '__module__', '')}.{name}#{id(function)}"
    if (handle, operands) not in _fitting and is_device_function(function):
        signature = inspect.signature(function.fn)
        try:
            signature.bind(*range(3 + operands))
        except TypeError:
            raise TypeError(
                f"epilogue: {name}{signature} is called with tile, rows, columns and {operands} "
                "epilogue_operands, which it does not take"
            ) from None
        result = result_problem(function)
        if result:
            raise TypeError(
                f"epilogue: {name}{signature} returns {result}, expected a tile of the shape of "
                "its first argument"
            )
        _fitting.add((handle, operands))
    # What is in the table lives on, so that no other function gets its id.
    _functions[handle] = function
    return handle


def function_of(handle: str | None) -> Any:
    """Returns the function of a name; ``None`` for ``None``."""
    return None if handle is None else _functions[handle]
