"""Tables of choices as files: one per GPU, readable, mergeable, safe against each other's writers.

A file is JSON: what it is, for which GPU, and one line per entry.  Guarantees:

- A reader sees a whole file, old or new: writers replace it (``os.replace``).
- No writer undoes another's work: each holds a lock while it reads, merges and replaces.
- What cannot be read is reported and passed over, never written over: a broken file is set aside
  under another name, an entry of a kind that is not known here is kept as it is.
- A file that was there keeps its permissions, its group and the links that lead to it.

Merging takes of two entries the newer one; the order in which files are merged does not matter.
A date that is none, or is in the future, is older than every other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_ext.errors import TritonExtError

__all__ = [
    "SCHEMA",
    "Entry",
    "Table",
    "TableError",
    "TuningWarning",
    "check_writable",
    "file_name",
    "merged",
    "read_table",
    "slug",
    "update_table",
    "write_table",
]

#: Changes where keys, entries or kernels change so that older measurements mean nothing any more.
SCHEMA = 1
_FORMAT = "triton-ext tuning"

# What an entry holds, as JSON has it; its fields are those of Entry.
RawEntry = dict[str, Any]

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)?", re.ASCII)
# Clocks of machines that share a table differ by less.
_DAY_SECONDS = 86400
# A writer holds the lock for milliseconds.
_LOCK_SECONDS = 60.0
_LOCK_POLL_SECONDS = 0.01


class TuningWarning(UserWarning):
    """Something about a table that is not as it should be, and was passed over."""


class TableError(TritonExtError):
    """A file that is no table of choices, or not for this GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The choice for one key.

    Attributes:
        kind: Of the configuration.
        config: Its fields.
        us: Median time, in microseconds.
        model_us: That of the configuration that the model would have chosen; 0 if not measured.
        measured: When, in UTC, as in ``"2026-11-20T22:15:00.123456Z"``; compared as text.
        triton: Version of Triton that compiled it.
    """

    kind: str
    config: Mapping[str, Any] = field(hash=False)
    us: float
    model_us: float = 0.0
    measured: str
    triton: str = ""

    def raw(self) -> RawEntry:
        """Returns it as JSON has it."""
        return {
            "kind": self.kind,
            "config": dict(self.config),
            "us": self.us,
            "model_us": self.model_us,
            "measured": self.measured,
            "triton": self.triton,
        }

    @classmethod
    def of(cls, raw: object) -> Entry:
        """The inverse of :meth:`raw`; what a newer version has added is passed over.

        Raises:
            TableError: A field is missing or of another type.
        """
        if not isinstance(raw, dict):
            raise TableError(f"expected an entry, found {str(raw)[:40]}")
        wanted = {"kind": str, "config": dict, "us": float, "measured": str}
        wanted |= {name: kind for name, kind in _OPTIONAL.items() if name in raw}
        found: dict[str, Any] = {}
        for name, kind in wanted.items():
            value = raw.get(name)
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is not kind:
                raise TableError(f"{name}: expected {kind.__name__}, found {str(value)[:40]}")
            found[name] = value
        return cls(**found)


_OPTIONAL = {"model_us": float, "triton": str}


@dataclass(slots=True)
class Table:
    """The choices for one GPU.

    Attributes:
        gpu: Its name, as the driver gives it.
        entries: By key, as JSON has them.
    """

    gpu: str
    entries: dict[str, RawEntry] = field(default_factory=dict)


def slug(gpu: str) -> str:
    """Returns the name of a GPU for names of files, such as ``"nvidia_h200"``."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") or "unknown"


def file_name(gpu: str) -> str:
    """Returns the name of a user's file, such as ``"nvidia_h200.v1.json"``.

    Versions of the package with different schemas have files of their own.
    """
    return f"{slug(gpu)}.v{SCHEMA}.json"


def merged(first: Mapping[str, RawEntry], second: Mapping[str, RawEntry]) -> dict[str, RawEntry]:
    """Returns the entries of both; of two for one key the newer one.

    The order and the number of times that tables are merged make no difference.
    """
    result = dict(first)
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _DAY_SECONDS))
    for key, raw in second.items():
        if key not in result or _rank(raw, tomorrow) > _rank(result[key], tomorrow):
            result[key] = raw
    return result


def _rank(raw: object, tomorrow: str) -> tuple[bool, bool, str, str]:
    """Orders entries of a key: readable ones last, by date; a total order, for merging."""
    text = json.dumps(raw, sort_keys=True)
    try:
        measured = Entry.of(raw).measured
    except TableError:
        return False, False, "", text
    is_date = _DATE.fullmatch(measured) is not None and measured <= tomorrow
    return True, is_date, measured, text


def read_table(path: pathlib.Path, gpu: str | None = None) -> Table | None:
    """Reads a file.

    Args:
        path: The file.
        gpu: Whose it has to be; ``None`` for any.

    Returns:
        The table; ``None`` where there is no such file.

    Raises:
        TableError: It is no table, one of another schema, or for another GPU.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    return None if data is None else _parsed(path, data, gpu)


def _read(path: pathlib.Path) -> bytes | None:
    """Returns what a regular file holds, ``None`` where there is no file.

    Raises:
        OSError: It cannot be read; trying again may succeed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        _check_regular(path, descriptor)
        return file.read()


def _check_regular(path: pathlib.Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def _parsed(path: pathlib.Path, data: bytes, gpu: str | None) -> Table:
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise TableError(f"{path}: is no table of triton-ext's tuning")
    if document.get("schema") != SCHEMA:
        raise TableError(
            f"{path}: has schema {document.get('schema')!r}, this version has {SCHEMA}"
        )
    name, entries = document.get("gpu"), document.get("entries")
    if not isinstance(name, str) or not isinstance(entries, dict):
        raise TableError(f"{path}: has no GPU or no entries")
    if gpu is not None and name != gpu:
        raise TableError(f"{path}: is for {name}, this is {gpu}")
    return Table(name, entries)


def write_table(path: pathlib.Path, table: Table) -> None:
    """Writes a file that is whole at every moment, one line per entry, in the order of the keys.

    Raises:
        OSError: It cannot be written.
    """
    lines = [
        f"  {json.dumps(key)}: {json.dumps(raw)}" for key, raw in sorted(table.entries.items())
    ]
    head = json.dumps({"format": _FORMAT, "schema": SCHEMA, "gpu": table.gpu}, indent=1)
    body = ",\n".join(lines)
    text = f'{head[:-2]},\n "entries": {{\n{body}\n }}\n}}\n' if lines else _empty(head)
    path = pathlib.Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # There is one writer at a time: what is there was left by one that was killed.
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
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


def _empty(head: str) -> str:
    return f'{head[:-2]},\n "entries": {{}}\n}}\n'


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Keeps other writers of a file waiting; readers need no lock.

    The lock's file is removed by who holds the lock, and by nobody else.

    Raises:
        OSError: It cannot be locked; after a minute, that another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(path.name + ".lock")
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        # Closing the file ends the lock, and so does the end of the process.
        with open(_open_lock(name), "rb") as lock:
            _check_regular(name, lock.fileno())
            _wait_for(lock.fileno(), name, end)
            # Who had the lock before has removed the file, and others may lock one that is newer.
            if not _is_file_at(name, lock.fileno()):
                continue
            try:
                yield
            finally:
                name.unlink(missing_ok=True)
            return


def _open_lock(name: pathlib.Path) -> int:
    """Opens a lock's file, also one of another user that may only be read."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:
        return os.open(name, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link, not a lock", str(name)) from error
        raise


def _wait_for(descriptor: int, name: pathlib.Path, end: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                text = f"another process has held the lock for {_LOCK_SECONDS:g} seconds"
                raise TimeoutError(errno.ETIMEDOUT, text, str(name)) from None
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def _is_file_at(path: pathlib.Path, descriptor: int) -> bool:
    """Whether an open file is the one that a path leads to."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def check_writable(path: pathlib.Path) -> None:
    """Looks whether a table could be written, before there is one; folders will be made.

    Raises:
        OSError: It cannot, as far as can be seen.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path))
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder", str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"nothing can be written to {folder}", str(path))


def update_table(path: pathlib.Path, table: Table) -> Table:
    """Merges entries into a file.

    Args:
        path: The file; it need not exist.  One that is no table for this GPU is set aside.
        table: What to add.

    Returns:
        What the file now holds.

    Raises:
        OSError: It cannot be read or written, or another process holds its lock.
    """
    path = pathlib.Path(os.path.realpath(path))
    check_writable(path)
    with _locked(path):
        data = _read(path)  # What cannot be read now may be a good table.
        try:
            there = None if data is None else _parsed(path, data, table.gpu)
        except TableError as error:
            aside = path.with_name(f"{path.name}.aside-{time.time_ns()}")
            os.replace(path, aside)
            warnings.warn(f"{error}; it is now {aside.name}", TuningWarning, stacklevel=2)
            there = None
        every = merged(there.entries if there is not None else {}, table.entries)
        result = Table(table.gpu, every)
        write_table(path, result)
    return result
