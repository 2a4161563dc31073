"""Every command with an output, or messages, to a full device, a closed stream or a closed pipe."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types

import pytest
from triton_ext.tools import cli

MODULE = """\
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func @f() {
    tt.return
  }
}
"""
COMMANDS = {
    "opt": "opt --host=none a.mlir",
    "opt --help": "opt --help",
    "opt --version": "opt --version",
    "help": "--help",
    "version": "--version",
    "doctor": "doctor",
    "waits": "waits a.mlir",
    "lds": "lds --arch sm_90 a.mlir",
    "split-file --help": "split-file --help",
    "mlir-translate --version": "mlir-translate --version",
    "tune --dry-run": "tune --dry-run --shapes 2x64x14x14_64_k3x3",
    "explain": "explain 1x64x8x8_64_k3x3",
}
NEED_TORCH = {"tune --dry-run", "explain"}


def run(name, redirection, folder):
    """The status of a command in a shell, and what it wrote to both streams."""
    if name in NEED_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    (folder / "a.mlir").write_text(MODULE)
    line = f'"{sys.executable}" -m triton_ext {COMMANDS.get(name, name)} {redirection}'
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, cwd=folder, timeout=300
    )


@pytest.mark.parametrize("name", ["opt", "help", "doctor", "waits", "lds", "split-file --help"])
def test_an_output_that_is_closed(name, tmp_path):
    done = run(name, ">&-", tmp_path)
    assert done.stderr.endswith("<stdout>: error: cannot be written: it is closed\n")
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_is_full(name, tmp_path):
    done = run(name, ">/dev/full", tmp_path)
    assert "<stdout>: error: cannot be written: [Errno 28]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["opt", "help", "doctor"])
def test_a_pipe_without_a_reader(name, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "a.mlir").write_text(MODULE)
    command = [sys.executable, "-m", "triton_ext", *COMMANDS[name].split()]
    try:
        done = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, check=False, cwd=tmp_path
        )
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("opt --host=none a.mlir", 0),
        ("opt --host=none --allow-unregistered-dialect=false b.mlir", 0),
        ("opt --host=none --no-such-option a.mlir", 2),
        ("opt --host=none gone.mlir", 1),
        ("split-file a.mlir folder", 1),
        ("waits gone.mlir", 1),
        ("no-such-command", 2),
    ],
)
def test_messages_that_nobody_gets(command, status, redirection, tmp_path):
    if redirection.endswith("full") and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    (tmp_path / "b.mlir").write_text('"some.dialect"() : () -> ()\n' + MODULE)
    with_messages, without = run(command, "", tmp_path), run(command, redirection, tmp_path)
    assert (with_messages.returncode, without.returncode) == (status, status)
    assert without.stdout == with_messages.stdout


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&- 2>&-", "<&- 2>&-", "2>&-"])
def test_triton_runs_where_standard_streams_are_closed(closed, tmp_path, monkeypatch):
    """With an empty cache the child process is asked for its passes, too."""
    pytest.importorskip("triton", reason="its pass runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    redirection = closed if ">&- 2" in closed else f"{closed} >out"
    done = run("opt --host=always -canonicalize a.mlir -o out", redirection, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "tt.func @f()" in (tmp_path / "out").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_that_is_closed_is_full_under_its_name(tmp_path):
    done = run("opt --host=none a.mlir -o /dev/stdout", ">&-", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("/dev/stdout: error: cannot be written: [Errno 28]")


@pytest.mark.parametrize(
    "command",
    [
        "opt",
        "opt --run-reproducer",
        "mlir-translate --mlir-to-llvmir",
        "split-file - folder",
        "waits",
        "lds --arch sm_90",
    ],
)
def test_ctrl_c_while_standard_input_is_read(command, monkeypatch, capsys):
    def read():
        raise KeyboardInterrupt

    stream = types.SimpleNamespace(read=read)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=stream, fileno=lambda: -1))
    assert cli.main(command.split()) == 130
    assert capsys.readouterr() == ("", "")
