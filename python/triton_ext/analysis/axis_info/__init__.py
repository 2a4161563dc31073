"""Axis info: divisibility, contiguity and constancy of integers, pointers and tensors of them.

The terms mean the same as in upstream Triton.  For a value with elements ``x[.., i, ..]`` (a scalar
is a tensor of one element), in each dimension with all other indices fixed:

1. *Contiguity* ``c``: in every aligned group ``i = g * c .. g * c + c - 1`` the elements are
   ``x[g * c] + t`` for ``t = 0 .. c - 1``; of pointers, ``t`` elements of what they point to.
2. *Divisibility* ``k``: ``k`` divides the first element of every such group; of pointers, their
   address in bytes.
3. *Constancy* ``n``: in every aligned group of ``n`` the elements are equal.
4. *Constant*: every element is this number; signed, but 0 or 1 for ``i1``.
5. If the contiguity of a dimension is 1, every element is a first one, so its divisibility applies
   to all elements and holds in every dimension.
6. *Gap*: an operation that the claims depend on, and about which the host may know more than we do:
   one without a rule that is not known to be opaque to hosts, or about which a host claims more
   than is true.  A value without a gap is *complete*: no host claims more.

Safe direction: a claim may be weaker than the truth, never stronger.  Users that need an upper
bound (a wait count is too high if the host proves wider accesses than we do) must treat a value
that is not complete as if everything were known about it.

The claims hold for executions in which

- no ``addi``, ``subi``, ``muli``, ``shli`` or ``trunci`` overflows as a signed number,
- ``divsi`` and ``remsi`` see dividends that are not negative and positive divisors, and ``divui``,
  ``remui``, ``extui``, ``minui`` and ``maxui`` numbers that are not negative when read as signed,
- a function that the module calls is entered by those calls only, and
- attributes ``tt.divisibility``, ``tt.contiguity`` and ``tt.constancy`` are true.

Hosts assume the same.  Cheap claims beyond those of hosts are made too: joins and splits,
``index_cast``, divisors of bit operations, groups that are shorter than the dimension.

Observed differences between hosts: 3.6 and 3.7 do not apply property 5, have no rule for
``tt.reshape``, read negative constants as large ones in ``min``, ``max``, comparisons and
divisions, and treat ``amdg.extract_slice`` as the identity; some fold poison to constants;
up to 3.8 ``tt.bitcast`` keeps the contiguity of pointers to elements of another size.

Precondition of property 6: the input is canonical, as Triton's own passes leave it.  A host inlines
calls and runs MLIR's canonicalizer between our analysis and its own, and may know more about the
result.  Gaps mark this if it shows in one operation, or in a pair that cancels
(:mod:`~triton_ext.analysis.axis_info.identities`); at branches and loops whose conditions or bounds
have such a gap; at arguments and results of inlined functions with calls that pass more than all
have in common; and in unreachable code.  Larger expressions that simplify only as a whole leave no
gap.
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
