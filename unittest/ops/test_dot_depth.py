"""Steps have as many channels as the installed Triton multiplies, in every direction."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
import triton
import triton.language as tl
from compiled_gemm import compile_conv_fprop
from family_plans import compiled, configs_of
from problem_cases import problem_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities, dots
from triton_ext.host.dots import least_dot_depth
from triton_ext.ops.core import packing, planner, refusals
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device, assumed_device
from triton_ext.ops.core.family import config_refusals
from triton_ext.ops.core.packing import channel_block, least_block
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families import gemm
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.patches import PATCHES
from triton_ext.ops.tuning.runs import candidates

IM2COL = capabilities()["im2col"]
needs_im2col = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
OF_8 = capabilities()["fp32-dots-of-8"]

H200 = Device(132, (9, 0), SMEM_BYTES)
META = torch.device("meta")
TILES = ConvConfig(block_m=128, block_n=64, num_stages=4, num_warps=4)
CASES = [(direction, dtype) for direction, dtypes in DTYPES.items() for dtype in dtypes]


@pytest.fixture(autouse=True)
def new_plans():
    """None that was made for another Triton than a test pretends, before it and behind it."""
    for forget in (False, True):
        planner.make_plan.cache_clear()
        if not forget:
            yield


@triton.jit
def product_kernel(a_ptr, b_ptr, y_ptr, DEPTH: tl.constexpr):
    rows, steps = tl.arange(0, 64), tl.arange(0, DEPTH)
    a = tl.load(a_ptr + rows[:, None] * DEPTH + steps[None, :])
    b = tl.load(b_ptr + steps[:, None] * 64 + rows[None, :])
    tl.store(y_ptr + rows[:, None] * 64 + rows[None, :], tl.dot(a, b))


@pytest.mark.parametrize("name", ["i8", "fp16", "fp32"])
def test_the_least_depth_is_what_triton_multiplies(name, fresh_triton_cache):
    bits = int(name.removeprefix("fp").removeprefix("i"))
    least = least_dot_depth(bits)

    def compiled(depth: int) -> object:
        y = "*i32" if name == "i8" else "*fp32"
        signature = {"a_ptr": f"*{name}", "b_ptr": f"*{name}", "y_ptr": y, "DEPTH": "constexpr"}
        source = ASTSource(product_kernel, signature, constexprs={"DEPTH": depth})
        return triton.compile(source, target=GPUTarget("cuda", 90, 32))

    assert "mma" in compiled(least).asm["ptx"]
    with pytest.raises(triton.CompilationError, match=f"K >= {least}"):
        compiled(least // 2)


def test_a_release_that_cannot_be_asked_gets_what_all_take(monkeypatch):
    import triton.backends.nvidia.compiler as compiler

    known = {bits: least_dot_depth(bits) for bits in (8, 16, 32)}
    monkeypatch.delattr(compiler, "min_dot_size")
    least_dot_depth.cache_clear()
    try:
        unknown = {bits: least_dot_depth(bits) for bits in known}
    finally:
        least_dot_depth.cache_clear()
    assert unknown == {8: 32, 16: 16, 32: 16}
    assert all(unknown[bits] >= known[bits] for bits in known)


def few_channels(direction: str) -> list[ConvProblem]:
    """1-D to 3-D, dense and in groups, overlapping windows and patches."""
    found = []
    for dims in (1, 2, 3):
        for groups in (1, 3):
            for channels in (1, 2, 3, 4, 5, 7, 8, 12, 16):
                inputs, outputs = channels * groups, 8 * groups
                if direction == "dgrad":
                    inputs, outputs = outputs, inputs
                for taps, stride in ((3, 1), (2, 2), (1, 1)):
                    found.append(
                        problem_of(
                            n=2,
                            ci=inputs,
                            co=outputs,
                            size=(12,) * dims,
                            taps=(taps,) * dims,
                            stride=stride,
                            groups=groups,
                        )
                    )
    return found


def depths_of(direction: str, problem: ConvProblem, dtype: torch.dtype) -> list[int]:
    """K of the products of what a plan chooses and of what tuning would try."""
    case = Case(direction=direction, problem=problem, dtype=dtype)
    with assumed_device(H200):
        configs = [make_plan(case, META).config]
    configs += candidates(problem, direction, dtype, H200)
    if direction == "dgrad":
        configs += configs_of(PATCHES, problem, dtype)
    inner = [getattr(config, "config", config) for config in configs if config is not None]
    return [
        getattr(config, "block_k", 0) or getattr(config, "block_pixels", 0)
        for config in inner
        if hasattr(config, "block_k") or hasattr(config, "block_pixels")
    ]


@needs_im2col
@pytest.mark.parametrize(
    ("direction", "dtype", "depth"),
    [
        *((direction, dtype, None) for direction, dtype in CASES),
        # As of 3.6 and 3.7, on any host.
        *((direction, torch.float32, 16) for direction in ("fprop", "dgrad")),
    ],
    ids=str,
)
def test_every_step_is_one_that_triton_multiplies(monkeypatch, direction, dtype, depth):
    if depth is None:
        depth = least_dot_depth(8 * dtype.itemsize)
    for module in (packing, refusals):
        monkeypatch.setattr(module, "least_dot_depth", lambda bits: depth)
    seen = [k for each in few_channels(direction) for k in depths_of(direction, each, dtype)]
    assert seen
    assert min(seen) >= depth
    # No more than there has to be, and less is refused.
    assert direction != "fprop" or min(seen) == depth
    refused = replace(TILES, block_k=depth // 2).refusals(dtype.itemsize)
    assert f"block_k is {depth // 2}: expected at least {depth} elements" in str(refused[0])


@needs_im2col
@pytest.mark.parametrize(
    "options",
    [
        {"ci": 4},
        {"ci": 4, "filter_size": (1, 1), "x_is_matrix": True},
        {"ci": 4, "groups": 3, "store_through_tma": False},
    ],
    ids=["dense", "matrix", "groups"],
)
def test_few_channels_of_fp32_compile(options, fresh_triton_cache):
    config = replace(
        TILES,
        block_k=channel_block(options["ci"], 4, options.get("groups", 1)),
    )
    ptx = compile_conv_fprop(config, 90, dtype=tl.float32, **options).asm["ptx"]
    assert "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32" in ptx


@needs_im2col
def test_patches_of_few_channels_of_fp32_compile(fresh_triton_cache):
    problem = problem_of(n=64, ci=3, co=4, size=(224, 224), taps=(4, 4), stride=4)
    config = configs_of(PATCHES, problem, torch.float32)[0]
    assert config.config.block_k == least_block(4)
    (kernel,) = compiled(PATCHES, config, problem, torch.float32)
    assert "f32.tf32.tf32" in kernel.asm["ptx"]


REFUSED = {
    torch.float16: (8, "expected at least 16 elements of 16 bits$"),
    torch.bfloat16: (8, "expected at least 16 elements of 16 bits$"),
    torch.float8_e5m2: (16, "expected at least 32 elements of 8 bits$"),
    torch.int8: (16, "expected at least 32 elements of 8 bits$"),
}


@pytest.mark.parametrize("value", ["8", 8.0, None])
def test_steps_that_are_no_numbers_are_named(value):
    refused = replace(TILES, block_k=value).refusals(2)
    assert [*map(str, refused)] == [f"block_k is {value!r}: expected an int of at least 1"]


@needs_im2col
@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_steps_that_no_release_multiplies_are_refused(dtype):
    block_k, message = REFUSED[dtype]
    config = replace(TILES, block_k=block_k)
    refuse(config, dtype, f"block_k is {block_k}: {message}")


@needs_im2col
def test_steps_that_newer_releases_multiply_name_the_release():
    config = replace(TILES, block_k=8)
    if OF_8.available:
        for direction in ("fprop", "dgrad"):
            case = Case(direction=direction, problem=DENSE, dtype=torch.float32)
            with assumed_device(H200):
                assert make_plan(case, META, config).config == config
        return
    message = (
        r"block_k is 8: expected at least 16 elements of 32 bits; triton .* multiplies no fewer "
        r"than 16 columns of fp32; install 3\.8 or newer: pip install 'triton>=3\.8'$"
    )
    refuse(config, torch.float32, message)


DENSE = problem_of(n=2, ci=16, co=16, size=(9, 9), taps=(3, 3), padding=1)


def refuse(config: ConvConfig, dtype: torch.dtype, message: str) -> None:
    """Plans refuse a configuration of a user's; a table's is not used."""
    for direction, dtypes in DTYPES.items():
        if direction == "wgrad" or dtype not in dtypes:
            continue
        case = Case(direction=direction, problem=DENSE, dtype=dtype)
        assert re.search(message, "; ".join(map(str, config_refusals(config, case, H200))))
        with assumed_device(H200), pytest.raises(UnsupportedError, match=message):
            make_plan(case, META, config)


@needs_im2col
def test_steps_of_a_gradient_that_reach_into_the_next_group_are_refused():
    grouped = problem_of(n=2, ci=48, co=72, size=(9, 9), taps=(3, 3), padding=1, groups=3)
    case = Case(direction="dgrad", problem=grouped, dtype=torch.float16)
    with assumed_device(H200):
        # 24 channels of a group are filled up to 32.
        assert make_plan(case, META, replace(TILES, block_k=32)).config.block_k == 32
        with pytest.raises(UnsupportedError, match="block_k is 64: expected a divisor of 32"):
            make_plan(case, META, TILES)
    assert "divisor of 32" in str(config_refusals(TILES, case, H200)[0])
    assert gemm.group_channels(72, 3) == 32


def test_the_capability_is_what_the_host_was_asked():
    assert OF_8.available == (least_dot_depth(32) <= dots.INSTRUCTION_BITS // 32)
