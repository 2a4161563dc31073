"""Triton's own passes under their textual names.

Triton binds no parser of pipelines: a pass can be added to a pass manager only by a function such
as ``passes.ttgpuir.add_pipeline(pm, num_stages, dump)``.  What a manager holds can be printed, so
the names, the options, and which argument sets which option are read from the installed Triton
itself: each function is called in a child process with arguments that differ one at a time
(:mod:`~triton_ext.host.worker`).  The result is kept on disk for the next time.

An option that no argument sets cannot be expressed: another value than the one that is printed is
refused by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from triton_ext.errors import UnsupportedError
from triton_ext.host.folders import base_folder
from triton_ext.host.process import Call, HostLibrary, HostProcess

__all__ = ["Adder", "Argument", "HostPass", "HostPasses", "load_passes"]

# Raise it when what is written to disk changes its meaning.
_FORMAT = 2

_NAME = re.compile(r"any\((?:(?P<anchor>[\w.]+)\()?(?P<name>[\w.-]+)(?:\{(?P<options>.*)\})?\)+")
_OPTION = re.compile(r"(?<![\w-])([\w-]+)=((?:\{[^{}]*\}|[^\s{}])*)")
_BOOLEANS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}

# Defaults of options in upstream's Passes.td.  The bindings have no defaults, so an option that is
# missing here has to be given.  Keys: pass and option, or the option of any pass.
_DEFAULTS: Mapping[str | tuple[str, str], str] = MappingProxyType(
    {
        ("convert-triton-to-tritongpu", "target"): "",
        ("convert-triton-to-tritongpu", "num-warps"): "4",
        ("convert-triton-to-tritongpu", "threads-per-warp"): "32",
        ("convert-triton-to-tritongpu", "num-ctas"): "1",
        ("tritongpu-F32DotTC", "emu-tf32"): "false",
        ("tritongpu-allocate-warp-groups", "instrumented"): "false",
        ("tritongpu-assign-latencies", "num-stages"): "3",
        ("tritongpu-automatic-warp-specialization", "num-stages"): "3",
        ("tritongpu-hoist-tmem-alloc", "hoist-out-of-if"): "false",
        ("tritongpu-hoist-tmem-alloc", "post-pipeline"): "false",
        ("tritongpu-optimize-dot-operands", "hoist-layout-conversion"): "true",
        ("tritongpu-pipeline", "num-stages"): "3",
        ("tritongpu-remove-layout-conversions", "disable-remat-splitting"): "false",
        ("tritoninstrument-fp-sanitizer", "homomorphic-casts"): "false",
        ("tritoninstrument-prepare-consan-captures", "target"): "",
        ("triton-nvidia-gpu-fence-insertion", "compute-capability"): "90",
        ("triton-nvidia-gpu-hoist-mbarrier-lifecycle", "compute-capability"): "90",
        ("triton-nvidia-gpu-proxy-fence-insertion", "compute-capability"): "90",
        ("allocate-shared-memory-nv", "compute-capability"): "80",
        ("convert-triton-gpu-to-llvm", "compute-capability"): "80",
        ("convert-triton-gpu-to-llvm", "enable-concurrency-sanitizer"): "false",
        ("initialize-ws-cluster-barriers", "compute-capability"): "80",
        ("tritonamdgpu-accelerate-matmul", "kPack"): "1",
        ("tritonamdgpu-accelerate-matmul", "matrix-instruction-size"): "0",
        ("tritonamdgpu-block-pingpong", "num-stages"): "2",
        ("tritonamdgpu-convert-buffer-ops", "allow-buffer-atomics"): "true",
        ("tritonamdgpu-convert-buffer-ops", "analyze-small-tensor-ofst"): "false",
        ("tritonamdgpu-pipeline", "use_async_copy"): "false",
        ("tritonamdgpu-pipeline", "use_pingpong"): "false",
        ("tritonamdgpu-schedule-loops", "num_stages"): "2",
        "arch": "",
        "arch-generation-name": "",
        "dump-intermediate-steps": "false",
        "ftz": "true",
        "gfx-arch": "",
        "ptx-version": "80",
    }
)


# How releases of Triton spell one option.
_SPELLINGS = frozenset({"arch", "arch-generation-name", "gfx-arch"})


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an adder.

    Attributes:
        kind: ``int``, ``bool``, ``str`` or ``float``.
        options: The options that it sets; none for one that the printed pipeline does not show.
    """

    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adder:
    """A function that adds a pass to a pass manager.

    Attributes:
        path: As in ``libtriton``: ``passes.ttgpuir.add_coalesce``.
        arguments: Its arguments behind the pass manager.
        fixed: Options that no argument sets, with the value that they always have.
    """

    path: str
    arguments: tuple[Argument, ...]
    fixed: tuple[tuple[str, str], ...]

    @property
    def settable(self) -> tuple[str, ...]:
        """The options that an argument sets."""
        return tuple(option for argument in self.arguments for option in argument.options)


@dataclass(frozen=True, slots=True)
class HostPass:
    """A pass of Triton's.

    Attributes:
        name: Its textual name.
        anchor: Name of the operations that it runs on; ``None``: on the module.
        adders: The functions that add it, the one with the fewest arguments first.
    """

    name: str
    anchor: str | None
    adders: tuple[Adder, ...]


@dataclass(frozen=True, slots=True)
class HostPasses:
    """All passes that the installed Triton binds.

    Attributes:
        version: Version of Triton.
        passes: By textual name.
        problems: Adders that could not be called, with the reason.
    """

    version: str
    passes: Mapping[str, HostPass]
    problems: Mapping[str, str]

    def bind(self, name: str, options: Mapping[str, str]) -> Call:
        """Returns the call that adds a pass.

        Args:
            name: The textual name.
            options: As written in a pipeline.

        Raises:
            UnsupportedError: There is no such pass or option, a value cannot be read, or the
                binding cannot express it.
        """
        known = self.passes.get(name)
        if known is None:
            raise UnsupportedError(f"triton {self.version} has no pass '{name}'")
        problems = []
        for adder in known.adders:
            try:
                spelled = _spelled(options, adder.settable)
                return Call(name, adder.path, self._arguments(name, adder, spelled))
            except UnsupportedError as error:
                problems.append(error)
        # The error of the overload with the most arguments says the most.
        raise problems[-1]

    def _arguments(
        self, name: str, adder: Adder, options: Mapping[str, str]
    ) -> tuple[int | bool | str | float, ...]:
        fixed = dict(adder.fixed)
        for option, value in options.items():
            if option in adder.settable:
                continue
            if option not in fixed:
                names = ", ".join(sorted([*adder.settable, *fixed])) or "none"
                raise UnsupportedError(
                    f"pass '{name}' of triton {self.version} has no option '{option}'; "
                    f"its options: {names}"
                )
            if not _same(value, fixed[option]):
                raise UnsupportedError(
                    f"triton {self.version} cannot run '{name}' with {option}={value}: "
                    f"its binding always uses {option}={fixed[option]}"
                )
        for option, value in adder.fixed:
            # Another adder of this pass may use upstream's default.
            default = _default(name, option)
            if option not in options and default is not None and not _same(default, value):
                raise UnsupportedError(
                    f"triton {self.version} cannot run '{name}' with {option}={default}, which is "
                    f"the default: its binding always uses {option}={value}"
                )
        return tuple(
            self._value(name, argument, options, index)
            for index, argument in enumerate(adder.arguments)
        )

    def _value(
        self, name: str, argument: Argument, options: Mapping[str, str], index: int
    ) -> int | bool | str | float:
        given = {options[option] for option in argument.options if option in options}
        if len(given) > 1:
            raise UnsupportedError(
                f"triton {self.version} sets {' and '.join(argument.options)} of pass '{name}' "
                "together: they cannot differ"
            )
        if given:
            return _read(given.pop(), name, argument)
        for option in argument.options:
            default = _default(name, option)
            if default is not None:
                return _read(default, name, argument)
        what = f"option '{argument.options[0]}'" if argument.options else f"argument {index + 1}"
        raise UnsupportedError(
            f"pass '{name}' of triton {self.version} needs a value for {what}: its binding has no "
            "default"
        )


def load_passes(process: HostProcess) -> HostPasses:
    """Returns the passes of a Triton, from disk if it was asked before."""
    path = _cache_path(process.library)
    known = None if path is None else _read_cache(path)
    if known is None:
        known = process.probe()
        if path is not None:
            _write_cache(path, known)
    return _collect(process.library.version, known)


def _collect(version: str, probed: Iterable[dict[str, Any]]) -> HostPasses:
    adders: dict[tuple[str, str | None], list[Adder]] = {}
    problems: dict[str, str] = {}
    for entry in probed:
        if entry.get("problem") is not None:
            problems[entry["path"]] = entry["problem"]
            continue
        name, anchor, options = _parse_printed(entry["printed"])
        if not name:
            problems[entry["path"]] = f"prints {entry['printed']!r}, which is not a pass"
            continue
        varied = [_parse_printed(text)[2] for text in entry["varied"]]
        arguments = tuple(
            Argument(kind, tuple(o for o, value in options.items() if changed.get(o) != value))
            for kind, changed in zip(entry["types"], varied, strict=True)
        )
        settable = {option for argument in arguments for option in argument.options}
        fixed = tuple((o, value) for o, value in options.items() if o not in settable)
        adders.setdefault((name, anchor), []).append(Adder(entry["path"], arguments, fixed))
    passes: dict[str, HostPass] = {}
    for (name, anchor), found in sorted(adders.items(), key=lambda item: item[0][0]):
        found.sort(key=lambda adder: len(adder.arguments))
        passes[name] = HostPass(name, anchor, tuple(found))
    return HostPasses(version, MappingProxyType(passes), MappingProxyType(problems))


def _parse_printed(text: str) -> tuple[str, str | None, dict[str, str]]:
    """Takes ``any(tt.func(name{a=1 b=2}))`` apart; the name is empty for another text."""
    match = _NAME.fullmatch(text)
    if match is None:
        return "", None, {}
    options = {m[1]: m[2] for m in _OPTION.finditer(match["options"] or "")}
    return match["name"], match["anchor"], options


def _default(name: str, option: str) -> str | None:
    return _DEFAULTS.get((name, option), _DEFAULTS.get(option))


def _read(value: str, name: str, argument: Argument) -> int | bool | str | float:
    try:
        if argument.kind == "bool":
            return _BOOLEANS[value]
        if argument.kind == "int":
            return _in_range(int(value, 0), name, argument)
        if argument.kind == "float":
            return float(value)
    except (KeyError, ValueError) as error:
        wanted = {"bool": "true or false", "int": "an integer", "float": "a number"}
        raise UnsupportedError(
            f"pass '{name}': option '{argument.options[0]}' takes {wanted[argument.kind]}, "
            f"found '{value}'"
        ) from error
    return value


def _in_range(value: int, name: str, argument: Argument) -> int:
    """Refuses an integer that does not fit into 32 bits, which is what all adders take."""
    if not -(2**31) <= value < 2**31:
        what = f"option '{argument.options[0]}'" if argument.options else "an argument"
        raise UnsupportedError(
            f"pass '{name}': {what} takes an integer from {-(2**31)} to {2**31 - 1}, found {value}"
        )
    return value


def _spelled(options: Mapping[str, str], known: Collection[str]) -> Mapping[str, str]:
    """Options under the names that this release has for them."""
    here = _SPELLINGS & set(known)
    given = _SPELLINGS & set(options)
    if len(here) != 1 or len(given) != 1 or here == given:
        return options
    (theirs,), (ours,) = here, given
    return {theirs if name == ours else name: value for name, value in options.items()}


def _same(given: str, printed: str) -> bool:
    if given == printed:
        return True
    return given in _BOOLEANS and _BOOLEANS[given] is _BOOLEANS.get(printed)


def _cache_path(library: HostLibrary) -> pathlib.Path | None:
    """Where the result is kept; ``None`` where the user has no folder for it."""
    status = library.path.stat()
    identity = f"{_FORMAT} {library.version} {library.path} {status.st_size} {status.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    root = base_folder("XDG_CACHE_HOME", ".cache")
    return None if root is None else root / "triton-ext" / f"host-passes-{digest}.json"


def _read_cache(path: pathlib.Path) -> list[dict[str, Any]] | None:
    """Returns the cached entries; ``None`` if there are none that can be read."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    entries = known.get("adders") if isinstance(known, dict) else None
    if not isinstance(entries, list) or not entries or not all(map(_is_entry, entries)):
        return None
    return entries


def _is_entry(entry: object) -> bool:
    """Returns whether an entry has the form of the worker's description of an adder."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return False
    if entry.get("problem") is not None:
        return isinstance(entry["problem"], str)
    types, varied = entry.get("types"), entry.get("varied")
    if not isinstance(types, list) or not isinstance(varied, list) or len(types) != len(varied):
        return False
    return all(isinstance(text, str) for text in (entry.get("printed"), *types, *varied))


def _write_cache(path: pathlib.Path, adders: list[dict[str, Any]]) -> None:
    """Writes in one step; a folder that cannot be written to only costs the next call its time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="host-passes-", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump({"adders": adders}, file)
            file.flush()
            os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _remove_old(folder: pathlib.Path) -> None:
    """Removes the files of writers that were killed: nobody holds their lock."""
    for path in folder.glob("host-passes-*.tmp"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
