"""Forward plans without a GPU: in the interpreter, in the emulator, and compiled.

Whether kernels are interpreted is fixed when they are defined, so what runs one in the interpreter
lives in ``interpreter_epilogue.py`` and runs in a process of its own.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_epilogue.py``.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

import torch
from compiled_gemm import compile_conv_fprop
from emulated import emulate
from fprop_cases import Case, check, clamp_and_tilt, draw
from planned import plan_fprop, refusals_of
from triton_ext.host import capabilities
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.epilogue import ACTIVATIONS, PLAIN, EpilogueSpec
from triton_ext.ops.core.packing import least_block
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.gemm_config import CONFIGS, OutputTile

IM2COL = capabilities()["im2col"]
pytestmark = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"


# --- the specification --------------------------------------------------------------------------


def test_a_specification_is_a_key():
    assert EpilogueSpec() == PLAIN
    assert hash(EpilogueSpec(bias=True)) == hash(EpilogueSpec(bias=True))
    assert EpilogueSpec(function=clamp_and_tilt) != PLAIN


def test_an_unknown_activation_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"expected an activation of none, relu, .* got 'mish'"):
        EpilogueSpec(activation="mish")


def test_a_function_has_to_be_compiled():
    with pytest.raises(TypeError, match=r"got function <lambda>; decorate it with @triton.jit"):
        EpilogueSpec(function=lambda tile, rows, columns: tile)
    with pytest.raises(TypeError, match=r"got type int; decorate"):
        EpilogueSpec(function=int)


# --- in the emulator ----------------------------------------------------------------------------


COPIES = capabilities()["im2col-copies"]


@pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)
@pytest.mark.parametrize("number", range(200 if NIGHTLY else 12))
def test_drawn_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    # The emulator knows no erf.
    activations = tuple(name for name in ACTIVATIONS if name != "gelu")
    rng = random.Random(number)
    check(draw(rng, DTYPES["fprop"], activations=activations, pixels=5, fp8_out=True))


@pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)
def test_a_residual_per_image_in_the_emulator(monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    problem = ConvProblem(
        batch=20, in_channels=8, out_channels=16, input_size=(3, 3), filter_size=(3, 3),
        stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1),
    )  # fmt: skip
    spec = EpilogueSpec(residual=True, residual_per_image=True, activation="silu")
    check(Case(problem=problem, dtype=torch.float16, spec=spec))


# --- compiled -----------------------------------------------------------------------------------

FULL = EpilogueSpec(
    bias=True,
    scale=True,
    residual=True,
    activation="gelu",
    out_dtype=torch.float8_e4m3fn,
    out_scale=True,
    amax=True,
)


@pytest.mark.parametrize("capability", [90, 100] if NIGHTLY else [90])
@pytest.mark.parametrize("through_tma", [True, False])
@pytest.mark.parametrize("config", CONFIGS[::3] if NIGHTLY else CONFIGS[3:4], ids=str)
def test_shared_memory_is_what_the_model_says(config, through_tma, capability, fresh_triton_cache):
    per_image = EpilogueSpec(residual=True, residual_per_image=True)
    for spec in (EpilogueSpec(residual=True), FULL, per_image):
        fp8 = spec is FULL
        whole = capability == 100 or not through_tma
        tile = OutputTile(element_bytes=4, whole=True)
        if through_tma:
            tile = OutputTile(
                element_bytes=1 if fp8 else 2,
                residual_bytes=4 if spec is per_image else 2,
                whole=whole,
            )
        stages = config.num_stages
        while not replace(config, num_stages=stages).fits(2, output=tile) and stages > 1:
            stages -= 1
        fitting = replace(config, num_stages=stages)
        compiled = compile_conv_fprop(
            fitting, capability, epilogue=spec, store_through_tma=through_tma
        )
        assert compiled.metadata.shared <= min(
            SMEM_BYTES, fitting.smem_bytes(2, output=tile) + 2048
        )


ATOMIC_MAX = r"(red|atom)[.\w]*max\.s32"


def test_a_plain_kernel_has_no_trace_of_an_epilogue(fresh_triton_cache):
    plain = compile_conv_fprop(CONFIGS[3], 90)
    full = compile_conv_fprop(CONFIGS[3], 90, epilogue=FULL)
    assert plain.asm["ttgir"].count("arith.extf") == 0
    assert "residual" not in plain.asm["ttgir"]
    assert "ld.global" not in plain.asm["ptx"]
    assert not re.search(ATOMIC_MAX, plain.asm["ptx"])
    assert "ld.global" in full.asm["ptx"]
    assert re.search(ATOMIC_MAX, full.asm["ptx"])
    assert "cvt.rn.satfinite.e4m3x2.f32" in full.asm["ptx"]


# --- plans --------------------------------------------------------------------------------------


def make(monkeypatch, spec=PLAIN, dtype=torch.float16, **changes):
    emulate(monkeypatch, num_sms=132)
    values = {
        "batch": 32,
        "in_channels": 64,
        "out_channels": 64,
        "input_size": (28, 28),
        "filter_size": (3, 3),
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    problem = ConvProblem(**{**values, **changes})
    x = Case(problem=replace(problem, batch=1), dtype=dtype).tensors()[0]
    return plan_fprop(problem, x.stride(), dtype, torch.device("cpu"), spec)


NO_PADDING = {"filter_size": (1, 1), "padding": ((0, 0), (0, 0))}


def test_a_filter_of_one_tap_reads_a_matrix(monkeypatch):
    plan = make(monkeypatch, **NO_PADDING)
    assert plan.inputs.keywords["matrix"].keywords["strides"] == [64, 1]
    assert plan.launcher.constants["X_IS_MATRIX"]
    for changes in ({"stride": (2, 2)}, {"padding": ((1, 0), (0, 0))}, {"filter_size": (1, 2)}):
        assert make(monkeypatch, **{**NO_PADDING, **changes}).inputs.keywords["matrix"] is None


def test_pixels_with_gaps_between_rows_are_no_matrix(monkeypatch):
    emulate(monkeypatch)
    problem = ConvProblem(
        batch=2, in_channels=8, out_channels=8, input_size=(6, 6), stride=(1, 1),
        dilation=(1, 1), **NO_PADDING,
    )  # fmt: skip
    whole = torch.zeros(2, 6, 9, 16).half().permute(0, 3, 1, 2)
    for x, row_stride in ((whole[:, :8], 16), (whole[:, :8, :, :6], None)):
        changed = replace(problem, input_size=tuple(x.shape[2:]))
        plan = plan_fprop(changed, x.stride(), x.dtype, x.device)
        matrix = plan.inputs.keywords["matrix"]
        assert matrix is row_stride or matrix.keywords["strides"] == [row_stride, 1]


@pytest.mark.parametrize(
    ("dtype", "ci", "block_k"),
    [
        (torch.float16, 64, 64), (torch.float16, 200, 64), (torch.float16, 24, 32),
        (torch.float16, 3, 16), (torch.float32, 64, 32), (torch.float32, 3, least_block(4)),
        (torch.int8, 64, 64), (torch.int8, 300, 128), (torch.float8_e5m2, 3, 32),
    ],
)  # fmt: skip
def test_a_step_is_a_swizzle_row_or_what_channels_there_are(monkeypatch, dtype, ci, block_k):
    plan = make(monkeypatch, dtype=dtype, in_channels=ci, batch=1, **NO_PADDING)
    assert plan.config.block_k == block_k


@pytest.mark.parametrize("group_co", [64, 48, 16, 8, 72])
def test_tiles_stored_by_tma_end_where_groups_end(monkeypatch, group_co):
    plan = make(monkeypatch, out_channels=4 * group_co, groups=4)
    assert plan.outputs is None or group_co % plan.config.block_n == 0
    assert plan.outputs is None or group_co % 16 == 0


def test_a_residual_takes_stages_and_no_more(monkeypatch):
    plan = make(monkeypatch, EpilogueSpec(residual=True))
    plain = make(monkeypatch)
    tile = OutputTile(element_bytes=2, residual_bytes=2)
    assert plan.config.fits(2, output=tile)
    table = {replace(config, num_stages=0) for config in CONFIGS}
    assert replace(plan.config, num_stages=0) in table
    assert plain.config in CONFIGS


def test_reasons():
    problem = ConvProblem(
        batch=0, in_channels=8, out_channels=9, input_size=(6, 6), filter_size=(3, 3),
        stride=(9, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=2,
    )  # fmt: skip
    old = Device(108, (8, 0), 166912)
    found = refusals_of("fprop", problem, torch.float64, old)
    expected = ("float64", "groups=2", "stride 9", "strides need taps", "sm_80")
    for words, reason in zip(expected, found, strict=True):
        assert words in reason
    fine = replace(problem, stride=(2, 1), groups=1)
    assert refusals_of("fprop", fine, torch.float8_e5m2) == ()
    assert refusals_of("fprop", fine, torch.int8, replace(old, capability=(9, 0))) == ()


def test_outputs_of_32_bits_take_stages_rather_than_small_tiles(monkeypatch):
    plan = make(
        monkeypatch, dtype=torch.float32, in_channels=512, out_channels=512, input_size=(56, 56)
    )
    config = plan.config
    assert config.block_m * config.block_n >= 128 * 128
    assert config.fits(4, output=OutputTile(element_bytes=4))
