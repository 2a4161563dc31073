"""The forward Gluon kernel on a GPU: every configuration, with and without an epilogue."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from family_plans import H200, case_of
from fprop_cases import Case, check, draw_fp8
from gpu_comparison import MARKS, bits, skip_without_gpu
from triton_ext.host import capabilities
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.tables import decode, read_table, shipped_path
from triton_ext.ops.families.gluon import DTYPES, GLUON
from triton_ext.ops.families.gluon_config import CONFIGS as CONFIGS_OF_MODEL
from triton_ext.ops.families.gluon_config import COSTS, TileConfig, keep_filter

skip_without_gpu()
NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
CAPABILITY = capabilities()["im2col-gluon"]
SM_90 = torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    *MARKS,
    pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason),
    pytest.mark.skipif(not SM_90, reason="the kernel is for sm_90 alone"),
]

PROBLEM = ConvProblem(
    batch=4,
    in_channels=128,
    out_channels=328,
    input_size=(29, 31),
    filter_size=(3, 1),
    stride=(1, 1),
    padding=((1, 1), (0, 0)),
    dilation=(1, 1),
)
FULL = EpilogueSpec(bias=True, scale=True, residual=True, out_scale=True, activation="gelu")
# A filter of 3 taps and 128 channels is 6 steps.
CONFIGS = (
    *CONFIGS_OF_MODEL,
    *(keep_filter(config, 6) for config in COSTS["kept"]),
    *COSTS["few columns"],
    *COSTS["joined"],
)


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_configuration(config, spec, dtype):
    case = Case(problem=PROBLEM, dtype=dtype, spec=spec, one_scale=False, given_out=True)
    first = check(case, "cuda", config)
    assert torch.equal(bits(first), bits(check(case, "cuda", config)))


def fp8_cases():
    """Every configuration of fp8: of many output channels, of few, and where x is a matrix."""
    types = (
        (torch.float8_e4m3fn, torch.bfloat16),
        (torch.float8_e4m3fn, None),
        (torch.float8_e5m2, torch.float32),
    )
    for dtype, out_dtype in types:
        seen = set()
        # TMA stores rows of 16 bytes.  A filter of 3 taps and 128 channels is 3 steps and can stay.
        wide = replace(PROBLEM, out_channels=336)
        matrix = replace(wide, filter_size=(1, 1), padding=((0, 0), (0, 0)))
        for asked in (wide, replace(PROBLEM, out_channels=64), matrix):
            spec = EpilogueSpec(out_dtype=out_dtype)
            for config in GLUON.candidates(case_of(GLUON, asked, dtype, epilogue=spec), H200):
                if config not in seen:
                    seen.add(config)
                    name = f"{dtype} {asked.out_channels} {config}".removeprefix("torch.")
                    yield pytest.param(asked, dtype, out_dtype, config, id=name)


@pytest.mark.parametrize(("asked", "dtype", "out_dtype", "config"), fp8_cases())
def test_every_configuration_of_fp8(asked, dtype, out_dtype, config):
    spec = replace(FULL, out_scale=False, out_dtype=out_dtype)
    case = Case(problem=asked, dtype=dtype, spec=spec, one_scale=True, given_out=True)
    first = check(case, "cuda", config)
    assert torch.equal(bits(first), bits(check(case, "cuda", config)))


@pytest.mark.parametrize("number", range(500 if NIGHTLY else 24))
def test_random_geometries_of_fp8(number):
    case = draw_fp8(random.Random(f"fp8 {number}"), pixels=24)
    spec = EpilogueSpec(out_dtype=case.spec.out_dtype)
    ranked = GLUON.candidates(case_of(GLUON, case.problem, case.dtype, epilogue=spec), H200)
    config = tuple(ranked)[number % len(ranked)]
    x, _, _ = case.tensors("cuda")
    assert isinstance(case.plan(x, config).config, TileConfig)
    check(case, "cuda", config)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_residual_per_image(config):
    # Tiles hold parts of some images, or of one.
    for size in ((3, 5), (29, 31)):
        asked = replace(PROBLEM, batch=20, input_size=size)
        spec = replace(FULL, residual_per_image=True)
        check(Case(problem=asked, dtype=torch.bfloat16, spec=spec, one_scale=False), "cuda", config)


def shipped_turned():
    """The tiles of the shipped table that have output channels as rows."""
    table = read_table(shipped_path("NVIDIA H200"))
    decoded = (decode(entry["kind"], entry["config"]) for entry in table.entries.values())
    return tuple(
        config for config in decoded if isinstance(config, TileConfig) and config.rows_from_w
    )


MATRIX_CONFIGS = (*COSTS["matrix"], *COSTS["turned"])
# What a sweep found has no costs in the model, and is in the table alone.
MATRIX_CONFIGS = tuple(dict.fromkeys((*MATRIX_CONFIGS, *shipped_turned())))


@pytest.mark.parametrize("spec", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("config", [*CONFIGS[:8:3], *MATRIX_CONFIGS], ids=str)
def test_a_matrix(config, spec):
    one = replace(PROBLEM, filter_size=(1, 1), padding=((0, 0), (0, 0)))
    case = Case(problem=one, dtype=torch.float16, spec=spec, one_scale=False, given_out=True)
    first = check(case, "cuda", config)
    assert torch.equal(bits(first), bits(check(case, "cuda", config)))


@pytest.mark.parametrize("config", COSTS["turned"], ids=str)
def test_a_residual_per_image_of_a_matrix(config):
    one = replace(PROBLEM, filter_size=(1, 1), padding=((0, 0), (0, 0)), batch=20)
    spec = replace(FULL, residual_per_image=True)
    check(Case(problem=one, dtype=torch.bfloat16, spec=spec, one_scale=False), "cuda", config)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_stay_where_they_are_seen(bad):
    case = Case(problem=PROBLEM, dtype=torch.float16)
    x, weight, _ = case.tensors("cuda")
    x[1, 5, 3, 4] = bad
    y = case.plan(x, CONFIGS[0]).run(x, weight)
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), padding=(1, 0))
    assert torch.equal(y.isfinite(), expected.isfinite())
