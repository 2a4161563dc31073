"""Abstract integers of a kernel that runs for an unknown number of iterations.

A number is one of

1. ``int``: known exactly;
2. :class:`Counted`: a loop counter, known up to a multiple of a modulus that all counters of its
   *domain* share; the domain stands for one bound, so counters of several partitions compare;
3. :class:`Residue`: known modulo a number, and nothing else;
4. :class:`Term`: unknown, but equal terms are equal numbers: arguments of the kernel, numbers of
   the program, and arithmetic on them and on counters.

Assumed: terms that take part in arithmetic of stages and phases are not negative, and no
arithmetic overflows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "UNKNOWN",
    "Counted",
    "Number",
    "Residue",
    "Term",
    "Terms",
    "add",
    "shifted",
]


class Term:
    """An unknown number; terms of one :class:`Terms` are equal only if they are identical.

    Attributes:
        name: What computes it.
        args: Numbers and names that it is computed from.
        counters: The loop counters among them.
        is_opaque: Whether two occurrences of it may differ.
    """

    __slots__ = ("args", "counters", "is_opaque", "name", "order")
    counters: frozenset[Counted]
    is_opaque: bool

    def __init__(self, name: str, args: tuple[object, ...], order: int) -> None:
        self.name = name
        self.args = args
        self.order = order
        counters: set[Counted] = set()
        opaque = name == "unknown"
        for arg in args:
            if isinstance(arg, Counted):
                counters.add(arg)
                counters |= arg.domain.counters
            elif isinstance(arg, Term):
                counters |= arg.counters
                opaque = opaque or arg.is_opaque
            elif isinstance(arg, Residue):
                opaque = True
        self.counters = frozenset(counters)
        self.is_opaque = opaque

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True)
class Counted:
    """A loop counter: ``value`` plus an unknown multiple of the domain's modulus.

    Attributes:
        domain: The domain.
        value: Its representative.
    """

    domain: Term
    value: int


@dataclass(frozen=True, slots=True)
class Residue:
    """A number modulo another one."""

    value: int
    modulus: int


Number: TypeAlias = int | Counted | Residue | Term

#: The number that nothing is known of.
UNKNOWN = Term("unknown", (), -1)


class Terms:
    """The terms of one analysis."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Term] = {}

    def make(self, name: str, *args: object) -> Term:
        """Returns the term, the same for the same name and arguments."""
        # ``True == 1``, and a counter equals no other thing.
        key = (name, *args)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Term(name, args, len(self._known))
        return found

    def product(self, *factors: Number) -> Number:
        """Returns a product in a normal form."""
        constant, rest = 1, []
        stack = list(factors)
        while stack:
            factor = stack.pop()
            if isinstance(factor, int):
                constant *= factor
            elif isinstance(factor, Term) and factor.name == "mul":
                stack.extend(factor.args)  # type: ignore[arg-type]
            else:
                rest.append(factor)
        if not rest or constant == 0:
            return constant
        if len(rest) == 1 and constant == 1:
            return rest[0]
        rest.sort(key=_order)
        return self.make("mul", *([constant] if constant != 1 else []), *rest)

    def sum(self, *summands: Number) -> Number:
        """Returns a sum in a normal form: a constant, then terms with their factors."""
        constant = 0
        factors: dict[Number, int] = {}
        stack: list[tuple[Number, int]] = [(each, 1) for each in summands]
        while stack:
            each, factor = stack.pop()
            if isinstance(each, int):
                constant += factor * each
            elif isinstance(each, Term) and each.name == "add":
                stack.extend((arg, factor) for arg in each.args)  # type: ignore[misc]
            elif isinstance(each, Term) and each.name == "mul" and isinstance(each.args[0], int):
                rest = self.product(*each.args[1:])  # type: ignore[arg-type]
                factors[rest] = factors.get(rest, 0) + factor * each.args[0]
            else:
                factors[each] = factors.get(each, 0) + factor
        parts = [
            self.product(factor, each)
            for each, factor in sorted(factors.items(), key=lambda item: _order(item[0]))
            if factor
        ]
        if not parts:
            return constant
        if len(parts) == 1:
            only = parts[0]
            if constant == 0:
                return only
            if isinstance(only, Counted):
                return Counted(only.domain, only.value + constant)
            if isinstance(only, Residue):
                return Residue((only.value + constant) % only.modulus, only.modulus)
        return self.make("add", *([constant] if constant else []), *parts)

    def rebuild(self, term: Term, args: list[object]) -> Number:
        """Returns a term with other arguments."""
        if term.name == "add":
            return self.sum(*args)  # type: ignore[arg-type]
        if term.name == "mul":
            return self.product(*args)  # type: ignore[arg-type]
        return self.make(term.name, *args)


def add(terms: Terms, number: Number, constant: int) -> Number:
    """Returns a number plus a constant."""
    if isinstance(number, int):
        return number + constant
    if isinstance(number, Counted):
        return Counted(number.domain, number.value + constant)
    if number is UNKNOWN:
        return UNKNOWN
    return terms.sum(number, constant)


def _order(number: Number) -> tuple[int, int, int]:
    if isinstance(number, Term):
        return (0, number.order, 0)
    if isinstance(number, Counted):
        return (1, number.domain.order, number.value)
    if isinstance(number, Residue):
        return (2, number.modulus, number.value)
    return (3, number, 0)


def shifted(
    terms: Terms, what: object, shifts: Mapping[Term, int], memo: dict[Term, object]
) -> object:
    """Returns a number after the counters of some domains were lowered.

    Args:
        terms: The terms.
        what: A number; anything else stays as it is.
        shifts: By how much, for each domain.
        memo: Results for terms.
    """
    if isinstance(what, Counted):
        domain = shifted(terms, what.domain, shifts, memo)
        assert isinstance(domain, Term)
        return Counted(domain, what.value - shifts.get(what.domain, 0))
    if not isinstance(what, Term) or not what.counters:
        return what
    found = memo.get(what)
    if found is None:
        args = [shifted(terms, arg, shifts, memo) for arg in what.args]
        found = memo[what] = terms.rebuild(what, args)
    return found


def lcm(*numbers: int) -> int:
    """Returns the least common multiple."""
    return math.lcm(*numbers)
