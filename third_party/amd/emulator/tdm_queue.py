"""Models TENSORcnt: the TDM operations in flight of one workgroup.

The waves of a workgroup run in lockstep and issue the same instructions, so one queue represents
all of them.  Instructions retire in order (CDNA5 ISA, TENSORcnt), as late as the waits allow: an
operation takes effect when a wait retires its last instruction, and not before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Workgroup
from triton_ext.ir import Operation

__all__ = ["InFlight", "TdmQueue"]


@dataclass(slots=True)
class InFlight:
    """An operation in flight; also the value of its token.

    Attributes:
        op: The operation.
        left: Instructions of a wave that are not retired.
        finish: Executes the operation.
        is_store: Whether it reads LDS.
        is_done: Whether it took effect.
    """

    op: Operation
    left: int
    finish: Callable[[], None]
    is_store: bool
    is_done: bool = False


class TdmQueue:
    """The queue of one workgroup."""

    def __init__(self) -> None:
        self._waiting: deque[InFlight] = deque()

    @classmethod
    def of(cls, group: Workgroup) -> TdmQueue:
        """Returns the queue of a workgroup."""
        found = group.extensions.get(cls)
        if not isinstance(found, cls):
            found = group.extensions[cls] = cls()
            group.at_end.append(found.check_end)
        return found

    def issue(self, entry: InFlight) -> InFlight:
        """Puts an operation into flight."""
        self._waiting.append(entry)
        return entry

    def wait_instructions(self, count: int) -> None:
        """Retires until at most ``count`` instructions are in flight."""
        excess = sum(entry.left for entry in self._waiting) - count
        while excess > 0:
            oldest = self._waiting[0]
            retired = min(excess, oldest.left)
            oldest.left -= retired
            excess -= retired
            if oldest.left == 0:
                self._retire()

    def wait_operations(self, count: int) -> None:
        """Retires until at most ``count`` operations are in flight."""
        while len(self._waiting) > count:
            self._retire()

    def wait_tokens(self, tokens: tuple[object, ...]) -> None:
        """Retires until the operations of the tokens are done."""
        while any(isinstance(token, InFlight) and not token.is_done for token in tokens):
            self._retire()

    def check_end(self, kernel: Operation) -> None:
        """Checks that no TDM operation on LDS is in flight at the end of a kernel.

        Raises:
            EmulationError: An operation is in flight.
        """
        if self._waiting:
            entry = self._waiting[0]
            what = "a store from" if entry.is_store else "a load into"
            raise fault(
                entry.op,
                f"the kernel ends while {what} LDS is in flight",
                "the hardware may give the LDS to another workgroup after the end: wait for 0 "
                "operations at the end",
            )

    def _retire(self) -> None:
        entry = self._waiting.popleft()
        entry.is_done = True
        entry.finish()
