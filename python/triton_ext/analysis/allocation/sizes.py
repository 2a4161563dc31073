"""How many bytes a buffer takes, and how they have to be aligned.

A buffer of padded encoding ends behind its last element: nothing is padded behind it.  That of a
partitioned encoding is one buffer for each partition, which holds the partition's pieces one behind
the other, padded as a whole.  Offsets of a ``#ttg.shared_linear`` that hold no element of their own
(bases of zeros) count: elements lie behind them.
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
    """What a value needs.

    Attributes:
        bytes: Size of each of its buffers.
        alignment: Of each, in bytes.
        count: Number of buffers; several only for a partitioned encoding.
    """

    bytes: int
    alignment: int
    count: int = 1


def buffer_size(type_: MemDescType) -> BufferSize:
    """What an allocation of a type needs in each CTA.

    Args:
        type_: Type of the result of ``ttg.local_alloc``.

    Raises:
        VerifyError: The encoding is not known, is none for this shape, or an element has no size.
    """
    encoding, bits = _known(type_)
    type_.verify()
    # An address steps by a byte from one i1 to the next.  Triton 3.6 and 3.7 reserve a bit, newer
    # ones refuse such buffers.
    return _size(type_, encoding, 8 if bits == 1 else bits)


def reserved_size(type_: MemDescType) -> BufferSize:
    """What Triton reserves for a type, which may be less than the buffers take.

    Triton pads all of the partitions' elements as one and divides the bytes by the number of
    pieces, which cuts off what does not divide.  Sizes that no layout has are taken as they are.
    Offsets without an element of their own are counted, as 3.9 does.

    Raises:
        VerifyError: The encoding is not known or has more partitions than elements, or an element
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
    """The bytes of :func:`reserved_size`."""
    return reserved_size(type_).bytes


def _known(type_: MemDescType) -> tuple[SharedEncoding, int]:
    """The encoding of a type, and the bits of its elements.

    Raises:
        VerifyError: One of them is not known.
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
    """What is not known of an encoding, as the end of a sentence."""
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
    """Number of buffers in memory, and elements of each, padding included."""
    if isinstance(encoding, PartitionedSharedEncoding):
        layout = encoding.partition_layout
        if not isinstance(layout, SharedEncoding):
            raise VerifyError(
                f"the size of a piece with the encoding '{layout}' is not known{_why(layout)}"
            )
        piece = encoding.piece_shape(shape)
        encoding.to_linear_layout(shape)  # checks that the pieces are what their encoding says
        _, elements = _elements(layout, buffers * encoding.num_groups, piece)
        return encoding.num_partitions, elements
    sizes = list(shape)
    if isinstance(encoding, NvmmaSharedEncoding) and encoding.fp4_padded:
        sizes[0 if encoding.transposed else -1] *= 2
    elements = buffers * _product(shape_per_cta(encoding.cga_bases, sizes))
    if isinstance(encoding, (PaddedSharedEncoding, SharedLinearEncoding)):
        places = encoding.to_linear_layout(shape)  # checks that the bases reach all of the shape
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
