"""Reads the printed form of LLVM IR: one instruction, label or entity begins each line.

Guarantee: ``str(parse(text)) == text``.  Only structure is read here: what an instruction means is
read by a view (:mod:`.views`) of it when somebody asks, and what nobody asks for is never read.

Not covered, because LLVM reads but never prints it: two instructions on one line.  They are refused
where both have a result, and are else taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ParseError
from ..strings import lines_of
from .nodes import Block, Entity, Function, Instruction, Module

__all__ = ["parse"]

# One line feed after the other, but for those in strings; a quote in a comment is none.
_LINE = re.compile(r'[^\n";]*(?:"[^"]*"[^\n";]*)*(?:;[^\n]*)?(?:\n|\Z)')
_EMPTY = re.compile(r"\s*(?:;|\Z)")
_STRING_OR_COMMENT = re.compile(r'"[^"]*"|;[^\n]*')
_BRACKET = re.compile(r"[()\[\]{}]")
_LABEL = re.compile(r'[ \t]*("[^"]*"|[-a-zA-Z$._0-9]+):')
_KEYWORD = re.compile(r"[ \t]*([a-z_]+)\b")
_GLOBAL_NAME = re.compile(r'@(?:"[^"]*"|[-a-zA-Z$._0-9]+)')
_METADATA_NAME = re.compile(r"[ \t]*(![0-9]+)[ \t]*=")
# A line of a function that goes on with the instruction of the line before.
_CONTINUED = re.compile(r"[ \t]*(?:to|unwind|cleanup|catch|filter)\b")
_RESULT = re.compile(r'%(?:""|[-a-zA-Z$._0-9]+)[ \t]*=')


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with its number; one whose strings hold line feeds counts as one.

    Attributes:
        text: With its line feed.
        number: Counted from 1.
    """

    text: str
    number: int

    @property
    def is_empty(self) -> bool:
        """True for a line of spaces and a comment only."""
        return _EMPTY.match(self.text) is not None

    @property
    def plain(self) -> str:
        """Its text without strings and comments."""
        return _STRING_OR_COMMENT.sub("", self.text)

    def open_brackets(self, before: str = "") -> str | None:
        """The brackets that are still open behind it; ``None`` where one closes what is not open.

        Args:
            before: Those that are open in front of it.
        """
        text = self.plain if '"' in self.text or ";" in self.text else self.text
        if not before and (
            text.count("(") == text.count(")")
            and text.count("[") == text.count("]")
            and text.count("{") == text.count("}")
        ):
            return ""
        stack = before
        for bracket in _BRACKET.findall(text):
            if bracket in "([{":
                stack += bracket
            elif stack[-1:] + bracket in ("()", "[]", "{}"):
                stack = stack[:-1]
            else:
                return None
        return stack


def parse(text: str, filename: str = "<llvm>") -> Module:
    """Reads a module.

    Args:
        text: The module.
        filename: Its name in errors.

    Raises:
        ParseError: A string, a bracket or a function has no end, a brace closes nothing, or a line
            has two instructions.
    """
    reader = _Reader(text, filename)
    return Module(list(reader.entities()), filename)


class _Reader:
    """Goes over the lines of a module once."""

    def __init__(self, text: str, filename: str) -> None:
        self._filename = filename
        self._lines = self._split(text)
        self._position = 0

    def _split(self, text: str) -> list[_Line]:
        lines: list[_Line] = []
        position, number = 0, 1
        while position < len(text):
            match = _LINE.match(text, position)
            if match is None:
                line = lines_of(text[position:])[0]
                raise self._error(_Line(line, number), "this string has no end", line.index('"'))
            lines.append(_Line(match[0], number))
            number += match[0].count("\n")
            position = match.end()
        return lines

    def entities(self) -> Iterator[Entity | Function]:
        """Reads all of the module."""
        while self._position < len(self._lines):
            line = self._lines[self._position]
            keyword = _KEYWORD.match(line.text)
            if keyword is not None and keyword[1] == "define":
                yield self._function()
            elif line.is_empty:
                self._position += 1
                yield Entity(line.text, "", "", line.number)
            else:
                yield self._entity(line, keyword[1] if keyword is not None else "")

    def _entity(self, line: _Line, keyword: str) -> Entity:
        text = self._balanced(line)
        numbered = _METADATA_NAME.match(text)
        if numbered is not None:
            return Entity(text, "", numbered[1], line.number)
        # A definition of a global begins with the global's name.
        name = _GLOBAL_NAME.search(text)
        return Entity(text, keyword, name[0] if name is not None else "", line.number)

    def _balanced(self, first: _Line) -> str:
        """Takes lines until every bracket of the first one is closed."""
        text, still_open = [first.text], first.open_brackets()
        self._position += 1
        while still_open:
            if self._position == len(self._lines):
                raise self._error(first, f"the '{still_open[-1]}' of this line is never closed")
            line = self._lines[self._position]
            text.append(line.text)
            still_open = line.open_brackets(still_open)
            self._position += 1
        if still_open is None:
            line = self._lines[self._position - 1]
            raise self._error(line, "a bracket closes what was not opened")
        return "".join(text)

    def _function(self) -> Function:
        first = self._lines[self._position]
        header = self._header(first)
        name = _GLOBAL_NAME.search(header)
        if name is None:
            raise self._error(first, "expected a function with a name behind 'define'")
        blocks = [Block("", "", [])]
        pending: list[str] = []
        while True:
            if self._position == len(self._lines):
                raise self._error(first, f"the function {name[0]} has no end")
            line = self._lines[self._position]
            if line.is_empty:
                self._position += 1
                pending.append(line.text)
                continue
            if "}" in line.text and line.plain.strip() == "}":
                self._position += 1
                blocks[-1].tail = "".join(pending)
                break
            self._block_line(line, blocks, pending)
            pending = []
        function = Function(header, name[0], blocks, line.text, first.number)
        for block in blocks:
            block.function = function
            for instruction in block.instructions:
                instruction.block = block
        return function

    def _block_line(self, line: _Line, blocks: list[Block], pending: list[str]) -> None:
        """Takes a label or an instruction."""
        label = _LABEL.match(line.text)
        lead = "".join(pending)
        if label is not None:
            self._position += 1
            head = lead + line.text
            if len(blocks) == 1 and not blocks[0].instructions and not blocks[0].label:
                blocks[0].head, blocks[0].label = head, f"%{label[1]}"
            else:
                blocks.append(Block(head, f"%{label[1]}", []))
            rest = line.plain[line.plain.index(":") + 1 :].strip()
            if rest:
                raise self._error(line, "expected a line of its own for what is behind a label")
            return
        text = self._balanced(line)
        while self._position < len(self._lines):
            behind = self._lines[self._position]
            if _CONTINUED.match(behind.text) is None or _LABEL.match(behind.text) is not None:
                break
            text += self._balanced(behind)
        if text.count("=") > 1 and len(_RESULT.findall(_STRING_OR_COMMENT.sub('""', text))) > 1:
            raise self._error(line, "expected one instruction on a line, found two")
        blocks[-1].instructions.append(Instruction(text, line.number, lead))

    def _header(self, first: _Line) -> str:
        """Takes lines until one that ends with the brace that opens the body."""
        text = ""
        while self._position < len(self._lines):
            line = self._lines[self._position]
            self._position += 1
            text += line.text
            if line.plain.rstrip().endswith("{"):
                return text
            if line.plain.strip() == "}":
                break
        raise self._error(first, "expected a body in braces behind 'define'")

    def _error(self, line: _Line, message: str, column: int | None = None) -> ParseError:
        text = lines_of(line.text)[0] if line.text else ""
        if column is None:
            column = len(text) - len(text.lstrip())
        return ParseError(
            message,
            filename=self._filename,
            line=line.number,
            column=column + 1,
            source_line=text,
        )
