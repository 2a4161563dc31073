"""A convolution: its parameters as a caller gives them, and the record that every kernel reads.

Symbols: x [N, Ci, *input_size], w [Co, Ci / groups, *filter_size], y [N, Co, *output_size], with
one to three spatial dimensions.  Forward (fprop) computes y from x and w, dgrad the gradient dx
from dy and w, wgrad dw from x and dy.  A transposed convolution is a dgrad: its input is dy, its
output dx, so one record describes both.

Parameters may be symbolic where torch traces with dynamic shapes: :class:`ConvParameters` turns no
such size into a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from triton_ext import backends

ConvGeometry = backends.load("nvidia", "ConvGeometry")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvProblem:
    """A convolution and its gradients; sizes in elements and pixels.

    Attributes:
        batch: N, images; may be 0.
        in_channels: Ci, of x.
        out_channels: Co, of y.
        input_size: Pixels of x per spatial dimension, ([D, [H,]] W).
        filter_size: Taps per spatial dimension, ([T, [R,]] S).
        stride: Step of the filter per spatial dimension.
        padding: (low, high) per spatial dimension; the two may differ.
        dilation: Distance of neighbouring taps per spatial dimension.
        groups: Into how many parts both channels are divided; output part i sees input part i only.
    """

    batch: int
    in_channels: int
    out_channels: int
    input_size: tuple[int, ...]
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def dims(self) -> int:
        """Spatial dimensions: 1, 2 or 3."""
        return len(self.input_size)

    @property
    def is_pointwise(self) -> bool:
        """True where each output pixel reads the input pixel at its place: a matrix product."""
        steps = {*self.filter_size, *self.stride}
        return steps == {1} and all(sides == (0, 0) for sides in self.padding)

    @property
    def taps(self) -> int:
        """Filter taps of all dimensions."""
        return math.prod(self.filter_size)

    @property
    def geometry(self) -> ConvGeometry:
        """The geometry over x [N, *input_size, Ci] in the terms of im2col tensor maps."""
        return ConvGeometry.make(
            (self.batch, *self.input_size, self.in_channels),
            self.filter_size,
            self.stride,
            self.padding,
            self.dilation,
        )

    @property
    def output_size(self) -> tuple[int, ...]:
        """Pixels of y per spatial dimension; 0 where the filter does not fit."""
        return tuple(self.geometry.output_size)

    @property
    def pixels_read(self) -> int:
        """Pixels of x that the filter sees, at most; with a larger stride there are gaps."""
        return self.geometry.pixels_read

    @property
    def x_shape(self) -> tuple[int, ...]:
        """[N, Ci, *input_size], torch's order."""
        return (self.batch, self.in_channels, *self.input_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """[Co, Ci / groups, *filter_size], torch's order."""
        return (self.out_channels, self.in_channels // self.groups, *self.filter_size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """[N, Co, *output_size], torch's order."""
        return (self.batch, self.out_channels, *self.output_size)

    @property
    def flops(self) -> int:
        """Multiplications and additions of one direction; those with padding count."""
        pixels = self.batch * math.prod(self.output_size)
        return 2 * pixels * self.out_channels * self.taps * (self.in_channels // self.groups)


def as_forward(problem: ConvProblem) -> ConvProblem | None:
    """Returns the convolution of dy that gives dx; ``None`` with a stride or groups.

    Its filter is that of the problem turned round, its two channels swapped.  Padding is negative
    where the problem has more of it than its filter reaches.
    """
    if problem.groups != 1 or set(problem.stride) != {1}:
        return None
    reach = [(r - 1) * d for r, d in zip(problem.filter_size, problem.dilation, strict=True)]
    return replace(
        problem,
        in_channels=problem.out_channels,
        out_channels=problem.in_channels,
        input_size=problem.output_size,
        padding=tuple(
            (far - low, far - high) for far, (low, high) in zip(reach, problem.padding, strict=True)
        ),
    )


#: One integer, or one per spatial dimension.
Numbers = int | Sequence[int]
#: The spellings of padding that :meth:`ConvParameters.parse` takes.
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
#: Stride, padding, dilation and groups as a caller gave them.
GivenParameters = tuple[Numbers, Padding, Numbers, int]

#: Names of the spatial dimensions in messages, by their number.
DIMENSIONS = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
_SIDES = {
    1: "((left, right),)",
    2: "((top, bottom), (left, right))",
    3: "((front, back), (top, bottom), (left, right))",
}

# Asked before ``operator.index``, which torch 2.11 does not trace for tuples; bool has an index.
_NO_INTEGERS = (bool, tuple, list)
# Parameters are smaller.
_LIMIT = 1 << 31


class ConvParameters(NamedTuple):
    """Stride, padding, dilation and groups, one number per spatial dimension.

    A transposed convolution has those of the convolution whose input gradient it is; its output
    padding only decides its output size.

    Attributes:
        stride: Pixels per step of the filter.
        padding: (low, high) of every dimension one after the other: (top, bottom, left, right).
        dilation: Distance of neighbouring taps in pixels.
        groups: Number of parts into which both channels are divided.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def parse(cls, given: GivenParameters, filter_size: Sequence[Any]) -> ConvParameters:
        """Returns the parameters for what a caller gave and a filter of so many taps.

        Padding is one integer, one per dimension, one (low, high) pair per dimension, ``"valid"``
        for none, or ``"same"`` for an output of the input's size, which needs stride 1; where that
        is odd, the high side gets one more, as in torch.

        Raises:
            ValueError: Something else; the message names the argument.
        """
        stride, padding, dilation, groups = given
        dims = len(filter_size)
        steps, distances = numbers("stride", stride, dims), numbers("dilation", dilation, dims)
        sides = _padding_sides(padding, filter_size, steps, distances)
        if type(groups) is not int and not isinstance(groups, torch.SymInt):
            groups = operator.index(groups)
        return cls(steps, sides, distances, groups)

    def output_size(self, input_size: Sequence[Any], filter_size: Sequence[Any]) -> list[Any]:
        """Returns the output size of the convolution per dimension; a stride of 0 counts as 1."""
        return [
            (size + low + high - (taps - 1) * distance - 1) // (step or 1) + 1
            for size, taps, step, low, high, distance in zip(
                input_size, filter_size, self.stride, self.padding[::2], self.padding[1::2],
                self.dilation, strict=True,
            )
        ]  # fmt: skip

    def transposed_size(
        self, input_size: Sequence[Any], filter_size: Sequence[Any], output_padding: Sequence[int]
    ) -> list[Any]:
        """Returns the output size of the transposed convolution per dimension.

        ``(size - 1) * stride - low - high + (taps - 1) * dilation + output_padding + 1``, as in
        torch.
        """
        return [
            (size - 1) * step - low - high + (taps - 1) * distance + extra + 1
            for size, taps, step, low, high, distance, extra in zip(
                input_size, filter_size, self.stride, self.padding[::2], self.padding[1::2],
                self.dilation, output_padding, strict=True,
            )
        ]  # fmt: skip

    def problem(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> ConvProblem:
        """Returns the problem of x [N, Ci, *input_size] and weight [Co, Ci / groups, *taps]."""
        return ConvProblem(
            batch=x_shape[0],
            in_channels=x_shape[1],
            out_channels=w_shape[0],
            input_size=tuple(x_shape[2:]),
            filter_size=tuple(w_shape[2:]),
            stride=self.stride,
            padding=tuple(zip(self.padding[::2], self.padding[1::2], strict=True)),
            dilation=self.dilation,
            groups=self.groups,
        )


def is_out_of_range(value: object) -> bool:
    """Tells whether an int is no size and no parameter: kernels and operators have fewer bits."""
    return isinstance(value, int) and not -_LIMIT < value < _LIMIT


def integer(value: object) -> int | None:
    """Returns an integer of any kind as an int; ``None`` for another value, or one out of range."""
    if isinstance(value, _NO_INTEGERS):
        return None
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return None if is_out_of_range(found) else found


def _integers(value: object) -> list[int] | None:
    """Returns a sequence of integers of any kind as ints; ``None`` if it is something else."""
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0
    if not isinstance(value, Iterable) or isinstance(value, str) or is_number:
        return None
    found = [integer(item) for item in value]
    return None if None in found else found  # type: ignore[return-value]


def numbers(name: str, value: Numbers, dims: int) -> tuple[int, ...]:
    """Returns one number per spatial dimension: of one for all, or of a sequence of one or dims.

    Raises:
        ValueError: ``value`` is something else; ``name`` is the argument's.
    """
    if type(value) is int and not is_out_of_range(value):
        return (value,) * dims
    number = integer(value)
    values = [number] if number is not None else _integers(value)
    if values is not None and len(values) == 1:
        values *= dims
    if values is None or len(values) != dims:
        expected = f"one integer or ({_letters(dims)}), below 2**31"
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
    return tuple(values)


def _letters(dims: int) -> str:
    return ", ".join(DIMENSIONS[dims]).lower() + ("," if dims == 1 else "")


def _padding_sides(
    padding: Padding, filter_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Returns (low, high) of every spatial dimension one after the other."""
    dims = len(filter_size)
    if isinstance(padding, str) and padding == "same":
        if any(step != 1 for step in stride):
            raise ValueError(f'padding: "same" needs stride 1, got stride {tuple(stride)}')
        reaches = [(taps - 1) * step for taps, step in zip(filter_size, dilation, strict=True)]
        return tuple([side for reach in reaches for side in (reach // 2, reach - reach // 2)])
    number = 0 if isinstance(padding, str) and padding == "valid" else integer(padding)
    pairs: list[list[int]] = []
    if number is not None:
        pairs = [[number, number]] * dims
    elif isinstance(padding, Iterable) and not isinstance(padding, str):
        pairs = [_integers((side, side)) or _integers(side) or [] for side in padding]
        # One number, not one pair, counts for every dimension.
        if len(pairs) == 1 and dims > 1 and integer(next(iter(padding))) is not None:
            pairs *= dims
    if [len(pair) for pair in pairs] != [2] * dims:
        raise ValueError(
            f'padding: expected one integer, ({_letters(dims)}), {_SIDES[dims]}, "same" or '
            f'"valid", integers below 2**31, got {padding!r}'
        )
    sides = [side for pair in pairs for side in pair]
    if min(sides) < 0:
        raise ValueError(f"padding: must not be negative, got {padding!r}")
    return tuple(sides)
