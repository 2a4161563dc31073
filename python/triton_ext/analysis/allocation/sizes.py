"""How many bytes a buffer takes, and how they have to be aligned.

A buffer of padded encoding ends behind its last element: nothing is padded behind it.  That of a
partitioned encoding is one buffer for each partition, which holds the partition's pieces one behind
the other, padded as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import VerifyError
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

__all__ = ["BufferSize", "buffer_size", "reserved_bytes"]

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
    encoding = type_.encoding
    if not isinstance(encoding, SharedEncoding):
        raise VerifyError(f"the size of a buffer with the encoding '{encoding}' is not known")
    type_.verify()
    bits = type_.bit_width
    if bits is None:
        raise VerifyError(f"the size of an element '{type_.element}' is not known")
    shape = type_.full_alloc_shape
    rank = encoding.rank if encoding.rank is not None else len(shape)
    buffers, shape = _product(shape[: len(shape) - rank]), shape[len(shape) - rank :]
    count, elements = _elements(encoding, buffers, shape)
    # At least one byte: 4-bit elements are packed in pairs.
    return BufferSize(-(-elements * bits // 8), _alignment(encoding), count)


def reserved_bytes(type_: MemDescType) -> int:
    """What Triton reserves for each buffer of a type, which may be less than the buffer takes.

    Triton pads all of the partitions' elements as one and divides the bytes by the number of
    pieces, which cuts off what does not divide.

    Raises:
        VerifyError: As :func:`buffer_size`.
    """
    size = buffer_size(type_)
    encoding = type_.encoding
    if not isinstance(encoding, PartitionedSharedEncoding):
        return size.bytes
    layout = encoding.partition_layout
    if not isinstance(layout, PaddedSharedEncoding) or type_.bit_width is None:
        return size.bytes
    elements = _product(shape_per_cta(layout.cga_bases, type_.full_alloc_shape))
    total = layout.padded_size(elements) * type_.bit_width // 8
    return total // (encoding.num_partitions * encoding.num_groups) * encoding.num_groups


def _elements(encoding: SharedEncoding, buffers: int, shape: Sequence[int]) -> tuple[int, int]:
    """Number of buffers in memory, and elements of each, padding included."""
    if isinstance(encoding, PartitionedSharedEncoding):
        layout = encoding.partition_layout
        if not isinstance(layout, SharedEncoding):
            raise VerifyError(f"the size of a piece with the encoding '{layout}' is not known")
        piece = encoding.piece_shape(shape)
        encoding.to_linear_layout(shape)  # checks that the pieces are what their encoding says
        _, elements = _elements(layout, buffers * encoding.num_groups, piece)
        return encoding.num_partitions, elements
    sizes = list(shape)
    if isinstance(encoding, NvmmaSharedEncoding) and encoding.fp4_padded:
        sizes[0 if encoding.transposed else -1] *= 2
    elements = buffers * _product(shape_per_cta(encoding.cga_bases, sizes))
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
