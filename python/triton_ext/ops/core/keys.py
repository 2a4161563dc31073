"""Under which name a choice is kept: what a configuration's time depends on, in words.

Channels, filter, stride, dilation and groups go in as they are.  Batch and image size do not: what
matters is how often every multiprocessor has to work on a tile, so their place is taken by the
number of waves, rounded up to three significant binary digits (1, 1.25, 1.5, 1.75, 2, 2.5, ...).
Sizes that differ by less share a choice.  The boundaries include 1, 2, 3 and 4 waves, where the
best tile changes most.

Pure arithmetic: no torch, no GPU.
"""

from __future__ import annotations

import math
from typing import Literal

from triton_ext.ops.core.problem import ConvProblem

__all__ = ["DIRECTIONS", "Direction", "extent", "key_of", "round_up"]

Direction = Literal["fprop", "dgrad", "wgrad"]
DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")

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
