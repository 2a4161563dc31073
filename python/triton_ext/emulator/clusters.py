"""Clusters: the CTAs of one run by turns, each with its share of every value.

A module is written for the cluster: a tensor or a buffer has the size that all CTAs hold together,
and its encoding says how they share it (``CGALayout``).  Here every CTA runs the kernel with values
of its own share, and knows which one it is; what reaches into another CTA finds there what lies at
the same address.

What moves values between CTAs, or depends on where in the cluster's tensor a share lies, is refused
by name, but for the copies, mbarriers and products that vendors have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from triton_ext.ir import Module, Operation
from triton_ext.ir.dialects import OpReader
from triton_ext.ir.encodings.conversion import cga_units, shape_per_cta
from triton_ext.ir.types import Type

from .elements import Array
from .faults import EmulationError, fault
from .fibers import Fibers
from .memory import LdsView
from .races import Agent

__all__ = ["Cluster", "cga_bases", "check_operation", "num_ctas_of", "share_of", "shared_bits"]

#: Operations that take elements of other CTAs.
_ACROSS = frozenset({"tt.reduce", "tt.scan", "tt.gather", "tt.histogram"})
#: Those of them that combine elements along an axis only.
_ALONG = frozenset({"tt.reduce", "tt.scan"})
#: Operations that keep every element in its CTA where the two sides are split alike.
_ALIKE = frozenset({"ttg.convert_layout", "ttg.local_load", "ttg.local_store", "ttg.local_alloc"})
#: Operations that keep every element in its CTA where only the outermost dimension is split.
_ROWS = frozenset({"tt.reshape", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret"})


def num_ctas_of(module: Module) -> int:
    """CTAs of a cluster."""
    return int(module.op.attributes.get("ttg.num-ctas", "1").partition(":")[0])


def cga_bases(type_: Type) -> tuple[tuple[int, ...], ...]:
    """How the CTAs share a value: a basis per bit of a CTA's number, in shares; often none."""
    encoding = getattr(type_, "encoding", None)
    bases: tuple[tuple[int, ...], ...] = getattr(encoding, "cga_bases", ())
    # Linear encodings have them in elements.
    return cga_units(bases)


def shared_bits(bases: Sequence[Sequence[int]]) -> int:
    """The bits of a CTA's number that make no difference to what it holds."""
    return sum(1 << bit for bit, basis in enumerate(bases) if not any(basis))


def share_of(type_: Type) -> Type:
    """The type of what one CTA holds of a value."""
    bases = cga_bases(type_)
    if not bases:
        return type_
    typed: Any = type_
    shape = typed.static_shape
    # The dimension in front of a buffer's encoding counts buffers.
    head = len(shape) - len(bases[0])
    shape = (*shape[:head], *shape_per_cta(bases, shape[head:]))
    shared: Type = dataclasses.replace(typed, shape=shape)
    return shared


def check_operation(op: Operation, type_of: Callable[[Any], Type]) -> None:
    """Refuses an operation of a cluster that is more than each CTA's share of it.

    Raises:
        EmulationError: It is one.
    """
    if op.name not in _ACROSS | _ALIKE | _ROWS and "atomic" not in op.name:
        return
    splits = [
        bases for value in (*op.operands, *op.results) if (bases := cga_bases(type_of(value)))
    ]
    if op.name in _ALIKE:
        is_known = len(set(splits)) <= 1
    elif op.name in _ROWS:
        is_known = all(_splits_rows(type_of(value)) for value in (*op.operands, *op.results))
    elif op.name in _ALONG:
        # Every CTA has all elements along the axis.
        axis = OpReader(op).integer("axis")
        is_known = not any(
            basis[axis] for value in op.operands for basis in cga_bases(type_of(value))
        )
    else:
        is_known = not any(any(basis) for bases in splits for basis in bases)
    if not is_known:
        raise fault(op, f"the emulator does not support '{op.name}' across the CTAs of a cluster")


def _splits_rows(type_: Type) -> bool:
    """Returns whether CTAs share the outermost dimension that has more than one element."""
    bases = cga_bases(type_)
    typed: Any = type_
    shape = typed.static_shape[-len(bases[0]) :] if bases else ()
    split = {dim for basis in bases for dim, step in enumerate(basis) if step}
    return all(size == 1 for dim in split for size in shape[:dim])


class Cluster:
    """The CTAs of one cluster.

    Args:
        groups: The CTAs; each is told of the cluster and of its number.
        fibers: Decides whose turn it is.

    Attributes:
        groups: The CTAs.
        ended: Numbers of those that ended.
    """

    def __init__(self, groups: Sequence[Any], fibers: Fibers) -> None:
        self.groups = tuple(groups)
        self.ended: set[int] = set()
        self._fibers = fibers
        self._met: set[int] = set()
        self._arrivals: list[tuple[int, Agent, int, Operation]] = []
        for rank, group in enumerate(self.groups):
            group.cluster, group.rank = self, rank

    def run(self, job: Callable[[Any], object]) -> None:
        """Runs the CTAs by turns."""

        def runs(rank: int) -> Callable[[], None]:
            def run() -> None:
                job(self.groups[rank])
                self._check_end(rank)
                self.ended.add(rank)

            return run

        self._fibers.together([runs(rank) for rank in range(len(self.groups))])

    def meet(self, rank: int) -> None:
        """Waits, once, until all CTAs have come as far.

        Triton puts a cluster barrier behind the initialisation of mbarriers when it lowers TTGIR.
        """
        everybody = len(self.groups)
        if len(self._met) < everybody:
            self._met.add(rank)
            self._fibers.wait(lambda: len(self._met) == everybody, None)

    def note_arrival(self, op: Operation, agent: Agent, rank: int) -> None:
        """Remembers that another CTA's shared memory was touched: it has to know when it ends.

        Raises:
            EmulationError: It has ended.
        """
        if rank in self.ended:
            raise _too_late(op, rank)
        self._arrivals.append((rank, agent, agent.clock[agent.number], op))

    def _check_end(self, rank: int) -> None:
        """Refuses that a CTA ends, and does not know of all arrivals from others."""
        knows: Agent = self.groups[rank].agent
        for owner, agent, time, op in self._arrivals:
            if owner == rank and knows.clock.get(agent.number, 0) < time:
                raise _too_late(op, rank)

    def twin(self, view: LdsView, rank: int, other: int) -> LdsView:
        """Returns the buffer of another CTA at the place of one of this CTA."""
        if rank == other:
            return view
        mine, theirs = self.groups[rank].buffers, self.groups[other].buffers
        for op, buffer in mine.items():
            if view.data.base is buffer.data or view.data is buffer.data:
                names = ("data", "filling", "draining", "history")
                parts = {
                    name: _same_place(
                        getattr(view, name), getattr(buffer, name), getattr(theirs[op], name)
                    )
                    for name in names
                }
                return dataclasses.replace(view, **parts)
        raise ValueError(f"'{view.name}' has no place in another CTA")


def _too_late(op: Operation, rank: int) -> EmulationError:
    return fault(
        op,
        f"reaches into CTA {rank}, which may have ended",
        "before it ends, a CTA has to wait until the others are done with its shared memory",
    )


def _same_place(part: Array, whole: Array, other: Array) -> Array:
    """The part of another array that lies there where a part of one lies."""
    if not whole.size:
        return part
    offset = part.ctypes.data - whole.ctypes.data
    found: Array = np.ndarray(part.shape, part.dtype, other.data, offset, part.strides)
    return found
