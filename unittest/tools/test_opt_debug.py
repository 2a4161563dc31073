"""triton-opt: --debug, --debug-only and --show-dialects, which ask the installed Triton."""

from __future__ import annotations

import pathlib

import pytest
from triton_ext.tools import opt

HOST_TESTS = pathlib.Path(__file__).parent.parent.parent / "test" / "host"
FUNCTION = """\
tt.func @f(%x: i32) -> i32 {
  %dead = arith.muli %x, %x : i32
  tt.return %x : i32
}
"""


@pytest.fixture
def run(capsys, tmp_path):
    def run(text, *arguments):
        file = tmp_path / "in.mlir"
        file.write_text(text)
        status = opt.main([str(file), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize("option", ["--debug", "-debug-only=greedy-rewriter,cse"])
def test_what_passes_log_goes_to_standard_error(run, option):
    status, out, err = run(FUNCTION, "-canonicalize", option)
    assert (status, out) == run(FUNCTION, "-canonicalize")[:2]
    assert status == 0
    assert "Processing operation : 'arith.muli'" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["-canonicalize"],
        ["-canonicalize", "--debug=false"],
        ["-canonicalize", "--debug-only=nobody"],
        # No pass of Triton's runs.
        ["--debug"],
    ],
)
def test_no_log(run, arguments):
    assert run(FUNCTION, *arguments)[2] == ""


def test_the_log_of_a_pass_that_fails(run):
    text = (HOST_TESTS / "pass-error.mlir").read_text()
    arguments = ["--convert-triton-gpu-to-llvm=compute-capability=90"]
    quiet = run(text, *arguments)[2]
    status, out, err = run(text, *arguments, "--debug-only=dialect-conversion")
    assert (status, out) == (1, "")
    assert "Legalizing operation : 'builtin.module'" in err
    assert err.endswith(quiet)


def test_the_log_of_a_pass_that_aborts(run):
    text = (HOST_TESTS / "abort.mlir").read_text()
    # The range is used, or nothing would be left behind the first pass.
    text = text.replace("(%p: !tt.ptr<i32>)", "() -> tensor<128xi32>")
    text = text.replace("tt.return", "tt.return %r : tensor<128xi32>")
    arguments = ["-canonicalize", "-convert-triton-to-tritongpu=num-warps=3 target=cuda:80"]
    quiet = run(text, *arguments)[2]
    status, out, err = run(text, *arguments, "--debug-only=greedy-rewriter")
    assert (status, out) == (1, "")
    assert "Processing operation : 'tt.func'" in err
    assert err.endswith(quiet)


def test_show_dialects(capsys):
    assert opt.main(["--show-dialects"]) == 0
    head, names = capsys.readouterr().out.rstrip("\n").split(": ")
    assert head == "Available Dialects"
    found = names.split(",")
    assert found == sorted(found)
    assert {"arith", "builtin", "scf", "tt", "ttg", "ttng"} <= set(found)
    # Without Triton those that some release reads.
    assert opt.main(["--show-dialects", "--host=none"]) == 0
    every = capsys.readouterr().out.rstrip("\n").split(": ")[1]
    assert set(found) <= set(every.split(","))
