"""The parser: structure of MLIR's printed form, without knowledge of individual operations.

Common syntax suffices to find the structure: values start with ``%``, blocks with ``^``, brackets
nest, ``loc(...)`` ends an operation, and the printer starts operations on their own lines.  The
rest is kept as text.  Three things need a rule.

*End of an operation.*  After its ``loc(...)``; without one, before a line (or the end of the
region) that can only start something else: results and ``=``, a quoted name and ``(``, a name with
a dot, ``^``, ``}``, an alias.  Such a token never continues an operation.

*Meaning of a brace.*  Inside ``<``, ``[`` or ``(`` it is part of that text, except that in the
generic form ``(`` ``{`` starts the regions.  After ``attributes`` it is a dictionary.  The first
brace of an operation in :data:`HAS_REGION`, and one after ``else``, ``do`` or ``default``, is a
region.  Any other brace is a dictionary if an entry (a name, then ``=``, ``,`` or ``}``) or nothing
follows on the same line, or a name and ``=`` on the next, and else a region.

*Meaning of a name.*  A name followed by ``=`` in a header, or by ``:`` in a header's parentheses,
is an argument of the next region if the operation is known to define arguments that way
(:data:`DEFINES_WITH_EQUALS`, :data:`DEFINES_WITH_COLON`) or if the name is not visible; otherwise
it is an operand.

Names are visible in nested regions, but not after the end of the region that defines them, and not
in isolated regions (bodies of functions and modules, partitions of ``ttg.warp_specialize``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import NoReturn

from ..strings import SKIPPED_STRING
from . import lexer
from .lexer import CLOSER, STEP, Source, find_group_end
from .nodes import ISOLATED, Block, Operation, Region
from .result_counts import ONE_RESULT, WITHOUT_RESULTS
from .scope import Scope
from .values import BlockArgument

__all__ = ["Parser", "parse_optional_type", "trivia_end"]

MAX_NESTING = 64
MAX_RESULTS = 2_000
#: Names printed without their dialect.
SHORT_NAMES = {
    "module": "builtin.module",
    "func": "func.func",
    "return": "func.return",
    "unrealized_conversion_cast": "builtin.unrealized_conversion_cast",
}
HAS_REGION = frozenset(
    {"builtin.module", "func.func", "tt.func", "llvm.func", "gpu.module", "gpu.func"}
    | {"scf.for", "scf.if", "scf.while", "scf.execute_region", "ttg.warp_specialize"}
)
DEFINES_WITH_EQUALS = frozenset({"scf.for", "scf.while", "scf.forall", "scf.parallel"})
DEFINES_WITH_COLON = frozenset({"func.func", "tt.func", "llvm.func", "gpu.func"})
#: Keywords that precede a region's brace.
_REGION_WORD = re.compile(r"(?<![\w$.^%@#!-])(?:else|do|default)\s*\Z", re.ASCII)
_DICTIONARY_WORD = re.compile(r"\battributes\s*\Z")
_EMPTY = re.compile(r"\{\s*\}", re.ASCII)
_DEFINES = re.compile(r"\s*([=:])(?![=:])")
_ARROW = re.compile(r"\s*->\s*")
_LOC = re.compile(r"loc\s*\(")
_STRING = re.compile(lexer.STRING)
#: A colon outside of strings and comments.
_COLON = re.compile(SKIPPED_STRING + r"|//[^\n]*|(:)", re.ASCII)
#: Characters before a brace that are searched for the keyword.
_WORD_WINDOW = 24


class Parser:
    """Parses one source; the module's docstring has the rules.

    Args:
        source: The text.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.scope = Scope(source)
        self.nesting = 0
        # Block names mentioned in the current region: operation, name, offset.
        self.successors: list[tuple[Operation, str, int]] = []
        # Temporary block of an argument.
        self.nowhere = Block(Region(Operation(source, "", None), source, isolated=True))

    # ---- operations

    def parse_operation(self, block: Block, lead: int, start: int, names: list[str]) -> int:
        """``operation ::= results? (generic-operation | custom-operation) location? comment?``.

        Args:
            block: The block to add it to.
            lead: Offset of the preceding trivia, which the operation owns.
            start: Offset of its first character.
            names: Collects the names that become visible.

        Returns:
            The offset after the operation.
        """
        text = self.text
        match = lexer.OPERATION_HEAD.match(text, start)
        groups: list[tuple[str, int, int]] = []
        position = start
        if match is None:
            groups, position = self.parse_results(start)
            match = lexer.OPERATION_HEAD.match(text, position)
            if match is None:
                self.fail_operation(position)
            if match[1] is not None:
                self.source.error(
                    position, f"expected the name of an operation, found '{match[1]}'"
                )
        elif match[1] is not None:
            groups.append((match[1], self.parse_count(match, 2), start))
        generic = match[3] is None
        if generic:
            name = match[4]
            name_start = match.start(4) - 1
        else:
            name = match[3]
            name_start = match.start(3)
            if "." not in name:
                short = SHORT_NAMES.get(name)
                if short is None:
                    self.source.error(name_start, f"expected an operation, found '{name}'")
                name = short
        op = Operation(self.source, sys.intern(name), block)
        core, end = self.parse_operation_rest(op, match.end(), generic)
        if not op._regions and lexer.MAYBE_SECOND_OPERATION.search(text, match.end(), core):
            second = lexer.find_second_operation(self.source, match.end(), core)
            if second >= 0:
                self.source.error(second, "expected one operation on a line, found another one")
        if op._loc is not None and text[end : end + 1] != "\n":
            comment = lexer.SAME_LINE_COMMENT.match(text, end)
            if comment is not None:
                end = comment.end()
        op._span = (lead, start, name_start, core, end)
        if groups:
            self.scope.define_results(op, groups, names)
        elif op.name in ONE_RESULT:
            self.scope.define_unnamed_results(op, 1)
        elif op.name not in WITHOUT_RESULTS and text.find("->", name_start, core) >= 0:
            from .type_slots import count_outputs

            self.scope.define_unnamed_results(op, count_outputs(op))
        block._ops.append(op)
        return end

    def parse_results(self, start: int) -> tuple[list[tuple[str, int, int]], int]:
        """``results ::= group (',' group)* '='``, ``group ::= value-name (':' count)?``."""
        groups = []
        position = start
        while True:
            match = lexer.RESULT_GROUP.match(self.text, position)
            if match is None:
                if position == start:
                    self.fail_operation(start)
                self.source.error(position, "expected the name of a result")
            groups.append((match[1], self.parse_count(match, 2), position))
            position = match.end()
            if match[3] == "=":
                return groups, position

    def parse_count(self, match: re.Match[str], group: int) -> int:
        """``count ::= (':' integer)?``: the number of results of a group; -1 if absent."""
        digits = match[group]
        if digits is None:
            return -1
        if len(digits) > 5 or int(digits) > MAX_RESULTS:
            self.source.error(
                match.start(group), f"expected at most {MAX_RESULTS} results, found {digits[:20]}"
            )
        return int(digits)

    def fail_operation(self, position: int) -> NoReturn:
        """Raises the error for text that does not start an operation."""
        if position >= len(self.text):
            self.source.error(position, "expected an operation, found the end")
        if self.text[position] == "%":
            name = lexer.VALUE_NAME.match(self.text, position)
            if name is None:
                lexer.unexpected(self.source, position)
            self.source.error(
                position, f"expected an operation, found '{name[0]}' that is not followed by '='"
            )
        if self.text[position] == '"' and _STRING.match(self.text, position) is None:
            lexer.unexpected(self.source, position)
        if self.text[position] == lexer.BYTE_ORDER_MARK:
            lexer.unexpected(self.source, position)
        self.source.error(position, f"expected an operation, found '{self.text[position]}'")

    def parse_operation_rest(self, op: Operation, position: int, generic: bool) -> tuple[int, int]:
        """Parses everything after an operation's name.

        ``custom-operation ::= name (value-name | argument | successor | dictionary | region |
        text)*``

        ``generic-operation ::= '"' name '"' '(' operands ')' ('[' successors ']')? ('<' dictionary
        '>')? ('(' region (',' region)* ')')? dictionary? ':' function-type``

        A single loop for speed: it runs once for each token of the text.

        Returns:
            The end without and with a comment on the same line.
        """
        text = self.text
        first = position
        step = STEP.match
        values = self.scope.values
        name = op.name
        operands = op._operands
        spans: list[int] = []
        attributes: list[int] = []
        arguments: list[BlockArgument] = []
        stack: list[int] = []
        defines = name in DEFINES_WITH_EQUALS or name in DEFINES_WITH_COLON
        comment = -1
        while True:
            match = step(text, position)
            assert match is not None  # the alternatives cover every character
            assert match.lastindex is not None
            kind = match.lastindex
            start, position = match.span(kind)
            if kind == lexer.VALUE:
                key = match[1]
                value = values.get(key)
                if value is not None and not defines:
                    operands.append(value)
                    value._users.append(op)
                    spans += (start, position)
                    continue
                argument = self.parse_optional_header_argument(op, key, start, position, stack)
                if argument is not None:
                    arguments.append(argument[0])
                    position = argument[1]
                else:
                    self.scope.use(op, key, start)
                    spans += (start, position)
            elif kind == lexer.NEWLINE:
                if not stack:
                    following = trivia_end(text, position)
                    if lexer.OPERATION_START.match(text, following) is not None:
                        break
                    position = following
                comment = -1
            elif kind == lexer.ANGLE:
                position = find_group_end(self.source, start)
                if generic and not stack and text[start + 1] == "{":
                    attributes += (start, position)
            elif kind == lexer.LOC:
                position = find_group_end(self.source, text.index("(", position))
                if not stack:
                    op._loc = (start, position)
                    break
            elif kind == lexer.OPEN:
                stack.append(start)
            elif kind == lexer.CLOSE:
                if not stack:
                    self.source.error(start, f"unexpected '{text[start]}' that closes nothing")
                opener = stack.pop()
                if CLOSER[text[opener]] != text[start]:
                    lexer.unbalanced(self.source, start, opener)
            elif kind == lexer.BRACE:
                if self.opens_region(op, start, stack, generic, bool(arguments)):
                    position = self.parse_region(op, arguments, start, generic)
                    arguments = []
                    # Partitions are isolated from outer names, and define their arguments.
                    defines = defines or name == "ttg.warp_specialize"
                else:
                    position = find_group_end(self.source, start)
                    if not stack:
                        attributes += (start, position)
            elif kind == lexer.CARET:
                if stack and text[stack[-1]] != "[":
                    self.source.error(start, f"unexpected block name '{match[kind]}'")
                self.successors.append((op, match[kind], start))
            elif kind == lexer.COMMENT:
                comment = start
            elif kind == lexer.UNBRACE or kind == lexer.END:
                if not stack:
                    break
                if kind == lexer.END:
                    lexer.unclosed(self.source, stack[-1])
                lexer.unbalanced(self.source, start, stack[-1])
            elif kind == lexer.OTHER:
                lexer.unexpected(self.source, start)
        if arguments and name not in DEFINES_WITH_COLON:
            span = arguments[0]._span
            assert span is not None  # arguments that were read have one
            self.source.error(span[0], f"use of undeclared SSA value '{arguments[0]._base}'")
        if generic:
            operands_end = find_group_end(self.source, text.index("(", first))
            ends = [operands_end, *spans[-1:], *attributes[-1:], *(r._span[1] for r in op._regions)]
            if not any(match[1] for match in _COLON.finditer(text, max(ends), start)):
                self.source.error(
                    first - len(name) - 2,
                    "expected ':' followed by operation type",
                    f'the generic form prints the types of operands and results: "{name}"() : '
                    "() -> ()",
                )
        op._operand_spans = tuple(spans)
        op._attr_spans = tuple(attributes)
        if op._loc is not None:
            return position, position
        end = first + len(text[first:start].rstrip())
        return (first + len(text[first:comment].rstrip()) if comment >= 0 else end), end

    def opens_region(
        self, op: Operation, start: int, stack: list[int], generic: bool, has_arguments: bool
    ) -> bool:
        """Returns whether a brace opens a region; the module's docstring has the rule."""
        text = self.text
        if stack:
            opener = stack[-1]
            if text[opener] != "(" or generic:
                return generic
            before = text[opener:start].rstrip()
            return before[-1] in "(," and lexer.DICTIONARY_START.match(text, start) is None
        before = text[max(0, start - _WORD_WINDOW) : start]
        if generic or _DICTIONARY_WORD.search(before) is not None:
            return False
        if op.name == "ttg.warp_specialize" or (op.name in HAS_REGION and not op._regions):
            return True
        if _REGION_WORD.search(before) is not None:
            return True
        if has_arguments and _EMPTY.match(text, start) is not None:
            return True  # Arguments in a header belong to a region.
        return lexer.DICTIONARY_START.match(text, start) is None

    # ---- regions, blocks, arguments

    def parse_region(
        self, op: Operation, arguments: list[BlockArgument], brace: int, generic: bool
    ) -> int:
        """``region ::= '{' operation* (label operation*)* '}'``.

        Args:
            op: The operation that holds the region.
            arguments: Arguments that the header named for the first block.
            brace: Offset of the opening brace.
            generic: Whether the operation is in its generic form, in which the partitions of
                ``ttg.warp_specialize`` are the regions of another operation.

        Returns:
            The offset after the closing brace.
        """
        text = self.text
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.source.error(brace, f"regions are nested more than {MAX_NESTING} deep")
        partition = op.name == "ttg.warp_specialize" and bool(op._regions) and not generic
        isolated = partition or op.name in ISOLATED
        region = Region(op, self.source, isolated=isolated)
        op._regions.append(region)
        outer_scope, outer_successors, self.successors = self.scope, self.successors, []
        if isolated:
            self.scope = Scope(self.source)
        names: list[str] = []
        labels: dict[str, Block] = {}
        block = Block(region)
        region._blocks.append(block)
        self.define_arguments(block, arguments, names)
        lead = brace + 1
        while True:
            position = trivia_end(text, lead)
            character = text[position : position + 1]
            if character == "}":
                break
            if character == "^":
                if block._ops or block._args or block.label is not None:
                    block = Block(region)
                    region._blocks.append(block)
                lead = self.parse_label(block, lead, position, labels, names)
            elif character:
                lead = self.parse_operation(block, lead, position, names)
            else:
                lexer.unclosed(self.source, brace)
        region._span = (brace + 1, position)
        region._tail = text[lead:position]
        self.link_successors(labels)
        self.successors = outer_successors
        if isolated:
            self.scope.check_pending()
            self.scope = outer_scope
        else:
            for name in names:
                del self.scope.values[name]
        self.nesting -= 1
        return position + 1

    def link_successors(self, labels: Mapping[str, Block]) -> None:
        """Resolves the block names of terminators."""
        for op, name, offset in self.successors:
            target = labels.get(name)
            if target is None:
                self.source.error(offset, f"reference to an undefined block '{name}'")
            op._successors.append(target)

    def parse_label(
        self, block: Block, lead: int, start: int, labels: dict[str, Block], names: list[str]
    ) -> int:
        """``label ::= block-name ('(' argument (',' argument)* ')')? ':' comment?``."""
        text = self.text
        match = lexer.BLOCK_NAME.match(text, start)
        if match is None:
            lexer.unexpected(self.source, start)
        label = match[0]
        if label in labels:
            self.source.error(start, f"redefinition of block '{label}'")
        labels[label] = block
        block.label = label
        position = trivia_end(text, match.end())
        arguments: list[BlockArgument] = []
        if text.startswith("(", position):
            opener, position = position, trivia_end(text, position + 1)
            while not text.startswith(")", position):
                name = lexer.VALUE_NAME.match(text, position)
                if name is None:
                    if position == len(text):
                        lexer.unclosed(self.source, opener)
                    self.source.error(position, "expected the name of a block argument")
                argument, position = self.parse_argument(name[0], position, name.end())
                arguments.append(argument)
                position = trivia_end(text, position)
                if text.startswith(",", position):
                    position = trivia_end(text, position + 1)
                elif not text.startswith(")", position):
                    found = repr(text[position]) if position < len(text) else "the end"
                    self.source.error(position, f"expected ',' or ')', found {found}")
            position = trivia_end(text, position + 1)
        if not text.startswith(":", position):
            found = repr(text[position]) if position < len(text) else "the end"
            self.source.error(position, f"expected ':' behind block '{label}', found {found}")
        position += 1
        comment = lexer.SAME_LINE_COMMENT.match(text, position)
        if comment is not None:
            position = comment.end()
        block._span = (lead, start, position)
        self.define_arguments(block, arguments, names)
        return position

    def define_arguments(
        self, block: Block, arguments: list[BlockArgument], names: list[str]
    ) -> None:
        """Adds arguments to a block and makes their names visible."""
        for argument in arguments:
            argument._owner = block
            argument.index = len(block._args)
            block._args.append(argument)
            assert argument._span is not None  # arguments that were read have one
            self.scope.define(argument._base, argument, argument._span[0], names)

    def parse_optional_header_argument(
        self, op: Operation, key: str, start: int, end: int, stack: list[int]
    ) -> tuple[BlockArgument, int] | None:
        """``header-argument ::= argument | value-name (?= '=')``; ``None`` for an operand.

        The rule is in the module's docstring.
        """
        match = _DEFINES.match(self.text, end)
        if match is None or "#" in key:
            return None
        hidden = key not in self.scope.values
        if match[1] == "=":
            if not hidden and op.name not in DEFINES_WITH_EQUALS:
                return None
            argument = BlockArgument(self.nowhere, 0, key)
            argument._span = (start, end, -1, -1)
            return argument, end
        if not stack or self.text[stack[-1]] != "(":
            return None
        known = op.name in DEFINES_WITH_COLON
        known = known or (op.name == "ttg.warp_specialize" and bool(op._regions))
        branches = bool(self.successors) and self.successors[-1][0] is op
        if known or (hidden and not branches):
            return self.parse_argument(key, start, end)
        return None

    def parse_argument(self, key: str, start: int, end: int) -> tuple[BlockArgument, int]:
        """``argument ::= value-name ':' type dictionary? location?``.

        Returns:
            The argument, not yet in a block, and the offset after it.
        """
        text = self.text
        if "#" in key:
            self.source.error(start, f"expected the name of an argument, found '{key}'")
        position = trivia_end(text, end)
        if not text.startswith(":", position):
            self.source.error(position, f"expected ':' and a type behind '{key}'")
        type_start = trivia_end(text, position + 1)
        type_end = self.parse_type(type_start)
        argument = BlockArgument(self.nowhere, 0, key, text[type_start:type_end])
        argument._span = (start, end, type_start, type_end)
        position = type_end
        following = trivia_end(text, position)
        if text.startswith("{", following):
            position = find_group_end(self.source, following)
            following = trivia_end(text, position)
        loc = _LOC.match(text, following)
        if loc is not None:
            position = find_group_end(self.source, loc.end() - 1)
            argument.loc_text = text[following:position]
        return argument, position

    def parse_type(self, start: int) -> int:
        """``type ::= '(' types ')' '->' type | name ('<' anything '>')?``; returns its end."""
        end = parse_optional_type(self.source, start)
        if end is None:
            found = repr(self.text[start]) if start < len(self.text) else "the end"
            self.source.error(start, f"expected a type, found {found}")
        return end


def parse_optional_type(source: Source, start: int) -> int | None:
    """``type ::= '(' types ')' '->' type | name ('<' anything '>')?``; its end, or ``None``."""
    text = source.text
    while text.startswith("(", start):
        arrow = _ARROW.match(text, find_group_end(source, start))
        if arrow is None:
            return None
        start = arrow.end()
        if text.startswith("(", start):
            end = find_group_end(source, start)
            if _ARROW.match(text, end) is None:
                return end
    match = lexer.TYPE_HEAD.match(text, start)
    if match is None:
        return None
    end = match.end()
    return find_group_end(source, end) if text.startswith("<", end) else end


def trivia_end(text: str, position: int) -> int:
    """Returns the offset of the first character that is neither blank nor in a comment."""
    match = lexer.TRIVIA.match(text, position)
    assert match is not None  # matches the empty text, too
    return match.end()
