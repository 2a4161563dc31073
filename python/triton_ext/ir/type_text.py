"""Queries of types as text, independent of dialects."""

from __future__ import annotations

import re

__all__ = ["boolean_like", "element_type", "pointee_type", "replace_element"]

_SHAPED = re.compile(
    r"((?:tensor|vector)<(?:(?:\d+|\?|\*|\[\d+\])x)*)(.*)>\Z", re.ASCII | re.DOTALL
)
_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:,\s*(?:\d+|\"\w*\"))?>\Z", re.ASCII | re.DOTALL)


def _split(shaped: str) -> tuple[str, str, str] | None:
    """Splits a tensor or vector type: ``tensor<4x``, ``f32``, ``, #blocked>``."""
    match = _SHAPED.match(shaped)
    if match is None:
        return None
    rest = match[2]
    depth = 0
    for token in re.finditer(r"->|[<(\[{]|[>)\]}]|,", rest):
        text = token[0]
        if text == "," and depth == 0:
            return match[1], rest[: token.start()], rest[token.start() :] + ">"
        if text in "<([{":
            depth += 1
        elif text in ">)]}":
            depth -= 1
    return match[1], rest, ">"


def element_type(type_: str) -> str:
    """Returns the element type of a tensor or vector; any other type is its own element."""
    parts = _split(type_)
    return type_ if parts is None else parts[1]


def replace_element(type_: str, element: str) -> str:
    """Returns the type with another element type."""
    parts = _split(type_)
    return element if parts is None else parts[0] + element + parts[2]


def boolean_like(type_: str) -> str:
    """Returns the type of a comparison of values of this type."""
    return replace_element(type_, "i1")


def pointee_type(type_: str) -> str | None:
    """Returns the type that a load through a pointer, or tensor of pointers, gives, or ``None``."""
    match = _POINTER.match(element_type(type_))
    return None if match is None else replace_element(type_, match[1])
