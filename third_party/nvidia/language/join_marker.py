"""The marker in front of WGMMAs that are to be one (``markers.JOIN``)."""

from __future__ import annotations

from typing import Any

from triton.language import core
from triton_ext.markers import JOIN, JOIN_LIBRARY

__all__ = ["mark_join"]


def mark_join(columns: list[int], semantic: Any) -> None:
    """Leaves a call in LLVM IR; it is not pure, so it stays in front of the WGMMAs.

    Args:
        columns: Columns of each accumulator, in order.
        semantic: ``_semantic`` of the kernel that is being traced.
    """
    signature = (core.int32,) * len(columns)
    core.extern_elementwise(
        JOIN_LIBRARY,
        "",
        [semantic.to_tensor(number) for number in columns],
        {signature: (JOIN, core.int32)},
        is_pure=False,
        _semantic=semantic,
    )
