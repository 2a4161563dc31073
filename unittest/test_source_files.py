"""Passes and the host read the files that a module names by one rule."""

from __future__ import annotations

import os

import pytest
from triton_ext.host.named_files import refused_file
from triton_ext.passes.places import source_line_of
from triton_ext.source_files import LARGEST_SOURCE_BYTES, is_source_file
from triton_ext.strings import quote


@pytest.fixture(params=["device", "pipe", "link", "kernel", "kernel link", "large"])
def harmful(request, tmp_path):
    path = tmp_path / request.param
    if request.param == "device":
        return "/dev/zero"
    if request.param == "kernel":
        return "/proc/self/maps"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "large":
        with path.open("wb") as file:
            file.write(b"first\n")
            file.truncate(LARGEST_SOURCE_BYTES + 1)
    else:
        path.symlink_to("/dev/zero" if request.param == "link" else "/proc/self/maps")
    return str(path)


def test_neither_reads_a_harmful_file(harmful):
    assert is_source_file(harmful) is False
    assert source_line_of(harmful, 1) is None
    error = refused_file(f"\nloc({quote(harmful)}:1:1)", "in.mlir")
    assert (error.filename, error.line, error.column) == ("in.mlir", 2, 5)
    assert quote(harmful) in error.message


def test_both_read_a_source(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("first\nsecond\n")
    assert is_source_file(path) is True
    assert source_line_of(str(path), 2) == "second"
    assert refused_file(f"loc({quote(str(path))}:1:1)", "in.mlir") is None


@pytest.mark.parametrize("name", ["gone.py", "a\0b", ".", "x" * 5000, ""])
def test_names_of_no_file_are_not_refused(name):
    assert is_source_file(name) is None
    assert source_line_of(name, 1) is None
    assert refused_file(f"loc({quote(name)}:1:1)", "in.mlir") is None
