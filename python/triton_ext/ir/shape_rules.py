"""Relations between shapes and element types of operands and results, which every host checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .result_counts import CASTS

__all__ = ["SHAPED", "shape_problem"]

_TENSOR = re.compile(r"(?:tensor|!ttg\.memdesc)<((?:\d{1,19}x)*)", re.ASCII)
_ORDER = re.compile(r"order\s*=\s*array<i32:([\d,\s]*)>", re.ASCII)
_AXIS = re.compile(r"\baxis\s*=\s*(\d{1,9})\s*:\s*i32", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor or buffer type without its encoding.

    Attributes:
        shape: Its shape.
        element: The text of its element type.
    """

    shape: tuple[int, ...]
    element: str


@lru_cache(maxsize=4096)
def _tensor_of(type_: str) -> _Tensor | None:
    """Parses a type that has aliases only in its encoding; ``None`` for other types."""
    head = _TENSOR.match(type_)
    if head is None:
        return None
    depth, at = 0, head.end()
    for token in re.finditer(r"->|[<(\[{]|[>)\]}]|,", type_[at:]):
        text = token[0]
        if depth == 0 and text in (",", ">"):
            sizes = tuple(int(size) for size in head[1].split("x")[:-1])
            return _Tensor(sizes, type_[at : at + token.start()].strip())
        depth += (text in "<([{") - (text in ">)]}")
    return None


def shape_problem(name: str, text: str, source: str | None, result: str | None) -> str | None:
    """Returns what the result of an operation would have to be.

    Args:
        name: The operation, one of :data:`SHAPED`.
        text: Its text.
        source: The type of its first operand without aliases; ``None`` if unknown.
        result: That of its first result.

    Returns:
        A text such as ``"the same shape"``; ``None`` if the types fit or are unknown.
    """
    before = _tensor_of(source) if source is not None else None
    after = _tensor_of(result) if result is not None else None
    if before is None or after is None:
        return None
    return SHAPED[name](before, after, text)


def _same(before: _Tensor, after: _Tensor, text: str) -> str | None:
    return None if before == after else "the same shape and element type"


def _same_shape(before: _Tensor, after: _Tensor, text: str) -> str | None:
    return None if before.shape == after.shape else "the same shape"


def _broadcast(before: _Tensor, after: _Tensor, text: str) -> str | None:
    fits = len(before.shape) == len(after.shape) and all(
        old in (1, new) for old, new in zip(before.shape, after.shape, strict=True)
    )
    if not fits:
        return "the same sizes in all dimensions that are not 1"
    return _same_element(before, after)


def _same_element(before: _Tensor, after: _Tensor) -> str | None:
    return None if before.element == after.element else "the same element type"


def _expanded(before: _Tensor, after: _Tensor, text: str) -> str | None:
    match = _AXIS.search(text)
    if match is None:
        return None
    axis = int(match[1])
    wanted = (*before.shape[:axis], 1, *before.shape[axis:])
    if axis > len(before.shape) or after.shape != wanted:
        return "one more dimension of 1"
    return _same_element(before, after)


def _transposed(before: _Tensor, after: _Tensor, text: str) -> str | None:
    match = _ORDER.search(text)
    if match is None:
        return None
    order = [int(each) for each in re.findall(r"\d{1,9}", match[1])]
    if sorted(order) != list(range(len(before.shape))):
        return f"an order of {len(before.shape)} dimensions"
    if after.shape != tuple(before.shape[each] for each in order):
        return "the sizes in another order"
    return _same_element(before, after)


def _reshaped(before: _Tensor, after: _Tensor, text: str) -> str | None:
    if math.prod(before.shape) != math.prod(after.shape):
        return "as many elements"
    return _same_element(before, after)


def _joined(before: _Tensor, after: _Tensor, text: str) -> str | None:
    if after.shape != (*before.shape, 2):
        return "one more dimension of 2"
    return _same_element(before, after)


def _split(before: _Tensor, after: _Tensor, text: str) -> str | None:
    if before.shape != (*after.shape, 2):
        return "the shape without its last dimension, 2"
    return _same_element(before, after)


#: Checks of the result type against the type of the first operand, by operation.
SHAPED: Mapping[str, Callable[[_Tensor, _Tensor, str], str | None]] = {
    "tt.broadcast": _broadcast,
    "tt.expand_dims": _expanded,
    "tt.join": _joined,
    "tt.reshape": _reshaped,
    "tt.split": _split,
    "tt.trans": _transposed,
    "ttg.convert_layout": _same,
    "ttg.local_alloc": _same,
    "ttg.local_load": _same,
    "gluon.set_auto_layout": _same,
    **dict.fromkeys({*CASTS, "tt.bitcast", "tt.fp_to_fp"}, _same_shape),
}
