"""Tuning: compile the models' candidates in other processes, measure each, keep the fastest.

Torch's own convolution is measured in the same rounds; ``prefer="fastest"`` asks for that alone.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import itertools
import math
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TextIO

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core import planner, tables
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.tables import Entry, Table, TableError, TuningWarning, lookup
from triton_ext.ops.tuning import measure
from triton_ext.ops.tuning.measure import CompilePool, EventClock
from triton_ext.ops.tuning.store import reload, update_table

#: Compiling one takes so many seconds of a core, most of the time of tuning.
COMPILE_SECONDS = 1.5
MOST_CANDIDATES = 6
# Even, so that all candidates have as many of the longer measurements; see turns.
ROUNDS = 6
_NO_TIME = "no time left"
_RACE_ROUNDS = 4
# The models of torch and of a kernel are not taken to be off by more than this together.
_SURE = 2.0
# Times of kernels of 6 to 10 us differ by some percent from run to run; at a tie, torch is safe.
_TIE = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Candidates for a case, the first one with its key in tables, or the result."""

    case: Case
    key: str
    configs: tuple[Any, ...] = ()  # candidates that are to be measured; empty in results
    entry: Entry | None = None  # the choice
    is_new: bool = False  # whether it was measured now
    note: str = ""  # why there is no choice, or that it was known
    # Candidates that did not compile, did not run, or disagreed with the others.
    failures: tuple[str, ...] = ()

    def __str__(self) -> str:
        entry = self.entry
        if entry is None:
            return f"{self.case}: {self.note or f'{len(self.configs)} candidates'}"
        text = f"{self.case}: {entry.us:.1f} us"
        if entry.model_us:
            text += f", {entry.model_us / entry.us:.3f}x of the model's choice"
        if entry.torch_us:
            text += f", {entry.torch_us / entry.us:.3f}x of torch"
        return f"{text} ({self.note})" if self.note else text


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run; its text is a table."""

    gpu: str  # its name
    outcomes: tuple[Outcome, ...]  # one per key, in the order in which they were met
    seconds: float  # time of the run

    @property
    def table(self) -> Table:
        """The choices for all that was asked for, those known before included."""
        return Table(self.gpu, {o.key: o.entry.raw() for o in self.outcomes if o.entry is not None})

    @property
    def summary(self) -> str:
        """Counts of measured, known and failed ones, and the gain over the models."""
        new = sum(outcome.is_new for outcome in self.outcomes)
        known = sum(outcome.entry is not None for outcome in self.outcomes) - new
        gains = [
            math.log(o.entry.model_us / o.entry.us)
            for o in self.outcomes
            if o.is_new and o.entry is not None and o.entry.model_us
        ]
        text = f"{new} measured, {known} known before, {len(self.failures)} candidates failed"
        if gains:
            text += f", {math.exp(sum(gains) / len(gains)):.3f}x of the model's choices"
        if self.unreached:
            text += f", {self.unreached} not reached in the time"
        return f"{text}; {self.seconds:.1f} s on {self.gpu}"

    @property
    def unreached(self) -> int:
        """Number of cases that the time did not reach."""
        return sum(outcome.note == _NO_TIME for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[str, ...]:
        """Candidates that are left out, and why."""
        return tuple(failure for outcome in self.outcomes for failure in outcome.failures)

    def __str__(self) -> str:
        failures = [f"  {failure}" for failure in self.failures]
        return "\n".join([*map(str, self.outcomes), *failures, self.summary])


@contextlib.contextmanager
def progress_of(
    is_wanted: bool, compiles: int, cases: int, stream: TextIO | None = None
) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Shows a run, on standard error by default: a line per case.

    On a terminal where rich is installed there are bars as well.  Within, the first function shows
    that one more configuration is compiled, the second one the text of one more case.
    """
    stream = sys.stderr if stream is None else stream
    bars, done = None, itertools.count(1)
    if is_wanted and stream.isatty():
        with contextlib.suppress(ImportError):
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"), progress.BarColumn(),
                progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
            )  # fmt: skip
            bars = progress.Progress(*columns, console=Console(file=stream))
            compiling = bars.add_task("compiling", total=compiles)
            measuring = bars.add_task("measuring", total=cases)

    def show(line: str) -> None:
        if bars is not None:
            bars.console.print(line, highlight=False, markup=False)
        elif is_wanted:
            stream.write(line + "\n")
            stream.flush()

    def compiled() -> None:
        if bars is not None:
            bars.advance(compiling)

    def tuned(text: str) -> None:
        show(f"[{next(done)}/{cases}] {text}")
        if bars is not None:
            bars.advance(measuring)

    with contextlib.nullcontext() if bars is None else bars:
        show(f"{cases} convolutions, {compiles} configurations to compile")
        yield compiled, tuned


def candidates(
    problem: ConvProblem,
    direction: Direction,
    dtype: torch.dtype,
    device: Device,
    *,
    count: int = MOST_CANDIDATES,
    **fields: Any,
) -> list[Any]:
    """Returns the configurations worth measuring, at most ``count``, the model's choice first.

    There are none where no kernel of ours takes the problem, or its batch is empty.  ``fields`` are
    further fields of :class:`Case`, such as ``epilogue`` and ``out_dtype``.

    Raises:
        TypeError: An argument of another type; there is no such direction.
    """
    # Refuses wrong types before a model meets them.
    case = Case(direction=direction, problem=problem, dtype=dtype, **fields)
    if not isinstance(device, Device):
        raise TypeError(f"candidates: device is {device!r}: expected a Device")
    return planner.candidates(case, device, count)


def survey(cases: Iterable[Case], device: Device, count: int, force: bool) -> list[Outcome]:
    """Returns what is to be measured for cases, by key, and the results of those that are not.

    Arguments are as for :func:`tune`.
    """
    asked: dict[str, Case] = {}
    for case in cases:
        asked.setdefault(case.key(device.num_sms), case)
    found = []
    for key, case in asked.items():
        entry = None if force else _known(key, case, device)
        configs = () if entry is not None else tuple(planner.candidates(case, device, count))
        note = "known" if entry is not None else "" if configs else "no kernel takes it"
        if len(configs) == 1:
            configs, note = (), "one configuration only"
        found.append(Outcome(case=case, key=key, configs=configs, entry=entry, note=note))
    return found


def _known(key: str, case: Case, device: Device) -> Entry | None:
    """Returns a choice that was measured with this version of Triton, and can be used."""
    try:
        entry, _ = tables.read_choice(lookup.entries(device.name).get(key), case, device)
    except (TableError, tables.KindError):
        return None
    return entry if entry.triton == importlib.metadata.version("triton") else None


def tune(
    cases: Iterable[Case],
    *,
    device: torch.device | str | None = None,
    rounds: int = ROUNDS,
    count: int = MOST_CANDIDATES,
    force: bool = False,
    progress: bool = True,
    save: bool | str | pathlib.Path = True,
    seconds: float | None = None,
    jobs: int | None = None,
    compiler: CompilePool | None = None,
    clock: EventClock | None = None,
    gpu: Device | None = None,
    on_outcome: Callable[[Outcome], object] | None = None,
) -> Report:
    """Measures candidates for every case and keeps the fastest in the user's table.

    Each case is saved as soon as it is measured, and used from then on: plans are made anew.

    Args:
        cases: Cases in the order of measuring; of several with one key, the first counts.
        device: Where to measure; the current GPU by default.
        rounds: Measurements of each candidate.
        count: Candidates per case at most.
        force: Whether known cases are measured again.
        progress: Whether it is shown on standard error.
        save: Whether the user's table is written, or only this process told; a path to write to
            that file instead.
        seconds: Time after which no further case is measured, nor waited for; outcomes of the
            others say so.
        jobs: Compiling processes; one per core but one by default.
        compiler: Compiles, by a method ``submit``; by default processes that live as long as the
            call.
        clock: Measures, by methods ``prepare`` and ``measure``; CUDA events by default.
        gpu: The GPU to choose for; by default as the driver describes ``device``.
        on_outcome: Called with the outcome of each measured case before the next one is measured;
            an error that it raises ends the tuning.

    Raises:
        TypeError: ``cases`` holds something other than a ``Case``, or ``save`` is no path.
        UnsupportedError: There is no GPU that runs the kernels, or a CUDA graph is being captured.
        ValueError: There is no such device, or it is no GPU and no ``clock`` is given; ``rounds``,
            ``count`` or ``jobs`` is less than 1, or ``seconds`` is not positive.
    """
    begin = time.perf_counter()
    cases = _checked_cases(cases)
    check_options("tune", rounds=rounds, count=count, save=save, seconds=seconds, jobs=jobs)
    place = _checked_device(device, clock, is_named=gpu is not None)
    found = device_of(place, "tune") if gpu is None else gpu
    outcomes = {each.key: each for each in survey(cases, found, count, force)}
    todo = [each for each in outcomes.values() if each.configs]
    if not todo:
        return Report(found.name, tuple(outcomes.values()), time.perf_counter() - begin)
    end = math.inf if seconds is None else begin + seconds
    with ExitStack() as stack:
        if place.type == "cuda":
            stack.enter_context(torch.cuda.device(place))
        if compiler is None:
            compiler = stack.enter_context(CompilePool(jobs))
        compiles = sum(len(work.configs) for work in todo)
        compiled, tuned = stack.enter_context(progress_of(progress, compiles, len(todo)))
        futures = [[compiler.submit(w.case, each, found) for each in w.configs] for w in todo]
        for future in itertools.chain.from_iterable(futures):
            future.add_done_callback(lambda _: compiled())
        clock = EventClock(place) if clock is None else clock
        for work, waiting in zip(todo, futures, strict=True):
            outcome = replace(work, configs=(), note=_NO_TIME)
            if _are_done(waiting, end):
                errors = [future.result() for future in waiting]
                outcome = measure_case(work, errors, place, found, clock, rounds)
                tuned(str(outcome))
            if outcome.entry is not None:
                save = _keep(found.name, {work.key: outcome.entry.raw()}, save)
            outcomes[work.key] = outcome
            if on_outcome is not None:
                on_outcome(outcome)
        if place.type == "cuda":
            # Memory that was taken for measuring is not kept from the caller.
            torch.cuda.empty_cache()
    reload()
    return Report(found.name, tuple(outcomes.values()), time.perf_counter() - begin)


def _checked_cases(cases: object) -> list[Case]:
    expected = "tune: expected cases, such as what collect returns, got"
    if not isinstance(cases, Iterable) or isinstance(cases, (str, bytes)):
        raise TypeError(f"{expected} {type(cases).__name__}")
    found = list(cases)
    for case in found:
        if not isinstance(case, Case):
            raise TypeError(f"{expected} a {type(case).__name__} among them")
    return found


def check_options(
    name: str,
    device: torch.device | str | None = None,
    clock: EventClock | None = None,
    **options: Any,
) -> None:
    """Refuses options of :func:`tune` that are wrong whatever there is to tune, and anywhere.

    Errors begin with ``name``, the function that got them: TypeError for a ``save`` that is no
    path, ValueError for numbers that are too small and devices, no GPU without a clock included.
    """
    seconds, save = options.get("seconds"), options.get("save", True)
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and seconds > 0):
        raise ValueError(f"{name}: seconds is {seconds!r}: expected a positive number")
    if not isinstance(save, (bool, str, pathlib.PurePath)):
        raise TypeError(f"{name}: save is {save!r}: expected True, False or the path of a file")
    for option in ("rounds", "count", "jobs"):
        value = options.get(option, 1)
        if (value is not None or option != "jobs") and (type(value) is not int or value < 1):
            raise ValueError(f"{name}: {option} is {value!r}: expected an int of at least 1")
    if device is not None:
        _parsed_device(name, device, clock)


def _parsed_device(name: str, device: torch.device | str, clock: EventClock | None) -> torch.device:
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}: device is {device!r}: {str(error).splitlines()[0]}") from error
    if place.type != "cuda" and clock is None:
        raise ValueError(f"{name}: device is {str(place)!r}: expected a GPU, or a clock")
    return place


def _checked_device(
    device: torch.device | str | None, clock: EventClock | None, is_named: bool
) -> torch.device:
    """Returns where to measure: with ``is_named`` the device need not be the GPU's."""
    has_gpu = torch.cuda.is_available()
    place = _parsed_device("tune", device or ("cuda" if has_gpu or not is_named else "cpu"), clock)
    if place.type != "cuda":
        return place
    count = torch.cuda.device_count() if has_gpu else 0
    if place.index is not None and place.index >= count:
        raise ValueError(f"tune: device is {str(place)!r}: torch sees {count} GPUs")
    if not has_gpu:
        raise UnsupportedError(
            f"tune: there is no GPU to measure on (torch {torch.__version__} sees none)"
        )
    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("tune: a CUDA graph is being captured; tune before the capture")
    return place if place.index is not None else torch.device("cuda", torch.cuda.current_device())


def _are_done(futures: Sequence[Future[str]], end: float) -> bool:
    """Waits for futures; cancels them and returns False where the time is over first."""
    left = end - time.perf_counter()
    if left > 0:
        wait(futures, timeout=None if math.isinf(left) else left)
    if time.perf_counter() < end:
        return True
    for future in futures:
        future.cancel()  # those of a compiler that goes on living
    return False


def _keep(
    gpu: str, entries: dict[str, tables.RawEntry], save: bool | str | pathlib.Path
) -> bool | str | pathlib.Path:
    """Tells this process choices and saves them; returns where others go, False for nowhere."""
    lookup.add(gpu, entries, "what this process measured")
    if save is False:
        return save
    try:
        path = tables.user_path(gpu) if save is True else pathlib.Path(save)
        update_table(path, Table(gpu, entries))
    except (OSError, TableError) as error:
        warnings.warn(
            f"choices are used, but cannot be saved: {error}", TuningWarning, stacklevel=3
        )
        return False
    return save


def measure_case(
    work: Outcome,
    errors: Sequence[str],
    device: torch.device,
    gpu: Device,
    clock: EventClock,
    rounds: int,
) -> Outcome:
    """Measures the candidates of a case, and torch in the same rounds where it computes the same.

    ``errors`` say why a candidate did not compile; they are empty for the others.
    """
    case = work.case
    try:
        given = measure.make_tensors(case, device)
        trials, failures = measure.agreeing(case, work.configs, errors, device, given)
        torchs = measure.torch_trials(case, gpu, given) if trials else []
        times = measure.interleaved(trials + torchs, clock, rounds)
    except torch.OutOfMemoryError:
        return replace(work, configs=(), note="no memory to measure in")
    result = replace(work, configs=(), failures=tuple(failures))
    if not trials:
        return replace(result, note="no candidate runs")
    best = min(range(len(trials)), key=times.__getitem__)
    config, is_first = trials[best].config, trials[0].config == work.configs[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    entry = Entry(
        kind=tables.kind_of(config),
        config=tables.encode(config),
        us=round(times[best], 2),
        model_us=round(times[0], 2) if is_first else 0.0,
        torch_us=round(times[-1], 2) if torchs else 0.0,
        measured=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        triton=importlib.metadata.version("triton"),
    )
    return replace(result, entry=entry, is_new=True)


def is_torch_faster(case: Case, device: torch.device) -> bool:
    """Tells whether torch takes less time for a case than the kernel that the planner chooses.

    Both are measured where no table has their times and their models are not sure.  That needs a
    GPU that may be used for it: no graph is being captured, algorithms need not be deterministic
    (``torch.use_deterministic_algorithms``), and ``TRITON_EXT_TUNING`` is not 0.  This process
    keeps the times; :func:`tune` measures the case all the same.
    """
    ratio, is_measured = planner.torch_ratio(case, device)
    if not is_measured:
        if ratio > _SURE or ratio < 1 / _SURE or not _may_race(device):
            return ratio < 1
        ratio = _race(case.dense, device)
    return ratio < _TIE


def _may_race(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and os.environ.get("TRITON_EXT_TUNING") != "0"
        and not torch.are_deterministic_algorithms_enabled()
        and not torch.cuda.is_current_stream_capturing()
    )


def _race(case: Case, device: torch.device) -> float:
    """Measures torch beside the planner's choice; returns torch's time over that of the choice."""
    gpu = device_of(device, case.operator)
    choice = planner.measured(case, gpu) or planner.cheapest(case, gpu)
    assert choice is not None  # there is something to compare torch with
    work = Outcome(case=case, key=case.key(gpu.num_sms), configs=(choice.config,))
    with torch.cuda.device(device):
        clock = EventClock(device)
        entry = measure_case(work, [""], device, gpu, clock, _RACE_ROUNDS).entry
    if entry is None or not entry.torch_us:
        return math.inf
    # Without the version of Triton it does not count as tuned.
    raw = replace(entry, triton="").raw()
    lookup.add(gpu.name, {work.key: raw}, "what this process measured")
    return entry.torch_us / entry.us
