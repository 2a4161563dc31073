"""The timeline: its numbers are the pass's, its verdicts the verifier's, nothing is left out."""

from __future__ import annotations

import os
import pathlib
import random

import async_model
import pytest
from async_kernels import generate
from async_machine import Machine
from async_mistakes import emitted_of
from async_model import Counts, Program
from async_text import ARCHES, Kernel
from ir_helpers import NO_CORPUS, corpus_files
from triton_ext import backends
from triton_ext.analysis.backward_flow import BackwardFlow
from triton_ext.analysis.timeline import Call, Close, Commit, Copy, Open, Use, Wait
from triton_ext.errors import PassError, VerifyError
from triton_ext.ir import parse
from triton_ext.passes import PassContext, registry

#: Kernels of each kind; the tests below stay under some seconds with the smaller number.
KERNELS = 200 if os.environ.get("TRITON_EXT_NIGHTLY") else 6
ROOT = pathlib.Path(__file__).parents[2]
WAIT = "async_wait", "async_tdm_wait", "async_tdm_intrinsic_wait"
FEATURES = (
    None,
    frozenset({"amd-tdm-intrinsic-wait"}),
    frozenset(
        {"amd-tdm-intrinsic-wait", "amd-tdm-rows-by-layout", "amd-masked-loads-predicated"}
        | {"amd-async-marks"}
    ),
)


def timeline(text: str, **options: object):
    return backends.load("amd", "async-timeline")(parse(text), **options)


def numbers_of_the_pass(text: str, features: frozenset[str] | None, arch: str = "") -> list[int]:
    """What the pass makes of each wait, in the order of the text."""
    module = parse(text)
    made = registry.lookup("tritonamdgpu-update-async-wait-count")(gfx_arch=arch)
    made.run(module, PassContext(host_features=lambda: features))
    found = []
    for op in module.walk():
        if op.name.rpartition(".")[2] in WAIT:
            given = op.attributes
            number = given.get("num_inst") or given.get("count") or given["num"]
            found.append(int(number.partition(" ")[0]))
    return found


def in_order(waits: tuple[Wait, ...]) -> list[int]:
    """The numbers in the order of the text, where the places are those of the text."""
    return [w.counted for w in sorted(waits, key=lambda w: (w.place.line, w.place.column))]


def unsafe_of(shown) -> set[str]:
    return {str(r.item.place) for s in shown.sections for r in s.rows if r.unsafe}


# ---- numbers


def with_waits() -> list[pathlib.Path]:
    return [p for p in corpus_files() if "hip-" in p.parent.name and "_wait" in p.read_text()]


@pytest.mark.parametrize("features", FEATURES, ids=["unknown", "3.7", "3.8"])
def test_the_numbers_are_those_of_the_pass_over_the_corpus(features):
    files = with_waits()
    if not files:
        pytest.skip(NO_CORPUS)
    for path in files:
        text = path.read_text()
        shown = timeline(text, features=features)
        # No kernel of the corpus has partitions, so the sections are in the order of the text.
        assert [w.counted for w in shown.waits] == numbers_of_the_pass(text, features), path


@pytest.mark.parametrize("name", ["calls", "groups", "regions", "stores", "tokens", "tdm"])
def test_the_numbers_are_those_of_the_pass_over_its_own_tests(name):
    text = (ROOT / "test" / "amd" / "update-async-wait-count" / f"{name}.mlir").read_text()
    for features in FEATURES:
        shown = timeline(text, features=features, arch="gfx1250")
        assert in_order(shown.waits) == numbers_of_the_pass(text, features, "gfx1250")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flavour", ["intended", "arbitrary"])
def test_the_numbers_are_those_of_the_pass_over_generated_kernels(arch, flavour):
    for seed in range(KERNELS):
        text = generate(seed, "3.9.0", arch, flavour)
        shown = timeline(text)
        assert in_order(shown.waits) == numbers_of_the_pass(text, None), f"seed {seed}"
        for wait in shown.waits:
            if wait.counted_unit == "instructions" and wait.unit != "instructions":
                total = sum(term.cost * term.times for term in wait.terms)
                assert total == wait.sum
                assert wait.counted == min(63, wait.sum)


# ---- time

ROW = "sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]"
HEAD = f"""#row = #ttg.blocked<{{{ROW}}}>
#flat = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
#smem = #ttg.shared_memory
module attributes {{"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"}} {{
tt.func public @kernel(%p: tensor<128x!tt.ptr<f32>, #row>, %n: i32) {{
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
"""
BUFFER = "<128xf32, #flat, #smem, mutable>"


def with_many_waits(number: int) -> str:
    """A loop with so many copies, each into one of eight buffers, with a wait and a read."""
    lines = [f"%a{i} = ttg.local_alloc : () -> !ttg.memdesc{BUFFER}" for i in range(8)]
    lines.append("scf.for %i = %c0 to %n step %c1 : i32 {")
    for i in range(number):
        lines += [
            f"%t{i} = ttg.async_copy_global_to_local %p, %a{i % 8} : "
            f"tensor<128x!tt.ptr<f32>, #row> -> {BUFFER}",
            f"%g{i} = ttg.async_commit_group tokens %t{i}",
            f"%w{i} = ttg.async_wait {{num = {3 + i % 3} : i32}}",
            f"%x{i} = ttg.local_load %a{(i + 4) % 8} : !ttg.memdesc{BUFFER} "
            "-> tensor<128xf32, #row>",
        ]
    return HEAD + "\n".join([*lines, "}", "tt.return", "}", "}"])


def test_the_work_grows_with_the_number_of_waits(monkeypatch):
    steps = 0
    usual = BackwardFlow.steps

    def counted(self, position):
        nonlocal steps
        steps += 1
        return usual(self, position)

    monkeypatch.setattr(BackwardFlow, "steps", counted)
    work = {}
    for number in (16, 128):
        steps = 0
        assert len(timeline(with_many_waits(number)).waits) == number
        work[number] = steps
    assert work[128] < 1.2 * 8 * work[16]


# ---- verdicts


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_unsafe_is_what_the_verifier_refuses(arch):
    refused = 0
    for seed in range(KERNELS + 8):
        text = generate(seed, "3.9.0", arch, "arbitrary" if seed % 2 else "intended")
        shown = unsafe_of(timeline(text))
        verifier = registry.lookup("triton-ext-verify-async-waits")()
        errors: set[str] = set()
        try:
            verifier.run(parse(text), PassContext())
        except PassError as error:
            errors = {note for e in (error, *error.others) for note in e.notes}
            refused += 1
        assert bool(shown) == bool(errors), f"seed {seed}"
    assert refused


# ---- what is in flight


class Watched(Machine):
    """A machine that remembers what was in flight behind each wait."""

    seen: set[tuple[object, object]]

    def partition(self):
        return Watched(self.rng, len(self.waves), self.rules, self.faults)

    def _wait(self, site, rule, *, tensor):
        super()._wait(site, rule, tensor=tensor)
        Watched.seen |= {
            (site.op, entry.site.op) for entry in self.pending if not self._is_done(entry)
        }


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flavour", ["intended", "arbitrary"])
def test_what_really_is_in_flight_is_shown(arch, flavour, monkeypatch):
    monkeypatch.setattr(async_model, "Machine", Watched)
    looked = 0
    for seed in range(KERNELS):
        text = generate(seed, "3.9.0", arch, flavour)
        module = parse(text)
        program = Program(module, emitted_of(arch))
        monkeypatch.setattr(Watched, "seen", set(), raising=False)
        program.search(range(20), Counts.contract(module))
        shown = timeline(text)
        labels = {str(copy.place): copy.label for copy in shown.copies}
        behind = {
            str(row.item.place): {flight.label for flight in row.in_flight}
            for section in shown.sections
            for row in section.rows
            if isinstance(row.item, Wait)
        }
        for wait, copy in Watched.seen:
            label = labels[_place(copy)]
            assert label in behind[_place(wait)], f"seed {seed}: {label} behind {_place(wait)}"
            looked += 1
    assert looked


def _place(op) -> str:
    error = op.error("")
    return f"{error.filename}:{error.line}:{error.column}"


# ---- rows


@pytest.mark.parametrize("arch", ARCHES)
def test_nothing_is_left_out(arch):
    for seed in range(KERNELS):
        text = generate(seed, "3.9.0", arch, random.Random(seed).choice(["intended", "arbitrary"]))
        module = parse(text)
        shown = timeline(text)
        items = [row.item for section in shown.sections for row in section.rows]
        names = [op.name.rpartition(".")[2] for op in module.walk()]
        assert sum(isinstance(i, Wait) for i in items) == sum(name in WAIT for name in names)
        assert sum(isinstance(i, Commit) for i in items) == names.count("async_commit_group")
        labels = [i.label for i in items if isinstance(i, Copy)]
        assert sorted(labels) == sorted(copy.label for copy in shown.copies)
        assert len(set(labels)) == len(labels)
        opened = [i.kind for i in items if isinstance(i, Open)]
        assert sorted(opened) == sorted(i.kind for i in items if isinstance(i, Close))
        for section in shown.sections:
            known = {copy.label: copy.lane for copy in shown.copies}
            for row in section.rows:
                assert {known[flight.label] for flight in row.in_flight} <= set(section.lanes)
                if not isinstance(row.item, Copy | Use):
                    assert not row.unsafe


def test_a_copy_may_be_in_flight_where_nothing_is_known_of_what_ran_before():
    kernel = Kernel("3.9.0", "gfx1250")
    f = kernel.function("kernel", {"ptr": "!tt.ptr<f16>"})
    f.pointers(16)
    f.commit(f.copy(f.slot(f.alloc(16, 1), f.const(0), 16, 1), 16))
    f.emit("tt.call @elsewhere() : () -> ()")
    f.wait(num=0)
    declared = "tt.func private @elsewhere()\n"
    text = str(kernel).replace("tt.func", f"{declared}tt.func", 1)
    (section,) = timeline(text, function="kernel").sections
    (row,) = [row for row in section.rows if isinstance(row.item, Wait)]
    assert len(row.in_flight) == 1


def test_a_function_that_is_not_there():
    with pytest.raises(VerifyError, match=r"expected a function of the module \(kernel.*'other'"):
        timeline(generate(0, "3.9.0", "gfx1250"), function="other")


CALLED = {
    "elsewhere": "tt.func private @elsewhere()\n",
    "quiet": "tt.func private @quiet() {\n  tt.call @quiet() : () -> ()\n  tt.return\n}\n",
    "loud": "tt.func private @loud() {\n  %w = ttg.async_wait {num = 0 : i32}\n  tt.return\n}\n",
    "through": "tt.func private @through() {\n  tt.call @loud() : () -> ()\n  tt.return\n}\n",
    "outside": "tt.func private @outside() {\n  tt.call @elsewhere() : () -> ()\n  tt.return\n}\n",
    "round": "tt.func private @round() {\n  tt.call @round() : () -> ()\n"
    "  tt.call @loud() : () -> ()\n  tt.return\n}\n",
}


def test_calls_are_shown_of_functions_that_are_unknown_or_have_asynchronous_operations():
    kernel = Kernel("3.9.0", "gfx1250")
    f = kernel.function("kernel", {"ptr": "!tt.ptr<f16>"})
    for name in (*CALLED, "nowhere"):
        f.emit(f"tt.call @{name}() : () -> ()")
    f.wait(num=0)
    text = str(kernel).replace("tt.func", f"{''.join(CALLED.values())}tt.func", 1)
    (section,) = timeline(text, function="kernel").sections
    calls = [row.item.callee for row in section.rows if isinstance(row.item, Call)]
    assert calls == ["elsewhere", "loud", "through", "outside", "round", "nowhere"]


@pytest.mark.parametrize(
    ("copy", "does"),
    [
        (f"ttg.async_copy_global_to_local %p, %a : tensor<128x!tt.ptr<f32>, #row> -> {BUFFER}", 0),
        (
            f"amdg.async_copy_local_to_global %a, %p : !ttg.memdesc{BUFFER} "
            "-> tensor<128x!tt.ptr<f32>, #row>",
            1,
        ),
    ],
    ids=["load", "store"],
)
def test_a_buffer_that_is_written_under_a_copy_says_what_the_copy_does(copy, does):
    lines = [
        f"%a = ttg.local_alloc : () -> !ttg.memdesc{BUFFER}",
        "%one = arith.constant dense<1.0> : tensor<128xf32, #row>",
        f"%t = {copy}",
        "%g = ttg.async_commit_group tokens %t",
        f"ttg.local_store %one, %a : tensor<128xf32, #row> -> !ttg.memdesc{BUFFER}",
        "%w = ttg.async_wait {num = 0 : i32}",
        *("tt.return", "}", "}"),
    ]
    shown = timeline(HEAD + "\n".join(lines))
    (section,) = shown.sections
    ((unsafe,),) = [row.unsafe for row in section.rows if row.unsafe]
    assert unsafe.reason == f"written while the copy still {('writes', 'reads')[does]} it"
    assert unsafe.copy == shown.copies[0].label
