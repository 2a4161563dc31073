"""Convolutions with the signatures of ``torch.nn.functional`` and ``torch.nn.grad``.

x is channels-last, the filter may have any memory format.  Sums are accumulated in fp32.  The same
input gives the same bits.  A call that no kernel takes raises an error that says why;
``fallback="torch"`` leaves such a call to torch, and ``support`` tells beforehand which it will be.

The functions are written for two dimensions; those for one and three are copies of their code, so
that all have their full signatures and cost one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch

from triton_ext.ops.api.checks import Fallback, Prefer
from triton_ext.ops.api.convolve import convolve, convolve_fused, gradient
from triton_ext.ops.api.operators import DGRAD, WGRAD
from triton_ext.ops.core.problem import Numbers, Padding

Tensor = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Tensor])

# Constants of the functions' code, which their copies replace.
_1D, _2D, _3D = 1, 2, 3


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    out_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    amax: Tensor | None = None,
    epilogue: Any = None,
    epilogue_operands: Sequence[Tensor] | None = None,
    out: Tensor | None = None,
    fallback: Fallback = "error",
    prefer: Prefer = "ours",
) -> Tensor:
    """Convolves x with weight, like ``torch.nn.functional.conv2d``.

    ``out_scale * epilogue(activation(conv(x, weight) * scale + bias + residual))``, accumulated and
    computed in fp32 and rounded once.  Differentiable to any order: the gradients are kernels of
    this package where they take the problem, otherwise torch's (``support`` tells which).

    Args:
        x: [N, Ci, H, W] or [Ci, H, W], fp16, bf16, fp32 (through TF32), fp8 or int8; on an NVIDIA
            GPU of compute capability 9.0 or newer, or on the CPU under ``TRITON_INTERPRET=1``; in
            ``torch.channels_last`` memory format.
        weight: [Co, Ci / groups, R, S], dtype and device of x.  In another memory format than
            channels-last it is copied at every call; ``module.to(memory_format=
            torch.channels_last)`` avoids it.
        bias: [Co], device of x, or None.  Its dtype is that of x, but may be another one beside
            fp8 and int8 and in an epilogue of more than a bias.
        stride: One number or (h, w), 1 to 8; larger where several taps of a row are packed into
            channels, which needs neighbouring taps and no groups.
        padding: One number, (h, w), ((top, bottom), (left, right)), ``"same"`` or ``"valid"``;
            with zeros.
        dilation: One number or (h, w).
        groups: Number of parts into which both channels are divided.
        scale: [Co] or one number, in a tensor.
        residual: [N, Co, out_h, out_w], added; or [N, Co, 1, 1], added to all pixels of its image,
            as torch would broadcast it.  Nothing else is broadcast.
        activation: ``"none"``, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or ``"tanh"``.
        out_scale: One fp32 in a tensor; multiplies y just before it is cast.
        out_dtype: Dtype of y; ``None`` for that of x, int32 for int8.  For int8 with a bias, a
            scale or any other operation on the sums, ``amax`` included, a floating-point dtype.
        amax: One fp32; the largest absolute value of y, before ``out_scale``, is written to it.
        epilogue: A ``@triton.jit`` function ``f(tile, rows, columns, *operands)`` that is applied
            after the activation; ``triton_ext.ops.core.epilogue`` describes its arguments.
        epilogue_operands: Further tensors of that function.
        out: Where to put y, dense and channels-last; not differentiable.
        fallback: ``"error"``, or ``"torch"`` to let torch do what the kernel does not take.
        prefer: ``"ours"``, or ``"fastest"`` to let torch do what a model of cuDNN expects it to do
            faster, beyond the uncertainty of the model; its gradients are then torch's, too.
            Calls with an epilogue, and what torch traces or transforms, run the kernels.

    Returns:
        y [N, Co, out_h, out_w] (without N where x has none), channels-last.

    Raises:
        ValueError: Arguments that do not fit each other; ``DescriptorError``, a ValueError, for a
            geometry that TMA cannot express, with every refusal.
        TypeError: A dtype that the kernel does not know, or mixed ones.
        UnsupportedError: No GPU, too old a GPU or too old a Triton; a combination that no kernel
            takes.
        NotImplementedError: Forward-mode differentiation, or a derivative that does not exist.
        RuntimeError: ``out`` or ``amax`` where autograd records the call.
    """
    given = (stride, padding, dilation, groups)
    if (
        scale is residual is out_scale is out_dtype is epilogue is epilogue_operands is None
        and amax is out is None and activation == "none"
    ):  # fmt: skip
        return convolve(_2D, x, weight, bias, given, (fallback, prefer))
    fused = (
        bias, scale, residual, out_scale, epilogue_operands, activation, out_dtype, epilogue, out,
        amax,
    )  # fmt: skip
    return convolve_fused(_2D, x, weight, fused, given, (fallback, prefer))


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    fallback: Fallback = "error",
    prefer: Prefer = "ours",
) -> Tensor:
    """Convolves x with a transposed filter, like ``torch.nn.functional.conv_transpose2d``.

    It is the gradient of the input of the convolution with the same filter, by the same kernel.

    Args:
        x: [N, Ci, H, W] or [Ci, H, W]; as for :func:`conv2d`, of fp16, bf16 or fp32.
        weight: [Ci, Co / groups, R, S]; as for :func:`conv2d`.
        bias: [Co], dtype and device of x, or None.
        stride: One number or (h, w).
        padding: One number, (h, w) or ((top, bottom), (left, right)); pixels that are left out.
        output_padding: One number or (h, w); pixels added at the high side, fewer than the stride.
        groups, dilation, fallback, prefer: As for :func:`conv2d`.

    Returns:
        [N, Co, out_h, out_w] (without N where x has none), channels-last.

    Raises:
        ValueError, TypeError, UnsupportedError, NotImplementedError: As :func:`conv2d`.
    """
    given = (stride, padding, dilation, groups)
    return convolve(_2D, x, weight, bias, given, (fallback, prefer), output_padding)


def conv2d_input(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
    prefer: Prefer = "ours",
) -> Tensor:
    """Computes the gradient of :func:`conv2d`'s x, like ``torch.nn.grad.conv2d_input``.

    Args:
        input_size: [N, Ci, H, W] of x.
        weight: [Co, Ci / groups, R, S].
        grad_output: [N, Co, out_h, out_w], channels-last.
        stride: As for :func:`conv2d`, but of any size.
        padding, dilation, groups, fallback, prefer: As for :func:`conv2d`.

    Returns:
        dx [N, Ci, H, W], channels-last.
    """
    given = (stride, padding, dilation, groups)
    return gradient(DGRAD, _2D, grad_output, weight, input_size, given, (fallback, prefer))


def conv2d_weight(
    x: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
    prefer: Prefer = "ours",
) -> Tensor:
    """Computes the gradient of :func:`conv2d`'s weight, like ``torch.nn.grad.conv2d_weight``.

    Args:
        x: [N, Ci, H, W], channels-last.
        weight_size: [Co, Ci / groups, R, S].
        grad_output: [N, Co, out_h, out_w], channels-last.
        stride, padding, dilation, groups, fallback, prefer: As for :func:`conv2d`.

    Returns:
        dw [Co, Ci / groups, R, S], channels-last.  The same bits at every call.
    """
    given = (stride, padding, dilation, groups)
    return gradient(WGRAD, _2D, x, grad_output, weight_size, given, (fallback, prefer))


# How docstrings spell what depends on the number of dimensions.
_WORDS = {
    1: {
        "2d": "1d", "((top, bottom), (left, right))": "((left, right),)", "out_h, out_w": "out_l",
        "H, W": "L", "R, S": "S", "(h, w)": "(l,)", "1, 1]": "1]",
        "in\n            ``torch.channels_last`` memory format.":
            "with\n            ``x.stride(1) == 1``, as ``torch.empty(n, l, ci).mT`` has it.",
        "; ``module.to(memory_format=\n            torch.channels_last)`` avoids it": "",
    },
    3: {
        "2d": "3d", "((top, bottom), (left, right))":
            "((front, back), (top, bottom), (left, right))", "out_h, out_w": "out_d, out_h, out_w",
        "H, W": "D, H, W", "R, S": "T, R, S", "(h, w)": "(d, h, w)", "1, 1]": "1, 1, 1]",
        "torch.channels_last": "torch.channels_last_3d",
    },
}  # fmt: skip


def _in_dims(function: Function, dims: int) -> Function:
    """Returns a function of two dimensions for another number of them."""
    name, doc = function.__name__.replace("2d", f"{dims}d"), function.__doc__ or ""
    for word, other in _WORDS[dims].items():
        doc = doc.replace(word, other)
    names = tuple(f"_{dims}D" if each == "_2D" else each for each in function.__code__.co_names)
    code = function.__code__.replace(co_names=names, co_name=name)
    made: Any = FunctionType(code, globals(), name, function.__defaults__)
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    made.__qualname__, made.__doc__ = name, doc
    result: Function = made
    return result


conv1d, conv3d = _in_dims(conv2d, 1), _in_dims(conv2d, 3)
conv_transpose1d, conv_transpose3d = _in_dims(conv_transpose2d, 1), _in_dims(conv_transpose2d, 3)
conv1d_input, conv3d_input = _in_dims(conv2d_input, 1), _in_dims(conv2d_input, 3)
conv1d_weight, conv3d_weight = _in_dims(conv2d_weight, 1), _in_dims(conv2d_weight, 3)
