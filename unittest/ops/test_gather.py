"""Gathered few channels without a GPU: windows, the choice, what is compiled, and what it gives.

Compiled kernels run in the emulator; ``test_conformance.py`` runs interpreted ones.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from cubin_resources import resources
from emulated import emulate
from family_plans import H200, case_of, compiled, configs_of, plan_of
from fprop_cases import ACTIVATIONS, check
from gather_cases import draw, draw_config, draw_problem
from problem_cases import problem_of
from triton_ext.ops import tuning
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.families.few_channels import FEW_CHANNELS, FewChannelsConfig, Window

HALF = torch.float16
EFFICIENTNET = problem_of(n=32, ci=3, co=32, size=(224, 224), stride=2, padding=1)
VAE = problem_of(ci=4, co=512, size=(64, 64), padding=1)
RESNET = problem_of(n=32, ci=3, co=64, size=(224, 224), taps=(7, 7), stride=2, padding=3)
UNET = problem_of(n=8, ci=4, co=320, size=(64, 64), padding=1)
ENCODER = problem_of(ci=3, co=128, size=(512, 512), padding=1)
WAV2VEC = problem_of(n=16, ci=1, co=512, size=(160000,), taps=(10,), stride=5)
CODEC = problem_of(n=8, ci=1, co=64, size=(240000,), taps=(7,), padding=3)
PATCHES = problem_of(n=64, ci=3, co=384, size=(224, 224), taps=(8, 8), stride=8)
RESNET_3D = problem_of(n=8, ci=3, co=64, size=(16, 112, 112), taps=(7, 7, 7), stride=2, padding=3)
CONVNEXT = problem_of(n=64, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4)


def window_of(problem, **layout):
    return Window.make(case_of(FEW_CHANNELS, problem, **layout))


def refusals(problem, dtype):
    return [*map(str, FEW_CHANNELS.refusals(case_of(FEW_CHANNELS, problem, dtype), H200))]


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(60))
def test_vectors_are_aligned_and_inside_or_outside(number):
    problem = draw_problem(random.Random(number), pixels=12)
    window = window_of(problem)
    ci, vector = problem.in_channels, window.vector
    strides = case_of(FEW_CHANNELS, problem).strides_of_x
    assert window.row % vector == 0
    assert 0 <= window.shift < vector
    assert 0 <= window.row - window.shift - problem.filter_size[-1] * ci < vector
    assert problem.input_size[-1] * ci % vector == 0
    for out_w in range(problem.output_size[-1]):
        first = out_w * problem.stride[-1] - problem.padding[-1][0]
        assert (first * ci - window.shift) % vector == 0
    for extent, stride in zip(problem.x_shape, strides, strict=True):
        assert extent == 1 or stride in (1, ci) or stride % vector == 0


def test_windows_of_stems():
    found = [window_of(problem) for problem in (EFFICIENTNET, VAE, RESNET, CONVNEXT)]
    assert [window.vector for window in found] == [2, 4, 2, 4]
    assert [window.shift for window in found] == [1, 0, 1, 0]
    assert [window.columns for window in found] == [30, 36, 154, 48]
    # With stride 1, pixels of three channels begin anywhere.
    odd = problem_of(ci=3, co=128, size=(512, 512), padding=1)
    assert window_of(odd).vector == 1
    # Pixels that lie apart, and images that are one.
    assert window_of(VAE, x_strides=(4 * 64 * 66, 1, 4 * 66, 4)).vector == 4
    assert window_of(VAE, x_strides=(8 * 64 * 64, 1, 8 * 64, 8)).vector == 1


# --- the choice ---------------------------------------------------------------------------------


def kind_chosen(problem, dtype=HALF):
    return planner.cheapest(Case(direction="fprop", problem=problem, dtype=dtype), H200).family.kind


def test_what_is_gathered():
    for problem in (EFFICIENTNET, VAE, CONVNEXT, UNET, ENCODER, WAV2VEC, CODEC):
        assert kind_chosen(problem) == "gather"
    # Larger filters are faster with packed rows; bf16 is as fp16.
    for problem in (RESNET, PATCHES, RESNET_3D):
        assert kind_chosen(problem) != "gather"
    assert kind_chosen(VAE, torch.bfloat16) == "gather"
    assert kind_chosen(VAE, torch.float32) != "gather"
    assert refusals(VAE, torch.int8) == ["dtype is torch.int8: expected float16 or bfloat16"]
    grouped = problem_of(ci=6, co=6, groups=2)
    assert "groups=2" in refusals(grouped, HALF)[0]


def test_the_fastest_tiles_that_were_measured_come_first():
    for problem, block_m in ((VAE, 64), (CONVNEXT, 64), (UNET, 64), (WAV2VEC, 64), (CODEC, 128)):
        assert configs_of(FEW_CHANNELS, problem)[0].block_m == block_m


def test_a_tuner_tries_it():
    first, *_ = tuning.candidates(VAE, "fprop", HALF, H200)
    assert first == configs_of(FEW_CHANNELS, VAE)[0]
    kinds = Counter(type(c).__name__ for c in tuning.candidates(RESNET, "fprop", HALF, H200))
    assert kinds["FewChannelsConfig"] >= 1
    assert kinds["PackedConfig"] >= 2
    for config in configs_of(FEW_CHANNELS, RESNET):
        assert not config.refusals()
        columns = RESNET.out_channels // config.block_n
        assert config.tiles(RESNET, 132)[2] % columns == 0


# --- what is compiled ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "dtype", "load", "loads", "store"),
    [
        (EFFICIENTNET, torch.bfloat16, "b32", 128 * 32 // 2 // 128, 4),
        (VAE, torch.float16, "v2.b32", 64 * 64 // 4 // 128, 8),
        (RESNET, torch.float16, "b32", 64 * 5 * 32 // 2 // 128, 4),
    ],
    ids=["efficientnet", "vae", "resnet"],
)
def test_loads_are_as_wide_as_pixels_allow(
    problem, dtype, load, loads, store, tmp_path, fresh_triton_cache
):
    config = configs_of(FEW_CHANNELS, problem)[0]
    (kernel,) = compiled(FEW_CHANNELS, config, problem, dtype)
    ptx = kernel.asm["ptx"]
    found = Counter(re.findall(r"\bld\.global\.(\S+)", ptx))
    of_filter = config.block_n * config.block_k // (32 * config.num_warps)
    if problem is VAE:
        # Rows of 36 elements: the filter has loads of the same width.
        loads += of_filter // 4
    assert found[load] == loads
    # The filter is loaded in front of the loop, and lies in shared memory there.
    in_front, loop = kernel.asm["ttgir"].split("scf.for", 1)
    steps = math.ceil(window_of(problem).columns / config.block_k)
    assert (in_front.count("tt.load"), loop.count("tt.load")) == (steps, steps)
    assert in_front.count("ttg.local_alloc") == steps
    assert re.findall(r"\bst\.global\.(\S+)", ptx) == ["v4.b32"] * store
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"
    assert kernel.metadata.shared <= config.smem_bytes(window_of(problem).columns)


def test_loads_that_are_ahead_fit_in_their_bound(fresh_triton_cache):
    for config in (
        FewChannelsConfig(block_m=128, block_n=64, block_k=32, num_warps=8, loads_ahead=1),
        FewChannelsConfig(block_m=64, block_n=32, block_k=64, loads_ahead=2),
    ):
        (kernel,) = compiled(FEW_CHANNELS, config, RESNET)
        assert "cp.async" in kernel.asm["ptx"]
        assert kernel.metadata.shared <= config.smem_bytes(window_of(RESNET).columns)


# --- run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_drawn_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    rng = random.Random(number)
    # The emulator knows no erf.
    activations = tuple(name for name in ACTIVATIONS if name != "gelu")
    case = draw(rng, pixels=8, activations=activations)
    config = draw_config(rng)
    if config is not None:
        # The emulator does not carry out cp.async.
        config = replace(config, loads_ahead=0)
    else:
        x, _, _ = case.tensors()
        config = plan_of(FEW_CHANNELS, case.problem, x, H200, spec=case.spec).config
    check(case, config=config)
