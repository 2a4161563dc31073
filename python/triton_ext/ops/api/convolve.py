"""Convolutions of any number of dimensions, from the arguments of the public functions to a call.

A call whose function key is cached runs its plan at once; any other call is checked and goes
through torch's dispatcher.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import torch

from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.api import operators
from triton_ext.ops.api.checks import (
    How,
    check,
    check_arguments,
    check_memory,
    check_out,
    check_output_padding,
    check_rank,
    check_sizes,
    check_steps,
    parse_how,
)
from triton_ext.ops.api.execution import BoundConvolution, TorchConvolution, bind
from triton_ext.ops.api.operators import DGRAD, FPROP, FUSED, INTO, ConvCall, Operator, torch_calls
from triton_ext.ops.core.descriptors import empty_channels_last
from triton_ext.ops.core.dispatch_cache import (
    autocast_operands,
    cached,
    cast_dtype,
    function_key,
    get,
    is_differentiated,
    keep,
)
from triton_ext.ops.core.epilogue import EpilogueArguments, apply_activation, output_dtype
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.problem import ConvParameters, GivenParameters, Numbers, numbers

Tensor = torch.Tensor

# Names of the functions by number of dimensions.
_CONV = ("", "conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_INPUT = ("", "conv1d_input", "conv2d_input", "conv3d_input")
_WEIGHT = ("", "conv1d_weight", "conv2d_weight", "conv3d_weight")

# How functions call what operators name otherwise.
OF_TRANSPOSED: Final = {"dy": "x", "output channels": "input channels"}
_OF_GRADIENTS: Final = {"dy": "grad_output"}
_NONE: Final[dict[str, str]] = {}


def convolve(
    dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, given: GivenParameters, how: How,
    output_padding: Numbers | None = None,
    calls: Any = None,
) -> Tensor:  # fmt: skip
    """Convolves without an epilogue, as the public function of so many dimensions does.

    With output padding, 0 included, the convolution is transposed.  ``calls`` counts the calls of
    kernels and of torch (``nn.calls``).
    """
    name = _CONV[dims]
    every: tuple[object, ...] = given
    if output_padding is not None:
        name, every = _TRANSPOSED[dims], (*given, output_padding)
    key = function_key(name, (x, weight, bias), every, how)
    bound = None if key is None else get(key)
    if bound is not None:
        if calls is not None:
            bound = calls.followed(bound)
        if is_differentiated(x, weight, bias):
            return bound.differentiate(x, weight, bias)
        return bound.run(x, weight, bias)
    if key is None and (operands := autocast_operands(x, weight, bias)) is not None:
        x, weight, bias = operands
        return convolve(dims, x, weight, bias, given, how, output_padding, calls)
    check_arguments(name, {"x": x, "weight": weight, "bias": bias}, given, how)
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
        return convolve(dims, x, weight, bias, given, how, output_padding, calls).squeeze(0)
    operator, words = (FPROP, _NONE) if output_padding is None else (DGRAD, OF_TRANSPOSED)
    check_rank(name, dims, operator.direction, {"x": x, "weight": weight})
    if output_padding is not None and isinstance(given[1], str):
        raise ValueError(f"{name}: padding must be numbers, got {given[1]!r}")
    parameters = ConvParameters.parse(given, weight.shape[2:])
    c = ConvCall(operator, x, weight, EpilogueArguments(bias), parameters, None, parse_how(how))
    if output_padding is not None:
        before = torch_calls.count
        made = _transposed(name, c, output_padding)
        if isinstance(made, Tensor):
            if calls is not None:
                calls.add(made, None, before)
            return made
        c = made
    return _compute(key, c, how, name, words, every, calls)


def _compute(
    key: Hashable, c: ConvCall, how: How, name: str = "", words: Mapping[str, str] = _NONE,
    given: tuple[object, ...] | None = None,
    calls: Any = None,
) -> Tensor:  # fmt: skip
    """Computes a call and caches its plan under its function key, if it has one.

    Errors have the name of the function, and its ``words`` for those of operators.  ``given`` are
    all numbers of the call, where autograd may record calls with this key.
    """
    before = torch_calls.count
    try:
        if key is not None and how[1] != "ours" and isinstance(bind(c), BoundPlan):
            from triton_ext.ops.tuning.runs import is_torch_faster  # it measures such calls itself

            if is_torch_faster(c.case(), c.first.device):
                bound = keep(key, TorchConvolution(c))
                bound = bound if calls is None else calls.followed(bound)
                return bound.run(c.first, c.second, c.epilogue.bias)
        y = operators.call(c)
    except _REFUSALS as error:
        raise renamed(name, error, words) from None
    forward = None if key is None else bind(c)
    if isinstance(forward, BoundPlan):
        keep(key, forward if given is None else BoundConvolution(c, forward, given))
    if calls is not None:
        calls.add(y, forward, before)
    return y


def _transposed(name: str, c: ConvCall, output_padding: Numbers) -> ConvCall | Tensor:
    """Returns a transposed call with its output size, or torch's output without one."""
    x, weight, parameters = c.first, c.second, c.parameters
    stride, sides, dilation, groups = parameters
    extra = numbers("output_padding", output_padding, weight.dim() - 2)
    check_steps(name, parameters)
    check_output_padding(name, extra, parameters)
    refusal = None
    if any(pixels >= step for pixels, step in zip(extra, stride, strict=True)):
        # No convolution has this as its gradient.
        refusal = f"output_padding {extra} is not smaller than stride {stride}"
    elif operators.is_traced():
        refusal = "torch.jit.trace takes no operator that has sizes among its arguments"
    if refusal is not None:
        if not c.fallback or sides[::2] != sides[1::2]:
            raise UnsupportedError(
                f'{name}: {refusal}; fallback="torch" takes it where padding is the same on both '
                "sides"
            )
        torch_calls.add(f"{name}: {refusal}")
        function = getattr(torch.nn.functional, name)
        bias = c.epilogue.bias
        y: Tensor = function(x, weight, bias, stride, sides[::2], extra, groups, dilation)
        return y
    size = parameters.transposed_size(x.shape[2:], weight.shape[2:], extra)
    if any(pixels < 1 for pixels in size):
        raise ValueError(f"{name}: expected output sizes of at least 1, got {size}")
    return c._replace(size=size)


#: How refusals of plans and operators begin, which several functions share.
_REFUSER: Final = re.compile(
    r"(conv_dgrad|dgrad|wgrad|conv_transpose\dd|conv\dd_weight|conv\dd \((dgrad|wgrad)\)): "
)
_REFUSALS: Final = (DescriptorError, UnsupportedError, TypeError, ValueError)


def check_call(name: str, c: ConvCall, words: Mapping[str, str], *, is_cast: bool = True) -> None:
    """Refuses a call as :func:`check` does, with the name and the words of a function."""
    try:
        check(c, is_cast=is_cast)
    except _REFUSALS as error:
        raise renamed(name, error, words) from None


def renamed(name: str, error: Exception, words: Mapping[str, str]) -> Exception:
    """Returns a refusal with the function's name and words for those in it; other errors as is."""
    text = str(error)
    match = _REFUSER.match(text)
    if match is None or type(error) not in _REFUSALS:
        return error
    text = text[match.end() :]
    for word, other in words.items():
        text = re.sub(rf"\b{word}\b", other, text)  # pattern: one of our words
    return type(error)(f"{name}: {text}")


def convolve_fused(
    dims: int, x: Tensor, weight: Tensor, fused: tuple[Any, ...], given: GivenParameters,
    how: How,
    calls: Any = None,
) -> Tensor:  # fmt: skip
    """Convolves with an epilogue, as the public function of so many dimensions does.

    ``fused`` are the fields of :class:`EpilogueArguments`; a tuple is made in less time.  ``calls``
    is as for :func:`convolve`.
    """
    name = _CONV[dims]
    bias, scale, residual, out_scale, extra, activation, out_dtype, function, out, amax = fused
    key = None
    tensors = (x, weight, bias, scale, residual, out_scale)
    if amax is function is extra is out is None:
        key = function_key(name, tensors, given, (*how, activation, out_dtype))
        if key is not None and is_differentiated(*tensors):
            key = None
        bound = cached(key)
        if bound is not None:
            if calls is not None:
                calls.forward[bound] += 1
            return bound.run(*tensors)
    epilogue = EpilogueArguments._make(fused)._replace(extra=() if extra is None else extra)
    named = {"x": x, "weight": weight, "bias": bias, "scale": scale, "residual": residual}
    named |= {"out_scale": out_scale, "amax": amax, "out": out}
    # These have no derivative, by torch either.
    is_strict = amax is not None or out is not None or function is not None
    check_arguments(name, named, given, ("error", how[1]) if is_strict else how)
    if x.dim() == dims + 1:
        for which, tensor in (("residual", residual), ("out", out)):
            if tensor is not None and tensor.dim() != dims + 1:
                raise ValueError(
                    f"{name}: x has no batch dimension, so {which} must have {dims + 1} "
                    f"dimensions, got {list(tensor.shape)}"
                )
        x, residual, out = (t if t is None else t.unsqueeze(0) for t in (x, residual, out))
        fused = EpilogueArguments._make(fused)._replace(residual=residual, out=out)
        return convolve_fused(dims, x, weight, fused, given, how, calls).squeeze(0)
    check_rank(name, dims, "fprop", {"x": x, "weight": weight})
    parameters = ConvParameters.parse(given, weight.shape[2:])
    c = ConvCall(FUSED, x, weight, epilogue, parameters, None, parse_how(how))
    # The kernel's operands may have another dtype than these have before autocast.
    check(c, is_cast=True)
    if function is not None:
        handle = operators.function_handle(function, len(epilogue.extra))
        c = c._replace(epilogue=epilogue._replace(function=handle))
    if out is not None or amax is not None:
        return _convolve_into(name, c)
    later = "none"
    is_kept = operators.is_differentiated(*c.tensors(), *epilogue.extra) or operators.is_traced()
    if is_kept and function is None and activation not in _SLOPE_BY_Y:
        # The backward needs the input of the activation, so torch applies it to a kept tensor.
        later = activation
        c = c._replace(epilogue=c.epilogue._replace(activation="none"))
    return apply_activation(_compute(key, c, _OURS, calls=calls), later)


# Calls with an epilogue are never left to torch for its speed.
_OURS: Final[How] = ("error", "ours")
# Activations whose slope follows from their output.
_SLOPE_BY_Y = ("none", "relu", "tanh")


def _convolve_into(name: str, c: ConvCall) -> Tensor:
    epilogue, x, shape = c.epilogue, c.first, c.shapes()[2]
    tensors = (*c.tensors(), *epilogue.extra)
    out, amax = epilogue.out, epilogue.amax
    given = (*tensors, out, amax)
    if operators.is_differentiated(*given) and any(
        tensor is not None and tensor.requires_grad for tensor in given
    ):
        raise RuntimeError(
            f"{name}: out= and amax= do not support automatic differentiation, but one of the "
            "arguments requires grad; call it under torch.no_grad()"
        )
    dtype = output_dtype(cast_dtype(x), epilogue.out_dtype)
    if out is None:
        out = empty_channels_last(shape, dtype, x.device)
    else:
        check_out(name, out, shape, dtype, x.device)
        check_memory(name, "out", out, tensors)
    if amax is not None:
        check_memory(name, "amax", amax, (*tensors, out))
    epilogue = epilogue._replace(out_dtype=dtype, out=out)
    operators.call(c._replace(operator=INTO, epilogue=epilogue))
    return out


def gradient(
    operator: Operator, dims: int, first: Tensor, second: Tensor, size: Sequence[int],
    given: GivenParameters,
    how: How,
) -> Tensor:  # fmt: skip
    """Computes a gradient of a convolution, as the public function of so many dimensions does.

    It has the shape ``size``.  The operands are the gradient of y and weight for dgrad, x and the
    gradient of y for wgrad.
    """
    is_dgrad = operator is DGRAD
    name = (_INPUT if is_dgrad else _WEIGHT)[dims]
    key = function_key(name, (first, second), (*given, size), how)
    if key is not None and is_differentiated(first, second):
        key = None
    bound = cached(key)
    if bound is not None:
        return bound.run(first, second)
    which = "input_size" if is_dgrad else "weight_size"
    names = ("grad_output", "weight") if is_dgrad else ("x", "grad_output")
    operands = dict(zip(names, (first, second), strict=True))
    check_arguments(name, operands, given, how)
    check_sizes(name, which, size, dims + 2)
    check_rank(name, dims, operator.direction, operands)
    parameters = ConvParameters.parse(given, (second.shape if is_dgrad else size)[2:])
    check_steps(name, parameters)
    outer, may_fall_back = list(size[2:]), parse_how(how)
    c = ConvCall(operator, first, second, EpilogueArguments(), parameters, outer, may_fall_back)
    check_call(name, c, _OF_GRADIENTS)
    expected = c.shapes()[2]
    if tuple(size[:2]) != expected[:2]:
        raise ValueError(
            f"{name}: expected {which} [{expected[0]}, {expected[1]}, ...], got {list(size)}"
        )
    return _compute(key, c, how, name, _OF_GRADIENTS)
