"""Views of ``ttng`` operations on mbarriers, and fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Value
from triton_ext.ir.dialects import OpReader, View

__all__ = [
    "ArriveBarrierOp",
    "AsyncCopyMbarrierArriveOp",
    "BarrierExpectOp",
    "FenceAsyncSharedOp",
    "InitBarrierOp",
    "InvalBarrierOp",
    "WaitBarrierOp",
]


@dataclass(frozen=True, slots=True)
class InitBarrierOp(View):
    """``ttng.init_barrier %bar, 1 : !ttg.memdesc<...>``.

    Attributes:
        barrier: The mbarrier.
        count: Arrivals that complete a phase.
    """

    NAME: ClassVar[str] = "ttng.init_barrier"
    barrier: Value
    count: int

    @classmethod
    def _of(cls, reader: OpReader) -> InitBarrierOp:
        return cls(reader.op, reader.take(), reader.integer_here("count"))


@dataclass(frozen=True, slots=True)
class InvalBarrierOp(View):
    """``ttng.inval_barrier %bar : !ttg.memdesc<...>``.

    Attributes:
        barrier: The mbarrier.
    """

    NAME: ClassVar[str] = "ttng.inval_barrier"
    barrier: Value

    @classmethod
    def _of(cls, reader: OpReader) -> InvalBarrierOp:
        return cls(reader.op, reader.take())


@dataclass(frozen=True, slots=True)
class BarrierExpectOp(View):
    """``ttng.barrier_expect %bar, 32768, %pred : !ttg.memdesc<...>``.

    Attributes:
        barrier: The mbarrier.
        size: Bytes that the phase waits for in addition.
        pred: Whether it is done.
    """

    NAME: ClassVar[str] = "ttng.barrier_expect"
    barrier: Value
    size: int
    pred: Value

    @classmethod
    def _of(cls, reader: OpReader) -> BarrierExpectOp:
        return cls(reader.op, reader.take(), reader.integer_here("size"), reader.take())


@dataclass(frozen=True, slots=True)
class WaitBarrierOp(View):
    """``ttng.wait_barrier %bar, %phase, %pred deps %a, %b : !ttg.memdesc<...>, ...``.

    Attributes:
        barrier: The mbarrier.
        phase: Parity of the phase that is waited for.
        pred: Whether it is done; always where it is ``None``.
        deps: Buffers that must not be used before.
    """

    NAME: ClassVar[str] = "ttng.wait_barrier"
    barrier: Value
    phase: Value
    pred: Value | None
    deps: tuple[Value, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> WaitBarrierOp:
        barrier, phase = reader.take(), reader.take()
        pred = reader.take_optional(",")
        return cls(reader.op, barrier, phase, pred, reader.take_rest())


@dataclass(frozen=True, slots=True)
class ArriveBarrierOp(View):
    """``ttng.arrive_barrier %bar, 1, %pred : !ttg.memdesc<...>``.

    Attributes:
        barrier: The mbarrier.
        count: Arrivals.
        pred: Whether it is done; always where it is ``None``.
    """

    NAME: ClassVar[str] = "ttng.arrive_barrier"
    barrier: Value
    count: int
    pred: Value | None

    @classmethod
    def _of(cls, reader: OpReader) -> ArriveBarrierOp:
        barrier, count = reader.take(), reader.integer_here("count")
        return cls(reader.op, barrier, count, reader.take_optional())


@dataclass(frozen=True, slots=True)
class AsyncCopyMbarrierArriveOp(View):
    """``ttng.async_copy_mbarrier_arrive %bar {noIncrement} : !ttg.memdesc<...>``.

    Attributes:
        barrier: The mbarrier.
        no_increment: Whether the pending count stays as it is.
    """

    NAME: ClassVar[str] = "ttng.async_copy_mbarrier_arrive"
    barrier: Value
    no_increment: bool

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncCopyMbarrierArriveOp:
        return cls(reader.op, reader.take(), reader.flag("noIncrement"))


@dataclass(frozen=True, slots=True)
class FenceAsyncSharedOp(View):
    """``ttng.fence_async_shared {bCluster = false}``.

    Attributes:
        cluster: Whether the fence is for the cluster.
    """

    NAME: ClassVar[str] = "ttng.fence_async_shared"
    cluster: bool

    @classmethod
    def _of(cls, reader: OpReader) -> FenceAsyncSharedOp:
        return cls(reader.op, reader.flag("bCluster"))
