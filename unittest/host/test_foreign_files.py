"""What the host reads beside the module, and what a module that is refused leaves behind."""

from __future__ import annotations

import os
import pathlib
import tempfile
import threading

import pytest
from triton_ext.host.process import Call, HostProcess, find_library
from triton_ext.strings import quote

MODULE = """\
module {
  tt.func public @f(%x: i32) {
    %dead = arith.muli %x, %x : i32 LOCATION
    tt.return
  }
}
"""
WRONG = MODULE.replace("arith.muli %x, %x", "arith.muli %x, %q")
CSE = Call("cse", "passes.common.add_cse", ())


@pytest.fixture(scope="module")
def process():
    with HostProcess(find_library()) as process:
        yield process


def run(process, text, calls=()):
    """A run that is ended where it does not end by itself."""
    process.run(MODULE.replace("LOCATION", ""), "in.mlir")
    timer = threading.Timer(20, process._child.kill)
    timer.start()
    try:
        return process.run(text, "in.mlir", calls)
    finally:
        timer.cancel()


def names(folder: pathlib.Path) -> list[str]:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    return ["/dev/zero", str(folder / "pipe"), str(folder / "link"), "/proc/self/maps"]


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize(
    "form", ["loc({}:1:1)", "loc({} // :\n : 1 : 1)", 'loc(callsite("a"({}:1:2) at "b":1:2))']
)
def test_a_location_that_names_a_device_or_a_pipe_is_refused(process, tmp_path, index, form):
    name = quote(names(tmp_path)[index])
    location = form.format(name)
    result = run(process, MODULE.replace("LOCATION", location), [CSE])
    assert result.text is None
    (error,) = result.diagnostics
    assert error.message == (
        f"expected a regular file of at most 16 MiB in a location, found {name}, "
        "which Triton would read to show its line"
    )
    line = f"    %dead = arith.muli %x, %x : i32 {location}".splitlines()[0]
    assert (error.severity, error.filename, error.line) == ("error", "in.mlir", 3)
    assert (error.column, error.source_line) == (line.index(name) + 1, line)


@pytest.mark.parametrize(
    "form",
    ["loc({} // x\r:1:1)", '// "\r loc({}:1:1)', "loc({}\0:1:1)", "loc({} //\n\0:1:1)"],
)
def test_what_mlir_takes_for_an_end_of_a_comment_or_a_blank_hides_no_file(process, tmp_path, form):
    name = quote(names(tmp_path)[1])
    location = form.format(name)
    text = MODULE.replace("LOCATION", location)
    result = run(process, text, [CSE])
    (error,) = result.diagnostics
    assert result.text is None
    assert f"found {name}, which Triton would read" in error.message
    assert (error.line, error.column) == (3, text.split("\n")[2].index(name) + 1)


@pytest.mark.parametrize("name", [r"\2Fdev/\7aero", r"/dev/zero\00.py", "/dev/../dev/zero"])
def test_other_spellings_of_a_device_are_refused(process, name):
    result = run(process, WRONG.replace("LOCATION", f'loc("{name}":1:1)'))
    assert "expected a regular file" in result.diagnostics[0].message


@pytest.mark.parametrize("name", ["/dev", "/no/such/file", "with\0nul", __file__, "<stdin>"])
def test_other_names_are_kept(process, name):
    result = run(process, MODULE.replace("LOCATION", f"loc({quote(name)}:1:1)"))
    assert result.diagnostics == ()
    assert f"loc({quote(name)}:1:1)" in result.text


def test_a_string_that_is_no_location_may_say_what_it_likes(process):
    text = MODULE.replace("module {", 'module attributes {a.file = "/dev/zero", a.b = "x" : i32} {')
    assert run(process, text.replace("LOCATION", "")).diagnostics == ()


def test_a_module_that_is_refused_leaves_no_memory_behind(process):
    """Its text was kept by a source manager that nobody destroyed."""
    text = WRONG.replace("LOCATION", "") + "// " + "x" * (4 << 20) + "\n"

    def size() -> int:
        status = pathlib.Path(f"/proc/{process._child.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmSize:")[2].split()[0])

    for _ in range(3):
        run(process, text)
    before = size()
    for _ in range(8):
        assert run(process, text).text is None
    assert size() - before < 8 << 10


def test_blanks_and_comments_behind_a_string_take_no_time(process):
    blanks = f'// "x"{" " * 40}y\n'
    comments = "".join(f'// "{number}" // "{number}"\n' for number in range(20_000))
    comments += "".join(f'// "{number}"' for number in range(60_000)) + "\n"
    comments += "// " + '"\\' * 60_000 + "\n"
    result = run(process, blanks + comments + MODULE.replace("LOCATION", ""), [CSE])
    assert result.text is not None


def test_an_ordinary_file_in_shared_memory_is_kept(process):
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".py") as file:
        location = f"loc({quote(file.name)}:1:1)"
        result = run(process, MODULE.replace("LOCATION", location))
    assert result.diagnostics == ()
    assert location in result.text


@pytest.mark.parametrize("between", ["", " ", " // a\n", "// a // b\n// c\n\n  // d\n "])
def test_a_colon_is_found_behind_comments(process, between):
    location = f'loc("/dev/zero"{between}:1:1)'
    result = run(process, f'// "x"\n// "y"\n{MODULE.replace("LOCATION", location)}')
    assert "expected a regular file of" in result.diagnostics[0].message
