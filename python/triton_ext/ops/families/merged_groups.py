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
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES, row_stride_of
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueArguments, Operands
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan, InputGradientPlan
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import Refusals, beyond_keys, refuse, refused
from triton_ext.ops.families.direct import (
    DIRECT,
    DIRECT_DGRAD,
    DirectConfig,
    Sampling,
    direct_launcher,
)
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.kernels.groups import merge_filter_kernel

# Channels of a merged group: multiples of what a matrix instruction takes, not more than a tile.
_CHANNEL_UNIT, _MOST_CHANNELS = 16, 256
# How much longer than its model says the merged convolution takes.  fprop: 6 layers measured on an
# H100 took 1.23 to 1.30 times what the model expects of an H200, and 1.19 to 1.22 of what it
# expects of an H100, with a stride 1.01 to 1.09.  dgrad: 1.06 times over 20 configurations
# (H100, Triton 3.9.0, bf16, 2026-11-27).
_CORRECTION = {"fprop": 1.27, "dgrad": 1.06}
# The kernel without tensor cores computes so much in a microsecond: 6 TFLOP/s over 32 groups of 8
# channels (H200, Triton 3.9.0, bf16, 2026-11-23).
_DIRECT_FLOPS_PER_US = 6e6

# Elements of a program that writes the merged filter, and how outputs are computed again.
_BLOCK, _REPAIR = 1024, DirectConfig(block_m=64, block_n=32)


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """The choice to make one group of ``factor`` ones, which a family computes by ``config``."""

    factor: int
    config: Any


def merge_factors(problem: ConvProblem) -> list[int]:
    """Returns how many groups of a convolution can become one; none where they cannot."""
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


class Merged(Family[MergedConfig]):
    """fprop, whose groups are merged, computed by one of the ``inner`` families."""

    kind = "merged"
    direction: Direction = "fprop"
    config_type = MergedConfig
    inner: ClassVar[tuple[Family[Any], ...]] = (GEMM, GLUON)

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
        if config.factor not in factors:
            expected = ", ".join(map(str, factors))
            return refused(f"factor is {config.factor}: expected one of {expected}")
        for family in self.inner:
            if family.config_type is type(config.config):
                return family.number_refusals(config.config, case, device)
        return refused(f"{type(config.config).__name__} does not compute merged groups")

    def fit_refusals(self, config: MergedConfig, case: Case, device: Device) -> Refusals:
        for merged, family in self._computing(config, case):
            return beyond_keys(family.refusals(merged, device, config.config))
        name = type(config.config).__name__
        return refused(f"{name} does not compute merged groups of these operands", in_key=False)

    def refusals(self, case: Case, device: Device, config: MergedConfig | None = None) -> Refusals:
        found = super().refusals(case, device, config)
        if found or config is not None or _times(self, case, device):
            return found
        return refused("no kernel takes the merged groups", in_key=False)

    def passed_over(self, case: Case, device: Device) -> str:
        if (DIRECT if case.direction == "fprop" else DIRECT_DGRAD).passed_over(case, device):
            return ""
        # The kernel without tensor cores, which has no model, is the other one here.
        us = min(expected.counted_us for expected in _times(self, case, device).values())
        direct_us = H200.launch_us + case.problem.flops / _DIRECT_FLOPS_PER_US
        if us <= direct_us:
            return ""
        return f"without tensor cores it is expected to take {direct_us:.1f} us"

    def candidates(self, case: Case, device: Device) -> Mapping[MergedConfig, Expected]:
        return _times(self, case, device)

    def bind(self, config: MergedConfig, case: Case, device: Device) -> Any:
        refuse(f"{case.operator}: groups are not merged", self.refusals(case, device, config))
        merged, family = next(self._computing(config, case))

        def bind(each: Case) -> Any:
            epilogue = replace(each.epilogue, amax=merged.epilogue.amax)
            inner = family.bind(config.config, replace(each, epilogue=epilogue), device)
            return MergedPlan.make(case, inner, config.factor, family, device)

        if case.direction == "dgrad":
            return InputGradientPlan.of(case.problem, merged, bind)
        return bind(merged)

    def _computing(self, config: MergedConfig, case: Case) -> Iterator[tuple[Case, Family[Any]]]:
        """Yields the case of merged groups that a configuration's family computes, and this."""
        if config.factor in merge_factors(case.problem):
            for family in self.inner:
                merged = _merged(case, config.factor, family)
                if family.config_type is type(config.config) and merged is not None:
                    yield merged, family


class MergedDgrad(Merged):
    """dgrad: with stride 1 as fprop over dy, whose kernels report NaN, else by stride phases."""

    direction = "dgrad"
    inner = (GEMM, GLUON, GEMM_DGRAD, GLUON_DGRAD)


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
    groups = problem.groups // factor
    epilogue = replace(case.epilogue, amax=reports and dtype.is_floating_point)
    if case.direction == "fprop":
        return replace(case, problem=replace(problem, groups=groups), epilogue=epilogue)
    forward = as_forward(replace(problem, groups=1))
    if (forward is None) != (family.direction == "dgrad"):
        return None
    if forward is None:
        return replace(case, problem=replace(problem, groups=groups))
    return Case(
        direction="fprop",
        problem=replace(forward, groups=groups),
        dtype=dtype,
        epilogue=epilogue,
        x_strides=case.dy_strides,
    )


@lru_cache(maxsize=256)
def _times(family: Merged, case: Case, device: Device) -> dict[MergedConfig, Expected]:
    """Returns the configurations of all factors and inner families, with their times."""
    found = {}
    for factor in merge_factors(case.problem):
        for inner in family.inner:
            merged = _merged(case, factor, inner)
            if merged is None or inner.refusals(merged, device):
                continue
            us = _merging_us(case, factor, inner)
            for config, expected in inner.candidates(merged, device).items():
                parts = (*expected.parts, ("merging", us))
                counted_us = expected.counted_us * _CORRECTION[case.direction] + us
                found[MergedConfig(factor, config)] = Expected(parts, counted_us)
    return ranked(found)


def _merging_us(case: Case, factor: int, family: Family[Any]) -> float:
    """Returns the time of the kernels around the family's, and of pixels that it leaves out."""
    problem, size = case.problem, case.dtype.itemsize
    filter_bytes = math.prod(problem.w_shape) * (factor + 1) * size
    if not case.dtype.is_floating_point:
        return H200.launch_us + filter_bytes / H200.copy_bytes_per_us
    looked_at = 0 if family is GEMM else math.prod(Sampling.of(case).shape) * size
    return 2 * H200.launch_us + (filter_bytes + looked_at) / H200.copy_bytes_per_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPlan:
    """A convolution over merged groups: fprop, or dgrad as :class:`ForwardPlan` computes it."""

    problem: ConvProblem  # as it was asked for
    inner: Any  # the plan of the merged groups
    config: Any  # its configuration
    out_dtype: torch.dtype  # of the output
    w_shape: tuple[int, ...]  # of the merged filter, [rows, channels, *taps]
    flags: int  # numbers that say whether outputs are to be repaired; 0 for integers
    looks: bool  # whether the kernel that writes the filter looks at the pixels
    merging: Launcher  # writes the filter
    repairing: Launcher | None  # computes outputs again; None for integers

    @classmethod
    def make(
        cls, case: Case, inner: Any, factor: int, family: Family[Any], device: Device
    ) -> MergedPlan:
        """Returns the plan of a case, whose merged groups ``inner`` computes, of ``family``."""
        problem = case.problem
        # fprop that computes a gradient turns the filter.
        is_turned = case.direction == "dgrad" and family.direction == "fprop"
        rows, k = problem.out_channels, problem.in_channels
        if is_turned:
            rows, k = k, rows
        groups, taps, k = problem.groups, problem.taps, k // problem.groups
        elements = rows * taps * k * factor
        programs = math.ceil(elements / _BLOCK)
        is_float = case.dtype.is_floating_point
        read = math.prod(Sampling.of(case).shape)
        blocks = math.ceil(read / _BLOCK) if is_float and family is not GEMM else 0
        lookers = min(math.ceil(blocks / 4), 8 * device.num_sms)
        flags = max(lookers, 1) if is_float else 0
        return cls(
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
            repairing=direct_launcher(_REPAIR, case, most_programs=4 * device.num_sms, flags=flags)
            if is_float
            else None,
        )

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        found: Launcher = self.inner.launcher
        return found

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueArguments = NO_OPERANDS,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernels; as :meth:`ForwardPlan.run`, over x or dy."""
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, operands, out)
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        rows, channels, *taps = self.w_shape
        merged = torch.empty((rows, *taps, channels), device=x.device, dtype=w_rows.dtype)
        flags = None
        if self.flags:
            flags = torch.empty((self.flags,), device=x.device, dtype=torch.int32)
        looked_at = x if self.looks else None
        self.merging.launch((w_rows, merged, looked_at, flags), _alignment(w_rows, looked_at))
        merged = merged.movedim(-1, 1)
        if isinstance(self.inner, ForwardPlan):
            if flags is not None and self.inner.epilogue.amax:
                operands = operands._replace(amax=flags)
            y = self.inner.run(x, merged, operands, out)
            others = self.inner.checked(operands)._replace(amax=None)
        else:
            y = self.inner.run(x, merged, out, operands.bias)
            others = Operands(operands.bias)
        if self.repairing is not None:
            tensors = (x, w_rows, flags, y, *others)
            self.repairing.launch(tensors, _alignment(*tensors))
        return y


def _alignment(*tensors: torch.Tensor | None) -> Hashable:
    """Returns what Triton specializes on."""
    return tuple(None if t is None else (t.dtype, t.data_ptr() % ROW_BYTES == 0) for t in tensors)


MERGED = Merged()
MERGED_DGRAD = MergedDgrad()
