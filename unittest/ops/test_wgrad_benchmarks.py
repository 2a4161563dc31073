"""The sweep of wgrad's configurations and the fit of its model, without a GPU."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.host import capabilities
from triton_ext.ops.wgrad_config import CONFIGS, WgradTiles

from benchmarks.compile_ahead import CompilePool
from benchmarks.suites import select_layers
from benchmarks.wgrad_sweep import Choice, candidates

ROOT = pathlib.Path(__file__).resolve().parents[2]
IM2COL = capabilities()["im2col"]


def test_candidates():
    for layer in select_layers("all"):
        found = candidates(layer.problem, 132)
        assert len(set(found)) == len(found) == len({str(choice) for choice in found})
        assert 1 <= len(found) <= 150
        for choice in found:
            assert choice.config.problems() == ()
            assert Choice.of(choice.fields()) == choice
        shipped = candidates(layer.problem, 132, narrow=True)
        assert {choice.config for choice in shipped} <= set(CONFIGS)


def test_a_dry_run_writes_what_the_fit_reads(tmp_path):
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


def tiles_of(choice, problem):
    return WgradTiles.make(choice.config, problem, 132, choice.part_rounds)


@pytest.fixture
def modelled(tmp_path):
    """A sweep whose times are those of the model."""
    pytest.importorskip("numpy")
    from triton_ext.ops.wgrad_config import expected_us

    layers = {}
    for layer in select_layers("all"):
        results = [
            {
                **choice.fields(),
                "status": "ok",
                "ms": expected_us(tiles_of(choice, layer.problem)) / 1e3,
                "spread": 0.0,
            }
            for choice in candidates(layer.problem, 132, narrow=True)
        ]
        layers[layer.name] = {"cudnn_ms": 1.0, "results": results}
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"num_sms": 132, "layers": layers}), encoding="utf-8")
    return path


def test_the_fit_finds_the_numbers_of_the_model(modelled):
    from triton_ext.ops import wgrad_config

    from benchmarks.fit_wgrad import SHARED, fit, load

    shared, costs, error = fit(load([modelled]))
    # A few layers are bound by memory all the same.
    assert error < 1e-3
    wanted = [getattr(wgrad_config, name) for name in SHARED]
    assert shared == pytest.approx(wanted, rel=0.05, abs=0.02)
    assert len(costs) >= 5
    for config, (step_us, segment_us) in costs.items():
        cost = wgrad_config._COSTS[config]
        assert step_us == pytest.approx(cost.step_us, rel=0.05)
        assert segment_us == pytest.approx(cost.segment_us, rel=0.2)


def test_a_choice_that_is_the_best_loses_nothing(modelled, capsys):
    from benchmarks.fit_wgrad import main

    assert main([str(modelled), "--pick", "3", "--fit"]) == 0
    printed = capsys.readouterr().out
    assert "chosen/best 1.0000, worst 1.0000" in printed
    assert "_LAUNCH_US = 2.5" in printed


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
    assert 0 <= compiled.shared_bytes - CONFIGS[4].smem_bytes(None) <= 1024
    assert "layer 'none'" in broken.error
    names = {path.name for path in fresh_triton_cache.rglob("*.cubin")}
    assert names == {"conv_wgrad_kernel.cubin", "wgrad_reduce_kernel.cubin"}
