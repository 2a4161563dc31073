"""wgrad compiled without a GPU: instructions, registers, shared memory, for sm_90 and sm_100."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from cubin_resources import resources
from problem_cases import problem_of
from triton.runtime import driver
from triton_ext.host import capabilities
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import RESERVED_BYTES, SMEM_BYTES, Device
from triton_ext.ops.core.launcher import compiling
from triton_ext.ops.families.wgrad import (
    CONFIGS,
    WGRAD,
    WgradChoice,
    WgradConfig,
)
from triton_ext.ops.tuning.measure import (
    TargetOnlyDriver,
    make_tensors,
    target_only,
)

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
LATER = pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")

PROBLEM = problem_of(n=4, ci=256, co=256, size=(14, 14), padding=1)
SMALL = WgradConfig(block_co=64, block_ci=64, num_stages=4, num_warps=4)
# Multiprocessors for a number of tiles: one tile remains, none does, or there are 4 parts of each.
BOTH, WHOLE, PARTS = (lambda tiles: tiles - 1), (lambda tiles: tiles), (lambda tiles: 4 * tiles)


@pytest.fixture
def compiled(fresh_triton_cache, monkeypatch):
    """Returns the kernels of a plan, compiled for a GPU that need not be there."""

    def compiled(config, multiprocessors, capability=90, problem=PROBLEM, **types):
        case = Case(direction="wgrad", problem=problem, **{"dtype": torch.float16, **types})
        tiles = WgradChoice(config=config).tiles(problem, 1 << 20).partition.tiles
        device = Device(multiprocessors(tiles), (capability // 10, 0), SMEM_BYTES)
        plan = WGRAD.bind(WgradChoice(config=config), case, device)
        # target_only is undone with the patch.  Triton keeps compiled kernels by device number.
        monkeypatch.setattr(driver, "_active", None)
        monkeypatch.setattr(TargetOnlyDriver, "get_current_device", lambda self: capability)
        target_only(device.capability)
        with compiling() as kernels:
            plan.run(*make_tensors(case, torch.device("meta")))
        return kernels

    return compiled


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
def test_shipped_configurations(config, capability, compiled, tmp_path):
    kernel, _ = compiled(config, BOTH, capability)
    ptx, ttgir = kernel.asm["ptx"], kernel.asm["ttgir"]
    assert kernel.metadata.shared <= config.smem_bytes(2) + RESERVED_BYTES
    used = resources(kernel.asm["cubin"], tmp_path)
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


def test_loads_run_ahead_and_nothing_is_copied_between(compiled):
    ttgir = compiled(SMALL, PARTS)[0].asm["ttgir"]
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
def test_parts_leave_from_registers(num_warps, compiled):
    config = WgradConfig(block_co=128, block_ci=64, taps=2, num_stages=3, num_warps=num_warps)
    kernel, _ = compiled(config, PARTS)
    ptx = kernel.asm["ptx"]
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == config.accumulators // 4
    assert "st.shared.v" not in ptx
    assert kernel.metadata.shared <= config.smem_bytes() + RESERVED_BYTES


KINDS = {
    "pointers": {"problem": replace(PROBLEM, in_channels=60)},
    "groups": {"problem": replace(PROBLEM, groups=2)},
    "fp32": {"out_dtype": torch.float32},
    "bf16": {"dtype": torch.bfloat16},
    "matrix": {"problem": problem_of(n=4, ci=256, co=256, size=(14, 14), taps=(1, 1))},
    "1-D": {"problem": problem_of(n=4, ci=128, co=128, size=(200,), taps=(5,))},
    "3-D": {"problem": problem_of(n=4, ci=128, co=128, size=(6, 8, 8), taps=(3, 1, 2))},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "capability",
    [90, pytest.param(100, marks=(pytest.mark.slow, LATER))],
)
def test_every_kind_of_problem(kind, capability, compiled, tmp_path):
    options = KINDS[kind]
    kernel, _ = compiled(SMALL, BOTH, capability, **options)
    ptx = kernel.asm["ptx"]
    rank = options.get("problem", PROBLEM).dims + 2
    im2col = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*\.im2col", ptx)
    assert set(im2col) == (set() if kind == "matrix" else {str(rank)})
    through_tma = kind not in ("pointers", "groups")
    assert ("cp.async.bulk.tensor.3d.global" in ptx) == through_tma
    smem_bytes = SMALL.smem_bytes(4 if kind == "fp32" else 2, in_pieces=through_tma)
    assert kernel.metadata.shared <= smem_bytes + RESERVED_BYTES
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0


def test_several_taps_are_stored_in_pieces(compiled):
    config = replace(SMALL, taps=2, store_parts=2)
    ttgir = compiled(config, WHOLE)[0].asm["ttgir"]
    assert ttgir.count("async_tma_copy_local_to_global") >= config.taps * config.store_parts


def test_whole_tiles_alone_need_no_workspace(compiled):
    (kernel,) = compiled(SMALL, WHOLE)
    assert "st.global" not in kernel.asm["ptx"]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [64, 1024])
def test_the_reduction(channels, groups, compiled, tmp_path):
    problem = problem_of(n=4, ci=channels, co=channels, size=(7, 7), padding=1, groups=groups)
    _, kernel = compiled(replace(SMALL, taps=2), PARTS, problem=problem)
    ptx = kernel.asm["ptx"]
    # Of 16 rows a program has 64 columns and 4 warps, or 8 columns and one; all parts at once.
    per_thread = 8 if channels == 1024 else 4
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 4 * per_thread // 4
    assert "griddepcontrol.wait" in ptx
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0


def test_two_warps_of_rows_would_not_hold_a_block():
    assert "4 warps of 16 rows" in str(replace(SMALL, block_co=32).refusals()[0])
