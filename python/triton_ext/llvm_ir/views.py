"""Typed views of the instructions that a rewrite has to understand.

A view is made by ``match``, which returns ``None`` for every other instruction and for forms that
it does not cover; it says where in the instruction's text each operand stands, and is stale as soon
as that text is edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .lexer import OPENING, Token, TokenKind, group_end, split_commas, tokenize
from .nodes import Instruction

__all__ = ["Binary", "Call", "Freeze", "Operand", "Phi", "Select"]

# Words that begin a value; behind a type, every other word is an attribute of an argument.
_CONSTANTS: Final = frozenset(
    {"true", "false", "null", "undef", "poison", "zeroinitializer", "none", "splat"}
)
_VALUE_WORDS: Final = _CONSTANTS | frozenset(
    {"getelementptr", "inttoptr", "ptrtoint", "ptrtoaddr", "bitcast", "addrspacecast", "trunc"}
    | {"add", "sub", "mul", "xor", "shl", "extractelement", "insertelement", "shufflevector"}
    | {"asm", "blockaddress", "dso_local_equivalent", "no_cfi", "ptrauth"}
)
_BINARY: Final = ("add", "sub", "or")
_FAST_MATH: Final = frozenset({"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc", "fast"})


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as it is written in an instruction.

    Attributes:
        type: Its type, as written; empty where the instruction writes it once for several.
        text: The value.
        start: Offset of the value in the instruction's text.
        type_start: Offset of the type; of the value where the type is written once.
    """

    type: str
    text: str
    start: int
    type_start: int

    @property
    def end(self) -> int:
        """Offset behind the value."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Call:
    """``call``, of a function or of inline assembly.

    Attributes:
        instruction: The instruction.
        callee: ``@name`` or ``%name``; empty for inline assembly.
        template: The assembly, quotes included; empty for a function.
        constraints: Its constraints, quotes included; empty for a function.
        args: The arguments.
        callee_span: Offsets of the callee in the text; for assembly those of its two strings.
        args_span: Offsets between the parentheses.
    """

    instruction: Instruction
    callee: str
    template: str
    constraints: str
    args: tuple[Operand, ...]
    callee_span: tuple[int, int]
    args_span: tuple[int, int]

    @classmethod
    def match(cls, instruction: Instruction) -> Call | None:
        """Returns the view, or ``None``."""
        if instruction.opcode != "call":
            return None
        tokens = _tokens(instruction)
        at = _callee(tokens)
        if at is None:
            return None
        last = at
        template = constraints = callee = ""
        if tokens[at].text == "asm":
            strings = [t for t in tokens[at:] if t.kind is TokenKind.STRING][:2]
            if len(strings) < 2:
                return None
            template, constraints = (token.text for token in strings)
            at, last = tokens.index(strings[0]), tokens.index(strings[1])
        else:
            callee = tokens[at].text
        close = group_end(tokens, last + 1)
        if close < 0 or tokens[last + 1].text != "(":
            return None
        args = [_operand(instruction.text, part) for part in _parts(tokens, last + 2, close - 1)]
        if any(arg is None for arg in args):
            return None
        return cls(
            instruction,
            callee,
            template,
            constraints,
            tuple(arg for arg in args if arg is not None),
            (tokens[at].start, tokens[last].end),
            (tokens[last + 1].end, tokens[close - 1].start),
        )


@dataclass(frozen=True, slots=True)
class Phi:
    """``phi``.

    Attributes:
        instruction: The instruction.
        type: Type of all of its values.
        incoming: The values.
        labels: The blocks they come from, in the same order.
    """

    instruction: Instruction
    type: str
    incoming: tuple[Operand, ...]
    labels: tuple[str, ...]

    @classmethod
    def match(cls, instruction: Instruction) -> Phi | None:
        """Returns the view, or ``None``."""
        if instruction.opcode != "phi":
            return None
        tokens = _body(instruction)
        first = next((i for i, t in enumerate(tokens) if _is_pair(tokens, i)), None)
        if first is None or first < 2:
            return None
        type_text = _text(instruction.text, tokens[1:first])
        incoming, labels = [], []
        for part in _without_attachments(split_commas(tokens[first:])):
            value = split_commas(part[1:-1])
            if part[0].text != "[" or len(value) != 2 or not value[0] or len(value[1]) != 1:
                return None
            text = _text(instruction.text, value[0])
            incoming.append(Operand("", text, value[0][0].start, value[0][0].start))
            labels.append(value[1][0].text)
        return cls(instruction, type_text, tuple(incoming), tuple(labels))


@dataclass(frozen=True, slots=True)
class Select:
    """``select`` with a condition of one bit.

    Attributes:
        instruction: The instruction.
        condition: The condition.
        on_true: Chosen where it holds.
        on_false: Chosen where it does not.
    """

    instruction: Instruction
    condition: Operand
    on_true: Operand
    on_false: Operand

    @classmethod
    def match(cls, instruction: Instruction) -> Select | None:
        """Returns the view, or ``None``."""
        if instruction.opcode != "select":
            return None
        operands = _operands(instruction, 3)
        if operands is None or operands[0].type.split()[-1:] != ["i1"]:
            return None
        return cls(instruction, *operands)


@dataclass(frozen=True, slots=True)
class Binary:
    """``add``, ``sub`` or ``or`` of integers.

    Attributes:
        instruction: The instruction.
        opcode: Which of them.
        flags: Words behind the opcode, such as ``nsw``.
        type: Type of both operands and the result.
        left: The first operand.
        right: The second one.
    """

    instruction: Instruction
    opcode: str
    flags: tuple[str, ...]
    type: str
    left: Operand
    right: Operand

    @classmethod
    def match(cls, instruction: Instruction) -> Binary | None:
        """Returns the view, or ``None``."""
        opcode = instruction.opcode
        if opcode not in _BINARY:
            return None
        parts = _without_attachments(split_commas(_body(instruction)[1:]))
        if len(parts) != 2 or len(parts[0]) < 2:
            return None
        flags = [t.text for t in parts[0] if t.text in ("nuw", "nsw", "disjoint")]
        typed = _operand(instruction.text, parts[0][len(flags) :])
        if typed is None:
            return None
        at = parts[1][0].start
        right = Operand("", _text(instruction.text, parts[1]), at, at)
        return cls(instruction, opcode, tuple(flags), typed.type, typed, right)


@dataclass(frozen=True, slots=True)
class Freeze:
    """``freeze``.

    Attributes:
        instruction: The instruction.
        value: The value that is frozen.
    """

    instruction: Instruction
    value: Operand

    @classmethod
    def match(cls, instruction: Instruction) -> Freeze | None:
        """Returns the view, or ``None``."""
        operands = _operands(instruction, 1) if instruction.opcode == "freeze" else None
        return cls(instruction, *operands) if operands is not None else None


def _tokens(instruction: Instruction) -> list[Token]:
    return tokenize(instruction.text, max(instruction.line, 1))


def _body(instruction: Instruction) -> list[Token]:
    """The tokens from the opcode on, without fast-math flags."""
    start = instruction.body_start
    tokens = [token for token in _tokens(instruction) if token.start >= start]
    return [token for token in tokens if token.text not in _FAST_MATH]


def _text(source: str, tokens: list[Token]) -> str:
    return source[tokens[0].start : tokens[-1].end] if tokens else ""


def _without_attachments(parts: list[list[Token]]) -> list[list[Token]]:
    """Drops ``!dbg !7`` and the like."""
    return [part for part in parts if part and part[0].kind is not TokenKind.METADATA]


def _operands(instruction: Instruction, count: int) -> list[Operand] | None:
    """The typed operands of an instruction that writes each with its type."""
    parts = _without_attachments(split_commas(_body(instruction)[1:]))
    operands = [_operand(instruction.text, part) for part in parts]
    found = [operand for operand in operands if operand is not None]
    return found if len(found) == len(parts) == count else None


def _operand(source: str, tokens: list[Token]) -> Operand | None:
    """Reads ``type attributes value``; ``None`` where that cannot be told apart."""
    type_end = _type_end(tokens)
    for i in range(type_end, len(tokens)):
        token = tokens[i]
        if token.kind is TokenKind.WORD and token.text not in _VALUE_WORDS:
            continue  # an attribute
        if token.text == "(":
            # That of an attribute; a value in parentheses follows its word.
            end = group_end(tokens, i)
            if end < 0:
                return None
            return _operand_behind(source, tokens, type_end, end)
        if token.kind is TokenKind.STRING or token.text == "=":
            continue  # an attribute in quotes
        if token.kind is TokenKind.NUMBER and tokens[i - 1].text == "align":
            continue
        type_text, value = _text(source, tokens[:type_end]), _text(source, tokens[i:])
        return Operand(type_text, value, token.start, tokens[0].start)
    return None


def _operand_behind(source: str, tokens: list[Token], type_end: int, start: int) -> Operand | None:
    """Reads on behind the parentheses of an attribute."""
    found = _operand(source, tokens[type_end - 1 : type_end] + tokens[start:])
    if found is None:
        return None
    return Operand(_text(source, tokens[:type_end]), found.text, found.start, tokens[0].start)


def _type_end(tokens: list[Token]) -> int:
    """Index behind the type at the start of a list of tokens; 0 for none."""
    if not tokens:
        return 0
    end = group_end(tokens, 0) if tokens[0].text in OPENING else 1
    if tokens[0].text == "target":
        end = group_end(tokens, 1)
    if tokens[0].text == "ptr" and end < len(tokens) and tokens[end].text == "addrspace":
        end = group_end(tokens, end + 1)
    while 0 < end < len(tokens) and tokens[end].text == "*":
        end += 1
    return max(end, 0)


def _callee(tokens: list[Token]) -> int | None:
    """Index of a call's callee: what stands right in front of the arguments."""
    start = next((i for i, t in enumerate(tokens) if t.text == "call"), len(tokens))
    i = start + 1
    while i < len(tokens):
        token = tokens[i]
        if token.text == "asm":
            return i
        if token.kind in (TokenKind.GLOBAL, TokenKind.LOCAL):
            # A named type is followed by the callee, or by the arguments of a function's type.
            behind = tokens[i + 1 : i + 2]
            if behind and behind[0].text == "(" and behind[0].start == token.end:
                return i
        i = group_end(tokens, i) if token.text in OPENING else i + 1
        if i <= 0:
            return None
    return None


def _parts(tokens: list[Token], start: int, end: int) -> list[list[Token]]:
    return split_commas(tokens[start:end])


def _is_pair(tokens: list[Token], index: int) -> bool:
    """Returns whether a bracket opens a pair of value and label, and not the type of an array."""
    if tokens[index].text != "[":
        return False
    end = group_end(tokens, index)
    return len(split_commas(tokens[index + 1 : end - 1])) == 2
