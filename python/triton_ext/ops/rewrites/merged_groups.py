"""Merged groups: neighbouring groups are computed as one, with a block-diagonal filter.

Tensor cores multiply tiles of 64 and more channels, of which a group of few channels fills a part.
Neighbouring groups lie side by side in x, dy and y.  So M of them become one group of M times the
channels, whose filter has zeros where an output channel does not see an input channel, and other
families compute that.  Its multiplications are M times as many.

Zeros of the filter times NaN or infinity are NaN, which a convolution of groups does not have.  So
a kernel reports whether a pixel was not finite: the one that convolves by the largest absolute
value of its output, which is NaN then, or the one that writes the filter by a look at the pixels.
A third kernel (``kernels/merged_groups.py``) then computes the output again, group by group.  It is
always launched and ends at once where all is finite.  wgrad needs none of that: what it sums for an
output and an input channel has no other channel in it.

Not handled: epilogues with a function, which may hide NaN, or that report the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES, row_stride_of
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, TRITON_DTYPES, ForwardPlan, InputGradientPlan
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import Refusal, beyond_keys, refuse, refused
from triton_ext.ops.families.depthwise import Sampling
from triton_ext.ops.families.direct import DIRECT, DIRECT_DGRAD
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.gemm_dgrad import GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.kernels.merged_groups import merge_filter_kernel, repair_groups_kernel

__all__ = ["MERGED", "MERGED_DGRAD", "MergedConfig", "MergedPlan", "merge_factors"]

# Channels of a merged group: multiples of what a matrix instruction takes, not more than a tile.
_CHANNEL_UNIT, _MOST_CHANNELS = 16, 256
# How much longer than its model says the merged convolution takes: 1.09 to 1.27 times over groups
# of 4 to 32 channels, 1.3 to 1.4 where all of a large tile is computed (H100, Triton 3.9.0, bf16,
# 2026-11-27); other kernels of groups 0.92 to 1.04 times.
_CORRECTION = 1.25
# What the kernel without tensor cores computes in a microsecond: 6 TFLOP/s over 32 groups of 8
# channels (H200, Triton 3.9.0, bf16, 2026-11-23).
_DIRECT_FLOPS_PER_US = 6e6

_BLOCK = 1024
_REPAIR_TILE = (64, 32)


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


# ---- Plans -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPlan:
    """A convolution over merged groups: fprop, or dgrad as :class:`ForwardPlan` computes it.

    Attributes:
        problem: The convolution, as it was asked for.
        inner: The plan of the merged groups.
        w_shape: Of the merged filter, [rows, channels, *taps].
        flags: Numbers that say whether outputs are to be repaired; 0 for integers.
        looks: Whether the kernel that writes the filter looks at the pixels.
        merging: Writes the filter.
        repairing: Computes outputs again; ``None`` for integers.
    """

    problem: ConvProblem
    inner: Any
    w_shape: tuple[int, ...]
    flags: int
    looks: bool
    merging: Launcher
    repairing: Launcher | None

    @classmethod
    def make(
        cls, case: Case, inner: Any, factor: int, device: Device, *, is_turned: bool, looks: bool
    ) -> MergedPlan:
        """Returns the plan of a case; a gradient whose ``inner`` is fprop turns the filter."""
        problem, is_gradient = case.problem, case.direction == "dgrad"
        groups, taps = problem.groups, problem.taps
        of_x, of_y = problem.in_channels // groups, problem.out_channels // groups
        rows, k = (of_x, of_y) if is_turned else (of_y, of_x)
        elements = rows * groups * taps * k * factor
        is_integer = not case.dtype.is_floating_point
        programs = math.ceil(elements / _BLOCK)
        read = math.prod(problem.y_shape if is_gradient else problem.x_shape)
        blocks = math.ceil(read / _BLOCK) if looks and not is_integer else 0
        lookers = min(math.ceil(blocks / 4), 8 * device.num_sms)
        flags = 0 if is_integer else max(lookers, 1)
        return cls(
            problem=problem,
            inner=inner,
            w_shape=(rows * groups, k * factor, *problem.filter_size),
            flags=flags,
            looks=blocks > 0,
            merging=Launcher(
                kernel=merge_filter_kernel,
                grid=(programs + lookers, 1, 1),
                scalars=(elements, programs, blocks, read - (blocks - 1) * _BLOCK),
                constants={
                    "TAPS": taps,
                    "GROUP_ROWS": rows,
                    "GROUP_K": k,
                    "FACTOR": factor,
                    "IS_TURNED": is_turned,
                    "BLOCK": _BLOCK,
                },
                options={"num_warps": 4},
            ),
            repairing=None if is_integer else _repairing(case, flags, device),
        )

    @property
    def config(self) -> Any:
        """That of the inner plan."""
        return self.inner.config

    @property
    def out_dtype(self) -> torch.dtype:
        """Of the output."""
        is_forward = isinstance(self.inner, ForwardPlan)
        found: torch.dtype = self.inner.out_dtype if is_forward else self.inner.dtype
        return found

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
        others: tuple[torch.Tensor | None, ...]
        if isinstance(self.inner, ForwardPlan):
            if flags is not None and self.inner.epilogue.amax:
                operands = operands._replace(amax=flags)
            y = self.inner.run(x, merged, operands, out)
            *vectors, described, residual, out_scale, _, _ = self.inner.epilogue_arguments(operands)
            others = (*vectors, described.base if described is not None else residual, out_scale)
        else:
            y = self.inner.run(x, merged, out, operands.bias)
            others = (operands.bias, *(None,) * 4)
        if self.repairing is not None:
            tensors = (x, w_rows, y, *others)
            self.repairing.launch((flags, *tensors), _alignment(*tensors))
        return y


def _alignment(*tensors: torch.Tensor | None) -> Hashable:
    """Returns what Triton specializes on."""
    return tuple(None if t is None else (t.dtype, t.data_ptr() % ROW_BYTES == 0) for t in tensors)


def _repairing(case: Case, flags: int, device: Device) -> Launcher:
    problem, sampling, spec = case.problem, Sampling.of(case), case.epilogue
    strides = case.strides_of_dy if sampling.is_flipped else case.strides_of_x
    block_m, block_n = _REPAIR_TILE
    tiles = math.ceil(sampling.pixels / block_m) * math.ceil(sampling.out_channels / block_n)
    steps = (sampling.in_size, sampling.out_size, sampling.step, sampling.up)
    _, r, s = _three(problem.filter_size, 1)
    return Launcher(
        kernel=repair_groups_kernel,
        grid=(min(tiles, 4 * device.num_sms), 1, 1),
        scalars=(
            flags,
            sampling.pixels,
            sampling.out_channels,
            tiles,
            *(_three(each, 1) for each in steps),
            _three(sampling.low, 0),
            _three(sampling.dilation, 1),
            (strides[0], *_three(strides[2:], 0)),
        ),
        constants={
            "FLAGS": 1 << (flags - 1).bit_length(),
            "R": r,
            "S": s,
            "TAPS": problem.taps,
            "GROUP_COLUMNS": sampling.out_channels // problem.groups,
            "GROUP_K": sampling.in_channels // problem.groups,
            "IS_TURNED": sampling.is_flipped,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "DTYPE": TRITON_DTYPES[case.output_dtype],
            "ACTIVATION": spec.activation,
            "RESIDUAL_PER_IMAGE": spec.residual_per_image,
        },
        options={"num_warps": 4},
    )


def _three(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    return (missing,) * (3 - len(values)) + values


# ---- Families ----------------------------------------------------------------------------------


class _Merged(Family[MergedConfig]):
    """A case whose groups are merged, computed by one of the ``inner`` families."""

    kind = "merged"
    config_type = MergedConfig
    inner: ClassVar[tuple[Family[Any], ...]]

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        """Returns the case that a family computes; ``None`` where it is none of the family's."""
        raise NotImplementedError

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
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

    def number_refusals(
        self, config: MergedConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        factors = merge_factors(case.problem)
        if config.factor not in factors:
            expected = ", ".join(map(str, factors))
            return refused(f"factor is {config.factor}: expected one of {expected}")
        for family in self.inner:
            if family.config_type is type(config.config):
                return family.number_refusals(config.config, case, device)
        return refused(f"{type(config.config).__name__} does not compute merged groups")

    def fit_refusals(self, config: MergedConfig, case: Case, device: Device) -> tuple[Refusal, ...]:
        merged, family = self._found(config, case)
        if merged is not None:
            return beyond_keys(family.refusals(merged, device, config.config))
        name = type(config.config).__name__
        return refused(f"{name} does not compute merged groups of these operands", in_key=False)

    def refusals(
        self, case: Case, device: Device, config: MergedConfig | None = None
    ) -> tuple[Refusal, ...]:
        found = super().refusals(case, device, config)
        if found or config is not None or _times(self, case, device):
            return found
        return refused("no kernel takes the merged groups", in_key=False)

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

    def candidates(self, case: Case, device: Device) -> Mapping[MergedConfig, Expected]:
        return _times(self, case, device)

    def bind(self, config: MergedConfig, case: Case, device: Device) -> Any:
        refuse(f"{case.operator}: groups are not merged", self.refusals(case, device, config))
        merged, family = self._found(config, case)
        assert merged is not None
        is_gradient = case.direction == "dgrad"
        is_turned = is_gradient and family.direction == "fprop"

        def bind(each: Case) -> Any:
            epilogue = replace(each.epilogue, amax=merged.epilogue.amax)
            inner = family.bind(config.config, replace(each, epilogue=epilogue), device)
            looks = not _reports(family)
            return MergedPlan.make(
                case, inner, config.factor, device, is_turned=is_turned, looks=looks
            )

        return InputGradientPlan.of(case.problem, merged, bind) if is_gradient else bind(merged)

    def _found(self, config: MergedConfig, case: Case) -> tuple[Case | None, Family[Any]]:
        """Returns what a configuration's family computes, if anything, and the family."""
        families = [each for each in self.inner if each.config_type is type(config.config)]
        for family in families:
            merged = self.merged(case, config.factor, family)
            if merged is not None:
                return merged, family
        return None, self

    def around_us(self, case: Case, factor: int, family: Family[Any]) -> float:
        """Returns the time of the kernels around the family's, and of pixels that it leaves out."""
        problem, size = case.problem, case.dtype.itemsize
        filter_bytes = math.prod(problem.w_shape) * (factor + 1) * size
        if not case.dtype.is_floating_point:
            return H200.launch_us + filter_bytes / H200.copy_bytes_per_us
        pixels = problem.x_shape if case.direction == "fprop" else problem.y_shape
        read = math.prod(pixels) * size
        looked_at = 0 if _reports(family) else read
        # A stride reads more of x for as many outputs, which models do not know: 256 channels in 32
        # groups, 28x28 outputs, take 34 us and 43 with a stride of 2 (as above).
        skipped = read * (1 - 1 / math.prod(problem.stride)) if case.direction == "fprop" else 0.0
        copies_us = (filter_bytes + looked_at) / H200.copy_bytes_per_us
        return 2 * H200.launch_us + copies_us + skipped / 2**20 * H200.read_us_per_mib

    def may_read(self, case: Case, family: Family[Any]) -> bool:
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
                counted_us = expected.counted_us * _CORRECTION + us
                found[MergedConfig(factor, config)] = Expected(parts, counted_us)
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


class MergedFprop(_Merged):
    """fprop."""

    direction: ClassVar[Direction] = "fprop"
    inner = (GEMM, GLUON)

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        if not self.may_read(case, family):
            return None
        reports = _reports(family) and case.dtype.is_floating_point
        problem = replace(case.problem, groups=case.problem.groups // factor)
        return replace(case, problem=problem, epilogue=replace(case.epilogue, amax=reports))


class MergedDgrad(_Merged):
    """dgrad: with stride 1 as fprop over dy, whose kernels report NaN, else by stride phases."""

    direction: ClassVar[Direction] = "dgrad"
    inner = (GEMM, GLUON, GEMM_DGRAD, GLUON_DGRAD)

    def merged(self, case: Case, factor: int, family: Family[Any]) -> Case | None:
        groups = case.problem.groups // factor
        is_strided = set(case.problem.stride) != {1}
        if is_strided != (family.direction == "dgrad") or not self.may_read(case, family):
            return None
        if is_strided:
            return replace(case, problem=replace(case.problem, groups=groups))
        forward = as_forward(replace(case.problem, groups=1))
        assert forward is not None
        return Case(
            direction="fprop",
            problem=replace(forward, groups=groups),
            dtype=case.dtype,
            epilogue=EpilogueSpec(amax=_reports(family) and case.dtype.is_floating_point),
            x_strides=case.dy_strides,
        )


MERGED: MergedFprop = MergedFprop()
MERGED_DGRAD: MergedDgrad = MergedDgrad()
