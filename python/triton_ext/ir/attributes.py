"""Attribute dictionaries: reading and changing entries in the text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..strings import STRING_BODY
from . import lexer
from .lexer import Source, find_group_end
from .parser import trivia_end

if TYPE_CHECKING:
    from .nodes import Operation
    from .segments import AttributesSlot, Segment

__all__ = [
    "make_explicit",
    "parse_dictionary",
    "print_entry",
    "read_attributes",
    "write_attribute",
]

#: Operations whose dictionary follows the word ``attributes``.
_KEYWORD = frozenset(
    {"builtin.module", "func.func", "gpu.func", "gpu.module", "llvm.func", "tt.func"}
    | {"scf.while", "ttg.warp_specialize"}
)
#: Operations whose dictionary comes first.
_BEHIND_NAME = frozenset(
    {"arith.constant", "func.return", "scf.condition", "scf.yield", "tt.return"}
)
#: Operations whose dictionary follows their first operand.
_BEHIND_OPERAND = frozenset({"tt.fp_to_fp"})
#: Operations whose dictionary precedes the comma before their last operand.
_IN_FRONT_OF_LAST = frozenset({"ttng.barrier_expect"})
#: Operations whose syntax has no place for a dictionary.
_NO_DICTIONARY = frozenset({"ttg.barrier"})
#: The definition of an alias, or metadata of the file.
_ALIAS = re.compile(r"^[ \t]*(?:[#!][\w$.-]+\s*=|\{-#)", re.ASCII | re.MULTILINE)
_BARE_NAME = re.compile(lexer.BARE_ID, re.ASCII)
_ENTRY = re.compile(r'"(' + STRING_BODY + r')"|([A-Za-z_][\w$.]*)', re.ASCII)
#: A token of an entry's value; strings and brackets may contain commas.
_STEP = re.compile(
    r'[^"()\[\]<>{},/\s-]+|-(?!>)|->|/(?!/)|([(\[{<])|(,)|(\s+|//[^\n]*)|(?:'
    + lexer.STRING
    + r")|.",
    re.ASCII | re.DOTALL,
)


def parse_dictionary(source: Source, start: int, end: int) -> list[tuple[str, int, int, int]]:
    """``dictionary ::= '{' (entry (',' entry)*)? '}'``, ``entry ::= name ('=' attribute)?``.

    Args:
        source: The text.
        start: Offset after the opening brace.
        end: Offset of the closing brace.

    Returns:
        Name, offset of the entry, and the span of its value, which is empty without one.

    Raises:
        ParseError: An entry does not start with a name.
    """
    text = source.text
    entries = []
    position = trivia_end(text, start)
    while position < end:
        match = _ENTRY.match(text, position, end)
        if match is None:
            source.error(position, "expected the name of an attribute")
        name = match[1] if match[1] is not None else match[2]
        value_start = value_end = match.end()
        behind = trivia_end(text, value_end)
        if text.startswith("=", behind) and behind < end:
            value_start = trivia_end(text, behind + 1)
            value_end = _value_end(source, value_start, end)
            behind = trivia_end(text, value_end)
        elif behind < end and text[behind] != ",":
            source.error(behind, "expected '=' or ',' behind the name of an attribute")
        entries.append((name, position, value_start, value_end))
        if behind >= end:
            break
        position = trivia_end(text, behind + 1)
        if position >= end:
            source.error(behind, "expected another attribute behind this comma")
    return entries


def _value_end(source: Source, position: int, end: int) -> int:
    """Returns the offset after the last token of an attribute."""
    text = source.text
    last = position
    while position < end:
        match = _STEP.match(text, position, end)
        assert match is not None  # the last alternative takes anything
        position = match.end()
        if match[2] is not None:
            break
        if match[1] is not None:
            position = find_group_end(source, position - 1)
        if match[3] is None:
            last = position
    return last


def _dictionary_text(text: str) -> tuple[int, int]:
    """Returns the span inside the braces of ``{...}`` or ``<{...}>``."""
    inner = 2 if text.startswith("<") else 1
    return inner, len(text) - inner


def read_attributes(op: Operation) -> dict[str, str]:
    """Returns all entries of an operation's dictionaries."""
    found: dict[str, str] = {}
    for source, first, last in _dictionaries(op):
        inner = 2 if source.text.startswith("<", first) else 1
        for name, _, start, end in parse_dictionary(source, first + inner, last - inner):
            found[name] = source.text[start:end] if end > start else "unit"
    return found


def _dictionaries(op: Operation) -> list[tuple[Source, int, int]]:
    """Returns the dictionaries: a text (the source if unedited), and their spans in it."""
    from .segments import AttributesSlot

    if op._segments is not None:
        texts = [slot.text for slot in op._segments if isinstance(slot, AttributesSlot)]
        return [(Source(text, op.source.filename), 0, len(text)) for text in texts if text]
    spans = op._attr_spans
    return [(op.source, spans[i], spans[i + 1]) for i in range(0, len(spans), 2)]


def write_attribute(op: Operation, name: str, value: str | None) -> None:
    """Sets (or, with ``None``, removes) one entry.

    A new entry goes to the end of the operation's last dictionary; with a dialect's prefix, to one
    that is not of properties.  If there is none, one is created where the syntax allows it.  An
    implicit module becomes explicit, as MLIR prints it.

    Raises:
        KeyError: There is no entry to remove.
        VerifyError: The syntax has no dictionary.
    """
    from .segments import AttributesSlot, cut

    if value is not None:
        make_explicit(op)
    segments = cut(op)
    slots = [slot for slot in segments if isinstance(slot, AttributesSlot)]
    for slot in slots:
        if _change_entry(slot, name, value):
            if not slot.text and not slot.before and _follows_keyword(op, segments, slot):
                slot.text = "{}"
            break
    else:
        if value is None:
            raise KeyError(f"'{op.name}' has no attribute '{name}'")
        if "." in name:
            # Properties, <{...}>, hold only the operation's own attributes; hosts drop others.
            slots = [slot for slot in slots if not slot.text.startswith("<")]
        slot = slots[-1] if slots else _new_dictionary(op)
        entry = print_entry(name, value)
        if not slot.text:
            slot.text = f"{{{entry}}}"
        else:
            inner, close = _dictionary_text(slot.text)
            entries = parse_dictionary(Source(slot.text), inner, close)
            at = entries[-1][3] if entries else inner
            rest = slot.text[at:] if entries or "//" in slot.text else slot.text[close:]
            slot.text = slot.text[:at] + (f", {entry}" if entries else entry) + rest
    op._attr_cache = None
    op._touch()


def make_explicit(module: Operation) -> None:
    """Gives an implicit module its own text, ``module attributes {..} {`` and ``}``.

    Does nothing for other operations.
    """
    from .segments import AttributesSlot, RegionSlot

    if module._span[4] != 0 or module.parent is not None:
        return
    (region,) = module._regions
    # The text after the last, erased operation.
    lead, region._tail = region._tail, ""
    for number, op in enumerate(region._blocks[0]._ops):
        # Aliases must stay outside.
        if number == 0 or _ALIAS.search(op.lead):
            lead += op.lead
            op._lead = "\n"
    region._tail += "\n"
    module._lead = lead + "\n" * (bool(lead) and not lead.endswith("\n"))
    module._segments = ["module", AttributesSlot("", " attributes "), " {", RegionSlot(region), "}"]
    module._span = (0, 0, 0, 1, 1)


def _change_entry(slot: AttributesSlot, name: str, value: str | None) -> bool:
    """Changes or removes an entry of one dictionary; returns whether it existed."""
    text = slot.text
    if not text:
        return False
    inner, close = _dictionary_text(text)
    entries = parse_dictionary(Source(text), inner, close)
    for index, (known, first, _, end) in enumerate(entries):
        if known != name:
            continue
        if value is not None:
            slot.text = text[:first] + print_entry(name, value) + text[end:]
        elif len(entries) == 1:
            slot.text = ""
        elif index + 1 < len(entries):
            slot.text = text[:first] + text[entries[index + 1][1] :]
        else:
            slot.text = text[: entries[index - 1][3]] + text[end:]
        return True
    return False


def print_entry(name: str, value: str) -> str:
    """Returns the text of an entry."""
    key = name if re.fullmatch(r"[A-Za-z_][\w$.]*", name, re.ASCII) else f'"{name}"'
    return key if value == "unit" else f"{key} = {value}"


def _has_keyword(op: Operation) -> bool:
    """Returns whether the operation prints ``attributes`` before its dictionary."""
    return op.name in _KEYWORD and not op.is_quoted


def _follows_keyword(op: Operation, segments: list[Segment], slot: AttributesSlot) -> bool:
    """Returns whether the required word ``attributes`` precedes a dictionary."""
    before = segments[segments.index(slot) - 1]
    return _has_keyword(op) or (isinstance(before, str) and before.rstrip().endswith("attributes"))


def _dictionary_with_keyword(op: Operation) -> AttributesSlot:
    """Creates an empty dictionary before the first region, or at the end if there is none."""
    from .segments import AttributesSlot, RegionSlot, cut

    segments = cut(op)
    slot = AttributesSlot("", " attributes ")
    index = next((i for i, s in enumerate(segments) if isinstance(s, RegionSlot)), None)
    if index is None or op.name == "scf.while":
        _insert_in_front_of_location(segments, slot)
        return slot
    literal = segments[index - 1]
    assert isinstance(literal, str)  # the brace before a region is literal
    end = len(literal[:-1].rstrip().removesuffix("default").rstrip())
    segments[index - 1 : index] = [literal[:end], slot, literal[end:]]
    return slot


def _new_dictionary(op: Operation) -> AttributesSlot:
    """Creates an empty dictionary before the types, or after the operands or regions."""
    from .segments import AttributesSlot, OperandSlot, cut, split_at_types

    if _has_keyword(op):
        return _dictionary_with_keyword(op)
    segments = cut(op)
    slot = AttributesSlot("", " ")
    custom = not op.is_quoted
    if op.name in _NO_DICTIONARY and custom:
        op.fail(
            f"cannot set an attribute of '{op.name}': its syntax has no attribute dictionary",
            f'the generic form, "{op.name}"(...), has one',
        )
    if op.name in _BEHIND_NAME and custom:
        _insert_behind_name(op, segments, slot)
        return slot
    if op.name in _BEHIND_OPERAND and custom and op._operands:
        first = next(i for i, s in enumerate(segments) if isinstance(s, OperandSlot))
        segments.insert(first + 1, slot)
        return slot
    if op.name in _IN_FRONT_OF_LAST and custom and len(op._operands) > 1:
        last = max(i for i, s in enumerate(segments) if isinstance(s, OperandSlot))
        at = max(i for i, s in enumerate(segments[:last]) if isinstance(s, str) and "," in s)
        before = segments[at]
        assert isinstance(before, str)  # found above
        comma = before.rfind(",")
        segments[at : at + 1] = [before[:comma], slot, before[comma:]]
        return slot
    if op._successors and custom:
        _insert_in_front_of_location(segments, slot)
        return slot
    index = split_at_types(op)
    if index is None:
        _insert_in_front_of_location(segments, slot)
    else:
        segments.insert(index, slot)
    return slot


def _insert_behind_name(op: Operation, segments: list[Segment], slot: AttributesSlot) -> None:
    """Inserts it after the name, which includes a condition in parentheses."""
    from .segments import ResultsSlot

    index = next(i for i, segment in enumerate(segments) if not isinstance(segment, ResultsSlot))
    literal = segments[index]
    name = _BARE_NAME.match(literal) if isinstance(literal, str) else None
    at = name.end() if name is not None else 0
    closers = (i for i, s in enumerate(segments) if isinstance(s, str) and s.startswith(")"))
    closer = next(closers, None) if op.name == "scf.condition" else None
    if closer is not None:
        index, literal, at = closer, segments[closer], 1
    assert isinstance(literal, str)  # the name, or a parenthesis
    pieces: list[Segment] = [literal[:at], slot, literal[at:]]
    segments[index : index + 1] = [piece for piece in pieces if piece != ""]


def _insert_in_front_of_location(segments: list[Segment], slot: AttributesSlot) -> None:
    from .segments import LocationSlot, end_of

    index = next(
        (i for i, segment in enumerate(segments) if isinstance(segment, LocationSlot)),
        end_of(segments),
    )
    before = segments[index - 1] if index else ""
    if isinstance(before, str) and before.endswith(" "):
        segments[index - 1] = before.rstrip()
        segments.insert(index, " ")
    segments.insert(index, slot)
