"""Where the im2col markers of an LLVM IR function go: forward data flow from each call to copies.

Properties, for each value that can hold a marker:

1. It is the result of a marker's call, or a value that ``phi``, ``select`` or ``freeze`` passes on,
   or the sum of one and a number: the distance of a box from the first, or of a CTA's part of the
   block.
2. Every use of it is one of those, the matching coordinate of a tiled TMA copy, or debug
   information; any other use is an error at the user's line.
3. It holds one kind of marker (pixel or channel) with one number of operands.

Not covered: markers in memory, in vectors or in structs, and in calls of functions.  They are
refused by name, never guessed; ``triton-ext-localize-im2col`` leaves nothing of the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from triton_ext.errors import PassError
from triton_ext.llvm_ir import (
    Binary,
    Call,
    Freeze,
    Function,
    Instruction,
    Module,
    Phi,
    Select,
    source_position,
)
from triton_ext.markers import PIXEL, kind_of, rows_of
from triton_ext.passes.places import source_line_of

from ..dialect.tma_asm import TiledCopy

__all__ = ["CallFlow", "Marker", "error_in", "marker_of", "summands"]

# Constants that stand for no value where a marker is not needed.
_NOTHING: Final = ("poison", "undef")


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker: the position that a value stands for.

    Attributes:
        kind: ``PIXEL`` or ``CHANNEL``.
        arity: Number of values it carries.
        rows: Pixels of the block, if the host cuts it into several boxes; otherwise 0.
    """

    kind: str
    arity: int
    rows: int = 0

    def __str__(self) -> str:
        what = "start pixel" if self.kind == PIXEL else "channel and offsets"
        return f"{what} of {self.arity} values"


@dataclass(frozen=True, slots=True)
class CallFlow:
    """The result of the analysis of a function.

    Attributes:
        markers: The calls, in order.
        carriers: Every value that can hold a marker, with the instruction that defines it.
        kinds: The marker that each of them stands for.
        copies: The copies whose two coordinates are markers, in order.
        records: Debug records that name a carrier.
    """

    markers: tuple[Call, ...]
    carriers: dict[str, Instruction]
    kinds: dict[str, Marker]
    copies: tuple[TiledCopy, ...]
    records: tuple[Instruction, ...]

    @classmethod
    def of(cls, module: Module, function: Function, word: str) -> CallFlow:
        """Analyses a function.

        Args:
            module: Its module.
            function: The function.
            word: Text that the name of every marker contains.

        Raises:
            PassError: A marker is used as a number, meets one of another kind, or takes a way that
                is not covered.
        """
        return _Search(module, function, word).run()


def marker_of(call: Call | None) -> Marker | None:
    """Returns the marker that a call makes; ``None`` for other calls."""
    symbol = call.callee[1:].strip('"') if call is not None else ""
    kind = kind_of(symbol)
    return Marker(kind, len(call.args), rows_of(symbol)) if call is not None and kind else None


class _Search:
    """One analysis: the users of each carrier, and theirs in turn."""

    def __init__(self, module: Module, function: Function, word: str) -> None:
        self._module = module
        self._function = function
        self._word = word
        self._carriers: dict[str, Instruction] = {}
        self._kinds: dict[str, Marker] = {}
        self._copies: dict[Instruction, set[str]] = {}
        self._records: dict[Instruction, None] = {}

    def run(self) -> CallFlow:
        markers: list[Call] = []
        for instruction in self._function.instructions():
            if self._word not in instruction.text:
                continue
            call = Call.match(instruction)
            marker = marker_of(call)
            if call is None or marker is None or not instruction.result:
                raise error_in(
                    self._module, instruction, "expected a plain call of the im2col marker's symbol"
                )
            markers.append(call)
            self._follow(instruction, marker)
        order = {one: i for i, one in enumerate(self._function.instructions())}
        copies = sorted(self._copies, key=order.__getitem__)
        self._check_origins()
        return CallFlow(
            tuple(markers),
            self._carriers,
            self._kinds,
            tuple(self._matched(one) for one in copies),
            tuple(self._records),
        )

    def _follow(self, start: Instruction, marker: Marker) -> None:
        todo = [start]
        while todo:
            carrier = todo.pop()
            name = carrier.result
            known = self._kinds.setdefault(name, marker)
            if known != marker:
                raise self._error(carrier, f"a {marker} meets a {known} in one value")
            if name in self._carriers:
                continue
            self._carriers[name] = carrier
            for user in self._function.users(name):
                if _passes_on(user, name):
                    todo.append(user)
                elif user.opcode.startswith("#dbg_"):
                    self._records[user] = None
                else:
                    self._reach(user, name, marker)

    def _reach(self, user: Instruction, name: str, marker: Marker) -> None:
        copy = TiledCopy.match(user)
        spots = [i for i, arg in enumerate(copy.call.args) if arg.text == name] if copy else []
        wanted = copy.pixel_index if copy and marker.kind == PIXEL else None
        if copy is not None and marker.kind != PIXEL:
            wanted = copy.channel_index
        if copy is None or spots != [wanted]:
            raise self._error(
                user,
                f"an im2col position ({marker}) is used by {user.opcode!r}: "
                "it is not a number and can only be passed to a load",
            )
        self._copies.setdefault(user, set()).add(marker.kind)

    def _matched(self, instruction: Instruction) -> TiledCopy:
        copy = TiledCopy.match(instruction)
        if copy is None or len(self._copies[instruction]) != 2:
            raise self._error(
                instruction, "only one of the two indices of this load comes from load_im2col"
            )
        return copy

    def _check_origins(self) -> None:
        """Checks that every source of a carrier is a carrier, too, or an undefined value."""
        for carrier in self._carriers.values():
            binary = Binary.match(carrier)
            both = (binary.left.text, binary.right.text) if binary is not None else ()
            if sum(value in self._carriers for value in both) == 2:
                raise self._error(carrier, "two im2col positions are added: they are not numbers")
            for value in _sources(carrier):
                if value not in self._carriers and value not in _NOTHING:
                    raise self._error(
                        carrier,
                        f"the im2col position {carrier.result} is {value} on one of its paths, "
                        "which does not come from load_im2col",
                    )

    def _error(self, instruction: Instruction, message: str) -> PassError:
        return error_in(self._module, instruction, message)


def _passes_on(instruction: Instruction, name: str) -> bool:
    """Returns whether an instruction passes a marker on from an operand to its result."""
    binary = Binary.match(instruction)
    if binary is not None:
        return name in summands(binary)
    select = Select.match(instruction)
    if select is not None:
        return select.condition.text != name
    return Phi.match(instruction) is not None or Freeze.match(instruction) is not None


def summands(binary: Binary) -> tuple[str, ...]:
    """The operands of which one may be a marker and the other the number that is added to it."""
    left, right = binary.left.text, binary.right.text
    if binary.type != "i32" or (binary.opcode == "or" and "disjoint" not in binary.flags):
        return ()
    return (left,) if binary.opcode == "sub" else (left, right)


def _sources(carrier: Instruction) -> tuple[str, ...]:
    """The operands of a carrier that have to be carriers as well."""
    phi, select, freeze = Phi.match(carrier), Select.match(carrier), Freeze.match(carrier)
    if phi is not None:
        return tuple(operand.text for operand in phi.incoming)
    if select is not None:
        return select.on_true.text, select.on_false.text
    return (freeze.value.text,) if freeze is not None else ()


def error_in(module: Module, instruction: Instruction, message: str) -> PassError:
    """Returns an error at the user's line an instruction was made from; else at its own."""
    known = source_position(module, instruction)
    if known is None:
        text = instruction.text.split("\n")[0]
        return PassError(
            message,
            filename=module.filename,
            line=instruction.line,
            column=len(text) - len(text.lstrip()) + 1 if instruction.line else 0,
            source_line=text,
        )
    filename, line, column = known
    return PassError(
        message,
        filename=filename,
        line=line,
        column=column,
        source_line=source_line_of(filename, line),
    )
