"""Rewrites, and partial im2col: taps of a filter's row, or of all of it, are channels of x.

``packing.py`` has the geometry, ``kernels/row_copy.py`` the copies.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.refusals import Refusal, beyond_keys, refused
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.families.wgrad import WGRAD, filling_dy_us
from triton_ext.ops.rewrites.packing import MARGIN, PackedConfig, RowPacking, packing_refusals

__all__ = [
    "PARTIAL_IM2COL",
    "PARTIAL_IM2COL_WGRAD",
    "Rewrite",
    "fastest_fprop",
    "fastest_wgrad",
    "with_unpacking",
]

Config = TypeVar("Config")

# Refusals, times and the plan of one case ask for it.
fastest_fprop = lru_cache(maxsize=256)(RowPacking.make)


class Rewrite(Family[Config]):
    """A family that turns a case into another one, which a family of ``inner`` computes.

    Its configurations hold one of such a family as ``config``.
    """

    inner: ClassVar[tuple[Family[Any], ...]]
    failure: ClassVar[str]  # of an error, in front of the refusals

    @abstractmethod
    def rewritten(self, case: Case, device: Device) -> Case | None:
        """Returns the other case; ``None`` where there is none."""

    @abstractmethod
    def rewrite_refusals(self, case: Case) -> tuple[Refusal, ...]:
        """Returns why there is no other case, where there is none."""

    def inner_of(self, config: Any) -> Family[Any]:
        """Returns the family of the configuration within one of the rewrite.

        Raises:
            UnsupportedError: It is of none of them.
        """
        for family in self.inner:
            if family.config_type is type(config.config):
                return family
        kinds = " or ".join(family.kind for family in self.inner)
        raise UnsupportedError(
            f"{type(config.config).__name__} does not take packed rows, expected one of {kinds}"
        )

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        return self.rewrite_refusals(case) if self.rewritten(case, device) is None else ()

    def number_refusals(self, config: Any, case: Case, device: Device) -> tuple[Refusal, ...]:
        try:
            return self.inner_of(config).number_refusals(config.config, case, device)
        except UnsupportedError as error:
            return refused(str(error))

    def fit_refusals(self, config: Any, case: Case, device: Device) -> tuple[Refusal, ...]:
        rewritten = self.rewritten(case, device)
        if rewritten is None:
            return ()
        # How rows are packed depends on strides.
        inner = self.inner_of(config)
        return beyond_keys(inner.refusals(rewritten, device, config.config))

    def candidates(self, case: Case, device: Device) -> Mapping[Config, Expected]:
        rewritten = self.rewritten(case, device)
        assert rewritten is not None
        times = {
            self.config_type(config): self.with_copies(case, expected)
            for family in self.inner
            if not family.refusals(rewritten, device)
            for config, expected in family.candidates(rewritten, device).items()
        }
        # One family has an order of its own.
        return times if len(self.inner) == 1 else ranked(times)

    def with_copies(self, case: Case, expected: Expected) -> Expected:
        """Returns the time with copies that only the rewrite makes."""
        return expected

    def bind(self, config: Any, case: Case, device: Device) -> Any:
        rewritten = self.rewritten(case, device)
        if rewritten is None:
            why = "; ".join(map(str, self.rewrite_refusals(case)))
            raise UnsupportedError(f"{case.operator}: {self.failure}: {why}")
        inner = self.inner_of(config)
        return self.plan(case, rewritten, lambda each: inner.bind(config.config, each, device))

    def plan(self, case: Case, rewritten: Case, bind: Callable[[Case], Any]) -> Any:
        """Returns the plan of a case, of what ``bind`` returns for the rewritten one."""
        return bind(rewritten)


class PartialIm2col(Rewrite[PackedConfig]):
    """fprop.

    A model of both ways decides whether it pays (``RowPacking.cost``), not those of the kernels,
    which were fitted to other k iterations.
    """

    kind = "packed"
    direction: ClassVar[Direction] = "fprop"
    config_type = PackedConfig
    supersedes: ClassVar[tuple[str, ...]] = ("gemm", "gluon")
    inner: ClassVar[tuple[Family[Any], ...]] = (GLUON, GEMM)
    failure = "rows of the filter are not packed"

    def packing(self, case: Case, device: Device) -> RowPacking | None:
        """Returns the fastest way to pack rows; ``None`` where there is none."""
        size = case.dtype.itemsize
        return fastest_fprop(case.problem, case.strides_of_x, size, device.num_sms)

    def rewritten(self, case: Case, device: Device) -> Case | None:
        packing = self.packing(case, device)
        return None if packing is None else replace(case, packing=packing)

    def rewrite_refusals(self, case: Case) -> tuple[Refusal, ...]:
        return packing_refusals(case.problem) or refused(
            "im2col does not walk packed rows either", in_key=False
        )

    def passed_over(self, case: Case, device: Device) -> str:
        packing = self.packing(case, device)
        return "" if packing is None else packing.cost(device.num_sms).too_slow

    def is_hopeless(self, case: Case, device: Device) -> bool:
        packing = self.packing(case, device)
        return packing is None or packing.cost(device.num_sms).is_hopeless


class PartialIm2colWgrad(PartialIm2col):
    """wgrad: of x's packed pixels, and a copy that unpacks dw."""

    direction = "wgrad"
    supersedes = ()
    inner = (WGRAD,)

    def packing(self, case: Case, device: Device) -> RowPacking | None:
        ways = RowPacking.ways(case.problem, case.strides_of_x, case.dtype.itemsize)
        return fastest_wgrad(tuple(ways) if case.problem.batch else (), case, device)

    def passed_over(self, case: Case, device: Device) -> str:
        return ""

    def is_hopeless(self, case: Case, device: Device) -> bool:
        return False

    def with_copies(self, case: Case, expected: Expected) -> Expected:
        return with_unpacking(expected, filling_dy_us(case))


def with_unpacking(expected: Expected, other_us: float = 0.0) -> Expected:
    """Returns the time of wgrad over packed pixels with the copy that unpacks dw.

    It counts 1 / ``MARGIN`` times, but for ``other_us`` of a copy that wgrad tap by tap makes, too.
    """
    parts = (*expected.parts, ("unpacking", H200.launch_us))
    counted_us = sum(us for _, us in parts) / MARGIN + other_us
    return Expected((*parts, ("filling", other_us)) if other_us else parts, counted_us)


@lru_cache(maxsize=256)
def fastest_wgrad(ways: tuple[RowPacking, ...], case: Case, device: Device) -> RowPacking | None:
    """Returns the way to pack rows in which wgrad is expected to be fastest."""

    def us(way: RowPacking) -> float:
        times = WGRAD.candidates(replace(case, packing=way), device)
        return min((each.us for each in times.values()), default=math.inf)

    return min(ways, key=us, default=None)


PARTIAL_IM2COL = PartialIm2col()
PARTIAL_IM2COL_WGRAD = PartialIm2colWgrad()
