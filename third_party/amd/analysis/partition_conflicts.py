"""What an access to LDS takes where the waves of a workgroup meet in physical partitions.

Waves that issue together each want their words from physical partitions.  The model, which is that
of :mod:`triton_ext.analysis.bank_conflicts` with its two counts joined:

1. Neighbours issue together: waves 0 and 1, 2 and 3, ... (:func:`partition_slots`).
2. A partition serves one wave at a time; different partitions serve theirs at the same time.
3. A wave keeps each partition that it wants for as many wavefronts as its instruction takes
   (:func:`wavefronts`).

So the waves of a slot take the largest sum, over the partitions, of the wavefronts of those that
want it.  Where all of them want the same one this is :func:`wavefronts`; where each wave takes one
wavefront it is :func:`partition_slots`.

A buffer that is not partitioned is taken to lie in one physical partition.  One that is larger than
what its partition has left lies in two, and waves far from each other may then not meet.

Not known: cycles.  AMD has not published what a conflict costs.
"""

from __future__ import annotations

from triton_ext.analysis.bank_conflicts import Access, BankModel, Conflicts, in_turn, phases

__all__ = ["joint_wavefronts"]

# Of one slot (point 1).
_WAVES_TOGETHER = 2

_WORD_BITS = 32


def joint_wavefronts(
    access: Access, model: BankModel, waves: int = _WAVES_TOGETHER, *, is_store: bool = False
) -> Conflicts:
    """Counts the wavefronts that pass until all waves are served.

    Args:
        access: What is moved.
        model: The banks.
        waves: Waves that issue together.
        is_store: Whether it is written.

    Returns:
        The wavefronts; ``ideal`` are those if no two waves met in a partition and no two words in a
        bank.
    """
    total, ideal = in_turn(access, _Served(access, model, is_store), waves)
    instructions = len(access.first_registers()) * access.layout.in_dim_size("warp")
    return Conflicts(instructions=instructions, wavefronts=total, ideal=ideal)


class _Served:
    """Wavefronts of each instruction; those that differ by a shift of all addresses share them."""

    def __init__(self, access: Access, model: BankModel, is_store: bool) -> None:
        self.access, self.model, self.is_store = access, model, is_store
        self.known: dict[int, tuple[int, int]] = {}
        self.mask = self._mask()

    def _mask(self) -> int:
        """The bits of the first offset that more than shift the addresses of an instruction.

        A bit that no lane moves, above each interval, adds the same to all of them: a number of
        words, if its padding is one.
        """
        access = self.access
        at = access.layout.out_dim_names.index("offset")
        inside = (1 << len(access.vector_bits)) - 1
        for basis in access.layout.in_bases("lane"):
            inside |= basis[at]
        mask = inside
        for bit in range(access.layout.out_dim_size("offset").bit_length() - 1):
            step = 1 << bit
            shifts = [step, *(step // interval * pad for interval, pad in access.padding)]
            if any(interval > step for interval, _ in access.padding) or any(
                shift * access.element_bits % _WORD_BITS for shift in shifts
            ):
                mask |= step
        return mask

    def __call__(self, register: int, warp: int) -> tuple[int, int]:
        offset = self.access.layout.apply({"register": register, "lane": 0, "warp": warp})["offset"]
        key = offset & self.mask
        if key not in self.known:
            found = phases(
                self.access, self.model, is_store=self.is_store, register=register, warp=warp
            )
            taken = sum(phase.wavefronts for phase in found)
            least = sum(-(-len(phase.lanes) // self.model.banks) for phase in found)
            self.known[key] = taken, least
        return self.known[key]
