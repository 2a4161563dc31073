"""``test-print-buffer-region``, ``test-buffer-region-alias``: print buffer regions, for tests.

Both have the names of upstream's passes, and their remarks have the form of theirs.  The module
stays as it is; its buffers have to be placed (``allocation.offset``).

The first prints ``Buffers: [base, length], ..`` at each operation that reads or writes memory
through a descriptor.  At an operation with ``test.print_all_used_regions`` it lists all regions,
and again those used as mbarriers.

The second looks at operations with ``test.region_name``: each stands for the memory of its first
descriptor, or for the bytes that ``test.region_addresses`` lists.  For each pair of names it prints
whether they may alias and whether one contains the other; ``test.state_plan_only`` at the module
leaves that out.  With ``test.print_state_plan`` it prints the lanes of every region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.alias_sets import is_memdesc
from triton_ext.analysis.buffer_regions import (
    MOST,
    BufferRegions,
    Footprint,
    Offset,
    Region,
    RegionSet,
    View,
    state_plan,
)
from triton_ext.analysis.memory_effects import Effect, Kind, Memory, effects_of
from triton_ext.ir import Module, Operation
from triton_ext.ir.attribute_values import DenseArrayAttr, StringAttr, parse_attribute
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext
from triton_ext.passes.places import error_at

__all__ = ["PrintBufferRegion", "PrintBufferRegionAlias"]

_ALL_REGIONS = "test.print_all_used_regions"
_NAME = "test.region_name"
_ADDRESSES = "test.region_addresses"
#: Operations that make an mbarrier of memory, or the reverse.
_BARRIER_LIFE = ("init_barrier", "inval_barrier")


@dataclass(frozen=True, slots=True)
class PrintBufferRegion(Pass):
    """Prints the memory that each operation may use through a descriptor."""

    name: ClassVar[str] = "test-print-buffer-region"

    def run(self, module: Module, context: PassContext) -> None:
        """Makes the remarks.

        Raises:
            VerifyError: An allocation has no offset, or a malformed one.
        """
        regions = BufferRegions(module)
        used: dict[str, set[Region]] = {"Shared": set(), "Tensor": set(), "Barrier": set()}
        for op in module.walk():
            effects = list(_accesses(op))
            for effect in effects:
                found = regions.region_set(effect.value).regions
                used["Tensor" if effect.memory is Memory.TENSOR else "Shared"].update(found)
                if effect.kind is Kind.BARRIER or op.name.endswith(_BARRIER_LIFE):
                    used["Barrier"].update(found)
            of_operands = [each.value for each in effects if each.value in op.operands]
            if of_operands:
                context.remark(op, f"Buffers: {_text(regions.region_set(of_operands[0]))}")
        for op in module.walk():
            if _ALL_REGIONS in op.attributes:
                for kind, of_kind in used.items():
                    if of_kind:
                        context.remark(op, f"All {kind} Regions: {_listed(sorted(of_kind))}")


@dataclass(frozen=True, slots=True)
class PrintBufferRegionAlias(Pass):
    """Prints whether named regions alias, and the plan for the state of their memory."""

    name: ClassVar[str] = "test-buffer-region-alias"

    def run(self, module: Module, context: PassContext) -> None:
        """Makes the remarks, at the module.

        Raises:
            PassError: A name or a list of addresses is malformed, or there is no descriptor.
            VerifyError: An allocation has no offset, or a malformed one.
        """
        regions = BufferRegions(module)
        named = [
            (_name(op, text), _region_set(op, regions))
            for op in module.walk()
            if (text := op.attributes.get(_NAME)) is not None
        ]
        named.sort(key=lambda pair: pair[0])
        if "test.state_plan_only" not in module.op.attributes:
            for number, (name, one) in enumerate(named):
                for other_name, other in named[number:]:
                    claims = (
                        f"alias={_truth(one.may_alias(other))}",
                        f"lhs_contains_rhs={_truth(one.contains(other))}",
                        f"rhs_contains_lhs={_truth(other.contains(one))}",
                    )
                    context.remark(module.op, f"{name} vs {other_name}: {', '.join(claims)}")
        if "test.print_state_plan" in module.op.attributes:
            _print_plan(module.op, named, context)


def _accesses(op: Operation) -> Iterator[Effect]:
    """Yields the reads and writes of memory that a descriptor names."""
    for effect in effects_of(op).effects:
        if effect.memory is not Memory.GLOBAL and (effect.reads or effect.writes):
            yield effect


def _text(found: RegionSet) -> str:
    return _listed(found.regions) if found.is_known else "unknown"


def _listed(regions: list[Region]) -> str:
    return ", ".join(map(str, regions))


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _name(op: Operation, text: str) -> str:
    found = parse_attribute(text)
    if not isinstance(found, StringAttr):
        raise error_at(op, f"expected a string as '{_NAME}', found {text}")
    return found.value


def _region_set(op: Operation, regions: BufferRegions) -> RegionSet:
    """Returns the memory that an operation with a name stands for."""
    text = op.attributes.get(_ADDRESSES)
    if text is None:
        found = next(filter(is_memdesc, (*op.operands, *op.results)), None)
        if found is None:
            raise error_at(op, f"expected a memory descriptor or '{_ADDRESSES}' beside '{_NAME}'")
        return regions.region_set(found)
    listed = parse_attribute(text)
    numbers = listed.value if isinstance(listed, DenseArrayAttr) else None
    if numbers is None or any(not isinstance(x, int) or not 0 <= x < MOST for x in numbers):
        wanted = f"a list of integers from 0 to {MOST - 1}"
        raise error_at(op, f"expected {wanted} as '{_ADDRESSES}', found {text}")
    addresses = [x for x in numbers if isinstance(x, int)]
    base = min(addresses, default=0)
    length = max(addresses, default=-1) + 1 - base
    region = Region(base, length, Footprint.of_addresses(addresses))
    around = op.module.op if op.module is not None else op
    return RegionSet(frozenset([View(around, region, (Offset(unit=base),), Offset())]))


def _print_plan(op: Operation, named: list[tuple[str, RegionSet]], context: PassContext) -> None:
    regions = sorted({region for _, found in named for region in found.regions})
    with_unknown = any(not found.is_known for _, found in named)
    plan = state_plan(regions, with_unknown=with_unknown)
    masks = dict(zip(regions, plan.masks, strict=True))
    for name, found in named:
        cases = [(str(region), masks[region]) for region in found.regions]
        for case, mask in cases if found.is_known else [("unknown", plan.unknown)]:
            lanes = ",".join(str(lane) for lane in range(plan.lanes) if mask >> lane & 1)
            context.remark(op, f"{name} case {case}: mask={{{lanes}}}")
    context.remark(op, f"state-plan: lanes={plan.lanes}")
