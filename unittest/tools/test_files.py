"""triton-opt as a process: closed and binary streams, locales, odd characters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "import sys; from triton_ext.tools.opt import main; sys.exit(main(sys.argv[1:]))"
MODULE = """\
module {
  tt.func public @f(%x: i32) {
    tt.print "gr\u00fc\u00df \u2028" {hex = false, isSigned = array<i32>} : i32
    tt.return
  }
}
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments, data=None, environment=None):
    """Runs triton-opt; without data standard input is closed."""
    command = [sys.executable, "-c", PROGRAM, "--host=none", "-keep-comments", *arguments]
    if data is None:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    path = os.pathsep.join(filter(None, sys.path))
    settings = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    return subprocess.run(command, input=data, capture_output=True, env=settings, check=False)


def test_a_closed_standard_input_is_one_line():
    done = run()
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"<stdin>: error: cannot be read: it is closed\n"


@pytest.mark.parametrize("environment", [{}, C_LOCALE])
def test_what_is_no_utf8_is_one_line_from_a_file_and_from_standard_input(tmp_path, environment):
    data = b'"a"() {x = "\xd0\xff"} : () -> ()\n'
    file = tmp_path / "in.mlir"
    file.write_bytes(data)
    said = b"error: cannot be read: 'utf-8' codec can't decode byte 0xd0 in position 12"
    for done in (run(data=data, environment=environment), run(str(file), environment=environment)):
        assert (done.returncode, done.stdout) == (1, b"")
        assert said in done.stderr
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("environment", [{}, C_LOCALE])
def test_utf8_does_not_depend_on_the_locale(environment):
    done = run(data=MODULE.encode(), environment=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == MODULE.encode()


@pytest.mark.parametrize("host", ["none", "auto"])
def test_a_byte_order_mark_is_named(host):
    done = run(f"--host={host}", data=b"\xef\xbb\xbf" + MODULE.encode())
    assert done.returncode == 1
    lines = done.stderr.decode().split("\n")
    assert lines[0] == "<stdin>:1:1: error: unexpected byte order mark (U+FEFF)"
    assert lines[-2].startswith("note: save the file as UTF-8 without one")


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x85", "\u2028"])
def test_the_source_line_of_an_error_is_that_of_its_number(character):
    text = f"// a{character}b\nmodule {{\n  tt.func @f() {{\n    t.a %x\n  }}\n}}\n"
    done = run(data=text.encode())
    assert done.stderr.decode().split("\n")[:2] == [
        "<stdin>:4:9: error: use of undeclared SSA value '%x'",
        "    t.a %x",
    ]
