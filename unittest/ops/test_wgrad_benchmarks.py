"""The sweep of wgrad's configurations, without a GPU."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.host import capabilities
from triton_ext.ops.families import gluon_wgrad
from triton_ext.ops.families.wgrad import CONFIGS

from benchmarks.compile_ahead import CompilePool
from benchmarks.suites import select_layers
from benchmarks.wgrad_sweep import Choice, GluonChoice, candidate_of, candidates

ROOT = pathlib.Path(__file__).resolve().parents[2]
IM2COL = capabilities()["im2col"]
GLUON = capabilities()["im2col-gluon"].available


def test_candidates():
    for layer in select_layers("all"):
        found = candidates(layer.problem, 132)
        assert len(set(found)) == len(found) == len({str(choice) for choice in found})
        assert 1 <= len(found) <= 190
        for choice in found:
            assert not choice.config.refusals()
            assert candidate_of(json.loads(json.dumps(choice.fields()))) == choice
        shipped = {choice.config for choice in candidates(layer.problem, 132, narrow=True)}
        assert shipped <= {*CONFIGS, *gluon_wgrad.CONFIGS}
        problem = layer.problem
        in_eights = not problem.in_channels % 8 and not problem.out_channels % 8
        has_gluon = GLUON and problem.groups == 1 and in_eights
        assert any(isinstance(choice, GluonChoice) for choice in found) == has_gluon


def test_a_dry_run_writes_times_of_all_layers(tmp_path):
    out = tmp_path / "sweep.json"
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "wgrad_sweep", "--dry-run", "--suite", "unet",
         "--narrow", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "0 wrong results" in result.stdout
    sweep = json.loads(out.read_text("utf-8"))
    assert len(sweep["layers"]) == len(select_layers("unet"))
    for entry in sweep["layers"].values():
        assert all(result["status"] == "ok" for result in entry["results"])


@pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
def test_kernels_are_compiled_ahead(fresh_triton_cache):
    from benchmarks import wgrad_sweep

    job = {
        "module": wgrad_sweep.__name__,
        "layer": "32x128x28x28_128_k3x3",
        "dtype": "float16",
        "num_sms": 132,
        **Choice(CONFIGS[4], 1).fields(),
    }
    with CompilePool(1, (9, 0)) as pool:
        compiled = pool.submit_job(job).result(timeout=120)
        broken = pool.submit_job({**job, "layer": "none"}).result(timeout=120)
    assert compiled.error == ""
    assert 0 <= compiled.shared_bytes - CONFIGS[4].smem_bytes() <= 1024
    assert "layer 'none'" in broken.error
    names = {path.name for path in fresh_triton_cache.rglob("*.cubin")}
    assert names == {"conv_wgrad_kernel.cubin", "wgrad_reduce_kernel.cubin"}


@pytest.mark.skipif(not GLUON, reason="this Triton's Gluon has no im2col loads")
def test_kernels_in_gluon_are_compiled_ahead(fresh_triton_cache):
    from benchmarks import wgrad_sweep

    choice = GluonChoice(gluon_wgrad.CONFIGS[0], add_in_place=False)
    job = {
        "module": wgrad_sweep.__name__,
        "layer": "32x128x28x28_128_k3x3",
        "dtype": "float16",
        "num_sms": 132,
        **choice.fields(),
    }
    with CompilePool(1, (9, 0)) as pool:
        compiled = pool.submit_job(job).result(timeout=120)
    assert compiled.error == ""
    assert 0 <= compiled.shared_bytes - choice.config.smem_bytes <= 1024
    names = {path.name for path in fresh_triton_cache.rglob("*.cubin")}
    assert names == {"conv_wgrad_kernel.cubin", "reduce_kernel.cubin"}


def test_a_table_holds_the_faster_kernel():
    from triton_ext.ops.core.tables import decode

    from benchmarks.make_table import table_of

    jit = Choice(CONFIGS[4], 1)
    gluon = GluonChoice(gluon_wgrad.CONFIGS[0], add_in_place=True)
    results = [
        {**choice.fields(), "status": "ok", "ms": ms} for choice, ms in ((jit, 0.2), (gluon, 0.1))
    ]
    environment = {"device": "NVIDIA H200", "date": "2026-11-20 10:30 UTC", "triton": "3.9.0"}
    sweep = {
        "environment": environment,
        "dtype": "float16",
        "num_sms": 132,
        "layers": {"32x128x28x28_128_k3x3": {"results": results}},
    }
    ((key, entry),) = table_of([sweep]).entries.items()
    assert key == "wgrad float16 128->128 k3x3 padded steps 448"
    assert decode(entry["kind"], entry["config"]) == gluon.entry()
    assert entry["us"] == 100.0
