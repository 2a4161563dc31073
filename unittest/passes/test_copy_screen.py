"""The screen in front of the passes that coalesce copies: what it lets through, and how fast."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest
from copy_cases import CopyCase, blocked, draw
from copy_comparison import ours
from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.backends.amd.analysis.target import Target
from triton_ext.backends.amd.passes import copy_screen as amd_screen
from triton_ext.backends.amd.passes.coalesce_async_copy import copies_of, lowers
from triton_ext.ir import parse
from triton_ext.passes import copy_screen
from triton_ext.passes.async_copy import AsyncCopy, async_copies

LINE = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"
TARGETS = ("cuda:80", "cuda:90", "hip:gfx942", "hip:gfx950", "hip:gfx1250")
#: Milliseconds for a kernel without candidates.
LIMIT_MS = 0.5


def screened(given: CopyCase) -> bool:
    if given.target.startswith("hip"):
        return amd_screen.has_narrow_copies(given.text)
    return copy_screen.has_narrow_copies(given.text)


def all_known(random: Random, target: str) -> CopyCase:
    """A copy of whose pointers and mask all is known that can be asked for."""
    by_offsets = target in ("hip:gfx942", "hip:gfx950") and random.random() < 0.4
    drawn = draw(random, target, by_offsets=by_offsets)
    return replace(
        drawn,
        contiguity=drawn.shape,
        divisibility=(256,) * len(drawn.shape),
        constancy=None if random.random() < 0.5 else drawn.shape,
        hint=1,
        base=256 if by_offsets else 0,
    )


def copy_of(given: CopyCase) -> AsyncCopy:
    module = parse(given.text)
    if given.target.startswith("hip"):
        (copy,) = copies_of(module, Target.of_module(module))
    else:
        (copy,) = async_copies(module, AxisInfoAnalysis.of(module))
    return copy


def compiles(given: CopyCase, copy: AsyncCopy) -> bool:
    if given.target.startswith("hip"):
        return lowers(copy, copy.encoding, Target.of(given.target[4:]))
    return copy.vector(copy.encoding).size * copy.bits >= 32


@pytest.mark.parametrize("target", TARGETS)
def test_candidates_are_small_copies_and_those_that_do_not_compile(target):
    """Never too few; a kernel that is read in vain is rare."""
    random = Random(target)
    in_vain, count = 0, 200
    for _ in range(count):
        given = all_known(random, target)
        copy = copy_of(given)
        wanted = copy.is_small or not compiles(given, copy)
        found = screened(given)
        assert found or not wanted, given
        in_vain += found and not wanted
    assert in_vain <= count // 20


@pytest.mark.parametrize("target", TARGETS)
def test_no_candidate_is_not_changed(target):
    vendor = "amd" if target.startswith("hip") else ""
    name = f"triton{vendor}gpu-coalesce-async-copy"
    random = Random(target)
    for _ in range(100):
        given = all_known(random, target)
        if not screened(given):
            text = ours(f"{name}{{explicit-layouts=true}}", given.text)
            assert text == given.text, given


def case(element: str, encoding: str, size: int, **more) -> CopyCase:
    given = {"target": "cuda:90", "shape": (size,), "shared": LINE}
    return CopyCase(element=element, encoding=encoding, **{**given, **more})


def slice_of(dim: int, parent: str) -> str:
    return f"#ttg.slice<{{dim = {dim}, parent = {parent}}}>"


ONE, TWO = blocked([1], [32], [4], [0]), blocked([2], [32], [4], [0])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(case("f32", ONE, 64), True, id="fewer than threads"),
        pytest.param(case("f32", ONE, 128), False, id="as many as threads"),
        pytest.param(case("f16", ONE, 128), True, id="2 bytes"),
        pytest.param(case("f16", TWO, 256), False, id="4 bytes"),
        pytest.param(case("i8", TWO, 1024), True, id="2 bytes of i8"),
        pytest.param(
            case("f16", slice_of(1, blocked([2, 8], [8, 4], [4, 1], [1, 0])), 256),
            False,
            id="4 bytes of a slice",
        ),
        pytest.param(
            case("f16", slice_of(0, blocked([2, 1], [8, 4], [4, 1], [1, 0])), 256),
            True,
            id="2 bytes of a slice",
        ),
    ],
)
def test_decision(given, wanted):
    assert screened(given) == wanted


def test_partitions_may_have_more_warps():
    text = case("f32", ONE, 128).text
    assert not copy_screen.has_narrow_copies(text)
    assert copy_screen.has_narrow_copies(text.replace("tt.return", "partition0() num_warps(8)"))


def test_aliases_that_name_others_are_spelled_out():
    piece = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    pieces = (
        "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, "
        "partitionLayout = #inner}>"
    )
    narrow, wide = (blocked([1, n], [32 // (16 // n), 16 // n], [4, 1], [1, 0]) for n in (1, 8))
    for encoding, wanted in ((narrow, True), (wide, False)):
        given = case("f16", encoding, 0, target="hip:gfx1250", shape=(64, 16), shared=pieces)
        text = given.text.replace("#s = ", f"#inner = {piece}\n#s = ", 1)
        assert amd_screen.has_narrow_copies(text) == wanted


def test_what_cannot_be_read_is_no_candidate():
    assert not copy_screen.has_narrow_copies("module {\n}\n")
    assert not copy_screen.has_narrow_copies("  %t = ttg.async_copy_global_to_local\n")
    assert not amd_screen.has_narrow_copies(case("f32", ONE, 64).text)
    text = case("f32", ONE, 64, target="hip:gfx90a").text
    assert not amd_screen.has_narrow_copies(text)


def test_an_encoding_that_is_not_known_is_a_candidate():
    text = case("f16", "#ttg.future<{lanes = 4}>", 4096).text
    assert copy_screen.has_narrow_copies(text)


@pytest.mark.parametrize("target", TARGETS)
def test_time(target):
    """A kernel of 400 operations with three copies, none of them a candidate."""
    lanes = 64 if target.startswith("hip:gfx9") else 32
    given = case("f32", blocked([1], [lanes], [4], [0]), 1024, target=target)
    head, copy, tail = given.text.partition("    %t = ")
    line, _, rest = tail.partition("\n")
    filler = "    %f = arith.addi %a, %b : tensor<1024xi32, #b> loc(#loc1)\n" * 100
    text = head + (filler + copy + line + "\n") * 3 + filler + rest
    screen = amd_screen if target.startswith("hip") else copy_screen
    assert not screen.has_narrow_copies(text)
    best = min(elapsed_ms(lambda: screen.has_narrow_copies(text)) for _ in range(20))
    assert best < LIMIT_MS


def elapsed_ms(function) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3
