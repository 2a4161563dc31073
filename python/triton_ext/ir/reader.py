"""Parses whole texts and fragments: the productions of the top level."""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import lexer
from .lexer import CLOSER, Source, find_group_end
from .module import Module
from .nodes import Block, Operation, Region
from .parser import Parser, trivia_end
from .values import Value

__all__ = ["parse", "parse_fragment"]

_STRING = re.compile(lexer.STRING)
#: A piece of an alias's text without brackets and quotes.
_ALIAS_WORD = re.compile(r"(?:[^\s\"()\[\]<>{}/-]+|->|-(?!>)|/(?!/))+")


class ModuleParser(Parser):
    """A parser with the productions of the top level.

    Args:
        source: The text.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.aliases: dict[str, str] = {}

    def parse_module(self) -> Module:
        """``module ::= (alias-definition | file-metadata | operation)*``."""
        text = self.text
        top = Operation(self.source, "builtin.module", None)
        region = Region(top, self.source, isolated=True)
        block = Block(region)
        region._blocks.append(block)
        top._regions.append(region)
        lead = position = 0
        while True:
            position = trivia_end(text, position)
            if position == len(text):
                break
            skipped = self.parse_optional_alias_definition(position)
            if skipped is None:
                skipped = self.parse_optional_file_metadata(position)
            if skipped is not None:
                position = skipped
                continue
            lead = position = self.parse_operation(block, lead, position, [])
        self.scope.check_pending()
        self.link_successors({})
        if len(block._ops) == 1 and block._ops[0].name == "builtin.module":
            top = block._ops[0]
            top.parent = None
            return Module(self.source, top, self.aliases, text[lead:])
        region._span = (0, lead)
        return Module(self.source, top, self.aliases, text[lead:])

    def parse_optional_alias_definition(self, position: int) -> int | None:
        """``alias-definition ::= ('#' | '!') name '=' (attribute | type | location)``."""
        if self.text[position] not in "#!":
            return None
        head = lexer.ALIAS_HEAD.match(self.text, position)
        if head is None:
            self.source.error(position, "expected an alias definition, 'name = ...'")
        name = head[1]
        if name in self.aliases:
            self.source.error(position, f"redefinition of alias '{name}'")
        end = start = head.end()
        while True:
            match = lexer.BLANKS.match(self.text, end)
            assert match is not None  # matches the empty text, too
            nxt = match.end()
            if nxt == len(self.text) or self.text[nxt] in "\r\n" or self.text.startswith("//", nxt):
                break
            if end > start and lexer.ALIAS_HEAD.match(self.text, nxt) is not None:
                break  # another definition on the same line
            character = self.text[nxt]
            if character in CLOSER:
                end = find_group_end(self.source, nxt)
            elif character in ")]}":
                self.source.error(nxt, f"expected the end of the alias, found '{character}'")
            elif character == '"':
                quoted = _STRING.match(self.text, nxt)
                if quoted is None:
                    lexer.unexpected(self.source, nxt)
                end = quoted.end()
            else:
                word = _ALIAS_WORD.match(self.text, nxt)
                end = word.end() if word is not None else nxt + 1
        if end == start:
            self.source.error(start, f"expected the value of alias '{name}'")
        self.aliases[name] = self.text[start:end]
        return end

    def parse_optional_file_metadata(self, position: int) -> int | None:
        """``file-metadata ::= '{-#' anything '#-}'``."""
        if not self.text.startswith("{-#", position):
            return None
        end = self.text.find("#-}", position)
        if end < 0:
            self.source.error(position, "expected '#-}' to match this '{-#', found the end")
        return end + 3


def parse(text: str, filename: str = "<string>") -> Module:
    """Parses the printed form of an MLIR module.

    Args:
        text: The whole text.
        filename: Name of the text in error messages.

    Returns:
        A module that prints ``text`` again, byte for byte.

    Raises:
        ParseError: The text is malformed; the error has the position.
        TypeError: ``text`` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected the text of a module, found {type(text).__name__}")
    return ModuleParser(Source(text, filename)).parse_module()


def parse_fragment(
    source: Source, block: Block, visible: Mapping[str, Value], labels: Mapping[str, Block]
) -> str:
    """``fragment ::= operation*``, appended to a block.

    Args:
        source: The text.
        block: The block to append to.
        visible: The values that the text may name, by name with its ``%``.
        labels: The blocks that it may name, by label with its ``^``.

    Returns:
        The text after the last operation.

    Raises:
        ParseError: The text is malformed or uses a name that is not visible.
    """
    parser = Parser(source)
    parser.scope.values.update(visible)
    text = source.text
    lead = 0
    while True:
        position = trivia_end(text, lead)
        if position == len(text):
            break
        lead = parser.parse_operation(block, lead, position, [])
    parser.scope.check_pending()
    parser.link_successors(labels)
    return text[lead:]
