"""Formats violations: the copy, what each wait lets through, and the path to the use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from triton_ext.analysis.backward_flow import Step, StepKind
from triton_ext.errors import VerifyError
from triton_ext.ir import Operation, OpResult, Value
from triton_ext.passes.places import place_of

from ..analysis.async_events import Commit, Wait, WaitUnit
from ..analysis.instruction_count import AsyncIssue
from ..analysis.lds_use import Looked, Use
from ..analysis.target import Counter
from ..analysis.value_origins import variable_of
from ..analysis.wait_coverage import Violation, WaitCoverage

__all__ = ["message_of", "notes_of", "place_text", "waits_on"]

#: Maximum number of waits and edges in a message, nearest first.
_MOST: Final = 6

_DANGERS: Final = {
    Use.READ: "data may not have arrived",
    Use.SOURCE: "its data may not have arrived",
    Use.REFILL: "a copy may still read it",
    Use.UNKNOWN: "a copy may still read it",
    Use.END: "a copy may still read its LDS",
}

_GIVEN_AWAY: Final = "the LDS of a workgroup that ended is given to another one: wait for 0"
_AT_END: Final = {
    Counter.TENSORCNT: f"{_GIVEN_AWAY} operations in front of this",
    Counter.ASYNCCNT: f"{_GIVEN_AWAY} groups in front of this",
}


def place_text(op: Operation) -> str:
    """Returns ``file:line:col`` of an operation, or its place in the text without a location."""
    place = place_of(op)
    if place.line:
        return f"{place.filename}:{place.line}:{place.column}"
    error: VerifyError = op.error("")
    return f"{error.filename}:{error.line}:{error.column}"


def message_of(violation: Violation) -> str:
    """Returns the message of a violation."""
    obligation = violation.obligation
    danger = _DANGERS[obligation.use]
    issue = violation.issue
    if obligation.use in (Use.REFILL, Use.UNKNOWN) and issue is not None and issue.writes:
        danger = "a copy may still write it"
    if obligation.use is Use.END and issue is not None and issue.writes:
        danger = "a copy may still write its LDS"
    return f"unsafe {obligation.use.value}: {danger}"


def notes_of(violation: Violation, coverage: WaitCoverage) -> tuple[str, ...]:
    """Returns notes about the copy, the waits and the path between."""
    obligation, issue = violation.obligation, violation.issue
    if issue is None:
        what = f"'{violation.last.name}' at {place_text(violation.last)}" if violation.last else ""
        return (f"it is not known what ran before {what or 'this function'}",)
    direction = "into" if issue.writes and Looked.INTO in obligation.looked else "from"
    buffer = obligation.buffer or (*issue.writes, *issue.reads)[0]
    notes = [
        f"the copy {direction} {buffer.name}: {place_text(issue.op)}: {issue.op.name}",
        *_allocated(buffer, coverage),
    ]
    if violation.partitions is not None:
        place = place_text(violation.partitions)
        notes.append(f"other warps issued it, before 'ttg.warp_specialize' at {place}")
    waits = waits_on(violation, coverage)
    told = [_arithmetic(wait, violation, coverage) for wait in waits[:_MOST]]
    if told:
        notes += told
    elif _is_uncommitted(violation, coverage):
        notes.append("the copy is not committed before this, and there is no wait in between")
    else:
        notes.append("there is no wait in between on this path")
    way = [text for step in violation.steps if (text := _edge(step))]
    if way:
        shown = way[:_MOST] + (["..."] if len(way) > _MOST else [])
        notes.append(f"on the way back: {', '.join(shown)}")
    if obligation.use is Use.END:
        notes.append(_AT_END[obligation.queue.counter])
    return tuple(notes)


def _allocated(buffer: Value, coverage: WaitCoverage) -> Iterator[str]:
    """Yields the variables and allocations that a buffer in the IR refers to."""
    allocations = coverage.references.allocations(buffer) or ()
    for allocation in sorted(allocations, key=lambda each: each.name)[:_MOST]:
        if not isinstance(allocation, OpResult):
            continue
        variable = variable_of(allocation)
        whole = f"'{variable}'" if variable is not None else allocation.name
        what = "may be part of" if len(allocations) > 1 else "is part of"
        if allocation is buffer:
            what, whole = "is", whole if variable is not None else ""
        place = f"allocated at {place_text(allocation.owner)}"
        yield f"{buffer.name} {what} {f'{whole}, ' if whole else ''}{place}"


def waits_on(violation: Violation, coverage: WaitCoverage) -> list[Wait]:
    """Returns the waits on the path for the counter of the copy, nearest to the use first."""
    counter = violation.obligation.queue.counter
    found = []
    for step in violation.steps:
        event = coverage.events.get(step.op) if step.op is not None else None
        if step.kind is StepKind.EVENT and isinstance(event, Wait) and event.counter is counter:
            found.append(event)
    return list(dict.fromkeys(found))


def _arithmetic(wait: Wait, violation: Violation, coverage: WaitCoverage) -> str:
    """Returns what a wait lets through, and what was issued between it and the copy."""
    unit, number, _ = coverage.rule(wait)
    head = f"the wait at {place_text(wait.op)}"
    if number is None and any(token in violation.last_results for token in wait.tokens):
        return f"{head} waits for committed groups; the copy, which it names, is not committed"
    if number is None:
        return f"{head} waits for its tokens only; none is of this copy or a newer one"
    behind = _behind(wait, violation, coverage, unit)
    if unit is WaitUnit.GROUPS and behind == 0:
        return f"{head} waits for committed groups; the copy is not committed before it"
    if unit is WaitUnit.GROUPS:
        behind -= 1  # the copy's own group is the last of those
    return (
        f"{head} lets {_counted(number, unit)} in flight, but only {_counted(behind, unit)} "
        f"{'was' if behind == 1 else 'were'} certainly issued after the copy: "
        f"at most {behind} is safe"
    )


def _counted(number: int, unit: WaitUnit) -> str:
    return f"{number} {unit.value if number != 1 else unit.value[:-1]}"


def _behind(wait: Wait, violation: Violation, coverage: WaitCoverage, unit: WaitUnit) -> int:
    """Returns how much was certainly issued between copy and wait, in the wait's unit."""
    behind, is_behind_wait = 0, False
    for step in violation.steps[:-1]:
        if step.kind is not StepKind.EVENT or step.op is None:
            continue
        event = coverage.events.get(step.op)
        if step.op is wait.op:
            behind, is_behind_wait = 0, True
        elif not is_behind_wait:
            continue
        elif unit is WaitUnit.GROUPS:
            behind += isinstance(event, Commit)
        elif isinstance(event, AsyncIssue) and event.queue == violation.obligation.queue:
            behind += event.instructions.lo if unit is WaitUnit.INSTRUCTIONS else 1
    return behind


def _is_uncommitted(violation: Violation, coverage: WaitCoverage) -> bool:
    if violation.obligation.queue.counter is Counter.TENSORCNT:
        return False  # has no groups
    return not any(
        step.kind is StepKind.EVENT
        and step.op is not None
        and isinstance(coverage.events.get(step.op), Commit)
        for step in violation.steps
    ) and any(isinstance(event, Commit) for event in coverage.events)


def _edge(step: Step) -> str:
    if step.op is None or step.kind not in _EDGES:
        return ""
    return _EDGES[step.kind].format(f"'{step.op.name}' at {place_text(step.op)}")


_EDGES: Final = {
    StepKind.ENTER: "through {}",
    StepKind.PREVIOUS: "the iteration before in {}",
    StepKind.LEAVE: "out of {}",
    StepKind.SKIP: "past {} without running it",
    StepKind.BRANCH: "from {}",
    StepKind.CALL: "through {}",
    StepKind.CALLER: "called by {}",
}
