"""Creates memory maps of a module's shared memory.

1. Offsets come from :mod:`~triton_ext.analysis.allocation`, or are Triton's own.
2. A bar covers the rows in which its buffer is live.  The regions of one ``ttg.warp_specialize``
   run concurrently, so a buffer of one of them has *ghost* rows in the others.
3. Access costs are those of :mod:`~triton_ext.analysis.bank_conflicts` for ``ttg.local_load``,
   ``ttg.local_store`` and ``ttg.local_alloc`` with a tensor.  Copies that bypass registers and
   matrix products that read memory themselves have no cost.

Scratch memory of unknown size is missing; :attr:`FunctionMap.unknown` names the operations, and
then the total is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from ..errors import TritonExtError, UnsupportedError, VerifyError
from ..ir import Block, Module, Operation, Value
from ..ir.aliases import AliasTable
from ..ir.dialects import ttg
from ..ir.encodings import DistributedEncoding, SharedEncoding
from ..ir.functions import CALLS, FUNCTIONS, callee_of, symbol_of
from ..ir.types import MemDescType, TensorType
from .alias_sets import is_buffer, view_source
from .allocation import Buffer, BufferKind, FunctionAllocation, Scratch, allocate, unknown_scratch
from .bank_conflicts import Access, BankModel, Phase, partition_slots, phases, wavefronts
from .liveness import Liveness
from .memory_effects import Effects, effects_of
from .memory_map import (
    AccessMap,
    Bar,
    Effect,
    FunctionMap,
    ModuleMap,
    Row,
    RowKind,
    SharedMemory,
    Unknown,
)
from .trip_count import trip_count

__all__ = ["map_of"]

_LOOPS: Final = frozenset({"scf.for", "scf.while"})
_CHOOSES_ROWS: Final = "nvidia-matrix-rows"
#: Maximum number of instructions examined to find the one with most wavefronts.
_MOST: Final = 256


def map_of(
    module: Module,
    memory: SharedMemory,
    *,
    function: str = "",
    features: Set[str] | None = None,
    as_triton: bool = False,
) -> ModuleMap:
    """Maps a module.

    Args:
        module: The module.
        memory: The shared memory of the GPU.
        function: Map only this function.
        features: Capabilities of the host (``triton_ext.host.features``); ``None`` if unknown.
        as_triton: Whether to use that Triton's placement.

    Raises:
        VerifyError: The size of a buffer is unknown, or Triton's placement would not terminate.
    """
    if features is not None and _CHOOSES_ROWS not in features:
        memory = replace(memory, banks=replace(memory.banks, chooses_rows=False))
    table = AliasTable.of(module.aliases)
    scratch = Scratch(module.op, table, features, memory.target)
    missing = frozenset(unknown_scratch(module, scratch=scratch))
    allocation = allocate(
        module,
        partition_size=memory.partition_bytes,
        scratch=lambda op: (0, 1) if op in missing else scratch(op),
        features=features,
        as_triton=as_triton,
    )
    functions = {symbol_of(op) or "": found for op, found in allocation.functions.items()}
    maps = []
    for name, found in functions.items():
        if function in ("", name):
            made = _Mapper(name, found, memory, table, missing).map()
            if made.rows or function:
                maps.append(made)
    placed_by = "Triton" if as_triton else "triton-ext"
    return ModuleMap(memory=memory, functions=tuple(maps), placed_by=placed_by)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row under construction: the operation, and its position among all operations."""

    row: Row
    op: Operation
    position: float


class _Mapper:
    def __init__(
        self,
        name: str,
        found: FunctionAllocation,
        memory: SharedMemory,
        table: AliasTable,
        missing: frozenset[Operation],
    ) -> None:
        self.name = name
        self.found = found
        self.memory = memory
        self.table = table
        self.missing = missing
        self.liveness = Liveness(found.function)
        self.by_op: dict[Operation, list[int]] = {}
        self.by_value: dict[Value, list[int]] = {}
        for index, buffer in enumerate(found.buffers):
            self.by_op.setdefault(buffer.op, []).append(index)
            if buffer.value is not None:
                self.by_value.setdefault(buffer.value, []).append(index)
        self.holders: dict[Value, list[int]] = {}
        for value, indices in (*self.by_value.items(), *self._returned()):
            for alias in self.liveness.aliases(value):
                self.holders.setdefault(alias, []).extend(indices)
        # Waiting for and counting an mbarrier moves none of its bytes.
        self.barriers = {
            index
            for value, indices in self.by_value.items()
            if "xi64, " in value.type
            for index in indices
        }
        self.accesses: dict[tuple[object, ...], AccessMap] = {}

    def _returned(self) -> Iterator[tuple[Value, list[int]]]:
        """Yields the buffers that calls return, and the places of their memory."""
        for op, indices in self.by_op.items():
            if op.name in CALLS:
                yield from ((result, indices) for result in op.results if is_buffer(result))

    def map(self) -> FunctionMap:
        function = self.found.function
        entries = [entry for region in function.regions for entry in self._blocks(region.blocks, 0)]
        bars = tuple(self._bar(index, entries) for index in range(len(self.found.buffers)))
        rows = tuple(
            replace(entry.row, alive=sum(bar.size for bar in bars if bar.is_at(index)))
            for index, entry in enumerate(entries)
        )
        inside = [op for op in self.liveness.order if op in self.missing]
        return FunctionMap(
            name=self.name,
            rows=rows,
            bars=bars if rows else (),
            accesses=tuple(self.accesses.values()),
            total=self.found.total,
            lower_bound=self.found.lower_bound,
            is_optimal=self.found.is_optimal,
            unknown=tuple(Unknown(name=op.name, line=_line(op), op=op) for op in inside),
            allocation=self.found,
        )

    # ---- rows

    def _blocks(self, blocks: Sequence[Block], depth: int) -> Iterator[_Entry]:
        for block in blocks:
            inner = depth + (len(blocks) > 1)
            found = _merged(entry for op in block.ops for entry in self._op(op, inner))
            if not found:
                continue
            if len(blocks) == 1:
                yield from found
                continue
            head = Row(kind=RowKind.OPEN, depth=depth, head="block", rest=block.label or "entry")
            yield _Entry(head, block.ops[0], found[0].position - 0.5)
            yield from found
            tail = Row(kind=RowKind.CLOSE, depth=depth)
            yield _Entry(tail, block.ops[-1], found[-1].position + 0.25)

    def _op(self, op: Operation, depth: int) -> Iterator[_Entry]:
        if op.regions and op.name not in FUNCTIONS:
            inner = list(self._box(op, depth))
            if inner:
                yield from inner
                return
        row = self._row(op, depth)
        if row is not None:
            yield _Entry(row, op, self.liveness.number(op))

    def _box(self, op: Operation, depth: int) -> Iterator[_Entry]:
        regions = list(op.regions)
        for region in op.regions:
            for block in region.blocks:
                for nested in block.ops:
                    if nested.name == ttg.PARTITIONS:
                        regions.remove(region)
                        regions += nested.regions
        parts = [list(self._blocks(region.blocks, depth + 1)) for region in regions]
        if not any(parts) and not self._row(op, depth):
            return
        opened = Row(
            kind=RowKind.OPEN,
            depth=depth,
            line=_line(op),
            head=op.name.rpartition(".")[2],
            rest=_title(op),
            is_loop=op.name in _LOOPS,
            uses=tuple((index, Effect.USE) for index in self.by_op.get(op, ())),
            needs=self._needs(op),
        )
        yield _Entry(opened, op, _first(op, self.liveness) - 0.5)
        for number, part in enumerate(parts):
            if number:
                yield self._border(op, number, depth, part, regions[number].blocks)
            yield from part
        closed = Row(kind=RowKind.CLOSE, depth=depth)
        yield _Entry(closed, op, self.liveness.number(op))

    def _border(
        self, op: Operation, number: int, depth: int, part: list[_Entry], blocks: Sequence[Block]
    ) -> _Entry:
        words = {"scf.if": "else", "scf.while": "do"}
        word = words.get(op.name, f"region {number}")
        if op.name == ttg.WarpSpecializeOp.NAME:
            word = f"partition {number - 1}"
        at = part[0].position if part else _start(blocks, self.liveness)
        return _Entry(Row(kind=RowKind.SPLIT, depth=depth, head=word), op, at - 0.25)

    def _row(self, op: Operation, depth: int) -> Row | None:
        uses = self._uses(op)
        needs = self._needs(op)
        if not (uses or needs) or view_source(op) is not None or op.successors:
            return None
        if op.name.endswith(("yield", "condition", "_return", ".return")):
            return None
        head = op.name.rpartition(".")[2]
        rest = ", ".join(dict.fromkeys(_name(self.found.buffers[i]) for i, _ in uses))
        return Row(
            kind=RowKind.OPERATION,
            depth=depth,
            line=_line(op),
            head=f"call @{callee_of(op)}" if op.name in CALLS else head,
            rest="" if op.name in CALLS else rest,
            uses=uses,
            access=self._access(op, rest),
            needs=needs,
        )

    def _needs(self, op: Operation) -> str:
        return "needs memory of unknown size" if op in self.missing else ""

    def _uses(self, op: Operation) -> tuple[tuple[int, Effect], ...]:
        found: dict[int, Effect] = {}
        effects = effects_of(op)
        for index in self.by_op.get(op, ()):
            found[index] = Effect.WRITE if op.operands else Effect.USE
        for operand in op.operands:
            for index in self.holders.get(operand, ()):
                is_barrier = index in self.barriers and op.name != ttg.LocalStoreOp.NAME
                found[index] = Effect.USE if is_barrier else _effect(effects, operand)
        return tuple(found.items())

    # ---- bars

    def _bar(self, index: int, entries: list[_Entry]) -> Bar:
        buffer = self.found.buffers[index]
        live = buffer.live
        inside = [n for n, e in enumerate(entries) if live.start <= e.position < live.end]
        if not inside:
            before = [n for n, e in enumerate(entries) if e.position <= live.start]
            inside = [before[-1] if before else 0]
        opened = [n for n, e in enumerate(entries) if e.op is buffer.op]
        if buffer.kind is not BufferKind.EXPLICIT and opened and live.end == live.start + 1:
            # Scratch memory is needed from the start.
            inside = opened[:1]
        ghost = None
        if live.regions:
            number = live.regions[0][0]
            around = [n for n, e in enumerate(entries) if self.liveness.number(e.op) == number]
            if around:
                ghost = around[0] + 1, around[-1]
        size = self.memory.partition_bytes
        partitions: tuple[int, ...] = ()
        if size:
            last = max(buffer.offset, buffer.end - 1) // size
            end = min(last + 1, self.memory.partitions)
            partitions = tuple(range(buffer.offset // size, end))
        return Bar(
            name=_name(buffer),
            value=next(n for n, b in enumerate(self.found.buffers) if b.op is buffer.op),
            kind=buffer.kind,
            offset=buffer.offset,
            size=buffer.size,
            partitions=partitions,
            first=inside[0],
            last=inside[-1],
            ghost=ghost,
            line=_line(buffer.op),
        )

    # ---- accesses

    def _access(self, op: Operation, name: str) -> int | None:
        operands = _moved(op)
        if operands is None:
            return None
        tensor, buffer = operands
        is_store = op.name != ttg.LocalLoadOp.NAME
        key: tuple[object, ...]
        made: Access | str
        try:
            made = self._access_of(tensor, buffer)
            key = (made, is_store)
        except TritonExtError as error:
            made = getattr(error, "message", str(error))
            key = (made, is_store, op)
        known = self.accesses.get(key)
        if known is None:
            known = self._cost(made, is_store)
            if not is_store and 0 < known.bits <= 16:
                known = replace(known, may_be_transposed=self.memory.has_transposing_loads)
        self.accesses[key] = replace(
            known,
            names=tuple(dict.fromkeys((*known.names, name))),
            lines=tuple(dict.fromkeys((*known.lines, _line(op)))),
        )
        return list(self.accesses).index(key)

    def _access_of(self, tensor: Value, buffer: Value) -> Access:
        values, memory = self.table.type(tensor.type), self.table.type(buffer.type)
        if not isinstance(values, TensorType) or not isinstance(memory, MemDescType):
            raise UnsupportedError("a type that triton-ext does not know")
        if not isinstance(values.encoding, DistributedEncoding):
            raise UnsupportedError("the tensor has no encoding that triton-ext knows")
        if not isinstance(memory.encoding, SharedEncoding):
            raise UnsupportedError("the buffer has no encoding that triton-ext knows")
        bits = max(8, values.bit_width or 64)
        shape = values.static_shape
        return Access.of(values.encoding, memory.encoding, shape, bits, memory.alloc_shape)

    def _cost(self, access: Access | str, is_store: bool) -> AccessMap:
        blank = AccessMap(names=(), lines=(), is_store=is_store)
        if isinstance(access, str):
            return replace(blank, reason=access)
        model = self.memory.banks
        try:
            cost = wavefronts(access, model, is_store=is_store)
        except VerifyError as error:
            return replace(blank, reason=error.message)
        slots = None
        if "partition" in access.layout.out_dim_names:
            slots = partition_slots(access)
        is_transposed = model.has_matrices and bool(access.transposed_bits)
        return replace(
            blank,
            bits=access.instruction_bits if not is_transposed else 128,
            is_transposed=is_transposed,
            cost=cost,
            phases=_worst(access, model, is_store),
            partition_slots=slots,
            may_be_misaligned=model.has_matrices and _is_torn(access),
        )


def _merged(entries: Iterable[_Entry]) -> list[_Entry]:
    """Merges successive operations with equal entries into one row."""
    found: list[_Entry] = []
    for entry in entries:
        last = found[-1] if found else None
        if last is not None and entry.row.kind is RowKind.OPERATION:
            times = last.row.times + 1
            if replace(last.row, times=1) == entry.row:
                found[-1] = replace(last, row=replace(last.row, times=times))
                continue
        found.append(entry)
    return found


def _is_torn(access: Access) -> bool:
    """Returns whether paddings of 16 bytes would allow wider instructions.

    On NVIDIA, Triton 3.8 and 3.9 report to LLVM an alignment that ignores paddings, and LLVM merges
    accesses to misaligned instructions: ``ld.shared.v4.b32`` at bytes 0, 260, ... for rows of 256
    bytes that are padded by 4.
    """
    whole = 128 // access.element_bits
    padding = tuple((interval, max(pad, whole)) for interval, pad in access.padding)
    return replace(access, padding=padding).instruction_bits > access.instruction_bits


def _worst(access: Access, model: BankModel, is_store: bool) -> tuple[Phase, ...]:
    """Returns the phases of the first instruction with most wavefronts."""
    firsts = access.first_registers() if access.padding else [0]
    warps = range(access.layout.in_dim_size("warp")) if access.padding else [0]
    places = [(register, warp) for warp in warps for register in firsts][:_MOST]
    found = (
        phases(access, model, is_store=is_store, register=register, warp=warp)
        for register, warp in places
    )
    return max(found, key=lambda made: sum(phase.wavefronts for phase in made))


def _moved(op: Operation) -> tuple[Value, Value] | None:
    """Returns the tensor and the buffer of an operation that copies one to the other."""
    if op.name == ttg.LocalLoadOp.NAME:
        return op.results[0], op.operands[0]
    if op.name == ttg.LocalStoreOp.NAME:
        return op.operands[0], op.operands[1]
    if op.name == ttg.LocalAllocOp.NAME and op.operands:
        return op.operands[0], op.results[0]
    return None


def _effect(effects: Effects, buffer: Value) -> Effect:
    found = [effect for effect in effects.effects if effect.value is buffer]
    reads = any(effect.reads for effect in found)
    if reads == any(effect.writes for effect in found):
        return Effect.USE
    return Effect.READ if reads else Effect.WRITE


def _name(buffer: Buffer) -> str:
    if buffer.value is not None:
        return buffer.value.name
    if buffer.kind is BufferKind.VIRTUAL:
        return f"@{callee_of(buffer.op)}"
    if buffer.op.name in FUNCTIONS:
        return "states of warps"
    return f"scratch of {buffer.op.name.rpartition('.')[2]}"


def _line(op: Operation) -> int:
    known = op.loc.resolve() if op.loc is not None else None
    return known[1] if known is not None else op.error("").line


def _title(op: Operation) -> str:
    if op.name == ttg.WarpSpecializeOp.NAME:
        return "default"
    if op.name != "scf.for":
        return ""
    trips = trip_count(op)
    if trips is None:
        return "any number of iterations"
    return f"{trips} iteration{'s' if trips != 1 else ''}"


def _first(op: Operation, liveness: Liveness) -> int:
    """Returns the number of the first operation nested in an operation."""
    return _start([block for region in op.regions for block in region.blocks], liveness)


def _start(blocks: Sequence[Block], liveness: Liveness) -> int:
    for block in blocks:
        if block.ops:
            first = block.ops[0]
            return _first(first, liveness) if first.regions else liveness.number(first)
    return 0
