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


@pytest.mark.parametrize("stages", [1, 3, 5, 8])
def test_any_number_of_stages(stages):
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

    text = init.sub(others, text)
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
