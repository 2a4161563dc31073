"""Reports what is proved of mbarriers, copies and products (``triton-ext-verify-async``).

The events that refute a kernel are shown as notes: who, where, which barrier and which of its
phases; then for how many iterations of the loops it happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from triton_ext.analysis.interleavings import (
    NotDecided,
    Outcome,
    Violation,
    explore,
    read_kernel,
)
from triton_ext.analysis.interleavings.state import Event
from triton_ext.errors import PassError, VerifyError
from triton_ext.ir import Module, Operation
from triton_ext.ir.functions import visibility_of
from triton_ext.passes import PassContext, error_at
from triton_ext.passes.places import place_of

from ..analysis.async_events import read_event

__all__ = ["verify_async"]

#: The target whose units are modelled.
_TARGET: Final = "cuda:90"
#: Events of a trace that are shown, newest first.
_MOST: Final = 6


def verify_async(module: Module, context: PassContext, *, report: str, undecided: str) -> None:
    """Checks the kernels of a module.

    Args:
        module: The module.
        context: Takes remarks and warnings.
        report: ``all`` for a remark for each kernel that is proved.
        undecided: ``warning`` or ``error``, for kernels that are proved under assumptions as well.

    Raises:
        PassError: A kernel is refuted; or it is not proved, and that is an error.
    """
    target = module.op.attributes.get("ttg.target", "").strip('"')
    errors: list[PassError] = []
    # A kernel that still calls a function is not decided.
    for function in [op for op in module.walk() if op.name == "tt.func" and op.regions]:
        if visibility_of(function) == "private":
            continue
        try:
            if target != _TARGET:
                raise NotDecided(
                    function, f"the target is {target}, and only {_TARGET} is modelled"
                )
            outcome = explore(read_kernel(function, read_event))
        except NotDecided as reason:
            found: NotDecided | None = reason
        else:
            found = outcome.undecided
            if outcome.violation is not None:
                errors.append(_error(outcome, outcome.violation))
                continue
            if found is None and (outcome.assumed or outcome.in_range):
                for message, note in _assumptions(outcome):
                    if undecided == "error":
                        errors.append(error_at(function, message, note))
                    else:
                        context.warning(function, message, note)
                continue
        if found is None:
            context.count("kernels-proved")
            if report == "all":
                context.remark(function, "proved: every interleaving waits for what it uses")
        elif undecided == "error":
            errors.append(error_at(found.op, f"not decided: {found.reason}"))
        else:
            context.warning(found.op, f"not decided: {found.reason}")
    if errors:
        first, *others = errors
        raise PassError(
            first.message,
            filename=first.filename,
            line=first.line,
            column=first.column,
            source_line=first.source_line,
            notes=first.notes,
            others=tuple(others),
        )


def _assumptions(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yields what a proof rests on, and where."""
    loops = ", ".join(sorted(map(_place, outcome.assumed)))
    indices = ", ".join(sorted(map(_place, outcome.in_range)))
    if loops:
        message = "proved only for loops that run at least once"
        yield message, f"it is wrong where one of these does not: {loops}"
    if indices:
        message = "proved only for loops that do not run too often"
        yield message, f"these indices have to be in range: {indices}"


def _error(outcome: Outcome, violation: Violation) -> PassError:
    names = outcome.kernel.names
    notes = [
        f"{names[event.part]}: {_place(event.op)}: {event.op.name}" for event in violation.events
    ]
    notes += violation.notes
    notes += _trace(outcome, violation)
    notes += _conditions(outcome)
    return error_at(violation.op, violation.message, *notes)


def _trace(outcome: Outcome, violation: Violation) -> Iterator[str]:
    """Yields what was done last to barriers, oldest first."""
    found: list[str] = []
    event: Event | None = outcome.trace
    while event is not None and len(found) < _MOST:
        if event.slot >= 0:
            found.append(_told(outcome, event))
        event = event.before
    if found:
        yield "before it:"
        yield from (f"  {text}" for text in reversed(found))


def _told(outcome: Outcome, event: Event) -> str:
    kernel = outcome.kernel
    name = kernel.slot_name(event.slot)
    who, where = kernel.names[event.part], _place(event.op)
    if event.what == "wait":
        if event.phase < 0:
            return f"{who} goes on at {name}, which is fresh: {where}"
        return f"{who} has waited for phase {event.phase} of {name}: {where}"
    if event.what == "copy":
        return f"{who} copies {event.size_bytes} bytes on phase {event.phase} of {name}: {where}"
    expects = f" and expects {event.size_bytes} bytes" if event.size_bytes else ""
    return f"{who} arrives in phase {event.phase} of {name}{expects}: {where}"


def _conditions(outcome: Outcome) -> Iterator[str]:
    """Yields for which bounds of loops it happens."""
    for bound, (low, high) in outcome.conditions.items():
        loop = outcome.loops.get(bound)
        if loop is None:
            continue
        if low == high:
            number = f"is {int(low)}"
        elif math.isfinite(high) and math.isfinite(low):
            number = f"is between {int(low)} and {int(high)}"
        else:
            number = f"is at most {int(high)}" if math.isfinite(high) else f"is at least {int(low)}"
        yield f"where the bound of the loop at {_place(loop)} {number}"


def _place(op: Operation) -> str:
    place = place_of(op)
    if place.line:
        return f"{place.filename}:{place.line}:{place.column}"
    error: VerifyError = op.error("")
    return f"{error.filename}:{error.line}:{error.column}"
