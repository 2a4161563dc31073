"""One asynchronous copy between global memory and LDS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from triton_ext.emulator.elements import Array, Element
from triton_ext.emulator.faults import fault
from triton_ext.emulator.memory import LdsView, OutOfBoundsError
from triton_ext.emulator.workgroup import Workgroup
from triton_ext.ir import Operation

__all__ = ["Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """The data that a copy moves.

    Attributes:
        op: The operation.
        group: The workgroup.
        element: Element type.
        addresses: Global address of each element of the buffer.
        inside: Which elements are moved.
        buffer: The LDS side.
        other: The value that a load writes for elements that are not moved.
    """

    op: Operation
    group: Workgroup
    element: Element
    addresses: Array
    inside: Array
    buffer: LdsView
    other: Any = 0

    def start_load(self) -> Callable[[], None]:
        """Starts a copy into LDS, poisons the LDS, and returns a function that completes it."""
        group, element, buffer = self.group, self.element, self.buffer
        group.check_refill(self.op, buffer)
        found = group.load(self.op, element, self.addresses, self.inside)
        values = np.where(self.inside, found, self.other)
        buffer.data[...] = element.poison()
        buffer.filling[...] += 1
        place = (self.op, buffer)
        group.copies.append(place)

        def finish() -> None:
            group.copies.remove(place)
            buffer.filling[...] -= 1
            buffer.data[...] = values

        return finish

    def start_store(self) -> Callable[[], None]:
        """Starts a copy from LDS; the returned function reads LDS and completes it."""
        group, element, buffer = self.group, self.element, self.buffer
        if buffer.filling.any():
            group.read_lds(self.op, buffer)  # raises
        memory = group.memory
        try:
            memory.mark(element, self.addresses, self.inside, 1)
        except OutOfBoundsError as error:
            raise fault(self.op, f"writes outside of global memory: {error}") from error
        poison = np.full(self.addresses.shape, element.poison(), element.dtype)
        memory.write(element, self.addresses, self.inside, poison)
        buffer.draining[...] += 1
        place = (self.op, buffer)
        group.copies.append(place)

        def finish() -> None:
            group.copies.remove(place)
            buffer.draining[...] -= 1
            memory.write(element, self.addresses, self.inside, buffer.data)
            memory.mark(element, self.addresses, self.inside, -1)

        return finish
