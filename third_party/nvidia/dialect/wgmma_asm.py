"""The WGMMA as Triton writes it into LLVM IR: inline assembly with one operand per register.

Grammar (PTX ISA, ``wgmma.mma_async``)::

    wgmma.mma_async.sync.aligned.m64nNkK.f32.a.b {d}, a-desc, b-desc, scale-d, imm-scale-a,
        imm-scale-b[, imm-trans-a, imm-trans-b];

Scale-d is a predicate, and the registers d are read as well; or it is 0, where the compiler knows
that the accumulator starts at zero.

Each thread has N / 2 registers of an fp32 accumulator, 4 for 8 columns, in the order of the
columns (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16").  So the registers of two
neighbouring WGMMAs, one after the other, are the registers of one WGMMA as wide as both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triton_ext.llvm_ir import Call, Instruction

__all__ = ["MAX_N", "Wgmma", "joined_text", "result_type"]

#: Largest N; every multiple of 8 up to it is one.
MAX_N: Final = 256

_NAME: Final = "wgmma.mma_async.sync.aligned."
_TEMPLATE: Final = re.compile(
    rf"{re.escape(_NAME)}m64n(?P<n>\d+)(?P<kind>k\d+\.f32\.\w+\.\w+) \{{(?P<d>[$\d,]+)\}}, "
    r"\$(?P<a>\d+), \$(?P<b>\d+), (?:\$(?P<scale>\d+)|0)(?P<flags>(?:, -?\d+)*);"
)
# Imm-trans-b stands behind the two scales and imm-trans-a.
_TRANS_B: Final = 3


@dataclass(frozen=True, slots=True)
class Wgmma:
    """A WGMMA of two operands in shared memory, and accumulators of fp32.

    Attributes:
        call: The inline assembly.
        columns: N.
        kind: K and the types, as written.
        flags: The immediate operands, as written.
        adds: Whether it reads an accumulator, to which it may add.
    """

    call: Call
    columns: int
    kind: str
    flags: str
    adds: bool

    @classmethod
    def match(cls, instruction: Instruction) -> Wgmma | None:
        """Returns the view, or ``None``."""
        if _NAME not in instruction.text:
            return None
        call = Call.match(instruction)
        match = _TEMPLATE.fullmatch(call.template.strip('"')) if call is not None else None
        if call is None or match is None:
            return None
        columns, adds = int(match["n"]), match["scale"] is not None
        registers = columns // 2
        operands = _operands(registers, adds)
        found = (match["d"], *(match[name] for name in ("a", "b", "scale")[: len(operands)]))
        wanted_args = registers * adds + len(operands)
        if found != (_numbers(registers), *map(str, operands)) or len(call.args) != wanted_args:
            return None
        if call.constraints.strip('"') != _constraints(registers, adds):
            return None
        return cls(call, columns, match["kind"], match["flags"], adds)

    @classmethod
    def is_one(cls, instruction: Instruction) -> bool:
        """Returns whether an instruction is a WGMMA of any kind, including kinds without a view."""
        return _NAME in instruction.text

    @property
    def accumulator(self) -> tuple[str, ...]:
        """The accumulator's registers as operands; none if the accumulator starts at zero."""
        return tuple(arg.text for arg in self.call.args[: self.columns // 2 * self.adds])

    @property
    def left(self) -> str:
        """The descriptor of the left operand."""
        return self.call.args[len(self.accumulator)].text

    @property
    def right(self) -> str:
        """The descriptor of the right operand."""
        return self.call.args[len(self.accumulator) + 1].text

    @property
    def scale(self) -> str:
        """The predicate of the addition to the accumulator; ``0`` if it starts at zero."""
        return self.call.args[len(self.accumulator) + 2].text if self.adds else "0"

    @property
    def is_transposed(self) -> bool:
        """True if the columns of the right operand, not its rows, are contiguous."""
        flags = self.flags.split(", ")[1:]
        return len(flags) > _TRANS_B and flags[_TRANS_B] != "0"


def joined_text(parts: Sequence[Wgmma], accumulator: Sequence[str]) -> str:
    """Returns the first of neighbours over the columns of all of them, without its result.

    Args:
        parts: The neighbours, in order.
        accumulator: The registers that are added to.
    """
    first = parts[0]
    columns = sum(part.columns for part in parts)
    registers = columns // 2
    operands = _operands(registers, first.adds)
    behind = ", ".join([*(f"${number}" for number in operands), *["0"] * (not first.adds)])
    template = f"{_NAME}m64n{columns}{first.kind} {{{_numbers(registers)}}}, {behind}{first.flags};"
    args = [f"float {value}" for value in accumulator]
    args += [_passed(first.call, len(first.accumulator) + i) for i in range(len(operands))]
    text = first.call.instruction.text
    tail = text[first.call.args_span[1] :].rstrip()
    return (
        f"call {result_type(columns)} asm sideeffect "
        f'"{template}", "{_constraints(registers, first.adds)}"({", ".join(args)}{tail}'
    )


def result_type(columns: int) -> str:
    """The type of an accumulator."""
    return f"{{ {', '.join(['float'] * (columns // 2))} }}"


def _passed(call: Call, index: int) -> str:
    arg = call.args[index]
    return call.instruction.text[arg.type_start : arg.end]


def _numbers(registers: int) -> str:
    return ",".join(f"${i}" for i in range(registers))


def _operands(registers: int, adds: bool) -> tuple[int, ...]:
    """Numbers of both descriptors, and of the predicate where there is one."""
    first = 2 * registers if adds else registers
    return tuple(range(first, first + 2 + adds))


def _constraints(registers: int, adds: bool) -> str:
    added = [*map(str, range(registers))] * adds
    return ",".join(["=f"] * registers + added + ["l", "l", "b"][: 2 + adds])
