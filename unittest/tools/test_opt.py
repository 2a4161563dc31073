"""triton-opt: options, output, diagnostics, exit status.  What passes do is tested by lit."""

from __future__ import annotations

import io
import pathlib

import pytest
from triton_ext.host import capabilities
from triton_ext.host import module as host_module
from triton_ext.passes import Pass
from triton_ext.tools import cli, opt

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


def test_every_pass_is_known_under_its_own_name():
    for name, load in opt.PASSES.items():
        assert issubclass(load(), Pass)
        assert load().name == name


def test_prints_without_comments(capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, MODULE)
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
    status, out, err = run(capsys, tmp_path, "module {\n  ) \n}\n")
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:2:3: error: ")


def test_split_input_counts_lines_of_the_file(capsys, tmp_path):
    text = f"{MODULE}// -----\n{MARKER}"
    status, out, err = run(capsys, tmp_path, text, "-split-input-file", "--triton-ext-lower-im2col")
    assert (status, out) == (1, "")
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
        ("", 1, "was not expected"),
        ("// expected-note @+1 {{x}}", 1, "expected-note is not supported"),
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
    assert 'in.mlir:2: error: expected error "anything" was not produced' in err


def test_a_missing_file_is_a_sentence(capsys):
    assert opt.main(["/nowhere/in.mlir"]) == 1
    assert capsys.readouterr().err.startswith("/nowhere/in.mlir: error: cannot be read")


def test_an_unknown_pass_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        opt.main(["--no-such-pass"])
    assert caught.value.code == 2


def test_list_passes(capsys):
    assert opt.main(["-list-passes"]) == 0
    assert "triton-ext-lower-im2col\n" in capsys.readouterr().out


def test_is_a_subcommand_too(capsys, tmp_path):
    (tmp_path / "in.mlir").write_text("module {\n}\n")
    assert cli.main(["opt", str(tmp_path / "in.mlir")]) == 0
    assert capsys.readouterr().out == "module {\n}\n"


def valid_parts():
    for file in sorted(TEST_FOLDER.rglob("*.mlir")):
        for index, (_, part) in enumerate(opt._split(file.read_text())):
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
