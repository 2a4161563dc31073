"""The software model of the TMA walk: published example, a scalar oracle, whole convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

from triton_ext.backends.nvidia.backend.geometry import ConvGeometry, Im2ColGeometry  # noqa: E402
from triton_ext.backends.nvidia.backend.im2col_model import element_offsets, walk  # noqa: E402
from triton_ext.errors import DescriptorError  # noqa: E402


def geometry_of(
    conv: ConvGeometry, strides: Sequence[int], block: tuple[int, int]
) -> Im2ColGeometry:
    """Returns what a descriptor for ``conv`` would hold, without TMA's alignment rules."""
    return Im2ColGeometry(
        shape=conv.input_shape,
        strides=tuple(strides),
        element_bytes=4,
        dtype="i32",
        pixel_box_lower_corner=conv.pixel_box_lower_corner,
        pixel_box_upper_corner=conv.pixel_box_upper_corner,
        element_strides=conv.element_strides,
        pixels_per_column=block[0],
        channels_per_pixel=block[1],
    )


def element_strides_of(array: Any) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def load(x: Any, geometry: Im2ColGeometry, start: Any, offsets: Any, channel: int) -> Any:
    """Returns the block that an im2col load leaves in shared memory."""
    where, mask = element_offsets(geometry, start, offsets, channel)
    memory = np.lib.stride_tricks.as_strided(x, (int(where.max()) + 1,), (x.itemsize,))
    return np.where(mask, memory[where], 0)


# ---- The worked example ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "tap", "expected"),
    [
        (0, (0, 0), [0, 0, 5, 6, 13, 14, 0, 0]),
        (0, (1, 1), [3, 4, 11, 12, 19, 20, 23, 24]),
        (0, (2, 1), [7, 8, 15, 16, 0, 0, 27, 28]),
        (8, (0, 0), [25, 26, 33, 34, 0, 0, 0, 0]),
        (8, (1, 1), [31, 32, 39, 40, 0, 0, 0, 0]),
        (8, (2, 1), [35, 36, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_worked_example(first: int, tap: tuple[int, int], expected: list[int]) -> None:
    x = np.arange(1, 41, dtype=np.int32).reshape(2, 5, 4, 1)
    conv = ConvGeometry.make(x.shape, (3, 2), (2, 1), (1, 0), (1, 2))
    geometry = geometry_of(conv, element_strides_of(x), (8, 1))
    block = load(x, geometry, conv.start(first), conv.filter_offset(tap), 0)
    assert block[:, 0].tolist() == expected


def test_coordinates_of_the_example() -> None:
    conv = ConvGeometry.make((2, 5, 4, 1), (3, 2), (2, 1), (1, 0), (1, 2))
    coords, valid = walk(geometry_of(conv, (20, 4, 1, 1), (8, 1)), (0, -1, 0), (0, 0), 8)
    assert coords.dtype == np.int64
    assert coords.tolist() == [
        [0, -1, 0],
        [0, -1, 1],
        [0, 1, 0],
        [0, 1, 1],
        [0, 3, 0],
        [0, 3, 1],
        [1, -1, 0],
        [1, -1, 1],
    ]
    assert valid.dtype == bool
    assert valid.tolist() == [False, False, True, True, True, True, False, False]


# ---- Against a scalar walk ---------------------------------------------------------------------


def scalar_walk(
    geometry: Im2ColGeometry, start: Sequence[int], offsets: Sequence[int], pixels: int
) -> list[tuple[tuple[int, ...], bool]]:
    """Walks one pixel at a time, as the PTX ISA words it."""
    spatial = geometry.rank - 2
    lower = geometry.pixel_box_lower_corner
    last = [
        geometry.shape[dim + 1] - 1 + geometry.pixel_box_upper_corner[dim] for dim in range(spatial)
    ]
    position = list(start)
    result = []
    for _ in range(pixels):
        at = (position[0], *(position[dim + 1] + offsets[dim] for dim in range(spatial)))
        inside = all(0 <= at[dim] < geometry.shape[dim] for dim in range(spatial + 1))
        result.append((at, inside))
        for dim in reversed(range(spatial)):
            position[dim + 1] += geometry.element_strides[dim + 1]
            if position[dim + 1] <= last[dim]:
                break
            position[dim + 1] = lower[dim]
        else:
            position[0] += 1
    return result


@st.composite
def walks(draw: Any) -> tuple[Im2ColGeometry, tuple[int, ...], tuple[int, ...], int]:
    """Any box, on or off the lattice of its strides, and any start inside it."""
    spatial = draw(st.integers(1, 3))
    sizes, lowers, uppers, steps, starts = [], [], [], [], []
    for _ in range(spatial):
        size = draw(st.integers(1, 9))
        lower = draw(st.integers(-5, 5))
        upper = draw(st.integers(max(-8, lower - size + 1), 6))
        sizes.append(size)
        lowers.append(lower)
        uppers.append(upper)
        steps.append(draw(st.integers(1, 8)))
        starts.append(draw(st.integers(lower, size - 1 + upper)))
    geometry = Im2ColGeometry(
        shape=(draw(st.integers(1, 3)), *sizes, 4),
        strides=(1,) * (spatial + 2),
        element_bytes=2,
        dtype="fp16",
        pixel_box_lower_corner=tuple(lowers),
        pixel_box_upper_corner=tuple(uppers),
        element_strides=(1, *steps, 1),
        pixels_per_column=1,
        channels_per_pixel=1,
    )
    offsets = tuple(draw(st.integers(0, 12)) for _ in range(spatial))
    start = (draw(st.integers(0, 4)), *starts)
    return geometry, start, offsets, draw(st.integers(0, 130))


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(walks())
def test_walk_equals_the_scalar_walk(case: Any) -> None:
    geometry, start, offsets, pixels = case
    coords, valid = walk(geometry, start, offsets, pixels)
    expected = scalar_walk(geometry, start, offsets, pixels)
    assert coords.shape == (pixels, geometry.rank - 1)
    assert [tuple(row) for row in coords.tolist()] == [at for at, _ in expected]
    assert valid.tolist() == [inside for _, inside in expected]


# ---- Whole convolutions, in exact integers -----------------------------------------------------


def direct_conv(x: Any, w: Any, conv: ConvGeometry) -> Any:
    """Convolves by definition; x is [N, spatial, C], w is [K, taps, C], result [M, K]."""
    out = np.zeros((x.shape[0], *conv.output_size, w.shape[0]), dtype=np.int64)
    sizes = conv.spatial_shape
    for place in itertools.product(*map(range, conv.output_size)):
        for tap in itertools.product(*map(range, conv.filter_size)):
            at = [
                p * s - low + t * d
                for p, s, (low, _), t, d in zip(
                    place, conv.stride, conv.padding, tap, conv.dilation, strict=True
                )
            ]
            if all(0 <= value < size for value, size in zip(at, sizes, strict=True)):
                out[(slice(None), *place)] += x[(slice(None), *at)] @ w[(slice(None), *tap)].T
    return out.reshape(-1, w.shape[0])


def im2col_conv(x: Any, w: Any, conv: ConvGeometry, geometry: Im2ColGeometry) -> Any:
    """Convolves as a kernel does: per tile of the implicit GEMM one load per tap and channel."""
    pixels, channels = geometry.pixels_per_column, geometry.channels_per_pixel
    tiles = []
    for first in range(0, conv.m_gemm, pixels):
        acc = np.zeros((pixels, w.shape[0]), dtype=np.int64)
        for tap in itertools.product(*map(range, conv.filter_size)):
            for channel in range(0, x.shape[-1], channels):
                block = load(x, geometry, conv.start(first), conv.filter_offset(tap), channel)
                part = w[(slice(None), *tap, slice(channel, channel + channels))]
                # Channels beyond C are zeros in the block; the filter is padded alike.
                part = np.pad(part, ((0, 0), (0, channels - part.shape[-1])))
                acc += block @ part.T
        tiles.append(acc)
    rows = np.concatenate(tiles)
    # The rows of the last tile beyond M are zeros, as the hardware leaves them.
    assert not rows[conv.m_gemm :].any()
    return rows[: conv.m_gemm]


@st.composite
def convolutions(draw: Any) -> tuple[ConvGeometry, tuple[int, int], int]:
    spatial = draw(st.integers(1, 3))
    most = {1: 20, 2: 9, 3: 5}[spatial]
    sizes, taps, strides, paddings, dilations = [], [], [], [], []
    for _ in range(spatial):
        size = draw(st.integers(1, most))
        low, high = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        dilation = draw(st.integers(1, 3))
        fits = (size + low + high - 1) // dilation + 1
        sizes.append(size)
        taps.append(draw(st.integers(1, min(4, fits))))
        strides.append(draw(st.integers(1, 8)))
        paddings.append((low, high))
        dilations.append(dilation)
    shape = (draw(st.integers(1, 3)), *sizes, draw(st.integers(1, 9)))
    block = (draw(st.sampled_from([1, 2, 8, 32])), draw(st.sampled_from([4, 8])))
    conv = ConvGeometry.make(shape, taps, strides, paddings, dilations)
    return conv, block, draw(st.integers(0, 2**32 - 1))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(convolutions())
def test_fprop_equals_direct_convolution(case: Any) -> None:
    conv, block, seed = case
    random = np.random.default_rng(seed)
    # Rows are padded, so that strides are not those of a packed tensor.
    stored = random.integers(1, 100, (*conv.input_shape[:-1], conv.input_shape[-1] + 2))
    x = stored[..., : conv.input_shape[-1]]
    w = random.integers(-9, 10, (2, *conv.filter_size, conv.input_shape[-1]))
    geometry = geometry_of(conv, element_strides_of(x), block)
    assert np.array_equal(im2col_conv(x, w, conv, geometry), direct_conv(x, w, conv))


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(convolutions())
def test_direct_convolution_equals_torch(case: Any) -> None:
    torch = pytest.importorskip("torch")
    conv, _, seed = case
    random = np.random.default_rng(seed)
    x = random.integers(0, 100, conv.input_shape)
    w = random.integers(-9, 10, (2, *conv.filter_size, conv.input_shape[-1]))
    pads = [value for pair in reversed(conv.padding) for value in pair]
    x_torch = torch.nn.functional.pad(torch.from_numpy(x).movedim(-1, 1).double(), pads)
    convolve = (None, torch.conv1d, torch.conv2d, torch.conv3d)[conv.rank - 2]
    y = convolve(
        x_torch,
        torch.from_numpy(w).movedim(-1, 1).double(),
        stride=conv.stride,
        dilation=conv.dilation,
    )
    expected = y.movedim(1, -1).reshape(-1, 2).long().numpy()
    assert np.array_equal(direct_conv(x, w, conv), expected)


# ---- Operands without a meaning ----------------------------------------------------------------

CONV = ConvGeometry.make((2, 5, 4, 8), (3, 2), (2, 1), (1, 0), (1, 2))
GEOMETRY = geometry_of(CONV, (160, 32, 8, 1), (8, 8))


@pytest.mark.parametrize(
    ("start", "offsets", "message"),
    [
        ((0, -2, 0), (0, 0), r"start coordinate -2 of dim 1 \(H\) is outside the pixel box -1..3"),
        ((0, 4, 0), (0, 0), r"start coordinate 4 of dim 1 \(H\) is outside the pixel box -1..3"),
        ((0, 0, 2), (0, 0), r"start coordinate 2 of dim 2 \(W\) is outside the pixel box 0..1"),
        ((-1, 0, 0), (0, 0), r"start image -1 is negative"),
        ((0, 0, 0), (-1, 0), r"im2col offset -1 of dim 1 \(H\) is outside 0..255"),
        ((0, 0, 0), (0, 256), r"im2col offset 256 of dim 2 \(W\) is outside 0..255"),
        ((0, 0), (0, 0), r"start \(0, 0\) has 2 coordinates, expected 3"),
        ((0, 0, 0), (0,), r"offsets \(0,\) have 1 entries, expected 2 \[h, w\]"),
    ],
)
def test_bad_operands(start: Any, offsets: Any, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        walk(GEOMETRY, start, offsets, 8)


def test_negative_pixel_count() -> None:
    with pytest.raises(DescriptorError, match="cannot load -1 pixels"):
        walk(GEOMETRY, (0, 0, 0), (0, 0), -1)


def test_start_behind_the_last_image_loads_nothing() -> None:
    where, mask = element_offsets(GEOMETRY, CONV.start(CONV.m_gemm), (1, 0))
    assert not mask.any()
    assert not where.any()


def test_block_and_channel_of_the_load() -> None:
    where, mask = element_offsets(GEOMETRY, (0, 1, 0), (0, 0), 4, block_shape=(2, 6))
    assert where.tolist() == [[36, 37, 38, 39, 0, 0], [44, 45, 46, 47, 0, 0]]
    assert mask.tolist() == [[True, True, True, True, False, False]] * 2


@pytest.mark.parametrize("channel", [-2, 1, 6, 9])
def test_a_first_channel_that_the_hardware_stops_at(channel: int) -> None:
    with pytest.raises(DescriptorError, match=rf"channel {channel} of 4-byte.* a multiple of 4: "):
        element_offsets(GEOMETRY, (0, 1, 0), (0, 0), channel)


@pytest.mark.parametrize(
    ("start", "offsets", "message"),
    [
        ((0, 0, 0), (0, 0), r"start coordinate 0 of dim 1 \(H\) is where no output pixel starts"),
        ((0, -1, 0), (1, 0), None),
        ((0, -1, 0), (3, 0), r"offset 3 of dim 1 \(H\) belongs to no filter tap: 3 taps with dil"),
        ((0, -1, 0), (0, 1), r"dilation 2 have 0, 2 \(offsets \(0, 1\)\)"),
        ((1, 1, 0), (2, 2), None),
    ],
)
def test_operands_that_do_not_belong_to_the_convolution(start, offsets, message) -> None:
    conv = ConvGeometry.make((2, 5, 4, 16), (3, 2), (2, 1), (1, 0), (1, 2))
    geometry = geometry_of(conv, (320, 64, 16, 1), (4, 16))
    element_offsets(geometry, start, offsets)  # the hardware does not know the convolution
    if message is None:
        element_offsets(geometry, start, offsets, conv=conv)
        return
    with pytest.raises(DescriptorError, match=message):
        element_offsets(geometry, start, offsets, conv=conv)
