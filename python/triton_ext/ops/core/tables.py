"""Tables of measured choices, and the look-up that plans make when no configuration is given.

A table is a JSON file for one GPU: what it is, the GPU's name, and one line per entry.  The user's
table goes before ours.  Tables are read once, when a plan is made, and kept;
``triton_ext.ops.tuning.reload`` forgets them together with the plans that were made of them.
``triton_ext.ops.tuning.store`` writes them.

    TRITON_EXT_TUNING_DIR   folder of the user's tables; else $XDG_DATA_HOME/triton-ext/tuning, else
                            ~/.local/share/triton-ext/tuning
    TRITON_EXT_TUNING=0     no table is looked at, models choose alone
"""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
import re
import reprlib
import stat
import threading
import time
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from triton_ext.errors import TritonExtError
from triton_ext.host.folders import base_folder, in_home
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import FAMILIES, config_refusals

#: Changes where keys, entries or kernels change so that older measurements mean nothing any more.
SCHEMA = 1
FORMAT = "triton-ext tuning"

# An entry as JSON has it, with the fields of Entry.
RawEntry = dict[str, Any]

# Objects and lists in each other; ours have four of them.
_DEPTH = 32
_LONGEST_NAME = 256  # of a GPU; the driver's are shorter
_LARGEST_BYTES = 1 << 28  # of a file; ours have a few hundred bytes per entry

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_shown = _REPR.repr  # text of a file in messages: escaped, and cut

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)?", re.ASCII)
# Clocks of machines that share a table differ by less.
_DAY_SECONDS = 86400


class TuningWarning(UserWarning):
    """A table or an entry that is ignored, and why."""


class TableError(TritonExtError):
    """A file that is no table of choices, or not for this GPU."""


class KindError(ValueError):
    """Fields in a file that make no configuration."""


def kind_of(config: object) -> str:
    """Returns the name of a configuration's kind; raises KindError where no family has it."""
    for family in FAMILIES:
        if family.config_type is type(config):
            return family.kind
    raise KindError(f"{type(config).__qualname__} has no kind: no family has such configurations")


def encode(config: Any) -> dict[str, Any]:
    """Returns the fields of a configuration, ready for JSON.

    A nested configuration is stored with its kind.  A field with ``omit`` in its metadata is left
    out at that value: older versions do not know the field.
    """
    annotations = typing.get_type_hints(type(config))
    found = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if "omit" in each.metadata and value == each.metadata["omit"]:
            continue
        if annotations[each.name] is Any:
            value = {"kind": kind_of(value), "config": encode(value)}
        found[each.name] = encode(value) if is_dataclass(value) else value
    return found


def decode(kind: str, values: object) -> Any:
    """Returns the configuration of a kind that has these fields.

    Raises KindError for an unknown kind, and for a field that is missing, unknown, of another type
    or out of range.
    """
    types_by_kind = {family.kind: family.config_type for family in FAMILIES}
    if kind not in types_by_kind:
        raise KindError(f"kind {_shown(kind)}: expected one of {', '.join(types_by_kind)}")
    return _decode(types_by_kind[kind], values, kind)


def _decode(cls: Any, values: object, where: str) -> Any:
    """Returns a dataclass whose fields have these values, each of the type of its annotation."""
    if not isinstance(values, Mapping):
        raise KindError(f"{where}: expected fields, found {_shown(values)}")
    annotations, arguments = typing.get_type_hints(cls), {}
    known = {each.name: each for each in fields(cls)}
    for name, value in values.items():
        if name not in known:
            raise KindError(f"{where}: unknown field {_shown(name)}")
        arguments[name] = _value(annotations[name], value, f"{where}.{name}")
        if type(arguments[name]) is int and value == 0 != known[name].default:
            raise KindError(f"{where}.{name}: 0 is out of range")
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise KindError(f"{where}: {error}") from error


def _value(annotation: Any, value: object, where: str) -> Any:
    """Returns a field's value, which its annotation describes."""
    if annotation is Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
            raise KindError(
                f"{where}: expected a configuration and its kind, found {_shown(value)}"
            )
        return decode(value["kind"], value.get("config"))
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    for wanted in typing.get_args(annotation) if is_union else (annotation,):
        if is_dataclass(wanted) and isinstance(value, Mapping):
            return _decode(wanted, value, where)
        if wanted is int and type(value) is int:
            # No size and no count of a configuration is as large.
            if not 0 <= value <= 1 << 16:
                raise KindError(f"{where}: {_shown(value)} is out of range")
            return value
        if wanted is float and isinstance(value, (int, float)) and type(value) is not bool:
            if not 0 <= value < 1 << 53 or not math.isfinite(value):
                raise KindError(f"{where}: {_shown(value)} is out of range")
            return float(value)
        origin = typing.get_origin(wanted) or wanted
        if origin in (bool, str, dict, type(None)) and type(value) is origin:
            return value
        if origin is typing.Literal and any(
            type(value) is type(each) and value == each for each in typing.get_args(wanted)
        ):
            return value
    raise KindError(f"{where}: expected {annotation}, found {_shown(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The choice for one key; times are in microseconds."""

    kind: str  # of the configuration
    config: dict[str, Any] = field(hash=False)  # its fields
    us: float  # median time
    model_us: float = 0.0  # of the configuration that the model would have chosen; 0: not measured
    torch_us: float = 0.0  # of torch's own convolution in the same rounds; 0: not measured
    measured: str  # when, in UTC, as in "2026-11-20T22:15:00.123456Z"; compared as text
    triton: str = ""  # version that compiled it

    def raw(self) -> RawEntry:
        """Returns it as JSON has it."""
        return asdict(self)

    @classmethod
    def of(cls, raw: object) -> Entry:
        """The inverse of :meth:`raw`; ignores fields of newer versions.

        Raises TableError where a field is missing or of another type.
        """
        if not isinstance(raw, dict):
            raise TableError(f"expected an entry, found {_shown(raw)}")
        names = {each.name for each in fields(cls)}
        try:
            found: Entry = _decode(cls, {k: v for k, v in raw.items() if k in names}, "entry")
        except KindError as error:
            raise TableError(str(error)) from error
        if not found.us:
            raise TableError("entry.us: 0 is out of range")
        return found


@dataclass(slots=True)
class Table:
    """The choices for one GPU."""

    gpu: str  # its name, as the driver gives it
    entries: dict[str, RawEntry] = field(default_factory=dict)  # by key, as JSON has them


def _slug(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") or "unknown"


def file_name(gpu: str) -> str:
    """Returns the name of a user's file, such as ``"nvidia_h200.v1.json"``, for this schema."""
    return f"{_slug(gpu)}.v{SCHEMA}.json"


def user_folder() -> pathlib.Path:
    """Returns the folder of the user's tables; raises TableError where there is no home folder."""
    named = os.environ.get("TRITON_EXT_TUNING_DIR")
    if not named:
        data = base_folder("XDG_DATA_HOME", ".local/share")
        if data is None:
            raise TableError("there is no home folder; set TRITON_EXT_TUNING_DIR")
        return data / "triton-ext" / "tuning"
    try:
        is_own = named == "~" or named.startswith("~/")
        folder = in_home(named[2:]) if is_own else pathlib.Path(named).expanduser()
    except RuntimeError:
        folder = None
    if folder is None:
        raise TableError(f"{named}: no such home folder; set TRITON_EXT_TUNING_DIR")
    return folder


def user_path(gpu: str) -> pathlib.Path:
    """Returns where the user's table for a GPU is, or would be."""
    return user_folder() / file_name(gpu)


def shipped_path(gpu: str) -> pathlib.Path:
    """Returns where the package's table for a GPU is, or would be."""
    return pathlib.Path(__file__).resolve().parent.parent / "tables" / f"{_slug(gpu)}.json"


def merged(first: Mapping[str, RawEntry], second: Mapping[str, RawEntry]) -> dict[str, RawEntry]:
    """Returns the entries of both; of two for one key the newer one.

    A date that is none, or is in the future, is older than every other.  The order and the number
    of times that tables are merged make no difference.
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
    """Returns the table of a file, for a GPU or for any; ``None`` where there is no such file.

    Raises TableError where it is no table, of another schema or for another GPU, or cannot be
    read, which an OSError caused; trying again may succeed.
    """

    def opened(_: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=opened) as file:
            check_regular(path, file.fileno())
            if os.fstat(file.fileno()).st_size > _LARGEST_BYTES:
                raise OSError(errno.EFBIG, f"has more than {_LARGEST_BYTES} bytes", str(path))
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    return _parsed(path, data, gpu)


def check_regular(path: pathlib.Path, descriptor: int) -> None:
    """Raises OSError where an open file is a folder, a pipe or a device."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def _parsed(path: pathlib.Path, data: bytes, gpu: str | None) -> Table:
    try:
        document = json.loads(
            data.decode(), object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite
        )
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TableError(f"{path}: is no table of triton-ext's tuning")
    schema, name, entries = map(document.get, ("schema", "gpu", "entries"))
    if type(schema) is not int or schema != SCHEMA:
        raise TableError(
            f"{path}: has schema {_shown(schema)}, this version reads {SCHEMA}: measure again with "
            "triton-ext tune, which writes a new table"
        )
    if not isinstance(name, str) or not isinstance(entries, dict):
        raise TableError(f"{path}: has no GPU or no entries")
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise TableError(
            f"{path}: is for {_shown(name)}: expected a name of 1 to {_LONGEST_NAME} printable "
            "characters"
        )
    if gpu is not None and name != gpu:
        raise TableError(f"{path}: is for {name}, this is {gpu}")
    if _is_deeper(entries, _DEPTH):
        raise TableError(f"{path}: is nested more than {_DEPTH} times")
    return Table(name, entries)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; readers do not agree on what one with a name twice means."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has {_shown(name)} twice")
        found[name] = value
    return found


def _finite(text: str) -> float:
    """Returns a number of JSON, which has none that is infinite or NaN."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{_shown(text)} is no finite number")
    return value


def _is_deeper(value: object, depth: int) -> bool:
    """Tells whether objects and lists are nested more often; writing them would need a stack."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in inner)


# Gets the case, the device, and whether its choice was known.
Observer = Callable[[Case, Device, bool], None]


class Lookup:
    """Tables that have been read, entries that were added in memory, and observers."""

    def __init__(self) -> None:
        self._tables: dict[str, Mapping[str, RawEntry]] = {}
        self._users: dict[str, Mapping[str, RawEntry]] = {}  # those of the user's files
        self._added: dict[str, dict[str, RawEntry]] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.observers: list[Observer] = []

    def entries(self, gpu: str) -> Mapping[str, RawEntry]:
        """Returns the entries of a GPU by key; the user's go before ours."""
        table = self._tables.get(gpu)
        if table is None:
            with self._lock:
                self._users[gpu] = _read(user_path, gpu)
                users = merged(self._users[gpu], self._added.get(gpu, {}))
                table = self._tables[gpu] = {**_read(shipped_path, gpu), **users}
        return table

    def add(self, gpu: str, entries: Mapping[str, RawEntry], origin: str) -> None:
        """Takes entries by key into account, whatever the files say; the origin is for warnings."""
        with self._lock:
            self._origins |= {(gpu, key): origin for key in entries}
            self._added[gpu] = merged(self._added.get(gpu, {}), entries)
            self._tables.pop(gpu, None)
            self._told.clear()

    def forget(self, added: bool = False) -> None:
        """Has files read again; entries of :meth:`add` are forgotten with ``added``."""
        with self._lock:
            self._tables.clear()
            self._told.clear()
            if added:
                self._added.clear()
                self._origins.clear()

    def tell(self, gpu: str, key: str, refusal: object) -> None:
        """Warns, once, that an entry is not used, and says where it stands."""
        with self._lock:
            if (gpu, key) in self._told:
                return
            self._told.add((gpu, key))
        if self._added.get(gpu, {}).get(key) == self.entries(gpu).get(key):
            place = self._origins[gpu, key]
        else:
            place = str(user_path(gpu) if key in self._users[gpu] else shipped_path(gpu))
        warnings.warn(
            f"{place}: entry '{key}' is not used: {refusal}; the model chooses, until the entry is "
            "removed or triton-ext tune measures it again",
            TuningWarning,
            stacklevel=4,
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
    """Returns the configuration that was measured to be fastest for a case, or None."""
    key, raw = entry_for(case, device)
    config, is_tuned = None, False
    if raw is not None:
        try:
            entry, config = read_choice(raw, case, device)
            is_tuned = bool(entry.triton)
        except (TableError, KindError) as error:
            lookup.tell(device.name, key, error)
    for observer in tuple(lookup.observers):
        observer(case, device, is_tuned)
    return config


def entry_for(case: Case, device: Device) -> tuple[str, RawEntry | None]:
    """Returns the key of a case and the entry that counts for it, or None."""
    key = case.key(device.num_sms)
    if not device.name or os.environ.get("TRITON_EXT_TUNING") == "0":
        return key, None
    entries = lookup.entries(device.name)
    if entries and key not in entries:
        # Types of as many bytes take each other's choices: what is fastest is the same.
        keys = (twin.key(device.num_sms) for twin in case.twins)
        key = next(filter(entries.__contains__, keys), key)
    return key, entries.get(key)


def read_choice(raw: object, case: Case, device: Device) -> tuple[Entry, Any]:
    """Returns an entry, given as JSON has it, and its configuration for a case.

    Raises TableError where it is no entry, KindError where its configuration is none for the case.
    """
    entry = Entry.of(raw)
    config = decode(entry.kind, entry.config)
    refusals = config_refusals(config, case, device)
    if refusals:
        raise KindError(f"{entry.kind}: {'; '.join(map(str, refusals))}")
    return entry, config
