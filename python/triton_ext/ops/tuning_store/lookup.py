"""The look-up that plans make when no configuration is given: the user's table, then ours.

It is made when a plan is made, not when it runs.  Tables are read once and kept;
``triton_ext.ops.tuning.reload`` forgets them together with the plans that were made of them.

    TRITON_EXT_TUNING_DIR   folder of the user's tables; else $XDG_DATA_HOME/triton-ext/tuning, else
                            ~/.local/share/triton-ext/tuning
    TRITON_EXT_TUNING=0     no table is looked at, models choose alone
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from triton_ext.host.folders import base_folder
from triton_ext.ops.core import registry
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.tuning_store.files import (
    Entry,
    RawEntry,
    TableError,
    TuningWarning,
    file_name,
    merged,
    read_table,
    slug,
)
from triton_ext.ops.tuning_store.kinds import KindError, decode

__all__ = [
    "Lookup",
    "entry_for",
    "find",
    "lookup",
    "observed",
    "read_choice",
    "shipped_path",
    "user_folder",
    "user_path",
]

Observer = Callable[[Case, Device, bool], None]


def user_folder() -> pathlib.Path:
    """Returns the folder of the user's tables.

    Raises:
        TableError: It is in a home folder that cannot be found out.
    """
    named = os.environ.get("TRITON_EXT_TUNING_DIR")
    if not named:
        data = base_folder("XDG_DATA_HOME", ".local/share")
        if data is None:
            raise TableError("there is no home folder; set TRITON_EXT_TUNING_DIR")
        return data / "triton-ext" / "tuning"
    try:
        return pathlib.Path(named).expanduser()
    except RuntimeError as error:
        raise TableError(f"{named}: no such home folder; set TRITON_EXT_TUNING_DIR") from error


def user_path(gpu: str) -> pathlib.Path:
    """Returns where the user's table for a GPU is, or would be."""
    return user_folder() / file_name(gpu)


def shipped_path(gpu: str) -> pathlib.Path:
    """Returns where the package's table for a GPU is, or would be."""
    return pathlib.Path(__file__).resolve().parent.parent / "tables" / f"{slug(gpu)}.json"


class Lookup:
    """Tables that have been read, what was added to them in memory, and who watches."""

    def __init__(self) -> None:
        self._tables: dict[str, Mapping[str, RawEntry]] = {}
        self._added: dict[str, dict[str, RawEntry]] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.observers: list[Observer] = []

    def entries(self, gpu: str) -> Mapping[str, RawEntry]:
        """Returns what is known of a GPU, by key; what is the user's goes before what is ours."""
        table = self._tables.get(gpu)
        if table is None:
            with self._lock:
                table = {**_read(shipped_path, gpu), **self.users(gpu)}
                self._tables[gpu] = table
        return table

    def users(self, gpu: str) -> dict[str, RawEntry]:
        """Returns the user's entries, those in memory included."""
        return merged(_read(user_path, gpu), self._added.get(gpu, {}))

    def add(self, gpu: str, entries: Mapping[str, RawEntry], origin: str) -> None:
        """Takes entries into account in this process, whatever the files say.

        Args:
            gpu: For which GPU.
            entries: By key, as JSON has them.
            origin: Where they come from, for warnings.
        """
        with self._lock:
            self._origins |= {(gpu, key): origin for key in entries}
            self._added[gpu] = merged(self._added.get(gpu, {}), entries)
            self._tables.pop(gpu, None)
            self._told.clear()

    def forget(self, added: bool = False) -> None:
        """Has files read again.

        Args:
            added: Whether what :meth:`add` was given is forgotten, too.
        """
        with self._lock:
            self._tables.clear()
            self._told.clear()
            if added:
                self._added.clear()
                self._origins.clear()

    def tell(self, gpu: str, key: str, reason: object) -> None:
        """Warns, once, that an entry is not used, and says where it stands."""
        with self._lock:
            if (gpu, key) in self._told:
                return
            self._told.add((gpu, key))
            added, users = self._added.get(gpu, {}), self.users(gpu)
        raw = self.entries(gpu).get(key)
        if added.get(key) == raw:
            place = self._origins[gpu, key]
        else:
            place = str(user_path(gpu) if key in users else shipped_path(gpu))
        warnings.warn(
            f"{place}: entry '{key}' is not used: {reason}; the model chooses, until the entry is "
            "removed or triton-ext tune measures it again",
            TuningWarning,
            stacklevel=5,
        )


def _read(path_of: Callable[[str], pathlib.Path], gpu: str) -> dict[str, RawEntry]:
    try:
        table = read_table(path_of(gpu), gpu)
    except TableError as error:
        warnings.warn(f"{error}; it is not used", TuningWarning, stacklevel=4)
        return {}
    return {} if table is None else table.entries


lookup = Lookup()


def find(case: Case, device: Device) -> Any | None:
    """Returns the configuration that was measured to be fastest; ``None`` where nothing is known.

    Args:
        case: What a plan is made for.
        device: Where it is to run.
    """
    config = _find(case, device)
    for observer in tuple(lookup.observers):
        observer(case, device, config is not None)
    return config


def _find(case: Case, device: Device) -> Any | None:
    key, raw = entry_for(case, device)
    if raw is None:
        return None
    try:
        return read_choice(raw, case, device)[1]
    except (TableError, KindError) as error:
        lookup.tell(device.name, key, error)
        return None


def entry_for(case: Case, device: Device) -> tuple[str, RawEntry | None]:
    """Returns the key of a case and the entry that counts for it; ``None`` where there is none.

    Args:
        case: What a plan is made for.
        device: Where it is to run.
    """
    key = case.key(device.num_sms)
    if not device.name or os.environ.get("TRITON_EXT_TUNING") == "0":
        return key, None
    entries = lookup.entries(device.name)
    if entries and key not in entries:
        # Types of as many bytes take each other's choices: what is fastest is the same.
        keys = (twin.key(device.num_sms) for twin in case.twins)
        key = next((each for each in keys if each in entries), key)
    return key, entries.get(key)


def read_choice(raw: object, case: Case, device: Device) -> tuple[Entry, Any]:
    """Returns what an entry says for a case, and its configuration.

    Args:
        raw: The entry, as JSON has it.
        case: What is computed.
        device: Where.

    Raises:
        TableError: It is no entry.
        KindError: Its configuration is none, or not one for the case and the device.
    """
    entry = Entry.of(raw)
    config = decode(entry.kind, entry.config)
    refusals = registry.config_refusals(config, case, device)
    if refusals:
        raise KindError(f"{entry.kind}: {'; '.join(refusals)}")
    return entry, config


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Within, the observer is told of every case that a plan is made for, from any thread.

    Args:
        observer: Takes the case, the device, and whether its choice was known.
    """
    lookup.observers.append(observer)
    try:
        yield
    finally:
        lookup.observers.remove(observer)
