"""What is done to a tile of an output before it is stored.

An :class:`EpilogueSpec` says which operations there are; it is part of what a kernel is compiled
for, so it is frozen and can be hashed.  :class:`EpilogueOperands` holds the tensors of one call.

    y = cast(out_scale * function(activation(acc * scale + bias + residual)))
    amax = max(abs(function(activation(acc * scale + bias + residual))))

Everything is computed in fp32 on the accumulators and rounded once, by the cast.  The order is that
of cuDNN and of torch's fused operators.

A function of the user's own is ``@triton.jit`` and called as ``function(tile, rows, columns,
*extra)``, possibly several times per tile of the kernel:

    tile     fp32 [R, C], a part of the output
    rows     int [R], output pixels, counted over [N, *output_size]
    columns  int [C], output channels
    extra    what ``EpilogueOperands.extra`` holds: tensors arrive as pointers, numbers as scalars

It returns a tile of the same shape, of any floating type.  Rows and columns beyond the output
occur: what is returned for them is dropped, but what the function loads there it masks itself.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from triton.runtime.jit import JITFunction

from triton_ext.ops.core.device import IS_INTERPRETED

__all__ = [
    "ACTIVATIONS",
    "NO_OPERANDS",
    "PLAIN",
    "EpilogueOperands",
    "EpilogueSpec",
    "is_device_function",
    "result_problem",
]

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh"]

ACTIVATIONS: tuple[Activation, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")


def is_device_function(function: object) -> bool:
    """Tells whether Triton can compile, or interpret, a function."""
    if IS_INTERPRETED:
        from triton.runtime.interpreter import InterpretedFunction

        return isinstance(function, (JITFunction, InterpretedFunction))
    return isinstance(function, JITFunction)


def result_problem(function: Any) -> str:
    """What is wrong with what a ``@triton.jit`` function returns, read from its source.

    Returns:
        What it returns where that is no tile; empty where it may be one, or without a source.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.fn)))
    except (OSError, TypeError, SyntaxError):
        return ""
    results = [node.value for node in _returns(tree.body[0])]
    if not results or any(_is_nothing(result) for result in results):
        return "nothing"
    return "a tuple" if any(isinstance(result, ast.Tuple) for result in results) else ""


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """The ``return`` statements of a function, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield from _returns(child)


def _is_nothing(result: ast.expr | None) -> bool:
    return result is None or (isinstance(result, ast.Constant) and result.value is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpilogueSpec:
    """Which operations follow the accumulation; the module's docstring has their order.

    Attributes:
        bias: Whether a number per output channel is added.
        scale: Whether the accumulators are multiplied, by one number or one per output channel.
        residual: Whether a tensor of the output's shape is added.
        residual_per_image: Whether the residual is [N, Co, 1, ...], one number per image and
            channel, which counts for all pixels of the image.
        activation: ``"gelu"`` is the exact one, by erf; ``"gelu_tanh"`` its approximation.
        out_dtype: Of the output; ``None`` for that of the input (int32 for int8).
        out_scale: Whether one number multiplies the output just before it is cast.
        amax: Whether the largest absolute value is reported, before ``out_scale``.
        function: A ``@triton.jit`` function of the user's, or None.

    Raises:
        ValueError: An activation without a meaning, or ``residual_per_image`` without a residual.
        TypeError: ``function`` is not a ``@triton.jit`` function.
    """

    bias: bool = False
    scale: bool = False
    residual: bool = False
    residual_per_image: bool = False
    activation: Activation = "none"
    out_dtype: torch.dtype | None = None
    out_scale: bool = False
    amax: bool = False
    function: Any = None

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"epilogue: expected an activation of {', '.join(ACTIVATIONS)}, "
                f"got {self.activation!r}"
            )
        if self.residual_per_image and not self.residual:
            raise ValueError(
                "epilogue: residual_per_image says how large a residual is, expected residual=True"
            )
        if self.function is not None and not is_device_function(self.function):
            raise TypeError(
                "epilogue: expected a @triton.jit function f(tile, rows, columns, *extra), got "
                f"{type(self.function).__name__} {getattr(self.function, '__name__', '')}".rstrip()
                + "; decorate it with @triton.jit"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpilogueOperands:
    """The tensors of one call; ``None`` for what the specification does not ask for.

    Attributes:
        bias: [Co].
        scale: [Co], or one number in a tensor of one element.
        residual: [N, Co, *output_size], any strides; [N, Co, 1, ...] where it is per image.
        out_scale: One number in a tensor of one element, fp32.
        amax: One fp32, which is written over.
        extra: Further arguments of the function.
    """

    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None
    amax: torch.Tensor | None = None
    extra: tuple[Any, ...] = ()


#: No operation but the cast to the type of the input.
PLAIN = EpilogueSpec()
NO_OPERANDS = EpilogueOperands()
