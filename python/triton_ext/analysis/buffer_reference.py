"""Determines which part of which buffer a ``!ttg.memdesc`` names, and whether two may overlap.

A reference is a *root* and the views taken of it:

1. Roots are allocations, which never overlap; and values with unknown definition: a loop-carried
   buffer that is not always the same allocation, an argument of a function.  These may be any of
   the allocations that flow there.  Walking back across an edge renames them.
2. ``ttg.memdesc_index`` is a slot (:mod:`~triton_ext.analysis.slot_form`), ``memdesc_subslice`` a
   box.  After a transposition, reshape or reinterpretation the whole buffer counts.
3. A loop-carried buffer is a slot of one allocation if its start and the yielded buffer are, with
   slots that are linear in the iteration.  Buffers that swap places in a loop and were distinct
   before it never overlap.

Safe direction: two references may be reported as overlapping when they never do, not the reverse.
Not handled: memory that the allocator gives to two allocations in turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ..ir import Block, BlockArgument, Operation, Value
from ..ir.dialects import ttg
from .alias_sets import AliasSets, is_allocation, is_buffer, view_source
from .backward_flow import Step
from .slot_form import (
    SlotForm,
    SlotForms,
    captured,
    carrying_loop,
    is_inside,
    survives,
    yielded,
)
from .type_text import type_text

__all__ = ["Box", "BufferReferences", "Reference"]

_DIMS: Final = re.compile(r"!ttg\.memdesc<((?:\d{1,19}x)+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Box:
    """Part of a buffer.

    Attributes:
        offsets: Its start, per dimension.
        shape: Its shape.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def overlaps(self, other: Box) -> bool:
        """Returns whether two parts of one buffer have an element in common."""
        return all(
            start < other_start + other_size and other_start < start + size
            for start, size, other_start, other_size in zip(
                self.offsets, self.shape, other.offsets, other.shape, strict=False
            )
        )


#: A slot, a box, or an unknown slot (``None``).
_Part: TypeAlias = SlotForm | Box | None


@dataclass(frozen=True, slots=True)
class Reference:
    """Part of a buffer.

    Attributes:
        root: The allocation, or a value that may be several; ``None``: any buffer.
        parts: The successive views.
        is_final: Whether further views are not distinguished.
    """

    root: Value | None
    parts: tuple[_Part, ...] = ()
    is_final: bool = False

    def narrowed(self, part: _Part) -> Reference:
        """Returns a part of it."""
        return self if self.is_final else replace(self, parts=(*self.parts, part))


class BufferReferences:
    """The references of the buffers of a module, which must not change meanwhile.

    Args:
        alias_sets: The alias sets of the module.
    """

    def __init__(self, alias_sets: AliasSets) -> None:
        self.forms = SlotForms()
        self._alias_sets = alias_sets
        self._open: dict[Value, Reference] = {}
        self._carried: dict[Operation, dict[Value, Reference]] = {}
        self._cycles: dict[Operation, tuple[frozenset[Value], ...]] = {}

    @classmethod
    def of_module(cls, top: Operation) -> BufferReferences:
        """Returns the references of a module, given its operation."""
        return cls(AliasSets.of(top))

    def reference(self, value: Value) -> Reference:
        """Returns the reference of a buffer at a point where it can be used."""
        return self._closed(self._viewed(value))

    def _closed(self, reference: Reference) -> Reference:
        while reference.root is not None:
            loop = carrying_loop(reference.root)
            known = self._solved(loop).get(reference.root) if loop is not None else None
            if known is None:
                return reference
            reference = _below(known, reference)
        return reference

    def _viewed(self, value: Value) -> Reference:
        """Returns the reference with loop-carried buffers as its root."""
        found = self._open.get(value)
        if found is None:
            found = self._open[value] = self._computed(value)
        return found

    def _computed(self, value: Value) -> Reference:
        capture = captured(value)
        if capture is not None:
            return self._viewed(capture)
        op = value.owner
        if not isinstance(op, Operation):
            return Reference(value)
        index = ttg.MemDescIndexOp.match(op)
        if index is not None:
            count = _shape(index.src)
            form = self.forms.form(index.index, count[0]) if count else None
            return self._viewed(index.src).narrowed(form)
        subslice = ttg.MemDescSubsliceOp.match(op)
        if subslice is not None:
            box = Box(subslice.offsets, _shape(subslice.result))
            return self._viewed(subslice.src).narrowed(box)
        source = view_source(op)
        if source is not None:
            return replace(self._viewed(source), is_final=True)
        return Reference(value)

    def _solved(self, loop: Operation) -> Mapping[Value, Reference]:
        """Returns the loop-carried buffers that are slots of one allocation."""
        if loop in self._carried:
            return self._carried[loop]
        self._carried[loop] = {}
        handed = yielded(loop)
        starts: dict[Value, Reference] = {}
        nexts: dict[Value, Reference] = {}
        for argument in loop.regions[0].blocks[0].args[1:]:
            if is_buffer(argument) and argument.index <= len(handed):
                starts[argument] = self.reference(loop.operands[2 + argument.index])
                nexts[argument] = self._closed(self._viewed(handed[argument.index - 1]))
        found: dict[Value, Reference] = {}
        for each, following in nexts.items():
            first = self._in_iteration(following, starts, loop, 0)
            line = self._line(starts[each], first, loop) if first is not None else None
            if line is not None:
                found[each] = line
        while True:
            wrong = [
                each
                for each, line in found.items()
                if self._in_iteration(nexts[each], found, loop, None) != self._later(line, loop)
            ]
            if not wrong:
                break
            for each in wrong:
                del found[each]
        self._carried[loop] = found
        return found

    def _in_iteration(
        self,
        reference: Reference,
        carried: Mapping[Value, Reference],
        loop: Operation,
        iteration: int | None,
    ) -> Reference | None:
        """Returns a reference of a loop's body in one iteration, or in any (``None``)."""
        if reference.root in carried and reference.root is not None:
            outer = carried[reference.root]
        elif reference.root is None or (
            is_inside(reference.root, loop) and not is_allocation(reference.root)
        ):
            return None
        else:
            outer = Reference(reference.root)
        parts: list[_Part] = []
        for part in reference.parts:
            if isinstance(part, SlotForm):
                moved = part
                if iteration is not None:
                    numbered = _numbered(part, loop, iteration)
                    if numbered is None:
                        return None
                    moved = numbered
                if any(s is not loop and is_inside(s, loop) for s in moved.symbols):
                    return None
                parts.append(moved)
            else:
                parts.append(part)
        return _below(outer, replace(reference, parts=tuple(parts)))

    def _line(self, start: Reference, first: Reference, loop: Operation) -> Reference | None:
        """Returns the reference that is ``start`` in the first iteration and ``first`` next."""
        if start.root is not first.root or len(start.parts) != len(first.parts):
            return None
        parts: list[_Part] = []
        for one, two in zip(start.parts, first.parts, strict=True):
            if isinstance(one, SlotForm) and isinstance(two, SlotForm):
                if one.modulus != two.modulus:
                    return None
                step = two.plus(one, -1)
                if step.terms:
                    return None
                count = self.forms.symbol(loop, one.modulus)
                parts.append(one.plus(count, step.constant))
            elif one == two and one is not None:
                parts.append(one)
            else:
                return None
        return replace(start, parts=tuple(parts)) if start.is_final == first.is_final else None

    def _later(self, reference: Reference, loop: Operation) -> Reference:
        """Returns a reference in the next iteration."""
        parts = tuple(
            part.shifted(part.factor(loop)) if isinstance(part, SlotForm) else part
            for part in reference.parts
        )
        return replace(reference, parts=parts)

    # ---- the far side of an edge

    def across(self, reference: Reference, step: Step, block: Block) -> Reference:
        """Returns the reference on the far side of an edge."""
        root = reference.root
        if root is None:
            return reference
        parts: list[_Part] = [
            self.forms.across(part, step, block) if isinstance(part, SlotForm) else part
            for part in reference.parts
        ]
        moved = replace(reference, parts=tuple(parts))
        if root in step.renames:
            return _below(self.reference(step.renames[root]), moved)
        if is_allocation(root) or survives(root, step, block):
            return moved
        return Reference(None)

    def numbered(self, reference: Reference, iterations: Mapping[Operation, int]) -> Reference:
        """Returns the reference in known iterations of some loops."""
        if not iterations or not any(isinstance(part, SlotForm) for part in reference.parts):
            return reference
        parts: list[_Part] = []
        for part in reference.parts:
            for loop, number in iterations.items():
                if isinstance(part, SlotForm):
                    part = _numbered(part, loop, number)
            parts.append(part)
        return replace(reference, parts=tuple(parts))

    # ---- overlap

    def may_overlap(self, one: Reference, other: Reference) -> bool:
        """Returns whether two references at the same point may have an element in common."""
        if one.root is None or other.root is None:
            return True
        if one.root is not other.root:
            return self._roots_may_overlap(one.root, other.root)
        for mine, its in zip(one.parts, other.parts, strict=False):
            if isinstance(mine, SlotForm) and isinstance(its, SlotForm):
                if mine.modulus == its.modulus and not mine.may_equal(its):
                    return False
            elif isinstance(mine, Box) and isinstance(its, Box):
                if not mine.overlaps(its):
                    return False
                if mine != its:
                    return True
            elif mine is not None and its is not None:
                return True
        return True

    def _roots_may_overlap(self, one: Value, other: Value) -> bool:
        if is_allocation(one) and is_allocation(other):
            return False
        loop = carrying_loop(one)
        cycles = self._cycles_of(loop) if loop is not None else ()
        if any(one in cycle and other in cycle for cycle in cycles):
            return False
        mine, its = self.allocations(one), self.allocations(other)
        return mine is None or its is None or not mine.isdisjoint(its)

    def _cycles_of(self, loop: Operation) -> tuple[frozenset[Value], ...]:
        """Returns sets of buffers of a loop that swap places, and never overlap."""
        if loop in self._cycles:
            return self._cycles[loop]
        self._cycles[loop] = ()
        handed = yielded(loop)
        arguments = [a for a in loop.regions[0].blocks[0].args[1:] if is_buffer(a)]
        successor = {a: handed[a.index - 1] for a in arguments if a.index <= len(handed)}
        cycles = []
        for argument in arguments:
            cycle = [argument]
            while (following := successor.get(cycle[-1])) is not None and len(cycle) < 16:
                if following is argument or not isinstance(following, BlockArgument):
                    break
                cycle.append(following)
            if len(cycle) < 2 or successor.get(cycle[-1]) is not argument:
                continue
            starts = [self.reference(loop.operands[2 + each.index]) for each in cycle]
            if not any(
                self.may_overlap(a, b) for i, a in enumerate(starts) for b in starts[i + 1 :]
            ):
                cycles.append(frozenset[Value](cycle))
        self._cycles[loop] = tuple(dict.fromkeys(cycles))
        return self._cycles[loop]

    def allocations(self, value: Value) -> frozenset[Value] | None:
        """Returns the allocations that a value may be a part of; ``None`` if unknown."""
        found = self._alias_sets.alias_set(value)
        return found.allocations if found.is_complete else None


def _shape(value: Value) -> tuple[int, ...]:
    match = _DIMS.match(type_text(value))
    return tuple(int(x) for x in match[1].split("x") if x) if match is not None else ()


def _below(outer: Reference, inner: Reference) -> Reference:
    """Returns ``inner``, whose root is a value, as a part of ``outer``."""
    if outer.is_final:
        return outer
    return Reference(outer.root, (*outer.parts, *inner.parts), inner.is_final)


def _numbered(form: SlotForm, loop: Operation, iteration: int) -> SlotForm | None:
    factor = form.factor(loop)
    if not factor:
        return form
    terms = {symbol: each for symbol, each in form.terms if symbol is not loop}
    return SlotForm.of(form.modulus, form.constant + factor * iteration, terms)
