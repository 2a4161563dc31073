"""Tile configurations of wgrad, who reduces what, and the choice of both.  Runs anywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from problem_cases import segments_of
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import KNOWN
from triton_ext.ops.core.loads import dram_us
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import smem_refusals
from triton_ext.ops.families.wgrad import (
    CONFIGS,
    MOST_PART_ROUNDS,
    WGRAD,
    WgradChoice,
    WgradConfig,
    expected_time,
    reduction_of,
    stores_through_tma,
)
from triton_ext.ops.kernels.gemm_wgrad import Partition

H200 = KNOWN["h200"]

partitions = (st.integers(1, 400), st.integers(1, 300), st.integers(1, 140), st.integers(1, 4))


@given(*partitions)
def test_every_step_of_every_tile_is_done_once(tiles, steps, num_sms, part_rounds):
    partition = Partition.make(tiles, steps, num_sms, part_rounds)
    assert 1 <= partition.programs <= num_sms
    done = {}
    for program in range(partition.programs):
        segments = list(segments_of(partition, program))
        assert segments, "a program has nothing to do"
        for tile, some in segments:
            assert len(some) > 0
            done.setdefault(tile, []).append(some)
    assert sorted(done) == list(range(tiles))
    for parts in done.values():
        ordered = sorted(parts, key=lambda part: part.start)
        assert [step for part in ordered for step in part] == list(range(steps))
    sums = [
        sum(len(some) for _, some in segments_of(partition, program))
        for program in range(partition.programs)
    ]
    assert partition.most_steps == max(sums)
    counts = [len(list(segments_of(partition, program))) for program in range(partition.programs)]
    assert partition.rounds == max(counts)


@given(*partitions)
def test_parts_fill_their_rounds(tiles, steps, num_sms, part_rounds):
    partition = Partition.make(tiles, steps, num_sms, part_rounds)
    assert partition.waves * partition.programs + partition.rest == tiles
    if partition.splits > 1:
        assert partition.slots <= part_rounds * num_sms
        assert (tiles - partition.rest) % num_sms == 0
        # One more part of each would not fit, or would be empty.
        more = partition.slots + partition.rest
        assert more > part_rounds * num_sms or partition.splits == steps


def test_more_rounds_of_parts_leave_fewer_multiprocessors_idle():
    # 45 tiles on 132 multiprocessors: 90 parts in one round, 225 in two, 495 in four.
    steps = [Partition.make(45, 1100, 132, rounds).most_steps for rounds in (1, 2, 4)]
    assert steps == [550, 440, 400]


def problem(**changes) -> ConvProblem:
    return ConvProblem(
        **{
            "batch": 32,
            "in_channels": 128,
            "out_channels": 128,
            "input_size": (28, 28),
            "filter_size": (3, 3),
            "stride": (1, 1),
            "padding": ((1, 1), (1, 1)),
            "dilation": (1, 1),
            **changes,
        }
    )


@st.composite
def problems(draw) -> ConvProblem:
    groups = draw(st.sampled_from([1, 1, 2, 3, 32, 60]))
    return problem(
        batch=draw(st.integers(1, 300)),
        in_channels=draw(st.integers(1, 300)) * groups,
        out_channels=draw(st.integers(1, 300)) * groups,
        input_size=tuple(draw(st.integers(5, 300)) for _ in range(2)),
        filter_size=tuple(draw(st.integers(1, 7)) for _ in range(2)),
        groups=groups,
    )


def case_of(problem, out_bytes=2):
    out_dtype = torch.float32 if out_bytes == 4 else None
    return Case(direction="wgrad", problem=problem, dtype=torch.float16, out_dtype=out_dtype)


def chosen(case, num_sms=132, out_bytes=2):
    """The tiles that the model expects to be fastest."""
    choice = next(iter(WGRAD.candidates(case_of(case, out_bytes), replace(H200, num_sms=num_sms))))
    return choice.tiles(case, num_sms)


def fits(tiles, case, out_bytes):
    """Whether a CTA of an H200 has the shared memory."""
    stored = out_bytes if tiles.partition.tiles > tiles.split_tiles else 0
    in_pieces = stores_through_tma(case, out_bytes)
    return not smem_refusals(tiles.config.smem_bytes(stored, in_pieces=in_pieces), H200)


@given(problems(), st.integers(1, 148), st.sampled_from([2, 4]))
def test_the_choice_fits_and_is_the_fastest(case, num_sms, out_bytes):
    tiles = chosen(case, num_sms, out_bytes)
    assert tiles.config in CONFIGS
    assert fits(tiles, case, out_bytes)
    others = [
        WgradChoice(config=config, part_rounds=rounds).tiles(case, num_sms)
        for config in CONFIGS
        for rounds in range(1, MOST_PART_ROUNDS + 1)
    ]
    device = replace(H200, num_sms=num_sms)
    read_us = dram_us(case_of(case), device)
    times = {
        each: expected_time(each, case, device, read_us)
        for each in (tiles, *others)
        if fits(each, case, out_bytes)
    }
    assert times[tiles].counted_us == min(each.counted_us for each in times.values())
    for expected in times.values():
        assert expected.us == pytest.approx(expected.counted_us)
        assert all(us > -1e-9 * expected.us for _, us in expected.parts), expected


@given(problems(), st.sampled_from(CONFIGS))
def test_blocks_of_input_channels_reach_every_group(case, config):
    tiles = WgradChoice(config=config).tiles(case, 132)
    blocks = tiles.partition.tiles // (tiles.co_tiles * math.ceil(case.taps / config.taps))
    group_co = case.out_channels // case.groups
    group_ci = case.in_channels // case.groups
    for co in range(case.out_channels):
        first = co // config.block_co * config.block_co // group_co * group_ci // 8 * 8
        group = co // group_co
        # What the kernel does in _tile_position.
        assert first <= group * group_ci
        assert (group + 1) * group_ci <= first + blocks * config.block_ci


def test_without_groups_there_are_as_many_tiles_as_blocks():
    config = WgradConfig(block_co=128, block_ci=64, taps=2, num_stages=2, num_warps=8)
    case = problem(in_channels=72, out_channels=300)
    tiles = WgradChoice(config=config).tiles(case, 132)
    # 3 blocks of output channels, 2 of input channels, 5 groups of taps: 4 parts each.
    assert tiles.partition == Partition(30, math.ceil(32 * 28 * 28 / 64), 120, 30, 4)
    assert tiles.workspace_elements == 120 * 128 * 64 * 2


def test_depthwise_groups_share_blocks():
    case = problem(in_channels=256, out_channels=256, groups=256)
    config = WgradConfig(block_co=64, block_ci=64, num_stages=2, num_warps=4)
    tiles = WgradChoice(config=config).tiles(case, 132)
    assert tiles.split_tiles == 4 * 9


def test_few_tiles_are_split_and_many_are_not():
    assert chosen(problem()).partition.splits > 4
    large = chosen(problem(in_channels=1280, out_channels=1280, input_size=(16, 16)))
    assert large.partition.waves > 0


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_shipped_configurations_are_possible(config):
    assert not config.refusals()
    assert not smem_refusals(config.smem_bytes(2), H200)
    # Beside some 35 registers for the rest, of 255.
    assert config.accumulators <= 192
    assert config.num_stages >= 3


def test_shared_memory_is_counted():
    config = WgradConfig(block_co=128, block_ci=256, num_stages=4, num_warps=8)
    pipeline = 4 * 64 * (128 + 256) * 2
    assert config.smem_bytes() == pipeline
    assert config.smem_bytes(2) == pipeline + 128 * 256 * 2
    assert not smem_refusals(config.smem_bytes(), H200)
    assert smem_refusals(config.smem_bytes(2), H200)
    halves = replace(config, store_parts=2)
    assert halves.smem_bytes(2) == pipeline + 128 * 256
    assert halves.smem_bytes(2, in_pieces=False) == pipeline + 128 * 256 * 2
    assert halves.smem_bytes(4) == pipeline + 128 * 256 * 2
    assert not smem_refusals(halves.smem_bytes(2), H200)
    three_taps = WgradConfig(block_co=64, block_ci=64, taps=3, num_stages=2, num_warps=4)
    assert three_taps.smem_bytes() == 2 * 64 * (64 + 3 * 64) * 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"block_ci": 48}, "block_ci is 48: expected a power of two from 16 to 256"),
        ({"num_warps": 2}, "num_warps is 2: expected a power of two from 4 to 8"),
        ({"num_warps": 8}, "block_co is 64: 8 warps of 16 rows need 128"),
        ({"taps": 10}, "taps is 10: expected 1 to 9"),
        ({"num_stages": 0}, "num_stages is 0: expected an int of at least 1"),
        ({"store_parts": 3}, "store_parts is 3: expected 1 to 2"),
    ],
)
def test_what_cannot_be_compiled_is_told(changes, text):
    config = WgradConfig(block_co=64, block_ci=64, num_stages=3, num_warps=4)
    assert not config.refusals()
    assert [*map(str, replace(config, **changes).refusals())] == [text]


def test_where_memory_is_the_limit_little_is_written():
    # 61 MiB of x and dy: 16 us from DRAM, while the products take 9.
    layer = problem(in_channels=256, out_channels=64, input_size=(56, 56), filter_size=(1, 1))
    tiles = chosen(layer)
    read_us = dram_us(case_of(layer), H200)
    assert read_us > 15
    # A fifteenth of what is read.  Tiles of 64x64 write half of it and would be faster: 64x128
    # takes 1.03 to 1.16 times as long over 3 layers to 64 channels (H100, bf16, 2026-11-27).
    assert tiles.workspace_elements * 4 <= read_us * H200.dram_bytes_per_us / 14


def test_memory_is_read_where_the_filter_is():
    layer = problem(in_channels=256, out_channels=512, input_size=(56, 56), filter_size=(1, 1))
    layer = replace(layer, batch=128, padding=((0, 0), (0, 0)))
    assert layer.pixels_read == 128 * 56**2
    strided = replace(layer, stride=(2, 2))
    assert strided.pixels_read == 128 * 28**2
    assert replace(strided, filter_size=(3, 3)).pixels_read == 128 * 56**2
    # 55.9 us on an H200 (fp16, 2026-11-22); 64x128, by all of x, took 83.1.
    # 128x256 takes 0.88 to 1.19 times as long as 128x128 over 12 layers with 1x1 filters, 1.00 for
    # 256 -> 1024 channels (H100, bf16, 2026-11-27).
    config = chosen(strided).config
    assert config.block_co == 128
    assert config.block_ci in (128, 256)


@given(problems(), st.sampled_from(CONFIGS))
def test_the_reduction_is_possible(case, config):
    tiles = WgradChoice(config=config).tiles(case, 132)
    columns, unroll, num_warps = reduction_of(tiles)
    assert columns in (8, 16, 32, 64)
    assert config.block_ci % columns == 0
    per_thread = 16 * columns // (32 * num_warps)
    assert per_thread % 4 == 0
    assert per_thread * unroll <= 64


def test_many_parts_of_few_tiles_are_added_by_many_programs():
    config = WgradConfig(block_co=64, block_ci=64, num_stages=4, num_warps=4)
    case = problem(in_channels=64, out_channels=64, filter_size=(1, 1))
    few = WgradChoice(config=config).tiles(case, 132)
    assert few.partition.splits == 132
    assert reduction_of(few) == (8, 16, 1)
