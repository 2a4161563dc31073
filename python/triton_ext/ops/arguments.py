"""torch's arguments of a convolution: their spellings, what fits what, and the problem they mean.

Numbers per dimension travel as lists in torch's order of dimensions; padding as (low, high) of each
dimension one behind the other: (top, bottom, left, right).  Sizes may be symbolic where torch
traces with dynamic shapes; nothing here turns such a size into a number.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from triton_ext.ops.problem import ConvProblem

__all__ = [
    "channels_last",
    "channels_last_strides",
    "check_groups",
    "check_not_empty",
    "check_pair",
    "check_sizes",
    "dgrad_size",
    "empty_channels_last",
    "fprop_size",
    "is_per_image",
    "numbers",
    "operator_name",
    "output_dtype",
    "padding_sides",
    "problem_of",
    "rank_error",
    "walk_of",
]

# Names of the dimensions in messages, by their number.
_SPATIAL = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
_TAPS = {1: ("S",), 2: ("R", "S"), 3: ("T", "R", "S")}
_SIDES = {
    1: "((left, right),)",
    2: "((top, bottom), (left, right))",
    3: "((front, back), (top, bottom), (left, right))",
}


def operator_name(rank: int) -> str:
    """Returns what torch calls a convolution of tensors of this rank: ``"conv2d"``."""
    return f"conv{rank - 2}d"


# --- numbers ------------------------------------------------------------------------------------


# Asked before ``operator.index``, which torch 2.11 does not trace for tuples; bool has an index.
_NO_INTEGERS = (bool, tuple, list)


def _integers(value: object) -> list[int] | None:
    """Returns a sequence of integers of any kind as ints; ``None`` if it is something else."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        return None
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        return None
    values = list(value)
    if any(isinstance(item, _NO_INTEGERS) for item in values):
        return None
    try:
        return [operator.index(item) for item in values]
    except TypeError:
        return None


def _integer(value: object) -> int | None:
    if isinstance(value, _NO_INTEGERS):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def numbers(name: str, value: int | Sequence[int], dims: int) -> list[int]:
    """Returns one number per spatial dimension.

    Args:
        name: Of the argument, for the error.
        value: One integer, or one per dimension; a sequence of one counts for all, as in torch.
        dims: Spatial dimensions.

    Raises:
        ValueError: Something else.
    """
    if type(value) is int:
        return [value] * dims
    number = _integer(value)
    values = [number] * dims if number is not None else _integers(value)
    if values is not None and len(values) == 1:
        values *= dims
    if values is None or len(values) != dims:
        letters = ", ".join(_SPATIAL[dims]).lower() + ("," if dims == 1 else "")
        raise ValueError(f"{name}: expected one integer or ({letters}), got {value!r}")
    return values


def check_groups(name: str, groups: object) -> None:
    """Refuses groups that are no integer; torch may trace with symbolic ones."""
    if type(groups) is int or isinstance(groups, torch.SymInt):
        return
    if _integer(groups) is None:
        raise ValueError(f"{name}: groups must be an integer, got {groups!r}")


def check_not_empty(name: str, sizes: Iterable[int], tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuses sizes of 0, of which the batch's is none; the tensors that they are of are named."""
    if any(size == 0 for size in sizes):
        got = " and ".join(f"{which} {list(tensor.shape)}" for which, tensor in tensors.items())
        raise ValueError(
            f"{name}: expected sizes of at least 1 (only the batch may be empty), got {got}"
        )


def check_sizes(name: str, which: str, value: object, count: int) -> None:
    """Refuses what is no sequence of integers, of which ``count`` are expected.

    They may be symbolic.
    """
    if isinstance(value, (tuple, list)) and all(
        hasattr(item, "__index__") and not isinstance(item, bool) for item in value
    ):
        return
    found = repr(value) if isinstance(value, (tuple, list, int, str)) else type(value).__name__
    raise ValueError(f"{name}: expected {which} of {count} integers, got {found}")


def padding_sides(
    padding: int | str | Sequence[int] | Sequence[Sequence[int]],
    filter_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Returns (low, high) of every spatial dimension, one behind the other.

    Args:
        padding: One integer, one per dimension, one (low, high) pair per dimension, ``"valid"`` for
            none, or ``"same"`` for an output of the input's size, which needs stride 1; where that
            is odd, the high side gets one more, as in torch.
        filter_size: Taps per dimension.
        stride: One number per dimension.
        dilation: One number per dimension.

    Raises:
        ValueError: Something else, or ``"same"`` with a stride.
    """
    dims = len(filter_size)
    if type(padding) is int and padding >= 0:
        return [padding] * (2 * dims)
    if isinstance(padding, str) and padding == "valid":
        return [0] * (2 * dims)
    if isinstance(padding, str) and padding == "same":
        if any(step != 1 for step in stride):
            raise ValueError(f'padding: "same" needs stride 1, got stride {tuple(stride)}')
        reaches = [(taps - 1) * step for taps, step in zip(filter_size, dilation, strict=True)]
        return [side for reach in reaches for side in (reach // 2, reach - reach // 2)]
    number = _integer(padding)
    if number is not None:
        sides: list[int] | None = [number] * (2 * dims)
    elif isinstance(padding, Iterable) and not isinstance(padding, str):
        pairs = [_integers((side, side)) or _integers(side) or [] for side in padding]
        # One number, not one pair, counts for every dimension.
        if len(pairs) == 1 and dims > 1 and _integer(next(iter(padding))) is not None:
            pairs *= dims
        sides = [side for pair in pairs for side in pair]
        sides = sides if [len(pair) for pair in pairs] == [2] * dims else None
    else:
        sides = None
    if sides is None:
        letters = ", ".join(_SPATIAL[dims]).lower() + ("," if dims == 1 else "")
        raise ValueError(
            f'padding: expected one integer, ({letters}), {_SIDES[dims]}, "same" or "valid", '
            f"got {padding!r}"
        )
    if min(sides) < 0:
        raise ValueError(f"padding: must not be negative, got {padding!r}")
    return sides


def walk_of(
    stride: int | Sequence[int],
    padding: int | str | Sequence[int] | Sequence[Sequence[int]],
    dilation: int | Sequence[int],
    filter_size: Sequence[int],
) -> tuple[list[int], list[int], list[int]]:
    """Returns stride, padding as of :func:`padding_sides`, and dilation, as numbers per dimension.

    Raises:
        ValueError: Something else; the message names the argument.
    """
    dims = len(filter_size)
    steps, distances = numbers("stride", stride, dims), numbers("dilation", dilation, dims)
    return steps, padding_sides(padding, filter_size, steps, distances), distances


# --- sizes --------------------------------------------------------------------------------------


def fprop_size(
    input_size: Sequence[Any],
    filter_size: Sequence[Any],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Any]:
    """Returns the output size of a convolution per dimension; sizes may be symbolic."""
    return [
        (size + low + high - (taps - 1) * step - 1) // jump + 1
        for size, taps, jump, low, high, step in zip(
            input_size, filter_size, stride, padding[::2], padding[1::2], dilation, strict=True
        )
    ]


def dgrad_size(
    input_size: Sequence[Any],
    filter_size: Sequence[Any],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[Any]:
    """Returns the output size of a transposed convolution per dimension.

    ``(size - 1) * stride - low - high + (taps - 1) * dilation + output_padding + 1``, as in torch.
    """
    return [
        (size - 1) * jump - low - high + (taps - 1) * step + extra + 1
        for size, taps, jump, low, high, step, extra in zip(
            input_size,
            filter_size,
            stride,
            padding[::2],
            padding[1::2],
            dilation,
            output_padding,
            strict=True,
        )
    ]


@lru_cache(maxsize=4096)
def problem_of(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> ConvProblem:
    """Returns the problem of a convolution given as torch gives it.

    Args:
        x_shape: [N, Ci, *input_size].
        w_shape: [Co, Ci / groups, *filter_size].
        stride: One number per dimension.
        padding: (low, high) of every dimension, one behind the other.
        dilation: One number per dimension.
        groups: Of both channels.
    """
    return ConvProblem(
        batch=x_shape[0],
        in_channels=x_shape[1],
        out_channels=w_shape[0],
        input_size=tuple(x_shape[2:]),
        filter_size=tuple(w_shape[2:]),
        stride=stride,
        padding=tuple(zip(padding[::2], padding[1::2], strict=True)),
        dilation=dilation,
        groups=groups,
    )


def output_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None = None) -> torch.dtype:
    """Returns the dtype of y for that of x, where another one is not asked for."""
    return out_dtype or (torch.int32 if dtype == torch.int8 else dtype)


def is_per_image(residual: torch.Tensor | None, y_shape: Sequence[Any]) -> bool:
    """Tells whether a residual that fits y has one number per image and channel, not per pixel."""
    return residual is not None and tuple(residual.shape) != tuple(y_shape)


# --- memory order -------------------------------------------------------------------------------


def channels_last_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the strides of a dense tensor [N, C, *size] whose channels lie side by side."""
    strides: list[Any] = []
    step = shape[1]
    for size in reversed(shape[2:]):
        strides.insert(0, step)
        step = step * size
    return (step, 1, *strides)


def empty_channels_last(
    shape: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns a dense tensor [N, C, *size] without values, channels contiguous."""
    return torch.empty_strided(
        tuple(shape), channels_last_strides(shape), dtype=dtype, device=device
    )


def pixel_dims(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns all dimensions of a tensor [N, C, *size] but that of the channels."""
    return (0, *range(2, tensor.dim()))


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor [N, C, *size] dense and with channels contiguous; copies if it has to."""
    rank = tensor.dim()
    rows = tensor.permute(0, *range(2, rank), 1).contiguous()
    return rows.permute(0, rank - 1, *range(1, rank - 1))


# --- what fits what -----------------------------------------------------------------------------


def rank_error(
    operator: str,
    dims: int,
    first: tuple[str, torch.Tensor],
    weight: torch.Tensor,
    transposed: bool = False,
) -> ValueError:
    """Returns the error for an input and a filter that have not ``dims`` spatial dimensions."""
    name, x = first
    sizes, taps = ", ".join(_SPATIAL[dims]), ", ".join(_TAPS[dims])
    channels = "Ci, Co / groups" if transposed else "Co, Ci / groups"
    return ValueError(
        f"{operator}: expected {name} [N, Ci, {sizes}] and weight [{channels}, {taps}], "
        f"got {list(x.shape)} and {list(weight.shape)}"
    )


def check_pair(
    operator: str,
    first: tuple[str, torch.Tensor],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    groups: int,
    transposed: bool = False,
    mixed_bias: bool = False,
    mixed_dtypes: bool = False,
) -> None:
    """Refuses an input, a filter and a bias that do not fit each other.

    Args:
        operator: Who asks, for the errors.
        first: The tensor that is convolved, behind its name.
        weight: [Co, Ci / groups, *filter_size]; of a transposed convolution
            [Ci, Co / groups, *filter_size].
        bias: One per output channel, or None.
        groups: Of both channels.
        transposed: Whether the convolution is transposed.
        mixed_bias: Whether the bias may have a dtype of its own.
        mixed_dtypes: Whether all may; autocast brings them together.

    Raises:
        ValueError: Ranks, sizes, groups or devices that do not fit.
        TypeError: Mixed dtypes.
    """
    name, x = first
    if x.dim() not in (3, 4, 5) or weight.dim() != x.dim():
        raise rank_error(operator, 2, first, weight, transposed)
    if groups < 1:
        raise ValueError(f"{operator}: groups must be at least 1, got {groups}")
    if weight.shape[0] % groups:
        raise ValueError(
            f"{operator}: {weight.shape[0]} channels of weight {list(weight.shape)} do not divide "
            f"into {groups} groups"
        )
    expected = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != expected:
        how = f" with groups={groups}" if groups != 1 and not transposed else ""
        raise ValueError(
            f"{operator}: {name} has {x.shape[1]} channels, weight {list(weight.shape)}{how} "
            f"expects {expected}"
        )
    check_not_empty(operator, (*weight.shape, *x.shape[1:]), {name: x, "weight": weight})
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != outputs):
        raise ValueError(f"{operator}: expected bias [{outputs}], got {list(bias.shape)}")
    for other, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        # 8-bit types have no bias of their own.
        is_mixed = mixed_dtypes or (tensor is bias and (mixed_bias or x.dtype.itemsize == 1))
        if tensor.dtype != x.dtype and not is_mixed:
            raise TypeError(f"{operator}: {other} is {tensor.dtype}, {name} is {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{operator}: {other} is on {tensor.device}, {name} is on {x.device}")
