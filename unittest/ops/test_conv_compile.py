"""Every shipped configuration compiles for the targets it is offered for, and fits there."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import triton.language as tl
from compiled_gemm import compile_conv_fprop
from family_plans import compiled, configs_of
from triton_ext.host import capabilities
from triton_ext.ops.core.device import SMEM_BYTES
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.direct import DIRECT
from triton_ext.ops.families.gemm_config import CONFIGS, ConvConfig, OutputTile

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


CASES = [
    pytest.param(config, capability, through_tma, id=f"{config}-sm_{capability}-tma={through_tma}")
    for config in CONFIGS
    for capability in (90, 100)
    for through_tma in (True, False)
    # Models offer nothing else.
    if config.fits(2, OutputTile(whole=capability >= 100 or not through_tma))
]


@pytest.mark.parametrize(("config", "capability", "store_through_tma"), CASES)
def test_compiles_and_fits(config, capability, store_through_tma, fresh_triton_cache):
    compiled = compile_conv_fprop(
        config, capability, has_bias=True, store_through_tma=store_through_tma
    )
    assert "im2col" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SMEM_BYTES


@pytest.mark.parametrize("capability", [90, 100])
def test_every_target_has_a_choice_of_tiles(capability):
    tiles = {(c.values[0].block_m, c.values[0].block_n) for c in CASES if c.values[1] == capability}
    assert len(tiles) >= 5


def tiles(block_k: int = 64, block_n: int = 64) -> ConvConfig:
    return ConvConfig(block_m=64, block_n=block_n, block_k=block_k, num_stages=4, num_warps=4)


# What is compiled, and the instruction that multiplies on sm_90; 64 rows, 32 bytes of channels.
KINDS = {
    "1-D": ({"config": tiles(), "filter_size": (3,)}, "m64n64k16.f32.f16.f16"),
    "3-D": ({"config": tiles(), "filter_size": (2, 3, 3)}, "m64n64k16.f32.f16.f16"),
    "matrix": (
        {"config": tiles(), "filter_size": (1, 1), "x_is_matrix": True},
        "m64n64k16.f32.f16.f16",
    ),
    "bf16": ({"config": tiles(), "dtype": tl.bfloat16}, "m64n64k16.f32.bf16.bf16"),
    "tf32": ({"config": tiles(32), "dtype": tl.float32}, "m64n64k8.f32.tf32.tf32"),
    "e4m3": ({"config": tiles(128), "dtype": tl.float8e4nv}, "m64n64k32.f32.e4m3.e4m3"),
    "e5m2": ({"config": tiles(128), "dtype": tl.float8e5}, "m64n64k32.f32.e5m2.e5m2"),
    "int8": ({"config": tiles(128), "dtype": tl.int8}, "m64n64k32.s32.s8.s8"),
    "few channels": ({"config": tiles(16), "ci": 8}, "m64n64k16.f32.f16.f16"),
    "groups": ({"config": tiles(16, 16), "ci": 16, "groups": 8}, "m64n16k16.f32.f16.f16"),
    "groups with a tail": (
        {"config": tiles(64, 32), "ci": 40, "groups": 8, "store_through_tma": False},
        "m64n32k16.f32.f16.f16",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_multiplies_on_tensor_cores(name, fresh_triton_cache):
    options, instruction = KINDS[name]
    for capability in (90, 100) if NIGHTLY else (90,):
        ptx = compile_conv_fprop(capability=capability, **options).asm["ptx"]
        # Loads of x are im2col's, or tiled like those of w, and y is stored by TMA where it can be.
        assert ("im2col" in ptx) == (name != "matrix")
        stores = ptx.count("cp.async.bulk.tensor.2d.global")
        assert (stores > 0) == options.get("store_through_tma", True)
        if capability == 90:
            assert f"wgmma.mma_async.sync.aligned.{instruction}" in ptx
        elif name != "int8" or capabilities()["im2col-gluon"].available:
            # Triton 3.6 and 3.7 have no tcgen05 instruction for int8.
            assert "tcgen05.mma" in ptx


@pytest.mark.parametrize("channels", [64, 96])
def test_the_kernel_without_tensor_cores_moves_16_bytes(channels, fresh_triton_cache):
    problem = ConvProblem(
        batch=8,
        in_channels=channels,
        out_channels=channels,
        input_size=(56, 56),
        filter_size=(7, 7),
        stride=(1, 1),
        padding=((3, 3), (3, 3)),
        dilation=(1, 1),
        groups=channels,
    )
    (kernel,) = compiled(DIRECT, configs_of(DIRECT, problem)[0], problem)
    ptx = kernel.asm["ptx"]
    assert re.search(r"ld\.global\.v4\.b32|ld\.global\.v4\.u32", ptx)
    assert re.search(r"st\.global\.v4\.b32|st\.global\.v4\.u32", ptx)
    assert "wgmma" not in ptx
