"""Transposed convolutions and gradients of any number of dimensions, from torch's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.api import calls
from triton_ext.ops.api.bound import BoundConvolution
from triton_ext.ops.api.checks import (
    Fallback,
    check_groups,
    check_not_empty,
    check_numbers,
    check_output_padding,
    check_output_size,
    check_pair,
    check_sizes,
    check_steps,
    check_types,
    parse_fallback,
    rank_error,
    refuse_layout,
)
from triton_ext.ops.api.execution import bind_dgrad, bind_wgrad
from triton_ext.ops.core.dispatch_cache import (
    autocast_operands,
    cached,
    function_key,
    is_differentiated,
    keep,
)
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.parameters import ConvParameters, GivenParameters, Numbers, numbers

__all__ = ["convolve_transposed", "input_gradient", "weight_gradient"]

Tensor = torch.Tensor

#: How refusals of plans and operators begin, which several functions share.
_REFUSER: Final = re.compile(
    r"(conv_dgrad|dgrad|wgrad|conv_transpose\dd|conv\dd \((dgrad|wgrad)\)): "
)
_REFUSALS: Final = (DescriptorError, UnsupportedError, TypeError, ValueError)


def _renamed(name: str, error: Exception, words: Mapping[str, str]) -> Exception:
    """Returns a refusal in terms of the function that was called; another error as it is.

    Args:
        name: The function.
        error: The error.
        words: Names in the refusal, and what that function calls them.
    """
    text = str(error)
    match = _REFUSER.match(text)
    if match is None or type(error) not in _REFUSALS:
        return error
    text = text[match.end() :]
    for word, other in words.items():
        text = re.sub(rf"\b{word}\b", other, text)
    return type(error)(f"{name}: {text}")


def convolve_transposed(
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    given: GivenParameters,
    output_padding: Numbers,
    fallback: Fallback,
) -> Tensor:
    """Convolves x with a transposed filter, as the public function of so many dimensions does."""
    name = f"conv_transpose{dims}d"
    words = (*given, output_padding)
    key = function_key(name, (x, weight, bias), words, (fallback,))
    bound = cached(key)
    if bound is not None:
        if is_differentiated(x, weight, bias):
            return bound.differentiate(x, weight, bias)
        return bound.run(x, weight, bias)
    if key is None and (operands := autocast_operands(x, weight, bias)) is not None:
        x, weight, bias = operands
        return convolve_transposed(dims, x, weight, bias, given, output_padding, fallback)
    check_types(name, x, weight, bias, fallback=fallback)
    check_groups(name, given[3])
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
        y = convolve_transposed(dims, x, weight, bias, given, output_padding, fallback)
        return y.squeeze(0)
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight, is_transposed=True)
    check_numbers(name, given[1])
    parameters = ConvParameters.parse(given, weight.shape[2:])
    extra = numbers("output_padding", output_padding, dims)
    check_steps(name, parameters)
    # The kernel's operands may have another dtype than these have before autocast.
    check_pair(
        name, ("x", x), weight, bias, parameters.groups, is_transposed=True, mixed_dtypes=True
    )
    may_fall_back = parse_fallback(fallback)
    check_output_padding(name, extra, parameters)
    problem = None
    if any(pixels >= step for pixels, step in zip(extra, parameters.stride, strict=True)):
        # No convolution has this as its gradient.
        problem = f"output_padding {extra} is not smaller than stride {parameters.stride}"
    elif calls.is_traced():
        problem = "torch.jit.trace takes no operator that has sizes among its arguments"
    if problem is not None:
        if not may_fall_back or parameters.padding[::2] != parameters.padding[1::2]:
            raise UnsupportedError(
                f'{name}: {problem}; fallback="torch" takes it where padding is the same on both '
                "sides"
            )
        return _by_torch(name, x, weight, bias, parameters, extra)
    if not may_fall_back:
        refuse_layout(name, x=x)
    size = parameters.transposed_size(x.shape[2:], weight.shape[2:], extra)
    if any(pixels < 1 for pixels in size):
        raise ValueError(f"{name}: expected output sizes of at least 1, got {size}")
    try:
        y = calls.dgrad(x, weight, bias, parameters, size, may_fall_back)
    except _REFUSALS as error:
        raise _renamed(name, error, {"dy": "x", "output channels": "input channels"}) from None
    if key is not None:
        forward = bind_dgrad(x, weight, bias, parameters, size)
        if isinstance(forward, BoundPlan):
            keep(key, BoundConvolution(forward, words, parameters, is_transposed=True))
    return y


def _by_torch(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    output_padding: Sequence[int],
) -> Tensor:
    """Computes a transposed convolution that the operators do not take."""
    stride, sides, dilation, groups = parameters
    function = getattr(torch.nn.functional, name)
    y: Tensor = function(x, weight, bias, stride, sides[::2], output_padding, groups, dilation)
    return y


def _check_first(
    name: str, which: str, size: Sequence[int], dims: int, expected: tuple[int, int]
) -> None:
    """Refuses the size of a gradient whose first two numbers are not those of the operands."""
    if len(size) != dims + 2 or tuple(size[:2]) != expected:
        raise ValueError(
            f"{name}: expected {which} [{expected[0]}, {expected[1]}, ...] of {dims + 2} numbers, "
            f"got {list(size)}"
        )


def input_gradient(
    dims: int,
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    given: GivenParameters,
    fallback: Fallback,
) -> Tensor:
    """Computes the gradient of x, as the public function of so many dimensions does."""
    name = f"conv{dims}d_input"
    key = function_key(name, (grad_output, weight), (*given, input_size), (fallback,))
    if key is not None and is_differentiated(grad_output, weight):
        key = None
    bound = cached(key)
    if bound is not None:
        return bound.run(grad_output, weight)
    check_types(name, grad_output, weight, None, ("grad_output", "weight"), fallback=fallback)
    check_groups(name, given[3])
    check_sizes(name, "input_size", input_size, dims + 2)
    if grad_output.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("grad_output", grad_output), weight)
    parameters = ConvParameters.parse(given, weight.shape[2:])
    check_steps(name, parameters)
    operand, groups = ("grad_output", grad_output), parameters.groups
    check_pair(name, operand, weight, None, groups, is_transposed=True, mixed_dtypes=True)
    channels = weight.shape[1] * groups
    _check_first(name, "input_size", input_size, dims, (grad_output.shape[0], channels))
    size = list(input_size[2:])
    check_output_size(name, size, weight.shape[2:], parameters, grad_output)
    may_fall_back = parse_fallback(fallback)
    if not may_fall_back:
        refuse_layout(name, grad_output=grad_output)
    try:
        dx = calls.dgrad(grad_output, weight, None, parameters, size, may_fall_back)
    except _REFUSALS as error:
        raise _renamed(name, error, {"dy": "grad_output"}) from None
    if key is not None and isinstance(
        forward := bind_dgrad(grad_output, weight, None, parameters, size), BoundPlan
    ):
        keep(key, forward)
    return dx


def weight_gradient(
    dims: int,
    x: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    given: GivenParameters,
    fallback: Fallback,
) -> Tensor:
    """Computes the gradient of weight, as the public function of so many dimensions does."""
    name = f"conv{dims}d_weight"
    key = function_key(name, (x, grad_output), (*given, weight_size), (fallback,))
    if key is not None and is_differentiated(x, grad_output):
        key = None
    bound = cached(key)
    if bound is not None:
        return bound.run(x, grad_output)
    check_types(name, x, grad_output, None, ("x", "grad_output"), fallback=fallback)
    check_groups(name, given[3])
    check_sizes(name, "weight_size", weight_size, dims + 2)
    if x.dim() != dims + 2 or grad_output.dim() != dims + 2:
        raise ValueError(
            f"{name}: expected x and grad_output of rank {dims + 2}, got {list(x.shape)} and "
            f"{list(grad_output.shape)}"
        )
    groups = given[3]
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{name}: {x.shape[1]} channels do not divide into {groups} groups")
    all_channels = (x.shape[1], grad_output.shape[1])
    check_not_empty(name, all_channels, {"x": x, "grad_output": grad_output})
    channels = x.shape[1] // groups
    _check_first(name, "weight_size", weight_size, dims, (grad_output.shape[1], channels))
    taps = list(weight_size[2:])
    parameters = ConvParameters.parse(given, taps)
    check_steps(name, parameters)
    check_output_size(name, x.shape[2:], taps, parameters, grad_output)
    may_fall_back = parse_fallback(fallback)
    if not may_fall_back:
        refuse_layout(name, x=x, grad_output=grad_output)
    try:
        dw = calls.wgrad(x, grad_output, parameters, taps, may_fall_back)
    except _REFUSALS as error:
        raise _renamed(name, error, {"dy": "grad_output"}) from None
    if key is not None and isinstance(
        forward := bind_wgrad(x, grad_output, parameters, taps), BoundPlan
    ):
        keep(key, forward)
    return dw
