"""wgrad of examples/gluon/hopper without a GPU: configurations, partition, choice, code."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import re
import sys

import pytest
from cubin_resources import resources
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext.errors import DescriptorError
from triton_ext.host import capabilities

torch = pytest.importorskip("torch", reason="the examples' launchers need torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

# The examples are not installed; they are imported from the root of the checkout.  E402: hosts
# without im2col cannot import them.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from problem_cases import segments_of  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton_ext.ops.core.case import Case  # noqa: E402
from triton_ext.ops.core.device import KNOWN, RESERVED_BYTES  # noqa: E402
from triton_ext.ops.core.problem import ConvProblem  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import (  # noqa: E402
    CONFIGS,
    GLUON_WGRAD,
    MOST_ADDED_PARTS,
    WgradTileChoice,
    WgradTileConfig,
    tile_refusals,
)
from triton_ext.ops.kernels.gemm_wgrad import Partition, WgradTiles  # noqa: E402

from examples.gluon.hopper import wgrad  # noqa: E402

H200 = KNOWN["h200"]
SQUARE = WgradTileConfig(main_blocks=2, stages=6, store_buffers=2)
SHARED_ROWS = WgradTileConfig(
    share="rows", main_blocks=4, rest_blocks=1, rest_consumers=1, pixels=32, stages=5
)
SHARED_TILE = WgradTileConfig(share="tile", main_blocks=2, rest_blocks=1, pixels=32, stages=6)


def problem(pixels: int, co: int, ci: int, taps: int) -> ConvProblem:
    """A 1-D convolution of so many output pixels."""
    return ConvProblem(
        batch=1,
        in_channels=ci,
        out_channels=co,
        input_size=(pixels,),
        filter_size=(taps,),
        stride=(1,),
        padding=((taps // 2, taps // 2),),
        dilation=(1,),
    )


def ranked(problem: ConvProblem, num_sms: int) -> list[WgradTiles]:
    """The tiles of the shipped configurations, the model's choice first."""
    case = Case(direction="wgrad", problem=problem, dtype=torch.float16)
    choices = GLUON_WGRAD.candidates(case, dataclasses.replace(H200, num_sms=num_sms))
    return [choice.tiles(problem, num_sms) for choice in choices]


def chosen(pixels: int, co: int, ci: int, taps: int, num_sms: int = 132) -> WgradTiles:
    return ranked(problem(pixels, co, ci, taps), num_sms)[0]


# ---- Configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_shipped_configurations_can_run(config):
    assert not config.refusals()


def test_names_tell_configurations_apart():
    assert len({str(config) for config in CONFIGS}) == len(CONFIGS)


def test_what_a_tile_consists_of():
    assert (SQUARE.row_blocks, SQUARE.column_blocks) == (2, 2)
    assert (SQUARE.x_blocks, SQUARE.dy_blocks) == (2, 2)
    # 6 stages of 4 blocks of 64 x 64, 2 x 2 staging buffers of 64 x 64, 16 bits; two barriers each.
    assert SQUARE.smem_bytes == 6 * (4 * 8192 + 16) + 4 * 8192
    # One consumer has 4 + 1 blocks of columns, the other 4: the 9 taps of a 3x3 filter.
    assert (SHARED_ROWS.row_blocks, SHARED_ROWS.column_blocks) == (1, 9)
    assert SHARED_ROWS.accumulators(0) == (range(4), range(8, 9))
    assert SHARED_ROWS.accumulators(1) == (range(4, 8),)
    # Each consumer has 32 pixels of its own of 1 + 3 blocks.
    assert (SHARED_TILE.row_blocks, SHARED_TILE.column_blocks) == (1, 3)
    assert SHARED_TILE.step_pixels == 64
    assert SHARED_TILE.stage_bytes == 2 * 4 * 32 * 64 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"consumers": 4}, "consumers is 4: expected 1 to 3"),
        ({"main_blocks": 3}, "main_blocks is 3: expected a power of two from 1 to 4"),
        ({"rest_blocks": 3}, "rest_blocks is 3"),
        (
            {"share": "rows", "rest_consumers": 3},
            "rest_consumers is 3: expected 0 to 0, with 0 res",
        ),
        (
            {"share": "rows", "rest_blocks": 1, "rest_consumers": 3},
            "rest_consumers is 3: expected 1 to 2, with 1 rest_blocks of 2 consumers",
        ),
        ({"share": "rows", "rest_blocks": 1}, "rest_consumers is 0: expected 1 to 2"),
        ({"pixels": 48}, "pixels is 48: expected a power of two from 16 to 128"),
        ({"stages": 1}, "stages is 1"),
        ({"stages": 7}, "B of shared memory, a CTA has 232448"),
        ({"consumers": 3, "main_blocks": 4, "stages": 2, "rest_blocks": 1}, "of a thread's 152"),
    ],
)
def test_what_cannot_run_is_named(change, message):
    config = dataclasses.replace(SQUARE, **change)
    assert any(message in str(problem) for problem in config.refusals()), config.refusals()


def test_a_shared_tile_must_be_split_and_added_by_the_second_kernel():
    shared = WgradTileChoice(config=SHARED_TILE)
    whole = shared.tiles(problem(4096, 1024, 64 * 1024, 1), 132)
    assert [*map(str, tile_refusals(whole))] == [
        "consumers share a tile, and 5472 tiles are not split"
    ]
    shared = dataclasses.replace(shared, add_in_place=True)
    in_place = shared.tiles(problem(4096, 64, 64, 9), 132)
    (found,) = map(str, tile_refusals(in_place))
    assert found == "consumers that share a tile leave adding to the second kernel"


# ---- Partition ---------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    tiles=st.integers(1, 500),
    steps=st.integers(1, 80),
    num_sms=st.integers(1, 140),
    most_splits=st.integers(1, 140),
)
def test_every_step_of_every_tile_has_one_cta(tiles, steps, num_sms, most_splits):
    partition = Partition.make(tiles, steps, num_sms, most_splits=most_splits)
    assert 1 <= partition.programs <= num_sms
    assert 1 <= partition.splits <= most_splits
    owners: dict[int, list[tuple[int, range]]] = {}
    busiest = 0
    for cta in range(partition.programs):
        own = list(segments_of(partition, cta))
        assert all(part for _, part in own), "an empty segment would leave a barrier waiting"
        busiest = max(busiest, sum(len(part) for _, part in own))
        for tile, part in own:
            owners.setdefault(tile, []).append((cta, part))
    assert sorted(owners) == list(range(tiles))
    for tile, parts in owners.items():
        # In the order of the CTAs, so that a CTA waits only for those that started before it.
        assert [step for _, part in parts for step in part] == list(range(steps))
        if tile >= partition.waves * partition.programs:
            first = tile - partition.waves * partition.programs
            numbers = [cta for cta, _ in parts]
            assert numbers == [first + k * partition.rest for k in range(partition.splits)]
        else:
            assert len(parts) == 1
    assert busiest == partition.most_steps


def test_neighbours_have_the_same_steps():
    # 9 tiles on 132 multiprocessors: 14 parts each, and groups of 9 CTAs with the same pixels.
    partition = Partition.make(9, 392, 132)
    assert (partition.programs, partition.splits) == (126, 14)
    for cta in range(0, 126, 9):
        group = [list(segments_of(partition, cta + i)) for i in range(9)]
        assert len({part for ((_, part),) in group}) == 1
        assert [tile for ((tile, _),) in group] == list(range(9))


# ---- Choice ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    pixels=st.integers(1, 1 << 22),
    co=st.integers(1, 512).map(lambda n: 8 * n),
    ci=st.integers(1, 512).map(lambda n: 8 * n),
    taps=st.sampled_from((1, 3, 9, 25, 27)),
    num_sms=st.sampled_from((1, 78, 114, 132)),
)
def test_a_plan_for_every_convolution(pixels, co, ci, taps, num_sms):
    plan = chosen(pixels, co, ci, taps, num_sms)
    assert not tile_refusals(plan)
    assert plan.config in CONFIGS
    blocks = math.ceil(co / 64) * taps * math.ceil(ci / 64)
    config = plan.config
    assert plan.partition.tiles * config.row_blocks * config.column_blocks >= blocks
    assert plan.partition.steps * config.step_pixels >= pixels
    if plan.add_in_place:
        assert plan.split_tiles
        assert plan.parts <= MOST_ADDED_PARTS
    # The workspace never grows with the convolution: one part per consumer and CTA.
    assert plan.slots <= num_sms * config.pixel_groups


def test_what_the_choice_knows():
    def name(*sizes: int) -> str:
        return str(chosen(*sizes))

    # Few channels and long reductions: consumers share a tile, 44 CTAs and 2 parts of each.
    assert name(100352, 64, 64, 9) == "yx64x192_p2_n128+64_p32_s6_e1_k88"
    # 3 parts of 128x128 tiles, added in place.
    assert name(6272, 256, 256, 9) == "yx128x128_r2_n128_p64_s6_e2_a3"
    # 320 channels: two accumulators.
    assert "n256+64" in name(32768, 320, 320, 9)
    # Enough tiles: nothing is split.
    assert name(2048, 1280, 1280, 9) == "yx128x128_r2_n128_p64_s6_e2"


def test_all_plans_differ():
    found = [str(tiles) for tiles in ranked(problem(6272, 256, 256, 9), 132)]
    assert len(found) == len(set(found)) > len(CONFIGS)


# ---- Compiled code -----------------------------------------------------------------------------


def fast(configs: tuple[WgradTileConfig, ...], *indices: int) -> list[object]:
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


@pytest.mark.parametrize("config", fast((*CONFIGS, SHARED_ROWS), 0, 10))
def test_compiled_code(config, fresh_triton_cache, tmp_path):
    compiled = wgrad.compile_conv_wgrad(config)
    ptx = compiled.asm["ptx"]
    assert compiled.metadata.shared <= config.smem_bytes + RESERVED_BYTES
    loads = len(re.findall(r"cp\.async\.bulk\.tensor\.4d\S*\.im2col", ptx))
    assert loads == config.x_blocks * config.pixel_groups
    wide: dict[int, int] = {}
    for consumer in range(config.consumers):
        for blocks in config.accumulators(consumer):
            width = 64 * len(blocks)
            wide[width] = wide.get(width, 0) + config.pixels // 16
    for width, count in wide.items():
        assert len(re.findall(rf"wgmma\.mma_async\S*m64n{width}k16\S*f16\.f16", ptx)) == count
    # Both operands are read transposed.
    assert len(re.findall(r"%p\d+, 1, 1, 1, 1;", ptx)) == sum(wide.values())
    # Parts: 16 bytes per thread.  The only atomics are flags.
    parts = config.consumers * config.column_blocks * 64 * 64 // 128 // 4
    if config.share == "rows":
        parts = config.column_blocks * 64 * 64 // 128 // 4
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == parts
    atomics = {name.rsplit(".", 2)[1] for name in re.findall(r"\b(?:atom|red)\.global\S*", ptx)}
    assert atomics == {"exch", "cas"}
    assert "setmaxnreg.inc" in ptx
    used = resources(compiled.asm["cubin"], tmp_path)
    # Beside 96 accumulators of 152 registers, or 192 of 232, a few values are spilled, once a tile.
    allowed_stack = 32 if config.consumers == 3 or config.accumulator_registers > 160 else 0
    assert used["LOCAL"] == 0
    assert used["STACK"] <= allowed_stack, "registers were spilled"


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_every_rank_from_one_text(rank, fresh_triton_cache):
    config = WgradTileConfig(consumers=1, main_blocks=1, stages=4)
    ptx = wgrad.compile_conv_wgrad(config, rank=rank, dtype=gl.bfloat16).asm["ptx"]
    im2col = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*\.im2col", ptx)
    assert im2col == ([] if rank == 2 else [str(rank)])
    assert "bf16.bf16" in ptx


@pytest.mark.parametrize("parts", [2, 14, 132])
@pytest.mark.parametrize("rows_from_x", [False, True])
def test_compiled_second_kernel(rows_from_x, parts, fresh_triton_cache):
    config = dataclasses.replace(SQUARE, rows_from_x=rows_from_x)
    ptx = wgrad.compile_reduce(config, parts).asm["ptx"]
    assert "griddepcontrol.wait" in ptx
    assert re.findall(r"ld\.global\S*", ptx)
    assert set(re.findall(r"ld\.global\S*", ptx)) == {"ld.global.v4.b32"}
    assert not re.findall(r"st\.global\.b16", ptx)


# ---- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "dy", "filter_size", "message"),
    [
        ((2, 8, 8, 64), (2, 8, 8, 60), (3, 3), "Co is 60: TMA needs rows of a multiple of 8"),
        ((2, 8, 8, 3), (2, 8, 8, 64), (3, 3), "Ci is 3"),
        ((2, 8, 8, 64), (3, 8, 8, 64), (3, 3), r"x is .* and dy .*: expected \[N"),
        ((2, 8, 8, 64), (2, 8, 64), (3, 3), r"x is .* and dy .*: expected \[N"),
        (
            (2, 8, 8, 64),
            (2, 8, 8, 64),
            (3, 3),
            "x is on cpu and dy on cpu: expected one GPU of sm_90, or",
        ),
    ],
)
def test_what_does_not_fit_is_refused(x, dy, filter_size, message):
    tensors = [torch.zeros(shape, dtype=torch.float16) for shape in (x, dy)]
    with pytest.raises(DescriptorError, match=message):
        wgrad.conv_wgrad(*tensors, filter_size, padding=1)


def test_a_transposed_gradient_is_refused():
    x = torch.zeros(2, 8, 8, 64, dtype=torch.float16)
    with pytest.raises(DescriptorError, match="dy must be contiguous"):
        wgrad.conv_wgrad(x, x.transpose(1, 2), (3, 3), padding=1)
