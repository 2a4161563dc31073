"""``tritongpu-coalesce-async-copy``: what it decides, and what the host makes of the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from random import Random

import pytest
from copy_cases import BITS, CopyCase, blocked, draw, in_a_function, over_ctas
from copy_comparison import Comparison, HostPass, ours
from copy_emission import EmissionHost
from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.errors import PassError, VerifyError
from triton_ext.ir import parse
from triton_ext.ir.encodings import BlockedEncoding
from triton_ext.ir.types import TensorType, parse_type
from triton_ext.passes import PassManager
from triton_ext.passes.async_copy import AsyncCopy, async_copies, blocked_for

NAME = "tritongpu-coalesce-async-copy"
LINE = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"


def case(element: str = "f32", held: int = 1, size: int = 64, **more) -> CopyCase:
    """A copy of one dimension for sm_90."""
    encoding = blocked([held], [32], [4], [0])
    given = {"target": "cuda:90", "shape": (size,), "encoding": encoding, "shared": LINE}
    return CopyCase(element=element, **{**given, **more})


def copy_of(text: str) -> AsyncCopy:
    module = parse(text)
    (copy,) = async_copies(module, AxisInfoAnalysis.of(module))
    return copy


def result(given: CopyCase) -> AsyncCopy:
    """The copy behind the pass."""
    return copy_of(ours(NAME, given.text))


@pytest.mark.parametrize(
    ("given", "bytes_", "instructions"),
    [
        pytest.param(case(held=4), 4, 1, id="nothing known"),
        pytest.param(case(held=4, contiguity=(64,), divisibility=(16,)), 16, 1, id="wide already"),
        pytest.param(case("i8", contiguity=(64,), divisibility=(16,)), 16, 1, id="i8"),
        pytest.param(case("i8", contiguity=(64,), divisibility=(4,)), 4, 1, id="i8 at 4 bytes"),
        pytest.param(case("i8", contiguity=(64,), divisibility=(2,)), 1, 1, id="i8 at 2 bytes"),
        pytest.param(case("f16", contiguity=(2,), divisibility=(4,)), 4, 1, id="f16 in pairs"),
        pytest.param(case("f16", contiguity=(64,), divisibility=(64,), size=4), 8, 1, id="4 f16"),
        pytest.param(
            case("f16", contiguity=(64,), divisibility=(16,), constancy=(4,)), 8, 1, id="mask of 4"
        ),
        pytest.param(
            case("f16", contiguity=(64,), divisibility=(16,), constancy=()), 2, 1, id="any mask"
        ),
        pytest.param(case("f16", held=8, hint=8), 16, 1, id="hint of 8"),
        pytest.param(case("f16", held=8, hint=8, constancy=()), 16, 1, id="hint over the mask"),
        pytest.param(case("i8", size=4096, contiguity=(64,), divisibility=(64,)), 16, 2, id="4096"),
        pytest.param(
            case(size=4096, contiguity=(64,), divisibility=(64,)), 4, 32, id="large and narrow"
        ),
        pytest.param(case("i64", held=4), 8, 1, id="i64"),
    ],
)
def test_vector(given, bytes_, instructions):
    copy = result(given)
    vector = copy.vector(copy.encoding)
    assert (vector.size * copy.bits // 8, vector.instructions) == (bytes_, instructions)


def test_what_was_known_is_kept():
    """Behind the conversion nothing can be proven any more: the attribute has to say it."""
    encoding = blocked([1, 16], [32, 1], [4, 1], [1, 0])
    shared = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 2, order = [1, 0]}>"
    given = case("i8", shape=(128, 16), encoding=encoding, shared=shared, hint=16)
    found = result(given)
    assert isinstance(found.encoding, BlockedEncoding)
    assert found.encoding.size_per_thread == (1, 8)
    assert found.attribute == 8


def test_tiles_of_a_thread_that_follow_each_other_are_clipped():
    """A thread holds a whole column in tiles of 8: 64 instructions, and the lanes repeat others."""
    given = case(
        "f8E5M2",
        target="cuda:80",
        warps=1,
        shape=(512, 8),
        encoding=blocked([8, 1], [1, 32], [1, 1], [0, 1]),
        shared="#ttg.swizzled_shared<{vec = 16, perPhase = 1, maxPhase = 8, order = [0, 1]}>",
        contiguity=(8, 1),
        divisibility=(8, 1),
    )
    found = result(given)
    assert isinstance(found.encoding, BlockedEncoding)
    assert found.encoding.size_per_thread == (16, 1)
    assert found.vector(found.encoding).instructions == 16


def test_mask_and_other_are_converted():
    given = case(held=4, constancy=(1,), other=True)
    found = result(given)
    types = {operand.type for operand in found.registers}
    assert len(found.registers) == 3
    assert len({text.rpartition(", ")[2] for text in types}) == 1
    assert ours(NAME, given.text).count("ttg.convert_layout") == 3


def test_twice_is_once():
    random = Random(5)
    for _ in range(200):
        once = ours(NAME, draw(random, "cuda:90").text)
        again = ours(NAME, once)
        assert again.count("ttg.convert_layout") == once.count("ttg.convert_layout")


@pytest.mark.slow
def test_nothing_is_claimed_that_was_not_known():
    """A vector is never wider than what pointers and mask, or the attribute, say of its place."""
    random = Random(6)
    for _ in range(300):
        given = draw(random, "cuda:90")
        before, after = copy_of(given.text), result(given)
        if before.encoding == after.encoding:
            continue
        vector = after.vector(after.encoding)
        assert vector.size <= before.known(vector.dim), given


@pytest.mark.slow
def test_nothing_is_worse_than_before():
    """What compiled compiles, and no thread has more instructions."""
    random = Random(8)
    for _ in range(500):
        given = draw(random, "cuda:90")
        before, after = copy_of(given.text), result(given)
        if before.encoding == after.encoding:
            continue
        old, new = before.vector(before.encoding), after.vector(after.encoding)
        if old.size * before.bits >= 32:
            assert new.size * before.bits >= 32, given
            assert new.instructions <= old.instructions, given


def test_the_verifier_agrees_and_untouched_modules_stay():
    text = case(contiguity=(64,), divisibility=(16,), held=4).text
    assert ours(NAME, text) == text


def test_modules_for_amd_are_left_alone_and_told_of():
    text = case("f16", target="hip:gfx950", contiguity=(64,), divisibility=(16,)).text
    module = parse(text)
    (warning,) = PassManager(NAME).run(module).remarks
    assert str(module) == text
    assert 'found "hip:gfx950"; tritonamdgpu-coalesce-async-copy is for those' in str(warning)


def test_a_module_without_warps_is_an_error():
    text = case(held=4).text.replace('"ttg.num-warps" = 4 : i32, ', "")
    with pytest.raises((PassError, VerifyError), match=r"ttg\.num-warps"):
        PassManager(NAME).run(parse(text))


@pytest.mark.parametrize("seed", range(200))
def test_blocked_for_covers_the_shape(seed):
    random = Random(seed)
    given = draw(random, "cuda:90")
    order = tuple(random.sample(range(len(given.shape)), len(given.shape)))
    tile = [min(random.choice((1, 2, 4)), size) for size in given.shape]
    encoding = blocked_for(given.shape, tile, order, given.warps, 32)
    encoding.verify()
    layout = encoding.to_linear_layout(given.shape)
    assert layout.is_surjective
    assert layout.in_dim_size("lane") * layout.in_dim_size("warp") == 32 * given.warps
    text = f"tensor<{'x'.join(map(str, given.shape))}xf32, {encoding.print()}>"
    assert isinstance(parse_type(text), TensorType)


SPLIT = "#ttg.shared_linear<{offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0]], block = [[4, 0]]}>"


def split_rows(element: str, shared: str) -> CopyCase:
    """8x8 elements, of which each of two CTAs copies 4 rows."""
    encoding = blocked([1, 1], [4, 8], [4, 1], [1, 0]).replace("}>", ", CGALayout = [[1, 0]]}>")
    return case(
        element,
        shape=(8, 8),
        encoding=encoding,
        shared=shared.replace("}>", "}, alignment = 16>"),
        ctas=2,
        contiguity=(1, 8),
        divisibility=(16, 16),
    )


def test_the_share_of_a_cta_whose_bases_are_steps_of_elements():
    given = split_rows("f16", SPLIT)
    copy = copy_of(given.text)
    assert copy.share == (4, 8)
    assert copy.is_small
    found = result(given)
    assert found.encoding == blocked_for((4, 8), (1, 8), (1, 0), 4, 32, ((1, 0),))
    assert found.vector(found.encoding).size == 8


def test_ctas_that_take_turns_keep_the_layout():
    """No blocked encoding gives every second row to a CTA."""
    turns = SPLIT.replace("[1, 0], [2, 0]", "[2, 0], [4, 0]").replace("[[4, 0]]", "[[1, 0]]")
    given = split_rows("f16", turns)
    linear = (
        "#ttg.linear<{register = [], lane = [[0, 1], [0, 2], [0, 4], [2, 0], [4, 0]], "
        "warp = [[0, 0], [0, 0]], block = [[1, 0]]}>"
    )
    text = given.text.replace(given.encoding, linear)
    assert copy_of(text).share == (4, 8)
    assert ours(NAME, text) == text


def test_a_function_that_a_partition_calls_has_its_own_warps():
    """2 warps have 64 threads: what is small for 4 is not for them."""
    given = in_a_function(case(held=2, size=64, warps=2), 4)
    given = replace(given, encoding=blocked([2], [32], [2], [0]))
    copy = copy_of(given.text)
    assert copy.num_warps == 2
    assert not copy.is_small
    found = result(replace(given, shape=(32,)))
    assert isinstance(found.encoding, BlockedEncoding)
    assert found.encoding.warps_per_cta == (2,)


@pytest.mark.slow
def test_several_ctas_and_functions_of_partitions():
    """No CTA copies for another one, layouts have the warps that run them, nothing is worse."""
    random, changed = Random(9), 0
    for _ in range(400):
        drawn = over_ctas(random, draw(random, "cuda:90"))
        if drawn is None:
            continue
        given = in_a_function(drawn, random.choice((4, 8, 16)))
        before, after = copy_of(given.text), result(given)
        assert before.num_warps == given.warps
        assert before.facts.is_local, given
        assert 2 * prod(before.share) == prod(given.shape)
        if before.encoding == after.encoding:
            continue
        changed += 1
        layout = after.encoding.to_linear_layout(given.shape)
        assert layout.in_dim_size("warp") == given.warps
        assert after.facts.is_local, given
        old, new = before.vector(before.encoding), after.vector(after.encoding)
        if old.size * before.bits >= 32:
            assert new.instructions <= old.instructions, given
    assert changed > 50


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


def compare(count: int, seed: int, emission, host, capsys) -> Comparison:
    random = Random(seed)
    comparison = Comparison(NAME, emission, host)
    for _ in range(count):
        comparison.add(draw(random, random.choice(("cuda:80", "cuda:90", "cuda:100"))))
    with capsys.disabled():
        sys.stdout.write("\n" + comparison.table() + "\n")
    return comparison


def check(comparison: Comparison) -> None:
    assert not comparison.worse, comparison.worse[0]
    assert not comparison.needless, comparison.needless[0]
    # 3.6 does not know small copies: it leaves lanes as they are, and few threads to copy a lot.
    if comparison.host.version >= "3.7":
        assert not comparison.counts["coalesced"]
        assert not comparison.counts["spread"]
    # Whatever compiles without us compiles with us.
    assert comparison.widths["ext"][0] <= comparison.widths["host"][0]


def test_generated_copies_are_as_wide_as_the_hosts_or_wider(emission, host, capsys):
    comparison = compare(40, 1, emission, host, capsys)
    check(comparison)
    assert comparison.counts["wider"] > 2


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)
def test_many_generated_copies(emission, host, capsys):
    check(compare(3000, 2, emission, host, capsys))


def test_the_vector_is_what_is_emitted(emission):
    """The model of widths that the pass decides by, against PTX."""
    random = Random(3)
    for _ in range(30):
        given = draw(random, "cuda:90")
        copy = copy_of(given.text)
        vector = copy.vector(copy.encoding)
        width = vector.size * copy.bits // 8
        emitted = emission.ask(given.text, given.target)
        wanted = {width: vector.instructions} if width >= 4 else None
        assert emitted.widths == wanted, (given, emitted.said)


def test_a_hint_that_the_host_loses(emission, host):
    """8-bit elements of which only the attribute knows: the host's own pass breaks the compile."""
    encoding = blocked([1, 16], [32, 1], [4, 1], [1, 0])
    shared = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 2, order = [1, 0]}>"
    given = case("i8", shape=(128, 16), encoding=encoding, shared=shared, hint=16)
    theirs = host.run(given.text, given.target)
    assert theirs is not None
    assert emission.ask(given.text, given.target).widths == {8: 2}
    assert emission.ask(theirs, given.target).widths is None
    assert emission.ask(ours(NAME, given.text), given.target).widths == {8: 2}


def test_every_element_type_is_drawn():
    random = Random(0)
    assert {draw(random, "cuda:90").element for _ in range(100)} == set(BITS)


@pytest.mark.slow
def test_copies_of_several_ctas_compile(emission, host):
    """What Triton compiles as it is compiles behind the pass, and some more."""
    if host.version < "3.8":
        pytest.skip("written for what 3.8 and newer print of CTAs")
    random, mended, kept = Random(21), 0, 0
    while mended + kept < 10:
        drawn = over_ctas(random, draw(random, random.choice(("cuda:90", "cuda:100"))))
        text = ours(NAME, drawn.text) if drawn is not None else ""
        if drawn is None or text == drawn.text:
            continue
        before, after = emission.ask(drawn.text, drawn.target), emission.ask(text, drawn.target)
        assert before.widths is None or after.widths is not None, (drawn, after.said)
        mended += before.widths is None and after.widths is not None
        kept += before.widths is not None
    assert min(mended, kept) > 0
