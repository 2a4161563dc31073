"""Wavefronts by ranks equal those by enumeration of every byte; known cases by hand."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from triton_ext.analysis.bank_conflicts import (
    NVIDIA,
    Access,
    BankModel,
    partition_slots,
    phases,
    wavefronts,
)
from triton_ext.errors import VerifyError
from triton_ext.ir.encodings import (
    BlockedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SwizzledSharedEncoding,
)

COUNT = 2000 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 500
MODELS = {
    "nvidia": BankModel(),
    "gfx942": BankModel(lanes=64, banks=32),
    "gfx950": BankModel(lanes=64, banks=64),
    "gfx1250": BankModel(lanes=32, banks=64),
}


def split(source, total, parts):
    """Powers of two with a product."""
    found = [1] * parts
    while total > 1:
        found[source.randrange(parts)] *= 2
        total //= 2
    return tuple(found)


def random_access(seed, model, *, padded=False):
    """An access, and the encodings and shape that it was made of."""
    source = random.Random(seed)
    order = source.choice([(1, 0), (0, 1)])
    tile = split(source, source.choice([1, 2, 4, 8]), 2)
    lanes = split(source, model.lanes, 2)
    warps = split(source, source.choice([1, 2]), 2)
    tensor = BlockedEncoding(tile, lanes, warps, order)
    shape = tuple(source.choice([8, 16, 32]) for _ in range(2))
    if padded:
        interval = source.choice([8, 32, 64, 128])
        pad = source.choice([1, 2, 4, 8])
        pairs = ((interval, pad),)
        buffer = PaddedSharedEncoding.with_identity_for(
            pairs, shape, source.choice([order, (1, 0)])
        )
    else:
        buffer = SwizzledSharedEncoding(
            source.choice([1, 2, 4, 8]),
            source.choice([1, 2, 4]),
            source.choice([1, 2, 4, 8]),
            source.choice([(1, 0), (0, 1)]),
        )
    if source.random() < 0.3 and not padded:
        buffer = PartitionedSharedEncoding(2, source.choice([1, 2]), source.randrange(2), buffer)
    bits = source.choice([8, 16, 32, 64])
    return Access.of(tensor, buffer, shape, bits), buffer, bits


def by_bytes(access, buffer, bits, model):
    """Wavefronts from the addresses of all bytes, with nothing of the model but its phases."""
    vector = access.vector_bits
    registers = range(access.layout.in_dim_size("register"))
    total = 0
    for warp in range(access.layout.in_dim_size("warp")):
        for first in registers:
            if any(first >> bit & 1 for bit in vector):
                continue
            for lanes in model.phases(bits << len(vector)):
                wanted = set()
                for lane in lanes:
                    for number in range(1 << len(vector)):
                        inside = sum((number >> n & 1) << bit for n, bit in enumerate(vector))
                        place = access.layout.apply(
                            {"register": first + inside, "lane": lane, "warp": warp}
                        )
                        offset = place["offset"]
                        if isinstance(buffer, PaddedSharedEncoding):
                            offset = buffer.padded_offset(offset)
                        start = offset * bits // 8
                        for byte in range(start, start + bits // 8):
                            wanted.add((place.get("partition", 0), byte // 4))
                banks = [word % model.banks for _, word in wanted]
                total += max(banks.count(bank) for bank in set(banks))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("arch", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_ranks_equal_enumeration(arch, padded):
    model = MODELS[arch]
    conflicting = 0
    for seed in range(COUNT // 8):
        access, buffer, bits = random_access(seed, model, padded=padded)
        found = wavefronts(access, model)
        assert found.wavefronts == by_bytes(access, buffer, bits, model), seed
        assert 0 < found.ideal <= found.wavefronts
        conflicting += found.lost > 0
    assert conflicting > COUNT // 100


def rows(count, sizes=(32, 32), bits=32, swizzle=(1, 1, 1), model=None):
    """Lanes along dimension 0 of a buffer with rows in dimension 1: a column is read."""
    tensor = BlockedEncoding((1, 1), (count, 1), (1, 1), (0, 1))
    buffer = SwizzledSharedEncoding(*swizzle, (1, 0))
    return wavefronts(Access.of(tensor, buffer, sizes, bits), model)


def test_a_column_of_a_matrix_of_words():
    # A lane takes 4 words at once, a phase 8 lanes: 8 words of each of 4 banks, 4 phases, 8 times.
    assert rows(32).wavefronts == 8 * 4 * 8
    assert rows(32).ideal == 32
    # XOR with the row spreads them over all banks.
    assert rows(32, swizzle=(1, 1, 32)).wavefronts == 32


def test_sixty_four_banks_halve_the_conflicts():
    # Every other row lies in the other half: 16 lanes a phase, 8 words of each of 8 banks.
    assert rows(32, model=BankModel(lanes=32, banks=64)).wavefronts == 8 * 2 * 8


def test_padding_spreads_a_column():
    tensor = BlockedEncoding((1, 1), (32, 1), (1, 1), (0, 1))
    buffer = PaddedSharedEncoding.with_identity_for(((32, 1),), (32, 32), (1, 0))
    assert wavefronts(Access.of(tensor, buffer, (32, 32), 32)).wavefronts == 32


def test_one_word_for_all_lanes_is_one_wavefront():
    tensor = BlockedEncoding((1,), (32,), (1,), (0,))
    buffer = SwizzledSharedEncoding(1, 1, 1, (0,))
    # Each of the lanes of a 1-element tensor reads the same element.
    assert wavefronts(Access.of(tensor, buffer, (1,), 32)).wavefronts == 1


def test_wide_accesses_take_a_phase_for_each_quarter():
    tensor = BlockedEncoding((4,), (32,), (1,), (0,))
    buffer = SwizzledSharedEncoding(1, 1, 1, (0,))
    access = Access.of(tensor, buffer, (128,), 32)
    assert access.instruction_bits == 128
    assert wavefronts(access).instructions == 1
    assert wavefronts(access).wavefronts == 4


def test_other_lanes_than_the_gpu_has():
    tensor = BlockedEncoding((1,), (64,), (1,), (0,))
    access = Access.of(tensor, SwizzledSharedEncoding(1, 1, 1, (0,)), (64,), 32)
    with pytest.raises(VerifyError, match="expected a tensor over 32 lanes, found 64"):
        wavefronts(access)


def test_elements_that_are_no_power_of_two():
    tensor = BlockedEncoding((1,), (32,), (1,), (0,))
    with pytest.raises(VerifyError, match="power of two"):
        Access.of(tensor, SwizzledSharedEncoding(1, 1, 1, (0,)), (32,), 24)


def pairs(bits, threads, columns, *, is_store):
    """Rows of one element each (or of 4), repeated along the lanes that go beyond the columns."""
    tile = (1, 128 // bits if bits == 32 else 1)
    tensor = BlockedEncoding(tile, threads, (1, 1), (1, 0))
    access = Access.of(tensor, SwizzledSharedEncoding(1, 1, 1, (1, 0)), (32, columns), bits)
    return wavefronts(access, is_store=is_store)


# As counted on an H200, see benchmarks/bank_conflicts.py.
@pytest.mark.parametrize(
    ("bits", "threads", "columns", "reads", "writes"),
    [
        (64, (16, 2), 1, 2 * 1, 2 * 2),  # lane 1 wants what lane 0 wants
        (64, (8, 4), 2, 4 * 1, 4 * 2),  # lane 2 wants what lane 0 wants
        (64, (4, 8), 4, 8 * 2, 8 * 2),  # lane 4 does: too far
        (32, (16, 2), 4, 2 * 2, 2 * 4),  # 128 bits
        (32, (8, 4), 4, 4 * 2, 4 * 4),
    ],
)
def test_lanes_that_repeat_their_neighbours(bits, threads, columns, reads, writes):
    assert pairs(bits, threads, columns, is_store=False).wavefronts == reads
    assert pairs(bits, threads, columns, is_store=True).wavefronts == writes


def test_pairs_share_no_phase_on_other_gpus():
    tensor = BlockedEncoding((1, 1), (16, 2), (1, 1), (1, 0))
    access = Access.of(tensor, SwizzledSharedEncoding(1, 1, 1, (1, 0)), (32, 1), 64)
    assert wavefronts(access, BankModel()).wavefronts == 4
    assert wavefronts(access, NVIDIA).wavefronts == 2


# As counted on an H200 with Triton 3.9, which chooses rows; 3.8 takes the lowest register.
@pytest.mark.parametrize(
    ("swizzle", "chosen", "lowest"), [((1, 1, 1), 4, 8), ((8, 1, 8), 1, 1), ((8, 2, 4), 1, 2)]
)
def test_transposed_matrices(swizzle, chosen, lowest):
    tensor = BlockedEncoding((2, 1), (4, 8), (2, 2), (0, 1))
    access = Access.of(tensor, SwizzledSharedEncoding(*swizzle, (1, 0)), (64, 64), 16)
    assert access.transposed_bits == (0, 1, 2, 3, 4)
    for model, ways in ((NVIDIA, chosen), (replace(NVIDIA, chooses_rows=False), lowest)):
        found = wavefronts(access, model)
        # 4 warps with 4 instructions of 4 matrices.
        assert (found.instructions, found.wavefronts) == (16, 16 * 4 * ways)
        (matrix,) = phases(access, model)
        assert len(matrix.lanes) == 32
        assert matrix.wavefronts == ways
        # Each word of a row holds 2 elements, of 2 lanes.
        assert {len(lanes) for lanes in matrix.lanes.values()} == {2}


@pytest.mark.parametrize(
    ("bits", "tile", "order"), [(32, (2, 1), (0, 1)), (16, (1, 2), (1, 0)), (8, (2, 1), (0, 1))]
)
def test_no_transposed_matrices(bits, tile, order):
    tensor = BlockedEncoding(tile, (4, 8), (2, 2), order)
    access = Access.of(tensor, SwizzledSharedEncoding(1, 1, 1, (1, 0)), (64, 64), bits)
    assert access.transposed_bits == ()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_store", [False, True])
def test_phases_add_up(padded, is_store):
    for seed in range(40):
        access, _, _ = random_access(seed, NVIDIA, padded=padded)
        if access.transposed_bits:
            continue
        total = sum(
            phase.wavefronts
            for warp in range(access.layout.in_dim_size("warp"))
            for register in access.first_registers()
            for phase in phases(access, NVIDIA, is_store=is_store, register=register, warp=warp)
        )
        assert wavefronts(access, NVIDIA, is_store=is_store).wavefronts == total, seed


def test_a_swizzle_that_mixes_registers():
    # Registers go to 1 and 2 along rows, and to 64 ^ 2 from row to row: Triton stores pairs, and
    # LLVM joins 4 of them to one 64-bit store.
    tensor = BlockedEncoding((4, 2), (8, 4), (4, 1), (1, 0))
    access = Access.of(tensor, SwizzledSharedEncoding(2, 1, 8, (0, 1)), (64, 16), 16)
    assert access.instruction_bits == 64
    assert sorted(basis for (basis,) in access.layout.in_bases("register")) == [1, 2, 64, 512]


def test_waves_that_read_different_pieces_do_not_meet():
    inner = SwizzledSharedEncoding(1, 1, 1, (1, 0))
    buffer = PartitionedSharedEncoding(2, 1, 0, inner)
    apart = BlockedEncoding((16, 1), (1, 32), (2, 1), (1, 0))
    assert partition_slots(Access.of(apart, buffer, (32, 32), 32)) == (16, 16)
    # Both waves read all rows: each reads the first piece first.
    together = BlockedEncoding((32, 1), (1, 16), (1, 2), (1, 0))
    wide = BlockedEncoding((1, 1), (1, 32), (1, 2), (1, 0))
    assert together.rank == wide.rank
    slots, ideal = partition_slots(Access.of(wide, buffer, (32, 64), 32))
    assert slots == 2 * ideal
