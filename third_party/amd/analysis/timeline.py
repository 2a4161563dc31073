"""The timeline of a module for an AMD GPU (:mod:`triton_ext.analysis.timeline`).

Numbers are those of ``tritonamdgpu-update-async-wait-count``, verdicts those of
``triton-ext-verify-async-waits``.

Safe direction: a copy shown as retired is retired; one shown as in flight may be, on some path.
No wait ends copies that arrive at an mbarrier; they are shown until the enclosing region ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from triton_ext.analysis.backward_flow import Point, Position, trip_count
from triton_ext.analysis.buffer_reference import BufferReferences
from triton_ext.analysis.timeline import (
    Call,
    Close,
    Commit,
    Copy,
    InFlight,
    Item,
    Lane,
    Open,
    Row,
    Section,
    Split,
    Timeline,
    Unsafe,
    Use,
    Wait,
)
from triton_ext.analysis.warps import num_warps_of
from triton_ext.errors import VerifyError
from triton_ext.ir import Block, Module, Operation
from triton_ext.ir.dialects import ttg
from triton_ext.ir.functions import CALLS, FUNCTIONS, callee_of, symbol_of

from . import async_events, wait_coverage
from .async_events import AsyncEvents
from .copies_in_flight import copies_in_flight
from .instruction_count import AsyncIssue
from .target import Lowering, Target
from .timeline_waits import WaitFacts, kind_of, lane_of, place_of
from .value_origins import buffer_name, token_origins
from .wait_coverage import Obligation, Violation, WaitCoverage
from .wait_numbers import WaitNumbers

__all__ = ["timeline_of"]

_LOOPS: Final = frozenset({"scf.for", "scf.while"})
_KINDS: Final = {
    "ttg.async_copy_global_to_local": "async load",
    "amdg.buffer_load_to_local": "buffer load",
    "amdg.async_copy_local_to_global": "async store",
    "amdg.async_tdm_copy_global_to_local": "TDM load",
    "amdg.async_tdm_copy_local_to_global": "TDM store",
    "amdg.async_tdm_fused_copy_global_to_local": "fused TDM load",
    "amdg.async_tdm_gather": "TDM gather",
    "amdg.async_tdm_scatter": "TDM scatter",
}
_REASONS: Final = {
    wait_coverage.Use.READ: "read before the data has arrived",
    wait_coverage.Use.SOURCE: "copied from LDS before the data has arrived",
    wait_coverage.Use.END: "still in flight where the kernel ends, and LDS is given away",
}


def timeline_of(
    module: Module, *, arch: str = "", features: frozenset[str] | None = None, function: str = ""
) -> Timeline:
    """Returns the timeline of a module.

    Args:
        module: The module, which must not change meanwhile.
        arch: The GPU, ``"gfx950"``; by default that of the module's ``ttg.target``.
        features: Names of the host's capabilities; ``None`` for an unknown host.
        function: The function to show; all of them by default.

    Raises:
        VerifyError: The GPU is not given, there is no such function, or an operation cannot be
            read.
        UnsupportedError: The GPU has no asynchronous copies to LDS.
    """
    functions = {symbol_of(op) or "": op for op in module.walk() if op.name in FUNCTIONS}
    if function and function not in functions:
        there = ", ".join(functions) or "none"
        module.op.fail(f"expected a function of the module ({there}), found '{function}'")
    known = Target.of(arch) if arch else None
    if not any(op.name.startswith(async_events.ASYNC) for op in module.walk()):
        return Timeline(arch=arch or "any GPU", copies=(), sections=())
    target = known or Target.of_module(module)
    events = AsyncEvents(module, target, Lowering.of(features))
    maker = _Maker(module, events)
    chosen = [functions[function]] if function else list(functions.values())
    sections = tuple(section for op in chosen if op.regions for section in maker.sections(op))
    return Timeline(arch=target.arch, copies=tuple(maker.copies.values()), sections=sections)


class _Maker:
    """Makes the sections of a module.

    Args:
        module: The module.
        events: Its asynchronous operations.

    Attributes:
        copies: Every copy by its operation.
    """

    def __init__(self, module: Module, events: AsyncEvents) -> None:
        self._events = events
        issues = [event for event in events if isinstance(event, AsyncIssue)]
        labels = _labels(issues)
        self._issues = issues
        self._numbers = WaitNumbers(WaitCoverage(module, events))
        self._references = self._numbers.coverage.references
        self.copies = {
            issue.op: _copy(issue, labels[issue.op], self._references) for issue in issues
        }
        self._uses: dict[Operation, list[Obligation]] = {}
        for obligation, checked in self._numbers.results.items():
            if obligation.buffer is None and checked.holds:
                continue  # the end of a kernel is not shown
            self._uses.setdefault(obligation.op, []).append(obligation)
        self._waits = WaitFacts(self._numbers, labels)
        self._asynchronous: dict[str, bool] = {}
        self._functions = {symbol_of(op) or "": op for op in module.walk() if op.name in FUNCTIONS}

    @property
    def _coverage(self) -> WaitCoverage:
        return self._numbers.coverage

    # ---- sections

    def sections(self, function: Operation) -> Iterator[Section]:
        """Yields the non-empty sections of a function and of its partitions."""
        name = symbol_of(function) or ""
        blocks = function.regions[0].blocks
        yield from self._section(name, None, blocks)
        for op in _walk(blocks):
            specialized = ttg.WarpSpecializeOp.match(op)
            for index, part in enumerate(specialized.partitions if specialized else ()):
                yield from self._section(name, index, part.block.parent.blocks)

    def _section(
        self, name: str, partition: int | None, blocks: tuple[Block, ...]
    ) -> Iterator[Section]:
        draft = list(self._blocks(blocks, 0))
        if not draft:
            return
        inside = [self._events.get(op) for op in _walk(blocks, partitions=False)]
        own = [event for event in inside if isinstance(event, AsyncIssue)]
        own_ops = {issue.op for issue in own}
        # Each partition runs on its own warps, which start without copies in flight.
        function = _function_of(blocks[0].parent_op)
        reachable = [
            issue
            for issue in self._issues
            if issue.op in own_ops or _function_of(issue.op) is not function
        ]
        entry = self._at(Position(Point(blocks[0], 0)), reachable)
        flying, rows = entry, []
        for op, item, depth, position in draft:
            if isinstance(item, Wait):
                flying = self._at(position, [self._issue(copy) for copy in flying])
            elif isinstance(item, Open | Split | Close | Call):
                flying = self._at(position, reachable)
            elif isinstance(item, Copy) and item.hi:
                flying = {**flying, op: 0}
            rows.append(Row(item, depth, self._in_flight(flying), self._unsafe(op, item)))
        seen = {flight.label for row in rows for flight in row.in_flight}
        copies = [copy for copy in self.copies.values() if copy.label in seen]
        copies += [self.copies[issue.op] for issue in own]
        waits = [event for event in inside if isinstance(event, async_events.Wait)]
        yield Section(
            name=name,
            partition=partition,
            waves=_waves(blocks),
            lanes=self._lanes({copy.lane for copy in copies}, waits),
            rows=tuple(rows),
            entry=self._in_flight(entry),
        )

    def _lanes(self, used: set[Lane], waits: list[async_events.Wait]) -> tuple[Lane, ...]:
        for wait in waits:
            lanes = [lane_of(queue) for queue in self._events.queues(wait.counter)]
            if used.isdisjoint(lanes):
                used.add(lanes[0])
        target = self._events.target
        order = [lane_of(queue) for queue in self._events.queues(target.copy_counter)]
        return tuple(lane for lane in (*order, lane_of(target.tdm_queue)) if lane in used)

    # ---- rows

    def _blocks(
        self, blocks: tuple[Block, ...], depth: int
    ) -> Iterator[tuple[Operation, Item, int, Position]]:
        """Yields the rows of a region, each with its operation and the position after it."""
        if len(blocks) == 1:
            yield from self._ops(blocks[0], depth)
            return
        for block in blocks:
            rows = list(self._ops(block, depth + 1))
            if not rows or not block.ops:
                continue
            first = block.ops[0]
            before = ", ".join(
                op.parent.label or "the entry" for op in block.predecessors if op.parent is not None
            )
            title = f"{block.label or 'entry'}{f' from {before}' if before else ''}"
            opened = Open(place_of(first), "block", title, is_loop=False)
            yield first, opened, depth, Position(Point(block, 0))
            yield from rows
            yield first, Close("block"), depth, Position(Point(block, len(block.ops)))

    def _ops(self, block: Block, depth: int) -> Iterator[tuple[Operation, Item, int, Position]]:
        for index, op in enumerate(block.ops):
            behind = Position(Point(block, index + 1))
            item = self._item(op)
            if item is not None:
                yield op, item, depth, behind
            elif op.regions and op.name not in FUNCTIONS:
                yield from self._box(op, depth, behind)

    def _box(
        self, op: Operation, depth: int, behind: Position
    ) -> Iterator[tuple[Operation, Item, int, Position]]:
        # Partitions have their own sections.
        regions = op.regions[:1] if op.name == ttg.WarpSpecializeOp.NAME else op.regions
        parts = [list(self._blocks(region.blocks, depth + 1)) for region in regions]
        if not any(parts) and not (len(regions) < len(op.regions) and self._has_partitions(op)):
            return
        kind = kind_of(op)
        starts = [Position(Point(region.blocks[0], 0)) for region in regions if region.blocks]
        opened = Open(place_of(op), kind, _title(op), op.name in _LOOPS)
        yield op, opened, depth, starts[0]
        for number, part in enumerate(parts):
            if number:
                yield op, Split(_border(op, number)), depth, starts[number]
            yield from part
        yield op, Close(kind), depth, behind

    def _has_partitions(self, op: Operation) -> bool:
        return any(
            self._events.get(inner) is not None
            for region in op.regions[1:]
            for inner in _walk(region.blocks)
        )

    def _item(self, op: Operation) -> Item | None:
        event = self._events.get(op)
        if isinstance(event, AsyncIssue):
            return self.copies[op]
        if isinstance(event, async_events.Wait):
            return self._waits.item(event)
        if isinstance(event, async_events.Commit):
            counter = lane_of(self._events.queues(self._events.target.copy_counter)[0]).counter
            names = [
                self.copies[o].label
                for t in op.operands
                for o in token_origins(t)
                if o in self.copies
            ]
            return Commit(place_of(op), counter, tuple(names))
        if op in self._uses:
            uses = self._uses[op]
            used = dict.fromkeys(use.buffer for use in uses if use.buffer is not None)
            buffers = dict.fromkeys(buffer_name(buffer, self._references) for buffer in used)
            return Use(
                place=place_of(op), op=op.name, what=uses[0].use.value, buffers=tuple(buffers)
            )
        if op.name in CALLS and self._is_asynchronous(callee_of(op) or ""):
            return Call(place_of(op), callee_of(op) or "")
        return None

    def _is_asynchronous(self, callee: str) -> bool:
        """Returns whether a function has asynchronous operations, or is unknown."""
        known = self._asynchronous.get(callee)
        if known is None:
            function = self._functions.get(callee)
            if function is None or not function.regions:
                return True
            self._asynchronous[callee] = False  # recursive calls add nothing
            known = any(
                self._events.get(op) is not None
                or (op.name in CALLS and self._is_asynchronous(callee_of(op) or ""))
                for op in _walk(function.regions[0].blocks)
            )
            self._asynchronous[callee] = known
        return known

    # ---- what is in flight

    def _issue(self, op: Operation) -> AsyncIssue:
        issue = self._events.get(op)
        if not isinstance(issue, AsyncIssue):
            raise AssertionError(f"'{op.name}' was taken for a copy")
        return issue

    def _at(self, position: Position, candidates: list[AsyncIssue]) -> dict[Operation, int]:
        return copies_in_flight(position, candidates, self._coverage)

    def _in_flight(self, flying: dict[Operation, int]) -> tuple[InFlight, ...]:
        return tuple(
            InFlight(copy.label, flying[op]) for op, copy in self.copies.items() if op in flying
        )

    def _unsafe(self, op: Operation, item: Item) -> tuple[Unsafe, ...]:
        if not isinstance(item, Copy | Use):
            return ()
        checks = [self._numbers.results[obligation] for obligation in self._uses.get(op, ())]
        found = [self._as_unsafe(v) for checked in checks for v in checked.violations]
        if any(checked.gave_up for checked in checks):
            found.append(Unsafe("", "too many paths lead here to decide"))
        return tuple(dict.fromkeys(found))

    def _as_unsafe(self, violation: Violation) -> Unsafe:
        path = self._waits.path(violation.steps)
        if violation.issue is None:
            return Unsafe("", "it is not known what ran before", path)
        does = "writes" if violation.issue.writes else "reads"
        reason = _REASONS.get(violation.obligation.use, f"written while the copy still {does} it")
        return Unsafe(self.copies[violation.issue.op].label, reason, path)


def _copy(issue: AsyncIssue, label: str, references: BufferReferences) -> Copy:
    buffers = (*issue.writes, *issue.reads)
    return Copy(
        label=label,
        place=place_of(issue.op),
        lane=lane_of(issue.queue),
        kind=_KINDS.get(issue.op.name, "copy"),
        is_store=not issue.writes,
        buffers=tuple(buffer_name(buffer, references) for buffer in buffers),
        lo=issue.instructions.lo,
        hi=issue.instructions.hi,
        is_masked=issue.is_masked,
    )


def _labels(issues: list[AsyncIssue]) -> dict[Operation, str]:
    """Returns a short name for each copy: the variable's, numbered if several share it."""
    names = [_base_label(issue.op) for issue in issues]
    shared, numbers = Counter(names), Counter[str]()
    labels: dict[Operation, str] = {}
    taken: set[str] = set()
    for issue, name in zip(issues, names, strict=True):
        numbers[name] += 1
        label = f"{name}{numbers[name]}" if shared[name] > 1 else name
        while label in taken:
            label += "'"
        taken.add(label)
        labels[issue.op] = label
    return labels


def _base_label(op: Operation) -> str:
    name = op.loc.name if op.loc is not None else None
    return name if name else "c"


def _title(op: Operation) -> str:
    if op.name != "scf.for":
        return ""
    trips = trip_count(op)
    if trips is None:
        return "any number of iterations"
    return f"{trips} iteration{'s' if trips != 1 else ''}"


def _border(op: Operation, number: int) -> str:
    if op.name == "scf.if":
        return "else"
    return "do" if op.name == "scf.while" else f"region {number}"


def _walk(blocks: tuple[Block, ...], *, partitions: bool = True) -> Iterator[Operation]:
    for block in blocks:
        for op in block.ops:
            yield op
            is_specialized = op.name == ttg.WarpSpecializeOp.NAME
            regions = op.regions[:1] if is_specialized and not partitions else op.regions
            for region in regions:
                yield from _walk(region.blocks, partitions=partitions)


def _function_of(op: Operation) -> Operation:
    while op.name not in FUNCTIONS and op.parent_op is not None:
        op = op.parent_op
    return op


def _waves(blocks: tuple[Block, ...]) -> int | None:
    try:
        return num_warps_of(blocks[0].ops[0])
    except VerifyError:
        return None
