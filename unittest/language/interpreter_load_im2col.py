"""load_im2col in Triton's interpreter; ``test_interpreter.py`` sets ``TRITON_INTERPRET=1``."""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

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
