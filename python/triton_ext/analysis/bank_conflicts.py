"""Counts the wavefronts of an access to shared memory (LDS).

An instruction moves up to 128 bits for each lane of a warp.  The hardware serves it in *phases*, a
group of lanes at a time, as many as the banks have room for.  A phase takes one *wavefront* for
each different word that its lanes access in the same bank; lanes share a word.  Without padding
everything is linear: if W is the rank of the map from the bits of lane and word to word addresses,
and B that of the map to banks, each phase takes exactly 2**(W - B) wavefronts, for every register
and warp.  With padding, addresses are enumerated.

NVIDIA:

1. A phase is a warp up to 32 bits, half a warp for 64 bits and a quarter for 128.
2. A phase of a *read* of 64 or 128 bits is twice as large if every lane reads the same as lane ^ 1,
   or every lane the same as lane ^ 2; a phase of a write never is.
3. A matrix instruction (``ldmatrix``, ``stmatrix``) takes a phase for each of its matrices, 8 rows
   of 16 bytes.  If it does not transpose, its phases equal those of the 32-bit accesses that it
   replaces.  Triton transposes 16-bit elements if lanes 4, 8 and 16 follow 8 neighbours in memory
   and nothing is padded (:attr:`Access.transposed_bits`).  Among the registers that could be rows
   of a matrix, Triton 3.9 takes those with the fewest conflicts, earlier releases the lowest.

Sources: CUDA C++ Programming Guide, "Shared Memory" (32 banks of 4 bytes, words are shared among
the lanes of a warp).  The rest is measured on an H200 (sm_90): the counters
``l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld`` and ``_st`` and the cycles of loops
(``python -m benchmarks bank_conflicts``).  AMD CDNA3 and CDNA4 ISA, "LDS" (32 and 64 banks of 4
bytes).  *Not public*: which lanes of a wave64 form a phase of wide accesses (consecutive lanes are
assumed; :class:`BankModel` takes any order), and the cost on gfx1250 of two waves that access the
same physical partition; so :func:`partition_slots` counts occurrences, not cycles.

Triton and LLVM choose the registers of an instruction from the layout (equal in 150 of 150 random
swizzled buffers).  In a padded buffer Triton does not permute registers: LLVM merges accesses if it
sees the alignment, in 194 of 200 random buffers with paddings of 16 bytes and more.  With less,
Triton 3.9 lets LLVM merge more on NVIDIA than is aligned.

Not handled: elements in other CTAs, transposed matrices of 8-bit elements (sm_100), and AMD's
transposing loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import VerifyError
from ..ir.encodings import (
    DistributedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
)
from ..ir.linear_layout import LinearLayout, is_power_of_two, log2
from .linear_layout import register_to_shared

__all__ = [
    "NVIDIA",
    "Access",
    "BankModel",
    "Conflicts",
    "Phase",
    "in_turn",
    "partition_slots",
    "phases",
    "wavefronts",
]

_WORD_BITS = 32
_WIDEST_BITS = 128
#: Number of matrices of a matrix instruction.
_MATRICES = 4
#: Above every word address.
_PARTITION_SHIFT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BankModel:
    """The banks of a GPU.

    Attributes:
        lanes: Lanes of a warp.
        banks: Number of banks of 4 bytes.
        lane_order: Order in which phases take the lanes; empty for 0, 1, 2, ...
        shares_pairs: Whether reads by pairs of lanes of the same words take larger phases.
        has_matrices: Whether matrix instructions transpose 16-bit elements.
        chooses_rows: Whether their rows are those with the fewest conflicts.
    """

    lanes: int = 32
    banks: int = 32
    lane_order: tuple[int, ...] = ()
    shares_pairs: bool = False
    has_matrices: bool = False
    chooses_rows: bool = False

    def phases(self, bits: int, *, is_shared: bool = False) -> tuple[tuple[int, ...], ...]:
        """Returns the lanes that are served together.

        Args:
            bits: Bits per lane.
            is_shared: Whether pairs of lanes access the same words.
        """
        order = self.lane_order or tuple(range(self.lanes))
        size = self.banks * _WORD_BITS // max(bits, _WORD_BITS) * (2 if is_shared else 1)
        size = min(self.lanes, size)
        return tuple(order[at : at + size] for at in range(0, len(order), size))


#: Triton 3.9 on sm_75 to sm_100; measured on sm_90.
NVIDIA: Final = BankModel(shares_pairs=True, has_matrices=True, chooses_rows=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A read or write of a tensor in a buffer, or in a part of it.

    Attributes:
        layout: From ``register``, ``lane`` and ``warp`` to ``offset`` (in elements, without
            padding) and, for a partitioned buffer, ``partition``.  Registers may have another
            order than in the tensor.
        element_bits: Element width.
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
        """Returns the access of ``ttg.local_load`` and ``ttg.local_store``.

        Args:
            tensor: Encoding of the tensor.
            buffer: Encoding of the buffer.
            shape: Shape of the tensor.
            element_bits: Element width.
            alloc_shape: Shape of the allocation that the buffer is a view of.

        Raises:
            VerifyError: The shape does not fit an encoding, or the element width is not supported.
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
        layout = layout.without_zero_bases("register")
        if not padding:
            layout = _gathered(layout, _WIDEST_BITS // element_bits)
        return cls(layout=layout, element_bits=element_bits, padding=padding)

    @property
    def vector_bits(self) -> tuple[int, ...]:
        """The register bits that one instruction moves, lowest offset first.

        Any bits of the register, because registers can be permuted.
        """
        bases = list(self.layout.in_bases("register"))
        found: list[int] = []
        names = self.layout.out_dim_names
        limit = _WIDEST_BITS // self.element_bits
        for numbers in self.padding:
            # Padding must neither split a vector nor break its alignment.
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
        """Bits per lane of one instruction."""
        return self.element_bits << len(self.vector_bits)

    @property
    def transposed_bits(self) -> tuple[int, ...]:
        """The register bits from which a transposing matrix instruction may take rows.

        Lanes 4, 8 and 16 follow the 8 elements of a row, lanes 1 and 2 and one of these bits the
        rows.  Empty if nothing is transposed.
        """
        if self.element_bits != 16 or self.padding:
            return ()
        at = self.layout.out_dim_names.index("offset")
        lanes, registers = self.layout.in_bases("lane"), self.layout.in_bases("register")
        if len(lanes) != 5 or [basis[at] for basis in lanes[2:]] != [1, 2, 4]:
            return ()
        if any(any(basis[:at] + basis[at + 1 :]) for basis in lanes[2:]):
            return ()
        others = [*lanes[:2], *registers, *self.layout.in_bases("warp")]
        return () if any(basis[at] & 7 for basis in others) else tuple(range(len(registers)))

    def shares_pairs(self, model: BankModel, *, is_store: bool = False) -> bool:
        """Returns whether phases are twice as large, because pairs of lanes share words."""
        if is_store or not model.shares_pairs or self.instruction_bits <= _WORD_BITS:
            return False
        return any(not any(basis) for basis in self.layout.in_bases("lane")[:2])

    def words(self, register: int, lane: int, warp: int) -> Iterable[int]:
        """Returns the word addresses of one lane in one instruction.

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
        """Returns the first register of each instruction."""
        inside = sum(1 << bit for bit in self.vector_bits)
        return [r for r in range(self.layout.in_dim_size("register")) if not r & inside]


def _gathered(layout: LinearLayout, most: int) -> LinearLayout:
    """Renumbers registers so that neighbours in memory differ in one bit.

    A swizzle may have mixed them: with registers that map to 2 and 64 ^ 2, the first and the second
    pair of either half are still neighbours, and LLVM merges what Triton does not.

    Args:
        layout: The layout.
        most: Elements of an instruction.
    """
    bases = [layout.flat_output(basis) for basis in layout.in_bases("register")]
    outs = layout.out_dim_names
    done: list[int] = []
    for bit in range(log2(most)):
        unit = tuple((1 << bit) if name == "offset" else 0 for name in outs)
        if 1 << bit >= layout.out_dim_size("offset"):
            break
        step = layout.flat_output(unit)
        free = [index for index in range(len(bases)) if index not in done]
        chosen = _sum_to(step, {index: bases[index] for index in free})
        if not chosen:
            break
        at = chosen[0]
        bases[at] = step
        done.append(at)
        for index in free:
            if index != at and bases[index] & step:
                bases[index] ^= step
    sizes = [layout.out_dim_size(name) for name in outs]
    return layout.with_in_bases("register", (_unflat(value, sizes) for value in bases))


def _sum_to(target: int, vectors: Mapping[int, int]) -> list[int]:
    """Returns the keys of vectors whose XOR is ``target``; a single vector if one suffices."""
    for key, vector in vectors.items():
        if vector == target:
            return [key]
    reduced: list[tuple[int, frozenset[int]]] = []
    for key, vector in vectors.items():
        keys = frozenset({key})
        for known, its in reduced:
            if vector ^ known < vector:
                vector, keys = vector ^ known, keys ^ its
        if vector:
            reduced.append((vector, keys))
            reduced.sort(reverse=True)
    keys = frozenset()
    for known, its in reduced:
        if target ^ known < target:
            target, keys = target ^ known, keys ^ its
    return [] if target else sorted(keys)


def _unflat(value: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Inverts :meth:`LinearLayout.flat_output`."""
    found = []
    for size in sizes:
        found.append(value & (size - 1))
        value >>= log2(size)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """Cost of an access, over all warps of a CTA.

    Attributes:
        instructions: Number of instructions.
        wavefronts: Number of wavefronts.
        ideal: Wavefronts of the same words spread evenly over all banks.
    """

    instructions: int
    wavefronts: int
    ideal: int

    @property
    def lost(self) -> int:
        """Additional wavefronts due to conflicts."""
        return self.wavefronts - self.ideal


@dataclass(frozen=True, slots=True)
class Phase:
    """Lanes that are served together.

    Attributes:
        lanes: The lanes that each word goes to (or comes from).
        banks: The accessed words of each bank, by address.
    """

    lanes: Mapping[int, tuple[int, ...]]
    banks: Mapping[int, tuple[int, ...]]

    @property
    def wavefronts(self) -> int:
        """Number of wavefronts."""
        return max(map(len, self.banks.values()))


def phases(
    access: Access,
    model: BankModel | None = None,
    *,
    is_store: bool = False,
    register: int = 0,
    warp: int = 0,
) -> tuple[Phase, ...]:
    """Returns the phases of one instruction.

    Args:
        access: The access.
        model: The banks; NVIDIA's by default.
        is_store: Whether the access writes.
        register: The first register of the instruction.
        warp: The warp.

    Returns:
        The phases; for a transposing matrix instruction, that of one matrix.
    """
    model = model or NVIDIA
    groups: tuple[tuple[int, ...], ...]
    registers = [register]
    transposed = _row_bit(access, model)
    if transposed is not None:
        registers.append(register ^ 1 << transposed)
        groups = (tuple(range(model.lanes)),)
    else:
        is_shared = access.shares_pairs(model, is_store=is_store)
        groups = model.phases(access.instruction_bits, is_shared=is_shared)
    found = []
    for group in groups:
        lanes: dict[int, list[int]] = {}
        for lane in group:
            for first in registers:
                for word in access.words(first, lane, warp):
                    users = lanes.setdefault(word, [])
                    if lane not in users:
                        users.append(lane)
        banks: dict[int, list[int]] = {}
        for word in sorted(lanes):
            banks.setdefault(word % model.banks, []).append(word)
        found.append(
            Phase(
                {word: tuple(users) for word, users in lanes.items()},
                {bank: tuple(words) for bank, words in banks.items()},
            )
        )
    return tuple(found)


def wavefronts(
    access: Access, model: BankModel | None = None, *, is_store: bool = False
) -> Conflicts:
    """Counts the wavefronts of an access.

    Args:
        access: The access.
        model: The banks; NVIDIA's by default.
        is_store: Whether the access writes.

    Raises:
        VerifyError: The number of lanes differs from the GPU's.
    """
    model = model or NVIDIA
    lanes = access.layout.in_dim_size("lane")
    if lanes != model.lanes:
        raise VerifyError(f"expected a tensor over {model.lanes} lanes, found {lanes}")
    if access.padding or model.lane_order:
        return _enumerated(access, model, is_store)
    warps = access.layout.in_dim_size("warp")
    transposed = _row_bit(access, model)
    if transposed is not None:
        matrices = access.layout.in_dim_size("register") // 2
        instructions = -(-matrices // _MATRICES) * warps
        return _counted(instructions, matrices * warps, _matrix(access, transposed), model)
    instructions = len(access.first_registers()) * warps
    is_shared = access.shares_pairs(model, is_store=is_store)
    served = model.phases(access.instruction_bits, is_shared=is_shared)
    inside = log2(len(served[0]))
    columns = [_word(access, b) for b in access.layout.in_bases("lane")[:inside]]
    words = max(access.instruction_bits // _WORD_BITS, 1)
    columns += [1 << bit for bit in range(log2(words))]
    return _counted(instructions, instructions * len(served), columns, model)


def _matrix(access: Access, bit: int) -> list[int]:
    """Returns vectors that span the words of a transposed matrix."""
    moved = [*access.layout.in_bases("lane"), access.layout.in_bases("register")[bit]]
    return [_word(access, basis) for basis in moved]


def _row_bit(access: Access, model: BankModel) -> int | None:
    """Returns the register bit from which transposed matrices take rows, or ``None``."""
    bits = access.transposed_bits if model.has_matrices else ()
    if not bits or not model.chooses_rows:
        return bits[0] if bits else None
    return min(bits, key=lambda bit: _counted(1, 1, _matrix(access, bit), model).wavefronts)


def _counted(instructions: int, count: int, columns: Sequence[int], model: BankModel) -> Conflicts:
    """Returns the cost of ``count`` phases, each of the words that ``columns`` span."""
    rank = _rank(columns)
    banks = _rank(column & (model.banks - 1) for column in columns)
    return Conflicts(
        instructions=instructions,
        wavefronts=count << (rank - banks),
        ideal=count * -(-(1 << rank) // model.banks),
    )


def _word(access: Access, basis: Sequence[int]) -> int:
    """Returns the word that a step leads to; steps add without carry."""
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


def _enumerated(access: Access, model: BankModel, is_store: bool) -> Conflicts:
    firsts = access.first_registers()
    warps = access.layout.in_dim_size("warp")
    total = ideal = 0
    for warp in range(warps):
        for register in firsts:
            for phase in phases(access, model, is_store=is_store, register=register, warp=warp):
                total += phase.wavefronts
                ideal += -(-len(phase.lanes) // model.banks)
    return Conflicts(instructions=len(firsts) * warps, wavefronts=total, ideal=ideal)


def partition_slots(access: Access, waves: int = 2) -> tuple[int, int]:
    """Counts how often waves that issue together access the same physical partition.

    Args:
        access: An access to a partitioned buffer.
        waves: Waves that issue together: neighbours, 0 and 1, 2 and 3, ...

    Returns:
        Instruction slots needed if a partition serves one wave at a time, and those without
        conflicts.
    """
    return in_turn(access, lambda _register, _warp: (1, 1), waves)


def in_turn(
    access: Access, served: Callable[[int, int], tuple[int, int]], waves: int
) -> tuple[int, int]:
    """Returns the cost of waves that issue together, if a partition serves one at a time.

    Args:
        access: The access.
        served: Returns cost and minimum cost of one instruction, by register and warp.
        waves: Waves that issue together.

    Returns:
        The sum over the instructions of the busiest partition's cost; and that without conflicts.
    """
    layout = access.layout
    count = layout.in_dim_size("warp")
    waves = min(waves, count)
    firsts = access.first_registers()
    total = ideal = 0
    for group in range(0, count, waves):
        # All registers of a wave move alike: partitions are XORed.
        wanted = {warp: _partitions(layout, warp) for warp in range(group, group + waves)}
        for register in firsts:
            here = layout.apply({"register": register, "lane": 0, "warp": 0}).get("partition", 0)
            load: dict[int, int] = {}
            longest = 0
            for warp, partitions in wanted.items():
                taken, least = served(register, warp)
                longest = max(longest, least)
                for partition in partitions:
                    load[partition ^ here] = load.get(partition ^ here, 0) + taken
            total += max(load.values())
            ideal += longest
    return total, ideal


def _partitions(layout: LinearLayout, warp: int) -> set[int]:
    """Returns the partitions that a wave accesses with its first instruction."""
    places = ({"register": 0, "lane": e, "warp": warp} for e in range(layout.in_dim_size("lane")))
    return {layout.apply(place).get("partition", 0) for place in places}
