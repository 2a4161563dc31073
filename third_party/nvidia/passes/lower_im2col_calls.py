"""Calls of markers and tiled TMA copies in LLVM IR become im2col copies.

For hosts that cannot lower an im2col copy themselves (3.6, 3.7).  Before::

    %1 = call i32 @triton_ext.im2col.pixel.3(i32 %n, i32 %h, i32 %w)
    %2 = call i32 @triton_ext.im2col.channel.3(i32 %c, i32 %r, i32 %s)
    call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx
        ::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 %p, ptr addrspace(3) %buf, ptr %x,
        i32 %2, i32 %1, ptr addrspace(3) %bar)

After::

    %3 = trunc i32 %s to i16
    %4 = trunc i32 %r to i16
    call void asm sideeffect "@$0 cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::
        complete_tx::bytes [$1], [$2, {$3, $4, $5, $6}], [$7], {$8, $9};", "b,r,l,r,r,r,r,r,h,h"(
        i1 %p, ptr addrspace(3) %buf, ptr %x, i32 %c, i32 %w, i32 %h, i32 %n,
        ptr addrspace(3) %bar, i16 %3, i16 %4)

A value that holds a marker goes on to hold the number that distances are added to: the channel, or
w (of a CTA's part of the block; ``cluster_start.py`` has taken that number off before).  The other
values get instructions beside each ``phi``, ``select`` and ``freeze`` that the marker went through.

A block of more pixels than a tiled box has rows comes as several copies, each at its own distance
from the first pixel.  One im2col copy has room for all of them, so only the first one is issued::

    %3 = and i32 %distance, 511
    %4 = icmp eq i32 %3, 0
    %5 = and i1 %p, %4

Safe direction: a module that cannot be lowered exactly is an error; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from triton_ext.llvm_ir import (
    Binary,
    Call,
    Entity,
    Freeze,
    Function,
    Instruction,
    Module,
    Operand,
    Phi,
    Select,
    parse,
)
from triton_ext.markers import CHANNEL, MARKED

from ..dialect.tma_asm import TiledCopy, im2col_asm
from .call_flow import CallFlow, error_in, marker_of

__all__ = ["lower_im2col_calls"]


def lower_im2col_calls(text: str, filename: str = "<llir>") -> str:
    """Lowers every marker of an LLVM IR module.

    Args:
        text: The module.
        filename: Its name in errors about places that have no place in the user's program.

    Raises:
        ParseError: The module is malformed.
        PassError: See :class:`CallFlow`; or the two markers of a copy do not fit each other.
    """
    if MARKED not in text:
        return text
    module = parse(text, filename)
    for function in module.functions:
        if MARKED in str(function):
            _lower_function(module, function)
    _check_nothing_left(module)
    for entity in list(module.entities):
        if isinstance(entity, Entity) and _belongs_to_marker(entity):
            module.remove(entity)
    return str(module)


def _belongs_to_marker(entity: Entity) -> bool:
    """Returns whether an entity declares a marker, or is debug information of one."""
    if entity.keyword == "declare":
        return MARKED in entity.name
    return f'!DISubprogram(name: "{MARKED}' in entity.text


def _lower_function(module: Module, function: Function) -> None:
    flow = CallFlow.of(module, function, MARKED)
    tuples = _Tuples(function, flow)
    for name in flow.carriers:
        tuples.of(name)
    for copy in flow.copies:
        _replace_copy(module, function, copy, tuples)
    for record in flow.records:
        record.erase()
    for call in flow.markers:
        call.instruction.erase()


@dataclass(slots=True)
class _Tuples:
    """The values that each carrier stands for, made on demand and once.

    The first one is what distances are added to: the channel, or w of a pixel; behind it stand the
    offsets, or n and the other coordinates; at the end of a pixel whose block is cut into several
    boxes, the distance itself.

    Attributes:
        function: Where they are made.
        flow: Where the markers go.
    """

    function: Function
    flow: CallFlow
    _made: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, name: str) -> tuple[str, ...]:
        """Returns the values that a carrier, or nothing at all, stands for."""
        if name not in self._made:
            self._make(name)
        return self._made[name]

    def _make(self, name: str) -> None:
        carrier = self.flow.carriers[name]
        call, phi, select = Call.match(carrier), Phi.match(carrier), Select.match(carrier)
        freeze, binary = Freeze.match(carrier), Binary.match(carrier)
        marker = marker_of(call)
        if call is not None and marker is not None:
            values = [arg.text for arg in call.args]
            first = values.pop(0 if marker.kind == CHANNEL else -1)
            self._made[name] = (first, *values, *(["0"] if marker.rows else []))
        elif phi is not None:
            self._expand_phi(name, phi)
        elif select is not None:
            self._expand_select(name, select)
        elif freeze is not None:
            self._expand_freeze(name, freeze)
        elif binary is not None:
            self._expand_sum(name, binary)

    def _arity(self, name: str) -> int:
        kind = self.flow.kinds[name]
        return kind.arity + bool(kind.rows)

    def _sources(self, names: list[str], arity: int) -> list[tuple[str, ...]]:
        """Returns the values that operands stand for; one that is no marker stands for itself."""
        return [self.of(name) if name in self.flow.carriers else (name,) * arity for name in names]

    def _expand_phi(self, name: str, phi: Phi) -> None:
        arity = self._arity(name)
        # First, because what comes in may come from this one.
        added = [self.function.fresh_name() for _ in range(arity - 1)]
        self._made[name] = (name, *added)
        rows = self._sources([operand.text for operand in phi.incoming], arity)
        _replace_all(phi.instruction, phi.incoming, [row[0] for row in rows])
        attached = _attached(phi.instruction)
        for i, result in enumerate(added, start=1):
            ways = zip(rows, phi.labels, strict=True)
            pairs = ", ".join(f"[ {row[i]}, {label} ]" for row, label in ways)
            phi.instruction.insert_after(f"{result} = phi i32 {pairs}{attached}")

    def _expand_select(self, name: str, select: Select) -> None:
        arity = self._arity(name)
        operands = (select.on_true, select.on_false)
        rows = self._sources([operand.text for operand in operands], arity)
        if name in self._made:
            return  # on the way round a loop
        _replace_all(select.instruction, operands, [row[0] for row in rows])
        attached = _attached(select.instruction)
        added = [self.function.fresh_name() for _ in range(arity - 1)]
        for i, result in enumerate(added, start=1):
            select.instruction.insert_after(
                f"{result} = select i1 {select.condition.text}, i32 {rows[0][i]}, "
                f"i32 {rows[1][i]}{attached}"
            )
        self._made[name] = (name, *added)

    def _expand_freeze(self, name: str, freeze: Freeze) -> None:
        (values,) = self._sources([freeze.value.text], self._arity(name))
        if name in self._made:
            return
        _replace_all(freeze.instruction, [freeze.value], [values[0]])
        attached = _attached(freeze.instruction)
        added = [self.function.fresh_name() for _ in values[1:]]
        for result, value in zip(added, values[1:], strict=True):
            freeze.instruction.insert_after(f"{result} = freeze i32 {value}{attached}")
        self._made[name] = (name, *added)

    def _expand_sum(self, name: str, binary: Binary) -> None:
        carrier = binary.left if binary.left.text in self.flow.carriers else binary.right
        other = binary.right if carrier is binary.left else binary.left
        first, *rest = self.of(carrier.text)
        if name in self._made:
            return
        instruction = binary.instruction
        # Facts about bits of the marker do not hold for the number: no flags, and no "or".
        opcode = "sub" if binary.opcode == "sub" else "add"
        result = instruction.text[: instruction.body_start]
        behind = instruction.text[binary.right.end :]
        instruction.set_text(f"{result}{opcode} i32 {first}, {other.text}{behind}")
        if self.flow.kinds[name].rows:
            rest[-1] = self._moved(instruction, opcode, rest[-1], other.text)
        self._made[name] = (name, *rest)

    def _moved(self, instruction: Instruction, opcode: str, distance: str, other: str) -> str:
        """A distance after a sum; a constant one stays one."""
        if opcode == "add" and distance == "0":
            return other
        if opcode == "add" and distance.isdigit() and other.isdigit():
            return str(int(distance) + int(other))
        moved = self.function.fresh_name()
        place = _attached(instruction)
        instruction.insert_after(f"{moved} = {opcode} i32 {distance}, {other}{place}")
        return moved


def _replace_all(
    instruction: Instruction, operands: Sequence[Operand], values: Iterable[str]
) -> None:
    """Replaces operands, which stand in the order of the text."""
    for operand, value in reversed([*zip(operands, values, strict=True)]):
        instruction.replace(operand.start, operand.end, value)


def _attached(instruction: Instruction) -> str:
    """Returns the debug location of an instruction, to append to one that replaces it."""
    location = instruction.location
    return f", !dbg !{location}" if location is not None else ""


def _replace_copy(module: Module, function: Function, copy: TiledCopy, tuples: _Tuples) -> None:
    call, instruction = copy.call, copy.call.instruction
    pixel = call.args[copy.pixel_index].text
    rows = tuples.flow.kinds[pixel].rows
    w, *outer = tuples.of(pixel)
    distance = outer.pop() if rows else "0"
    if distance.isdigit() and int(distance) % (rows or 1):
        instruction.erase()
        return
    channel, *offsets = tuples.of(call.args[copy.channel_index].text)
    if len(outer) != len(offsets):
        raise error_in(
            module,
            instruction,
            f"a start pixel of {len(outer) + 1} values meets {len(offsets)} filter offsets: "
            "one offset per spatial dimension is needed",
        )
    narrow = []
    for offset in reversed(offsets):
        narrow.append(function.fresh_name())
        text = f"{narrow[-1]} = trunc i32 {offset} to i16{_attached(instruction)}"
        instruction.insert_before(text)
    # The innermost coordinate first, where (n, [d, [h,]] w) and c are outermost first.
    coordinates = [channel, w, *reversed(outer)]
    template, constraints = im2col_asm(copy, len(coordinates))
    predicate = call.args[0].text
    if not distance.isdigit():
        predicate = _at_first_row(function, instruction, predicate, distance, rows)
    text = instruction.text
    kept = [text[arg.type_start : arg.end] for arg in call.args]
    args = [
        f"i1 {predicate}",
        *kept[1 : copy.channel_index],
        *(f"i32 {value}" for value in coordinates),
        kept[copy.barrier_index],
        *(f"i16 {value}" for value in narrow),
        *kept[copy.barrier_index + 1 :],
    ]
    head, tail = text[: call.callee_span[0]], text[call.args_span[1] :]
    instruction.set_text(f'{head}"{template}", "{constraints}"({", ".join(args)}{tail}')


def _at_first_row(
    function: Function, instruction: Instruction, predicate: str, distance: str, rows: int
) -> str:
    """Returns the predicate of a copy that is only issued at the first row of a CTA's part."""
    row, is_first, both = (function.fresh_name() for _ in range(3))
    for text in (
        f"{row} = and i32 {distance}, {rows - 1}",
        f"{is_first} = icmp eq i32 {row}, 0",
        f"{both} = and i1 {predicate}, {is_first}",
    ):
        instruction.insert_before(text + _attached(instruction))
    return both


def _check_nothing_left(module: Module) -> None:
    for entity in module.entities:
        if isinstance(entity, Function):
            for instruction in entity.instructions():
                if f"@{MARKED}" in instruction.text or f'@"{MARKED}' in instruction.text:
                    raise error_in(module, instruction, "an im2col marker was not lowered")
