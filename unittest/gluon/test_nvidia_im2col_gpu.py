"""Blocks of up to 1024 pixels of random convolutions, loaded on a GPU with every Triton.

Gluon and ``@triton.jit`` kernels read the same blocks, and both have to give what the model of the
hardware gives (``im2col_model``), bit for bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from triton_ext import Im2ColDescriptor
from triton_ext.backends.nvidia.backend import im2col_model
from triton_ext.backends.nvidia.backend.geometry import ConvGeometry
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from gpu_kernels import fetch_in_partition, fetch_jit  # noqa: E402

pytestmark = pytest.mark.gpu

SEED = 2026
CASES = 72
# One tiled box, several along the pixels, along the channels, and along both.
BLOCKS = ((64, 64), (512, 64), (1024, 32), (256, 128), (512, 128), (1024, 64))


@dataclass(frozen=True, slots=True)
class Case:
    """A block of a convolution's input."""

    conv: ConvGeometry
    block: tuple[int, int]
    dtype: str
    warps: int
    pixel: int
    taps: tuple[int, ...]
    channel: int


def draw(number: int) -> Case:
    rng = random.Random(SEED + number)
    spatial = 1 + number % 3
    pixels, channels = BLOCKS[number // 3 % len(BLOCKS)]
    dtype = ("float16", "bfloat16", "float32")[number // 18 % 3]
    channels = channels // 2 if dtype == "float32" else channels
    stride = tuple(rng.randint(1, 3) for _ in range(spatial))
    dilation = tuple(rng.randint(1, 3) for _ in range(spatial))
    padding = tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(spatial))
    taps = tuple(rng.randint(1, 3) for _ in range(spatial))
    size = tuple(rng.randint(8, (900, 40, 14)[spatial - 1]) for _ in range(spatial))
    shape = (rng.randint(1, 4), *size, 8 * rng.randint(1, 24))
    conv = ConvGeometry.make(shape, taps, stride, padding, dilation)
    return Case(
        conv=conv,
        block=(pixels, channels),
        dtype=dtype,
        warps=rng.choice((1, 2, 4)),
        pixel=rng.choice((0, rng.randrange(conv.m_gemm))),
        taps=tuple(rng.randrange(count) for count in taps),
        channel=channels * rng.randint(0, shape[-1] // channels),
    )


@pytest.mark.parametrize("number", range(CASES))
def test_random_geometry(number):
    case = draw(number)
    conv, block = case.conv, list(case.block)
    generator = torch.Generator("cuda").manual_seed(number)
    x = torch.randn(conv.input_shape, generator=generator, device="cuda")
    x = x.to(getattr(torch, case.dtype))
    described = (x, conv.filter_size, conv.stride, conv.padding, conv.dilation)
    start, offsets = conv.start(case.pixel), conv.filter_offset(case.taps)
    n, *space = start
    d, h, w = [0] * (3 - len(space)) + list(space)
    t, r, s = [0] * (3 - len(offsets)) + list(offsets)
    scalars = (n, d, h, w, case.channel, t, r, s)

    desc = xnv.TensorDescriptorIm2Col.for_conv(*described, block_shape=block)
    elements, mask = im2col_model.element_offsets(desc.geometry, start, offsets, case.channel)
    flat = x.reshape(-1)[torch.from_numpy(elements).cuda()]
    expected = torch.where(torch.from_numpy(mask).cuda(), flat, torch.zeros_like(flat))

    y = torch.full(block, float("nan"), dtype=x.dtype, device="cuda")
    fetch_in_partition[(1,)](desc, y, *scalars, case.warps)
    assert torch.equal(y, expected), f"Gluon: {case}"
    y = torch.full(block, float("nan"), dtype=x.dtype, device="cuda")
    ours = Im2ColDescriptor.for_conv(*described, block_shape=block)
    fetch_jit[(1,)](ours, y, *scalars, len(conv.input_shape), *block, num_warps=8)
    assert torch.equal(y, expected), f"@triton.jit: {case}"


def test_the_cases_cover_what_they_are_meant_to():
    cases = [draw(number) for number in range(CASES)]
    assert {case.block[0] for case in cases} == {64, 256, 512, 1024}
    assert {len(case.conv.input_shape) for case in cases} == {3, 4, 5}
    assert {case.warps for case in cases} == {1, 2, 4}
    assert sum(case.pixel + case.block[0] > case.conv.m_gemm for case in cases) > 10
    assert sum(case.channel + case.block[1] > case.conv.input_shape[-1] for case in cases) > 10
