"""Ranges of integers: the least and the greatest number that a value may be.

Of a value, or of every element of a tensor, in every execution that reaches it:

1. The number without a sign is in the *unsigned* bounds.
2. The signed number is in the *signed* bounds; true is -1 as a signed ``i1``.
3. Where one of the two does not cross the sign, the other one says as much.

Safe direction: bounds may be wider than what happens, never narrower.  An operation without a rule,
a load, a call and an argument give every number of their type.

A function runs on ranges as control flow has it.  Loops of at most 1024 iterations, with those of
the loops around them, run iteration by iteration, so that carried values keep their last bounds.
In longer loops, and in loops of unknown length, bounds that still move after some rounds go to the
extremes of the type.  A branch whose condition is always the same goes one way; values that are not
reached have no range.

The bounds hold for executions in which

- nothing that an operation makes poison is used: flags such as ``nsw`` are kept, divisors are not
  0, shifts are shorter than the type;
- the step of an ``scf.for`` is positive, as the operation demands;
- every ``llvm.intr.assume`` that is reached holds, and a block that is entered is left again: what
  it assumes holds in all of it, and in the blocks that it dominates;
- an ``index`` has 64 bits, or no ``index`` leaves 32 bits where it has those.

Not handled: what the condition of a branch says inside of it, relations between values (``x - x``),
which numbers a call passes and returns, and sums whose bounds depend on the length of a long loop.
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
