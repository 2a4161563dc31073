"""Refusals of arguments before an operator is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.ops.api.operators import has_tangent, is_transformed
from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.epilogue import ACTIVATIONS, EpilogueArguments, is_per_image
from triton_ext.ops.core.problem import (
    DIMENSIONS,
    ConvParameters,
    GivenParameters,
    integer,
)

Tensor = torch.Tensor
Fallback = Literal["error", "torch"]
Prefer = Literal["ours", "fastest"]
#: Calls left to torch: those that no kernel takes, those that it is expected to compute faster.
How = tuple[Fallback, Prefer]

# Names of the taps' dimensions in messages, by their number.
_TAPS = {1: ("S",), 2: ("R", "S"), 3: ("T", "R", "S")}


# --- kinds of arguments -------------------------------------------------------------------------


def check_arguments(
    name: str,
    tensors: Mapping[str, Tensor | None],
    given: GivenParameters,
    how: How = ("error", "ours"),
) -> None:
    """Refuses values that are no dense tensors, groups, and forward mode without a fallback.

    The first two tensors are there, the others may be None.
    """
    for index, (which, value) in enumerate(tensors.items()):
        if not isinstance(value, Tensor) and (value is not None or index < 2):
            raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")
    for which, tensor in tensors.items():
        if tensor is None:
            continue
        is_other = tensor.is_quantized or tensor.is_nested
        if is_other or tensor.layout is not torch.strided:
            kind = "quantized" if tensor.is_quantized else "nested"
            kind = f"a {kind} one" if is_other else str(tensor.layout)
            raise TypeError(f"{name}: {which} must be a dense tensor, got {kind}")
    # torch would answer with zeros.
    if how[0] != "torch" and has_tangent(tuple(tensors.values())):
        raise NotImplementedError(
            f"{name}: forward-mode derivatives are not supported; torch has them, which "
            'fallback="torch" leaves the call to, and reverse mode (backward) works here'
        )
    check_groups(name, given[3])


def kind_of(value: object) -> str:
    """Returns the class of a value, and how to make a tensor of it if it is an array of numpy."""
    kind = type(value).__name__
    if type(value).__module__.partition(".")[0] == "numpy":
        return f"a {kind} of numpy; torch.from_numpy makes a tensor of an array"
    return kind


def parse_fallback(fallback: str) -> bool:
    if fallback in ("error", "torch"):
        return fallback == "torch"
    raise ValueError(f'fallback: expected "error" or "torch", got {fallback!r}')


def parse_how(how: How) -> bool:
    if how[1] not in ("ours", "fastest"):
        raise ValueError(f'prefer: expected "ours" or "fastest", got {how[1]!r}')
    return parse_fallback(how[0])


def check_groups(name: str, groups: object) -> None:
    """Refuses groups that are not an integer; they may be symbolic where torch traces."""
    if type(groups) is int or isinstance(groups, torch.SymInt):
        return
    if integer(groups) is None:
        raise ValueError(f"{name}: groups must be an integer, got {groups!r}")


def check_sizes(name: str, which: str, value: object, count: int) -> None:
    """Refuses values that are no sequence of integers, symbolic ones included."""
    if isinstance(value, (tuple, list)) and all(
        hasattr(item, "__index__") and not isinstance(item, bool) for item in value
    ):
        return
    found = repr(value) if isinstance(value, (tuple, list, int, str)) else type(value).__name__
    raise ValueError(f"{name}: expected {which} of {count} integers, got {found}")


# --- sizes, dtypes and devices ------------------------------------------------------------------


def rank_error(
    name: str, dims: int, first: tuple[str, Tensor], weight: Tensor, is_transposed: bool = False
) -> ValueError:
    """Returns the error for an input and a filter that have not ``dims`` spatial dimensions."""
    which, x = first
    sizes, taps = ", ".join(DIMENSIONS[dims]), ", ".join(_TAPS[dims])
    channels = "Ci, Co / groups" if is_transposed else "Co, Ci / groups"
    return ValueError(
        f"{name}: expected {which} [N, Ci, {sizes}] and weight [{channels}, {taps}], "
        f"got {list(x.shape)} and {list(weight.shape)}"
    )


def check_rank(
    name: str, dims: int, first: tuple[str, Tensor], weight: Tensor, is_transposed: bool = False
) -> None:
    if first[1].dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, first, weight, is_transposed)


def check_pair(
    name: str,
    first: tuple[str, Tensor],
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    is_transposed: bool = False,
    mixed_bias: bool = False,
    mixed_dtypes: bool = False,
) -> None:
    """Refuses an input, a filter and a bias that do not fit together.

    ``first`` is the tensor that is convolved, with its name.  The filter of a transposed
    convolution is [Ci, Co / groups, *filter_size].  With ``mixed_bias`` the bias may have a dtype
    of its own, with ``mixed_dtypes`` all may, which autocast casts to one.

    Raises:
        ValueError: Ranks, sizes, groups or devices that do not fit.
        TypeError: Mixed dtypes.
    """
    which, x = first
    if x.dim() not in (3, 4, 5) or weight.dim() != x.dim():
        raise rank_error(name, 2, first, weight, is_transposed)
    if groups < 1:
        raise ValueError(f"{name}: groups must be at least 1, got {groups}")
    if weight.shape[0] % groups:
        raise ValueError(
            f"{name}: {weight.shape[0]} channels of weight {list(weight.shape)} do not divide "
            f"into {groups} groups"
        )
    expected = weight.shape[0] if is_transposed else weight.shape[1] * groups
    if x.shape[1] != expected:
        how = f" with groups={groups}" if groups != 1 and not is_transposed else ""
        raise ValueError(
            f"{name}: {which} has {x.shape[1]} channels, weight {list(weight.shape)}{how} "
            f"expects {expected}"
        )
    check_not_empty(name, (*weight.shape, *x.shape[1:]), {which: x, "weight": weight})
    outputs = weight.shape[1] * groups if is_transposed else weight.shape[0]
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != outputs):
        raise ValueError(f"{name}: expected bias [{outputs}], got {list(bias.shape)}")
    for other, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        # 8-bit types have no bias of their own.
        is_mixed = mixed_dtypes or (tensor is bias and (mixed_bias or x.dtype.itemsize == 1))
        if tensor.dtype != x.dtype and not is_mixed:
            raise TypeError(f"{name}: {other} is {tensor.dtype}, {which} is {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{name}: {other} is on {tensor.device}, {which} is on {x.device}")


def check_operands(name: str, x: Tensor, dy: Tensor, groups: int) -> None:
    """Refuses x and dy that are not input and output of one convolution."""
    if x.dim() not in (3, 4, 5) or dy.dim() != x.dim():
        raise ValueError(
            f"{name}: expected x and dy of the same rank, 3 to 5, got {list(x.shape)} and "
            f"{list(dy.shape)}"
        )
    if groups < 1 or x.shape[1] % groups or dy.shape[1] % groups:
        raise ValueError(
            f"{name}: {x.shape[1]} channels of x and {dy.shape[1]} of dy do not divide into "
            f"{groups} groups"
        )
    if x.shape[0] != dy.shape[0]:
        raise ValueError(f"{name}: x has {x.shape[0]} images, dy has {dy.shape[0]}")
    if x.dtype != dy.dtype:
        raise TypeError(f"{name}: dy is {dy.dtype}, x is {x.dtype}")
    if x.device != dy.device:
        raise ValueError(f"{name}: dy is on {dy.device}, x is on {x.device}")


def check_not_empty(name: str, sizes: Iterable[int], tensors: Mapping[str, Tensor]) -> None:
    """Refuses sizes of 0 other than the batch's; the error has the shapes of the tensors."""
    if any(size == 0 for size in sizes):
        got = " and ".join(f"{which} {list(tensor.shape)}" for which, tensor in tensors.items())
        raise ValueError(
            f"{name}: expected sizes of at least 1 (only the batch may be empty), got {got}"
        )


def check_steps(name: str, parameters: ConvParameters) -> None:
    stride, _, dilation, _ = parameters
    if min(*stride, *dilation) < 1:
        raise ValueError(
            f"{name}: stride and dilation must be at least 1, got {stride} and {dilation}"
        )


def check_output_padding(name: str, extra: Sequence[int], parameters: ConvParameters) -> None:
    """Refuses output padding, of one number per dimension, that no transposed convolution has."""
    stride, _, dilation, _ = parameters
    for pixels, step, distance in zip(extra, stride, dilation, strict=True):
        if not 0 <= pixels < max(step, distance):
            raise ValueError(
                f"{name}: output_padding must be at least 0 and smaller than stride or dilation, "
                f"got {tuple(extra)} for stride {stride} and dilation {dilation}"
            )


# --- epilogues and outputs ----------------------------------------------------------------------


def check_epilogue(name: str, x: Tensor, shape: Sequence[Any], epilogue: EpilogueArguments) -> None:
    """Refuses an epilogue that does not fit x and an output of a shape."""
    _, scale, residual, out_scale, extra, activation, out_dtype, function, _, amax = epilogue
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{name}: expected an activation of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )
    is_sequence = isinstance(extra, (tuple, list))
    if not is_sequence or not all(isinstance(t, Tensor) for t in extra):
        found = ", ".join(type(t).__name__ for t in extra) if is_sequence else type(extra).__name__
        raise TypeError(f"{name}: epilogue_operands must be a sequence of tensors, got {found}")
    if extra and function is None:
        raise ValueError(f"{name}: epilogue_operands without epilogue, which would read them")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"{name}: out_dtype must be a torch.dtype, got {out_dtype!r}")
    if out_dtype is not None and x.is_floating_point() and not out_dtype.is_floating_point:
        raise TypeError(f"{name}: out_dtype {out_dtype} would cut off the fractions of {x.dtype}")
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
    name: str, out: Tensor, shape: Sequence[Any], dtype: torch.dtype, device: torch.device
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
    """Refuses an output that lies in the memory of another tensor."""
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
