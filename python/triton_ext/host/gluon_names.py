"""Functions for NVIDIA kernels in Gluon that Triton 3.6 and 3.7 lack or name differently.

Each name is Gluon's own where Gluon has it.  A substitute can go when the release that is named
beside it is the oldest one supported.
"""

from __future__ import annotations

import typing
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language import core

__all__ = [
    "aggregate",
    "allocate_mbarrier",
    "async_copy_load",
    "async_load",
    "async_store",
    "barrier",
    "reinterpret",
    "specialize",
    "typed",
]


def _aggregate(cls: type) -> Any:
    """An aggregate with a constructor that takes the fields in order; before 3.8 it has none."""
    fields = typing.get_type_hints(cls)

    def init(self: Any, *values: Any) -> None:
        for name, value in zip(fields, values, strict=True):
            setattr(self, name, value)

    init.__triton_builtin__ = True  # type: ignore[attr-defined]
    cls.__annotations__ = fields
    cls.__init__ = init  # type: ignore[misc]
    return core._aggregate(cls)


def _allocate_mbarrier(batch: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.allocate_shared_memory(gl.int64, [batch, 1], mbarrier.MBarrierLayout())


def _typed(values: Any, _semantic: Any = None) -> Any:
    """A tuple of tuples whose type knows the constants in it."""
    if not isinstance(values, core.tuple):
        return values
    made = [_typed(value) for value in values.values]
    types = core.tuple_type([value.type for value in made], values.type.fields)
    return core.tuple(made, types)


def _as_it_is(values: Any, _semantic: Any = None) -> Any:
    return values


@builtin  # type: ignore[untyped-decorator]
def specialize(
    consumer: Any, inputs: Any, producer: Any, loads: Any, config: Any, _semantic: Any = None,
    _generator: Any = None,
) -> None:  # fmt: skip
    """Runs a producer's warp beside consumers of 4 warps each; consumer 0 gets the CTA's own warps.

    Args:
        consumer: Called with its number and ``inputs``.
        inputs: Arguments of all consumers.
        producer: Called with ``loads``.
        loads: Arguments of the producer.
        config: Has ``consumers``, ``consumer_registers`` and ``producer_registers``.
    """
    config = config.value
    others = config.consumers - 1
    partitions = [
        (consumer, core.tuple([gl.constexpr(me), *inputs])) for me in range(config.consumers)
    ]
    gl.warp_specialize(
        [*partitions, (producer, loads)],
        [4] * others + [1],
        [config.consumer_registers] * others + [config.producer_registers],
        _semantic=_semantic,
        _generator=_generator,
    )


# Public from 3.8 on.
aggregate = getattr(gluon, "aggregate", None) or _aggregate
# Renamed in 3.8: copies by address, then those of the TMA unit.
async_copy_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
# New in 3.7, as is the name of the barrier.
allocate_mbarrier = getattr(mbarrier, "allocate_mbarrier", None) or gluon.jit(_allocate_mbarrier)
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
# Public from 3.9 on.
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret
# 3.6, the release without that barrier, loses the constants of tuples that partitions get.
typed = builtin(_as_it_is if hasattr(gl, "barrier") else _typed)
