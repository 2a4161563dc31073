"""Buffer regions: the memory that a memory descriptor names, to the byte.

A descriptor is known as a set of *views* of allocations whose offsets are known: which bytes of
shared memory in which CTA (words of tensor memory: row and column) its elements occupy, swizzling,
padding, partitions and CTA layouts included.  So two descriptors can be asked whether they have
memory in common, and one whether it holds all of another::

    regions = BufferRegions(module)
    regions.region_set(one).may_alias(regions.region_set(other))

1. Allocations lie where ``allocation.offset`` (``tensor_memory_row_offset`` and
   ``tensor_memory_col_offset``) says.
2. Slices, reinterpretations and ``memdesc_index`` with a constant give one view of each; an index
   that is not constant gives every buffer.  Transpositions and reshapes change nothing.
3. Everything else follows the edges of :mod:`~triton_ext.analysis.alias_sets`.
4. Addresses count from where the memory of the allocating function starts (its *frame*).  Views of
   different frames are disjoint.

A descriptor is not known where its alias set is incomplete, where an encoding has no layout for its
shape, where an index leaves the allocation, and where it has more than 256 views or :data:`MOST`
bytes.

Safe direction: :meth:`RegionSet.may_alias` may be true when two never meet, not the reverse;
:meth:`RegionSet.contains` may be false when it holds.  Not told apart: iterations of loops.
"""

from __future__ import annotations

from .analysis import BufferRegions, RegionSet, View
from .footprint import MOST, Footprint, Region
from .geometry import Geometry, Offset, geometry_of
from .state_plan import StatePlan, state_plan

__all__ = [
    "MOST",
    "BufferRegions",
    "Footprint",
    "Geometry",
    "Offset",
    "Region",
    "RegionSet",
    "StatePlan",
    "View",
    "geometry_of",
    "state_plan",
]
