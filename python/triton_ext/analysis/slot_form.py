"""Linear forms of buffer indices, modulo the number of buffers.

An index into ``n`` buffers lies in ``0 .. n - 1``, so two indices are equal if and only if they are
equal modulo ``n``.  A form is ``constant + sum(factor * symbol)`` modulo ``n``.  A *symbol* is an
opaque value at the point where the form is used; the iteration number of an ``scf.for`` (from 0),
represented by the loop; or the trip count of a loop, represented by its region.  Supported are:

1. Constants, ``addi``, ``subi``, ``muli`` and ``shli`` by constants, extensions and casts to
   ``index``; ``remsi`` and ``remui`` by a multiple of ``n``, ``andi`` with one less than a
   power of two that is a multiple of ``n``, ``xori`` with a constant for two buffers.
2. The rotation ``select(x + 1 < n, x + 1, 0)`` in all its spellings.  If it is written with ``<``,
   ``x`` must be known not to exceed ``n - 1``, for every value that flows there.
3. The induction variable of a loop.  Loop-carried values: each is assumed to be
   ``start + k * iteration`` with the ``k`` of the first iteration, and compared with what the body
   yields.  This covers rotations, counters and values that swap places.  A value that fails may
   still be another one plus a constant: two counters of an outer loop.
4. Arguments of a partition of ``ttg.warp_specialize``: the captured values.

Everything else is a symbol.  It is assumed that no arithmetic overflows and no dividend is
negative; otherwise indices would not lie in ``0 .. n - 1``.  A truncation is supported if ``n``
divides two to the power of its width.  After a loop that ran, its upper bound is the first value
that it did not run for.  The same holds for a loop from 0 that did not run, if the bound or its
remainder is used as an index outside of the loop; otherwise the bound may be below the lower one.

Safe direction: two forms may be reported as possibly equal when they never are, not the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..ir import Block, BlockArgument, Operation, OpResult, Region, Use, Value
from ..ir.dialects import arith, ttg
from ..ir.functions import FUNCTIONS, callee_of, symbol_of
from .backward_flow import Step, StepKind
from .modular_form import SlotForm, Symbol
from .value_flow import ValueFlow

__all__ = ["SlotForm", "SlotForms", "Symbol", "is_inside", "survives"]

_CASTS: Final = frozenset(
    {"arith.extsi", "arith.extui", "arith.index_cast", "arith.index_castui", "arith.trunci"}
)
#: Edges inside a function, without calls.
_FLOW: Final = ValueFlow()
#: Maximum depth of nested loops that are distinguished.
_MOST_NESTED: Final = 6
#: ``K < x`` is ``x > K``.
_SWAPPED: Final = {
    "slt": "sgt", "sgt": "slt", "sle": "sge", "sge": "sle",
    "ult": "ugt", "ugt": "ult", "ule": "uge", "uge": "ule",
}  # fmt: skip


class SlotForms:
    """The forms of the values of a module, which must not change meanwhile."""

    def __init__(self) -> None:
        self._raw: dict[tuple[Value, int], SlotForm] = {}
        self._carried: dict[tuple[Operation, int], dict[Symbol, SlotForm]] = {}

    # ---- at a point

    def form(self, value: Value, modulus: int) -> SlotForm:
        """Returns the form of a value at a point where it can be used; a ring of none is of one."""
        return self._closed(self._open(value, max(modulus, 1)))

    def symbol(self, symbol: Symbol, modulus: int) -> SlotForm:
        """Returns the form of one symbol."""
        return SlotForm.of(modulus, 0, {symbol: 1})

    def _closed(self, form: SlotForm) -> SlotForm:
        """Returns the form with loop-carried values replaced by their solutions."""

        def known(symbol: Symbol) -> SlotForm:
            loop, found = carrying_loop(symbol), None
            if loop is not None:
                found = self._solved(loop, form.modulus).get(symbol)
            elif isinstance(symbol, OpResult) and symbol.owner.name == "scf.for":
                found = self._behind(symbol, form.modulus)
            return found if found is not None else self.symbol(symbol, form.modulus)

        # The solution of an inner loop may depend on an outer one that was solved later.
        for _ in range(_MOST_NESTED):
            before, form = form, form.substituted(known) or form
            if form == before:
                break
        return form

    def _behind(self, result: OpResult, modulus: int) -> SlotForm | None:
        """Returns the form of a loop result, from what the loop carries."""
        loop = result.owner
        arguments = loop.regions[0].blocks[0].args[1:]
        found = self._solved(loop, modulus).get(arguments[result.index])
        if found is None:
            return None

        def there(symbol: Symbol) -> SlotForm | None:
            if symbol is loop:
                return self.symbol(loop.regions[0], modulus)
            if symbol in arguments and isinstance(symbol, BlockArgument):
                return self.symbol(loop.results[symbol.index - 1], modulus)
            return None if is_inside(symbol, loop) else self.symbol(symbol, modulus)

        return found.substituted(there)

    # ---- how a value is computed; loop-carried values are symbols here

    def _open(self, value: Value, modulus: int) -> SlotForm:
        key = value, modulus
        found = self._raw.get(key)
        if found is None:
            found = self._raw[key] = self._computed(value, modulus)
        return found

    def _computed(self, value: Value, modulus: int) -> SlotForm:
        constant = arith.constant_int(value)
        if constant is not None:
            return SlotForm(modulus, constant % modulus)
        form: SlotForm | None = None
        if isinstance(value, OpResult):
            form = self._of_operation(value.owner, modulus)
        elif isinstance(value, BlockArgument):
            form = self._of_argument(value, modulus)
        return form if form is not None else self.symbol(value, modulus)

    def _of_argument(self, value: BlockArgument, modulus: int) -> SlotForm | None:
        capture = captured(value)
        if capture is not None:
            return self._open(capture, modulus)
        op = value.owner.parent_op
        if op.name != "scf.for" or value.index != 0:
            return None
        step = arith.constant_int(op.operands[2])
        if step is None:
            return None
        return self._open(op.operands[0], modulus).plus(self.symbol(op, modulus), step)

    def _of_operation(self, op: Operation, modulus: int) -> SlotForm | None:
        name, operands = op.name, op.operands
        if name in _CASTS:
            return self._of_cast(op, modulus)
        if name == "arith.select":
            return self._of_select(op, modulus)
        if len(operands) != 2:
            return None
        left, right = operands
        if name in ("arith.addi", "arith.subi"):
            sign = 1 if name == "arith.addi" else -1
            return self._open(left, modulus).plus(self._open(right, modulus), sign)
        number = arith.constant_int(right)
        if number is None and name in ("arith.muli", "arith.xori"):
            left, number = right, arith.constant_int(left)
        if number is None or not _is_linear(name, number, modulus):
            return None
        form = self._open(left, modulus)
        if name == "arith.muli":
            return form.times(number)
        if name == "arith.shli":
            return form.times(1 << number)
        if name == "arith.xori":
            return form.shifted(number)
        return form

    def _of_cast(self, op: Operation, modulus: int) -> SlotForm | None:
        form = self._open(op.operands[0], modulus)
        if op.name == "arith.trunci":
            width = _width(op.results[0])
            return form if width is not None and (1 << width) % modulus == 0 else None
        # Sign extension turns the 1 of ``i1`` into -1.
        is_sign = op.name in ("arith.extsi", "arith.index_cast") and _width(op.operands[0]) == 1
        return form.times(-1) if is_sign else form

    def _of_select(self, op: Operation, modulus: int) -> SlotForm | None:
        condition, *values = op.operands
        first, second = (self._open(value, modulus) for value in values)
        if first == second:
            return first
        compare = _comparison(condition)
        if compare is None:
            return None
        predicate, left, right = compare.predicate, compare.lhs, compare.rhs
        if arith.constant_int(left) is not None:
            predicate, left, right = _SWAPPED.get(predicate, predicate), right, left
        bound = arith.constant_int(right)
        # The value at ``left == limit`` is the rare one; the usual one applies everywhere else.
        usual, rare, limit = second, first, self._open(right, modulus)
        if predicate in ("ne", "slt", "ult", "sle", "ule"):
            usual, rare = first, second
        if predicate in ("sle", "ule", "sgt", "ugt"):
            limit, bound = limit.shifted(1), None if bound is None else bound + 1
        if predicate not in ("eq", "ne") and (
            bound is None or not self._is_at_most(left, bound, frozenset())
        ):
            return None
        there = self._open(left, modulus).plus(limit, -1)
        difference = rare.plus(usual, -1)
        return usual if difference in (there, there.times(-1)) else None

    def _is_at_most(self, value: Value, bound: int, assumed: frozenset[tuple[Value, int]]) -> bool:
        """Returns whether a value is known never to exceed a number."""
        constant = arith.constant_int(value)
        if constant is not None:
            return constant <= bound
        if (value, bound) in assumed:
            return True
        if len(assumed) > 8:
            return False
        assumed = assumed | {(value, bound)}
        if isinstance(value, BlockArgument):
            sources = _FLOW.sources(value)
            return (
                sources is not None
                and sources.is_complete
                and all(self._is_at_most(each, bound, assumed) for each in sources.values)
            )
        op = value.owner
        return isinstance(op, Operation) and self._result_is_at_most(op, bound, assumed)

    def _result_is_at_most(
        self, op: Operation, bound: int, assumed: frozenset[tuple[Value, int]]
    ) -> bool:
        if op.name in _CASTS:
            return self._is_at_most(op.operands[0], bound, assumed)
        if op.name == "arith.select":
            return all(
                self._is_at_most(each, bound, assumed)
                for each in op.operands[1:]
                if (limit := _limit_where_chosen(op, each)) is None or limit > bound
            )
        number = arith.constant_int(op.operands[1]) if len(op.operands) == 2 else None
        if number is None:
            return False
        if op.name in ("arith.remsi", "arith.remui"):
            return 0 < number <= bound + 1
        if op.name == "arith.andi":
            return 0 <= number <= bound
        if op.name == "arith.addi":
            return self._is_at_most(op.operands[0], bound - number, assumed)
        if op.name == "arith.subi":
            return self._is_at_most(op.operands[0], bound + number, assumed)
        return False

    # ---- loop-carried values

    def _solved(self, loop: Operation, modulus: int) -> Mapping[Symbol, SlotForm]:
        """Returns the forms of the loop-carried values that are linear in the iteration."""
        key = loop, modulus
        if key in self._carried:
            return self._carried[key]
        # Outer loops first: they need the results of this one, and this one their values.
        around = loop.parent_op
        while around is not None:
            if around.name == "scf.for" and (around, modulus) not in self._carried:
                self._solved(around, modulus)
                if key in self._carried:
                    return self._carried[key]
            around = around.parent_op
        self._carried[key] = {}  # symbols while they are being solved
        handed = yielded(loop)
        starts: dict[Symbol, SlotForm] = {}
        nexts: dict[Symbol, SlotForm] = {}
        for argument in loop.regions[0].blocks[0].args[1:]:
            if not _is_integer(argument) or len(handed) < argument.index:
                continue
            following = self._open(handed[argument.index - 1], modulus)
            following = self._closed(following)  # inner loops; this one's are still symbols
            starts[argument] = self.form(loop.operands[2 + argument.index], modulus)
            nexts[argument] = following
        found: dict[Symbol, SlotForm] = {}
        for each, following in nexts.items():
            first = _at(following, starts, loop, 0)
            step = first.plus(starts[each], -1) if first is not None else None
            if step is not None and not step.terms:
                line = self.symbol(loop, modulus).times(step.constant)
                found[each] = starts[each].plus(line)
        # Each form depends on the others: one that fails invalidates its dependents.
        while True:
            wrong = [a for a, form in found.items() if not _goes_on(form, nexts[a], found, loop)]
            if not wrong:
                break
            for symbol in wrong:
                del found[symbol]
        self._relate(found, starts, nexts)
        self._carried[key] = found
        return found

    def _relate(
        self,
        found: dict[Symbol, SlotForm],
        starts: Mapping[Symbol, SlotForm],
        nexts: Mapping[Symbol, SlotForm],
    ) -> None:
        """Finds carried values that always equal another one plus their initial difference."""
        left = [argument for argument in nexts if argument not in found]
        for at, base in enumerate(left):
            for other in left[at + 1 :]:
                if base in found or other in found:
                    continue
                distance = starts[other].plus(starts[base], -1)
                here = self.symbol(base, distance.modulus).plus(distance)
                known = {**found, other: here}

                def there(
                    symbol: Symbol, known: Mapping[Symbol, SlotForm] = known
                ) -> SlotForm | None:
                    form = known.get(symbol)
                    return form or self.symbol(symbol, distance.modulus)  # noqa: B023

                one, two = nexts[base].substituted(there), nexts[other].substituted(there)
                if one is not None and two is not None and one.plus(distance) == two:
                    found[other] = here

    # ---- the far side of an edge

    def across(self, form: SlotForm, step: Step, block: Block) -> SlotForm | None:
        """Returns the form on the far side of an edge; ``None`` if it has none.

        Args:
            form: The form on the near side, which is later in the program.
            step: The edge.
            block: The block on the near side.
        """
        if not form.terms:
            return form
        limit = self._limit(form, step)
        modulus = form.modulus

        def there(symbol: Symbol) -> SlotForm | None:
            if isinstance(symbol, Value) and symbol in step.renames:
                return self.form(step.renames[symbol], modulus)
            if symbol is step.op:
                if step.kind is StepKind.PREVIOUS:
                    return self.symbol(symbol, modulus).shifted(1)
                return SlotForm(modulus, 0) if step.kind is StepKind.LEAVE else None
            if isinstance(symbol, Region) and symbol.parent is step.op:
                if step.kind is StepKind.ENTER:
                    return self.symbol(symbol.parent, modulus).shifted(1)
                return SlotForm(modulus, 0) if step.kind is StepKind.SKIP else None
            if limit is not None and symbol is limit[0]:
                return limit[1]
            return self.symbol(symbol, modulus) if survives(symbol, step, block) else None

        return form.substituted(there)

    def _limit(self, form: SlotForm, step: Step) -> tuple[Symbol, SlotForm] | None:
        """Returns a symbol of a loop's upper bound, and its form after the last iteration."""
        loop = step.op
        if loop is None or loop.name != "scf.for":
            return None
        if step.kind is not StepKind.ENTER and not (
            step.kind is StepKind.SKIP and _is_zero_if_passed_by(loop, form.modulus)
        ):
            return None
        modulus = form.modulus
        lower, upper, width = loop.operands[:3]
        if arith.constant_int(width) != 1:
            return None
        end = self.form(upper, modulus)
        last = self.form(lower, modulus)
        if step.kind is StepKind.ENTER:
            last = last.plus(self.symbol(loop, modulus)).shifted(1)
        for symbol, factor in end.terms:
            if form.factor(symbol) and factor in (1, modulus - 1):
                # end = rest + factor * symbol, and end = last.
                rest = end.plus(self.symbol(symbol, modulus), -factor)
                if last.factor(symbol) == 0:
                    return symbol, last.plus(rest, -1).times(factor)
        return None


# ---- helpers


def carrying_loop(symbol: Symbol) -> Operation | None:
    """Returns the ``scf.for`` that carries a value between iterations."""
    if not isinstance(symbol, BlockArgument) or symbol.index == 0:
        return None
    op = symbol.owner.parent_op
    return op if op.name == "scf.for" else None


def yielded(loop: Operation) -> tuple[Value, ...]:
    """Returns the values that the body of an ``scf.for`` yields."""
    last = loop.regions[0].blocks[0].terminator
    return last.operands if last is not None and last.name == "scf.yield" else ()


def captured(value: Value) -> Value | None:
    """Returns the value that a partition's argument captures."""
    if not isinstance(value, BlockArgument):
        return None
    region = value.owner.parent
    op = region.parent
    if not (op.name.startswith("ttg.warp_specialize") and region.isolated):
        return None
    if value.owner is not region.blocks[0]:
        return None
    captures = ttg.captures_of(op)
    return captures[value.index] if value.index < len(captures) else None


def _is_zero_if_passed_by(loop: Operation, modulus: int) -> bool:
    """Returns whether the upper bound of a loop from 0 is 0 modulo a number if it does not run.

    It is if it cannot be negative, as an index outside of the loop.  The same holds if its
    remainder is such an index: the remainder of a negative number is not, unless it is 0.
    """
    if arith.constant_int(loop.operands[0]) != 0:
        return False
    return any(
        _is_index_beside(use, loop)
        or (
            (use.op.name, use.index) == ("arith.remsi", 0)
            and (arith.constant_int(use.op.operands[1]) or 1) % modulus == 0
            and any(_is_index_beside(inner, loop) for inner in use.op.results[0].uses)
        )
        for use in loop.operands[1].uses
    )


def _is_index_beside(use: Use, loop: Operation) -> bool:
    return (use.op.name, use.index) == (ttg.MemDescIndexOp.NAME, 1) and (
        use.op.parent is loop.parent
    )


def _definer(symbol: Symbol) -> Operation | Block:
    """Returns the operation or block that defines a symbol."""
    if isinstance(symbol, Region):
        return symbol.parent
    return symbol if isinstance(symbol, Operation) else symbol.owner


def is_inside(symbol: Symbol, op: Operation) -> bool:
    """Returns whether a symbol belongs to a region of an operation."""
    around = _definer(symbol).parent_op
    while around is not None and around is not op:
        around = around.parent_op
    return around is op


def survives(symbol: Symbol, step: Step, block: Block) -> bool:
    """Returns whether a symbol that an edge does not rename has the same value on its far side."""
    if step.op is None:
        return False
    if step.kind is StepKind.BRANCH:
        # Values of other blocks are unchanged; those of this block belong to an earlier run.
        return not _is_of_block(symbol, block)
    if step.kind is StepKind.CALLER:
        around = _definer(symbol).parent_op
        while around is not None and around.name not in FUNCTIONS:
            around = around.parent_op
        return around is None or symbol_of(around) != callee_of(step.op)
    if isinstance(symbol, OpResult) and symbol.owner is step.op:
        return False
    return not is_inside(symbol, step.op)


def _is_of_block(symbol: Symbol, block: Block) -> bool:
    """Returns whether a symbol is defined in a block, or in a region of one of its operations."""
    owner = _definer(symbol)
    while True:
        around = owner if isinstance(owner, Block) else owner.parent
        if around is None or around is block:
            return around is block
        owner = around.parent_op


def _comparison(value: Value) -> arith.CmpIOp | None:
    return arith.CmpIOp.match(value.owner) if isinstance(value, OpResult) else None


def _limit_where_chosen(select: Operation, value: Value) -> int | None:
    """Returns an upper bound of an ``arith.select`` operand where its condition selects it."""
    condition, first, _ = select.operands
    compare = _comparison(condition)
    limit = arith.constant_int(compare.rhs) if compare is not None else None
    if compare is None or limit is None or limit < 0 or compare.lhs is not value:
        return None
    below = ("slt", "ult") if value is first else ("sge", "uge")
    up_to = ("sle", "ule") if value is first else ("sgt", "ugt")
    if compare.predicate in below:
        return limit - 1
    return limit if compare.predicate in up_to else None


def _is_integer(value: Value) -> bool:
    type_ = value.known_type
    return type_ is None or type_ == "index" or (type_[:1] == "i" and type_[1:].isdigit())


def _width(value: Value) -> int | None:
    type_ = value.known_type or ""
    return int(type_[1:]) if type_[:1] == "i" and type_[1:].isdigit() else None


def _is_linear(name: str, number: int, modulus: int) -> bool:
    """Returns whether an operation with a constant right operand is supported."""
    if name in ("arith.remsi", "arith.remui"):
        return number > 0 and number % modulus == 0
    if name == "arith.andi":
        return number > 0 and (number & (number + 1)) == 0 and (number + 1) % modulus == 0
    if name == "arith.xori":
        return modulus == 2
    if name == "arith.shli":
        return 0 <= number < 64
    return name == "arith.muli"


def _at(
    form: SlotForm, values: Mapping[Symbol, SlotForm], loop: Operation, iteration: int
) -> SlotForm | None:
    """Returns a form of a loop's body in one iteration, with given loop-carried values."""

    def there(symbol: Symbol) -> SlotForm | None:
        if symbol is loop:
            return SlotForm(form.modulus, iteration % form.modulus)
        if symbol in values and isinstance(symbol, Value):
            return values[symbol]
        if is_inside(symbol, loop):
            return None
        return SlotForm.of(form.modulus, 0, {symbol: 1})

    return form.substituted(there)


def _goes_on(
    form: SlotForm, following: SlotForm, known: Mapping[Symbol, SlotForm], loop: Operation
) -> bool:
    """Returns whether the form of the next iteration equals what the body yields."""

    def here(symbol: Symbol) -> SlotForm | None:
        if symbol in known and isinstance(symbol, Value):
            return known[symbol]
        if symbol is not loop and is_inside(symbol, loop):
            return None
        return SlotForm.of(form.modulus, 0, {symbol: 1})

    def later(symbol: Symbol) -> SlotForm:
        return SlotForm.of(form.modulus, 1 if symbol is loop else 0, {symbol: 1})

    handed, expected = following.substituted(here), form.substituted(later)
    return handed is not None and handed == expected
