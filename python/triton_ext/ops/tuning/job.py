"""Tuning in a job: cases of the first steps are tuned at the end of each, once for all ranks.

While steps run, plans that are made are watched, whoever makes them: eager code, the backward,
compiled graphs.  At a step's end the ranks put together what no table knew, rank 0 measures it, and
all others get the results through the default process group.  While rank 0 measures it tells the
others so after every case, because no wait in a process group may be longer than its timeout.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from triton_ext.errors import TritonExtError, UnsupportedError
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.tables import lookup
from triton_ext.ops.tuning.runs import Outcome, Report, check_options, reload, tune

__all__ = ["JobError", "Warmup", "warmup_steps"]


# Rank 0's message to the others while it measures.
_GOING_ON = "going on"


class JobError(TritonExtError):
    """Rank 0 could not measure, or the ranks lost each other meanwhile; the text says why."""


class Warmup:
    """Steps whose convolutions are tuned; also a context manager, which ends it early."""

    def __init__(self, steps: int, options: Mapping[str, Any]) -> None:
        self._left = steps
        self._options = dict(options)
        self._met: dict[Case, None] = {}
        if steps > 0:
            lookup.observers.append(self._observe)
            # Plans that were made before are made again, so that they are seen.
            reload()

    def __enter__(self) -> Warmup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it: later steps do nothing."""
        self._left = 0
        if self._observe in lookup.observers:
            lookup.observers.remove(self._observe)

    def _observe(self, case: Case, machine: Device, is_known: bool) -> None:
        # Functions are compiled into their kernel, and do not go to other processes.
        if not is_known and case.epilogue.function is None:
            self._met[case] = None

    def step(self) -> Report | None:
        """Tunes the cases of the step; to be called by every rank at the end of its step.

        Returns:
            The measurements; ``None`` on other ranks than 0, where there was nothing to measure,
            and after the last of the steps.

        Raises:
            UnsupportedError: A CUDA graph is being captured.
            JobError: Rank 0 could not measure; on every rank.  Or a rank did not hear of rank 0 for
                longer than the timeout of the process group.
        """
        if not self._left:
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "warmup_steps: a CUDA graph is being captured; call step() outside of it"
            )
        self._left -= 1
        met, self._met = tuple(self._met), {}
        try:
            if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                return self._together(met)
            return tune(met, **self._options) if met else None
        finally:
            if not self._left:
                self.close()

    def _together(self, met: tuple[Case, ...]) -> Report | None:
        """Tunes the cases of all ranks, on rank 0, which tells all others the choices."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, met)
        every = tuple(dict.fromkeys(case for cases in gathered for case in cases))
        if not every:
            return None
        report, answer = None, None
        if dist.get_rank() == 0:
            report, answer = self._measured(every)
        answer = _told(answer)
        while answer == _GOING_ON:
            answer = _told(None)
        if isinstance(answer, str):
            raise JobError(f"warmup_steps: rank 0 could not measure: {answer}")
        gpu, entries = answer
        lookup.add(gpu, entries, "what rank 0 measured")
        reload()
        return report

    def _measured(self, cases: tuple[Case, ...]) -> tuple[Report | None, Any]:
        """Returns the report, and the message to the others: GPU and entries, or the error."""
        device = torch.cuda.current_device() if torch.cuda.is_available() else -1
        also = self._options.get("on_outcome")

        def on_outcome(outcome: Outcome) -> None:
            # Where it is measured may be another device than the one that speaks to the others.
            with torch.cuda.device(device):
                _told(_GOING_ON)
            if also is not None:
                also(outcome)

        try:
            report = tune(cases, **{**self._options, "on_outcome": on_outcome})
        except JobError:
            raise
        except Exception as error:  # the others wait for an answer, whatever it is
            return None, f"{type(error).__name__}: {error}"
        return report, (report.gpu, report.table.entries)


def _told(message: Any) -> Any:
    """Returns rank 0's ``message`` on all ranks."""
    messages = [message]
    try:
        dist.broadcast_object_list(messages, src=0)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise JobError(
            f"warmup_steps: rank {dist.get_rank()} lost the others while rank 0 measured: {line}; "
            "if no rank has failed, measure for a shorter time (seconds=), or give "
            "init_process_group a longer timeout"
        ) from error
    return messages[0]


def warmup_steps(steps: int, **options: Any) -> Warmup:
    """Begins to watch which convolutions a job has; ``step()`` at the end of a step tunes them.

        with warmup_steps(3) as warmup:
            for batch in loader:
                train(batch)
                warmup.step()

    Args:
        steps: After so many calls of ``step`` it is over, and ``step`` costs nothing any more.
        options: As for :func:`triton_ext.ops.tuning.tune`; rank 0's count.

    Raises:
        TypeError: ``steps`` is no int, or ``tune`` has no such option.
        ValueError: ``steps`` is negative, or ``tune`` refuses an option anywhere.
    """
    if type(steps) is not int:
        raise TypeError(f"warmup_steps: steps is {steps!r}: expected an int")
    if steps < 0:
        raise ValueError(f"warmup_steps: steps is {steps}: expected 0 or more")
    known = [name for name in inspect.signature(tune).parameters if name != "cases"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(
            f"warmup_steps: {', '.join(unknown)}: expected an option of tune, which has "
            f"{', '.join(known)}"
        )
    check_options("warmup_steps", **options)
    return Warmup(steps, options)
