"""Ranges of integers: lower and upper bounds of values.

For a value, or every element of a tensor, in every execution that reaches it:

1. The unsigned number is in the *unsigned* bounds.
2. The signed number is in the *signed* bounds; true is -1 as a signed ``i1``.
3. If one of the two does not cross the sign, the other one is equally tight.

Safe direction: bounds may be wider than necessary, never narrower.  An operation without a rule, a
load, a call and an argument give the full range of their type.

A function is executed on ranges along its control flow.  Loops of at most 1024 iterations, counted
with those of the enclosing loops, run iteration by iteration, so that carried values keep their
final bounds.  In longer loops, and in loops of unknown length, bounds that still move after some
rounds are widened to the extremes of the type.  A branch whose condition is constant goes one way;
unreachable values have no range.

The bounds hold for executions in which

- no poison is used: flags such as ``nsw`` hold, divisors are not 0, shifts are shorter than the
  type;
- the step of an ``scf.for`` is positive, as the operation requires;
- every ``llvm.intr.assume`` that is reached holds, and a block that is entered is left again: its
  assumptions hold in all of it, and in the blocks that it dominates;
- an ``index`` has 64 bits, or no ``index`` exceeds 32 bits where it has those.

Not handled: conditions of branches inside of them, relations between values (``x - x``), arguments
and results of calls, and sums whose bounds depend on the length of a long loop.
"""

from __future__ import annotations

from .analysis import RULES, RangeAnalysis
from .arith import decided
from .interval import Bounds, IntegerRange
from .tensors import either, first
from .visit import Found, Rule, Rules, Visit

__all__ = [
    "RULES",
    "Bounds",
    "Found",
    "IntegerRange",
    "RangeAnalysis",
    "Rule",
    "Rules",
    "Visit",
    "decided",
    "either",
    "first",
]
