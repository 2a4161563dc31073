"""The Gluon kernels of the gradient of the filter: when they are chosen, results, registers.

They run in the emulator, as a plan launches them, against autograd in float64.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace

import pytest

pytest.importorskip("numpy", reason="the emulator needs numpy, which is not installed")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from planned import plan_wgrad, ranking_of  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core import planner  # noqa: E402

GLUON = capabilities()["im2col-gluon"]
if not GLUON.available:
    pytest.skip(GLUON.reason, allow_module_level=True)

from cubin_resources import resources  # noqa: E402
from dgrad_cases import CONV, draw  # noqa: E402
from problem_cases import channels_last, problem_of  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton_ext import ops  # noqa: E402
from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402
from triton_ext.ops.core import dispatch_cache  # noqa: E402
from triton_ext.ops.core.case import Case  # noqa: E402
from triton_ext.ops.core.device import (  # noqa: E402
    RESERVED_BYTES,
    SMEM_BYTES,
    Device,
)
from triton_ext.ops.core.launcher import compiling  # noqa: E402
from triton_ext.ops.core.tables import (  # noqa: E402
    decode,
    encode,
    kind_of,
    lookup,
)
from triton_ext.ops.families import gluon_wgrad  # noqa: E402
from triton_ext.ops.families.gluon import DTYPES  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import CONFIGS as CONFIGS_OF_MODEL  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import (  # noqa: E402
    WgradTileChoice,
    WgradTileConfig,
)
from triton_ext.ops.families.partial_im2col import PackedConfig  # noqa: E402
from triton_ext.ops.families.wgrad import WgradChoice  # noqa: E402
from triton_ext.ops.kernels import gluon_wgrad as kernels  # noqa: E402
from triton_ext.ops.tuning.measure import target_only  # noqa: E402
from triton_ext.ops.tuning.runs import candidates  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
COPIES = capabilities()["im2col-copies"]
needs_copies = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)
H200 = Device(132, (9, 0), SMEM_BYTES)
SMALL = Device(3, (9, 0), SMEM_BYTES)
CPU, META = torch.device("cpu"), torch.device("meta")
HALF = torch.float16

CONFIGS = (
    WgradTileConfig(main_blocks=2, stages=3, store_buffers=2),
    WgradTileConfig(
        share="rows", main_blocks=2, rest_blocks=1, rest_consumers=1, pixels=32, stages=3
    ),
    WgradTileConfig(main_blocks=2, stages=4, rows_from_x=True),
    WgradTileConfig(consumers=1, main_blocks=1, stages=3),
)
SHARED_TILE = WgradTileConfig(share="tile", main_blocks=2, rest_blocks=1, pixels=32, stages=3)
# 3 CTAs have a whole tile each, and split a fourth one into 3 parts.
SPLIT = problem_of(n=2, ci=72, co=72, size=(7, 9), taps=(1, 1), padding=1)

NAMES = ("conv_wgrad_kernel", "reduce_kernel")
KERNELS = {name: getattr(kernels, name) for name in NAMES}


@pytest.fixture(autouse=True)
def hopper_with_three_multiprocessors(fresh_triton_cache, monkeypatch):
    """Plans are made for a small Hopper, and the Gluon kernels launched in the emulator."""
    for name, kernel in KERNELS.items():
        monkeypatch.setattr(kernels, name, xnv.emulated(kernel))
    monkeypatch.setattr(planner, "device_of", lambda device, operator: SMALL)
    planner.make_plan.cache_clear()
    yield
    planner.make_plan.cache_clear()


def reference(problem, x, dy):
    """The gradient as autograd gives it, in float64; padding is done in front of it."""
    weight = torch.zeros(problem.w_shape, dtype=torch.float64, requires_grad=True)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.double(), sides)
    walk = (problem.stride, 0, problem.dilation, problem.groups)
    y = CONV[problem.dims](padded, weight, None, *walk)
    (dw,) = torch.autograd.grad(y, weight, dy.double())
    return dw


def operands(problem, dtype):
    return channels_last(problem.x_shape, dtype, 1), channels_last(problem.y_shape, dtype, 2)


def plan_of(problem, x, dy, choice=None, **options):
    strides = (x.stride(), dy.stride())
    return plan_wgrad(problem, *strides, x.dtype, x.device, choice, **options)


def check(problem, dtype, choice, out_dtype=None):
    """Compares a result with the reference; returns it."""
    x, dy = operands(problem, dtype)
    plan = plan_of(problem, x, dy, choice, out_dtype=out_dtype)
    assert isinstance(plan.config, WgradTileConfig)
    out_dtype = out_dtype or dtype
    shape = problem.w_shape
    out = torch.full((shape[0], *shape[2:], shape[1]), torch.nan, dtype=out_dtype).movedim(-1, 1)
    assert plan.run(x, dy, out=out) is out
    expected = reference(problem, x, dy)
    largest = expected.abs().max().item()
    error = (out.double() - expected).abs().max().item()
    assert error <= torch.finfo(out_dtype).eps * largest + 1e-9
    return out


# ---- Results -----------------------------------------------------------------------------------


@needs_copies
@pytest.mark.parametrize("number", range(60 if NIGHTLY else 8))
def test_random_geometries(number):
    rng = random.Random(f"hopper {number}")
    problem = replace(
        draw(rng, most_flops=2e7),
        groups=1,
        in_channels=rng.choice((8, 48, 64, 104)),
        out_channels=rng.choice((8, 24, 64, 72, 136)),
    )
    choice = WgradTileChoice(config=CONFIGS[number % 4], add_in_place=rng.random() < 0.5)
    check(problem, rng.choice(DTYPES), choice, rng.choice((None, *DTYPES)))


@pytest.mark.parametrize("in_place", [False, True], ids=["second kernel", "in place"])
def test_one_tap_reads_a_matrix(in_place):
    problem = problem_of(n=2, ci=72, co=80, size=(7, 9), taps=(1, 1))
    choice = WgradTileChoice(config=CONFIGS[0], add_in_place=in_place)
    x, dy = operands(problem, HALF)
    plan = plan_of(problem, x, dy, choice)
    (_, (x_desc, *_)), *_ = plan.launches(x, dy, torch.empty(80, 1, 1, 72, dtype=HALF))
    assert x_desc.shape == [2 * 7 * 9, 72]
    assert plan.tiles.split_tiles
    first = check(problem, HALF, choice)
    assert torch.equal(first.view(torch.int16), check(problem, HALF, choice).view(torch.int16))
    # What is not channels-last, or has other gaps between pixels, is copied or walked.
    wide = torch.full((2, 7, 9, 88), torch.nan, dtype=HALF)
    wide[..., :72] = x.movedim(1, -1)
    plan = plan_of(problem, wide[..., :72].movedim(-1, 1), dy.contiguous(), choice)
    assert torch.equal(plan.run(wide[..., :72].movedim(-1, 1), dy.contiguous()), first)


FIVE_BLOCKS = [config for config in CONFIGS_OF_MODEL if config.rest_consumers]


@needs_copies
@pytest.mark.parametrize("config", FIVE_BLOCKS, ids=str)
def test_tiles_of_five_blocks_fit_one_round_and_are_tried(config):
    assert config.row_blocks * config.column_blocks == 5
    wide, narrow = 3072, 768
    ci, co = (narrow, wide) if config.rows_from_x else (wide, narrow)
    problem = problem_of(n=64, ci=ci, co=co, size=(7, 7), taps=(1, 1))
    choice = WgradTileChoice(config=config)
    partition = choice.tiles(problem, H200.num_sms).partition
    assert (partition.tiles, partition.programs, partition.most_steps) == (120, 120, 49)
    # Expected last of what is tried: the model does not choose it by itself.
    found = candidates(problem, "wgrad", HALF, H200, count=8)
    assert choice in found[1:]
    check(problem_of(n=2, ci=336, co=72, size=(5, 7), taps=(1, 1)), HALF, choice)


@needs_copies
@pytest.mark.parametrize("in_place", [False, True], ids=["second kernel", "in place"])
def test_whole_tiles_and_parts_have_the_same_bits_in_every_order(in_place):
    choice = WgradTileChoice(config=CONFIGS[3], add_in_place=in_place)
    x, dy = operands(SPLIT, HALF)
    partition = plan_of(SPLIT, x, dy, choice).tiles.partition
    assert (partition.waves, partition.rest, partition.splits) == (1, 1, 3)
    first = check(SPLIT, HALF, choice)
    for seed in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            for name, kernel in KERNELS.items():
                patch.setattr(kernels, name, xnv.emulated(kernel, seed=seed))
            planner.make_plan.cache_clear()
            assert torch.equal(check(SPLIT, HALF, choice), first)


@needs_copies
def test_consumers_that_share_a_tile():
    problem = problem_of(n=2, ci=64, co=48, size=(6, 7), taps=(1, 3), padding=1)
    check(problem, torch.bfloat16, WgradTileChoice(config=SHARED_TILE))


@needs_copies
def test_an_out_that_is_not_channels_last_is_copied_into():
    x, dy = operands(SPLIT, HALF)
    plan = plan_of(SPLIT, x, dy, WgradTileChoice(config=CONFIGS[0]))
    out = torch.full(SPLIT.w_shape, torch.nan, dtype=HALF)
    assert plan.run(x, dy, out=out) is out
    assert torch.equal(out, plan.run(x, dy))
    with pytest.raises(ValueError, match=r"out: expected \[72, 72, 1, 1\] of torch.float16"):
        plan.run(x, dy, out=out.float())


@needs_copies
def test_the_operator_reaches_it(monkeypatch):
    made = []

    def plan(self, *arguments):
        made.append(bind(self, *arguments))
        return made[-1]

    bind = gluon_wgrad.GluonWgrad.bind
    monkeypatch.setattr(gluon_wgrad.GluonWgrad, "bind", plan)
    problem = problem_of(n=2, ci=64, co=128, size=(9, 9), padding=1)
    x, dy = operands(problem, HALF)
    dispatch_cache.clear()
    dw = ops.conv2d_weight(x, problem.w_shape, dy, padding=1)
    dispatch_cache.clear()
    assert len(made) == 1
    torch.testing.assert_close(dw.double(), reference(problem, x, dy), rtol=1e-3, atol=2e-2)


# ---- Choice ------------------------------------------------------------------------------------

WIDE = problem_of(n=8, ci=320, co=320, size=(64, 64), padding=1)


def chosen(monkeypatch, problem, dtype=HALF, choice=None, machine=H200, **options):
    """The configuration of a plan on another machine, for tensors without memory."""
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    x, dy = (torch.empty(s, dtype=dtype, device=META) for s in (problem.x_shape, problem.y_shape))
    order = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}[problem.dims]
    x, dy = x.contiguous(memory_format=order), dy.contiguous(memory_format=order)
    return plan_of(problem, x, dy, choice, **options).config


def test_the_models_choose_it(monkeypatch):
    assert isinstance(chosen(monkeypatch, WIDE), WgradTileConfig)
    assert isinstance(chosen(monkeypatch, WIDE, torch.bfloat16), WgradTileConfig)
    # Short 1x1 layers are the @triton.jit kernel's.
    short = problem_of(n=32, ci=1024, co=256, size=(14, 14), taps=(1, 1))
    assert not isinstance(chosen(monkeypatch, short), WgradTileConfig)
    # 8 of 64 channels: most of a tile lies beside dw.
    narrow = replace(WIDE, in_channels=8)
    assert not isinstance(chosen(monkeypatch, narrow), WgradTileConfig)


def test_what_it_does_not_take_is_the_other_kernels(monkeypatch):
    given = WgradTileChoice(config=CONFIGS[0])
    for problem, dtype, machine, options, message in (
        (replace(WIDE, groups=2), HALF, H200, {}, "groups=2, expected 1"),
        (replace(WIDE, in_channels=316), HALF, H200, {}, "Ci is 316, TMA needs rows"),
        (replace(WIDE, out_channels=12), HALF, H200, {}, "Co is 12, TMA needs rows"),
        (WIDE, HALF, H200, {"out_dtype": torch.float32}, "out_dtype is torch.float32"),
        (
            WIDE,
            HALF,
            Device(132, (10, 0), SMEM_BYTES),
            {},
            "WGMMA is an instruction of sm_90 alone",
        ),
        (replace(WIDE, batch=0), HALF, H200, {}, "the batch is empty"),
    ):
        config = chosen(monkeypatch, problem, dtype, machine=machine, **options)
        assert not isinstance(config, WgradTileConfig)
        with pytest.raises(UnsupportedError, match=f"wgrad: gluon_wgrad: .*{message}"):
            chosen(monkeypatch, problem, dtype, given, machine, **options)


def test_what_cannot_run_is_named(monkeypatch):
    for config, in_place, message in (
        (replace(CONFIGS[0], stages=1), False, "stages is 1: the producer needs at least 2"),
        (replace(CONFIGS[0], consumers=7), False, "consumers is 7: expected 1 to 3"),
        (SHARED_TILE, True, "leave adding to the second kernel"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            chosen(monkeypatch, WIDE, choice=WgradTileChoice(config=config, add_in_place=in_place))
    choice = WgradTileChoice(config=CONFIGS[0])
    with pytest.raises(UnsupportedError, match="does not take packed rows"):
        chosen(monkeypatch, replace(WIDE, in_channels=8), choice=PackedConfig(choice))


def test_hosts_without_it_take_the_other_kernel(monkeypatch):
    why = "Gluon of this Triton has no im2col loads"
    missing = {**capabilities(), "im2col-gluon": replace(GLUON, available=False, reason=why)}
    monkeypatch.setattr("triton_ext.ops.families.gluon.capabilities", lambda: missing)
    assert not isinstance(chosen(monkeypatch, WIDE), WgradTileConfig)
    with pytest.raises(UnsupportedError, match=why):
        chosen(monkeypatch, WIDE, choice=WgradTileChoice(config=CONFIGS[0]))


def test_the_tuner_sees_both_kernels():
    found = candidates(WIDE, "wgrad", HALF, H200)
    assert [type(each) for each in found[:2]] == [WgradTileChoice, WgradChoice]
    for choice in ranking_of("wgrad", WIDE, HALF, H200):
        assert decode(kind_of(choice), encode(choice)) == choice
    packed = candidates(problem_of(n=8, ci=8, co=64, size=(64, 64)), "wgrad", HALF, H200)
    inner = [each.config for each in packed if isinstance(each, PackedConfig)]
    assert inner
    assert all(isinstance(each, WgradChoice) for each in inner)


def test_a_measured_choice_goes_first(monkeypatch):
    table = {"choice": ranking_of("wgrad", WIDE, HALF, H200)[1]}
    monkeypatch.setattr(planner, "find", lambda case, machine: table["choice"])
    assert not isinstance(chosen(monkeypatch, WIDE), WgradTileConfig)
    table["choice"] = WgradTileChoice(config=CONFIGS[2])
    planner.make_plan.cache_clear()
    assert chosen(monkeypatch, WIDE) == CONFIGS[2]
    # One that cannot run here is passed over.
    table["choice"] = WgradTileChoice(config=replace(CONFIGS[2], stages=64))
    planner.make_plan.cache_clear()
    assert isinstance(chosen(monkeypatch, WIDE), WgradTileConfig)


def test_the_shipped_table_goes_before_the_models(monkeypatch, tmp_path):
    # Without a user's settings and tables.
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    lookup.forget()
    entries = lookup.entries("NVIDIA H200")
    kinds = {raw["kind"] for key, raw in entries.items() if key.startswith("wgrad ")}
    assert kinds >= {"wgrad", "gluon_wgrad"}
    machine, found = replace(H200, name="NVIDIA H200"), set()
    for batch, ci, co, size, taps in ((32, 64, 64, 56, 3), (128, 256, 1024, 14, 1)):
        problem = problem_of(
            n=batch, ci=ci, co=co, size=(size, size), taps=(taps, taps), padding=taps // 2
        )
        key = Case(direction="wgrad", problem=problem, dtype=HALF).key(machine.num_sms)
        config = decode(entries[key]["kind"], entries[key]["config"]).config
        assert chosen(monkeypatch, problem, machine=machine) == config
        found.add(type(config))
    assert len(found) == 2
    lookup.forget()


# ---- Compiled code -----------------------------------------------------------------------------


def compiled(monkeypatch, problem, dtype, choice):
    """The kernels of a plan, compiled for an H200 that need not be there."""
    for name, kernel in KERNELS.items():
        monkeypatch.setattr(kernels, name, kernel)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: H200)
    x, dy = (torch.empty(s, dtype=dtype, device=META) for s in (problem.x_shape, problem.y_shape))
    x, dy = (each.contiguous(memory_format=torch.channels_last) for each in (x, dy))
    plan = plan_of(problem, x, dy, choice)
    # What target_only sets is taken back with the patch.
    monkeypatch.setattr(driver, "_active", None)
    target_only(H200.capability)
    with compiling() as found:
        plan.run(x, dy)
    return found


# By default an accumulator of 256 columns beside one of 128, and consumers that share a tile.
@pytest.mark.parametrize("config", CONFIGS_OF_MODEL if NIGHTLY else CONFIGS_OF_MODEL[6::4], ids=str)
def test_kernels_of_a_plan_fit_the_registers(config, monkeypatch, tmp_path):
    # One tile along dy: an entry that becomes a constant.
    problem = problem_of(n=4, ci=64, co=64, size=(30, 31), stride=2, padding=1)
    made = compiled(monkeypatch, problem, torch.bfloat16, WgradTileChoice(config=config))
    # Beside 96 accumulators of 152 registers, or 192 of 232, a few values are spilled, once a tile;
    # the second kernel, which waits for memory, keeps two beside its parts (Triton 3.9).
    tight = config.consumers == 3 or config.accumulator_registers > 160
    for kernel, stack in zip(made, (32 if tight else 0, 8), strict=True):
        assert kernel.metadata.shared <= config.smem_bytes + RESERVED_BYTES
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["LOCAL"] == 0
        assert used["STACK"] <= stack, "registers were spilled"
    ptx = made[0].asm["ptx"]
    loads = re.findall(r"cp\.async\.bulk\.tensor\.4d\S*\.im2col", ptx)
    assert len(loads) == config.x_blocks * config.pixel_groups
