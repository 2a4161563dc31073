"""Rewrites: families that turn a case into another one, which other families compute.

Partial im2col, the operand swap, dgrad as fprop and merged groups are rewrites.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.refusals import Refusals, beyond_keys, refused

Config = TypeVar("Config")


class Rewrite(Family[Config]):
    """A family that turns a case into another one, which a family of ``inner`` computes.

    Its configurations hold one of that family's, in a field ``config``.

    Attributes:
        inner: The families that compute the other case.
        reads: The operands of the other case, for refusals.
    """

    inner: ClassVar[tuple[Family[Any], ...]]
    reads: ClassVar[str]

    @abstractmethod
    def variants(
        self, case: Case, device: Device
    ) -> Iterable[tuple[Callable[[Any], Config], Family[Any], Case]]:
        """Returns the other cases, each with its family.

        The function makes a configuration of this family from one of the other family.
        """

    def with_copies(self, case: Case, rewritten: Case, expected: Expected) -> Expected:
        """Returns the time of the other case and of the copies that only the rewrite makes."""
        return expected

    def plan(self, case: Case, rewritten: Case, device: Device, bind: Callable[[Case], Any]) -> Any:
        """Returns the plan of a case; ``bind`` returns the plan of the other case."""
        return bind(rewritten)

    def variant(self, config: Any) -> tuple[tuple[str, ...], Any, Any]:
        family = next(each for each in self.inner if each.config_type is type(config.config))
        kernel, tile, rest = family.variant(config.config)
        return (self.kind, *kernel), tile, replace(config, config=rest)

    def number_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        for family in self.inner:
            if family.config_type is type(config.config):
                return family.number_refusals(config.config, case, device)
        kinds = " or ".join(dict.fromkeys(family.kind for family in self.inner))
        name = type(config.config).__name__
        return refused(f"{name} does not take {self.reads}, expected one of {kinds}")

    def fit_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        if (found := self._computing(config, case, device)) is not None:
            # How operands are rewritten depends on strides.
            return beyond_keys(found[0].refusals(found[1], device, config.config))
        name = type(config.config).__name__
        return refused(f"{name} does not take {self.reads} of these operands", in_key=False)

    def candidates(self, case: Case, device: Device) -> Mapping[Config, Expected]:
        times = {}
        for make, family, rewritten in self.variants(case, device):
            if not family.refusals(rewritten, device):
                for inner, expected in family.candidates(rewritten, device).items():
                    times[make(inner)] = self.with_copies(case, rewritten, expected)
        return ranked(times)

    def bind(self, config: Any, case: Case, device: Device) -> Any:
        found = self._computing(config, case, device)
        assert found is not None
        bind = partial(found[0].bind, config.config, device=device)
        return self.plan(case, found[1], device, bind)

    def _computing(
        self, config: Any, case: Case, device: Device
    ) -> tuple[Family[Any], Case] | None:
        """Returns the family that computes a configuration, and the other case, if there is one."""
        for make, family, rewritten in self.variants(case, device):
            if family.config_type is type(config.config) and make(config.config) == config:
                return family, rewritten
        return None
