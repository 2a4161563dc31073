"""Range rules for ``amdg`` operations, for ``RangeAnalysis.of``."""

from __future__ import annotations

from types import MappingProxyType

from triton_ext.analysis.ranges import Rules, either, first

__all__ = ["RANGE_RULES"]

#: Rules of the dialect, by the operation's name.
RANGE_RULES: Rules = MappingProxyType(
    {
        "amdg.concat": either,
        "amdg.extract_slice": first,
        "amdg.in_thread_transpose": first,
    }
)
