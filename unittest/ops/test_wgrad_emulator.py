"""wgrad's kernels, compiled for sm_90, in the emulator, against torch's gradient in float64."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402

IM2COL = capabilities()["im2col-copies"]
if not IM2COL.available:
    pytest.skip(IM2COL.reason, allow_module_level=True)

import triton.language as tl  # noqa: E402
from conv_cases import Case, assert_close, draw  # noqa: E402
from problem_cases import problem_of_case  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402
from triton_ext import backends  # noqa: E402
from triton_ext.emulator import Program  # noqa: E402
from triton_ext.ops.conv_wgrad import compile_conv_wgrad, compile_reduce  # noqa: E402
from triton_ext.ops.wgrad_config import Reduction, WgradConfig, WgradTiles  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
DTYPES = {"float16": tl.float16, "bfloat16": tl.bfloat16}


def run(case, config, programs, through_tma=True, seed=0):
    """dw of the kernels, and what it should be."""
    x, w, dy = case.tensors()
    tiles = WgradTiles.make(config, problem_of_case(case), programs)
    partition = tiles.partition
    dtype = DTYPES[case.dtype]
    compiled = compile_conv_wgrad(
        tiles, 90, filter_size=case.filter_size, dtype=dtype, store_through_tma=through_tma
    )
    taps = w.shape[1:-1].numel()
    dw = torch.full((case.co, taps, case.ci), torch.nan, dtype=x.dtype)
    pixels, co, ci = config.block_pixels, config.block_co, config.block_ci
    x_desc = Im2ColDescriptor.for_conv(
        x, case.filter_size, case.stride, case.padding, case.dilation, block_shape=[pixels, ci]
    )
    dy_desc = TensorDescriptor(dy, [case.m_gemm, case.co], [case.co, 1], [pixels, co])
    block = [co, 1, ci // config.store_parts]
    dw_desc = TensorDescriptor(dw, list(dw.shape), [taps * case.ci, case.ci, 1], block)
    parts = torch.full((tiles.workspace_elements,), torch.nan)
    sizes = (case.co, case.co, case.ci, tiles.co_blocks)
    split = (partition.whole_tiles, partition.split_tiles, partition.splits)
    walk = (*case.output_size, *case.stride, *case.padding, *case.dilation)
    arguments = [
        x_desc, dy_desc, dw_desc if through_tma else dw, *[parts][: partition.parts],
        *sizes, partition.steps, *split, *walk,
    ]  # fmt: skip
    Program(compiled.asm["ttgir"]).run((partition.programs,), arguments, seed)
    if partition.parts:
        reduction = Reduction.choose(tiles)
        second = compile_reduce(tiles, reduction, 90, taps=taps, out_dtype=dtype)
        slices = co // 16 * (ci // reduction.columns)
        grid = (slices, config.taps, partition.split_tiles)
        Program(second.asm["ttgir"]).run(grid, [parts, dw, *sizes, *split], seed)
    _, expected = case.gradients(x, w, dy)
    return dw.reshape(expected.shape), expected


def config(co=64, ci=64, taps=1, stages=3, warps=4, pixels=64, pieces=1) -> WgradConfig:
    return WgradConfig(
        block_co=co,
        block_ci=ci,
        taps=taps,
        block_pixels=pixels,
        num_stages=stages,
        num_warps=warps,
        store_parts=pieces,
    )


CASE = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(3, 3), stride=(2, 1), padding=(1, 1),
    dilation=(1, 1),
)  # fmt: skip


@pytest.mark.parametrize("programs", [1, 16, 64], ids=["whole", "both", "parts"])
def test_it_equals_torch(programs, fresh_triton_cache):
    assert_close(*run(CASE, config(taps=2), programs))


def test_many_taps_of_few_channels(fresh_triton_cache):
    assert_close(*run(replace(CASE, ci=8), config(ci=16, taps=5), 3))


def test_through_pointers(fresh_triton_cache):
    assert_close(*run(CASE, config(), 7, through_tma=False))


@pytest.mark.parametrize("number", range(40 if NIGHTLY else 4))
def test_random_geometries(number, fresh_triton_cache):
    rng = random.Random(number)
    chosen = config(
        rng.choice((64, 128)), rng.choice((32, 64, 128)), rng.randint(1, 3), rng.randint(2, 5),
        pixels=rng.choice((32, 64)), pieces=rng.choice((1, 2)),
    )  # fmt: skip
    case = draw(rng, rng.randint(1, 3), most_flops=1e8)
    assert_close(*run(case, chosen, rng.randint(1, 20), rng.random() < 0.7))
