"""Convolutions with the signatures of ``torch.nn.functional`` and ``torch.nn.grad``.

x is channels-last, the filter may have any memory format.  Sums are accumulated in fp32.  The same
input gives the same bits.  A call that no kernel takes raises an error that says why;
``fallback="torch"`` leaves such a call to torch, and ``support`` tells beforehand which it will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from triton_ext.ops.api.checks import Fallback, check_pair
from triton_ext.ops.api.forward import convolve, convolve_fused
from triton_ext.ops.api.gradients import convolve_transposed, input_gradient, weight_gradient
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.parameters import ConvParameters, Numbers, Padding
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.refusals import tensor_refusal
from triton_ext.ops.families.gemm_config import ConvConfig

__all__ = [
    "conv1d",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
    "conv2d_with_config",
    "conv3d",
    "conv3d_input",
    "conv3d_weight",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

Tensor = torch.Tensor

_WITH_BIAS = EpilogueSpec(bias=True)


# --- convolutions -------------------------------------------------------------------------------


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
) -> Tensor:
    """Convolves x with weight, like ``torch.nn.functional.conv2d``.

    ``out_scale * epilogue(activation(conv(x, weight) * scale + bias + residual))``, accumulated and
    computed in fp32 and rounded once.  Differentiable to any order: the gradients are kernels of
    this package where they take the problem, otherwise torch's (``support`` tells which).

    Args:
        x: [N, Ci, H, W] or [Ci, H, W], fp16, bf16, fp32 (through TF32), fp8 or int8, in
            ``torch.channels_last`` memory format; on an NVIDIA GPU of compute capability 9.0 or
            newer, or on the CPU under ``TRITON_INTERPRET=1``.
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

    Returns:
        y [N, Co, out_h, out_w] (without N where x has none), channels-last.

    Raises:
        ValueError: Arguments that do not fit each other; ``DescriptorError``, a ValueError, for a
            geometry that TMA cannot express, with every violation.
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
        return convolve(2, x, weight, bias, given, fallback)
    fused = (
        bias, scale, residual, out_scale, epilogue_operands, activation, out_dtype, epilogue, out,
        amax,
    )  # fmt: skip
    return convolve_fused(2, x, weight, fused, given, fallback)


def conv1d(
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
) -> Tensor:
    """Convolves x [N, Ci, L] with weight [Co, Ci / groups, S]; otherwise as :func:`conv2d`.

    torch has no memory format for such an x; ``x.stride(1) == 1`` is what counts, as in
    ``torch.empty(n, l, ci).transpose(1, 2)``.
    """
    given = (stride, padding, dilation, groups)
    if (
        scale is residual is out_scale is out_dtype is epilogue is epilogue_operands is None
        and amax is out is None and activation == "none"
    ):  # fmt: skip
        return convolve(1, x, weight, bias, given, fallback)
    fused = (
        bias, scale, residual, out_scale, epilogue_operands, activation, out_dtype, epilogue, out,
        amax,
    )  # fmt: skip
    return convolve_fused(1, x, weight, fused, given, fallback)


def conv3d(
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
) -> Tensor:
    """Convolves x [N, Ci, D, H, W] with weight [Co, Ci / groups, T, R, S].

    x is in ``torch.channels_last_3d`` memory format; otherwise as :func:`conv2d`.
    """
    given = (stride, padding, dilation, groups)
    if (
        scale is residual is out_scale is out_dtype is epilogue is epilogue_operands is None
        and amax is out is None and activation == "none"
    ):  # fmt: skip
        return convolve(3, x, weight, bias, given, fallback)
    fused = (
        bias, scale, residual, out_scale, epilogue_operands, activation, out_dtype, epilogue, out,
        amax,
    )  # fmt: skip
    return convolve_fused(3, x, weight, fused, given, fallback)


# --- transposed convolutions --------------------------------------------------------------------


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
        groups: Number of parts into which both channels are divided.
        dilation: One number or (h, w).
        fallback: ``"error"``, or ``"torch"`` to let torch do what the kernel does not take.

    Returns:
        [N, Co, out_h, out_w] (without N where x has none), channels-last.

    Raises:
        ValueError: As :func:`conv2d`.
        TypeError: As :func:`conv2d`.
        UnsupportedError: As :func:`conv2d`.
        NotImplementedError: As :func:`conv2d`.
    """
    given = (stride, padding, dilation, groups)
    return convolve_transposed(2, x, weight, bias, given, output_padding, fallback)


def conv_transpose1d(
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
) -> Tensor:
    """As :func:`conv_transpose2d`, of x [N, Ci, L] and weight [Ci, Co / groups, S]."""
    given = (stride, padding, dilation, groups)
    return convolve_transposed(1, x, weight, bias, given, output_padding, fallback)


def conv_transpose3d(
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
) -> Tensor:
    """As :func:`conv_transpose2d`, of x [N, Ci, D, H, W] and weight [Ci, Co / groups, T, R, S]."""
    given = (stride, padding, dilation, groups)
    return convolve_transposed(3, x, weight, bias, given, output_padding, fallback)


# --- gradients ----------------------------------------------------------------------------------


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
) -> Tensor:
    """Computes the gradient of :func:`conv2d`'s x, like ``torch.nn.grad.conv2d_input``.

    Args:
        input_size: [N, Ci, H, W] of x.
        weight: [Co, Ci / groups, R, S].
        grad_output: [N, Co, out_h, out_w], channels-last.
        stride: As for :func:`conv2d`, but of any size.
        padding: As for :func:`conv2d`.
        dilation: As for :func:`conv2d`.
        groups: As for :func:`conv2d`.
        fallback: As for :func:`conv2d`.

    Returns:
        dx [N, Ci, H, W], channels-last.
    """
    given = (stride, padding, dilation, groups)
    return input_gradient(2, input_size, weight, grad_output, given, fallback)


def conv1d_input(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
) -> Tensor:
    """As :func:`conv2d_input`, for :func:`conv1d`."""
    given = (stride, padding, dilation, groups)
    return input_gradient(1, input_size, weight, grad_output, given, fallback)


def conv3d_input(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
) -> Tensor:
    """As :func:`conv2d_input`, for :func:`conv3d`."""
    given = (stride, padding, dilation, groups)
    return input_gradient(3, input_size, weight, grad_output, given, fallback)


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
) -> Tensor:
    """Computes the gradient of :func:`conv2d`'s weight, like ``torch.nn.grad.conv2d_weight``.

    Args:
        x: [N, Ci, H, W], channels-last.
        weight_size: [Co, Ci / groups, R, S].
        grad_output: [N, Co, out_h, out_w], channels-last.
        stride: As for :func:`conv2d`.
        padding: As for :func:`conv2d`.
        dilation: As for :func:`conv2d`.
        groups: As for :func:`conv2d`.
        fallback: As for :func:`conv2d`.

    Returns:
        dw [Co, Ci / groups, R, S], channels-last.  The same bits at every call.
    """
    given = (stride, padding, dilation, groups)
    return weight_gradient(2, x, weight_size, grad_output, given, fallback)


def conv1d_weight(
    x: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
) -> Tensor:
    """As :func:`conv2d_weight`, for :func:`conv1d`."""
    given = (stride, padding, dilation, groups)
    return weight_gradient(1, x, weight_size, grad_output, given, fallback)


def conv3d_weight(
    x: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    fallback: Fallback = "error",
) -> Tensor:
    """As :func:`conv2d_weight`, for :func:`conv3d`."""
    given = (stride, padding, dilation, groups)
    return weight_gradient(3, x, weight_size, grad_output, given, fallback)


# --- for tests and benchmarks -------------------------------------------------------------------


def conv2d_with_config(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    config: ConvConfig | None = None,
) -> Tensor:
    """Convolves with a given tile configuration; tests and benchmarks use it.

    Args:
        x: As for :func:`conv2d`; its batch is not empty.
        weight: As for :func:`conv2d`.
        bias: As for :func:`conv2d`.
        stride: (h, w).
        padding: (top, bottom, left, right).
        dilation: (h, w).
        config: The configuration; ``None`` lets ``choose_config`` choose.
    """
    check_pair("conv2d", ("x", x), weight, bias, 1)
    refusal = tensor_refusal("fprop", "conv2d", {"x": x})
    if refusal is not None:
        raise refusal.error()
    parameters = ConvParameters(tuple(stride), tuple(padding), tuple(dilation), 1)
    problem = parameters.problem(x.shape, weight.shape)
    spec = PLAIN if bias is None else _WITH_BIAS
    case = Case(
        direction="fprop", problem=problem, dtype=x.dtype, epilogue=spec, x_strides=x.stride()
    )
    plan = make_plan(case, x.device, config)
    return plan.run(x, weight, NO_OPERANDS if bias is None else EpilogueOperands(bias=bias))
