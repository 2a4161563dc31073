"""Merged groups: neighbouring groups are computed as one, with a block-diagonal filter.

Tensor cores multiply tiles of 64 and more channels, of which a group of few channels fills a part.
Neighbouring groups lie side by side in x, dy and y.  So M of them become one group of M times the
channels, whose filter has zeros where an output channel does not see an input channel, and other
families compute that.  Its multiplications are M times as many.

Zeros of the filter times NaN or infinity are NaN, which a convolution of groups does not have.  So
a kernel reports whether a pixel was not finite: the one that convolves by the largest absolute
value of its output, which is NaN then, or the one that writes the filter by a look at the pixels.
The kernel without tensor cores then computes the output again.  It is always launched and ends at
once where all is finite.  wgrad needs none of that: what it sums for an
output and an input channel has no other channel in it.

Not handled: epilogues with a function, which may hide NaN, or that report the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import row_stride_of
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.family import Family
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan, Out, Plan, Tensor
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.families.direct import DirectConfig, Sampling, direct_launcher
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.families.rewrite import Rewrite
from triton_ext.ops.kernels.groups import merge_filter_kernel

# Channels of a merged group: multiples of what a matrix instruction takes, not more than a tile.
_CHANNEL_UNIT, _MOST_CHANNELS = 16, 256
# How much longer than its model says the merged convolution takes.  fprop: 6 layers measured on an
# H100 took 1.23 to 1.30 times what the model expects of an H200, and 1.19 to 1.22 of what it
# expects of an H100, with a stride 1.01 to 1.09.  dgrad: 1.06 times over 20 configurations
# (H100, Triton 3.9.0, bf16, 2026-11-27).
_CORRECTION = {"fprop": 1.27, "dgrad": 1.06}

# Elements of a program that writes the merged filter, and how outputs are computed again.
_BLOCK, _REPAIR = 1024, DirectConfig(block_m=64, block_n=32)


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """``factor`` groups merged into one, which a family computes with ``config``."""

    factor: int
    config: Any


def merge_factors(problem: ConvProblem) -> list[int]:
    """Returns the numbers of groups that can be merged into one; empty where none can."""
    groups = problem.groups
    sizes = (problem.in_channels // groups, problem.out_channels // groups)
    if sizes == (1, 1):  # depthwise: kernels of its own
        return []
    return [
        factor
        for factor in range(2, groups + 1)
        if groups % factor == 0
        and max(sizes) * factor <= _MOST_CHANNELS
        and not any(size * factor % _CHANNEL_UNIT for size in sizes)
    ]


class Merged(Rewrite[MergedConfig]):
    """fprop, whose groups are merged; dgrad with stride 1 as fprop over dy, else by stride phases.

    The kernels of fprop report NaN.
    """

    kind = "merged"
    direction = "fprop"
    config_type = MergedConfig
    inner = (GEMM, GLUON, GEMM_DGRAD, GLUON_DGRAD)
    reads = "merged groups"

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if not merge_factors(problem):
            found.append(
                f"groups={problem.groups} of {problem.in_channels // problem.groups} and "
                f"{problem.out_channels // problem.groups} channels: no number of groups together "
                f"has a multiple of {_CHANNEL_UNIT} and at most {_MOST_CHANNELS} of both"
            )
        if case.epilogue.function is not None or case.epilogue.amax:
            found.append("an epilogue with a function or with amax may hide NaN of other groups")
        return refused(*found)

    def number_refusals(self, config: MergedConfig, case: Case, device: Device) -> Refusals:
        factors = merge_factors(case.problem)
        if config.factor in factors:
            return super().number_refusals(config, case, device)
        expected = ", ".join(map(str, factors))
        return refused(f"factor is {config.factor}: expected one of {expected}")

    def refusals(self, case: Case, device: Device, config: MergedConfig | None = None) -> Refusals:
        found = super().refusals(case, device, config)
        if found or config is not None or self.candidates(case, device):
            return found
        return refused("no kernel takes the merged groups", in_key=False)

    # Refusals and times of one case ask for it.
    @lru_cache(maxsize=256)  # noqa: B019
    def candidates(self, case: Case, device: Device) -> Mapping[MergedConfig, Expected]:
        return super().candidates(case, device)

    def variants(
        self, case: Case, device: Device
    ) -> Iterator[tuple[Callable[[Any], MergedConfig], Family[Any], Case]]:
        for factor in merge_factors(case.problem):
            for family in self.inner:
                if (merged := _merged(case, factor, family)) is not None:
                    yield partial(MergedConfig, factor), family, merged

    def with_copies(self, case: Case, rewritten: Case, expected: Expected) -> Expected:
        """Returns the time with the kernels around the family's, and a look at pixels."""
        problem, size = case.problem, case.dtype.itemsize
        factor = problem.groups // rewritten.problem.groups
        launches, moved_bytes = 1, math.prod(problem.w_shape) * (factor + 1) * size
        if case.dtype.is_floating_point:
            launches = 2
            if not rewritten.epilogue.amax:
                moved_bytes += math.prod(Sampling.of(case).shape) * size
        us = launches * H200.launch_us + H200.dram_us(moved_bytes)
        return expected.corrected(_CORRECTION[case.direction]).plus("merging", us)

    def plan(
        self, case: Case, rewritten: Case, device: Device, bind: Callable[[Case], Any]
    ) -> MergedPlan:
        problem, is_float, inner = case.problem, case.dtype.is_floating_point, bind(rewritten)
        groups, taps = problem.groups, problem.taps
        factor = groups // rewritten.problem.groups
        # fprop that computes a gradient turns the filter.
        is_turned = case.direction != rewritten.direction
        rows, k = problem.out_channels, problem.in_channels
        rows, k = (k, rows // groups) if is_turned else (rows, k // groups)
        elements = rows * taps * k * factor
        programs = math.ceil(elements / _BLOCK)
        read = math.prod(Sampling.of(case).shape)
        blocks = math.ceil(read / _BLOCK) if is_float and not rewritten.epilogue.amax else 0
        lookers = min(math.ceil(blocks / 4), 8 * device.num_sms)
        flags, repairing = 0, None
        if is_float:
            flags, programs_at_once = max(lookers, 1), 4 * device.num_sms
            repairing = direct_launcher(_REPAIR, case, most_programs=programs_at_once, flags=flags)
        return MergedPlan(
            problem=problem,
            inner=inner,
            config=inner.config,
            out_dtype=case.output_dtype,
            w_shape=(rows, k * factor, *problem.filter_size),
            flags=flags,
            looks=blocks > 0,
            merging=Launcher(
                kernel=merge_filter_kernel,
                grid=(programs + lookers, 1, 1),
                scalars=(elements, programs, blocks, read - (blocks - 1) * _BLOCK),
                constants={
                    "TAPS": taps,
                    "GROUP_ROWS": rows // groups,
                    "GROUP_K": k,
                    "FACTOR": factor,
                    "IS_TURNED": is_turned,
                    "BLOCK": _BLOCK,
                },
                options={"num_warps": 4},
            ),
            repairing=repairing,
        )


def _merged(case: Case, factor: int, family: Family[Any]) -> Case | None:
    """Returns the case that a family computes; ``None`` where it is none of the family's."""
    problem, dtype = case.problem, case.dtype
    # The only kernel that reports the largest absolute value of its output.
    reports = family is GEMM
    if not reports and dtype.is_floating_point:
        # Pixels are looked at as dense elements.
        sampling = Sampling.of(case)
        sizes = (*sampling.in_size[::-1], sampling.batch)
        strides = (*sampling.strides[:1:-1], sampling.strides[0])
        if math.prod(sizes) != 1 and row_stride_of(sizes, strides) != sampling.in_channels:
            return None
    groups, forward = problem.groups // factor, as_forward(replace(problem, groups=1))
    if (case.direction == "fprop" or forward is not None) != (family.direction == "fprop"):
        return None
    epilogue = replace(case.epilogue, amax=reports and dtype.is_floating_point)
    merged = replace(case, problem=replace(problem, groups=groups), epilogue=epilogue)
    if case.direction == family.direction or forward is None:
        return merged
    forward, x_strides = replace(forward, groups=groups), case.dy_strides
    return replace(merged, direction="fprop", problem=forward, x_strides=x_strides, dy_strides=None)


@dataclass(slots=True, kw_only=True)
class MergedPlan(Plan):
    """A convolution over merged groups: fprop, or dgrad as :class:`ForwardPlan` computes it."""

    inner: ForwardPlan  # of the merged groups
    config: Any  # its configuration
    w_shape: tuple[int, ...]  # of the merged filter, [rows, channels, *taps]
    flags: int  # numbers that say whether outputs are to be repaired; 0 for integers
    looks: bool  # whether the kernel that writes the filter looks at the pixels
    merging: Launcher  # writes the filter
    repairing: Launcher | None  # computes outputs again; None for integers

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        return self.inner.launcher

    def _run(self, first: Tensor, second: Tensor, given: EpilogueArguments, out: Out) -> Tensor:
        x, weight, operands = first, second, given
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        rows, channels, *taps = self.w_shape
        merged = torch.empty((rows, *taps, channels), device=x.device, dtype=w_rows.dtype)
        flags = None
        if self.flags:
            flags = torch.empty((self.flags,), device=x.device, dtype=torch.int32)
        looked_at = x if self.looks else None
        self.merging.launch((w_rows, merged, looked_at, flags))
        merged = merged.movedim(-1, 1)
        others = self.inner.operands(operands)
        if flags is not None and self.inner.epilogue.amax:
            operands = operands._replace(amax=flags)
        y = self.inner.run(x, merged, operands, out)
        if self.repairing is not None:
            self.repairing.launch((x, w_rows, flags, y, *others))
        return y


MERGED = Merged()
MERGED_DGRAD = Merged("dgrad")
