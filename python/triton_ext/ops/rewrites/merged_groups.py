"""Merged groups: neighbouring groups are computed as one, with a block-diagonal filter.

Tensor cores multiply tiles of 64 and more channels.  A group of few channels fills a small part of
a tile, and neighbouring groups lie side by side in x, dy and y.  So M of them become one group of
M times the channels, whose filter has zeros where an output channel does not see an input channel,
and families of kernels compute that.  Its multiplications are M times as many.

Zeros of the filter times NaN or infinity are NaN, which a convolution of groups does not have.  So
the convolution reports whether a pixel was not finite: by the largest absolute value of its output,
which is NaN then, or, where a kernel does not report it, by a look at the pixels before.  Another
kernel (``kernels/merged_groups.py``) then computes the output again, group by group.  It is always
launched and ends at once where all is finite.  wgrad needs none of that: what it sums for an output
and an input channel has no other channel in it.

Not handled: epilogues with a function, which may hide NaN, or that report the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import row_stride_of
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.families.direct import DIRECT, DIRECT_DGRAD
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.input_gradient import InputGradientPlan
from triton_ext.ops.rewrites.merged_filter import MergedDgradPlan, MergedPlan, merged_filter
from triton_ext.ops.rewrites.partial_im2col import inner_refusals

__all__ = ["MERGED", "MERGED_DGRAD", "MergedConfig", "merge_factors"]

# Channels of a merged group: multiples of what a matrix instruction takes, not more than a tile.
_CHANNEL_UNIT, _MOST_CHANNELS = 16, 256
# What the kernel without tensor cores computes in a microsecond: 6 TFLOP/s over 32 groups of 8
# channels (H200, Triton 3.9.0, bf16, 2026-11-23).
_DIRECT_FLOPS_PER_US = 6e6


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """The choice to merge groups.

    Attributes:
        factor: How many groups become one.
        config: Of the family that computes the merged groups.
    """

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


def _factor_refusals(problem: ConvProblem, factor: int | None = None) -> list[str]:
    """Returns why groups are not merged, or not so many; nothing if they are."""
    factors = merge_factors(problem)
    if not factors:
        return [
            f"groups={problem.groups} of {problem.in_channels // problem.groups} and "
            f"{problem.out_channels // problem.groups} channels: no number of groups together has "
            f"a multiple of {_CHANNEL_UNIT} and at most {_MOST_CHANNELS} of both"
        ]
    if factor is None or factor in factors:
        return []
    return [f"factor is {factor}: expected one of {', '.join(map(str, factors))}"]


class _Merged(Family[MergedConfig]):
    """A case whose groups are merged, computed by one of the ``inner`` families."""

    kind: ClassVar[str] = "merged"
    config_type: ClassVar[type[MergedConfig]] = MergedConfig
    inner: ClassVar[tuple[Family[Any], ...]]

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        """Returns the case that a family computes; ``None`` where it is none of the family's."""
        raise NotImplementedError

    def plan(
        self, config: MergedConfig, case: Case, merged: Case, family: Family[Any], device: Device
    ) -> Any:
        """Returns the plan; ``merged`` is what ``family`` computes."""
        raise NotImplementedError

    def refusals(self, case: Case, device: Device, config: MergedConfig | None = None) -> list[str]:
        found = _factor_refusals(case.problem, None if config is None else config.factor)
        spec = case.epilogue
        if spec.function is not None or spec.amax:
            found.append("an epilogue with a function or with amax may hide NaN of other groups")
        if found:
            return found
        if config is None:
            return [] if _times(self, case, device) else ["no kernel takes the merged groups"]
        pair = self._found(config, case)
        if pair is None:
            name = type(config.config).__name__
            return [f"{name} does not compute merged groups of these operands"]
        merged, family = pair
        return family.refusals(merged, device, config.config)

    def passed_over(self, case: Case, device: Device) -> str:
        direct = DIRECT if case.direction == "fprop" else DIRECT_DGRAD
        if direct.passed_over(case, device):
            return ""
        # The kernel without tensor cores, which has no model, is the other one here.
        us = min(expected.counted_us for expected in _times(self, case, device).values())
        direct_us = H200.launch_us + case.problem.flops / _DIRECT_FLOPS_PER_US
        if us <= direct_us:
            return ""
        return f"without tensor cores it is expected to take {direct_us:.1f} us"

    def number_refusals(self, config: MergedConfig, case: Case, device: Device) -> list[str]:
        if config.factor < 2:
            return [f"factor is {config.factor}: expected at least 2"]
        return inner_refusals(self.inner, config.config, case, device)

    def config_refusals(self, config: MergedConfig, case: Case, device: Device) -> list[str]:
        found = self.number_refusals(config, case, device)
        return found or _factor_refusals(case.problem, config.factor)

    def candidates(self, case: Case, device: Device) -> Mapping[MergedConfig, Expected]:
        return _times(self, case, device)

    def bind(self, config: MergedConfig, case: Case, device: Device) -> Any:
        found = self.refusals(case, device, config)
        if found:
            raise UnsupportedError(f"{case.operator}: groups are not merged: " + "; ".join(found))
        pair = self._found(config, case)
        assert pair is not None
        return self.plan(config, case, *pair, device)

    def _found(self, config: MergedConfig, case: Case) -> tuple[Case, Family[Any]] | None:
        """Returns what a configuration's family computes, and the family."""
        for family in self.inner:
            if family.config_type is type(config.config):
                merged = self.merged(case, config.factor, family)
                if merged is not None:
                    return merged, family
        return None

    def around_us(self, case: Case, factor: int, family: Family[Any]) -> float:
        """Returns the time of the kernels around the family's."""
        problem, size = case.problem, case.dtype.itemsize
        filter_bytes = math.prod(problem.w_shape) * (factor + 1) * size
        if not case.dtype.is_floating_point:
            return H200.launch_us + filter_bytes / H200.copy_bytes_per_us
        pixels = problem.x_shape if case.direction == "fprop" else problem.y_shape
        looked_at = 0 if _reports(family) else math.prod(pixels) * size
        return 2 * H200.launch_us + (filter_bytes + looked_at) / H200.copy_bytes_per_us

    def _may_read(self, case: Case, family: Family[Any]) -> bool:
        """Tells whether the pixels can be looked at where that is needed: as dense elements."""
        if _reports(family) or not case.dtype.is_floating_point:
            return True
        if case.direction == "fprop":
            return _is_dense(case.problem.x_shape, case.strides_of_x)
        return _is_dense(case.problem.y_shape, case.strides_of_dy)


@lru_cache(maxsize=256)
def _times(family: _Merged, case: Case, device: Device) -> dict[MergedConfig, Expected]:
    """Returns the configurations of all factors and inner families, with their times."""
    found = {}
    for factor in merge_factors(case.problem):
        for inner in family.inner:
            merged = family.merged(case, factor, inner)
            if merged is None or inner.refusals(merged, device):
                continue
            us = family.around_us(case, factor, inner)
            for config, expected in inner.candidates(merged, device).items():
                parts = (*expected.parts, ("merging", us))
                found[MergedConfig(factor, config)] = Expected(parts, expected.counted_us + us)
    return ranked(found)


def _reports(family: Family[Any]) -> bool:
    """Tells whether a kernel reports the largest absolute value of its output."""
    return family is GEMM


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tells whether a channels-last tensor [N, C, *size] is without gaps."""
    order = (*range(len(shape) - 1, 1, -1), 0)
    sizes = [shape[dim] for dim in order]
    pixel_stride = row_stride_of(sizes, [strides[dim] for dim in order])
    return math.prod(sizes) == 1 or pixel_stride == shape[1]


def _joined(problem: ConvProblem, factor: int) -> ConvProblem:
    return replace(problem, groups=problem.groups // factor)


class MergedFprop(_Merged):
    """fprop."""

    direction: ClassVar[Direction] = "fprop"
    inner: ClassVar[tuple[Family[Any], ...]] = (GEMM, GLUON)

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        if not self._may_read(case, family):
            return None
        reports = _reports(family) and case.dtype.is_floating_point
        epilogue = replace(case.epilogue, amax=reports)
        return replace(case, problem=_joined(case.problem, factor), epilogue=epilogue)

    def plan(
        self, config: MergedConfig, case: Case, merged: Case, family: Family[Any], device: Device
    ) -> MergedPlan:
        looks = not _reports(family)
        merging = merged_filter(case, config.factor, device, is_turned=False, looks=looks)
        return MergedPlan(case.problem, family.bind(config.config, merged, device), merging)


class MergedDgrad(_Merged):
    """dgrad: with stride 1 as fprop over dy, whose kernels report NaN, else by stride phases."""

    direction: ClassVar[Direction] = "dgrad"
    inner: ClassVar[tuple[Family[Any], ...]] = (GEMM, GLUON, GEMM_DGRAD, GLUON_DGRAD)

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        is_strided = set(case.problem.stride) != {1}
        if is_strided != (family.direction == "dgrad") or not self._may_read(case, family):
            return None
        if is_strided:
            return replace(case, problem=_joined(case.problem, factor))
        forward = as_forward(replace(case.problem, groups=1))
        assert forward is not None
        reports = _reports(family) and case.dtype.is_floating_point
        return Case(
            direction="fprop",
            problem=replace(forward, groups=case.problem.groups // factor),
            dtype=case.dtype,
            epilogue=EpilogueSpec(amax=reports),
            x_strides=case.dy_strides,
        )

    def plan(
        self, config: MergedConfig, case: Case, merged: Case, family: Family[Any], device: Device
    ) -> MergedDgradPlan | InputGradientPlan:
        factor, is_forward = config.factor, merged.direction == "fprop"
        looks = not _reports(family)
        if not is_forward:
            return MergedDgradPlan(
                problem=case.problem,
                dtype=case.dtype,
                inner=family.bind(config.config, merged, device),
                filter=merged_filter(case, factor, device, is_turned=False, looks=looks),
            )
        merging = merged_filter(case, factor, device, is_turned=True, looks=looks)

        def bind(each: Case) -> Any:
            each = replace(each, epilogue=replace(each.epilogue, amax=merged.epilogue.amax))
            return MergedPlan(case.problem, family.bind(config.config, each, device), merging)

        return InputGradientPlan.of(case.problem, merged, bind)


MERGED: MergedFprop = MergedFprop()
MERGED_DGRAD: MergedDgrad = MergedDgrad()
