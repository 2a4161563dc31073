"""triton-opt: options, output, diagnostics, exit status.  What passes do is tested by lit."""

from __future__ import annotations

import ast
import io
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from triton_ext.errors import PipelineError
from triton_ext.host import capabilities, detect
from triton_ext.host import module as host_module
from triton_ext.host.process import HostProcess
from triton_ext.passes import PassSpec, registry
from triton_ext.tools import cli, ir_text, opt

TEST_FOLDER = pathlib.Path(__file__).parent.parent.parent / "test"

MODULE = """\
// a comment
module {
  tt.func public @f(%x: i32) {
    %y = arith.addi %x, %x : i32 // "not" a string
    %s = tt.opaque "a // string" : i32
    tt.return
  }
}
"""
MARKER = """\
module {
  tt.func public @f(%x: i32) {
    %px = tt.extern_elementwise %x, %x {MARKER} : (i32, i32) -> i32
    %y = arith.addi %px, %x : i32
    tt.return
  }
}
""".replace("MARKER", 'libname = "triton_ext.markers", symbol = "triton_ext.im2col.pixel"')


def run(capsys, tmp_path, text, *arguments):
    file = tmp_path / "in.mlir"
    file.write_text(text)
    status = opt.main([str(file), *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err.replace(str(file), "in.mlir")


def test_prints_without_comments(capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, MODULE, "--host=none")
    assert (status, err) == (0, "")
    assert "comment" not in out
    assert '"not"' not in out
    assert '"a // string"' in out
    assert out.startswith("module {\n")


def test_keeps_every_byte_on_demand(capsys, tmp_path):
    assert run(capsys, tmp_path, MODULE, "-keep-comments") == (0, MODULE, "")


def test_reads_standard_input_and_writes_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(MODULE))
    target = tmp_path / "out.mlir"
    assert opt.main(["-keep-comments", "-o", str(target)]) == 0
    assert target.read_text() == MODULE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("spelling", ["--triton-ext-lower-im2col", "-triton-ext-lower-im2col"])
def test_an_error_stands_at_its_place(capsys, tmp_path, spelling):
    status, out, err = run(capsys, tmp_path, MARKER, spelling)
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:4:5: error: an im2col position")
    assert err.splitlines()[1:] == ["    %y = arith.addi %px, %x : i32", "    ^"]


def test_a_syntax_error_stands_at_its_place(capsys, tmp_path):
    text = "module {\n  ) \n}\n"
    status, out, err = run(capsys, tmp_path, text, "--host=none")
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:2:3: error: ")
    assert err.splitlines()[1:3] == ["  ) ", "  ^"]
    status, out, err = run(capsys, tmp_path, text)
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:1:9: error: "), "MLIR names the end of the token before"
    assert err.splitlines()[1:3] == ["module {", "        ^"]


def test_split_input_counts_lines_of_the_file(capsys, tmp_path):
    text = f"{MODULE}// -----\n{MARKER}"
    status, out, err = run(capsys, tmp_path, text, "-split-input-file", "--triton-ext-lower-im2col")
    assert status == 1
    assert "tt.opaque" in out, "the part without an error is printed"
    assert "MARKER" not in out
    assert err.startswith(f"in.mlir:{MODULE.count(chr(10)) + 1 + 4}:5: error: ")


def test_split_input_prints_every_part(capsys, tmp_path):
    status, out, _ = run(
        capsys, tmp_path, "module {\n}\n// -----\nmodule {\n}\n", "-split-input-file"
    )
    assert (status, out) == (0, "module {\n}\n// -----\nmodule {\n}\n")


@pytest.mark.parametrize(
    ("comment", "status", "said"),
    [
        ("// expected-error @+1 {{is used by 'arith.addi'}}", 0, ""),
        ("// expected-error @below {{is used by 'arith.addi'}}", 0, ""),
        ("// expected-error @+2 {{is used by 'arith.addi'}}", 1, "was not produced"),
        ("// expected-error @+1 {{is used by 'arith.muli'}}", 1, "was not produced"),
        ("", 1, "unexpected error: an im2col position"),
        ("// expected-note @+1 {{x}}", 1, 'expected note "x" was not produced'),
    ],
)
def test_verify_diagnostics(capsys, tmp_path, comment, status, said):
    text = MARKER.replace("    %y", f"    {comment}\n    %y")
    found, _, err = run(capsys, tmp_path, text, "--triton-ext-lower-im2col", "-verify-diagnostics")
    assert found == status
    assert said in err


def test_an_expected_error_that_does_not_come_is_an_error(capsys, tmp_path):
    text = "// expected-error @+1 {{anything}}\nmodule {\n}\n"
    status, _, err = run(capsys, tmp_path, text, "-verify-diagnostics")
    assert status == 1
    assert err.startswith('in.mlir:1:4: error: expected error "anything" was not produced\n')


def test_a_missing_file_is_a_sentence(capsys):
    assert opt.main(["/nowhere/in.mlir"]) == 1
    assert capsys.readouterr().err.startswith("/nowhere/in.mlir: error: cannot be read")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-pass"], "there is no pass 'no-such-pass'"),
        (["--triton-ext-lower-im2cool"], "did you mean 'triton-ext-lower-im2col'"),
        (["--triton-ext-lower-im2col=x=1"], "'x'"),
        (["--pass-pipeline=builtin.module(cse"], "expected"),
        (["--pass-pipeline=a", "--cse"], "cannot be used together with single passes ('-cse')"),
        (["--pass-pipeline=tt.func(cse)"], "its binding cannot run it on tt.func"),
        (["--cse", "--host=none"], "Triton's own passes are not available: --host=none was given"),
        (["--cse", "--pass-provider=ext"], "--pass-provider=ext leaves out Triton's own passes"),
        (["--triton-ext-lower-im2col", "--pass-provider=host"], "there is no pass 'triton-ext"),
        (["--triton-ext-partition-shared", "--pass-provider=host"], "--pass-provider=host leaves"),
        (["--pass-provider=me"], "takes auto or host or ext, found 'me'"),
        (["--canonicalize=max-iterations=3"], "its binding always uses max-iterations=10"),
        (["-o"], "option '-o' needs a value: FILE"),
        (["-cse", "--mlir-print-ir-before=csse"], "of that name; did you mean 'cse'?"),
        (["-cse", "--mlir-print-ir-after=csse"], "'--mlir-print-ir-after=csse': there is no pass"),
        (["--host=none", "--mlir-print-ir-after=cse"], "there is no pass of that name"),
        (["--pass-pipeline=builtin.module(builtin.module(cse))"], "on modules inside of it"),
        (["-cse", "-keep-comments"], "'--keep-comments' prints our text, but 'cse' is a pass of"),
        (["--mlir-timing-display=banana"], "takes list or tree, found 'banana'"),
        (["--mlir-disable-threading=banana"], "takes true or false, found 'banana'"),
        (["--mlir-print-op-generic"], "'--mlir-print-op-generic' is not supported: operations"),
        (["-emit-bytecode"], "option '-emit-bytecode' is not supported: modules are read and"),
        (["--load-pass-plugin=x.so"], "is not supported: a C++ plugin fits one build of LLVM"),
        (["--mlir-print-op-on-diagnostic"], "-diagnostic' can only be false here: diagnostics"),
        (["--pass-pipeline="], "'--pass-pipeline=' needs a pipeline; the empty one is 'builtin.mo"),
        (["--pass-pipeline", " "], "'--pass-pipeline' needs a pipeline; the empty one is"),
        (["--debug", "--host=none"], "prints what Triton's passes log, which '--host=none' leaves"),
        (["--debug-only=cse", "--host=none"], "which '--host=none' leaves out"),
        (["--mlir-print-ir-afer=cse"], "did you mean 'mlir-print-ir-after'"),
        (["--version=2"], "option '--version=2' takes no value"),
        (["a.mlir", "b.mlir"], "more than one input: a.mlir, b.mlir"),
    ],
)
def test_a_command_line_that_cannot_be_run_is_refused(capsys, arguments, said):
    assert opt.main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_list_passes(capsys):
    assert opt.main(["-list-passes"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == sorted(names)
    assert {"triton-ext-lower-im2col", "tritongpu-coalesce", "cse"} <= set(names)
    assert opt.main(["-list-passes", "--host=none"]) == 0
    assert "cse" not in capsys.readouterr().out.splitlines()


def test_help_lists_options_and_passes(capsys):
    assert opt.main(["--help"]) == 0
    out = capsys.readouterr().out
    for word in ("--split-input-file", "--triton-ext-lower-im2col", "--tritongpu-pipeline"):
        assert word in out
    assert "num-stages=..." in out
    # A pass, what it does, its options.
    assert re.search(r"--allocate-shared-memory +Places buffers .*\n +capacity=0\n", out)


def test_is_a_subcommand_too(capsys, tmp_path):
    (tmp_path / "in.mlir").write_text("module {\n}\n")
    assert cli.main(["opt", str(tmp_path / "in.mlir")]) == 0
    assert capsys.readouterr().out == "module {\n}\n"


def foreign(monkeypatch, tmp_path, name, source):
    """Registers a pass of another package, whose module has this source."""
    (tmp_path / "foreign_passes.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_passes", raising=False)
    entry = registry.Entry(name, "foreign_passes:Foreign", "package 'foreign'")
    known = {**registry.entries(), name: entry}
    monkeypatch.setattr(registry, "entries", lambda: known)


FOREIGN = """\
from triton_ext.passes import Pass

class Foreign(Pass):
    name = "NAME"
    top_down: bool = True

    def run(self, module, context):
        pass
"""


def test_a_pass_of_another_package_that_raises_is_one_line(capsys, tmp_path, monkeypatch):
    foreign(monkeypatch, tmp_path, "foreign-pass", "raise ValueError('no licence')\n")
    assert opt.main(["--foreign-pass"]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r".*error: pass 'foreign-pass' of package 'foreign' .*no licence\n", err)
    assert opt.main(["--help", "--host=none"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "(does not load: " in x]
    assert line.endswith("no licence)")


def fails_to_load(monkeypatch, tmp_path, source):
    """Registers a broken pass under a name of Triton's; returns what is said about it."""
    foreign(monkeypatch, tmp_path, "cse", source)
    with pytest.raises(PipelineError) as caught:
        registry.build(PassSpec("cse"))
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("def broken(:\n", "SyntaxError: "),
        (FOREIGN.replace("NAME", "other"), "calls itself 'other'"),
        ("Foreign = 3\n", "is not a subclass of triton_ext.passes.Pass"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("provider", ["auto", "ext"])
def test_a_pass_that_does_not_load_is_never_replaced(
    capsys, tmp_path, monkeypatch, source, said, provider
):
    message = fails_to_load(monkeypatch, tmp_path, source)
    assert said in message
    status, out, err = run(capsys, tmp_path, HOST_MODULE, "-cse", f"--pass-provider={provider}")
    assert (status, out) == (2, "")
    assert f"error: {message}\n" in err
    assert run(capsys, tmp_path, HOST_MODULE, "-cse", "--pass-provider=host")[0] == 0


def test_only_an_option_that_ours_does_not_have_is_left_to_the_host(capsys, tmp_path, monkeypatch):
    source = FOREIGN.replace("NAME", "canonicalize").replace("class", OPTION + "class", 1)
    foreign(monkeypatch, tmp_path, "canonicalize", source)
    arguments = ("--mlir-print-ir-after-all", "--canonicalize=max-iterations=10")
    assert run(capsys, tmp_path, HOST_MODULE, *arguments)[0] == 0
    status, _, err = run(capsys, tmp_path, HOST_MODULE, "--canonicalize=top-down=maybe")
    assert status == 2
    assert "expected 'true' or 'false' for option 'top-down' of 'canonicalize'" in err


OPTION = """\
from dataclasses import dataclass

@dataclass(frozen=True)
"""


@pytest.mark.parametrize("show", ["--help", "--list-passes"])
def test_two_passes_of_one_name_are_one_error(capsys, monkeypatch, show):
    def clash():
        raise PipelineError("two passes are named 'x'")

    monkeypatch.setattr(registry, "entries", clash)
    assert opt.main([show]) == 2
    assert "error: two passes are named 'x'\n" in capsys.readouterr().err


def test_a_pass_of_another_package_that_hides_one_is_told(capsys, tmp_path, monkeypatch):
    foreign(monkeypatch, tmp_path, "cse", FOREIGN.replace("NAME", "cse"))
    status, _, err = run(capsys, tmp_path, HOST_MODULE, "-cse")
    assert status == 0
    assert re.fullmatch(
        r"triton-opt: remark: 'cse' is the pass of package 'foreign', which hides that of triton "
        r"\S+; --pass-provider=host runs Triton's\n",
        err,
    )
    assert run(capsys, tmp_path, HOST_MODULE, "-cse", "--pass-provider=ext")[2] == ""
    assert run(capsys, tmp_path, HOST_MODULE, "-cse", "--host=none")[2] == ""


def titles(err):
    return [line[19:-11] for line in err.splitlines() if line.startswith("// -----// IR Dump")]


@pytest.mark.parametrize("more", [[], ["--mlir-print-ir-after-all"]])
def test_dumps_only_after_a_change(capsys, tmp_path, more):
    arguments = ["-canonicalize", "-cse", "-triton-ext-lower-im2col"]
    arguments += ["--mlir-print-ir-after-change", *more]
    status, _, err = run(capsys, tmp_path, HOST_MODULE, *arguments)
    assert (status, titles(err)) == (0, ["After canonicalize"])


def test_a_pass_that_does_not_run_prints_nothing(capsys, tmp_path):
    arguments = ["-cse", "--mlir-print-ir-before=canonicalize", "--mlir-print-ir-after=cse"]
    status, _, err = run(capsys, tmp_path, HOST_MODULE, *arguments)
    assert (status, titles(err)) == (0, ["After cse"])


def test_a_triton_that_cannot_be_started_is_one_error(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    status, out, err = run(capsys, tmp_path, HOST_MODULE, "-cse")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"triton-opt: error: triton \S+ cannot be started: .*nothing'\n", err)


def test_dumps_only_after_a_failure(capsys, tmp_path):
    failing = "-convert-triton-gpu-to-llvm=compute-capability=90"
    call = "tt.call @f(%x, %p) : (i32, !tt.ptr<i32>) -> ()"
    text = HOST_MODULE.replace("tt.return", f"{call}\n    tt.return")
    arguments = ["-cse", failing, "--mlir-print-ir-after-failure"]
    status, _, err = run(capsys, tmp_path, text, *arguments)
    assert (status, titles(err)) == (1, ["After convert-triton-gpu-to-llvm Failed"])
    assert '"builtin.module"' in err or "module attributes" in err
    status, _, err = run(capsys, tmp_path, HOST_MODULE, "-cse", "--mlir-print-ir-after-failure")
    assert (status, err) == (0, "")


def test_dumps_after_a_failure_of_ours(capsys, tmp_path):
    arguments = ["-triton-ext-lower-im2col", "--mlir-print-ir-after-failure"]
    status, _, err = run(capsys, tmp_path, MARKER, *arguments)
    assert (status, len(titles(err))) == (1, 1)
    assert titles(err)[0].endswith(" Failed (triton-ext-lower-im2col)")
    assert f"//----- //\n{MARKER}" in err


def test_an_unreadable_module_is_not_dumped(capsys, tmp_path):
    status, _, err = run(capsys, tmp_path, "module {\n", "-cse", "--mlir-print-ir-before-all")
    assert status == 1
    assert "IR Dump" not in err


def test_what_the_host_prints_and_we_cannot_read_is_an_error(capsys, tmp_path, monkeypatch):
    real = HostProcess.run

    def odd(self, *arguments, **named):
        return replace(real(self, *arguments, **named), text="module {\n  )\n}\n")

    monkeypatch.setattr(HostProcess, "run", odd)
    status, out, err = run(capsys, tmp_path, HOST_MODULE, "-cse", "-triton-ext-lower-im2col")
    assert (status, out) == (1, "")
    assert re.match(r"<printed by triton (\S+)>:2:3: error: the output of triton \1 cannot", err)


@pytest.mark.parametrize("name", ['a"b.mlir', "a\\b.mlir"])
def test_an_odd_name_of_the_input(capsys, tmp_path, name):
    file = tmp_path / name
    file.write_text(HOST_MODULE)
    arguments = ["-cse", "-triton-ext-lower-im2col", "-canonicalize", "--mlir-print-debuginfo"]
    assert opt.main([str(file), *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (tmp_path / "again.mlir").write_text(captured.out)
    assert opt.main([str(tmp_path / "again.mlir")]) == 0
    file.write_text(MARKER)
    assert opt.main([str(file), "-triton-ext-lower-im2col"]) == 1
    assert capsys.readouterr().err.startswith(f"{file}:4:5: error: an im2col position")


#: A lone carriage return ends a comment and is a blank elsewhere, but it ends no line.
RETURNS = (
    "module {\n  tt.func @f(%x: i32) {\r    %y = arith.addi %x, %x : i32 // a // b\r\n"
    '    // one\r%z = arith.muli %y, %x : i32\n    tt.print "a\rb" {hex = false, '
    "isSigned = array<i32: 1>} : %z : i32\n    END\n  }\n}\n"
)


@pytest.mark.parametrize("host", ["none", "always"])
def test_lone_carriage_returns(capsys, tmp_path, host):
    file = tmp_path / "in.mlir"
    file.write_bytes(RETURNS.replace("END", "tt.return").encode())
    assert opt.main([str(file), f"--host={host}"]) == 0
    out = capsys.readouterr().out
    assert "arith.addi" in out
    assert "arith.muli" in out
    assert "one" not in out
    file.write_bytes(RETURNS.replace("END", "tt.return %gone : i32").encode())
    assert opt.main([str(file), f"--host={host}"]) == 1
    assert f"{file}:5:" in capsys.readouterr().err


def test_ends_of_lines_are_kept_with_the_comments(tmp_path):
    text = MODULE.replace("\n", "\r\n").encode()
    (tmp_path / "in.mlir").write_bytes(text)
    command = [sys.executable, "-m", "triton_ext.tools.opt", "-keep-comments"]
    target = tmp_path / "out.mlir"
    done = subprocess.run([*command, str(tmp_path / "in.mlir")], capture_output=True, check=True)
    assert done.stdout == text
    done = subprocess.run([*command, "-o", str(target)], input=text, check=True)
    assert target.read_bytes() == text
    command = [*command[:-1], "--host=none", str(tmp_path / "in.mlir")]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"\r" not in done.stdout


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "<stdout>: error: cannot be written: [Errno 28] No space left on device\n"),
        (">&-", "<stdout>: error: cannot be written: it is closed\n"),
    ],
)
def test_output_that_cannot_be_written(tmp_path, redirection, message):
    (tmp_path / "in.mlir").write_text(MODULE)
    command = f"'{sys.executable}' -m triton_ext.tools.opt --host=none in.mlir {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.decode()) == (1, message)


def test_a_reader_that_has_gone(tmp_path):
    (tmp_path / "in.mlir").write_text(MODULE)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "triton_ext.tools.opt", "--host=none", tmp_path / "in.mlir"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_output_takes_the_place_of_a_file_as_a_whole(tmp_path, capsys):
    # In place, as LLVM's tools allow; another name of the input keeps what it had.
    file, link = tmp_path / "in.mlir", tmp_path / "link.mlir"
    file.write_text(MODULE)
    link.hardlink_to(file)
    file.chmod(0o640)
    assert opt.main(["--host=none", str(file), "-o", str(link)]) == 0
    assert file.read_text() == MODULE
    assert link.read_text() == MODULE.replace("// a comment\n", "").replace(
        ' // "not" a string', ""
    )
    assert link.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["in.mlir", "link.mlir"]


def test_aliases_that_grow_without_end_are_an_error(capsys, tmp_path):
    lines = [f"#a{i} = #t.x<#a{i - 1}, #a{i - 1}>" for i in range(1, 60)]
    text = "\n".join(["#a0 = #t.z", *lines, "module attributes {t.a = #a59} {", "}", ""])
    status, out, err = run(capsys, tmp_path, text, "--host=none", "--mlir-print-local-scope")
    assert (status, out) == (1, "")
    assert re.match(r"in\.mlir:\d+:1: error: aliases written out take more", err)


HOST_MODULE = """\
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%x: i32, %p: !tt.ptr<i32>) {
    %dead = arith.muli %x, %x : i32
    tt.store %p, %x : !tt.ptr<i32>
    tt.return
  }
}
"""


def test_the_host_verifies_where_no_pass_runs(capsys, tmp_path):
    text = HOST_MODULE.replace("%dead = arith.muli %x, %x", "%dead = tt.call @g() : () -> i32 //")
    status, out, err = run(capsys, tmp_path, text)
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:3:13: error: 'tt.call' op 'g' does not reference a valid")


def test_passes_of_both_in_order(capsys, tmp_path):
    arguments = ["--mlir-print-ir-after-all", "-canonicalize", "-triton-ext-lower-im2col", "-cse"]
    status, out, err = run(capsys, tmp_path, HOST_MODULE, *arguments)
    assert status == 0
    titles = [line for line in err.splitlines() if "IR Dump After" in line]
    assert ["canonicalize" in titles[0], "lower-im2col" in titles[1], "cse" in titles[2]] == [
        True
    ] * 3
    assert len(titles) == 3
    assert "arith.muli" not in out


def test_an_error_of_ours_behind_a_pass_of_the_host_stands_in_the_input(capsys, tmp_path):
    text = MARKER.replace("libname", 'libpath = "", pure = true, libname').replace(
        "tt.return",
        'tt.print "y" {hex = false, isSigned = array<i32: 1>} : %y : i32\n    tt.return',
    )
    status, out, err = run(capsys, tmp_path, text, "-cse", "--triton-ext-lower-im2col")
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:4:10: error: an im2col position"), err
    assert err.splitlines()[1] == "    %y = arith.addi %px, %x : i32"


def test_an_error_of_the_host_behind_a_pass_of_ours_stands_in_the_input(capsys, tmp_path):
    text = HOST_MODULE.replace(
        "%dead = arith.muli %x, %x : i32",
        "tt.call @f(%x, %p) : (i32, !tt.ptr<i32>) -> ()",
    )
    arguments = ["--triton-ext-lower-im2col", "--convert-triton-gpu-to-llvm=compute-capability=90"]
    status, out, err = run(capsys, tmp_path, text, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:"), err
    assert "module after" not in err


def test_locations_on_demand(capsys, tmp_path):
    status, out, _ = run(capsys, tmp_path, HOST_MODULE, "-cse", "--mlir-print-debuginfo")
    assert status == 0
    assert "loc(#loc" in out
    assert 'in.mlir":5:5)' in out
    both = ["-cse", "--mlir-print-debuginfo", "--mlir-print-local-scope"]
    status, out, _ = run(capsys, tmp_path, HOST_MODULE, *both)
    assert status == 0
    assert "#loc" not in out
    assert 'in.mlir":5:5)' in out
    _, out, _ = run(capsys, tmp_path, out, "-triton-ext-lower-im2col")
    assert "loc(" not in out


def test_unregistered_dialects_on_demand(capsys, tmp_path):
    text = 'module {\n  "my.op"() : () -> ()\n}\n'
    status, _, err = run(capsys, tmp_path, text)
    assert status == 1
    assert "unregistered dialect" in err
    result = run(capsys, tmp_path, text, "-allow-unregistered-dialect")
    if detect().release >= (3, 7):
        assert result == (0, text, "")
    else:
        # 3.6 does not export the setter.
        assert result[0] == 1
        assert "--host=none reads operations of any dialect" in result[2]


def test_an_unknown_dialect_is_told_where_triton_is_not_asked(capsys, tmp_path):
    text = 'module {\n  "foo.bar"() : () -> ()\n  "foo.baz"() : () -> ()\n}\n'
    status, out, err = run(capsys, tmp_path, text, "--host=none")
    assert (status, out) == (0, text)
    assert err.startswith("in.mlir:2:3: note: no release of Triton has the dialect 'foo'")
    assert err.count("\n") == 1
    arguments = ["--host=none", "-allow-unregistered-dialect"]
    assert run(capsys, tmp_path, text, *arguments) == (0, text, "")


def test_timing_and_statistics(capsys, tmp_path):
    arguments = ["-cse", "-triton-ext-lower-im2col", "--mlir-timing", "--mlir-pass-statistics"]
    status, _, err = run(capsys, tmp_path, HOST_MODULE, *arguments)
    assert status == 0
    timing = [line for line in err.splitlines() if "%)" in line]
    assert any(line.endswith(" cse") for line in timing)
    assert any(line.endswith(" triton-ext-lower-im2col") for line in timing)
    assert "pass statistics" in err


def test_a_file_is_not_written_after_an_error(capsys, tmp_path):
    target = tmp_path / "out.mlir"
    assert run(capsys, tmp_path, "module {\n  )\n}\n", "-o", str(target))[0] == 1
    assert not target.exists()


WITHOUT_TRITON = """\
import sys, importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
sys.modules["triton"] = None
from triton_ext.tools import opt
sys.exit(opt.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--host=none"], 0, ""),
        ([], 0, ""),
        (["--host=none", "--triton-ext-lower-im2col"], 0, ""),
        (["--triton-ext-lower-im2col"], 0, ""),
        (["--cse"], 2, "no Triton is installed: pip install"),
        (["--host=always"], 2, "no Triton is installed: pip install"),
    ],
)
def test_without_triton(tmp_path, arguments, status, said):
    file = tmp_path / "in.mlir"
    file.write_text(MODULE)
    command = [sys.executable, "-c", WITHOUT_TRITON, str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert ("tt.func public @f(%x: i32)" in done.stdout) == (status == 0)


def valid_parts():
    for file in sorted(TEST_FOLDER.glob("nvidia/**/*.mlir")):
        for index, (_, part) in enumerate(ir_text.split(file.read_text(), "// -----")):
            # A marker that is misused is valid IR to Triton; what it refuses is marked.
            yield pytest.param(part, id=f"{file.relative_to(TEST_FOLDER)}:{index}")


@pytest.mark.skipif(
    not capabilities()["im2col-copies"].available, reason=capabilities()["im2col-copies"].reason
)
@pytest.mark.parametrize("text", list(valid_parts()))
def test_the_host_accepts_what_the_lit_tests_feed_and_get(text, capsys, tmp_path):
    """The lit tests are about modules that can exist: Triton parses and verifies both sides."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    context = host_module.new_context(make_backend(GPUTarget("cuda", 90, 32)))
    host_module.parse_module(text, context)
    status, out, _ = run(capsys, tmp_path, text, "--triton-ext-lower-im2col")
    if "expected-error" not in text and status == 0:
        host_module.parse_module(out, context)


def test_without_a_host_nothing_heavy_is_loaded(tmp_path):
    """What start-up costs is measured by ``python -m benchmarks ir``; this is what keeps it low."""
    file = tmp_path / "in.mlir"
    file.write_text(MODULE)
    code = (
        "import sys; from triton_ext.tools import opt\n"
        "status = opt.main(sys.argv[1:])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", code, str(file), "--host=none", "--triton-ext-lower-im2col"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stderr.strip().splitlines()[-1]))
    assert not loaded & {"triton", "torch", "numpy", "asyncio", "multiprocessing"}
