"""Axis info: divisibility, contiguity and constancy of integers, pointers and tensors of them.

The words mean what they mean in upstream Triton.  Of a value with elements ``x[.., i, ..]`` (a
scalar is a tensor of one element), for each dimension with all other indices fixed:

1. *Contiguity* ``c``: in every aligned group ``i = g * c .. g * c + c - 1`` the elements are
   ``x[g * c] + t`` for ``t = 0 .. c - 1``; of pointers, ``t`` elements of what they point to.
2. *Divisibility* ``k``: ``k`` divides the first element of every such group; of pointers, their
   address in bytes.
3. *Constancy* ``n``: in every aligned group of ``n`` the elements are equal.
4. *Constant*: every element is this number; signed, but 0 or 1 for ``i1``.
5. Where the contiguity of a dimension is 1 every element is a first one, so that its divisibility
   is one of all elements and holds in every dimension.
6. *Gap*: an operation that the claims rest on, and of which the host may know more than we do: one
   without a rule that is not known to be opaque to hosts either, or one of which a host claims more
   than is true.  Without a gap a value is *complete*: no host claims more.

Safe direction: a claim may be weaker than the truth, never stronger.  Whoever needs a bound from
above (a wait count is too high if the host proves wider accesses than we do) must treat a value
that is not complete as if everything were known about it.

The claims hold for executions in which

- no ``addi``, ``subi``, ``muli``, ``shli`` or ``trunci`` overflows as a signed number,
- ``divsi`` and ``remsi`` see dividends that are not negative and positive divisors, and ``divui``,
  ``remui``, ``extui``, ``minui`` and ``maxui`` numbers that are not negative when read as signed,
- a function that is called in the module is entered by those calls only, and
- attributes ``tt.divisibility``, ``tt.contiguity`` and ``tt.constancy`` tell the truth.

Hosts assume the same.  Where it is cheap more is claimed than hosts claim: joins and splits,
``index_cast``, divisors of bit operations, groups that are shorter than the dimension.

What hosts differ in, as their passes show: 3.6 and 3.7 do not apply property 5 and have no rule for
``tt.reshape``, read negative constants as large ones in ``min``, ``max``, comparisons and
divisions, and take ``amdg.extract_slice`` for an identity; some have constants for results that are
poison; up to 3.8 ``tt.bitcast`` keeps the
contiguity of pointers to elements of another size.

Precondition of property 6: the input is canonical, as Triton's own passes leave it.  A host inlines
calls and runs MLIR's canonicalizer between our analysis and its own, and may know more of what is
left then.  Gaps are left where that shows in one operation, or in a pair of which one undoes the
other (:mod:`~triton_ext.analysis.axis_info.identities`); at branches and loops whose conditions or
bounds have such a gap; at arguments and results of functions that are put in the place of calls
which pass more than is common to them; and at what no path reaches.  Expressions of more operations
that can be simplified only together leave none.
"""

from __future__ import annotations

from .analysis import RULES, AxisInfoAnalysis
from .info import LIMIT, AxisInfo, join
from .visit import Rule, Rules, Types, Visit

__all__ = [
    "LIMIT",
    "RULES",
    "AxisInfo",
    "AxisInfoAnalysis",
    "Rule",
    "Rules",
    "Types",
    "Visit",
    "join",
]
