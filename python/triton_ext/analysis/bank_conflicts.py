"""How many wavefronts an access to shared memory (LDS) takes.

An instruction moves up to 128 bits for each lane of a warp.  The hardware serves it in *phases*, a
group of lanes after the other, as many as the banks have room for; a phase takes one *wavefront*
for each different word that its lanes want from the same bank.  Lanes that want the same word share
it.  Without padding everything is linear, so that with W the rank of the map from the bits of lane
and word to addresses of words, and B that of the map to banks, each phase takes exactly 2**(W - B)
wavefronts, whatever the register and the warp; with padding, addresses are enumerated.

Sources: CUDA C++ Programming Guide, "Shared Memory" (32 banks of 4 bytes, words are shared among
the lanes of a warp); that 64 and 128 bits are served to half and quarter warps is what profilers
count.  AMD CDNA3 and CDNA4 ISA, "LDS" (32 and 64 banks of 4 bytes).  *Not public*: which lanes of a
wave64 form a phase of wide accesses (consecutive lanes are assumed; :class:`BankModel` takes any
order), and what it costs on gfx1250 that two waves want the same physical partition; so
:func:`partition_slots` counts how often that happens, not cycles.

Not handled: elements in other CTAs, matrix instructions (``ldmatrix``, transposing loads), and the
cases in which the two halves of a 64-bit access are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import VerifyError
from ..ir.encodings import (
    DistributedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
)
from ..ir.linear_layout import LinearLayout, is_power_of_two, log2
from .linear_layout import register_to_shared

__all__ = ["Access", "BankModel", "Conflicts", "partition_slots", "wavefronts"]

_WORD_BITS = 32
_WIDEST_BITS = 128
#: Above every address of a word.
_PARTITION_SHIFT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BankModel:
    """The banks of a GPU; by default those of NVIDIA's.

    Attributes:
        lanes: Of a warp.
        banks: Words of 4 bytes that can be moved at once.
        lane_order: The lanes in the order in which phases take them; empty for 0, 1, 2, ...
    """

    lanes: int = 32
    banks: int = 32
    lane_order: tuple[int, ...] = ()

    def phases(self, bits: int) -> tuple[tuple[int, ...], ...]:
        """The lanes that are served together.

        Args:
            bits: What each lane moves.
        """
        order = self.lane_order or tuple(range(self.lanes))
        size = min(self.lanes, self.banks * _WORD_BITS // max(bits, _WORD_BITS))
        return tuple(order[at : at + size] for at in range(0, len(order), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A tensor that is read from or written to a buffer, or a part of it.

    Attributes:
        layout: From ``register``, ``lane`` and ``warp`` to ``offset`` (in elements, without
            padding) and, for a partitioned buffer, ``partition``.
        element_bits: Of an element.
        padding: Intervals and paddings of the buffer, in elements.
    """

    layout: LinearLayout
    element_bits: int
    padding: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls,
        tensor: DistributedEncoding,
        buffer: SharedEncoding,
        shape: Sequence[int],
        element_bits: int,
        alloc_shape: Sequence[int] | None = None,
    ) -> Access:
        """The access of ``ttg.local_load`` and ``ttg.local_store``.

        Args:
            tensor: Encoding of the tensor.
            buffer: Encoding of the buffer.
            shape: Sizes of the tensor.
            element_bits: Of an element.
            alloc_shape: Sizes of the allocation that the buffer is a view of.

        Raises:
            VerifyError: The sizes are none for an encoding, or the elements none for memory.
        """
        if not is_power_of_two(element_bits) or element_bits > _WIDEST_BITS:
            raise VerifyError(
                f"expected elements of a power of two up to {_WIDEST_BITS} bits, found "
                f"{element_bits}"
            )
        inner = buffer
        if isinstance(buffer, PartitionedSharedEncoding):
            piece = buffer.partition_layout
            inner = piece if isinstance(piece, SharedEncoding) else buffer
        padding = inner.interval_padding_pairs if isinstance(inner, PaddedSharedEncoding) else ()
        layout = register_to_shared(tensor, buffer, shape, alloc_shape)
        names = [name for name in ("offset", "partition") if name in layout.out_dim_names]
        layout = layout.sublayout(("register", "lane", "warp"), names)
        return cls(
            layout=layout.without_zero_bases("register"),
            element_bits=element_bits,
            padding=padding,
        )

    @property
    def vector_bits(self) -> tuple[int, ...]:
        """The bits of the register that one instruction moves, lowest offset first.

        They may be any bits of the register, as registers can be permuted.
        """
        bases = list(self.layout.in_bases("register"))
        found: list[int] = []
        names = self.layout.out_dim_names
        limit = _WIDEST_BITS // self.element_bits
        for numbers in self.padding:
            # A vector must not be torn by padding, nor lose its alignment behind it.
            limit = min(limit, *(number & -number for number in numbers))
        at = names.index("offset")
        while 2 << len(found) <= limit:
            step = 1 << len(found)
            wanted = tuple(step if i == at else 0 for i in range(len(names)))
            moved = [b for n, vectors in self.layout.bases for b in vectors if b[at] & step]
            if wanted not in bases or len(moved) != 1:
                break
            found.append(bases.index(wanted))
        return tuple(found)

    @property
    def instruction_bits(self) -> int:
        """What an instruction moves for each lane."""
        return self.element_bits << len(self.vector_bits)

    def words(self, register: int, lane: int, warp: int) -> Iterable[int]:
        """Addresses, in words, of what one lane moves with one instruction.

        Args:
            register: The first register of the vector.
            lane: The lane.
            warp: The warp.
        """
        place = self.layout.apply({"register": register, "lane": lane, "warp": warp})
        offset = place["offset"]
        padded = offset + sum(offset // interval * pad for interval, pad in self.padding)
        first = padded * self.element_bits
        last = first + self.instruction_bits - 1
        above = place.get("partition", 0) << _PARTITION_SHIFT
        return (above | word for word in range(first // _WORD_BITS, last // _WORD_BITS + 1))

    def first_registers(self) -> list[int]:
        """The first register of each instruction."""
        inside = sum(1 << bit for bit in self.vector_bits)
        return [r for r in range(self.layout.in_dim_size("register")) if not r & inside]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """What an access takes, all warps of a CTA together.

    Attributes:
        instructions: Number of instructions.
        wavefronts: Number of wavefronts.
        ideal: Wavefronts that the same words would take if they were spread over all banks.
    """

    instructions: int
    wavefronts: int
    ideal: int

    @property
    def lost(self) -> int:
        """Wavefronts that conflicts cost."""
        return self.wavefronts - self.ideal


def wavefronts(access: Access, model: BankModel | None = None) -> Conflicts:
    """Counts the wavefronts of an access.

    Args:
        access: What is moved.
        model: The banks; NVIDIA's by default.

    Raises:
        VerifyError: The warps of the access have another number of lanes than the GPU's.
    """
    model = model or BankModel()
    lanes = access.layout.in_dim_size("lane")
    if lanes != model.lanes:
        raise VerifyError(f"expected a tensor over {model.lanes} lanes, found {lanes}")
    if access.padding or model.lane_order:
        return _enumerated(access, model)
    instructions = len(access.first_registers()) * access.layout.in_dim_size("warp")
    phases = model.phases(access.instruction_bits)
    inside = log2(len(phases[0]))
    columns = [_word(access, b) for b in access.layout.in_bases("lane")[:inside]]
    words = max(access.instruction_bits // _WORD_BITS, 1)
    columns += [1 << bit for bit in range(log2(words))]
    rank = _rank(columns)
    banks = _rank(column & (model.banks - 1) for column in columns)
    count = instructions * len(phases)
    return Conflicts(
        instructions=instructions,
        wavefronts=count << (rank - banks),
        ideal=count * -(-(1 << rank) // model.banks),
    )


def _word(access: Access, basis: Sequence[int]) -> int:
    """The word that a step leads to; steps add up without carrying."""
    place = dict(zip(access.layout.out_dim_names, basis, strict=True))
    word = place["offset"] * access.element_bits // _WORD_BITS
    return word | place.get("partition", 0) << _PARTITION_SHIFT


def _rank(columns: Iterable[int]) -> int:
    reduced: list[int] = []
    for column in columns:
        for known in reduced:
            column = min(column, column ^ known)
        if column:
            reduced.append(column)
    return len(reduced)


def _enumerated(access: Access, model: BankModel) -> Conflicts:
    firsts = access.first_registers()
    warps = access.layout.in_dim_size("warp")
    total = ideal = 0
    for warp in range(warps):
        for register in firsts:
            for lanes in model.phases(access.instruction_bits):
                words = {w for lane in lanes for w in access.words(register, lane, warp)}
                load: dict[int, int] = {}
                for word in words:
                    bank = word % model.banks
                    load[bank] = load.get(bank, 0) + 1
                total += max(load.values())
                ideal += -(-len(words) // model.banks)
    return Conflicts(instructions=len(firsts) * warps, wavefronts=total, ideal=ideal)


def partition_slots(access: Access, waves: int = 2) -> tuple[int, int]:
    """How often waves that issue together want the same physical partition.

    Args:
        access: Of a partitioned buffer.
        waves: Waves that issue together: neighbours, 0 and 1, 2 and 3, ...

    Returns:
        Instruction slots that are needed if a partition serves one wave at a time, and those if no
        two waves ever met.
    """
    layout = access.layout
    count = layout.in_dim_size("warp")
    waves = min(waves, count)
    slots = ideal = 0
    lanes = range(layout.in_dim_size("lane"))
    for first in range(0, count, waves):
        for register in access.first_registers():
            load: dict[int, int] = {}
            for warp in range(first, first + waves):
                place = {"register": register, "warp": warp}
                found = {layout.apply({**place, "lane": e}).get("partition", 0) for e in lanes}
                for partition in found:
                    load[partition] = load.get(partition, 0) + 1
            slots += max(load.values())
            ideal += 1
    return slots, ideal
