"""Scratch memory of single operations against the installed Triton's own passes."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

from scratch_cases import KINDS, SOME_KINDS, case  # noqa: E402
from triton_ext import host  # noqa: E402
from triton_ext.analysis.allocation import Scratch, allocate, unknown_scratch  # noqa: E402
from triton_ext.host.process import find_library  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.ir.aliases import AliasTable  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
COUNT = 2000 if NIGHTLY else 60
VARY = ("hip:gfx942", "hip:gfx950", "hip:gfx1030", "hip:gfx1100")


@pytest.fixture(scope="module")
def totals(tmp_path_factory):
    """Asks Triton for the totals of modules; ``None`` for one that it does not take."""
    folder = tmp_path_factory.mktemp("scratch")

    def ask(cases):
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(json.dumps([[c.target, c.text] for c in cases]))
        server = pathlib.Path(__file__).with_name("scratch_process.py")
        subprocess.run([sys.executable, server, request, answer], check=True, timeout=300)
        return json.loads(answer.read_text())

    return ask


def skip_unless_there(kind):
    first, end = SOME_KINDS.get(kind, ("", "4"))
    version = find_library().version
    if not first <= version < end:
        pytest.skip(f"triton {version} does not read the operation of {kind}")


def compare(cases, answers, features, *, target=None):
    """How many modules were compared; fails where the sizes differ."""
    compared = 0
    for made, expected in zip(cases, answers, strict=True):
        if expected is None:
            continue
        module = parse(made.text)
        scratch = Scratch(module.op, AliasTable.of(module.aliases), features, target)
        if unknown_scratch(module, scratch=scratch):
            # Known to be so: see triton_ext.analysis.allocation.lowering.
            assert made.target in VARY or "tt.scan" in made.text, made.text
            continue
        found = allocate(module, scratch=scratch, features=features, as_triton=True)
        assert found.total == expected, made.text
        compared += 1
    return compared


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *SOME_KINDS])
def test_equals_the_host(kind, totals):
    skip_unless_there(kind)
    cases = [case(kind, seed) for seed in range(COUNT)]
    compared = compare(cases, totals(cases), host.features())
    # Some releases do not take all encodings.
    assert compared > 0.8 * COUNT


@pytest.mark.parametrize("kind", ["convert", "reduce", "gather", "atomic"])
def test_equals_the_host_in_clusters(kind, totals):
    cases = [case(kind, seed, ctas=2) for seed in range(COUNT // 2)]
    assert compare(cases, totals(cases), host.features()) > 0.4 * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *SOME_KINDS])
def test_equals_the_pass_of_no_vendor(kind, totals):
    skip_unless_there(kind)
    made = [case(kind, seed) for seed in range(COUNT, COUNT + COUNT // 2)]
    asked = [type(c)("", c.text) for c in made]
    assert compare(made, totals(asked), host.features(), target="") > 0.4 * COUNT


def test_without_a_host_only_what_all_agree_on_is_known():
    known = 0
    releases = (
        frozenset(),
        frozenset({"reductions-by-conversion"}),
        frozenset({"reductions-by-conversion", "broadcasts-by-shuffle"}),
    )
    for seed in range(60):
        module = parse(case(KINDS[seed % len(KINDS)], seed).text)
        if not unknown_scratch(module):
            found = {allocate(module, features=features).total for features in releases}
            assert found == {allocate(module).total}
            known += 1
    assert 40 < known < 60


def test_a_layout_that_is_not_known_is_refused_by_name():
    text = re.sub(r"#e0 = .*", "#e0 = #other.layout<{x = 1}>", case("convert", 0).text)
    assert [op.name for op in unknown_scratch(parse(text))] == ["ttg.convert_layout"]


def test_what_an_earlier_allocation_left():
    made = case("convert", 0)
    # As Triton's passes of 3.9 write it, with a size that nothing computes.
    text = made.text.replace(
        "%x :", "%x {allocation.offset = 0 : i32, allocation.size = 48 : i32} :"
    )
    module = parse(text)
    aliases, features = AliasTable.of(module.aliases), host.features()
    assert allocate(module, scratch=Scratch(module.op, aliases, features)).total == 48
    anew = Scratch(module.op, aliases, features, recomputes=True)
    assert allocate(module, scratch=anew).total == allocate(parse(made.text)).total != 48


def test_a_size_that_is_not_computed_is_taken_as_it_was_left():
    text = re.sub(r"#e0 = .*", "#e0 = #other.layout<{x = 1}>", case("convert", 0).text)
    text = text.replace("%x :", "%x {allocation.offset = 0 : i32, allocation.size = 48 : i32} :")
    module = parse(text)
    anew = Scratch(module.op, AliasTable.of(module.aliases), recomputes=True)
    assert allocate(module, scratch=anew).total == 48
