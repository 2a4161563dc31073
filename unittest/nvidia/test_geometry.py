"""Geometry of convolutions: sizes, corners, spellings of arguments."""

from __future__ import annotations

import itertools

import pytest
from triton_ext.backends.nvidia.backend.geometry import (
    ConvGeometry,
    Im2ColGeometry,
    PackedWalk,
    dim_name,
    normalize_dtype,
    packed_size_one_strides,
)
from triton_ext.errors import DescriptorError


def test_worked_example() -> None:
    conv = ConvGeometry.make((2, 5, 4, 1), (3, 2), (2, 1), (1, 0), (1, 2))
    assert conv.output_size == (3, 2)
    assert conv.m_gemm == 12
    assert conv.k_gemm == 6
    assert conv.pixel_box_lower_corner == (-1, 0)
    assert conv.pixel_box_upper_corner == (-1, -2)
    assert conv.element_strides == (1, 2, 1, 1)
    assert conv.start(0) == (0, -1, 0)
    assert conv.start(8) == (1, 1, 0)
    assert conv.start(12) == (2, -1, 0)
    assert conv.filter_offset((2, 1)) == (2, 2)


def test_one_value_serves_all_dims() -> None:
    conv = ConvGeometry.make((1, 8, 9, 10, 16), 3, 2, 1, 1)
    assert conv.filter_size == (3, 3, 3)
    assert conv.stride == (2, 2, 2)
    assert conv.padding == ((1, 1),) * 3
    assert conv.dilation == (1, 1, 1)
    assert conv.output_size == (4, 5, 5)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (2, ((2, 2), (2, 2))),
        ((1, 2), ((1, 1), (2, 2))),
        ([1, 2], ((1, 1), (2, 2))),
        (((0, 1), (2, 3)), ((0, 1), (2, 3))),
        ([(0, 1), 4], ((0, 1), (4, 4))),
    ],
)
def test_spellings_of_padding(padding: object, expected: object) -> None:
    conv = ConvGeometry.make((1, 9, 9, 8), 3, 1, padding)  # type: ignore[arg-type]
    assert conv.padding == expected


def test_output_size_counts_the_positions_of_the_filter() -> None:
    # By brute force: positions of tap 0, stride apart, whose last tap lies in the padded input.
    cases = itertools.product((1, 4, 7), (1, 2, 3), (1, 2, 5), (0, 2), (0, 3), (1, 2))
    for size, taps, stride, low, high, dilation in cases:
        last_tap = (taps - 1) * dilation
        positions = range(-low, size + high, stride)
        expected = sum(position + last_tap < size + high for position in positions)
        conv = ConvGeometry.make((1, size, 8), taps, stride, [(low, high)], dilation)
        assert conv.output_size == (expected,)


def test_illegal_values_have_an_empty_output_not_an_exception() -> None:
    assert ConvGeometry.make((1, 4, 4, 8), 3, 0).output_size == (0, 0)
    assert ConvGeometry.make((1, 4, 4, 8), 9).m_gemm == 0


@pytest.mark.parametrize("rank", [0, 1, 2, 6])
def test_rank(rank: int) -> None:
    with pytest.raises(DescriptorError, match=rf"3-, 4- or 5-D tensor .*, got rank {rank}$"):
        ConvGeometry.make((8,) * rank, 3)


def test_lengths_are_all_reported() -> None:
    with pytest.raises(DescriptorError) as caught:
        ConvGeometry.make((1, 9, 9, 8), (3, 3, 3), (1,), [(1, 1, 1)], (1, 1))
    message = str(caught.value)
    assert "filter_size (3, 3, 3) has 3 entries, expected 2" in message
    assert "stride (1,) has 1 entries, expected 2" in message
    assert "padding (1, 1, 1) is not a (low, high) pair" in message
    assert "dilation" not in message


@pytest.mark.parametrize("value", [1.5, "3", None, (1, 2.0)])
def test_not_integers(value: object) -> None:
    with pytest.raises(TypeError, match="stride must be an int or a sequence of ints"):
        ConvGeometry.make((1, 9, 9, 8), 3, value)  # type: ignore[arg-type]


def test_integers_of_other_libraries() -> None:
    np = pytest.importorskip("numpy")
    conv = ConvGeometry.make(np.array([1, 9, 9, 8]), np.int64(3), (np.int32(1), 2))
    assert conv.stride == (1, 2)
    assert all(type(value) is int for value in (*conv.input_shape, *conv.filter_size))


def test_walk_visits_the_output_pixels() -> None:
    conv = ConvGeometry.make((3, 11, 14, 8), (3, 2), (3, 2), ((0, 2), (1, 0)), (2, 3))
    geometry = Im2ColGeometry(
        shape=conv.input_shape,
        strides=(1232, 112, 8, 1),
        element_bytes=2,
        dtype="fp16",
        pixel_box_lower_corner=conv.pixel_box_lower_corner,
        pixel_box_upper_corner=conv.pixel_box_upper_corner,
        element_strides=conv.element_strides,
        pixels_per_column=64,
        channels_per_pixel=8,
    )
    assert geometry.walk_size == conv.output_size
    assert geometry.walk_pixels == conv.m_gemm
    assert geometry.box_first == (0, -1)
    assert geometry.box_last == (10 + 2 - 4, 13 - 3)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((1, 1, 4, 8), (7, 9, 8, 1), (32, 32, 8, 1)),
        ((2, 1, 4, 8), (64, 0, 8, 1), (64, 32, 8, 1)),
        ((2, 3, 1, 8), (24, 8, 99, 1), (24, 8, 8, 1)),
        # 3 channels of 2 bytes: the packed stride of W would not be a multiple of 16 bytes.
        ((2, 3, 1, 3), (24, 8, 3, 1), (24, 8, 8, 1)),
        ((2, 3, 4, 1), (96, 32, 8, 5), (96, 32, 8, 1)),
        ((2, 3, 4, 8), (96, 32, 8, 1), (96, 32, 8, 1)),
    ],
)
def test_strides_of_size_one_dims(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert packed_size_one_strides(shape, strides, 2) == expected


def test_dim_names() -> None:
    assert [dim_name(3, dim) for dim in range(3)] == ["dim 0 (N)", "dim 1 (W)", "dim 2 (C)"]
    assert dim_name(4, 1) == "dim 1 (H)"
    assert dim_name(5, 1) == "dim 1 (D)"
    assert dim_name(7, 1) == "dim 1"


def test_dtype_names() -> None:
    np = pytest.importorskip("numpy")
    assert normalize_dtype(np.dtype("float16")) == "fp16"
    assert normalize_dtype("torch.bfloat16") == "bf16"
    assert normalize_dtype("fp8e4nv") == "fp8e4nv"
    assert normalize_dtype("torch.complex64") == "complex64"


@pytest.mark.parametrize(
    ("first", "steps", "shape", "last"),
    [
        ((-32768,), (8,), (1 << 31,), (-1,)),
        ((32767,), (1,), (40000,), (0,)),
        ((-128, 127), (8, 1), (200, 300), (0, 3)),
        ((-16, 15, 0), (3, 8, 1), (40, 50, 60), (1, -2, 0)),
    ],
)
def test_a_walk_fits_two_numbers(first, steps, shape, last) -> None:
    """Read as a kernel reads it (``language.im2col.descriptor_walk``)."""
    geometry = Im2ColGeometry(
        shape=(1, *shape, 8), strides=(0,) * (len(shape) + 2), element_bytes=2, dtype="fp16",
        pixel_box_lower_corner=first, pixel_box_upper_corner=last,
        element_strides=(1, *steps, 1), pixels_per_column=16, channels_per_pixel=8,
    )  # fmt: skip
    high, low = geometry.packed_walk
    assert 0 <= high < 1 << 63
    assert 0 <= low < 1 << 63
    rank = len(shape)
    sizes = [high & 0x7FFFFFFF, low >> 31, low & 0x7FFFFFFF][3 - rank :]
    assert tuple(sizes) == geometry.walk_size
    found = [(high >> PackedWalk.STEP + 3 * index & 7) + 1 for index in range(3)][3 - rank :]
    assert tuple(found) == steps
    bits = 16 // rank
    starts = [high >> PackedWalk.START + bits * (rank - 1 - index) for index in range(rank)]
    assert tuple((each & (1 << bits) - 1) - (1 << bits - 1) for each in starts) == first
