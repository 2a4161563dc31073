"""What buffers take: the highest address that is written, and not a byte more."""

from __future__ import annotations

import itertools

import pytest
from triton_ext.analysis.allocation import BufferSize, buffer_size, reserved_bytes
from triton_ext.errors import VerifyError
from triton_ext.ir.encodings import (
    NvmmaSharedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SwizzledSharedEncoding,
)
from triton_ext.ir.types import parse_type

PLAIN = SwizzledSharedEncoding(1, 1, 1, (1, 0))


def size_of(shape: str, encoding: object, element: str = "f16") -> BufferSize:
    text = f"!ttg.memdesc<{shape}x{element}, {encoding}, #ttg.shared_memory, mutable>"
    return buffer_size(parse_type(text))


def test_plain_buffers():
    assert size_of("64x32", PLAIN) == BufferSize(4096, 16)
    assert size_of("3x64x32", PLAIN) == BufferSize(3 * 4096, 16)
    assert size_of("1", SwizzledSharedEncoding(1, 1, 1, (0,)), "i64") == BufferSize(8, 16)
    assert size_of("1", SwizzledSharedEncoding(1, 1, 1, (0,)), "i1") == BufferSize(1, 16)


def test_elements_of_one_bit_take_a_byte_and_triton_reserves_a_bit():
    assert size_of("64x32", PLAIN, "i1") == size_of("64x32", PLAIN, "i8") == BufferSize(2048, 16)
    text = f"!ttg.memdesc<64x32xi1, {PLAIN}, #ttg.shared_memory, mutable>"
    assert reserved_bytes(parse_type(text)) == 256
    assert size_of("64x32", PLAIN, "f4E2M1FN") == BufferSize(1024, 16)


@pytest.mark.parametrize(("width", "alignment"), [(0, 128), (32, 256), (64, 512), (128, 1024)])
def test_swizzles_of_the_tensor_memory_accelerator_are_aligned(width, alignment):
    found = size_of("64x64", NvmmaSharedEncoding(width, 16))
    assert found == BufferSize(8192, alignment)


def test_each_cta_of_a_cluster_has_its_share():
    encoding = SwizzledSharedEncoding(1, 1, 1, (1, 0), ((1, 0),))
    assert size_of("64x32", encoding) == BufferSize(2048, 16)


def test_the_padded_example_that_hosts_get_wrong():
    inner = PaddedSharedEncoding.with_identity_for(((64, 4),), (16, 64), (1, 0))
    encoding = PartitionedSharedEncoding(2, 16, 0, inner)
    assert size_of("512x64", encoding) == BufferSize(34808, 16, 2)


def test_a_partition_ends_behind_its_highest_element():
    # Padding is added to the offset in the partition, so that the last element is the highest.
    for partitions, groups, interval, pad in itertools.product(
        (2, 4), (1, 2, 8), (8, 32, 256), (1, 4, 16)
    ):
        inner = PaddedSharedEncoding.with_identity_for(((interval, pad),), (4, 16), (1, 0))
        encoding = PartitionedSharedEncoding(partitions, groups, 0, inner)
        shape = (4 * partitions * groups, 16)
        offsets = range(encoding.to_linear_layout(shape).in_dim_size("offset"))
        highest = max(offset + offset // interval * pad for offset in offsets)
        found = size_of(f"{shape[0]}x16", encoding, "i8")
        assert found == BufferSize(highest + 1, 16, partitions)


def test_more_partitions_than_elements():
    encoding = PartitionedSharedEncoding(1 << 40, 4, 0, PLAIN)
    type_ = parse_type(f"!ttg.memdesc<64x32xf16, {encoding}, #ttg.shared_memory, mutable>")
    with pytest.raises(VerifyError, match="at most 2048 partitions of 2048 elements, found 1099"):
        reserved_bytes(type_)


def test_an_encoding_that_is_not_known():
    with pytest.raises(VerifyError, match="the size of a buffer with the encoding"):
        size_of("64x32", "#other.encoding<{x = 1}>")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("#ttg.padded_shared<[128:+8] {order = [1, 0], shape = [16, 64]}>", "a shape inside of"),
        ("#ttg.padded_shared<[128:+8] {order = [0], shape = [16]}>", "a shape inside of"),
        ("#ttg.shared_linear<{offset = [[0, 1]]}, alignment = 16>", "the shape of the bases"),
    ],
)
def test_bases_that_do_not_reach_all_of_the_buffer(encoding, said):
    with pytest.raises(VerifyError, match=said):
        size_of("128x64", encoding)
    reached = "#ttg.padded_shared<[128:+8] {order = [1, 0], shape = [128, 64]}>"
    assert size_of("128x64", reached).bytes == (8192 + 63 * 8) * 2
