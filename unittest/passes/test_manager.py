"""Running passes: order, nesting, verification, dumps, reports."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
from pass_helpers import TEXT, Break, CountFunction, Double, Mark, Options
from triton_ext import host
from triton_ext.errors import PassError, PipelineError, VerifyError
from triton_ext.host import capabilities
from triton_ext.ir import parse
from triton_ext.passes import Pass, PassManager, Statistic, error_at, parse_pipeline
from triton_ext.passes.places import place_of
from triton_ext.plugin import extra_passes
from triton_ext.tools import opt

LOCATED = TEXT.replace("addi %x, %x : i32", 'addi %x, %x : i32 loc("kernel.py":7:11)')


def test_runs_in_order_and_counts():
    module = parse(TEXT)
    report = PassManager([Mark(), Mark(attribute="b", value=2), Options(num_stages=5)]).run(module)
    assert "module attributes {test.mark = 1 : i32, b = 2 : i32} {" in str(module)
    assert report.statistics == (
        Statistic("test-mark", "marked", 2),
        Statistic("test-options", "stages", 5),
    )
    names = [timing.pass_name for timing in report.timings]
    assert names == ["test-mark", "test-mark", "test-options"]
    assert all(timing.seconds > 0 and timing.verify_seconds > 0 for timing in report.timings)


def test_text_objects_and_passes_make_the_same_manager(registered):
    text = "builtin.module(test-mark{value=3},tt.func(test-count))"
    managers = [
        PassManager(text),
        PassManager(parse_pipeline(text)),
        PassManager([Mark(value=3), CountFunction()]),
    ]
    assert [str(manager) for manager in managers] == [text] * 3
    assert managers[0].passes == (Mark(value=3), CountFunction())
    assert str(PassManager(Mark())) == "builtin.module(test-mark)"


def test_nested_passes_run_on_each_function():
    module = parse(TEXT)
    report = PassManager(CountFunction()).run(module)
    assert report.statistics == (Statistic("test-count", "operations", 5),)
    assert [timing.anchor for timing in report.timings] == ["tt.func", "tt.func"]


def test_a_nested_pipeline_runs_as_a_whole_on_one_function_after_the_other(registered):
    module = parse(TEXT)
    order: list[str] = []
    PassManager("tt.func(test-mark,test-count)", print_after=("*",), print_sink=order.append).run(
        module
    )
    passes = [text.partition("(")[2].partition(")")[0] for text in order]
    assert passes == ["test-mark", "test-count", "test-mark", "test-count"]
    assert str(module).count("test.mark = 1 : i32") == 2
    assert "module {" in str(module)


def test_any_runs_on_what_is_isolated(registered):
    module = parse(TEXT)
    PassManager("builtin.module(any(test-mark))").run(module)
    assert str(module).count("test.mark") == 2


def test_a_pass_of_modules_cannot_run_on_a_function(registered):
    with pytest.raises(PipelineError) as caught:
        PassManager("builtin.module(tt.func(test-break))")
    assert caught.value.message == (
        "pass 'test-break' runs on 'builtin.module', it cannot stand in a pipeline of 'tt.func'"
    )
    assert caught.value.column == 24


def test_an_exception_of_a_pass_names_the_pass_and_the_line(monkeypatch):
    def fail(self, module, context):
        raise ValueError("no")

    monkeypatch.setattr(Mark, "run", fail)
    with pytest.raises(PassError) as caught:
        PassManager([Mark()]).run(parse(TEXT))
    line = fail.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"{__file__}:{line}:1: error: pass 'test-mark' failed: ValueError: no\n"
        'raise ValueError("no")\n^\n'
        "note: this is a fault of the pass, not of the module"
    )


def test_a_module_that_nobody_verified_is_no_fault_of_the_pass(monkeypatch):
    def fail(self, module, context):
        raise IndexError("no")

    monkeypatch.setattr(Mark, "run", fail)
    invalid = "tt.func @f() {\n  %y = arith.addi %x, %x : i32\n  %x = arith.addi %y, %y : i32\n"
    invalid += "  tt.return\n}\n"
    with pytest.raises(VerifyError, match="does not dominate") as caught:
        PassManager([Mark()], verify_each=False).run(parse(invalid, "k.mlir"))
    assert caught.value.line == 2
    assert caught.value.notes[-1] == (
        "pass 'test-mark' failed on this module, which nobody had verified"
    )
    with pytest.raises(PassError, match="IndexError: no"):
        PassManager([Mark()], verify_each=False).run(parse(TEXT))


class TestVerification:
    def test_names_the_pass(self):
        module = parse(TEXT, "k.mlir")
        with pytest.raises(VerifyError) as caught:
            PassManager([Mark(), Break()]).run(module)
        assert str(caught.value) == (
            "k.mlir:3:5: error: pass 'test-break' left an invalid module: operand 0 of "
            "'arith.addi', '%y', does not dominate this use\n"
            "    %y = arith.addi %x, %x : i32\n"
            "    ^\n"
            "note: defined here: k.mlir:3:5"
        )

    def test_blames_no_pass_for_its_input(self):
        module = parse(TEXT.replace("%y : i32", "%y : i64"), "k.mlir")
        with pytest.raises(VerifyError) as caught:
            PassManager([Mark()]).run(module)
        assert "test-mark" not in str(caught.value)
        assert caught.value.line == 4

    def test_can_be_switched_off(self):
        module = parse(TEXT)
        report = PassManager([Break(), Mark()], verify_each=False).run(module)
        assert [timing.verify_seconds for timing in report.timings] == [0.0, 0.0]
        with pytest.raises(VerifyError):
            module.verify()


class TestDumps:
    def test_before_and_after(self):
        printed: list[str] = []
        manager = PassManager(
            [Mark(), Double()],
            print_before=("test-double",),
            print_after=("test-mark", "test-double"),
            print_sink=printed.append,
        )
        manager.run(parse(TEXT))
        assert [text.partition("\n")[0] for text in printed] == [
            "// -----// IR Dump After Mark (test-mark) //----- //",
            "// -----// IR Dump Before Double (test-double) //----- //",
            "// -----// IR Dump After Double (test-double) //----- //",
        ]
        assert "arith.muli" not in printed[1]
        assert "arith.muli" in printed[2]
        assert printed[0].partition("\n")[2] == printed[1].partition("\n")[2]

    def test_standard_error_by_default(self, capsys):
        PassManager([Mark()], print_after=("*",), timing=True).run(parse(TEXT))
        err = capsys.readouterr().err
        assert "IR Dump After Mark (test-mark)" in err
        assert "===- pass execution timing -===" in err
        assert "test-mark" in err.partition("===-")[2]


def test_remarks_have_their_place_and_pass():
    report = PassManager([CountFunction()]).run(parse(LOCATED))
    (remark,) = report.remarks
    assert (remark.pass_name, remark.severity) == ("test-count", "remark")
    assert str(remark) == "kernel.py:7:11: remark: an addition\nnote: it is counted"
    unknown = PassManager([CountFunction()]).run(parse(TEXT)).remarks[0]
    assert str(unknown).startswith("<unknown>: remark: an addition\n")
    assert "note: at operation: %y = arith.addi" in str(unknown)


ARGUMENTS = """\
module {
  tt.func public @f(%x: i32 loc("kernel.py":3:8), %y: i32, %z: i32 loc(unknown)) {
    tt.return
  } loc("kernel.py":2:1)
}
"""


def test_remarks_on_arguments_have_their_place():
    function = parse(ARGUMENTS).body[0]
    x, y, z = (place_of(argument) for argument in function.regions[0].blocks[0].args)
    assert (x.filename, x.line, x.column) == ("kernel.py", 3, 8)
    # Printed without a location: that of the function.
    assert (y.filename, y.line, y.column) == ("kernel.py", 2, 1)
    assert z.line == 0
    assert z.notes[0].startswith("at operation: tt.func public @f")


@pytest.mark.parametrize("name", [r"a\00b.py", "/dev/zero", "/proc/self/fd", "/proc/self/pagemap"])
def test_a_location_that_names_no_regular_file_has_no_source_line(name):
    place = place_of(parse(f'module {{\n  t.a loc("{name}":1:2)\n}}\n').body[0])
    assert (place.line, place.column, place.source_line) == (1, 2, None)


def test_a_source_file_that_is_too_large_has_no_source_line(tmp_path):
    path = tmp_path / "large.py"
    path.touch()
    os.truncate(path, 1 << 40)
    place = place_of(parse(f'module {{\n  t.a loc("{path}":1:2)\n}}\n').body[0])
    assert (place.line, place.column, place.source_line) == (1, 2, None)


def test_a_manager_can_run_again():
    manager = PassManager([Double()])
    modules = [parse(TEXT), parse(TEXT)]
    for module in modules:
        manager.run(module)
    assert str(modules[0]) == str(modules[1])


@pytest.mark.parametrize("argument", ["print_before", "print_after"])
def test_a_name_to_print_around_that_is_not_there(argument):
    with pytest.raises(PipelineError) as caught:
        PassManager([Mark(), CountFunction()], **{argument: ("test-mark", "test-cuont")})
    assert "there is no pass 'test-cuont' in this pipeline" in caught.value.message
    assert caught.value.notes == ("did you mean 'test-count'?",)
    assert PassManager([Mark()], **{argument: ("*", "test-mark")}) is not None


def test_the_tool_prints_around_passes_of_others_too(tmp_path, capsys):
    # Each manager of the tool runs a part of the pipeline.
    if not host.capabilities()["stages-hook-key"].available:
        pytest.skip("Triton's passes are not bound")
    file = tmp_path / "in.mlir"
    file.write_text("module {\n}\n")
    arguments = ["-triton-ext-lower-im2col", "-cse", "--mlir-print-ir-after=cse"]
    assert opt.main([str(file), *arguments]) == 0
    assert capsys.readouterr().err.count("IR Dump After") == 1


@dataclass(frozen=True)
class Wrong(Pass):
    """Does one of several things that no pass should."""

    name: ClassVar[str] = "test-wrong"
    kind: str = ""

    def run(self, module, context):
        if self.kind == "remark":
            context.remark(module, "no place")
        if self.kind == "edit":
            module.op.set_attribute("a", 3)
        if self.kind == "exit":
            sys.exit(3)
        if self.kind == "unknown":
            raise error_at(module.op, "this cannot be compiled")


@pytest.mark.parametrize(
    ("kind", "said", "line"),
    [
        ("remark", "TypeError: expected an Operation, found <Module", "context.remark(module"),
        ("edit", "TypeError: expected a text for attribute 'a'", "module.op.set_attribute("),
        ("exit", "SystemExit: 3", "sys.exit(3)"),
    ],
)
def test_the_place_of_a_fault_is_in_the_pass(kind, said, line):
    with pytest.raises(PassError) as caught:
        PassManager(Wrong(kind)).run(parse(TEXT))
    error = caught.value
    assert error.message.startswith(f"pass 'test-wrong' failed: {said}")
    assert error.filename == __file__
    assert error.source_line.startswith(line)
    assert error.notes[0] == "this is a fault of the pass, not of the module"
    assert (len(error.notes) == 2) == (kind != "exit")


def test_an_error_without_a_place_names_the_pass():
    with pytest.raises(PassError) as caught:
        PassManager(Wrong("unknown")).run(parse(TEXT))
    assert str(caught.value).startswith("<unknown>: error: this cannot be compiled\n")
    assert caught.value.notes[-1] == "pass 'test-wrong' says so"


@pytest.mark.parametrize(
    ("passes", "found"),
    [
        (None, "found None"),
        (3, "found 3"),
        ([Mark(), "test-count"], "found in the list: 'test-count'"),
        ([Mark], "found in the list: the class Mark, not one of it"),
    ],
)
def test_what_is_no_pipeline(passes, found):
    said = f"expected a pipeline, its text, a pass or a list of passes, {found}"
    with pytest.raises(TypeError, match=re.escape(said)):
        PassManager(passes)
    if capabilities()["stages-hook-key"].available:
        with pytest.raises(TypeError, match=re.escape(said)), extra_passes("ttgir", passes):
            pass
