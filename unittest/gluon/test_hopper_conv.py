"""Convolutions of examples/gluon/hopper without a GPU: configurations, choice, compiled code."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import pathlib
import random
import re
import sys
import weakref

import pytest
from cubin_resources import disassembled, resources
from triton_ext.errors import DescriptorError, LaunchError
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

torch = pytest.importorskip("torch", reason="the examples' launchers need torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

# The examples are not installed; they are imported from the root of the checkout.  E402: hosts
# without im2col cannot import them.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton_ext.ops.core.device import RESERVED_BYTES, SMEM_BYTES  # noqa: E402
from triton_ext.ops.core.stride_phases import StridePhases  # noqa: E402
from triton_ext.ops.families import gluon_config  # noqa: E402
from triton_ext.ops.families.gemm_config import Product  # noqa: E402
from triton_ext.ops.families.gluon_config import (  # noqa: E402
    COSTS,
    TileConfig,
    cooperative,
    expected_times,
    keep_filter,
    narrow_configs,
    ping_pong,
)

from examples.gluon.hopper import dgrad, fprop  # noqa: E402
from examples.gluon.hopper.launch import (  # noqa: E402
    check_config,
    im2col_descriptor,
    operand_problems,
)

JOIN = capabilities()["wgmma-join"]
needs_join = pytest.mark.skipif(not JOIN.available, reason=JOIN.reason)
KEPT = tuple(keep_filter(config, 6) for config in COSTS["kept"])
COMPILED = (*fprop.CONFIGS, *KEPT, *COSTS["few columns"])


# ---- Configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("config", COMPILED, ids=str)
def test_shipped_configurations_can_run(config):
    assert not config.refusals()


def test_names_tell_configurations_apart():
    assert len({str(config) for config in COMPILED}) == len(COMPILED)


def test_shared_memory_is_counted():
    config = ping_pong(128, 64, 4, store_n=32, store_buffers=2)
    # 4 stages of 128 x 64 pixels and 64 x 64 weights, 2 x 2 staging buffers of 128 x 32, 16 bits.
    assert config.x_bytes == 128 * 64 * 2
    assert config.w_bytes == 64 * 64 * 2
    assert config.smem_bytes == 4 * (16384 + 8192) + 2 * 2 * 128 * 32 * 2 + 8 * (4 + 4 + 2)
    shared_by_three = cooperative(64, 3, 128, 5)
    assert shared_by_three.block_m == 192
    assert shared_by_three.smem_bytes == 5 * (192 + 128) * 128 + 3 * 64 * 64 * 2 + 8 * 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 96}, "rows is 96: expected a power of two from 64 to 128"),
        ({"consumers": 4}, "consumers is 4: expected 1 to 3"),
        ({"consumers": 3}, "ping-pong is for 2 consumers, not 3"),
        ({"block_n_main": 192}, "block_n_main is 192: expected a power of two from 16 to 256"),
        ({"block_n_rest": 48}, "block_n_rest is 48"),
        ({"store_n": 256}, "store_n is 256: it must divide 128"),
        ({"block_k": 128}, "block_k is 128"),
        ({"stages": 1}, "stages is 1"),
        ({"stages": 9}, "B of shared memory, a CTA has 232448"),
        ({"block_n_main": 256, "stages": 2}, "accumulators take 256 registers of a thread's 232"),
        ({"filter_steps": 9, "block_n_rest": 64}, "a filter that stays in shared memory has one"),
    ],
)
def test_what_cannot_run_is_named(change, message):
    config = dataclasses.replace(ping_pong(128, 128, 6), **change)
    assert any(message in str(problem) for problem in config.refusals()), config.refusals()


@pytest.mark.parametrize("base", COSTS["kept"], ids=str)
def test_a_kept_filter_fills_shared_memory_with_stages(base):
    depths = []
    for steps in range(1, 40):
        kept = keep_filter(base, steps)
        if kept is None:
            continue
        depths.append(kept.stages)
        assert not kept.refusals()
        one_more = dataclasses.replace(kept, stages=kept.stages + 1)
        assert one_more.smem_bytes + RESERVED_BYTES > SMEM_BYTES
    assert depths == sorted(depths, reverse=True)
    assert depths[-1] >= 4
    assert keep_filter(base, 40) is None


# ---- Choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # m_gemm, co, ci, taps: few channels keep their filter; 320 and 1280 are 2 and 8 * 160.
        ((128 * 56 * 56, 64, 64, 9), "128x64_pp_s7_e32x2_g8_f9"),
        ((8 * 64 * 64, 320, 320, 9), "128x128+32_pp_s5_e32x2_g2"),
        ((8 * 16 * 16, 1280, 1280, 9), "128x128+32_pp_s5_e32x2_g2"),
        ((128 * 28 * 28, 128, 128, 9), "128x128_pp_s6_e32x2_g2"),
        # 98 tiles of 64 rows on 132 multiprocessors.
        ((32 * 7 * 7, 512, 512, 9), "64x128_pp_s8_e32x2_g2"),
    ],
)
def test_the_model_chooses_what_was_fastest_or_what_differs_by_1_percent(sizes, expected):
    # 192x128 took 0.82 to 1.20 times as long as 128x128 over 30 layers (H100, bf16, 2026-11-27).
    pixels, co, ci, taps = sizes
    product = Product(pixels=pixels, columns=co, channels=ci, taps=(taps,))
    times = {config: each.us for config, each in expected_times(product, 132).items()}
    least_us = min(times.values())
    assert times[fprop.choose_config(*sizes, num_sms=132)] == least_us
    assert {str(config): us for config, us in times.items()}[expected] < 1.01 * least_us


def test_whatever_is_chosen_can_run():
    rng = random.Random(1)
    for _ in range(500):
        taps, ci = rng.randint(1, 49), rng.randint(1, 300) * 8
        config = fprop.choose_config(
            rng.randint(1, 1 << rng.randint(1, 30)), rng.randint(1, 500) * 8, ci, taps,
            rng.choice((1, 78, 132)),
        )  # fmt: skip
        assert not config.refusals()
        assert config.filter_steps in (0, taps * math.ceil(ci / config.block_k))


# ---- Compiled code -----------------------------------------------------------------------------


def fast(configs: tuple[TileConfig, ...], *indices: int) -> list[object]:
    """Leaves all but some of the configurations to the nightly run: compiling one takes 4 s."""
    nightly = pytest.mark.skipif(
        not os.environ.get("TRITON_EXT_NIGHTLY"),
        reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it",
    )
    later = (pytest.mark.slow, nightly)
    return [
        pytest.param(config, id=str(config), marks=() if i in indices else later)
        for i, config in enumerate(configs)
    ]


JOINED = (
    cooperative(64, 2, 128, 5, block_n_rest=32, store_n=32),
    cooperative(64, 3, 128, 4, block_n_rest=64),
    ping_pong(128, 128, 5, block_n_rest=32, store_n=32),
    cooperative(64, 2, 64, 7, block_n_rest=32, store_n=32, rows_from_w=True),
    cooperative(64, 2, 128, 6, block_n_rest=16, store_n=16, rows_from_w=True),
)


@needs_join
def test_what_is_joined():
    shipped = (*COMPILED, *COSTS["matrix"], *COSTS["turned"])
    for config in (*JOINED, *shipped):
        assert config.joins == (config.block_n_rest > 0 and config.block_n <= 256)
    for columns, rest in ((64, 0), (64, 64), (256, 64)):
        assert not cooperative(64, 2, columns, 3, block_n_rest=rest).joins


@needs_join
def test_pieces_are_copied_in_twos():
    # 5 * 5 pieces of 32 columns, 4 * 3 of 64, 5 * 5 of 32, 7 * 3 of 32 and 6 * 9 of 16.
    assert [config.w_pieces for config in JOINED] == [26, 12, 26, 22, 54]
    assert [config.fprop_boxes for config in JOINED] == [
        (64, 32), (128, 64), (64, 32), (64, 32), (32, 16)
    ]  # fmt: skip


def spare_bytes(config):
    """Shared memory of a last piece that is of no use, where WGMMAs are joined."""
    piece_bytes = config.block_n_rest * config.block_k * config.element_bytes
    return config.w_pieces * piece_bytes - config.w_blocks * config.w_bytes


@needs_join
def test_where_the_spare_piece_does_not_fit_nothing_is_joined():
    fits = cooperative(64, 2, 128, 5, block_n_rest=64)
    tight = dataclasses.replace(fits, store_n=32, store_buffers=3)
    assert [config.refusals() for config in (fits, tight)] == [(), ()]
    assert [spare_bytes(config) for config in (fits, tight)] == [64 * 128, 64 * 128]
    assert [config.joins for config in (fits, tight)] == [True, False]
    assert tight.fprop_boxes == (128, 64)


def test_a_host_that_cannot_joins_nothing(monkeypatch):
    unknown = dataclasses.replace(JOIN, available=False)
    monkeypatch.setattr(gluon_config, "capabilities", lambda: {"wgmma-join": unknown})
    assert not any(config.joins for config in JOINED)


@pytest.mark.parametrize(
    "config",
    [
        *fast(COMPILED, 2, 5),
        *(pytest.param(config, id=str(config), marks=needs_join) for config in JOINED),
    ],
)
def test_compiled_code(config, fresh_triton_cache, tmp_path):
    compiled = fprop.compile_conv_fprop(config, rank=2 if config.rows_from_w else 4)
    ptx = compiled.asm["ptx"]
    spare = spare_bytes(config) if config.joins else 0
    assert compiled.metadata.shared <= config.smem_bytes + spare + RESERVED_BYTES
    rows = r"2d\.shared" if config.rows_from_w else r"4d\S*\.im2col"
    assert len(re.findall(rf"cp\.async\.bulk\.tensor\.{rows}", ptx)) == config.row_groups
    widths = [config.block_n_main] + [config.block_n_rest] * (config.block_n_rest > 0)
    copies = config.block_n // config.block_n_rest // 2 + 1 if config.joins else len(widths)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", ptx)) == copies
    multiplied = [config.block_n] if config.joins else widths
    assert set(re.findall(r"wgmma\.mma_async\S*m64n(\d+)k", ptx)) == set(map(str, multiplied))
    for width in multiplied:
        # Per consumer: K of a step in 16s, rows in 64s.
        count = config.consumers * config.block_k // 16 * config.rows // 64
        assert len(re.findall(rf"wgmma\.mma_async\S*m64n{width}k16\S*f16\.f16", ptx)) == count
    stores = sum(config.consumers * width // config.store_n for width in widths)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.global\.shared", ptx)) == stores
    assert "setmaxnreg.inc" in ptx
    # A wait in the loop and one behind it: where ptxas cannot keep WGMMAs in flight, it adds some.
    sass = disassembled(compiled.asm["cubin"], tmp_path)
    assert sass.count("WARPGROUP.DEPBAR") == 2 * config.consumers
    used = resources(compiled.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("kernel", ["fprop", "dgrad"])
def test_every_rank_from_one_text(kernel, rank, fresh_triton_cache):
    config = ping_pong(64, 64, 4)
    if kernel == "fprop":
        compiled = fprop.compile_conv_fprop(config, rank=rank, dtype=gl.bfloat16)
    else:
        compiled = dgrad.compile_conv_dgrad(config, rank=rank, dtype=gl.bfloat16)
    ptx = compiled.asm["ptx"]
    # A 1x1 filter's pixels are rows of a matrix.
    im2col = [] if rank == 2 else [str(rank)]
    assert re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*\.im2col", ptx) == im2col
    assert "bf16.bf16" in ptx


# ---- Refusals ----------------------------------------------------------------------------------


def tensors(**changes):
    described = {"x": (2, 8, 8, 64), "w": (64, 3, 3, 64), "x_dtype": torch.float16, **changes}
    x = torch.zeros(described["x"], dtype=described["x_dtype"])
    return x, torch.zeros(described["w"], dtype=torch.float16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_dtype": torch.float32}, "expected float16 or bfloat16 for both"),
        ({"x_dtype": torch.bfloat16}, "expected float16 or bfloat16 for both"),
        ({"w": (64, 3, 64)}, "w \\[64, 3, 64\\]: expected \\[N, \\(D, \\(H,\\)\\) W, Ci\\]"),
        ({"w": (64, 3, 3, 32)}, "expected \\[N"),
        ({"w": (60, 3, 3, 64)}, "Co is 60: TMA needs rows of a multiple of 8 channels"),
        ({"x": (2, 8, 8, 3), "w": (64, 3, 3, 3)}, "Ci is 3"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(DescriptorError, match=message):
        fprop.conv_fprop(*tensors(**changes))


def test_a_transposed_filter_is_refused():
    x, w = tensors()
    with pytest.raises(DescriptorError, match="w must be contiguous"):
        fprop.conv_fprop(x, w.transpose(1, 2))


def test_a_configuration_that_does_not_fit_is_refused():
    def product(columns: int, taps: int) -> Product:
        return Product(pixels=1000, columns=columns, channels=64, taps=(taps,))

    with pytest.raises(LaunchError, match="filter_steps is 4, the convolution has 9"):
        check_config(dataclasses.replace(KEPT[0], filter_steps=4), product(64, 9), 132)
    with pytest.raises(LaunchError, match="16 tiles of columns on 8 multiprocessors"):
        check_config(KEPT[0], product(1024, 6), 8)


def test_kept_descriptors_keep_no_tensor():
    def describe(x: torch.Tensor) -> object:
        return im2col_descriptor(x, (3, 3), [1, 2], ((1, 0), (1, 1)), 1, [64, 32])

    first, second = (torch.zeros(2, 8, 8, 64, dtype=torch.float16) for _ in range(2))
    desc = describe(second)
    assert describe(first).base is first
    assert desc.base is second
    assert desc == xnv.TensorDescriptorIm2Col.for_conv(
        second, (3, 3), [1, 2], ((1, 0), (1, 1)), 1, block_shape=[64, 32]
    )
    seen = weakref.ref(first)
    del first
    assert seen() is None


def test_tensors_on_the_cpu_are_refused():
    message = "x is on cpu and w on cpu: expected one GPU of sm_90, or launcher=xnv.emulated"
    with pytest.raises(DescriptorError, match=message):
        fprop.conv_fprop(*tensors())


def test_a_gpu_of_another_capability_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    with FakeTensorMode():
        x = torch.empty(64, 8, dtype=torch.float16, device="cuda:0")
    (problem,) = operand_problems({"x": x, "w": x}, (), {}, None)
    assert problem.endswith("expected a GPU of sm_90, this one is sm_100")
    assert operand_problems({"x": x, "w": x}, (), {}, xnv.emulated) == []


@pytest.mark.parametrize("kernel", ["fprop", "dgrad"])
def test_one_consumer_compiles(kernel, fresh_triton_cache):
    config = cooperative(64, 1, 64, 6)
    assert not config.refusals()
    if kernel == "fprop":
        compiled = fprop.compile_conv_fprop(config)
    else:
        compiled = dgrad.compile_conv_dgrad(config, stride=2)
    assert len(re.findall(r"wgmma\.mma_async\S*m64n64k16", compiled.asm["ptx"])) == 4


# ---- dgrad -------------------------------------------------------------------------------------


def brute_force_taps(dim: StridePhases, pixel: int) -> set[tuple[int, int]]:
    """Pairs (q, r) with q * stride - low + r * dilation = pixel, q of any size."""
    return {
        ((pixel + dim.low - r * dim.dilation) // dim.stride, r)
        for r in range(dim.taps)
        if (pixel + dim.low - r * dim.dilation) % dim.stride == 0
    }


def test_residue_classes_reach_what_the_convolution_reaches():
    rng = random.Random(3)
    empty = shared = 0
    for _ in range(400):
        dim = StridePhases(
            size=rng.randint(1, 40),
            taps=rng.randint(1, 6),
            stride=rng.randint(1, 8),
            dilation=rng.randint(1, 6),
            low=rng.randint(0, 8),
        )
        empty += any(not dim.taps_of(a) for a in range(dim.stride))
        shared += dim.divisor > 1
        for pixel in range(dim.size):
            y, residue = divmod(pixel, dim.stride)
            assert y < dim.phase_size
            found = {(y + dim.shift(residue, r), r) for r in dim.taps_of(residue)}
            assert found == brute_force_taps(dim, pixel)
            # As the kernel walks: from the first tap's offset, down by a phase's step.
            offsets = [dim.shift(residue, r) - dim.lower for r in dim.taps_of(residue)]
            assert all(offset >= 0 for offset in offsets)
            falls = {a - b for a, b in itertools.pairwise(offsets)}
            assert falls <= {dim.dilation // dim.divisor}
    assert empty > 50
    assert shared > 50


@pytest.mark.parametrize("strided", [False, True], ids=["through TMA", "strided"])
@pytest.mark.parametrize("config", fast(fprop.CONFIGS, 2))
def test_compiled_dgrad(config, strided, fresh_triton_cache, tmp_path):
    compiled = dgrad.compile_conv_dgrad(config, stride=2 if strided else 1)
    ptx = compiled.asm["ptx"]
    assert compiled.metadata.shared <= SMEM_BYTES
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.4d\S*\.im2col", ptx)) == config.row_groups
    if strided:
        assert not re.search(r"cp\.async\.bulk\.tensor\.2d\.global\.shared", ptx)
        # 16 bytes per store: a thread's share of the tile, in 8s.
        stores = config.consumers * config.rows * config.block_n // 128 // 8
        assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == stores
    used = resources(compiled.asm["cubin"], tmp_path)
    # Beside 128 accumulators and more, decoding a tile spills a few values, once per tile.
    allowed_stack = 32 if config.block_n >= 256 else 0
    assert used["LOCAL"] == 0
    assert used["STACK"] <= allowed_stack, "registers were spilled"


@pytest.mark.parametrize("strided", [False, True], ids=["through TMA", "strided"])
@pytest.mark.parametrize("ci", [16, 32])
def test_compiled_dgrad_of_few_channels(ci, strided, fresh_triton_cache, tmp_path):
    for config in narrow_configs(ci, 64, 0 if strided else 9):
        compiled = dgrad.compile_conv_dgrad(config, stride=2 if strided else 1)
        assert compiled.metadata.shared <= SMEM_BYTES
        # Per consumer: K of a step in 16s, rows in 64s.
        count = config.consumers * config.block_k // 16 * config.rows // 64
        products = rf"wgmma\.mma_async\S*m64n{config.block_n}k16\S*f16\.f16"
        assert len(re.findall(products, compiled.asm["ptx"])) == count
        used = resources(compiled.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"


def test_dgrad_refuses_what_does_not_fit():
    dy = torch.zeros(2, 8, 8, 64, dtype=torch.float16)
    w = torch.zeros(64, 3, 3, 64, dtype=torch.float16)
    with pytest.raises(DescriptorError, match="dy must be contiguous"):
        dgrad.conv_dgrad(dy.transpose(1, 2), w, (8, 8), padding=1)
    with pytest.raises(DescriptorError, match=r"dy is .* and w .*: expected"):
        dgrad.conv_dgrad(dy, w[:32], (8, 8), padding=1)


@pytest.mark.parametrize(
    ("size", "stride", "message"),
    [
        ((65535, 1), (65535, 1), "^stride 65535 in H: must be at most 46340 with a padding of 0"),
        ((46341, 46341), 46340, "^dx has 8589582400 pixels, int32 pixel index overflows$"),
        ((2, 600), (1, 2), "^upper corner 292 of the pixel box in W: must be -128 to 127"),
    ],
)
def test_dgrad_refuses_what_int32_does_not_count(size, stride, message):
    # As triton_ext.ops does, before anything is allocated.
    dy, w = torch.zeros(1, 1, 8, 8).half(), torch.zeros(8, 1, 1, 8).half()
    with pytest.raises(DescriptorError, match=message):
        dgrad.conv_dgrad(dy, w, size, stride, launcher=xnv.emulated)
