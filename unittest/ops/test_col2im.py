"""Shifted products without a GPU: who computes what, the choice, what is compiled, what it gives.

Compiled kernels run in the emulator; ``test_conformance.py`` runs interpreted ones.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from col2im_cases import draw, draw_config, draw_problem
from cubin_resources import resources
from emulated import emulate
from family_plans import H200, case_of, compiled, configs_of
from fprop_cases import ACTIVATIONS, check
from planned import plan_fprop
from problem_cases import problem_of
from triton_ext.errors import DescriptorError
from triton_ext.ops import tuning
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import assumed_device
from triton_ext.ops.families.few_channels import KN2ROW, Col2ImConfig, Kn2RowShape, Schedule

HALF = torch.float16
META = torch.device("meta")
VAE = problem_of(ci=128, co=3, size=(1024, 1024), padding=1)
VAE_512 = problem_of(ci=128, co=3, size=(512, 512), padding=1)
UNET = problem_of(n=8, ci=320, co=4, size=(64, 64), padding=1)
UNET_128 = problem_of(n=2, ci=320, co=4, size=(128, 128), padding=1)
AUDIO = problem_of(n=8, ci=64, co=1, size=(24000,), taps=(7,), padding=3)
FLOW = problem_of(n=4, ci=128, co=2, size=(96, 320), taps=(3, 3), padding=2, dilation=2)


def dense(problem):
    return case_of(KN2ROW, problem).strides_of_x


def refusals(problem, x_strides=None):
    case = case_of(KN2ROW, problem, x_strides=x_strides)
    return [each.text for each in KN2ROW.refusals(case, H200)]


# --- who computes what --------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(40))
def test_every_output_is_computed_once(number):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=150)
    config = draw_config(rng)
    schedule = Schedule.make(config, problem)
    beside = (problem.filter_size[-1] - 1) * problem.dilation[-1]
    assert 1 <= schedule.segment <= config.block_m - beside
    # As the kernel has it.
    out_h, out_w = (1, *problem.output_size)[-2:]
    dilation = problem.dilation[0] if problem.dims == 2 else 1
    seen: Counter[tuple[int, int, int]] = Counter()
    for number in range(schedule.programs):
        if problem.dims == 2:
            rest, segment = divmod(number, schedule.segments)
            rest, strip = divmod(rest, schedule.strips)
            image, residue = divmod(rest, dilation)
            first = residue + strip * config.rows * dilation
            rows = range(first, min(out_h, first + config.rows * dilation), dilation)
            assert len(rows) + problem.filter_size[0] - 1 <= schedule.steps
            places = [(row, segment) for row in rows]
        else:
            image, strip = divmod(number, schedule.strips)
            first = strip * config.rows
            places = [(0, s) for s in range(first, min(schedule.segments, first + config.rows))]
            assert len(places) <= schedule.steps
        for row, segment in places:
            begin = segment * schedule.segment
            seen.update((image, row, w) for w in range(begin, min(out_w, begin + schedule.segment)))
    assert set(seen.values()) == {1}
    assert len(seen) == problem.batch * out_h * out_w


def test_pixels_lie_on_boundaries_of_loads():
    small = problem_of(ci=8, co=3, size=(4, 4))
    text = "pixels of x are not on boundaries of 16 bytes, the length of a load"
    assert refusals(VAE) == []
    assert refusals(problem_of(ci=20, co=3)) == [text]
    assert refusals(small, (0, 1, 32, 8)) == []
    # An expanded tensor, and channels that are apart.
    assert refusals(replace(small, batch=2), (0, 1, 32, 8)) == [text]
    assert refusals(small, (256, 2, 64, 16)) == [text]


# --- the choice ---------------------------------------------------------------------------------


def kind_chosen(problem, dtype=HALF, **layout):
    case = Case(direction="fprop", problem=problem, dtype=dtype, **layout)
    return planner.cheapest(case, H200).family.kind


def test_what_is_chosen():
    with assumed_device(H200):
        for problem in (VAE, VAE_512):
            plan = plan_fprop(problem, dense(problem), HALF, META)
            assert isinstance(plan.config, Col2ImConfig)
            assert plan.config == configs_of(KN2ROW, problem)[0]
        # Not by so much faster that a model which was not measured is believed.
        for problem in (UNET, UNET_128):
            assert not isinstance(
                plan_fprop(problem, dense(problem), HALF, META).config, Col2ImConfig
            )
    assert kind_chosen(VAE, dtype=torch.bfloat16) == "col2im"
    assert kind_chosen(VAE, dtype=torch.float32) != "col2im"
    assert kind_chosen(VAE, x_strides=(*dense(VAE)[:3], 129)) != "col2im"
    # One tap: nothing is read twice.
    one = problem_of(ci=128, co=3, size=(1024, 1024), taps=(1, 1))
    assert kind_chosen(one) != "col2im"
    three = problem_of(ci=16, co=3, size=(4, 4, 4), taps=(3, 3, 3))
    (found,) = map(str, KN2ROW.refusals(case_of(KN2ROW, three), H200))
    assert found == "3 dimensions: expected 1 or 2"


def test_a_tables_choice_is_for_loads_of_16_bytes(monkeypatch):
    config = Col2ImConfig(block_m=64, rows=34)
    monkeypatch.setattr("triton_ext.ops.core.planner.find", lambda *_: config)
    planner.make_plan.cache_clear()
    image, channel, _, _ = dense(UNET)
    with assumed_device(H200):
        plan = plan_fprop(UNET, (image, channel, 328 * 64, 328), HALF, META)
        assert isinstance(plan.config, Col2ImConfig)
        # As where nothing was measured.
        with pytest.raises(DescriptorError, match=r"stride of dim 2 .* is 648 bytes"):
            plan_fprop(UNET, (image, channel, 324 * 64, 324), HALF, META)
    planner.make_plan.cache_clear()


def test_a_tuner_tries_it():
    first, *rest = tuning.candidates(VAE, "fprop", HALF, H200)
    assert first == configs_of(KN2ROW, VAE)[0]
    assert any(not isinstance(config, Col2ImConfig) for config in rest)
    first, *rest = tuning.candidates(UNET, "fprop", HALF, H200)
    assert not isinstance(first, Col2ImConfig)
    assert configs_of(KN2ROW, UNET)[0] in rest
    wide = problem_of(n=8, ci=128, co=128, size=(28, 28), padding=1)
    for config in tuning.candidates(wide, "fprop", HALF, H200):
        assert not isinstance(config, Col2ImConfig)
    for config in configs_of(KN2ROW, VAE):
        assert not KN2ROW.refusals(case_of(KN2ROW, VAE), H200, config)
    assert tuning.candidates(replace(VAE, batch=0), "fprop", HALF, H200) == []


# --- what is compiled ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "dtype"),
    [(VAE, torch.float16), (UNET, torch.bfloat16), (AUDIO, torch.float16), (FLOW, torch.float16)],
    ids=["vae", "unet", "audio", "dilated"],
)
def test_pixels_are_loaded_once(problem, dtype, tmp_path, fresh_triton_cache):
    config = configs_of(KN2ROW, problem)[0]
    (kernel,) = compiled(KN2ROW, config, problem, dtype)
    ptx = kernel.asm["ptx"]
    block_k = min(64, problem.in_channels)
    parts = problem.in_channels // block_k
    vectors = config.block_m * block_k * parts // 8 // (32 * config.num_warps)
    loop = kernel.asm["ttgir"].split("scf.for", 1)[1]
    copied = len(re.findall(r"\bcp\.async\.cg\.shared\.global", ptx))
    if config.num_stages == 1:
        assert loop.count("tt.load") == parts
        assert copied == 0
    else:
        assert loop.count("ttg.async_copy_global_to_local") == parts
        assert copied == config.num_stages * vectors
    assert "ld.global.b16" not in ptx
    assert len(re.findall(r"wgmma\.mma_async", ptx)) == (
        problem.filter_size[0] if problem.dims == 2 else 1
    ) * parts * (config.block_m // 64) * (block_k // 16)
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"
    assert kernel.metadata.shared <= config.smem_bytes(Kn2RowShape.of(case_of(KN2ROW, problem)))


def test_filters_stay_where_rows_are_prefetched(fresh_triton_cache):
    config = Col2ImConfig(block_m=64, rows=16)
    (kernel,) = compiled(KN2ROW, config, VAE)
    before, loop = kernel.asm["ttgir"].split("scf.for", 1)
    assert before.count("ttg.local_alloc") == 6
    assert loop.count("ttg.local_alloc") == 2


# --- run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_drawn_in_the_emulator(number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch)
    rng = random.Random(number)
    # The emulator knows no erf.
    activations = tuple(name for name in ACTIVATIONS if name != "gelu")
    case = draw(rng, pixels=12, activations=activations)
    # The emulator does not carry out cp.async.
    check(case, config=replace(draw_config(rng), num_stages=1))
