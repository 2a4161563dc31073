"""What is wrong with the types of values and the encodings behind aliases.

1. An encoding has to pass its own ``verify``, wherever it stands.  That is what hosts need to lower
   it; most of it they check as soon as they read the text.
2. A memory descriptor has to pass :meth:`~triton_ext.ir.types.MemDescType.verify_memory`.
3. The block of an im2col descriptor is pixels x channels, of rank 2.
4. Sizes of a tensor, and whether its encoding fits it, count at operations of the dialect ``tt``
   alone: nowhere else are they checked by a host.

Text that cannot be read here is not checked, nor is text that is longer than any host prints once
its aliases are written out.  What a text without aliases means never changes, so a verdict on one
is remembered from module to module: checks between passes cost little.
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

#: Characters of a text without aliases.  The longest of hosts are linear layouts, below 2000.
_MAX_TEXT = 1 << 13
#: What hosts abort on instead of saying what is wrong.
_PARTITIONED = "#ttg.partitioned_shared<"


class TypeProblems:
    """Problems of one module's types and aliases, by text.

    Args:
        aliases: The module's aliases.
        spelled_out: Writes a text out without aliases; raises a :class:`VerifyError` if that is too
            long.
    """

    __slots__ = ("_known", "_said", "_spelled_out", "_table")

    def __init__(self, aliases: Mapping[str, str], spelled_out: Callable[[str], str]) -> None:
        self._table = AliasTable(aliases)
        self._spelled_out = spelled_out
        self._known: dict[tuple[str, bool], str | None] = {}
        self._said: set[str] = set()

    def of_aliases(self, aliases: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Name and problem of each encoding behind an alias that is malformed."""
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
        """What is wrong with a type; ``None`` also for what an alias was blamed for.

        Args:
            text: The type as printed.
            as_operand: Whether an operation of the dialect ``tt`` takes or gives it.
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
    """Whether two texts without aliases are two ways to write one type.

    People write what hosts leave out: ``!tt.ptr<f16, 1>`` is ``!tt.ptr<f16>``, and the buffer of
    ``!ttg.memdesc<64xf16, ..., 64>`` is the whole one.  A type whose encoding is not known here may
    be any.
    """
    if max(len(left), len(right)) > _MAX_TEXT:
        return False
    try:
        one, other = _shortest(parse_type(left)), _shortest(parse_type(right))
    except ParseError:
        return False
    return one == other or _is_opaque(one) or _is_opaque(other)


def _is_opaque(part: object) -> bool:
    """Returns whether a type has an encoding of which not all parameters are known here."""
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
    """Whether there is nothing wrong with the text of an attribute without aliases."""
    try:
        attribute = parse_attribute(text)
    except ParseError:
        return not text.startswith(_PARTITIONED)
    return not isinstance(attribute, Encoding) or _problem(attribute) is None


@lru_cache(maxsize=4096)
def _is_type_legal(text: str, as_operand: bool) -> bool:
    """Whether there is nothing wrong with the text of a type without aliases."""
    try:
        type_ = parse_type(text)
    except ParseError:
        return True
    return all(_problem(part) is None for part in _checked(type_, as_operand))


def _checked(type_: Type, as_operand: bool) -> Iterator[Printable]:
    """The parts of a type that have to pass their ``verify``; buffers in what hosts agree on."""
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
