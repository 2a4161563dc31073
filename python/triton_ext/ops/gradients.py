"""Transposed convolutions and gradients of any number of dimensions, from torch's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops import calls, shortcut
from triton_ext.ops.arguments import (
    check_groups,
    check_not_empty,
    check_pair,
    check_sizes,
    dgrad_size,
    numbers,
    rank_error,
    walk_of,
)
from triton_ext.ops.checks import (
    Fallback,
    Numbers,
    Padding,
    check_numbers,
    check_output_padding,
    check_output_size,
    check_steps,
    check_types,
    parse_fallback,
    refuse_layout,
)
from triton_ext.ops.execution import known_dgrad, known_wgrad
from triton_ext.ops.seen import SeenConvolution

__all__ = ["convolve_transposed", "input_gradient", "weight_gradient"]

Tensor = torch.Tensor

#: Who refuses below the functions here: plans and operators, which several functions share.
_REFUSER: Final = re.compile(
    r"(conv_dgrad|dgrad|wgrad|conv_transpose\dd|conv\dd \((dgrad|wgrad)\)): "
)
_REFUSALS: Final = (DescriptorError, UnsupportedError, TypeError, ValueError)


def _said_by(name: str, error: Exception, words: Mapping[str, str]) -> Exception:
    """A refusal as the function that was called says it; the error itself where it is no refusal.

    Args:
        name: The function.
        error: What was raised.
        words: What is called otherwise in that function.
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
    stride: Numbers,
    padding: Padding,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
    fallback: Fallback,
) -> Tensor:
    name = f"conv_transpose{dims}d"
    given = (stride, padding, output_padding, groups, dilation)
    key = shortcut.key_of(name, (x, weight, bias), given, (fallback,))
    seen = shortcut.known(key)
    if seen is not None:
        if shortcut.is_differentiated(x, weight, bias):
            return seen.differentiate(x, weight, bias)
        return seen.run(x, weight, bias)
    if key is None and (operands := shortcut.cast(x, weight, bias)) is not None:
        x, weight, bias = operands
        return convolve_transposed(
            dims, x, weight, bias, stride, padding, output_padding, groups, dilation, fallback
        )
    check_types(name, x, weight, bias, fallback=fallback)
    check_groups(name, groups)
    if x.dim() == dims + 1:
        return convolve_transposed(
            dims, x.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation,
            fallback,
        ).squeeze(0)  # fmt: skip
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight, transposed=True)
    check_numbers(name, padding)
    stride, sides, dilation = walk_of(stride, padding, dilation, weight.shape[2:])
    extra = numbers("output_padding", output_padding, dims)
    check_steps(name, stride, dilation)
    # The kernel's operands may have another dtype than these have before autocast.
    check_pair(name, ("x", x), weight, bias, groups, transposed=True, mixed_dtypes=True)
    may_fall_back = parse_fallback(fallback)
    check_output_padding(name, extra, stride, dilation)
    if any(pixels >= step for pixels, step in zip(extra, stride, strict=True)):
        # No convolution has this as its gradient.
        problem = f"output_padding {tuple(extra)} is not smaller than stride {tuple(stride)}"
        return _by_torch(
            name, problem, (x, weight, bias), stride, sides, extra, groups, dilation, may_fall_back
        )
    if calls.is_traced():
        problem = "torch.jit.trace takes no operator that has sizes among its arguments"
        return _by_torch(
            name, problem, (x, weight, bias), stride, sides, extra, groups, dilation, may_fall_back
        )
    if not may_fall_back:
        refuse_layout(name, x=x)
    size = dgrad_size(x.shape[2:], weight.shape[2:], stride, sides, dilation, extra)
    if any(pixels < 1 for pixels in size):
        raise ValueError(f"{name}: expected output sizes of at least 1, got {size}")
    walk = (stride, sides, dilation, groups)
    try:
        y = calls.dgrad(x, weight, bias, *walk, size, may_fall_back)
    except _REFUSALS as error:
        raise _said_by(name, error, {"dy": "x", "output channels": "input channels"}) from None
    if key is not None and (forward := known_dgrad(x, weight, bias, *walk, size)):
        shortcut.keep(key, SeenConvolution(forward, given, walk, is_transposed=True))
    return y


def _by_torch(
    name: str,
    problem: str,
    operands: tuple[Tensor, Tensor, Tensor | None],
    stride: Sequence[int],
    sides: Sequence[int],
    extra: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    may_fall_back: bool,
) -> Tensor:
    """Leaves a transposed convolution that the operators do not take to torch, or refuses it."""
    if not may_fall_back or sides[::2] != sides[1::2]:
        raise UnsupportedError(
            f'{name}: {problem}; fallback="torch" takes it where padding is the same on both sides'
        )
    torchs = getattr(torch.nn.functional, name)
    y: Tensor = torchs(*operands, stride, sides[::2], extra, groups, dilation)
    return y


def _check_first(
    name: str, which: str, size: Sequence[int], dims: int, expected: tuple[int, int]
) -> None:
    """Refuses the size of a gradient that begins otherwise than the other operands say."""
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
    stride: Numbers,
    padding: Padding,
    dilation: Numbers,
    groups: int,
    fallback: Fallback,
) -> Tensor:
    name = f"conv{dims}d_input"
    given = (stride, padding, dilation, groups, input_size)
    key = shortcut.key_of(name, (grad_output, weight), given, (fallback,))
    if key is not None and shortcut.is_differentiated(grad_output, weight):
        key = None
    known = shortcut.known(key)
    if known is not None:
        return known.run(grad_output, weight)
    check_types(name, grad_output, weight, None, ("grad_output", "weight"), fallback=fallback)
    check_groups(name, groups)
    check_sizes(name, "input_size", input_size, dims + 2)
    if grad_output.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("grad_output", grad_output), weight)
    stride, sides, dilation = walk_of(stride, padding, dilation, weight.shape[2:])
    check_steps(name, stride, dilation)
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            f"{name}: {weight.shape[0]} channels of weight {list(weight.shape)} do not divide "
            f"into {groups} groups"
        )
    if grad_output.shape[1] != weight.shape[0]:
        raise ValueError(
            f"{name}: grad_output has {grad_output.shape[1]} channels, weight "
            f"{list(weight.shape)} expects {weight.shape[0]}"
        )
    channels = weight.shape[1] * groups
    _check_first(name, "input_size", input_size, dims, (grad_output.shape[0], channels))
    check_output_size(name, input_size[2:], weight.shape[2:], stride, sides, dilation, grad_output)
    may_fall_back = parse_fallback(fallback)
    if not may_fall_back:
        refuse_layout(name, grad_output=grad_output)
    walk, size = (stride, sides, dilation, groups), list(input_size[2:])
    try:
        dx = calls.dgrad(grad_output, weight, None, *walk, size, may_fall_back)
    except _REFUSALS as error:
        raise _said_by(name, error, {"dy": "grad_output"}) from None
    if key is not None and (known := known_dgrad(grad_output, weight, None, *walk, size)):
        shortcut.keep(key, known)
    return dx


def weight_gradient(
    dims: int,
    x: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Numbers,
    padding: Padding,
    dilation: Numbers,
    groups: int,
    fallback: Fallback,
) -> Tensor:
    name = f"conv{dims}d_weight"
    given = (stride, padding, dilation, groups, weight_size)
    key = shortcut.key_of(name, (x, grad_output), given, (fallback,))
    if key is not None and shortcut.is_differentiated(x, grad_output):
        key = None
    known = shortcut.known(key)
    if known is not None:
        return known.run(x, grad_output)
    check_types(name, x, grad_output, None, ("x", "grad_output"), fallback=fallback)
    check_groups(name, groups)
    check_sizes(name, "weight_size", weight_size, dims + 2)
    if x.dim() != dims + 2 or grad_output.dim() != dims + 2:
        raise ValueError(
            f"{name}: expected x and grad_output of rank {dims + 2}, got {list(x.shape)} and "
            f"{list(grad_output.shape)}"
        )
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{name}: {x.shape[1]} channels do not divide into {groups} groups")
    all_channels = (x.shape[1], grad_output.shape[1])
    check_not_empty(name, all_channels, {"x": x, "grad_output": grad_output})
    channels = x.shape[1] // groups
    _check_first(name, "weight_size", weight_size, dims, (grad_output.shape[1], channels))
    taps = list(weight_size[2:])
    stride, sides, dilation = walk_of(stride, padding, dilation, taps)
    check_steps(name, stride, dilation)
    check_output_size(name, x.shape[2:], taps, stride, sides, dilation, grad_output)
    may_fall_back = parse_fallback(fallback)
    if not may_fall_back:
        refuse_layout(name, x=x, grad_output=grad_output)
    walk = (stride, sides, dilation, groups)
    try:
        dw = calls.wgrad(x, grad_output, *walk, taps, may_fall_back)
    except _REFUSALS as error:
        raise _said_by(name, error, {"dy": "grad_output"}) from None
    if key is not None and (known := known_wgrad(x, grad_output, *walk, taps)):
        shortcut.keep(key, known)
    return dw
