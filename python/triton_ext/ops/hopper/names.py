"""What the kernels use of Gluon, where Triton 3.6 and 3.7 name it or do it in another way."""

from __future__ import annotations

from triton_ext.host.gluon_names import (
    aggregate,
    allocate_mbarrier,
    async_load,
    async_store,
    barrier,
    reinterpret,
    typed,
)

__all__ = [
    "aggregate",
    "allocate_mbarrier",
    "async_load",
    "async_store",
    "barrier",
    "reinterpret",
    "typed",
]
