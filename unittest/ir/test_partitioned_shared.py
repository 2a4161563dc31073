"""Partitioned buffers: which piece lies where, for every small encoding."""

from __future__ import annotations

import itertools

import pytest
from triton_ext.errors import VerifyError
from triton_ext.ir.attribute_values import parse_attribute
from triton_ext.ir.encodings import (
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SwizzledSharedEncoding,
)
from triton_ext.ir.types import parse_type

PLAIN = SwizzledSharedEncoding(1, 1, 1, (1, 0))
ENCODINGS = [
    PLAIN,
    SwizzledSharedEncoding(1, 1, 1, (0, 1)),
    SwizzledSharedEncoding(2, 1, 4, (1, 0)),
    SwizzledSharedEncoding(4, 2, 2, (0, 1)),
]
CASES = [
    (partitions, groups, dim, piece, inner)
    for partitions, groups, dim, piece, inner in itertools.product(
        (2, 4, 8), (1, 2, 4), (0, 1), ((2, 8), (8, 4)), range(len(ENCODINGS) + 1)
    )
]


def partitioned(partitions, groups, dim, piece, inner):
    """The encoding and the shape of the whole buffer."""
    shape = list(piece)
    shape[dim] *= partitions * groups
    if inner == len(ENCODINGS):
        layout = PaddedSharedEncoding.with_identity_for(((4, 2),), piece, (1, 0))
    else:
        layout = ENCODINGS[inner]
    return PartitionedSharedEncoding(partitions, groups, dim, layout), tuple(shape)


def test_the_example_of_upstream():
    encoding = PartitionedSharedEncoding(2, 4, 0, PLAIN)
    assert encoding.pieces((128, 32)) == ((0, 2, 4, 6), (1, 3, 5, 7))
    layout = encoding.to_linear_layout((128, 32))
    assert layout.in_bases("partition") == ((16, 0),)
    assert layout.in_bases("offset")[-2:] == ((32, 0), (64, 0))


def test_every_element_has_one_place_in_the_piece_that_it_is_part_of():
    for case in CASES:
        encoding, shape = partitioned(*case)
        partitions, groups, dim, piece, _ = case
        layout = encoding.to_linear_layout(shape)
        assert layout.is_invertible
        pieces = encoding.pieces(shape)
        assert sorted(itertools.chain(*pieces)) == list(range(partitions * groups))
        size = piece[0] * piece[1]
        seen = set()
        for partition, offset in itertools.product(range(partitions), range(size * groups)):
            place = layout.apply({"partition": partition, "offset": offset, "block": 0})
            element = place["dim0"], place["dim1"]
            # The buffer of a partition has its pieces one behind the other.
            assert element[dim] // piece[dim] == pieces[partition][offset // size]
            seen.add(element)
        assert seen == set(itertools.product(*map(range, shape)))


def test_a_piece_lies_as_its_own_encoding_says():
    for case in CASES:
        encoding, shape = partitioned(*case)
        partitions, _, dim, piece, _ = case
        whole = encoding.to_linear_layout(shape)
        inner = encoding.partition_layout.to_linear_layout(piece)
        size = piece[0] * piece[1]
        for offset, partition in itertools.product(range(0, size, 3), range(partitions)):
            found = whole.apply({"partition": partition, "offset": offset, "block": 0})
            expected = inner.apply({"offset": offset, "block": 0})
            expected[f"dim{dim}"] += partition * piece[dim]
            assert found == expected


@pytest.mark.parametrize("keys", list(itertools.permutations(range(4)))[::5])
def test_parameters_in_any_order(keys):
    text = [
        "numPartitions = 2",
        "numGroups = 4",
        "partitionDim = 1",
        f"partitionLayout = {PLAIN}",
    ]
    found = parse_attribute(f"#ttg.partitioned_shared<{{{', '.join(text[k] for k in keys)}}}>")
    assert found == PartitionedSharedEncoding(2, 4, 1, PLAIN)
    assert parse_attribute(str(found)) == found


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("8x32", "expected a multiple of 16 elements in dimension 0"),
        ("24x32", "expected powers of two as the shape"),
        ("3x8x32", "expected a multiple of 16 elements in dimension 0"),
    ],
)
def test_what_cannot_be_cut_is_read_and_has_no_layout(shape, message):
    encoding = PartitionedSharedEncoding(4, 4, 0, PLAIN)
    type_ = parse_type(f"!ttg.memdesc<{shape}xf16, {encoding}, #ttg.shared_memory, mutable>")
    type_.verify_memory()
    with pytest.raises(VerifyError, match=message):
        encoding.to_linear_layout(type_.static_shape[-2:])


def test_the_rank_is_that_of_a_piece():
    encoding = PartitionedSharedEncoding(4, 4, 0, PLAIN)
    type_ = parse_type(f"!ttg.memdesc<32xf16, {encoding}, #ttg.shared_memory, mutable>")
    with pytest.raises(VerifyError, match="expected rank 2"):
        type_.verify_memory()


def test_the_encoding_of_a_piece_is_that_of_its_shape():
    layout = PaddedSharedEncoding.with_identity_for(((64, 4),), (128, 64), (1, 0))
    encoding = PartitionedSharedEncoding(2, 4, 0, layout)
    with pytest.raises(VerifyError, match=r"of the shape \[16, 64\], which a piece has"):
        encoding.to_linear_layout((128, 64))
