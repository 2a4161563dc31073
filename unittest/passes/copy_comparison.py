"""Passes that coalesce asynchronous copies, ours against the host's, by what is emitted."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from copy_cases import CopyCase
from copy_emission import EmissionHost, Emitted
from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.host.passes import load_passes
from triton_ext.host.process import HostProcess, find_library
from triton_ext.ir import parse
from triton_ext.passes import PassManager
from triton_ext.passes.async_copy import async_copies
from triton_ext.passes.coalesce_async_copy import is_coalesced

__all__ = ["Comparison", "HostPass", "ours"]


class HostPass:
    """One pass of the installed Triton, in a child process.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        library = find_library()
        self.version = library.version
        self._process = HostProcess(library)
        self._passes = load_passes(self._process)
        self._name = name
        settable = self._passes.passes[name].adders[0].settable
        self._option = settable[0] if settable else ""

    def close(self) -> None:
        """Ends the process."""
        self._process.close()

    def run(self, text: str, target: str) -> str | None:
        """The module behind the pass; ``None`` where the pass failed."""
        options = {self._option: target.partition(":")[2]} if self._option else {}
        call = self._passes.bind(self._name, options)
        return self._process.run(text, "kernel.ttgir", [call]).plain


def ours(name: str, text: str) -> str:
    """The module behind a pass of ours, verified."""
    module = parse(text, "kernel.ttgir")
    PassManager(name).run(module)
    return str(module)


@dataclass(slots=True)
class Comparison:
    """Counts how copies came out.

    Attributes:
        name: The pass.
        emission: Compiles modules.
        host: The host's pass of that name.
        counts: How many came out how, in all and by target: ``equal``; ``wider``; ``fewer``
            instructions of a thread; ``spread``: fewer, but narrower, because more threads copy;
            ``coalesced``: equal, and the lanes are side by side now; ``host better``; ``refused by
            both``.
        conversions: ``ttg.convert_layout`` left, by whose pass.
        needless: Copies that come out equal but for more conversions of ours.
        widths: Bytes of an instruction to number of copies, by whose pass; 0 for refused ones.
        worse: Copies for which the host's pass does better.
    """

    name: str
    emission: EmissionHost
    host: HostPass
    counts: Counter[str] = field(default_factory=Counter)
    conversions: Counter[str] = field(default_factory=Counter)
    needless: list[str] = field(default_factory=list)
    widths: dict[str, Counter[int]] = field(
        default_factory=lambda: {"host": Counter(), "ext": Counter()}
    )
    worse: list[str] = field(default_factory=list)

    def add(self, case: CopyCase) -> str:
        """Compares one copy and returns how it came out."""
        texts = {
            "host": self.host.run(case.text, case.target),
            "ext": ours(self.name, case.text),
        }
        assert texts["host"] is not None, case
        found = {by: self.emission.ask(text, case.target) for by, text in texts.items()}
        for by, emitted in found.items():
            self.widths[by][emitted.narrowest] += 1
        converted = {by: text.count("ttg.convert_layout") for by, text in texts.items()}
        self.conversions.update(converted)
        outcome = _outcome(found["host"], found["ext"])
        is_converted = outcome == "equal" and converted["ext"] > converted["host"]
        # A layout that differs in name only converts to nothing.
        is_converted = is_converted and not _same_code(found["host"], found["ext"])
        if is_converted and case.target.startswith("cuda") and not _has_coalesced_lanes(case):
            outcome = "coalesced"
        elif is_converted:
            self.needless.append(f"{case}\n{texts['host']}\n{texts['ext']}")
        self.counts[outcome] += 1
        self.counts[f"{case.target} {outcome}"] += 1
        if outcome == "host better":
            said = found["ext"].said or found["ext"].widths
            self.worse.append(f"{case}\nhost: {found['host'].widths}, ext: {said}\n{texts['ext']}")
        return outcome

    def table(self) -> str:
        """The counts."""
        rows = [f"{self.name}, triton {self.host.version}"]
        rows += [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        for by, widths in self.widths.items():
            told = ", ".join(f"{width} B: {count}" for width, count in sorted(widths.items()))
            rows.append(f"  {by}: {told}; {self.conversions[by]} conversions")
        return "\n".join(rows)


def _same_code(host: Emitted, ext: Emitted) -> bool:
    """Whether two kernels have the same instructions, whatever their lines are called."""
    found = _instructions(host.asm)
    return bool(found) and found == _instructions(ext.asm)


def _instructions(asm: str) -> list[str]:
    """The instructions and labels of a PTX kernel, without debug information and comments."""
    body = asm[asm.find("\n{") : asm.find("\n}")]
    lines = (re.split(r"//|;", line)[0].strip() for line in body.splitlines())
    return [line for line in lines if line and not line.startswith(".loc")]


def _has_coalesced_lanes(case: CopyCase) -> bool:
    module = parse(case.text)
    (copy,) = async_copies(module, AxisInfoAnalysis.of(module))
    return is_coalesced(copy)


def _outcome(host: Emitted, ext: Emitted) -> str:
    if host.widths is None and ext.widths is None:
        return "refused by both"
    if host.widths is None:
        return "wider"
    if ext.widths is None or ext.count > host.count:
        return "host better"
    if ext.narrowest < host.narrowest:
        return "spread" if ext.count < host.count else "host better"
    if ext.narrowest > host.narrowest:
        return "wider"
    return "fewer" if ext.count < host.count else "equal"
