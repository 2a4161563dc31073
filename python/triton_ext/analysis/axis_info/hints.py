"""Claims of the attributes ``tt.divisibility``, ``tt.contiguity`` and ``tt.constancy``."""

from __future__ import annotations

import re
from dataclasses import replace

from ...ir import Operation, parse_attribute
from ...ir.attribute_values import DenseElementsAttr, DictionaryAttr, IntegerAttr
from ...ir.lexer import find_group_end
from .info import AxisInfo, largest_power

__all__ = ["apply_hints", "argument_infos"]

_DIVISIBILITY, _CONTIGUITY, _CONSTANCY = "tt.divisibility", "tt.contiguity", "tt.constancy"
_SPACE = re.compile(r"\s*")


def apply_hints(op: Operation, info: AxisInfo) -> AxisInfo:
    """Adds the claims of an operation's own attributes to its results."""
    if op._segments is None and not _may_promise(op):
        return info
    attributes = op.attributes
    if not any(name in attributes for name in (_DIVISIBILITY, _CONTIGUITY, _CONSTANCY)):
        return info
    return _promised(
        info,
        op,
        _numbers(attributes.get(_CONTIGUITY), info.rank),
        _numbers(attributes.get(_DIVISIBILITY), info.rank),
        _numbers(attributes.get(_CONSTANCY), info.rank),
    )


def _may_promise(op: Operation) -> bool:
    """Returns whether the attributes are worth reading."""
    spans, text = op._attr_spans, op.source.text
    return any(text.find("tt.", spans[i], spans[i + 1]) >= 0 for i in range(0, len(spans), 2))


def _promised(
    info: AxisInfo,
    op: Operation,
    contiguity: tuple[int, ...],
    divisibility: tuple[int, ...],
    constancy: tuple[int, ...],
) -> AxisInfo:
    # Inferred and attributed claims both hold; a divisor of the first elements of short groups
    # also divides those of longer groups.
    found = replace(
        info,
        contiguity=_larger(info.contiguity, contiguity),
        divisibility=_larger(info.divisibility, divisibility),
        constancy=_larger(info.constancy, constancy),
    )
    # For 24, say, 8 is used; hosts use 24.
    odd = any(x != largest_power(x) for x in (*contiguity, *divisibility, *constancy))
    return found.with_gap(op if odd else None)


def _larger(found: tuple[int, ...], promised: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(x, largest_power(y)) for x, y in zip(found, promised, strict=True))


def _numbers(text: str | None, rank: int) -> tuple[int, ...]:
    """Returns a number for each dimension; ones if the attribute has another rank."""
    found = parse_attribute(text) if text is not None else None
    numbers: tuple[object, ...] = ()
    if isinstance(found, IntegerAttr):
        numbers = (found.number,)
    elif isinstance(found, DenseElementsAttr):
        value = found.value
        numbers = value if isinstance(value, tuple) else (value,) * rank
    clean = tuple(x for x in numbers if isinstance(x, int) and x > 0)
    return clean if len(clean) == rank else (1,) * rank


def argument_infos(function: Operation, ranks: tuple[int, ...]) -> tuple[AxisInfo, ...]:
    """Returns the claims of a function's argument attributes.

    Args:
        function: The function.
        ranks: The rank of each argument; 1 for scalars.
    """
    found = []
    block = function.regions[0].blocks[0]
    for argument, rank in zip(block.args, ranks, strict=True):
        info = AxisInfo.nothing(rank)
        text = function.source.text
        end = argument._span[3] if argument._span is not None else -1
        blank = _SPACE.match(text, end) if end >= 0 else None
        start = blank.end() if blank is not None else -1
        if start >= 0 and text.startswith("{", start):
            parsed = parse_attribute(text[start : find_group_end(function.source, start)])
            if isinstance(parsed, DictionaryAttr):
                raw = {name: value.print() for name, value in parsed.entries}
                info = _promised(
                    info,
                    function,
                    _numbers(raw.get(_CONTIGUITY), rank),
                    _numbers(raw.get(_DIVISIBILITY), rank),
                    _numbers(raw.get(_CONSTANCY), rank),
                )
        found.append(info)
    return tuple(found)
