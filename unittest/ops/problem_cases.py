"""Problems and tensors that the tests of all directions are written with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from triton_ext.ops.core.problem import ConvProblem

if TYPE_CHECKING:
    from conv_cases import Case
    from triton_ext.ops.kernels.gemm_wgrad import Partition

__all__ = [
    "channels_last",
    "finite_of_torch",
    "misaligned_slice",
    "problem_of",
    "problem_of_case",
    "segments_of",
]


def problem_of(
    *,
    n: int = 1,
    ci: int = 8,
    co: int = 8,
    size: Sequence[int] = (6, 6),
    taps: Sequence[int] = (3, 3),
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | tuple[int, int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ConvProblem:
    """A problem from numbers or one value per spatial dimension; padding also in pairs."""
    dims = len(size)

    def each(value):
        return (value,) * dims if isinstance(value, int) else tuple(value)

    return ConvProblem(
        batch=n,
        in_channels=ci,
        out_channels=co,
        input_size=tuple(size),
        filter_size=tuple(taps),
        stride=each(stride),
        padding=tuple((p, p) if isinstance(p, int) else p for p in each(padding)),
        dilation=each(dilation),
        groups=groups,
    )


def problem_of_case(case: Case) -> ConvProblem:
    """The problem of a case of the emulator's tests."""
    return problem_of(
        n=case.n,
        ci=case.ci,
        co=case.co,
        size=case.size,
        taps=case.filter_size,
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
    )


def channels_last(
    shape: Sequence[int], dtype: torch.dtype, seed: int, device: str = "cpu"
) -> torch.Tensor:
    """Standard normal numbers [N, C, *size] whose channels lie next to each other."""
    generator = torch.Generator(device).manual_seed(seed)
    n, c, *size = shape
    numbers = torch.randn((n, *size, c), generator=generator, device=device)
    return numbers.to(dtype).movedim(-1, 1)


def misaligned_slice(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as channels from the fifth on of a tensor that is not a number else."""
    rows = tensor.movedim(1, -1)
    channels = rows.shape[-1]
    larger = rows.new_full((*rows.shape[:-1], channels + 8), float("nan"))
    larger[..., 4 : 4 + channels] = rows
    return larger[..., 4 : 4 + channels].movedim(-1, 1)


def finite_of_torch(theirs: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns torch's result, or the exact one rounded to its dtype where torch's has NaN.

    torch's CPU convolution leaves a part of a result unwritten in few cases (torch 2.13, fp16,
    strided and dilated): what lay in that memory before shows.
    """
    return theirs if theirs.isfinite().all() else exact.to(theirs.dtype)


def segments_of(partition: Partition, program: int) -> Iterator[tuple[int, range]]:
    """The tiles of a program of wgrad in its order, with the k iterations it computes of each."""
    for wave in range(partition.waves):
        yield wave * partition.programs + program, range(partition.steps)
    for slot in range(program, partition.slots, partition.programs):
        number, tile = divmod(slot, partition.rest)
        yield partition.tiles - partition.rest + tile, partition.part(number)
