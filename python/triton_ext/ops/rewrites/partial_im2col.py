"""Partial im2col: taps of a filter's row, or of all of it, are read as channels of x.

``packing.py`` has the geometry, ``kernels/row_copy.py`` the copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.families.wgrad import WGRAD, filling_dy_us
from triton_ext.ops.rewrites.packing import MARGIN, PackedConfig, RowPacking, packing_reasons

__all__ = [
    "PARTIAL_IM2COL",
    "PARTIAL_IM2COL_WGRAD",
    "fastest_fprop",
    "fastest_wgrad",
    "inner_family",
    "inner_refusals",
    "packed_times",
    "packed_wgrad_times",
]

# Refusals, times and the plan of one case ask for it.
fastest_fprop = lru_cache(maxsize=256)(RowPacking.make)


class _PartialIm2col(Family[PackedConfig]):
    """A case over packed pixels, computed by one of the ``inner`` families."""

    kind = "packed"
    config_type = PackedConfig
    inner: ClassVar[tuple[Family[Any], ...]]

    def packing(self, case: Case, device: Device) -> RowPacking | None:
        """Returns the fastest way to pack rows; ``None`` where there is none."""
        raise NotImplementedError

    def refusals(self, case: Case, device: Device, config: PackedConfig | None = None) -> list[str]:
        packing = self.packing(case, device)
        if packing is None:
            return [*packing_reasons(case.problem)] or ["im2col does not walk packed rows either"]
        if config is None:
            return []
        inner = inner_family(self.inner, config.config)
        return inner.refusals(replace(case, packing=packing), device, config.config)

    def number_refusals(self, config: PackedConfig, case: Case, device: Device) -> list[str]:
        # Which rows are packed depends on strides: refusals() asks what depends on the problem.
        return inner_refusals(self.inner, config.config, case, device)

    def bind(self, config: PackedConfig, case: Case, device: Device) -> Any:
        packing = self.packing(case, device)
        if packing is None:
            why = "; ".join(self.refusals(case, device))
            raise UnsupportedError(f"{case.operator}: rows of the filter are not packed: {why}")
        inner = inner_family(self.inner, config.config)
        return inner.bind(config.config, replace(case, packing=packing), device)


class PartialIm2col(_PartialIm2col):
    """fprop.

    A model of both ways decides whether it pays (``RowPacking.cost``), not those of the kernels,
    which were fitted to other k iterations.
    """

    direction = "fprop"
    supersedes = ("gemm", "gluon")
    inner = (GLUON, GEMM)

    def packing(self, case: Case, device: Device) -> RowPacking | None:
        size = case.dtype.itemsize
        return fastest_fprop(case.problem, case.strides_of_x, size, device.num_sms)

    def passed_over(self, case: Case, device: Device) -> str:
        packing = self.packing(case, device)
        return "" if packing is None else packing.cost(device.num_sms).too_slow

    def is_hopeless(self, case: Case, device: Device) -> bool:
        packing = self.packing(case, device)
        return packing is None or packing.cost(device.num_sms).is_hopeless

    def candidates(self, case: Case, device: Device) -> Mapping[PackedConfig, Expected]:
        return packed_times(self.inner, replace(case, packing=self.packing(case, device)), device)


class PartialIm2colWgrad(_PartialIm2col):
    """wgrad: of x's packed pixels, and a copy that unpacks dw."""

    direction = "wgrad"
    inner = (WGRAD,)

    def packing(self, case: Case, device: Device) -> RowPacking | None:
        ways = RowPacking.ways(case.problem, case.strides_of_x, case.dtype.itemsize)
        return fastest_wgrad(tuple(ways) if case.problem.batch else (), case, device)

    def candidates(self, case: Case, device: Device) -> Mapping[PackedConfig, Expected]:
        packed = replace(case, packing=self.packing(case, device))
        times = packed_wgrad_times(packed, device, filling_dy_us(case))
        return {PackedConfig(config): expected for config, expected in times.items()}


def inner_family(inner: Sequence[Family[Any]], config: Any) -> Family[Any]:
    """Returns the family of a configuration within a rewrite's.

    Args:
        inner: The families that compute the rewritten case.
        config: A configuration.

    Raises:
        UnsupportedError: It is of none of them.
    """
    for family in inner:
        if family.config_type is type(config):
            return family
    raise UnsupportedError(f"{inner[0].direction}: {_no_inner(inner, config)}")


def inner_refusals(
    inner: Sequence[Family[Any]], config: Any, case: Case, device: Device
) -> list[str]:
    """Returns why the kernel of a configuration within a rewrite's cannot be compiled so."""
    for family in inner:
        if family.config_type is type(config):
            return family.number_refusals(config, case, device)
    return [_no_inner(inner, config)]


def _no_inner(inner: Sequence[Family[Any]], config: Any) -> str:
    kinds = " or ".join(family.kind for family in inner)
    return f"{type(config).__name__} does not take packed rows, expected one of {kinds}"


def packed_times(
    inner: Sequence[Family[Any]], packed: Case, device: Device
) -> dict[PackedConfig, Expected]:
    """Returns the configurations of the families that compute a case with a packing."""
    times = {
        PackedConfig(config): expected
        for family in inner
        if not family.refusals(packed, device)
        for config, expected in family.candidates(packed, device).items()
    }
    return ranked(times)


def packed_wgrad_times(case: Case, device: Device, other_us: float = 0.0) -> dict[Any, Expected]:
    """Returns the configurations of wgrad over packed pixels, with the copy that unpacks dw.

    Their times count 1 / ``MARGIN`` times.

    Args:
        case: One with a packing.
        device: Where.
        other_us: Of a copy that wgrad tap by tap makes as well.
    """
    found = {}
    for config, expected in WGRAD.candidates(case, device).items():
        parts = (*expected.parts, ("unpacking", H200.launch_us))
        counted_us = sum(us for _, us in parts) / MARGIN + other_us
        if other_us:
            parts = (*parts, ("filling", other_us))
        found[config] = Expected(parts, counted_us)
    return found


@lru_cache(maxsize=256)
def fastest_wgrad(ways: tuple[RowPacking, ...], case: Case, device: Device) -> RowPacking | None:
    """Returns the way to pack rows in which wgrad is expected to be fastest."""

    def us(way: RowPacking) -> float:
        times = packed_wgrad_times(replace(case, packing=way), device)
        return min((each.us for each in times.values()), default=math.inf)

    return min(ways, key=us, default=None)


PARTIAL_IM2COL = PartialIm2col()
PARTIAL_IM2COL_WGRAD = PartialIm2colWgrad()
