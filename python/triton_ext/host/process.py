"""Triton's library in a child process: parse, verify, run passes, print.

An assertion of the library ends the child, not us; what it said becomes one error.  Importing this
module loads no Triton, and neither does using it: only the child loads the library.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from triton_ext.errors import TritonExtError
from triton_ext.host.detect import HostError
from triton_ext.host.diagnostics import Diagnostic, read_printed

__all__ = ["Call", "HostCrash", "HostLibrary", "HostProcess", "HostResult", "find_library"]

_WORKER = pathlib.Path(__file__).with_name("worker.py")
_NOT_SAID = re.compile(r"(?:Stack dump|PLEASE submit|#\d+ 0x|\s*#\d+ )")


class HostCrash(TritonExtError):
    """The child process ended in the middle of a request; the text is what it said."""

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...], at: object) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics
        self.at = at


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """Where Triton's library is, and its version as the package metadata says it."""

    version: str
    path: pathlib.Path


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an adder.

    Attributes:
        name: The pass's textual name, for messages.
        path: The adder, ``passes.ttgpuir.add_coalesce``.
        arguments: What stands behind the pass manager.
    """

    name: str
    path: str
    arguments: tuple[int | bool | str | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """What came out of a run.

    Attributes:
        text: The module with its locations; ``None`` if there is an error.
        plain: The module without locations; ``None`` if there is an error.
        diagnostics: What the host reported; has an error exactly if there is no text.
        other: What it printed besides.
        start: The module as it was read, without locations, if dumps were asked for.
        dumps: The module after each pass, if asked for; of a failed run as far as it came.
        seconds: Time of each pass manager.
    """

    text: str | None
    plain: str | None
    diagnostics: tuple[Diagnostic, ...]
    other: str
    start: str
    dumps: tuple[str, ...]
    seconds: tuple[float, ...]


def find_library() -> HostLibrary:
    """Finds the library of the installed Triton without importing anything of it.

    Raises:
        HostError: There is none.
    """
    spec = importlib.util.find_spec("triton")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for path in sorted(pathlib.Path(folder, "_C").glob("libtriton*.so")):
            return HostLibrary(_version(pathlib.Path(folder)), path)
    raise HostError("no Triton is installed: pip install 'triton>=3.8', or use --host=none")


def _version(folder: pathlib.Path) -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        # A Triton on PYTHONPATH has no metadata.
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        match = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
        return match[1] if match is not None else "of unknown version"


class HostProcess:
    """A child process; started when first needed, and again after it died.

    Args:
        library: Which Triton.
    """

    def __init__(self, library: HostLibrary) -> None:
        self.library = library
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: Any = None
        self._printed: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child."""
        self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def probe(self) -> list[dict[str, Any]]:
        """Returns what the child found out about every adder (``worker.do_probe``).

        An adder that ends the process when it is called is left out of the next attempt and
        reported with its problem.
        """
        fatal: dict[str, str] = {}
        while True:
            try:
                adders: list[dict[str, Any]] = self._ask(do="probe", skip=list(fatal))["adders"]
            except HostCrash as crash:
                if not isinstance(crash.at, str):
                    raise
                fatal[crash.at] = str(crash)
                continue
            return [
                *adders,
                *({"path": p, "types": [], "problem": text} for p, text in fatal.items()),
            ]

    def run(
        self,
        text: str,
        filename: str,
        calls: Sequence[Call] = (),
        *,
        allow_unregistered: bool = False,
        one_by_one: bool = False,
    ) -> HostResult:
        """Parses and verifies a text, runs passes over it, prints it.

        Args:
            text: The module.
            filename: Its name in diagnostics and in the locations of operations without one.
            calls: The passes, in order.
            allow_unregistered: Accept operations of dialects that the host does not have.
            one_by_one: Give each pass a pass manager of its own, and keep the module after each.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="triton-ext-")
        path = os.path.join(self._folder.name, "module.mlir")
        request = {
            "do": "run",
            "text": text,
            "path": path,
            "steps": [{"path": call.path, "arguments": call.arguments} for call in calls],
            "allow_unregistered": allow_unregistered,
        }
        try:
            answer = self._ask(one_by_one=one_by_one, **request)
        except HostCrash as crash:
            if len(calls) > 1 and not one_by_one:
                crash = self._again(crash, request)
            return self._crashed(crash, text, path, filename, calls)
        printed = read_printed(self._said().replace(path, filename))
        diagnostics = tuple(_with_source(d, text, filename) for d in printed.diagnostics)
        if answer.get("unregistered_refused"):
            diagnostics = tuple(self._with_way_out(d) for d in diagnostics)
        failed = answer["failed"] is not None
        if failed and printed.last_words:
            # It survived, but what it was doing is as unfinished as after an abort.
            guilty = calls[answer["index"]] if one_by_one or len(calls) == 1 else None
            diagnostics = (
                *diagnostics,
                self._aborted(filename, (guilty,) if guilty else calls, printed.last_words),
            )
        elif failed and not any(d.severity == "error" for d in diagnostics):
            diagnostics = (*diagnostics, self._unexplained(answer, printed.other, filename, calls))
        return HostResult(
            text=None if failed else answer["text"].replace(path, filename),
            plain=None if failed else answer["plain"],
            diagnostics=diagnostics,
            # A failed pipeline prints its module and a reproducer.
            other="" if failed else printed.other,
            start=answer.get("start", ""),
            dumps=tuple(answer.get("dumps", ())),
            seconds=tuple(answer.get("seconds", ())),
        )

    def _with_way_out(self, diagnostic: Diagnostic) -> Diagnostic:
        """Says why -allow-unregistered-dialect did not help."""
        if "unregistered dialect" not in diagnostic.message:
            return diagnostic
        note = Diagnostic(
            severity="note",
            message=f"triton {self.library.version} gives no access to MLIR's "
            "-allow-unregistered-dialect; --host=none reads operations of any dialect",
        )
        return replace(diagnostic, notes=(*diagnostic.notes, note))

    def _again(self, crash: HostCrash, request: dict[str, Any]) -> HostCrash:
        """Runs a request that crashed pass by pass, to learn which of them it was."""
        try:
            self._ask(one_by_one=True, **request)
        except HostCrash as again:
            return again
        return HostCrash(str(crash), crash.diagnostics, None)

    def _unexplained(
        self, answer: dict[str, Any], other: str, filename: str, calls: Sequence[Call]
    ) -> Diagnostic:
        """The error for a failure about which the host printed no diagnostic."""
        version = self.library.version
        if answer["failed"] == "parse":
            message = f"triton {version} refuses the module: {answer['said']}"
        else:
            message = f"{_names(calls)} failed in triton {version}: {answer['said']}"
        notes = tuple(
            Diagnostic(severity="note", message=line)
            for line in other.splitlines()
            if "signal" in line
        )
        return Diagnostic(severity="error", message=message, filename=filename, notes=notes)

    def _crashed(
        self, crash: HostCrash, text: str, path: str, filename: str, calls: Sequence[Call]
    ) -> HostResult:
        guilty = [calls[crash.at]] if isinstance(crash.at, int) and calls else calls
        error = self._aborted(filename, guilty, str(crash).replace(path, filename))
        said = "".join(f"{diagnostic}\n" for diagnostic in crash.diagnostics if diagnostic.line)
        known = read_printed(said.replace(path, filename)).diagnostics
        return HostResult(
            text=None,
            plain=None,
            diagnostics=(*(_with_source(d, text, filename) for d in known), error),
            other="",
            start="",
            dumps=(),
            seconds=(),
        )

    def _aborted(self, filename: str, guilty: Sequence[Call], why: str) -> Diagnostic:
        work = f"running {_names(guilty)}" if guilty else "reading the module"
        return Diagnostic(
            severity="error",
            message=f"triton {self.library.version} aborted while {work}: {why}",
            filename=filename,
        )

    def _ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer to it.

        Raises:
            HostCrash: The child ended.
        """
        child = self._start()
        at: object = None
        try:
            assert child.stdin is not None  # asked for in _start
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # It died before; there will be no answer.
        for line in iter(self._answers.readline, ""):
            answer: dict[str, Any] = json.loads(line)
            if answer.keys() != {"at"}:
                return answer
            at = answer["at"]
        status = child.wait()
        said = self._said()
        self._end()
        raise HostCrash(_last_words(said, status), read_printed(said).diagnostics, at)

    def _said(self) -> str:
        self._printed.seek(0)
        text: str = self._printed.read().decode("utf-8", "replace")
        return text

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is not None:
            return self._child
        reader, writer = os.pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        environment = dict(os.environ)
        # The host reports errors only, unless it is asked for more.
        environment["MLIR_ENABLE_DIAGNOSTICS"] = "warnings,remarks"
        command = [sys.executable, "-I", "-S", "-X", "utf8", os.fspath(_WORKER)]
        try:
            self._child = subprocess.Popen(
                [*command, str(writer), os.fspath(self.library.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._printed,
                pass_fds=(writer,),
                env=environment,
            )
        finally:
            os.close(writer)
        self._answers = os.fdopen(reader, encoding="utf-8")
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # It died with a request unread.
                child.stdin.close()
        child.wait()
        self._answers.close()
        self._printed.close()


def _with_source(diagnostic: Diagnostic, text: str, filename: str) -> Diagnostic:
    """Adds the source line where the host printed none."""
    notes = tuple(_with_source(note, text, filename) for note in diagnostic.notes)
    line = diagnostic.source_line
    if line is None and diagnostic.filename == filename and diagnostic.line:
        lines = text.splitlines()
        line = lines[diagnostic.line - 1] if diagnostic.line <= len(lines) else None
    return replace(diagnostic, notes=notes, source_line=line)


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(f"'{call.name}'" for call in calls)


def _last_words(said: str, status: int) -> str:
    """One line about why the child ended."""
    telling = read_printed(said).last_words
    if not telling:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        spoken = [line for line in lines if not _NOT_SAID.match(line)]
        telling = spoken[-1] if spoken and len(spoken[-1]) < 500 else ""
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"{telling} ({how})" if telling else how
