"""Input and output of the tools: files and standard streams, UTF-8 whatever the locale.

A file is written beside its place and renamed, so that nobody ever sees half of one, what was there
stays if something fails, and a hard link to it keeps its text.  Until it is whole it has no name,
where the file system can do that: a process that is killed while it writes leaves nothing.
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

__all__ = ["are_same", "read", "replace", "tell", "write", "write_all"]

_DESCRIPTORS = "/proc/self/fd/"


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


def replace(data: bytes, output: str) -> None:
    """Writes a file, whole or not at all; a device or a pipe is written in place.

    Args:
        data: Its bytes.
        output: Its path.

    Raises:
        OSError: It cannot be written.
    """
    if _is_written_in_place(output):
        pathlib.Path(output).write_bytes(data)
        return
    temporary = _Temporary(data, os.path.realpath(output))
    try:
        temporary.replace_target()
    finally:
        temporary.discard()


def write_all(texts: Sequence[tuple[str, str]]) -> bool:
    """Writes texts, to all of the files or to none; returns whether all could be written.

    Args:
        texts: Texts, and where they go; ``-``: standard output.
    """
    output = "-"
    with contextlib.ExitStack() as stack:
        temporaries: dict[str, _Temporary] = {}
        try:
            for text, output in texts:
                if output != "-" and not _is_written_in_place(output):
                    temporary = _Temporary(text, os.path.realpath(output))
                    stack.callback(temporary.discard)
                    temporaries[output] = temporary
            for text, output in texts:
                if output == "-":
                    _print(text)
                elif output in temporaries:
                    temporaries.pop(output).replace_target()
                else:
                    pathlib.Path(output).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            tell(output, error)
            return False
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


class _Temporary:
    """A new file in the folder of another one, which it will replace.

    Args:
        text: The text, or the bytes.
        target: The file that it will replace; it need not be there.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, text: str | bytes, target: str) -> None:
        self._text = text
        self._target = target
        # Its name is empty as long as it has none.
        self._path = ""
        try:
            nameless = self._nameless()
            self._handle = self._named() if nameless is None else nameless
        except OSError as error:
            # Named as the user knows it.
            raise OSError(error.errno, error.strerror, target) from error
        try:
            self._write()
        except BaseException:
            self.discard()
            raise

    def replace_target(self) -> None:
        """Puts the file in the place of the target."""
        if not self._path:
            path = self._new_path()
            try:
                # Given a folder, which does not matter here, Python follows the link (linkat(2)).
                os.link(_DESCRIPTORS + str(self._handle), path, src_dir_fd=self._handle)
                self._path = path
            except OSError:  # a file system where it cannot get a name later
                nameless, self._handle = self._handle, self._named()
                os.close(nameless)
                self._write()
        os.replace(self._path, self._target)
        self._path = ""

    def discard(self) -> None:
        """Closes the file, and removes it unless it is the target now."""
        os.close(self._handle)
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _nameless(self) -> int | None:
        """Opens a file that ends with this process; ``None`` where that cannot be."""
        if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_DESCRIPTORS):
            return None
        flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
        try:
            return os.open(os.path.dirname(self._target), flags, 0o666)
        except OSError:
            return None

    def _named(self) -> int:
        path = self._new_path()
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        self._path = path
        return handle

    def _new_path(self) -> str:
        folder = os.path.dirname(self._target)
        return os.path.join(folder, f".triton-ext-{secrets.token_hex(8)}.tmp")

    def _write(self) -> None:
        """Writes the text, and gives the file the rights of the target."""
        text = self._text
        data = text if isinstance(text, bytes) else text.encode("utf-8")
        with open(self._handle, "wb", closefd=False) as stream:
            found = _status(self._target)
            if found is not None:
                os.fchmod(self._handle, stat.S_IMODE(found.st_mode))
            stream.write(data)


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
        with contextlib.suppress(OSError):  # a stream without a descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # The reader of a pipe may stop early, as `head` does.
    if not isinstance(error, BrokenPipeError):
        name = "<stdout>" if output == "-" else output
        sys.stderr.write(f"{name}: error: cannot be written: {error}\n")
