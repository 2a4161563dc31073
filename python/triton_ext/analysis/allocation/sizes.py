"""Sizes and alignments of buffers.

A buffer with padded encoding ends at its last element, without trailing padding.  A partitioned
encoding has one buffer per partition, which holds the partition's pieces one after the other,
padded as a whole.  Offsets of a ``#ttg.shared_linear`` without elements of their own (bases of
zeros) count, because elements follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import VerifyError
from ...ir.attribute_values import OpaqueAttr
from ...ir.encodings import (
    Encoding,
    NvmmaSharedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
    SharedLinearEncoding,
)
from ...ir.encodings.conversion import shape_per_cta
from ...ir.types import MemDescType

__all__ = ["BufferSize", "buffer_size", "reserved_bytes", "reserved_size"]

_DEFAULT_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class BufferSize:
    """Memory of a value.

    Attributes:
        bytes: Size of each of its buffers.
        alignment: Alignment of each, in bytes.
        count: Number of buffers; several only for a partitioned encoding.
    """

    bytes: int
    alignment: int
    count: int = 1


def buffer_size(type_: MemDescType) -> BufferSize:
    """Returns the memory of an allocation in each CTA.

    Args:
        type_: Type of the result of ``ttg.local_alloc``.

    Raises:
        VerifyError: The encoding is unknown or does not fit the shape, or an element has no size.
    """
    encoding, bits = _known(type_)
    type_.verify()
    # Addresses of i1 advance by a byte.  Triton 3.6 and 3.7 reserve a bit, newer ones refuse such
    # buffers.
    return _size(type_, encoding, 8 if bits == 1 else bits)


def reserved_size(type_: MemDescType) -> BufferSize:
    """Returns the memory that Triton reserves for a type, which may be too little.

    Triton pads the elements of all partitions as one buffer and divides the bytes by the number of
    pieces, rounding down.  Sizes that no layout has are not checked.  Offsets without elements of
    their own count, as in 3.9.

    Raises:
        VerifyError: The encoding is unknown or has more partitions than elements, or an element
            has no size.
    """
    encoding, bits = _known(type_)
    if not isinstance(encoding, PartitionedSharedEncoding):
        return _size(type_, encoding, bits)
    layout = encoding.partition_layout
    elements = _product(shape_per_cta(encoding.cga_bases, type_.full_alloc_shape))
    if isinstance(layout, PaddedSharedEncoding):
        elements = layout.padded_size(elements)
    if encoding.num_partitions > max(elements, 1):
        raise VerifyError(
            f"expected at most {elements} partitions of {elements} elements, found "
            f"{encoding.num_partitions}"
        )
    piece = elements * bits // 8 // (encoding.num_partitions * encoding.num_groups)
    return BufferSize(piece * encoding.num_groups, _alignment(encoding), encoding.num_partitions)


def reserved_bytes(type_: MemDescType) -> int:
    """Returns the bytes of :func:`reserved_size`."""
    return reserved_size(type_).bytes


def _known(type_: MemDescType) -> tuple[SharedEncoding, int]:
    """Returns the encoding of a type, and the bits of its elements.

    Raises:
        VerifyError: One of them is unknown.
    """
    encoding, bits = type_.encoding, type_.bit_width
    if not isinstance(encoding, SharedEncoding):
        raise VerifyError(
            f"the size of a buffer with the encoding '{encoding}' is not known{_why(encoding)}"
        )
    if bits is None:
        raise VerifyError(f"the size of an element '{type_.element}' is not known")
    return encoding, bits


def _why(encoding: object) -> str:
    """Returns what is unknown about an encoding, as the end of a sentence."""
    why = encoding.why if isinstance(encoding, OpaqueAttr) else ""
    return f": {why}" if why else ""


def _size(type_: MemDescType, encoding: SharedEncoding, bits: int) -> BufferSize:
    shape = type_.full_alloc_shape
    rank = encoding.rank if encoding.rank is not None else len(shape)
    buffers, shape = _product(shape[: len(shape) - rank]), shape[len(shape) - rank :]
    count, elements = _elements(encoding, buffers, shape)
    # At least one byte: 4-bit elements are packed in pairs.
    return BufferSize(-(-elements * bits // 8), _alignment(encoding), count)


def _elements(encoding: SharedEncoding, buffers: int, shape: Sequence[int]) -> tuple[int, int]:
    """Returns the number of buffers in memory, and the elements of each including padding."""
    if isinstance(encoding, PartitionedSharedEncoding):
        layout = encoding.partition_layout
        if not isinstance(layout, SharedEncoding):
            raise VerifyError(
                f"the size of a piece with the encoding '{layout}' is not known{_why(layout)}"
            )
        piece = encoding.piece_shape(shape)
        encoding.to_linear_layout(shape)  # checks that the pieces match their encoding
        _, elements = _elements(layout, buffers * encoding.num_groups, piece)
        return encoding.num_partitions, elements
    sizes = list(shape)
    if isinstance(encoding, NvmmaSharedEncoding) and encoding.fp4_padded:
        sizes[0 if encoding.transposed else -1] *= 2
    elements = buffers * _product(shape_per_cta(encoding.cga_bases, sizes))
    if isinstance(encoding, (PaddedSharedEncoding, SharedLinearEncoding)):
        places = encoding.to_linear_layout(shape)  # checks that the bases cover the shape
        if isinstance(encoding, SharedLinearEncoding):
            elements = buffers * places.in_dim_size("offset")
    if isinstance(encoding, PaddedSharedEncoding):
        elements = encoding.padded_size(elements)
    return 1, elements


def _alignment(encoding: Encoding) -> int:
    if isinstance(encoding, NvmmaSharedEncoding):
        # The swizzle repeats after 8 rows of its width (PTX ISA, "Swizzling modes").
        return 128 * max(encoding.swizzle_byte_width // 16, 1)
    if isinstance(encoding, SharedLinearEncoding):
        return encoding.alignment
    if isinstance(encoding, PartitionedSharedEncoding) and isinstance(
        encoding.partition_layout, Encoding
    ):
        return _alignment(encoding.partition_layout)
    return _DEFAULT_ALIGNMENT


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
