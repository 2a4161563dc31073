"""Counts wavefronts of LDS accesses by several waves with physical partitions.

The model combines the two counts of :mod:`triton_ext.analysis.bank_conflicts`:

1. Neighbours issue together: waves 0 and 1, 2 and 3, ... (:func:`partition_slots`).
2. A partition serves one wave at a time; different partitions work in parallel.
3. A wave occupies each partition that it accesses for as many wavefronts as its instruction takes
   (:func:`wavefronts`).

So the waves of a slot take the largest sum, over the partitions, of the wavefronts of the waves
that access it.  If all of them access the same partition, this is :func:`wavefronts`; if each wave
takes one wavefront, it is :func:`partition_slots`.

A buffer that is not partitioned is assumed to lie in one physical partition.  A buffer larger than
the rest of its partition lies in two, and distant waves may then not conflict.

Cycles are unknown: AMD has not published the cost of a conflict.
"""

from __future__ import annotations

from triton_ext.analysis.bank_conflicts import Access, BankModel, Conflicts, in_turn, phases

__all__ = ["joint_wavefronts"]

# Waves of one slot (point 1).
_WAVES_TOGETHER = 2

_WORD_BITS = 32


def joint_wavefronts(
    access: Access, model: BankModel, waves: int = _WAVES_TOGETHER, *, is_store: bool = False
) -> Conflicts:
    """Counts the wavefronts until all waves are served.

    Args:
        access: The access.
        model: The banks.
        waves: Waves that issue together.
        is_store: Whether the access writes LDS.

    Returns:
        The wavefronts; ``ideal`` is their number without any conflict of waves in a partition or
        of words in a bank.
    """
    total, ideal = in_turn(access, _Served(access, model, is_store), waves)
    instructions = len(access.first_registers()) * access.layout.in_dim_size("warp")
    return Conflicts(instructions=instructions, wavefronts=total, ideal=ideal)


class _Served:
    """Caches wavefronts of instructions whose addresses differ only by a common shift."""

    def __init__(self, access: Access, model: BankModel, is_store: bool) -> None:
        self.access, self.model, self.is_store = access, model, is_store
        self.known: dict[int, tuple[int, int]] = {}
        self.mask = self._mask()

    def _mask(self) -> int:
        """Returns the bits of the first offset that do more than shift all addresses.

        A bit that no lane changes, above each interval, adds the same amount to all of them: a
        whole number of words, if its padding is one.
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
