"""Wavefronts of waves that meet in partitions: enumerated, and in the two known limits."""

from __future__ import annotations

import os
import random

from triton_ext.analysis.bank_conflicts import (
    Access,
    BankModel,
    partition_slots,
    phases,
    wavefronts,
)
from triton_ext.backends.amd.analysis.partition_conflicts import joint_wavefronts
from triton_ext.ir.encodings import (
    BlockedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SwizzledSharedEncoding,
)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
MODEL = BankModel(lanes=32, banks=64)


def split(source, total):
    """Two powers of two with a product."""
    one = source.choice([x for x in (1, 2, 4, 8, 16, 32) if total % x == 0])
    return one, total // one


def random_access(seed):
    """An access of four waves to a buffer with or without partitions, padded or swizzled."""
    source = random.Random(seed)
    shape = source.choice([(32, 32), (64, 32), (32, 64)])
    order = source.choice([(1, 0), (0, 1)])
    tensor = BlockedEncoding(
        split(source, source.choice([1, 2, 4, 8])), split(source, 32), split(source, 4), order
    )
    groups, dim = source.choice([0, 1, 2, 4]), source.randrange(2)
    if seed % 4 == 0:
        # Waves with a piece each, several times.
        tensor = BlockedEncoding((1, 4), (4, 8), (4, 1), (1, 0))
        groups, dim = shape[0] // 8, 0
    piece = list(shape)
    piece[dim] //= 2 * groups if groups else 1
    if source.random() < 0.6:
        intervals = sorted(source.sample([32, 64, 128], 1 + seed % 2))
        pairs = tuple((interval, source.choice([1, 4, 8])) for interval in intervals)
        inner = PaddedSharedEncoding.with_identity_for(pairs, piece, source.choice([(1, 0), order]))
    else:
        inner = SwizzledSharedEncoding(source.choice([1, 4]), 1, source.choice([1, 8]), (1, 0))
    buffer = PartitionedSharedEncoding(2, groups, dim, inner) if groups else inner
    return Access.of(tensor, buffer, shape, source.choice([8, 16, 32])), groups


def enumerated(access, waves):
    """By the rules in words: pairs of waves, sums for each partition, the largest of them.

    Returns that and the most wavefronts that a wave of the pair takes without a conflict.
    """
    total = ideal = 0
    lanes = range(access.layout.in_dim_size("lane"))
    for first in range(0, access.layout.in_dim_size("warp"), waves):
        for register in access.first_registers():
            load, least = {}, [0]
            for warp in range(first, first + waves):
                found = phases(access, MODEL, register=register, warp=warp)
                least.append(sum(-(-len(phase.lanes) // MODEL.banks) for phase in found))
                places = [
                    access.layout.apply({"register": register, "lane": lane, "warp": warp})
                    for lane in lanes
                ]
                for partition in {place.get("partition", 0) for place in places}:
                    taken = sum(phase.wavefronts for phase in found)
                    load[partition] = load.get(partition, 0) + taken
            total += max(load.values())
            ideal += max(least)
    return total, ideal


def test_random_accesses():
    fewer = 0
    for seed in range(200 if NIGHTLY else 16):
        access, groups = random_access(seed)
        for waves in (2, 4) if NIGHTLY else (2,):
            found = joint_wavefronts(access, MODEL, waves)
            assert (found.wavefronts, found.ideal) == enumerated(access, waves), seed
        alone = wavefronts(access, MODEL)
        together = joint_wavefronts(access, MODEL)
        assert joint_wavefronts(access, MODEL, 1).wavefronts == alone.wavefronts
        if not groups:
            assert together.wavefronts == alone.wavefronts
        fewer += together.wavefronts < alone.wavefronts
    assert fewer > (40 if NIGHTLY else 3)


def test_conflicts_of_waves_alone():
    # A row of 32 words for each wave, and a partition for each other row.
    tensor = BlockedEncoding((1, 1), (1, 32), (4, 1), (1, 0))
    plain = SwizzledSharedEncoding(1, 1, 1, (1, 0))
    shape = (4, 32)
    met = Access.of(tensor, PartitionedSharedEncoding(2, 1, 0, plain), shape, 32)
    apart = Access.of(tensor, PartitionedSharedEncoding(2, 2, 0, plain), shape, 32)
    # Rows 0 and 1 lie in one piece; then each in its own.
    assert joint_wavefronts(met, MODEL).wavefronts == partition_slots(met)[0] == 4
    assert joint_wavefronts(apart, MODEL).wavefronts == partition_slots(apart)[0] == 2
    assert joint_wavefronts(met, MODEL).ideal == 2
