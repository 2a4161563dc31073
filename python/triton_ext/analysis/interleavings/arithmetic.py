"""Evaluates numbers, and decides conditions where they are asked for.

A question that the state does not answer raises :class:`Fork` with the answers that are possible;
the explorer asks again in a copy of the state for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...ir import Operation
from ...ir.dialects import arith
from .numbers import UNKNOWN, Counted, Number, Residue, Term, Terms, add
from .state import Domain, Part, State

__all__ = ["Arithmetic", "Fork", "InfeasibleError", "Precision", "Restart"]

_CASTS: Final = frozenset(
    {"arith.extsi", "arith.extui", "arith.index_cast", "arith.index_castui", "arith.trunci"}
)
_EXACT: Final[dict[str, Callable[[int, int], int]]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: int(math.copysign(abs(a) // abs(b), a * b)),
    "arith.divui": lambda a, b: a // b,
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remsi": lambda a, b: int(math.copysign(abs(a) % abs(b), a)) if a else 0,
    "arith.remui": lambda a, b: a % b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shrui": lambda a, b: a >> b,
    "arith.minsi": min,
    "arith.minui": min,
    "arith.maxsi": max,
    "arith.maxui": max,
}
_SUMS: Final = frozenset({"arith.addi", "arith.subi"})
_DIVIDES: Final = frozenset({"arith.divsi", "arith.divui", "arith.floordivsi"})
_REMAINS: Final = frozenset({"arith.remsi", "arith.remui"})
#: Largest divisor of a remainder that is evaluated at once.
_MOST_STAGES: Final = 64


class Fork(Exception):
    """A question with several answers.

    Attributes:
        answers: Changes of the state, one for each.
    """

    def __init__(self, *answers: Callable[[State], None]) -> None:
        super().__init__()
        self.answers = answers


class InfeasibleError(Exception):
    """A path that no run takes: what it assumes excludes itself."""


class Restart(Exception):
    """The precision did not do; it has been raised."""


@dataclass(slots=True)
class Precision:
    """How exactly numbers are known; grows when an analysis asks for more.

    Attributes:
        moduli: What counters are known modulo, by the number of loops around theirs.
        carried: What sums are known modulo that grow from one iteration to the next.
        floor: Counters below this are known exactly.
        bounds: Terms that are bounds of loops.
        early: What bounds are known modulo before their loops begin.
        positive: Loops that are assumed to run at least once.
    """

    moduli: dict[int, int] = field(default_factory=dict)
    carried: int = 1
    floor: int = 1
    bounds: set[Term] = field(default_factory=set)
    early: dict[Term, int] = field(default_factory=dict)
    positive: set[Operation] = field(default_factory=set)


class Arithmetic:
    """Evaluates numbers in a state.

    Args:
        terms: The terms.
        precision: How exactly.
    """

    def __init__(self, terms: Terms, precision: Precision) -> None:
        self.terms = terms
        self.precision = precision
        #: Predicates and names of operations.
        self._words: dict[Operation, str] = {}

    # ---- operations

    def calc(self, state: State, part: Part, op: Operation, operands: Sequence[Number]) -> Number:
        """Returns the result of an operation on integers."""
        name, floor = op.name, self.precision.floor
        # Counters below the floor are exact; a constant is equal to one of them then.
        if name not in _SUMS:
            operands = [
                each.value if isinstance(each, Counted) and each.value < floor else each
                for each in operands
            ]
        if name in _CASTS:
            return operands[0]
        if name == "arith.cmpi":
            predicate = self._words.get(op)
            if predicate is None:
                view = arith.CmpIOp.match(op)
                assert view is not None
                predicate = self._words[op] = view.predicate
            return self._compare(state, part, predicate, *operands)
        if name == "arith.select":
            return self._select(state, part, operands)
        if len(operands) == 2 and name in _EXACT:
            return self._binary(state, name, *operands)
        if name.startswith("tt.get_"):
            word = self._words.get(op)
            if word is None:
                word = self._words[op] = op.text.partition("=")[2].partition(" loc(")[0].strip()
            return self.terms.make(name, word)
        if name.startswith("arith.") and not any(
            each is UNKNOWN or isinstance(each, Residue) for each in operands
        ):
            return self.terms.make(name, *operands)
        return UNKNOWN

    def _binary(self, state: State, name: str, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return _EXACT[name](a, b) if b or name not in _DIVIDES | _REMAINS else UNKNOWN
        if a is UNKNOWN or b is UNKNOWN:
            return UNKNOWN
        if name == "arith.addi":
            return self._sum(a, b)
        if name == "arith.subi":
            if isinstance(a, Counted) and isinstance(b, Counted) and a.domain is b.domain:
                return a.value - b.value
            return self._sum(a, self.terms.product(-1, b))
        if name == "arith.muli":
            return self.terms.product(a, b)
        if isinstance(b, int):
            if name == "arith.shli":
                return self.terms.product(a, 1 << b)
            if name in ("arith.shrsi", "arith.shrui"):
                return self.terms.make("div", a, 1 << b)
            if name in _DIVIDES and b > 0:
                return self.terms.make("div", a, b)
            if name in _REMAINS and 0 < b <= _MOST_STAGES:
                return self.residue(state, a, b)
        mask = b if isinstance(b, int) else a
        if name == "arith.andi" and isinstance(mask, int) and 0 < mask < _MOST_STAGES:
            other = a if isinstance(b, int) else b
            if mask & (mask + 1) == 0 and not self._is_truth(other):
                return self.residue(state, other, mask + 1)
        return self.terms.make(name, a, b)

    def _sum(self, a: Number, b: Number) -> Number:
        if isinstance(b, int):
            return add(self.terms, a, b)
        if isinstance(a, int):
            return add(self.terms, b, a)
        if a in self.precision.bounds or b in self.precision.bounds:
            return self.terms.make("plus", a, b)  # what is known of the bound stays with it
        return self.terms.sum(a, b)

    def _is_truth(self, number: Number) -> bool:
        return isinstance(number, Term) and number.name in ("slt", "eq", "not")

    def _select(self, state: State, part: Part, operands: Sequence[Number]) -> Number:
        condition, first, second = operands
        if first == second:
            return first
        if isinstance(condition, int):
            return first if condition else second
        if (isinstance(first, int) and isinstance(second, int)) or condition is UNKNOWN:
            return first if self.truth(state, part, condition) else second
        return self.terms.make("select", condition, first, second)

    # ---- comparisons

    def _compare(self, state: State, part: Part, predicate: str, a: Number, b: Number) -> Number:
        if a is UNKNOWN or b is UNKNOWN:
            return UNKNOWN
        if predicate in ("eq", "ne"):
            found = self._equal(state, a, b)
        else:
            order = predicate[1:]
            if order in ("gt", "le"):
                a, b = b, a
            found = self._less(state, a, b)  # lt, gt as such; the others are their opposites
        if predicate == "ne" or predicate[1:] in ("le", "ge"):
            return 1 - found if isinstance(found, int) else self.terms.make("not", found)
        return found

    def _equal(self, state: State, a: Number, b: Number) -> Number:
        if a == b and not isinstance(a, Residue):
            return 1
        both = self._aligned(state, a, b)
        if both is not None:
            return int(both[0] == both[1])
        if isinstance(a, Residue) or isinstance(b, Residue):
            return UNKNOWN
        return self.terms.make("eq", *sorted((a, b), key=_weight))

    def _less(self, state: State, a: Number, b: Number) -> Number:
        both = self._aligned(state, a, b)
        if both is not None:
            return int(both[0] < both[1])
        if a == b and not isinstance(a, Residue):
            return 0
        if isinstance(a, Residue) or isinstance(b, Residue):
            return UNKNOWN
        return self.terms.make("slt", a, b)

    def _aligned(self, state: State, a: Number, b: Number) -> tuple[int, int] | None:
        """Two numbers that compare as these do, if they are known to."""
        if isinstance(a, int) and isinstance(b, int):
            return a, b
        if isinstance(a, Counted) and isinstance(b, Counted) and a.domain is b.domain:
            return a.value, b.value
        for counter, number in ((a, b), (b, a)):
            if isinstance(counter, Counted) and isinstance(number, int):
                self._require_floor(state, counter, number)
                return (counter.value, number) if counter is a else (number, counter.value)
        return None

    def _require_floor(self, state: State, counter: Counted, number: int) -> None:
        """Makes sure that a counter is known exactly, or known to be above a number."""
        if number >= self.precision.floor:
            self.raise_floor(number + 1)

    def raise_floor(self, floor: int) -> None:
        """Starts again with more counters known exactly."""
        self.precision.floor = max(self.precision.floor, floor)
        raise Restart

    def truth(self, state: State, part: Part, what: Number) -> bool:
        """Decides a condition.

        Raises:
            Fork: The state does not tell.
        """
        if isinstance(what, int):
            return bool(what)
        if isinstance(what, Term):
            if what.name == "not":
                return not self.truth(state, part, what.args[0])  # type: ignore[arg-type]
            if what.name in ("arith.andi", "arith.ori"):
                is_and = what.name == "arith.andi"
                first = self.truth(state, part, what.args[0])  # type: ignore[arg-type]
                if first != is_and:
                    return first
                return self.truth(state, part, what.args[1])  # type: ignore[arg-type]
            if what.name == "arith.xori" and what.args[1] == 1:
                return not self.truth(state, part, what.args[0])  # type: ignore[arg-type]
            if what.name in ("slt", "eq"):
                bounded = self._by_bounds(state, part, what)
                if bounded is not None:
                    return bounded
            known = state.decisions.get(what)
            if known is not None:
                return known
            if not what.is_opaque:
                term = what
                raise Fork(lambda s: _decide(s, term, True), lambda s: _decide(s, term, False))
        return bool(self._guess(state, 2))

    def _guess(self, state: State, answers: int) -> int:
        """Answers a question that nothing is known of, each time anew."""
        given = state.guesses
        state.asked += 1
        if state.asked <= len(given):
            return given[state.asked - 1]
        raise Fork(*(lambda s, a=a: _answer(s, (*given, a)) for a in range(answers)))

    def _by_bounds(self, state: State, part: Part, what: Term) -> bool | None:
        """Decides a comparison of a term with a number by what is known of the term."""
        a, b = what.args
        term, number = (a, b) if isinstance(a, Term) else (b, a)
        if not isinstance(term, Term) or isinstance(number, Term):
            return None
        offset, first = 0, term.args[0] if term.args else None
        if term.name == "add" and isinstance(first, int):
            rest = self.terms.sum(*term.args[1:])  # type: ignore[arg-type]
            if isinstance(rest, Term):
                term, offset = rest, first
        domain = self.domain(state, part, term)
        if isinstance(number, Counted):
            if number.domain is not domain:
                return None
        elif not isinstance(number, int):
            return None
        value = (number.value if isinstance(number, Counted) else number) - offset
        is_counter = isinstance(number, Counted)
        if what.name == "eq":
            return not self.exceeds(state, domain, value, is_counter=is_counter) and self.exceeds(
                state, domain, value - 1, is_counter=is_counter
            )
        if isinstance(a, Term):  # term < number
            return not self.exceeds(state, domain, value - 1, is_counter=is_counter)
        return self.exceeds(state, domain, value, is_counter=is_counter)

    # ---- bounds

    def domain(self, state: State, part: Part, bound: Term, *, is_new: bool = False) -> Term:
        """Returns the domain of a bound in the present iterations of the loops around.

        Args:
            state: The state.
            part: The partition.
            bound: The bound.
            is_new: Whether a loop with this bound begins.
        """
        for domain, _ in part.loops:
            if domain is not None and domain.args[0] is bound and not is_new:
                return domain
        instance = part.instance()
        if not bound.counters and bound not in self.precision.bounds:
            instance = ()
        first = self.terms.make("domain", bound, *instance, 0)
        visits = part.visits.get(first, 0)
        if is_new:
            part.visits[first] = visits + 1
        number = visits if is_new else max(visits - 1, 0)
        found = self.terms.make("domain", bound, *instance, number)
        if found not in state.domains:
            modulus = self.precision.moduli.get(len(instance), 1)
            low, high = state.small.get(bound, (-math.inf, math.inf))
            state.domains[found] = Domain(modulus, low, high)
        return found

    def exceeds(self, state: State, domain: Term, value: int, *, is_counter: bool) -> bool:
        """Decides whether a bound is above a number.

        Args:
            state: The state.
            domain: The bound's domain.
            value: The number; of a counter of the domain, or exactly.
            is_counter: Which of them.

        Raises:
            Fork: The state does not tell.
        """
        known = state.domains[domain]
        self.tighten(state, domain, known)
        if known.low > value:
            return True
        if not is_counter and value >= self.precision.floor:
            self.raise_floor(value + 1)
        if known.high <= value:
            return False

        def more(s: State) -> None:
            s.domains[domain].low = max(s.domains[domain].low, value + 1)
            self._note(s, domain)

        def no_more(s: State) -> None:
            s.domains[domain].high = min(s.domains[domain].high, value)
            self._note(s, domain)

        raise Fork(no_more, more)

    def tighten(self, state: State, domain: Term, known: Domain) -> None:
        """Moves bounds to numbers of the residue that is known of the term."""
        bound = domain.args[0]
        assert isinstance(bound, Term)
        found = state.residues.get(bound)
        if found is None:
            return
        residue, modulus = found
        if known.base and known.modulus % modulus:
            self._raise_modulus(len(domain.args) - 2, modulus)
        if known.low < 0:
            known.low = 0
        if math.isfinite(known.low):
            known.low += (residue - int(known.low)) % modulus
        if math.isfinite(known.high):
            known.high -= (int(known.high) - residue) % modulus
        if known.low > known.high:
            raise InfeasibleError

    def _raise_modulus(self, depth: int, modulus: int) -> None:
        moduli = self.precision.moduli
        moduli[depth] = math.lcm(moduli.get(depth, 1), modulus)
        raise Restart

    def _note(self, state: State, domain: Term) -> None:
        """Notes what a path assumes of a bound, and keeps what is true of it for good."""
        bound, known = domain.args[0], state.domains[domain]
        assert isinstance(bound, Term)
        low, high = state.conditions.get(bound, (-math.inf, math.inf))
        state.conditions[bound] = (
            max(low, known.low + known.base),
            min(high, known.high + known.base),
        )
        if not bound.counters and not bound.is_opaque:
            floor = self.precision.floor
            low, high = state.small.get(bound, (-math.inf, math.inf))
            if known.high < floor:
                high = min(high, known.high)
            low = max(low, min(known.low, floor))
            if (low, high) != (-math.inf, math.inf):
                state.small[bound] = low, high

    # ---- residues

    def residue(self, state: State, number: Number, modulus: int) -> int:
        """Returns a number modulo another one.

        Raises:
            Fork: The state does not tell.
            Restart: It is not known as exactly.
        """
        if modulus == 1:
            return 0
        if isinstance(number, int):
            return number % modulus
        if isinstance(number, Counted):
            known = state.domains.get(number.domain)
            if known is None or known.modulus % modulus:
                self._raise_modulus(len(number.domain.args) - 2, modulus)
            return number.value % modulus
        if isinstance(number, Residue):
            if number.modulus % modulus:
                self.precision.carried = math.lcm(self.precision.carried, modulus)
                raise Restart
            return number.value % modulus
        return self._residue_of_term(state, number, modulus)

    def foresee(self, state: State, bound: Term) -> None:
        """Decides the residue of a bound before its loop begins, where it will be asked for.

        Raises:
            Fork: The state does not tell.
        """
        if bound not in self.precision.bounds:
            self.precision.bounds.add(bound)
            if not bound.counters and self.terms.make("domain", bound, 0) in state.domains:
                raise Restart
        modulus = self.precision.carried if bound.counters else self.precision.early.get(bound, 1)
        self.residue(state, bound, modulus)

    def _residue_of_term(self, state: State, term: Term, modulus: int) -> int:
        if term in self.precision.bounds:
            return self._guess_residue(state, term, modulus)
        if term.name in ("add", "plus"):
            parts = [self.residue(state, each, modulus) for each in term.args]  # type: ignore[arg-type]
            return sum(parts) % modulus
        if term.name == "div":
            number, divisor = term.args
            assert isinstance(divisor, int)
            return self.residue(state, number, divisor * modulus) // divisor  # type: ignore[arg-type]
        if term.name == "mul":
            first, *rest = term.args
            if isinstance(first, int):
                other = self.terms.product(*rest)  # type: ignore[arg-type]
                return (
                    first
                    * self.residue(state, other, modulus // math.gcd(first, modulus))
                    % modulus
                )
            counters = [each for each in term.args if not isinstance(each, Term)]
            if counters and len(counters) < len(term.args):
                others = [each for each in term.args if isinstance(each, Term)]
                found = self.residue(state, self.terms.product(*others), modulus)
                for each in counters:
                    found = found * self.residue(state, each, modulus) % modulus  # type: ignore[arg-type]
                return found
        if term.name in _REMAINS and isinstance(term.args[1], int):
            divisor = term.args[1]
            if divisor % modulus == 0:
                return self.residue(state, term.args[0], modulus)  # type: ignore[arg-type]
        if term.name == "select":
            part = state.parts[0]  # the condition is on terms, which no partition owns
            chosen = 1 if self.truth(state, part, term.args[0]) else 2  # type: ignore[arg-type]
            return self.residue(state, term.args[chosen], modulus)  # type: ignore[arg-type]
        return self._guess_residue(state, term, modulus)

    def _guess_residue(self, state: State, term: Term, modulus: int) -> int:
        if term.is_opaque:
            return self._guess(state, modulus)
        known = state.residues.get(term, (0, 1))
        if known[1] % modulus == 0:
            return known[0] % modulus
        if term in self.precision.bounds and not term.counters:
            early = self.precision.early.get(term, 1)
            if early % modulus:
                self.precision.early[term] = math.lcm(early, modulus)
                raise Restart
        wanted = math.lcm(known[1], modulus)
        raise Fork(
            *(lambda s, r=r: _know(s, term, (r, wanted)) for r in range(known[0], wanted, known[1]))
        )


def _answer(state: State, guesses: tuple[int, ...]) -> None:
    # Another question about the same thing may get another answer.
    state.is_doubtful = True
    state.guesses = guesses


def _decide(state: State, condition: Term, answer: bool) -> None:
    others = {arg for known in state.decisions for arg in known.args if not isinstance(arg, int)}
    if condition.counters or not others.isdisjoint(condition.args):
        state.is_doubtful = True
    state.decisions[condition] = answer


def _know(state: State, term: Term, residue: tuple[int, int]) -> None:
    if term.counters:
        state.is_doubtful = True
    state.residues[term] = residue


def _weight(number: Number) -> tuple[int, int]:
    return (1, number.order) if isinstance(number, Term) else (0, 0)
