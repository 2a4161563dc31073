"""Axis info rules for ``amdg`` operations, for ``AxisInfoAnalysis.of``.

The host's lowering knows these operations, its wait-count pass does not: without these rules an
analysis treats each of them as unknown.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType

from triton_ext.analysis.axis_info import AxisInfo, Rules, Visit
from triton_ext.ir.dialects import OpReader

__all__ = ["AXIS_INFO_RULES", "extract_slice"]

_OFFSETS = re.compile(r"\s*\[\s*(-?\d{1,18}(?:\s*,\s*-?\d{1,18})*)\s*\]", re.ASCII)

#: Operations whose results are unknown on every host.
_OPAQUE = """
    async_copy_local_to_global async_tdm_copy_global_to_local async_tdm_copy_local_to_global
    async_tdm_fused_copy_global_to_local async_tdm_gather async_tdm_intrinsic_wait async_tdm_scatter
    async_tdm_wait async_wait buffer_atomic_cas buffer_atomic_rmw buffer_load buffer_load_to_local
    concat in_thread_transpose local_load_packed_tranposed local_load_packed_transposed
    masked_load scaled_downcast_fp4 scaled_downcast_fp8 scaled_upcast_fp4 scaled_upcast_fp8
    tdm_prefetch update_tensor_descriptor
    upcast_mxfp
"""


def extract_slice(visit: Visit) -> AxisInfo | None:
    """``%r = amdg.extract_slice %x [8, 0] : T to U``: a tile of a tensor, from constant offsets.

    Numbers in comments are the properties of :mod:`triton_ext.analysis.axis_info`.
    """
    source, shape = visit.operands[0], visit.shape
    offsets = _offsets(visit)
    if offsets is None or not len(offsets) == len(shape) == source.rank:
        return AxisInfo.nothing(len(shape), visit.op)
    runs, divisors, repeats = [], [], []
    for d, (offset, size) in enumerate(zip(offsets, shape, strict=True)):
        # (1), (3) Groups of the tile are groups of the source if the tile starts at one.
        aligned = math.gcd(offset, source.contiguity[d])
        run = min(aligned, size)
        inside = offset % source.contiguity[d]
        if run == size and inside == 0:
            divisor = source.divisibility[d]  # (2) Its only group begins where the source's does.
        elif run == size:
            divisor = math.gcd(source.divisibility[d], inside * visit.stride)
        else:
            divisor = source.group_divisor(d, run, visit.stride)
        runs.append(run)
        divisors.append(max(divisor, source.divisor))
        repeats.append(min(math.gcd(offset, source.constancy[d]), size))
    found = AxisInfo(tuple(runs), tuple(divisors), tuple(repeats), source.constant)
    # (6) Hosts up to 3.7 apply the properties of the source to the tile, as far as they fit.
    same = all(
        runs[d] == min(source.contiguity[d], size)
        and divisors[d] == source.divisibility[d]
        and repeats[d] == min(source.constancy[d], size)
        for d, size in enumerate(shape)
    )
    return found if same else found.with_gap(visit.op)


def _offsets(visit: Visit) -> tuple[int, ...] | None:
    reader = OpReader(visit.op)
    if "static_offsets" in visit.op.attributes:
        return reader.integers("static_offsets")
    match = _OFFSETS.match(reader.words[-1])
    return None if match is None else tuple(map(int, match[1].split(",")))


def _nothing(visit: Visit) -> AxisInfo | None:
    return None


#: Rules of the dialect, by the operation's name.
AXIS_INFO_RULES: Rules = MappingProxyType(
    {
        "amdg.extract_slice": extract_slice,
        **{f"amdg.{name}": _nothing for name in _OPAQUE.split()},
    }
)
