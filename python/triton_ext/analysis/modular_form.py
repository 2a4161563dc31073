"""Linear forms modulo a number: ``constant + sum(factor * symbol)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from ..ir import Operation, Region, Value

__all__ = ["SlotForm", "Symbol"]

#: A value; a loop, for its iteration number; or its region, for its trip count.
Symbol: TypeAlias = Value | Operation | Region


@dataclass(frozen=True, slots=True)
class SlotForm:
    """``constant + sum(factor * symbol)`` modulo a number.

    Attributes:
        modulus: The number of buffers.
        constant: ``0 .. modulus - 1``.
        terms: Symbols with their factors, ``1 .. modulus - 1``.
    """

    modulus: int
    constant: int
    terms: frozenset[tuple[Symbol, int]] = frozenset()

    @classmethod
    def of(cls, modulus: int, constant: int, terms: Mapping[Symbol, int]) -> SlotForm:
        """Returns the reduced form."""
        kept = frozenset((s, f % modulus) for s, f in terms.items() if f % modulus)
        return cls(modulus, constant % modulus, kept)

    @property
    def symbols(self) -> Iterable[Symbol]:
        """The symbols."""
        return (symbol for symbol, _ in self.terms)

    def factor(self, symbol: Symbol) -> int:
        """Returns the factor of a symbol, or 0."""
        return next((f for s, f in self.terms if s is symbol), 0)

    def plus(self, other: SlotForm, factor: int = 1) -> SlotForm:
        """``self + factor * other``."""
        if not other.terms and not self.terms:
            constant = (self.constant + factor * other.constant) % self.modulus
            return SlotForm(self.modulus, constant)
        terms = dict(self.terms)
        for symbol, each in other.terms:
            terms[symbol] = terms.get(symbol, 0) + factor * each
        return SlotForm.of(self.modulus, self.constant + factor * other.constant, terms)

    def shifted(self, number: int) -> SlotForm:
        """``self + number``."""
        return SlotForm(self.modulus, (self.constant + number) % self.modulus, self.terms)

    def times(self, factor: int) -> SlotForm:
        """``factor * self``."""
        return SlotForm(self.modulus, 0).plus(self, factor)

    def substituted(self, what: Callable[[Symbol], SlotForm | None]) -> SlotForm | None:
        """Returns the form with every symbol replaced; ``None`` if one has no replacement."""
        if not self.terms:
            return self
        form = SlotForm(self.modulus, self.constant)
        for symbol, factor in self.terms:
            other = what(symbol)
            if other is None:
                return None
            form = form.plus(other, factor)
        return form

    def may_equal(self, other: SlotForm) -> bool:
        """Returns whether both may name the same buffer."""
        difference = self.plus(other, -1)
        step = difference.modulus
        for _, factor in difference.terms:
            step = gcd(step, factor)
        return difference.constant % step == 0
