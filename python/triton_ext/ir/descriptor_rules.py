"""The verifier's rule about copies between memory and a block that a descriptor describes.

One rule covers both kinds of descriptors.  With an im2col descriptor, the number of coordinates is
the rank of the tensor and not of the block, and each spatial dimension has an offset.  Triton
checks all of this from 3.7 on.  3.6 accepts much of it and lowers it to a copy of other bytes, or
to PTX that ptxas refuses.

Not checked: operations in the generic form, types that are not printed or cannot be read, and what
depends on an unknown type or encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import ParseError
from .attribute_values import Attribute, OpaqueAttr
from .dialects.view import literals
from .encodings import NvmmaSharedEncoding
from .nodes import Operation
from .types import (
    IntegerType,
    MemDescType,
    OpaqueType,
    TensorDescIm2ColType,
    TensorDescType,
    Type,
    parse_type,
)
from .values import Value

if TYPE_CHECKING:
    from .rules import Facts

__all__ = ["COPIES", "wrong_copy"]

_LOAD = "ttng.async_tma_copy_global_to_local"
#: Copies between memory and a buffer.
COPIES = frozenset({_LOAD, "ttng.async_tma_copy_local_to_global", "ttng.async_tma_reduce"})

_I64 = IntegerType(64)
#: Characters of a type without aliases; hosts print none that is nearly as long.
_MAX_TEXT = 1 << 13
_MAX_RANK = 5
_MIN_IM2COL_RANK = 3

Descriptor = TensorDescType | TensorDescIm2ColType
Broken = Mapping[str, object] | None


def _expected(wanted: str, found: object) -> Broken:
    return {"wanted": wanted, "found": found}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


@dataclass(frozen=True, slots=True)
class _Copy:
    """The operands of a copy.

    Attributes:
        desc: The descriptor.
        coords: Coordinates, outermost first.
        offsets: Filter offsets; ``None`` if not printed.
        buffer: The shared memory.
        rest: Mbarrier and predicate of a load.
    """

    desc: Value
    coords: Sequence[Value]
    offsets: Sequence[Value]
    buffer: Value
    rest: Sequence[Value]

    @classmethod
    def of(cls, op: Operation) -> _Copy | None:
        """Reads a copy; ``None`` for the generic form, and for other operands."""
        if op.is_quoted:
            return None
        lists: list[list[Value]] = []
        single: list[Value] = []
        is_open = False
        for word, operand in zip(literals(op), op.operands, strict=False):
            for bracket in word:
                if bracket == "[":
                    lists.append([])
                is_open = bracket == "[" or (is_open and bracket != "]")
            (lists[-1] if is_open else single).append(operand)
        if len(single) != (4 if op.name == _LOAD else 2):
            return None
        coords, offsets = [*lists, [], []][:2]
        return cls(single[0], coords, offsets, single[1], single[2:])


def wrong_copy(op: Operation, facts: Facts) -> Broken:
    """Returns what does not fit the descriptor of a copy, or ``None``."""
    copy = _Copy.of(op)
    desc = _read(copy.desc, facts) if copy is not None else None
    if copy is None or desc is None or isinstance(desc, OpaqueType):
        return None
    if isinstance(desc, TensorDescType):
        wrong = _wrong_tiled_counts(copy, desc)
    elif not isinstance(desc, TensorDescIm2ColType):
        wrong = _expected("a tensor descriptor as operand 0", f"'{desc}'")
    elif op.name != _LOAD:
        wrong = _expected(
            "a tiled tensor descriptor, the only kind that is written through,", f"'{desc}'"
        )
    else:
        wrong = _wrong_im2col_counts(copy)
    if wrong is not None or not isinstance(desc, (TensorDescType, TensorDescIm2ColType)):
        return wrong
    return (
        _wrong_types(copy, facts)
        or _wrong_buffer(desc, _read(copy.buffer, facts), is_load=op.name == _LOAD)
        or _wrong_barrier([_read(value, facts) for value in copy.rest[:1]])
    )


def _read(value: Value, facts: Facts) -> Type | None:
    """Returns the type of a value; ``None`` if it is not printed, too long or not readable."""
    text = value.known_type
    written = facts.spelled_out(text) if text is not None else ""
    return _parse(written) if 0 < len(written) <= _MAX_TEXT else None


@lru_cache(maxsize=1024)
def _parse(written: str) -> Type | None:
    """Parses a type without aliases, cached."""
    try:
        return parse_type(written)
    except ParseError:
        return None


def _wrong_tiled_counts(copy: _Copy, desc: TensorDescType) -> Broken:
    if len(copy.coords) != desc.rank:
        wanted = f"{_count(desc.rank, 'coordinate')}, one for each dimension of the block"
        return _expected(wanted, len(copy.coords))
    if not 1 <= desc.rank <= _MAX_RANK:
        return _expected(f"1 to {_MAX_RANK} coordinates", desc.rank)
    if copy.offsets:
        return _expected("no offsets with a tiled descriptor", len(copy.offsets))
    return None


def _wrong_im2col_counts(copy: _Copy) -> Broken:
    rank = len(copy.coords)
    if not _MIN_IM2COL_RANK <= rank <= _MAX_RANK:
        return _expected(
            f"{_MIN_IM2COL_RANK} to {_MAX_RANK} coordinates with an im2col descriptor", rank
        )
    if len(copy.offsets) != rank - 2:
        wanted = (
            f"{_count(rank - 2, 'offset')}, one for each spatial dimension of {rank} coordinates"
        )
        return _expected(wanted, len(copy.offsets))
    return None


def _wrong_types(copy: _Copy, facts: Facts) -> Broken:
    named = [(f"coordinate {i}", value, 32) for i, value in enumerate(copy.coords)]
    named += [(f"offset {i}", value, 16) for i, value in enumerate(copy.offsets)]
    named += [("the predicate", value, 1) for value in copy.rest[1:]]
    for name, value, width in named:
        found = _read(value, facts)
        if found not in (None, IntegerType(width)) and not isinstance(found, OpaqueType):
            return _expected(f"'i{width}' as the type of {name}", f"'{found}'")
    return None


@lru_cache(maxsize=1024)
def _wrong_buffer(desc: Descriptor, buffer: Type | None, *, is_load: bool) -> Broken:
    if buffer is None or isinstance(buffer, OpaqueType):
        return None
    if not isinstance(buffer, MemDescType):
        return _expected("a memory descriptor as the buffer", f"'{buffer}'")
    wrong = _wrong_memory(desc, buffer)
    if wrong is None and is_load and not buffer.mutable:
        return _expected("a mutable buffer", "one that cannot be written")
    return wrong


def _wrong_barrier(types: Sequence[Type | None]) -> Broken:
    for type_ in types:
        if type_ is None or isinstance(type_, OpaqueType):
            continue
        may_fit = (
            isinstance(type_, MemDescType)
            and type_.rank == 1
            and (type_.element == _I64 or isinstance(type_.element, OpaqueType))
        )
        if not may_fit:
            return _expected("a memory descriptor of 1xi64 as the mbarrier", f"'{type_}'")
    return None


def _wrong_memory(desc: Descriptor, buffer: MemDescType) -> Broken:
    wanted, found = (_signless(type_.element) for type_ in (desc, buffer))
    is_known = not isinstance(wanted, OpaqueType) and not isinstance(found, OpaqueType)
    if wanted != found and is_known:
        return _expected(f"a buffer of '{wanted}', the elements of the block", f"'{found}'")
    # Dimensions of size 1 and the leading number of buffers may differ, the elements may not.
    if None not in (*desc.shape, *buffer.shape) and desc.num_elements != buffer.num_elements:
        return _expected(
            f"a buffer of {desc.num_elements} elements, as many as the block has",
            buffer.num_elements,
        )
    return _wrong_layout(desc.shared_layout, buffer.encoding)


def _wrong_layout(layout: Attribute | None, encoding: Attribute) -> Broken:
    """Compares encodings by their swizzle; their ranks may differ."""
    if isinstance(layout, OpaqueAttr) or isinstance(encoding, OpaqueAttr):
        return None
    nvmma = "'#ttg.nvmma_shared'"
    if not isinstance(encoding, NvmmaSharedEncoding):
        return _expected(f"a buffer with an encoding of {nvmma}", f"'{encoding}'")
    if not isinstance(layout, NvmmaSharedEncoding):
        described = "none" if layout is None else f"'{layout}'"
        return _expected(f"a descriptor with an encoding of {nvmma}, as the buffer has,", described)
    for name, wanted in _swizzle(encoding).items():
        found = _swizzle(layout)[name]
        if found != wanted:
            return _expected(f"a descriptor with {name} = {wanted}, as the buffer has,", found)
    return None


def _signless(element: Type) -> Type:
    return IntegerType(element.width) if isinstance(element, IntegerType) else element


def _swizzle(encoding: NvmmaSharedEncoding) -> dict[str, object]:
    """Returns the parameters on which a descriptor and its buffer must agree, as printed."""
    return {
        "swizzlingByteWidth": encoding.swizzle_byte_width,
        "transposed": str(encoding.transposed).lower(),
        "elementBitWidth": encoding.element_bitwidth,
        "fp4Padded": str(encoding.fp4_padded).lower(),
    }
