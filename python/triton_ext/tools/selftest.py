"""Runs the checks of ``triton_ext.selftest`` in processes of their own, and collects what they say.

Guarantees: a check that ends its process, or never ends, is one line of the result; the others run.
Every process starts with an empty cache of kernels, so what is seen was compiled now.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from triton_ext.errors import UnsupportedError
from triton_ext.host.children import TemporaryFolder, command
from triton_ext.strings import without_leak_report

__all__ = ["Outcome", "run_checks"]

_MARK = "triton-ext-selftest "
_MODULE = "triton_ext.selftest"
# Seconds for the checks of one target; they take about five.
_LIMIT = 120

Status = Literal["yes", "no", "absent", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended.

    Attributes:
        target: Such as ``"sm_90"``, or ``"gpu"``.
        feature: What was checked.
        status: ``yes``; ``no``: it should work and does not; ``absent``: the installed Triton does
            not have it, by the table of capabilities; ``skipped``: there is nothing to run it on.
        text: What was seen, or why not.
    """

    target: str
    feature: str
    status: Status
    text: str


def run_checks(skipped: dict[str, str], limit: float = _LIMIT) -> tuple[Outcome, ...]:
    """Runs every check.

    Args:
        skipped: Targets that are not run, and why.
        limit: Seconds for the checks of one target.

    Raises:
        UnsupportedError: The selftest does not start at all; the text is what its process said.
    """
    names = _names(limit)
    found = [Outcome(t, feature, "skipped", skipped[t]) for t, feature in names if t in skipped]
    groups: dict[str, list[str]] = {}
    for target, feature in names:
        if target not in skipped:
            groups.setdefault(target, []).append(f"{target}:{feature}")
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for results in pool.map(lambda group: _run_group(group, limit), groups.values()):
            found += results
    order = {pair: index for index, pair in enumerate(names)}
    return tuple(sorted(found, key=lambda tested: order[tested.target, tested.feature]))


def _names(limit: float) -> list[tuple[str, str]]:
    lines, problem = _child(["--list"], limit)
    for line in lines:
        return [(target, feature) for target, feature, _ in line["checks"]]  # type: ignore[attr-defined]
    raise UnsupportedError(f"the selftest does not start: {problem}")


def _run_group(names: list[str], limit: float) -> list[Outcome]:
    """Runs checks in one process, and what is left in another one where that ended early."""
    found: list[Outcome] = []
    while names:
        lines, problem = _child(names, limit)
        ended = {line["name"]: line for line in lines if line["status"] != "begun"}
        for name in [name for name in names if name in ended]:
            found.append(_tested(name, str(ended[name]["status"]), str(ended[name]["text"])))
            names = [other for other in names if other != name]
        if names:
            # The one that was running; without any sign of life, the first.
            begun = [str(line["name"]) for line in lines if line["name"] in names]
            name = begun[-1] if begun else names[0]
            found.append(_tested(name, "no", problem or "its process ended without a result"))
            names = [other for other in names if other != name]
    return found


def _tested(name: str, status: str, text: str) -> Outcome:
    target, _, feature = name.partition(":")
    known: dict[str, Status] = {"yes": "yes", "absent": "absent"}
    return Outcome(target, feature, known.get(status, "no"), text)


def _child(arguments: Sequence[str], limit: float) -> tuple[list[dict[str, object]], str]:
    """Runs the selftest's module; returns its lines and, if it ended badly, how."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("TRITON_INTERPRET", None)
    with TemporaryFolder() as folder:
        environment["TRITON_CACHE_DIR"] = folder
        try:
            done = subprocess.run(
                command("-m", _MODULE, *arguments),
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            return _lines(expired.stdout or b""), f"no end after {limit:g} seconds"
    return _lines(done.stdout), _how_it_ended(done.returncode, done.stderr)


def _lines(output: bytes) -> list[dict[str, object]]:
    lines = output.decode(errors="replace").splitlines()
    return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]


def _how_it_ended(status: int, errors: bytes) -> str:
    if status == 0:
        return ""
    text = without_leak_report(errors.decode(errors="replace"))
    said = [line for line in text.splitlines() if line.strip()]
    last = f": {said[-1].strip()}" if said else ""
    if status < 0:
        return f"Triton ended the process ({signal.Signals(-status).name}){last}"
    return f"the process ended with status {status}{last}"
