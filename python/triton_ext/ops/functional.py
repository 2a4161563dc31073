"""``conv2d`` for torch: arguments, refusals, and the registration as a torch operator."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch.autograd import forward_ad

from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.conv_plan import DTYPES, conv_geometry, make_plan
from triton_ext.ops.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.problem import ConvProblem

__all__ = ["conv2d", "conv2d_with_config"]

_BIAS = EpilogueSpec(bias=True)


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
) -> torch.Tensor:
    """Convolves x with weight, like ``torch.nn.functional.conv2d`` with ``groups=1``.

    Accumulates in fp32 and rounds once.  Deterministic: the same input gives the same bits.
    Differentiable; the gradients are torch's own (cuDNN's on a GPU).

    Args:
        x: [N, Ci, H, W], fp16 or bf16, in ``torch.channels_last`` memory format; on an NVIDIA GPU
            of compute capability 9.0 or newer, or on the CPU under ``TRITON_INTERPRET=1``.
        weight: [Co, Ci, R, S], dtype and device of x.  In another memory format than channels-last
            it is copied at every call; ``module.to(memory_format=torch.channels_last)`` avoids it.
        bias: [Co], dtype and device of x, or None.
        stride: One number or (h, w), 1 to 8.
        padding: One number, (h, w), or ((top, bottom), (left, right)); zeros.
        dilation: One number or (h, w).

    Returns:
        [N, Co, out_h, out_w], dtype and device of x, channels-last.

    Raises:
        ValueError: Shapes that do not fit each other; ``DescriptorError``, a ValueError, for a
            geometry that TMA cannot express, with every violation.
        TypeError: Another dtype than fp16 or bf16, or mixed ones.
        UnsupportedError: No GPU, too old a GPU or too old a Triton.
        NotImplementedError: Forward-mode differentiation.
    """
    for name, value in (("x", x), ("weight", weight), ("bias", bias)):
        if not isinstance(value, torch.Tensor) and not (name == "bias" and value is None):
            raise TypeError(f"conv2d: {name} must be a tensor, got {type(value).__name__}")
    _refuse_tangents(x, weight, bias)
    # torch enters Python for an operator with a backward even where nothing is differentiated.
    plain = not _is_differentiated(x, weight, bias)
    op = torch.ops.triton_ext.conv2d_fprop if plain else torch.ops.triton_ext.conv2d
    return op.default(
        x, weight, bias, _pair("stride", stride), _sides(padding), _pair("dilation", dilation)
    )


def conv2d_with_config(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    config: ConvConfig | None = None,
) -> torch.Tensor:
    """Convolves with a given tile configuration; tests and benchmarks use it.

    Args:
        x: As for :func:`conv2d`.
        weight: As for :func:`conv2d`.
        bias: As for :func:`conv2d`.
        stride: (h, w).
        padding: (top, bottom, left, right).
        dilation: (h, w).
        config: The configuration; ``None`` lets ``choose_config`` choose.
    """
    _check_tensors(x, weight, bias)
    if x.shape[0] == 0:
        return _empty_output(x, weight, bias, stride, padding, dilation)
    problem = ConvProblem(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=weight.shape[0],
        input_size=tuple(x.shape[2:]),
        filter_size=tuple(weight.shape[2:]),
        stride=tuple(stride),
        padding=((padding[0], padding[1]), (padding[2], padding[3])),
        dilation=tuple(dilation),
    )
    epilogue = PLAIN if bias is None else _BIAS
    plan = make_plan(problem, x.stride(), x.dtype, x.device, epilogue, config)
    return plan.run(x, weight, NO_OPERANDS if bias is None else EpilogueOperands(bias=bias))


def _empty_output(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    _check_tensors(x, weight, bias)
    n = x.shape[0]
    # An empty batch has a geometry as well: that of one image.
    one_image = (1, *x.shape[1:])
    size = conv_geometry(one_image, weight.shape, stride, padding, dilation).output_size
    shape = (n, weight.shape[0], *size)
    return torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)


def _is_differentiated(*tensors: torch.Tensor | None) -> bool:
    """Tells whether torch may ask for a derivative of what is computed from these tensors."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    # torch.func's transforms do not show in requires_grad.
    return torch._C._functorch.peek_interpreter_stack() is not None


def _refuse_tangents(*tensors: torch.Tensor | None) -> None:
    """Refuses forward-mode differentiation, which torch would answer with zeros."""
    if forward_ad._current_level < 0:
        return
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(
            "conv2d: forward-mode derivatives are not supported; torch.nn.functional.conv2d has "
            "them, and reverse mode (backward) works here"
        )


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, ctx.stride, ctx.padding, ctx.dilation = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    top, bottom, left, right = ctx.padding
    # torch's backward knows equal sides only: what is unequal is padded in front of it.
    equal = top == bottom and left == right
    padded = x if equal else torch.nn.functional.pad(x, (left, right, top, bottom))
    grad_x, grad_w, grad_b = torch.ops.aten.convolution_backward(
        grad,
        padded,
        weight,
        [weight.shape[0]] if ctx.has_bias else None,
        ctx.stride,
        [top, left] if equal else [0, 0],
        ctx.dilation,
        False,
        [0, 0],
        1,
        [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias],
    )
    if not equal and grad_x is not None:
        grad_x = grad_x[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return grad_x, grad_w, grad_b, None, None, None


# Registered by hand rather than by torch.library.custom_op, whose wrapper alone costs 11 us a call
# (conv2d_fprop: 3 us; torch 2.13, CPU build, 2026-11-20).
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation) -> Tensor"
)
for _name in ("triton_ext::conv2d", "triton_ext::conv2d_fprop"):
    torch.library.define(_name, _SCHEMA, tags=(torch.Tag.needs_fixed_stride_order,))
    torch.library.impl(_name, ("CPU", "CUDA"))(conv2d_with_config)
    torch.library.register_fake(_name)(_empty_output)
torch.library.register_autograd("triton_ext::conv2d", _backward, setup_context=_setup_context)


def _integers(value: object) -> list[int] | None:
    """Returns a sequence of integers of any kind as ints; ``None`` if it is something else."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        return None
    try:
        return [operator.index(item) for item in value]
    except TypeError:
        return None


def _integer(value: object) -> int | None:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _pair(name: str, value: int | Sequence[int]) -> list[int]:
    number = _integer(value)
    values = [number, number] if number is not None else _integers(value)
    if values is None or len(values) != 2:
        raise ValueError(f"{name}: expected one integer or (h, w), got {value!r}")
    return values


def _sides(padding: int | Sequence[int] | Sequence[Sequence[int]]) -> list[int]:
    """Returns (top, bottom, left, right)."""
    number = _integer(padding)
    if number is not None:
        sides: list[int] | None = [number] * 4
    elif isinstance(padding, Iterable) and not isinstance(padding, str):
        # (h, w), or a pair of sides for each.
        pairs = [_integers((side, side)) or _integers(side) or [] for side in padding]
        sides = [side for pair in pairs for side in pair]
        sides = sides if [len(pair) for pair in pairs] == [2, 2] else None
    else:
        sides = None
    if sides is None:
        raise ValueError(
            "padding: expected one integer, (h, w) or ((top, bottom), (left, right)), "
            f"got {padding!r}"
        )
    if min(sides) < 0:
        raise ValueError(f"padding: must not be negative, got {padding!r}")
    return sides


def _check_tensors(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.dim() != 4 or weight.dim() != 4:
        raise ValueError(
            "conv2d: expected x [N, Ci, H, W] and weight [Co, Ci, R, S], "
            f"got {list(x.shape)} and {list(weight.shape)}"
        )
    if x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"conv2d: x has {x.shape[1]} channels, weight {list(weight.shape)} expects "
            f"{weight.shape[1]}; groups are not supported"
        )
    if 0 in weight.shape or 0 in x.shape[1:]:
        raise ValueError(
            f"conv2d: expected sizes of at least 1 (only the batch may be empty), "
            f"got x {list(x.shape)} and weight {list(weight.shape)}"
        )
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise ValueError(f"conv2d: expected bias [{weight.shape[0]}], got {list(bias.shape)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"conv2d: dtype {x.dtype} is not supported, use float16 or bfloat16")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype != x.dtype:
            raise TypeError(f"conv2d: {name} is {tensor.dtype}, x is {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"conv2d: {name} is on {tensor.device}, x is on {x.device}")
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise ValueError(
            f"conv2d: channels must be contiguous (channels-last), got channel stride "
            f"{x.stride(1)}; call x.contiguous(memory_format=torch.channels_last)"
        )
