"""``triton-ext-verify-async-waits``: verifies that waits cover every use of LDS.

For every read of LDS, copy from it, write to it and end of a kernel, the pass proves that a wait
retired the conflicting copies on every path, as defined in
:mod:`triton_ext.backends.amd.analysis.wait_coverage`.  It treats numbers written by users and by
passes alike: run it before ``tritonamdgpu-update-async-wait-count`` to check what the waits
request, after it to check what the hardware will wait for.

Output:

* an error for each use or end that is not covered, with the copy, what each wait lets through, and
  the path between; the pass fails if there is one;
* with ``report=all``, remarks about waits that could let more through, that wait for nothing, or
  whose number lets through what their tokens request.

``fix=unsafe`` lowers numbers that are too high to the largest safe value.  ``fix=all`` also raises
those that are lower than necessary.  It leaves waits alone that nothing here relies on, and those
that others may rely on: for copies of buffers that another partition uses, and before arrivals,
barriers, fences and atomic operations
(:mod:`triton_ext.backends.amd.analysis.handed_over`); these get no remark about their length.
Waits for tokens have no number to fix.  The pass does not add missing waits.

Safe direction: a kernel that passes has correct waits; a correct kernel may be refused where
conditions exclude each other or slots are not understood.  Not covered: see the analysis.
NVIDIA's ``cp.async`` groups are treated alike, with shared memory for LDS; copies of the TMA unit
and reads of the tensor cores are not checked, and a warning names these operations.  Modules for a
GPU without asynchronous copies to LDS are skipped; for an unknown GPU with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from triton_ext.errors import PassError
from triton_ext.ir import Module, Operation
from triton_ext.passes import Pass, PassContext, error_at

from ..analysis.async_events import AsyncEvents, Wait
from ..analysis.lds_use import runs_on_apart
from ..analysis.target import Lowering
from ..analysis.wait_coverage import Checked, Obligation, WaitCoverage
from ..analysis.wait_numbers import WaitNumbers
from ..dialect import amdg
from .chosen_target import chosen_target
from .wait_report import message_of, notes_of, waits_on

__all__ = ["VerifyAsyncWaits"]


@dataclass(frozen=True, slots=True)
class VerifyAsyncWaits(Pass):
    """Checks the waits of a kernel.

    Attributes:
        gfx_arch: The GPU, ``"gfx950"``; by default that of the module's ``ttg.target``.
        report: ``errors``, or ``all`` for remarks as well.
        fix: Which numbers to change: ``none``, ``unsafe`` ones, or ``all`` that are not optimal.
    """

    name: ClassVar[str] = "triton-ext-verify-async-waits"

    gfx_arch: str = ""
    report: Literal["errors", "all"] = "errors"
    fix: Literal["none", "unsafe", "all"] = "none"

    def run(self, module: Module, context: PassContext) -> None:
        """Checks ``module``.

        Raises:
            PassError: A use of LDS or an end is not covered; further ones are in its ``others``.
            UnsupportedError: The given GPU is unknown.
        """
        target = chosen_target(self.gfx_arch, module, context)
        if target is None:
            return
        _warn_of_others(module, context)
        events = AsyncEvents(module, target, Lowering.of(context.host_features()))
        if not len(events):
            return
        numbers = WaitNumbers(WaitCoverage(module, events))
        context.count("uses-of-lds", len(numbers.results))
        if self.fix != "none":
            _lower(numbers, events)
        if self.fix == "all":
            _raise(numbers, events)
        # Several queues may report the same operation.
        told: dict[object, PassError] = {}
        for obligation, found in numbers.results.items():
            error = _error(obligation, found, numbers)
            if error is not None:
                told.setdefault((obligation.op, error.message, error.notes), error)
        errors = list(told.values())
        if self.report == "all":
            _remark(numbers, events, context)
        for wait in events.waits:
            number = numbers.coverage.numbers.get(wait.op)
            if number is not None and number != wait.num:
                _write(wait, number)
                context.count("waits-changed")
        if errors:
            first, *others = errors
            raise _together(first, others)


def _warn_of_others(module: Module, context: PassContext) -> None:
    """Warns about asynchronous operations that are not checked."""
    others: dict[str, Operation] = {}
    for op in module.walk():
        if op.name not in others and runs_on_apart(op.name):
            others[op.name] = op
    if others:
        names = ", ".join(f"'{name}'" for name in others)
        context.warning(
            next(iter(others.values())),
            f"waits for {names} are not checked: these end at mbarriers or at waits of their own",
            "triton-ext-verify-async checks them in kernels for sm_90",
        )


def _error(obligation: Obligation, checked: Checked, numbers: WaitNumbers) -> PassError | None:
    if checked.gave_up:
        return error_at(
            obligation.op,
            f"cannot decide whether this {obligation.use.value} is covered: too many paths lead to "
            "it",
        )
    if not checked.violations:
        return None
    # The other violations concern the same operation.
    first = checked.violations[0]
    return error_at(obligation.op, message_of(first), *notes_of(first, numbers.coverage))


def _together(first: PassError, others: list[PassError]) -> PassError:
    return PassError(
        first.message,
        filename=first.filename,
        line=first.line,
        column=first.column,
        source_line=first.source_line,
        notes=first.notes,
        others=tuple(others),
    )


def _lower(numbers: WaitNumbers, events: AsyncEvents) -> None:
    """Lowers numbers until every obligation holds that this can fix."""
    for obligation in list(numbers.results):
        # Each wait is lowered at most once for each violating path.
        for _ in range(len(events.waits)):
            checked = numbers.results[obligation]
            if checked.holds or not checked.violations:
                break
            waits = waits_on(checked.violations[0], numbers.coverage)
            if not numbers.lower(obligation, waits):
                break


def _raise(numbers: WaitNumbers, events: AsyncEvents) -> None:
    """Raises numbers as far as all obligations that hold still hold."""
    for wait in events.waits:
        best = numbers.largest(wait)
        if best is not None and best > (numbers.number(wait) or 0):
            numbers.decide(wait, best)


def _remark(numbers: WaitNumbers, events: AsyncEvents, context: PassContext) -> None:
    for wait in events.waits:
        number = numbers.number(wait)
        if numbers.disagrees(wait):
            context.remark(
                wait.op,
                f"num = {wait.num} lets through what the tokens of this wait request",
                "the host reads only the number"
                if number is not None
                else "the host reads only the tokens",
            )
        if numbers.is_useless(wait):
            context.remark(wait.op, "useless wait: nothing that it waits for can be in flight")
        elif number is not None:
            best = numbers.largest(wait)
            if best is not None and best > number:
                context.remark(
                    wait.op,
                    f"waits longer than it has to: {number} {wait.unit.value} are let in flight, "
                    f"{best} would do",
                )


def _write(wait: Wait, number: int) -> None:
    """Changes the number of a wait."""
    names = {amdg.AsyncWaitOp.NAME: "num_inst", amdg.TdmWaitOp.INTRINSIC: "count"}
    wait.op.set_attribute(names.get(wait.op.name, "num"), f"{number} : i32")
