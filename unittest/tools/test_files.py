"""triton-opt as a process: closed and binary streams, locales, odd characters."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from triton_ext.tools import files

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


# ---- writing


def test_what_cannot_be_written_leaves_all_files_as_they_were(tmp_path, capsys):
    old = tmp_path / "old"
    old.write_text("old")
    nowhere = tmp_path / "no" / "new"
    assert not files.write_all([("new", str(old)), ("new", str(nowhere))])
    assert capsys.readouterr().err == (
        f"{nowhere}: error: cannot be written: [Errno 2] No such file or directory: '{nowhere}'\n"
    )
    assert old.read_text() == "old"
    assert os.listdir(tmp_path) == ["old"]


KILLED = """\
import os, signal, sys
from triton_ext.tools import files
make = files._Temporary
def killed(text, target):
    made = make(text, target)
    os.kill(os.getpid(), signal.SIGKILL)
files._Temporary = killed
files.write("new", sys.argv[1])
"""


def test_a_killed_process_leaves_nothing_beside_its_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError) as error:
        pytest.skip(f"needs a file system with O_TMPFILE: {error}")
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["file"]
    assert file.read_text() == "old"


KILLED_WITH_A_NAME = """\
import os, signal, sys
from triton_ext.tools import files
os.replace = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
files.write("new", sys.argv[1])
"""


def test_the_next_write_removes_what_a_killed_process_left(tmp_path):
    file, other = tmp_path / "file", tmp_path / ".triton-ext-notes.tmp"
    file.write_text("old")
    other.write_text("of another program")
    done = subprocess.run([sys.executable, "-c", KILLED_WITH_A_NAME, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (len(os.listdir(tmp_path)), file.read_text()) == (3, "old")
    assert files.write("new", str(tmp_path / "another"))
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, "another", "file"])


@pytest.mark.parametrize("has_nameless", [True, False])
def test_what_another_process_still_writes_stays(tmp_path, monkeypatch, has_nameless):
    """The other process is this one: a lock belongs to an open file, not to a process."""
    if not has_nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    replace, found = os.replace, []

    def late(old, new):
        if not found:
            found.append(old)
            assert files.write("b", str(tmp_path / "b"))
            assert os.path.exists(old)
        replace(old, new)

    monkeypatch.setattr(os, "replace", late)
    assert files.write("a", str(tmp_path / "a"))
    assert len(found) == 1
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_an_abandoned_file_is_removed_only_where_it_is_a_regular_one(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    names = [f".triton-ext-{number:016x}.tmp" for number in range(3)]
    os.mkfifo(tmp_path / names[0])
    (tmp_path / names[1]).symlink_to(file)
    (tmp_path / names[2]).mkdir()
    assert files.write("new", str(tmp_path / "another"))
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "another", "file"])


@pytest.mark.parametrize("missing", ["O_TMPFILE", "link"])
def test_a_file_system_without_nameless_files(tmp_path, monkeypatch, missing):
    def refused(*given, **options):
        raise OSError(errno.EOPNOTSUPP, "planted")

    if missing == "link":
        monkeypatch.setattr(os, "link", refused)
    else:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    test_a_file_is_replaced_behind_its_links(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "symbolic"]


def test_no_descriptor_stays_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    assert files.write_all([("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))])
    assert not files.write_all([("a", str(tmp_path / "a")), ("b", str(tmp_path / "no" / "b"))])
    assert os.listdir("/proc/self/fd") == before
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_file_is_replaced_behind_its_links(tmp_path):
    file, link, symbolic = tmp_path / "file", tmp_path / "link", tmp_path / "symbolic"
    file.write_text("old")
    file.chmod(0o604)
    subprocess.run(["ln", str(file), str(link)], check=True)
    symbolic.symlink_to(file)
    assert files.write("new\r\n", str(symbolic))
    assert file.read_bytes() == b"new\r\n"
    assert symbolic.is_symlink()
    assert link.read_text() == "old"
    assert file.stat().st_mode & 0o777 == 0o604


def test_a_new_file_has_the_rights_that_files_have(tmp_path):
    before = os.umask(0o027)
    try:
        assert files.write("new", str(tmp_path / "new"))
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_devices_and_folders(tmp_path, capsys):
    assert files.write("x", os.devnull)
    assert not os.path.isfile(os.devnull)
    assert not files.write("x", str(tmp_path))
    assert "cannot be written: [Errno 21] Is a directory" in capsys.readouterr().err


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert files.write("through", str(pipe))
        assert reader.communicate()[0] == b"through"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_nobody_may_write_stays(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o444)
    assert not files.write("new", str(file))
    assert file.read_text() == "old"


def test_which_files_are_the_same(tmp_path, monkeypatch):
    file, link, other = tmp_path / "file", tmp_path / "link", tmp_path / "other"
    file.write_text("x")
    other.write_text("x")
    link.hardlink_to(file)
    assert files.are_same(str(file), str(link))
    assert files.are_same(str(tmp_path / "new"), f"{tmp_path}/../{tmp_path.name}/new")
    assert not files.are_same(str(file), str(other))
    assert not files.are_same(str(file), "-")
    assert not files.are_same(os.devnull, str(tmp_path / "new"))
    with open(file) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert files.are_same("-", str(link))
        assert not files.are_same("-", str(other))
        assert not files.are_same("-", "-")


@pytest.mark.parametrize("tool", ["opt", "waits", "lds"])
def test_a_python_file_has_no_module(tmp_path, tool):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("import triton\n")
    command = [sys.executable, "-m", "triton_ext", tool, str(kernel)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(f"{kernel}: error: cannot be read: it is Python".encode())
    assert b'kernel.asm["ttgir"]' in done.stderr
