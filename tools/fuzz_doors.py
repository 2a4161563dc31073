"""Doors other than IR for ``tools/fuzz.py``: command lines, tables, descriptors, C calls.

Each makes an input from random numbers, with what runs it; :func:`fuzz_ir.guarded` judges the run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from bound_processes import completed, ending_with_this
from fuzz_ir import Finding, pass_names

__all__ = ["INPUTS", "c_calls", "is_there", "prepare"]

ROOT = pathlib.Path(__file__).resolve().parent.parent
_C_FOLDER = ROOT / "unittest" / "nvidia" / "c"
_C_CALLS = 1_000_000
#: Wall-clock seconds that a build, or one round of calls, may take.
_C_SECONDS = 900.0

#: Input as text, and what runs it.
Input = tuple[str, Callable[[list[str]], str]]

_MODULE = """\
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 4, order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  // CHECK: ttg.local_alloc
  tt.func @f(%n: i32) {
    %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #ttg.shared_memory, mutable>
    tt.return
  }
}
// -----
//--- part.mlir
tt.func @g() { tt.return }
"""
_WORDS = (
    *("", "-", "--", "true", "false", "all", "a.mlir", "gone.mlir", "out", "folder", "0", "-1"),
    *("9" * 5000, "builtin.module()", "builtin.module(", "tt.func(canonicalize)", "any(", "{", "}"),
    *("a{b=c}", "a{b={c d}}", "\udcff", "é", "x=y", "1e9", "gfx950", "h200", "h100", "fprop"),
    *(
        "32,256,56,56 -> 256 k3 g32",
        "1,1,1 -> 1 k1",
        "1,8,99999999999,1 -> 8 k3",
        "-> k",
        "float16",
    ),
    *("2,3,4,5,6 -> 7 k3x2 s2 d2 p1 g1", "0,8,8,8 -> 8 k3", "1,8,8,8 -> 8 k0", "*", "%s", "\n"),
)


def _mutated(word: str, rng: Random) -> str:
    """Changes a few characters of a word."""
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randint(0, len(word))
        extra = rng.choice(("", "", "-", "=", "{", "}", ",", "'", '"', " ", "0", "9", "x", "\x01"))
        word = word[:at] + extra + word[at + rng.choice((0, 1)) :]
    return word


@functools.cache
def _tools() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each tool with its options."""
    from triton_ext.tools import explain, lds, waits
    from triton_ext.tools.command_line import OPTIONS

    found = [
        ("opt", tuple(f"--{name}" for name in (*OPTIONS, *pass_names()))),
        ("split-file", ("--leading-lines", "--no-leading-lines", "--help")),
        ("mlir-translate", ("--version", "--help", "--no-such-option")),
    ]
    modules = [("lds", lds), ("waits", waits)]
    if _has("torch"):
        modules.append(("explain", explain))
    for name, module in modules:
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        options = [word for action in parser._actions for word in action.option_strings]
        found.append((name, tuple(options)))
    return tuple(found)


def _command_line(rng: Random) -> Input:
    tool, options = rng.choice(_tools())
    words = [tool]
    if tool == "opt":
        # Triton, in a process of its own, is not what is tested here.
        words += ["--host=none", "--pass-provider=ext"]
        options = tuple(o for o in options if o not in ("--host", "--pass-provider"))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        word = rng.choice(options) if rng.random() < 0.6 else rng.choice(_WORDS)
        if rng.random() < 0.3:
            word += f"={rng.choice(_WORDS)}"
        words.append(_mutated(word, rng) if rng.random() < 0.4 else word)
    if tool != "mlir-translate" and rng.random() < 0.7:
        words.append("a.mlir")
    elif tool == "mlir-translate":
        words.append("--no-such-option")  # It would start Triton.
    return json.dumps(words), functools.partial(_run_command, words)


def _run_command(words: list[str], step: list[str]) -> str:
    from triton_ext.tools import cli

    step.append(f"triton-ext {words[0]}")
    with _folder() as folder:
        pathlib.Path(folder, "a.mlir").write_text(_MODULE)
        # As Python opens them.
        streams = [
            io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
            for errors in ("strict", "strict", "backslashreplace")
        ]
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = streams
        try:
            status: object = cli.main(words)
        except SystemExit as end:
            status = end.code
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        if status not in (0, 1, 2, None):
            return f"exception: the status is {status!r}"
        left = [name for name in os.listdir(folder) if ".tmp" in name]
        return f"exception: {left} is left" if left else ""


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A temporary folder that is the current one inside of the block."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="triton-ext-fuzz-") as folder:
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@functools.cache
def _shipped() -> tuple[str, dict[str, Any]]:
    """The GPU and the entries of a table of ours."""
    folder = importlib.util.find_spec("triton_ext.ops")
    assert folder is not None
    assert folder.submodule_search_locations is not None
    path = pathlib.Path(next(iter(folder.submodule_search_locations)), "tables", "nvidia_h200.json")
    document = json.loads(path.read_text())
    return document["gpu"], document["entries"]


def _table(rng: Random) -> Input:
    gpu, entries = _shipped()
    keys = rng.sample(sorted(entries), 4)
    document: dict[str, Any] = {
        "format": "triton-ext tuning",
        "schema": 1,
        "gpu": gpu,
        "entries": {key: json.loads(json.dumps(entries[key])) for key in keys},
    }
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        _change_value(document, rng)
    text = json.dumps(document, indent=1)
    if rng.random() < 0.3:
        at = rng.randint(0, len(text))
        middle = rng.choice(("", "{", '"', ",", "[" * 100_000, "\x00", "\udcff", "9" * 5000, "NaN"))
        text = text[:at] + middle + text[at + rng.choice((0, 1, 30)) :]
    data = text.encode("utf-8", "surrogateescape")
    return text, functools.partial(_run_table, data, gpu)


def _change_value(document: dict[str, Any], rng: Random) -> None:
    """Changes one value, or the name of one, somewhere in a document."""
    at: dict[str, Any] = document
    while True:
        key = rng.choice(sorted(at))
        inner = at[key]
        if not isinstance(inner, dict) or not inner or rng.random() < 0.15:
            break
        at = inner
    values: tuple[Any, ...] = (
        None,
        0,
        -1,
        1,
        3,
        1 << 70,
        1e400,
        0.5,
        True,
        "",
        "~~~",
        [],
        {},
        [[]],
        "gluon",
    )
    if rng.random() < 0.2:
        at[rng.choice(("", "kind", "~", key + "x"))] = at.pop(key)
    else:
        at[key] = rng.choice(values)


def _run_table(data: bytes, gpu: str, step: list[str]) -> str:
    from triton_ext.ops.core import tables
    from triton_ext.ops.tuning.store import update_table

    with _folder(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = pathlib.Path("table.json")
        path.write_bytes(data)
        step.append("read_table")
        there = None
        with contextlib.suppress(tables.TableError):
            there = tables.read_table(path)
        with contextlib.suppress(tables.TableError):
            table = tables.read_table(path, gpu)
            step.append("read entries")
            for raw in table.entries.values() if table is not None else ():
                with contextlib.suppress(tables.TableError, tables.KindError):
                    entry = tables.Entry.of(raw)
                    tables.decode(entry.kind, entry.config)
        step.append("update_table")
        good = tables.Table(gpu, {"a key": _shipped()[1][min(_shipped()[1])]})
        if there is not None and there.gpu != gpu:
            with contextlib.suppress(OSError):
                update_table(path, good)
                return f"invalid: a table for {there.gpu} was taken for one for {gpu}"
            return "" if path.read_bytes() == data else "invalid: the table of another GPU changed"
        update_table(path, good)
        again = tables.read_table(path, gpu)
        if again is None or "a key" not in again.entries:
            return "invalid: an update is lost"
        left = [name for name in os.listdir(".") if name != "table.json" and "aside" not in name]
        return f"invalid: {left} is left" if left else ""


class _DType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class _Tensor:
    """A tensor that is nothing but its description."""

    def __init__(self, shape: Any, strides: Any, dtype: str, address: Any) -> None:
        self.shape, self._strides = shape, strides
        self.dtype, self._address = _DType(dtype), address

    def data_ptr(self) -> Any:
        return self._address

    def stride(self) -> Any:
        return self._strides


def _descriptor(rng: Random) -> Input:
    """Arguments of a convolution's descriptor, legal ones with a few others in their place."""
    dims = rng.choice((1, 2, 2, 2, 3))
    spatial = [rng.choice((1, 7, 14, 56, 224)) for _ in range(dims)]
    shape: list[Any] = [rng.choice((1, 2, 32)), *spatial, rng.choice((8, 64, 128, 256))]
    strides: list[Any] = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    wild = (0, -1, 1, 3, 255, 1 << 31, 1 << 32, 1 << 40, 1 << 63, 1 << 64, 1 << 200, 1.5, None, "x")
    arguments: dict[str, Any] = {
        "shape": shape,
        "strides": strides,
        "dtype": rng.choice(("float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "bool")),
        "address": 0x7F0000000000,
        "filter_size": [rng.choice((1, 3, 5, 7))] * dims,
        "stride": [rng.choice((1, 2, 8))] * dims,
        "padding": [rng.choice((0, 1, 3))] * dims,
        "dilation": [rng.choice((1, 2))] * dims,
        "block_shape": [rng.choice((16, 64, 256)), rng.choice((8, 32, 64))],
    }
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        name = rng.choice(sorted(arguments))
        value = arguments[name]
        if isinstance(value, list) and value and rng.random() < 0.8:
            value = list(value)
            value[rng.randrange(len(value))] = rng.choice(wild)
            arguments[name] = value
        elif name != "dtype":
            arguments[name] = rng.choice((*wild, [], [1], [1] * 7, "abc", {}, [[1, 2]] * dims))
    return repr(arguments), functools.partial(_run_descriptor, arguments)


def _run_descriptor(arguments: dict[str, Any], step: list[str]) -> str:
    from triton_ext import Im2ColDescriptor

    given = dict(arguments)
    tensor = _Tensor(*(given.pop(name) for name in ("shape", "strides", "dtype", "address")))
    # TypeError is the documented error for what is not an integer.
    with warnings.catch_warnings(), contextlib.suppress(TypeError):
        warnings.simplefilter("ignore")
        step.append("for_conv")
        made = Im2ColDescriptor.for_conv(tensor, **given)
        step.append("repr")
        repr(made)
        step.append("encode")
        made.encode(swizzle=3, elem_size=2, elem_type=6, box=tuple(made.block_shape))
    return ""


#: By name: makes an input of random numbers.
INPUTS: dict[str, Callable[[Random], Input]] = {
    "command-lines": _command_line,
    "tables": _table,
    "descriptors": _descriptor,
}
_NEEDS = {"tables": ("torch", "triton"), "descriptors": ("triton",)}


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def prepare(doors: Sequence[str]) -> None:
    """Imports what doors need.

    Args:
        doors: Their names.
    """
    if "command-lines" in doors:
        if _has("torch"):
            importlib.import_module("triton_ext.ops.tuning.command")
        for tool, _ in _tools():
            # Imports some more when it runs.
            with contextlib.suppress(Exception):
                _run_command([tool, "--no-such-option"], ["start"])
    if "tables" in doors:
        importlib.import_module("triton_ext.ops.tuning.store")
        _shipped()
    if "descriptors" in doors:
        importlib.import_module("triton_ext.backends.nvidia.backend.descriptors")
        with contextlib.suppress(Exception):
            _descriptor(Random(0))[1](["start"])


def is_there(door: str, say: Callable[[str], None]) -> bool:
    """Returns whether a door can be tried here, and says so if not.

    Args:
        door: Its name.
        say: Takes the reason.
    """
    missing = [name for name in _NEEDS.get(door, ()) if not _has(name)]
    if missing:
        say(f"left out: {door}, which need {' and '.join(missing)}")
    return not missing


def c_calls(
    seed: int, counts: Counter[str], say: Callable[[str], None], end: float = 0.0
) -> Iterator[Finding]:
    """Builds and runs random calls of C under sanitizers, where there is a C compiler.

    Args:
        seed: Seed of the first round; later ones have the next numbers.
        counts: Gets the number of calls that ended.
        say: Takes the reason where nothing runs.
        end: Time, by ``time.monotonic``, until which rounds follow the first one.
    """
    build = ["make", "--no-print-directory", "-C", str(_C_FOLDER), "fuzz"]
    if not all(map(shutil.which, ("make", "cc"))) or not _C_FOLDER.is_dir():
        say("left out: C calls, which need a checkout, make and a C compiler")
        return
    problem = _sanitizers_problem()
    if problem:
        say(f"left out: C calls, which need a C compiler with sanitizers; {problem}")
        return
    failure = _failure(build, {}, "the build")
    if failure is not None:
        yield failure
        return
    for number in itertools.count(seed):
        for sanitizer in ("asan", "tsan"):
            folder = _C_FOLDER / "build" / sanitizer
            command = [str(folder / "fuzz_calls"), str(folder), str(_C_CALLS), str(number)]
            failure = _failure(command, {"LD_LIBRARY_PATH": str(folder)}, sanitizer)
            if failure is None:
                counts[f"c ({sanitizer})"] += _C_CALLS
            else:
                yield failure
        if time.monotonic() >= end:
            return


def _sanitizers_problem() -> str:
    """Returns why no program with sanitizers can be built, or nothing."""
    with tempfile.TemporaryDirectory(prefix="triton-ext-fuzz-") as folder:
        for sanitizer in ("address,undefined", "thread"):
            command = ["cc", f"-fsanitize={sanitizer}", "-x", "c", "-", "-o", f"{folder}/a"]
            done = completed(command, _C_SECONDS, input="int main(void) { return 0; }\n")
            if done.returncode != 0:
                return f"{' '.join(command[:2])} says: {done.stderr.strip()[-300:]}"
    return ""


def _failure(command: list[str], variables: dict[str, str], step: str) -> Finding | None:
    """Runs a command; returns the finding where it fails, or takes too long."""
    kind = "exception"
    with tempfile.TemporaryFile() as printed:
        # In a session of its own: what make started ends with it.
        process = subprocess.Popen(
            ending_with_this(command),
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            status = process.wait(_C_SECONDS)
        except subprocess.TimeoutExpired:
            kind, status = "hang", -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        said = printed.read().decode(errors="replace")
    if status == 0:
        return None
    report = re.search(r"(?:ERROR|WARNING): [^\n]*|[^\n]*(?:runtime error|error: )[^\n]*", said)
    why = f"more than {_C_SECONDS:g} s" if kind == "hang" else f"status {status}"
    return Finding(
        door="c",
        kind=kind,
        step=step,
        signature=f"{step}: {report[0] if report and kind != 'hang' else why}",
        detail=said[-2000:],
        text=" ".join(command),
    )
