"""Views of ``ttng`` matrix instructions and of tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import OpResult, Value
from triton_ext.ir.dialects import OpReader, View

__all__ = [
    "TcGen5CommitOp",
    "TcGen5MmaOp",
    "TcGen5MmaScaledOp",
    "TmemAllocOp",
    "TmemLoadOp",
    "TmemStoreOp",
    "WarpGroupDotOp",
    "WarpGroupDotWaitOp",
]


def _first(results: tuple[OpResult, ...]) -> OpResult | None:
    return results[0] if results else None


@dataclass(frozen=True, slots=True)
class WarpGroupDotOp(View):
    """``%d = ttng.warp_group_dot %a, %b, %c, %useC {isAsync = true} : T * U -> V``.

    Attributes:
        a: Left operand, a buffer or a tensor.
        b: Right operand, a buffer.
        c: The accumulator that is added.
        use_c: Whether it is added; always where it is ``None``.
        is_async: Whether a ``ttng.warp_group_dot_wait`` has to follow.
        result: The result.
    """

    NAME: ClassVar[str] = "ttng.warp_group_dot"
    a: Value
    b: Value
    c: Value
    use_c: Value | None
    is_async: bool
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> WarpGroupDotOp:
        operands = reader.take(), reader.take(), reader.take(), reader.take_optional()
        return cls(reader.op, *operands, reader.flag("isAsync"), reader.result())


@dataclass(frozen=True, slots=True)
class WarpGroupDotWaitOp(View):
    """``%r:2 = ttng.warp_group_dot_wait %a, %b {pendings = 1 : i32} : T, U``.

    Attributes:
        inputs: Results of dots, and buffers that they read.
        pendings: Dots that may be in flight behind the wait.
        results: The inputs behind the wait.
    """

    NAME: ClassVar[str] = "ttng.warp_group_dot_wait"
    inputs: tuple[Value, ...]
    pendings: int
    results: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> WarpGroupDotWaitOp:
        return cls(reader.op, reader.take_rest(), reader.integer("pendings"), reader.op.results)


def _take_barriers(reader: OpReader) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """``(',' barrier '[' pred ']')*``."""
    barriers: list[Value] = []
    preds: list[Value] = []
    while (barrier := reader.take_optional(",")) is not None:
        barriers.append(barrier)
        preds.extend(reader.take_bracket())
    return tuple(barriers), tuple(preds)


def _take_token(reader: OpReader) -> Value | None:
    """``('[' token? ']')?``."""
    found = reader.take_bracket()
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class TcGen5MmaOp(View):
    """``%t = ttng.tc_gen5_mma %a, %b, %d[%dep], %useD, %pred, %bar[%p] {is_async} : ..``.

    Attributes:
        a: Left operand.
        b: Right operand.
        d: Accumulator in tensor memory.
        acc_dep: Token of what used the accumulator before.
        use_d: Whether the accumulator is added.
        pred: Whether it is done.
        barriers: mbarriers that are arrived at when it is done.
        barrier_preds: Whether they are, one for each.
        is_async: Whether the operation returns before it is done.
        token: Its token, if it has one.
    """

    NAME: ClassVar[str] = "ttng.tc_gen5_mma"
    a: Value
    b: Value
    d: Value
    acc_dep: Value | None
    use_d: Value
    pred: Value
    barriers: tuple[Value, ...]
    barrier_preds: tuple[Value, ...]
    is_async: bool
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> TcGen5MmaOp:
        operands = reader.take(), reader.take(), reader.take(), _take_token(reader)
        flags = reader.take(), reader.take()
        barriers = _take_barriers(reader)
        is_async = reader.flag("is_async")
        return cls(reader.op, *operands, *flags, *barriers, is_async, _first(reader.op.results))


@dataclass(frozen=True, slots=True)
class TcGen5MmaScaledOp(View):
    """``ttng.tc_gen5_mma_scaled %a, %b, %d, %sa, %sb, %useD, %pred lhs = .. rhs = .. : ..``.

    Attributes:
        a: Left operand.
        b: Right operand.
        d: Accumulator in tensor memory.
        acc_dep: Token of what used the accumulator before.
        a_scale: Scales of the left operand.
        b_scale: Scales of the right operand.
        use_d: Whether the accumulator is added.
        pred: Whether it is done.
        barriers: mbarriers that are arrived at when it is done.
        barrier_preds: Whether they are, one for each.
        is_async: Whether the operation returns before it is done.
        token: Its token, if it has one.
    """

    NAME: ClassVar[str] = "ttng.tc_gen5_mma_scaled"
    a: Value
    b: Value
    d: Value
    acc_dep: Value | None
    a_scale: Value
    b_scale: Value
    use_d: Value
    pred: Value
    barriers: tuple[Value, ...]
    barrier_preds: tuple[Value, ...]
    is_async: bool
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> TcGen5MmaScaledOp:
        operands = reader.take(), reader.take(), reader.take(), _take_token(reader)
        scales = reader.take(), reader.take()
        flags = reader.take(), reader.take()
        barriers = _take_barriers(reader)
        is_async, token = reader.flag("is_async"), _first(reader.op.results)
        return cls(reader.op, *operands, *scales, *flags, *barriers, is_async, token)


@dataclass(frozen=True, slots=True)
class TcGen5CommitOp(View):
    """``ttng.tc_gen5_commit %bar, %pred descs %a : !ttg.memdesc<...>, ...``.

    Attributes:
        barrier: The mbarrier that is arrived at when the MMAs so far are done.
        pred: Whether it is done; always where it is ``None``.
        descs: Operands whose CTAs take part.
    """

    NAME: ClassVar[str] = "ttng.tc_gen5_commit"
    barrier: Value
    pred: Value | None
    descs: tuple[Value, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> TcGen5CommitOp:
        return cls(reader.op, reader.take(), reader.take_optional(","), reader.take_rest())


@dataclass(frozen=True, slots=True)
class TmemAllocOp(View):
    """``%m, %t = ttng.tmem_alloc %src : (T) -> (!ttg.memdesc<...>, !ttg.async.token)``.

    Attributes:
        src: The buffer's initial value.
        result: The buffer.
        token: Its token, if it has one.
    """

    NAME: ClassVar[str] = "ttng.tmem_alloc"
    src: Value | None
    result: OpResult
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> TmemAllocOp:
        rest = reader.op.results[1:]
        return cls(reader.op, reader.take_optional(), reader.result(), _first(rest))


@dataclass(frozen=True, slots=True)
class TmemLoadOp(View):
    """``%r, %t = ttng.tmem_load %m[%dep] : !ttg.memdesc<...> -> T``.

    Attributes:
        src: The buffer.
        dep: Token of what used the buffer before.
        result: The tensor.
        others: Further results: the token, and what a reduction gives.
    """

    NAME: ClassVar[str] = "ttng.tmem_load"
    src: Value
    dep: Value | None
    result: OpResult
    others: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> TmemLoadOp:
        result, *others = reader.op.results
        return cls(reader.op, reader.take(), _take_token(reader), result, tuple(others))


@dataclass(frozen=True, slots=True)
class TmemStoreOp(View):
    """``%t = ttng.tmem_store %src, %m[%dep], %pred : T -> !ttg.memdesc<...>``.

    Attributes:
        src: The tensor.
        dst: The buffer.
        dep: Token of what used the buffer before.
        pred: Whether it is done.
        token: Its token, if it has one.
    """

    NAME: ClassVar[str] = "ttng.tmem_store"
    src: Value
    dst: Value
    dep: Value | None
    pred: Value
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> TmemStoreOp:
        operands = reader.take(), reader.take(), _take_token(reader), reader.take()
        return cls(reader.op, *operands, _first(reader.op.results))
