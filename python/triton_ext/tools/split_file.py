"""``split-file``: takes the parts of a test file apart, as LLVM's tool of that name does.

``//--- name``, or any one character in front of ``--- name``, starts a part at the next line; the
part ends in front of the next marker.  Each part becomes a file of its name in a folder.  Options,
exit status and the texts of errors are LLVM's, so a lit file runs with either tool and it does not
matter which of the two is found first.

In one message this tool says more: a part that cannot be written is named, where LLVM names the
input.  A part whose file would be outside of the folder is refused: one with an absolute path, one
with ``..`` in it, and one behind a symbolic link that leaves the folder.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext import __version__
from triton_ext.errors import TritonExtError
from triton_ext.tools.files import remove_abandoned, replace, write
from triton_ext.tools.streams import tool

__all__ = ["SUMMARY", "Part", "main", "parts_of"]

SUMMARY = "take the parts of a test file apart (split-file)"

_TOOL = "split-file"
_USAGE = """\
usage: split-file [options] FILE DIRECTORY

Writes each part of FILE (-: standard input) to a file of its name in DIRECTORY.  A part stands
between a line '//--- NAME', or '#--- NAME' with any character for '#', and the next such line.

  --leading-lines     put as many empty lines in front of a part as stand in front of it in FILE
  --no-leading-lines  put none there (the default)
  --help              print this
  --version           print the version
"""
_SPACES = b" \t\n\v\f\r"


class SplitError(TritonExtError):
    """The file cannot be split, or its parts cannot be written; the text is what to print."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a file.

    Attributes:
        name: Its name, as bytes of a path.
        text: The text between its marker and the next one.
        lines_before: Number of lines in front of the text.
    """

    name: bytes
    text: bytes
    lines_before: int


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``split-file`` and returns its exit status: 0, or 1 after any error.

    Args:
        argv: The arguments; those of the process by default.
    """
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except SplitError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(argv: Sequence[str]) -> int:
    names: list[str] = []
    leading_lines = False
    rest = iter(argv)
    for word in rest:
        if word == "--":
            names.extend(rest)
        elif word == "-" or not word.startswith("-"):
            names.append(word)
        elif word == "--leading-lines":
            leading_lines = True
        elif word in ("--help", "--version"):
            about = f"split-file of triton-ext {__version__}\n"
            return 0 if write(_USAGE if word == "--help" else about, "-") else 1
        elif word != "--no-leading-lines":
            raise _fatal(f"unknown option '{word}'; split-file --help lists what there is")
    if not names or not names[0]:
        raise _fatal("input filename is not specified")
    if len(names) < 2 or not names[1]:
        raise _fatal("output directory is not specified")
    if len(names) > 2:
        raise _fatal(f"expected an input and a directory, found {', '.join(names)}")
    source, folder = names
    try:
        content = _read(source)
    except OSError as error:
        raise _fatal(f"{source}: {_reason(error)}") from error
    end_of_line = b"\r\n" if b"\r\n" in content[: content.find(b"\n") + 1] else b"\n"
    parts = parts_of(content, source)
    try:
        _make_room(folder)
    except OSError as error:
        raise _fatal(f"{folder}: {_reason(error)}") from error
    paths = [_path_of(part, folder, source) for part in parts]
    for directory in {os.path.dirname(os.path.realpath(path)) for path in paths}:
        remove_abandoned(directory)
    for part, path in zip(parts, paths, strict=True):
        lead = end_of_line * part.lines_before if leading_lines else b""
        _write(path, lead + part.text)
    return 0


def parts_of(content: bytes, filename: str) -> list[Part]:
    """Returns the parts of a file, in its order.

    Args:
        content: Its content.
        filename: Its name in messages.

    Raises:
        SplitError: It has no part, or a part has no name, one with a blank at an end or a null
            character in it, one that leaves the folder, or that of another part; the text has a
            line for each such marker.
    """
    # By name: where the marker starts, where its line ends, and the number of that line.
    markers: dict[bytes, tuple[int, int, int]] = {}
    problems: list[str] = []
    end = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        start, end = end, min(end + len(line) + 1, len(content))
        bare = line.removesuffix(b"\r")
        length = 6 if bare.startswith(b"//") else 5
        marker, name = bare[:length], bare[length:]
        if len(marker) != length or not marker.endswith(b"--- "):
            continue
        place = f"{filename}:{number}: error: "
        if not name:
            problems.append(f"{place}empty part name")
        elif name[:1] in _SPACES or name[-1:] in _SPACES:
            problems.append(f"{place}part name cannot have leading or trailing space")
        elif b"\0" in name:
            problems.append(f"{place}part name cannot have a null character")
        elif name.startswith(b"/") or b".." in name.split(b"/"):
            problems.append(f"{place}{_outside(name)}")
        elif name in markers:
            text = os.fsdecode(marker + name)
            problems.append(f"{place}'{text}' occurs more than once")
        else:
            markers[name] = (start, end, number)
    if not markers and not problems:
        problems.append(str(_fatal(f"{filename}: no part separator was found")))
    if problems:
        raise SplitError("\n".join(problems))
    starts = [start for start, _, _ in markers.values()]
    ends = [*starts[1:], len(content)]
    return [
        Part(name, content[begin:end], number)
        for (name, (_, begin, number)), end in zip(markers.items(), ends, strict=True)
    ]


def _make_room(folder: str) -> None:
    """Takes away a file or an empty folder that stands where the parts go.

    A folder that has something in it stays, with whatever is in it.

    Raises:
        OSError: It cannot be taken away.
        SplitError: It is a device, a pipe or a socket.
    """
    try:
        mode = os.stat(folder).st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _fatal(f"{folder}: output cannot be a special file")
    if stat.S_ISREG(mode) or os.path.islink(folder):
        os.unlink(folder)
        return
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _outside(name: bytes) -> str:
    text = os.fsdecode(name)
    return f"part '{text}' is outside of the output directory; give a relative path without '..'"


def _path_of(part: Part, folder: str, filename: str) -> str:
    """Returns the path of a part's file.

    Raises:
        SplitError: A symbolic link in the folder leads out of it.
    """
    path = os.path.join(folder, os.fsdecode(part.name))
    root = os.path.realpath(folder)
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        text = os.fsdecode(part.name)
        raise SplitError(
            f"{filename}:{part.lines_before}: error: part '{text}' is outside of the output "
            f"directory, behind a symbolic link; remove {path}, or the link above it"
        )
    return path


def _write(path: str, text: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace(text, path)
    except OSError as error:
        raise _fatal(f"{path}: {_reason(error)}") from error


def _read(file: str) -> bytes:
    if file != "-":
        return pathlib.Path(file).read_bytes()
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdin.buffer.read()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _fatal(message: str) -> SplitError:
    return SplitError(f"{_TOOL}: error: {message}")


if __name__ == "__main__":
    sys.exit(main())
