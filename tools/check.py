"""Runs checks over the installed package: what ``make test`` and its like do.

Each Triton has an environment of its own, ``.venv/test-<release>``, with the package built and
installed as a user would.  A failing check does not hide the ones behind it; the exit status is
non-zero if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace

from environment import ROOT, Environment, EnvironmentProblem, environment_for, say

# The release that the static checks run with, once.
MAIN_HOST = "3.9.0"

# Tests for releases that differ too little from their neighbour to run all of pytest in every CI
# run: those of the compiler's input and output.  make nightly runs all.
_PART = {
    "3.7.0": {
        "pytest": tuple(
            f"unittest/{name}"
            for name in (
                *("host", "language", "llvm_ir", "nvidia", "passes"),
                *("test_foreign_hooks.py", "test_no_trace.py", "test_plugin.py"),
                *("test_support.py", "tools/test_doctor.py", "tools/test_host_passes.py"),
                "tools/test_selftest.py",
            )
        ),
        "pytest-interpreted": ("unittest/language/interpreter_load_im2col.py",),
    },
}
# Tests about other extensions beside the package.
_BESIDE = (
    "test_beside_utlx.py",
    "test_foreign_hooks.py",
    "test_plugin.py",
    "tools/test_selftest.py",
)

_C_TESTS = "unittest/nvidia/c"
# Seconds on two cores, until an environment has a record of its own.
_RECORD = "seconds.json"
_SECONDS = {
    "mypy": 30.0,
    "pytest": 580.0,
    "pytest-interpreted": 140.0,
    "pytest-slow": 1800.0,
    "pytest-quick": 45.0,
    "pytest-kernels": 10.0,
    "fuzz": 600.0,
    "lit": 60.0,
    "docs": 20.0,
    "c-test": 30.0,
}
# A file's tests stay together: their fixtures compile what all of them look at.  Files start in the
# order that unittest/host_plan.py gives them.
_WORKERS = str(min(os.cpu_count() or 1, 8))
_PYTEST = (
    *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=20"),
    *("-n", _WORKERS, "--dist", "loadfile", "--no-loadscope-reorder"),
)
_PYTEST_VARIABLES = {
    "TRITON_EXT_TEST_INSTALLED": "1",
    # The interpreter multiplies small matrices: threads only wait for each other.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Tests that run kernels in Triton's interpreter, which is chosen before kernels are defined.
_CONFORMANCE = "unittest/ops/test_conformance.py"
_INTERPRETED = (
    _CONFORMANCE,
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("unittest/*/interpreter_*.py")),
)
_INTERPRETED_VARIABLES = {**_PYTEST_VARIABLES, "TRITON_INTERPRET": "1"}
# make quick: what runs in seconds and needs no kernel, and one problem of each family of kernels.
_QUICK = tuple(f"unittest/{name}" for name in ("ir", "analysis", "passes", "llvm_ir", "tools"))
_ONE_PER_FAMILY = (_CONFORMANCE, "-k", "test_dtype and -float16]")
_DOCS_VARIABLES = {
    "NO_MKDOCS_2_WARNING": "1",  # a notice of mkdocs-material about its successor
    "TRITON_INTERPRET": "0",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One command.

    Attributes:
        name: As given to ``--only``.
        command: Program and arguments, run in the root of the tree.
        every_host: Whether ``make test-hosts`` runs it too.
        nightly: Whether only ``make nightly`` runs it.
        asked: Whether it runs only where ``--only`` names it.
        quick: Whether ``make quick`` runs it.
        variables: More environment variables.
    """

    name: str
    command: tuple[str, ...]
    every_host: bool = False
    nightly: bool = False
    asked: bool = False
    quick: bool = False
    variables: dict[str, str] = field(default_factory=dict)


CHECKS: tuple[Check, ...] = (
    Check("ruff-check", ("ruff", "check", "."), quick=True),
    Check("ruff-format", ("ruff", "format", "--check", "."), quick=True),
    Check("mypy", ("mypy", "-p", "triton_ext")),
    Check("mypy-tools", ("mypy", "tools")),
    Check("regexes", ("python", "tools/check_regexes.py")),
    Check("prose", ("python", "tools/check_prose.py"), quick=True),
    Check(
        "pytest",
        (*_PYTEST, "unittest"),
        every_host=True,
        variables=_PYTEST_VARIABLES,
    ),
    Check(
        "pytest-interpreted",
        (*_PYTEST, *_INTERPRETED),
        every_host=True,
        variables=_INTERPRETED_VARIABLES,
    ),
    Check(
        "pytest-slow",
        (*_PYTEST, "-m", "slow", "unittest"),
        nightly=True,
        variables={**_PYTEST_VARIABLES, "TRITON_EXT_NIGHTLY": "1"},
    ),
    Check(
        "pytest-beside",
        (*_PYTEST, *(f"unittest/{name}" for name in _BESIDE)),
        asked=True,
        variables=_PYTEST_VARIABLES,
    ),
    Check(
        "pytest-quick",
        (*_PYTEST, "-m", "not slow and not gpu", *_QUICK),
        asked=True,
        quick=True,
        variables=_PYTEST_VARIABLES,
    ),
    Check(
        "pytest-kernels",
        (*_PYTEST, *_ONE_PER_FAMILY),
        asked=True,
        quick=True,
        variables=_INTERPRETED_VARIABLES,
    ),
    Check("fuzz", ("python", "tools/fuzz.py"), nightly=True),
    Check("lit", ("lit", "-v", "test"), every_host=True),
    Check("docs", ("mkdocs", "build", "--strict", "--quiet"), variables=_DOCS_VARIABLES),
    Check("c-test", ("make", "--no-print-directory", "-C", _C_TESTS, "test")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended on one host."""

    host: str
    name: str
    status: int
    seconds: float

    @property
    def word(self) -> str:
        """``ok`` or ``FAILED``."""
        return "ok" if self.status == 0 else "FAILED"


def expected_seconds(environment: Environment, check: Check) -> float:
    """Returns how long a check took the last time it passed; two cores' time before that."""
    return _recorded(environment).get(check.name, _SECONDS.get(check.name, 1.0))


def _recorded(environment: Environment) -> dict[str, float]:
    record = environment.folder / _RECORD
    return dict(json.loads(record.read_text())) if record.is_file() else {}


def _note_seconds(environment: Environment, check: Check, seconds: float) -> None:
    recorded = {**_recorded(environment), check.name: round(seconds, 1)}
    (environment.folder / _RECORD).write_text(json.dumps(recorded, indent=1))


def _say_how_long(hosts: list[str], checks: tuple[Check, ...]) -> None:
    environments = [environment_for(host) for host in hosts]
    seconds = sum(expected_seconds(each, check) for each in environments for check in checks)
    amount = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    say(f"checks: {', '.join(check.name for check in checks)}: about {amount}")


def run_checks(host: str, checks: tuple[Check, ...], beside: tuple[str, ...]) -> list[Outcome]:
    """Prepares the environment of one host and runs the checks in it."""
    start = time.monotonic()
    environment = environment_for(host, *beside)
    try:
        environment.prepare()
    except EnvironmentProblem as problem:
        say(f"error: {problem}")
        return [Outcome(host, "environment", 1, time.monotonic() - start)]
    outcomes = [Outcome(host, "environment", 0, time.monotonic() - start)]
    with tempfile.TemporaryDirectory(prefix="triton-ext-cache-") as cache:
        for check in checks:
            # An empty cache of kernels: nothing that an older tree compiled is tested.
            variables = {"TRITON_CACHE_DIR": cache, **check.variables}
            about = expected_seconds(environment, check)
            say(f"== {check.name} (triton {host}), about {about:.0f} s")
            start = time.monotonic()
            status = environment.run(*_program(environment, check.command), **variables)
            outcomes.append(Outcome(host, check.name, status, time.monotonic() - start))
            if status == 0:
                _note_seconds(environment, check, outcomes[-1].seconds)
            say(
                f"== {check.name} (triton {host}): {outcomes[-1].word}, "
                f"{outcomes[-1].seconds:.1f} s"
            )
    return outcomes


def _of_a_later_host(check: Check) -> Check:
    """Returns a check that leaves out what the newest release has shown for all."""
    return replace(check, variables={**check.variables, "TRITON_EXT_LATER_HOST": "1"})


def _lasting(check: Check, minutes: str) -> Check:
    """Returns the check fuzz with the time that it may take; other checks as they are."""
    if check.name != "fuzz":
        return check
    return replace(check, command=(*check.command, "--minutes", minutes))


def _shuffled(check: Check, seed: str) -> Check:
    """Returns a check of pytest with the order of its tests; other checks as they are."""
    if check.command[: len(_PYTEST)] != _PYTEST:
        return check
    return replace(check, command=(*check.command, "--shuffle", seed))


def _part_for(host: str, check: Check) -> Check:
    """Returns a check with what is tested of it with a release."""
    part = _PART.get(host, {}).get(check.name)
    if part is None:
        return check
    say(f"note: triton {host} gets a part of {check.name}: {' '.join(part)}")
    options = [word for word in check.command[len(_PYTEST) :] if not word.startswith("unittest")]
    return replace(check, command=(*_PYTEST, *part, *options))


def _program(environment: Environment, command: tuple[str, ...]) -> tuple[str, ...]:
    """Replaces a program of the environment by its path; others are looked up as usual."""
    own = environment.folder / "bin" / command[0]
    return (str(own), *command[1:]) if own.exists() else command


def report(outcomes: list[Outcome]) -> int:
    """Prints a table (a row per check, a column per host) and a summary; returns the status."""
    hosts = list(dict.fromkeys(o.host for o in outcomes))
    cells = {(o.name, o.host): f"{o.word} {o.seconds:.0f} s" for o in outcomes}
    say("")
    say(f"{'':14}" + "".join(f"{'triton ' + host:>16}" for host in hosts))
    for name in dict.fromkeys(o.name for o in outcomes):
        say(f"{name:14}" + "".join(f"{cells.get((name, host), '-'):>16}" for host in hosts))
    failed = [o for o in outcomes if o.status != 0]
    say("")
    for outcome in failed:
        say(f"failed: {outcome.name} on triton {outcome.host}")
    say(f"checks: {len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [check.name for check in CHECKS]
    parser.add_argument("--host", action="append", help=f"release of Triton ({MAIN_HOST})")
    parser.add_argument("--every-host-only", action="store_true", help="pytest and lit only")
    parser.add_argument("--nightly", action="store_true", help="the slow tests only, all of them")
    parser.add_argument("--quick", action="store_true", help="lint, and tests of a minute")
    parser.add_argument("--all", action="store_true", help="all of pytest with every release")
    parser.add_argument("--beside", action="append", default=[], help="a package to install too")
    parser.add_argument("--only", action="append", choices=names, help="run this check only")
    parser.add_argument("--shuffle", metavar="SEED", help="run tests in the order of a seed")
    parser.add_argument("--minutes", default="10", help="of the check fuzz (10)")
    arguments = parser.parse_args()
    if arguments.only:
        checks = tuple(check for check in CHECKS if check.name in arguments.only)
    elif arguments.quick:
        checks = tuple(check for check in CHECKS if check.quick)
    else:
        checks = tuple(
            check for check in CHECKS if check.nightly == arguments.nightly and not check.asked
        )
    checks = tuple(_lasting(check, arguments.minutes) for check in checks)
    if arguments.shuffle:
        checks = tuple(_shuffled(check, arguments.shuffle) for check in checks)
    if arguments.every_host_only:
        checks = tuple(check for check in checks if check.every_host)
        if not arguments.all:
            checks = tuple(_of_a_later_host(check) for check in checks)
    os.environ.pop("TRITON_INTERPRET", None)
    outcomes: list[Outcome] = []
    hosts = arguments.host or [MAIN_HOST]
    _say_how_long(hosts, checks)
    for host in hosts:
        of_host = checks if arguments.all else tuple(_part_for(host, check) for check in checks)
        outcomes.extend(run_checks(host, of_host, tuple(arguments.beside)))
    return report(outcomes)


if __name__ == "__main__":
    sys.exit(main())
