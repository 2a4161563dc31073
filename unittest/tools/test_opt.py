"""triton-opt: options, output, diagnostics, exit status.  What passes do is tested by lit."""

from __future__ import annotations

import ast
import io
import pathlib
import subprocess
import sys

import pytest
from triton_ext.host import capabilities, detect
from triton_ext.host import module as host_module
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
        (["--cse", "--host=none"], "Triton's own passes are not there: --host=none was given"),
        (["--cse", "--pass-provider=ext"], "--pass-provider=ext leaves out Triton's own passes"),
        (["--triton-ext-lower-im2col", "--pass-provider=host"], "there is no pass 'triton-ext"),
        (["--pass-provider=me"], "takes auto or host or ext, found 'me'"),
        (["--canonicalize=max-iterations=3"], "its binding always uses max-iterations=10"),
        (["-o"], "option '-o' needs a value: FILE"),
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


def test_is_a_subcommand_too(capsys, tmp_path):
    (tmp_path / "in.mlir").write_text("module {\n}\n")
    assert cli.main(["opt", str(tmp_path / "in.mlir")]) == 0
    assert capsys.readouterr().out == "module {\n}\n"


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


@pytest.mark.skipif(not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason)
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
