"""Text of edited operations: literal pieces and slots that print from the tree.

:func:`cut` turns the source slice of an operation into segments.  A segment is a ``str``, kept as
read, or a slot.  Joined, the segments of an unchanged operation are its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .lexer import STRING, Source, find_group_end
from .nodes import Block, Operation, Region
from .values import BlockArgument, OpResult, Value

__all__ = [
    "ArgumentSlot",
    "AttributesSlot",
    "CommentSlot",
    "LocationSlot",
    "OperandSlot",
    "OperandTypeSlot",
    "PrintedType",
    "RegionSlot",
    "ResultsSlot",
    "Segment",
    "Slot",
    "ValueTypeSlot",
    "cut",
    "cut_label",
    "set_argument_location",
    "set_location",
]


#: Operations whose types are printed as in the generic form.
_CALLS = frozenset({"func.call", "tt.call"})
_NAME_CHARACTER = re.compile(r"[\w$.#-]", re.ASCII)
_TYPES_OF_CALL = re.compile(r":\s*(?:\(|\Z)")
#: Finds colons, comments, strings and brackets in a literal piece.
_LITERAL_STEP = re.compile(
    r"[^\"()\[\]<>{}:/\s-]+|->|-(?!>)|/(?!/)|"
    + STRING
    + r"|([(\[{<])|([)\]}>])|(:)|(\s*//[^\n]*\n?)|\s+|.",
    re.ASCII | re.DOTALL,
)
#: Operations that print types in their header, but no locations of arguments.
_UNLOCATED = frozenset({"scf.for", "scf.while"})


class Slot(Protocol):
    """A part of an operation's text that prints the current tree."""

    def write(self, op: Operation, out: list[str]) -> None:
        """Appends the text for ``op`` to ``out``."""


Segment = str | Slot


@dataclass(frozen=True, slots=True)
class ResultsSlot:
    """The names of the results with the equals sign; empty without results."""

    printed: str = ""

    def write(self, op: Operation, out: list[str]) -> None:
        if not op._results or not op._results[0]._base:
            return
        groups = result_groups(op._results)
        if "".join(self.printed.split()) == f"{','.join(groups)}=":
            out.append(self.printed)
        else:
            out.append(f"{', '.join(groups)} = ")


@dataclass(frozen=True, slots=True)
class OperandSlot:
    """The name of an operand.

    Attributes:
        index: Number of the operand.
        printed: The name in the source, valid while the operand's name is ``full``.  The two
            differ if ``%x`` stands for ``%x#0``, or the other way round.
        full: The operand's name when the operation was cut.
        behind: A blank if another name would run into the next token, as in ``%0to``.
    """

    index: int
    printed: str = ""
    full: str = ""
    behind: str = ""

    def write(self, op: Operation, out: list[str]) -> None:
        name = op._operands[self.index].name
        out.append(self.printed if name == self.full else name + self.behind)


@dataclass(frozen=True, slots=True)
class PrintedType:
    """A type in the source's spelling, until the value's type changes.

    Attributes:
        printed: The text in the source; empty if there is none.
        full: The value's type when ``printed`` was read.  The two differ if the source omits the
            prefix of a type, or has two spellings of one type.
    """

    printed: str = ""
    full: str = ""

    def text(self, type_: str | None) -> str:
        """Returns the text for a value of this type (``None``: unknown)."""
        if type_ is None or type_ == self.full:
            return self.printed
        if self.printed.startswith("<") and self.full.endswith(self.printed):
            return type_.removeprefix(self.full[: -len(self.printed)])
        return type_


_NEW = PrintedType()


@dataclass(frozen=True, slots=True)
class OperandTypeSlot:
    """The type of an operand."""

    index: int
    spelling: PrintedType = _NEW

    def write(self, op: Operation, out: list[str]) -> None:
        out.append(self.spelling.text(op._operands[self.index].known_type))


@dataclass(frozen=True, slots=True)
class ValueTypeSlot:
    """The type of a result or of a block argument."""

    value: Value
    spelling: PrintedType = _NEW

    def write(self, op: Operation, out: list[str]) -> None:
        out.append(self.spelling.text(self.value.known_type))


@dataclass(frozen=True, slots=True)
class ArgumentSlot:
    """The name of a block argument at its definition."""

    arg: BlockArgument

    def write(self, op: Operation, out: list[str]) -> None:
        out.append(self.arg.name)


@dataclass(frozen=True, slots=True)
class RegionSlot:
    """Everything between a region's braces."""

    region: Region

    def write(self, op: Operation, out: list[str]) -> None:
        self.region._write(out)


@dataclass(slots=True)
class AttributesSlot:
    """An attribute dictionary with its braces; mutable, because it holds the only copy."""

    text: str
    #: Text before and after the dictionary unless it is empty.
    before: str = field(default="")

    def write(self, op: Operation, out: list[str]) -> None:
        if self.text:
            out.append(self.before)
            out.append(self.text)


@dataclass(frozen=True, slots=True)
class CommentSlot:
    """A comment outside of brackets, with the end of its line: nothing is inserted into it.

    Attributes:
        text: The comment with the blanks in front of it; the comment behind an operation has no
            end of line.
    """

    text: str

    def write(self, op: Operation, out: list[str]) -> None:
        out.append(self.text)


@dataclass(frozen=True, slots=True)
class LocationSlot:
    """The trailing location."""

    def write(self, op: Operation, out: list[str]) -> None:
        out.append(op.loc_text or "")


def result_groups(results: list[OpResult]) -> list[str]:
    """Returns the results as printed before ``=``: ``%a``, ``%b:3``."""
    groups: list[str] = []
    index = 0
    while index < len(results):
        result = results[index]
        count = 1
        if result._number >= 0:
            while (
                index + count < len(results)
                and results[index + count]._base == result._base
                and results[index + count]._number == count
            ):
                count += 1
        groups.append(result._base if count == 1 else f"{result._base}:{count}")
        index += count
    return groups


def cut(op: Operation) -> list[Segment]:
    """Cuts an operation's source slice into segments, once; returns them.

    This must happen before an operand is replaced or renamed.
    """
    from .type_slots import bind_types

    if op._segments is not None:
        return op._segments
    text = op.source.text
    _, start, name_start, _, end = op._span
    marks: list[tuple[int, int, Slot]] = [(start, name_start, ResultsSlot(text[start:name_start]))]
    spans = op._operand_spans or ()
    for index in range(len(spans) // 2):
        first, last = spans[2 * index], spans[2 * index + 1]
        printed, full = text[first:last], op._operands[index].name
        same = printed.removesuffix("#0") == full.removesuffix("#0")
        # Text from a builder names a value as it was bound.
        behind = " " * (_NAME_CHARACTER.match(text, last) is not None)
        kept = (printed, full) if same else ("", "")
        slot = OperandSlot(index, *kept, behind)
        marks.append((first, last, slot))
    spans = op._attr_spans
    for index in range(0, len(spans), 2):
        first, last = spans[index], spans[index + 1]
        marks.append((first, last, AttributesSlot(text[first:last])))
    for region in op._regions:
        for arg in region._blocks[0]._args:
            if arg._span is not None and region._blocks[0].label is None:
                marks.append((arg._span[0], arg._span[1], ArgumentSlot(arg)))
                if arg._span[2] >= 0:
                    marks.append((arg._span[2], arg._span[3], _argument_slot(text, arg)))
        marks.append((region._span[0], region._span[1], RegionSlot(region)))
    if isinstance(op._loc, tuple):
        marks.append((op._loc[0], op._loc[1], LocationSlot()))
    marks.extend(bind_types(op))
    op._segments = _join(text, start, end, marks)
    return op._segments


def cut_label(block: Block) -> list[Segment]:
    """Cuts a block's label into segments."""
    assert block._span is not None  # only parsed labels are cut
    text = block.parent.source.text
    lead, start, end = block._span
    block._lead = text[lead:start]
    marks: list[tuple[int, int, Slot]] = []
    for arg in block._args:
        if arg._span is not None:
            marks.append((arg._span[0], arg._span[1], ArgumentSlot(arg)))
            marks.append((arg._span[2], arg._span[3], _argument_slot(text, arg)))
    return _join(text, start, end, marks)


def _argument_slot(text: str, arg: BlockArgument) -> ValueTypeSlot:
    assert arg._span is not None  # only parsed arguments have a slot
    printed = text[arg._span[2] : arg._span[3]]
    return ValueTypeSlot(arg, PrintedType(printed, printed))


def _join(text: str, start: int, end: int, marks: list[tuple[int, int, Slot]]) -> list[Segment]:
    marks.sort(key=lambda mark: mark[:2])
    segments: list[Segment] = []
    position = start
    for first, last, slot in marks:
        if first > position:
            segments += _literals(text[position:first])
        segments.append(slot)
        position = last
    if end > position:
        segments += _literals(text[position:end])
    return segments


def _literals(text: str) -> Iterator[Segment]:
    """Separates the comments in the text between two slots."""
    position = 0
    for _, start, end in _marks(text, 4) if "//" in text else ():
        if start > position:
            yield text[position:start]
        yield CommentSlot(text[start:end])
        position = end
    if position < len(text):
        yield text[position:]


def _marks(literal: str, *groups: int) -> Iterator[tuple[int, int, int]]:
    """Yields the matches of groups of :data:`_LITERAL_STEP` outside of brackets, with offsets."""
    depth = 0
    for match in _LITERAL_STEP.finditer(literal):
        kind = match.lastindex
        if kind == 1:
            depth += 1
        elif kind == 2:
            # A piece may begin inside of brackets that an earlier one opened.
            depth = max(0, depth - 1)
        elif kind in groups and depth == 0:
            yield kind, *match.span()


def end_of(segments: list[Segment]) -> int:
    """Returns the index after the last segment, before a comment on the same line."""
    last = segments[-1]
    return len(segments) - (isinstance(last, CommentSlot) and not last.text.endswith("\n"))


def set_location(op: Operation, raw: str) -> None:
    """Replaces or adds the location of an operation; an implicit module becomes explicit."""
    from .attributes import make_explicit

    make_explicit(op)
    segments = cut(op)
    if op._loc is None:
        at = end_of(segments)
        segments[at:at] = [" ", LocationSlot()]
    op._loc = raw
    op._touch()


def find_declaration(segments: Sequence[Segment], arg: BlockArgument) -> int | None:
    """Returns the index of the literal piece after an argument's type; ``None`` without a type."""
    is_behind = False
    for index, segment in enumerate(segments):
        if is_behind and isinstance(segment, str):
            return index
        is_behind |= isinstance(segment, ValueTypeSlot) and segment.value is arg
    return None


def declaration_end(rest: str, arg: BlockArgument) -> int:
    """Returns the offset after the attributes and the location of an argument.

    Args:
        rest: The text after its type.
        arg: The argument.
    """
    if arg.loc_text is not None:
        return rest.find(arg.loc_text) + len(arg.loc_text)
    blanks = len(rest) - len(rest.lstrip())
    if rest.startswith("{", blanks):
        return find_group_end(Source(rest, arg._holder.source.filename), blanks)
    return 0


def set_argument_location(arg: BlockArgument, raw: str) -> None:
    """Replaces or adds the location of a block argument.

    Raises:
        VerifyError: The argument is printed without its type, as in loops.
    """
    block = arg._owner
    block._touch_label()
    holder = block.parent.parent
    segments = block._label_segments if block.label is not None else cut(holder)
    index = find_declaration(segments or (), arg)
    if index is None or segments is None or (block.label is None and holder.name in _UNLOCATED):
        holder.fail(f"'{holder.name}' prints no location for its argument '{arg.name}'")
    rest = segments[index]
    assert isinstance(rest, str)  # found above
    end = declaration_end(rest, arg)
    start = end - len(arg.loc_text) if arg.loc_text is not None else end
    segments[index] = rest[:start] + f"{' ' * (arg.loc_text is None)}{raw}" + rest[end:]
    arg.loc_text = raw
    holder._touch()


def split_at_types(op: Operation) -> int | None:
    """Splits an operation's text before the colon of its types.

    Returns:
        The index of the segment that starts there; ``None`` if no types are printed.
    """
    segments = cut(op)
    quoted = op.source.text[op._span[2]] == '"' or op.name in _CALLS
    kinds = (OperandSlot, RegionSlot, AttributesSlot) if quoted else (OperandSlot, RegionSlot)
    after = 0
    for index, segment in enumerate(segments):
        if isinstance(segment, kinds):
            after = index + 1
    for index in range(after, len(segments)):
        literal = segments[index]
        if not isinstance(literal, str):
            continue
        colons = [start for _, start, _ in _marks(literal, 3)]
        if quoted:
            # The types always start with a parenthesis, even where none is bound.
            at = next((at for at in colons if _TYPES_OF_CALL.match(literal, at)), -1)
        else:
            follows = segments[index + 1] if index + 1 < len(segments) else None
            is_type = isinstance(follows, (OperandTypeSlot, ValueTypeSlot))
            at = max(colons, default=-1) if is_type else -1
        if at >= 0:
            head, tail = literal[:at].rstrip(), f" {literal[at:]}"
            segments[index : index + 1] = [part for part in (head, tail) if part]
            return index + 1 if head else index
    return None
