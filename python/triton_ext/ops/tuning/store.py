"""Writes tables of choices, which ``core/tables.py`` reads, and has them used.

- A reader sees a whole file, old or new: writers replace it (``os.replace``).
- No writer undoes another's work: each holds a lock while it reads, merges and replaces.
- A file that cannot be read is reported and never written over: a broken one is set aside under
  another name, an entry of a kind that is not known here is kept as it is.
- A file that was there keeps its permissions, its group and the links that lead to it.
- A lock is open to those who may write to its folder, whatever the umask is; a new table honours
  the umask.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import pwd
import stat
import time
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from triton_ext.ops.core import dispatch_cache, planner, tables
from triton_ext.ops.core.tables import Table, TableError, TuningWarning, lookup

# A writer holds the lock for milliseconds.
_LOCK_SECONDS = 60.0
_LOCK_POLL_SECONDS = 0.01


def write_table(path: pathlib.Path, table: Table) -> None:
    """Writes a file that is whole at every moment, one line per entry, in the order of the keys.

    Raises OSError where it cannot be written.
    """
    entries = sorted(table.entries.items())
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(raw)}" for key, raw in entries)
    head = {"format": tables.FORMAT, "schema": tables.SCHEMA, "gpu": table.gpu}
    body = f"{{\n{lines}\n }}" if lines else "{}"
    path = pathlib.Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # There is one writer at a time: a file that is there was left by one that was killed.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
    except PermissionError as error:  # in a folder with the sticky bit
        text = f"{temporary.name} is there, {_owned(temporary)}; its owner has to remove it"
        raise PermissionError(error.errno, text, str(path)) from error
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f'{json.dumps(head, indent=1)[:-2]},\n "entries": {body}\n}}\n')
            file.flush()
            _copy_access(path, handle)
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _copy_access(path: pathlib.Path, descriptor: int) -> None:
    """Gives an open file the group and the permissions of another one, if there is one."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return
    with contextlib.suppress(PermissionError):  # of a group that its writer is not in
        os.fchown(descriptor, -1, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode) & 0o777)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Keeps other writers of a file waiting; readers need no lock.

    The lock's file is removed by the process that holds the lock, and by nobody else.  Raises
    OSError where it cannot be locked; after a minute, that another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(path.name + ".lock")
    end = time.monotonic() + _LOCK_SECONDS
    while (lock := _try_lock(name, time.monotonic() > end)) is None:
        if time.monotonic() > end:
            text = f"another process has held the lock for {_LOCK_SECONDS:g} seconds"
            raise TimeoutError(errno.ETIMEDOUT, text, str(name))
        time.sleep(_LOCK_POLL_SECONDS)
    # Closing the file ends the lock, and so does the end of the process.
    with lock:
        try:
            yield
        finally:
            # With the sticky bit of its folder, one that another user left stays; it is empty.
            with contextlib.suppress(PermissionError):
                name.unlink(missing_ok=True)


def _try_lock(name: pathlib.Path, is_last: bool) -> BinaryIO | None:
    """Returns the file of a lock, which is held; ``None`` where it may be held later."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o600)
        except PermissionError:
            if not name.exists():
                raise
            handle = os.open(name, os.O_RDONLY | flags)  # of another user
    except PermissionError as error:
        if name.exists() and not is_last:
            return None  # its owner has just made it: it is not yet open to others
        text = f"the lock {name.name} cannot be opened"
        if name.exists():
            text += f": it is {_owned(name)}; its owner has to remove it"
        raise PermissionError(error.errno, text, str(name)) from error
    except OSError as error:
        if error.errno == errno.ENOENT and name.parent.is_dir():
            return None
        text = "is a link, not a lock" if error.errno == errno.ELOOP else str(error.strerror)
        raise OSError(error.errno, text, str(name)) from error
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(os.fdopen(handle, "rb"))
        tables.check_regular(name, handle)
        _open_to_folder(name, handle)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder has removed the file, and others may lock a newer one.
            if os.path.samestat(os.stat(name), os.fstat(handle)):
                stack.pop_all()
                return lock
    return None


def _open_to_folder(name: pathlib.Path, descriptor: int) -> None:
    """Gives an own lock to all who may write to its folder, and to nobody else.

    The access of a file with several names stays as it is: whoever may write to the folder may have
    made the lock's name as a link to another file of its owner.
    """
    folder, lock = name.parent.stat(), os.fstat(descriptor)
    if lock.st_nlink > 1:
        return
    # Those who may write get both bits.
    mode = 0o600 | sum(bit * 3 for bit in (0o020, 0o002) if folder.st_mode & bit)
    if lock.st_uid != os.geteuid() or (lock.st_mode & 0o777, lock.st_gid) == (mode, folder.st_gid):
        return
    with contextlib.suppress(PermissionError):  # of a group that its owner is not in
        os.fchown(descriptor, -1, folder.st_gid)
    os.fchmod(descriptor, mode)


def _owned(path: pathlib.Path) -> str:
    """Returns whose file it is, for messages."""
    try:
        found = path.lstat()
    except OSError:
        return "of another user"
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        name = str(found.st_uid)
    return f"{stat.filemode(found.st_mode)} of user {name}"


def check_writable(path: pathlib.Path) -> None:
    """Raises OSError for a path where no table could be written; its folders will be made."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path))
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder", str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"nothing can be written to {folder}", str(path))
    if not path.exists():
        return
    if not os.access(path, os.R_OK):
        text = f"it is {_owned(path)}, and may not be read"
        raise PermissionError(errno.EACCES, text, str(path))
    owners = {0, folder.stat().st_uid, path.stat().st_uid}
    if folder.stat().st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        text = f"it is {_owned(path)}, and {folder} lets owners alone replace files (sticky bit)"
        raise PermissionError(errno.EPERM, text, str(path))


def update_table(path: pathlib.Path, table: Table) -> Table:
    """Merges entries into a file and returns the table that it then holds.

    The file need not exist; one that is not a table for this GPU is set aside.  A link is followed
    to a table for this GPU alone.  Raises OSError where it cannot be read or written, it is a link
    to something else, or another process holds its lock.
    """
    link, path = path, pathlib.Path(os.path.realpath(path))
    if link.is_symlink():
        # A writer of the folder must not choose what is written elsewhere.
        try:
            linked = tables.read_table(path, table.gpu)
        except TableError:
            linked = None
        if linked is None:
            raise OSError(f"{link}: it is a link to {path}, expected a table for {table.gpu} there")
    check_writable(path)
    with _locked(path):
        there = None
        try:
            there = tables.read_table(path)
        except TableError as error:
            if isinstance(error.__cause__, OSError):  # it may be a good table
                raise error.__cause__ from None
            aside = path.with_name(f"{path.name}.aside-{time.time_ns()}")
            os.replace(path, aside)
            warnings.warn(f"{error}; it is now {aside.name}", TuningWarning, stacklevel=2)
        if there is not None and there.gpu != table.gpu:
            raise OSError(f"{path}: is for {there.gpu}, this is {table.gpu}")
        entries = {} if there is None else there.entries
        result = Table(table.gpu, tables.merged(entries, table.entries))
        write_table(path, result)
    return result


def reload() -> None:
    """Has tables read again, and plans made anew when they are next asked for.

    Call it where a table was changed by another process, or written by hand.  A plan that is
    running, or captured in a CUDA graph, stays what it is.
    """
    lookup.forget()
    planner.make_plan.cache_clear()
    dispatch_cache.clear()


def use(path: pathlib.Path | str) -> int:
    """Takes the choices of a file into account in this process; returns how many it has.

    Args:
        path: A file that ``triton-ext tune --out`` wrote, for any GPU.

    Raises:
        TableError: There is no such file, or it is not a table.
        TypeError: It is not a path.
    """
    if not isinstance(path, (str, pathlib.PurePath)):
        raise TypeError(f"use: expected the path of a file, got {type(path).__name__}")
    table = tables.read_table(pathlib.Path(path))
    if table is None:
        raise TableError(f"{path}: there is no such file")
    lookup.add(table.gpu, table.entries, str(path))
    reload()
    return len(table.entries)
