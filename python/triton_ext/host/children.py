"""Child processes that end with their parent, and temporary folders that do not outlast it.

Guarantees: a child ends with the process that started it, also when that one is killed; a child
imports nothing from the current folder; the next process that makes a temporary folder removes what
killed ones left.

The kernel ties a child to the thread that started it: a child also ends with that thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import pathlib
import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence

__all__ = ["TemporaryFolder", "command"]

_CHILD = pathlib.Path(__file__).absolute().with_name("child.py")
# Other temporary folders of ours have no lock, and are not to be taken for abandoned ones.
_PREFIX = "triton-ext-run-"
# Another process removed the folder, or it is something else.
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def command(*program: str, options: Sequence[str] = ()) -> list[str]:
    """Returns the command line of a child process of this process.

    Args:
        program: A file, ``-m`` and a module or ``-c`` and code; then its arguments.
        options: Options of Python, such as ``-I``.
    """
    return [sys.executable, *options, os.fspath(_CHILD), str(os.getpid()), *program]


class TemporaryFolder:
    """A temporary folder that is locked for as long as its process lives.

    Attributes:
        name: Its path.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self) -> None:
        _remove_abandoned(tempfile.gettempdir())
        while True:
            self.name = tempfile.mkdtemp(prefix=_PREFIX)
            try:
                descriptor = _locked(self.name, fcntl.LOCK_EX)
            except OSError:
                os.rmdir(self.name)
                raise
            if descriptor is not None:
                break  # Otherwise another process removed it before it was locked.
        self._finalizer = weakref.finalize(self, _remove, self.name, descriptor, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exception: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Removes the folder."""
        self._finalizer()


def _locked(path: str, how: int) -> int | None:
    """Opens and locks a folder; ``None`` where it is gone, no folder, or locked by another.

    Raises:
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise
    try:
        fcntl.flock(descriptor, how)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    except FileNotFoundError:
        pass
    except OSError:
        if not how & fcntl.LOCK_NB:
            return descriptor  # A file system without locks: nobody can take it for abandoned.
    os.close(descriptor)
    return None


def _remove(path: str, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # A fork ends without it.
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


@functools.cache
def _remove_abandoned(root: str) -> None:
    """Removes the folders whose processes have ended, once in a process."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    descriptor = _locked(entry.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is not None:
        _remove(entry.path, descriptor, os.getpid())
