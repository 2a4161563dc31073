"""Triton's library in a child process: parse, verify, run passes, print.

An assertion of the library ends the child, not us; its output becomes one error.  Importing this
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
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from triton_ext.errors import TritonExtError
from triton_ext.host.children import TemporaryFolder, command
from triton_ext.host.detect import HostError
from triton_ext.host.diagnostics import Diagnostic, read_printed
from triton_ext.host.named_files import refused_file
from triton_ext.strings import lines_of, quote, without_carriage_returns

__all__ = ["Call", "HostCrash", "HostLibrary", "HostProcess", "HostResult", "find_library"]

_WORKER = pathlib.Path(__file__).with_name("worker.py")
# A child that is idle ends within milliseconds once its standard input is closed.
_PATIENCE_SECONDS = 1.0
_NOT_SAID = re.compile(r"(?:Stack dump|PLEASE submit|#\d+ 0x|\s*#\d+ )")


@dataclass(slots=True)
class Progress:
    """Messages of a child before its answer.

    Attributes:
        at: Index of the pass that was running, or the adder that was called.
        states: The module in front of the first pass and behind each that is done.
        seconds: Time of each pass manager.
    """

    at: object = None
    states: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class HostCrash(TritonExtError):
    """The child process ended in the middle of a request; the text is its last output.

    Args:
        message: One line about why it ended.
        progress: The last messages about its progress.
        diagnostics: The diagnostics that it reported before.
        other: Its other output.
    """

    def __init__(
        self,
        message: str,
        progress: Progress,
        diagnostics: tuple[Diagnostic, ...],
        other: str = "",
    ) -> None:
        super().__init__(message)
        self.progress = progress
        self.diagnostics = diagnostics
        self.other = other


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
        arguments: The arguments behind the pass manager.
    """

    name: str
    path: str
    arguments: tuple[int | bool | str | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """Result of a run.

    Attributes:
        text: The module with its locations; ``None`` if there is an error.
        plain: The module without locations; ``None`` if there is an error.
        diagnostics: The host's diagnostics; they contain an error exactly if ``text`` is ``None``.
        other: Its other output.
        states: The module as it was read and after each pass, without locations, if asked for; of
            a run that failed or ended the child as far as it came.
        seconds: Time of each pass manager.
        without_notes: Whether the diagnostics are without their notes.
        failed: Index of the pass that failed alone; ``None`` if none did or it is not known which.
        left: The module that it left, if asked for; empty if there is none.
    """

    text: str | None
    plain: str | None
    diagnostics: tuple[Diagnostic, ...]
    other: str
    states: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    without_notes: bool = False
    failed: int | None = None
    left: str = ""


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
        log: The types of messages that passes log (``DEBUG_TYPE`` in LLVM), with commas; empty for
            all, ``None`` for none.
    """

    def __init__(self, library: HostLibrary, log: str | None = None) -> None:
        self.library = library
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.current_thread()
        self._requests = 0
        self._answers: Any = None
        self._printed: Any = None
        self._folder: TemporaryFolder | None = None

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
        """Returns the child's description of every adder (``worker.do_probe``).

        An adder that ends the process when it is called is left out of the next attempt and
        reported with its problem.
        """
        fatal: dict[str, str] = {}
        while True:
            try:
                adders: list[dict[str, Any]] = self._ask(Progress(), do="probe", skip=list(fatal))[
                    "adders"
                ]
            except HostCrash as crash:
                if not isinstance(crash.progress.at, str):
                    raise
                fatal[crash.progress.at] = str(crash)
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
        failed_state: bool = False,
        to_llvm_ir: bool = False,
    ) -> HostResult:
        """Parses and verifies a text, runs passes over it, prints it.

        Args:
            text: The module; carriage returns become what they are to MLIR.
            filename: Its name in diagnostics and in the locations of operations without one.
            calls: The passes, in order.
            allow_unregistered: Accept operations of dialects that the host does not have.
            one_by_one: Give each pass a pass manager of its own, and keep the module after each.
            failed_state: Keep the module that a failed pass left.
            to_llvm_ir: Return the LLVM IR that the module, of the LLVM dialect, stands for as its
                text.

        Raises:
            HostError: The child process cannot be started.
        """
        # MLIR ends a comment at one: without them all that reads the text agrees about comments.
        text = without_carriage_returns(text)
        refused = refused_file(text, filename)
        if refused is not None:
            return HostResult(
                text=None,
                plain=None,
                diagnostics=(_with_source(refused, text, filename),),
                other="",
            )
        if self._folder is None:
            try:
                self._folder = TemporaryFolder()
            except OSError as error:
                raise self._not_started(error) from error
        path = os.path.join(self._folder.name, "module.mlir")
        request = {
            "do": "run",
            "text": text,
            "path": path,
            "steps": [{"path": call.path, "arguments": call.arguments} for call in calls],
            "allow_unregistered": allow_unregistered,
            "failed_state": failed_state,
            "to_llvm_ir": to_llvm_ir,
        }
        progress = Progress()
        try:
            answer = self._ask(progress, one_by_one=one_by_one, **request)
        except HostCrash as crash:
            if len(calls) > 1 and not one_by_one:
                crash = self._again(crash, request)
            return self._crashed(crash, text, path, filename, calls)
        printed = read_printed(self._said())
        diagnostics = tuple(
            _with_source(_renamed(d, path, filename), text, filename) for d in printed.diagnostics
        )
        if answer.get("unregistered_refused"):
            diagnostics = tuple(self._with_way_out(d) for d in diagnostics)
        failed = answer["failed"] is not None
        index = answer.get("index") if one_by_one or len(calls) == 1 else None
        if failed and printed.last_words:
            # It survived, but what it was doing is as unfinished as after an abort.
            guilty = calls if index is None else calls[index : index + 1]
            diagnostics = (*diagnostics, self._aborted(filename, guilty, printed.last_words))
        elif failed and not any(d.severity == "error" for d in diagnostics):
            diagnostics = (*diagnostics, self._unexplained(answer, printed.other, filename, calls))
        return HostResult(
            text=None if failed else answer["text"].replace(quote(path), quote(filename)),
            plain=None if failed else answer["plain"],
            diagnostics=diagnostics,
            # A failed pipeline prints its module and a reproducer, behind its log.
            other="" if failed and self._log is None else printed.other.replace(path, filename),
            states=tuple(progress.states),
            seconds=tuple(progress.seconds),
            without_notes=not answer.get("notes", True),
            failed=index,
            left=answer.get("left", ""),
        )

    def _with_way_out(self, diagnostic: Diagnostic) -> Diagnostic:
        """Adds a note that says why -allow-unregistered-dialect did not help."""
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
            self._ask(Progress(), one_by_one=True, **request)
        except HostCrash as again:
            return again
        return HostCrash(str(crash), Progress(), crash.diagnostics, crash.other)

    def _unexplained(
        self, answer: dict[str, Any], other: str, filename: str, calls: Sequence[Call]
    ) -> Diagnostic:
        """The error for a failure about which the host printed no diagnostic."""
        version = self.library.version
        if answer["failed"] == "parse":
            message = f"triton {version} refuses the module: {answer['said']}"
        elif answer["failed"] == "translation":
            message = f"triton {version} makes no LLVM IR of the module: {answer['said']}"
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
        at = crash.progress.at
        index = at if isinstance(at, int) and at < len(calls) else None
        guilty = calls if index is None else calls[index : index + 1]
        error = self._aborted(filename, guilty, str(crash).replace(path, filename))
        known = (_renamed(d, path, filename) for d in crash.diagnostics if d.line)
        return HostResult(
            text=None,
            plain=None,
            diagnostics=(*(_with_source(d, text, filename) for d in known), error),
            other=crash.other.replace(path, filename) if self._log is not None else "",
            states=tuple(crash.progress.states),
            seconds=tuple(crash.progress.seconds),
        )

    def _aborted(self, filename: str, guilty: Sequence[Call], why: str) -> Diagnostic:
        work = f"running {_names(guilty)}" if guilty else "reading the module"
        return Diagnostic(
            severity="error",
            message=f"triton {self.library.version} aborted while {work}: {why}",
            filename=filename,
        )

    def _ask(self, progress: Progress, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer to it.

        Args:
            progress: Collects the messages before the answer.
            request: Its fields.

        Raises:
            HostCrash: The child ended, or answered another request.
        """
        child = self._start()
        self._requests += 1
        try:
            return self._exchange(child, progress, {"id": self._requests, **request})
        except BaseException:
            # After Ctrl-C the next request must not get this answer.
            self._kill()
            raise

    def _exchange(
        self, child: subprocess.Popen[bytes], progress: Progress, request: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            assert child.stdin is not None  # asked for in _start
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # It died before; there will be no answer.
        for line in iter(self._answers.readline, ""):
            if not line.endswith("\n"):
                break  # It died while it said this.
            message: dict[str, Any] = json.loads(line)
            if message["id"] != request["id"]:
                why = f"it answered request {message['id']} instead of {request['id']}"
                raise HostCrash(why, progress, ())
            if "answer" in message:
                answer: dict[str, Any] = message["answer"]
                return answer
            progress.at = message.get("at", progress.at)
            progress.states += [message["state"]] if "state" in message else []
            progress.seconds += [message["seconds"]] if "seconds" in message else []
        # One that lives on without answers may wait for a request.
        status = _status_of(child)
        said = self._said()
        printed = read_printed(said)
        raise HostCrash(_last_words(said, status), progress, printed.diagnostics, printed.other)

    def _said(self) -> str:
        self._printed.seek(0)
        text: str = self._printed.read().decode("utf-8", "replace")
        return text

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is not None and not self._thread.is_alive():
            self._kill()  # It ends with the thread that started it, now or in a moment.
        elif self._child is not None and self._child.poll() is not None:
            self._end()
        if self._child is None:
            try:
                self._child, self._thread = self._started(), threading.current_thread()
            except OSError as error:
                raise self._not_started(error) from error
        return self._child

    def _not_started(self, error: OSError) -> HostError:
        return HostError(f"triton {self.library.version} cannot be started: {error}")

    def _started(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        # The host reports errors only, unless it is asked for more.
        environment["MLIR_ENABLE_DIAGNOSTICS"] = "warnings,remarks"
        if self._log == "":
            environment["TRITON_ENABLE_LLVM_DEBUG"] = "1"
        elif self._log is not None:
            environment["TRITON_LLVM_DEBUG_ONLY"] = self._log
        options = ("-I", "-S", "-X", "utf8")
        with contextlib.ExitStack() as opened:
            printed = opened.enter_context(tempfile.TemporaryFile())
            reader, writer = os.pipe()
            answers = opened.enter_context(os.fdopen(reader, encoding="utf-8"))
            try:
                child = subprocess.Popen(
                    command(
                        os.fspath(_WORKER),
                        str(writer),
                        os.fspath(self.library.path),
                        options=options,
                    ),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=printed,
                    pass_fds=(writer,),
                    env=environment,
                )
            finally:
                os.close(writer)
            opened.pop_all()  # Closed by _end.
        self._answers, self._printed = answers, printed
        return child

    def _kill(self) -> None:
        """Ends the child at once, whatever it is doing."""
        if self._child is not None:
            self._child.kill()
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        _status_of(child)
        self._answers.close()
        self._printed.close()


def _status_of(child: subprocess.Popen[bytes]) -> int:
    """Closes the standard input of a child, ends it if it goes on, and returns its status."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # It died with a request unread.
            child.stdin.close()
    try:
        return child.wait(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _renamed(diagnostic: Diagnostic, path: str, filename: str) -> Diagnostic:
    """Puts the user's name of the input for that of the file that the host read."""
    return replace(
        diagnostic,
        filename=diagnostic.filename.replace(path, filename),
        message=diagnostic.message.replace(path, filename),
        notes=tuple(_renamed(note, path, filename) for note in diagnostic.notes),
    )


def _with_source(diagnostic: Diagnostic, text: str, filename: str) -> Diagnostic:
    """Adds the source line where the host printed none."""
    notes = tuple(_with_source(note, text, filename) for note in diagnostic.notes)
    line = diagnostic.source_line
    if line is None and diagnostic.filename == filename and diagnostic.line:
        lines = lines_of(text)
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
