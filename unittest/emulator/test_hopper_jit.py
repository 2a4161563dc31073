"""The @triton.jit convolution, compiled for sm_90, in the emulator."""

from __future__ import annotations

import os
import random
from typing import NamedTuple

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402

# Where TTGIR has no such copies, the loads become calls, and that later.
IM2COL = capabilities()["im2col-copies"]
if not IM2COL.available:
    pytest.skip(IM2COL.reason, allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton_ext.language as tle  # noqa: E402
from compiled_gemm import compile_conv_fprop  # noqa: E402
from conv_cases import Case, assert_close, draw  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402
from triton_ext import backends  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402
from triton_ext.ops.families.gemm_config import ConvConfig  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
DTYPES = {"float16": tl.float16, "bfloat16": tl.bfloat16}


def run(case, config, through_tma=True, programs=3, edit=None, seed=0):
    """y of the kernel, and what it should be."""
    x, w, _ = case.tensors()
    compiled = compile_conv_fprop(
        config, 90, filter_size=case.filter_size, ci=case.ci, dtype=DTYPES[case.dtype],
        store_through_tma=through_tma,
    )  # fmt: skip
    m, n, k = config.block_m, config.block_n, config.block_k
    x_desc = Im2ColDescriptor.for_conv(
        x, case.filter_size, case.stride, case.padding, case.dilation, block_shape=[m, k]
    )
    taps, y = w.shape[1] * w.shape[2], torch.full((case.m_gemm, case.co), torch.nan, dtype=x.dtype)
    w_desc = TensorDescriptor(w, [case.co, taps, case.ci], [taps * case.ci, case.ci, 1], [n, 1, k])
    y_desc = TensorDescriptor(y, list(y.shape), [case.co, 1], [m, n // config.store_parts])
    scalars = (case.m_gemm, case.co, *case.output_size, *case.stride, *case.padding, *case.dilation)
    text = compiled.asm["ttgir"] if edit is None else edit(compiled.asm["ttgir"])
    arguments = [x_desc, w_desc, y_desc if through_tma else y, *scalars]
    Program(text).run((programs,), arguments, seed)
    return y.reshape(case.n, *case.output_size, case.co), case.fprop(x, w)


def config(m, n, stages, **changes):
    return ConvConfig(
        **{
            "block_m": m,
            "block_n": n,
            "block_k": 64,
            "num_stages": stages,
            "num_warps": 4,
            "store_parts": 1,
            "group_size_m": 4,
            "taps_inner": True,
            **changes,
        }
    )


SMALL = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(3, 3), stride=(2, 1), padding=(1, 1),
    dilation=(1, 1),
)  # fmt: skip
CONFIGS = [config(128, 64, 4, store_parts=2), config(64, 128, 3, taps_inner=False)]


@pytest.mark.parametrize("chosen", CONFIGS, ids=["128x64", "64x128"])
@pytest.mark.parametrize("through_tma", [True, False], ids=["TMA", "pointers"])
def test_it_equals_torch(chosen, through_tma, fresh_triton_cache):
    assert_close(*run(SMALL, chosen, through_tma))


@pytest.mark.parametrize("number", range(40 if NIGHTLY else 6))
def test_random_geometries(number, fresh_triton_cache):
    rng = random.Random(number)
    chosen = config(
        rng.choice((64, 128)), rng.choice((64, 128)), rng.randint(2, 5),
        store_parts=rng.choice((1, 2)), taps_inner=rng.random() < 0.5,
    )  # fmt: skip
    assert_close(*run(draw(rng, 2), chosen, rng.random() < 0.7, rng.randint(1, 5)))


@triton.jit
def copy_pixels(x_desc, scale_ptr, y_desc, n, h, w, TAP: tl.constexpr, channel=0):
    pixels = tle.load_im2col(x_desc, [n, h, w, channel], [0, TAP])
    scale = tl.load(scale_ptr)
    y_desc.store([0, 0], (pixels * scale).to(y_desc.dtype))


def test_a_kernel_is_launched_on_cpu_tensors(fresh_triton_cache):
    x = torch.arange(2 * 5 * 6 * 64).reshape(2, 5, 6, 64).remainder(97).half()
    y = torch.zeros(64, 64, dtype=torch.float16)
    x_desc = Im2ColDescriptor.for_conv(x, (1, 3), 1, (0, 1), 1, block_shape=[64, 64])
    y_desc = TensorDescriptor(y, [64, 64], [64, 1], [64, 64])
    xnv.emulated(copy_pixels)[(1,)](x_desc, torch.full((1,), 2.0), y_desc, 0, 0, -1, TAP=2)
    # The third tap of the first pixel is the second pixel of the line; behind the last is padding.
    expected = torch.nn.functional.pad(x, (0, 0, 0, 1))[:, :, 1:].reshape(-1, 64) * 2
    assert (y[:60] == expected).all()
    assert (y[60:] == 0).all()


def test_a_start_outside_of_the_pixel_box_is_an_error(fresh_triton_cache):
    x = torch.zeros(2, 5, 6, 64, dtype=torch.float16)
    x_desc = Im2ColDescriptor.for_conv(x, (1, 3), 1, (0, 1), 1, block_shape=[64, 64])
    y_desc = TensorDescriptor(torch.zeros(64, 64).half(), [64, 64], [64, 1], [64, 64])
    with pytest.raises(EmulationError, match="start coordinate -2 of dim 2") as caught:
        xnv.emulated(copy_pixels)[(1,)](x_desc, torch.ones(1), y_desc, 0, 0, -2, TAP=2)
    assert "load_im2col(x_desc" in caught.value.source_line


def test_a_first_channel_at_which_the_hardware_stops_is_an_error(fresh_triton_cache):
    x = torch.arange(72).half().expand(2, 5, 6, 72).contiguous()
    x_desc = Im2ColDescriptor.for_conv(x, (1, 3), 1, (0, 1), 1, block_shape=[64, 64])
    y = torch.zeros(64, 64).half()
    y_desc = TensorDescriptor(y, [64, 64], [64, 1], [64, 64])
    launch = xnv.emulated(copy_pixels)[(1,)]
    launch(x_desc, torch.ones(1), y_desc, 0, 0, 0, TAP=1, channel=8)
    assert y[0].tolist() == list(range(8, 72))
    with pytest.raises(EmulationError, match=r"starts at channel 12 of 2-byte .* of 8") as caught:
        launch(x_desc, torch.ones(1), y_desc, 0, 0, 0, TAP=1, channel=12)
    assert "load_im2col(x_desc" in caught.value.source_line
    assert caught.value.column


@triton.jit
def pool(x_desc, y_ptr, m_gemm, taps, SPATIAL_RANK: tl.constexpr):
    PIXELS: tl.constexpr = x_desc.block_shape[0]
    CHANNELS: tl.constexpr = x_desc.block_shape[1]
    row = tl.program_id(0) * PIXELS
    y = tl.full((PIXELS, CHANNELS), float("nan"), tl.float32)
    for tap in range(taps):
        if SPATIAL_RANK == 1:
            n, w = tle.im2col_start(row, x_desc, spatial_rank=1)
            tile = tle.load_im2col(x_desc, [n, w, 0], [tap])
        elif SPATIAL_RANK == 2:
            n, h, w = tle.im2col_start(row, x_desc)
            tile = tle.load_im2col(x_desc, [n, h, w, 0], [0, tap])
        else:
            n, d, h, w = tle.im2col_start(row, x_desc, spatial_rank=3)
            tile = tle.load_im2col(x_desc, [n, d, h, w, 0], [0, 0, tap])
        y = tl.maximum(y, tile.to(tl.float32))
    rows = row + tl.arange(0, PIXELS)[:, None]
    where = rows * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    tl.store(y_ptr + where, y, mask=rows < m_gemm)


@pytest.mark.parametrize("spatial_rank", [1, 2, 3])
def test_a_start_that_the_descriptor_gives(spatial_rank, fresh_triton_cache):
    """A pooling along W: the padding is NaN, which loses against every pixel."""
    size, stride = (5, 6, 11)[-spatial_rank:], (2, 3, 2)[-spatial_rank:]
    padding = ((0, 0), (0, 0), (1, 2))[-spatial_rank:]
    x = (torch.randn(2, *size, 64) - 5).half()
    taps = (*(1,) * (spatial_rank - 1), 3)
    x_desc = Im2ColDescriptor.for_conv(x, taps, stride, padding, block_shape=[64, 64], fill="nan")
    y = torch.zeros(x_desc.m_gemm, 64)
    grid = (triton.cdiv(x_desc.m_gemm, 64),)
    xnv.emulated(pool)[grid](x_desc, y, x_desc.m_gemm, 3, spatial_rank)
    padded = torch.nn.functional.pad(x.float(), (0, 0, 1, 2), value=-100)
    windows = padded.movedim(-1, 1).unfold(-1, 3, stride[-1]).amax(-1)
    for dim, step in enumerate(stride[:-1], 2):
        windows = windows.index_select(dim, torch.arange(0, windows.shape[dim], step))
    assert torch.equal(y, windows.movedim(1, -1).reshape(-1, 64))


@pytest.mark.parametrize(
    ("start", "tap", "match"),
    [
        ((0, 1, 0), 1, r"start coordinate 1 of dim 1 \(H\) is where no output pixel starts"),
        ((0, 0, 0), 2, r"offset 2 of dim 2 \(W\) belongs to no filter tap: 2 taps"),
    ],
)
def test_operands_of_another_convolution_are_errors(start, tap, match, fresh_triton_cache):
    x = torch.zeros(2, 5, 6, 64, dtype=torch.float16)
    x_desc = Im2ColDescriptor.for_conv(x, (1, 2), (2, 1), block_shape=[64, 64])
    y_desc = TensorDescriptor(torch.zeros(64, 64).half(), [64, 64], [64, 1], [64, 64])
    with pytest.raises(EmulationError, match=match) as caught:
        xnv.emulated(copy_pixels)[(1,)](x_desc, torch.ones(1), y_desc, *start, TAP=tap)
    assert "load_im2col(x_desc" in caught.value.source_line


class Optional(NamedTuple):
    scale: object
    bias: object


@triton.jit
def _scaled(x_ptr, operands, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.load(x_ptr + at)
    if operands.scale is not None:
        y *= operands.scale
    if operands.bias is not None:
        y += tl.load(operands.bias + at)
    tl.store(y_ptr + at, y)


@pytest.mark.parametrize(("scale", "has_bias"), [(None, True), (3, False), (3, True)])
def test_a_tuple_of_arguments_may_hold_none(scale, has_bias):
    x, bias = torch.arange(32.0), torch.arange(32.0) if has_bias else None
    y = torch.empty(32)
    xnv.emulated(_scaled)[(1,)](x, Optional(scale, bias), y, N=32)
    assert torch.equal(y, x * (scale or 1) + (bias if has_bias else 0))
