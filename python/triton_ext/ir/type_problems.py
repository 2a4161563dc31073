"""Checks types of values and encodings behind aliases.

1. Every encoding must pass its own ``verify``.  Hosts need this to lower it, and check most of it
   when they read the text.
2. A memory descriptor must pass :meth:`~triton_ext.ir.types.MemDescType.verify_memory`.
3. The block of an im2col descriptor is pixels x channels, of rank 2.
4. Sizes of a tensor, and whether its encoding fits, count only at operations of the dialect ``tt``:
   hosts check them nowhere else.

Unreadable text is not checked, nor is text that is longer than any host prints after expanding its
aliases.  The meaning of a text without aliases never changes, so results are cached across modules:
checks between passes are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from ..errors import ParseError, VerifyError
from .aliases import AliasTable
from .attribute_values import OpaqueAttr, Printable, parse_attribute
from .encodings import Encoding
from .types import (
    FunctionType,
    MemDescType,
    PointerType,
    TensorDescIm2ColType,
    TensorType,
    Type,
    parse_type,
)

__all__ = ["TypeProblems", "are_one_type"]

#: Characters of a text without aliases.  The longest ones of hosts are linear layouts, below 2000.
_MAX_TEXT = 1 << 13
#: An encoding on which hosts abort instead of reporting an error.
_PARTITIONED = "#ttg.partitioned_shared<"


class TypeProblems:
    """Problems of one module's types and aliases, by text.

    Args:
        aliases: The module's aliases.
        spelled_out: Expands the aliases of a text; raises a :class:`VerifyError` if that is too
            long.
    """

    __slots__ = ("_known", "_said", "_spelled_out", "_table")

    def __init__(self, aliases: Mapping[str, str], spelled_out: Callable[[str], str]) -> None:
        self._table = AliasTable(aliases)
        self._spelled_out = spelled_out
        self._known: dict[tuple[str, bool], str | None] = {}
        self._said: set[str] = set()

    def of_aliases(self, aliases: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yields name and problem of each malformed encoding behind an alias."""
        for name, text in aliases.items():
            if name[0] != "#" or not text.startswith("#"):
                continue
            try:
                written = self._spelled_out(name)
                if len(written) > _MAX_TEXT or _is_encoding_legal(written):
                    continue
                attribute = self._table.attribute(name)
            except (ParseError, VerifyError) as error:
                if text.startswith(_PARTITIONED):
                    yield name, error.message
                continue
            problem = _problem(attribute) if isinstance(attribute, Encoding) else None
            if problem is not None:
                self._said.add(problem)
                yield name, problem

    def of_type(self, text: str, *, as_operand: bool) -> str | None:
        """Returns the problem of a type; ``None`` also if it was already reported at an alias.

        Args:
            text: The type as printed.
            as_operand: Whether it is an operand or result of an operation of the dialect ``tt``.
        """
        key = (text, as_operand)
        if key not in self._known:
            self._known[key] = self._find(text, as_operand)
        return self._known[key]

    def _find(self, text: str, as_operand: bool) -> str | None:
        try:
            written = self._spelled_out(text)
            if len(written) > _MAX_TEXT or _is_type_legal(written, as_operand):
                return None
            type_ = self._table.type(text)
        except (ParseError, VerifyError):
            return None
        for part in _checked(type_, as_operand):
            problem = _problem(part)
            if problem is not None and problem not in self._said:
                return problem
        return None


@lru_cache(maxsize=1024)
def are_one_type(left: str, right: str) -> bool:
    """Returns whether two texts without aliases spell the same type.

    Users write what hosts omit: ``!tt.ptr<f16, 1>`` is ``!tt.ptr<f16>``, and the buffer of
    ``!ttg.memdesc<64xf16, ..., 64>`` is the whole one.  A type with an unknown encoding may equal
    any.
    """
    if max(len(left), len(right)) > _MAX_TEXT:
        return False
    try:
        one, other = _shortest(parse_type(left)), _shortest(parse_type(right))
    except ParseError:
        return False
    return one == other or _is_opaque(one) or _is_opaque(other)


def _is_opaque(part: object) -> bool:
    """Returns whether a type has an encoding with unknown parameters."""
    if part is None or isinstance(part, OpaqueAttr):
        return part is not None and bool(part.why)
    inner = ("encoding", "shared_layout", "parent", "partition_layout")
    return any(_is_opaque(getattr(part, name, None)) for name in inner)


def _shortest(type_: Type) -> Type:
    if isinstance(type_, MemDescType) and type_.alloc_shape == type_.shape:
        return replace(type_, alloc_shape=None)
    return type_


@lru_cache(maxsize=1024)
def _is_encoding_legal(text: str) -> bool:
    """Returns whether the text of an attribute without aliases is legal."""
    try:
        attribute = parse_attribute(text)
    except ParseError:
        return not text.startswith(_PARTITIONED)
    return not isinstance(attribute, Encoding) or _problem(attribute) is None


@lru_cache(maxsize=4096)
def _is_type_legal(text: str, as_operand: bool) -> bool:
    """Returns whether the text of a type without aliases is legal."""
    try:
        type_ = parse_type(text)
    except ParseError:
        return True
    return all(_problem(part) is None for part in _checked(type_, as_operand))


def _checked(type_: Type, as_operand: bool) -> Iterator[Printable]:
    """Yields the parts of a type that must pass ``verify``; of buffers what hosts agree on."""
    if isinstance(type_, FunctionType):
        for inner in (*type_.inputs, *type_.results):
            yield from _checked(inner, False)
        return
    if isinstance(type_, PointerType):
        yield from _checked(type_.pointee, False)
        return
    for name in ("encoding", "shared_layout"):
        encoding = getattr(type_, name, None)
        if isinstance(encoding, Encoding):
            yield encoding
    if isinstance(type_, (MemDescType, TensorDescIm2ColType)) or (
        isinstance(type_, TensorType) and as_operand
    ):
        yield type_


def _problem(part: Printable) -> str | None:
    try:
        if isinstance(part, MemDescType):
            part.verify_memory()
        elif isinstance(part, TensorDescIm2ColType):
            part.verify_rank()
        else:
            part.verify()
    except VerifyError as error:
        return error.message
    return None
