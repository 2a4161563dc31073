"""Buffer regions: the memory of a memory descriptor, to the byte.

A descriptor is a set of *views* of allocations with known offsets: the bytes of shared memory in
each CTA (words of tensor memory: row and column) that its elements occupy, including swizzling,
padding, partitions and CTA layouts.  This answers whether two descriptors overlap, and whether one
contains another::

    regions = BufferRegions(module)
    regions.region_set(one).may_alias(regions.region_set(other))

1. Allocations are at ``allocation.offset`` (``tensor_memory_row_offset`` and
   ``tensor_memory_col_offset``).
2. Slices, reinterpretations and ``memdesc_index`` with a constant give one view of each; a variable
   index gives every buffer.  Transpositions and reshapes change nothing.
3. Everything else follows the edges of :mod:`~triton_ext.analysis.alias_sets`.
4. Addresses are relative to the memory of the allocating function (its *frame*).  Views of
   different frames are disjoint.

A descriptor is unknown if its alias set is incomplete, an encoding has no layout for its shape, an
index leaves the allocation, or it has more than 256 views or :data:`MOST` bytes.

Safe direction: :meth:`RegionSet.may_alias` may be true when two never overlap, not the reverse;
:meth:`RegionSet.contains` may be false when it holds.  Iterations of loops are not distinguished.
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
