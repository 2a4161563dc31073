"""A case: one direction of one convolution over operands of a dtype and a layout, and its key.

A key names a case in tables of measured choices: it lists what a configuration's time depends on.
Channels, filter, stride, dilation and groups stand in it as they are.  Batch and image size are
replaced by the number of waves (tiles per multiprocessor), rounded up to three significant binary
digits (1, 1.25, 1.5, 1.75, 2, 2.5, ...), so that similar sizes share a choice.  The boundaries
include 1, 2, 3 and 4 waves, where the best tile changes most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec, output_dtype
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import ConvProblem

Direction = Literal["fprop", "dgrad", "wgrad"]
DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")

# Pixels and channels of the tile that waves are counted in, and the pixels of a step of wgrad.  Any
# fixed numbers do: keys are compared with keys only.
_TILE = 128
_STEP_PIXELS = 64

# Types that kernels take the same time for.
_ALIKE: tuple[tuple[torch.dtype, ...], ...] = (
    (torch.float16, torch.bfloat16),
    (torch.float8_e4m3fn, torch.float8_e5m2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution to choose a kernel and its configuration for.

    Attributes:
        dtype: Dtype of the operands.
        epilogue: fprop's.
        out_dtype: Dtype of wgrad's output; ``None`` for that of the operands.
        x_strides: Of x [N, Ci, *input_size], in elements, where a direction reads it; ``None`` for
            channels-last memory without gaps.
        dy_strides: Of dy [N, Co, *output_size], likewise.
        packing: How pixels of x, in dgrad of dy, hold taps of the filter; rewrites set it.
            ``None`` for the pixels of ``problem``.
    """

    direction: Direction
    problem: ConvProblem
    dtype: torch.dtype
    epilogue: EpilogueSpec = PLAIN
    out_dtype: torch.dtype | None = None
    x_strides: tuple[int, ...] | None = None
    dy_strides: tuple[int, ...] | None = None
    packing: RowPacking | None = None

    def __post_init__(self) -> None:
        """Raises TypeError for a field of another type."""
        wrong = []
        if self.direction not in DIRECTIONS:
            wrong.append(f"direction is {self.direction!r}: expected {' or '.join(DIRECTIONS)}")
        kinds = {"problem": ConvProblem, "dtype": torch.dtype, "epilogue": EpilogueSpec}
        for name, wanted in kinds.items():
            if not isinstance(value := getattr(self, name), wanted):
                wrong.append(f"{name} is {value!r}: expected a {wanted.__name__}")
        if self.out_dtype is not None and not isinstance(self.out_dtype, torch.dtype):
            wrong.append(f"out_dtype is {self.out_dtype!r}: expected a dtype, or None")
        if wrong:
            raise TypeError("Case: " + "; ".join(wrong))

    @property
    def operator(self) -> str:
        """The name of the operator, for errors."""
        names = {"fprop": f"conv{self.problem.dims}d", "dgrad": "conv_dgrad", "wgrad": "wgrad"}
        return names[self.direction]

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of y, dx or dw."""
        return output_dtype(self.dtype, self.out_dtype or self.epilogue.out_dtype)

    @property
    def strides_of_x(self) -> tuple[int, ...]:
        """The strides of x [N, Ci, *input_size], in elements."""
        return self.x_strides or channels_last_strides(self.problem.x_shape)

    @property
    def strides_of_dy(self) -> tuple[int, ...]:
        """The strides of dy [N, Co, *output_size], in elements."""
        return self.dy_strides or channels_last_strides(self.problem.y_shape)

    @property
    def dense(self) -> Case:
        """The same case over operands without gaps, as tables of measured choices have it."""
        return replace(self, x_strides=None, dy_strides=None)

    def key(self, num_sms: int) -> str:
        """Returns its key, such as ``"fprop float16 64->256 k3x3 padded waves 1.5"``."""
        problem = self.problem
        words = [
            self.direction,
            _name(self.dtype),
            f"{problem.in_channels}->{problem.out_channels}",
            f"k{_times(problem.filter_size)}",
        ]
        for letter, values in (("s", problem.stride), ("d", problem.dilation)):
            if set(values) != {1}:
                words.append(f"{letter}{_times(values)}")
        if any(side for pair in problem.padding for side in pair):
            words.append("padded")
        if problem.groups > 1:
            words.append(f"g{problem.groups}")
        if self.output_dtype != self.dtype:
            words.append(f"to-{_name(self.output_dtype)}")
        if self.epilogue_class:
            words.append(f"with-{self.epilogue_class}")
        unit = "steps" if self.direction == "wgrad" else "waves"
        return f"{' '.join(words)} {unit} {self.extent(num_sms):.15g}"

    def extent(self, num_sms: int) -> float:
        """Returns the number in the key for batch and image size, rounded up.

        It counts waves of output tiles; in wgrad, whose tiles do not depend on these sizes, k
        iterations.
        """
        problem = self.problem
        of_output = problem.batch * math.prod(problem.output_size)
        if self.direction == "wgrad":
            return round_up(-(-of_output // _STEP_PIXELS))
        is_fprop = self.direction == "fprop"
        pixels = of_output if is_fprop else problem.batch * math.prod(problem.input_size)
        columns = (problem.out_channels if is_fprop else problem.in_channels) // problem.groups
        tiles = -(-pixels // _TILE) * problem.groups * -(-columns // _TILE)
        return round_up(tiles, num_sms)

    @property
    def twins(self) -> tuple[Case, ...]:
        """The same case in other types of as many bytes; none for fp32 and integers.

        Kernels of float16 and bfloat16, and of both kinds of fp8, move the same bytes and multiply
        at the same rate: what is fastest in one is fastest in the others.
        """

        def alike(dtype: torch.dtype | None) -> tuple[torch.dtype | None, ...]:
            return next((both for both in _ALIKE if dtype in both), (dtype,))

        found = [
            replace(
                self, dtype=dtype, out_dtype=out, epilogue=replace(self.epilogue, out_dtype=spec)
            )
            for dtype in alike(self.dtype)
            for out in alike(self.out_dtype)
            for spec in alike(self.epilogue.out_dtype)
        ]
        return tuple(case for case in found if case != self)

    @property
    def epilogue_class(self) -> str:
        """The parts of the epilogue whose memory or registers change the choice."""
        spec = self.epilogue
        parts = (
            ("residual", spec.residual and not spec.residual_per_image),
            ("image-residual", spec.residual_per_image),
            ("amax", spec.amax),
            ("function", spec.function is not None),
        )
        return "+".join(name for name, is_there in parts if is_there)

    def __str__(self) -> str:
        p = self.problem
        size = f"{p.batch}x{p.in_channels}x{_times(p.input_size)}"
        text = f"{self.direction} {size} -> {p.out_channels} k{_times(p.filter_size)}"
        if set(p.stride) != {1}:
            text += f" s{_times(p.stride)}"
        if p.groups > 1:
            text += f" g{p.groups}"
        if self.epilogue_class:
            text += f" {self.epilogue_class}"
        return f"{text} {_name(self.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _times(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def round_up(count: int, unit: int = 1) -> float:
    """Returns count / unit, rounded up to a number of three significant binary digits."""
    if count <= 0:
        return 0.0
    # The result is digits * 2**exponent with digits from 4 to 7.
    exponent = count.bit_length() - unit.bit_length() - 4
    digits = 8
    while digits > 7:
        exponent += 1
        high, low = (count, unit << exponent) if exponent >= 0 else (count << -exponent, unit)
        digits = -(-high // low)
    return math.ldexp(digits, exponent)
