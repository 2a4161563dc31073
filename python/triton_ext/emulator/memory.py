"""Global memory and LDS of the emulator.

Every array that a kernel is given lies far away from the others, so an access outside of one is an
error and never lands in another.  Both memories know which of their elements a copy in flight fills
or reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .elements import Array, Element

__all__ = ["GlobalMemory", "LdsBytes", "LdsView", "OutOfBoundsError"]

#: Address of the first array, and the distance of two.
_DISTANCE_BITS = 40


class OutOfBoundsError(Exception):
    """An address that is in no array, or that the element may not have."""


class GlobalMemory:
    """The arrays of a launch, at addresses."""

    def __init__(self) -> None:
        self._bytes: list[Array] = []
        self._names: list[str] = []
        #: Copies in flight that write each byte; made when the first one is issued.
        self._filling: list[Array | None] = []

    def place(self, array: Array, name: str) -> int:
        """Puts an array into memory and returns its address; the array itself is written.

        An array that is given twice has one address.
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a contiguous array, got strides {array.strides}")
        raw = array.reshape(-1).view(np.uint8)
        for number, known in enumerate(self._bytes):
            if known.ctypes.data == raw.ctypes.data and known.size == raw.size:
                return (number + 1) << _DISTANCE_BITS
        self._bytes.append(raw)
        self._names.append(name)
        self._filling.append(None)
        return len(self._bytes) << _DISTANCE_BITS

    def read(self, element: Element, addresses: Array, mask: Array) -> tuple[Array, bool]:
        """Values at addresses; zeros where the mask is false.

        Returns:
            The values, and whether any of them is one that a copy in flight writes.

        Raises:
            OutOfBoundsError: An address is in no array.
        """
        raw: Array = np.zeros(addresses.shape, f"u{element.size_bytes}")
        in_flight = False
        for number, chosen, index in self._split(element, addresses, mask):
            raw[chosen] = self._bytes[number].view(raw.dtype)[index]
            filling = self._filling[number]
            if filling is not None:
                in_flight |= bool(filling[index * element.size_bytes].any())
        return element.from_memory(raw), in_flight

    def write(self, element: Element, addresses: Array, mask: Array, values: Any) -> None:
        """Writes values to addresses where the mask is true."""
        raw = np.broadcast_to(element.to_memory(values), addresses.shape)
        for number, chosen, index in self._split(element, addresses, mask):
            self._bytes[number].view(raw.dtype)[index] = raw[chosen]

    def mark(self, element: Element, addresses: Array, mask: Array, change: int) -> None:
        """Counts a copy in flight that writes there: +1 when it is issued, -1 when it is done."""
        for number, _, index in self._split(element, addresses, mask):
            filling = self._filling[number]
            if filling is None:
                filling = np.zeros(self._bytes[number].shape, np.int16)
                self._filling[number] = filling
            np.add.at(filling, index * element.size_bytes, change)

    def is_filling(self, element: Element, addresses: Array, mask: Array) -> bool:
        """Returns whether a copy in flight writes any of the elements."""
        for number, _, index in self._split(element, addresses, mask):
            filling = self._filling[number]
            if filling is not None and filling[index * element.size_bytes].any():
                return True
        return False

    def _split(
        self, element: Element, addresses: Array, mask: Array
    ) -> list[tuple[int, Any, Array]]:
        """Array, positions in ``addresses`` and index of the elements, for each array."""
        if not mask.any():
            return []
        everywhere = bool(mask.all())
        active = addresses if everywhere else addresses[mask]
        lowest, highest = (int(x) >> _DISTANCE_BITS for x in (active.min(), active.max()))
        if lowest == highest and 0 < lowest <= len(self._bytes):
            # By far the most accesses: one array.
            offsets = active - (lowest << _DISTANCE_BITS)
            self._check(lowest - 1, element, offsets)
            chosen = ... if everywhere else mask
            return [(lowest - 1, chosen, offsets // element.size_bytes)]
        numbers = (active >> _DISTANCE_BITS) - 1
        found = []
        for number in np.unique(numbers):
            if not 0 <= number < len(self._bytes):
                raise OutOfBoundsError(f"address {int(active.min()):#x} belongs to no array")
            here = mask & ((addresses >> _DISTANCE_BITS) - 1 == number)
            offsets = addresses[here] - ((int(number) + 1) << _DISTANCE_BITS)
            self._check(int(number), element, offsets)
            found.append((int(number), here, offsets // element.size_bytes))
        return found

    def _check(self, number: int, element: Element, offsets: Array) -> None:
        size = self._bytes[number].size
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + element.size_bytes > size:
            worst = low if low < 0 else high
            raise OutOfBoundsError(
                f"byte {worst} is outside of '{self._names[number]}', which has {size}"
            )
        if (offsets % element.size_bytes).any():
            raise OutOfBoundsError(
                f"'{self._names[number]}' is accessed at a byte that is not a multiple of "
                f"{element.size_bytes}, the size of {element.name}"
            )


class LdsBytes:
    """Copies in flight for each byte of LDS, shared by buffers that overlap.

    Args:
        size: Bytes.

    Attributes:
        filling: For each byte, copies in flight that write it.
        draining: The same for copies that read it.
    """

    def __init__(self, size: int) -> None:
        self.filling: Array = np.zeros(size, np.uint8)
        self.draining: Array = np.zeros(size, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class LdsView:
    """An LDS buffer or a part of one; views of a buffer share its memory.

    The counts have one dimension more than the values: the bytes of an element.

    Attributes:
        element: Type of the elements.
        data: The values.
        filling: For each element, copies in flight that write it.
        draining: For each element, copies in flight that read it.
        name: The buffer's name in the kernel.
        history: For each element, the number of the access that wrote it last and of those that
            read it since (:mod:`.races`); of size 0 where nobody asks.
        folded: The shape in which the elements are read, where memory has no such view.
    """

    element: Element
    data: Array
    filling: Array
    draining: Array
    name: str
    history: Array
    folded: tuple[int, ...] | None = None

    @classmethod
    def allocate(
        cls,
        element: Element,
        shape: Sequence[int],
        name: str,
        lds: LdsBytes,
        offset: int | None,
        *,
        has_history: bool = False,
    ) -> LdsView:
        """A new buffer, all poison.

        Args:
            element: Element type.
            shape: Its shape.
            name: Its name in the kernel.
            lds: The LDS of the workgroup.
            offset: Where it lies there, in bytes; ``None`` for memory of its own.
            has_history: Whether accesses are remembered.
        """
        data = np.full(shape, element.poison(), element.dtype)
        size = data.size * element.size_bytes
        if offset is None:
            lds, offset = LdsBytes(size), 0
        place = slice(offset, offset + size)
        counts = [x[place].reshape(*shape, element.size_bytes) for x in (lds.filling, lds.draining)]
        history: Array = np.zeros((2, *shape) if has_history else (0, *shape), np.int32)
        return cls(element, data, counts[0], counts[1], name, history)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the view."""
        return self.folded or tuple(self.data.shape)

    def contents(self) -> Array:
        """A copy of the values, or a view of them."""
        return self.data if self.folded is None else self.data.reshape(self.folded)

    def accesses(self, slot: int) -> Array:
        """The accesses that the elements remember: writes (0) or reads (1)."""
        return self.history[slot] if self.history.size else self.history

    def remember(self, slot: int, number: int, instead_of: int | None = None) -> None:
        """Makes the elements remember an access; with ``instead_of``, those that hold that one."""
        held = self.history[slot]
        held[... if instead_of is None else held == instead_of] = number

    def _check_not_folded(self) -> None:
        if self.folded is not None:
            raise ValueError("a part of a buffer whose elements lie in another order")

    def view(self, key: Any) -> LdsView:
        """A part of the buffer, by basic indexing."""
        self._check_not_folded()
        with_slots = (slice(None), *(key if isinstance(key, tuple) else (key,)))
        return replace(
            self,
            data=self.data[key],
            filling=self.filling[key],
            draining=self.draining[key],
            history=self.history[with_slots],
        )

    def transpose(self, order: Sequence[int]) -> LdsView:
        """The buffer with its dimensions in another order."""
        self._check_not_folded()
        with_bytes = (*order, len(order))
        return replace(
            self,
            data=self.data.transpose(order),
            filling=self.filling.transpose(with_bytes),
            draining=self.draining.transpose(with_bytes),
            history=self.history.transpose((0, *(dim + 1 for dim in order))),
        )

    def reshape(self, shape: Sequence[int]) -> LdsView:
        """The buffer in another shape; folded where numpy would have to copy it."""
        data = self.data.reshape(shape)
        if self.folded is not None or not np.shares_memory(data, self.data):
            return replace(self, folded=tuple(shape))
        with_bytes = (*shape, self.filling.shape[-1])
        counts = [x.reshape(with_bytes) for x in (self.filling, self.draining)]
        history = self.history.reshape((self.history.shape[0], *shape))
        return replace(self, data=data, filling=counts[0], draining=counts[1], history=history)
