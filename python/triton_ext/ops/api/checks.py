"""Refusals of arguments: by public functions before an operator is called, and by operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.ops.api.operators import ConvCall, has_tangent, is_transformed
from triton_ext.ops.core.case import Direction
from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.epilogue import ACTIVATIONS, EpilogueArguments, is_per_image
from triton_ext.ops.core.problem import (
    DIMENSIONS,
    ConvParameters,
    GivenParameters,
    integer,
    is_out_of_range,
)

Tensor = torch.Tensor
Fallback = Literal["error", "torch"]
Prefer = Literal["ours", "fastest"]
#: Calls left to torch: those that no kernel takes, those that it is expected to compute faster.
How = tuple[Fallback, Prefer]

# Names of the taps' dimensions in messages, by their number.
_TAPS = {1: ("S",), 2: ("R", "S"), 3: ("T", "R", "S")}


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
    if isinstance(groups, torch.SymInt) or (type(groups) is int and not is_out_of_range(groups)):
        return
    if integer(groups) is None:
        raise ValueError(f"{name}: groups must be an integer below 2**31, got {groups!r}")


def check_sizes(name: str, which: str, value: object, count: int) -> None:
    """Refuses values that are no sequence of so many integers, symbolic ones included."""
    items = value if isinstance(value, (tuple, list)) else ()
    if len(items) == count and all(
        hasattr(item, "__index__") and not isinstance(item, bool) and not is_out_of_range(item)
        for item in items
    ):
        return
    found = repr(value) if isinstance(value, (tuple, list, int, str)) else type(value).__name__
    raise ValueError(f"{name}: expected {which} of {count} integers below 2**31, got {found}")


def check_rank(
    name: str, dims: int | None, direction: Direction, operands: Mapping[str, Tensor]
) -> None:
    """Refuses operands that have not so many spatial dimensions; ``None`` for 1 to 3 of both."""
    (a, first), (b, second) = operands.items()
    ranks = (3, 4, 5) if dims is None else (dims + 2,)
    if first.dim() == second.dim() and first.dim() in ranks:
        return
    if direction == "wgrad":
        expected = "the same rank, 3 to 5" if dims is None else f"rank {dims + 2}"
        expected = f"{a} and {b} of {expected}"
    else:
        sizes, taps = ", ".join(DIMENSIONS[dims or 2]), ", ".join(_TAPS[dims or 2])
        channels = "Co, Ci / groups" if direction == "fprop" else "Ci, Co / groups"
        expected = f"{a} [N, Ci, {sizes}] and {b} [{channels}, {taps}]"
    raise ValueError(
        f"{name}: expected {expected}, got {list(first.shape)} and {list(second.shape)}"
    )


def check(c: ConvCall, *, is_cast: bool = False) -> None:
    """Refuses operands and an epilogue that do not fit together.

    With ``is_cast``, autocast gives all operands the same dtype.

    Raises:
        ValueError: Ranks, sizes, groups, devices or an activation that do not fit.
        TypeError: Mixed dtypes, or an epilogue of other kinds of values.
    """
    name, direction, groups = c.name(), c.operator.direction, c.parameters.groups
    operands = c.operands()
    (a, first), (b, second) = operands.items()
    bias = c.epilogue.bias
    check_rank(name, None, direction, operands)
    if groups < 1:
        raise ValueError(f"{name}: groups must be at least 1, got {groups}")
    channels, others, outputs = first.shape[1], second.shape[0], 0
    if direction == "wgrad":
        others = second.shape[1]
        if channels % groups or others % groups:
            raise ValueError(
                f"{name}: {channels} channels of {a} and {others} of {b} do not divide into "
                f"{groups} groups"
            )
        if first.shape[0] != second.shape[0]:
            images = f"{a} has {first.shape[0]} images, {b} has {second.shape[0]}"
            raise ValueError(f"{name}: {images}")
        sizes = [channels, others]
    else:
        if others % groups:
            raise ValueError(
                f"{name}: {others} channels of weight {list(second.shape)} do not divide into "
                f"{groups} groups"
            )
        expected, outputs = second.shape[1] * groups, others
        how = f" with groups={groups}" if groups != 1 else ""
        if direction == "dgrad":
            expected, outputs, how = outputs, expected, ""
        if channels != expected:
            raise ValueError(
                f"{name}: {a} has {channels} channels, weight {list(second.shape)}{how} expects "
                f"{expected}"
            )
        sizes = [*second.shape, *first.shape[1:]]
    if any(size == 0 for size in sizes):
        raise ValueError(
            f"{name}: expected sizes of at least 1 (only the batch may be empty), got {a} "
            f"{list(first.shape)} and {b} {list(second.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != outputs):
        raise ValueError(f"{name}: expected bias [{outputs}], got {list(bias.shape)}")
    for which, tensor in ((b, second), ("bias", bias)):
        if tensor is None:
            continue
        # 8-bit types have no bias of their own.
        may_differ = tensor is bias and (c.operator.others or first.dtype.itemsize == 1)
        if tensor.dtype != first.dtype and not (is_cast or may_differ):
            raise TypeError(f"{name}: {which} is {tensor.dtype}, {a} is {first.dtype}")
        if tensor.device != first.device:
            raise ValueError(f"{name}: {which} is on {tensor.device}, {a} is on {first.device}")
    if direction == "fprop":
        _check_epilogue(name, first, c.shapes()[2], c.epilogue)


def check_pixels(c: ConvCall) -> None:
    """Refuses a gradient of y that has not the pixels of y."""
    (x_shape, w_shape, _), dy = c.shapes(), c.pixels()["dy"]
    pixels = c.parameters.output_size(x_shape[2:], w_shape[2:])
    if list(dy.shape[2:]) != pixels:
        raise ValueError(
            f"{c.name()}: expected dy [N, Co, {', '.join(map(str, pixels))}] for an input of "
            f"{list(x_shape[2:])} pixels, got {list(dy.shape)}"
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


def _check_epilogue(
    name: str, x: Tensor, shape: Sequence[Any], epilogue: EpilogueArguments
) -> None:
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
