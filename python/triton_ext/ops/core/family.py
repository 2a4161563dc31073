"""The protocol of a family: an algorithm for one direction of a convolution.

The planner (``planner.py``) compares families; no other module maps configurations to kernels.
A rewrite (``families/rewrite.py``) is a family, too: it turns a case into another one that other
families compute, and adds the time of its copies.  A new kernel is a module with a :class:`Family`
and a line in ``families/__init__.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device, Expected
from triton_ext.ops.core.refusals import Refusals, refused

Config = TypeVar("Config")

#: Tuning does not try what its model expects to take so many times what others do.
HOPELESS = 1.5


class Family(ABC, Generic[Config]):
    """An algorithm for one direction.

    Attributes:
        kind: Name of the family, and of its configurations in tables of measured choices.  A name
            is never reused: users' files hold it.
        direction: The direction that it computes.
        config_type: The class of its configurations, a frozen dataclass.
        reads_packed: Whether it takes cases with a packing, which rewrites make.
        supersedes: Kinds of its direction that are left out where it takes a case: their models
            are not comparable with its own.
        is_interpreted: Whether Triton's interpreter runs its kernels; it runs no Gluon kernels.
        is_gemm: Whether it multiplies tap by tap.  Two such kernels of a direction are one
            algorithm, of which tuning tries both.
        tile_fields: Fields of its configurations that describe the tile; without any, every
            configuration is a tile of its own.
        has_stages: Whether ``num_stages`` of them says no more than how deep the pipeline is.
        is_wrapped: Whether both are fields of another configuration in theirs, ``config``.
    """

    kind: ClassVar[str]
    direction: Direction
    config_type: ClassVar[type[Any]]
    reads_packed: ClassVar[bool] = False
    supersedes: ClassVar[tuple[str, ...]] = ()
    is_interpreted: ClassVar[bool] = True
    is_gemm: ClassVar[bool] = False
    tile_fields: ClassVar[tuple[str, ...]] = ()
    has_stages: ClassVar[bool] = False
    is_wrapped: ClassVar[bool] = False

    def __init__(self, direction: Direction | None = None) -> None:
        # A class may compute several directions, each by an object of its own.
        if direction is not None:
            self.direction = direction

    def refusals(self, case: Case, device: Device, config: Config | None = None) -> Refusals:
        """Returns why the family does not compute a case, or not with a configuration.

        The look-up in tables warns of refusals that are ``in_key``; for others (strides, the amount
        of padding, the installed Triton) it ignores the entry silently.
        """
        found = self.case_refusals(case, device)
        if config is None or any(each.in_key for each in found):
            return found
        wrong = self.number_refusals(config, case, device)
        return (*found, *(wrong or self.fit_refusals(config, case, device)))

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        """Returns why the family does not compute a case."""
        return ()

    def number_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        """Returns why the kernel cannot be compiled with a configuration for a case's types."""
        found: Refusals = config.refusals()
        return found

    def fit_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        """Returns why a configuration that can be compiled does not compute a case."""
        return ()

    def passed_over(self, case: Case, device: Device) -> str:
        """Returns why the planner does not compare it though it takes a case; empty if it does."""
        return ""

    def is_hopeless(self, case: Case, device: Device) -> bool:
        """Tells whether tuning leaves it out, by a model of the family's own."""
        return False

    def variant(self, config: Any) -> tuple[tuple[str, ...], Any, Any]:
        """Returns the kernel and the tile of a configuration, and all of it but its stages.

        Tuning measures various kernels and tiles, and one of those that differ in stages alone.
        """
        inner = config.config if self.is_wrapped else config
        sizes = tuple([getattr(inner, name) for name in self.tile_fields])
        rest = replace(inner, num_stages=1) if self.has_stages else inner
        rest = replace(config, config=rest) if self.is_wrapped else rest
        return (self.kind,), sizes or inner, rest

    @abstractmethod
    def candidates(self, case: Case, device: Device) -> Mapping[Config, Expected]:
        """Returns the configurations that fit a case it computes, the best guess first."""

    @abstractmethod
    def bind(self, config: Config, case: Case, device: Device) -> Any:
        """Returns the plan that launches a configuration.

        Raises:
            DescriptorError: TMA cannot describe the operands.
            UnsupportedError: Sizes that the kernel cannot count.
        """


def ranked(times: Mapping[Config, Expected]) -> dict[Config, Expected]:
    """Returns configurations in the order of their times."""
    return dict(sorted(times.items(), key=lambda item: item[1].counted_us))


#: All families of kernels, which ``families/__init__.py`` lists.
FAMILIES: list[Family[Any]] = []
#: torch's own convolution as a family, by direction.
TORCH: dict[Direction, Family[Any]] = {}


def families_of(direction: Direction) -> tuple[Family[Any], ...]:
    """Returns the families that compute a direction."""
    return tuple(family for family in FAMILIES if family.direction == direction)


def family_of(config: object, direction: Direction) -> Family[Any] | None:
    """Returns the family of a configuration; ``None`` where no family of the direction has it."""
    found = (each for each in families_of(direction) if each.config_type is type(config))
    return next(found, None)


def config_refusals(config: object, case: Case, device: Device) -> Refusals:
    """Returns why a table cannot hold a configuration for a case; nothing where it can."""
    family = family_of(config, case.direction)
    if family is None:
        kinds = ", ".join(each.kind for each in families_of(case.direction))
        return refused(f"no kernel of {case.direction}, which has {kinds}")
    return tuple(each for each in family.refusals(case, device, config) if each.in_key)
