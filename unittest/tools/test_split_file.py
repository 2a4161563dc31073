"""split-file: what becomes a part, what the files hold, and the errors of LLVM's tool."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys

import pytest
from triton_ext.tools import cli, split_file
from triton_ext.tools.split_file import Part, parts_of

TEXT = b"// RUN: x\n//--- a.mlir\none\n#--- sub/b\ntwo\n\n;--- last"


def run(capsys, *arguments):
    status = split_file.main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def files(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.mlir"
    path.write_bytes(TEXT)
    return path


def test_parts():
    assert parts_of(TEXT, "in") == [
        Part(b"a.mlir", b"one\n", 2),
        Part(b"sub/b", b"two\n\n", 4),
        Part(b"last", b"", 7),
    ]


@pytest.mark.parametrize(
    "line", [b"--- a", b" //--- a", b"//---a", b"///--- a", b"//----- a", b"//"]
)
def test_lines_that_are_no_markers(line):
    assert [part.text for part in parts_of(b"//--- p\n" + line + b"\n", "in")] == [line + b"\n"]


def test_any_character_can_stand_in_front():
    assert [part.name for part in parts_of(b"/--- a\n---- b\n//--- c d\n", "in")] == [
        b"a",
        b"b",
        b"c d",
    ]


def test_writes_the_parts(capsys, source, tmp_path):
    out = tmp_path / "new" / "out"
    assert run(capsys, source, out) == (0, "", "")
    assert files(out) == {"a.mlir": b"one\n", "sub/b": b"two\n\n", "last": b""}


def test_leading_lines(capsys, source, tmp_path):
    # As in LLVM, --no-leading-lines behind it changes nothing.
    for arguments in (["--leading-lines"], ["--leading-lines", "--no-leading-lines"]):
        assert run(capsys, *arguments, source, tmp_path / "out") == (0, "", "")
        assert files(tmp_path / "out")["sub/b"] == b"\n\n\n\ntwo\n\n"
    assert run(capsys, "--no-leading-lines", source, tmp_path / "out") == (0, "", "")
    assert files(tmp_path / "out")["sub/b"] == b"two\n\n"


def test_ends_of_lines_stay(capsys, source, tmp_path):
    source.write_bytes(b"\r\n//--- a\r\nx\r\n\xff")
    assert run(capsys, "--leading-lines", source, tmp_path / "out") == (0, "", "")
    assert files(tmp_path / "out") == {"a": b"\r\n\r\nx\r\n\xff"}


def test_reads_standard_input(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    assert run(capsys, "-", tmp_path / "out") == (0, "", "")
    assert files(tmp_path / "out")["a.mlir"] == b"one\n"


def test_what_stands_in_the_place_of_the_folder(capsys, source, tmp_path):
    out = tmp_path / "out"
    out.write_text("a file gives way")
    assert run(capsys, source, out)[0] == 0
    (out / "other").write_text("stays")
    (out / "last").write_text("is written again")
    assert run(capsys, source, out)[0] == 0
    assert files(out)["other"] == b"stays"
    assert files(out)["last"] == b""
    os.mkfifo(tmp_path / "pipe")
    status, _, err = run(capsys, source, tmp_path / "pipe")
    message = f"split-file: error: {tmp_path}/pipe: output cannot be a special file\n"
    assert (status, err) == (1, message)


@pytest.mark.parametrize("name", ["../victim", "sub/../../victim", "/victim", ".."])
def test_a_name_that_leaves_the_folder(capsys, source, tmp_path, name):
    source.write_text(f"//--- a\nx\n//--- {name}\nx\n")
    (tmp_path / "victim").write_text("stays")
    status, _, err = run(capsys, source, tmp_path / "out")
    assert (status, err) == (
        1,
        f"{source}:3: error: part '{name}' is outside of the output directory; "
        "give a relative path without '..'\n",
    )
    assert (tmp_path / "victim").read_text() == "stays"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["link/victim", "file"])
def test_a_link_that_leaves_the_folder(capsys, source, tmp_path, name):
    source.write_text(f"//--- a\nx\n//--- {name}\nx\n")
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "victim").write_text("stays")
    (out / "link").symlink_to(tmp_path)
    (out / "file").symlink_to(tmp_path / "victim")
    status, _, err = run(capsys, source, out)
    assert status == 1
    assert err.startswith(f"{source}:3: error: part '{name}' is outside of the output directory, ")
    assert (tmp_path / "victim").read_text() == "stays"
    assert not (out / "a").exists()


def test_a_part_is_replaced_behind_its_links(capsys, source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "hard").write_text("stays")
    os.link(tmp_path / "hard", out / "last")
    assert run(capsys, source, out) == (0, "", "")
    assert (out / "last").read_bytes() == b""
    assert (tmp_path / "hard").read_text() == "stays"


def test_every_wrong_marker_is_told_and_nothing_is_written(capsys, source, tmp_path):
    source.write_bytes(b"//--- a\n//--- \n#---  b\n//--- c \n#--- a\n//--- a\n//--- d\0e\n")
    status, out, err = run(capsys, source, tmp_path / "out")
    assert (status, out) == (1, "")
    blank = "part name cannot have leading or trailing space"
    assert err.replace(str(source), "in") == (
        f"in:2: error: empty part name\nin:3: error: {blank}\nin:4: error: {blank}\n"
        "in:5: error: '#--- a' occurs more than once\n"
        "in:6: error: '//--- a' occurs more than once\n"
        "in:7: error: part name cannot have a null character\n"
    )
    assert not (tmp_path / "out").exists()


def test_no_part(capsys, source, tmp_path):
    for text in (b"", b"no marker\n"):
        source.write_bytes(text)
        message = f"split-file: error: {source}: no part separator was found\n"
        assert run(capsys, source, tmp_path / "out") == (1, "", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "input filename is not specified"),
        ([""], "input filename is not specified"),
        (["in"], "output directory is not specified"),
        (["in", ""], "output directory is not specified"),
        (["in", "out", "more"], "expected an input and a directory, found in, out, more"),
        (["--lines"], "unknown option '--lines'; split-file --help lists what there is"),
        (["nowhere", "out"], "nowhere: No such file or directory"),
        (["/", "out"], "/: Is a directory"),
    ],
)
def test_arguments_that_are_wrong(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (1, "", f"split-file: error: {message}\n")


def test_output_that_cannot_be_written(capsys, source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "sub").write_text("in the way of sub/b")
    message = f"split-file: error: {out}/sub/b: File exists\n"
    assert run(capsys, source, out) == (1, "", message)
    # Below a file there can be no folder.
    status, _, err = run(capsys, source, out / "sub" / "x")
    assert (status, err) == (1, f"split-file: error: {out}/sub/x: Not a directory\n")


def test_help_and_version(capsys):
    assert run(capsys, "--help")[1].startswith("usage: split-file [options] FILE DIRECTORY\n")
    assert run(capsys, "--version")[1].startswith("split-file of triton-ext ")


def test_it_is_a_subcommand_and_a_module_too(source, tmp_path):
    assert cli.main(["split-file", str(source), str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "triton_ext.tools.split_file", str(source)]
    assert subprocess.run([*command, str(tmp_path / "two")], check=False).returncode == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_it_is_installed_under_llvms_name():
    project = pathlib.Path(__file__).parent.parent.parent / "pyproject.toml"
    if project.exists():
        assert 'split-file = "triton_ext.tools.split_file:main"' in project.read_text()
