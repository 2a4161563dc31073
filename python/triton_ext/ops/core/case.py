"""A case: one direction of one convolution over operands of a dtype and a layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.rewrites.packing import RowPacking

__all__ = ["DIRECTIONS", "Case", "Direction", "extent", "key_of", "round_up"]

Direction = Literal["fprop", "dgrad", "wgrad"]
DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")

# Types that kernels take the same time for.
_ALIKE: tuple[tuple[torch.dtype, ...], ...] = (
    (torch.float16, torch.bfloat16),
    (torch.float8_e4m3fn, torch.float8_e5m2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution to choose a kernel and its configuration for.

    Attributes:
        direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
        problem: What is computed.
        dtype: Of the operands.
        epilogue: Of fprop.
        out_dtype: Of wgrad's output; ``None`` for that of the operands.
        x_strides: Of x [N, Ci, *input_size], in elements, where a direction reads it; ``None`` for
            channels-last memory without gaps.
        dy_strides: Of dy [N, Co, *output_size], likewise.
        packing: How the pixels that are read, x's or in dgrad dy's, hold taps of the filter, where
            a rewrite or a caller says so; ``None`` where they are those of ``problem``.
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
        """Refuses what is no case; others find its fields as they should be."""
        problems = []
        if self.direction not in DIRECTIONS:
            problems.append(f"direction is {self.direction!r}: expected {' or '.join(DIRECTIONS)}")
        for name, wanted in (
            ("problem", ConvProblem),
            ("dtype", torch.dtype),
            ("epilogue", EpilogueSpec),
        ):
            value = getattr(self, name)
            if not isinstance(value, wanted):
                problems.append(f"{name} is {value!r}: expected a {wanted.__name__}")
        if self.out_dtype is not None and not isinstance(self.out_dtype, torch.dtype):
            problems.append(f"out_dtype is {self.out_dtype!r}: expected a dtype, or None")
        if problems:
            raise TypeError("Case: " + "; ".join(problems))

    @property
    def operator(self) -> str:
        """The name of the operator, for errors."""
        names = {"fprop": f"conv{self.problem.dims}d", "dgrad": "conv_dgrad", "wgrad": "wgrad"}
        return names[self.direction]

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of y, dx or dw."""
        out = self.out_dtype or self.epilogue.out_dtype
        return out or (torch.int32 if self.dtype == torch.int8 else self.dtype)

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
        """Returns the name under which its choice is kept, on a GPU of some multiprocessors."""
        out = self.out_dtype or self.epilogue.out_dtype
        if out is None and self.dtype == torch.int8:
            out = torch.int32
        return key_of(
            self.direction,
            self.problem,
            _name(self.dtype),
            num_sms,
            out_dtype=None if out is None else _name(out),
            epilogue=self.epilogue_class,
        )

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
        """What of the epilogue changes the choice: what needs shared memory or registers.

        Biases, scales and activations do not.
        """
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
        size, taps = ("x".join(map(str, values)) for values in (p.input_size, p.filter_size))
        text = f"{self.direction} {p.batch}x{p.in_channels}x{size} -> {p.out_channels} k{taps}"
        if set(p.stride) != {1}:
            text += f" s{'x'.join(map(str, p.stride))}"
        if p.groups > 1:
            text += f" g{p.groups}"
        if self.epilogue_class:
            text += f" {self.epilogue_class}"
        return f"{text} {_name(self.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- keys of tables ------------------------------------------------------------------------------

# Of the tile that waves are counted in, and the pixels of a step of wgrad.  Any fixed numbers do:
# keys are compared with keys only.
_TILE = 128
_STEP_PIXELS = 64


def round_up(count: int, unit: int = 1) -> float:
    """Returns count / unit, rounded up to a number of three significant binary digits.

    Args:
        count: Of what is counted; 0 for none.
        unit: At least 1.
    """
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


def extent(direction: Direction, problem: ConvProblem, num_sms: int) -> float:
    """Returns what stands for batch and image size in a key.

    Args:
        direction: Whose kernel.
        problem: What is computed.
        num_sms: Multiprocessors of the GPU.

    Returns:
        Waves of tiles of the output; for wgrad, whose tiles do not depend on it, the steps that
        its reduction takes, rounded up as these.
    """
    of_output = problem.batch * math.prod(problem.output_size)
    if direction == "wgrad":
        return round_up(-(-of_output // _STEP_PIXELS))
    is_fprop = direction == "fprop"
    pixels = of_output if is_fprop else problem.batch * math.prod(problem.input_size)
    columns = (problem.out_channels if is_fprop else problem.in_channels) // problem.groups
    tiles = -(-pixels // _TILE) * problem.groups * -(-columns // _TILE)
    return round_up(tiles, num_sms)


def key_of(
    direction: Direction,
    problem: ConvProblem,
    dtype: str,
    num_sms: int,
    *,
    out_dtype: str | None = None,
    epilogue: str = "",
) -> str:
    """Returns the key of a problem, such as ``"fprop float16 64->256 k3x3 padded waves 1.5"``.

    Args:
        direction: Whose kernel.
        problem: What is computed.
        dtype: Of the operands, by torch's name.
        num_sms: Multiprocessors of the GPU.
        out_dtype: Of the output, where it is not that of the operands.
        epilogue: What of an epilogue changes the choice, in one word; empty for what does not.
    """
    words = [
        direction,
        dtype,
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
    if out_dtype is not None and out_dtype != dtype:
        words.append(f"to-{out_dtype}")
    if epilogue:
        words.append(f"with-{epilogue}")
    unit = "steps" if direction == "wgrad" else "waves"
    return f"{' '.join(words)} {unit} {extent(direction, problem, num_sms):.15g}"


def _times(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))
