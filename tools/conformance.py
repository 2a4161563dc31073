"""Runs upstream's lit files, unmodified, with triton-ext's triton-opt on stock Triton.

    python tools/conformance.py CHECKOUT                 # with the Triton that is installed here
    python3 tools/conformance.py CHECKOUT --host 3.9.0   # in an environment that is made for it
    python3 tools/conformance.py CHECKOUT --write        # all releases, and docs/conformance.md

CHECKOUT is a checkout of Triton or of a fork of it; its lit files are those under ``test``, or all
of them where there is no such folder.  Every file that names ``triton-opt`` runs once with each
pass provider, and every module in it is given to Triton and to triton-ext.  One verdict a file is
printed, with what it rests on; it comes from these runs, except for the deviations that
``conformance_deviations.py`` lists, which are run too.

The exit status is 1 if a file passes with Triton's passes alone, or fails where only passes of
triton-ext can run it, or triton-ext differs about a module that Triton reads; 2 where nothing can
be run.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, NoReturn

from conformance_deviations import DEVIATIONS, Deviation, with_deviations
from environment import ROOT, EnvironmentProblem, environment_for, say

if TYPE_CHECKING:
    from conformance_runs import LitFile, LitResult, ModuleResult

PAGE = ROOT / "docs" / "conformance.md"
HOSTS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
PROVIDERS = ("auto", "host", "ext")
BEGIN, END = "<!-- made by tools/conformance.py -->", "<!-- end -->"

#: Verdicts in the order of the tables, with what they mean.
PASSES = "passes"
DEVIATES = "deviates as listed"
HOST_ONLY = "passes with the host's passes only"
NO_PASS = "the host lacks a pass"
NO_TOOL = "needs another tool"
OTHER_SYNTAX = "another release's syntax"
FAILS_WITH_BOTH = "fails with the host's passes too"
FAILS = "fails"
NOT_RUN = "asks for what is not there"
TOO_LONG = "ran out of time"
NO_RUN_LINE = "has no RUN line"
MEANINGS: Mapping[str, str] = {
    PASSES: "with `--pass-provider=auto`",
    DEVIATES: "passes with the lines below changed, where our result differs on purpose",
    HOST_ONLY: "a fault of ours",
    NO_PASS: "no binding of this wheel adds a pass of the `RUN` line, or one with its options",
    NO_TOOL: "a program that no wheel has, such as LLVM's `opt`",
    OTHER_SYNTAX: "this release refuses to read a module in which no error is expected",
    FAILS_WITH_BOTH: "this release's own passes give another result than the checkout's",
    FAILS: "the host cannot run it, and we fail",
    NOT_RUN: "its `REQUIRES` line",
    TOO_LONG: "stopped at the time limit",
    NO_RUN_LINE: "nothing to run",
}
#: Seconds: a day.
_LONGEST = 24 * 60 * 60
#: Verdicts that are faults of triton-ext.
FAULTS = frozenset({HOST_ONLY, FAILS})

_NO_PASS = re.compile(
    r"there is no pass '[^']*'|cannot run '[^']*' with [^:\n]*|"
    r"'[^']*' has no option '[^']*'"
)
# Where a run wrote its files.
_FOLDERS = re.compile(r"[^\s'\"]*/triton-ext-conformance-[^/\s]*/(?:[^\s:'\"]*/)?")
_NO_TOOL = re.compile(r"([^'\s]+)'?: command not found")
_TELLING = (
    re.compile(r"triton-opt: error: [^\n]*"),
    re.compile(r"\S+: error: (?:CHECK|[A-Z][\w-]*)[^\n]*: [^\n]*"),
    re.compile(r"[^\s|]\S*:\d+:\d+: error: [^\n]*"),
    re.compile(r"[^\n]*aborted while[^\n]*"),
    re.compile(r"[^\n]*error: [^\n]*"),
)


class NoRun(Exception):
    """Nothing can be run; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one file.

    Attributes:
        file: Its path in the folder of tests.
        kind: One of :data:`MEANINGS`.
        detail: What it rests on, one line.
        passes: The providers with which it passes.
    """

    file: str
    kind: str
    detail: str
    passes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run with one Triton.

    Attributes:
        triton: Its release.
        verdicts: One for each file.
        modules: Number of modules.
        read: Those that Triton reads and verifies.
        problems: Place and problem of each of these that triton-ext refuses or prints otherwise.
        others: Number of files that do not name ``triton-opt``.
    """

    triton: str
    verdicts: tuple[Verdict, ...]
    modules: int
    read: int
    problems: tuple[str, ...]
    others: int

    @property
    def counts(self) -> Counter[str]:
        """Number of files by verdict."""
        return Counter(verdict.kind for verdict in self.verdicts)

    @property
    def is_good(self) -> bool:
        """Returns whether there is no fault of triton-ext."""
        return not self.problems and not any(v.kind in FAULTS for v in self.verdicts)


def judge(
    file: LitFile,
    results: Mapping[str, LitResult],
    modules: Sequence[ModuleResult],
    changed: LitResult | None,
    root: pathlib.Path,
) -> Verdict:
    """Derives the verdict about a file from its runs.

    Args:
        file: The file.
        results: How it ended with each provider.
        modules: What was said about its modules.
        changed: How it ended with its listed lines changed; ``None`` where none is listed.
        root: The folder of tests.
    """
    passes = tuple(p for p in PROVIDERS if p in results and results[p].code == "PASS")

    def verdict(kind: str, detail: str = "") -> Verdict:
        return Verdict(file=file.name, kind=kind, detail=detail, passes=passes)

    if not file.run_lines:
        return verdict(NO_RUN_LINE)
    auto = results["auto"]
    if "auto" in passes:
        return verdict(PASSES)
    if auto.code == "TIMEOUT":
        return verdict(TOO_LONG)
    if auto.code == "UNSUPPORTED":
        needs = re.search(r"REQUIRES:[ \t]*([^\n]*)", file.text)
        return verdict(NOT_RUN, needs[1] if needs is not None else "")
    if changed is not None and changed.code == "PASS":
        return verdict(DEVIATES)
    said = told(auto.output, root)
    if "host" in passes:
        return verdict(HOST_ONLY, said)
    missing = _NO_TOOL.search(auto.output)
    if missing is not None:
        return verdict(NO_TOOL, missing[1])
    missing = _NO_PASS.search(auto.output)
    if missing is not None:
        return verdict(NO_PASS, missing[0])
    refused = [m for m in modules if m.refusal and not m.expects_errors]
    if refused:
        return verdict(OTHER_SYNTAX, f"line {refused[0].line}: {refused[0].refusal}")
    host_runs_it = "host" in results and _NO_PASS.search(results["host"].output) is None
    return verdict(FAILS_WITH_BOTH if host_runs_it else FAILS, said)


def told(output: str, root: pathlib.Path) -> str:
    """Returns the one line of a failed test's output that says most."""
    output = _FOLDERS.sub("", output.replace(f"{root}{os.sep}", ""))
    for pattern in _TELLING:
        match = pattern.search(output)
        if match is not None:
            line = match[0].lstrip("# |").strip()
            return line if len(line) < 200 else f"{line[:200]}..."
    return ""


def run_here(
    root: pathlib.Path, *, jobs: int, time_limit: int, only: str, providers: Sequence[str]
) -> Report:
    """Runs a checkout with the Triton of this environment.

    Args:
        root: The folder of tests.
        jobs: How many tests run at a time.
        time_limit: Seconds that a test, or a module, may take.
        only: A part of the names of the files to run; empty for all.
        providers: With which passes; ``auto`` always.
    """
    from conformance_runs import ask_about_modules, copy_with, lit_files, run_lit
    from triton_ext.host.process import find_library

    files = [file for file in lit_files(root) if only in file.name]
    ours = [file for file in files if file.uses_triton_opt or not file.run_lines]
    names = [file.name for file in ours if file.run_lines]
    results: dict[str, dict[str, LitResult]] = {}
    for provider in PROVIDERS:
        if provider == "auto" or provider in providers:
            say(f"== {len(names)} files with --pass-provider={provider}")
            results[provider] = run_lit(
                root, provider, jobs=jobs, time_limit=time_limit, names=names
            )
    texts = {file.name: with_deviations(file.name, file.text) for file in ours}
    with tempfile.TemporaryDirectory(prefix="triton-ext-conformance-") as folder:
        copy = pathlib.Path(folder, "test")
        listed = {name: text for name, (text, found) in texts.items() if found}
        copy_with(root, copy, listed)
        changed = run_lit(copy, "auto", jobs=jobs, time_limit=time_limit, names=list(listed))
    say(f"== modules of {len(ours)} files")
    modules = ask_about_modules(ours, time_limit=time_limit)
    of_file: dict[str, list[ModuleResult]] = {}
    for module in modules:
        of_file.setdefault(module.name, []).append(module)
    return Report(
        triton=find_library().version,
        verdicts=tuple(
            judge(
                file,
                {p: found[file.name] for p, found in results.items() if file.name in found},
                of_file.get(file.name, ()),
                changed.get(file.name),
                root,
            )
            for file in ours
        ),
        modules=len(modules),
        read=sum(module.is_read for module in modules),
        problems=tuple(f"{m.name}:{m.line}: {m.problem}" for m in modules if m.problem),
        others=len(files) - len(ours),
    )


def run_in_environment(release: str, arguments: Sequence[str]) -> Report:
    """Runs a checkout in the environment of a release, which is made or brought up to date.

    Args:
        release: The release of Triton.
        arguments: The command line, without ``--host`` and ``--write``.

    Raises:
        EnvironmentProblem: The environment cannot be made.
    """
    place = environment_for(release)
    place.prepare()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        status = place.run("python", __file__, *arguments, "--json", file.name)
        text = pathlib.Path(file.name).read_text()
        if status not in (0, 1) or not text:
            raise EnvironmentProblem(f"the run with triton {release} ended with status {status}")
        return read_report(json.loads(text))


def read_report(data: dict[str, object]) -> Report:
    """Makes a report of what :func:`dataclasses.asdict` made of one."""
    verdicts = data.pop("verdicts")
    problems = data.pop("problems")
    assert isinstance(verdicts, list)
    assert isinstance(problems, list)
    read = tuple(Verdict(**{**verdict, "passes": tuple(verdict["passes"])}) for verdict in verdicts)
    return Report(verdicts=read, problems=tuple(problems), **data)  # type: ignore[arg-type]


def print_report(report: Report) -> None:
    """Prints a table with one verdict a file, counts, and the modules that we differ about."""
    say("")
    width = max((len(verdict.file) for verdict in report.verdicts), default=0)
    for verdict in report.verdicts:
        detail = f": {verdict.detail}" if verdict.detail else ""
        say(f"{verdict.file:{width}}  {verdict.kind}{detail}")
    say("")
    for kind in MEANINGS:
        if report.counts[kind]:
            say(f"{report.counts[kind]:5}  {kind}")
    if report.others:
        say(f"{report.others:5}  do not name triton-opt, and were not run")
    for provider in PROVIDERS:
        count = sum(provider in verdict.passes for verdict in report.verdicts)
        say(f"triton {report.triton}, --pass-provider={provider}: {count} pass")
    for problem in report.problems:
        say(f"module {problem}")
    good = report.read - len(report.problems)
    say(
        f"modules: {report.modules}, of which triton {report.triton} reads {report.read}; "
        f"triton-ext accepts {good} of these and prints them byte for byte"
    )


def page(reports: Sequence[Report], checkout: str, root: pathlib.Path) -> str:
    """Returns the part of the page that is made.

    Args:
        reports: One for each release.
        checkout: What was run.
        root: The folder of tests.
    """
    releases = [report.triton for report in reports]
    rows = [
        f"Run on {date.today()}, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, no GPU: {checkout}.",
        "",
        f"| files | {' | '.join(releases)} | meaning |",
        f"| --- |{' --- |' * (len(releases) + 1)}",
    ]
    for kind, meaning in MEANINGS.items():
        counts = [report.counts[kind] for report in reports]
        if any(counts):
            rows.append(f"| {kind} | {' | '.join(map(str, counts))} | {meaning} |")
    total = [str(len(report.verdicts)) for report in reports]
    rows.append(f"| all that name `triton-opt` | {' | '.join(total)} | |")
    rows += ["", f"| modules | {' | '.join(releases)} |", f"| --- |{' --- |' * len(releases)}"]
    read = [report.read for report in reports]
    rows.append(f"| that this Triton reads | {' | '.join(map(str, read))} |")
    good = [str(report.read - len(report.problems)) for report in reports]
    rows.append(f"| accepted by us and printed byte for byte | {' | '.join(good)} |")
    rows += ["", "## Where our passes differ on purpose", ""]
    rows += _deviations(root)
    last = reports[-1]
    rows += ["", f"## Files that do not pass with Triton {last.triton}", ""]
    for kind in MEANINGS:
        found = [verdict for verdict in last.verdicts if verdict.kind == kind != PASSES]
        if found:
            rows += [f"**{kind[0].upper()}{kind[1:]}** ({len(found)})", ""]
            rows += [_row(verdict) for verdict in found] + [""]
    return "\n".join(rows).rstrip("\n")


def _row(verdict: Verdict) -> str:
    return f"- `{verdict.file}`" + (f": `{verdict.detail}`" if verdict.detail else "")


def _deviations(root: pathlib.Path) -> list[str]:
    """A row for each listed difference, with the lines that it is about."""
    rows = ["| file, lines | upstream | ours | why | proof |", "| --- | --- | --- | --- | --- |"]
    for deviation in DEVIATIONS:
        file = root / deviation.file
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        lines = [
            str(line)
            for line, found in with_deviations(deviation.file, text)[1]
            if found is deviation
        ]
        rows.append(_deviation_row(deviation, ", ".join(lines)))
    return rows if DEVIATIONS else ["None."]


def _deviation_row(deviation: Deviation, lines: str) -> str:
    cells = (
        f"`{deviation.file}`, {lines}",
        f"`{deviation.upstream}`",
        f"`{deviation.ours}`",
        deviation.reason,
        deviation.proof,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def folder_of_tests(checkout: pathlib.Path) -> pathlib.Path:
    """Returns the folder of tests of a checkout.

    Raises:
        NoRun: There are no lit files.
        OSError: A folder cannot be read.
    """
    if not checkout.is_dir():
        raise NoRun(f"expected a checkout of Triton, '{checkout}' is no folder")
    root = (checkout / "test" if (checkout / "test").is_dir() else checkout).resolve()
    # Unlike rglob, this does not pass over a folder that cannot be read.
    names = [name for _, _, found in os.walk(root, onerror=_raise) for name in found]
    if not any(name.endswith(".mlir") for name in names):
        raise NoRun(f"expected a checkout of Triton with lit files (*.mlir), '{root}' has none")
    return root


def _raise(error: OSError) -> NoReturn:
    raise error


def name_of(checkout: pathlib.Path) -> str:
    """Returns the repository and the commit of a checkout, as far as git knows them."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("log", "-1", "--format=%h (%s, %as)")
    return commit or checkout.resolve().name


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument(
        "--host", action="append", type=_release, help="run in the environment of this release"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"run {', '.join(HOSTS)} and write {PAGE.name}"
    )
    parser.add_argument("--only", default="", help="files whose names hold this")
    parser.add_argument("--provider", action="append", choices=PROVIDERS, help="instead of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=int, default=120, help="seconds for one test")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    arguments = parser.parse_args()
    if arguments.jobs < 1 or not 1 <= arguments.time_limit <= _LONGEST:
        parser.error(f"--jobs and --time-limit are at least 1, and a test may take {_LONGEST} s")
    if arguments.json is not None and (arguments.write or len(arguments.host or ()) > 1):
        parser.error("--json keeps the results of one release; give one --host and no --write")
    try:
        return _run(arguments)
    except (EnvironmentProblem, NoRun, OSError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2


def _release(text: str) -> str:
    """Returns the release of Triton that an option names."""
    if re.fullmatch(r"\d+\.\d+\.\d+", text) is None:
        raise argparse.ArgumentTypeError(f"expected a release such as {HOSTS[-1]}, found {text!r}")
    return text


def _run(arguments: argparse.Namespace) -> int:
    root = folder_of_tests(arguments.checkout)
    if arguments.json is not None:
        arguments.json.open("a").close()  # A run takes minutes; that it can be kept is known now.
    hosts = HOSTS if arguments.write else tuple(arguments.host or ())
    if not hosts:
        return _run_here(root, arguments)
    words = [str(arguments.checkout.resolve()), "--only", arguments.only]
    words += ["--jobs", str(arguments.jobs), "--time-limit", str(arguments.time_limit)]
    words += [word for provider in arguments.provider or () for word in ("--provider", provider)]
    reports = [run_in_environment(host, words) for host in hosts]
    _keep(reports[0], arguments.json)
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        made = page(reports, name_of(arguments.checkout), root)
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}")
    return 0 if all(report.is_good for report in reports) else 1


def _run_here(root: pathlib.Path, arguments: argparse.Namespace) -> int:
    missing = [n for n in ("triton_ext", "triton", "lit", "psutil") if not _is_there(n)]
    if missing:
        raise NoRun(
            f"{', '.join(missing)} cannot be imported by {sys.executable}; --host 3.9.0 makes an "
            "environment that has all"
        )
    report = run_here(
        root,
        jobs=arguments.jobs,
        time_limit=arguments.time_limit,
        only=arguments.only,
        providers=arguments.provider or PROVIDERS,
    )
    if not report.verdicts:
        raise NoRun(f"no lit file's name holds '{arguments.only}'")
    print_report(report)
    _keep(report, arguments.json)
    return 0 if report.is_good else 1


def _keep(report: Report, path: pathlib.Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    sys.exit(main())
