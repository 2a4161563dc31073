"""Epilogues: operations on a tile of the output before it is stored.

:class:`EpilogueSpec` is part of what a kernel is compiled for, :class:`EpilogueArguments` is the
epilogue of one call, with its tensors.

    y = cast(out_scale * function(activation(acc * scale + bias + residual)))
    amax = max(abs(function(activation(acc * scale + bias + residual))))

Everything is computed in fp32 on the accumulators and rounded once, by the cast.  The order is that
of cuDNN and of torch's fused operators.

A function of the user's own is ``@triton.jit`` and called as ``function(tile, rows, columns,
*extra)``, possibly several times per tile of the kernel:

    tile     fp32 [R, C], a part of the output
    rows     int [R], output pixels, counted over [N, *output_size]
    columns  int [C], output channels
    extra    what ``EpilogueArguments.extra`` holds: tensors arrive as pointers, numbers as scalars

It returns a tile of the same shape, of any floating type.  Rows and columns beyond the output
occur: what is returned for them is dropped, but what the function loads there it masks itself.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional as F
from triton.runtime.jit import JITFunction

from triton_ext.ops.core.device import IS_INTERPRETED

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh"]

ACTIVATIONS: tuple[Activation, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")


def is_device_function(function: object) -> bool:
    """Tells whether Triton can compile, or interpret, a function."""
    if IS_INTERPRETED:
        from triton.runtime.interpreter import InterpretedFunction

        return isinstance(function, (JITFunction, InterpretedFunction))
    return isinstance(function, JITFunction)


def result_refusal(function: Any) -> str:
    """Returns what a ``@triton.jit`` function returns instead of a tile, or an empty string."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.fn)))
    except (OSError, TypeError, SyntaxError):
        return ""
    results = list(_results(tree.body[0]))
    if not results or any(ast.unparse(result) == "None" for result in results):
        return "nothing"
    return "a tuple" if any(isinstance(result, ast.Tuple) for result in results) else ""


def _results(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the values that a function returns, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child.value or ast.Constant(None)
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield from _results(child)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpilogueSpec:
    """Which operations follow the accumulation; :class:`EpilogueArguments` describes their tensors.

    Attributes:
        residual_per_image: Whether the residual is [N, Co, 1, ...], one number per image and
            channel, which counts for all pixels of the image.
        activation: ``"gelu"`` is the exact one, by erf; ``"gelu_tanh"`` its approximation.
        out_dtype: Dtype of y; ``None`` for that of x (int32 for int8).
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

    @property
    def finish(self) -> Finish:
        """The constants of the kernels."""
        return Finish(self.activation, self.function, self.residual_per_image)

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


class Operands(NamedTuple):
    """Tensors of an epilogue as kernels get them, pointers there; ``None`` where there is none."""

    bias: Any = None  # [Co]
    scale: Any = None  # [Co]
    tile_scale: Any = None  # one number for all channels
    residual: Any = None  # [M_GEMM, Co], or [N, Co] for one per image
    out_scale: Any = None  # one number
    amax: Any = None  # the bits of one fp32, as int32
    extra: Any = None  # further arguments of the function, a tuple


class Finish(NamedTuple):
    """Constants of an epilogue as kernels get them."""

    activation: Activation
    function: Any  # a ``@triton.jit`` function or None
    residual_per_image: bool


class EpilogueArguments(NamedTuple):
    """The tensors and the operations of an epilogue; plans read the tensors alone.

    Attributes:
        bias: [Co]; added.
        scale: [Co], or one number in a tensor of one element; multiplies the accumulators.
        residual: [N, Co, *output_size], any strides, or [N, Co, 1, ...]; added.
        out_scale: One fp32 in a tensor of one element; multiplies y just before it is cast.
        extra: Further arguments of the function.
        activation: Its name in :class:`EpilogueSpec`.
        out_dtype: Dtype of y; ``None`` for that of x.
        function: A ``@triton.jit`` function; for operators, its handle; or None.
        out: Where to put y, or None for a new tensor.
        amax: One fp32; the largest absolute value, before ``out_scale``, is written to it.
    """

    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None
    extra: Sequence[Any] = ()
    activation: Any = "none"
    out_dtype: torch.dtype | None = None
    function: Any = None
    out: torch.Tensor | None = None
    amax: torch.Tensor | None = None

    def spec(self, y_shape: Sequence[Any], function: Any) -> EpilogueSpec:
        """Returns what a kernel is compiled for, by the shape of y and the function itself."""
        return EpilogueSpec(
            bias=self.bias is not None,
            scale=self.scale is not None,
            residual=self.residual is not None,
            residual_per_image=is_per_image(self.residual, y_shape),
            activation=self.activation,
            out_dtype=self.out_dtype,
            out_scale=self.out_scale is not None,
            amax=self.amax is not None,
            function=function,
        )

    def operands(self) -> EpilogueArguments:
        """Returns the arguments for a plan: :data:`NO_OPERANDS` where there is no tensor."""
        bias, scale, residual, out_scale, extra, *_, amax = self
        is_empty = bias is scale is residual is out_scale is amax is None and not extra
        return NO_OPERANDS if is_empty else self


def output_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None = None) -> torch.dtype:
    """Returns the dtype of y for that of x, unless another one is asked for."""
    return out_dtype or (torch.int32 if dtype == torch.int8 else dtype)


def is_per_image(residual: torch.Tensor | None, y_shape: Sequence[Any]) -> bool:
    """Tells whether a residual that fits y has one number per image and channel, not per pixel."""
    return residual is not None and tuple(residual.shape) != tuple(y_shape)


def apply_activation(z: torch.Tensor, activation: str) -> torch.Tensor:
    """Returns an activation of z by torch's functions."""
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(z, approximate="none" if activation == "gelu" else "tanh")
    functions = {"relu": torch.relu, "silu": F.silu, "tanh": torch.tanh}
    return z if activation == "none" else functions[activation](z)


def apply_epilogue(y: torch.Tensor, epilogue: EpilogueArguments) -> torch.Tensor:
    """Returns an epilogue of y [N, Co, *output_size] in fp32, not cast; writes ``amax``.

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
    return z if out_scale is None else z * out_scale.float()


#: No operation but the cast to the type of the input.
PLAIN = EpilogueSpec()
NO_OPERANDS = EpilogueArguments()
