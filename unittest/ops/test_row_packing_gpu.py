"""Row packing on a GPU: what lies beside a window."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from gpu_comparison import MARKS, skip_without_gpu
from packing_cases import PackedCase
from problem_cases import problem_of
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.gluon_config import ping_pong

skip_without_gpu()
pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def _plugin():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


KERNELS = [
    None,
    ConvConfig(block_m=128, block_n=64, block_k=32, num_stages=5, num_warps=4),
    ping_pong(64, 64, 4, block_k=32),
]


@pytest.mark.parametrize("config", KERNELS, ids=str)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("beside", [torch.nan, torch.inf])
def test_what_lies_behind_the_last_tap_is_not_read(beside, batch, config, columns):
    # Windows of 28 channels, 56 bytes: their last 16 bytes hold the first pixel of the next ones.
    problem = problem_of(n=batch, ci=4, co=64, size=(40, 40), taps=(7, 7), stride=2)
    case = PackedCase(problem=problem, dtype=torch.float16, columns=columns)
    x, weight, _ = case.tensors("cuda")
    x[..., 7] = beside
    y = case.plan(x, config).run(x, weight)
    # The windows of column 0 end in front of pixel 7; those of columns 4 and up begin behind it.
    seen = ~y.isfinite().all(dim=(0, 1, 2))
    assert seen.tolist() == [0 < out_w < 4 for out_w in range(y.shape[-1])]
