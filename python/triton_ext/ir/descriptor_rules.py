"""The verifier's predicates about copies between memory and a block that a descriptor describes.

Both kinds of descriptors are checked by the same predicates: of an im2col descriptor, the number of
coordinates is the rank of the tensor and not of the block, and each dimension that a filter walks
over has an offset.  Triton checks all of this from 3.7 on.  3.6 accepts much of it and lowers it to
a copy of other bytes, or to PTX that ptxas refuses.

Not checked: operations in the quoted form, and types that are not printed or cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dialects.view import literals
from .encodings import NvmmaSharedEncoding
from .nodes import Operation
from .types import IntegerType, MemDescType, TensorDescIm2ColType, TensorDescType, Type
from .values import Value

if TYPE_CHECKING:
    from .rules import Facts

__all__ = ["COPIES", "wrong_buffer", "wrong_indices"]

_LOAD = "ttng.async_tma_copy_global_to_local"
#: What moves a block between memory and a buffer.
COPIES = frozenset({_LOAD, "ttng.async_tma_copy_local_to_global", "ttng.async_tma_reduce"})

_MAX_RANK = 5
_MIN_IM2COL_RANK = 3

Descriptor = TensorDescType | TensorDescIm2ColType
Broken = Mapping[str, object] | None


def _expected(wanted: str, found: object) -> Broken:
    return {"wanted": wanted, "found": found}


@dataclass(frozen=True, slots=True)
class _Copy:
    """The operands of a copy.

    Attributes:
        desc: The descriptor.
        coords: Coordinates, outermost first.
        offsets: Filter offsets; ``None`` where none are printed.
        buffer: The shared memory that is written or read.
        rest: Mbarrier and predicate of a load.
    """

    desc: Value
    coords: Sequence[Value]
    offsets: Sequence[Value]
    buffer: Value
    rest: Sequence[Value]

    @classmethod
    def of(cls, op: Operation) -> _Copy | None:
        """Reads a copy; ``None`` for the quoted form, and for what has other operands."""
        if op.source.text[op._span[2]] == '"':
            return None
        lists: list[list[Value]] = []
        single: list[Value] = []
        is_open = False
        for word, operand in zip(literals(op), op._operands, strict=False):
            for bracket in word:
                if bracket == "[":
                    lists.append([])
                is_open = bracket == "[" or (is_open and bracket != "]")
            (lists[-1] if is_open else single).append(operand)
        if len(single) != (4 if op.name == _LOAD else 2):
            return None
        coords, offsets = [*lists, [], []][:2]
        return cls(single[0], coords, offsets, single[1], single[2:])


def _descriptor(type_: Type | None) -> Descriptor | None:
    return type_ if isinstance(type_, (TensorDescType, TensorDescIm2ColType)) else None


def wrong_indices(op: Operation, facts: Facts) -> Broken:
    """A kind of descriptor, or a number or type of indices, that a copy cannot have."""
    copy = _Copy.of(op)
    type_ = facts.types.read(copy.desc.known_type) if copy is not None else None
    if copy is None or type_ is None:
        return None
    desc = _descriptor(type_)
    if desc is None:
        return _expected("a tensor descriptor as operand 0", f"'{copy.desc.known_type}'")
    if isinstance(desc, TensorDescIm2ColType):
        if op.name != _LOAD:
            return _expected(
                "a tiled tensor descriptor, the only kind that is written through,",
                f"'{copy.desc.known_type}'",
            )
        return _wrong_im2col_counts(copy) or _wrong_types(copy)
    return _wrong_tiled_counts(copy, desc) or _wrong_types(copy)


def _wrong_tiled_counts(copy: _Copy, desc: TensorDescType) -> Broken:
    if len(copy.coords) != desc.rank:
        block = f"{desc.rank} coordinates, one for each dimension of the block"
        return _expected(block, len(copy.coords))
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
        wanted = f"{rank - 2} offsets, one for each spatial dimension of {rank} coordinates"
        return _expected(wanted, len(copy.offsets))
    return None


def _wrong_types(copy: _Copy) -> Broken:
    named = [(f"coordinate {i}", value, "i32") for i, value in enumerate(copy.coords)]
    named += [(f"offset {i}", value, "i16") for i, value in enumerate(copy.offsets)]
    named += [("the predicate", value, "i1") for value in copy.rest[1:]]
    for name, value, wanted in named:
        if value.known_type not in (None, wanted):
            return _expected(f"'{wanted}' as the type of {name}", f"'{value.known_type}'")
    return None


def wrong_buffer(op: Operation, facts: Facts) -> Broken:
    """A buffer that does not fit the block, or an mbarrier that is none."""
    copy = _Copy.of(op)
    if copy is None:
        return None
    desc = _descriptor(facts.types.read(copy.desc.known_type))
    buffer = facts.types.read(copy.buffer.known_type)
    if desc is not None and buffer is not None:
        if not isinstance(buffer, MemDescType):
            return _expected("a memory descriptor as the buffer", f"'{buffer}'")
        broken = _wrong_memory(desc, buffer)
        if broken is not None:
            return broken
        if op.name == _LOAD and not buffer.mutable:
            return _expected("a mutable buffer", f"'{buffer}'")
    barrier = facts.types.read(copy.rest[0].known_type) if copy.rest else None
    if barrier is None:
        return None
    if (
        not isinstance(barrier, MemDescType)
        or barrier.rank != 1
        or barrier.element != IntegerType(64)
    ):
        return _expected("a memory descriptor of 1xi64 as the mbarrier", f"'{barrier}'")
    return None


def _wrong_memory(desc: Descriptor, buffer: MemDescType) -> Broken:
    wanted, found = (_signless(type_.element) for type_ in (desc, buffer))
    if wanted != found:
        return _expected(f"a buffer of '{wanted}', the elements of the block", f"'{found}'")
    # Dimensions of size 1 and the number of buffers in front may differ, the elements may not.
    if None not in (*desc.shape, *buffer.shape) and desc.num_elements != buffer.num_elements:
        return _expected(
            f"a buffer of {desc.num_elements} elements, as many as the block has",
            buffer.num_elements,
        )
    layout, encoding = desc.shared_layout, buffer.encoding
    if not isinstance(encoding, NvmmaSharedEncoding):
        return _expected("a buffer with '#ttg.nvmma_shared'", f"'{encoding}'")
    if not isinstance(layout, NvmmaSharedEncoding) or _swizzle(layout) != _swizzle(encoding):
        described = f"'{layout}'" if layout is not None else "a descriptor without one"
        return _expected(f"the encoding of the buffer, '{encoding}', in the descriptor", described)
    return None


def _signless(element: Type) -> Type:
    return IntegerType(element.width) if isinstance(element, IntegerType) else element


def _swizzle(encoding: NvmmaSharedEncoding) -> tuple[object, ...]:
    """What the descriptor and its buffer have to agree on; their ranks may differ."""
    return (
        encoding.swizzle_byte_width,
        encoding.transposed,
        encoding.element_bitwidth,
        encoding.fp4_padded,
    )
