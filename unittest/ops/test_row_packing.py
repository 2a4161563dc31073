"""Row packing without a GPU: its geometry and model, in the interpreter, the emulator, compiled."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

import numpy as np
import torch
from emulated import emulate
from family_plans import H200, META, case_of, compiling_for
from fprop_cases import ACTIVATIONS, check, convolve
from packing_cases import PackedCase, draw, draw_patches, draw_problem, finite_where_torch_is
from planned import plan_dgrad, plan_fprop, plan_wgrad
from problem_cases import channels_last, problem_of
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import packed_strides
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.packing import (
    RowPacking,
    channel_block,
    geometry_refusals,
    packing_refusals,
)
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.families.gluon_config import COSTS, TileConfig, ping_pong
from triton_ext.ops.families.partial_im2col import PARTIAL_IM2COL
from triton_ext.ops.kernels.row_copy import RowCopy, copy_rows

IM2COL = capabilities()["im2col"]
needs_im2col = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
CAPABILITY = capabilities()["im2col-gluon"]
TURNED = next(iter(COSTS["turned"]))
COPIES = capabilities()["im2col-copies"]
emulates = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

STEM = problem_of(n=32, ci=3, co=64, size=(224, 224), taps=(7, 7), stride=2, padding=3)


def dense(problem):
    """Strides of a dense channels-last x."""
    strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
    return (strides[0], 1, *strides[1:-1])


def packing_of(problem, element_bytes=2, columns=False):
    """Of a dense channels-last x; of rows if there are no columns."""
    ways = [
        w for w in RowPacking.candidates(problem, dense(problem), element_bytes) if not w.planes
    ]
    return ways[-1 if columns else 0] if ways else None


def fastest_of(problem):
    """What the model takes."""
    case = Case(direction="fprop", problem=problem, dtype=torch.float16)
    return PARTIAL_IM2COL.rewritten(case, H200).packing


def is_fast(packing):
    case = Case(direction="fprop", problem=packing.problem, dtype=torch.float16)
    packed_us, taps_us = packing.cost(132)
    is_faster = packed_us < 0.85 * taps_us
    if packing == fastest_of(packing.problem):
        assert is_faster == (not PARTIAL_IM2COL.passed_over(case, H200))
    return is_faster


# --- geometry -----------------------------------------------------------------------------------


def test_rows_beyond_32_bits_are_refused():
    pixels = (1 << 31) // 8
    with pytest.raises(UnsupportedError, match=r"rows of 2147483648 elements: the kernel counts"):
        RowCopy(8 * pixels, 8).arguments((1, pixels, 1), (1,) * 3, 2)


def test_a_stem_of_seven_taps():
    packing = packing_of(STEM)
    # Four channels of 2 bytes, and a step of two pixels, are 16 bytes.
    assert packing.channels == 4
    assert packing.window_channels == 28
    # 111 steps of 2 pixels, and 7 pixels: 229, rounded to 16 bytes of rows.
    assert packing.row_pixels == 230
    assert packing.is_copied
    assert packing.x_shape == (32, 224, 112, 28)
    assert packing.strides == (224 * 230 * 4, 230 * 4, 8, 1)
    assert packing.weight_shape == (64, 7, 32)
    assert packing.block_k == 32
    assert packing.packed.filter_size == (7, 1)
    assert packing.packed.output_size == STEM.output_size == (112, 112)
    assert is_fast(packing)


def test_columns_of_a_stem_of_seven_taps():
    packing = packing_of(STEM, columns=True)
    assert packing.columns
    # Seven pixels of three channels, and two such columns are a multiple of 16 bytes: 24, not 21.
    assert packing.channels == 24
    assert packing.window_channels == 7 * 24
    assert packing.memory_shape == (32, 112, 229, 24)
    assert packing.x_shape == (32, 112, 112, 168)
    assert packing.strides == (112 * 229 * 24, 229 * 24, 48, 1)
    assert packing.weight_shape == (64, 1, 168)
    assert packing.packed.filter_size == packing.packed.stride == (1, 1)
    assert packing.packed.padding == ((0, 0), (0, 0))
    assert packing.packed.output_size == (112, 112)
    assert packing.block_k == 64
    # In three dimensions, D is still walked.
    deep = problem_of(
        ci=3, size=(9, 32, 32), taps=(5, 3, 3), stride=2, padding=1, dilation=(2, 3, 1)
    )
    packed = packing_of(deep, columns=True).packed
    assert packed.input_size == (9, *deep.output_size[1:])
    assert packed.filter_size == (5, 1, 1)
    assert packed.stride == (2, 1, 1)
    assert packed.padding == ((1, 1), (0, 0), (0, 0))
    assert packed.dilation == (2, 1, 1)
    # One dimension has no columns, nor has a filter of one row.
    for problem in (problem_of(size=(9,), taps=(3,)), problem_of(taps=(1, 3))):
        assert not packing_of(problem, columns=True).columns


VIT = problem_of(n=64, ci=3, co=768, size=(224, 224), taps=(16, 16), stride=16)


def planes_of(problem):
    ways = RowPacking.candidates(problem, dense(problem), 2)
    return next((way for way in ways if way.planes), None)


def test_planes_of_patches():
    packing = planes_of(VIT)
    # A row of a patch is 16 pixels of 3 channels, 96 bytes; nothing is copied.
    assert (packing.window_channels, packing.is_copied) == (48, False)
    assert packing.x_shape == (64, 14, 16, 14, 48)
    row = 224 * 3
    assert packing.strides == (224 * row, 16 * row, row, 48, 1)
    assert packing.packed.output_size == (14, 1, 14)
    assert packing.packed.geometry.m_gemm == VIT.geometry.m_gemm
    assert packing.weight_shape == (768, 1, 16, 48)
    assert packing.block_k == 64
    # Pixels behind the last patch are in no window; 14 pixels of 3 channels are no 16 bytes.
    assert not planes_of(replace(VIT, input_size=(230, 232))).is_copied
    fourteen = planes_of(replace(VIT, filter_size=(14, 14), stride=(14, 14)))
    assert (fourteen.channels, fourteen.memory_shape) == (4, (64, 224, 224, 4))
    # Rows above x are nowhere in memory, nor are those below.
    for side in ((1, 0), (0, 16)):
        assert planes_of(replace(VIT, padding=(side, (0, 0)))) is None
    # Padding that no patch reaches is none.
    assert planes_of(replace(VIT, padding=((0, 9), (0, 0)))) is not None


def test_a_model_takes_planes_where_strides_leave_no_rows():
    found = fastest_of(VIT)
    assert (found.kind, is_fast(found)) == ("planes", True)
    eight = replace(VIT, filter_size=(8, 8), stride=(8, 8))
    assert fastest_of(eight).kind != "planes"
    assert not geometry_refusals(VIT)
    one_tap = replace(VIT, filter_size=(1, 1))
    limits = [f"conv stride 16 in {letter}: TMA supports 1..8" for letter in "HW"]
    needs = "larger strides need taps of a row that are read as channels; "
    alone = f"{needs}one tap in W: there is nothing to pack"
    assert [*map(str, geometry_refusals(one_tap))] == [*limits, alone]
    grouped = replace(VIT, in_channels=4, out_channels=8, groups=2)
    assert [*map(str, geometry_refusals(grouped))] == [
        *limits, f"{needs}groups=2: a window would hold channels of other groups"
    ]  # fmt: skip
    # Without groups, either: the outermost of three dimensions has no larger strides.
    volume = problem_of(ci=8, co=8, size=(30, 30, 30), taps=(3, 3, 3), stride=(9, 9, 9))
    for groups in (1, 2):
        found = [*map(str, geometry_refusals(replace(volume, groups=groups)))]
        assert found[0] == "conv stride 9 in D: TMA supports 1..8"
        assert not any("larger" in reason for reason in found)
    # What is wrong besides a stride is said together with it.
    assert len(geometry_refusals(replace(VIT, padding=((300, 0), (0, 0))))) > 1


@pytest.mark.parametrize(
    ("problem", "element_bytes", "channels", "block_k"),
    [
        (problem_of(ci=3, size=(224, 224), taps=(4, 4), stride=4), 2, 4, 16),
        (problem_of(ci=3, size=(224, 224), taps=(4, 4), stride=4), 4, 3, 16),
        (problem_of(ci=3, size=(224, 224), taps=(7, 7), stride=2), 1, 8, 64),
        (problem_of(ci=4, size=(64, 64), taps=(3, 3), padding=1), 2, 8, 32),
        (problem_of(ci=16, size=(64, 64), taps=(3, 3), padding=1), 2, 16, 64),
        (problem_of(ci=1, size=(999,), taps=(10,), stride=5), 2, 8, 64),
        (problem_of(ci=1, size=(999,), taps=(16,), stride=8), 2, 1, 16),
    ],
)
def test_channels_and_blocks(problem, element_bytes, channels, block_k):
    packing = packing_of(problem, element_bytes)
    assert packing.channels == channels
    assert packing.block_k == block_k


def test_without_padding_aligned_channels_are_read_in_place():
    problem = problem_of(ci=8, size=(20, 20), taps=(3, 3), padding=((1, 1), (0, 0)))
    packing = packing_of(problem)
    assert not packing.is_copied
    assert packing.copy_us == 0
    assert packing.strides == (20 * 20 * 8, 20 * 8, 8, 1)
    # Padding behind the last pixel that no window reaches is none.
    behind = replace(problem, stride=(1, 2), padding=((0, 0), (0, 0)), input_size=(20, 21))
    assert not packing_of(behind).is_copied
    assert not packing_of(replace(behind, input_size=(20, 20), padding=((0, 0), (0, 0)))).is_copied
    assert packing_of(replace(behind, input_size=(20, 20), padding=((0, 0), (0, 1)))).is_copied


def test_a_slice_of_channels_is_copied():
    # Its windows would hold the channels beside it.
    problem = problem_of(ci=8, size=(20, 20), taps=(3, 3))
    strides = (20 * 20 * 16, 1, 20 * 16, 16)
    assert RowPacking.candidates(problem, strides, 2)[0].is_copied


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (problem_of(ci=8, co=8, groups=2), "groups=2"),
        (problem_of(taps=(3, 1)), "one tap"),
        (problem_of(dilation=(1, 2)), "dilation 2 in W"),
    ],
)
def test_what_cannot_be_packed_has_a_reason(problem, match):
    assert match in str(packing_refusals(problem)[0])
    assert packing_of(problem) is None


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_windows_stay_in_their_rows_and_on_16_bytes(element_bytes):
    rng = random.Random(element_bytes)
    for _ in range(1000):
        problem = draw_problem(rng, pixels=30)
        packing = packing_of(problem, element_bytes, columns=rng.random() < 0.5)
        if packing is None:
            continue
        rows = problem.filter_size[-2] if packing.columns else 1
        shape, strides = packing.x_shape, packing.strides
        # Strides of dimensions of size 1 mean nothing.
        outer = [stride for size, stride in zip(shape, strides, strict=True) if size > 1][:-1]
        assert all(stride * element_bytes % 16 == 0 for stride in outer)
        last = (shape[-2] - 1) * strides[-2] + shape[-1]
        assert last <= packing.row_pixels * packing.channels
        assert packing.weight_shape[-1] * element_bytes % 16 == 0
        assert packing.packed.output_size == problem.output_size
        # Fewer channels would not do.
        least, smaller = rows * problem.in_channels, packing.channels - 1
        assert smaller >= least - 1
        assert smaller < least or problem.stride[-1] * smaller * element_bytes % 16 != 0


def test_the_view_holds_the_windows_of_a_padded_image():
    rng = random.Random(7)
    for _ in range(100):
        problem = draw_problem(rng, pixels=9)
        # Of columns, the copy is compared where it runs.
        packing = packing_of(problem)
        n, *size, c = (problem.batch, *problem.input_size, problem.in_channels)
        x = np.arange(1, n * np.prod(size) * c + 1).reshape(n, *size, c)
        low, _ = problem.padding[-1]
        memory = np.zeros((n, *size[:-1], 100, packing.channels), np.int64)
        memory[..., low : low + size[-1], :c] = x
        rows = memory[..., : packing.row_pixels, :].copy() if packing.is_copied else x
        view = np.lib.stride_tricks.as_strided(
            rows, packing.x_shape, [stride * 8 for stride in packing.strides]
        )
        taps, step = problem.filter_size[-1], problem.stride[-1]
        for out_w in range(problem.output_size[-1]):
            window = memory[..., out_w * step : out_w * step + taps, :]
            assert np.array_equal(view[..., out_w, :], window.reshape(*window.shape[:-2], -1))


# --- model --------------------------------------------------------------------------------------


def test_stems_are_packed_and_wide_layers_are_not():
    vae = problem_of(ci=4, co=512, size=(64, 64), taps=(3, 3), padding=1)
    patches = problem_of(n=64, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4)
    wide = problem_of(n=32, ci=64, co=64, size=(56, 56), taps=(3, 3), padding=1)
    found = [fastest_of(problem) for problem in (STEM, patches, vae, wide)]
    assert [is_fast(packing) for packing in found] == [True, True, True, False]
    assert [packing.columns for packing in found[:3]] == [False, True, True]
    # More channels than a step has: rows are smaller copies.
    assert not fastest_of(problem_of(n=32, ci=16, co=64, size=(112, 112), padding=1)).columns


# --- plans --------------------------------------------------------------------------------------


def plan_of(monkeypatch, problem, *, gluon=False, **arguments):
    emulate(monkeypatch, num_sms=132, gluon=gluon)
    return plan_fprop(problem, dense(problem), torch.float16, torch.device("cpu"), **arguments)


@needs_im2col
def test_a_model_decides_unless_told(monkeypatch):
    plan = plan_of(monkeypatch, STEM)
    assert plan.row_copies is not None
    assert plan.problem is STEM
    assert plan.y_shape == STEM.y_shape
    assert plan.config.block_k == 32
    assert plan_of(monkeypatch, STEM, pack_rows=False).row_copies is None
    # What a sweep measures is what it asked for.
    assert plan_of(monkeypatch, STEM, config=plan.config).row_copies is None
    packed = plan_of(monkeypatch, STEM, config=plan.config, pack_rows=True)
    assert packed.row_copies is not None
    wide = problem_of(ci=64, taps=(3, 3), padding=1)
    assert plan_of(monkeypatch, wide).row_copies is None


# --- run ----------------------------------------------------------------------------------------


@emulates
@pytest.mark.parametrize("number", range(200 if NIGHTLY else 10))
def test_drawn_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    # The emulator knows no erf.
    activations = tuple(name for name in ACTIVATIONS if name != "gelu")
    rng = random.Random(number)
    check(draw(rng, DTYPES["fprop"], activations=activations, pixels=6, fp8_out=True))


@emulates
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 4))
def test_patches_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    rng = random.Random(number)
    dtypes = (torch.float16, torch.bfloat16, torch.int8)
    case = draw(rng, dtypes, activations=("none", "relu"), pixels=6)
    check(replace(case, problem=draw_patches(rng, pixels=10), planes=True))


@emulates
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 6))
def test_a_window_sees_its_own_pixels_only(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    rng = random.Random(number)
    case = PackedCase(
        problem=draw_problem(rng, pixels=6),
        dtype=torch.bfloat16,
        spec=EpilogueSpec(out_dtype=torch.float32),
        columns=number % 2 == 1,
    )
    finite_where_torch_is(case, rng.choice((torch.nan, torch.inf)), "cpu", rng)


@emulates
@pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason)
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 6))
def test_the_gluon_kernel_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    rng = random.Random(number)
    problem = replace(draw_problem(rng, pixels=6), out_channels=rng.choice((8, 24, 64)))
    dtype = rng.choice((torch.float16, torch.bfloat16))
    spec = EpilogueSpec(bias=rng.random() < 0.5)
    case = PackedCase(problem=problem, dtype=dtype, spec=spec, columns=number % 2 == 1)
    if number % 3 == 0:
        patches = replace(draw_patches(rng, pixels=10), out_channels=problem.out_channels)
        case = replace(case, problem=patches, planes=True)
    config = ping_pong(64, 64, 3, block_k=rng.choice((16, 32, 64)))
    if number % 3 == 2:
        case = replace(case, dtype=torch.float8_e4m3fn, spec=replace(spec, out_dtype=dtype))
        config = replace(config, block_k=2 * config.block_k, element_bytes=1)
    plan = case.plan(case.tensors()[0], config)
    assert isinstance(plan.config, TileConfig)
    check(case, config=config)


@emulates
@pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason)
@pytest.mark.parametrize("turned", [False, True])
def test_windows_that_are_rows_of_a_matrix(turned, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, gluon=True)
    config = TURNED if turned else ping_pong(64, 64, 3)
    # Windows of 28 channels, 8 apart, and a filter of 32: the last 4 are pixels of other windows.
    row = problem_of(n=1, ci=1, co=64, size=(12,), taps=(7,), stride=2)
    case = PackedCase(problem=row, dtype=torch.float16)
    config = replace(config, block_k=32)
    plan = case.plan(case.tensors()[0], config)
    assert plan.inputs.keywords["matrix"] is not None
    assert plan.inputs.keywords["pixels"].args[0].shape[-1] == 28
    rng = random.Random(0)
    for _ in range(4):
        finite_where_torch_is(case, torch.nan, "cpu", rng, config)
    check(case, config=config)


@emulates
@pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason)
def test_windows_that_are_no_rows_of_a_matrix(monkeypatch):
    # Rows of 9 windows end with pixels in which none begins: one tap is not enough.
    emulate(monkeypatch, gluon=True)
    stem = problem_of(n=2, ci=3, co=64, size=(9, 11), taps=(3, 3))
    case = PackedCase(problem=stem, dtype=torch.float16, columns=True)
    x = case.tensors()[0]
    way = case.way(x)
    assert way.padded.is_pointwise
    config = replace(TURNED, block_k=channel_block(way.window_channels, 2, 1))
    with pytest.raises(UnsupportedError, match="where forward x is a matrix only"):
        case.plan(x, config)
    image, *pixels, one = way.strides
    for strides, turns in ((None, True), ((image, one, *pixels), False)):
        ranked = GLUON.candidates(case_of(GLUON, way.padded, x_strides=strides), H200)
        assert any(each.rows_from_w for each in ranked) is turns


@needs_im2col
@pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason)
def test_the_gluon_kernel_is_chosen_for_stems_too(monkeypatch):
    plan = plan_of(monkeypatch, STEM, gluon=True)
    assert isinstance(plan.config, TileConfig)
    assert plan.row_copies is not None
    assert plan.problem is STEM
    assert plan.config.block_k == 32
    assert plan.config.filter_steps == 7


def emulate_gradients(monkeypatch, num_sms=3):
    """Lets gradients of filters run in the emulator."""
    emulate(monkeypatch, num_sms)
    machine = Device(num_sms, (9, 0), SMEM_BYTES)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    planner.make_plan.cache_clear()


@emulates
@pytest.mark.parametrize("number", range(60 if NIGHTLY else 4))
def test_gradients_of_filters_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate_gradients(monkeypatch)
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=6) if number % 3 else draw_patches(rng, pixels=10)
    x, dy = (channels_last(s, torch.float16, 1, "cpu") for s in (problem.x_shape, problem.y_shape))
    way = True if number % 3 else planes_of(problem)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, x.device, pack_rows=way)
    assert plan.copies is not None
    weight = torch.zeros(problem.w_shape, dtype=torch.float64, requires_grad=True)
    convolve(problem, x.double(), weight).backward(dy.double())
    error = (plan.run(x, dy).double() - weight.grad).abs().max()
    assert error <= 1e-3 * max(1.0, weight.grad.abs().max())


@needs_im2col
def test_a_model_packs_gradients_of_stems(monkeypatch):
    emulate_gradients(monkeypatch, num_sms=132)

    def plan_of(problem):
        strides = [
            (s[0], 1, *s[1:-1])
            for c, size in (
                (problem.in_channels, problem.input_size),
                (problem.out_channels, problem.output_size),
            )
            for s in [packed_strides((problem.batch, *size, c))]
        ]
        return plan_wgrad(problem, *strides, torch.float16, torch.device("cpu"))

    stem = plan_of(STEM)
    assert stem.copies is not None
    assert stem.problem is STEM
    wide = problem_of(n=32, ci=64, co=64, size=(56, 56), padding=1)
    assert plan_of(wide).copies is None
    # Strides that im2col has not are packed in some way.
    assert plan_of(VIT).copies is not None


@needs_im2col
def test_a_model_packs_gradients_of_inputs_of_few_output_channels(monkeypatch):
    emulate(monkeypatch, num_sms=132)

    def plan_of(problem):
        strides = packed_strides((problem.batch, *problem.output_size, problem.out_channels))
        dy_strides = (strides[0], 1, *strides[1:-1])
        return plan_dgrad(problem, dy_strides, torch.float16, torch.device("cpu"))

    end = problem_of(ci=128, co=3, size=(512, 512), padding=1)
    plan = plan_of(end)
    assert plan.row_copies is not None
    assert plan.y_shape == end.x_shape
    for other in (replace(end, out_channels=64), replace(end, stride=(2, 2))):
        assert plan_of(other).row_copies is None


def copy_ptx(device, *copies):
    """PTX of one launch of copies: channels of source and target, pixels of a column."""
    made = []
    for source, target, column in copies:
        tensor = torch.empty((8, 100, 200, source), dtype=torch.half, device=META)
        made.append((RowCopy(1024, target, column=column), tensor, torch.empty_like(tensor)))
    with compiling_for(device) as kernels:
        copy_rows(*made)
    return kernels[0].asm["ptx"]


DEVICES = pytest.mark.parametrize("device", [H200, replace(H200, capability=(10, 0))])


@DEVICES
def test_a_copy_stores_16_bytes_at_a_time(device, fresh_triton_cache):
    for source, target, column in ((3, 4, 1), (16, 16, 1), (3, 24, 7)):
        ptx = copy_ptx(device, (source, target, column))
        assert "st.global.v4" in ptx
        # Neighbouring channels are loaded together where there are enough of them.
        assert ("ld.global.v4" in ptx) == (source == 16)


@DEVICES
def test_two_copies_are_one_kernel(device, fresh_triton_cache):
    ptx = copy_ptx(device, (16, 16, 1), (3, 8, 1))
    assert ptx.count(".entry") == 1
    stores = copy_ptx(device, (16, 16, 1)).count("st.global.v4")
    assert ptx.count("st.global.v4") == 2 * stores
