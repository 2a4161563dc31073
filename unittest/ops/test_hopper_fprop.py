"""The forward Gluon kernel of the library: when it is chosen, what it gives, what it compiles to.

It runs in the emulator, as a plan launches it, against torch in float64.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("numpy", reason="the emulator needs numpy, which is not installed")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from planned import plan_fprop, ranking_of  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core import planner  # noqa: E402

CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

from cubin_resources import resources  # noqa: E402
from emulated import emulate  # noqa: E402
from family_plans import compiled  # noqa: E402
from fprop_cases import (  # noqa: E402
    ACTIVATIONS,
    Case,
    check,
    clamp_and_tilt,
    draw,
    draw_fp8,
)
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402
from triton_ext.ops.core.case import Case as TunedCase  # noqa: E402
from triton_ext.ops.core.device import SMEM_BYTES, Device  # noqa: E402
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec  # noqa: E402
from triton_ext.ops.core.family import config_refusals  # noqa: E402
from triton_ext.ops.core.problem import ConvProblem  # noqa: E402
from triton_ext.ops.families import gluon_config  # noqa: E402
from triton_ext.ops.families.gemm_config import ConvConfig, Product  # noqa: E402
from triton_ext.ops.families.gluon import DTYPES, GLUON, GLUON_DGRAD  # noqa: E402
from triton_ext.ops.families.gluon_config import (  # noqa: E402
    COSTS,
    TileConfig,
    cooperative,
    expected_times,
    keep_filter,
    ping_pong,
    step_channels,
)
from triton_ext.ops.kernels.gluon_pipeline import tile_counts  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
COPIES = capabilities()["im2col-copies"]
needs_copies = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)
JOIN = capabilities()["wgmma-join"]
needs_join = pytest.mark.skipif(not JOIN.available, reason=JOIN.reason)
H200 = Device(132, (9, 0), SMEM_BYTES)


def problem(**changes: object) -> ConvProblem:
    values = {
        "batch": 2,
        "in_channels": 72,
        "out_channels": 80,
        "input_size": (9, 11),
        "filter_size": (3, 3),
        "stride": (2, 1),
        "padding": ((1, 1), (1, 0)),
        "dilation": (1, 1),
    }
    return ConvProblem(**{**values, **changes})


def tuned(asked, dtype=torch.float16, spec=PLAIN, *, direction="fprop", x_strides=None):
    return TunedCase(
        direction=direction, problem=asked, dtype=dtype, epilogue=spec, x_strides=x_strides
    )


FULL = EpilogueSpec(bias=True, scale=True, residual=True, out_scale=True)
TURNED = tuple(COSTS["turned"])
MATRIX = {"filter_size": (1, 1), "stride": (1, 1), "padding": ((0, 0), (0, 0))}

# ---- Choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "dtype", "changes", "spec", "words"),
    [
        (H200, torch.float16, {}, PLAIN, None),
        (H200, torch.bfloat16, {}, replace(FULL, activation="gelu"), None),
        (H200, torch.float16, {}, EpilogueSpec(out_dtype=torch.bfloat16), None),
        (H200, torch.float32, {}, PLAIN, "dtype is torch.float32"),
        (H200, torch.float16, {}, EpilogueSpec(out_dtype=torch.float8_e5m2), "out_dtype is"),
        (H200, torch.float8_e4m3fn, {"in_channels": 80}, PLAIN, None),
        (H200, torch.float8_e5m2, {"in_channels": 80}, EpilogueSpec(out_dtype=torch.float32), None),
        (H200, torch.float8_e4m3fn, {}, PLAIN, "Ci is 72"),
        (H200, torch.float8_e4m3fn, {"in_channels": 80, "out_channels": 72}, PLAIN, "Co is 72"),
        (H200, torch.float8_e4m3fn, {"in_channels": 80}, EpilogueSpec(amax=True), "amax"),
        (H200, torch.int8, {"in_channels": 80}, PLAIN, "expected float16, bfloat16 or fp8"),
        (H200, torch.float16, {"groups": 8}, PLAIN, "groups=8, expected 1"),
        (H200, torch.float16, {"in_channels": 3}, PLAIN, "Ci is 3"),
        (H200, torch.float16, {"out_channels": 4}, PLAIN, "Co is 4"),
        (H200, torch.float16, {}, EpilogueSpec(amax=True), "amax"),
        (H200, torch.float16, {}, EpilogueSpec(function=clamp_and_tilt), "a function"),
        (Device(148, (10, 0), SMEM_BYTES), torch.float16, {}, PLAIN, "the GPU is sm_100"),
        (Device(20, (9, 0), 100000), torch.float16, {}, PLAIN, "the GPU has 100000"),
    ],
)
def test_what_it_does_not_take_is_named(machine, dtype, changes, spec, words):
    found = [*map(str, GLUON.refusals(tuned(problem(**changes), dtype, spec), machine))]
    if words is None:
        assert found == []
    else:
        assert len(found) == 1
        assert words in found[0]


def test_a_host_that_cannot_is_named_and_gets_the_other_kernel(monkeypatch):
    emulate(monkeypatch, gluon=True)
    missing = replace(CAPABILITY, available=False, reason="Gluon of Triton 3.5 has no im2col loads")
    name = "triton_ext.ops.families.gluon.capabilities"
    monkeypatch.setattr(name, lambda: {**capabilities(), "im2col-gluon": missing})
    case = Case(problem=problem(), dtype=torch.float16)
    x, _, _ = case.tensors()
    assert isinstance(case.plan(x).config, ConvConfig)
    planner.make_plan.cache_clear()
    with pytest.raises(UnsupportedError, match=r"conv2d: gluon: Gluon of Triton 3"):
        case.plan(x, ping_pong(64, 64, 4))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, TileConfig),
        # One block of channels in 27 taps does not fit shared memory, and 64x64 tiles are slow.
        (
            {"batch": 8, "in_channels": 64, "out_channels": 64, "input_size": (16, 56, 56),
             "filter_size": (3, 3, 3), "stride": (1,) * 3, "padding": ((1, 1),) * 3,
             "dilation": (1,) * 3},
            ConvConfig,
        ),
        ({"batch": 8, "in_channels": 320, "out_channels": 320, "input_size": (64, 64)}, TileConfig),
        # Nor gathered: taps of a row are not side by side.
        ({"in_channels": 3, "dilation": (1, 2)}, ConvConfig),
    ],
    ids=["small", "27 taps", "320 channels", "3 channels"],
)  # fmt: skip
def test_the_models_choose(monkeypatch, changes, expected):
    emulate(monkeypatch, num_sms=132, gluon=True)
    asked = problem(**changes)
    x = Case(problem=replace(asked, batch=1), dtype=torch.float16).tensors()[0]
    plan = plan_fprop(asked, x.stride(), x.dtype, x.device)
    assert isinstance(plan.config, expected)
    ranked = ranking_of("fprop", asked, x.dtype, H200)
    assert isinstance(ranked[0], expected)
    # Both can be measured where both take the problem.
    both = not GLUON.refusals(tuned(asked), H200)
    assert {type(config) for config in ranked} == {ConvConfig, *([TileConfig] if both else [])}


def test_a_configuration_that_cannot_run_is_refused(monkeypatch):
    emulate(monkeypatch, gluon=True)
    case = Case(problem=problem(), dtype=torch.float16)
    kept = keep_filter(ping_pong(128, 64, 4), 6)
    with pytest.raises(UnsupportedError, match=r"filter_steps is 6, the convolution has 18"):
        case.plan(case.tensors()[0], kept)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"element_bytes": 2}, "element_bytes is 2, the convolution has 1"),
        ({"out_bytes": 2}, "out_bytes is 2, the convolution has 1"),
        ({"block_k": 16}, "block_k is 16: expected a power of two from 32 to 128"),
        ({"store_n": 16}, "store_n is 16: expected a power of two from 32 to 256"),
        ({"element_bytes": 3}, "element_bytes is 3: expected a power of two from 1 to 2"),
        ({"out_bytes": 3}, "out_bytes is 3: expected a power of two from 1 to 4"),
        ({}, None),
    ],
)
def test_a_configuration_is_for_bytes(changes, words):
    config = replace(ping_pong(64, 64, 4, element_bytes=1, out_bytes=1), **changes)
    case = tuned(problem(in_channels=80), torch.float8_e4m3fn)
    found = [*map(str, GLUON.refusals(case, H200, config))]
    assert bool(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float32], ids=str)
def test_both_kernels_are_there_for_fp8(out_dtype):
    asked = problem(batch=8, in_channels=320, out_channels=320, input_size=(64, 64))
    dtype, spec = torch.float8_e4m3fn, EpilogueSpec(out_dtype=out_dtype)
    ranked = ranking_of("fprop", asked, dtype, H200, spec)
    assert isinstance(ranked[0], TileConfig)
    assert ranked[0].block_n_rest > 0
    assert {type(config) for config in ranked} == {ConvConfig, TileConfig}
    for config in ranked:
        if isinstance(config, TileConfig):
            assert config.block_k == 64
            assert not GLUON.refusals(tuned(asked, dtype, spec), H200, config)
        else:
            assert config.block_k == 128
            assert not config.refusals(1)


def test_fewer_channels_are_smaller_steps():
    for ci, block_k in ((8, 16), (16, 16), (24, 32), (32, 32), (40, 64), (200, 64)):
        configs = GLUON.candidates(tuned(problem(in_channels=ci)), H200)
        assert {config.block_k for config in configs} == {block_k}
        for config in configs:
            assert not config.refusals()


# ---- Results -----------------------------------------------------------------------------------


CONFIGS = (
    ping_pong(64, 64, 3, store_n=32, store_buffers=2, group_m=2),
    cooperative(64, 2, 64, 3, block_n_rest=32, store_n=32),
    cooperative(64, 3, 64, 2),
)


def drawn(number: int) -> Case:
    """A random case that the kernel takes: 16-bit types, one group, channels in eights."""
    rng = random.Random(f"hopper {number}")
    while True:
        case = draw(rng, DTYPES, pixels=5)
        ci, co = rng.choice((8, 24, 64, 72, 136)), rng.choice((8, 48, 64, 104, 160))
        spec = replace(
            case.spec, activation=rng.choice(tuple(ACTIVATIONS)), function=None, amax=False,
            out_dtype=rng.choice((None, *DTYPES)),
        )  # fmt: skip
        one = replace(case.problem, in_channels=ci, out_channels=co, groups=1)
        if spec.out_dtype == torch.float16:
            spec = replace(spec, residual=False, residual_per_image=False)
        return replace(case, problem=one, spec=spec)


@needs_copies
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 6))
def test_random_geometries(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    case = drawn(number)
    # Of every three cases one as chosen.
    config = (None, *CONFIGS)[number % 4]
    if config is not None:
        config = replace(config, block_k=random.Random(number).choice((16, 32, 64)))
    check(case, config=config)


def drawn_fp8(number: int) -> tuple[Case, TileConfig | None]:
    """A random case of fp8 that the kernel takes, and how: ``None`` as chosen."""
    rng = random.Random(f"fp8 {number}")
    case = draw_fp8(rng, pixels=5)
    out_bytes = (case.spec.out_dtype or case.dtype).itemsize
    config = (*CONFIGS, None)[number % (1 + len(CONFIGS))]
    if config is not None:
        config = replace(
            config,
            block_k=rng.choice((32, 64, 128)),
            store_n=config.store_n * 2 // max(out_bytes, 2),
            element_bytes=1,
            out_bytes=out_bytes,
        )
    return case, config


@needs_copies
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 8))
def test_random_geometries_of_fp8(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    case, config = drawn_fp8(number)
    x, _, _ = case.tensors()
    assert config is None or isinstance(case.plan(x, config).config, TileConfig)
    check(case, config=config)


@needs_copies
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_epilogue(activation, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    spec = replace(FULL, activation=activation)
    check(Case(problem=problem(), dtype=torch.float16, spec=spec, one_scale=False))


@needs_copies
@pytest.mark.parametrize("operand", ["bias", "scale", "residual", "out_scale"])
def test_every_operand_alone(operand, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    case = Case(problem=problem(), dtype=torch.bfloat16, spec=EpilogueSpec(**{operand: True}))
    check(case, config=CONFIGS[1])


@needs_copies
@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_a_residual_per_image(config, monkeypatch, fresh_triton_cache):
    # Tiles of 64 and of 128 pixels hold parts of some images, of 3 pixels by 3.
    emulate(monkeypatch, gluon=True)
    asked = problem(batch=20, in_channels=16, out_channels=24, input_size=(5, 3))
    spec = replace(FULL, residual_per_image=True)
    check(Case(problem=asked, dtype=torch.float16, spec=spec), config=replace(config, block_k=16))


@needs_copies
@pytest.mark.parametrize("config", TURNED, ids=str)
def test_rows_are_output_channels(config, monkeypatch, fresh_triton_cache):
    # Tails in both: 200 channels are no multiple of 64, and 3 * 5 * 9 pixels none of 96.
    emulate(monkeypatch, gluon=True)
    # Five steps, of three, six or nine pieces of pixels.
    asked = problem(**MATRIX, batch=3, in_channels=72, out_channels=200, input_size=(5, 9))
    for spec in (PLAIN, FULL, replace(FULL, residual_per_image=True)):
        case = Case(problem=asked, dtype=torch.float16, spec=spec, one_scale=False)
        check(case, config=replace(config, block_k=16))


@needs_copies
@needs_join
@pytest.mark.parametrize(
    ("dtype", "rest", "joins"),
    [(torch.float16, 16, True), (torch.float8_e4m3fn, 32, True), (torch.float16, 16, False)],
)
def test_products_of_two_accumulators(dtype, rest, joins, monkeypatch, fresh_triton_cache):
    # Joined, five pieces and three, of six steps: blocks begin at even and at odd ones.
    emulate(monkeypatch, gluon=True)
    capability = replace(JOIN, available=joins)
    monkeypatch.setattr(
        gluon_config, "capabilities", lambda: {**capabilities(), "wgmma-join": capability}
    )
    config = cooperative(64, 2, 64, 3, block_n_rest=rest, store_n=16, block_k=32)
    config = replace(config, element_bytes=dtype.itemsize)
    assert config.joins == joins
    spec = EpilogueSpec(bias=True, activation="relu", out_dtype=torch.bfloat16)
    asked = problem(in_channels=48, filter_size=(1, 3), padding=((0, 0), (1, 0)))
    check(Case(problem=asked, dtype=dtype, spec=spec), config=config)


@needs_copies
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_rows_are_output_channels_of_other_types(dtype, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    asked = problem(**MATRIX, in_channels=64, out_channels=80)
    config = replace(TURNED[1], element_bytes=dtype.itemsize)
    check(
        Case(problem=asked, dtype=dtype, spec=EpilogueSpec(out_dtype=torch.bfloat16)), config=config
    )


def test_rows_are_output_channels_where_x_is_a_matrix_only():
    config = TURNED[0]
    pointwise = problem(**MATRIX, batch=2, in_channels=64, out_channels=64, input_size=(8, 8))
    for asked in (
        problem(),
        replace(pointwise, stride=(2, 2)),
        replace(pointwise, padding=((0, 1), (0, 0))),
    ):
        assert any(
            "x is a matrix only" in str(reason)
            for reason in GLUON.refusals(tuned(asked), H200, config)
        )
        assert not any(each.rows_from_w for each in GLUON.candidates(tuned(asked), H200))
    assert any(each.rows_from_w for each in GLUON.candidates(tuned(pointwise), H200))
    # Every second row of an image: pixels are not evenly spaced.
    gaps = tuned(pointwise, x_strides=(64 * 128, 1, 64 * 16, 64))
    assert any("x is a matrix only" in str(reason) for reason in GLUON.refusals(gaps, H200, config))
    assert not any(each.rows_from_w for each in GLUON.candidates(gaps, H200))
    # Every second channel block: pixels are, further apart.
    spread = tuned(pointwise, x_strides=(128 * 64, 1, 128 * 8, 128))
    assert not GLUON.refusals(spread, H200, config)


def test_rows_are_output_channels_of_nothing_but_fprop():
    config = TURNED[0]
    pointwise = problem(**MATRIX, batch=2, in_channels=64, out_channels=64, input_size=(8, 8))
    words = "where forward x is a matrix only"
    found = [*map(str, GLUON_DGRAD.refusals(tuned(pointwise, direction="dgrad"), H200, config))]
    assert [words in each for each in found] == [True]
    for direction in ("fprop", "dgrad"):
        found = map(str, config_refusals(config, tuned(pointwise, direction=direction), H200))
        assert [words in each for each in found] == ([] if direction == "fprop" else [True])


@needs_copies
@pytest.mark.parametrize("turned", [False, True])
def test_one_pixel_per_row_of_a_wider_image(turned, monkeypatch, fresh_triton_cache):
    # The stride of W, which has one pixel, says nothing: pixels are 5 * 24 elements apart.
    emulate(monkeypatch, gluon=True)
    x = torch.randn(2, 3, 5, 24).half()[:, :, 1:2].movedim(-1, 1)
    weight = torch.randn(16, 24, 1, 1).half()
    asked = problem(**MATRIX, batch=2, in_channels=24, out_channels=16, input_size=(3, 1))
    for width in (24, 8):
        strides = (*x.stride()[:3], width)
        config = replace((TURNED if turned else CONFIGS)[0], block_k=32)
        plan = plan_fprop(asked, strides, x.dtype, x.device, config=config)
        assert plan.inputs.keywords["matrix"] is not None
        expected = torch.nn.functional.conv2d(x.double(), weight.double())
        found = plan.run(x.as_strided(x.shape, strides), weight).double()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=5e-3)


def test_rows_that_are_output_channels_have_one_swizzle_row():
    turned = {"rows_from_w": True, "store_n": 32}
    for config in (
        ping_pong(128, 128, 4, **turned),
        cooperative(64, 2, 64, 4, **turned, out_bytes=4),
        cooperative(64, 2, 64, 4, **turned, filter_steps=3),
    ):
        assert any("one swizzle row" in str(each) for each in config.refusals())


@gluon.jit
def put_counts(counts_ptr, m_gemm, n_gemm, CONFIG: gl.constexpr):
    num_m, num_n = tile_counts(m_gemm, n_gemm, CONFIG)
    gl.store(counts_ptr, num_m)
    gl.store(counts_ptr + 1, num_n)


@pytest.mark.parametrize("size", [1, 96, 97, (1 << 31) - 1])
def test_tiles_of_as_many_pixels_as_there_may_be(size, fresh_triton_cache):
    # Pixels are columns of these tiles, and rows of others.
    config = TURNED[0]
    counts = torch.zeros(2, dtype=torch.int32)
    xnv.emulated(put_counts)[(1,)](counts, size, size, config)
    assert counts.tolist() == [-(-size // config.block_m), -(-size // config.block_n)]


def test_a_filter_of_one_tap_reads_a_matrix(monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    case = Case(problem=problem(**MATRIX), dtype=torch.float16, spec=FULL)
    x, _, _ = case.tensors()
    assert case.plan(x, CONFIGS[0]).inputs.keywords["matrix"](x).strides == [72, 1]
    check(case, config=CONFIGS[0])


def test_pixels_with_gaps_between_them(monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    whole = torch.randn(2, 6, 9, 16).half().permute(0, 3, 1, 2)
    weight = torch.randn(24, 8, 1, 1).half()
    for x, is_matrix in ((whole[:, :8], True), (whole[:, :8, :, :6], False)):
        if not is_matrix and not COPIES.available:
            continue
        asked = problem(in_channels=8, out_channels=24, input_size=tuple(x.shape[2:]), **MATRIX)
        plan = plan_fprop(
            asked, x.stride(), x.dtype, x.device, config=replace(CONFIGS[0], block_k=16)
        )
        assert isinstance(plan.config, TileConfig)
        assert (plan.inputs.keywords["matrix"] is not None) == is_matrix
        expected = torch.nn.functional.conv2d(x.double(), weight.double())
        torch.testing.assert_close(plan.run(x, weight).double(), expected, rtol=1e-3, atol=5e-3)


# ---- Compiled ----------------------------------------------------------------------------------


OF_MATRICES = (*COSTS["matrix"], *TURNED)
COMPILED = (
    *gluon_config.CONFIGS,
    *(keep_filter(config, 6) for config in COSTS["kept"]),
    *COSTS["few columns"],
    *OF_MATRICES,
)


def compiled_for(config, dtype=torch.float16, **fields):
    """The kernel of a plan, over 3 taps or one, and 128 channels: 6 steps of 64, 3 of 128."""
    asked = {**MATRIX} if config in OF_MATRICES else {"filter_size": (3, 1)}
    asked |= {"in_channels": 128, "out_channels": 320}
    (kernel,) = compiled(GLUON, config, problem(**asked), dtype, **fields)
    return kernel


# By default two accumulators, which take the most registers, and a filter that stays.
@pytest.mark.parametrize("config", COMPILED if NIGHTLY else COMPILED[5:12:3], ids=str)
def test_an_epilogue_fits_the_registers(config, tmp_path, fresh_triton_cache):
    spec = replace(FULL, activation="gelu")
    kernel = compiled_for(config, epilogue=spec)
    ptx = kernel.asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert ("im2col" in ptx) != (config in OF_MATRICES)
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in ptx
    # The residual of a tile is asked for before its sums, 64 values a line, for each accumulator.
    widths = [width for width in (config.block_n_main, config.block_n_rest) if width]
    lines = [max(config.rows * max(width // 64, 1) // 128, 1) for width in widths]
    assert ptx.count("prefetch.global.L2") == config.consumers * sum(lines)
    assert kernel.metadata.shared <= SMEM_BYTES
    found = resources(kernel.asm["cubin"], tmp_path)
    assert found["LOCAL"] == 0
    # Triton 3.6 has no name for a barrier of threads, and 56 bytes of stack for two accumulators;
    # three consumers with two of them spill a few values behind the sums.
    three = config.consumers == 3 and config.block_n_rest
    assert found["STACK"] <= (96 if three else 0 if hasattr(gl, "barrier") else 64)


def fp8_configs(out_bytes: int) -> list[TileConfig]:
    """Those of a filter of 3 taps and 128 channels, with which some keep it."""
    product = Product(
        pixels=1000, columns=320, channels=128, taps=(3,), element_bytes=1, out_bytes=out_bytes
    )
    return [*expected_times(product, 132)]


@pytest.mark.parametrize(
    ("ci", "element_bytes", "channels"),
    [(64, 1, 64), (80, 1, 128), (128, 1, 128), (192, 1, 64), (208, 1, 128), (320, 1, 64),
     (384, 1, 128), (320, 2, 64), (96, 2, 64), (16, 2, 16)],
)  # fmt: skip
def test_the_last_step_of_fp8_is_not_half_empty(ci, element_bytes, channels):
    assert step_channels(ci, element_bytes) == channels


def test_half_steps_cost_half_and_are_twice_as_deep():
    product = Product(pixels=32768, columns=320, channels=320, taps=(9,), element_bytes=1)
    half, whole = (expected_times(product, 132, block_k) for block_k in (64, 128))
    assert len(half) == len(whole)
    half_us, whole_us = (min(each.us for each in times.values()) for times in (half, whole))
    assert half_us < 0.9 * whole_us
    for shallow, deep in zip(whole, half, strict=True):
        assert not deep.refusals()
        assert deep.joins == shallow.joins
        if not deep.filter_steps:
            assert 2 * shallow.stages - deep.stages in (0, 1)
            assert replace(deep, block_k=128, stages=shallow.stages) == shallow


@needs_join
def test_ping_pong_with_160_columns_is_for_joined_products_only():
    (config,) = COSTS["joined"]
    product = Product(pixels=32768, columns=320, channels=320, taps=(9,))
    times = expected_times(product, 132)
    # 256+64 columns load less of x: the models are 1 % apart, and the steps of both measured.
    assert times[config].us < 1.02 * min(each.us for each in times.values())
    assert config not in expected_times(replace(product, is_dgrad=True), 132)


# 256 + 64 columns, and a filter that stays.
@pytest.mark.parametrize("number", range(len(fp8_configs(2))) if NIGHTLY else (5, -1))
@pytest.mark.parametrize(
    ("dtype", "name", "out_dtype"),
    [(torch.float8_e4m3fn, "e4m3", torch.bfloat16), (torch.float8_e5m2, "e5m2", torch.float8_e5m2)],
)
def test_fp8_is_multiplied_as_it_is(dtype, name, out_dtype, number, tmp_path, fresh_triton_cache):
    config = fp8_configs(out_dtype.itemsize)[number]
    spec = EpilogueSpec(scale=True, out_dtype=out_dtype)
    kernel = compiled_for(config, dtype, epilogue=spec)
    ptx = kernel.asm["ptx"]
    # 32 channels each, 64 rows; every consumer has a loop of its own.
    each = config.consumers * config.rows // 64 * config.block_k // 32
    widths = [config.block_n] if config.joins else [config.block_n_main, config.block_n_rest]
    counts = dict.fromkeys(widths, each)
    for columns in (16, 32, 64, 128, 160, 192, 256):
        made = ptx.count(f"wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.{name}.{name}")
        assert made == counts.get(columns, 0)
    assert ptx.count("wgmma.mma_async") == sum(count for n, count in counts.items() if n)
    # The whole reduction stays in the accumulators of the tensor cores, as with tl.dot.
    assert "maxNumImpreciseAcc = 1073741824" in kernel.asm["ttgir"]
    assert kernel.metadata.shared <= SMEM_BYTES
    found = resources(kernel.asm["cubin"], tmp_path)
    assert (found["LOCAL"], found["STACK"]) == (0, 0)


@pytest.mark.parametrize("config", COMPILED if NIGHTLY else COMPILED[6:7], ids=str)
def test_a_residual_per_image_spills_no_more_than_one_per_pixel(
    config, tmp_path, fresh_triton_cache
):
    stacks = []
    for per_image in (False, True):
        spec = replace(FULL, activation="gelu", residual_per_image=per_image)
        kernel = compiled_for(config, epilogue=spec)
        assert kernel.metadata.shared <= SMEM_BYTES
        stacks.append(resources(kernel.asm["cubin"], tmp_path)["STACK"])
    assert stacks[1] <= stacks[0]
