"""wgrad compiled without a GPU: instructions, registers, shared memory, for sm_90 and sm_100."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import triton.language as tl
from cubin_resources import resources
from triton_ext.host import capabilities
from triton_ext.ops.conv_wgrad import compile_conv_wgrad, compile_reduce
from triton_ext.ops.wgrad_config import (
    CONFIGS,
    Partition,
    Reduction,
    Store,
    WgradConfig,
    WgradTiles,
)

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
LATER = pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")

# mbarriers, and alignment.
RESERVED_BYTES = 1024
BOTH = Partition(40, 132, 264, 12, 11)
PARTS = Partition(40, 132, 0, 12, 11)
WHOLE = Partition(40, 132, 264, 0, 1)

SMALL = WgradConfig(block_co=64, block_ci=64, num_stages=4, num_warps=4)


def tiles_of(config: WgradConfig, partition: Partition) -> WgradTiles:
    return WgradTiles(config=config, co_blocks=2, partition=partition)


def each(capability: int, *quick: int) -> list[object]:
    """The shipped configurations; all but some are left to the nightly run: each takes 2 s."""
    return [
        pytest.param(
            config,
            capability,
            id=f"{config}-sm_{capability}",
            marks=() if i in quick else (pytest.mark.slow, LATER),
        )
        for i, config in enumerate(CONFIGS)
    ]


@pytest.mark.parametrize(("config", "capability"), [*each(90, 0, 9, 14, 16), *each(100, 10)])
def test_shipped_configurations(config, capability, fresh_triton_cache, tmp_path):
    compiled = compile_conv_wgrad(tiles_of(config, BOTH), capability)
    ptx, ttgir = compiled.asm["ptx"], compiled.asm["ttgir"]
    assert compiled.metadata.shared <= config.smem_bytes(Store()) + RESERVED_BYTES
    used = resources(compiled.asm["cubin"], tmp_path)
    # On sm_100 ptxas puts a few scalars of some configurations on the stack, at most 24 bytes.
    assert used["STACK"] <= (32 if capability == 100 else 0), "registers were spilled"
    assert used["LOCAL"] == 0
    # Two pipelined loops, whole tiles and parts: loads of dy, and of x for each tap.
    assert ttgir.count("async_tma_copy_global_to_local") >= 2 * (1 + config.taps)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.4d\S*\.im2col", ptx)) >= 2 * config.taps
    # Rows of dw are stored by TMA, in pieces.
    stores = config.taps * config.store_parts
    assert ttgir.count("async_tma_copy_local_to_global") >= stores
    if capability == 90:
        # Per loop and tap: 16 of the pixels at a time, 64 rows of each warp group.
        rows = config.block_co // 64 // (config.num_warps // 4)
        count = 2 * config.taps * config.block_pixels // 16 * rows
        # Both operands are transposed: their rows are the reduction.
        shape = f"m64n{config.block_ci}k16"
        found = re.findall(rf"wgmma\.mma_async\S*{shape}\S*f16\.f16.*?;", ptx, re.DOTALL)
        assert len(found) == count
        assert all(re.search(r"1, 1, 1, 1;$", text) for text in found)
    else:
        assert "tcgen05.mma" in ptx


def test_loads_run_ahead_and_nothing_is_copied_between(fresh_triton_cache):
    compiled = compile_conv_wgrad(tiles_of(SMALL, PARTS), 90)
    ttgir = compiled.asm["ttgir"]
    # The loop over steps is inside that over parts.
    begin = ttgir.rindex("scf.for", 0, ttgir.index("ttng.warp_group_dot "))
    loop = ttgir[begin : ttgir.index("scf.yield", begin)]
    assert loop.count("ttng.warp_group_dot ") == 1
    assert "pendings = 1" in loop
    assert loop.count("async_tma_copy_global_to_local") == 2
    for slow in ("local_store", "local_load", "convert_layout"):
        assert slow not in loop, slow
    # One load of each operand per stage but the last, in front of the loop.
    front = ttgir[:begin]
    assert front.count("async_tma_copy_global_to_local") == 2 * (SMALL.num_stages - 1)


@pytest.mark.parametrize("num_warps", [4, 8])
def test_parts_leave_from_registers(num_warps, fresh_triton_cache):
    config = WgradConfig(block_co=128, block_ci=64, taps=2, num_stages=3, num_warps=num_warps)
    compiled = compile_conv_wgrad(tiles_of(config, PARTS), 90)
    ptx = compiled.asm["ptx"]
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == config.accumulators // 4
    assert "st.shared.v" not in ptx
    assert compiled.metadata.shared <= config.smem_bytes(None) + RESERVED_BYTES


KINDS = [
    {"store_through_tma": False},
    {"store_through_tma": False, "is_grouped": True},
    {"out_dtype": tl.float32},
    {"dtype": tl.bfloat16},
    {"filter_size": (1, 1), "is_matrix": True},
    {"filter_size": (5,)},
    {"filter_size": (3, 1, 2)},
]


@pytest.mark.parametrize("options", KINDS, ids="-".join)
@pytest.mark.parametrize(
    "capability",
    [90, pytest.param(100, marks=(pytest.mark.slow, LATER))],
)
def test_every_kind_of_problem(options, capability, fresh_triton_cache, tmp_path):
    compiled = compile_conv_wgrad(tiles_of(SMALL, BOTH), capability, **options)
    ptx = compiled.asm["ptx"]
    rank = len(options.get("filter_size", (3, 3))) + 2
    im2col = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*\.im2col", ptx)
    assert set(im2col) == (set() if "is_matrix" in options else {str(rank)})
    bytes_out = 4 if options.get("out_dtype") == tl.float32 else 2
    store = Store(element_bytes=bytes_out, in_pieces=options.get("store_through_tma", True))
    assert compiled.metadata.shared <= SMALL.smem_bytes(store) + RESERVED_BYTES
    used = resources(compiled.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0


def test_whole_tiles_alone_need_no_workspace(fresh_triton_cache):
    compiled = compile_conv_wgrad(tiles_of(SMALL, WHOLE), 90)
    assert "st.global" not in compiled.asm["ptx"]


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("columns", [8, 64])
def test_the_reduction(columns, is_grouped, fresh_triton_cache, tmp_path):
    warps = max(1, columns // 16)
    reduction = Reduction(columns=columns, unroll=8, num_warps=warps)
    compiled = compile_reduce(
        tiles_of(replace(SMALL, taps=2), PARTS), reduction, 90, is_grouped=is_grouped
    )
    ptx = compiled.asm["ptx"]
    per_thread = 16 * columns // (32 * warps)
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 8 * per_thread // 4
    assert "griddepcontrol.wait" in ptx
    used = resources(compiled.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0


def test_two_warps_of_rows_would_not_hold_a_block():
    assert "4 warps of 16 rows" in replace(SMALL, block_co=32).problems()[0]
