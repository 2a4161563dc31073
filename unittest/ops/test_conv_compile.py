"""Every shipped configuration compiles for the targets it is offered for, and fits there."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities
from triton_ext.ops.conv_config import CONFIGS, SMEM_BYTES
from triton_ext.ops.conv_fprop import compile_conv_fprop

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


CASES = [
    pytest.param(config, capability, through_tma, id=f"{config}-sm_{capability}-tma={through_tma}")
    for config in CONFIGS
    for capability in (90, 100)
    for through_tma in (True, False)
    # choose_config offers nothing else.
    if config.fits(2, whole_tile=capability >= 100 or not through_tma)
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
