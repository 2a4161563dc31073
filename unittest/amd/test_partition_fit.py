"""The bytes that a choice needs are those that the installed Triton takes."""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("triton")

from partitioned_modules import allocation_in_child, module_with, partitioned
from triton_ext import host
from triton_ext.backends.amd.analysis.lds import Lds
from triton_ext.backends.amd.analysis.partition_fit import needed_bytes
from triton_ext.ir import parse

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
GFX1250 = Lds.of("gfx1250")

pytestmark = pytest.mark.skipif(
    not host.capabilities()["amd-partitioned-shared"].available, reason="no partitioned values"
)

SHAPES = ["64x32", "128x64", "512x32", "3x512x32", "2x256x64", "256x32"]
ENCODINGS = [None, partitioned(2), partitioned(2), partitioned(4)]


def random_module(seed):
    """A kernel with values that live for different times, some of them together."""
    source = random.Random(seed)
    values = [
        (source.choice(SHAPES), source.choice(ENCODINGS)) for _ in range(source.randint(3, 5))
    ]
    events = []
    for k in range(len(values)):
        start, end = sorted(source.sample(range(40), 2))
        events += [(start, k, False), (end, k, True)]
    return module_with(values, [(k, is_read) for _, k, is_read in sorted(events)])


def test_random_live_ranges():
    ends = 0
    for seed in range(400 if NIGHTLY else 30):
        text = random_module(seed)
        found = allocation_in_child(text)
        needed = needed_bytes(parse(text), GFX1250, host.features())
        # As many bytes as there are: ours never ends above.
        assert needed == (found[1] if found is not None else None), seed
        ends += found is not None
    assert ends > 15


def test_an_unknown_host_needs_what_the_worse_release_needs():
    for seed in range(8):
        module = parse(random_module(seed))
        old, new = (
            needed_bytes(module, GFX1250, features)
            for features in (frozenset(), frozenset({"amd-partition-placement"}))
        )
        expected = None if old is None or new is None else max(old, new)
        assert needed_bytes(module, GFX1250, None) == expected
