"""mlir-translate: LLVM IR by the library of Triton; other translations are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="its library makes the LLVM IR")

from triton_ext.tools import cli, mlir_translate

MODULE = """\
module {
  llvm.func @twice(%arg0: i32) -> i32 {
    %0 = llvm.add %arg0, %arg0 : i32
    llvm.return %0 : i32
  }
}
"""


def translated(tmp_path, text, *options):
    file = tmp_path / "in.mlir"
    file.write_text(text)
    return mlir_translate.main([str(file), *options])


@pytest.mark.parametrize("option", ["-mlir-to-llvmir", "--mlir-to-llvmir"])
def test_a_module_of_the_llvm_dialect_becomes_llvm_ir(tmp_path, capsys, option):
    assert translated(tmp_path, MODULE, option) == 0
    out, err = capsys.readouterr()
    assert "define i32 @twice(i32 %0) {\n  %2 = add i32 %0, %0\n  ret i32 %2\n}\n" in out
    assert err == ""


def test_it_is_a_command_of_triton_ext_and_writes_files(tmp_path, capsys):
    file, output = tmp_path / "in.mlir", tmp_path / "out.ll"
    file.write_text(MODULE)
    words = ["mlir-translate", "--mlir-to-llvmir", str(file), "-o", str(output)]
    assert cli.main(words) == 0
    assert "define i32 @twice" in output.read_text()
    assert capsys.readouterr().out == ""


def test_another_dialect_is_refused_at_its_place(tmp_path, capsys):
    text = "module {\n  tt.func @f() {\n    tt.return\n  }\n}\n"
    assert translated(tmp_path, text, "--mlir-to-llvmir") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{tmp_path}/in.mlir:2:3: error: " in err
    assert "tt.func" in err


@pytest.mark.parametrize("form", ["loc({} // x\r:1:1)", '// "\rloc({}:1:1)'])
def test_a_pipe_behind_a_carriage_return_is_refused(tmp_path, form):
    os.mkfifo(tmp_path / "pipe")
    location = form.format(f'"{tmp_path}/pipe"')
    # Triton reads the file of a location to show its line under an error.
    text = f'module {{\n  "llvm.mlir.undef"() : () -> () {location}\n}}\n'
    command = [sys.executable, "-m", "triton_ext", "mlir-translate", "--mlir-to-llvmir"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "<stdin>:2:" in done.stderr
    assert "expected a regular file of at most 16 MiB in a location" in done.stderr


def test_a_text_that_is_no_module_is_refused_at_its_place(tmp_path, capsys):
    assert translated(tmp_path, "module {\n  llvm.nothing\n}\n", "--mlir-to-llvmir") == 1
    assert f"{tmp_path}/in.mlir:2:3: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in.mlir"], "expected --mlir-to-llvmir, the one translation that there is"),
        (["--import-llvm", "in.ll"], "unrecognized arguments: --import-llvm"),
        (["-mlir-to-llvmir", "--mlir-to-cpp", "x"], "unrecognized arguments: --mlir-to-cpp"),
    ],
)
def test_other_translations_are_refused_by_name(capsys, words, said):
    with pytest.raises(SystemExit) as raised:
        mlir_translate.main(words)
    assert raised.value.code == 2
    assert f"mlir-translate: error: {said}\n" in capsys.readouterr().err
