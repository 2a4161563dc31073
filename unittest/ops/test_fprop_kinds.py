"""The sweep of the kinds of fprop, without a GPU: candidates are legal and compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities
from triton_ext.ops.families.gemm_config import NARROW_CONFIGS, ConvConfig

from benchmarks.compile_ahead import CompilePool
from benchmarks.fprop_kinds import KINDS, _job, candidates

IM2COL = capabilities()["im2col"]
pytestmark = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)


@pytest.mark.parametrize("name", KINDS)
def test_candidates_are_few_and_different(name):
    found = list(candidates(KINDS[name]))
    assert 5 <= len(found) <= 40
    assert len(set(found)) == len(found)
    group_ci = KINDS[name].sizes[1] // KINDS[name].groups
    assert all(isinstance(config, ConvConfig) for config in found) or group_ci <= 8


@pytest.mark.parametrize("config", NARROW_CONFIGS, ids=str)
def test_narrow_configurations_are_possible(config):
    assert config.fits(2)
    assert config.block_n in (16, 32)


def test_a_dry_run_needs_no_gpu():
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "fprop_kinds", "--dry-run", "--shapes", "rgb", "gelu"],
        capture_output=True, text=True, check=False, timeout=300, env=os.environ,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["rgb", "gelu"]


@pytest.mark.slow
def test_jobs_compile_in_another_process(fresh_triton_cache):
    names = ("fp8 256", "depthwise 3x3")
    with CompilePool(1, (9, 0)) as pool:
        for name in names:
            config = next(iter(candidates(KINDS[name])))
            job = json.loads(json.dumps(_job(name, config)))
            result = pool.submit_job(job).result()
            assert result.error == ""
            assert (result.shared_bytes > 0) == (name == "fp8 256")
