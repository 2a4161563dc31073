"""Input and output of the tools: files and standard streams, UTF-8 whatever the locale.

A file is written beside its place and renamed, so that nobody ever sees half of one, what was there
stays if something fails, and a hard link to it keeps its text.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pathlib
import secrets
import stat
import sys
from collections.abc import Sequence

__all__ = ["are_same", "read", "write", "write_all"]


def read(file: str) -> str:
    """Returns a text with the ends of lines that it has.

    Args:
        file: Its path; ``-``: standard input.

    Raises:
        OSError: It cannot be read, it is a Python file, or standard input is closed.
        UnicodeDecodeError: It is not UTF-8.
    """
    if file.endswith(".py"):
        raise OSError(
            'it is Python, expected the text of a module: kernel.asm["ttgir"] of a compiled '
            "kernel, or a .ttgir file of the folder TRITON_DUMP_DIR after a run with "
            "TRITON_KERNEL_DUMP=1"
        )
    if file != "-":
        return pathlib.Path(file).read_bytes().decode("utf-8")
    if sys.stdin is None:
        raise OSError("it is closed")
    # Bytes, because what text is to Python depends on the locale, and it may let any byte pass.
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if buffer is None else buffer.read().decode("utf-8")


def are_same(file: str, output: str) -> bool:
    """Returns whether writing ``output`` would replace ``file``, under any name.

    Args:
        file: A path, or ``-`` for standard input, which may be a file that the shell opened.
        output: A path, or ``-`` for standard output, which the shell has opened already.
    """
    if output == "-":
        return False
    if file != "-" and os.path.realpath(file) == os.path.realpath(output):
        return True
    one, two = _status(file), _status(output)
    if one is None or two is None or not stat.S_ISREG(one.st_mode):
        return False
    return os.path.samestat(one, two)


def _status(file: str) -> os.stat_result | None:
    """Returns the status of a file, or ``None`` where there is none."""
    try:
        if file != "-":
            return os.stat(file)
        return None if sys.stdin is None else os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # ValueError: a stream of Python's, or a path with a NUL
        return None


def write(text: str, output: str) -> bool:
    """Writes a text, and returns whether all of it could be written.

    Args:
        text: The text.
        output: Path of the file; ``-``: standard output.
    """
    return write_all([(text, output)])


def write_all(texts: Sequence[tuple[str, str]]) -> bool:
    """Writes texts, to all of the files or to none; returns whether all could be written.

    Args:
        texts: Texts, and where they go; ``-``: standard output.
    """
    temporaries: dict[str, str] = {}
    output = "-"
    try:
        for text, output in texts:
            if output != "-" and not _is_written_in_place(output):
                temporaries[output] = _write_beside(text, os.path.realpath(output))
        for text, output in texts:
            if output == "-":
                _print(text)
            elif output in temporaries:
                os.replace(temporaries[output], os.path.realpath(output))
                del temporaries[output]
            else:
                pathlib.Path(output).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        tell(output, error)
        return False
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    return True


def _is_written_in_place(output: str) -> bool:
    """Returns whether a file cannot be replaced: a device, a pipe, or a folder without rights.

    Raises:
        OSError: It cannot be written.
    """
    found = _status(output)
    if found is None:
        return False
    if output.startswith("/dev/"):
        return True  # /dev/stdout may be a file that others write, too
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), output)
    if not os.access(output, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), output)
    folder = os.path.dirname(os.path.realpath(output))
    return not (stat.S_ISREG(found.st_mode) and os.access(folder, os.W_OK))


def _write_beside(text: str, target: str) -> str:
    """Writes a file of the same rights into the same folder; returns its path."""
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".triton-ext-{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        # Named as the user knows it.
        raise OSError(error.errno, error.strerror, target) from error
    try:
        with open(handle, "w", encoding="utf-8", newline="") as stream:
            found = _status(target)
            if found is not None:
                os.chmod(temporary, stat.S_IMODE(found.st_mode))
            stream.write(text)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _print(text: str) -> None:
    """Writes to standard output."""
    if sys.stdout is None:
        raise OSError("it is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(output: str, error: OSError) -> None:
    """Says that an output cannot be written; ``-``: standard output."""
    if output == "-" and sys.stdout is not None:
        # Python writes what is left once more when it ends, and complains once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # The reader of a pipe may stop early, as `head` does.
    if not isinstance(error, BrokenPipeError):
        name = "<stdout>" if output == "-" else output
        sys.stderr.write(f"{name}: error: cannot be written: {error}\n")
