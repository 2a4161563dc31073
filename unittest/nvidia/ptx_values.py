"""What the operands of instructions in straight-line PTX compute, as far as the tests need it.

Registers are followed backwards from an instruction and evaluated for given special registers and
kernel parameters.  Triton's code has each register assigned once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["Instruction", "evaluate", "im2col_copies", "straight_line"]

_INSTRUCTION = re.compile(r"^\s*(?:@(!?%p\d+)\s+)?([a-z][\w.:]*)\s+(.*);\s*$")
_MASK = (1 << 32) - 1


class Instruction:
    """An instruction: its guard, its name, and its operands as they are written."""

    def __init__(self, guard: str, name: str, operands: list[str]) -> None:
        self.guard, self.name, self.operands = guard, name, operands

    @property
    def lists(self) -> list[list[str]]:
        """The lists in braces among the operands."""
        return [
            [one.strip() for one in found.split(",")]
            for found in re.findall(r"\{([^{}]*)\}", ", ".join(self.operands))
        ]


def straight_line(ptx: str) -> list[Instruction]:
    """The instructions of PTX, in order."""
    found = []
    for line in ptx.split("\n"):
        match = _INSTRUCTION.match(line.split("//")[0])
        if match is not None:
            operands = re.split(r",\s*(?![^{\[]*[}\]])", match[3])
            found.append(Instruction(match[1] or "", match[2], [one.strip() for one in operands]))
    return found


def im2col_copies(ptx: str) -> list[Instruction]:
    """The im2col copies, in order."""
    return [one for one in straight_line(ptx) if ".im2col" in one.name]


def evaluate(ptx: str, register: str, given: Mapping[str, int]) -> int:
    """The signed value of a register of 32 bits or less.

    Args:
        ptx: The kernel.
        register: Such as ``%r5``, or a number.
        given: Values of special registers, and of parameters by ``param_N``.
    """
    defined = {one.operands[0].split("|")[0]: one for one in straight_line(ptx) if one.operands}
    value = _evaluate(defined, register, given)
    return value - (1 << 32) if value >> 31 else value


def _evaluate(defined: Mapping[str, Instruction], operand: str, given: Mapping[str, int]) -> int:
    if operand.lstrip("-").isdigit():
        return int(operand) & _MASK
    if operand in given:
        return given[operand] & _MASK
    one = defined[operand]
    assert not one.guard, f"{operand} is defined under a condition"
    name = one.name.split(".")[0]
    if one.name.startswith("ld.param"):
        match = re.search(r"param_\d+", one.operands[1])
        assert match is not None
        return given[match[0]] & _MASK
    arguments = [_evaluate(defined, source, given) for source in one.operands[1:]]
    if one.name.startswith("shfl.sync.idx"):
        return arguments[0]  # all lanes of a warp have the same here
    signed = ".s32" in one.name
    if signed and name in ("div", "rem", "shr"):
        arguments = [x - (1 << 32) if x >> 31 else x for x in arguments]
    return _compute(name, arguments) & _MASK


def _compute(name: str, args: list[int]) -> int:
    if name in ("mov", "cvt"):
        return args[0]
    if name == "mad":
        return args[0] * args[1] + args[2]
    if name == "neg":
        return -args[0]
    if name in ("div", "rem"):
        quotient = abs(args[0]) // abs(args[1]) * (1 if args[0] * args[1] >= 0 else -1)
        return quotient if name == "div" else args[0] - quotient * args[1]
    if name == "bfe":
        return args[0] >> args[1] & ((1 << args[2]) - 1)
    binary = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "shl": lambda a, b: a << b,
        "shr": lambda a, b: a >> b,
    }
    return binary[name](*args)
