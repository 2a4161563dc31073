"""The compiled gradient of the input: what Triton makes of it, and what that computes.

The computing is done by the emulator, which runs the compiled kernel's TTGIR with its barriers and
asynchronous copies; registers and spills are those of the cubin.
"""

from __future__ import annotations

import math
import os
import pathlib
import random
import re
import subprocess
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="the emulator needs numpy, which is not installed")

import torch
import triton
import triton.language as tl
from compiled_gemm import TRITON_DTYPES, compile_conv_dgrad
from dgrad_cases import HALVES, draw, reference
from planned import plan_dgrad
from problem_cases import channels_last, problem_of
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.families.gemm_config import (
    DGRAD_CONFIGS,
    NARROW_COSTS,
    ConvConfig,
    OutputTile,
)
from triton_ext.ops.kernels import row_copy

IM2COL = capabilities()["im2col"]
COPIES = capabilities()["im2col-copies"]
emulated = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)
NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
pytestmark = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)

TOOLS = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin"


def resources(cubin: bytes, folder: pathlib.Path) -> dict[str, int]:
    """What cuobjdump says of the kernel: registers, stack and local memory in bytes."""
    if not (TOOLS / "cuobjdump").exists():
        pytest.skip("this Triton ships no cuobjdump")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}


later = (
    pytest.mark.slow,
    pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"),
)
FEW = {(10, 90, 1), (10, 90, 2), (4, 100, 1), (13, 90, 2)}
VARIANTS = [
    pytest.param(config, capability, stride, id=f"{i}-sm_{capability}-stride={stride}", marks=marks)
    for i, config in enumerate((*DGRAD_CONFIGS, *NARROW_COSTS))
    for capability in (90, 100)
    for stride in (1, 2)
    # Models offer nothing else.
    if config.fits(2, OutputTile(whole=capability >= 100 and stride == 1))
    for marks in [() if (i, capability, stride) in FEW else later]
]


@pytest.mark.parametrize(("config", "capability", "stride"), VARIANTS)
def test_compiles_and_fits(config, capability, stride, fresh_triton_cache, tmp_path):
    compiled = compile_conv_dgrad(
        config, capability, stride=(stride, stride), has_bias=True, store_through_tma=stride == 1
    )
    ptx = compiled.asm["ptx"]
    assert compiled.metadata.shared <= SMEM_BYTES
    loads = re.findall(r"cp\.async\.bulk\.tensor\.4d\S*\.im2col", ptx)
    # The first ones of the pipeline, and that of the loop.
    assert len(loads) >= config.num_stages
    assert ("wgmma.mma_async" if capability == 90 else "tcgen05.mma") in ptx
    stores = re.findall(r"cp\.async\.bulk\.tensor\.2d\.global\.shared", ptx)
    # On sm_100 the epilogue of the last tile is peeled.
    assert (len(stores) >= config.store_parts) == (stride == 1)
    if stride == 2:
        # 16 bytes per thread and store; bias and masks are loaded otherwise.
        assert re.search(r"st\.global\.v4\.b32", ptx)
        assert not re.search(r"st\.global\.(b16|v2\.b16|v4\.b16|b32|v2\.b32)", ptx)
    used = resources(compiled.asm["cubin"], tmp_path)
    # On sm_100 the peeled epilogue keeps addresses of two tiles: two configurations spill some.
    allowed = 80 if capability == 100 and stride == 2 else 0
    assert used["LOCAL"] == 0
    assert used["STACK"] <= allowed, "registers were spilled"


def test_fp32_is_multiplied_as_tf32(fresh_triton_cache):
    config = ConvConfig(block_m=128, block_n=128, block_k=32, num_stages=4, num_warps=4)
    compiled = compile_conv_dgrad(config, 90, dtype=tl.float32)
    products = set(re.findall(r"wgmma\.mma_async\S+|mma\.sync\S+", compiled.asm["ptx"]))
    assert products == {"wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32"}


@pytest.mark.parametrize("stride", [1, 2])
def test_the_steps_of_all_tiles_are_one_pipelined_loop(stride, fresh_triton_cache):
    config = ConvConfig(block_m=128, block_n=128, num_stages=4, num_warps=4)
    text = compile_conv_dgrad(
        config, 90, stride=(stride, stride), store_through_tma=stride == 1
    ).asm["ttgir"]
    # The last loop is the one of steps; with several classes one that counts them comes before.
    loops = [match.start() for match in re.finditer(r"scf\.for ", text)]
    assert len(loops) == stride
    body = text[loops[-1] :]
    for operation in (
        # A product is awaited when the next one has been started.
        r"warp_group_dot %.*isAsync = true",
        r"warp_group_dot_wait .*\{pendings = 1 : i32\}",
        r"async_tma_copy_global_to_local %dy_desc",
        # The epilogue is inside.
        r"async_tma_copy_local_to_global" if stride == 1 else r"tt\.store",
    ):
        assert len(re.findall(operation, body)) == 1, operation
    # The copies of three steps are under way before the loop.
    assert len(re.findall("async_tma_copy_global_to_local %dy_desc", text[: loops[-1]])) == 3


@pytest.mark.parametrize(
    ("taps", "stride", "dilation"), [((2,), (4,), (3,)), ((5, 2), (4, 3), (3, 3))], ids=str
)
def test_halves_of_registers_are_not_added(taps, stride, dilation, fresh_triton_cache):
    """ptxas 12.9 makes wrong code of some such additions: see HALVES."""
    config = ConvConfig(block_m=64, block_n=64, num_stages=7, num_warps=4)
    compiled = compile_conv_dgrad(
        config, 90, filter_size=taps, stride=stride, dilation=dilation, store_through_tma=False
    )
    assert not re.findall(r"\b(?:add|sub)\.[su]16x2", compiled.asm["ptx"])


# ---- In the emulator ---------------------------------------------------------------------------


def flat(values):
    """The entries of nested tuples, as the kernel's parameters are."""
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def emulate(monkeypatch, problem, config, dtype=torch.float16, programs=3, seed=0):
    """Runs the plan's kernel, compiled for sm_90, and compares it with torch in float64."""
    pytest.importorskip("triton_ext.emulator")
    from triton_ext.emulator import Program

    monkeypatch.setattr(planner, "device_of", lambda *_: Device(programs, (9, 0), SMEM_BYTES))
    monkeypatch.setattr(row_copy, "row_copy_kernel", xnv.emulated(row_copy.row_copy_kernel))
    dy, weight = channels_last(problem.y_shape, dtype, 1), channels_last(problem.w_shape, dtype, 2)
    groups = problem.groups
    ci, co = problem.in_channels // groups, problem.out_channels // groups
    row = 128 // dtype.itemsize
    config = replace(config, block_k=row if groups == 1 else math.gcd(co, row))
    planner.make_plan.cache_clear()
    plan = plan_dgrad(problem, dy.stride(), dtype, torch.device("cpu"), config)
    compiled = compile_conv_dgrad(
        plan.config, 90, filter_size=problem.filter_size, stride=problem.stride,
        dilation=problem.dilation, ci=ci, groups=groups, dtype=TRITON_DTYPES[dtype],
        store_through_tma=plan.outputs is not None,
    )  # fmt: skip
    grid, scalars = plan.launcher.grid, plan.launcher.scalars

    class Emulated:
        def launch(self, tensors):
            given = [tensor for tensor in tensors if tensor is not None]
            program = Program(compiled.asm["ttgir"])
            program.run(grid[:1], [*given, *flat(scalars)], seed)

    plan.launcher = Emulated()
    out = torch.full_like(channels_last(problem.x_shape, dtype, 0), float("nan"))
    dx, expected = plan.run(dy, weight, out=out), reference(problem, dy, weight)
    assert torch.isfinite(dx).all(), "part of the result was not written, or is poison"
    error = (dx.double() - expected).abs()
    # Products read 10 bits of an fp32 mantissa, and cut off the others.
    eps, sums = (2**-8, 5e-3) if dtype == torch.float32 else (torch.finfo(dtype).eps, 1e-4)
    allowed = expected.abs() * eps / 2 + expected.abs().mean() * sums
    assert (error <= allowed).all(), f"{(error - allowed).max()} too much"


CASES = {
    "stride 1": problem_of(n=2, ci=72, co=80, size=(9, 11), padding=1),
    "stride": problem_of(n=2, ci=72, co=80, size=(9, 11), stride=(2, 1), padding=((1, 1), (1, 0))),
    "classes without taps": problem_of(n=2, ci=72, co=80, size=(9, 11), taps=(1, 1), stride=2),
    "common divisor": problem_of(size=(12, 13), stride=(4, 2), dilation=(2, 4), padding=4),
    "groups": problem_of(n=2, ci=32, co=160, size=(9, 11), padding=1, groups=2),
    "1-D": problem_of(n=2, ci=24, co=64, size=(90,), taps=(5,), stride=3, padding=2),
    "3-D": problem_of(ci=24, co=64, size=(5, 6, 7), taps=(3, 3, 3), stride=(1, 2, 2), padding=1),
    "dilation 3, stride 4": HALVES[0],
}


@emulated
@pytest.mark.parametrize("name", CASES)
def test_it_equals_torch(name, monkeypatch, fresh_triton_cache):
    config = ConvConfig(block_m=64, block_n=64, num_stages=4, num_warps=4, group_size_m=2)
    emulate(monkeypatch, CASES[name], config)


@emulated
def test_it_equals_torch_in_fp32(monkeypatch, fresh_triton_cache):
    config = ConvConfig(block_m=64, block_n=64, num_stages=4, num_warps=4)
    emulate(monkeypatch, CASES["stride"], config, torch.float32)


@emulated
@pytest.mark.parametrize("config", NARROW_COSTS, ids=str)
def test_narrow_tiles_equal_torch(config, monkeypatch, fresh_triton_cache):
    ci = 3 if config.block_n == 16 else 24
    stride = 2 if config.block_m == 64 else 1
    problem = problem_of(n=2, ci=ci, co=72, size=(9, 11), stride=stride, padding=1)
    emulate(monkeypatch, problem, config)


@emulated
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 3))
def test_random_problems_equal_torch(number, monkeypatch, fresh_triton_cache):
    rng = random.Random(number)
    config = ConvConfig(
        block_m=rng.choice((64, 128)),
        block_n=rng.choice((16, 32, 64, 128)),
        num_stages=rng.randint(2, 5),
        num_warps=rng.choice((4, 8)),
        store_parts=rng.choice((1, 2)),
        group_size_m=rng.choice((1, 3, 8)),
        taps_inner=rng.random() < 0.5,
    )
    dtype = rng.choice((torch.float16, torch.bfloat16))
    emulate(monkeypatch, draw(rng, 1e8), config, dtype, rng.randint(1, 6), number)
