"""Depthwise convolutions without a GPU: their arithmetic, and what is compiled."""

from __future__ import annotations

import re
from collections import Counter

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from cubin_resources import resources
from family_plans import case_of, compiled, configs_of
from hypothesis import given
from hypothesis import strategies as st
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise import (
    DEPTHWISE,
    DEPTHWISE_DGRAD,
    DEPTHWISE_WGRAD,
    DepthwiseConfig,
    DepthwiseWgradConfig,
)
from triton_ext.ops.families.direct import PixelStrides, Sampling
from triton_ext.ops.kernels.depthwise import DepthwiseShape, columns_of, tap_of, taps_up_to


def layer(
    channels: int = 96,
    size: tuple[int, ...] = (56, 56),
    taps: int = 7,
    stride: int = 1,
    dilation: int = 1,
) -> ConvProblem:
    dims = len(size)
    return ConvProblem(
        batch=64,
        in_channels=channels,
        out_channels=channels,
        input_size=size,
        filter_size=(taps,) * dims,
        stride=(stride,) * dims,
        padding=((taps // 2,) * 2,) * dims,
        dilation=(dilation,) * dims,
        groups=channels,
    )


# ---- Columns and taps ---------------------------------------------------------------------------


@given(
    pixels=st.integers(1, 8),
    taps=st.integers(1, 9),
    step=st.integers(1, 4),
    up=st.integers(1, 4),
    dilation=st.integers(1, 4),
    phase=st.integers(0, 3),
)
def test_every_product_is_made_once(pixels, taps, step, up, dilation, phase):
    phase %= up
    expected = Counter(
        ((pixel * step + tap * dilation - phase) // up, pixel, tap)
        for pixel in range(pixels)
        for tap in range(taps)
        if (pixel * step + tap * dilation - phase) % up == 0
    )
    row = DepthwiseShape(
        dims=1, filter_size=(taps,), row_taps=taps, channels=8, pixel=8, step=(1, 1, step),
        up=(1, 1, up), dilation=(1, 1, dilation), phase=phase, is_flipped=False, is_wide=False,
    )  # fmt: skip
    loaded, found = 0, Counter()
    for column in range(columns_of(pixels, row)):
        needed = taps_up_to(column, pixels, row)
        loaded = max(loaded, needed)
        for pixel in range(pixels):
            tap = tap_of(column, pixel, row)
            if tap >= 0:
                found[column, pixel, tap] += 1
                # Loaded by then, and this column is one that is not skipped.
                assert tap < needed <= loaded
    assert found == expected


# ---- What is compiled ---------------------------------------------------------------------------


def sampling_of(family, problem):
    return Sampling.of(case_of(family, problem))


def loads_and_products(ptx: str) -> tuple[int, int]:
    return len(re.findall(r"\bld\.global", ptx)), len(re.findall(r"\bfma\.rn\.f32", ptx))


@pytest.mark.parametrize(("qw", "width"), [(4, 4), (7, 4), (8, 4), (7, 8)])
def test_a_row_of_the_filter_loads_each_column_once(qw, width, fresh_triton_cache):
    config = DepthwiseConfig(qw=qw, block_p=width * 128 // 32, block_c=32)
    assert config.thread_channels == width
    (kernel,) = compiled(DEPTHWISE, config, layer())
    ptx = kernel.asm["ptx"]
    # One pass of the loop over rows: the columns, and the row's taps.
    assert loads_and_products(ptx) == ((qw + 6) + 7, qw * 7 * width)
    assert ptx.count("ld.global.v4.b32" if width == 8 else "ld.global.v2.b32") == qw + 13
    assert ".local" not in ptx
    assert kernel.metadata.shared == 0


def test_a_stride_loads_no_column_that_no_tap_reads(fresh_triton_cache):
    config = DepthwiseConfig(qw=4, block_p=16, block_c=32)
    (back,) = compiled(DEPTHWISE_DGRAD, config, layer(taps=3, stride=2))
    # Four pixels of dx see three columns of dy; two of them through two taps, two through one.
    assert loads_and_products(back.asm["ptx"]) == (3 + 3, 6 * 4)
    # Two taps, three columns apart: column 3 is of both.  Two rows of taps need no loop.
    (spread,) = compiled(DEPTHWISE, config, layer(taps=2, dilation=3))
    assert loads_and_products(spread.asm["ptx"]) == (2 * (7 + 2), 2 * 8 * 4)


def test_a_long_filter_stays_in_registers(fresh_triton_cache):
    problem = layer(512, (2000,), taps=31)
    config = configs_of(DEPTHWISE, problem)[0]
    ptx = compiled(DEPTHWISE, config, problem)[0].asm["ptx"]
    assert loads_and_products(ptx)[0] == (config.qw + 30) + 31
    assert ".local" not in ptx


def test_the_filters_gradient_loads_each_column_once_per_row(fresh_triton_cache):
    config = DepthwiseWgradConfig(qw=7, lines=7, taps=7, block_p=8, block_c=32)
    kernel, _ = compiled(DEPTHWISE_WGRAD, config, layer())
    ptx = kernel.asm["ptx"]
    # dy's columns, and 13 columns of x for each of seven rows.
    assert loads_and_products(ptx) == (7 + 7 * 13, 7 * 49 * 2)
    assert not re.search(r"\b(atom|red)\.", ptx)


DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_types_compile(dtype, fresh_triton_cache):
    config = DepthwiseConfig(qw=4, block_p=16, block_c=32)
    ptx = compiled(DEPTHWISE, config, layer(taps=3), dtype)[0].asm["ptx"]
    # Of one row of the filter, or of all three where the loop is unrolled.
    assert len(re.findall(r"\bld\.global", ptx)) in (6 + 3, 3 * (6 + 3))


@pytest.mark.parametrize(
    ("channels", "size", "taps", "stride"),
    [(96, (56, 56), 7, 1), (768, (7, 7), 7, 1), (32, (112, 112), 3, 1), (96, (56, 56), 3, 2)],
)
def test_little_is_spilled(channels, size, taps, stride, tmp_path, fresh_triton_cache):
    problem = layer(channels, size, taps, stride)
    for family in (DEPTHWISE, DEPTHWISE_DGRAD):
        (kernel,) = compiled(family, configs_of(family, problem)[0], problem)
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"
    # What the filter's gradient spills, in 168 registers, costs less than a second pass.
    kernel, _ = compiled(DEPTHWISE_WGRAD, configs_of(DEPTHWISE_WGRAD, problem)[0], problem)
    assert resources(kernel.asm["cubin"], tmp_path)["STACK"] <= 96, "registers were spilled"


# ---- Choice -------------------------------------------------------------------------------------

LAYERS = [
    layer(),
    layer(192, (28, 28)),
    layer(384, (14, 14)),
    layer(768, (7, 7)),
    layer(32, (112, 112), 3),
    layer(96, (56, 56), 3, 2),
    layer(512, (2000,), 31),
    layer(24, (5, 6, 7), 3),
    layer(3, (1,), 1),
]


@pytest.mark.parametrize("problem", LAYERS, ids=str)
def test_choices_cover_the_output(problem):
    for family in (DEPTHWISE, DEPTHWISE_DGRAD):
        sampling, config = sampling_of(family, problem), configs_of(family, problem)[0]
        assert config.qw % sampling.up[-1] == 0
        programs, classes, _ = config.grid(sampling)
        outputs = programs * classes * config.block_p * config.qw * config.block_c
        assert outputs >= sampling.pixels * sampling.out_channels
    sampling, config = (
        sampling_of(DEPTHWISE_WGRAD, problem),
        configs_of(DEPTHWISE_WGRAD, problem)[0],
    )
    parts, tiles = config.parts(sampling, 132)
    assert (parts - 1) * tiles * config.block_p < sampling.positions(config.qw)
    assert parts * tiles * config.block_p >= sampling.positions(config.qw)
    assert config.chunks(sampling) * config.lines * config.taps >= problem.taps


def test_pixel_strides():
    # A slice of 8 of 24 channels and of 5 of 9 columns.
    shape, strides = (2, 8, 4, 5), (24 * 9 * 6, 1, 24 * 9, 24)
    assert PixelStrides.make(shape, strides) == PixelStrides(pixel=24, outer=(54, 9))
    # One row, one image: wherever the next would be.
    assert PixelStrides.make((1, 8, 1, 5), (7, 1, 13, 8)).outer == (0, 0)
    # Neither torch's order nor rows of broken pixels.
    assert PixelStrides.make(shape, (160, 20, 5, 1)).is_copied
    assert PixelStrides.make(shape, (24 * 60, 1, 125, 24)).is_copied
    assert PixelStrides.make((2, 8, 5), (0, 0, 0)).is_copied
    # A part of images of 2**27 elements: what it spans decides.
    part = (1 << 27, 1, 8 << 14, 8)
    assert not PixelStrides.make((16, 8, 4, 5), part).is_copied
    assert PixelStrides.make((17, 8, 4, 5), part).is_copied
    # Without gaps, the kernels know how wide offsets are.
    dense = (1 << 27, 1, 8 << 12, 8)
    assert not PixelStrides.make((32, 8, 1 << 12, 1 << 12), dense).is_copied


def test_large_tensors_have_offsets_of_64_bits():
    problem = layer(2048, (224, 224), 3)
    assert sampling_of(DEPTHWISE, problem).is_wide(2048, 8)
    assert not sampling_of(DEPTHWISE, layer()).is_wide(96, 8)
    assert not sampling_of(DEPTHWISE_DGRAD, layer()).is_wide(96, 8)
