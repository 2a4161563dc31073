"""Gradients of inputs of patches without a GPU: emulator, compiled, the model."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

import torch
from emulated import emulate
from family_plans import H200, META, compiled, configs_of
from patch_cases import check, draw
from problem_cases import problem_of
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.families import patches
from triton_ext.ops.families.patches import PATCHES, has_patches

IM2COL = capabilities()["im2col"]
needs_im2col = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
COPIES = capabilities()["im2col-copies"]
emulates = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
BLACKWELL = replace(H200, capability=(10, 0))
STEM = problem_of(n=64, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4)
VIT = problem_of(n=64, ci=3, co=768, size=(224, 224), taps=(16, 16), stride=16)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"input_size": (227, 225)}, True),
        # Padding that no patch reaches is none.
        ({"padding": ((0, 3), (0, 0))}, True),
        ({"padding": ((0, 4), (0, 0))}, False),
        ({"padding": ((1, 0), (0, 0))}, False),
        ({"stride": (4, 2)}, False),
        ({"stride": (5, 4)}, False),
        ({"dilation": (1, 2)}, False),
        ({"groups": 3}, False),
        ({"filter_size": (1, 1), "stride": (1, 1)}, False),
        ({"filter_size": (1, 4), "stride": (1, 4), "dilation": (3, 1)}, True),
    ],
)
def test_what_patches_are(changes, expected):
    assert has_patches(replace(STEM, **changes)) == expected


def chosen(problem):
    case = Case(direction="dgrad", problem=problem, dtype=torch.float16)
    return planner.cheapest(case, H200)


def test_a_model_takes_patches_of_few_channels():
    for problem in (STEM, VIT):
        assert chosen(problem) == planner.Choice(PATCHES, configs_of(PATCHES, problem)[0])
    # Residue classes fill their tiles here.
    wide = problem_of(n=64, ci=96, co=192, size=(56, 56), taps=(2, 2), stride=2)
    assert has_patches(wide)
    assert chosen(wide).family.kind != "patches"
    assert chosen(replace(STEM, padding=((1, 1), (1, 1)))).family.kind != "patches"


def test_the_stem_of_a_convnext_is_bound_by_stores_of_8_bytes():
    # dy, 38.5 MB, is read once, dx, 19.3 MB, written: at 3.5 TB/s 16.5 us.  Twelve elements of dx
    # lie side by side, and 128x3x224x224 with 21 takes 159 us (H100, bf16, 2026-11-27).
    case = Case(direction="dgrad", problem=STEM, dtype=torch.float16)
    assert 16.5 < min(each.us for each in PATCHES.candidates(case, H200).values()) < 159 / 2


@emulates
@pytest.mark.parametrize("number", range(60 if NIGHTLY else 4))
def test_drawn_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    kernel = xnv.emulated(patches.patch_dgrad_kernel)
    monkeypatch.setattr(patches, "patch_dgrad_kernel", kernel)
    rng = random.Random(number)
    dtype = (torch.float16, torch.bfloat16)[number % 2]
    check(draw(rng, patches=4), dtype, Device(3, (9, 0), SMEM_BYTES), bias=number % 2 == 0)


@needs_im2col
@pytest.mark.parametrize(
    ("problem", "device", "vector"),
    [
        # 12 elements of a row are vectors of 8 bytes, 48 are of 16.
        (STEM, H200, 2),
        (replace(VIT, input_size=(225, 224)), H200, 4),
        (replace(STEM, input_size=(225, 224)), BLACKWELL, 2),
    ],
)
def test_rows_of_patches_are_stored_in_vectors(problem, device, vector, fresh_triton_cache):
    (kernel,) = compiled(PATCHES, configs_of(PATCHES, problem)[0], problem, device=device)
    ptx = kernel.asm["ptx"]
    assert f"st.global.v{vector}.b32" in ptx
    assert "st.global.b16" not in ptx


@needs_im2col
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_other_types_compile(dtype, fresh_triton_cache):
    problem, bias = replace(STEM, input_size=(225, 224)), torch.empty(3, dtype=dtype, device=META)
    config = configs_of(PATCHES, problem, dtype)[0]
    kernel = compiled(PATCHES, config, problem, dtype, bias=bias)[-1]
    assert "wgmma" in kernel.asm["ptx"]
