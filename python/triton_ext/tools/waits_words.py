"""The words of a timeline, which text and pictures share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from triton_ext.analysis.timeline import Call, Commit, Copy, Open, Row, Section, Term, Use, Wait

__all__ = [
    "Tone",
    "Verdict",
    "arithmetic",
    "asked",
    "detail",
    "headline",
    "in_flight",
    "summary",
    "verdicts",
]


class Tone(Enum):
    """How bad something is."""

    GOOD = "good"
    HINT = "hint"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement of the verifier.

    Attributes:
        tone: How bad it is.
        badge: In a word.
        text: In a sentence; empty where the badge says it all.
    """

    tone: Tone
    badge: str
    text: str = ""


def headline(row: Row) -> tuple[str, str]:
    """Returns the title of a row in two parts, of which the second may be printed paler."""
    item = row.item
    if isinstance(item, Copy):
        arrow = "from" if item.is_store else "into"
        return f"copy {item.label}", f"{arrow} {', '.join(item.buffers)}"
    if isinstance(item, Commit):
        return "commit", ", ".join(item.copies)
    if isinstance(item, Wait):
        return f"wait {item.counter}", asked(item)
    if isinstance(item, Use):
        return item.op.rpartition(".")[2], ", ".join(item.buffers)
    if isinstance(item, Call):
        return "call", f"@{item.callee}"
    if isinstance(item, Open):
        return item.kind, item.title
    return "", ""


def detail(copy: Copy) -> str:
    """Returns the kind of a copy and its number of instructions."""
    plural = "" if copy.instructions == "1" else "s"
    words = [copy.kind, f"{copy.instructions} instruction{plural}"]
    if copy.is_masked:
        words.append("masked")
    if copy.may_be_skipped:
        words.append("a wave may skip it")
    return ", ".join(words)


def asked(wait: Wait) -> str:
    """Returns the tokens or the count that a wait waits for."""
    if wait.has_tokens:
        names = ", ".join(wait.tokens) or "tokens"
        return f"for {names}"
    unit = wait.unit if wait.num != 1 else wait.unit[:-1]
    return f"until {wait.num} {unit} left"


def arithmetic(wait: Wait) -> str:
    """How the number of a wait comes about."""
    said = "tokens" if wait.has_tokens else f"num {_number(wait.num, wait.unit)}"
    if wait.unit == "instructions":
        return f"num {_number(wait.num, wait.unit)}, as written"
    if wait.counted_unit == wait.unit and not wait.terms and not wait.has_tokens:
        return f"num {_number(wait.num, wait.unit)}; LLVM counts their instructions"
    result = _number(wait.counted, wait.counted_unit)
    if wait.counted_unit == "groups":
        behind = f" committed behind copy {wait.awaited}" if wait.awaited else ""
        return f"{said} → {result}{behind}"
    if not wait.terms:
        reason = f"nothing is surely issued behind {wait.awaited}" if wait.awaited else ""
        return f"{said} → {result}{f': {reason}' if reason and wait.is_constrained else ''}"
    total = " + ".join(_term(term) for term in reversed(wait.terms))
    text = f"{said} → {total} = {_number(wait.sum, wait.counted_unit)}"
    if wait.sum > wait.counted:
        why = "num is smaller" if wait.counted == wait.num else "the counter holds no more"
        text += f", taken as {wait.counted}: {why}"
    return text


def _term(term: Term) -> str:
    times = f"{term.times} * " if term.times > 1 else ""
    what = f"copy {term.label}" if term.label else "commit"
    return f"{times}{term.cost} ({what}, line {term.place.line})"


def _number(count: int, unit: str) -> str:
    return f"{count} {unit[:-1] if count == 1 else unit}"


def in_flight(row: Row) -> str:
    """Returns the copies that may be in flight after a row."""
    if not row.in_flight:
        return "nothing in flight behind it"
    names = [f"{flight.label}{_age(flight.iterations)}" for flight in row.in_flight]
    return f"in flight behind it: {', '.join(names)}"


def _age(iterations: int) -> str:
    if not iterations:
        return ""
    return f" (of {iterations} iteration{'s' if iterations > 1 else ''} before)"


def verdicts(row: Row) -> tuple[Verdict, ...]:
    """Returns the judgements of a row, the worst first."""
    item = row.item
    found = []
    for unsafe in row.unsafe:
        path = f", on the path {', '.join(unsafe.path)}" if unsafe.path else ""
        copy = f"copy {unsafe.copy} may be in flight: " if unsafe.copy else ""
        found.append(Verdict(Tone.BAD, "unsafe", f"{copy}{unsafe.reason}{path}"))
    if not isinstance(item, Wait):
        return tuple(found)
    if item.unsafe:
        found.append(Verdict(Tone.BAD, "lets too much through", "a use of LDS relies on it"))
    if item.tokens_disagree:
        text = f"num = {item.num} lets through what its tokens name"
        found.append(Verdict(Tone.BAD, "tokens disagree", text))
    if found:
        return tuple(found)
    if item.is_useless:
        text = "nothing that it waits for can be in flight"
        found.append(Verdict(Tone.HINT, "useless", text))
    elif not item.is_constrained:
        text = "no path has anything for it to wait for"
        found.append(Verdict(Tone.HINT, "waits for nothing", text))
    if item.best is not None and not item.is_useless:
        text = f"{_number(item.best, item.unit)} would do"
        found.append(Verdict(Tone.HINT, "waits too long", text))
    return tuple(found)


def summary(section: Section) -> str:
    """How many copies and waits there are, and what is wrong with them."""
    items = [row.item for row in section.rows]
    copies = sum(isinstance(item, Copy) for item in items)
    waits = sum(isinstance(item, Wait) for item in items)
    words = [_number(copies, "copies" if copies != 1 else "copys"), _number(waits, "waits")]
    counts: dict[str, int] = {}
    for row in section.rows:
        for badge in dict.fromkeys(verdict.badge for verdict in verdicts(row)):
            counts[badge] = counts.get(badge, 0) + 1
    words += [f"{count} {badge}" for badge, count in counts.items()]
    return " · ".join(words)
