"""Every rule of validation.py: what is refused, in which words, and where the border lies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from triton_ext.backends.nvidia.backend.descriptors import Im2ColDescriptor
from triton_ext.backends.nvidia.backend.driver_types import ElementType, Swizzle
from triton_ext.backends.nvidia.backend.geometry import Im2ColGeometry
from triton_ext.backends.nvidia.backend.validation import layout_violations, violations
from triton_ext.errors import DescriptorError

MakeTensor = Callable[..., Any]

GOOD_CONV: dict[str, Any] = {
    "filter_size": 3,
    "stride": 1,
    "padding": 1,
    "dilation": 1,
    "block_shape": [64, 64],
}


def explicit(**changes: Any) -> Im2ColGeometry:
    """Returns a legal geometry of rank 4 with some fields changed."""
    fields: dict[str, Any] = {
        "shape": (2, 14, 14, 64),
        "strides": (12544, 896, 64, 1),
        "element_bytes": 2,
        "dtype": "fp16",
        "pixel_box_lower_corner": (-1, -1),
        "pixel_box_upper_corner": (-1, -1),
        "element_strides": (1, 1, 1, 1),
        "pixels_per_column": 64,
        "channels_per_pixel": 64,
    }
    fields.update(changes)
    return Im2ColGeometry(**fields)


def explicit_of_rank(rank: int, **changes: Any) -> Im2ColGeometry:
    """Returns a legal geometry: 40 pixels per side, 8 channels, box 1 smaller on each side."""
    strides = [1, 8]
    for _ in range(rank - 2):
        strides.append(strides[-1] * 40)
    fields: dict[str, Any] = {
        "shape": (2, *(40,) * (rank - 2), 8),
        "strides": tuple(reversed(strides)),
        "pixel_box_lower_corner": (1,) * (rank - 2),
        "pixel_box_upper_corner": (-1,) * (rank - 2),
        "element_strides": (1,) * rank,
        "channels_per_pixel": 8,
    }
    fields.update(changes)
    return explicit(**fields)


# ---- Convolutions: one bad argument each, the message word for word ----------------------------


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        pytest.param(
            (2, 14, 14, 64),
            {"stride": 9},
            "conv stride 9 in H: TMA supports 1..8",
            id="stride 9",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"stride": (1, 0)},
            "conv stride 0 in W: TMA supports 1..8",
            id="stride 0",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"padding": 200},
            "padding 200 in H too large: at most 128 for 2 spatial dims",
            id="padding 200",
        ),
        pytest.param(
            (2, 14, 64),
            {"padding": 32769},
            "padding 32769 in W too large: at most 32768 for 1 spatial dim",
            id="padding 1-D",
        ),
        pytest.param(
            (2, 14, 14, 14, 64),
            {"padding": 17},
            "padding 17 in D too large: at most 16 for 3 spatial dims",
            id="padding 3-D",
        ),
        pytest.param(
            (2, 300, 300, 64),
            {"padding": ((-128, 1), 1)},
            "padding -128 in H too small: at least -127 for 2 spatial dims",
            id="padding below zero",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"padding": ((1, 130), 1)},
            "padding 130 behind the last pixel of H too large: "
            "padding - (R-1)*dilation = 128 must be <= 127 for 2 spatial dims",
            id="high padding",
        ),
        pytest.param(
            (2, 300, 300, 64),
            {"filter_size": (131, 3)},
            "dilated filter extent 131 in H too large: (R-1)*dilation - padding = 129 "
            "must be <= 128 for 2 spatial dims",
            id="extent",
        ),
        pytest.param(
            (2, 300, 300, 64),
            {"filter_size": (3, 3), "dilation": (128, 1), "padding": 128},
            "filter offset 256 in H exceeds 255: (R-1)*dilation is limited for 2 spatial dims",
            id="offset",
        ),
        pytest.param(
            (2, 40, 40, 40, 64),
            {"filter_size": (3, 1, 1), "dilation": 16, "padding": 16},
            "filter offset 32 in D exceeds 31: (R-1)*dilation is limited for 3 spatial dims",
            id="offset 3-D",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"filter_size": (17, 3)},
            "filter (dilated extent 17) larger than padded input 16 in H: empty output",
            id="filter larger than the padded image",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"filter_size": (0, 3)},
            "filter size 0 with dilation 1 in H: both must be at least 1",
            id="filter 0",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"dilation": (1, -1)},
            "filter size 3 with dilation -1 in W: both must be at least 1",
            id="dilation -1",
        ),
        pytest.param(
            (1 << 20, 64, 64, 64),
            {},
            "output has 4294967296 pixels, int32 pixel index overflows",
            id="int32",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [96, 64]},
            "block of 96 pixels: Triton blocks are powers of two; use 128, or loads of 64 + 32",
            id="96 pixels",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [2048, 16]},
            "pixel block 2048: TMA allows 1..1024",
            id="2048 pixels",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [0, 16]},
            "pixel block 0: TMA allows 1..1024",
            id="0 pixels",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [64, 48]},
            "block of 48 channels: Triton blocks are powers of two; use 64 (channels beyond the "
            "tensor's are zero)",
            id="48 channels",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [64, 0]},
            "block of 0 channels: Triton blocks are powers of two; use 8 (channels beyond the "
            "tensor's are zero)",
            id="0 channels",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [64, 4]},
            "block of 4 channels x 2 B = 8 B: TMA needs a multiple of 16 B; use 8 channels or more",
            id="8-byte channel block",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [1024, 128]},
            "tile needs 262144 bytes of shared memory (1024 pixels x 128 channels x 2 B), a CTA "
            "has 232448",
            id="shared memory",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"block_shape": [64]},
            "block_shape must be [pixels, channels], got [64]",
            id="block of rank 1",
        ),
        pytest.param(
            (2, 14, 14, 64),
            {"round_f32_to_tf32": True},
            "round_f32_to_tf32 needs dtype fp32, got fp16",
            id="tf32 rounding of fp16",
        ),
    ],
)
def test_bad_convolution(
    make_tensor: MakeTensor, shape: tuple[int, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DescriptorError) as caught:
        Im2ColDescriptor.for_conv(make_tensor(shape), **{**GOOD_CONV, **changes})
    assert message in _sentences(caught.value)


def _sentences(error: DescriptorError) -> list[str]:
    """Returns the violations that an error lists."""
    text = str(error)
    return text.split("\n  - ")[1:] or [text]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        pytest.param(
            {"shape": (2, 14, 14, 64), "strides": (12544, 14, 1, 196)},
            "channels must be contiguous (channels-last), got channel stride 196; "
            "the last dim of x must be C in memory too: x.contiguous()",
            id="channels not contiguous",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "address": 0x7F0000000008},
            "base address must be 16-byte aligned, is off by 8; a sliced view often causes this",
            id="unaligned base",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 3)},
            "stride of dim 2 (W) is 6 bytes, TMA needs a multiple of 16: "
            "pad C=3 to a multiple of 8",
            id="3 channels",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 12), "dtype": "int8"},
            "stride of dim 2 (W) is 12 bytes, TMA needs a multiple of 16: "
            "pad C=12 to a multiple of 16",
            id="12 channels of 8 bits",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "strides": (13328, 952, 68, 1)},
            "stride of dim 2 (W) is 136 bytes, TMA needs a multiple of 16: "
            "x is a view with such strides, make a dense copy with C last in memory",
            id="channels of a larger tensor",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "strides": (0, 896, 64, 1)},
            "stride of dim 0 (N) is 0 bytes: must be > 0 and < 2^40 bytes "
            "(expanded/flipped views are not supported)",
            id="expanded view",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "strides": (12544, -896, 64, 1)},
            "stride of dim 1 (H) is -1792 bytes: must be > 0 and < 2^40 bytes "
            "(expanded/flipped views are not supported)",
            id="flipped view",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "strides": (1 << 39, 896, 64, 1)},
            "stride of dim 0 (N) is 1099511627776 bytes: must be > 0 and < 2^40 bytes "
            "(expanded/flipped views are not supported)",
            id="stride of 2^40 bytes",
        ),
        pytest.param(
            {"shape": (14, 2, 14, 64), "strides": (896, 12544, 64, 1)},
            "stride of dim 0 (N) is 896, smaller than the stride 12544 of dim 1 (H): dims must be "
            "in memory order N, spatial..., C (permuted views are not supported)",
            id="permuted view",
        ),
        pytest.param(
            {"shape": (0, 14, 14, 64)}, "dim 0 (N) has size 0, allowed 1..2^32", id="empty tensor"
        ),
        pytest.param(
            {"shape": (2, (1 << 32) + 1, 64), "strides": (1 << 38, 64, 1)},
            "dim 1 (W) has size 4294967297, allowed 1..2^32",
            id="dim above 2^32",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "dtype": "float64"},
            "dtype fp64 not supported (8-, 16-, 32-bit only)",
            id="fp64",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "dtype": "int64"},
            "dtype i64 not supported (8-, 16-, 32-bit only)",
            id="int64",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "dtype": "bool"},
            "dtype u1 not supported (8-, 16-, 32-bit only)",
            id="bool",
        ),
        pytest.param(
            {"shape": (2, 14, 14, 64), "dtype": "complex64"},
            "dtype complex64 not supported (8-, 16-, 32-bit only)",
            id="complex",
        ),
        pytest.param(
            {"shape": (2, 64)},
            "im2col needs a 3-, 4- or 5-D tensor (N, spatial..., C), got rank 2",
            id="rank 2",
        ),
    ],
)
def test_bad_tensor(make_tensor: MakeTensor, tensor: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        Im2ColDescriptor.for_conv(make_tensor(**tensor), **GOOD_CONV)
    assert message in _sentences(caught.value)


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"filter_size": [3], "stride": 9, "block_shape": [2048, 3]},
            [
                "filter_size (3,) has 1 entries, expected 2 (spatial dims)",
                "conv stride 9 in H: TMA supports 1..8",
                "conv stride 9 in W: TMA supports 1..8",
                "pixel block 2048: TMA allows 1..1024",
                "block of 3 channels: Triton blocks are powers of two; use 8 (channels beyond the "
                "tensor's are zero)",
            ],
        ),
        (
            {"stride": [9], "padding": 200, "dilation": [], "block_shape": [64]},
            [
                "stride (9,) has 1 entries, expected 2 (spatial dims)",
                "dilation () has 0 entries, expected 2 (spatial dims)",
                "block_shape must be [pixels, channels], got [64]",
                "padding 200 in H too large: at most 128 for 2 spatial dims",
                "padding 200 in W too large: at most 128 for 2 spatial dims",
            ],
        ),
        # The stride has no part in whether the filter fits; the padding has.
        (
            {"filter_size": 20, "stride": [1]},
            [
                "stride (1,) has 1 entries, expected 2 (spatial dims)",
                "filter (dilated extent 20) larger than padded input 14 in H: empty output",
                "filter (dilated extent 20) larger than padded input 14 in W: empty output",
            ],
        ),
        (
            {"filter_size": 20, "padding": [1]},
            ["padding [1] has 1 entries, expected 2 (spatial dims)"],
        ),
        (
            {"filter_size": 258, "padding": [(1, 1, 1), 1]},
            [
                "padding (1, 1, 1) is not a (low, high) pair",
                "filter offset 257 in H exceeds 255: (R-1)*dilation is limited for 2 spatial dims",
                "filter offset 257 in W exceeds 255: (R-1)*dilation is limited for 2 spatial dims",
            ],
        ),
        (
            {"filter_size": [3, 3, 3], "dilation": 0},
            [
                "filter_size (3, 3, 3) has 3 entries, expected 2 (spatial dims)",
                "dilation 0 in H: must be at least 1",
                "dilation 0 in W: must be at least 1",
            ],
        ),
    ],
)
def test_wrong_lengths_beside_other_violations(
    make_tensor: MakeTensor, changes: dict[str, Any], messages: list[str]
) -> None:
    arguments = {"filter_size": 3, "block_shape": [64, 64], **changes}
    with pytest.raises(DescriptorError) as caught:
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64)), **arguments)
    assert _sentences(caught.value) == messages


def test_a_wrong_rank_beside_other_violations(make_tensor: MakeTensor) -> None:
    x = make_tensor((14, 64), "float64")
    with pytest.raises(DescriptorError) as caught:
        Im2ColDescriptor.for_conv(x, 3, block_shape=[2048, 64])
    assert _sentences(caught.value)[:2] == [
        "dtype fp64 not supported (8-, 16-, 32-bit only)",
        "im2col needs a 3-, 4- or 5-D tensor (N, spatial..., C), got rank 2",
    ]
    assert "pixel block 2048: TMA allows 1..1024" in _sentences(caught.value)


def test_all_violations_in_one_error(make_tensor: MakeTensor) -> None:
    x = make_tensor((2, 14, 14, 3), "float64", address=0x7F0000000008)
    with pytest.raises(ValueError, match="breaks 7 rules") as caught:
        Im2ColDescriptor.for_conv(
            x, (17, 3), stride=(1, 9), padding=((1, 1), (200, 1)), block_shape=[96, 64]
        )
    found = "\n".join(_sentences(caught.value))
    for part in ("fp64", "off by 8", "pad C=3", "conv stride 9", "padding 200", "extent 17", "96"):
        assert part in found


# ---- Explicit corners --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "messages"),
    [
        pytest.param(
            explicit(element_strides=(2, 1, 1, 2)),
            [
                "element_strides for N and C must be 1, got 2 for dim 0 (N)",
                "element_strides for N and C must be 1, got 2 for dim 3 (C)",
            ],
            id="N and C strides",
        ),
        pytest.param(
            explicit(element_strides=(1, 9, 0, 1)),
            [
                "element stride 9 in dim 1 (H): TMA supports 1..8",
                "element stride 0 in dim 2 (W): TMA supports 1..8",
            ],
            id="element strides",
        ),
        pytest.param(
            explicit(pixel_box_lower_corner=(-129, 0), pixel_box_upper_corner=(0, 128)),
            [
                "pixel_box_lower_corner[0] = -129 of dim 1 (H): allowed -128..127 for rank 4",
                "pixel_box_upper_corner[1] = 128 of dim 2 (W): allowed -128..127 for rank 4",
            ],
            id="corners",
        ),
        pytest.param(
            explicit(pixel_box_lower_corner=(5, 0), pixel_box_upper_corner=(-9, 0)),
            [
                "pixel box of dim 1 (H) is empty: pixel_box_lower_corner starts it at 5, "
                "pixel_box_upper_corner ends it at 4"
            ],
            id="empty box",
        ),
        pytest.param(
            explicit(pixel_box_lower_corner=(0,), element_strides=(1, 1)),
            [
                "pixel_box_lower_corner has 1 entries, expected 2 for rank 4",
                "element_strides has 2 entries, expected 4 for rank 4",
            ],
            id="lengths",
        ),
        pytest.param(
            explicit(
                strides=(896, 64, 1),
                pixel_box_lower_corner=(0,),
                pixel_box_upper_corner=(500, 0),
                element_strides=(2, 9, 1, 1),
                pixels_per_column=96,
            ),
            [
                "strides has 3 entries, expected 4 for rank 4",
                "pixel_box_lower_corner has 1 entries, expected 2 for rank 4",
                "element_strides for N and C must be 1, got 2 for dim 0 (N)",
                "element stride 9 in dim 1 (H): TMA supports 1..8",
                "pixel_box_upper_corner[0] = 500 of dim 1 (H): allowed -128..127 for rank 4",
                "block of 96 pixels: Triton blocks are powers of two; use 128, or loads of 64 + 32",
            ],
            id="lengths and more",
        ),
        pytest.param(
            explicit(strides=(896, 64, 1)),
            ["strides has 3 entries, expected 4 for rank 4"],
            id="length of strides",
        ),
        pytest.param(
            explicit(shape=(8, 8), strides=(8, 1)),
            ["im2col needs a 3-, 4- or 5-D tensor (N, spatial..., C), got rank 2"],
            id="rank",
        ),
        pytest.param(
            explicit(
                shape=(2, 1 << 30, 1, 64),
                strides=(1 << 37, 64, 64, 1),
                pixel_box_lower_corner=(0, 0),
                pixel_box_upper_corner=(0, 0),
            ),
            ["output has 2147483648 pixels, int32 pixel index overflows"],
            id="int32",
        ),
        pytest.param(
            explicit(
                shape=(1, 1 << 31, 1, 64),
                strides=(1 << 38, 64, 64, 1),
                pixel_box_lower_corner=(0, 0),
                pixel_box_upper_corner=(0, 0),
                element_strides=(1, 8, 1, 1),
            ),
            ["dim 1 (H) has size 2147483648, int32 coordinates of kernels overflow"],
            id="int32 coordinates",
        ),
    ],
)
def test_bad_explicit(geometry: Im2ColGeometry, messages: list[str]) -> None:
    assert list(violations(geometry)) == messages


@pytest.mark.parametrize(
    ("rank", "low", "high"), [(3, -32768, 32767), (4, -128, 127), (5, -16, 15)]
)
def test_borders_of_corners(rank: int, low: int, high: int) -> None:
    spatial = rank - 2
    ones = (1,) * spatial
    assert violations(explicit_of_rank(rank, pixel_box_lower_corner=(low,) * spatial)) == ()
    assert violations(explicit_of_rank(rank, pixel_box_upper_corner=(high,) * spatial)) == ()
    beyond = explicit_of_rank(
        rank,
        pixel_box_lower_corner=(low - 1, *ones[1:]),
        pixel_box_upper_corner=(high + 1, *ones[1:]),
    )
    assert len(violations(beyond)) == 2


def test_driver_verdicts_we_share() -> None:
    # Accepted by driver 580.159 on an H200: a box of 1x1, C below the channel box, stride 8,
    # a dimension of 2^32.
    one = explicit(pixel_box_lower_corner=(13, 13), pixel_box_upper_corner=(0, 0))
    assert one.walk_size == (1, 1)
    assert violations(one) == ()
    assert violations(explicit(shape=(2, 14, 14, 8), strides=(1568, 112, 8, 1))) == ()
    assert violations(explicit(element_strides=(1, 8, 8, 1))) == ()
    huge = explicit_of_rank(3, shape=(1 << 32, 40, 8), element_strides=(1, 8, 1))
    assert [m for m in violations(huge) if "int32" not in m] == []


def test_conv_at_its_limits(make_tensor: MakeTensor) -> None:
    # A "same" convolution with the largest offset, the largest padding and the largest stride.
    x = make_tensor((2, 300, 300, 64))
    conv = {"stride": 8, "padding": ((128, 127), (0, 0)), "dilation": (1, 4)}
    descriptor = Im2ColDescriptor.for_conv(x, (256, 33), **conv, block_shape=[64, 64])
    assert descriptor.geometry.pixel_box_lower_corner == (-128, 0)
    assert descriptor.geometry.pixel_box_upper_corner == (-128, -128)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "uint8", "float16", "float32", "int32"])
def test_good_dtypes(make_tensor: MakeTensor, dtype: str) -> None:
    Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64), dtype), **GOOD_CONV)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("fp16", None),
        ("bf16", None),
        ("i32", 'padding="nan" needs a float dtype of 16 or 32 bits, got i32'),
        (
            "fp8e5",
            'padding="nan" needs a float dtype of 16 or 32 bits, got fp8e5 '
            "(TMA moves fp8 as 8-bit integers)",
        ),
    ],
)
def test_nan_fill(dtype: str, message: str | None) -> None:
    found = violations(explicit(dtype=dtype), padding="nan")
    assert found == (() if message is None else (message,))


class Ambiguous:
    """Compares as an array does."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_nan_fill_of_a_pooling(make_tensor: MakeTensor) -> None:
    x = make_tensor((2, 14, 14, 64))
    descriptor = Im2ColDescriptor.for_conv(x, **GOOD_CONV, fill="nan")
    assert descriptor.padding == "nan"
    assert descriptor.with_block_shape([32, 64]).padding == "nan"
    with pytest.raises(DescriptorError, match='fill must be "zero" or "nan", got \'inf\''):
        Im2ColDescriptor.for_conv(x, **GOOD_CONV, fill="inf")
    for fill in (Ambiguous(), ["nan"], None):
        with pytest.raises(DescriptorError, match='fill must be "zero" or "nan", got '):
            Im2ColDescriptor.for_conv(x, **GOOD_CONV, fill=fill)
    with pytest.raises(DescriptorError, match='fill="nan" needs a float dtype'):
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64), "int32"), **GOOD_CONV, fill="nan")


def test_unknown_fill() -> None:
    assert violations(explicit(), padding="reflect") == (
        'padding must be "zero" or "nan", got \'reflect\'',
    )


def test_size_one_dims_may_have_any_stride(make_tensor: MakeTensor) -> None:
    x = make_tensor((1, 1, 14, 64), strides=(-3, 0, 64, 1))
    descriptor = Im2ColDescriptor.for_conv(x, **GOOD_CONV)
    assert descriptor.input_strides == (896, 896, 64, 1)


def test_one_channel_is_still_a_matter_of_padding_c(make_tensor: MakeTensor) -> None:
    with pytest.raises(DescriptorError, match="pad C=1 to a multiple of 8"):
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 1)), **GOOD_CONV)


# ---- What a compiled kernel asks for -----------------------------------------------------------

GOOD_LAYOUT: dict[str, Any] = {
    "address": 0x7F0000000000,
    "swizzle": Swizzle.SWIZZLE_128B,
    "elem_size": 2,
    "elem_type": ElementType.FLOAT16,
    "box": (64, 64),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"box": (32, 32)}, None),
        ({"swizzle": Swizzle.NONE}, None),
        ({"swizzle": Swizzle.SWIZZLE_32B, "box": (64, 16)}, None),
        ({"elem_type": ElementType.BFLOAT16, "fill_nan": True}, None),
        (
            {"swizzle": Swizzle.SWIZZLE_64B},
            "channel box 64 x 2 B = 128 B exceeds 64-byte swizzle; use 2 boxes of 32",
        ),
        (
            {"swizzle": Swizzle.SWIZZLE_32B},
            "channel box 64 x 2 B = 128 B exceeds 32-byte swizzle; use 4 boxes of 16",
        ),
        (
            {"swizzle": Swizzle.NONE, "box": (64, 512)},
            "channel box of 512 elements: TMA allows 1..256; use 2 boxes of 256",
        ),
        ({"box": (64, 0)}, "channel box of 0 elements: TMA allows 1..256"),
        ({"box": (64, 4)}, "channel box 4 x 2 B = 8 B is not a multiple of 16 B"),
        ({"box": (64, 12)}, "channel box 12 x 2 B = 24 B is not a multiple of 16 B"),
        ({"box": (0, 64)}, "pixel box 0: TMA allows 1..1024"),
        ({"box": (1025, 64)}, "pixel box 1025: TMA allows 1..1024"),
        ({"box": (128, 64)}, "pixel box 128 does not divide the block of 64 pixels"),
        ({"box": (64, 48)}, "channel box 48 does not divide the block of 64 channels"),
        (
            {"address": 0x7F0000000004},
            "base address must be 16-byte aligned, is off by 4; a sliced view often causes this",
        ),
        (
            {"elem_type": ElementType.FLOAT32},
            "tensor map data type FLOAT32 has 4 B per element, the kernel's elements have 2 B",
        ),
        ({"elem_type": 13}, "tensor map data type 13 is not in 0..12"),
        ({"swizzle": 7}, "swizzle mode 7 is not in 0..6"),
        (
            {"elem_size": 1, "elem_type": ElementType.UINT8},
            "kernel loads elements of 1 B, the descriptor's fp16 has 2 B",
        ),
        (
            {"elem_type": ElementType.UINT16, "fill_nan": True},
            'padding="nan" needs a float dtype, got UINT16',
        ),
    ],
)
def test_layout(changes: dict[str, Any], message: str | None) -> None:
    found = layout_violations(explicit(), **{**GOOD_LAYOUT, **changes})
    assert found == (() if message is None else (message,))


def test_messages_are_lower_case_sentences_without_a_stop() -> None:
    bad = explicit(
        dtype="fp64",
        strides=(0, 7, 64, 2),
        element_strides=(2, 9, 1, 1),
        pixels_per_column=96,
        channels_per_pixel=4,
        pixel_box_lower_corner=(-999, 0),
    )
    found = violations(bad, address=8, padding="no", round_f32_to_tf32=True)
    assert len(found) >= 9
    for message in found:
        assert re.match(r"[a-z]", message)
        assert not message.endswith(".")
