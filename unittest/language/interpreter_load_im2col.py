"""load_im2col in Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreted import why_not_interpreted

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

import torch
import triton
import triton.language as tl
import triton_ext
import triton_ext.language as tle
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.backends.nvidia.backend import im2col_model


@triton.jit
def load_1d(x_desc, y_ptr, n, w, c, offset, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    tile = tle.load_im2col(x_desc, [n, w, c], [offset])
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, tile)


@triton.jit
def load_2d(x_desc, y_ptr, n, h, w, c, r, s, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    tile = tle.load_im2col(x_desc, [n, h, w, c], [r, s])
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, tile)


@triton.jit
def load_3d(x_desc, y_ptr, n, d, h, w, c, t, r, s, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    tile = tle.load_im2col(x_desc, [n, d, h, w, c], [t, r, s])
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, tile)


@triton.jit
def load_tiled(x_desc, y_ptr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    tile = x_desc.load([0, 0])
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, tile)


@triton.jit
def starts(y_ptr, PIXELS: tl.constexpr):
    for pixel in range(PIXELS):
        n, h, w = tle.im2col_start(pixel, (3, 4), (2, 3), (1, 5))
        tl.store(y_ptr + pixel * 3, n)
        tl.store(y_ptr + pixel * 3 + 1, h)
        tl.store(y_ptr + pixel * 3 + 2, w)


@triton.jit
def starts_of(x_desc, y_ptr, m_gemm, SPATIAL_RANK: tl.constexpr):
    for row in range(m_gemm):
        if SPATIAL_RANK == 2:
            start = tle.im2col_start(row, x_desc)
        else:
            start = tle.im2col_start(row, x_desc, spatial_rank=SPATIAL_RANK)
        for i in tl.static_range(SPATIAL_RANK + 1):
            tl.store(y_ptr + row * (SPATIAL_RANK + 1) + i, start[i])


@triton.jit
def starts_of_conv(y_ptr, m_gemm, size, stride, padding):
    for row in range(m_gemm):
        n, h, w = tle.im2col_start(row, size, stride, padding)
        tl.store(y_ptr + row * 3, n)
        tl.store(y_ptr + row * 3 + 1, h)
        tl.store(y_ptr + row * 3 + 2, w)


@triton.jit
def max_pool(x_desc, y_ptr, R, S, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    row = tl.program_id(0) * PIXELS
    n, h, w = tle.im2col_start(row, x_desc)
    largest = tl.full((PIXELS, CHANNELS), float("-inf"), tl.float32)
    for tap in range(R * S):
        # In fp32, because the interpreter compares the bits of bf16 as integers.
        tile = tle.load_im2col(x_desc, [n, h, w, 0], [tap // S, tap % S]).to(tl.float32)
        # The padding is NaN, which is not greater.  tl.maximum of 3.6 interprets NaN otherwise.
        largest = tl.where(tile > largest, tile, largest)
    rows, columns = row + tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, largest)


SHAPES = {1: (2, 11, 24), 2: (2, 7, 9, 24), 3: (2, 4, 5, 6, 24)}
KERNELS = {1: load_1d, 2: load_2d, 3: load_3d}
PIXELS, CHANNELS = 16, 16


def descriptor(spatial_rank):
    x = torch.arange(torch.Size(SHAPES[spatial_rank]).numel(), dtype=torch.float32)
    x = x.view(SHAPES[spatial_rank]) + 1
    desc = triton_ext.Im2ColDescriptor.for_conv(
        x, 3, stride=2, padding=1, block_shape=[PIXELS, CHANNELS]
    )
    return x, desc


@pytest.mark.parametrize("channel", [0, 16])
@pytest.mark.parametrize("spatial_rank", [1, 2, 3])
def test_loads_what_the_model_walks(spatial_rank, channel):
    x, desc = descriptor(spatial_rank)
    start, offsets = desc.conv.start(3), tuple(range(spatial_rank))
    y = torch.full((PIXELS, CHANNELS), float("nan"))
    KERNELS[spatial_rank][(1,)](
        desc, y, *start, channel, *offsets, PIXELS=PIXELS, CHANNELS=CHANNELS
    )
    elements, valid = im2col_model.element_offsets(desc.geometry, start, offsets, channel)
    expected = x.flatten()[torch.from_numpy(elements)] * torch.from_numpy(valid)
    assert torch.equal(y, expected)


def test_it_rounds_to_tf32_where_the_interpreter_does():
    """Triton 3.9 rounds what tiled descriptors load: both operands alike, or neither."""
    x = torch.linspace(1, 2, PIXELS * CHANNELS).view(1, PIXELS, CHANNELS)
    desc = triton_ext.Im2ColDescriptor.for_conv(
        x, 1, block_shape=[PIXELS, CHANNELS], round_f32_to_tf32=True
    )
    loaded, tiled = torch.empty(PIXELS, CHANNELS), torch.empty(PIXELS, CHANNELS)
    load_1d[(1,)](desc, loaded, 0, 0, 0, 0, PIXELS=PIXELS, CHANNELS=CHANNELS)
    try:
        plain = TensorDescriptor.from_tensor(x[0], [PIXELS, CHANNELS], round_f32_to_tf32=True)
    except TypeError:  # 3.6
        assert torch.equal(loaded, x[0])
        return
    load_tiled[(1,)](plain, tiled, PIXELS=PIXELS, CHANNELS=CHANNELS)
    assert torch.equal(loaded, tiled)
    if triton.__version__ >= "3.9":
        ten_bits = torch.equal(loaded.view(torch.int32) & 0x1FFF, torch.zeros_like(loaded).int())
        assert ten_bits, "more than tf32 has"


def test_start_pixels():
    y = torch.zeros(24, 3, dtype=torch.int32)
    starts[(1,)](y, PIXELS=24)
    expected = [(m // 12, m // 4 % 3 * 2 - 1, m % 4 * 3 - 5) for m in range(24)]
    assert [tuple(row) for row in y.tolist()] == expected


@pytest.mark.parametrize("spatial_rank", [1, 2, 3])
def test_start_pixels_by_the_descriptor(spatial_rank):
    _, desc = descriptor(spatial_rank)
    y = torch.zeros(desc.m_gemm, spatial_rank + 1, dtype=torch.int32)
    starts_of[(1,)](desc, y, desc.m_gemm, SPATIAL_RANK=spatial_rank)
    assert [tuple(row) for row in y.tolist()] == [desc.conv.start(m) for m in range(desc.m_gemm)]


def test_start_pixels_by_the_convolution():
    """What ``desc.conv`` has can be passed on, pairs of padding as well."""
    x = torch.zeros(2, 7, 9, 16)
    conv = triton_ext.Im2ColDescriptor.for_conv(
        x, 3, (2, 1), ((1, 2), (0, 1)), block_shape=[PIXELS, CHANNELS]
    ).conv
    again = triton_ext.Im2ColDescriptor.for_conv(
        x, conv.filter_size, conv.stride, conv.padding, conv.dilation, block_shape=[16, 16]
    ).conv
    assert again == conv
    y = torch.zeros(conv.m_gemm, 3, dtype=torch.int32)
    starts_of_conv[(1,)](y, conv.m_gemm, conv.output_size, conv.stride, conv.padding)
    assert [tuple(row) for row in y.tolist()] == [conv.start(m) for m in range(conv.m_gemm)]


def test_a_descriptor_of_another_rank_has_no_such_start():
    y = torch.zeros(64, 3, dtype=torch.int32)
    with pytest.raises(Exception, match=r"called for 2 spatial dimensions.*pass spatial_rank=3"):
        starts_of[(1,)](descriptor(3)[1], y, 1, SPATIAL_RANK=2)
    tiled = TensorDescriptor.from_tensor(torch.zeros(64, 16), [PIXELS, CHANNELS])
    with pytest.raises(Exception, match="a tiled TensorDescriptor was passed"):
        starts_of[(1,)](tiled, y, 1, SPATIAL_RANK=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_max_pooling_ignores_its_padding(dtype):
    x = (torch.randn(2, 9, 8, CHANNELS) - 5).to(dtype)  # all are less than a padding of zeros
    desc = triton_ext.Im2ColDescriptor.for_conv(
        x, 3, stride=2, padding=1, block_shape=[PIXELS, CHANNELS], fill="nan"
    )
    programs = triton.cdiv(desc.m_gemm, PIXELS)
    y = torch.empty(programs * PIXELS, CHANNELS, dtype=dtype)
    max_pool[(programs,)](desc, y, 3, 3, PIXELS, CHANNELS)
    expected = torch.nn.functional.max_pool2d(x.movedim(-1, 1), 3, 2, 1).movedim(1, -1)
    assert torch.equal(y[: desc.m_gemm].view(expected.shape), expected)


def refused(match, kernel, *arguments):
    y = torch.zeros(PIXELS, CHANNELS)
    with pytest.raises(Exception, match=match) as caught:
        kernel[(1,)](arguments[0], y, *arguments[1:], PIXELS=PIXELS, CHANNELS=CHANNELS)
    # Triton's interpreter wraps what is raised in a kernel and keeps it as the cause.
    assert "LaunchError" in repr(caught.value) or "DescriptorError" in repr(caught.value)


def test_a_tiled_descriptor_where_im2col_is_expected():
    tiled = TensorDescriptor.from_tensor(torch.zeros(64, 16), [PIXELS, CHANNELS])
    refused("a tiled TensorDescriptor was passed", load_2d, tiled, 0, 0, 0, 0, 0, 0)


def test_a_plain_load_of_an_im2col_descriptor():
    refused(r"desc.load \(tiled\), but an Im2ColDescriptor", load_tiled, descriptor(2)[1])


def test_another_rank():
    refused("with 3 coordinates, .* rank 4", load_1d, descriptor(2)[1], 0, 0, 0, 0)


def test_a_first_channel_at_which_the_hardware_stops():
    # 4 elements of float32 are 16 bytes.
    _, desc = descriptor(2)
    refused("at channel 6 of 4-byte elements, expected a mul", load_2d, desc, 0, 0, 0, 6, 0, 0)


@triton.jit
def load_with_walk(x_desc, y_ptr, size, stride, pad, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    tile = tle.load_im2col(x_desc, [0, -1, 0], [0], walk=((size,), (stride,), (pad,)))
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + rows * CHANNELS + columns, tile)


def test_a_walk_is_compared_with_the_descriptor():
    _, desc = descriptor(1)
    y = torch.zeros(PIXELS, CHANNELS)
    load_with_walk[(1,)](desc, y, 6, 2, 1, PIXELS=PIXELS, CHANNELS=CHANNELS)
    assert y.any()
    refused(r"walk=\(\(5,\), \(2,\), \(1,\)\), the descriptor walks", load_with_walk, desc, 5, 2, 1)


def test_device_functions_are_not_for_the_host():
    # In the interpreter there is no telling; a compiled process refuses by name.
    with pytest.raises(TypeError, match="expected a tensor descriptor"):
        tle.load_im2col(descriptor(1)[1], [0, 0, 0], [0])


def test_a_start_outside_of_the_box():
    refused("outside the pixel box", load_1d, descriptor(1)[1], 0, -2, 0, 0)


def test_an_uninstalled_plugin():
    _, desc = descriptor(1)
    triton_ext.uninstall()
    try:
        with pytest.raises(Exception, match=r"uninstalled.* call triton_ext.install\(\)"):
            load_1d[(1,)](desc, torch.zeros(16, 16), 0, 0, 0, 0, PIXELS=PIXELS, CHANNELS=CHANNELS)
    finally:
        triton_ext.install()


def test_a_start_that_no_output_pixel_has():
    # Stride 2 and padding 1: starts are -1, 1, 3, ...
    refused(r"start coordinate 2 of dim 1 \(W\)", load_1d, descriptor(1)[1], 0, 2, 0, 0)


def test_an_offset_that_no_tap_has():
    refused(r"offset 3 of dim 1 \(W\) belongs to no", load_1d, descriptor(1)[1], 0, -1, 0, 3)


def test_a_descriptor_of_corners_takes_any_start_and_offset():
    x = torch.arange(11.0 * 24).view(1, 11, 24)
    desc = triton_ext.Im2ColDescriptor(
        x, x.shape, x.stride(), [PIXELS, CHANNELS],
        pixel_box_lower_corner=[-1], pixel_box_upper_corner=[-1], element_strides=[1, 2, 1],
    )  # fmt: skip
    y = torch.zeros(PIXELS, CHANNELS)
    load_1d[(1,)](desc, y, 0, 2, 0, 3, PIXELS=PIXELS, CHANNELS=CHANNELS)
    assert torch.equal(y[0], x[0, 5, :CHANNELS])
