"""``tritonamdgpu-coalesce-async-copy``: what it decides, and what the host makes of the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from random import Random

import pytest
from copy_cases import CopyCase, blocked, compiles_only_on_3_6, draw, in_a_function, over_ctas
from copy_comparison import Comparison, HostPass, ours
from copy_emission import EmissionHost
from triton_ext.analysis import register_to_shared
from triton_ext.backends.amd.analysis.target import Target
from triton_ext.backends.amd.passes.coalesce_async_copy import (
    copies_of,
    lowers,
    swizzle_stays_in_a_wave,
)
from triton_ext.errors import UnsupportedError, VerifyError
from triton_ext.ir import parse
from triton_ext.ir.encodings import DistributedEncoding, LinearEncoding, SwizzledSharedEncoding
from triton_ext.passes import PassManager
from triton_ext.passes.async_copy import AsyncCopy

NAME = "tritonamdgpu-coalesce-async-copy"
TARGETS = ("hip:gfx942", "hip:gfx950", "hip:gfx1250")
#: Triton refuses buffer copies of gfx1250 from 3.8 on.
OFFSETS = ("hip:gfx942", "hip:gfx950")
PLAIN = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"


def case(target: str, held: int, shared: str = PLAIN, **more) -> CopyCase:
    """A copy of 64x64 elements whose rows are known to be contiguous."""
    lanes = 64 if target.startswith("hip:gfx9") else 32
    across = min(lanes, 64 // held)
    given = {
        "shape": (64, 64),
        "element": "f16",
        "encoding": blocked([1, held], [lanes // across, across], [4, 1], [1, 0]),
        "contiguity": (1, 64),
        "divisibility": (2, 16),
    }
    return CopyCase(target=target, shared=shared, **{**given, **more})


def copy_of(text: str) -> AsyncCopy:
    module = parse(text)
    (copy,) = copies_of(module, Target.of_module(module))
    return copy


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        pytest.param(case("hip:gfx942", 8), 4, id="gfx942"),
        pytest.param(case("hip:gfx950", 8), 16, id="gfx950"),
        pytest.param(case("hip:gfx950", 4), 16, id="gfx950, 8 bytes held"),
        pytest.param(case("hip:gfx950", 1), 16, id="gfx950, one element held"),
        pytest.param(case("hip:gfx950", 8, constancy=(1, 4)), 4, id="gfx950, mask of 4"),
        pytest.param(case("hip:gfx1250", 8, constancy=(1, 4)), 8, id="gfx1250, mask of 4"),
        pytest.param(case("hip:gfx1250", 2), 16, id="gfx1250"),
        pytest.param(case("hip:gfx1250", 1), 16, id="gfx1250, one element held"),
        pytest.param(
            case("hip:gfx950", 8, contiguity=(), divisibility=(), hint=8), 16, id="gfx950, hint"
        ),
        pytest.param(case("hip:gfx950", 16, element="i8"), 16, id="gfx950, i8"),
        pytest.param(case("hip:gfx942", 16, element="i8"), 4, id="gfx942, i8"),
    ],
)
def test_width(given, bytes_):
    copy = copy_of(ours(NAME, given.text))
    assert lowers(copy, copy.encoding, Target.of(given.target[4:]))
    assert copy.vector(copy.encoding).size * copy.bits // 8 == bytes_


def test_lanes_of_a_padded_buffer_enumerate_its_offsets():
    shared = "#ttg.padded_shared<[512:+16] {order = [1, 0], shape = [64, 64]}>"
    copy = copy_of(ours(NAME, case("hip:gfx950", 1, shared).text))
    assert isinstance(copy.encoding, LinearEncoding)
    layout = copy.encoding.to_linear_layout((64, 64))
    assert layout.in_bases("register")[:3] == ((0, 1), (0, 2), (0, 4))
    assert layout.in_bases("lane") == ((0, 8), (0, 16), (0, 32), (1, 0), (2, 0), (4, 0))


def test_what_compiles_and_is_wide_stays():
    for target, held in (("hip:gfx942", 2), ("hip:gfx950", 8), ("hip:gfx1250", 8)):
        text = case(target, held).text
        assert ours(NAME, text) == text


def test_gpus_without_copies_to_lds_are_left_alone():
    text = case("hip:gfx1201", 8).text
    assert ours(NAME, text) == text
    assert ours(f"{NAME}{{gfx-arch=gfx1201}}", text) == text


def test_a_gpu_that_is_not_known_is_refused_or_told_of():
    text = case("hip:gfx90a", 8).text
    module = parse(text)
    (warning,) = PassManager(NAME).run(module).remarks
    assert str(module) == text
    assert "the asynchronous copies of this module are left alone: expected a GPU" in str(warning)
    with pytest.raises(UnsupportedError, match="found 'gfx90a'"):
        ours(f"{NAME}{{gfx-arch=gfx90a}}", text)


def test_a_module_of_no_gpu_is_an_error():
    text = case("hip:gfx950", 8).text.replace(', ttg.target = "hip:gfx950"', "")
    with pytest.raises(VerifyError, match=r"ttg\.target"):
        PassManager(NAME).run(parse(text))
    assert ours(f"{NAME}{{arch-generation-name=gfx942}}", text).count("= ttg.convert_layout") == 1


def test_nothing_is_claimed_that_was_not_known():
    random = Random(6)
    for _ in range(300):
        given = draw(random, random.choice(TARGETS))
        before, after = copy_of(given.text), copy_of(ours(NAME, given.text))
        if before.encoding != after.encoding:
            vector = after.vector(after.encoding)
            assert vector.size <= before.known(vector.dim), given


def test_nothing_is_worse_than_before():
    """What compiled compiles, and no lane has more or narrower instructions."""
    random = Random(8)
    for _ in range(400):
        arch = random.choice(TARGETS)
        given = draw(random, arch, by_offsets=arch in OFFSETS and random.random() < 0.3)
        before, after = copy_of(given.text), copy_of(ours(NAME, given.text))
        target = Target.of(arch[4:])
        if lowers(before, before.encoding, target):
            assert lowers(after, after.encoding, target), given
            old, new = before.vector(before.encoding), after.vector(after.encoding)
            assert new.instructions <= old.instructions, given
            assert new.size >= old.size, given


def swizzled(vec: int, phases: int) -> str:
    return PLAIN.replace("vec = 1", f"vec = {vec}").replace("maxPhase = 1", f"maxPhase = {phases}")


def lanes_get_what_they_write(copy: AsyncCopy, encoding: DistributedEncoding) -> bool:
    """Whether what is written by one instruction of a wave is what its lanes have addresses of.

    By hand, element by element: the elements that a wave's vectors hold, at their swizzled
    places, are those that lie where the wave writes.
    """
    shared = copy.shared
    assert isinstance(shared, SwizzledSharedEncoding)
    layout = encoding.to_linear_layout(copy.shape).without_zero_bases("register")
    plain = SwizzledSharedEncoding(1, 1, 1, shared.order, shared.cga_layout)
    to_plain = register_to_shared(encoding, plain, copy.shape).without_zero_bases("register")
    size = copy.vector(encoding).size
    fast, rows = shared.order[0], shared.order[1] if len(copy.shape) > 1 else None
    for warp in range(copy.num_warps):
        for first in range(0, layout.in_dim_size("register"), size):
            written, meant = set(), set()
            for lane in range(copy.threads_per_warp):
                at = {"register": first, "lane": lane, "warp": warp, "block": 0}
                where = to_plain.apply(at)["offset"]
                place = layout.apply(at)
                row = place[f"dim{rows}"] if rows is not None else 0
                phase = row // shared.per_phase % shared.max_phase
                column = place[f"dim{fast}"]
                moved = column ^ (shared.vec * phase % copy.shape[fast])
                written.add(where)
                meant.add(where - column + moved)
            if written != meant:
                return False
    return True


@pytest.mark.parametrize("explicit", ["", "{explicit-layouts=true}"])
def test_a_swizzle_that_reaches_lanes_of_other_waves(explicit):
    """16 phases of 16 elements: half of the rows want what another wave has addresses of."""
    given = case(
        "hip:gfx950",
        1,
        swizzled(16, 16),
        shape=(16, 256),
        encoding=blocked([1, 1], [1, 64], [4, 1], [1, 0]),
        contiguity=(1, 2),
        divisibility=(2, 4),
    )
    module = parse(given.text)
    (warning,) = PassManager(f"{NAME}{explicit}").run(module).remarks
    assert str(module) == given.text
    assert "moves elements to lanes of other waves" in str(warning)
    eight = replace(given, shared=swizzled(16, 8))
    copy = copy_of(ours(f"{NAME}{explicit}", eight.text))
    assert copy.vector(copy.encoding).size == 2
    assert lanes_get_what_they_write(copy, copy.encoding)


def test_a_vector_of_two_swizzled_ones_is_split():
    """Triton compiles 16 bytes of a lane here and moves 8 of them by half a vector, which is none.

    So what it compiles is wrong, and more instructions than it has are right.
    """
    encoding = blocked([1, 8], [8, 8], [4, 1], [1, 0])
    given = case("hip:gfx950", 8, swizzled(4, 4), encoding=encoding)
    before = copy_of(given.text)
    assert not lowers(before, before.encoding, Target.of("gfx950"))
    for options in ("", "{explicit-layouts=true}"):
        copy = copy_of(ours(f"{NAME}{options}", given.text))
        vector = copy.vector(copy.encoding)
        assert (vector.size, vector.instructions) == (2, 8)
        assert lanes_get_what_they_write(copy, copy.encoding)


def test_swizzles_stay_in_a_wave():
    """Whatever comes out and lowers, element by element."""
    random, stays, lowered = Random(11), {True: 0, False: 0}, 0
    for _ in range(40):
        target, element = random.choice(OFFSETS), random.choice(("f16", "f32"))
        columns, held = random.choice((64, 256, 512)), random.choice((1, 2, 4, 8))
        across = min(64, columns // held)
        given = case(
            target,
            held,
            swizzled(random.choice((2, 4, 8, 16, 32)), random.choice((2, 4, 8, 16, 32))),
            shape=(32, columns),
            element=element,
            encoding=blocked([1, held], [64 // across, across], [4, 1], [1, 0]),
            contiguity=(1, random.choice((2, 4, 64))),
            divisibility=(4, 16),
        )
        for copy in (copy_of(given.text), copy_of(ours(NAME, given.text))):
            if lowers(copy, copy.encoding, Target.of(given.target[4:])):
                lowered += 1
                assert lanes_get_what_they_write(copy, copy.encoding), given
            stays[swizzle_stays_in_a_wave(copy, copy.encoding)] += 1
    assert min(*stays.values(), lowered) > 3, (stays, lowered)


def test_several_ctas_and_functions_of_partitions():
    random, changed = Random(12), 0
    for _ in range(300):
        drawn = over_ctas(random, draw(random, "hip:gfx1250"))
        if drawn is None:
            continue
        given = in_a_function(drawn, random.choice((4, 8)))
        before, after = copy_of(given.text), copy_of(ours(NAME, given.text))
        assert before.num_warps == given.warps
        assert before.facts.is_local, given
        assert 2 * prod(before.share) == prod(given.shape)
        if before.encoding != after.encoding:
            changed += 1
            assert after.facts.is_local, given
            layout = after.encoding.to_linear_layout(given.shape)
            assert layout.in_dim_size("warp") == given.warps
    assert changed > 40


# ---- against the host


@pytest.fixture(scope="module")
def emission() -> Iterator[EmissionHost]:
    pytest.importorskip("triton")
    with EmissionHost() as host:
        yield host


@pytest.fixture(scope="module")
def host(emission) -> Iterator[HostPass]:
    made = HostPass(NAME)
    yield made
    made.close()


def check(count: int, seed: int, emission, host, capsys) -> Comparison:
    random = Random(seed)
    comparison = Comparison(NAME, emission, host)
    while sum(comparison.counts[f"{target} drawn"] for target in TARGETS) < count:
        target = random.choice(TARGETS)
        given = draw(random, target, by_offsets=target in OFFSETS and random.random() < 0.3)
        if host.version < "3.7" and compiles_only_on_3_6(given):
            continue
        comparison.add(given)
        comparison.counts[f"{given.target} drawn"] += 1
    with capsys.disabled():
        sys.stdout.write("\n" + comparison.table() + "\n")
    assert not comparison.worse, comparison.worse[0]
    assert not comparison.needless, comparison.needless[0]
    assert comparison.widths["ext"][0] <= comparison.widths["host"][0]
    return comparison


def test_generated_copies_are_as_wide_as_the_hosts_or_wider(emission, host, capsys):
    assert check(30, 1, emission, host, capsys).counts["wider"] > 0


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)
def test_many_generated_copies(emission, host, capsys):
    check(1500, 2, emission, host, capsys)


def test_what_lowers_is_what_the_host_compiles(emission, host):
    """The model that the pass decides by, against amdgcn; older releases refuse less and more."""
    random = Random(4)
    for _ in range(40):
        target = random.choice(TARGETS)
        by_offsets = target in OFFSETS and random.random() < 0.4
        given = draw(random, target, by_offsets=by_offsets)
        copy = copy_of(given.text)
        emitted = emission.ask(given.text, given.target)
        compiles = lowers(copy, copy.encoding, Target.of(given.target[4:]))
        if compiles:
            vector = copy.vector(copy.encoding)
            wanted = {vector.size * copy.bits // 8: vector.instructions}
            assert emitted.widths == wanted, (given, emitted.said)
        elif not swizzle_stays_in_a_wave(copy, copy.encoding):
            continue  # It may be refused, or read what other lanes should.
        elif host.version >= "3.8" and copy.attribute == 1:
            assert emitted.widths is None, given


def test_a_lane_copies_more_than_a_thread_held(emission, host):
    """4096 elements of 2 bytes, 256 threads: 2 instructions of 16 bytes in place of 8 of 4."""
    given = case("hip:gfx950", 4)
    assert emission.ask(ours(NAME, given.text), given.target).widths == {16: 2}
    theirs = host.run(given.text, given.target)
    assert emission.ask(theirs, given.target).widths == {4: 8}


def test_lanes_walk_a_buffer_whose_columns_are_shorter_than_a_wave(emission, host):
    """64 lanes cover two columns of 32 elements, in the order of the buffer."""
    given = CopyCase(
        target="hip:gfx950",
        shape=(32, 64),
        element="f32",
        encoding=blocked([1, 16], [32, 2], [4, 1], [1, 0]),
        shared=PLAIN.replace("[1, 0]", "[0, 1]"),
        contiguity=(1, 64),
        divisibility=(4, 16),
    )
    text = ours(NAME, given.text)
    assert blocked([1, 1], [32, 2], [1, 4], [0, 1]) in text
    # 2048 elements, 256 threads.
    assert emission.ask(text, given.target).widths == {4: 8}
    theirs = host.run(given.text, given.target)
    if host.version >= "3.8":
        # The same lanes and waves, with the order of the pointers kept.
        assert blocked([1, 1], [32, 2], [1, 4], [1, 0]) in theirs
    assert emission.ask(theirs, given.target).widths is None


def test_a_layout_that_fits_is_not_converted(emission, host):
    """A hint of two elements that lie apart in the buffer: the hint has to go, the layout fits."""
    given = CopyCase(
        target="hip:gfx950",
        warps=1,
        shape=(64, 2),
        element="f32",
        encoding=blocked([1, 2], [64, 1], [1, 1], [1, 0]),
        shared=PLAIN.replace("[1, 0]", "[0, 1]"),
        contiguity=(1, 2),
        divisibility=(4, 8),
        hint=2,
    )
    text = ours(NAME, given.text)
    assert "convert_layout" not in text
    assert "contiguity = 2 : i32" not in text.partition("ttg.async_copy_global_to_local")[2]
    emitted = emission.ask(text, given.target)
    assert emitted.widths == {4: 2}
    theirs = host.run(given.text, given.target)
    if host.version >= "3.8":
        assert "ttg.convert_layout" in theirs
        assert emission.ask(theirs, given.target).widths == emitted.widths


def test_copies_of_several_ctas_compile(emission, host):
    """What Triton compiles as it is compiles behind the pass, and some more."""
    if host.version < "3.8":
        pytest.skip("written for what 3.8 and newer print of CTAs")
    random, mended, kept = Random(21), 0, 0
    while mended + kept < 10:
        drawn = over_ctas(random, draw(random, random.choice(("hip:gfx1250",))))
        text = ours(NAME, drawn.text) if drawn is not None else ""
        if drawn is None or text == drawn.text:
            continue
        before, after = emission.ask(drawn.text, drawn.target), emission.ask(text, drawn.target)
        assert before.widths is None or after.widths is not None, (drawn, after.said)
        mended += before.widths is None and after.widths is not None
        kept += before.widths is not None
    assert min(mended, kept) > 0
