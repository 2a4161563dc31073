"""The state of one workgroup while it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_ext.ir import Block, Operation, Value

from .clusters import Cluster
from .elements import Array, Element, element_of
from .faults import EmulationError, UnreadyError, at_place, fault
from .fibers import Fibers
from .memory import GlobalMemory, LdsBytes, LdsView, OutOfBoundsError
from .races import Agent, Races

__all__ = ["Context", "Prepare", "Step", "Workgroup"]


def _kind(op: Operation) -> str:
    """Returns the kind of an asynchronous operation in a word."""
    return "product" if op.name.endswith("dot") or "_mma" in op.name else "copy"


class Workgroup:
    """State that the operations of a kernel read and change.

    A kernel may have parts that run by turns (partitions of ``ttg.warp_specialize``): each sees a
    fork, with values of its own and all else in common.

    Args:
        memory: Global memory.
        lds_bytes: Bytes of LDS that buffers were placed in.
        program_id: Which workgroup it is, in x, y and z.
        grid: How many there are.
        fibers: Decides whose turn it is.
        races: Knows who accessed which buffer; ``None`` where nobody asks.

    Attributes:
        agent: Who a part is to ``races``.
        cluster: The CTAs that it belongs to; ``None`` where it is alone.
        rank: Its number among them.
        buffers: Its LDS buffers, by what allocated them.
    """

    def __init__(
        self,
        memory: GlobalMemory,
        lds_bytes: int,
        program_id: tuple[int, ...],
        grid: tuple[int, ...],
        fibers: Fibers | None = None,
        races: Races | None = None,
    ) -> None:
        self.memory = memory
        self.fibers = fibers or Fibers(0)
        self.races = races
        self.agent: Agent | None = races.agent("the kernel") if races is not None else None
        self.cluster: Cluster | None = None
        self.rank = 0
        self.buffers: dict[Operation, LdsView] = {}
        #: Workgroups of the grid that have not started, in their order.
        self.pending: list[tuple[int, int, int]] = []
        self.lds = LdsBytes(lds_bytes)
        self.program_id = program_id
        self.grid = grid
        self.values: dict[Value, Any] = {}
        #: State of vendors for a workgroup, by its class.
        self.extensions: dict[type, Any] = {}
        #: The same for the part that runs.
        self.own: dict[type, Any] = {}
        #: Copies in flight, with the LDS that they fill or read.
        self.copies: list[tuple[Operation, LdsView]] = []
        #: Where the block that ran last goes, with the values that it hands on.
        self.branch: tuple[Block, list[Any]] | None = None
        #: Checks that run when the kernel ends.
        self.at_end: list[Callable[[Operation], None]] = []

    def fork(self, name: str) -> Workgroup:
        """A part of the kernel that runs beside this one."""
        found = copy.copy(self)
        found.values, found.own, found.branch = dict(self.values), {}, None
        if self.cluster is not None:
            name = f"{name} of CTA {self.rank}"
        if self.races is not None:
            found.agent = self.races.agent(name, self.agent)
        return found

    # ---- LDS

    def read_lds(self, op: Operation, view: LdsView) -> Array:
        """Returns the present contents of a buffer.

        Raises:
            EmulationError: A copy in flight fills a part of it.
        """
        if view.filling.any():
            raise fault(
                op,
                f"reads '{view.name}' while a copy into it is in flight",
                *self._who(view),
                "wait for the copy first: nothing but a wait tells when LDS holds its data",
            )
        if self.races is not None and self.agent is not None:
            self.races.check_read(self.agent, op, view)
            self.races.note_read(self.agent, op, view)
        return view.contents().copy()

    def write_lds(self, op: Operation, view: LdsView, values: Any) -> None:
        """Writes a buffer.

        Raises:
            EmulationError: A copy in flight fills or reads a part of it.
        """
        self.check_refill(op, view)
        if self.races is not None and self.agent is not None:
            self.races.note_write(self.agent, op, view)
        view.data[...] = np.reshape(values, view.data.shape) if view.folded else values

    def check_refill(self, op: Operation, view: LdsView) -> None:
        """Refuses to overwrite a buffer that a copy in flight fills or reads.

        Raises:
            EmulationError: There is one.
        """
        if view.draining.any():
            raise fault(
                op,
                f"overwrites '{view.name}' while {self._reader(view)} is in flight",
                *self._who(view),
                "wait for it first: it may read the buffer at any time until then",
            )
        if view.filling.any():
            raise fault(
                op,
                f"overwrites '{view.name}' while a copy into it is in flight",
                *self._who(view),
                "wait for the copy first: it may land after this write and overwrite it",
            )
        if self.races is not None and self.agent is not None:
            self.races.check_write(self.agent, op, view)

    def _reader(self, view: LdsView) -> str:
        """Returns the name of the operation in flight that reads a part of a buffer."""
        readers = [op for op, other in self.copies if np.shares_memory(view.data, other.data)]
        is_product = bool(readers) and _kind(readers[0]) == "product"
        return "a matrix product that reads it" if is_product else "a copy from it"

    def _who(self, view: LdsView) -> tuple[str, ...]:
        """A note for each copy in flight that has to do with a part of a buffer."""
        found = []
        for op, other in self.copies:
            if not np.shares_memory(view.filling, other.filling):
                continue
            found.append(at_place(f"the {_kind(op)}", op))
            if not np.shares_memory(view.data, other.data):
                found.append(
                    f"it is one of '{other.name}', whose LDS was given to '{view.name}' behind its "
                    "last use"
                )
        return tuple(found)

    # ---- global memory

    def load(self, op: Operation, element: Element, addresses: Array, mask: Array) -> Array:
        """Values at addresses; zeros where the mask is false.

        Raises:
            EmulationError: An address is in no array, or a copy in flight writes it.
        """
        try:
            values, in_flight = self.memory.read(element, addresses, mask)
        except OutOfBoundsError as error:
            raise fault(op, f"reads outside of global memory: {error}") from error
        if in_flight:
            raise fault(op, "reads global memory that a copy in flight writes")
        return values

    def store(
        self, op: Operation, element: Element, addresses: Array, mask: Array, values: Any
    ) -> None:
        """Writes values to addresses where the mask is true.

        Raises:
            EmulationError: An address is in no array.
        """
        try:
            self.memory.write(element, addresses, mask, values)
        except OutOfBoundsError as error:
            raise fault(op, f"writes outside of global memory: {error}") from error

    # ---- running

    def run(self, steps: list[tuple[Operation, Step]]) -> None:
        """Runs the operations of a block."""
        for op, step in steps:
            try:
                step(self)
            except EmulationError:
                raise
            except UnreadyError as error:
                raise fault(op, error.message, *error.notes) from error
            except (ArithmeticError, IndexError, TypeError, ValueError) as error:
                raise fault(op, f"'{op.name}' failed in the emulator: {error}") from error

    def scalar(self, value: Value) -> int:
        """A scalar integer."""
        return int(self.values[value])


Step = Callable[[Workgroup], None]


class Context:
    """The module while the operations of a kernel are prepared.

    Args:
        block: Prepares a block.
        type_of: The type of a value.
        function: Makes what runs a function of the module.
        num_warps: Waves of a workgroup.
        host_features: Capabilities of the Triton that made the module; ``None`` if not known.
    """

    def __init__(
        self,
        block: Callable[[Block], list[tuple[Operation, Step]]],
        type_of: Callable[[Value], Any],
        function: Callable[[Operation], Callable[[Workgroup, list[Any]], list[Any]]],
        num_warps: int,
        host_features: frozenset[str] | None,
    ) -> None:
        self.block = block
        self.type_of = type_of
        self.function = function
        self.num_warps = num_warps
        self.host_features = host_features
        #: Facts of vendors about the module, by their class.
        self.extensions: dict[type, Any] = {}

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a value; empty for a scalar."""
        shape: tuple[int, ...] = getattr(self.type_of(value), "static_shape", ())
        return shape

    def element(self, value: Value) -> Element:
        """The element type of a value."""
        type_ = self.type_of(value)
        return element_of(getattr(type_, "element", type_))


Prepare = Callable[[Operation, Context], Step]
