"""Matrix products of a warp group (WGMMA): asynchronous, and waited for by their number.

The result of a product in flight can be passed on, also to another product.  Reading it before a
wait has retired the product is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import UnreadyError, at_place, fault
from triton_ext.emulator.memory import LdsView
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation

from ..dialect import mma
from ..dialect.join import is_join
from .copies import check_async_read
from .mbarriers import agent_of, races_of

__all__ = ["WGMMA", "as_tf32", "matmul"]


#: Multiplications of a product that OpenBLAS leaves to one thread.
_ONE_THREAD = 1 << 18


@dataclass(slots=True, eq=False)
class _Product:
    """A product that was issued.

    Attributes:
        op: The operation.
        value: Its result.
        operands: The buffers that it reads.
        is_done: Whether a wait retired it.
        group: Number of the group that it is committed with.
    """

    op: Operation
    value: Array
    operands: list[tuple[Operation, LdsView]] = field(default_factory=list)
    is_done: bool = False
    group: int = 0


class _Pending:
    """The result of a product in flight, as a value of the kernel."""

    def __init__(self, product: _Product) -> None:
        self.product = product

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnreadyError(
            "reads the result of a matrix product that is in flight",
            at_place("the product", self.product.op),
            "use what warpgroup_mma_wait returns, with fewer products pending",
        )

    def __getattr__(self, name: str) -> NoReturn:
        # numpy asks for attributes of arrays.
        self.__array__()


class _Products:
    """The products in flight of one part of a kernel, oldest first."""

    def __init__(self) -> None:
        self.flying: list[_Product] = []
        self._last_group = 0
        self._joined = 0

    @classmethod
    def of(cls, group: Workgroup) -> _Products:
        """Those of the part that runs."""
        found = group.own.get(cls)
        if not isinstance(found, cls):
            found = group.own[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def issue(self, group: Workgroup, product: _Product, buffers: list[LdsView]) -> None:
        """Puts a product into flight."""
        for buffer in buffers:
            buffer.draining[...] += 1
            product.operands.append((product.op, buffer))
        group.copies.extend(product.operands)
        if self._joined:
            self._joined -= 1
        else:
            self._last_group += 1
        product.group = self._last_group
        self.flying.append(product)

    def join(self, count: int) -> None:
        """Makes waits count the next products as one."""
        self._last_group += 1
        self._joined = count

    def retire(self, group: Workgroup, pendings: int) -> None:
        """Retires all products but the newest ``pendings``."""
        groups = sorted({product.group for product in self.flying})
        done = groups[: max(0, len(groups) - pendings)]
        for product in [product for product in self.flying if product.group in done]:
            for place in product.operands:
                group.copies.remove(place)
                place[1].draining[...] -= 1
                races_of(group).note_read(agent_of(group), product.op, place[1])
            product.is_done = True
            self.flying.remove(product)

    def check_end(self, kernel: Operation) -> None:
        """Refuses that a kernel ends with products in flight.

        Raises:
            EmulationError: There is one.
        """
        for product in self.flying:
            raise fault(
                product.op,
                "the kernel ends while this matrix product may still read shared memory",
                "wait for 0 products at the end",
            )


def as_tf32(values: Array) -> Array:
    """Rounds float32 as products read it: the sign, the exponent and 10 bits of the mantissa.

    The lower 13 bits are ignored (PTX ISA, "Alternate floating-point data formats"), which rounds
    towards zero.
    """
    bits: Array = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def matmul(a: Array, b: Array) -> Array:
    """The product, in pieces that OpenBLAS gives to one thread.

    Its threads wait for each other by polling; on a machine that does other things as well, one
    product in two threads took 46 ms instead of 0.1.
    """
    rows = max(1, _ONE_THREAD // b.size)
    pieces = [np.matmul(a[row : row + rows], b) for row in range(0, a.shape[0], rows)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _dot(op: Operation, context: Context) -> Step:
    view = mma.WarpGroupDotOp.match(op)
    assert view is not None
    element = context.element(view.result)
    # Products of 8-bit and 16-bit numbers, and of tf32, are exact in float32, and are added in it;
    # sm_90 itself adds products of fp8 with about 14 bits.
    wide = np.dtype(np.float32) if element.is_float else np.dtype(np.int64)
    is_tf32 = context.element(view.a).name == "f32"

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        buffers: list[LdsView] = []

        def operand(value: Any) -> Array:
            if isinstance(value, LdsView):
                check_async_read(op, group, value)
                buffers.append(value)
                value = value.data
            return as_tf32(value) if is_tf32 else np.asarray(value).astype(wide)

        found = matmul(operand(values[view.a]), operand(values[view.b]))
        if view.use_c is None or values[view.use_c]:
            c = values[view.c]
            # Products of one accumulator follow each other in order.
            found += c.product.value if isinstance(c, _Pending) else c
        product = _Product(op, element.rounded(found))
        products = _Products.of(group)
        products.issue(group, product, buffers)
        if view.is_async:
            values[view.result] = _Pending(product)
        else:
            products.retire(group, 0)
            values[view.result] = product.value

    return step


def _wait(op: Operation, context: Context) -> Step:
    view = mma.WarpGroupDotWaitOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        _Products.of(group).retire(group, view.pendings)
        for result, value in zip(view.results, view.inputs, strict=True):
            found = values[value]
            is_done = isinstance(found, _Pending) and found.product.is_done
            values[result] = found.product.value if is_done else found

    return step


def _join(op: Operation, context: Context) -> Step:
    """The marker in front of products that become one."""
    if not is_join(op):
        raise fault(op, "the emulator does not support functions of libraries")
    return lambda group: _Products.of(group).join(len(op.operands))


WGMMA: dict[str, Prepare] = {
    "tt.extern_elementwise": _join,
    mma.WarpGroupDotOp.NAME: _dot,
    mma.WarpGroupDotWaitOp.NAME: _wait,
}
