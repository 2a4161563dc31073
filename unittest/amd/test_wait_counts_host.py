"""Our wait counts beside those of Triton's own pass: equal, or different by a rule with a name.

Where ours is lower, the own pass takes for granted what need not be; each such assumption has a
name here, and making it as well has to lift our number to the other one.  Where ours is higher, the
own pass waits longer than it has to: the executable model must find nothing that is read too early.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from async_host import Host
from async_kernels import generate
from async_mistakes import emitted_of, may_skip_of
from async_model import Counts, Program, wrong_numbers
from async_text import ARCHES
from async_translate import WAITS
from triton_ext.analysis.backward_flow import BackwardFlow, trip_count
from triton_ext.backends.amd.analysis.async_events import AsyncEvents, WaitUnit
from triton_ext.backends.amd.analysis.instruction_count import AsyncIssue, Interval
from triton_ext.backends.amd.analysis.target import Counter as Hardware
from triton_ext.backends.amd.analysis.target import Lowering, Target
from triton_ext.backends.amd.analysis.wait_distance import distance_of
from triton_ext.backends.amd.dialect.amdg import TdmWaitOp
from triton_ext.host import features
from triton_ext.ir import Module, parse
from triton_ext.ir.functions import CALLS


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a host takes for granted.

    Attributes:
        name: In words.
        target: Changes the GPU.
        issue: Changes what an operation issues.
        module: Changes the kernel.
        until: Releases before this one make it; all of them without.
    """

    name: str
    target: Callable[[Target], Target] = lambda target: target
    issue: Callable[[AsyncIssue], AsyncIssue] = lambda issue: issue
    module: Callable[[Module], None] = lambda module: None
    until: tuple[int, int] | None = None


def _issues(low: int, factor: int = 1) -> Callable[[AsyncIssue], AsyncIssue]:
    def change(issue: AsyncIssue) -> AsyncIssue:
        number = factor * max(low, issue.instructions.hi)
        return replace(issue, instructions=Interval.exactly(number))

    return change


def _without_calls(module: Module) -> None:
    for op in list(module.walk()):
        if op.name in CALLS and not any(result.uses for result in op.results):
            op.erase()


ASSUMPTIONS = (
    Assumption(
        "loads and stores retire in one order",
        target=lambda target: replace(target, directions_retire_apart=False),
    ),
    Assumption("every wave issues every copy", issue=_issues(1)),
    Assumption("a function that is called issues nothing", module=_without_calls),
    Assumption("a number above 63 fits", target=lambda target: replace(target, max_wait=1 << 20)),
    # Hints and repeated registers of copies, rows that other waves have.
    Assumption("instructions that are not emitted count", issue=_issues(1, 32), until=(3, 8)),
)


def numbers(text: str, arch: str, assumptions: tuple[Assumption, ...]) -> list[int | None]:
    """Our number for each wait that counts instructions, under some assumptions."""
    module = parse(text)
    target, lowering = Target.of(arch), Lowering.of(features())
    for assumption in assumptions:
        target = assumption.target(target)
        assumption.module(module)
    events = AsyncEvents(module, target, lowering)
    for op in list(module.walk()):
        event = events.get(op)
        if isinstance(event, AsyncIssue):
            for assumption in assumptions:
                event = assumption.issue(event)
            events._events[op] = event
    flow = BackwardFlow(module, events.is_event)
    found: list[int | None] = []
    for wait in events.waits:
        if wait.unit is WaitUnit.INSTRUCTIONS:
            found.append(None)
        elif events.counts_groups and wait.counter is not Hardware.TENSORCNT:
            tokens = wait.tokens and distance_of(wait, events, flow).count
            found.append(min(wait.num, tokens) if wait.tokens else wait.num)
        else:
            found.append(target.clamp(distance_of(wait, events, flow).count))
    return found


def why_lower(text: str, arch: str, index: int, theirs: int, release: tuple[int, int]) -> str:
    """The assumptions that lift our number of a wait to theirs."""
    made = tuple(a for a in ASSUMPTIONS if a.until is None or release < a.until)
    for tried in (*((each,) for each in made), made):
        number = numbers(text, arch, tried)[index]
        if number is not None and number >= theirs:
            return " and ".join(a.name for a in tried) if len(tried) == 1 else "several of these"
    name = [op.name for op in parse(text).walk() if op.name in WAITS][index]
    by_marks = Target.of(arch).copy_counter is Hardware.VMCNT and release >= (3, 8)
    if by_marks or (name == TdmWaitOp.NAME and release < (3, 7)):
        return "the number of a wait with tokens says what they ask for"
    return ""


def never_executed(text: str, index: int) -> bool:
    """Whether a wait stands in a loop of no iterations."""
    op = [op for op in parse(text).walk() if op.name in WAITS][index].parent_op
    while op is not None and trip_count(op) != 0:
        op = op.parent_op
    return op is not None


def compare(host: Host, arch: str, seeds: range) -> Counter[str]:
    """Counts the waits of generated kernels by how the two numbers differ."""
    release = tuple(map(int, host.version.split(".")[:2]))
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        text = generate(seed, host.version, arch, "arbitrary" if seed % 2 else "intended")
        theirs = host.counts(text, arch)
        if not isinstance(theirs, Counts):
            outcomes["kernels of which the own pass dies"] += 1
            continue
        module = parse(text)
        ours = host.ours(module, arch)
        program: Program | None = None
        for index, (their, our) in enumerate(zip(theirs.rules, ours.rules, strict=True)):
            if their is None or our is None or their == our:
                outcomes["equal"] += 1
            elif our.number > their.number:
                if program is None:
                    program = Program(
                        parse(text), emitted_of(arch), may_skip_of(host.version, arch)
                    )
                    assert wrong_numbers(program.search(range(20), ours)) == [], f"seed {seed}"
                outcomes["higher, and nothing is read too early"] += 1
            elif never_executed(text, index):
                outcomes["in a loop of no iterations, of which hosts know nothing"] += 1
            else:
                why = why_lower(text, arch, index, their.number, release[:2])
                assert why, f"seed {seed}, wait {index}: {our.number} instead of {their.number}"
                outcomes[f"lower: {why}"] += 1
    return outcomes


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_differ_by_named_rules_only(arch, host):
    outcomes = compare(host, arch, range(40))
    assert outcomes["equal"] > sum(outcomes.values()) // 2


def test_a_gpu_that_counts_as_another_one_does(host):
    """Triton's own pass counts the same for gfx1251, from the release on that knows it."""
    if tuple(int(part) for part in host.version.split(".")[:2]) < (3, 8):
        pytest.skip(f"triton {host.version} does nothing for gfx1251")
    assert Target.of("gfx1251") == replace(Target.of("gfx1250"), arch="gfx1251")
    for seed in range(20):
        text = generate(seed, host.version, "gfx1250")
        other = host.lowered(text.replace("gfx1250", "gfx1251"), "gfx1251")
        assert isinstance(other, str)
        assert other.replace("gfx1251", "gfx1250") == host.lowered(text, "gfx1250")


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)
@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_of_a_thousand_kernels(arch, host, capsys):
    outcomes = compare(host, arch, range(5000, 6000))
    with capsys.disabled():
        sys.stdout.write(f"\ntriton {host.version}, {arch}: {dict(outcomes.most_common())}\n")
    assert outcomes["equal"] > sum(outcomes.values()) // 2
