"""Functions: symbols, result types and calls.

The header of a function is text except for its arguments, so its result types belong to no value:
they are read and written here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import lexer
from .lexer import Source, find_group_end
from .nodes import Operation
from .parser import parse_optional_type, trivia_end
from .segments import RegionSlot, Segment, ValueTypeSlot, cut
from .text_checks import check_type

__all__ = [
    "FUNCTIONS",
    "callee_of",
    "function_results",
    "set_function_results",
    "symbol_of",
    "visibility_of",
]

#: Operations that define a function.
FUNCTIONS = frozenset({"func.func", "tt.func"})
RETURNS = frozenset({"func.return", "tt.return"})
CALLS = frozenset({"func.call", "tt.call"})
_SYMBOL = re.compile(r"@(" + lexer.STRING + r"|[A-Za-z_$.-][\w$.-]*)", re.ASCII)
_VISIBILITIES = frozenset({"public", "private", "nested"})
_ARROW = re.compile(r"\s*->\s*")


def symbol_of(op: Operation) -> str | None:
    """Returns the symbol that an operation defines, without ``@`` and quotes, or ``None``."""
    return _named(op, "sym_name")


def visibility_of(op: Operation) -> str:
    """Returns the visibility of an operation's symbol: ``public``, ``private`` or ``nested``."""
    raw = op.attributes.get("sym_visibility")
    if raw is not None:
        return raw.strip('"')
    words = _head(op).partition("@")[0].split()
    return next((word for word in words if word in _VISIBILITIES), "public")


def callee_of(op: Operation) -> str | None:
    """Returns the symbol that a call names."""
    return _named(op, "callee")


def _named(op: Operation, attribute: str) -> str | None:
    raw = op.attributes.get(attribute)
    if raw is None:
        match = _SYMBOL.search(_head(op))
        raw = match[1] if match is not None else None
    if raw is None:
        return None
    raw = raw.removeprefix("@")
    return raw[1:-1] if raw.startswith('"') else raw


def _head(op: Operation) -> str:
    """Returns the text before the first operand, argument or region."""
    end = op._span[3]
    if op._operand_spans:
        end = op._operand_spans[0]
    elif op._regions:
        end = op._regions[0]._span[0]
    return op.source.text[op._span[2] : end]


def function_results(op: Operation) -> tuple[str, ...]:
    """Returns the result types in a function's header.

    Raises:
        VerifyError: The operation is not a function in its custom form.
    """
    header, start, end = _result_span(op)
    return tuple(_types(op, header[start:end]))


def set_function_results(op: Operation, types: Sequence[str]) -> None:
    """Changes a function's result types, in its header and at every call in the module.

    The caller changes what the function returns, before or after.

    Args:
        op: A function.
        types: As many types as before.

    Raises:
        TypeError: A type is not a string, or ``types`` is one string.
        VerifyError: The operation is not a function in its custom form, the number of types
            differs, or a type is malformed.
    """
    before = function_results(op)
    if isinstance(types, str) or not isinstance(types, Sequence):
        raise TypeError(f"expected a list of types for the results of '{op.name}', found {types!r}")
    for number, type_ in enumerate(types):
        check_type(op, f"result {number} of '{op.name}'", type_)
    if len(before) != len(types):
        op.fail(
            f"expected {len(before)} result types for '{op.name}', found {len(types)}: "
            "a function cannot get or lose results"
        )
    if tuple(types) == before:
        return
    segments = cut(op)
    index, literal, start, end = _literal_result_span(op, segments)
    joined = ", ".join(types)
    if len(types) != 1 or joined.startswith("("):
        joined = f"({joined})"
    segments[index] = literal[:start] + joined + literal[end:]
    op._touch()
    module, symbol = op.module, symbol_of(op)
    if module is None or symbol is None:
        return
    for call in list(module.op.walk()):
        if call.name in CALLS and callee_of(call) == symbol:
            for result, type_ in zip(call._results, types, strict=False):
                result.set_type(type_)


def _result_span(op: Operation) -> tuple[str, int, int]:
    """Returns the printed header, and the span of the result types (empty if there are none)."""
    if op.name not in FUNCTIONS or op.is_quoted:
        op.fail(f"expected a function in its own syntax, found '{op.name}'")
    if op._segments is None:
        end = op._regions[0]._span[0] - 1 if op._regions else op._span[3]
        header = op.source.text[op._span[1] : end]
    else:
        out: list[str] = []
        for segment in op._segments:
            if isinstance(segment, RegionSlot):
                break
            if isinstance(segment, str):
                out.append(segment)
            else:
                segment.write(op, out)
        header = "".join(out)
    symbol = _SYMBOL.search(header)
    opener = header.find("(", symbol.end()) if symbol is not None else -1
    if opener < 0:
        op.fail(f"expected the arguments of '{op.name}' in parentheses")
    return header, *_behind_arrow(Source(header), find_group_end(Source(header), opener))


def _behind_arrow(source: Source, position: int) -> tuple[int, int]:
    """``results ::= '->' (type | '(' types? ')')``; returns the span after the arrow."""
    arrow = _ARROW.match(source.text, position)
    if arrow is None:
        return position, position
    start = arrow.end()
    end = parse_optional_type(source, start)
    if end is None and source.text.startswith("(", start):
        end = find_group_end(source, start)
    return start, end if end is not None else start


def _types(op: Operation, text: str) -> list[str]:
    """``types ::= type (',' type)*``, in parentheses or not."""
    source = Source(text, op.source.filename)
    if text.startswith("(") and find_group_end(source, 0) == len(text):
        source = Source(text[1:-1], op.source.filename)
    found = []
    position = trivia_end(source.text, 0)
    while position < len(source.text):
        end = parse_optional_type(source, position)
        if end is None or end == position:
            op.fail(f"expected a type in the results of '{op.name}', found: {text}")
        found.append(source.text[position:end])
        position = trivia_end(source.text, end)
        if source.text.startswith(",", position):
            position = trivia_end(source.text, position + 1)
    return found


def _literal_result_span(op: Operation, segments: list[Segment]) -> tuple[int, str, int, int]:
    """Returns the literal segment with the result types, and their span in it."""
    last = max((i for i, s in enumerate(segments) if isinstance(s, ValueTypeSlot)), default=-1)
    for index in range(last + 1, len(segments)):
        literal = segments[index]
        if isinstance(literal, RegionSlot):
            break
        if not isinstance(literal, str):
            continue
        at = literal.find(")", literal.rfind("loc(")) if last >= 0 else literal.rfind(")")
        for match in _ARROW.finditer(literal, max(at, 0)):
            start, end = _behind_arrow(Source(literal), match.start())
            if end > start:
                return index, literal, start, end
    op.fail(f"expected '->' and types in the header of '{op.name}'")
