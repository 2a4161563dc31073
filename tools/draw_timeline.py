"""Draws the timeline of a warp-specialised convolution: the kernel of docs/im2col/5-roles.md.

The page's own programs are compiled for sm_90 and run in the emulator, which needs no GPU.  Every
wait, arrival, copy and product of the two roles is recorded with its mbarrier and phase.  The
picture keeps that order and those dependences; how long a copy or a product takes is assumed
(``_LANDS``, ``_PRODUCT`` and so on), since the emulator has no clock.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from environment import ROOT
from triton_ext.tools.picture_style import DARK, LIGHT, RULES
from triton_ext.tools.svg import document, path, rect, text

__all__ = ["Event", "Schedule", "record", "roles"]

STAGES, STEPS = 4, 9

# Assumed times, in products of one step.
_PRODUCT = 1.0
_ISSUE = 0.12  # of a copy, a product or an arrival
_COPY = 0.4  # between two copies of the TMA unit
_LANDS = 1.9  # from the start of a copy to its last byte
_STORE = 1.6

_PAGES = ("3-one-tile.md", "4-ring.md", "5-roles.md")
_PROGRAM = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Event:
    """An operation of a role, as the emulator ran it.

    Attributes:
        role: ``"producer"`` or ``"consumer"``.
        what: ``"wait"``, ``"expect"``, ``"copy"``, ``"arrive"``, ``"dot"``, ``"dot_wait"`` or
            ``"store"``.
        barrier: Number of the mbarrier; -1 where there is none.
        value: Of a wait the phase, of a ``"dot_wait"`` the products that may stay in flight.
    """

    role: str
    what: str
    barrier: int = -1
    value: int = 0


def record() -> list[Event]:
    """Runs the page's kernel for one tile of 9 steps; returns its events in order."""
    from triton_ext.gluon import nvidia as xnv

    with _programs():
        import ring  # type: ignore[import-not-found]
        import roles as page  # type: ignore[import-not-found]

        torch = importlib.import_module("torch")
        kernel = ring.compile_conv(page.conv_roles, stages=STAGES)
        x, w, y = torch.zeros(1, 8, 16, 64), torch.zeros(128, 9, 64), torch.zeros(128, 128)
        x, w, y = x.half(), w.half(), y.half()
        im2col = xnv.TensorDescriptorIm2Col
        x_desc = im2col.for_conv(x, (3, 3), padding=1, block_shape=[128, 64])
        descs = x_desc, ring.tiled(w, [128, 1, 64]), ring.tiled(y, [128, 128])
        events: list[Event] = []
        with _recorded(events):
            pair = (1, 1)
            ring.run(kernel, pair, *descs, (3, 3), 64, (8, 16), pair, pair, pair)
    return events


@contextlib.contextmanager
def _programs() -> Iterator[None]:
    """Puts the programs of the pages on the path while they run."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton 3.9 warns that TRITON_DEFAULT_FP_FUSION is unset
        names = []
        for page in _PAGES:
            source = (ROOT / "docs" / "im2col" / page).read_text(encoding="utf-8")
            for name, program in _PROGRAM.findall(source):
                pathlib.Path(folder, f"{name}.py").write_text(program, encoding="utf-8")
                names.append(name)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            for name in names:
                sys.modules.pop(name, None)


def _recorded(events: list[Event]) -> Any:
    """Returns a context in which the emulator's operations for sm_90 append their events."""
    operations = importlib.import_module("triton_ext.backends.nvidia.emulator.operations")
    table = operations.OPERATIONS
    changed = {name: _noting(table[name], note, events) for name, note in _notes().items()}
    return mock.patch.dict(table, changed)


def _noting(
    prepare: Callable[..., Any], note: Callable[..., Event | None], events: list[Event]
) -> Any:
    def prepared(op: Any, context: Any) -> Any:
        step = prepare(op, context)

        def noted(group: Any) -> None:
            step(group)
            event = note(op, group)
            if event is not None:
                events.append(event)

        return noted

    return prepared


def _role(group: Any) -> str:
    return "consumer" if "default" in group.agent.name else "producer"


def _notes() -> dict[str, Callable[..., Event | None]]:
    """Returns for each operation what makes an event of it."""
    nvidia = "triton_ext.backends.nvidia"
    mbarrier = importlib.import_module(f"{nvidia}.dialect.mbarrier")
    mma = importlib.import_module(f"{nvidia}.dialect.mma")
    tma = importlib.import_module(f"{nvidia}.dialect.tma")
    barrier_of = importlib.import_module(f"{nvidia}.emulator.mbarriers").barrier_of

    def on(kind: Any, what: str) -> Callable[[Any, Any], Event | None]:
        def note(op: Any, group: Any) -> Event | None:
            view = kind.match(op)
            if view.pred is not None and not group.values[view.pred]:
                return None
            barrier = barrier_of(op, group, group.values[view.barrier])
            # A wait has ended, so the phase that it was for is the last complete one.
            phase = barrier.phases - 1 if what == "wait" else 0
            return Event(_role(group), what, barrier.number, phase)

        return note

    def dot_wait(op: Any, group: Any) -> Event:
        pendings = mma.WarpGroupDotWaitOp.match(op).pendings
        return Event(_role(group), "dot_wait", value=pendings)

    return {
        mbarrier.WaitBarrierOp.NAME: on(mbarrier.WaitBarrierOp, "wait"),
        mbarrier.BarrierExpectOp.NAME: on(mbarrier.BarrierExpectOp, "expect"),
        mbarrier.ArriveBarrierOp.NAME: on(mbarrier.ArriveBarrierOp, "arrive"),
        tma.AsyncTmaCopyGlobalToLocalOp.NAME: on(tma.AsyncTmaCopyGlobalToLocalOp, "copy"),
        mma.WarpGroupDotOp.NAME: lambda op, group: Event(_role(group), "dot"),
        mma.WarpGroupDotWaitOp.NAME: dot_wait,
        tma.AsyncTmaCopyLocalToGlobalOp.NAME: lambda op, group: Event(_role(group), "store"),
    }


@dataclass(slots=True)
class Schedule:
    """Times of the events, each as early as what it waits for allows.

    Attributes:
        waits: Role, start, end and mbarrier of each wait.
        issues: Role, start and end of each copy, product and arrival.
        loads: Mbarrier, start and end of the copies of each step.
        products: Start and end of the product of each step.
        frees: Mbarrier and time of each arrival at an empty stage.
        ends: When each role is done.
        store: Start and end of the store.
    """

    waits: list[tuple[str, float, float, int]] = field(default_factory=list)
    issues: list[tuple[str, float, float]] = field(default_factory=list)
    loads: list[tuple[int, float, float]] = field(default_factory=list)
    products: list[tuple[float, float]] = field(default_factory=list)
    frees: list[tuple[int, float]] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=lambda: {"producer": 0.0, "consumer": 0.0})
    store: tuple[float, float] = (0.0, 0.0)
    _complete: dict[int, list[float]] = field(default_factory=dict)
    _unit: float = 0.0

    @classmethod
    def of(cls, events: list[Event]) -> Schedule:
        """Runs through the events, which are in an order that their waits allow."""
        found = cls()
        for event in events:
            getattr(found, f"_{event.what}")(event)
        return found

    def _spend(self, role: str, time: float = _ISSUE) -> float:
        start = self.ends[role]
        self.ends[role] = start + time
        self.issues.append((role, start, start + time))
        return start

    def _wait(self, event: Event) -> None:
        start = self.ends[event.role]
        # Phase -1 is the one before the first: its wait goes on at once.
        end = self._complete[event.barrier][event.value] if event.value >= 0 else start
        self.ends[event.role] = max(start, end)
        self.waits.append((event.role, start, max(start, end), event.barrier))

    def _expect(self, event: Event) -> None:
        self._complete.setdefault(event.barrier, []).append(self.ends[event.role])
        self.loads.append((event.barrier, self.ends[event.role], 0.0))

    def _copy(self, event: Event) -> None:
        start = max(self._spend(event.role), self._unit)
        self._unit = start + _COPY
        barrier, first, _ = self.loads[-1]
        assert barrier == event.barrier
        self.loads[-1] = (barrier, first, start + _LANDS)
        self._complete[barrier][-1] = start + _LANDS

    def _arrive(self, event: Event) -> None:
        time = self._spend(event.role)
        self._complete.setdefault(event.barrier, []).append(time)
        self.frees.append((event.barrier, time))

    def _dot(self, event: Event) -> None:
        issued = self._spend(event.role)
        start = max(issued, self.products[-1][1] if self.products else 0.0)
        self.products.append((start, start + _PRODUCT))

    def _dot_wait(self, event: Event) -> None:
        done = self.products[: len(self.products) - event.value]
        start = self.ends[event.role]
        end = max([start, *(end for _, end in done)])
        self.ends[event.role] = end
        self.waits.append((event.role, start, end, -1))

    def _store(self, event: Event) -> None:
        start = self._spend(event.role, _STORE)
        self.store = (start, start + _STORE)


# ---- The picture --------------------------------------------------------------------------------

_LEFT, _TOP, _UNIT, _ROW = 132, 92, 58, 34

#: Name, colour on light, colour on dark.
_COLOURS = (("load", "#0d9488", "#2dd4bf"), ("dot", "#7c3aed", "#a78bfa"))


def _colours(index: int) -> str:
    return "".join(
        f".b-{name}{{fill:{each[index]};fill-opacity:.22;stroke:{each[index]}}}"
        f".f-{name}{{fill:{each[index]}}}.s-{name}{{stroke:{each[index]};fill:none}}"
        for name, *each in _COLOURS
    )


_CSS = (
    f"{RULES}.held{{fill-opacity:0;stroke-dasharray:3 3}}.wait{{fill-opacity:.12}}"
    f".link{{stroke-width:1.5;fill:none}}"
    f"{LIGHT}.held{{stroke:#9ca3af}}.wait{{fill:#6b7280}}{_colours(0)}"
    f"@media (prefers-color-scheme:dark){{{DARK}.held{{stroke:#6b7280}}.wait{{fill:#9ca3af}}"
    f"{_colours(1)}}}"
)
_LANES = ("producer", *(f"stage {number}" for number in range(STAGES)), "products", "consumer")
_BELOW = {"producer": "1 warp", "products": "tensor cores", "consumer": "4 warps"}


def _x(time: float) -> float:
    return _LEFT + time * _UNIT


def _y(lane: str) -> float:
    gap = 16 if lane in ("products", "consumer") else 0
    return _TOP + _LANES.index(lane) * (_ROW + 12) + gap


def _bar(lane: str, start: float, end: float, classes: str, said: str = "") -> Iterator[str]:
    yield rect(_x(start), _y(lane), (end - start) * _UNIT, _ROW, classes, 4)
    if said:
        middle = (_x(start) + _x(end)) / 2
        yield text(middle, _y(lane) + 21, said, "ink", "middle")


def roles() -> str:
    """The timeline of the page's kernel."""
    found = Schedule.of(record())
    ready = [load[0] for load in found.loads[:STAGES]]
    parts = [
        text(24, 34, "A producer and a consumer, four stages between them", "ink title"),
        text(24, 58, "Numbers are k iterations: one filter tap, 64 channels.", "pale"),
    ]
    for lane in _LANES:
        parts.append(text(24, _y(lane) + (15 if lane in _BELOW else 21), lane, "ink bold"))
        if lane in _BELOW:
            parts.append(text(24, _y(lane) + 30, _BELOW[lane], "pale"))
    parts += _stages(found, ready)
    parts += _roles(found, ready)
    parts += _links(found, ready)
    bottom = _y("consumer") + _ROW + 34
    legend = (
        "Green: a load, from its issue until its bytes are there. Dashed: the stage waits, for its",
        "product or to be freed. Violet: a product. Grey: a role waits. Order and arrows are those",
        "of the kernel's mbarriers in the emulator; lengths are assumed, not measured.",
    )
    parts += [text(24, bottom + 18 * row, line, "pale") for row, line in enumerate(legend)]
    width = _round_up(_x(max(found.ends.values())) + 28)
    title = "Timeline of a warp-specialised convolution: producer, ring of stages, consumer"
    return document("\n".join(parts) + "\n", width, int(bottom + 52), title, _CSS)


def _round_up(value: float) -> int:
    """Rounds up to a multiple of 4."""
    return -(-int(value) // 4) * 4


def _stages(found: Schedule, ready: list[int]) -> Iterator[str]:
    """Bars of the ring: loading, ready, multiplied, not freed yet."""
    for step, (barrier, start, landed) in enumerate(found.loads):
        lane = f"stage {ready.index(barrier)}"
        begin, end = found.products[step]
        # The last stage is never freed: the kernel ends.
        freed = found.frees[step][1] if step < len(found.frees) else end
        yield from _bar(lane, landed, freed, "held")
        yield from _bar(lane, start, landed, "b-load", f"load {step}")
        yield from _bar(lane, begin, end, "b-dot", str(step))


def _roles(found: Schedule, ready: list[int]) -> Iterator[str]:
    for role, start, end, barrier in found.waits:
        if end - start > 0.25:
            what = "ready" if barrier in ready else "empty"
            said = f"waits for {what}" if barrier >= 0 and end - start > 1.8 else ""
            yield from _bar(role, start, end, "wait", said)
    for step, (_, start, _) in enumerate(found.loads):
        yield from _bar("producer", start, start + 2 * _ISSUE, "b-load")
        yield text(_x(start + _ISSUE), _y("producer") - 5, str(step), "pale", "middle")
    for step, (start, end) in enumerate(found.products):
        yield from _bar("products", start, end, "b-dot", str(step))
    yield from _bar("consumer", *found.store, "box", "store")


def _links(found: Schedule, ready: list[int]) -> Iterator[str]:
    """Arrows of the first round: ready to the consumer, empty to the producer."""
    _, _, landed = found.loads[0]
    yield from _arrow(landed, _y("stage 0") + _ROW, _y("consumer"), "s-load", "f-load")
    middle = _y("stage 3") + _ROW + 18
    yield text(_x(landed) - 5, middle, "ready", "f-load bold", "end")
    for number, (_, time) in enumerate(found.frees[: STEPS - STAGES]):
        yield from _arrow(time, _y("consumer"), _y("producer") + _ROW, "s-dot", "f-dot")
        if not number:
            yield text(_x(time) + 5, middle, "empty", "f-dot bold")


def _arrow(time: float, start: float, end: float, line: str, tip: str) -> Iterator[str]:
    x, down = _x(time), 1 if end > start else -1
    yield path(f"M{x:.1f} {start:.1f}V{end - 7 * down:.1f}", f"{line} link")
    yield path(f"M{x:.1f} {end:.1f}l-4 {-7 * down}h8z", tip)
