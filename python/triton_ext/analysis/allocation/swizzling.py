"""Computes the shared memory of a layout conversion.

Triton writes a part of the tensor, reads it in the other layout, and repeats: elements that both
layouts hold in registers need not be in memory at the same time.  The swizzling decides which bits
of the element's number repeat, so it has to be reproduced: bits of a vector (an access of one
thread), of a bank, and of a segment (a row of all banks).  A segment bit that belongs to registers
on both sides is a repetition.  Upstream: ``lib/Tools/GenericSwizzling.cpp``.

Elements are numbered, layouts flattened; a basis is a number, and 0 for a broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ...ir.linear_layout import LinearLayout

__all__ = ["LD_ST", "MATRIX", "MATRIX_TRANSPOSED", "AccessTile", "FlatLayout", "Swizzling"]

_BANK_BITS: Final = 32
_WIDEST_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class AccessTile:
    """The lanes of one instruction, as bit positions in the lane number.

    Attributes:
        contiguous: Lanes with contiguous elements, following those of one thread.
        addressed: Lanes served together, each with its own address; if empty, the width decides.
    """

    contiguous: tuple[int, ...] = ()
    addressed: tuple[int, ...] = ()


#: ``ld.shared`` and ``st.shared`` of 16 bytes.
LD_ST: Final = AccessTile((), (0, 1, 2))
#: ``ldmatrix`` and ``stmatrix``.
MATRIX: Final = AccessTile((0, 1), (2, 3, 4))
#: The same with ``.trans``.
MATRIX_TRANSPOSED: Final = AccessTile((2, 3, 4), (0, 1))


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """A distributed layout that numbers the elements, without repeated registers.

    Attributes:
        registers: Bases, none of them 0.
        lanes: Bases.
        warps: Bases.
        blocks: Bases.
        bits: Bits of an element's number.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    blocks: tuple[int, ...]
    bits: int

    @classmethod
    def of(cls, layout: LinearLayout) -> FlatLayout:
        """Returns the flattened form of a layout of registers, lanes, warps and blocks."""
        parts = [
            tuple(map(layout.flat_output, layout.in_bases(name)))
            for name in ("register", "lane", "warp", "block")
        ]
        registers = tuple(basis for basis in parts[0] if basis)
        return cls(registers, parts[1], parts[2], parts[3], layout.total_out_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swizzling:
    """How a host swizzles a conversion.

    Attributes:
        banks: Number of banks.
        counts_banks: Whether the number of banks decides which lanes are served together;
            otherwise a wave of 64 counts as one of 32.
        stores: Store instructions, besides those by width; if empty, only the width counts.
        loads: Load instructions.
        addressed: Lanes that a load of 16 bytes serves together, if not the first ones.
        written: The same for a store.
    """

    banks: int = 32
    counts_banks: bool = False
    stores: tuple[AccessTile, ...] = ()
    loads: tuple[AccessTile, ...] = ()
    addressed: tuple[int, ...] = ()
    written: tuple[int, ...] = ()

    def elements(self, source: FlatLayout, target: FlatLayout, bits: int) -> int:
        """Returns the elements in memory at the same time, over all CTAs.

        Args:
            source: The written layout.
            target: The read layout.
            bits: Element width.
        """
        return 1 << (source.bits - self._repetitions(source, target, bits))

    def _repetitions(self, source: FlatLayout, target: FlatLayout, bits: int) -> int:
        found = []
        for store in self.stores:
            for load in self.loads:
                vector = _matching_tile(source, target, store, load, bits)
                if vector is None:
                    continue
                written = _tile(store, source, vector)
                read = _tile(load, target, vector)
                if written is None or read is None:
                    continue
                left = min(len(t.contiguous) + len(t.addressed) - 3 for t in (store, load))
                segment = self._segment(source, vector, written, read, bits)
                conflicts = sum((1 << len(_common(segment, tile))) - 1 for tile in (written, read))
                repeated = max(len(_both(source, target, segment)) - left, 0)
                found.append((conflicts, -repeated))
        if found:
            return -min(found)[1]
        vector = _vector(source, target, bits)
        wide = bits << len(vector) == _WIDEST_BITS
        written = self._lanes(source, vector, bits, self.written if wide else ())
        read = self._lanes(target, vector, bits, self.addressed if wide else ())
        segment = self._segment(source, vector, written, read, bits)
        return len(_both(source, target, segment))

    def _lanes(
        self, layout: FlatLayout, vector: Sequence[int], bits: int, addressed: Sequence[int]
    ) -> tuple[int, ...]:
        """Returns the lanes that are served together."""
        if addressed:
            return tuple(layout.lanes[i] for i in addressed)
        dropped = max((bits << len(vector)) // _BANK_BITS, 1).bit_length() - 1
        if self.counts_banks:
            dropped = max(dropped + len(layout.lanes) - (self.banks.bit_length() - 1), 0)
        return layout.lanes[: max(len(layout.lanes) - dropped, 0)]

    def _segment(
        self,
        source: FlatLayout,
        vector: Sequence[int],
        written: Sequence[int],
        read: Sequence[int],
        bits: int,
    ) -> list[int]:
        """Returns the bits in rows of banks."""
        blocks = [basis for basis in source.blocks if basis]
        free = source.bits - len(vector) - len(blocks)
        row = self.banks * _BANK_BITS // ((1 << len(vector)) * bits)
        length = free - min(row.bit_length() - 1, free)
        one = {*vector, *written, *blocks} - {0}
        two = {*vector, *read, *blocks} - {0}
        segment = [1 << bit for bit in range(source.bits) if not {1 << bit} & (one | two)]
        if len(segment) >= length:
            return segment[:length]
        # The sort is stable: for equal lengths the first stays first.
        less, more = sorted((sorted(one - two), sorted(two - one)), key=len)
        conflicts = min(max(length - len(less) - len(segment), 0), len(less))
        segment += [less[i] ^ more[i] for i in range(conflicts, len(less))]
        return (segment + less[:conflicts] + more[:conflicts])[:length]


def _both(source: FlatLayout, target: FlatLayout, bases: Iterable[int]) -> list[int]:
    return [basis for basis in bases if basis in source.registers and basis in target.registers]


def _tile(tile: AccessTile, layout: FlatLayout, vector: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the bits that an instruction covers; ``None`` if the layout has too few registers."""
    missing = 3 - len(tile.addressed)
    registers = [basis for basis in layout.registers if basis not in vector][:missing]
    if len(registers) < missing:
        return None
    return (*registers, *(layout.lanes[i] for i in tile.addressed))


def _matching_tile(
    source: FlatLayout, target: FlatLayout, store: AccessTile, load: AccessTile, bits: int
) -> tuple[int, ...] | None:
    """Returns the bits of a vector that both instructions cover; ``None`` if there are none."""
    width = (_WIDEST_BITS // bits).bit_length() - 1
    one, two, tile_one, tile_two = source, target, store, load
    if len(store.contiguous) > len(load.contiguous):
        one, two, tile_one, tile_two = target, source, load, store
    in_one = width - len(tile_one.contiguous)
    in_two = width - len(tile_two.contiguous)
    if in_two < 0:
        return None
    vector = _common(one.registers, two.registers)[:in_two]
    lanes_one = [one.lanes[i] for i in tile_one.contiguous]
    lanes_two = [two.lanes[i] for i in tile_two.contiguous]
    if len(vector) < in_two or 0 in lanes_one or 0 in lanes_two:
        return None
    ahead = in_one - in_two
    if any(lane not in one.registers for lane in lanes_two[:ahead]):
        return None
    if lanes_two[ahead:] != lanes_one:
        return None
    return (*vector, *lanes_two)


def _vector(source: FlatLayout, target: FlatLayout, bits: int) -> tuple[int, ...]:
    """Returns the bits of the widest access that both sides can make, filled up to a bank."""
    widest = (_WIDEST_BITS // bits).bit_length() - 1
    vector = _common(source.registers, target.registers)[:widest]
    if bits << len(vector) >= _BANK_BITS:
        return tuple(vector)
    bank = (_BANK_BITS // bits).bit_length() - 1
    warps_source = [basis for basis in source.warps if basis]
    warps_target = [basis for basis in target.warps if basis]
    one = _common([r for r in source.registers if r not in vector], warps_target)
    two = _common([r for r in target.registers if r not in vector], warps_source)
    if len(one) == len(two) and one:
        vector += one if min(one) < min(two) else two
    else:
        vector += one if len(one) > len(two) else two
    if len(vector) < bank:
        vector += _common(warps_source, warps_target)
    for i in range(max(len(warps_source), len(warps_target))):
        if len(vector) < bank and i < len(warps_source) and warps_source[i] not in vector:
            vector.append(warps_source[i])
        if len(vector) < bank and i < len(warps_target):
            basis = warps_target[i]
            if basis not in vector and basis not in source.blocks:
                vector.append(basis)
    return tuple(vector[:bank])


def _common(one: Sequence[int], two: Sequence[int]) -> list[int]:
    """Returns a basis of the common span, in the order of the first where bases are single bits."""
    if all(_is_bit(basis) for basis in (*one, *two)):
        return [basis for basis in dict.fromkeys(one) if basis and basis in two]
    return _annihilator(_annihilator(one) + _annihilator(two))


def _is_bit(basis: int) -> bool:
    return basis.bit_count() == 1


def _annihilator(vectors: Sequence[int], bits: int = 32) -> list[int]:
    """Returns a basis of the numbers with an even number of common bits with every vector."""
    rows: dict[int, int] = {}
    for vector in vectors:
        rest = vector
        for pivot, row in rows.items():
            if rest >> pivot & 1:
                rest ^= row
        if rest:
            pivot = (rest & -rest).bit_length() - 1
            rows = {p: row ^ rest if row >> pivot & 1 else row for p, row in rows.items()}
            rows[pivot] = rest
    found = []
    for free in range(bits):
        if free not in rows:
            found.append((1 << free) + sum(1 << p for p, row in rows.items() if row >> free & 1))
    return found
