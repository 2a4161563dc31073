"""What the kernels use of Gluon, where Triton 3.6 and 3.7 name it or do it in another way."""

from __future__ import annotations

import typing
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language import core

__all__ = ["aggregate", "allocate_mbarrier", "async_load", "async_store", "barrier", "typed"]


def _aggregate(cls: type) -> Any:
    """An aggregate with a constructor that takes the fields in order; before 3.8 it has none."""
    fields = typing.get_type_hints(cls)

    def init(self: Any, *values: Any) -> None:
        for name, value in zip(fields, values, strict=True):
            setattr(self, name, value)

    init.__triton_builtin__ = True
    cls.__annotations__ = fields
    cls.__init__ = init  # type: ignore[misc]
    return core._aggregate(cls)


aggregate = getattr(gluon, "aggregate", None) or _aggregate
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _allocate_mbarrier(batch: gl.constexpr):
    return gl.allocate_shared_memory(gl.int64, [batch, 1], mbarrier.MBarrierLayout())


# New in 3.7.
allocate_mbarrier = getattr(mbarrier, "allocate_mbarrier", None) or _allocate_mbarrier
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@builtin
def typed(values, _semantic=None):
    """A tuple of tuples whose type knows the constants in it, which 3.6 forgets for partitions."""
    return values if hasattr(gl, "barrier") else _typed(values)


def _typed(values: Any) -> Any:
    if not isinstance(values, core.tuple):
        return values
    made = [_typed(value) for value in values.values]
    types = core.tuple_type([value.type for value in made], values.type.fields)
    return core.tuple(made, types)
