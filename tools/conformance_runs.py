"""Runs the lit files of a checkout and asks Triton and triton-ext about each of their modules.

Everything here runs in an environment that has triton-ext, one Triton and lit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_ext.errors import TritonExtError
from triton_ext.host.process import HostProcess, find_library
from triton_ext.ir import parse
from triton_ext.tools.ir_text import split
from triton_ext.tools.split_file import parts_of

__all__ = ["LitFile", "LitResult", "ModuleResult", "ask_about_modules", "lit_files", "run_lit"]

_SUFFIXES = (".mlir", ".ll")
_EXCLUDED = ("Inputs", "Examples")
_RUN = re.compile(r"RUN:[ \t]*([^\n]*)")
_MARKER = re.compile(r"-split-input-file(?:=(\S+))?")

# lit finds its tests from this file; nothing is written into the checkout, and its own lit.cfg.py,
# which asks for a build of LLVM, is not read.
_CONFIG = """
import lit.formats
config.name = "conformance"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = {suffixes!r}
config.excludes = {excluded!r}
config.test_source_root = {root!r}
config.test_exec_root = {output!r}
config.environment.update({environment!r})
config.substitutions += {substitutions!r}
"""


@dataclass(frozen=True, slots=True)
class LitFile:
    """A test of the checkout.

    Attributes:
        name: Its path in the folder of tests.
        text: What stands in it.
    """

    name: str
    text: str

    @property
    def run_lines(self) -> str:
        """The commands after ``RUN:``, joined."""
        return " ".join(_RUN.findall(self.text))

    @property
    def uses_triton_opt(self) -> bool:
        """Returns whether a ``RUN`` line names ``triton-opt``."""
        return re.search(r"\btriton-opt\b", self.run_lines) is not None

    def modules(self) -> Iterator[tuple[int, str]]:
        """Yields the modules that the file is split into, with the number of lines before each."""
        parts = [(0, self.text)]
        if "split-file" in self.run_lines.replace("split-input-file", ""):
            # A file without parts, which split-file refuses, is one module.
            with contextlib.suppress(TritonExtError):
                parts = [
                    (part.lines_before, part.text.decode())
                    for part in parts_of(self.text.encode(), self.name)
                ]
        marker = _MARKER.search(self.run_lines)
        for first, text in parts:
            if marker is None:
                yield first, text
                continue
            for offset, module in split(text, marker[1] or "// -----"):
                yield first + offset, module


@dataclass(frozen=True, slots=True)
class LitResult:
    """The end of one test.

    Attributes:
        code: lit's word: ``PASS``, ``FAIL``, ``UNRESOLVED``, ``TIMEOUT``, ``UNSUPPORTED``.
        output: What lit printed about it.
    """

    code: str
    output: str


@dataclass(frozen=True, slots=True)
class ModuleResult:
    """The answers of Triton and triton-ext to one module.

    Attributes:
        name: The file.
        line: Where the module starts in it.
        is_read: Whether Triton reads and verifies it.
        expects_errors: Whether the test expects an error in it.
        refusal: Triton's first error; empty where there is none.
        problem: Why triton-ext differs: it refuses what Triton reads, or prints other bytes; empty
            where it does not.
    """

    name: str
    line: int
    is_read: bool
    expects_errors: bool
    refusal: str
    problem: str


def lit_files(root: pathlib.Path) -> list[LitFile]:
    """Returns the lit files of a folder, by name.

    Args:
        root: The folder of tests.
    """
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.suffix in _SUFFIXES and path.is_file() and not set(parts) & set(_EXCLUDED):
            text = path.read_text(encoding="utf-8", errors="replace")
            found.append(LitFile("/".join(parts), text))
    return found


def run_lit(
    root: pathlib.Path, provider: str, *, jobs: int, time_limit: int, names: Sequence[str]
) -> dict[str, LitResult]:
    """Runs tests as they are with the passes of one provider.

    Args:
        root: The folder of tests.
        provider: ``auto``, ``host`` or ``ext``.
        jobs: How many run at a time.
        time_limit: Seconds that one may take.
        names: The tests.

    Returns:
        The results by name.
    """
    if not names:
        return {}
    binaries = pathlib.Path(sys.executable).parent
    wheel = find_library().path.parent.parent
    path = os.pathsep.join([str(binaries), str(wheel), os.environ.get("PATH", "")])
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    tool = f"{binaries / 'triton-opt'} --pass-provider={provider}"
    with tempfile.TemporaryDirectory(prefix="triton-ext-conformance-") as folder:
        config = _CONFIG.format(
            suffixes=list(_SUFFIXES),
            excluded=list(_EXCLUDED),
            root=str(root),
            output=os.path.join(folder, "output"),
            environment={**kept, "PATH": path, "FILECHECK_OPTS": "--enable-var-scope"},
            substitutions=[
                (r"\btriton-opt\b", tool),
                ("%PYTHON", sys.executable),
                # Behind "%dbg(RUN: at line 1) ": lit's shell has no assignments before a command.
                (r"(?<=\d\)) +(?=[A-Z_]+=)", " env "),
            ],
        )
        pathlib.Path(folder, "conformance.cfg.py").write_text(config)
        chosen = "|".join(re.escape(f" :: {name}") + "$" for name in names)
        report = os.path.join(folder, "report.json")
        command = [
            *(sys.executable, "-c", "import lit.main; lit.main.main()"),
            *("--config-prefix", "conformance", "-q", "--ignore-fail", "-j", str(jobs)),
            *("--timeout", str(time_limit), "--filter", chosen, "--output", report, folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not os.path.exists(report):
            raise RuntimeError(f"lit did not run:\n{done.stdout}{done.stderr}")
        tests = json.loads(pathlib.Path(report).read_text())["tests"]
    return {
        test["name"].partition(" :: ")[2]: LitResult(test["code"], test["output"]) for test in tests
    }


def ask_about_modules(files: Sequence[LitFile], *, time_limit: int) -> list[ModuleResult]:
    """Asks Triton and triton-ext about every module of some files.

    Args:
        files: The files.
        time_limit: Seconds that one module may take.
    """
    found = []
    with HostProcess(find_library()) as host:
        for file in files:
            unregistered = "allow-unregistered-dialect" in file.run_lines
            checks = "verify-diagnostics" in file.run_lines
            for first, text in file.modules():
                try:
                    with _limited(time_limit):
                        read = host.run(text, file.name, allow_unregistered=unregistered)
                        is_read, refusal = read.text is not None, ""
                        if not is_read:
                            errors = [d for d in read.diagnostics if d.severity == "error"]
                            refusal = errors[0].message.partition("\n")[0] if errors else ""
                        problem = _difference(text) if is_read else ""
                except TimeoutError:
                    is_read, refusal, problem = False, "", f"takes more than {time_limit} s"
                expects = checks and "expected-error" in text
                found.append(ModuleResult(file.name, first + 1, is_read, expects, refusal, problem))
    return found


def _difference(text: str) -> str:
    """Says why triton-ext differs about a module that Triton reads; nothing if it does not."""
    try:
        module = parse(text)
        if str(module) != text:
            return "is printed otherwise than it was read"
        module.verify()
    except TritonExtError as error:
        return str(error).partition("\n")[0]
    except Exception as error:  # whatever it is, it is reported and the next module is asked about
        return f"{type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raises :class:`TimeoutError` inside of the block when the time is over."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def copy_with(root: pathlib.Path, folder: pathlib.Path, texts: dict[str, str]) -> None:
    """Copies the folder of tests with other texts for some files, which alone are tests there."""
    shutil.copytree(
        root, folder, ignore=lambda path, names: [n for n in names if n.endswith(_SUFFIXES)]
    )
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
