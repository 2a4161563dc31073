"""What the functions refuse before an operator is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.ops.arguments import channels_last_strides, fprop_size, is_per_image
from triton_ext.ops.calls import is_transformed
from triton_ext.ops.forward_mode import has_tangent
from triton_ext.ops.plans import layout_refusal

__all__ = [
    "Fallback",
    "Numbers",
    "Padding",
    "check_epilogue",
    "check_extra",
    "check_memory",
    "check_numbers",
    "check_out",
    "check_out_dtype",
    "check_output_padding",
    "check_output_size",
    "check_steps",
    "check_types",
    "check_unbatched",
    "kind_of",
    "parse_fallback",
    "refuse_layout",
]

Tensor = torch.Tensor
Numbers = int | Sequence[int]
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
Fallback = Literal["error", "torch"]

_NOTHING: Mapping[str, Tensor | None] = {}


def check_numbers(name: str, padding: Padding) -> None:
    """Refuses padding by its name, which transposed convolutions do not have."""
    if isinstance(padding, str):
        raise ValueError(f"{name}: padding must be numbers, got {padding!r}")


def check_output_padding(
    name: str, extra: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> None:
    """Refuses output padding that no transposed convolution has; each of a number per dimension."""
    for pixels, step, distance in zip(extra, stride, dilation, strict=True):
        if not 0 <= pixels < max(step, distance):
            raise ValueError(
                f"{name}: output_padding must be at least 0 and smaller than stride or dilation, "
                f"got {tuple(extra)} for stride {tuple(stride)} and dilation {tuple(dilation)}"
            )


def check_types(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    names: tuple[str, str] = ("x", "weight"),
    *,
    others: Mapping[str, Tensor | None] = _NOTHING,
    fallback: str = "error",
) -> None:
    """Refuses what is no dense tensor, and forward-mode differentiation that torch may not do.

    Args:
        name: Who asks, for the errors.
        x: The first tensor.
        weight: The second one.
        bias: A tensor or None.
        names: What the first two are called.
        others: More tensors, or None, by their names.
        fallback: The function's; with ``"torch"`` forward-mode differentiation is not refused.
    """
    for which, value in ((names[0], x), (names[1], weight)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")
    for which, value in (("bias", bias), *others.items()):
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")
    for which, tensor in ((names[0], x), (names[1], weight), ("bias", bias), *others.items()):
        if tensor is None:
            continue
        is_other = tensor.is_quantized or tensor.is_nested
        if is_other or tensor.layout is not torch.strided:
            kind = "quantized" if tensor.is_quantized else "nested"
            kind = f"a {kind} one" if is_other else str(tensor.layout)
            raise TypeError(f"{name}: {which} must be a dense tensor, got {kind}")
    # torch would answer with zeros.
    if fallback != "torch" and has_tangent((x, weight, bias, *others.values())):
        raise NotImplementedError(
            f"{name}: forward-mode derivatives are not supported; torch has them, which "
            'fallback="torch" leaves the call to, and reverse mode (backward) works here'
        )


def kind_of(value: object) -> str:
    """Returns the class of what is no tensor, with the way from an array of numpy to one."""
    kind = type(value).__name__
    if type(value).__module__.partition(".")[0] == "numpy":
        return f"a {kind} of numpy; torch.from_numpy makes a tensor of an array"
    return kind


def parse_fallback(fallback: str) -> bool:
    if fallback == "error":
        return False
    if fallback == "torch":
        return True
    raise ValueError(f'fallback: expected "error" or "torch", got {fallback!r}')


def refuse_layout(name: str, **tensors: Tensor) -> None:
    for which, tensor in tensors.items():
        refusal = layout_refusal(name, which, tensor)
        if refusal is not None:
            raise refusal.error()


def check_steps(name: str, stride: Sequence[int], dilation: Sequence[int]) -> None:
    if min(*stride, *dilation) < 1:
        raise ValueError(
            f"{name}: stride and dilation must be at least 1, got {tuple(stride)} and "
            f"{tuple(dilation)}"
        )


def check_output_size(
    name: str,
    input_size: Sequence[Any],
    filter_size: Sequence[Any],
    stride: Sequence[int],
    sides: Sequence[int],
    dilation: Sequence[int],
    grad_output: Tensor,
) -> None:
    size = fprop_size(input_size, filter_size, stride, sides, dilation)
    if list(grad_output.shape[2:]) != size:
        raise ValueError(
            f"{name}: expected grad_output [N, Co, {', '.join(map(str, size))}], got "
            f"{list(grad_output.shape)}"
        )


def check_extra(name: str, epilogue: object, extra: object) -> None:
    """Refuses operands of an epilogue that are no tensors, or that nobody reads."""
    if not isinstance(extra, (tuple, list)) or not all(isinstance(t, Tensor) for t in extra):
        found = (
            ", ".join(type(t).__name__ for t in extra)
            if isinstance(extra, (tuple, list))
            else type(extra).__name__
        )
        raise TypeError(f"{name}: epilogue_operands must be a sequence of tensors, got {found}")
    if extra and epilogue is None:
        raise ValueError(f"{name}: epilogue_operands without epilogue, which would read them")


def check_out_dtype(name: str, x: Tensor, out_dtype: object) -> None:
    if out_dtype is None:
        return
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"{name}: out_dtype must be a torch.dtype, got {out_dtype!r}")
    if x.is_floating_point() and not out_dtype.is_floating_point:
        raise TypeError(f"{name}: out_dtype {out_dtype} would cut off the fractions of {x.dtype}")


def check_unbatched(name: str, dims: int, **tensors: Tensor | None) -> None:
    """Refuses tensors with a batch dimension beside an x without one."""
    for which, tensor in tensors.items():
        if tensor is not None and tensor.dim() != dims + 1:
            raise ValueError(
                f"{name}: x has no batch dimension, so {which} must have {dims + 1} dimensions, "
                f"got {list(tensor.shape)}"
            )


def check_epilogue(
    name: str,
    x: Tensor,
    shape: Sequence[Any],
    scale: Tensor | None,
    residual: Tensor | None,
    out_scale: Tensor | None,
    amax: Tensor | None,
    extra: Sequence[Tensor],
) -> None:
    if scale is not None and scale.numel() != 1 and tuple(scale.shape) != (shape[1],):
        raise ValueError(
            f"{name}: expected scale [{shape[1]}] or one number, got {list(scale.shape)}"
        )
    if scale is not None and scale.is_complex():
        raise TypeError(f"{name}: scale must be real, got {scale.dtype}")
    if residual is not None and (residual.is_complex() or residual.dtype == torch.bool):
        raise TypeError(f"{name}: residual must hold real numbers, got {residual.dtype}")
    if residual is not None:
        per_image = (*shape[:2], *(1,) * (len(shape) - 2))
        if is_per_image(residual, shape) and is_per_image(residual, per_image):
            raise ValueError(
                f"{name}: expected residual {list(shape)} or {list(per_image)}, got "
                f"{list(residual.shape)}"
            )
    for which, tensor in (("out_scale", out_scale), ("amax", amax)):
        if tensor is not None and (tensor.numel() != 1 or tensor.dtype != torch.float32):
            raise ValueError(
                f"{name}: expected {which} of one float32, got {list(tensor.shape)} of "
                f"{tensor.dtype}"
            )
    others = {"scale": scale, "residual": residual, "out_scale": out_scale, "amax": amax}
    others |= {f"epilogue_operands[{index}]": tensor for index, tensor in enumerate(extra)}
    for which, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: {which} is on {tensor.device}, x is on {x.device}")


def check_out(
    name: str,
    out: Tensor,
    shape: Sequence[Any],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    if out.device != device:
        raise ValueError(f"{name}: out is on {out.device}, x is on {device}")
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"{name}: expected out {list(shape)} of {dtype}, got {list(out.shape)} of {out.dtype}"
        )
    strides = zip(out.stride(), channels_last_strides(shape), shape, strict=True)
    if any(found != wanted and size != 1 for found, wanted, size in strides):
        raise ValueError(
            f"{name}: expected out dense and channels-last, got strides {list(out.stride())}"
        )


def check_memory(name: str, which: str, written: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """Refuses a dense tensor that is written and lies in the memory of another one."""
    if torch.compiler.is_compiling() or is_transformed():
        return  # addresses are not known while torch traces
    for tensor in tensors:
        if tensor is not None and _share_memory(written, tensor):
            raise ValueError(
                f"{name}: {which} lies in the memory of an operand; use another tensor"
            )


def _share_memory(dense: Tensor, other: Tensor) -> bool:
    """Tells whether a dense tensor lies anywhere between another's first and last element."""
    if isinstance(dense, FakeTensor) or isinstance(other, FakeTensor):
        return False
    if dense.device.type == "meta" or other.device.type == "meta":
        return False
    if not dense.numel() or not other.numel():
        return False
    reach = sum((n - 1) * step for n, step in zip(other.shape, other.stride(), strict=True))
    first, last = other.data_ptr(), other.data_ptr() + (reach + 1) * other.element_size()
    begin, end = dense.data_ptr(), dense.data_ptr() + dense.numel() * dense.element_size()
    return begin < last and first < end
