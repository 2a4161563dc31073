"""Input and output of the tools: files and standard streams, UTF-8 whatever the locale.

A file is written beside its place and renamed, so that nobody ever sees half of one, what was there
stays if something fails, and a hard link to it keeps its text.  Until it is whole it has no name,
where the file system can do that: a process that is killed while it writes leaves nothing.  One
that is killed while the file has a name of its own leaves it to the next that writes to the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pathlib
import re
import secrets
import stat
import sys
from collections.abc import Sequence
from typing import Any

__all__ = [
    "are_same",
    "read",
    "remove_abandoned",
    "replace",
    "silence",
    "tell",
    "write",
    "write_all",
]

_DESCRIPTORS = "/proc/self/fd/"
_TEMPORARY_NAME = re.compile(r"\.triton-ext-[0-9a-f]{16}\.tmp")


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

    :func:`remove_abandoned` is left to the caller: once for all files of a folder.

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
                    target = os.path.realpath(output)
                    remove_abandoned(os.path.dirname(target))
                    temporary = _Temporary(text, target)
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
            handle = os.open(os.path.dirname(self._target), flags, 0o666)
        except OSError:
            return None
        _lock(handle)
        return handle

    def _named(self) -> int:
        while True:
            path = self._new_path()
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            if _lock(handle) and os.path.lexists(path):
                self._path = path
                return handle
            os.close(handle)  # Another process took it for abandoned before it was locked.
            with contextlib.suppress(OSError):
                os.unlink(path)

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


def _lock(handle: int) -> bool:
    """Locks a file for as long as it is open, so that nobody takes it for abandoned.

    Returns:
        Whether no other process has locked it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # A file system without locks: nobody removes what it cannot lock.
    return True


def remove_abandoned(folder: str) -> None:
    """Removes files of this user that processes left in a folder when they were killed.

    Args:
        folder: Its path; what cannot be read or removed is left.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY_NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return
    # Some network file systems lock only what is open for writing.
    handle = os.open(entry.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.lstat(entry.path)):
            os.unlink(entry.path)
    finally:
        os.close(handle)


def _print(text: str) -> None:
    """Writes to standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(output: str, error: OSError) -> None:
    """Says that an output cannot be written; ``-``: standard output."""
    if output == "-":
        silence(sys.stdout)
    # The reader of a pipe may stop early, as `head` does.
    if not isinstance(error, BrokenPipeError):
        name = "<stdout>" if output == "-" else output
        sys.stderr.write(f"{name}: error: cannot be written: {error}\n")


def silence(stream: Any) -> None:
    """Sends what is left in a stream that failed to nowhere.

    Python writes it once more when it ends, complains once more and has a status of its own for it.
    """
    with contextlib.suppress(OSError):  # a stream without a descriptor
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
