"""The marker in front of products that become one, in TTGIR; ``language.join_marker`` makes it."""

from __future__ import annotations

from triton_ext.ir import Operation
from triton_ext.markers import JOIN

__all__ = ["is_join"]


def is_join(op: Operation) -> bool:
    """Returns whether an operation is a join marker."""
    return op.name == "tt.extern_elementwise" and f'"{JOIN}"' in op.text
