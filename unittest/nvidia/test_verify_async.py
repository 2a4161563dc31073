"""``triton-ext-verify-async``: a ring of two stages, and every way to break one line of it."""

from __future__ import annotations

import pathlib
import re

import pytest
from triton_ext.errors import PassError
from triton_ext.ir import parse
from triton_ext.passes import PassManager
from triton_ext.passes.context import Remark

LIT = pathlib.Path(__file__).parents[2] / "test" / "nvidia" / "verify-async" / "ring.mlir"
RING = "".join(
    line
    for line in LIT.read_text().partition("// -----")[0].splitlines(keepends=True)
    if not line.lstrip().startswith("//")
)
VERIFIER = PassManager("triton-ext-verify-async{report=all}")
#: A second wait for a phase that is complete changes nothing.
HARMLESS = {("ttng.wait_barrier", "twice")}
BROKEN = re.compile(
    r"never completes|nothing tells it that|before anything is written|expects \d+ more|"
    r"is one already|before it is initialised"
)


def verdict(text: str) -> str:
    try:
        found = VERIFIER.run(parse(text)).remarks
    except PassError as error:
        return "refuted" if BROKEN.search(error.message) else error.message
    first: Remark = found[0]
    return "proved" if first.message.startswith("proved") else first.message


def mutants():
    """Each operation on barriers left out, done twice, and with another number."""
    lines = RING.splitlines(keepends=True)
    for number, line in enumerate(lines):
        match = re.search(r"ttng\.\w+", line)
        if match is None:
            continue
        changed = {"left out": "", "twice": line * 2}
        amount = re.search(r"(?:init|arrive)_barrier %\w+, (\d+)|expect %\w+, (\d+)", line)
        if amount is not None:
            at = 1 if amount[1] else 2
            start, end = amount.span(at)
            value = int(amount[at])
            changed["more"] = f"{line[:start]}{2 * value}{line[end:]}"
            if value > 1:
                changed["less"] = f"{line[:start]}{value // 2}{line[end:]}"
        for how, new in changed.items():
            text = "".join([*lines[:number], new, *lines[number + 1 :]])
            yield pytest.param(match[0], how, text, id=f"{number}-{match[0]}-{how}")


def test_the_ring_is_proved():
    assert verdict(RING) == "proved"


@pytest.mark.parametrize(("name", "how", "text"), list(mutants()))
def test_a_mutant_is_refuted(name, how, text):
    assert verdict(text) == ("proved" if (name, how) in HARMLESS else "refuted")


def staged(stages):
    """The ring with another number of stages."""
    text = RING.replace("<2x", f"<{stages}x").replace("%c2 = arith.constant 2", "%c2 = S")
    text = text.replace("%d2 = arith.constant 2", "%d2 = S")
    text = text.replace("= S :", f"= arith.constant {stages} :")
    init = re.compile(r"(.*)%(ready|empty)1 = (.*)\[%c1\](.*)\n.*init_barrier %\w+1(.*)\n")

    def others(match):
        found = ""
        for stage in range(1, stages):
            found += f"{match[1]}%k{match[2]}{stage} = arith.constant {stage} : i32\n"
            found += f"{match[1]}%{match[2]}{stage} = {match[3]}[%k{match[2]}{stage}]{match[4]}\n"
            found += f"{match[1]}ttng.init_barrier %{match[2]}{stage}{match[5]}\n"
        return found

    return init.sub(others, text)


@pytest.mark.parametrize("stages", [1, 3, 5, 8])
def test_any_number_of_stages(stages):
    text = staged(stages)
    assert verdict(text) == "proved"
    wrong = text.replace("%phase = arith.xori %odd, %d1", "%phase = arith.addi %odd, %d0")
    assert wrong != text
    assert verdict(wrong) == "refuted"


def test_bounds_that_differ_are_not_linked():
    """The consumer may run more often than the producer, so it may wait for ever."""
    text = RING.replace("%n: i32, ", "%n: i32, %m: i32, ")
    text = text.replace("scf.for %i = %c0 to %n", "scf.for %i = %c0 to %m")
    assert verdict(text) == "refuted"


def test_a_kernel_without_a_loop_of_known_length():
    text = RING.replace("scf.for %i = %d0 to %pn", "scf.for %i = %d0 to %d2")
    text = text.replace("scf.for %i = %c0 to %n", "scf.for %i = %c0 to %c2")
    assert verdict(text) == "proved"


STAGING = """
#nvmma = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#row = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @staging(%desc: !tt.tensordesc<64x64xf16, #nvmma>, %x: tensor<64x64xf16, #row>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %two = ttg.local_alloc : () -> !ttg.memdesc<2x64x64xf16, #nvmma, #smem, mutable>
    scf.for %i = %c0 to %n step %c1 : i32 {
      %half = arith.andi %i, %c1 : i32
      %buf = ttg.memdesc_index %two[%half] : !ttg.memdesc<2x64x64xf16, #nvmma, #smem, mutable> -> !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>
BODY
    }
    ttng.async_tma_store_wait {pendings = 0 : i32, read_only}
    tt.return
  }
}
"""  # noqa: E501
WAIT = "ttng.async_tma_store_wait {pendings = 1 : i32, read_only}"
READ = "%y = ttg.local_load %buf : !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable> -> tensor<64x64xf16, #row>"  # noqa: E501
WRITE = "ttg.local_store %x, %buf : tensor<64x64xf16, #row> -> !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>"  # noqa: E501
FENCE = "ttng.fence_async_shared {bCluster = false}"
STORE = "ttng.async_tma_copy_local_to_global %desc[%i, %i] %buf : !tt.tensordesc<64x64xf16, #nvmma>, !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>"  # noqa: E501


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        ("proved", [WAIT, WRITE, FENCE, STORE]),
        ("proved", [WAIT, WRITE, FENCE, STORE, READ]),
        # The store before the last one may still read.
        ("refuted", [WAIT.replace("1", "2", 1), WRITE, FENCE, STORE]),
        ("refuted", [WRITE, FENCE, STORE]),
        # A read of threads does not end the one of the TMA unit.
        ("refuted", [WRITE, FENCE, STORE, READ]),
        ("refuted", [WAIT, WRITE, STORE]),
        ("refuted", [WAIT, FENCE, WRITE, STORE]),
        ("refuted", [WAIT, READ, WRITE, FENCE, STORE]),
    ],
)
def test_stores_from_two_buffers(expected, body):
    text = STAGING.replace("BODY", "\n".join(body))
    try:
        remarks = VERIFIER.run(parse(text)).remarks
    except PassError:
        assert expected == "refuted"
    else:
        assert remarks[0].message.startswith(expected)


def test_the_end_waits_for_stores():
    text = STAGING.replace("BODY", "\n".join([WAIT, WRITE, FENCE, STORE]))
    text = text.replace("pendings = 0", "pendings = 1")
    with pytest.raises(PassError, match="the kernel ends while this operation may still use"):
        VERIFIER.run(parse(text))


def test_an_index_out_of_range_matters_where_it_is_used():
    index = '"%bar = ttg.memdesc_index %ready[%stage]'.strip('"')
    early = RING.replace("iter_args(%stage = %c0,", "iter_args(%stage = %c2,")
    assert early != RING
    assert index in early
    with pytest.raises(PassError, match="the index is out of range"):
        VERIFIER.run(parse(early))
    # What is computed and not used is no harm, as with a predicate that is false.
    unused = RING.replace(
        "%done = ttg",
        "%minus = arith.constant -1 : i32\n        %none = ttg.memdesc_index %ready[%minus] : "
        "!ttg.memdesc<2x1xi64, #bar, #smem, mutable> -> !ttg.memdesc<1xi64, #bar, #smem, mutable>\n"
        "        %false = arith.constant false\n"
        "        ttng.arrive_barrier %none, 1, %false : !ttg.memdesc<1xi64, #bar, #smem, mutable>\n"
        "        %done = ttg",
    )
    assert unused != RING
    assert verdict(unused) == "proved"
    assert verdict(unused.replace("arith.constant false", "arith.constant true")) != "proved"


def test_a_ring_that_does_not_wrap_is_right_for_short_loops_only():
    text = RING.replace("[%stage]", "[%i]")
    found = [remark.message for remark in VERIFIER.run(parse(text)).remarks]
    assert found == ["proved only for loops that do not run too often"]


def test_functions_that_are_left_over_are_skipped():
    left_over = "  tt.func private @left_over(%x: i32) -> i32 {\n    tt.return %x : i32\n  }\n}"
    text = RING.rstrip().removesuffix("}") + left_over
    assert len(VERIFIER.run(parse(text)).remarks) == 1


def test_a_kernel_without_shared_memory():
    text = (
        RING.partition("  tt.func")[0]
        + """
  tt.func public @waits() {
    ttng.async_tma_store_wait {pendings = 0 : i32, read_only}
    ttng.fence_async_shared {bCluster = false}
    tt.return
  }
}
"""
    )
    VERIFIER.run(parse(text))


MEMDESC = "!ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>"
ONTO = f"ttg.local_store %x, %slot : tensor<64x64xf16, #blocked> -> {MEMDESC}"


def with_lines(text, **lines):
    """A ring with lines around the consumer's wait and arrival and around the producer's wait."""
    places = {
        "top": "ttng.wait_barrier %bar, %phase",
        "before": "ttng.arrive_barrier %done",
        "after": "%next = arith.addi",
        "waits": "%free = ttg.memdesc_index",
        "learns": "%bar = ttg.memdesc_index %pready",
    }
    for place, new in lines.items():
        assert text.count(places[place]) == 1
        text = text.replace(places[place], "\n".join([*new, places[place]]))
    return text


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        ("proved", {"before": [ONTO, FENCE]}),
        ("proved", {"before": [FENCE, ONTO, FENCE]}),
        # The producer fences what it has learned of.
        ("proved", {"before": [ONTO], "learns": [FENCE]}),
        ("nothing tells it of a fence behind", {"before": [ONTO]}),
        ("nothing tells it of a fence behind", {"before": [ONTO], "after": [FENCE]}),
        ("nothing tells it of a fence behind", {"before": [FENCE, ONTO]}),
        ("nothing tells it of a fence behind", {"before": [ONTO], "top": [FENCE]}),
        ("nothing tells it of a fence behind", {"before": [ONTO], "waits": [FENCE]}),
    ],
)
def test_a_fence_lies_between_the_write_and_what_tells_of_it(expected, lines, stages):
    assert expected in verdict(with_lines(staged(stages), **lines))


def test_what_is_proved_for_some_loops_only_can_be_an_error():
    text = RING.replace("[%stage]", "[%i]")
    strict = PassManager("triton-ext-verify-async{undecided=error}")
    with pytest.raises(PassError, match="proved only for loops that do not run too often"):
        strict.run(parse(text))
    lenient = PassManager("triton-ext-verify-async")
    two = MEMDESC.replace("<", "<2x", 1)
    first = f"%first = ttg.memdesc_index %data[%c0] : {two} -> {MEMDESC}"
    load = f"%y = ttg.local_load %first : {MEMDESC} -> tensor<64x64xf16, #blocked>"
    reads = RING.replace("    tt.return", f"    {first}\n    {load}\n    tt.return")
    assert [each.message for each in lenient.run(parse(reads)).remarks] == [
        "proved only for loops that run at least once"
    ]
    with pytest.raises(PassError, match="proved only for loops that run at least once"):
        strict.run(parse(reads))
    strict.run(parse(RING))


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "cuda:120"])
def test_other_targets_are_not_decided(target):
    text = RING.replace('"cuda:90"', f'"{target}"')
    assert text != RING
    assert verdict(text) == f"not decided: the target is {target}, and only cuda:90 is modelled"
